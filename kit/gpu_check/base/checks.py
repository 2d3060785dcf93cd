"""A check: a number, its target, and whether it was met. A table: rows that a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

__all__ = ["MEASURED", "NOT_OK", "NOT_RUN", "OK", "Check", "Table", "Target"]

OK, NOT_OK, NOT_RUN = "ok", "not ok", "not run"
MEASURED = "measured"  # a number that has no target
STATES = (OK, NOT_OK, NOT_RUN, MEASURED)


class Target(TypedDict, total=False):
    """What a number is compared with, and what is said of it; without bounds it is only shown."""

    at_least: float | None
    at_most: float | None
    unit: str
    why: str  # what the number is made of


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was asked of the machine.

    Attributes:
        number: what was found; None if nothing was.
        target: in words, such as "at least 0.98"; "" if there is none.
        why: what the number is made of; or what went wrong, or why it was not run.
    """

    name: str
    state: str
    number: float | None = None
    target: str = ""
    unit: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"the state of a check is one of {STATES}, not {self.state!r}")

    @classmethod
    def of(cls, name: str, number: float, **target: Unpack[Target]) -> Self:
        """Compare a number with its target; a number that is not finite meets none."""
        number = float(number)
        at_least, at_most = target.get("at_least"), target.get("at_most")
        unit, why = target.get("unit", ""), target.get("why", "")
        low = "" if at_least is None else f"at least {at_least:g}"
        high = "" if at_most is None else f"at most {at_most:g}"
        words = ", ".join(filter(None, (low, high)))
        if not math.isfinite(number):
            return cls(name, NOT_OK, None, words, unit, f"no number came out ({number}). {why}")
        is_met = (at_least is None or number >= at_least) and (at_most is None or number <= at_most)
        state = (OK if is_met else NOT_OK) if words else MEASURED
        return cls(name, state, number, words, unit, why)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; a later table of the same title takes its place."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, str | float | None]]) -> Self:
        """The columns are those of the first row."""
        columns = tuple(rows[0]) if rows else ()
        return cls(title, columns, tuple(tuple(row.get(c) for c in columns) for row in rows))
