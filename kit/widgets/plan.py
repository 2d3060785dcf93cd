"""The planner: the op stream and where it would be cut, drawn before anything runs.

`plan_payload` is plain data, `plan_figure` draws it. Each op is a cell; cells read like text, left
to right and row by row. Neighbouring segments differ in colour, the strip under a cell is its
phase, and a line ends a segment: dark where the sizes say so, red where the program forces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import traitlets
from bokeh.models import ColumnDataSource, HoverTool, Legend, LegendItem, Range1d
from bokeh.plotting import figure
from ipywidgets import HTML, GridBox, Layout, SelectionSlider, VBox

from kit.errors import SettingsError
from kit.ir import Segment
from kit.ir.plan import OpStream, plan
from kit.run_bulk import UNLIMITED
from kit.widgets.bokehjs import load_bokehjs
from kit.widgets.controls import BULK_SIZES
from kit.widgets.live_plot import LivePlot
from kit.widgets.tables import FONT, MUTED, safe_text
from kit.widgets.theme import (
    COLORS,
    INK,
    SEGMENT_COLORS,
    error_html,
    hover_card,
    plain,
    style_figure,
    tint,
)

__all__ = ["PlanView", "plan_figure", "plan_payload", "plan_text"]

ROW = 100  # ops in a row
MAX_OPS = 10_000  # drawn; glyphs beyond that make the browser slow

_CARD = (("op", "@op"), ("line", "@site"), ("module", "@scope"), ("phase", "@phase"),
         ("segment", "@segment"), ("ends by", "@cut"))  # fmt: skip
_PLANNED = frozenset({"size", "phase", "mark_step"})  # other cuts are the program's
_ROW_PX, _FRAME_PX = 34, 96


def plan_payload(stream: OpStream, segments: Sequence[Segment]) -> dict[str, Any]:
    """Columns of the ops and of the cuts, the number of rows, and the sentence above them."""
    ops: dict[str, list[Any]] = {name: [] for name in (
        "left", "right", "top", "bottom", "under", "color", "shade", "alpha", "op", "site",
        "scope", "phase", "segment", "cut")}  # fmt: skip
    cuts: dict[str, list[Any]] = {"x": [], "top": [], "bottom": [], "color": []}
    at = 0
    for segment in segments:
        color = SEGMENT_COLORS[segment.index % len(SEGMENT_COLORS)]
        for i in segment.nodes:
            if at >= MAX_OPS:
                break
            node = stream.graph.nodes[i]
            row, x = divmod(at, ROW)
            is_view = i in stream.views
            _append(
                ops, left=x, right=x + 1, top=row + 0.12, bottom=row + 0.72, under=row + 0.86,
                color=color, shade=COLORS.get(node.phase, MUTED), alpha=0.35 if is_view else 1.0,
                op=plain(node.op + (" (view, does not count)" if is_view else "")),
                site=plain(node.site or "unknown"), scope=plain(node.scope or "none"),
                phase=node.phase, segment=f"{segment.index}, {len(segment.nodes)} ops",
                cut=plain(segment.cut),
            )  # fmt: skip
            at += 1
        if at < MAX_OPS and at:
            row, x = divmod(at - 1, ROW)
            color = INK if segment.cut in _PLANNED else COLORS["wait"]
            _append(cuts, x=x + 1, top=row + 0.02, bottom=row + 0.86, color=color)
    return {"ops": ops, "cuts": cuts, "rows": max(1, -(-at // ROW)), "width": min(at, ROW) or 1}


def _append(columns: dict[str, list[Any]], **values: Any) -> None:
    for name, value in values.items():
        columns[name].append(value)


def plan_text(stream: OpStream, segments: Sequence[Segment]) -> str:
    """`312 ops in 34 segments: 14 forward, 16 backward, 4 update. Cut by: 30 size, 3 phase, ...`"""
    phases = Counter(s.phase for s in segments)
    cuts = Counter(s.cut for s in segments)
    by_phase = ", ".join(f"{n:,} {phase}" for phase, n in phases.items())
    by_cut = ", ".join(f"{n:,} by {cut}" for cut, n in cuts.most_common())
    views = f" (and {len(stream.views):,} views)" if stream.views else ""
    return (
        f"{stream.counted:,} ops{views} in {len(segments):,} segments: {by_phase}. Ended {by_cut}."
    )


def plan_figure(stream: OpStream, forward: int, backward: int, *, lazy: bool = False) -> figure:
    """The op stream, cut by these sizes.

    Raises:
        SettingsError: a size is not a whole number of at least 1.
    """
    payload = plan_payload(stream, plan(stream, forward, backward, lazy=lazy))
    return _model(payload)[0]


def _model(payload: Mapping[str, Any]) -> tuple[figure, dict[str, ColumnDataSource]]:
    rows = payload["rows"]
    plot = figure(
        x_range=Range1d(-0.5, payload["width"] + 0.5),
        y_range=Range1d(rows + 0.05, -0.05),
        height=_height(rows),
        sizing_mode="stretch_width",
        min_width=420,
        tools=[],
        toolbar_location=None,
        title="op stream and its segments (planned, nothing has run)",
        x_axis_label=f"op in the row; {ROW} ops a row, in program order",
        name="plan",
    )
    ops, cuts = ColumnDataSource(dict(payload["ops"])), ColumnDataSource(dict(payload["cuts"]))
    cells = plot.quad(left="left", right="right", top="top", bottom="bottom", fill_color="color",
                      fill_alpha="alpha", line_color="#ffffff", line_width=0.5, source=ops,
                      name="ops")  # fmt: skip
    plot.quad(left="left", right="right", top="bottom", bottom="under", color="shade",
              line_color=None, source=ops)  # fmt: skip
    plot.segment(x0="x", x1="x", y0="top", y1="bottom", source=cuts, line_color="color",
                 line_width=2.5, name="cuts")  # fmt: skip
    items = []
    for label, color in (("a segment ends", INK), ("the program forces it to", COLORS["wait"])):
        line = plot.segment(x0=-9, x1=-9, y0=-9, y1=-8, line_color=color, line_width=2.5)
        items.append(LegendItem(label=label, renderers=[line]))
    keys = [("pale: a view, does not count", tint(SEGMENT_COLORS[0], 0.65))]
    keys += [(phase, COLORS[phase]) for phase in ("forward", "backward", "update")]
    for label, color in keys:
        key = plot.quad(left=-9, right=-9, top=-9, bottom=-8, color=color, line_color=None)
        items.append(LegendItem(label=label, renderers=[key]))
    plot.add_layout(Legend(items=items, orientation="horizontal", location="left"), "below")
    plot.add_tools(HoverTool(renderers=[cells], tooltips=hover_card("@op", _CARD, swatch="@color"),
                             point_policy="follow_mouse"))  # fmt: skip
    style_figure(plot)
    plot.yaxis.visible = False
    plot.grid.visible = False
    return plot, {"ops": ops, "cuts": cuts}


def _height(rows: int) -> int:
    return min(max(rows, 2), 16) * _ROW_PX + _FRAME_PX


class PlanView(VBox):
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
        self.forward, self.backward = _slider(forward), _slider(backward)
        self.text, self.error = HTML(), HTML()
        grid = GridBox(
            [_labelled("bulk size, forward", self.forward),
             _labelled("bulk size, backward and update", self.backward)],
            layout=Layout(grid_template_columns="repeat(auto-fit, minmax(220px, 1fr))",
                          grid_gap="4px 18px", width="auto"),
        )  # fmt: skip
        super().__init__([grid, self.text, LivePlot(self.figure), self.error])
        self._say()
        for slider in (self.forward, self.backward):
            slider.observe(self._moved, "value")

    def _repr_mimebundle_(self, **options: Any) -> Any:
        load_bokehjs()
        return super()._repr_mimebundle_(**options)

    def _moved(self, change: Any) -> None:
        try:
            self.segments = plan(self.stream, self.forward.value, self.backward.value)
            payload = plan_payload(self.stream, self.segments)
            for name, source in self.sources.items():
                source.data = payload[name]
            self._say()
            self.error.value = ""
        except Exception as error:  # noqa: BLE001 - shown under the view, the cell stays alive
            self.error.value = error_html("plan", error)

    def _say(self) -> None:
        drawn = sum(len(s.nodes) for s in self.segments)
        lines = [plan_text(self.stream, self.segments), *self.stream.notes]
        if drawn > MAX_OPS:
            lines.append(f"The first {MAX_OPS:,} ops are drawn.")
        body = "<br>".join(safe_text(line, 400) for line in lines)
        self.text.value = f'<div style="font:13px/1.5 {FONT};color:{INK}">{body}</div>'


def _slider(value: int) -> SelectionSlider:
    sizes = sorted({*BULK_SIZES, min(value, UNLIMITED)} - {UNLIMITED})
    options = [(f"{n:,}", n) for n in sizes] + [("unlimited", UNLIMITED)]
    return SelectionSlider(
        options=options, value=min(value, UNLIMITED), layout=Layout(width="auto")
    )


def _labelled(label: str, control: Any) -> VBox:
    text = HTML(f'<span style="font:500 12px/1.2 {FONT};color:{MUTED}">{label}</span>')
    return VBox([text, control], layout=Layout(overflow="visible"))
