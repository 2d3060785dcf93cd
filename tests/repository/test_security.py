"""Each promise of docs/security.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## What is promised, and what holds it")[1].split("\n## ")[0]
ROWS = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("|")][2:]


@pytest.fixture(scope="module")
def tests() -> dict[str, str]:
    """File -> its text."""
    found = (ROOT / "tests").rglob("test_*.py")
    return {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in found}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_a_promise_is_held_by_tests_that_exist(row: list[str], tests: dict[str, str]) -> None:
    promise, held = row
    files, names = re.findall(r"`(tests/\S+\.py)`", held), re.findall(r"`(test_\w+)`", held)
    assert files or names, f"nothing holds: {promise}"
    for file in files:
        assert "\ndef test_" in tests[file], f"{file} has no test"
    for name in names:
        assert any(f"def {name}(" in text for text in tests.values()), f"no test is called {name}"
