"""One thing that `kit doctor` has looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BAD", "ODD", "OK", "Finding"]

OK, ODD, BAD = "ok", "note", "MISSING"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: str  # OK, ODD: works without it or differs; BAD: something will not work
    text: str
    cure: str = ""
