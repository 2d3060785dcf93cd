"""Lay the children of a group out as rows by depth: no graphviz needed, quick, plain.

Also the shape of the answer, which `graph_dot` shares.

Units:
    pixels at scale 1; x grows to the right, y downwards; x and y of a box are its centre
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kit.widgets.graph.tree import Shape

__all__ = ["Inside", "Size", "lay_out_as_grid"]

Size = tuple[float, float]

_GAP_X, _GAP_Y = 16.0, 30.0
_MAX_IN_ROW = 6


@dataclass(frozen=True, slots=True)
class Inside:
    """Where the closed children of a group are, and the curves of the edges between them."""

    width: float
    height: float
    boxes: tuple[tuple[float, float, float, float], ...]  # x, y, w, h
    curves: tuple[tuple[float, ...], ...]  # cubic Béziers: x0, y0, x1, y1, ...; 3n + 1 points


def lay_out_as_grid(shape: Shape, sizes: Sequence[Size]) -> Inside:
    """Rows by longest path from a source; a reversed shape has what runs first at the bottom."""
    rows = _rows(len(sizes), shape)
    if shape.is_reversed:
        rows.reverse()
    widths = [sum(sizes[i][0] for i in row) + _GAP_X * (len(row) - 1) for row in rows]
    width, y = max(widths, default=0.0), 0.0
    boxes: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)] * len(sizes)
    for row, row_width in zip(rows, widths, strict=True):
        x, height = (width - row_width) / 2, max(sizes[i][1] for i in row)
        for i in row:
            w, h = sizes[i]
            boxes[i] = (x + w / 2, y + height / 2, w, h)
            x += w + _GAP_X
        y += height + _GAP_Y
    curves = tuple(_curve(boxes[a], boxes[b]) for a, b, _, _ in shape.edges)
    return Inside(width, max(y - _GAP_Y, 0.0), tuple(boxes), curves)


def _curve(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """An S curve that leaves and arrives along the y axis."""
    down = 1 if b[1] >= a[1] else -1
    y0, y1 = a[1] + down * a[3] / 2, b[1] - down * b[3] / 2
    middle = (y0 + y1) / 2
    return a[0], y0, a[0], middle, b[0], middle, b[0], y1


def _rows(count: int, shape: Shape) -> list[list[int]]:
    """Children by longest path, along edges that follow their order; `_MAX_IN_ROW` in each."""
    sources: list[list[int]] = [[] for _ in range(count)]
    for a, b, _, _ in shape.edges:
        if a < b:
            sources[b].append(a)
    levels: list[list[int]] = []
    depth: list[int] = []
    for i in range(count):
        depth.append(max((depth[s] + 1 for s in sources[i]), default=0))
        if depth[i] == len(levels):
            levels.append([])
        levels[depth[i]].append(i)
    return [row[i : i + _MAX_IN_ROW] for row in levels for i in range(0, len(row), _MAX_IN_ROW)]
