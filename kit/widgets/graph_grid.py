"""Lay a column of boxes out as rows by depth: no graphviz needed, quick, plain.

Also the shape of the answer, which `graph_dot` shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.widgets.graph_tree import Box, Edge

__all__ = ["HEADER", "MARGIN", "Column", "Points", "Size", "curve", "lay_out_as_grid"]

Points = tuple[tuple[float, ...], tuple[float, ...]]
Size = tuple[float, float]

HEADER = 26.0  # the title of a frame, pixels
MARGIN = 14.0  # between a frame and what is inside it
_GAP_X, _GAP_Y = 16.0, 30.0
_MAX_IN_ROW = 6
_CURVE_STEPS = 24


@dataclass(frozen=True)
class Column:
    """Centres and sizes of the boxes of one phase, and the curves of the edges between them."""

    boxes: Mapping[str, tuple[float, float, float, float]]  # key -> x, y, w, h
    edges: Mapping[tuple[str, str], Points]
    width: float
    height: float


def lay_out_as_grid(boxes: Sequence[Box], edges: Sequence[Edge], sizes: Mapping[str, Size],
                    *, is_reversed: bool) -> Column:  # fmt: skip
    """Rows by longest path from a source; `is_reversed` puts what runs first at the bottom."""
    children: dict[str, list[Box]] = {}
    for box in boxes:
        children.setdefault(box.parent, []).append(box)
    inner = _frame(boxes[0], children, edges, sizes, is_reversed)
    width, height = inner[boxes[0].key][2:]
    placed = {key: (x + width / 2, y + height / 2, w, h) for key, (x, y, w, h) in inner.items()}
    routes = {}
    for edge in edges:
        (x0, y0, _, h0), (x1, y1, _, h1) = placed[edge.source], placed[edge.target]
        down = 1 if y1 >= y0 else -1
        routes[edge.source, edge.target] = curve(
            x0, y0 + down * h0 / 2, x1, y1 - down * h1 / 2, is_vertical=True
        )
    return Column(placed, routes, width, height)


def curve(x0: float, y0: float, x1: float, y1: float, *, is_vertical: bool) -> Points:
    """An S curve that leaves and arrives along the axis."""
    dx, dy = (0.0, (y1 - y0) / 2) if is_vertical else ((x1 - x0) / 2, 0.0)
    a, b = (x0 + dx, y0 + dy), (x1 - dx, y1 - dy)
    xs, ys = [], []
    for i in range(_CURVE_STEPS + 1):
        t = i / _CURVE_STEPS
        u = 1 - t
        weights = (u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t)
        xs.append(sum(w * v for w, v in zip(weights, (x0, a[0], b[0], x1), strict=True)))
        ys.append(sum(w * v for w, v in zip(weights, (y0, a[1], b[1], y1), strict=True)))
    return tuple(xs), tuple(ys)


def _frame(frame: Box, children: Mapping[str, Sequence[Box]], edges: Sequence[Edge],
           sizes: Mapping[str, Size], is_reversed: bool,
           ) -> dict[str, tuple[float, float, float, float]]:  # fmt: skip
    """The frame around (0, 0) and everything inside it."""
    inside = {}
    for box in children.get(frame.key, ()):
        inside[box.key] = (_frame(box, children, edges, sizes, is_reversed) if box.is_frame
                           else {box.key: (0.0, 0.0, *sizes[box.key])})  # fmt: skip
    rows = _rows(list(inside), inside, edges)
    if is_reversed:
        rows.reverse()
    extent = {key: placed[key][2:] for key, placed in inside.items()}
    widths = [sum(extent[k][0] for k in row) + _GAP_X * (len(row) - 1) for row in rows]
    heights = [max(extent[k][1] for k in row) for row in rows]
    width = max([*widths, sizes[frame.key][0]]) + 2 * MARGIN
    height = sum(heights) + _GAP_Y * max(len(rows) - 1, 0) + HEADER + 2 * MARGIN
    placed = {frame.key: (0.0, 0.0, width, height)}
    y = -height / 2 + HEADER + MARGIN
    for row, row_width, row_height in zip(rows, widths, heights, strict=True):
        x = -row_width / 2
        for key in row:
            w = extent[key][0]
            for name, (a, b, c, d) in inside[key].items():
                placed[name] = (x + w / 2 + a, y + row_height / 2 + b, c, d)
            x += w + _GAP_X
        y += row_height + _GAP_Y
    return placed


def _rows(keys: list[str], inside: Mapping[str, Mapping[str, object]],
          edges: Sequence[Edge]) -> list[list[str]]:  # fmt: skip
    """Keys by longest path, along edges that follow program order; at most `_MAX_IN_ROW` each."""
    owner = {name: key for key, placed in inside.items() for name in placed}
    at = {key: i for i, key in enumerate(keys)}
    sources: dict[str, set[str]] = {key: set() for key in keys}
    for edge in edges:
        a, b = owner.get(edge.source, ""), owner.get(edge.target, "")
        if a and b and at[a] < at[b]:
            sources[b].add(a)
    depth: dict[str, int] = {}
    for key in keys:
        depth[key] = max((depth[s] + 1 for s in sources[key]), default=0)
    rows: list[list[str]] = []
    for level in range(max(depth.values(), default=-1) + 1):
        row = [key for key in keys if depth[key] == level]
        rows += [row[i : i + _MAX_IN_ROW] for i in range(0, len(row), _MAX_IN_ROW)]
    return rows
