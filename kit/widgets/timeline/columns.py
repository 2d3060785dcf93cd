"""What a kernel timeline draws, as plain columns: a `Timeline` in, numpy arrays and text out.

A span is three numbers: how long after the one before it in its row it begins, how long it lasts,
and its key. A key is what equal spans share (lane, kind, name, segment, node) and carries all text.
So a million spans are 12 MB, a step of a thousand kernels 10 kB, and no time is rounded.

Units:
    times in whole nanoseconds from the first start; places in CSS pixels, see `lanes.py`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.ir import Node, Segment
from kit.ir.names import computed_by
from kit.runs.run import Run
from kit.text import format_count, safe_label
from kit.trace import GAP_CAUSES, KINDS, Timeline, critical_path, idle_gaps
from kit.trace.imported import Caller
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import MAX_TEXT
from kit.widgets.base.theme import kind_color
from kit.widgets.timeline.lanes import Places

__all__ = [
    "Columns",
    "end_ns",
    "gap_columns",
    "graph_columns",
    "key_columns",
    "knows_gaps",
    "lane_columns",
    "narrow",
    "path_columns",
    "pin_columns",
    "span_columns",
    "step_columns",
    "sync_columns",
]

MAX_KEYS = 100_000  # of a timeline; beyond, the names of the shortest are left out
MAX_FOREIGN_KEYS = 5000  # without a graph, where a segment is no more than a number
LEFT_OUT = "one of many names, which were left out"
MAX_GAP_KERNELS = 50_000  # beyond, idle time by cause is worked out when it is asked for
MAX_PATH_SPANS = 10_000  # it takes some 70 ms
_MAX_FUSED = 6  # ops of one kernel that its hover card names
_STEP = KINDS.index("step")

Columns = dict[str, Any]
Ints = NDArray[np.int64]


def span_columns(
    timeline: Timeline, places: Places, keys: Ints, *, max_spans: int, shift_ns: int
) -> tuple[Columns, Ints, Ints]:
    """The spans as `delta`, `length`, `key`, `segment` (+ 1) and `count`, row after row.

    With more than `max_spans` of them, neighbours in a row are joined where they are shorter than
    a part of the whole time: such a bar has the key of the longest, and its `count` says how many
    it stands for. Else `count` is empty.

    Returns:
        the columns; where each row begins, (rows + 1,); for each bar its span of the timeline
    """
    spans, first = places.order, places.first
    origin = timeline.begin_ns - shift_ns
    left, right = timeline.start_ns[spans] - origin, timeline.stop_ns[spans] - origin
    count = np.zeros(0, np.int64)
    if len(spans) > max_spans:
        row = np.repeat(np.arange(len(first) - 1), np.diff(first))
        spans, left, right, count, row = _join(row, spans, left, right, max_spans)
        first = np.searchsorted(row, np.arange(len(first)))
    delta = np.diff(left, prepend=0)
    begins = first[:-1]
    delta[begins] = left[begins]  # no row is empty
    return (
        {
            "delta": narrow(delta),
            "length": narrow(right - left),
            "key": narrow(keys[spans]),
            "segment": narrow(timeline.segment[spans] + np.int64(1)),
            "count": narrow(count),
        },
        first,
        spans,
    )


def key_columns(run: Run, lane_of: Ints) -> tuple[Columns, Ints, bool]:
    """One row for each key, with all that is said of its spans; and the key of each span.

    Where segments and nodes would make too many keys, keys leave them out.

    Args:
        lane_of: for each lane of the timeline the lane of the plot, -1 if it has none.

    Returns:
        `name`, `kind`, `color`, `lane` (into the plot's), `where` (the lane's own name), `segment`,
        `node`, `nodes` (ids of a kernel's nodes, with spaces between), `bar` (what stands on its
        bars; empty: the name), `detail`; keys (spans,); whether keys have segments and nodes
    """
    t = run.timeline
    key = np.zeros(len(t), np.int64)
    for column in (t.lane, t.kind, t.name):
        key = _factor(key, column)
    whole = _factor(_factor(key, t.segment), t.node)
    is_whole = int(whole.max(initial=-1)) < (MAX_KEYS if run.graphs else MAX_FOREIGN_KEYS)
    key, told = _fewer(t, whole if is_whole else key)
    one = np.full(int(key.max(initial=-1)) + 1, -1, np.int64)
    one[key[::-1]] = np.arange(len(t))[::-1]  # the first span of each key
    raw = [t.names[n] for n in t.name[one]]
    raw[told:] = [LEFT_OUT] * len(raw[told:])
    kind = [KINDS[k] for k in t.kind[one]]
    is_told = (np.arange(len(one)) < told) & is_whole
    segment = np.where(is_told, t.segment[one], -1).tolist()
    node = np.where(is_told, t.node[one], -1).tolist()
    nodes = [
        run.nodes_of(s, n, d) if k in ON_DEVICE and not run.callers else () if d < 0 else (d,)
        for s, n, d, k in zip(segment, raw, node, kind, strict=True)
    ]
    lanes = [safe_label(x) for x in t.lanes]
    return (
        {
            "name": [safe_label(n) for n in raw],
            "kind": kind,
            "color": [kind_color(k, n) for k, n in zip(kind, raw, strict=True)],
            "lane": lane_of[t.lane[one]].astype(np.int32),
            "where": [lanes[i] for i in t.lane[one]],
            "segment": np.array(segment, np.int32),
            "node": np.array(node, np.int32),
            "nodes": [" ".join(map(str, ids)) for ids in nodes],
            "bar": [_computed(ids, run) if k in ON_DEVICE else ""
                    for ids, k in zip(nodes, kind, strict=True)],
            "detail": _details(segment, nodes, run),
        },
        key,
        is_whole,
    )  # fmt: skip


def _computed(ids: Sequence[int], run: Run) -> str:
    """What a kernel computes, in the words of the graph; "" where no graph says so."""
    if run.callers or not run.graphs or not ids:
        return ""
    nodes = run.whole.nodes
    return computed_by([nodes[i] for i in ids])


def step_columns(timeline: Timeline, shift_ns: int) -> Columns:
    """Each step: `start`, `length` and `name`."""
    mask = timeline.kind == _STEP
    names = [safe_label(timeline.names[n], 40) for n in timeline.name[mask]]
    start = timeline.start_ns[mask]
    return {
        "start": narrow(start - timeline.begin_ns + shift_ns),
        "length": narrow(timeline.stop_ns[mask] - start),
        "name": [f"{n} {i}" if n == "step" else n for i, n in enumerate(names)],
    }


def sync_columns(timeline: Timeline, shift_ns: int) -> Columns:
    """Each sync point, in order of time: `at`, `wait`, `cause`, `site` and `via`."""
    syncs = timeline.syncs
    origin = timeline.begin_ns - shift_ns
    return {
        "at": narrow(np.array([s.at_ns for s in syncs], np.int64) - origin),
        "wait": narrow(np.array([s.wait_ns for s in syncs], np.int64)),
        "cause": [safe_label(s.cause, 80) for s in syncs],
        "site": [safe_label(s.site) for s in syncs],
        "via": [safe_label(s.via) for s in syncs],
    }


def pin_columns(run: Run, shift_ns: int) -> Columns:
    """What somebody wrote: `at`, `text`."""
    origin = run.timeline.begin_ns - shift_ns
    return {
        "at": np.array([pin.at_ns - origin for pin in run.pins], np.float64),
        "text": [safe_label(pin.text, MAX_TEXT) for pin in run.pins],
    }


def gap_columns(timeline: Timeline, shift_ns: int, *, max_spans: int) -> Columns:
    """Idle time of the devices: `start`, `length`, `device`, `cause` (an index of `GAP_CAUSES`).

    Empty where there are so many kernels that idle time is worked out only for a chosen range.
    """
    gaps = idle_gaps(timeline) if knows_gaps(timeline, max_spans) else ()
    origin = timeline.begin_ns - shift_ns
    return {
        "start": narrow(np.array([g.start_ns for g in gaps], np.int64) - origin),
        "length": narrow(np.array([g.stop_ns - g.start_ns for g in gaps], np.int64)),
        "cause": np.array([GAP_CAUSES.index(g.cause) for g in gaps], np.uint8),
        "device": [safe_label(g.lane, 60) for g in gaps],
    }


def knows_gaps(timeline: Timeline, max_spans: int) -> bool:
    """Whether `gap_columns` says why the devices were idle."""
    kernels = int((timeline.kind == KINDS.index("kernel")).sum())
    return kernels <= min(MAX_GAP_KERNELS, max_spans)


def path_columns(timeline: Timeline, places: Places, shift_ns: int) -> Columns:
    """The critical path: `start`, `length`, `work`, `kind`, and `row`, -1 where no span is.

    Empty where no step was traced, and of more spans than `MAX_PATH_SPANS`: it would take longer
    than to draw them.
    """
    edges = critical_path(timeline) if len(timeline) <= MAX_PATH_SPANS else ()
    row_of = np.full(len(timeline), -1, np.int64)
    row_of[places.order] = np.repeat(np.arange(len(places.top)), np.diff(places.first))
    origin = timeline.begin_ns - shift_ns
    return {
        "start": narrow(np.array([e.start_ns for e in edges], np.int64) - origin),
        "length": narrow(np.array([e.length_ns for e in edges], np.int64)),
        "work": narrow(np.array([e.work_ns for e in edges], np.int64)),
        "kind": [e.kind for e in edges],
        "row": [int(row_of[e.span]) if e.span >= 0 else -1 for e in edges],
    }


def graph_columns(run: Run) -> Columns:
    """What joins nodes, lines and segments, for a view that highlights another's choice.

    `sites` are the user's lines as they are shown, `site` the place in `sites` of each node's line
    (-1: none), and `nodes` the ids of each segment in `segments`. Without a graph, callers are the
    nodes, as in `Selection`.
    """
    graph: Sequence[Node | Caller] = run.whole.nodes if run.graphs else run.callers
    known: dict[str, int] = {}
    site = [known.setdefault(safe_label(n.site), len(known)) if n.site else -1 for n in graph]
    return {
        "site": np.array(site, np.int32),
        "sites": list(known),
        "segments": np.array([s.index for s in run.segments], np.int32),
        "nodes": [" ".join(map(str, s.nodes)) for s in run.segments],
    }


def lane_columns(places: Places) -> tuple[Columns, Columns]:
    """The lanes (`label`, `group`, `top`, `bottom`) and the headings (`text`, `top`)."""
    lanes = {
        "label": [safe_label(x.label, 60) for x in places.lanes],
        "group": [safe_label(x.group, 60) for x in places.lanes],
        "top": np.array([x.top for x in places.lanes]),
        "bottom": np.array([x.bottom for x in places.lanes]),
    }
    texts = [(safe_label(text, 60), top) for text, top in places.headings if text]
    headings = {"text": [t for t, _ in texts], "top": np.array([y for _, y in texts], float)}
    return lanes, headings


def end_ns(timeline: Timeline) -> float:
    """How far the spans and the waits reach, from the first start."""
    if not len(timeline):
        return 0.0
    waits = max((s.at_ns + s.wait_ns for s in timeline.syncs), default=0)
    return float(max(int(timeline.stop_ns.max()), waits) - timeline.begin_ns)


def narrow(values: Ints) -> NDArray[Any]:
    """The smallest type that a browser has, and that holds them; floats do up to 104 days."""
    most = int(values.max(initial=0))
    if int(values.min(initial=0)) < 0 or most >= 2**32:
        return values.astype(np.float64)
    return values.astype(np.uint16 if most < 2**16 else np.uint32)


def _factor(key: Ints, column: NDArray[Any]) -> Ints:
    """A number for each pair that occurs, smaller than there are spans."""
    if not len(key):
        return key
    low = int(column.min())
    pairs = key * (int(column.max()) - low + 1) + (column.astype(np.int64) - low)
    if int(pairs.max()) < 4 * len(pairs) + 1024:  # a table is cheaper than to sort
        table = np.zeros(int(pairs.max()) + 1, np.int64)
        table[pairs] = 1
        return (np.cumsum(table) - 1)[pairs]
    order = np.argsort(pairs, kind="stable")
    rank = np.zeros(len(pairs), np.int64)
    rank[order] = np.cumsum(np.diff(pairs[order], prepend=pairs[order[0]]) > 0)
    return rank


def _fewer(t: Timeline, key: Ints) -> tuple[Ints, int]:
    """Keys, and how many keys have a name: where there are too many, the longest spans'.

    The others are one key for each lane and kind, and come last.
    """
    keys = int(key.max(initial=-1)) + 1
    if keys <= MAX_KEYS:
        return key, keys
    times = np.bincount(key, weights=(t.stop_ns - t.start_ns).astype(np.float64))
    rank = np.full(keys, -1, np.int64)
    rank[np.argsort(-times, kind="stable")[:MAX_KEYS]] = np.arange(MAX_KEYS)
    other = _factor(_factor(np.zeros(len(t), np.int64), t.lane), t.kind)
    kept = rank[key]
    other[kept < 0] = _factor(np.zeros(int((kept < 0).sum()), np.int64), other[kept < 0])
    return np.where(kept >= 0, kept, MAX_KEYS + other), MAX_KEYS


def _join(row: Ints, spans: Ints, left: Ints, right: Ints, most: int) -> tuple[Ints, ...]:
    """Join spans shorter than a bucket of time, row by row; wider buckets until few enough."""
    total = max(int(right.max()), 1)
    buckets = most
    while True:
        width = total / buckets
        bucket = np.where(right - left < width, left // width, -1 - np.arange(len(left)))
        bucket = bucket.astype(np.int64)
        changes = (np.diff(row, prepend=-1) != 0) | (np.diff(bucket, prepend=bucket[0]) != 0)
        group = np.cumsum(changes) - 1
        if group[-1] < most or buckets < 2:
            break
        buckets //= 2
    order = np.lexsort((left - right, group))  # the longest of each group comes first
    head = np.flatnonzero(np.diff(group[order], prepend=-1))
    return (
        spans[order[head]],
        np.minimum.reduceat(left[order], head),
        np.maximum.reduceat(right[order], head),
        np.diff(head, append=len(order)),
        row[order[head]],
    )


def _details(segment: list[int], nodes: Sequence[Sequence[int]], run: Run) -> list[str]:
    by_index = {s.index: s for s in run.segments}
    if run.callers:
        callers = [run.caller(ids[0]) if ids else None for ids in nodes]
        return ["\n".join(map(safe_label, c.lines())) if c is not None else "" for c in callers]
    graph = run.whole.nodes
    return [_detail(s, ids, graph, by_index) for s, ids in zip(segment, nodes, strict=True)]


def _detail(
    number: int, ids: Sequence[int], nodes: Sequence[Node], segments: Mapping[int, Segment]
) -> str:
    if number < 0 and not ids:
        return ""
    parts = [f"{len(ids)} ops in one kernel:"] if len(ids) > 1 else []
    for i in ids[:_MAX_FUSED]:
        node = nodes[i] if i < len(nodes) else None
        if len(ids) == 1 and node is not None:
            parts += [
                f"%{i} {safe_label(node.op)}",
                *(safe_label(x) for x in (node.scope, node.site) if x),
            ]
        else:
            told = "" if node is None else f" {safe_label(node.op)}  {safe_label(node.site)}"
            parts.append(f"%{i}{told}")
    if len(ids) > _MAX_FUSED:
        parts.append(f"and {len(ids) - _MAX_FUSED} more")
    segment = segments.get(number)
    if segment is not None:
        parts.append(
            f"segment {number}: {format_count(len(segment.nodes), 'op')}, cut by "
            f"{safe_label(segment.cut)}"
        )
    elif number >= 0:
        parts.append(f"segment {number}")
    return "\n".join(parts)
