"""JavaScript modules become one text that needs nothing else; what cannot be joined is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.widgets.base import scripts
from kit.widgets.base.scripts import ScriptError, script

KIT = Path(scripts.__file__).parents[2]
MODULES = sorted(
    path.relative_to(KIT).as_posix() for path in KIT.rglob("js/**/*.js") if path.is_file()
)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Modules by path, instead of those that come with kit."""
    given: dict[str, str] = {}
    monkeypatch.setattr(scripts, "asset", given.__getitem__)
    script.cache_clear()
    yield given
    script.cache_clear()


def evaluate(expression: str) -> object:
    """What node makes of the expression, as JSON."""
    node = shutil.which("node")
    assert node, "node is missing"
    code = f"console.log(JSON.stringify({expression}))"
    answer = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_modules_find_each_other_and_names_of_one_are_not_seen_by_others(files: dict[str, str]):
    files["a/main.js"] = (
        'import {twice, OFFSET as by} from "./lib/math.js";\nimport {helper} from "../b.js";\n'
        "// a comment\nexport const answer = twice(20) + by + helper();\n"
    )
    files["a/lib/math.js"] = (
        'import {helper} from "../../b.js";\n'
        "/**\n * @param {number} x\n */\nexport function twice(x) {\n"
        "  /** @type {any} */ const y = 2 * x;\n  return y + helper(); /** the end */\n}\n"
        "export const OFFSET = 1;\nconst answer = 7;\n"
    )
    files["b.js"] = "let calls = 0;\nexport function helper() {\n  return calls++;\n}\n"
    joined = script("a/main.js")
    assert joined.count("function helper()") == 1  # a module that two others need runs once
    assert "comment" not in joined
    assert evaluate(joined) == {"answer": 42}


def test_a_style_sheet_is_imported_as_text(files: dict[str, str]):
    files["a.js"] = 'import css from "./a.css";\nexport const length = css.length;\n'
    files["a.css"] = 'b { content: "\\2014"; }\n'
    assert evaluate(script("a.js")) == {"length": len(files["a.css"])}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('import * as all from "./b.js";\n', "this is not joined: import"),
        ("export default 1;\n", "this is not joined: export default"),
        ('import {no} from "./b.js";\n', "b.js does not export no"),
        ('import {a} from "./a.js";\n', "a.js imports itself: a.js -> a.js"),
    ],
)
def test_what_cannot_be_joined_is_named(files: dict[str, str], text: str, problem: str):
    files["a.js"] = text
    files["b.js"] = "export const yes = 1;\n"
    with pytest.raises(ScriptError, match=problem):
        script("a.js")


@pytest.mark.parametrize("path", MODULES)
def test_each_module_of_kit_can_be_joined_and_put_into_a_page(path: str):
    joined = script(path)
    assert "</script" not in joined
    assert not any(line.startswith(("import ", "export ")) for line in joined.splitlines())


def test_node_can_read_each_joined_module():
    texts = json.dumps([script(path) for path in MODULES])
    count = f"{texts}.map((text) => new (require('vm').Script)(text)).length"
    assert evaluate(count) == len(MODULES)
