"""The code of a page of the documentation, run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["page", "run_page"]


def page(name: str) -> Path:
    """A page of `docs/`."""
    return Path(__file__).parents[1] / "docs" / name


def run_page(path: Path) -> dict[str, Any]:
    """The names that the page's code leaves behind; an error has the page's line."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(path), "exec"), names)
    return names
