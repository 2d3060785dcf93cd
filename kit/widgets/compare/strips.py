"""The timelines of several runs on one time axis: a strip for each run, and no machinery.

`comparison_columns` turns runs into plain columns, and `kit.widgets.compare.view` draws them. A
strip has the steps at its top, then a row for the recording thread, thinner ones for other host
threads, one in which any device lane's work shows, and the steps as the device had them.

Units:
    x in milliseconds since the run's first traced step began; y in rows, growing downwards
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.runs.run import Run
from kit.text import format_ms, format_ns, format_percent, safe_label, safe_terminal
from kit.trace import KINDS, SyncPoint, Timeline
from kit.widgets.base.theme import COLORS, kind_color
from kit.widgets.compare.data import ComparisonRow, baseline_tag

__all__ = ["MAX_BARS", "MAX_STEPS", "MAX_SYNCS", "PX", "SOURCES", "TITLE", "comparison_columns"]

SOURCES = ("bars", "steps", "syncs", "tracks", "texts", "titles")  # the keys that hold columns

MAX_BARS = 600  # of one strip
MAX_SYNCS = 200  # of one strip
MAX_STEPS = 4  # of one strip
_BUCKETS = 1000  # of the whole time axis: about a pixel each
_MAX_LABEL = 84  # letters of a run's settings in the title of its strip
_MAX_HOST_ROWS = 4
_MAX_ROW = 12  # letters of a row's label; its end tells threads apart. A strip needs the room
TITLE = 1.05  # height of a title's line, in rows; rows.js makes as many lines as the width asks for
_STEPS, _THIN, _GAP, _SPACE = 0.8, 0.62, 0.14, 0.6  # heights, in rows
_HEIGHTS = {"host": 1.0, "device": 1.0, "its steps": 0.7}
_ROW_PX, _DENSE_PX, _DENSE_FROM = 17, 14, 7
_FRAME_PX = 70  # title, a line of the note, and axis
PX = {"note": 14, "keys": 25}  # a line of the note, a row of the legend
_STEP, _DEVICE_STEP = KINDS.index("step"), KINDS.index("device step")
Columns = dict[str, Any]


@dataclass(frozen=True)
class _Window:
    """The part of a timeline that its strip shows, in nanoseconds of that timeline."""

    begin: int
    end: int
    steps: NDArray[np.int64]  # (n, 2)

    def ms(self, at: Any) -> Any:
        return (at - self.begin) / 1e6


@dataclass(frozen=True)
class _Row:
    """A row of a strip: its lanes, and where it is."""

    label: str
    lanes: tuple[int, ...]
    top: float
    bottom: float


@dataclass(frozen=True)
class _Strip:
    """Where one run is drawn."""

    run: int
    window: _Window
    rows: tuple[_Row, ...]
    top: float  # of the band of steps, under the title
    end: float
    x_end: float  # of the whole axis, milliseconds


def comparison_columns(runs: Sequence[Run], rows: Sequence[ComparisonRow]) -> Columns:
    """Everything that the figure shows, as numpy columns, text and numbers; nothing of bokeh.

    At most `MAX_BARS` bars a run: those narrower than a pixel or so are merged with their
    neighbours of the same kind, and `alpha` is the part of a bar that was busy. At most `MAX_STEPS`
    steps of a run are shown.

    Each title has one line. What can make more of them, where there is less room, are the parts of
    `heads`, and of `notes`, which end a line.

    Keys: `bars`, `steps`, `syncs`, `tracks`, `titles` (columns), `axis`, `kinds`, `title`, `heads`,
    `notes`, `row` and `height` (pixels, without the legend).
    """
    windows = [_window(run.timeline) for run in runs]
    x_end = _axis_end([w.ms(w.end) for w in windows])
    columns: Columns = {name: {} for name in SOURCES}
    ticks: list[float] = []
    labels: list[str] = []
    heads: list[list[list[str]]] = []
    y = 0.0
    for i, (run, window) in enumerate(zip(runs, windows, strict=True)):
        tag = baseline_tag(rows[i], rows)
        heads.append(_head(run, rows[i], window, x_end, tag, i))
        top = y + TITLE
        lanes, end = _rows(run.timeline, top + _STEPS + _GAP)
        parts = _strip(run.timeline, _Strip(i, window, tuple(lanes), top, end, x_end))
        text = f"{i + 1}  " + " · ".join([*heads[i][0], *heads[i][1]])
        parts["titles"] = {"y": [y + TITLE * 0.55], "text": [text]}
        for name, part in parts.items():
            for key, values in part.items():
                columns[name].setdefault(key, []).extend(values)
        ticks += [(r.top + r.bottom) / 2 for r in lanes]
        labels += [r.label for r in lanes]
        y = end + _SPACE
    colors = set(columns["bars"]["color"])
    kinds = [k for k, color in COLORS.items() if color in colors]
    row_px = _ROW_PX if len(runs) < _DENSE_FROM else _DENSE_PX
    return {
        **columns,
        "axis": {"ticks": ticks, "labels": labels, "end": y - _SPACE + _GAP, "x_end": x_end},
        "kinds": kinds,
        "title": _title(runs),
        "heads": heads,
        "notes": _notes(runs, windows, columns),
        "row": row_px,
        "height": int(y * row_px) + _FRAME_PX,
    }


def _axis_end(ends: Sequence[float]) -> float:
    """The longest strip's end, unless the shortest would then be too small to be read."""
    known = [end for end in ends if end > 0]
    return min(max(known), max(4 * min(known), 1.5 * float(np.median(known)))) if known else 1.0


def _strip(timeline: Timeline, strip: _Strip) -> dict[str, Columns]:
    return {
        "bars": _bars(timeline, strip),
        "steps": _steps(strip),
        "syncs": _syncs(timeline, strip),
        "tracks": _tracks(strip),
        "texts": _texts(timeline, strip),
    }


def _window(timeline: Timeline) -> _Window:
    """From the first traced step on; without steps, everything."""
    if not len(timeline):
        return _Window(0, 0, np.empty((0, 2), np.int64))
    steps = timeline.intervals(kind="step")
    shown = steps[:MAX_STEPS]
    begin = int(shown[0, 0]) if len(shown) else timeline.begin_ns
    is_cut = len(steps) > len(shown)
    waits = [s.at_ns + s.wait_ns for s in timeline.syncs]
    end = int(shown[:, 1].max()) if is_cut else max([int(timeline.stop_ns.max()), *waits])
    return _Window(begin, max(end, begin), shown)


def _rows(timeline: Timeline, top: float) -> tuple[list[_Row], float]:
    """The rows of a strip from `top` down, and where they end: recording, other host, device."""
    groups: dict[str, list[int]] = {"host": [], "device": []}
    stepping = set(timeline.lane[timeline.kind == _DEVICE_STEP].tolist())
    for i, lane in enumerate(timeline.lanes):
        groups.setdefault("its steps" if i in stepping else _row_name(lane), []).append(i)
    below = [(name, groups.pop(name)) for name in ("device", "its steps") if name in groups]
    if len(groups) > _MAX_HOST_ROWS:
        names = list(groups)[_MAX_HOST_ROWS - 1 :]
        groups["more threads"] = [i for name in names for i in groups.pop(name)]
    rows = []
    for name, lanes in [*groups.items(), *below]:
        height = _HEIGHTS.get(name, _THIN)
        rows.append(
            _Row(safe_label(safe_terminal(name, _MAX_ROW)), tuple(lanes), top, top + height)
        )
        top += height + _GAP
    return rows, top - _GAP


def _row_name(lane: str) -> str:
    group, _, rest = lane.partition("/")
    if group == "host":
        return rest if rest not in ("", "main") else "host"
    return group


def _bars(timeline: Timeline, strip: _Strip) -> Columns:
    window, rows = strip.window, strip.rows
    row_of = np.full(len(timeline.lanes), -1)
    for i, place in enumerate(rows):
        row_of[list(place.lanes)] = i
    seen = timeline.kind != _STEP
    spans = np.flatnonzero(
        seen & (timeline.stop_ns > window.begin) & (timeline.start_ns < window.end)
    )
    left = np.maximum(timeline.start_ns[spans], window.begin)
    right = np.minimum(timeline.stop_ns[spans], window.end)
    row = row_of[timeline.lane[spans]]
    on_device = np.isin(row, [i for i, r in enumerate(rows) if r.label == "device"])
    left[on_device], right[on_device] = _apart(left[on_device], right[on_device])
    kept = right > left
    spans, left, right, row = spans[kept], left[kept], right[kept], row[kept]
    names = [safe_label(n, 80) for n in timeline.names]
    lanes = [safe_label(n, 60) for n in timeline.lanes]
    color = [kind_color(KINDS[timeline.kind[i]], names[timeline.name[i]]) for i in spans]
    first, left, right, busy, count = _merged(row, color, left, right, strip.x_end)
    longest = spans[first]
    width = np.maximum(right - left, 1)
    return {
        "left_ms": window.ms(left).tolist(),
        "right_ms": window.ms(right).tolist(),
        "top": [rows[i].top for i in row[first]],
        "bottom": [rows[i].bottom for i in row[first]],
        "color": [color[i] for i in first],
        "alpha": np.clip(busy / width, 0.12, 1).tolist(),
        "busy_ms": (busy / 1e6).tolist(),
        "count": count.tolist(),
        "kind": [KINDS[k] for k in timeline.kind[longest]],
        "name": [
            names[n] if c == 1 else f"{c:,} spans, the longest is {names[n]}"
            for n, c in zip(timeline.name[longest], count.tolist(), strict=True)
        ],
        "lane": [lanes[i] for i in timeline.lane[longest]],
        "duration": [format_ns(x) for x in busy.tolist()],
        "start": [format_ns(x) for x in (left - window.begin).tolist()],
        "run": [strip.run + 1] * len(first),
    }


def _apart(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Intervals by start, each without what those before it cover: their union, none twice."""
    if not len(left):
        return left, right
    covered = np.concatenate([left[:1], np.maximum.accumulate(right)[:-1]])
    begin = np.maximum(left, covered)
    return begin, np.maximum(right, begin)


def _merged(row: NDArray[np.int64], color: Sequence[str], left: NDArray[np.int64],
            right: NDArray[np.int64], x_end: float) -> tuple[NDArray[np.int64], ...]:  # fmt: skip
    """Join spans of one row and colour that are narrower than a pixel of the axis, or wider.

    Returns:
        for each bar: the place of its longest span, left, right, busy time, number of spans
    """
    n = len(left)
    if not n:
        return (np.empty(0, np.int64),) * 5
    colors = np.unique(np.array(color), return_inverse=True)[1]
    begin = left - left.min()
    buckets = _BUCKETS
    while True:
        width = x_end * 1e6 / buckets
        bucket = np.where(right - left < width, begin // width, -1.0 - np.arange(n))
        keys = np.stack([row, colors, bucket.astype(np.int64)])
        group = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
        if group.max() < MAX_BARS or buckets < 2:
            break
        buckets //= 2
    busy = right - left
    order = np.lexsort((-busy, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    bars = (
        order[starts],
        np.minimum.reduceat(left[order], starts),
        np.maximum.reduceat(right[order], starts),
        np.add.reduceat(busy[order], starts),
        np.diff(starts, append=n),
    )
    outer_first = np.lexsort((-bars[2], bars[1]))  # what lies inside is painted over it
    return tuple(column[outer_first] for column in bars)


def _steps(strip: _Strip) -> Columns:
    left, right = (strip.window.ms(strip.window.steps[:, k]).tolist() for k in (0, 1))
    n = len(left)
    return {
        "left_ms": left,
        "right_ms": right,
        "top": [strip.top] * n,
        "under": [strip.top + _STEPS] * n,
        "bottom": [strip.end] * n,
        "color": [kind_color("device step", str(i)) for i in range(n)],
        "run": [strip.run + 1] * n,
    }


def _texts(timeline: Timeline, strip: _Strip) -> Columns:
    """The names of the steps, on the host and on the device; the page hides those without room."""
    window = strip.window
    found = [
        (a, b, f"step {i} · {format_ns(b - a)}", strip.top + _STEPS / 2)
        for i, (a, b) in enumerate(window.steps.tolist())
    ]
    for row in (r for r in strip.rows if r.label == "its steps"):
        spans = np.flatnonzero(timeline.kind == _DEVICE_STEP)
        starts = [*timeline.start_ns[spans].tolist(), window.end]
        for i, a, after in zip(spans, starts, starts[1:], strict=False):
            name = safe_label(timeline.names[timeline.name[i]], 40)
            b = min(int(timeline.stop_ns[i]), after)  # the next may begin before this one ends
            found.append((a, b, name, (row.top + row.bottom) / 2))
    columns: Columns = {"x": [], "y": [], "text": [], "room": [], "alpha": [], "run": []}
    for a, b, text, y in found[: 4 * MAX_STEPS]:
        left, right = max(window.ms(a), 0.0), min(window.ms(b), window.ms(window.end), strip.x_end)
        if right <= left:
            continue
        at = {"x": (left + right) / 2, "y": y, "text": text, "room": right - left, "alpha": 0}
        for key, value in {**at, "run": strip.run + 1}.items():
            columns[key].append(value)
    return columns


def _syncs(timeline: Timeline, strip: _Strip) -> Columns:
    window = strip.window
    inside = _inside(timeline, window)
    if len(inside) > MAX_SYNCS:
        longest = sorted(inside, key=lambda s: -s.wait_ns)[:MAX_SYNCS]
        inside = sorted(longest, key=lambda s: s.at_ns)
    return {
        "x": [window.ms(s.at_ns) for s in inside],
        "right": [window.ms(min(s.at_ns + s.wait_ns, window.end)) for s in inside],
        "top": [strip.top + _STEPS] * len(inside),
        "bottom": [strip.end] * len(inside),
        "cause": [safe_label(s.cause, 60) for s in inside],
        "site": [safe_label(s.site, 80) or "(no line known)" for s in inside],
        "via": [safe_label(s.via, 80) or "-" for s in inside],
        "duration": [format_ns(s.wait_ns) for s in inside],
        "run": [strip.run + 1] * len(inside),
    }


def _inside(timeline: Timeline, window: _Window) -> list[SyncPoint]:
    return [s for s in timeline.syncs if window.begin <= s.at_ns <= window.end]


def _tracks(strip: _Strip) -> Columns:
    """A pale ground as long as the strip, so that an idle device shows as a gap."""
    return {
        "top": [r.top for r in strip.rows],
        "bottom": [r.bottom for r in strip.rows],
        "right": [strip.window.ms(strip.window.end)] * len(strip.rows),
        "label": [r.label for r in strip.rows],
        "run": [strip.run + 1] * len(strip.rows),
    }


def _head(
    run: Run, row: ComparisonRow, window: _Window, x_end: float, tag: str, place: int
) -> list[list[str]]:
    """The parts of a strip's title: the settings of its run, then its numbers."""
    parts = ["step time unknown"]
    if not math.isnan(row.step_ms):
        parts = [f"{format_ms(row.step_ms)} a step ({row.reruns})"]
    if not math.isnan(row.overlap_fraction):
        parts.append(f"{format_percent(row.overlap_fraction)} hidden")
    if not len(run.timeline):
        parts.append("no spans were recorded")
    elif not len(window.steps):
        parts.append("no step was traced")
    if window.ms(window.end) > x_end:
        parts.append(f"goes on to {format_ms(window.ms(window.end))} →")
    label = safe_label(row.label, _MAX_LABEL - len(tag) - len(f"{place + 1}  ")) + tag
    return [label.split(" · "), parts]


def _title(runs: Sequence[Run]) -> str:
    origins = list(dict.fromkeys(run.timeline.origin for run in runs))
    names = list(dict.fromkeys(safe_label(run.name, 24) for run in runs if run.name))
    what = f": {safe_label(', '.join(names), 24)}" if names else ""
    return f"timelines ({', '.join(origins)}){what}"  # names may be cut


def _notes(runs: Sequence[Run], windows: Sequence[_Window], columns: Columns) -> list[str]:
    notes = ["drag, ctrl + wheel; keys ← → + −, and . , for bars"]
    notes += ["▼ sync point: the host waits"] * bool(columns["syncs"]["x"])
    syncs = max(len(_inside(r.timeline, w)) for r, w in zip(runs, windows, strict=True))
    if syncs > MAX_SYNCS:
        notes.append(f"the longest {MAX_SYNCS} of {syncs:,} sync points")
    if any("hidden" in title for title in columns["titles"]["text"]):
        notes.append("hidden: recorded while the device works")
    if max(columns["bars"]["count"], default=1) > 1:
        notes.append("paler: merged bars")
    steps = max(run.timeline.steps for run in runs)
    if steps > MAX_STEPS:
        notes.append(f"the first {MAX_STEPS} of {steps} traced steps")
    return notes
