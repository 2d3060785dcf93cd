"""What a kernel timeline draws, as plain columns: a `Timeline` in, numpy arrays and text out.

Lanes are stacked from the top: steps, sync points, `host/main`, other host lanes, device lanes.
Inside a lane, spans that overlap in time take sub-rows: recording is the base row, and what
interrupted it (plan, wait) lies under it.

Units:
    x in milliseconds from the first start; y in sub-rows, growing downwards
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.ir import Graph, Node, Segment
from kit.trace import KINDS, Timeline
from kit.widgets.theme import format_ns, kind_color, on_color, plain

__all__ = [
    "MAX_GLYPHS",
    "Places",
    "label_columns",
    "merge_note",
    "place",
    "step_columns",
    "sync_columns",
    "timeline_axis",
    "timeline_columns",
]

MAX_GLYPHS = 10_000  # bokeh's canvas pans 10,000 quads at 3 frames a second, 1,000 at 14
_MAX_DEVICE_LANES = 4
_MAX_SUB_ROWS = 8
_MAX_FUSED = 6  # ops of one kernel that its hover card names
_LANES_TOP = 2.2  # below the rows of steps and sync points
_LANE_GAP = 0.5
_PIXELS = 1000  # the plot width that merging reckons with
_NARROW_PIXELS = 720  # a notebook beside a file browser: labels must fit
_STEP = KINDS.index("step")

Columns = dict[str, Any]
Members = Mapping[tuple[int, str], tuple[int, ...]]  # `Run.members`


@dataclass(frozen=True)
class Places:
    """Where each span goes, and what the y axis says."""

    row: NDArray[np.int32]  # over all sub-rows of the plot, -1: not drawn as a bar
    top: NDArray[np.float64]  # by row
    bottom: NDArray[np.float64]  # by row
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    end: float


def timeline_columns(timeline: Timeline, *, graph: Graph | None = None,
                     segments: Sequence[Segment] = (), members: Members = MappingProxyType({}),
                     max_glyphs: int = MAX_GLYPHS,
                     places: Places | None = None) -> Columns:  # fmt: skip
    """One bar for each span that is not a step: where it is, its colour, and what to say of it.

    With more than `max_glyphs` spans, those narrower than a pixel of the whole range are merged
    with their neighbours in the row into one bar: its `count` says how many it stands for, its
    kind is that of the longest, `duration_us` is their sum, `segment` and `node` are -1.

    Shape:
        every column (bars,)
    """
    places = places or place(timeline)
    spans = np.flatnonzero(places.row >= 0)
    left = timeline.start_ns[spans] - _origin_ns(timeline)
    right = timeline.stop_ns[spans] - _origin_ns(timeline)
    busy = right - left
    count = np.ones(len(spans), np.int64)
    if len(spans) > max_glyphs:
        spans, left, right, busy, count = _merge(places.row[spans], spans, left, right, max_glyphs)
    row = places.row[spans]
    kind = [KINDS[k] for k in timeline.kind[spans]]
    names = [plain(n) for n in timeline.names]
    lanes = [plain(n) for n in timeline.lanes]
    name = [names[n] for n in timeline.name[spans]]
    is_merged = count > 1
    segment = np.where(is_merged, -1, timeline.segment[spans])
    node = np.where(is_merged, -1, timeline.node[spans])
    color = [kind_color(k, n) for k, n in zip(kind, name, strict=True)]
    is_wide = (right - left) * _PIXELS > 5 * max(_range_ns(timeline), 1)
    return {
        "left_ms": left / 1e6,
        "right_ms": right / 1e6,
        "top": places.top[row],
        "bottom": places.bottom[row],
        "row": row,
        "color": color,
        "edge": ["#ffffff" if w else c for w, c in zip(is_wide, color, strict=True)],
        "name": [f"{c:,} spans, the longest is {n}" if c > 1 else n
                 for c, n in zip(count.tolist(), name, strict=True)],
        "kind": kind,
        "lane": [lanes[i] for i in timeline.lane[spans]],
        "start": [format_ns(x) for x in left.tolist()],
        "duration": [format_ns(x) for x in busy.tolist()],
        "duration_us": busy / 1e3,
        "segment": segment.astype(np.int32),
        "node": node.astype(np.int32),
        "detail": _details(segment.tolist(), node.tolist(),
                           [timeline.names[n] for n in timeline.name[spans]], graph, segments,
                           members),
        "count": count.astype(np.int32),
    }  # fmt: skip


def merge_note(columns: Columns) -> str:
    """What the reader must know if bars were merged, or nothing."""
    count = np.asarray(columns["count"])
    if not (count > 1).any():
        return ""
    return (f"{int(count.sum()):,} spans drawn as {len(count):,} bars: those narrower than a pixel "
            "are merged")  # fmt: skip


def step_columns(timeline: Timeline, places: Places | None = None) -> Columns:
    """One band for each step span: `left_ms`, `right_ms`, `text`, `duration`, shades in turn."""
    mask = timeline.kind == _STEP
    left = (timeline.start_ns[mask] - _origin_ns(timeline)) / 1e6
    right = (timeline.stop_ns[mask] - _origin_ns(timeline)) / 1e6
    names = [plain(timeline.names[n], 40) for n in timeline.name[mask]]
    durations = [format_ns(x * 1e6) for x in (right - left).tolist()]
    width = (right - left) * _NARROW_PIXELS * 1e6 / max(_range_ns(timeline), 1)
    texts = [f"{n} {i}" if n == "step" else n for i, n in enumerate(names)]
    texts = [f"{t} · {d}" for t, d in zip(texts, durations, strict=True)]
    return {
        "left_ms": left,
        "right_ms": right,
        "mid_ms": (left + right) / 2,
        "color": ["#dde3ea" if i % 2 else "#eaeef3" for i in range(len(names))],
        "text": [t if 6.4 * len(t) < w else "" for t, w in zip(texts, width, strict=True)],
        "name": texts,
        "duration": durations,
        "bottom": np.full(len(names), (places or place(timeline)).end),
    }


def sync_columns(timeline: Timeline, places: Places | None = None) -> Columns:
    """One mark for each sync point: `x` and `right` are when the wait began and ended (ms)."""
    places = places or place(timeline)
    at = np.array([s.at_ns for s in timeline.syncs], np.int64) - _origin_ns(timeline)
    wait = np.array([s.wait_ns for s in timeline.syncs], np.int64)
    labels = [f"{plain(s.cause, 32)} · {format_ns(s.wait_ns)}" for s in timeline.syncs]
    x = at / 1e6
    x_end = timeline_axis(timeline, places)["x_end"]
    is_late = [a + _text_ms(t, x_end) > x_end for a, t in zip(x.tolist(), labels, strict=True)]
    return {
        "x": x,
        "wait": wait / 1e6,
        "right": (at + wait) / 1e6,
        "site": [plain(s.site) or "(no line known)" for s in timeline.syncs],
        "cause": [plain(s.cause) for s in timeline.syncs],
        "via": [plain(s.via) or "-" for s in timeline.syncs],
        "duration": [format_ns(s.wait_ns) for s in timeline.syncs],
        "start": [format_ns(int(a)) for a in at],
        "label": labels,
        "text": _spaced(x, labels, x_end),
        "align": ["right" if late else "left" for late in is_late],
        "offset": [-9 if late else 9 for late in is_late],
        "bottom": np.full(len(labels), places.end),
    }


def timeline_axis(timeline: Timeline, places: Places | None = None) -> Columns:
    """The y axis (`ticks`, `labels`, `end`) and the width of the plot (`x_end`, milliseconds)."""
    places = places or place(timeline)
    origin = _origin_ns(timeline)
    waits = [s.at_ns + s.wait_ns - origin for s in timeline.syncs]
    end_ns = max([_range_ns(timeline), *waits])
    return {
        "ticks": [0.45, 1.45, *places.ticks],
        "labels": ["steps", "sync points", *(plain(x, 34) for x in places.labels)],
        "end": places.end,
        "x_end": max(end_ns / 1e6, 1e-3) if len(timeline) else 1.0,
    }


def label_columns(bars: Columns, x_end: float) -> Columns:
    """The names of bars that are wide enough to hold them, at most 400."""
    width = (np.asarray(bars["right_ms"]) - np.asarray(bars["left_ms"])) * _NARROW_PIXELS / x_end
    height = np.asarray(bars["bottom"]) - np.asarray(bars["top"])
    fits = [i for i in np.flatnonzero((width > 24) & (height > 0.7))
            if 6.2 * len(bars["name"][i]) + 8 < width[i]][:400]  # fmt: skip
    return {
        "x": np.array([bars["left_ms"][i] for i in fits], float),
        "y": np.array([(bars["top"][i] + bars["bottom"][i]) / 2 for i in fits], float),
        "text": [bars["name"][i] for i in fits],
        "color": [on_color(bars["color"][i]) for i in fits],
    }


def _origin_ns(timeline: Timeline) -> int:
    return int(timeline.start_ns.min()) if len(timeline) else 0


def _range_ns(timeline: Timeline) -> int:
    return timeline.duration_ns


def place(timeline: Timeline) -> Places:
    """The rows of the plot: worked out once for all columns."""
    row = np.full(len(timeline), -1, np.int32)
    tops: list[float] = []
    heights: list[float] = []
    ticks, labels, y = [], [], _LANES_TOP
    for label, lanes in _lane_rows(timeline.lanes):
        mask = np.isin(timeline.lane, lanes) & (timeline.kind != _STEP)
        if not mask.any():
            continue
        sub = _sub_rows(timeline.start_ns[mask], timeline.stop_ns[mask])
        rows = int(sub.max()) + 1
        height = 1.0 if rows <= 3 else 0.55
        row[mask] = len(tops) + sub
        tops += [y + height * i for i in range(rows)]
        heights += [height * 0.92] * rows
        ticks.append(y + height * rows / 2)
        labels.append(label)
        y += height * rows + _LANE_GAP
    top = np.array(tops, float)
    return Places(row, top, top + np.array(heights, float), tuple(ticks), tuple(labels), y)


def _lane_rows(lanes: Sequence[str]) -> list[tuple[str, list[int]]]:
    """(label, lane indices) in drawing order; many device lanes are merged by family."""
    order = sorted(range(len(lanes)), key=lambda i: _rank(lanes[i], i))
    device = [i for i in order if _group(lanes[i]) == "device"]
    if len(device) <= _MAX_DEVICE_LANES:
        return [(lanes[i], [i]) for i in order]
    families: dict[str, list[int]] = {}
    for i in device:
        families.setdefault(re.sub(r"[/\s]*#?\d+$", "", lanes[i]) or lanes[i], []).append(i)
    rows = [(lanes[i], [i]) for i in order if i not in set(device)]
    return rows + [
        (lanes[ids[0]] if len(ids) == 1 else f"{family} ×{len(ids)}", ids)
        for family, ids in families.items()
    ]


def _rank(lane: str, appearance: int) -> tuple[int, int]:
    places = {"host": 1, "device": 3}
    return (0 if lane == "host/main" else places.get(_group(lane), 2), appearance)


def _group(lane: str) -> str:
    return lane.partition("/")[0]


def _sub_rows(start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int32]:
    """First sub-row that is free at each span's start; at most `_MAX_SUB_ROWS` of them."""
    sub = np.zeros(len(start), np.int32)
    if len(start) < 2 or np.all(start[1:] >= np.maximum.accumulate(stop)[:-1]):
        return sub
    ends = [-(2**62)] * _MAX_SUB_ROWS
    for i, (a, b) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        free = next((r for r, end in enumerate(ends) if end <= a), None)
        row = min(range(_MAX_SUB_ROWS), key=ends.__getitem__) if free is None else free
        ends[row] = max(ends[row], b)
        sub[i] = row
    return sub


def _merge(row: NDArray[np.int32], spans: NDArray[np.int64], left: NDArray[np.int64],
           right: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], ...]:  # fmt: skip
    """Join spans narrower than a bucket of time, row by row; wider buckets until few enough."""
    buckets = _PIXELS
    total = max(int(right.max()), 1)
    while True:
        width = total / buckets
        bucket = np.where(right - left < width, left // width, -1 - np.arange(len(left)))
        key = row.astype(np.int64) * (len(left) + buckets + 2) + bucket + len(left) + 1
        _, group = np.unique(key, return_inverse=True)
        if group.max() < most or buckets < 2:
            break
        buckets //= 2
    busy = right - left
    order = np.lexsort((-busy, group))  # the longest of each group comes first
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    merged = (spans[order[first]], np.minimum.reduceat(left[order], first),
              np.maximum.reduceat(right[order], first), np.add.reduceat(busy[order], first),
              np.diff(first, append=len(order)))  # fmt: skip
    by_start = np.argsort(merged[1], kind="stable")
    return tuple(column[by_start] for column in merged)


def _details(segment: list[int], node: list[int], names: list[str], graph: Graph | None,
             segments: Sequence[Segment], members: Members) -> list[str]:  # fmt: skip
    by_index = {s.index: s for s in segments}
    nodes = graph.nodes if graph is not None else ()
    known: dict[tuple[int, int, str], str] = {}
    texts = []
    for key in zip(segment, node, names, strict=True):
        if key not in known:
            s, n, name = key
            ids = members.get((s, name), ()) or ((n,) if n >= 0 else ())
            known[key] = _detail(s, ids, nodes, by_index.get(s))
        texts.append(known[key])
    return texts


def _detail(number: int, ids: Sequence[int], nodes: Sequence[Node],
            segment: Segment | None) -> str:  # fmt: skip
    parts = [f"{len(ids)} ops in one kernel:"] if len(ids) > 1 else []
    for i in ids[:_MAX_FUSED]:
        node = nodes[i] if i < len(nodes) else None
        if len(ids) == 1 and node is not None:
            parts += [f"%{i} {plain(node.op)}", *(plain(x) for x in (node.scope, node.site) if x)]
        else:
            told = "" if node is None else f" {plain(node.op)}  {plain(node.site)}"
            parts.append(f"%{i}{told}")
    if len(ids) > _MAX_FUSED:
        parts.append(f"and {len(ids) - _MAX_FUSED} more")
    if segment is not None:
        parts.append(f"segment {number}: {len(segment.nodes)} ops, cut by {plain(segment.cut)}")
    elif number >= 0:
        parts.append(f"segment {number}")
    return "\n".join(parts) or "-"


def _text_ms(text: str, x_end: float) -> float:
    """The time that a sync label covers on a narrow plot."""
    return (6.3 * len(text) + 20) * x_end / _NARROW_PIXELS


def _spaced(x: NDArray[np.float64], labels: list[str], x_end: float) -> list[str]:
    """The labels that do not run into the one before; the others are left to the hover card."""
    free, kept = -1e300, []
    for at, label in zip(x.tolist(), labels, strict=True):
        width = _text_ms(label, x_end)
        begin = at - width if at + width > x_end else at
        kept.append(label if begin >= free else "")
        free = max(begin + width, at) if kept[-1] else free
    return kept
