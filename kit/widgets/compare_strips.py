"""The timelines of several runs on one time axis: a strip for each run, and no machinery.

`comparison_columns` turns runs into plain columns, `comparison_figure` draws them. A strip has the
steps at its top, then a row for the recording thread, thinner ones for other host threads, and one
in which any device lane's work shows, so that what is hidden under what can be seen.

Units:
    x in milliseconds since the run's first traced step began; y in rows, growing downwards
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    LabelSet,
    Legend,
    LegendItem,
    PanTool,
    Range1d,
    ResetTool,
    Title,
    WheelZoomTool,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

from kit.run import Run
from kit.trace import KINDS, Timeline
from kit.widgets.compare_data import ComparisonRow, amount, comparison_rows
from kit.widgets.theme import (
    BACKGROUND,
    COLORS,
    FONT,
    INK,
    LABELS,
    MUTED,
    format_ns,
    hover_card,
    kind_color,
    plain,
    style_figure,
)

__all__ = ["MAX_BARS", "comparison_columns", "comparison_figure"]

MAX_BARS = 600  # of one strip
MAX_SYNCS = 200  # of one strip
MAX_STEPS = 4  # of one strip
_BUCKETS = 1000  # of the whole time axis: about a pixel each
_NARROW_PX = 600  # a plot in a narrow notebook: texts must fit
_MAX_TITLE = 76  # letters of a strip's title there
_MAX_HOST_ROWS = 4
_TITLE, _STEPS, _HOST, _THIN, _GAP, _SPACE = 1.15, 0.8, 1.0, 0.55, 0.14, 0.55  # heights, in rows
_ROW_PX, _DENSE_PX, _DENSE_FROM = 17, 14, 7
_LEGEND_COLS = 6  # as many as fit beside each other in a narrow notebook
_FRAME_PX = 132  # title, note, axis and legend
_STEP = KINDS.index("step")
_BAR_CARD = (("kind", "@kind"), ("busy", "@duration"), ("began at", "@start"), ("lane", "@lane"),
             ("run", "@run"))  # fmt: skip
_SYNC_CARD = (("waited", "@duration"), ("line", "@site"), ("through", "@via"), ("run", "@run"))

Columns = dict[str, Any]
Floats = NDArray[np.float64]


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


def comparison_columns(runs: Sequence[Run], baseline: int = 0) -> Columns:
    """Everything that the figure shows, as numpy columns, text and numbers; nothing of bokeh.

    At most `MAX_BARS` bars a run: those narrower than a pixel or so are merged with their
    neighbours of the same kind, and `alpha` is the part of a bar that was busy. At most `MAX_STEPS`
    steps of a run are shown.

    Keys: `bars`, `steps`, `syncs`, `tracks`, `titles` (columns), `axis`, `kinds`, `title`, `note`,
    `height` (pixels).

    Raises:
        SettingsError: there are no runs.
    """
    rows = comparison_rows(runs, baseline)
    windows = [_window(run.timeline) for run in runs]
    x_end = max([w.ms(w.end) for w in windows] + [1e-3])
    columns: Columns = {name: {} for name in ("bars", "steps", "syncs", "tracks", "titles")}
    ticks, labels, y = [], [], 0.0
    for i, (run, window, row) in enumerate(zip(runs, windows, rows, strict=True)):
        lanes, end = _rows(run.timeline, y + _TITLE + _STEPS + _GAP)
        parts = {
            "bars": _bars(run.timeline, window, lanes, x_end, i),
            "steps": _steps(window, y + _TITLE, end, x_end),
            "syncs": _syncs(run.timeline, window, y + _TITLE + _STEPS, end, i),
            "tracks": _tracks(lanes, window),
            "titles": {
                "y": [y + _TITLE * 0.55],
                "text": [_strip_title(i, run, row, i == baseline)],
            },
        }
        for name, part in parts.items():
            for key, values in part.items():
                columns[name].setdefault(key, []).extend(values)
        ticks += [(r.top + r.bottom) / 2 for r in lanes]
        labels += [r.label for r in lanes]
        y = end + _SPACE
    kinds = set(columns["bars"]["color"])
    return {
        **columns,
        "axis": {"ticks": ticks, "labels": labels, "end": y - _SPACE + _GAP, "x_end": x_end},
        "kinds": [k for k, color in COLORS.items() if color in kinds],
        "title": _title(runs),
        "note": _note(runs, columns),
        "height": int(y * (_ROW_PX if len(runs) < _DENSE_FROM else _DENSE_PX)) + _FRAME_PX,
    }  # fmt: skip


def _window(timeline: Timeline) -> _Window:
    """From the first traced step on; without steps, everything."""
    if not len(timeline):
        return _Window(0, 0, np.empty((0, 2), np.int64))
    steps = timeline.intervals(kind="step")
    shown = steps[:MAX_STEPS]
    begin = int(shown[0, 0]) if len(shown) else int(timeline.start_ns.min())
    is_cut = len(steps) > len(shown)
    waits = [s.at_ns + s.wait_ns for s in timeline.syncs]
    end = int(shown[:, 1].max()) if is_cut else max([int(timeline.stop_ns.max()), *waits])
    return _Window(begin, max(end, begin), shown)


def _rows(timeline: Timeline, top: float) -> tuple[list[_Row], float]:
    """The rows of a strip from `top` down, and where they end: recording, other host, device."""
    groups: dict[str, list[int]] = {"host": [], "device": []}
    for i, lane in enumerate(timeline.lanes):
        groups.setdefault(_row_name(lane), []).append(i)
    device = groups.pop("device")
    if len(groups) > _MAX_HOST_ROWS:
        names = list(groups)[_MAX_HOST_ROWS - 1 :]
        groups["other threads"] = [i for name in names for i in groups.pop(name)]
    rows = []
    for name, lanes in [*groups.items(), ("device", device)]:
        height = _HOST if name in ("host", "device") else _THIN
        rows.append(_Row(plain(name, 16), tuple(lanes), top, top + height))
        top += height + _GAP
    return rows, top - _GAP


def _row_name(lane: str) -> str:
    group, _, rest = lane.partition("/")
    if group != "host":
        return "device" if group == "device" else group
    return "host" if rest == "main" else rest or "host"


def _bars(timeline: Timeline, window: _Window, rows: Sequence[_Row], x_end: float,
          run: int) -> Columns:  # fmt: skip
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
    on_device = row == len(rows) - 1
    left[on_device], right[on_device] = _apart(left[on_device], right[on_device])
    kept = right > left
    spans, left, right, row = spans[kept], left[kept], right[kept], row[kept]
    names = [plain(n, 80) for n in timeline.names]
    lanes = [plain(n, 60) for n in timeline.lanes]
    color = [kind_color(KINDS[timeline.kind[i]], names[timeline.name[i]]) for i in spans]
    first, left, right, busy, count = _merged(row, color, left, right, x_end)
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
        "name": [names[n] if c == 1 else f"{c:,} spans, the longest is {names[n]}"
                 for n, c in zip(timeline.name[longest], count.tolist(), strict=True)],
        "lane": [lanes[i] for i in timeline.lane[longest]],
        "duration": [format_ns(x) for x in busy.tolist()],
        "start": [format_ns(x) for x in (left - window.begin).tolist()],
        "run": [run + 1] * len(first),
    }  # fmt: skip


def _apart(left: NDArray[np.int64], right: NDArray[np.int64],
           ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
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
    bars = (order[starts], np.minimum.reduceat(left[order], starts),
            np.maximum.reduceat(right[order], starts), np.add.reduceat(busy[order], starts),
            np.diff(starts, append=n))  # fmt: skip
    outer_first = np.lexsort((-bars[2], bars[1]))  # what lies inside is painted over it
    return tuple(column[outer_first] for column in bars)


def _steps(window: _Window, top: float, end: float, x_end: float) -> Columns:
    left, right = window.ms(window.steps[:, 0]), window.ms(window.steps[:, 1])
    texts = [f"step {i} · {format_ns(x)}" for i, x in enumerate((right - left) * 1e6)]
    widths = (right - left) * _NARROW_PX / x_end
    return {
        "left_ms": left.tolist(),
        "right_ms": right.tolist(),
        "mid_ms": ((left + right) / 2).tolist(),
        "top": [top] * len(left),
        "middle": [top + _STEPS / 2] * len(left),
        "under": [top + _STEPS] * len(left),
        "bottom": [end] * len(left),
        "color": ["#dde3ea" if i % 2 else "#eaeef3" for i in range(len(left))],
        "text": [t if 6 * len(t) < w else "" for t, w in zip(texts, widths, strict=True)],
    }


def _syncs(timeline: Timeline, window: _Window, top: float, end: float, run: int) -> Columns:
    inside = [s for s in timeline.syncs if window.begin <= s.at_ns <= window.end]
    if len(inside) > MAX_SYNCS:
        longest = sorted(inside, key=lambda s: -s.wait_ns)[:MAX_SYNCS]
        inside = sorted(longest, key=lambda s: s.at_ns)
    return {
        "x": [window.ms(s.at_ns) for s in inside],
        "right": [min(window.ms(s.at_ns + s.wait_ns), window.ms(window.end)) for s in inside],
        "top": [top] * len(inside),
        "bottom": [end] * len(inside),
        "cause": [plain(s.cause, 60) for s in inside],
        "site": [plain(s.site, 80) or "(no line known)" for s in inside],
        "via": [plain(s.via, 80) or "-" for s in inside],
        "duration": [format_ns(s.wait_ns) for s in inside],
        "run": [run + 1] * len(inside),
    }


def _tracks(rows: Sequence[_Row], window: _Window) -> Columns:
    """A pale ground as long as the strip, so that an idle device shows as a gap."""
    return {
        "top": [r.top for r in rows],
        "bottom": [r.bottom for r in rows],
        "right": [window.ms(window.end)] * len(rows),
    }


def _strip_title(i: int, run: Run, row: ComparisonRow, is_baseline: bool) -> str:
    tag = " (baseline)" if is_baseline else ""
    numbers = f"  —  {amount(row.step_ms)} ms a step"
    if not math.isnan(row.overlap_fraction):
        numbers += f", {row.overlap_fraction:.0%} hidden"
    if not len(run.timeline):
        numbers += ", no spans were recorded"
    elif not run.timeline.where(kind="step").any():
        numbers += ", no step was traced"
    room = _MAX_TITLE - len(numbers) - len(tag)
    return f"{i + 1}  {plain(row.label, room)}{tag}{numbers}"


def _title(runs: Sequence[Run]) -> str:
    origins = list(dict.fromkeys(run.timeline.origin for run in runs))
    names = list(dict.fromkeys(plain(run.name, 24) for run in runs if run.name))
    what = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    many = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    word = "origin" if len(origins) == 1 else "origins"
    return f"timelines of {many} ({word}: {', '.join(origins)}){f' - {what}' if what else ''}"


def _note(runs: Sequence[Run], columns: Columns) -> str:
    notes = ["▼ sync point, red: the host waits"] if columns["syncs"]["x"] else []
    if max(columns["bars"]["count"], default=1) > 1:
        notes.append("paler bars: many small ones merged")
    steps = max(int(run.timeline.where(kind="step").sum()) for run in runs)
    if steps > MAX_STEPS:
        notes.append(f"the first {MAX_STEPS} of {steps} traced steps")
    return " · ".join(notes)


def comparison_figure(runs: Sequence[Run], baseline: int = 0) -> figure:
    """One strip for each run, all with one time axis; a new figure each time.

    Raises:
        SettingsError: there are no runs, or no run has the number `baseline`.
    """
    columns = comparison_columns(runs, baseline)
    axis = columns["axis"]
    plot = figure(
        x_range=Range1d(0, axis["x_end"], bounds=None),
        y_range=Range1d(axis["end"], -0.1),
        height=columns["height"],
        sizing_mode="stretch_width",
        min_width=420,
        tools=[],
        title=columns["title"],
        x_axis_label="time since the first traced step began (ms)   -   drag: pan, "
        "ctrl + wheel: zoom",
        name="comparison",
    )
    plot.add_layout(Title(text=columns["note"], text_font=FONT, text_font_size="11px",
                          text_font_style="normal", text_color=MUTED), "above")  # fmt: skip
    plot.yaxis[0].ticker = FixedTicker(ticks=axis["ticks"])
    plot.yaxis[0].major_label_overrides = dict(zip(axis["ticks"], axis["labels"], strict=True))
    source = {name: ColumnDataSource(columns[name])
              for name in ("bars", "steps", "syncs", "tracks", "titles")}  # fmt: skip
    bars, marks = _draw(plot, source)
    _add_legend(plot, columns["kinds"])
    style_figure(plot)
    plot.ygrid.grid_line_color = None
    plot.yaxis[0].major_label_text_color = INK
    _add_tools(plot, bars, marks)
    return plot


def _draw(plot: figure, source: dict[str, ColumnDataSource]) -> tuple[Any, Any]:
    red = COLORS["wait"]
    steps, syncs = source["steps"], source["syncs"]
    plot.quad(left=0, right="right", top="top", bottom="bottom", color="#f4f6f8", line_color=None,
              source=source["tracks"], name="tracks")  # fmt: skip
    plot.quad(left="left_ms", right="right_ms", top="top", bottom="under", color="color",
              line_color=None, source=steps, name="steps")  # fmt: skip
    plot.text(x="mid_ms", y="middle", text="text", source=steps, text_align="center",
              text_baseline="middle", text_font=value(FONT), text_font_size="10px",
              text_color=MUTED)  # fmt: skip
    plot.quad(left="x", right="right", top="top", bottom="bottom", source=syncs, color=red,
              fill_alpha=0.16, line_color=None, name="waits")  # fmt: skip
    bars = plot.quad(left="left_ms", right="right_ms", top="top", bottom="bottom",
                     fill_color="color", fill_alpha="alpha", line_color=None, source=source["bars"],
                     name="bars")  # fmt: skip
    for x in ("left_ms", "right_ms"):
        plot.segment(x0=x, x1=x, y0="top", y1="bottom", source=steps, line_color="#8b97a3",
                     line_width=1)  # fmt: skip
    plot.segment(x0="x", x1="x", y0="top", y1="bottom", source=syncs, line_color=red,
                 line_dash="dashed", line_width=1.3)  # fmt: skip
    marks = plot.scatter(x="x", y="top", source=syncs, marker="inverted_triangle", size=9,
                         fill_color=red, line_color=BACKGROUND, name="syncs")  # fmt: skip
    plot.add_layout(LabelSet(x=2, y="y", text="text", x_units="screen", source=source["titles"],
                             text_font=value(FONT), text_font_size="11px", text_color=INK,
                             text_font_style="bold", text_baseline="middle"))  # fmt: skip
    return bars, marks


def _add_legend(plot: figure, kinds: Sequence[str]) -> None:
    items = []
    for kind in kinds:
        key = plot.quad(left=0, right=0, top=-2, bottom=-1, color=COLORS[kind], line_color=None)
        items.append(LegendItem(label=LABELS[kind], renderers=[key]))
    plot.add_layout(Legend(items=items, orientation="horizontal", name="kinds", ncols=_LEGEND_COLS,
                           location="left"), "below")  # fmt: skip


def _add_tools(plot: figure, bars: Any, marks: Any) -> None:
    drag = PanTool(dimensions="width")
    wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    card = hover_card("@name", _BAR_CARD, swatch="@color")
    sync = hover_card("sync point: @cause", _SYNC_CARD, swatch=COLORS["wait"])
    plot.add_tools(
        drag,
        wheel,
        BoxZoomTool(dimensions="width"),
        ResetTool(),
        HoverTool(renderers=[bars], tooltips=card, point_policy="follow_mouse"),
        HoverTool(renderers=[marks], tooltips=sync),
    )
    plot.toolbar.active_drag = drag
    plot.toolbar.active_scroll = wheel
