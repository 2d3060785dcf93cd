"""JavaScript modules joined to one expression that a page runs without loading any file.

The JavaScript of kit is written as ES modules. A saved page must work from a folder without a
network, and its policy lets it load nothing, so modules cannot import each other there:
`script(entry)` puts them into one text, each in a function of its own, in the order of their needs.
"""

from __future__ import annotations

import json
import posixpath
import re
from functools import cache
from importlib import resources

__all__ = ["ScriptError", "asset", "script"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"\n]+\.js)";\n', re.MULTILINE)
_STYLE = re.compile(r'^import (\w+) from "(\.[^"\n]+\.css)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?://[^\n]*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.MULTILINE)


class ScriptError(ValueError):
    """A module of kit's JavaScript is written in a way that `script` does not join."""


def asset(path: str) -> str:
    """The text of a file that comes with kit; `path` is below the package: "reports/page.html"."""
    return resources.files("kit").joinpath(path).read_text("utf-8")


@cache
def script(entry: str) -> str:
    """One JavaScript expression: the object of all that the module `entry` exports.

    `script("widgets/timeline/js/page.js")` is "(() => { ... })()". Of the module syntax it knows
    named imports, `import text from "./a.css"`, and `export` before a function, class or const.

    Raises:
        ScriptError: a module has other imports or exports, asks for a name that the other module
            does not export, or needs itself.
    """
    joined: dict[str, tuple[str, set[str]]] = {}
    _join(entry, joined, ())
    modules = "".join(text for text, _ in joined.values())
    return f"(() => {{\n{modules}return {_variable(entry)};\n}})()"


def _join(path: str, joined: dict[str, tuple[str, set[str]]], above: tuple[str, ...]) -> None:
    """Add a module after those that it imports; `above`: the modules that are waiting for it."""
    if path in above:
        raise ScriptError(f"{path} imports itself: {' -> '.join([*above, path])}")
    if path in joined:
        return
    folder = posixpath.dirname(path)

    def imported(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        _join(target, joined, (*above, path))
        names = [name.strip() for name in found[1].split(",") if name.strip()]
        missing = {name.split()[0] for name in names} - joined[target][1]
        if missing:
            raise ScriptError(f"{path}: {target} does not export {', '.join(sorted(missing))}")
        return f"const {{{', '.join(names).replace(' as ', ': ')}}} = {_variable(target)};\n"

    def styled(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        return f"const {found[1]} = {json.dumps(asset(target))};\n"

    text = _COMMENT.sub("", asset(path))
    text = _STYLE.sub(styled, _IMPORT.sub(imported, text))
    names = _EXPORT.findall(text)
    text = _EXPORT.sub("", text)
    if left := _LEFT.search(text):
        raise ScriptError(f"{path}: this is not joined: {left[0]}")
    joined[path] = (
        f"const {_variable(path)} = (() => {{\n{text}return {{{', '.join(names)}}};\n}})();\n",
        set(names),
    )


def _variable(path: str) -> str:
    """`widgets/timeline/js/page.js` -> `widgets_timeline_js_page`."""
    return re.sub(r"\W", "_", path.removesuffix(".js"))
