"""Two graphs beside each other as one picture of HTML: equal ops at one height, changes coloured.

A static picture needs no layout engine: program order goes down, an arrow leads from an op to the
ops that read it, and what stands left was, what stands right is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.ir import Graph
from kit.ir.graph import DiffRow
from kit.ir.names import short_op
from kit.text import safe_html
from kit.widgets.base.tables import FONT, INK, LINE, MUTED, PANEL
from kit.widgets.base.theme import KEPT

__all__ = ["INKS", "PAIR_PX", "pair_html"]

_MORE = {"rewired": " (reads other values)"}
INKS = {"changed": "#c98a12", "rewired": "#8a63d2", "added": "#1f8f55", "removed": "#d9482b"}
_WIDTH, _HEIGHT, _STEP, _GAP, _MARGIN = 252, 34, 50, 40, 30  # of a box, between rows, columns, edge
PAIR_PX = 500  # with less, its texts could not be read
_MOST_TEXT = 34  # characters of a line in a box


def pair_html(before: Graph, now: Graph) -> str:
    """The picture, with one line below it that says what its colours mean."""
    diff = before.diff(now)
    ops = [row for row in diff.rows if diff.is_op(row)]
    kinds = [kind for kind in INKS if any(row.kind == kind for row in ops)]
    first = next((n for n, row in enumerate(ops) if row.kind != "same"), -1)
    left = _column(
        before, {row.left: n for n, row in enumerate(ops) if row.left >= 0}, (ops, first), 0
    )
    right = _column(
        now, {row.right: n for n, row in enumerate(ops) if row.right >= 0}, (ops, first), 1
    )
    width, height = 2 * _WIDTH + _GAP + 2 * _MARGIN, len(ops) * _STEP + 26
    said = ", ".join(f"{sum(row.kind == k for row in ops)} {k}" for k in kinds)
    legend = " ".join(
        f'<span style="white-space:nowrap;margin-right:12px"><span aria-hidden="true" '
        f'style="display:inline-block;width:10px;height:10px;border:2px solid {INKS[k]};'
        f'border-radius:3px;vertical-align:-2px;{KEPT}"></span> {k}{_MORE.get(k, "")}</span>'
        for k in kinds
    )
    return (
        f'<svg role="img" aria-label="the graph before and now: {said or "equal"}" '
        f'viewBox="0 0 {width} {height}" style="width:100%;max-width:{width}px;'
        f'min-width:{PAIR_PX}px;display:block" '
        f'font-family="{safe_html(FONT, 200)}">{left}{right}</svg>'
        f'<div style="font:12px/1.5 {FONT};color:{MUTED}">{legend}'
        f"{'filled: where they differ first' if kinds else ''}</div>"
    )


def _column(
    graph: Graph, at: Mapping[int, int], drawn: tuple[Sequence[DiffRow], int], side: int
) -> str:
    """One graph: its heading, its arrows, its boxes.

    Args:
        at: the row of each op.
        drawn: the rows, and the first one that differs.
    """
    rows, first = drawn
    x = _MARGIN + side * (_WIDTH + _GAP)
    head = _text(x + _WIDTH / 2, 12, ("before", "now")[side], 12, MUTED)
    arrows = "".join(
        _arrow(x, side, at[source], at[node])
        for node in at
        for source in dict.fromkeys(i for i, _ in graph.nodes[node].inputs)
        if source in at
    )
    boxes = (_box(graph, n, (x, at[n]), rows[at[n]].kind, is_first=at[n] == first) for n in at)
    return head + arrows + "".join(boxes)


def _arrow(x: float, side: int, source: int, target: int) -> str:
    """Straight down to the next row, else around the boxes on the outer side."""
    y0, y1 = _top(source) + _HEIGHT, _top(target)
    style = f'fill="none" style="stroke:{MUTED}" stroke-opacity="0.7"'
    if target == source + 1:
        middle = x + _WIDTH / 2
        head = f"M{middle - 3} {y1 - 5}l3 5l3 -5"
        return f'<path d="M{middle} {y0}V{y1}{head}" {style}/>'
    out = -1 if side == 0 else 1
    edge = x if side == 0 else x + _WIDTH
    bend = edge + out * min(8 + 4 * (target - source), _MARGIN - 4)
    y0, y1 = y0 - _HEIGHT / 2 + 4, y1 + _HEIGHT / 2 - 4
    head = f"M{edge + 5 * out} {y1 - 3}L{edge} {y1}l{5 * out} 3"
    return f'<path d="M{edge} {y0}C{bend} {y0} {bend} {y1} {edge} {y1}{head}" {style}/>'


def _box(graph: Graph, n: int, place: tuple[float, int], kind: str, *, is_first: bool) -> str:
    node, x, y = graph.nodes[n], place[0], _top(place[1])
    color = INKS.get(kind, LINE)
    attrs = ", ".join(f"{name}={value}" for name, value in node.attrs)
    types = ", ".join(map(str, node.avals[:2]))
    told = f"{types} {attrs}" if attrs else types
    short = told if len(told) <= _MOST_TEXT else f"{told[: _MOST_TEXT - 1]}…"
    where = f" at {node.site}" if node.site else ""
    tint = f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{color}33"/>'
    how = f"{kind}: " * (kind in INKS)
    title = f"<title>{safe_html(f'{how}{node.op} {told}{where}', 400)}</title>"
    rect = (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
        f'style="fill:{PANEL};stroke:{color}" stroke-width="{2.5 if kind in INKS else 1}"/>'
    )
    tone = INK if kind in INKS else MUTED
    middle = x + _WIDTH / 2
    name = _text(middle, y + 13, short_op(node.op), 12, tone, "600")
    if is_first:
        rect += tint
    return f"<g>{title}{rect}{name}{_text(middle, y + 26, short, 10.5, MUTED)}</g>"


def _top(row: int) -> float:
    return 22 + row * _STEP


def _text(x: float, y: float, text: str, size: float, color: str, weight: str = "400") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="middle" '
        f'style="fill:{color}">{safe_html(text, _MOST_TEXT)}</text>'
    )
