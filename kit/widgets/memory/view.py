"""The memory view: live bytes over the program, what holds the peak, and variants side by side.

`memory_payload` is plain data, `memory_model` draws it; `memory_drawn` is the same for a report.
All bytes are modelled from the graph, all times are measured; what torch's profiler has measured of
a trace stands above, marked so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import traitlets
from bokeh.core.properties import value
from bokeh.events import SelectionGeometry
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    HoverTool,
    Range1d,
    TapTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML, Layout, ToggleButtons

from kit.runs.analysis.memory import MemoryReport, memory
from kit.runs.given import some_runs
from kit.runs.run import Run
from kit.widgets.base.errors import NOT_DRAWN, ErrorsIn
from kit.widgets.base.flag import Flag
from kit.widgets.base.listing import Listing
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.scripts import script
from kit.widgets.base.selection import NOTHING, Links, Selection
from kit.widgets.base.theme import (
    COLORS,
    FONT,
    GRID,
    INK,
    MUTED,
    add_legend,
    add_note,
    hover_card,
    style_figure,
)
from kit.widgets.memory.data import HOLDS, mark_columns, memory_payload
from kit.widgets.memory.measured import measured_html
from kit.widgets.memory.tables import by_op_drawn, variant_labels, variants_html

__all__ = ["MemoryView", "memory_model"]

_SOURCES = ("area", "bands", "phases", "peak", "bars", "message")
_NO_PICK: dict[str, list[Any]] = {"indices": [[]], "drawing": [0], "serial": [0]}
# The number of what is drawn goes with a pick: while a cell runs, what the page says has to wait.
_PICK = """
// The same pick again is news, too, also one in another copy of the view.
const serial = [Math.max(picked.data.serial[0] + 1, Date.now())];
picked.data = {indices: [[...source.selected.indices]], drawing: [source.tags[0]], serial};
"""
_NO_MARKS = mark_columns(None, frozenset(), 1.0)
_AREA_CARD = (("live", "@all"), ("temporary", "@own"), ("writes", "@written"),
              ("device", "@time"), ("line", "@site"), ("module", "@scope"),
              ("phase", "@phase"))  # fmt: skip
_BAR_CARD = (("holds", "@size of the peak"), ("is", "@kind"), ("live", "@life"),
             ("line", "@site"), ("module", "@scope"))  # fmt: skip
_BAR_PX = 32
Figures = tuple[figure, figure]


def memory_model(payload: Mapping[str, Any]) -> tuple[Figures, dict[str, ColumnDataSource]]:
    """The figures of a payload, and their sources by name.

    `marks` is what is selected, `area picks` and `bars picks` are what was clicked.
    """
    sources = {name: ColumnDataSource(dict(payload[name])) for name in _SOURCES}
    sources["marks"] = ColumnDataSource(dict(_NO_MARKS))
    area, bars = _area_figure(sources), _bars_figure(sources["bars"])
    _apply(payload, (area, bars), sources, 0)
    # Not at a change of `indices`: what the kernel changes, jupyter_bokeh says back to it.
    for plot, name in ((area, "area"), (bars, "bars")):
        sources[f"{name} picks"] = picks = ColumnDataSource(dict(_NO_PICK))
        told = CustomJS(args={"picked": picks, "source": sources[name]}, code=_PICK)
        plot.js_on_event(SelectionGeometry, told)
    return (area, bars), sources


def _apply(
    payload: Mapping[str, Any],
    figures: Figures,
    sources: Mapping[str, ColumnDataSource],
    drawing: int,
) -> None:
    area, bars = figures
    for name in ("area", "bars"):
        sources[name].selected.indices = []  # an old index must not name a new bar
    area.title.text = payload["title"]
    area.select_one({"name": "note"}).text = payload["note"]
    area.yaxis[0].axis_label = f"live ({payload['unit']})"
    area.x_range.update(start=0, end=payload["ops"])
    area.y_range.update(start=-0.1 * payload["end"], end=payload["end"])
    bars.y_range.update(start=payload["rows"], end=0)
    bars.height = payload["rows"] * _BAR_PX + 44
    sources["marks"].data = dict(_NO_MARKS)
    for name in _SOURCES:
        sources[name].data = dict(payload[name])
    for name in ("area", "bars"):
        sources[name].tags = [drawing]  # last: a click in between is one on what was there before


def _area_figure(sources: Mapping[str, ColumnDataSource]) -> figure:
    plot = figure(
        x_range=Range1d(0, 1), y_range=Range1d(0, 1), height=350, sizing_mode="stretch_width",
        min_width=300, tools=[], toolbar_location=None, title="live memory",
        x_axis_label="ops in program order   -   click: select", name="memory",
    )  # fmt: skip
    add_note(plot)
    area = sources["area"]
    bands = zip(HOLDS.items(), (0, "variables", "kept"), ("variables", "kept", "live"), strict=True)
    for (_, color), bottom, top in bands:
        # one shape: bars side by side leave seams where several share a pixel
        plot.varea(
            x="x", y1=bottom, y2=top, source=sources["bands"], fill_color=color, name=f"band {top}"
        )
    # what answers the pointer, over all of the op's height
    whole = plot.quad(left="left", right="right", bottom=0, top="live", source=area,
                      fill_alpha=0.0, line_color=None, name="ops",
                      nonselection_fill_alpha=0.0)  # fmt: skip
    plot.quad(left="left", right="right", bottom="bottom", top="top", color="color",
              line_color=None, source=sources["phases"], name="phases")  # fmt: skip
    plot.quad(left="left", right="right", bottom="bottom", top="top", fill_color=INK,
              fill_alpha="alpha", line_color=INK, line_alpha="alpha", source=sources["marks"],
              name="marks")  # fmt: skip
    plot.scatter(x="x", y="y", source=sources["peak"], size=7, color=INK, name="peak")
    plot.text(x="x", y="y", text="text", text_align="align", y_offset=-7, source=sources["peak"],
              text_font=value(FONT), text_font_size="11px", text_color=INK)  # fmt: skip
    plot.text(x="x", y="y", text="text", text_align="center", source=sources["message"],
              text_font=value(FONT), text_font_size="13px", text_color=MUTED)  # fmt: skip
    phases = {name: COLORS[name] for name in ("forward", "backward", "update")}
    add_legend(plot, {**HOLDS, **phases})
    tap = TapTool(renderers=[whole])
    card = hover_card("@op", _AREA_CARD, swatch="@color")
    plot.add_tools(tap, HoverTool(renderers=[whole], tooltips=card, point_policy="follow_mouse"))
    plot.toolbar.active_tap = tap
    style_figure(plot)
    plot.xgrid.grid_line_color = None
    return plot


def _bars_figure(source: ColumnDataSource) -> figure:
    plot = figure(
        x_range=Range1d(0, 1), y_range=Range1d(1, 0), height=200, sizing_mode="stretch_width",
        min_width=300, tools=[], toolbar_location=None, name="holders",
        title="what holds the peak (click: select)",
    )  # fmt: skip
    track = plot.quad(left=0, right=1, top="top", bottom="bottom", color=GRID,
                      line_color=None, source=source, name="tracks",
                      nonselection_fill_alpha=1.0)  # fmt: skip
    bars = plot.quad(left=0, right="right", top="top", bottom="bottom", fill_color="color",
                     line_color=None, source=source, name="bars", selection_line_color=INK,
                     selection_line_width=2, nonselection_fill_alpha=0.45)  # fmt: skip
    for x, text, align in ((0, "text", "left"), (1, "size", "right")):
        plot.text(x=x, y="middle", text=text, text_align=align, text_baseline="middle",
                  text_font=value(FONT), text_font_size="11.5px", text_color=INK,
                  nonselection_text_alpha=0.7, source=source)  # fmt: skip
    tap = TapTool(renderers=[track, bars])
    card = hover_card("@op", _BAR_CARD, swatch="@color")
    plot.add_tools(tap, HoverTool(renderers=[track], tooltips=card, point_policy="follow_mouse"))
    plot.toolbar.active_tap = tap
    style_figure(plot)
    plot.axis.visible = False
    plot.grid.visible = False
    labels = script("widgets/memory/js/labels.js")
    fit = CustomJS(args={"figure": plot, "source": source}, code=f"{labels}.fit(figure, source);")
    plot.js_on_change("inner_width", fit)
    source.js_on_change("data", fit)
    return plot


class MemoryView(View):
    """The memory of `run` over its program; several runs also side by side, as a table.

    Assigning `run` redraws; one that is not among the `runs` takes their place. Clicking an op or a
    holder of the peak sets `selection`; setting that shows where its nodes run, and while what they
    make is live.

    Args:
        runs: a run, or several, such as the variants of one step.

    Raises:
        SettingsError: something among `runs` is not a run.
    """

    run = traitlets.Instance(Run, allow_none=True)
    selection = traitlets.Instance(Selection, default_value=NOTHING)

    def __init__(self, runs: Run | Sequence[Run] | None = None) -> None:
        given = () if runs in (None, (), []) else tuple(some_runs(runs))
        self.runs: tuple[Run, ...] = given
        self._report: MemoryReport | None = None
        self._links = Links(None)
        self._following = Flag()
        self.figures, self.sources = memory_model(memory_payload(None))
        self._drawing = 0
        for name in ("area", "bars"):
            self.sources[f"{name} picks"].on_change("data", partial(self._picked, name))
        self.choice = ToggleButtons(
            options=[("", 0)], layout=Layout(display="none"), style={"button_width": "auto"}
        )
        self.choice.observe(self._chosen, "value")
        self.table, self.measured, self.error = HTML(), HTML(), HTML()
        self.by_op = Listing("what writes", by_op_drawn)
        self.by_op.observe(self._row_picked, "selection")
        drawn = [self.sources[name] for name in _SOURCES]
        plots = [LivePlot(plot, drawn) for plot in self.figures]
        super().__init__([self.table, self.choice, self.measured, *plots, self.by_op, self.error])
        self._list_runs()
        self.run = given[0] if given else None

    def _list_runs(self) -> None:
        """The table and the buttons of several runs; nothing for one."""
        many = len(self.runs) > 1
        self.table.value = variants_html(self.runs) if many else ""
        labels = variant_labels(self.runs) if self.runs else [""]
        with self._following:
            self.choice.options = [(label[:60], i) for i, label in enumerate(labels)]
        self.choice.layout.display = None if many else "none"
        self._most = max((memory(run).peak for run in self.runs if run.graphs), default=0)

    def _chosen(self, change: dict[str, Any]) -> None:
        if not self._following and change["new"] is not None:
            self.run = self.runs[change["new"]]

    @traitlets.observe("run")
    def _redraw(self, change: dict[str, Any]) -> None:
        run = change["new"]
        self._links = Links(run)
        self._drawing += 1
        with self._following:
            payload, self._report, self.measured.value = self._made(run)
            _apply(payload, self.figures, self.sources, self._drawing)
            self.by_op.run = run if self._report is not None else None
        self.selection = NOTHING

    def _made(self, run: Run | None) -> tuple[dict[str, Any], MemoryReport | None, str]:
        """What the figures show, what that is made from, and what was measured."""
        self.error.value = ""
        with ErrorsIn(self.error, "memory"):
            if run is None:
                return memory_payload(None), None, ""
            if not any(run is known for known in self.runs):
                self.runs = (run,)
                self._list_runs()
            self.choice.value = next(i for i, known in enumerate(self.runs) if known is run)
            report = memory(run) if run.graphs else None
            return memory_payload(run, self._most), report, measured_html(run)
        message = {"x": [0.5], "y": [0.5], "text": [NOT_DRAWN]}
        return {**memory_payload(None), "message": message}, None, ""

    def _row_picked(self, change: dict[str, Any]) -> None:
        if not self._following:
            self.selection = change["new"]

    def _picked(self, name: str, attr: str, old: Any, new: dict[str, list[Any]]) -> None:
        if new["drawing"][0] != self._drawing:
            self._mark(self.selection)  # the page has marked what it took for a bar of this run
            return
        data = self.sources[name].data
        chosen = [int(at) for at in new["indices"][0] if at < len(data["nodes"])]
        nodes = {i for at in chosen for i in data["nodes"][at]}
        label = str(data["op"][chosen[0]]) if chosen else ""
        self.selection = self._links.of_nodes(nodes, label)

    @traitlets.observe("selection")
    def _highlight(self, change: dict[str, Any]) -> None:
        self._mark(change["new"])

    def _mark(self, picked: Selection) -> None:
        end = float(self.figures[0].y_range.end)
        with self._following:
            self.by_op.selection = picked
            self.sources["marks"].data = mark_columns(self._report, picked.nodes, end)
            for name in ("area", "bars"):
                of = self.sources[name].data["nodes"]
                self.sources[name].selected.indices = [
                    at for at, members in enumerate(of) if not picked.nodes.isdisjoint(members)
                ]
