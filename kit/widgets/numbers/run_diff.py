"""Two runs side by side as tables: what got slower, what appeared, what vanished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import traitlets
from ipywidgets import HTML

from kit.runs.analysis.diff import Change, NodeChange, RunDiff
from kit.text import safe_html
from kit.widgets.base.page import View
from kit.widgets.base.tables import BETTER, MONO, MUTED, WORSE, section, sentence, table
from kit.widgets.base.theme import error_html
from kit.widgets.compare.data import amount

__all__ = ["RunDiffView", "run_diff_html"]

MAX_ROWS = 8
LEAST_MS = 0.0005  # what differs by less is left out
_WIDTHS = (58, 14, 14, 14)


def run_diff_html(diff: RunDiff, *, limit: int = MAX_ROWS) -> str:
    """The step and its settings, then what changed most in each part, `limit` rows each."""
    old, new = (safe_html(label, 80) for label in diff.labels)
    changed = "".join(
        f"<div>{safe_html(name)}: {safe_html(repr(a))} → <b>{safe_html(repr(b))}</b></div>"
        for name, a, b in diff.settings
    )
    head = f"<b>{old}</b> → <b>{new}</b>{changed}"
    nodes = [n for n in diff.slower if n.ms >= LEAST_MS]
    parts = [
        section("Two runs", sentence(head) + _table([diff.step], 1)),
        _section("Where the traced step went", diff.breakdown, 9),
        _section("Why the device was idle", diff.idle, limit),
        _section("Where the host waited", diff.syncs, limit),
        _section("Kernels, by what they compute", diff.kernels, limit),
        _nodes("Got slower", nodes, limit),
        _nodes("Appeared", diff.appeared, limit),
        _nodes("Vanished", diff.vanished, limit),
        sentence(
            "Milliseconds a step. Device times are parts of the busy time: all kernels together "
            "differ by what the busy time differs by. Nodes are aligned by the graphs' structure; "
            "a fused kernel's time is divided equally among its nodes. One step is never quite "
            "the other: small changes may be noise."
        ),
    ]
    return "".join(parts)


def _section(title: str, rows: Sequence[Change], limit: int) -> str:
    shown = [row for row in rows if abs(row.ms) >= LEAST_MS]
    if not shown:
        return ""
    return section(title, _table(shown[:limit], limit) + _more(len(shown) - limit))


def _table(rows: Sequence[Change], limit: int) -> str:
    cells = [
        [_named(r.name, r.note), _ms(r.old), _ms(r.new), _delta(r.ms, r.kind)] for r in rows[:limit]
    ]
    return table(("", "old ms", "new ms", "change"), cells, "lrrr", widths=_WIDTHS)


def _nodes(title: str, rows: Sequence[NodeChange], limit: int) -> str:
    if not rows:
        return ""
    cells = [_node(n) for n in rows[:limit]]
    heads = (f"{len(rows):,} nodes", "old ms", "new ms", "change")
    return section(title, table(heads, cells, "lrrr", widths=_WIDTHS) + _more(len(rows) - limit))


def _node(n: NodeChange) -> list[str]:
    kind = "appeared" if n.left < 0 else "vanished" if n.right < 0 else ""
    place = " · ".join(x for x in (n.site, n.scope) if x)
    old, new = (
        _ms(ms, "no kernel" if i >= 0 else "not there")
        for ms, i in ((n.old, n.left), (n.new, n.right))
    )
    return [_named(n.op, place), old, new, _delta(n.ms, kind)]


def _more(count: int) -> str:
    return sentence(f"{count:,} more are not shown.") if count > 0 else ""


def _named(name: str, note: str) -> str:
    small = f'<div style="color:{MUTED};font-size:12px">{safe_html(note)}</div>' if note else ""
    return (
        f'<div style="font-family:{MONO};font-size:12px;overflow-wrap:anywhere">'
        f"{safe_html(name, 90)}{small}</div>"
    )


def _ms(value: float, unknown: str = "not there") -> str:
    return f'<span style="color:{MUTED}">{unknown}</span>' if math.isnan(value) else amount(value)


def _delta(ms: float, kind: str) -> str:
    """`▲ +12 slower`: a sign and a word, so that colour is not needed."""
    if math.isnan(ms) or abs(ms) < LEAST_MS:
        return f'<span style="color:{MUTED}">=</span>'
    word = kind if kind in ("appeared", "vanished") else "slower" if ms > 0 else "faster"
    arrow, sign, color = ("▲", "+", WORSE) if ms > 0 else ("▼", "−", BETTER)
    return (
        f'<span style="color:{color};white-space:nowrap">{arrow} {sign}{amount(abs(ms))}</span>'
        f'<div style="color:{MUTED};font-size:11px">{word}</div>'
    )


class RunDiffView(View):
    """Draws what `kit.diff_runs(a, b)` gave; assigning `diff` redraws."""

    diff = traitlets.Instance(RunDiff, allow_none=True)

    def __init__(self, diff: RunDiff | None = None) -> None:
        self.table = HTML()
        super().__init__([self.table], diff=diff)

    @traitlets.observe("diff")
    def _draw(self, change: dict[str, Any]) -> None:
        try:
            self.table.value = "" if self.diff is None else run_diff_html(self.diff)
        except Exception as error:  # noqa: BLE001 - shown in the view, the cell stays alive
            self.table.value = error_html("run diff", error)
