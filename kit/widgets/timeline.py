"""The kernel timeline: what host and device did when, and where the host waited.

`timeline_payload` turns a run into plain columns, `timeline_model` draws a payload, and
`TIMELINE_JS` replaces the payload of a figure that is already drawn. The live view and the static
report share all three, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets
from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    PanTool,
    Range1d,
    ResetTool,
    TapTool,
    Title,
    WheelZoomTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML, VBox

from kit.run import Run
from kit.trace import Timeline
from kit.widgets.bokehjs import load_bokehjs
from kit.widgets.live_plot import LivePlot
from kit.widgets.theme import (
    BACKGROUND,
    COLORS,
    FONT,
    INK,
    LABELS,
    MUTED,
    error_html,
    hover_card,
    plain,
    style_figure,
)
from kit.widgets.timeline_data import (
    MAX_GLYPHS,
    Columns,
    label_columns,
    merge_note,
    place,
    step_columns,
    sync_columns,
    timeline_axis,
    timeline_columns,
)

__all__ = [
    "MAX_GLYPHS",
    "TIMELINE_JS",
    "TimelineView",
    "apply_timeline",
    "sync_columns",
    "timeline_axis",
    "timeline_columns",
    "timeline_figure",
    "timeline_js_args",
    "timeline_model",
    "timeline_payload",
    "timeline_title",
]

_SOURCES = ("spans", "syncs", "steps", "labels", "message")
_EMPTY = Timeline.of([])
_SPAN_CARD = (("kind", "@kind"), ("took", "@duration"), ("began at", "@start"),
              ("lane", "@lane"), ("of", "@detail"))  # fmt: skip
_SYNC_CARD = (("waited", "@duration"), ("line", "@site"), ("through", "@via"),
              ("began at", "@start"))  # fmt: skip
_ROW_PX = 25
_FRAME_PX = 130  # title, note, legend and x axis

# Body of a function of (payload, figure, ylanes, note, spans, syncs, steps, labels, message):
# the last eight are `timeline_js_args`. Clears the selection, then replaces what is drawn.
TIMELINE_JS = """
spans.selected.indices = [];
figure.title.text = payload.title;
note.text = payload.note;
figure.height = payload.height;
for (const [range, end] of [[figure.x_range, payload.axis.x_end], [figure.y_range, 0]]) {
  const start = range === figure.x_range ? 0 : payload.axis.end;
  range.setv({start, end, reset_start: start, reset_end: end});
}
const names = new Map(payload.axis.ticks.map((t, i) => [t, payload.axis.labels[i]]));
ylanes.setv({major_label_overrides: names});
ylanes.ticker.ticks = payload.axis.ticks;
for (const [name, source] of Object.entries({spans, syncs, steps, labels, message})) {
  source.data = payload[name];
}
"""


def timeline_title(run: Run | None) -> str:
    """What the plot shows and where its numbers come from."""
    if run is None:
        return "kernel timeline"
    device = run.environment.get("device", run.settings.device)
    what = ", ".join(plain(x, 48) for x in (run.name, device) if x)
    return f"kernel timeline (origin: {run.timeline.origin}) - {what}"


def timeline_payload(run: Run | None, *, max_glyphs: int = MAX_GLYPHS) -> Columns:
    """Everything that the figure shows, as numpy columns, text and numbers; nothing of bokeh.

    Keys: `spans`, `syncs`, `steps`, `labels`, `message` (columns), `axis`, `title`, `note`,
    `height` (pixels).
    """
    timeline = run.timeline if run is not None else _EMPTY
    graph = run.graphs[0] if run is not None and run.graphs else None
    segments = run.segments if run is not None else ()
    places = place(timeline)
    axis = timeline_axis(timeline, places)
    spans = timeline_columns(
        timeline, graph=graph, segments=segments, max_glyphs=max_glyphs, places=places,
        members=run.members if run is not None else {},
    )  # fmt: skip
    texts = [] if len(timeline) else ["no spans were recorded"]
    notes = [*timeline.notes, merge_note(spans)]
    return {
        "spans": spans,
        "syncs": sync_columns(timeline, places),
        "steps": step_columns(timeline, places),
        "labels": label_columns(spans, axis["x_end"]),
        "message": {"x": [axis["x_end"] / 2] * len(texts), "y": [axis["end"] / 2] * len(texts),
                    "text": texts},
        "axis": axis,
        "title": timeline_title(run),
        "note": "  ·  ".join(plain(x) for x in notes if x),
        "height": int(min(max(axis["end"] * _ROW_PX, 130), 560)) + _FRAME_PX,
    }  # fmt: skip


def timeline_model(payload: Mapping[str, Any]) -> tuple[figure, dict[str, ColumnDataSource]]:
    """The figure of a payload, and its sources by name: `spans`, `syncs`, `steps`, ..."""
    sources = {name: ColumnDataSource(dict(payload[name])) for name in _SOURCES}
    plot = timeline_figure(sources)
    apply_timeline(payload, plot, sources)
    return plot, sources


def apply_timeline(payload: Mapping[str, Any], plot: figure,
                   sources: Mapping[str, ColumnDataSource]) -> None:  # fmt: skip
    """Draw another payload in the same figure: `TIMELINE_JS` in Python."""
    sources["spans"].selected.indices = []  # an old index must not name a new bar
    axis = payload["axis"]
    parts = timeline_js_args(plot, sources)
    plot.title.text = payload["title"]
    parts["note"].text = payload["note"]
    plot.height = payload["height"]
    plot.x_range.update(start=0, end=axis["x_end"], reset_start=0, reset_end=axis["x_end"])
    plot.y_range.update(start=axis["end"], end=0, reset_start=axis["end"], reset_end=0)
    parts["ylanes"].major_label_overrides = dict(zip(axis["ticks"], axis["labels"], strict=True))
    parts["ylanes"].ticker.ticks = axis["ticks"]
    for name in _SOURCES:
        sources[name].data = dict(payload[name])


def timeline_js_args(plot: figure, sources: Mapping[str, ColumnDataSource]) -> dict[str, Any]:
    """The models that `TIMELINE_JS` names, for the `args` of a CustomJS."""
    note = plot.select_one({"name": "note"})
    return {"figure": plot, "ylanes": plot.yaxis[0], "note": note, **sources}


def timeline_figure(sources: Mapping[str, ColumnDataSource]) -> figure:
    """The plot of these sources, built once; `apply_timeline` fills and refills it."""
    plot = figure(
        x_range=Range1d(0, 1),
        y_range=Range1d(1, 0),
        sizing_mode="stretch_width",
        x_axis_label="time since the trace began (ms)   -   drag: pan, ctrl + wheel: zoom, "
        "click a bar: select",
        tools=[],
        title="kernel timeline",
        min_width=420,
        name="timeline",
    )
    plot.add_layout(Title(text="", name="note", text_font=FONT, text_font_size="11px",
                          text_font_style="normal", text_color=MUTED), "above")  # fmt: skip
    plot.yaxis[0].ticker = FixedTicker(ticks=[])
    _draw_steps(plot, sources["steps"])
    _draw_syncs(plot, sources["syncs"], behind=True)
    bars = _draw_spans(plot, sources["spans"], sources["labels"])
    _draw_syncs(plot, sources["syncs"], behind=False)
    plot.text(x="x", y="y", text="text", source=sources["message"], text_align="center",
              text_font=value(FONT), text_color=MUTED, text_font_size="13px")  # fmt: skip
    _add_legend(plot)
    style_figure(plot)
    plot.ygrid.grid_line_color = None
    plot.yaxis[0].major_label_text_color = INK
    _add_tools(plot, bars)
    return plot


def _draw_steps(plot: figure, source: ColumnDataSource) -> None:
    plot.quad(left="left_ms", right="right_ms", top=0.08, bottom=0.86, color="color",
              line_color=None, source=source, name="steps")  # fmt: skip
    plot.text(x="mid_ms", y=0.48, text="text", source=source, text_align="center",
              text_baseline="middle", text_font=value(FONT), text_font_size="11px",
              text_color=MUTED)  # fmt: skip
    for x in ("left_ms", "right_ms"):
        plot.segment(x0=x, x1=x, y0=0.0, y1="bottom", source=source, line_color="#c3ccd6",
                     line_width=1)  # fmt: skip


def _draw_syncs(plot: figure, source: ColumnDataSource, *, behind: bool) -> None:
    color = COLORS["wait"]
    if behind:
        plot.quad(left="x", right="right", top=1.0, bottom="bottom", source=source, color=color,
                  fill_alpha=0.11, line_color=None, name="waits")  # fmt: skip
        return
    plot.segment(x0="x", x1="x", y0=1.45, y1="bottom", source=source, line_color=color,
                 line_dash="dashed", line_width=1.4)  # fmt: skip
    plot.scatter(x="x", y=1.45, source=source, marker="inverted_triangle", size=11,
                 fill_color=color, line_color=BACKGROUND, name="syncs")  # fmt: skip
    plot.text(x="x", y=1.45, text="text", source=source, x_offset="offset", text_align="align",
              text_baseline="middle", text_font=value(FONT), text_font_size="11px",
              text_color=color)  # fmt: skip


def _draw_spans(plot: figure, spans: ColumnDataSource, labels: ColumnDataSource) -> Any:
    bars = plot.quad(left="left_ms", right="right_ms", top="top", bottom="bottom",
                     fill_color="color", line_color="edge", line_width=0.6, source=spans,
                     selection_line_color=INK, selection_line_width=2,
                     selection_fill_alpha=1.0, nonselection_fill_alpha=0.35,
                     nonselection_line_alpha=0.35, name="spans")  # fmt: skip
    plot.text(x="x", y="y", text="text", source=labels, x_offset=5, text_baseline="middle",
              text_font=value(FONT), text_font_size="11px", text_color="color")  # fmt: skip
    return bars


def _add_legend(plot: figure) -> None:
    items = []
    for kind, color in COLORS.items():
        key = plot.quad(left=0, right=0, top=-2, bottom=-1, color=color, line_color=None)
        items.append(LegendItem(label=LABELS[kind], renderers=[key]))
    plot.add_layout(Legend(items=items, orientation="horizontal", name="kinds",
                           location="left"), "below")  # fmt: skip


def _add_tools(plot: figure, bars: Any) -> None:
    syncs = plot.select_one({"name": "syncs"})
    drag = PanTool(dimensions="width")
    wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    tap = TapTool(renderers=[bars])
    card = hover_card("@name", _SPAN_CARD, swatch="@color")
    sync = hover_card("sync point: @cause", _SYNC_CARD, swatch=COLORS["wait"])
    plot.add_tools(
        drag,
        wheel,
        BoxZoomTool(dimensions="width"),
        ResetTool(),
        tap,
        HoverTool(renderers=[bars], tooltips=card, point_policy="follow_mouse"),
        HoverTool(renderers=[syncs], tooltips=sync),
    )
    plot.toolbar.active_drag = drag
    plot.toolbar.active_scroll = wheel
    plot.toolbar.active_tap = tap


class TimelineView(VBox):
    """Draws `run.timeline`; assigning `run` redraws. Clicking a bar sets `segment` and `node`."""

    run = traitlets.Instance(Run, allow_none=True)
    segment = traitlets.Int(None, allow_none=True)
    node = traitlets.Int(None, allow_none=True)

    def __init__(self, run: Run | None = None) -> None:
        self.figure, self.sources = timeline_model(timeline_payload(run))
        self.sources["spans"].selected.on_change("indices", self._pick)
        self._error = HTML()
        self._drawn = run
        super().__init__([LivePlot(self.figure), self._error], run=run)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        load_bokehjs()
        return super()._repr_mimebundle_(**options)

    @traitlets.observe("run")
    def _redraw(self, change: dict[str, Any]) -> None:
        if change["new"] is self._drawn:
            return
        self._drawn = change["new"]
        try:
            self.segment = self.node = None
            apply_timeline(timeline_payload(change["new"]), self.figure, self.sources)
            self._error.value = ""
        except Exception as error:  # noqa: BLE001 - shown under the view, the cell stays alive
            self._error.value = error_html("timeline", error)

    def _pick(self, attr: str, old: list[int], new: list[int]) -> None:
        data = self.sources["spans"].data
        segment, node = (data["segment"][new[0]], data["node"][new[0]]) if new else (-1, -1)
        self.segment = int(segment) if segment >= 0 else None
        self.node = int(node) if node >= 0 else None
