"""Compiles as a table, and what changed in the graph: as two pictures and as two columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipywidgets import HTML, Dropdown, HBox, Layout

from kit.ir.graph import GraphDiff
from kit.runs.compiles import Compile, dearest, storms
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import format_count, format_ms, safe_html
from kit.trace import Timeline
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.flag import Flag
from kit.widgets.base.page import View
from kit.widgets.base.selection import Selection
from kit.widgets.base.tables import (
    FONT,
    INK,
    LINE,
    MONO,
    MUTED,
    code,
    place_html,
    scrolling,
    section,
    sentence,
    table,
)
from kit.widgets.graph.diff import Side, sides
from kit.widgets.graph.pair import INKS, PAIR_PX, pair_html
from kit.widgets.graph.view import GraphView

__all__ = ["CompileView", "changes_html", "compiles_html", "diff_html", "recompiles_html"]

MAX_ROWS = 20
_MAX_CHOICES = 256  # a session keeps the graphs of as many compiles
MAX_DIFF_ROWS = 60  # of the two columns of a diff
_AROUND = 2  # equal nodes that are shown before and after one that differs
_WORD = {"first": "first time", "op": "another op", "inputs": "rewired", "cut": "other length",
         "kept": "other results", "aliasing": "other sharing",
         "checks": "other checks", "precision": "other precision",
         "evicted": "had been dropped"}  # fmt: skip


def compiles_html(compiles: Sequence[Compile]) -> str:
    """Every compile with its reason, the recompile storms above; the latest rows if many.

    What was compiled repeatedly within one step is no storm: below, a sentence names its line.
    """
    if not compiles:
        return section("Compiles", sentence("Nothing was compiled: every program was known."))
    found = storms(compiles)
    warnings = "".join(
        f'<div style="border-left:3px solid #d9482b;padding:2px 8px;margin:4px 0">'
        f"{safe_html(line, 400)}</div>"
        for line in found
    )
    rows = [_row(c) for c in compiles[-MAX_ROWS:]]
    heads = ["step", "phase", "why", "where", "ms"]
    body = table(heads, rows, "rlllr", widths=(8, 16, 44, 20, 12), least_px=520)
    spent = sum(c.ms for c in compiles)
    note = f"{format_count(len(compiles), 'compile')} took {format_ms(spent)}."
    if not found and (within := dearest(compiles)):
        note += f" {safe_html(within, 400)}."
    if len(compiles) > MAX_ROWS:
        note += f" The last {MAX_ROWS} are shown."
    return section("Compiles", warnings + body + sentence(note))


def recompiles_html(compiles: Sequence[Compile]) -> str:
    """The same, but "" unless something was compiled again during the steps."""
    again = [c for c in compiles if c.kind != "first"]
    return compiles_html(again) if storms(again) else ""


def changes_html(run: Run) -> str:
    """What recompiles changed, each as two graphs beside each other; the dearest is open."""
    drawn = [change for change in run.changes if change.compile < len(run.compiles)]
    if not drawn:
        return ""
    cost = [run.compiles[change.compile].ms for change in drawn]
    parts = []
    for change, ms in zip(drawn, cost, strict=True):
        c = run.compiles[change.compile]
        note = f"{format_count(change.left_out, 'equal op')} not drawn. " if change.left_out else ""
        note += "Inputs and parameters are not drawn; point at a box for all of its arguments."
        line = f"<b>step {c.step:,}</b>, {format_ms(ms)}: {safe_html(c.sentence, 200)}"
        is_open = " open" * (ms == max(cost))
        parts.append(
            f'<details{is_open} style="margin:4px 0"><summary style="cursor:pointer;'
            f'overflow-wrap:anywhere">{line}</summary>'
            f"{scrolling(pair_html(change.before, change.now), PAIR_PX, 'the graph now')}"
            f"{sentence(note)}</details>"
        )
    return section("Compiled again: the graph before and now", "".join(parts))


def _row(c: Compile) -> list[str]:
    word = _WORD.get(c.kind, c.kind)
    change = ""
    if c.before or c.now:
        change = code(f"{safe_html(c.before, 60)} → {safe_html(c.now, 60)}")
    disk = " (from disk)" if c.is_from_disk else ""
    why = f"<b>{safe_html(word)}</b>, {format_count(c.ops, 'op')}{change}"
    where = code(place_html(c.site, 60))
    return [f"{c.step:,}", safe_html(c.phase), why, where, f"{c.ms:,.0f}{disk}"]


def diff_html(diff: GraphDiff) -> str:
    """Two aligned columns, old left and new right, around what differs; a third says how."""
    if diff.is_empty:
        return sentence("The two graphs are the same.")
    shown = diff.near(_AROUND)[:MAX_DIFF_ROWS]
    cell = f"padding:2px 6px;vertical-align:top;font:12px/1.4 {MONO};overflow-wrap:anywhere"
    body, last = "", -1
    for i in shown:
        if i != last + 1:
            body += (
                f'<tr><td colspan="3" style="{cell};color:{MUTED}">… '
                f"{format_count(i - last - 1, 'equal node')}</td></tr>"
            )
        row = diff.rows[i]
        ground = f"{INKS[row.kind]}33" if row.kind in INKS else "transparent"
        sides = "".join(
            f'<td style="{cell};text-align:left;background:{ground if text else "transparent"}">'
            f"{safe_html(text, 200)}</td>"
            for text in (row.left_text, row.right_text)
        )
        how = f'<td style="{cell};font-family:{FONT}">{"" if row.kind == "same" else row.kind}</td>'
        body += f'<tr style="border-top:1px solid {LINE};background:none">{sides}{how}</tr>'
        last = i
    left = sum(row.kind != "same" for row in diff.rows[last + 1 :])
    if left:
        said = f"{format_count(left, 'more differing node')} {'is' if left == 1 else 'are'}"
        body += (
            f'<tr style="border-top:1px solid {LINE};background:none"><td colspan="3" '
            f'style="{cell};color:{MUTED}">… {said} not shown</td></tr>'
        )
    head = f"padding:2px 6px;text-align:left;font:500 12px/1.4 {FONT};color:{MUTED}"
    return (
        f'<table style="width:100%;table-layout:fixed;border-collapse:collapse;color:{INK}">'
        f'<thead><tr style="background:none"><th style="{head}">before</th>'
        f'<th style="{head}">now</th><th style="{head};width:76px">difference</th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


class GraphPair(HBox):
    """Two graphs beside each other; an op that is picked in one is picked in the other, too."""

    def __init__(self) -> None:
        self.before, self.now = GraphView(), GraphView()
        self._sides: dict[GraphView, Side] = {}
        self._following = Flag()
        for view in (self.before, self.now):
            view.layout = Layout(flex="1 1 420px", min_width="0", width="auto")
            view.observe(self._follow, "selection")
        super().__init__(
            [self.before, self.now], layout=Layout(flex_flow="row wrap", grid_gap="4px 16px")
        )

    def show(self, diff: GraphDiff) -> None:
        """Draw the graphs of a diff, and mark what is different in each.

        Raises:
            GraphError: as `GraphView`.
        """
        self._sides = dict(zip((self.before, self.now), sides(diff), strict=True))
        for name, (view, side) in zip(("before", "now"), self._sides.items(), strict=True):
            run = Run(Settings(), (), (), Timeline.of([]), graphs=(side.graph,), name=name)
            view.show(run, side.marks)

    def _follow(self, change: dict[str, Any]) -> None:
        """Pick the partners of what is picked; what has none is picked in one graph only."""
        if self._following or change["owner"] not in self._sides:
            return
        picked, partner = change["new"], self._sides[change["owner"]].other
        nodes = frozenset(partner[i] for i in picked.nodes if i in partner)
        with self._following:
            other = self.now if change["owner"] is self.before else self.before
            other.selection = Selection(nodes, frozenset(), picked.label if nodes else "")


class CompileView(View):
    """The compiles of a run or of a session; of a session, also both graphs behind each recompile.

    Args:
        source: has `compiles`; if it has `compile_diff(i)`, a menu chooses which graphs are shown.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.table = HTML()
        self.choice = Dropdown(layout=Layout(width="auto"))
        self.graphs: GraphPair | None = None  # made with the first recompile
        self.diff = HTML()
        super().__init__([self.table, self.choice, self.diff])
        self.choice.observe(self._chosen, "value")
        self.refresh()

    def refresh(self) -> None:
        """Show what has been compiled by now."""
        compiles = tuple(self._source.compiles)
        self.table.value = compiles_html(compiles)
        can_diff = hasattr(self._source, "compile_diff")
        latest = range(max(len(compiles) - _MAX_CHOICES, 0), len(compiles)) if can_diff else ()
        again = [i for i in latest if compiles[i].kind != "first"]
        self.choice.options = [
            (f"step {compiles[i].step}: {compiles[i].sentence[:110]}", i) for i in again[::-1]
        ]
        self.choice.layout.display = "" if again else "none"
        if again and self.choice.value != again[-1]:
            self.choice.value = again[-1]
        else:
            self._chosen(None)

    def _chosen(self, change: Any) -> None:
        """Show the graphs of what is chosen, or why they cannot be shown; never another's."""
        display = "none"
        with ErrorsIn(self.diff, "compiles"):
            text = ""
            if self.choice.value is not None:
                diff = self._source.compile_diff(self.choice.value)
                text = diff_html(diff)
                if self.graphs is None:
                    self.graphs = GraphPair()
                    self.children = [self.table, self.choice, self.graphs, self.diff]
                self.graphs.show(diff)
                display = ""
            self.diff.value = text
        if self.graphs is not None:
            self.graphs.layout.display = display
