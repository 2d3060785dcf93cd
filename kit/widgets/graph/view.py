"""The IR graph of a step, folded by phase and module, opened by clicking.

`graph_payload` makes the scene of a run, `graph_model` a figure that shows one, and the modules of
js/ draw it in the page: places, colours, search, export. So opening a group asks no kernel, and
the live view and the static report share everything. Text is drawn in the units of the plot: labels
stay inside their boxes at any zoom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

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
    WheelZoomTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML

from kit.runs.run import Run
from kit.widgets.base.errors import NOT_DRAWN, ErrorsIn
from kit.widgets.base.flag import Flag
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.scripts import asset, script
from kit.widgets.base.selection import NOTHING, Links, Selection
from kit.widgets.base.theme import (
    DEVICE_TIME,
    FAINT,
    FONT,
    INK,
    MUTED,
    add_note,
    hover_card,
    style_figure,
)
from kit.widgets.graph.export import graph_dot, graph_svg
from kit.widgets.graph.payload import COLOR_BY, changed_groups, graph_payload

__all__ = [
    "COLOR_BY",
    "GraphView",
    "graph_js_args",
    "graph_model",
    "graph_payload",
    "graph_wasm",
]

_EMPTY: dict[str, tuple[str, ...]] = {
    "frames": ("x", "y", "w", "h", "color", "line"),
    "edges": ("xs", "ys", "width", "alpha", "name"),
    "arrows": ("xs", "ys", "alpha"),
    "boxes": ("x", "y", "w", "h", "label", "sublabel", "label_x", "label_y", "sublabel_x",
              "sublabel_y", "align", "color", "line", "ink", "key", "kind", "name",
              "what", "time", "place", "makes", "row"),
    "bars": ("left", "right", "top", "bottom"),
    "marks": ("x", "y", "w", "h", "line", "fill"),
    "stops": ("x", "y", "w", "h", "text", "color"),
    "links": ("xs", "ys", "line"),
    "message": ("x", "y", "text"),
    "view": ("width", "height", "left", "top"),
    "scene": (),  # `tags`: the scene
    "state": (),  # `tags`: the last message between page and kernel, as JSON
    "engine": (),  # `tags`: graphviz for the page, if it asked
}  # fmt: skip

STOP_INK = "#10151c"  # on the colour of waiting, in both themes
_LONG = ("strings", "shapes", "dots")  # as JSON: bokeh would visit each of their values


def graph_wasm() -> str:
    """Graphviz as a JavaScript module (0.8 MB), for pages whose kernel has no `dot`."""
    return asset("widgets/graph/graphviz_wasm/graphviz.js")


def graph_model(
    payload: Mapping[str, Any],
) -> tuple[figure, dict[str, ColumnDataSource]]:
    """The figure of a payload, and its sources by name: `boxes`, `edges`, `scene`, ..."""
    sources = {
        name: ColumnDataSource({column: [] for column in columns})
        for name, columns in _EMPTY.items()
    }
    sources["state"].tags = [json.dumps({"from": "kit", "open": []})]
    plot = _graph_figure(sources)
    _apply_graph(payload, plot, sources)
    return plot, sources


def _apply_graph(
    payload: Mapping[str, Any], plot: figure, sources: Mapping[str, ColumnDataSource]
) -> None:
    """Show another payload in the same figure; the page draws it."""
    plot.title.text = payload["title"]
    texts = {name: json.dumps(payload[name]) for name in _LONG}
    sources["scene"].tags = [{**payload, **texts}]


def graph_js_args(plot: figure, sources: Mapping[str, ColumnDataSource]) -> dict[str, Any]:
    """The models that the page's script asks for, by name: the `args` of a CustomJS."""
    return {"figure": plot, "note": plot.select_one({"name": "note"}), **sources}


def _graph_figure(sources: Mapping[str, ColumnDataSource]) -> figure:
    """The plot of these sources, built once; the page fills and refills it."""
    plot = figure(
        x_range=Range1d(-12, 600),
        y_range=Range1d(400, -12),
        height=380,
        sizing_mode="stretch_width",
        tools=[],
        title="IR graph",
        min_width=260,
        name="graph",
    )
    add_note(plot)
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
    plot.multi_line(xs="xs", ys="ys", line_color="line", line_width=2.2, line_alpha=0.85,
                    source=sources["links"], name="links")  # fmt: skip
    boxes = plot.rect(x="x", y="y", width="w", height="h", fill_color="color", line_color="line",
                      line_width=1.3, border_radius=7, source=sources["boxes"],
                      nonselection_fill_alpha=1.0, nonselection_line_alpha=1.0,
                      name="boxes")  # fmt: skip
    plot.rect(x="x", y="y", width="w", height="h", fill_color="fill", line_color="line",
              line_width=2.4, border_radius=9, source=sources["marks"], name="marks")  # fmt: skip
    plot.quad(left="left", right="right", top="top", bottom="bottom", fill_color=DEVICE_TIME,
              line_color=None, source=sources["bars"], name="bars")  # fmt: skip
    plot.rect(x="x", y="y", width="w", height="h", fill_color="color", line_color="color",
              border_radius=4, source=sources["stops"], name="stops")  # fmt: skip
    plot.text(x="x", y="y", text="text", source=sources["stops"], text_align="center",
              text_baseline="middle", text_font=value(FONT), text_color=STOP_INK,
              text_font_style="bold", text_font_size="10px", name="stop")  # fmt: skip
    plot.text(x="x", y="y", text="text", source=sources["message"], text_align="center",
              text_font=value(FONT), text_color=MUTED, text_font_size="13px")  # fmt: skip
    for name, alpha, style in (("label", 1.0, "bold"), ("sublabel", 0.72, "normal")):
        glyph = Text(x=f"{name}_x", y=f"{name}_y", text=name, text_align="align",
                     text_baseline="middle", text_font=value(FONT), text_color="ink",
                     text_alpha=alpha,
                     text_font_style=style, text_font_size="11px")  # fmt: skip
        plot.add_glyph(sources["boxes"], glyph, name=name)
    _add_tools(plot, boxes, lines)
    _drive(plot, sources)
    return plot


def _drive(plot: figure, sources: Mapping[str, ColumnDataSource]) -> None:
    """Let the page's script know what changes; all of it is one CustomJS."""
    models = graph_js_args(plot, sources)
    page = f"view.kitGraphPage ??= {script('widgets/graph/js/page.js')};"
    code = f"{page}\nview.kitGraphPage.onGraphEvent({{{', '.join(models)}}}, cb_obj);"
    driver = CustomJS(args=models, code=code)
    for name in ("inner_width", "inner_height"):
        plot.js_on_change(name, driver)
    for name in ("start", "end"):
        plot.x_range.js_on_change(name, driver)
        plot.y_range.js_on_change(name, driver)
    for name in ("scene", "state", "engine"):
        sources[name].js_on_change("tags", driver)
    sources["boxes"].selected.js_on_change("indices", driver)


def _add_tools(plot: figure, boxes: Any, lines: Any) -> None:
    drag, wheel = PanTool(), WheelZoomTool(modifiers={"ctrl": True})
    tap = TapTool(renderers=[boxes])
    card = hover_card(
        "@name",
        (("what", "@what"), ("makes", "@makes"), ("device", "@time"), ("where", "@place")),
        swatch="@line",
    )
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


class GraphView(View):
    """Draws `run.graphs[0]`; assigning `run`, `against` or `expanded` redraws.

    Clicking a group opens or closes it, in the page; `expanded` has the keys of the open ones.
    Clicking an op sets `node` and `selection`, clicking a group with Shift sets `selection` to its
    nodes. Setting `selection` rings the boxes that hold its nodes, and opens nothing. With
    `against`, what has changed since that run is coloured, and ops that are gone are put back.
    With `marks`, each op has the change that they give it, and nothing is put back.
    """

    run = traitlets.Instance(Run, allow_none=True)
    against = traitlets.Instance(Run, allow_none=True)
    marks: Any = traitlets.Dict(allow_none=True)  # node -> one of kit.widgets.graph.diff.CHANGES
    expanded = traitlets.Instance(frozenset, args=())
    node = traitlets.Int(None, allow_none=True)
    selection = traitlets.Instance(Selection)
    color_by = traitlets.Enum(COLOR_BY, "phase")
    drawn_from: ClassVar = ("run", "against", "marks")

    def __init__(
        self,
        run: Run | None = None,
        *,
        against: Run | None = None,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        self._quiet = Flag()  # what is set now is drawn later, and at once
        self._heard = Flag()  # what changes now came from the page: do not send it back
        self._sequence: Any = -1
        self._drawing = 0  # number of the scene; the page sends it with what it picks
        self._compares = False  # what is drawn says what has changed
        self._error = HTML()
        self._payload = self._make(run, against, marks)
        self.figure, self.sources = graph_model(self._payload)
        self.sources["state"].on_change("tags", self._hear)
        self._plot = LivePlot(self.figure, [self.sources["scene"]])
        with self._quiet:
            super().__init__(
                [self._plot, self._error],
                run=run,
                against=against,
                marks=None if marks is None else dict(marks),
                selection=NOTHING,
            )
            self._color_changes()

    def show(self, run: Run | None, marks: Mapping[int, str]) -> None:
        """Draw another run with other marks, and open the groups that hold what is marked."""
        with self._quiet:
            self.run, self.marks = run, dict(marks)
        self._redraw({})
        self.expanded = changed_groups(self._payload)

    def svg(self) -> str:
        """The picture as it is now, with the groups of `expanded` open, as SVG text."""
        return graph_svg(self._payload, self.expanded)

    def dot(self) -> str:
        """The visible boxes as DOT text, open groups as clusters."""
        return graph_dot(self._payload, self.expanded)

    def _make(
        self, run: Run | None, against: Run | None, marks: Mapping[int, str] | None
    ) -> dict[str, Any]:
        """The scene; where a comparison is not possible, that is said, and the run drawn alone."""
        self._error.value = ""
        compared: dict[str, Any] = {"against": against, "marks": marks}
        for options in (compared, {}):
            with ErrorsIn(self._error, "graph"):
                return {**graph_payload(run, **options), "drawing": self._drawing}
        return {**graph_payload(None), "message": NOT_DRAWN, "drawing": self._drawing}

    @traitlets.observe("run", "against", "marks")
    def _redraw(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        self._drawing += 1
        self._payload = self._make(self.run, self.against, self.marks)
        _apply_graph(self._payload, self.figure, self.sources)
        with self._heard:  # one message for all of it
            self.node, self.selection = None, NOTHING
            self._color_changes()
            self._tell()

    @traitlets.observe("expanded", "selection", "color_by")
    def _changed(self, change: dict[str, Any]) -> None:
        if not self._quiet and not self._heard:
            self._tell()

    def _color_changes(self) -> None:
        """By change once something is compared, and no longer once nothing is, as the page does."""
        had, self._compares = self._compares, bool(self._payload.get("has_changes"))
        if self._compares and not had:
            self.color_by = "change"
        elif self.color_by == "change" and not self._compares:
            self.color_by = "phase"

    def _tell(self, answered: Any = None) -> None:
        """Say to the page what is open and what is selected.

        Args:
            answered: the number of what a page said, for other copies of the figure to hear of.
        """
        picked = self.selection
        message = {"from": "kit", "open": sorted(self.expanded), "color_by": self.color_by,
                   "nodes": sorted(picked.nodes), "sites": sorted(picked.sites),
                   "label": picked.label, "answered": answered}  # fmt: skip
        self.sources["state"].tags = [json.dumps(message)]

    def _hear(self, attr: str, old: list[Any], new: list[Any]) -> None:
        """Take what the page says: what is open, what was picked, whether it needs graphviz."""
        message = json.loads(new[0]) if new else {}
        if message.get("from") != "page" or message.get("sequence") == self._sequence:
            return  # our own, or jupyter_bokeh calls twice
        self._sequence = message.get("sequence")
        with ErrorsIn(self._error, "graph"), self._heard:
            if message.get("need") == "engine":
                # New each time: a copy of the figure has missed what another one was sent. The page
                # asked before it heard what was set meanwhile, so what else it says is not news.
                self.sources["engine"].tags = [graph_wasm(), self._sequence]
                self._tell()
                return
            self.expanded = frozenset(map(str, message.get("open", ())))
            if message.get("color_by") in COLOR_BY:
                self.color_by = message["color_by"]
            is_shown = message.get("drawing", self._drawing) == self._drawing
            if (pick := message.get("pick")) and is_shown:
                nodes = [int(i) for i in pick["nodes"]]
                self.node = nodes[0] if pick["isOp"] and nodes else None
                self.selection = Links(self.run).of_nodes(nodes, str(pick["label"]))
            # Also where one copy is known: one that is being drawn is counted only afterwards, and
            # one that is drawn later begins with what the kernel said last.
            self._tell(self._sequence)
