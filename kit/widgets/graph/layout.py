"""Where the boxes of a scene are when some of its groups are open.

Each group was laid out once with its children closed (`Inside`). When a child opens and grows, the
space around it is stretched, along x and along y: by as much as the child needs, and nowhere is it
squeezed. So what was left of a box stays left of it, nothing ever overlaps, and no layout engine
runs. Phases are columns: forward runs down, backward runs up beside it, level with its modules; the
update stands below them, so that a step is not wider than two phases.

`graph.js` has the same rules; `tests/browser/test_graph.py` holds the two to each other.

Units:
    pixels at scale 1; x grows to the right, y downwards; x and y of a box are its centre
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Placed", "PlacedEdge", "Rect", "place"]

Rect = tuple[float, float, float, float]  # x, y, w, h
HEADER = 26.0  # the title of a frame
MARGIN = 14.0  # between a frame and what is inside it
_COLUMN_GAP = 84.0
_ROW_GAP = 56.0  # above the update
_LABEL_PX = 8.2


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """Values that flow from one box to another, and the control points of the curve."""

    source: int  # rows
    target: int
    values: int
    size_bytes: int
    curve: tuple[float, ...]
    is_crossing: bool = False  # from one phase to another


@dataclass(frozen=True)
class Placed:
    """What can be seen: rows of the scene in order, frames before what is inside them."""

    rects: Mapping[int, Rect]
    is_open: Mapping[int, bool]
    edges: tuple[PlacedEdge, ...]
    width: float
    height: float


def place(scene: Mapping[str, Any], expanded: Iterable[str] = ()) -> Placed:
    """Places of the boxes of a scene (`graph_payload`), with these groups open."""
    return _Placing(scene, frozenset(expanded)).placed()


class _Stretch:
    """A monotone map of an axis: `spans` (low, high, extra) grow by at least their extra."""

    def __init__(self, spans: Sequence[tuple[float, float, float]]) -> None:
        grown = [s for s in spans if s[2] > 0]
        self._cuts = sorted({x for low, high, _ in grown for x in (low, high)})
        self._rates = [
            max(
                (extra / (high - low) for low, high, extra in grown if low <= x < high), default=0.0
            )
            for x in self._cuts
        ]
        self._added = [0.0]
        for n, rate in enumerate(self._rates[:-1]):
            self._added.append(self._added[-1] + rate * (self._cuts[n + 1] - self._cuts[n]))

    def __call__(self, x: float) -> float:
        n = bisect_right(self._cuts, x) - 1
        return x if n < 0 else x + self._added[n] + self._rates[n] * (x - self._cuts[n])


@dataclass(slots=True)
class _Frame:
    """The inside of an open group: sizes, and places relative to its own corner."""

    width: float
    height: float
    left: float  # of the children within the frame
    children: Sequence[int]
    rects: Sequence[Rect]
    across: _Stretch
    down: _Stretch


class _Placing:
    def __init__(self, scene: Mapping[str, Any], expanded: frozenset[str]) -> None:
        rows = scene["rows"]
        self._parent, self._end, self._kind, self._shape = (
            [int(x) for x in rows[name]] for name in ("parent", "end", "kind", "shape")
        )
        self._scene = scene
        self._texts = scene["strings"]
        self._key = [self._texts[int(k)] for k in rows["key"]]
        self._label = [self._texts[int(k)] for k in rows["label"]]
        self._expanded = expanded
        self._frames: dict[int, _Frame] = {}

    def placed(self) -> Placed:
        roots = [i for i, parent in enumerate(self._parent) if parent < 0]
        for root in roots:
            self._measure(root)
        rects: dict[int, Rect] = {}
        edges: list[PlacedEdge] = []
        x = 0.0
        columns: dict[int, dict[int, Rect]] = {}
        for root in roots:
            own: dict[int, Rect] = {}
            columns[root] = own
            frame = self._frames[root]
            self._put(
                root, (x + frame.width / 2, frame.height / 2, frame.width, frame.height), own, edges
            )
            x += frame.width + _COLUMN_GAP
        shifts = self._shifts(columns)
        for root, own in columns.items():
            dx, dy = shifts[root]
            for i, (x0, y0, w, h) in own.items():
                rects[i] = (x0 + dx, y0 + dy, w, h)
        owner = {r: root for root, own in columns.items() for r in own}
        edges = [
            PlacedEdge(e.source, e.target, e.values, e.size_bytes, tuple(
                v + shifts[owner[e.source]][n % 2] for n, v in enumerate(e.curve)))
            for e in edges
        ]  # fmt: skip
        edges += self._crossing(rects)
        return Placed(
            rects,
            {i: i in self._frames for i in rects},
            tuple(edges),
            max((x + w / 2 for x, _, w, _ in rects.values()), default=1.0),
            max((y + h / 2 for _, y, _, h in rects.values()), default=1.0),
        )

    def _is_open(self, row: int) -> bool:
        return self._shape[row] >= 0 and (self._parent[row] < 0 or self._key[row] in self._expanded)

    def _children(self, row: int) -> list[int]:
        found, child = [], row + 1
        while child < self._end[row]:
            found.append(child)
            child = self._end[child]
        return found

    def _measure(self, row: int) -> None:
        shape, children = self._scene["shapes"][self._shape[row]], self._children(row)
        across, down, sizes = [], [], []
        for child, (x, y, w, h) in zip(children, shape["boxes"], strict=True):
            if not self._is_open(child):
                sizes.append((w, h))
                continue
            self._measure(child)
            frame = self._frames[child]
            sizes.append((frame.width, frame.height))
            across.append((x - w / 2, x + w / 2, frame.width - w))
            down.append((y - h / 2, y + h / 2, frame.height - h))
        fx, fy = _Stretch(across), _Stretch(down)
        rects = []
        for (x, y, w, h), size in zip(shape["boxes"], sizes, strict=True):
            middle = (fx(x - w / 2) + fx(x + w / 2)) / 2, (fy(y - h / 2) + fy(y + h / 2)) / 2
            rects.append((*middle, *size))
        inner = fx(shape["width"])
        width = max(inner, _LABEL_PX * (len(self._label[row]) + 2) + 12) + 2 * MARGIN
        self._frames[row] = _Frame(width, fy(shape["height"]) + HEADER + 2 * MARGIN,
                                   (width - inner) / 2, children, rects, fx, fy)  # fmt: skip

    def _put(self, row: int, rect: Rect, rects: dict[int, Rect], edges: list[PlacedEdge]) -> None:
        rects[row] = rect
        frame = self._frames.get(row)
        if frame is None:
            return
        left, top = rect[0] - rect[2] / 2 + frame.left, rect[1] - rect[3] / 2 + HEADER + MARGIN
        for child, (x, y, w, h) in zip(frame.children, frame.rects, strict=True):
            self._put(child, (x + left, y + top, w, h), rects, edges)
        shape = self._scene["shapes"][self._shape[row]]
        for a, b, values, size, curve in shape["edges"]:
            points = [
                frame.across(v) + left if n % 2 == 0 else frame.down(v) + top
                for n, v in enumerate(curve)
            ]
            end = len(points) - 2
            for at, beside, i in ((0, 2, a), (end, end - 2, b)):
                now = _attach(curve[at : at + 2], shape["boxes"][i], rects[frame.children[i]])
                for n in (0, 1):  # the control point beside an end moves with it
                    points[beside + n] += now[n] - points[at + n]
                    points[at + n] = now[n]
            edges.append(
                PlacedEdge(
                    frame.children[a], frame.children[b], int(values), int(size), tuple(points)
                )
            )

    def _shifts(self, columns: Mapping[int, Mapping[int, Rect]]) -> dict[int, tuple[float, float]]:
        """How far each column moves: backward is level with the modules it belongs to."""
        if not columns:
            return {}
        by_name = {self._key[root]: root for root in columns}
        shifts = dict.fromkeys(columns, 0.0)
        forward, backward = by_name.get("forward", -1), by_name.get("backward", -1)
        if forward >= 0 and backward >= 0:
            level = {self._key[i].partition("/")[2]: _top(r) for i, r in columns[forward].items()}
            mates = [
                level[name] - _top(r)
                for i, r in columns[backward].items()
                if (name := self._key[i].partition("/")[2]) and name in level
            ]
            shifts[backward] = min(mates, default=0.0)
        top = min(shifts.values())
        found = {root: (0.0, y - top) for root, y in shifts.items()}
        update = by_name.get("update", -1)
        if update >= 0 and len(columns) > 1:
            found[update] = self._below(update, columns, found)
        return found

    def _below(
        self,
        update: int,
        columns: Mapping[int, Mapping[int, Rect]],
        shifts: Mapping[int, tuple[float, float]],
    ) -> tuple[float, float]:
        """The update's way below the others: under the last of them, or to its left if wider."""
        others = [(columns[root][root], shifts[root]) for root in columns if root != update]
        right = max(x + w / 2 for (x, _, w, _), _ in others)
        bottom = max(y + h / 2 + dy for (_, y, _, h), (_, dy) in others)
        last, own = others[-1][0], columns[update][update]
        left = max(0.0, min(last[0] - last[2] / 2, right - own[2]))
        return left - (own[0] - own[2] / 2), bottom + _ROW_GAP

    def _crossing(self, rects: Mapping[int, Rect]) -> list[PlacedEdge]:
        """Edges from phase to phase, between the innermost boxes that can be seen."""
        size = self._scene["rows"]["bytes"]
        seen, root = list(range(len(self._parent))), list(range(len(self._parent)))
        for i, parent in enumerate(self._parent):
            if parent >= 0:
                root[i] = root[parent]
                seen[i] = i if i in rects else seen[parent]
        found: dict[tuple[int, int], set[int]] = {}
        for a, b in zip(self._scene["sources"], self._scene["targets"], strict=True):
            if root[a] != root[b]:
                found.setdefault((seen[a], seen[b]), set()).add(int(a))
        return [
            PlacedEdge(a, b, len(ops), int(sum(size[i] for i in ops)),
                       (_down if self._key[root[b]] == "update" else _across)(rects[a], rects[b]),
                       is_crossing=True)
            for (a, b), ops in found.items()
        ]  # fmt: skip


def _top(rect: Rect) -> float:
    return rect[1] - rect[3] / 2


def _attach(end: Sequence[float], closed: Sequence[float], now: Rect) -> tuple[float, float]:
    """Where an edge that ended on a closed box ends on the box as it is now."""
    u, v = (end[0] - closed[0]) / closed[2], (end[1] - closed[1]) / closed[3]
    u, v = min(max(u, -0.5), 0.5), min(max(v, -0.5), 0.5)
    return now[0] + u * now[2], now[1] + v * now[3]


def _down(a: Rect, b: Rect) -> tuple[float, ...]:
    y0, y1 = a[1] + a[3] / 2, b[1] - b[3] / 2
    middle = (y0 + y1) / 2
    return a[0], y0, a[0], middle, b[0], middle, b[0], y1


def _across(a: Rect, b: Rect) -> tuple[float, ...]:
    right = 1 if b[0] >= a[0] else -1
    x0, x1 = a[0] + right * a[2] / 2, b[0] - right * b[2] / 2
    middle = (x0 + x1) / 2
    return x0, a[1], middle, a[1], middle, b[1], x1, b[1]
