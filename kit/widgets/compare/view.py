"""Several runs side by side: a table of their numbers, and their timelines on one time axis.

`kit.compare` gives a `Comparison`. It holds finished runs and draws them; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap
from typing import Any

from bokeh.core.properties import value
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    LabelSet,
    PanTool,
    Range1d,
    ResetTool,
    WheelZoomTool,
)
from bokeh.plotting import figure
from ipywidgets import HTML, Layout

from kit.runs.run import Run
from kit.text import markdown_table, safe_html, safe_markdown
from kit.widgets.base import tables
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View
from kit.widgets.base.scripts import script
from kit.widgets.base.tables import section, sentence, table, unbroken
from kit.widgets.base.theme import (
    BACKGROUND,
    COLORS,
    FONT,
    INK,
    LABELS,
    OTHER,
    PALE,
    add_legend,
    add_note,
    hover_card,
    style_figure,
)
from kit.widgets.compare.data import (
    COLUMNS,
    Cell,
    ComparisonRow,
    baseline_tag,
    check_runs,
    comparison_cells,
    comparison_rows,
    disturbed_tag,
    fastest_text,
)
from kit.widgets.compare.strips import PX, SOURCES, TITLE, comparison_columns

__all__ = [
    "Comparison",
    "ComparisonRow",
    "comparison_columns",
    "comparison_figure",
    "comparison_html",
    "comparison_markdown",
    "comparison_text",
]

_STAR = "★"
_BEST = "best of its column, or as good within the spread; none where the spread does not tell"
_IN_PARENTHESES = (
    "in parentheses the quartiles of the steps, and half of the 95% interval of the ratio after ±, "
    "else all of it"
)
_WIDTHS = (18, 10, 12, 9, 8, 9, 8, 8, 8, 10)
_BAR_CARD = (("kind", "@kind"), ("busy", "@duration"), ("began at", "@start"), ("lane", "@lane"),
             ("run", "@run"))  # fmt: skip
_SYNC_CARD = (("waited", "@duration"), ("line", "@site"), ("through", "@via"), ("run", "@run"))
_TEXT_HEAD = 9  # letters of a head's line on a terminal
_LEAST_PX = 800  # narrower, the table scrolls
_ROW_JS = "return tracks.data.label.find((_, i) => tick < tracks.data.bottom[i]) ?? '';"
_NOTE = (
    "Step: median of the untraced steps, quartiles below. Of the baseline: of its step, or of its "
    "time of a sample where steps hold other numbers of these; ± is half of the 95% interval. A "
    "sample: the step over batch size and micro-batches. Recording hidden: the part of the host's "
    "recording that went on while the device worked. Busy, hidden and idle come from traced steps, "
    "which may take longer than untraced ones; a GPU's busy and idle then are of untraced ones."
)


def comparison_html(rows: Sequence[ComparisonRow]) -> str:
    """The numbers of the runs as a table, and which one is the fastest."""
    body = [
        [_label(i, row, baseline_tag(row, rows)), *map(_cell, cells)]
        for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True))
    ]
    heads = ("run", *(c.head for c in COLUMNS))
    made = table(heads, body, "l" + "r" * len(COLUMNS), widths=_WIDTHS, least_px=_LEAST_PX)
    lead = f'<div style="margin-bottom:4px">{safe_html(fastest_text(rows), 400)}</div>'
    star = f"{_STAR} {_BEST}. " if len(rows) > 1 else ""
    unknown = " ?: not known, or there was nothing of it." if ">?<" in made else ""
    return section("Comparison", lead + made + sentence(star + _NOTE + unknown))


def _label(i: int, row: ComparisonRow, tag: str) -> str:
    return (
        f'<div style="overflow-wrap:anywhere"><b>{i + 1}</b>&ensp;'
        f"{unbroken(safe_html(row.label))}</div>"
        f'<div style="color:{tables.MUTED};font-size:12px">{tag.strip(" ()")}</div>'
        f'<div style="color:{tables.WORSE};font-size:12px;overflow-wrap:anywhere">'
        f"{safe_html(disturbed_tag(row)[2:-1], 200)}</div>"
    )


def _cell(cell: Cell) -> str:
    text = safe_html(cell.text)
    if cell.is_best:
        text = f'<b title="best of its column">{_STAR}&thinsp;{text}</b>'
    if cell.note:
        look = f"color:{tables.MUTED};font-size:11px;white-space:normal"
        note = safe_html(cell.note).replace("± ", "±&nbsp;")
        text += f'<div style="{look}">{note}</div>'
    return f'<div style="white-space:nowrap">{text}</div>'


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """The table as Markdown, and which run is the fastest; nothing in it is HTML."""
    made = []
    for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True)):
        tag = baseline_tag(row, rows)
        texts = [safe_markdown(f"{c.text} ({c.note})" if c.note else c.text) for c in cells]
        made.append(
            [f"{i + 1}: {safe_markdown(row.label + disturbed_tag(row), 400)}{tag}"]
            + [f"**{t}**" if c.is_best else t for t, c in zip(texts, cells, strict=True)]
        )
    shown = markdown_table(["run", *(c.head for c in COLUMNS)], made)
    marks = [f"In bold the {_BEST}; {_IN_PARENTHESES}."] if len(rows) > 1 else []
    said = filter(None, [*marks, safe_markdown(fastest_text(rows), 1000)])
    return "\n\n".join([shown, *said])


def comparison_text(rows: Sequence[ComparisonRow]) -> str:
    """The table for a terminal: aligned, the best of each column with a `*`, the labels last."""
    heads = [wrap(c.head, _TEXT_HEAD) for c in COLUMNS]
    deep = max(map(len, heads))
    padded = [[""] * (deep - len(head)) + [f"{line} " for line in head] for head in heads]
    lines = [["", *(head[k] for head in padded), "run" * (k == deep - 1)] for k in range(deep)]
    for i, (row, cells) in enumerate(zip(rows, comparison_cells(rows), strict=True)):
        tag = baseline_tag(row, rows)
        label = row.label.replace("\u200b", "")  # which parts what a plot would take for a formula
        lines.append([str(i + 1), *map(_text_cell, cells), label + tag + disturbed_tag(row)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0  # to the left, and as long as it is
    aligned = [" ".join(t.rjust(w) for t, w in zip(x, widths, strict=True)).rstrip() for x in lines]
    marks = [f"* {_BEST}; {_IN_PARENTHESES}"] if len(rows) > 1 else []
    return "\n".join([*aligned, *marks, *filter(None, [fastest_text(rows)])])


def _text_cell(cell: Cell) -> str:
    note = f" ({cell.note})" if cell.note else ""
    return f"{cell.text}{note}{'*' if cell.is_best else ' '}"


def comparison_figure(runs: Sequence[Run], rows: Sequence[ComparisonRow]) -> figure:
    """One strip for each run, all with one time axis; a new figure each time."""
    columns = comparison_columns(runs, rows)
    axis = columns["axis"]
    plot = figure(
        x_range=Range1d(0, axis["x_end"], bounds=None),
        y_range=Range1d(axis["end"], -0.1),
        height=columns["height"] + PX["keys"],  # until it is drawn
        sizing_mode="stretch_width",
        min_width=300,
        tools=[],
        title=columns["title"],
        x_axis_label="since the first traced step",
        name="comparison",
    )
    add_note(plot, " · ".join(columns["notes"]))
    plot.xaxis[0].formatter = CustomJSTickFormatter(code=_tick_js())
    plot.xaxis[0].name = "axis"
    source = {name: ColumnDataSource(columns[name]) for name in SOURCES}
    plot.yaxis[0].ticker = FixedTicker(ticks=axis["ticks"])
    plot.yaxis[0].formatter = CustomJSTickFormatter(args={"tracks": source["tracks"]}, code=_ROW_JS)
    bars, marks = _draw(plot, source)
    add_legend(plot, {LABELS[kind]: COLORS[kind] for kind in columns["kinds"]})
    style_figure(plot)
    plot.ygrid.grid_line_color = None
    plot.yaxis[0].major_label_text_color = INK
    _add_tools(plot, bars, marks)
    said = {name: columns[name] for name in ("title", "heads", "notes")}
    px = {**PX, "bare": columns["height"], "row": columns["row"], "title": TITLE}
    prepare = CustomJS(
        args={"figure": plot, "sources": source, "said": said, "px": px}, code=_prepare_js()
    )
    plot.js_on_change("inner_width", prepare)
    return plot


def _tick_js() -> str:
    """Writes a tick of the axis, which is in milliseconds, as the timeline of one run does."""
    return f"""
if (!this.write) {{
  const largest = 1e6 * Math.max(...ticks.map(Math.abs));
  const step = ticks.length > 1 ? 1e6 * (ticks[1] - ticks[0]) : largest || 1;
  this.write = {script("widgets/base/js/format.js")}.writerOf(largest, step);
}}
return this.write(1e6 * tick);
"""


def _prepare_js() -> str:
    """Runs in the browser whenever the figure has another width."""
    return f"""
const view = cb_context.index.find_one(figure);
const strips = {script("widgets/compare/js/strips.js")};
if (view) strips.prepare(view, sources, said, "{COLORS["wait"]}", px);
"""


def _draw(plot: figure, source: dict[str, ColumnDataSource]) -> tuple[Any, Any]:
    red = COLORS["wait"]
    steps, syncs = source["steps"], source["syncs"]
    plot.quad(left=0, right="right", top="top", bottom="bottom", color=PALE, line_color=None,
              source=source["tracks"], name="tracks")  # fmt: skip
    plot.quad(left="left_ms", right="right_ms", top="top", bottom="under", color="color",
              line_color=None, source=steps, name="steps")  # fmt: skip
    plot.quad(left="x", right="right", top="top", bottom="bottom", source=syncs, color=red,
              fill_alpha=0.16, line_color=None, name="waits")  # fmt: skip
    bars = plot.quad(left="left_ms", right="right_ms", top="top", bottom="bottom",
                     fill_color="color", fill_alpha="alpha", line_color=None, source=source["bars"],
                     name="bars")  # fmt: skip
    for x in ("left_ms", "right_ms"):
        plot.segment(
            x0=x, x1=x, y0="top", y1="bottom", source=steps, line_color=OTHER, line_width=1
        )
    plot.segment(x0="x", x1="x", y0="top", y1="bottom", source=syncs, line_color=red,
                 line_dash="dashed", line_width=1.3)  # fmt: skip
    plot.text(x="x", y="y", text="text", source=source["texts"], text_align="center",
              text_baseline="middle", text_font=value(FONT), text_font_size="10px",
              text_color=INK, text_alpha="alpha")  # fmt: skip
    marks = plot.scatter(x="x", y="top", source=syncs, marker="inverted_triangle", size=9,
                         fill_color=red, line_color=BACKGROUND, name="syncs")  # fmt: skip
    plot.add_layout(LabelSet(x=2, y="y", text="text", x_units="screen", source=source["titles"],
                             text_font=value(FONT), text_font_size="11px", text_color=INK,
                             text_font_style="bold", text_baseline="middle",
                             name="titles"))  # fmt: skip
    return bars, marks


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


@dataclass(frozen=True, eq=False)
class Comparison:
    """Finished runs side by side: shown as a table and timelines in a notebook, as text elsewhere.

    Args:
        runs: one or more; a dozen can be read at once.
        baseline: the place of the run that the others are compared with.
        repeats: for each run all that were measured under its settings, itself among them.

    Raises:
        SettingsError: there are no runs, or no run has the number `baseline`.
    """

    runs: tuple[Run, ...]
    baseline: int = 0
    repeats: tuple[tuple[Run, ...], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        check_runs(self.runs, self.baseline)

    @cached_property
    def _rows(self) -> tuple[ComparisonRow, ...]:
        return comparison_rows(self.runs, self.baseline, self.repeats)

    def rows(self) -> tuple[ComparisonRow, ...]:
        """The numbers of each run, in the order of `runs`."""
        return self._rows

    def to_markdown(self) -> str:
        """The table as Markdown, for a report or an issue."""
        return comparison_markdown(self._rows)

    def view(self) -> View:
        """A widget of the table and the timelines; displaying the comparison shows one."""
        text = HTML(comparison_html(self._rows), layout=Layout(width="auto"))
        view = View([text, LivePlot(comparison_figure(self.runs, self._rows))])
        view.said = repr(self)
        return view

    def __repr__(self) -> str:
        return comparison_text(self._rows)

    def _ipython_display_(self) -> None:
        self.view()._ipython_display_()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view()._repr_mimebundle_(**options)
