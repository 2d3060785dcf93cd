"""Two runs side by side as tables: what changed, what appeared, what vanished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import traitlets
from ipywidgets import HTML

from kit.runs.analysis.diff import Change, NodeChange, RunDiff
from kit.runs.analysis.rows import rest_texts
from kit.text import capital, format_count, format_ms, format_percent, safe_html
from kit.widgets.base.change import change_html
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.page import View
from kit.widgets.base.tables import (
    MUTED,
    amount,
    code,
    not_shown,
    section,
    sentence,
    table,
)

__all__ = ["RunDiffView", "run_diff_html"]

MAX_ROWS = 8
_WIDTHS = (40, 15, 15, 30)
_LEAST_PX = 440  # with less, numbers would lie over each other
_NOTE = (
    "Milliseconds a step; ± is half of the interval in which the change lies with 95% (99% for "
    "parts of the step), and what it does not leave out is no change. Device times are parts of "
    "the busy time: all kernels together differ by what the busy time differs by. Nodes are "
    "aligned by the graphs' structure, lines by their text; a fused kernel's time is divided "
    "equally among its nodes."
)


def run_diff_html(diff: RunDiff) -> str:
    """The step and its settings, then what changed most in each part, `MAX_ROWS` rows each."""
    old, new = (safe_html(label, 80) for label in diff.labels)
    changed = "".join(
        f"<div>{safe_html(name)}: {safe_html(a, 80)} → <b>{safe_html(b, 80)}</b></div>"
        for name, a, b in _conditions(diff)
    )
    head = f"<b>{old}</b> → <b>{new}</b>{changed}{_doubt(diff)}"
    parts = [
        section("What changed", sentence(head) + _table([diff.step])),
        *(_section(title, rows, diff.doubt) for title, rows in diff.sections),
        _nodes("Got slower", diff.slower),
        _nodes("Appeared", diff.appeared),
        _nodes("Vanished", diff.vanished),
        _unchanged(diff),
        sentence(_NOTE),
    ]
    return "".join(parts)


def _doubt(diff: RunDiff) -> str:
    """Why each change below is a "maybe"."""
    why = safe_html(diff.doubt, 300)
    return f"<div>No time is called changed: {why}.</div>" if why else ""


def _conditions(diff: RunDiff) -> list[tuple[str, object, object]]:
    """Settings, versions and machines that differ, sync points and compiles."""
    found: list[tuple[str, object, object]] = [(n, repr(a), repr(b)) for n, a, b in diff.settings]
    found += [*diff.environment, *diff.points]
    compiling = [format_percent(part) for part in diff.compiling]
    counts = (
        ("segments", diff.segments),
        ("compiles", diff.compiles),
        ("compiling, of the measured steps' time", compiling),
    )
    for name, (old, new) in counts:
        found += [(name, old, new)] * (old != new)
    return found


def _section(title: str, rows: Sequence[Change], doubt: str) -> str:
    """The rows that changed; of the others, how many, and why. "" if none has changed."""
    changed = [row for row in rows if row.is_changed]
    if not changed:
        return ""
    said = not_shown(len(changed) - MAX_ROWS, "changed row")
    said += "".join(f" {safe_html(rest, 400)}." for rest in rest_texts(rows, doubt))
    return section(title, _table(changed[:MAX_ROWS]) + sentence(said))


def _unchanged(diff: RunDiff) -> str:
    """What was not compared, and the parts of which nothing changed, a line each.

    What the step's doubt says of these, it says once.
    """
    unchanged = ((t, rows) for t, rows in diff.sections if not any(r.is_changed for r in rows))
    said = [f"{capital(text)}." for text in diff.notes]
    if not diff.doubt:
        said += [f"{title}: {'; '.join(rest_texts(rows))}." for title, rows in unchanged if rows]
    lines = "".join(f"<div>{safe_html(line, 600)}</div>" for line in said)
    return sentence(lines)


def _table(rows: Sequence[Change]) -> str:
    cells = [[_named(r.name, r.note), _ms(r.old), _ms(r.new), _delta(r)] for r in rows]
    return table(
        ("", "old ms", "new ms", "change"), cells, "lrrr", widths=_WIDTHS, least_px=_LEAST_PX
    )


def _nodes(title: str, rows: Sequence[NodeChange]) -> str:
    if not rows:
        return ""
    cells = [_node(n) for n in rows[:MAX_ROWS]]
    heads = (format_count(len(rows), "node"), "old ms", "new ms", "change")
    made = table(heads, cells, "lrrr", widths=_WIDTHS, least_px=_LEAST_PX)
    return section(title, made + sentence(not_shown(len(rows) - MAX_ROWS, "node")))


def _node(n: NodeChange) -> list[str]:
    place = " · ".join(x for x in (n.site, n.scope) if x)
    old, new = (
        _ms(ms, "no kernel" if i >= 0 else "not there")
        for ms, i in ((n.old, n.left), (n.new, n.right))
    )
    return [_named(n.op, place), old, new, _delta(n)]


def _named(name: str, note: str) -> str:
    small = f'<div style="color:{MUTED};font-size:12px">{safe_html(note)}</div>' if note else ""
    return code(f"{safe_html(name, 90)}{small}")


def _ms(value: float, unknown: str = "not there") -> str:
    return f'<span style="color:{MUTED}">{unknown}</span>' if math.isnan(value) else amount(value)


def _delta(row: Change | NodeChange) -> str:
    """`▲ +12 ms slower`: a sign and a word, so that colour is not needed."""
    if math.isnan(row.old) and math.isnan(row.new):
        return ""
    if row.difference is None:
        return f'<span style="color:{MUTED}">one step: spread unknown</span>'
    words = ("faster", "slower")
    if math.isnan(row.old) or math.isnan(row.new):
        words = ("vanished", "appeared")
    return change_html(
        row.difference, words=words, form=None if row.difference.is_ratio else format_ms
    )


class RunDiffView(View):
    """Draws what `kit.diff_runs(a, b)` gave; assigning `diff` redraws."""

    diff = traitlets.Instance(RunDiff, allow_none=True)

    def __init__(self, diff: RunDiff | None = None) -> None:
        self.table = HTML()
        super().__init__([self.table], diff=diff)

    @traitlets.observe("diff")
    def _draw(self, change: dict[str, Any]) -> None:
        with ErrorsIn(self.table, "run diff"):
            self.table.value = "" if self.diff is None else run_diff_html(self.diff)
