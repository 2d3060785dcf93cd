"""What a call of the command line says, and the files that a test gives to one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["Kit", "Said", "write"]

Said = tuple[int, str, str]
Kit = Callable[..., Said]


def write(name: str, text: str) -> str:
    Path(name).write_text(text, "utf-8")
    return name
