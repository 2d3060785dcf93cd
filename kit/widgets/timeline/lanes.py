"""Where each span of a timeline goes: groups of lanes, lanes, and rows inside a lane.

Groups are a process's host and each of its devices, hosts first. Inside a lane, spans that overlap
in time take rows of their own: what began first is above, and what runs inside of it lies below,
so nested host spans read as a stack.

Units:
    vertical positions are CSS pixels from the top of the first row, growing downwards
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.trace import KINDS, Timeline

__all__ = ["Lane", "Places", "group_of", "place"]

MAX_ROWS = 32  # of one lane; what is nested deeper shares the last one
_MAX_DEVICE_LANES = 4  # of one device; threads of more are drawn together
_STEP = KINDS.index("step")
_LANE = re.compile(r"(?:(.*?)[\s/:·]+)?\b(host|device)/(.*)", re.DOTALL)
_THREAD = re.compile(r"((?:thread|tf_XLA\w*|tf_\w+)[\s/#]*)\d+$")
_HEADING_PX = 17
_MARKS_PX = 21  # a row of steps, or of sync points
_GAP_PX = 5
_HOST, _OTHER, _DEVICE = range(3)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane, or several threads drawn as one, with the pixels that it covers."""

    group: str  # "host", "device/0", "process 1 host"
    label: str  # "main", "Stream #7", "thread ×6"
    top: float
    bottom: float


@dataclass(frozen=True)
class Places:
    """The rows of the plot, from the top.

    `order` holds the spans that are drawn, row after row, by start inside a row: the spans
    `order[first[r]:first[r + 1]]` are in row `r`. Steps are not among them.
    """

    order: Ints
    first: Ints  # (rows + 1,)
    top: Ints  # (rows,)
    height: Ints  # (rows,)
    lane: Ints  # (rows,): into `lanes`
    is_crowded: NDArray[np.bool_]  # (rows,): its spans cover each other
    lanes: tuple[Lane, ...]
    headings: tuple[tuple[str, float], ...]  # group, top
    steps_top: float
    syncs_top: float
    bottom: float


def place(timeline: Timeline, *, top: float = 0.0) -> Places:
    """The rows of a timeline, the first row at `top`: worked out once for all columns."""
    y = top + 2 * _MARKS_PX + _GAP_PX
    begin, end = timeline.start_ns, timeline.stop_ns
    is_bar = timeline.kind != _STEP
    lanes, headings = [], []
    orders, tops, heights, lane_of, crowded = [], [], [], [], []
    heading = ""
    by_lane = _spans_by_lane(timeline, is_bar)
    for group, label, ids in _stacked(timeline.lanes):
        spans = np.concatenate([by_lane[i] for i in ids])
        if not len(spans):
            continue
        if group != heading:
            headings.append((group, y))
            heading = group
            y += _HEADING_PX if group else 0
        spans = spans[np.lexsort((-end[spans], begin[spans]))]
        rows, is_full = _rows(begin[spans], end[spans])
        height = _row_px(len(rows))
        lanes.append(Lane(group, label, y, y + height * len(rows)))
        for i, row in enumerate(rows):
            orders.append(spans[row])
            tops.append(y + height * i)
            heights.append(height - 1)
            lane_of.append(len(lanes) - 1)
            crowded.append(is_full and i == len(rows) - 1)
        y += height * len(rows) + _GAP_PX
    counts = np.array([len(x) for x in orders], np.int64)
    return Places(
        order=np.concatenate(orders) if orders else np.zeros(0, np.int64),
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        top=np.array(tops, np.int64),
        height=np.array(heights, np.int64),
        lane=np.array(lane_of, np.int64),
        is_crowded=np.array(crowded, bool),
        lanes=tuple(lanes),
        headings=tuple(headings),
        steps_top=top,
        syncs_top=top + _MARKS_PX,
        bottom=y,
    )


def group_of(lane: str) -> tuple[str, str]:
    """The group of a lane and its name inside of it: ("device/0", "Stream #7")."""
    found = _LANE.fullmatch(lane)
    if found is None:
        return "", lane
    process, side, rest = found.group(1) or "", found.group(2), found.group(3)
    if side == "device":
        number, _, rest = rest.partition(" ")
        side = f"device/{number}"
    return f"{process} {side}".strip(), rest or side


def _spans_by_lane(timeline: Timeline, mask: NDArray[np.bool_]) -> list[Ints]:
    ids = np.flatnonzero(mask)
    ids = ids[np.argsort(timeline.lane[ids], kind="stable")]
    edges = np.searchsorted(timeline.lane[ids], np.arange(len(timeline.lanes) + 1))
    return [ids[a:b] for a, b in pairwise(edges.tolist())]


def _stacked(lanes: Sequence[str]) -> list[tuple[str, str, list[int]]]:
    """(group, label, lanes) from the top; many threads of one device are drawn as one lane."""
    known = [group_of(lane) for lane in lanes]
    groups = list(dict.fromkeys(group for group, _ in known))

    def rank(i: int) -> tuple[Any, ...]:
        group, label = known[i]
        is_main = group.endswith("host") and label == "main"
        return (_natural(_process(group)), _side(group), _natural(group),
                0 if is_main else 1, _natural(label), i)  # fmt: skip

    of_group: dict[str, dict[str, list[int]]] = {}
    sizes = {group: sum(g == group for g, _ in known) for group in groups}
    for i in sorted(range(len(lanes)), key=rank):
        group, label = known[i]
        thread = _THREAD.search(label)
        if _side(group) == _DEVICE and sizes[group] > _MAX_DEVICE_LANES and thread:
            family = label[: thread.start()] + thread.group(1).rstrip(" /#")
            of_group.setdefault(group, {}).setdefault("\0" + family, []).append(i)
        else:
            of_group.setdefault(group, {}).setdefault(f"{i}", []).append(i)
    return [
        (group, known[ids[0]][1] if len(ids) == 1 else f"{family[1:]} ×{len(ids)}", ids)
        for group, families in of_group.items()
        for family, ids in families.items()
    ]


def _natural(text: str) -> list[tuple[int, str]]:
    """A key by which "Stream #7" comes before "Stream #13": lanes stand alike in every run."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]", text)
    return [(int(x), "") if x.isascii() and x.isdigit() else (-1, x) for x in parts]


def _process(group: str) -> str:
    return re.sub(r"\s*(host|device/\S*)$", "", group) if group else ""


def _side(group: str) -> int:
    last = group.rsplit(" ", 1)[-1]
    return _HOST if last == "host" else _DEVICE if last.startswith("device/") else _OTHER


def _rows(start: Ints, stop: Ints) -> tuple[list[Ints], bool]:
    """Spans (sorted by start, the longer first) dealt to rows: each to the first that is free.

    A row takes a span, then the next that begins after its end, and so on; what is left goes
    through the next row. So Python steps once for each span, and the search is numpy's.

    Returns:
        indices of each row; whether the last row holds what did not fit, one over the other.
    """
    left = np.arange(len(start))
    rows: list[Ints] = []
    while len(left):
        begins, ends = start[left], stop[left]
        # A span without length, at the end of another, is after it; at one instant with it, too.
        apart = np.all(begins[1:] >= np.maximum.accumulate(ends)[:-1]) if len(left) > 1 else True
        if apart or len(rows) == MAX_ROWS - 1:
            rows.append(left)
            return rows, not apart
        following = np.maximum(
            np.searchsorted(begins, ends, "left"), np.arange(1, len(left) + 1)
        ).tolist()
        taken, at = [], 0
        while at < len(left):
            taken.append(at)
            at = following[at]
        kept = np.ones(len(left), bool)
        kept[taken] = False
        rows.append(left[taken])
        left = left[kept]
    return rows, False


def _row_px(rows: int) -> int:
    return 19 if rows <= 3 else 15 if rows <= 8 else 11
