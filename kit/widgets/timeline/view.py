"""The kernel timeline: what host and device did when, and where the host waited.

`timeline_payload` turns a run into plain columns, `timeline_model` puts them into a bokeh figure,
and js/page.js replaces the columns of a figure that is already drawn. The live view and the static
report share all three, so they cannot differ.

The figure carries the columns to the browser and the choices back; the bars are painted on a canvas
over it, by JavaScript in the browser. Measured with a million spans, bokeh's own glyphs took
seconds a frame (`benchmarks/drawing.py` measures this view).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import traitlets
from bokeh.models import ColumnDataSource, CustomJS, Range1d
from bokeh.plotting import figure
from ipywidgets import HTML, VBox

from kit.errors import TimelineError, TraceFileError
from kit.runs.run import Run
from kit.text import format_ns, safe_label
from kit.trace import Timeline, count_devices
from kit.trace.kinds import ON_DEVICE
from kit.widgets.base.closing import close_widget
from kit.widgets.base.errors import NOT_DRAWN, ErrorsIn
from kit.widgets.base.flag import Flag
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.base.page import View, static_page
from kit.widgets.base.scripts import script
from kit.widgets.base.selection import NOTHING, Links, Selection
from kit.widgets.base.theme import page_js
from kit.widgets.timeline.columns import Columns
from kit.widgets.timeline.payload import as_run, flat, timeline_payload, timeline_title
from kit.widgets.timeline.range import RangeMetrics, around, range_metrics

__all__ = [
    "TimelineView",
    "apply_timeline",
    "timeline_js_args",
    "timeline_model",
    "timeline_payload",
    "timeline_title",
]

MAX_STATIC_SPANS = 50_000  # of a view's page of its own, which a notebook keeps
MAX_GHOST_SPANS = 20_000  # of the run that lies under another one; beyond, the shortest are joined
GHOST = "the run before"
MAX_LIVE_KERNELS = 100_000  # whose idle time is asked for at once when a range is marked
# Sources of a figure. timeline: one row, a column for each array of the payload. picked: what was
# clicked, and how many clicks there were. lit: what another view selected. marked: a range of time.
# What the page says has a `drawing`, too: the number of the picture that was on the screen.
# shown: the range of time on the screen, empty for all of it.
# reply: what Python says of that range. asked: what is to be done with it; `can`: "pin" (and
# "unpin") and "step", what a kernel could do. ghost: as timeline, of the run that lies under it.
_EMPTY: dict[str, dict[str, list[Any]]] = {
    "timeline": {},
    "picked": {"kind": [""], "index": [-1], "serial": [0]},
    "lit": {"nodes": [""], "sites": [""], "label": [""], "serial": [0]},
    "marked": {"start": [], "stop": []},
    "shown": {"start": [], "stop": []},
    "reply": {"text": [""], "of": [""]},
    "asked": {"what": [""], "text": [""], "serial": [0], "can": [""]},
    "ghost": {},
}


@cache
def _attach_js() -> str:
    """Runs in the browser once the figure is laid out; its arguments are `timeline_js_args`."""
    return f"""
const view = cb_context.index.find_one(figure);
if (!view || view.el.kitTimeline?.frame.root.isConnected) return;
{page_js()}
window.kitPage.sendNoEchoes(figure.document);
const {{TimelinePlot}} = {script("widgets/timeline/js/plot.js")};
const models = {{figure, timeline, picked, lit, marked, shown, reply, asked, ghost}};
view.el.kitTimeline = new TimelinePlot(view, models);
"""


def timeline_model(payload: Mapping[str, Any]) -> tuple[figure, dict[str, ColumnDataSource]]:
    """The figure of a payload, and its sources by name: `timeline`, `picked`, `lit`, ..."""
    sources = {
        name: ColumnDataSource({k: list(v) for k, v in data.items()}, name=name)
        for name, data in _EMPTY.items()
    }
    sources["timeline"].name = "timeline columns"  # the figure itself is called timeline
    plot = figure(
        x_range=Range1d(0, 1),
        y_range=Range1d(0, 1),
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools=[],
        title="kernel timeline",
        min_width=300,
        name="timeline",
    )
    plot.axis.visible = False
    plot.grid.visible = False
    plot.outline_line_color = None
    plot.background_fill_color = plot.border_fill_color = None  # the page's ground, dark or light
    plot.title.text_color = None
    plot.scatter(x=[], y=[])  # bokeh warns of a figure without any glyph
    attach = CustomJS(args=timeline_js_args(plot, sources), code=_attach_js())
    plot.js_on_change("inner_width", attach)
    apply_timeline(payload, plot, sources)
    return plot, sources


def apply_timeline(
    payload: Mapping[str, Any], plot: figure, sources: Mapping[str, ColumnDataSource]
) -> None:
    """Draw another payload in the same figure: `drawTimeline` of js/page.js in Python."""
    serial = {"serial": list(sources["picked"].data["serial"])}
    for name in ("lit", "marked", "reply"):  # they point into what is replaced
        if sources[name].data != _EMPTY[name]:
            sources[name].data = {**_EMPTY[name], **serial} if name == "lit" else dict(_EMPTY[name])
    plot.title.text = payload["title"]
    plot.height = payload["height"]
    sources["timeline"].data = flat(payload)


# What a page may ask for -> what is said where that is not done.
_WISHES = {
    "pin": "the pin {!r} was not set",
    "unpin": "no pin was taken away",
    "step": "the range was not taken as the step",
}


def timeline_js_args(plot: figure, sources: Mapping[str, ColumnDataSource]) -> dict[str, Any]:
    """The models that the page's script asks for, by name."""
    return {"figure": plot, **sources}


class TimelineView(View):
    """Draws a run or a timeline; assigning `run` redraws.

    Clicking a bar sets `segment`, `node` and `selection`; assigning `selection` highlights what
    belongs to it. Dragging with Shift sets `range_ns`, and `range_metrics()` says what it holds.
    `below` and `outline` can be assigned later, too.

    Args:
        run: a `Run`, or a `Timeline` alone.
        below: a second run, stacked under the first on the same time axis.
        outline: a prediction, drawn as outlines under the measured spans.
        reopen: `kit.open_trace`: a range of a foreign trace can then be taken as its step, by the
            rule of `step_by`, and the trace is read again.

    `ghost`, assigned later, is a run that lies under `run`: pale lines under the bars of each lane.
    With an `axis_ns`, as far as the longest of several runs reaches, the range of time that is
    shown stays when `run` is assigned.
    """

    run = traitlets.Instance(Run, allow_none=True)
    segment = traitlets.Int(None, allow_none=True)
    node = traitlets.Int(None, allow_none=True)
    selection = traitlets.Instance(Selection)
    range_ns: Any = traitlets.Tuple(default_value=None, allow_none=True)  # (start, stop)
    below = traitlets.Union(
        [traitlets.Instance(Run), traitlets.Instance(Timeline)], default_value=None, allow_none=True
    )
    outline = traitlets.Union(
        [traitlets.Instance(Run), traitlets.Instance(Timeline)], default_value=None, allow_none=True
    )

    ghost = traitlets.Instance(Run, allow_none=True)
    axis_ns = traitlets.Float(0.0)
    drawn_from: ClassVar = ("run", "below", "outline", "ghost", "axis_ns")

    def __init__(self, run: Run | Timeline | None = None, *, below: Run | Timeline | None = None,
                 outline: Run | Timeline | None = None,
                 reopen: Callable[..., Run] | None = None) -> None:  # fmt: skip
        run = as_run(run) if isinstance(run, Timeline) else run
        self._drawing = 0  # of how many; one whose pins change stays the same
        self._payload = {**timeline_payload(run, below=below, outline=outline), "drawing": 0}
        self.figure, self.sources = timeline_model(self._payload)
        self.sources["picked"].on_change("data", self._picked)
        self.sources["marked"].on_change("data", self._marked)
        self.sources["asked"].on_change("data", self._asked)
        self._reopen, self._serial = reopen, 0  # the newest wish that was heard
        self._error = HTML()
        self._drawn: tuple[Any, ...] = run, below, outline, None, 0.0
        self._under: Run | None = None  # the ghost that the page has
        self._links = Links(run)
        self._picking = Flag()  # what is selected now was clicked here
        self._pinning = Flag()  # what is drawn now differs in its pins alone
        drawn = (self.sources["timeline"], self.sources["ghost"])
        plot = LivePlot(self.figure, drawn)
        super().__init__([plot, self._error], run=run, below=below, outline=outline)
        self._offer()

    @traitlets.default("selection")
    def _nothing(self) -> Selection:
        return NOTHING

    def __repr__(self) -> str:
        return f"TimelineView({self._payload['summary']})"

    def _page(self, *, in_notebook: bool) -> str:
        """With very many spans, the shortest are joined.

        A notebook keeps the page beside the live view, and a million spans would make that 10 MB.
        """
        if len(self._payload["spans"]["key"]) <= MAX_STATIC_SPANS:
            return super()._page(in_notebook=in_notebook)
        small = timeline_payload(
            self.run, below=self.below, outline=self.outline, max_spans=MAX_STATIC_SPANS
        )
        plot = VBox([LivePlot(timeline_model(small)[0])])
        try:
            return static_page(plot, repr(self), in_notebook=in_notebook)
        finally:
            close_widget(plot)

    def range_metrics(self) -> RangeMetrics | None:
        """What the chosen range holds: busy devices, overlap, waits, idle time by cause."""
        if self.range_ns is None or self.run is None:
            return None
        return range_metrics(self.run.timeline, *self._in_run(*self.range_ns))

    def _in_run(self, *at_ns: int) -> list[int]:
        """Times of the axis as times since the run's first span.

        That span lies further right where another run, whose first step comes later, stands below.
        """
        return [at - int(self._payload["parts"]["shift_ns"][0]) for at in at_ns]

    @traitlets.observe("run", "below", "outline", "ghost", "axis_ns")
    def _redraw(self, change: dict[str, Any]) -> None:
        wanted = self.run, self.below, self.outline, self.ghost, self.axis_ns
        if all(a is b for a, b in zip(wanted, self._drawn, strict=True)):
            return
        self._drawn = wanted
        self.selection, self.range_ns = NOTHING, None
        self.segment = self.node = None
        self._links = Links(self.run)
        self._drawing += not self._pinning
        self._payload = {**self._made(), "drawing": self._drawing}
        apply_timeline(self._payload, self.figure, self.sources)
        self._offer()

    def _made(self) -> Columns:
        """The payload; the run that lies under it is drawn, too."""
        self._error.value = ""
        with ErrorsIn(self._error, "timeline"):
            payload = timeline_payload(
                self.run, below=self.below, outline=self.outline, axis_ns=self.axis_ns
            )
            self._lay_under(self.ghost)
            return payload
        self._lay_under(None)
        return {**timeline_payload(None), "message": NOT_DRAWN}

    def _lay_under(self, run: Run | None) -> None:
        """Draw a run under the others; its columns, maybe megabytes, go to the page once."""
        if run is self._under:
            return
        columns = {} if run is None else flat(timeline_payload(run, max_spans=MAX_GHOST_SPANS))
        self.sources["ghost"].data = columns and {**columns, "name": [GHOST]}
        self._under = run

    def pin(self, at_ns: int, text: str) -> None:
        """Pin a text to a time of the axis: `run` is then the same run with one more pin.

        Raises:
            TimelineError: there is no run, or as `Run.pin`.
        """
        if self.run is None or not len(self.run.timeline):
            raise TimelineError("there is no timeline to pin a text to")
        [at_ns] = self._in_run(at_ns)
        self._show_pins(self.run.pin(at_ns + self.run.timeline.begin_ns, text))

    def unpin(self, place: int) -> None:
        """Take away the pin at this place of `run.pins`: `run` is then the same run without it.

        Raises:
            TimelineError: there is no run, or as `Run.unpin`.
        """
        if self.run is None:
            raise TimelineError("there is no timeline to take a pin from")
        self._show_pins(self.run.unpin(place))

    def _show_pins(self, run: Run) -> None:
        """Show the same run with other pins; what is on the screen and what is picked stays."""
        shown, marked = dict(self.sources["shown"].data), self.range_ns
        picked = self.selection, self.segment, self.node
        with self._pinning:
            self.run = run
        self.range_ns = marked  # a new run is shown whole; this one is where it was
        self.selection, self.segment, self.node = picked
        self.sources["shown"].data = shown

    def use_as_step(self, start_ns: int, stop_ns: int) -> None:
        """Read the trace again with a range of the axis as its step: breakdown, limit and path.

        Raises:
            TraceFileError: the run is of no trace that can be read again, or it has steps of its
                own; says which.
        """
        run = self.run
        if self._reopen is None or run is None or not run.file:
            raise TraceFileError(
                "only a trace that was opened from a file can be read again: "
                "kit.TimelineView(run, reopen=kit.open_trace)"
            )
        start_ns, stop_ns = self._in_run(start_ns, stop_ns)
        low = start_ns = max(start_ns, 0)
        begin = run.timeline.begin_ns + start_ns
        for _ in range(2):  # the file may begin before the first span that is shown
            high = low + stop_ns - start_ns
            found = self._reopen(run.file, step_by=f"{low / 1e6:.6f}..{high / 1e6:.6f}")
            off = begin - int(found.timeline.intervals(kind="step")[0, 0])
            if not off:
                break
            low += off
        self.run = found

    def _offer(self) -> None:
        """Say to the page what a kernel would do with a range."""
        can = ["pin"] if self.run is not None and len(self.run.timeline) else []
        if self._reopen is not None and self.run is not None and self.run.file:
            can.append("step")
        self.sources["asked"].data = {**self.sources["asked"].data, "can": [" ".join(can)]}

    def _is_shown(self, said: Mapping[str, list[Any]]) -> bool:
        """Does the page speak of what is drawn now? While a cell runs, what it says has to wait."""
        return list(said.get("drawing", ())) in ([], [self._drawing])

    def _asked(self, attr: str, old: Any, new: dict[str, list[Any]]) -> None:
        """Pin a text to the range's begin, take the range as the step, or take a pin away."""
        serial, what = int(new["serial"][0]), str(new["what"][0])
        if serial == self._serial:
            return
        self._serial = serial
        with ErrorsIn(self._error, "timeline"):
            if not self._is_shown(new):
                said = _WISHES[what].format(new["text"][0])
                raise TimelineError(
                    f"{said}: the picture was drawn anew meanwhile, perhaps of another run; ask "
                    "again"
                )
            if what == "unpin":
                self.unpin(int(new["text"][0]))
            elif what == "pin" and self.range_ns is not None:
                self.pin(self.range_ns[0], str(new["text"][0]))
            elif what == "step" and self.range_ns is not None:
                self.use_as_step(*self.range_ns)

    @traitlets.observe("selection")
    def _highlight(self, change: dict[str, Any]) -> None:
        selection = change["new"]
        if not self._picking:
            self.segment = self.node = None
        self.sources["lit"].data = {
            "nodes": [" ".join(map(str, sorted(selection.nodes)))],
            "sites": ["\n".join(sorted(safe_label(site) for site in selection.sites))],
            "label": [safe_label(selection.label)],
            "serial": list(self.sources["picked"].data["serial"]),  # the last click that it knows
        }

    def _picked(self, attr: str, old: Any, new: dict[str, list[Any]]) -> None:
        if not self._is_shown(new):
            return
        kind, index = new["kind"][0], int(new["index"][0])
        with ErrorsIn(self._error, "timeline"), self._picking:
            self.selection = self._chosen(kind, index)

    def _chosen(self, kind: str, index: int) -> Selection:
        """What a picked span or sync point stands for; `segment` and `node` are set on the way."""
        self.segment = self.node = None
        if kind == "sync":
            parts = self._payload["syncs"]["part"]  # a click may be of the picture before
            mine = 0 <= index < len(parts) and not parts[index]
            site = self.run.timeline.syncs[index].site if mine and self.run else ""
            return self._links.of_site(site) if site else NOTHING
        keys, key = self._payload["keys"], self._payload["spans"]["key"]
        if kind != "span" or not 0 <= index < len(key):
            return NOTHING
        k = int(key[index])
        if keys["part"][k]:
            return NOTHING  # nodes and lines are the first run's
        own = self._payload["spans"]["segment"]
        segment = int(own[index]) - 1 if len(own) else int(keys["segment"][k])
        node = int(keys["node"][k])
        self.segment = segment if segment >= 0 else None
        self.node = node if node >= 0 else None
        kind, name = keys["kind"][k], keys["name"][k]
        if segment >= 0 and kind not in ON_DEVICE:
            return self._links.of_segment(segment)
        nodes = map(int, keys["nodes"][k].split())
        return self._links.of_nodes(nodes, f"kernel {name}" if kind == "kernel" else name)

    def _marked(self, attr: str, old: Any, new: dict[str, list[Any]]) -> None:
        if not self._is_shown(new):
            return
        starts = [round(x) for x in new["start"]]
        self.range_ns = (starts[0], round(new["stop"][0])) if starts else None

    @traitlets.observe("range_ns")
    def _measure(self, change: dict[str, Any]) -> None:
        wanted = change["new"]
        shown = self.sources["marked"].data
        if wanted is None:
            if len(shown["start"]):
                self.sources["marked"].data = dict(_EMPTY["marked"])
            return
        marked = [round(x) for key in ("start", "stop") for x in shown[key]]
        if marked != list(wanted) or not self._is_shown(shown):
            self.sources["marked"].data = {"start": [wanted[0]], "stop": [wanted[1]]}
        with ErrorsIn(self._error, "timeline"):
            if self.run is not None and not self._payload["parts"]["gaps_known"][0]:
                told = _told_idle(self.run.timeline, *self._in_run(*wanted))
                # Of which range: the page may be at another one when this arrives.
                self.sources["reply"].data = {"text": [told], "of": ["|".join(map(str, wanted))]}


def _told_idle(timeline: Timeline, start_ns: int, stop_ns: int) -> str:
    """Idle time by cause, where a payload does not have it: lines of "what", a tab, "how long"."""
    begin = timeline.begin_ns
    near = around(timeline, start_ns + begin, stop_ns + begin)
    if int(near.where(kind="kernel").sum()) > MAX_LIVE_KERNELS:
        return "idle by cause\tsee view.range_metrics(), which takes a while"
    idle = range_metrics(timeline, start_ns, stop_ns).idle_ns
    head = "idle, all devices" if count_devices(timeline) > 1 else "idle"
    told = (f"{head}: {cause}\t{format_ns(ns)}" for cause, ns in idle.items())
    return "\n".join(told) or f"{head}\tnone"  # no text would be: not known
