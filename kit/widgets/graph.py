"""The IR graph of a step, folded by phase and module, opened by clicking.

`graph_payload` turns a run into plain columns, `graph_model` draws a payload, and `GRAPH_JS`
replaces the payload of a figure that is already drawn; the live view and the static report share
all three. Text is drawn in the units of the plot, so labels stay inside their boxes at any zoom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets
from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    CustomJS,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    TapTool,
    Text,
    Title,
    WheelZoomTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML, Button, Dropdown, HBox, VBox

from kit.run import Run
from kit.widgets.bokehjs import load_bokehjs
from kit.widgets.graph_data import COLOR_BY, graph_payload
from kit.widgets.graph_layout import layout
from kit.widgets.live_plot import LivePlot
from kit.widgets.theme import (
    COLORS,
    FAINT,
    FONT,
    INK,
    MUTED,
    error_html,
    hover_card,
    style_figure,
)

__all__ = [
    "COLOR_BY",
    "GRAPH_JS",
    "GraphView",
    "apply_graph",
    "graph_figure",
    "graph_js_args",
    "graph_model",
    "graph_payload",
    "layout",
]

_SOURCES = ("frames", "edges", "arrows", "boxes", "bars", "message", "view")

# Body of a function of (payload, figure, note, frames, edges, arrows, boxes, bars, message, view):
# all but the first are `graph_js_args`. Clears the selection, then replaces what is drawn.
GRAPH_JS = """
boxes.selected.indices = [];
figure.title.text = payload.title;
note.text = payload.note;
figure.height = payload.height;
for (const [name, source] of Object.entries(
    {frames, edges, arrows, boxes, bars, message, view})) {
  source.data = payload[name];
}
"""

# Show the whole picture with square pixels, not smaller than can be read and not above scale 1.15;
# what does not fit is reached by dragging. Runs in the browser, where the size is known.
_FIT_JS = """
const [w, h] = [figure.inner_width, figure.inner_height];
if (!(w > 0 && h > 0)) return;
const [W, H] = [view.data.width[0] + 24, view.data.height[0] + 24];
const scale = Math.max(0.75, Math.min(1.15, w / W, h / H));
const [sw, sh] = [w / scale, h / scale];
const left = W <= sw ? (W - sw) / 2 : Math.min(Math.max(view.data.left[0] - 60, 0), W - sw);
const top = H <= sh ? (H - sh) / 2 : Math.min(Math.max(view.data.top[0] - 60, 0), H - sh);
const set = (range, start, end) =>
  range.setv({start, end, reset_start: start, reset_end: end});
set(figure.x_range, left - 12, left - 12 + sw);
set(figure.y_range, top - 12 + sh, top - 12);
"""

_TEXT_JS = """
const scale = figure.inner_width / (figure.x_range.end - figure.x_range.start);
if (!(scale > 0)) return;
for (const [glyph, size] of [[label, 12.5], [sublabel, 10.5]]) {
  glyph.text_font_size = {value: Math.max(1, size * scale).toFixed(2) + "px"};
}
"""


def graph_model(payload: Mapping[str, Any]) -> tuple[figure, dict[str, ColumnDataSource]]:
    """The figure of a payload, and its sources by name: `boxes`, `edges`, `frames`, ..."""
    sources = {name: ColumnDataSource(dict(payload[name])) for name in _SOURCES}
    plot = graph_figure(sources)
    apply_graph(payload, plot, sources)
    return plot, sources


def apply_graph(payload: Mapping[str, Any], plot: figure,
                sources: Mapping[str, ColumnDataSource]) -> None:  # fmt: skip
    """Draw another payload in the same figure: `GRAPH_JS` in Python."""
    sources["boxes"].selected.indices = []  # an old index must not name a new box
    plot.title.text = payload["title"]
    graph_js_args(plot, sources)["note"].text = payload["note"]
    plot.height = payload["height"]
    for name in _SOURCES:
        sources[name].data = dict(payload[name])


def graph_js_args(plot: figure, sources: Mapping[str, ColumnDataSource]) -> dict[str, Any]:
    """The models that `GRAPH_JS` names, for the `args` of a CustomJS."""
    return {"figure": plot, "note": plot.select_one({"name": "note"}), **sources}


def graph_figure(sources: Mapping[str, ColumnDataSource]) -> figure:
    """The plot of these sources, built once; `apply_graph` fills and refills it."""
    size = sources["view"].data
    plot = figure(
        x_range=Range1d(-12, size["width"][0] + 12),
        y_range=Range1d(size["height"][0] + 12, -12),
        sizing_mode="stretch_width",
        tools=[],
        title="IR graph",
        min_width=420,
        name="graph",
    )
    plot.add_layout(Title(text="", name="note", text_font=FONT, text_font_size="11px",
                          text_font_style="normal", text_color=MUTED), "above")  # fmt: skip
    style_figure(plot)
    plot.axis.visible = False
    plot.grid.visible = False
    plot.rect(x="x", y="y", width="w", height="h", fill_color="color", line_color="line",
              border_radius=10, source=sources["frames"], name="frames")  # fmt: skip
    lines = plot.multi_line(xs="xs", ys="ys", line_width="width", line_alpha="alpha",
                            line_color=FAINT, source=sources["edges"],
                            hover_line_color=INK, name="edges")  # fmt: skip
    plot.patches(xs="xs", ys="ys", fill_color=FAINT, fill_alpha="alpha", line_color=None,
                 source=sources["arrows"])  # fmt: skip
    boxes = plot.rect(x="x", y="y", width="w", height="h", fill_color="color", line_color="line",
                      line_width=1.3, border_radius=7, source=sources["boxes"],
                      selection_line_color=INK, selection_line_width=2.2,
                      nonselection_fill_alpha=1.0, nonselection_line_alpha=1.0,
                      name="boxes")  # fmt: skip
    plot.quad(left="left", right="right", top="top", bottom="bottom", fill_color=COLORS["kernel"],
              line_color=None, source=sources["bars"], name="bars")  # fmt: skip
    plot.text(x="x", y="y", text="text", source=sources["message"], text_align="center",
              text_font=value(FONT), text_color=MUTED, text_font_size="13px")  # fmt: skip
    _add_labels(plot, sources)
    _add_tools(plot, boxes, lines)
    return plot


def _add_labels(plot: figure, sources: Mapping[str, ColumnDataSource]) -> None:
    texts = {}
    for name, color, style in (("label", "ink", "bold"), ("sublabel", MUTED, "normal")):
        glyph = Text(x=f"{name}_x", y=f"{name}_y", text=name, text_align="align",
                     text_baseline="middle", text_font=value(FONT), text_color=color,
                     text_font_style=style, text_font_size="11px")  # fmt: skip
        plot.add_glyph(sources["boxes"], glyph, name=name)
        texts[name] = glyph
    scale = CustomJS(args={"figure": plot, **texts}, code=_TEXT_JS)
    fit = CustomJS(args={"figure": plot, "view": sources["view"]}, code=_FIT_JS)
    for name in ("start", "end"):
        plot.x_range.js_on_change(name, scale)
    for name in ("inner_width", "inner_height"):
        plot.js_on_change(name, fit, scale)
    sources["view"].js_on_change("data", fit, scale)


def _add_tools(plot: figure, boxes: Any, lines: Any) -> None:
    drag, wheel = PanTool(), WheelZoomTool(modifiers={"ctrl": True})
    tap = TapTool(renderers=[boxes])
    card = hover_card("@name", (("what", "@what"), ("makes", "@makes"), ("device", "@time"),
                                ("where", "@place")), swatch="@line")  # fmt: skip
    plot.add_tools(
        drag,
        wheel,
        BoxZoomTool(match_aspect=True),
        ResetTool(),
        tap,
        HoverTool(renderers=[boxes], tooltips=card),
        HoverTool(renderers=[lines], tooltips=hover_card("@name", ()), line_policy="interp"),
    )
    plot.toolbar.active_drag = drag
    plot.toolbar.active_scroll = wheel
    plot.toolbar.active_tap = tap


class GraphView(VBox):
    """Draws `run.graphs[0]`; assigning `run` or `expanded` redraws.

    Clicking a group opens or closes it; clicking an op sets `node`.
    """

    run = traitlets.Instance(Run, allow_none=True)
    expanded = traitlets.Instance(frozenset, args=())
    node = traitlets.Int(None, allow_none=True)

    def __init__(self, run: Run | None = None) -> None:
        self.figure, self.sources = graph_model(graph_payload(run))
        self.sources["boxes"].selected.on_change("indices", self._pick)
        self._color_by = Dropdown(options=COLOR_BY, description="colour by",
                                  layout={"width": "190px"})  # fmt: skip
        self._collapse = Button(description="collapse all", layout={"width": "110px"})
        self._error = HTML()
        self._focus = ""
        self._is_ready = False
        self._color_by.observe(self._redraw, "value")
        self._collapse.on_click(self._collapse_all)
        super().__init__([HBox([self._color_by, self._collapse]), LivePlot(self.figure),
                          self._error], run=run)  # fmt: skip
        self._is_ready = True

    def _repr_mimebundle_(self, **options: Any) -> Any:
        load_bokehjs()
        return super()._repr_mimebundle_(**options)

    @traitlets.observe("run", "expanded")
    def _redraw(self, change: dict[str, Any]) -> None:
        if not self._is_ready:
            return  # the constructor has drawn it
        try:
            payload = graph_payload(self.run, self.expanded, color_by=self._color_by.value,
                                    focus=self._focus)  # fmt: skip
            apply_graph(payload, self.figure, self.sources)
            self._error.value = ""
        except Exception as error:  # noqa: BLE001 - shown under the view, the cell stays alive
            self._error.value = error_html("graph", error)

    def _collapse_all(self, button: Button) -> None:
        self._focus, self.expanded = "", frozenset()

    def _pick(self, attr: str, old: list[int], new: list[int]) -> None:
        if not new or list(self.sources["boxes"].selected.indices) != list(new):
            return  # jupyter_bokeh calls twice: by then the first call has cleared the selection
        data = self.sources["boxes"].data
        key, kind = data["key"][new[-1]], data["kind"][new[-1]]
        if kind == "op":
            self.node = int(key.rpartition("%")[2])
        elif kind != "phase":
            self._focus, self.node = key, None
            self.expanded = self.expanded ^ {key}
