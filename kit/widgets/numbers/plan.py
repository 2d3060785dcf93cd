"""The planner: the op stream and where it would be cut, drawn before anything runs.

`plan_payload` is plain data, `PlanView` draws it. Each op is a cell; cells read like text, left
to right and row by row. Neighbouring segments differ in colour, the band under a cell is its
phase, and a line ends a segment: dark where the sizes say so, red where the program forces it. The
reason stands at the line, and the number of ops in the segment, where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import traitlets
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, CustomJS, HoverTool, Range1d
from bokeh.plotting import figure
from ipywidgets import HTML

from kit.errors import SettingsError
from kit.ir import Segment
from kit.ir.plan import OpStream, plan
from kit.text import format_count, safe_html, safe_label
from kit.widgets.base.controls import bulk_slider, slider_grid
from kit.widgets.base.errors import ErrorsIn
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.tables import said_html
from kit.widgets.base.theme import (
    COLORS,
    FONT,
    INK,
    MUTED,
    add_legend,
    hover_card,
    on_color,
    style_figure,
    tint,
)

__all__ = ["CYCLE", "PlanView", "plan_payload", "plan_text"]

ROW = 100  # ops in a row
MAX_OPS = 10_000  # drawn; glyphs beyond that make the browser slow
# Of the segments in turn. Not the hues of the phases, which are drawn beneath them.
CYCLE = ("#b89fe8", "#b4c4c4", "#e7e3a7", "#e7b7d4")

_CARD = (("line", "@site"), ("module", "@scope"), ("phase", "@phase"), ("segment", "@segment"),
         ("ends by", "@cut"))  # fmt: skip
_PLANNED = frozenset({"size", "phase", "mark_step", "state"})  # other cuts are the program's
_SOURCES = ("ops", "cuts", "labels")
_ROW_PX, _LABELLED_PX, _FRAME_PX = 34, 60, 140
_MAX_LABELLED = 8  # rows that have room for text
_PLOT_PX, _LETTER_PX = 820, 6.4  # about: how much text fits over a cell
# On a narrower plot, the texts that have less room than they take are left out.
_FIT = f"""
const {{text, room, alpha}} = labels.data;
const pixels = plot.inner_width / (plot.x_range.end - plot.x_range.start);
for (let i = 0; i < alpha.length; i++) {{
  alpha[i] = text[i].length * {_LETTER_PX} <= room[i] * pixels ? 1 : 0;
}}
labels.change.emit();
"""
_CELLS, _BAND = (0.27, 0.73), 0.96  # of a row: its cells from and to, then the phase to


def plan_payload(stream: OpStream, segments: Sequence[Segment]) -> dict[str, Any]:
    """Columns of the ops, the cuts and the labels, and how many rows there are of which width."""
    ops: dict[str, list[Any]] = {name: [] for name in (
        "left", "right", "top", "bottom", "under", "color", "shade", "alpha", "op", "site",
        "scope", "phase", "segment", "cut")}  # fmt: skip
    cuts: dict[str, list[Any]] = {"x": [], "top": [], "bottom": [], "color": []}
    ends: list[int] = []  # of each drawn segment: the place after its last op
    for segment in segments:
        color = CYCLE[segment.index % len(CYCLE)]
        counted = sum(i not in stream.views for i in segment.nodes)
        for i in segment.nodes[: MAX_OPS - len(ops["op"])]:
            node = stream.graph.nodes[i]
            row, x = divmod(len(ops["op"]), ROW)
            is_view = i in stream.views
            _append(
                ops, left=x, right=x + 1, top=row + _CELLS[0], bottom=row + _CELLS[1],
                under=row + _BAND, color=color, shade=COLORS.get(node.phase, MUTED),
                alpha=0.35 if is_view else 1.0,
                op=safe_label(node.op + (" (view, does not count)" if is_view else "")),
                site=safe_label(node.site or "unknown"), scope=safe_label(node.scope or "none"),
                phase=node.phase, segment=f"{segment.index}, {format_count(counted, 'op')}",
                cut=safe_label(segment.cut),
            )  # fmt: skip
        ends.append(len(ops["op"]))
        if len(ops["op"]) >= MAX_OPS:
            break
        row, x = divmod(ends[-1] - 1, ROW)
        _append(cuts, x=x + 1, top=row + 0.04, bottom=row + _BAND, color=_ink(segment.cut))
    rows, width = max(1, -(-len(ops["op"]) // ROW)), min(len(ops["op"]), ROW) or 1
    labels: dict[str, list[Any]] = {
        name: [] for name in ("x", "y", "text", "align", "color", "room")
    }
    if rows <= _MAX_LABELLED:
        letter = _LETTER_PX * width / _PLOT_PX  # in cells
        _label_segments(labels, stream, segments, ends, letter)
        _label_phases(labels, ops["phase"], letter)
    labels["alpha"] = [1.0] * len(labels["x"])
    return {"ops": ops, "cuts": cuts, "labels": labels, "rows": rows, "width": width}


def _ink(cut: str) -> str:
    return INK if cut in _PLANNED else COLORS["wait"]


def _label_segments(labels: dict[str, list[Any]], stream: OpStream, segments: Sequence[Segment],
                    ends: Sequence[int], letter: float) -> None:  # fmt: skip
    """How many ops it holds, over its cells; why it ends, at the line, above all if forced."""
    start = 0
    taken = (-1, 0.0)  # row, and where in it the last reason ends
    for segment, end in zip(segments, ends, strict=False):
        counted = sum(i not in stream.views for i in segment.nodes)
        pieces = _pieces(start, end)
        row, left, right = max(pieces, key=lambda piece: piece[2] - piece[1])
        for text in (format_count(counted, "op"), f"{counted:,}"):
            if len(text) * letter <= right - left:
                _append(labels, x=(left + right) / 2, y=row + sum(_CELLS) / 2, text=text,
                        align="center", color=INK, room=right - left)  # fmt: skip
                break
        row, left, right = pieces[-1]
        text = safe_label(segment.cut, 24)
        begins = right - len(text) * letter
        first = taken[1] if row == taken[0] else -0.5
        has_room = begins >= first
        is_last_drawn = len(ends) < len(segments) and end == ends[-1]
        if has_room and (begins >= left or segment.cut not in _PLANNED) and not is_last_drawn:
            _append(labels, x=right - 0.6 * letter, y=row + 0.15, text=text, align="right",
                    color=MUTED if segment.cut in _PLANNED else COLORS["wait"],
                    room=right - (left if segment.cut in _PLANNED else first))  # fmt: skip
            taken = (row, right)
        start = end


def _label_phases(labels: dict[str, list[Any]], phases: Sequence[str], letter: float) -> None:
    start = 0
    for phase, group in groupby(phases):
        end = start + sum(1 for _ in group)
        for row, left, right in _pieces(start, end):
            if (len(phase) + 1) * letter <= right - left:
                _append(labels, x=left + 0.6 * letter, y=row + (_CELLS[1] + _BAND) / 2, text=phase,
                        align="left", color=on_color(COLORS.get(phase, MUTED)),
                        room=right - left - 0.6 * letter)  # fmt: skip
        start = end


def _pieces(start: int, end: int) -> list[tuple[int, int, int]]:
    """(row, left, right) of the cells from `start` to `end`, a piece for each row."""
    return [
        (row, max(start - row * ROW, 0), min(end - row * ROW, ROW))
        for row in range(start // ROW, -(-end // ROW))
    ]


def _append(columns: dict[str, list[Any]], **values: Any) -> None:
    for name, x in values.items():
        columns[name].append(x)


def plan_text(stream: OpStream, segments: Sequence[Segment]) -> str:
    """`312 ops → 34 segments: 14 forward, 16 backward, 4 update. Cuts: 30 size, 3 phase, ...`"""
    phases = Counter(s.phase for s in segments)
    cuts = Counter(s.cut for s in segments)
    text = f"{format_count(stream.counted, 'op')} → {format_count(len(segments), 'segment')}"
    if segments:
        by_phase = ", ".join(f"{n:,} {phase}" for phase, n in phases.items())
        by_cut = ", ".join(f"{n:,} {cut}" for cut, n in cuts.most_common())
        text += f": {by_phase}. Cuts: {by_cut}"
    views = len(stream.views)
    also = (
        f" {format_count(views, 'view')} {'does' if views == 1 else 'do'} not count."
        if views
        else ""
    )
    return f"{text}.{also}"


def _model(payload: Mapping[str, Any]) -> tuple[figure, dict[str, ColumnDataSource]]:
    rows, width = payload["rows"], payload["width"]
    plot = figure(
        x_range=Range1d(-0.005 * width, 1.005 * width),
        y_range=Range1d(rows + 0.05, -0.05),
        height=_height(rows),
        sizing_mode="stretch_width",
        min_width=300,
        tools=[],
        toolbar_location=None,
        title="segments as planned: nothing has run",
        x_axis_label="ops in program order" + (f", {ROW} a row" if rows > 1 else ""),
        name="plan",
    )
    sources = {name: ColumnDataSource(dict(payload[name])) for name in _SOURCES}
    ops, cuts = sources["ops"], sources["cuts"]
    cells = plot.quad(left="left", right="right", top="top", bottom="bottom", fill_color="color",
                      fill_alpha="alpha", line_color="#ffffff", line_width=0.5, source=ops,
                      name="ops")  # fmt: skip
    plot.quad(left="left", right="right", top="bottom", bottom="under", color="shade",
              line_color=None, source=ops, name="phases")  # fmt: skip
    plot.segment(x0="x", x1="x", y0="top", y1="bottom", source=cuts, line_color="color",
                 line_width=2.5, name="cuts")  # fmt: skip
    plot.text(x="x", y="y", text="text", text_align="align", text_color="color", text_alpha="alpha",
              text_baseline="middle", text_font=value(FONT), text_font_size="11px",
              source=sources["labels"], name="labels")  # fmt: skip
    fit = CustomJS(args={"plot": plot, "labels": sources["labels"]}, code=_FIT)
    plot.js_on_change("inner_width", fit)
    sources["labels"].js_on_change("data", fit)
    keys = {"pale: a view": tint(CYCLE[0], 0.65)}
    keys |= {phase: COLORS[phase] for phase in ("forward", "backward", "update")}
    ends = {"a segment ends": INK, "forced by the program": COLORS["wait"]}
    add_legend(plot, keys, ends)
    plot.add_tools(HoverTool(renderers=[cells], tooltips=hover_card("@op", _CARD, swatch="@color"),
                             point_policy="follow_mouse"))  # fmt: skip
    style_figure(plot)
    plot.yaxis.visible = False
    plot.grid.visible = False
    return plot, sources


def _height(rows: int) -> int:
    """In pixels: rows with text are taller, and very many become thin."""
    if rows <= _MAX_LABELLED:
        return rows * _LABELLED_PX + _FRAME_PX
    return max(_MAX_LABELLED * _LABELLED_PX, min(rows, 20) * _ROW_PX) + _FRAME_PX


class PlanView(View):
    """Sliders for the bulk sizes over a recorded op stream: it is cut again at once, never run.

    Args:
        stream: what `kit.plan(workload)` gives.
        forward, backward: ops a segment to begin with, as in `kit.bulk((forward, backward))`.

    Raises:
        SettingsError: `stream` is something else, or a size is not a whole number of at least 1.
    """

    segments = traitlets.Tuple()

    def __init__(self, stream: OpStream, forward: int = 15, backward: int = 15) -> None:
        if not isinstance(stream, OpStream):
            raise SettingsError(
                f"PlanView shows what kit.plan(workload) gives, not {type(stream).__name__}"
            )
        self.stream = stream
        self.segments = plan(stream, forward, backward)
        payload = plan_payload(stream, self.segments)
        self.figure, self.sources = _model(payload)
        self.forward, self.backward = bulk_slider(forward), bulk_slider(backward)
        self.text, self.error = HTML(), HTML()
        sliders = {
            "bulk size, forward": self.forward,
            "bulk size, backward and update": self.backward,
        }
        super().__init__(
            [
                slider_grid(sliders, self._moved),
                self.text,
                LivePlot(self.figure, self.sources.values()),
                self.error,
            ]
        )
        self._say()

    def _moved(self, change: Any) -> None:
        with ErrorsIn(self.error, "plan"):
            self.segments = plan(self.stream, self.forward.value, self.backward.value)
            payload = plan_payload(self.stream, self.segments)
            for name, source in self.sources.items():
                source.data = payload[name]
            self._say()
            self.error.value = ""

    def _say(self) -> None:
        drawn = sum(len(s.nodes) for s in self.segments)
        lines = [plan_text(self.stream, self.segments), *self.stream.notes]
        if drawn > MAX_OPS:
            lines.append(f"The first {MAX_OPS:,} ops are drawn.")
        body = "<br>".join(safe_html(line, 400) for line in lines)
        self.text.value = said_html(body)
