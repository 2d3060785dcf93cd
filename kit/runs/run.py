"""`Run`: what happened in one measured experiment, frozen; one file when saved.

A `Run` holds data only, so that a run recorded on a GPU opens on a laptop without torch or jax.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.ir import Graph, Segment
from kit.runs.compiles import FIRST_MEASURED, MOSTLY, Compile, GraphChange, MeasuredSteps
from kit.runs.conditions import (
    IN_TURNS,
    OF_OTHERS,
    UNKNOWN_CONDITIONS,
    Conditions,
    Unseen,
    doubt,
    outside_fraction,
    unseen,
)
from kit.runs.knob import knobs_of
from kit.runs.settings import GPUS, Settings
from kit.runs.sources import Snippet
from kit.runs.steady import drift_text, sorts_of_steps, unequal_text
from kit.text import format_count, format_ms, format_percent, safe_terminal
from kit.trace import (
    BreakdownRow,
    Headline,
    IdleRow,
    Limit,
    SyncPoint,
    SyncRow,
    Timeline,
    breakdown,
    headline,
    limit_shares,
    limited_by,
    named_fraction,
    sync_table,
)
from kit.trace.communication import CopyTotal
from kit.trace.gaps import Idle, idle_of
from kit.trace.imported import Caller, MeasuredMemory
from kit.trace.kernels import after_steps_fraction
from kit.trace.kinds import NOT_BEGUN
from kit.trace.limits import BUSY
from kit.trace.metrics import Together, says_host, union_ns, waits_of
from kit.trace.timeline import Pin, with_pin, without_pin

if TYPE_CHECKING:
    from kit.runs.tables.query import Answer
    from kit.runs.verdict.advice import Advice

__all__ = ["BASELINE", "EXPORTED_AS", "JIT", "KNOWN_FRACTION", "MEASURED_WAITS", "Fused",
           "Run"]  # fmt: skip

BASELINE, JIT = "baseline", "jax.jit"  # in the environment of a native run of jax
# Of a run that was opened from kit's own export: in its environment, and in its metrics.
EXPORTED_AS, KNOWN_FRACTION = "exported from origin", "exported.known_fraction"
MEASURED_WAITS = "exported.sync_points"  # how many: then they are those of its measured steps
_STRETCHED = 1.1  # so many times a measured step's length is that of a traced one


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel that computes several nodes; any other computes the one that its span names."""

    segment: int
    kernel: str  # its spans' name
    nodes: tuple[int, ...]  # of the graph, in order


@dataclass(frozen=True)
class Run:
    """One measured experiment. Times come from untraced steps, the timeline from traced ones.

    Units:
        step_times_ns in nanoseconds, one for each measured step; `step_ms` is their median.
    """

    settings: Settings
    losses: tuple[float, ...]  # of the first steps after the least warm-up
    step_times_ns: tuple[int, ...]  # untraced steps
    timeline: Timeline  # of `traced_steps` further steps; has one "step" span for each
    # Of the measured, untraced steps; in mode "torch", where only a trace sees them, of the traced.
    sync_points: tuple[SyncPoint, ...] = ()
    # Of the first traced step, then of one of each other sort; none in mode "torch".
    graphs: tuple[Graph, ...] = ()
    segments: tuple[Segment, ...] = ()  # how that step was cut
    metrics: Mapping[str, float] = field(default_factory=dict)  # counters, e.g. "compile.count"
    fused: tuple[Fused, ...] = ()  # kernels that compute several nodes
    unlowered: Mapping[str, int] = field(default_factory=dict)  # "aten.x at file:line" -> count
    compiles: tuple[Compile, ...] = ()  # up to the traced steps, each with its reason
    environment: Mapping[str, str] = field(default_factory=dict)  # versions, device, model
    name: str = ""  # the workload's name
    predicted_ms: float = 0.0  # what a model had said of `step_ms` before; 0: none was asked
    recorded_ns: tuple[int, ...] = ()  # when a traced step recorded each node first; -1: unknown
    sources: tuple[Snippet, ...] = ()  # the lines of the program that sites name
    label: str = ""  # what its user calls it beside others, e.g. "before"
    memory: tuple[MeasuredMemory, ...] = ()  # measured over the timeline, by torch's profiler
    copies: tuple[CopyTotal, ...] = ()  # of the timeline, where the trace says their bytes
    file: str = field(default="", compare=False)  # that it was read from; not saved
    conditions: Conditions = UNKNOWN_CONDITIONS  # what else the machine did meanwhile
    pins: tuple[Pin, ...] = ()  # what somebody wrote at times of the timeline
    callers: tuple[Caller, ...] = ()  # of kernels, where there is no graph: native, or foreign
    changes: tuple[GraphChange, ...] = ()  # what some of the recompiles changed, as graphs
    sorts: tuple[int, ...] = ()  # of each traced step the place of its graph; (): all are alike

    @cached_property
    def step_ms(self) -> float:
        """Median time of an untraced step, milliseconds; nan if no step was measured."""
        return float(np.median(self.step_times_ns)) / 1e6 if self.step_times_ns else math.nan

    @property
    def knows_waits(self) -> bool:
        """Has anybody looked for waits?

        Not in native steps without a trace, which alone sees their waits, nor in those of jax.jit:
        no hook tells what a program reads of an array of jax. A foreign trace may have no host.
        """
        is_jit = self.environment.get(BASELINE) == JIT
        is_traced = self.timeline.steps > 0 and not is_jit
        seen = is_traced or (len(self.sync_points) > 0 and len(self.step_times_ns) > 0)
        return (seen or self.sees_waits_untraced) and says_host(self.timeline)

    @property
    def sees_waits_untraced(self) -> bool:
        """Are `sync_points` those of the measured steps? A native run sees its traced ones only."""
        return self.settings.mode != "torch" or MEASURED_WAITS in self.metrics

    @property
    def measures_untraced(self) -> bool:
        """Are its measured steps other steps than its traced ones?

        Those of a foreign trace are the traced ones, and a model has none.
        """
        return self.traced_as in ("profiled", "recorded")

    @property
    def traced_as(self) -> str:
        """The timeline's origin; of a run that kit exported and opened, the one it had before."""
        return self.environment.get(EXPORTED_AS, self.timeline.origin)

    @cached_property
    def together(self) -> Together:
        """What goes on at the same time in the traced steps."""
        return Together(self.timeline)

    def breakdown(self) -> tuple[BreakdownRow, ...]:
        """Where the mean traced step went, by category; see `kit.trace.breakdown`."""
        return self._breakdown

    @cached_property
    def _breakdown(self) -> tuple[BreakdownRow, ...]:
        return breakdown(self.timeline, self.together).with_note(self.doubt)

    @cached_property
    def _idle(self) -> Idle:
        return idle_of(self.timeline)

    @property
    def idle(self) -> tuple[IdleRow, ...]:
        """Why and how long the devices were idle; see `kit.trace.idle_table`."""
        return self._idle.rows

    @property
    def idle_by_hta(self) -> Mapping[str, int]:
        """How long the devices were idle, nanoseconds by HTA's name of the cause."""
        return self._idle.by_hta

    @cached_property
    def limit_shares(self) -> Mapping[str, float]:
        """What part of the traced steps each limit has; see `kit.trace.limit_shares`."""
        return limit_shares(self.timeline, self._idle.causes, self.together)

    @property
    def not_begun_fraction(self) -> float:
        """The part of the traced steps in which devices held work that they did not begin."""
        lost = self._idle.causes.get(NOT_BEGUN, 0.0)
        return lost / union_ns(self.timeline.intervals(kind="step")) if lost else 0.0

    @cached_property
    def after_steps_fraction(self) -> float:
        """Of an imported trace; see `kit.trace.kernels.after_steps_fraction`."""
        return after_steps_fraction(self.timeline) if self.timeline.origin == "imported" else 0.0

    def headline(self) -> Headline:
        """Step time, busy and overlap fraction, waits; see `kit.trace.headline`.

        The busy fraction is that of a measured step where a GPU's traced ones are longer.
        """
        return self._headline

    @cached_property
    def _headline(self) -> Headline:
        part = self.busy_of_measured
        found = headline(self)
        return found if math.isnan(part) else replace(found, device_busy_fraction=part)

    @cached_property
    def sync_rows(self) -> tuple[SyncRow, ...]:
        """The waits that are told, by line, the dearest first; () where nobody looked for them."""
        told = waits_of(self)
        if not told.steps:
            return ()
        return sync_table(told.syncs, steps=told.steps, timeline=self.timeline)

    @cached_property
    def members(self) -> Mapping[tuple[int, str], tuple[int, ...]]:
        """`fused` by (segment, kernel): the nodes of each kernel that computes several."""
        return {(f.segment, f.kernel): f.nodes for f in self.fused}

    @cached_property
    def whole(self) -> Graph:
        """The graphs one after the other, as one: spans name its nodes."""
        return reduce(Graph.then, self.graphs) if self.graphs else Graph(())

    def nodes_of(self, segment: int, kernel: str, node: int = -1) -> tuple[int, ...]:
        """The nodes that a kernel computes: those fused into it, or the one that its span names.

        They are those of `whole`. An exported trace names nodes of a graph that it does not hold:
        those are left out.
        """
        known = sum(map(len, self.graphs))
        return self.members.get((segment, kernel), (node,) if 0 <= node < known else ())

    def caller(self, node: int) -> Caller | None:
        """What launched a kernel of a run without a graph: the number is its span's `node`."""
        return self.callers[node] if 0 <= node < len(self.callers) else None

    @property
    def known_fraction(self) -> float:
        """The part of the kernels' time that is known by op; nan where kernels have no ops."""
        if self.graphs and self.timeline.origin == "profiled":
            return named_fraction(self.timeline)
        return self.metrics.get(KNOWN_FRACTION, math.nan)

    @cached_property
    def measured(self) -> MeasuredSteps:
        """The measured steps: their times, and what was compiled in them."""
        warmup = self.conditions.warmup_steps  # nan in an old file, whose settings said it
        before = max(self.settings.warmup, 0) if math.isnan(warmup) else warmup
        first = self.metrics.get(FIRST_MEASURED, before)
        last = first + max(len(self.step_times_ns), 1)
        late = tuple(note for note in self.compiles if first <= note.step < last)
        traced = tuple(note for note in self.compiles if note.step >= last)
        return MeasuredSteps(
            self.step_times_ns, late, self.timeline, self.measures_untraced, self.metrics, traced
        )

    @cached_property
    def doubt(self) -> str:
        """Why what limits the step cannot be told from this run; "" if it can."""
        compiles = self.measured.compiled_fraction >= MOSTLY  # each step then has its own programs
        known = math.nan if compiles else self.known_fraction
        in_turns = IN_TURNS if OF_OTHERS in self.environment else ""
        outside = outside_fraction(self.timeline, self.environment)
        return in_turns or doubt(self.conditions, known, outside) or self.measured.unlike_text

    @property
    def drift(self) -> str:
        """How the measured steps still got faster or slower, in words; "" if they were steady."""
        return drift_text(self.step_times_ns)

    @property
    def devices(self) -> int:
        """How many devices have shared each step."""
        return max(int(self.metrics.get("parallel.devices", 1)), 1)

    @cached_property
    def busy_of_measured(self) -> float:
        """The part of a measured step that a GPU's kernels need, where traced steps are longer.

        A profiler makes the host slower, which has each launch noted, and not the kernels: so the
        device is less busy in the traced steps. nan where these are not longer, or did other work,
        and of a CPU.
        """
        is_on_gpu = self.environment.get("device", "").startswith(GPUS)
        if not is_on_gpu or unequal_text(self) or sorts_of_steps(self.timeline, self.sorts):
            return math.nan
        return self.measured.busy_fraction

    @property
    def is_stretched(self) -> bool:
        """Are the traced steps so much longer, and that by the profiler, that readers are told?"""
        return self.busy_of_measured >= 0 and self.traced_ms > _STRETCHED * self.step_ms

    @property
    def traced_ms(self) -> float:
        """The mean traced step."""
        return sum(row.exposed_ms for row in self._breakdown)

    def limited_by(self) -> Limit:
        """What keeps the traced steps from being faster; see `kit.trace.limited_by`.

        Where the measured steps spent most of their time on compiling, that is what limits them,
        and the device where its kernels fill them (`busy_of_measured`).
        Printed, it says no more than its doubt where there is one: that of the run, or that no
        kernel was seen.
        """
        found = limited_by(self.timeline, self.limit_shares)
        compiled = self.measured.compiled_fraction
        if compiled >= MOSTLY and found.what != "compile":
            return Limit("compile", compiled, self.doubt)
        if self.busy_of_measured >= BUSY:
            found = Limit("device", self.busy_of_measured)
        elif self.is_stretched:
            found = replace(found, of="traced step")
        return replace(found, doubt=self.doubt or self.unseen.why)

    @cached_property
    def unseen(self) -> Unseen:
        """Why its timeline does not tell what limits a step, and what to do about that."""
        not_begun, after = self.not_begun_fraction, self.after_steps_fraction
        return unseen(self.timeline, self.environment, not_begun=not_begun, after_steps=after)

    @cached_property
    def withheld(self) -> str:
        """Why neither what limits the step nor a cure is told of this run; "" if both can be."""
        return self.limited_by().doubt if self.breakdown() else self.doubt

    def advice(self) -> tuple[Advice, ...]:
        """What costs time, on which line, and its cure; see `kit.runs.verdict.advice`.

        It rests on the traced steps as they are: ask `withheld` whether these can be trusted.
        """
        return self._advice

    @cached_property
    def _advice(self) -> tuple[Advice, ...]:
        from kit.runs.verdict.advice import advise

        return advise(self)

    def to_markdown(self) -> str:
        """Headline, what limits the step, breakdown, lines, kernels, sync points, as Markdown."""
        from kit.runs.verdict.markdown import run_markdown

        return run_markdown(self)

    def query(self, sql: str) -> Answer:
        """What a `select` over the run's tables gives: `run.query("select name from spans")`.

        docs/query.md has the tables and some questions. Nothing but reading is allowed.

        Raises:
            QueryError: the question is wrong, does more than to read, or takes too long.
        """
        from kit.runs.tables.query import query

        return query(self, sql)

    def to_dataframe(self, table: str = "spans") -> Any:
        """One of these tables as a `pandas.DataFrame`, if pandas is installed.

        Raises:
            QueryError: there is no such table, or no pandas.
        """
        from kit.runs.tables.frame import dataframe

        return dataframe(self, table)

    def pin(self, at_ns: int, text: str) -> Run:
        """This run with a text at one time, on the clock of its spans; saved with it, and shown.

        Raises:
            TimelineError: there is no text, it is too long, or the run has too many.
        """
        return replace(self, pins=with_pin(self.pins, at_ns, text))

    def unpin(self, place: int) -> Run:
        """This run without one of its pins: the one at this place of `pins`.

        Raises:
            TimelineError: there is none at this place.
        """
        return replace(self, pins=without_pin(self.pins, place))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, atomically; an older file of this name is replaced.

        Raises:
            RunFileError: the run does not fit the limits of a file.
            OSError: the file cannot be written.
        """
        from kit.runs.saved.file import write_run

        write_run(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run that `save` wrote; nothing in the file is executed.

        Raises:
            RunFileError: the file is missing, damaged, foreign, too new or too large.
        """
        from kit.runs.saved.file import read_run

        return read_run(cls, path)

    def __repr__(self) -> str:
        h = self.headline()
        name = self.name if len(self.name) <= 60 else f"{self.name[:59]}…"
        untraced = (n for n in self.timeline.notes if n.startswith("no step was traced"))
        said = self.doubt or safe_terminal(next(untraced, ""), 300) or self.measured.compiled_text
        doubt = f"; {said}" if said else ""
        return (
            f"Run({name!r}, {self._chosen()}, {format_ms(h.step_ms)}/step, "
            f"device busy {format_percent(h.device_busy_fraction)}, "
            f"recording hidden {format_percent(h.overlap_fraction)}, "
            f"{format_count(h.syncs_per_step, 'sync')}/step{doubt})"
        )

    def _chosen(self) -> str:
        """The mode, and what else differs from kit's defaults: it tells runs of a sweep apart."""
        s = self.settings
        rows = (row for row in knobs_of(s) if not row.is_measuring and row.name != "mode")
        others = ((row.name, getattr(s, row.name), row.default) for row in rows)
        changed = [f"{name} {value!r}" for name, value, default in others if value != default]
        return ", ".join([f"mode {s.mode!r}", *changed])
