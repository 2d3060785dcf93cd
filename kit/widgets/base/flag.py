"""What a callback asks to learn whether a person, or the view itself, has caused it."""

from __future__ import annotations

__all__ = ["Flag"]


class Flag:
    """True inside of `with flag:`; the blocks may be nested."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0
