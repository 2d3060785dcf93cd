"""A run as plain tables: spans, kernels, callers, gaps and more; one row of `TABLES` for each.

`query.py` beside this file asks them in SQL, `frame.py` hands them to pandas, `ranks.py` has those
of many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.runs.analysis.kernels import kernel_table
from kit.runs.analysis.lines import line_costs
from kit.runs.device.callers import charged_by_caller
from kit.runs.device.shapes import call_cost
from kit.runs.run import Run
from kit.trace import KINDS, SyncPoint, Timeline, idle_gaps
from kit.trace.imported import Caller
from kit.trace.intervals import distinct

__all__ = ["TABLES", "Field", "Table", "Texts", "Values", "integers", "reals", "some_fields"]

_SEVERAL = ", "  # between the ops, or the lines, of one kernel
_INSIDE = "/"  # between a module and the one in it
_OF_NODES = ("op", "scope", "site")


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts, each kept once. Shape: numbers (rows,), places in `texts`; -1: none."""

    numbers: NDArray[np.int64]
    texts: Sequence[str]

    @classmethod
    def of(cls, column: Iterable[str]) -> Texts:
        """A text for each row; "" is none."""
        place: dict[str, int] = {}
        numbers = [place.setdefault(text, len(place)) if text else -1 for text in column]
        return cls(np.array(numbers, np.int64), list(place))

    def __len__(self) -> int:
        return len(self.numbers)


Values = Texts | NDArray[np.int64] | NDArray[np.float64]  # of integers -1, of reals nan: not known


@dataclass(frozen=True, slots=True)
class Field:
    """One column."""

    name: str  # with its unit
    meaning: str
    is_signed: bool = False  # -1 is a number here, and not "not known"


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    name: str
    meaning: str  # of a row
    fields: tuple[Field, ...]
    columns: Callable[[Any], Sequence[Values]]  # of a Run, or of Ranks; in the fields' order


def _spans(run: Run) -> list[Values]:
    t = run.timeline
    nodes = run.whole.nodes
    node = np.where(t.node < len(nodes), t.node, -1).astype(np.int64)
    caller = np.where(t.node < len(run.callers), t.node, -1).astype(np.int64)
    if run.callers:
        launched = _by_caller(run.callers)
        texts = [_at(launched[what], caller) for what in ("op", "module", "site")]
    else:
        texts = [_at(Texts.of(getattr(n, what) for n in nodes), node) for what in _OF_NODES]
    return [
        np.arange(len(t)),
        Texts(t.lane.astype(np.int64), t.lanes),
        Texts(t.kind.astype(np.int64), KINDS),
        Texts(t.name.astype(np.int64), t.names),
        t.start_ns,
        t.stop_ns,
        t.stop_ns - t.start_ns,
        _step_of(t, t.start_ns),
        np.where(t.segment >= 0, t.segment, -1).astype(np.int64),
        np.where(t.segment < -1, -2 - t.segment.astype(np.int64), -1),
        node,
        *texts,
        caller,
    ]


def _at(known: Texts, places: NDArray[np.int64]) -> Texts:
    """A text for each place among the known; none for place -1."""
    return Texts(np.append(known.numbers, -1)[places], known.texts)


def _by_caller(callers: Sequence[Caller]) -> dict[str, Texts]:
    """What is said of each caller, as texts."""
    return {
        "op": Texts.of(c.op for c in callers),
        "module": Texts.of(_INSIDE.join(c.module) for c in callers),
        "annotation": Texts.of(_INSIDE.join(c.annotation) for c in callers),
        "site": Texts.of(c.site for c in callers),
        "shapes": Texts.of(c.shapes for c in callers),
    }


def _callers(run: Run) -> list[Values]:
    charged, counts = charged_by_caller(run)
    costs = [call_cost(c) for c in run.callers]
    return [
        np.arange(len(run.callers)),
        *_by_caller(run.callers).values(),
        Texts.of("backward" if c.is_backward else "" for c in run.callers),
        integers(c.graph_node for c in run.callers),
        integers(c.calls for c in run.callers),
        counts[:-1],
        charged[:-1] / 1e6,
        *(
            reals(getattr(cost, what) for cost in costs)
            for what in ("flops", "bytes_read", "bytes_written")
        ),
    ]


def _step_of(t: Timeline, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The step in which each instant lies, of several the one begun last; -1: in none."""
    steps = _step_times(t)
    if not len(steps):
        return np.full(len(at), -1, np.int64)
    edges = distinct(steps)
    owner = np.full(len(edges), -1, np.int64)  # from each edge to the next; after the last none
    for i, (first, end) in enumerate(np.searchsorted(edges, steps).tolist()):
        owner[first:end] = i
    found: NDArray[np.int64] = owner[np.searchsorted(edges, at, "right") - 1]
    return found


def _step_times(t: Timeline) -> NDArray[np.int64]:
    return t.intervals(kind="step")  # in order: spans are sorted by their start


def _steps(run: Run) -> list[Values]:
    t = run.timeline
    steps = np.flatnonzero(t.where(kind="step"))
    start, stop = t.start_ns[steps], t.stop_ns[steps]
    names = Texts(t.name[steps].astype(np.int64), t.names)
    lanes = Texts(t.lane[steps].astype(np.int64), t.lanes)
    return [np.arange(len(steps)), names, lanes, start, stop, stop - start]


def _kernels(run: Run) -> list[Values]:
    rows = kernel_table(run)
    callers = [[run.callers[i] for i in r.nodes] if run.callers else [] for r in rows]
    return [
        Texts.of(r.kernel.name for r in rows),
        integers(r.kernel.segment for r in rows),
        integers(r.kernel.count for r in rows),
        reals(r.kernel.total_ms for r in rows),
        reals(r.kernel.mean_us for r in rows),
        reals(r.kernel.charged_ms for r in rows),
        reals(r.kernel.share for r in rows),
        Texts.of(_SEVERAL.join(r.ops) for r in rows),
        Texts.of(_SEVERAL.join(r.scopes) for r in rows),
        Texts.of(_SEVERAL.join(r.sites) for r in rows),
        reals(r.bytes_read for r in rows),
        reals(r.bytes_written for r in rows),
        reals(r.flops for r in rows),
        Texts.of(_once(_INSIDE.join(c.annotation) for c in found) for found in callers),
        Texts.of(_once(c.shapes for c in found) for found in callers),
    ]


def _once(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _gaps(run: Run) -> list[Values]:
    gaps = idle_gaps(run.timeline)
    start = integers(g.start_ns for g in gaps)
    stop = integers(g.stop_ns for g in gaps)
    return [
        Texts.of(g.lane for g in gaps),
        start,
        stop,
        stop - start,
        _step_of(run.timeline, start),
        Texts.of(g.cause for g in gaps),
        Texts.of(g.site for g in gaps),
        Texts.of(g.note for g in gaps),
        integers(g.before for g in gaps),
    ]


def _lines(run: Run) -> list[Values]:
    rows = line_costs(run)
    return [
        Texts.of(r.site for r in rows),
        reals(r.recording_ms for r in rows),
        reals(r.device_ms for r in rows),
        reals(r.wait_ms for r in rows),
        reals(r.idle_ms for r in rows),
        reals(r.elsewhere_ms for r in rows),
        reals(r.own_ms for r in rows),
        reals(r.syncs for r in rows),
        Texts.of(_SEVERAL.join(r.causes) for r in rows),
    ]


def _syncs(run: Run) -> list[Values]:
    syncs: Sequence[SyncPoint] = run.timeline.syncs
    at = integers(s.at_ns for s in syncs)
    return [
        at,
        integers(s.wait_ns for s in syncs),
        _step_of(run.timeline, at),
        Texts.of(s.cause for s in syncs),
        Texts.of(s.site for s in syncs),
        Texts.of(s.via for s in syncs),
    ]


def _pins(run: Run) -> list[Values]:
    at = integers(pin.at_ns for pin in run.pins)
    return [at, _step_of(run.timeline, at), Texts.of(pin.text for pin in run.pins)]


def integers(values: Iterable[int]) -> NDArray[np.int64]:
    """A column of whole numbers."""
    return np.array(list(values), np.int64)


def reals(values: Iterable[float]) -> NDArray[np.float64]:
    """A column of numbers; what is not finite is not known."""
    return np.array([float(x) if math.isfinite(x) else math.nan for x in values], np.float64)


def some_fields(**meanings: str) -> tuple[Field, ...]:
    """A field for each name."""
    return tuple(Field(name, meaning) for name, meaning in meanings.items())


_STEP = "the step in whose time it begins, not the one that launched it; none outside"
_START = "its begin, from the start of the timeline"
TABLES = (
    Table(
        "spans",
        "something that ran on a lane, in the traced steps",
        (
            Field("span", "its number"),
            *some_fields(
                lane="where it ran: host/main, device/0 stream 7, ...",
                kind="step, record, dispatch, wait, kernel, communication, callback, ...",
                name="of a kernel, an op, a phase, a step",
            ),
            Field("start_ns", _START, is_signed=True),
            Field("stop_ns", "its end", is_signed=True),
            *some_fields(
                length_ns="from its begin to its end",
                step=_STEP,
                segment="of kit's own runs: which segment it is of",
                launch="of foreign traces: the same number for a call and what it launched",
                node="of the graph",
                op="of the node; without a graph the op that launched it",
                scope="the module of the op",
                site="the line of the op; of foreign traces where its function begins",
                caller="of native runs and foreign traces: its row in callers",
            ),
        ),
        _spans,
    ),
    Table(
        "kernels",
        "all runs of one kernel of one segment, in all traced steps together",
        some_fields(
            name="of the kernel",
            segment="that it is of, if it is known",
            runs="how many there were",
            total_ms="in which at least one of them went on",
            mean_us="of one run",
            charged_ms="its part of the time in which a kernel ran: these add up to it",
            share="charged_ms as a fraction of that time",
            ops="that it computes",
            scopes="their modules",
            sites="their lines",
            bytes_read="a step, modelled from shapes; none without them",
            bytes_written="the same",
            flops="the same",
            annotations="of foreign traces: in which it was launched",
            shapes="of native runs and foreign traces: the arrays that its ops were given",
        ),
        _kernels,
    ),
    Table(
        "callers",
        "one way in which kernels without a graph were launched, as far as it is known",
        some_fields(
            caller="its number",
            op="the innermost around the launch",
            module="outermost first: Bert_0/Linear_3; of a gradient, of the op it is of",
            annotation="outermost first",
            site="the line; of foreign traces where its function begins",
            shapes="the arrays that the op was given",
            phase="backward; none: not known to be of a gradient",
            graph_node="of a CUDA graph",
            calls="of the op, in all traced steps",
            kernels="that they launched",
            charged_ms="their part of the time in which a kernel ran",
            flops="of one call, from shapes; none: not known",
            bytes_read="the same",
            bytes_written="the same",
        ),
        _callers,
    ),
    Table(
        "gaps",
        "time within the steps in which a device had nothing to do, for one reason",
        (
            Field("device", "that was idle"),
            Field("start_ns", _START, is_signed=True),
            Field("stop_ns", "its end", is_signed=True),
            *some_fields(
                length_ns="from its begin to its end",
                step=_STEP,
                cause="sync point, host recording, dispatch, input, ...",
                site="the line to blame, if there is one",
                note="more about the cause",
                before="the number of the kernel's span that ended the whole gap",
            ),
        ),
        _gaps,
    ),
    Table(
        "lines",
        "a line of the program, and what it costs a step",
        some_fields(
            site="train.py:41; none: no line is known",
            recording_ms="of the host, a step",
            device_ms="of the device, a step",
            wait_ms="of the host for the device, a step: of untraced ones, where they are known",
            idle_ms="of the device after these waits, a traced step",
            elsewhere_ms="of the host for something else, a step",
            own_ms="of the host, on code of the program's own between two ops, a step",
            syncs="sync points, a step",
            causes="of the sync points",
        ),
        _lines,
    ),
    Table(
        "syncs",
        "a point of the traced steps where the host waited for the device",
        (
            Field("at_ns", "its begin, from the start of the timeline", is_signed=True),
            *some_fields(
                wait_ns="how long the host waited",
                step=_STEP,
                cause="item, copy to host, ...",
                site="the line of the program",
                via="the line of a library that it went through",
            ),
        ),
        _syncs,
    ),
    Table(
        "pins",
        "a text that somebody pinned to a time",
        (
            Field("at_ns", "its time, from the start of the timeline", is_signed=True),
            *some_fields(step=_STEP, text="of the pin"),
        ),
        _pins,
    ),
    Table(
        "steps",
        "a traced step",
        (
            *some_fields(
                step="its number", name="what it is called", lane="the thread that ran it"
            ),
            Field("start_ns", _START, is_signed=True),
            Field("stop_ns", "its end", is_signed=True),
            Field("length_ns", "from its begin to its end"),
        ),
        _steps,
    ),
)
