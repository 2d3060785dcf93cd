"""Find the step in somebody's script, and say which of their lines an error comes from."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from kit.cli.scripts.module import run_in
from kit.errors import RAISED_AT, SettingsError, is_a, named, traceback_of, words_of
from kit.files import in_packages
from kit.text import WHOLE, safe_terminal

__all__ = [
    "ScriptError",
    "check_script",
    "error_text",
    "has_step",
    "is_of_script",
    "knows_kit",
    "load_step",
    "load_workload",
    "near",
]

_NAME = "kit_script"  # the name of a script whose own is taken, or none of a module
_KIT = str(Path(__file__).resolve().parents[2]) + os.sep
_OF_JAX = "-" * 20  # begins a note of jax's on every error: frames of its own were left out
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')  # of a traceback
_EXAMPLE = """
    @kit.workload
    def mine(ctx):
        model = Net().to(ctx.device)
        ...
        return step   # a function without arguments that returns the loss"""


class ScriptError(Exception):
    """The script itself failed: `error` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(words_of(error))
        self.error = error


def knows_kit(script: Path) -> bool:
    """True if a script, or a file beside it that it imports, imports kit, or it has a `step`.

    One that goes on under `if __name__ == "__main__":` is a program, with a helper of that name.
    Nothing is run. A file that is no Python counts as one that knows nothing.
    """
    seen: set[Path] = set()
    files = [script]
    while files:
        file = files.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        names = set(_imported(tree))
        if any(not up and name.split(".")[0] == "kit" for up, name in names):
            return True
        if file == script and any(map(_is_step, tree.body)) and not any(map(_is_main, tree.body)):
            return True
        folders = script.parent, *file.parents
        beside = (folders[up].joinpath(*name.split(".")) for up, name in names if up < len(folders))
        files += [
            found
            for path in beside
            for found in (path.with_suffix(".py"), path / "__init__.py")
            if found.is_file()
        ]
    return False


def has_step(script: Path) -> bool:
    """Is there a function `step` in it? Not where it is no Python, or there no more."""
    with contextlib.suppress(SyntaxError, ValueError, OSError):
        return any(map(_is_called_step, ast.parse(script.read_bytes()).body))
    return False


def _is_called_step(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == "step"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of modules, each with the dots before it: 1 is a module of the same package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.level, node.module


def _is_step(node: ast.stmt) -> bool:
    """A function `step` that is called without arguments and returns its loss; `step(batch)`, or
    one that returns nothing, is a program's own.
    """
    if not _is_called_step(node):
        return False
    given = node.args
    needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return not needed and None not in given.kw_defaults and _returns(node)


def _returns(function: ast.FunctionDef) -> bool:
    """Does it return something? What stands in a function inside it does not count."""
    inside: list[ast.AST] = [*function.body]
    while inside:
        node = inside.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            inside += ast.iter_child_nodes(node)
    return False


def _is_main(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def load_step(script: Path, name: str, arguments: Sequence[str]) -> tuple[Any, bool]:
    """What a script has to be measured, and whether it is a plain `step`, which knows no device.

    The script is run from top to bottom, as `python script.py arguments` would, but `__name__` is
    not "__main__". Then it must hold workloads (`@kit.workload`), or else a function `step`.

    Args:
        name: of the workload to take; needed only if there are several.

    Raises:
        SettingsError: there is no such thing in it, or there are several; the message lists them.
        ScriptError: the script raised.
        OSError: there is no such file.
    """
    check_script(script)
    found = _globals_of(script, arguments)
    from kit.measure.base.context import Workload

    known = {key: x for key, x in found.items() if isinstance(x, Workload)}
    here = found["__name__"]
    own = {k: x for k, x in known.items() if getattr(x.build, "__module__", "") == here}
    if name:
        chosen = [x for key, x in known.items() if name in (key, x.name)]
        if not chosen and not callable(found.get(name)):
            there = f"there are: {', '.join(known)}" if known else "it has no workloads"
            raise SettingsError(f"{script.name} has no workload called {name!r}; {there}")
        return (chosen[0], False) if chosen else (found[name], True)
    candidates = own or known
    if len({id(x) for x in candidates.values()}) > 1:
        raise SettingsError(
            f"{script.name} has several workloads: {', '.join(candidates)}. Say which by --workload"
        )
    if candidates:
        return next(iter(candidates.values())), False
    step = found.get("step")
    if callable(step) and _needs_nothing(step):
        return step, True
    other = ": its own takes arguments" if callable(step) else ""
    raise SettingsError(
        f"{script.name} has nothing to measure: no function marked with @kit.workload, and none "
        f"called `step` that is called without arguments{other}. A script with kit.watch in it is "
        f"run by python. A workload looks like this:\n{_EXAMPLE}"
    )


def _needs_nothing(step: Any) -> bool:
    try:
        inspect.signature(step).bind()
    except TypeError:
        return False
    except ValueError:  # Python knows no signature of some callables
        return True
    return True


def check_script(script: Path) -> None:
    """Accept a file; of a folder say which file of it may be meant, of a run what shows it.

    Raises:
        SettingsError: it is a folder, or a run that kit saved.
        FileNotFoundError: there is no such file.
    """
    if script.is_dir():
        main = script / "__main__.py"
        files = [main] if main.is_file() else sorted(script.glob("*.py"))
        shown = " or ".join(safe_terminal(str(file), WHOLE) for file in files[:3])
        meant = f"run a file of it: kit run {shown}" if files else "it has no Python file"
        raise SettingsError(f"{safe_terminal(str(script), WHOLE)} is a folder; {meant}")
    if not script.is_file():
        raise FileNotFoundError(2, "there is no such script", str(script))
    if script.suffix == ".kitrun":
        shown = safe_terminal(str(script), WHOLE)
        raise SettingsError(f"{shown} is a saved run and no script: kit view {shown}")


def load_workload(script: Path, name: str, arguments: Sequence[str]) -> Any:
    """The same in another process, which has the script's file but not its objects."""
    return load_step(script, name, arguments)[0]


def _globals_of(script: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run the script; what it imports stands beside it, and it sees its own arguments."""
    before = sys.argv
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    path = os.path.abspath(script)
    name, known = _name_of(path), set(sys.modules)
    try:
        try:
            return _run_as(name, path)
        except (ImportError, AttributeError) as error:
            if name == _NAME or _asked_for_more(error) != name:
                raise
        _forget(sys.modules.keys() - known, os.path.dirname(os.path.realpath(path)) + os.sep)
        return _run_as(_NAME, path)  # as Python, which runs it as "__main__" and for the import
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ScriptError(error) from error
    finally:
        sys.argv = before  # its folder stays on the path: steps import late


def _run_as(name: str, path: str) -> dict[str, Any]:
    module = ModuleType(name)
    try:
        run_in(module, path)
    except BaseException:
        sys.modules.pop(name, None)  # as where an import fails
        raise
    return vars(module)


def _asked_for_more(error: ImportError | AttributeError) -> str | None:
    """The module that does not have what was asked for: perhaps the script, while it is half run.

    So a file finds it that the script imports, and that imports from the script.
    """
    if isinstance(error, ImportError):
        return error.name
    return getattr(error.obj, "__name__", None)


def _forget(modules: Iterable[str], folder: str) -> None:
    """Those of the folder: they hold what the script had then. None of kit's, in a checkout."""
    for name in modules:
        file = os.path.realpath(str(getattr(sys.modules[name], "__file__", "")))
        if file.startswith(folder) and not (in_packages(file) or file.startswith(_KIT)):
            del sys.modules[name]


def _name_of(path: str) -> str:
    """The name of the script's module: that of its file, where an import finds that under it.

    So a child that is spawned finds what is pickled by name: a model's class, a loader's data set.
    """
    name = Path(path).stem
    if (known := sys.modules.get(name)) is not None:
        origin = getattr(known, "__file__", None)
    else:
        found = find_spec(name) if name.isidentifier() else None
        origin = None if found is None else found.origin
    return (
        name if origin is not None and os.path.realpath(origin) == os.path.realpath(path) else _NAME
    )


def error_text(error: BaseException, script: Path, *, full: bool = False) -> str:
    """An error with the last of the user's lines that it came through.

    Args:
        script: its file, from the root.
        full: the whole traceback instead.
    """
    if full:
        return traceback_of(error).rstrip()
    lines = [named(error)]
    if is_a(error, SystemExit):
        lines = [f"the script ended itself, with exit status {error.code!r}"]
    place = _place(error, script)
    if place is not None:
        path, number, function = place
        code = linecache.getline(path, number).strip()
        inside = f" in {function}" if function and function != "<module>" else ""
        lines[:0] = [
            f"{safe_terminal(near(path), WHOLE)}:{number}{inside}",
            *([f"    {code}"] if code else []),
        ]
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return "\n".join(
        [*lines, *(note for note in notes if not note.startswith((RAISED_AT, _OF_JAX)))]
    )


def is_of_script(error: BaseException, script: Path) -> bool:
    """True if an error came through a line of the user's."""
    return _place(error, script) is not None


def _place(error: BaseException, script: Path) -> tuple[str, int, str] | None:
    """File, line and function: the innermost in the script's folder that is none of kit's."""
    if is_a(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0, ""
    own, folder = str(script), str(script.resolve().parent) + os.sep
    frames = [
        (f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)
    ]
    for note in map(str, getattr(error, "__notes__", ())):
        if note.startswith(RAISED_AT):  # in another process
            frames += [(path, int(line), name) for path, line, name in _FRAME.findall(note)]
    found = None
    for place in frames:
        path = os.path.abspath(place[0])
        is_near = path.startswith(folder) and not in_packages(path)
        is_kits = path.startswith(_KIT)  # which a checkout has beside the script
        if path == own or (is_near and not is_kits and not place[0].startswith("<")):
            found = place
    return found


def near(path: str, folder: str = os.curdir) -> str:
    """The same file, as one would write it in a folder: without what leads to that."""
    try:
        relative = os.path.relpath(path, folder)
    except (ValueError, OSError):  # on Windows no way leads to another drive; a folder may be gone
        relative = os.pardir
    return path if relative.startswith(os.pardir) else relative
