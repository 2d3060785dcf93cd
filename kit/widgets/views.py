"""The table of the views of one run: the explorer shows each live, a report writes each down.

A new view is one row of `VIEWS`, and one function from a `Run` to HTML:

    ViewRow("losses", "losses by step", "right", html=losses_html)

A view that does more than show text says how its widget is made, too (`live`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from bokeh.models import ColumnDataSource, Plot
from ipywidgets import Widget

from kit.runs.analysis.lines import line_costs
from kit.runs.run import Run
from kit.widgets.base.cards import headline_html
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.listing import Drawn, Listing
from kit.widgets.graph.view import GraphView, graph_js_args, graph_model, graph_payload
from kit.widgets.memory.tables import memory_drawn
from kit.widgets.numbers.advice import AdviceView, advice_html
from kit.widgets.numbers.callers import callers_drawn
from kit.widgets.numbers.compiles import changes_html, recompiles_html
from kit.widgets.numbers.gaps import gaps_html
from kit.widgets.numbers.headline import HeadlineView
from kit.widgets.numbers.kernels import folded_kernels
from kit.widgets.numbers.segments import folded_segments_html
from kit.widgets.numbers.source import source_drawn, source_html
from kit.widgets.numbers.step import breakdown_html, run_notes_html
from kit.widgets.numbers.syncs import syncs_drawn, unlowered_html
from kit.widgets.timeline.view import (
    TimelineView,
    timeline_js_args,
    timeline_model,
    timeline_payload,
)

__all__ = ["PLACES", "VIEWS", "Figure", "TryChange", "ViewRow"]

TryChange = Callable[[Mapping[str, Any]], None]  # runs the step again with these settings changed
Applies = Callable[[Run], object]  # true of a run that has something to show

# where a view stands, from the top: two columns in the middle, the rest as wide as the page
PLACES = ("numbers", "timeline", "left", "right", "below", "foot")


def _always(run: Run) -> bool:
    return True


@dataclass(frozen=True)
class Figure:
    """A bokeh figure that a report draws anew for each of its runs, by a script of its own."""

    payload: Callable[..., dict[str, Any]]  # of a run, or of None: what is drawn
    model: Callable[[Mapping[str, Any]], tuple[Plot, Mapping[str, ColumnDataSource]]]
    js_args: Callable[[Any, Any], dict[str, Any]]  # the models that the script asks for, by name
    hint: str  # under the figure: what a reader can do with it
    shows: Applies = _always  # of none of its runs: a report leaves the figure out


@dataclass(frozen=True)
class ViewRow:
    """One view: what it is called, where it stands, how it is drawn live and in a report.

    A live view has the trait `run`. One that also has the trait `selection` shows what is picked
    in the others.
    """

    key: str  # `explorer.views[key]`, and the id of its section in a report
    title: str  # for screen readers
    place: str  # one of `PLACES`; views of one place stand in the order of the table
    html: Callable[[Run], str] | None = None  # for a report; escaped, "" if there is nothing to say
    live: Callable[[TryChange], Widget] | None = None  # None: `html` in a `HtmlView`
    figure: Figure | None = None  # for a report, instead of `html`
    applies: Applies = _always  # else it is not shown for this run

    def widget(self, try_change: TryChange) -> Widget:
        """A new live view, without a run."""
        if self.live is not None:
            return self.live(try_change)
        assert self.html is not None, f"the view {self.key!r} has neither `live` nor `html`"
        return HtmlView(self.title, self.html)

    def text(self, run: Run) -> str:
        """The HTML of a run for a report; "" where the view does not apply or is a figure."""
        return self.html(run) if self.html is not None and self.applies(run) else ""


def _source_html(run: Run) -> str:
    """Nothing where no line is known: the notes say why."""
    rows = line_costs(run)
    return source_html(run, rows) if any(row.site for row in rows) else ""


def _host_ops_html(run: Run) -> str:
    return unlowered_html(run) + recompiles_html(run.compiles)


def _has_host_ops(run: Run) -> bool:
    return bool(run.unlowered or run.compiles)


def _callers(run: Run) -> Drawn:
    """Nothing for a run whose launches no file names."""
    return callers_drawn(run) if run.callers else ("", [])


def _listing(
    key: str, title: str, place: str, draw: Callable[[Run], Drawn], applies: Applies = _always
) -> ViewRow:
    """A view whose rows can be picked; a report has the same HTML."""
    return ViewRow(
        key,
        title,
        place,
        html=lambda run: draw(run)[0],
        live=lambda _: Listing(title, draw),
        applies=applies,
    )


VIEWS: tuple[ViewRow, ...] = (
    ViewRow(
        "headline",
        "headline numbers",
        "numbers",
        html=headline_html,
        live=lambda _: HeadlineView(),
    ),
    ViewRow(
        "advice",
        "what limits the step, and what would help",
        "numbers",
        html=advice_html,
        live=AdviceView,
    ),
    ViewRow(
        "timeline",
        "kernel timeline",
        "timeline",
        live=lambda _: TimelineView(),
        figure=Figure(
            timeline_payload,
            timeline_model,
            timeline_js_args,
            "Red marks and shades are where the host waits for the device. Upper bars are the "
            "host, the lowest are the device: a gap there is idle time. Hover to read, drag to "
            "move, Ctrl and wheel to zoom, Shift and drag to measure a range; more under &quot;"
            "?&quot;.",
        ),
    ),
    ViewRow(
        "graph",
        "IR graph",
        "left",
        live=lambda _: GraphView(),
        figure=Figure(
            graph_payload,
            graph_model,
            graph_js_args,
            "Click a group to open it, click its heading to close it; click an op to see what it "
            "reads and which ops read it.",
            shows=attrgetter("graphs"),
        ),
    ),
    ViewRow(
        "recompiles",
        "what was compiled again, as two graphs",
        "left",
        html=changes_html,
        applies=attrgetter("changes"),
    ),
    _listing("callers", "what launched the device's work", "left", _callers, attrgetter("callers")),
    ViewRow(
        "source",
        "source lines and what they cost",
        "left",
        html=_source_html,
        live=lambda _: Listing("source lines", source_drawn),
    ),
    _listing("syncs", "sync points", "right", syncs_drawn),
    ViewRow("gaps", "idle time of the device by cause", "right", html=gaps_html),
    ViewRow("breakdown", "breakdown of the step", "right", html=breakdown_html),
    ViewRow(
        "unlowered",
        "ops that ran on the host, and what was compiled again",
        "right",
        html=_host_ops_html,
        applies=_has_host_ops,
    ),
    ViewRow("segments", "segments and what they cost", "below", html=folded_segments_html),
    _listing("kernels", "kernels", "below", folded_kernels),
    _listing("memory", "memory", "below", memory_drawn),
    ViewRow("notes", "what the numbers rest on", "foot", html=run_notes_html),
)
