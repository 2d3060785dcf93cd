"""The rows of a diff of two runs: what each thing took before and after, and whether it changed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kit.runs.change import Difference
from kit.text import format_count, format_ms, safe_markdown, safe_terminal

__all__ = ["Change", "NodeChange", "rest_texts", "row_markdown", "row_text"]

_HIDDEN = "whose spread may hide a change"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing of both runs, and what it took in each; nan where a run does not have it.

    Units:
        milliseconds a step
    """

    name: str
    old: float
    new: float
    note: str = ""
    difference: Difference | None = None  # by the rule for "changed"; None: nothing is known

    @property
    def ms(self) -> float:
        """How much more it takes now; what is not there takes nothing."""
        return _zero(self.new) - _zero(self.old)

    @property
    def kind(self) -> str:
        """Which runs have it: "both", "appeared" or "vanished"."""
        if math.isnan(self.old):
            return "appeared"
        return "vanished" if math.isnan(self.new) else "both"

    @property
    def is_changed(self) -> bool:
        """By more than the spread; see docs/measuring.md."""
        return self.difference is not None and self.difference.is_changed

    def why_untold(self, known_doubt: str) -> str:
        """Why it is not called changed, in words that follow `3 rows`.

        Args:
            known_doubt: what the step's line says already.
        """
        if self.difference is not None and (doubt := self.difference.doubt):
            is_known = doubt == known_doubt
            return "not compared: the step's line says why" if is_known else f"not judged: {doubt}"
        if self.difference is None or math.isnan(self.difference.spread):
            return "with too few steps to know the spread"
        if self.difference.kind == "unclear":
            return _HIDDEN
        return "without a change beyond the spread"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node of the two graphs, and the device time that it had in each.

    Units:
        milliseconds a step; nan where a run does not have it, or no kernel computes it by name
    """

    kind: str  # "same", "changed", "rewired", "removed" or "added": see `Graph.diff`
    left: int  # id in the old graph, -1 if it is not there
    right: int
    op: str
    site: str
    scope: str
    old: float
    new: float
    difference: Difference | None = None

    @property
    def ms(self) -> float:
        """How much more it takes now; what is not there takes nothing."""
        return _zero(self.new) - _zero(self.old)

    @property
    def is_changed(self) -> bool:
        """By more than the spread; see docs/measuring.md."""
        return self.difference is not None and self.difference.is_changed


def rest_texts(rows: Sequence[Change], known_doubt: str = "") -> list[str]:
    """`70 rows without a change beyond the spread`: the rows that did not change, by the reason.

    Args:
        known_doubt: what the step's line says already.
    """
    untold: dict[str, list[Change]] = defaultdict(list)
    for row in rows:
        if not row.is_changed:
            untold[row.why_untold(known_doubt)].append(row)
    return [
        f"{format_count(len(alike), 'row')} {why}{_largest(alike) if why == _HIDDEN else ''}"
        for why, alike in sorted(untold.items())
    ]


def _largest(rows: Sequence[Change]) -> str:
    row = max(rows, key=lambda row: abs(row.ms))
    return f": the largest {row.name[:90]}, {_said(row)}"


def row_text(name: str, row: Change | NodeChange, note: str = "") -> str:
    """`dot: 10 ms -> 30 ms, 20 ms ± 1 ms slower`, for a terminal."""
    more = f"  ({_short(note)})" if note else ""
    return f"{_short(name)}: {_ms(row.old)} -> {_ms(row.new)}, {_said(row)}{more}"


def row_markdown(name: str, row: Change | NodeChange) -> tuple[str, str, str, str]:
    """The cells of a Markdown table: name, old, new, what changed; a change is bold."""
    said = f"**{_said(row)}**" if row.is_changed else _said(row)
    return safe_markdown(name), _ms(row.old), _ms(row.new), said


def _said(row: Change | NodeChange) -> str:
    if math.isnan(row.old) and math.isnan(row.new):
        return "no kernel of its own" if isinstance(row, NodeChange) else "not measured"
    if row.difference is None:
        return f"{'+' if row.ms >= 0 else '−'}{format_ms(abs(row.ms))}"
    if row.difference.is_ratio:
        return row.difference.text()
    is_in_both = not math.isnan(row.old) and not math.isnan(row.new)
    more, less = ("slower", "faster") if is_in_both else ("appeared", "vanished")
    return row.difference.text(more, less, format_ms, says_doubt=False)  # the step's row says it


def _ms(ms: float) -> str:
    return format_ms(ms, "-")


def _short(text: str) -> str:
    return safe_terminal(text, 90)


def _zero(ms: float) -> float:
    return 0.0 if math.isnan(ms) else ms
