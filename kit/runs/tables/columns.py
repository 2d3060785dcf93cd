"""A run as plain tables: spans, kernels, callers, gaps and more; one row of `TABLES` for each.

`query.py` beside this file asks them in SQL, `frame.py` hands them to pandas, `ranks.py` has those
of many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.ir import Node
from kit.runs.analysis.kernels import KernelCost, kernel_table
from kit.runs.analysis.lines import line_costs
from kit.runs.device.callers import charged_by_caller
from kit.runs.device.shapes import call_cost
from kit.runs.run import Run
from kit.trace import KINDS, Timeline, idle_gaps
from kit.trace.imported import Caller
from kit.trace.intervals import distinct

__all__ = ["TABLES", "Field", "Table", "Texts", "Values", "integers", "made", "real", "table",
           "text", "whole"]  # fmt: skip

_SEVERAL = ", "  # between the ops, or the lines, of one kernel
_INSIDE = "/"  # between a module and the one in it


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
    values: Callable[[Any, Any], Values]  # given what the table is of, and its rows
    is_signed: bool = False  # -1 is a number here, and not "not known"


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    name: str
    meaning: str  # of a row
    rows: Callable[[Any], Any]  # of a Run, or of Ranks
    fields: tuple[Field, ...]

    def columns(self, source: Any) -> list[Values]:
        """Those of a `Run`, or of `Ranks`, in the order of the fields."""
        rows = self.rows(source)
        return [field.values(source, rows) for field in self.fields]


def table(name: str, meaning: str, rows: Callable[[Any], Any], *fields: Field) -> Table:
    """A table of these fields."""
    return Table(name, meaning, rows, fields)


Of = Callable[[Any], Any]  # what a field says of a row; by default what the row calls so


def text(name: str, meaning: str, of: Of | None = None) -> Field:
    """A field of texts."""
    said = of or attrgetter(name)
    return Field(name, meaning, lambda _, rows: Texts.of(map(said, rows)))


def whole(name: str, meaning: str, of: Of | None = None, *, is_signed: bool = False) -> Field:
    """A field of whole numbers."""
    said = of or attrgetter(name)
    return Field(name, meaning, lambda _, rows: integers(map(said, rows)), is_signed)


def real(name: str, meaning: str, of: Of | None = None) -> Field:
    """A field of numbers; what is not finite is not known."""
    said = of or attrgetter(name)
    return Field(name, meaning, lambda _, rows: _reals(map(said, rows)))


def made(name: str, meaning: str, *, is_signed: bool = False) -> Field:
    """A field of a table whose rows are columns by name."""
    return Field(name, meaning, lambda _, columns: columns[name], is_signed)


def integers(values: Iterable[int]) -> NDArray[np.int64]:
    """Whole numbers as a column."""
    return np.array(list(values), np.int64)


def _reals(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array([float(x) if math.isfinite(x) else math.nan for x in values], np.float64)


def _step(at: str) -> Field:
    """The step of each row, by the time that it calls so."""
    when = attrgetter(at)
    return Field("step", _STEP, lambda run, rows: _step_of(run.timeline, integers(map(when, rows))))


def _spans(run: Run) -> dict[str, Values]:
    t = run.timeline
    nodes = run.whole.nodes
    node = np.where(t.node < len(nodes), t.node, -1).astype(np.int64)
    caller = np.where(t.node < len(run.callers), t.node, -1).astype(np.int64)
    known, place = (_by_caller(run), caller) if run.callers else (_by_node(nodes), node)
    return {
        "span": np.arange(len(t)),
        "lane": Texts(t.lane.astype(np.int64), t.lanes),
        "kind": Texts(t.kind.astype(np.int64), KINDS),
        "name": Texts(t.name.astype(np.int64), t.names),
        "start_ns": t.start_ns,
        "stop_ns": t.stop_ns,
        "length_ns": t.stop_ns - t.start_ns,
        "step": _step_of(t, t.start_ns),
        "segment": np.where(t.segment >= 0, t.segment, -1).astype(np.int64),
        "launch": np.where(t.segment < -1, -2 - t.segment.astype(np.int64), -1),
        "node": node,
        "op": _at(known["op"], place),
        "scope": _at(known["module"], place),
        "site": _at(known["site"], place),
        "caller": caller,
    }


def _at(known: Texts, places: NDArray[np.int64]) -> Texts:
    """A text for each place among the known; none for place -1."""
    return Texts(np.append(known.numbers, -1)[places], known.texts)


def _by_node(nodes: Sequence[Node]) -> dict[str, Texts]:
    """What is said of each node, as texts."""
    return {
        "op": Texts.of(n.op for n in nodes),
        "module": Texts.of(n.scope for n in nodes),
        "site": Texts.of(n.site for n in nodes),
    }


def _by_caller(run: Run) -> dict[str, Texts]:
    """What is said of each caller, as texts."""
    return {
        "op": Texts.of(c.op for c in run.callers),
        "module": Texts.of(_INSIDE.join(c.module) for c in run.callers),
        "site": Texts.of(c.site for c in run.callers),
    }


def _callers(run: Run) -> dict[str, Values]:
    charged, counts = charged_by_caller(run)
    costs = [call_cost(c) for c in run.callers]
    return {
        "caller": np.arange(len(run.callers)),
        **_by_caller(run),
        "annotation": Texts.of(_INSIDE.join(c.annotation) for c in run.callers),
        "shapes": Texts.of(c.shapes for c in run.callers),
        "phase": Texts.of("backward" if c.is_backward else "" for c in run.callers),
        "graph_node": integers(c.graph_node for c in run.callers),
        "calls": integers(c.calls for c in run.callers),
        "kernels": counts[:-1],
        "charged_ms": charged[:-1] / 1e6,
        "flops": _reals(cost.flops for cost in costs),
        "bytes_read": _reals(cost.bytes_read for cost in costs),
        "bytes_written": _reals(cost.bytes_written for cost in costs),
    }


def _step_of(t: Timeline, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """The step in which each instant lies, of several the one begun last; -1: in none."""
    steps = t.intervals(kind="step")  # in order: spans are sorted by their start
    if not len(steps):
        return np.full(len(at), -1, np.int64)
    edges = distinct(steps)
    owner = np.full(len(edges), -1, np.int64)  # from each edge to the next; after the last none
    for i, (first, end) in enumerate(np.searchsorted(edges, steps).tolist()):
        owner[first:end] = i
    found: NDArray[np.int64] = owner[np.searchsorted(edges, at, "right") - 1]
    return found


def _steps(run: Run) -> dict[str, Values]:
    t = run.timeline
    steps = np.flatnonzero(t.where(kind="step"))
    start, stop = t.start_ns[steps], t.stop_ns[steps]
    return {
        "step": np.arange(len(steps)),
        "name": Texts(t.name[steps].astype(np.int64), t.names),
        "lane": Texts(t.lane[steps].astype(np.int64), t.lanes),
        "start_ns": start,
        "stop_ns": stop,
        "length_ns": stop - start,
    }


def _of_callers(name: str, meaning: str, of: Callable[[Caller], str]) -> Field:
    """What the callers of a kernel say, each thing once; nothing where it has nodes."""

    def said(run: Run, row: KernelCost) -> str:
        texts = (of(run.callers[i]) for i in row.nodes) if run.callers else ()
        return "; ".join(dict.fromkeys(filter(None, texts)))

    return Field(name, meaning, lambda run, rows: Texts.of(said(run, row) for row in rows))


_STEP = "the step in whose time it begins, not the one that launched it; none outside"
_START = "its begin, from the start of the timeline"
_LENGTH = "from its begin to its end"
TABLES = (
    table(
        "spans",
        "something that ran on a lane, in a traced step or outside of all",
        _spans,
        made("span", "its number"),
        made("lane", "where it ran: host/main, device/0 stream 7, ..."),
        made("kind", "step, record, dispatch, wait, kernel, communication, callback, ..."),
        made("name", "of a kernel, an op, a phase, a step"),
        made("start_ns", _START, is_signed=True),
        made("stop_ns", "its end", is_signed=True),
        made("length_ns", _LENGTH),
        made("step", _STEP),
        made("segment", "of kit's own runs: which segment it is of"),
        made("launch", "of foreign traces: the same number for a call and what it launched"),
        made("node", "of the graph"),
        made("op", "of the node; without a graph the op that launched it"),
        made("scope", "the module of the op"),
        made("site", "the line of the op; of foreign traces where its function begins"),
        made("caller", "of native runs and foreign traces: its row in callers"),
    ),
    table(
        "kernels",
        "all runs of one kernel of one segment, in all traced steps together",
        kernel_table,
        text("name", "of the kernel", lambda r: r.kernel.name),
        whole("segment", "that it is of, if it is known", lambda r: r.kernel.segment),
        whole("runs", "how many there were", lambda r: r.kernel.count),
        real("total_ms", "in which at least one of them went on", lambda r: r.kernel.total_ms),
        real("mean_us", "of one run", lambda r: r.kernel.mean_us),
        real(
            "charged_ms",
            "its part of the time in which a kernel ran: these add up to it",
            lambda r: r.kernel.charged_ms,
        ),
        real("share", "charged_ms as a fraction of that time", lambda r: r.kernel.share),
        text("ops", "that it computes", lambda r: _SEVERAL.join(r.ops)),
        text("scopes", "their modules", lambda r: _SEVERAL.join(r.scopes)),
        text("sites", "their lines", lambda r: _SEVERAL.join(r.sites)),
        real("bytes_read", "a step, modelled from shapes; none without them"),
        real("bytes_written", "the same"),
        real("flops", "the same"),
        _of_callers(
            "annotations",
            "of foreign traces: in which it was launched",
            lambda c: _INSIDE.join(c.annotation),
        ),
        _of_callers(
            "shapes",
            "of native runs and foreign traces: the arrays that its ops were given",
            lambda c: c.shapes,
        ),
    ),
    table(
        "callers",
        "one way in which kernels without a graph were launched, as far as it is known",
        _callers,
        made("caller", "its number"),
        made("op", "the innermost around the launch"),
        made("module", "outermost first: Bert_0/Linear_3; of a gradient, of the op it is of"),
        made("annotation", "outermost first"),
        made("site", "the line; of foreign traces where its function begins"),
        made("shapes", "the arrays that the op was given"),
        made("phase", "backward; none: not known to be of a gradient"),
        made("graph_node", "of a CUDA graph"),
        made("calls", "of the op, in all traced steps"),
        made("kernels", "that they launched"),
        made("charged_ms", "their part of the time in which a kernel ran"),
        made("flops", "of one call, from shapes; none: not known"),
        made("bytes_read", "the same"),
        made("bytes_written", "the same"),
    ),
    table(
        "gaps",
        "time within the steps in which a device had nothing to do, for one reason",
        lambda run: idle_gaps(run.timeline),
        text("device", "that was idle", lambda gap: gap.lane),
        whole("start_ns", _START, is_signed=True),
        whole("stop_ns", "its end", is_signed=True),
        whole("length_ns", _LENGTH, lambda gap: gap.stop_ns - gap.start_ns),
        _step("start_ns"),
        text("cause", "sync point, host recording, dispatch, input, ..."),
        text("site", "the line to blame, if there is one"),
        text("note", "more about the cause"),
        whole("before", "the number of the kernel's span that ended the whole gap"),
    ),
    table(
        "lines",
        "a line of the program, and what it costs a step",
        line_costs,
        text("site", "train.py:41; none: no line is known"),
        real("recording_ms", "of the host, a step"),
        real("device_ms", "of the device, a step"),
        real(
            "wait_ms", "of the host for the device, a step: of untraced ones, where they are known"
        ),
        real("idle_ms", "of the device after these waits, a traced step"),
        real("elsewhere_ms", "of the host for something else, a step"),
        real("own_ms", "of the host, on code of the program's own between two ops, a step"),
        real("syncs", "sync points, a step"),
        text("causes", "of the sync points", lambda r: _SEVERAL.join(r.causes)),
    ),
    table(
        "syncs",
        "a point of the traced steps where the host waited for the device",
        lambda run: run.timeline.syncs,
        whole("at_ns", _START, is_signed=True),
        whole("wait_ns", "how long the host waited"),
        _step("at_ns"),
        text("cause", "item, copy to host, ..."),
        text("site", "the line of the program"),
        text("via", "the line of a library that it went through"),
    ),
    table(
        "pins",
        "a text that somebody pinned to a time",
        lambda run: run.pins,
        whole("at_ns", "its time, from the start of the timeline", is_signed=True),
        _step("at_ns"),
        text("text", "of the pin"),
    ),
    table(
        "steps",
        "a traced step",
        _steps,
        made("step", "its number"),
        made("name", "what it is called"),
        made("lane", "the thread that ran it"),
        made("start_ns", _START, is_signed=True),
        made("stop_ns", "its end", is_signed=True),
        made("length_ns", _LENGTH),
    ),
)
