"""From costs to work: what the host, a worker and the device do in a step under some settings.

The host records, cuts and hands segments over; one worker launches them in order. Both run Python,
so both hold its lock. On a CPU the worker waits until its segment is done. A program may be one
step ahead of the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.ir import Graph, Node, Segment
from kit.ir.plan import SEGMENTS_AHEAD, STEPS_AHEAD
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import Costs
from kit.runs.whatif.waits import Waits
from kit.text import format_count
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.active import LOADER
from kit.trace.simulate import Work, simulate

__all__ = [
    "Shape",
    "accumulated",
    "device_times",
    "forward_size",
    "last_steps",
    "modelled",
    "step_ns",
]

SWITCH_NS = 5_000_000  # after so long Python lets another thread run
MOST_SWITCHES = 2_000  # of a step; a damaged file may say that one records for days
AGAIN = 0.3  # to issue a known segment again: of what the worker does for its arrays
STEPS = 5  # simulated; the first ones fill the pipeline
SHOWN = 2
_HOST, _WORKER, _DEVICE = "host/main", "host/worker", "device/0 modelled"
_PYTHON = "python"


@dataclass(frozen=True)
class Shape:
    """What a step does: its ops as they are cut, where the host waits, and how steps are issued.

    Attributes:
        device: nanoseconds of each segment's kernels.
        calls: nanoseconds of the host callbacks before them; empty if there are none.
        is_guessed: segments are issued before they are recorded, from the step before.
        prefetch: batches that the loader's queue holds.
        serial: the worker waits for each segment, as on a CPU.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    device: tuple[float, ...]
    waits: Waits = field(default_factory=dict)
    step_mode: str = "retrace"
    is_guessed: bool = False
    prefetch: int = 0
    serial: bool = True
    calls: tuple[float, ...] = ()

    @property
    def batches(self) -> int:
        """How many a step takes: one for each micro-batch."""
        return 1 + sum(s.cut == "micro-batch" for s in self.segments)


def device_times(
    graph: Graph,
    old: Sequence[Segment],
    new: Sequence[Segment],
    costs: Costs,
    repeated: Graph | None = None,
    sources: NDArray[np.intp] | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nanoseconds of each new segment in kernels and in callbacks, from the ops' in the old ones.

    What segments hand to each other is written and read, and costs time; inside one program it
    need not be. The new segments are of `repeated`, if given; `sources`: for each of its nodes, the
    node of `graph` that it repeats.
    """
    inner = np.array(costs.device, float)
    before = _handed(graph, old)
    for segment, size in zip(old, before, strict=True):
        nodes = np.array(segment.nodes, dtype=np.intp)
        whole = float(costs.device[nodes].sum())
        if whole > 0:
            rest = max(whole - costs.program - costs.border * size, 0.3 * whole)
            inner[nodes] *= rest / whole
    calls = inner * costs.called
    computed = inner - calls
    if sources is not None:
        calls, computed = calls[sources], computed[sources]
    device = tuple(
        float(computed[list(s.nodes)].sum()) + costs.program + costs.border * size
        for s, size in zip(new, _handed(repeated or graph, new), strict=True)
    )
    return device, tuple(float(calls[list(s.nodes)].sum()) for s in new) if calls.any() else ()


def _handed(graph: Graph, segments: Sequence[Segment]) -> list[float]:
    """Bytes that each segment reads from the others and writes for them."""
    home = {node: s.index for s in segments for node in s.nodes}
    sizes = dict.fromkeys((s.index for s in segments), 0.0)
    written = set()
    for s in segments:
        for i, k in s.reads:
            if i in home and home[i] < s.index:
                size = graph.nodes[i].avals[k].size_bytes
                sizes[s.index] += size
                if (i, k) not in written:
                    written.add((i, k))
                    sizes[home[i]] += size
    return [sizes[s.index] for s in segments]


def accumulated(graph: Graph, times: int) -> tuple[Graph, NDArray[np.intp], frozenset[int]]:
    """A step of so many micro-batches from one of a single one: all but the update, repeated.

    Gives the graph, for each of its nodes the one that it repeats, and the first op of each
    repetition. The gradients' sum is not in the graph; it costs little.

    Raises:
        SettingsError: the step goes on after its update.
    """
    update = {i for i in graph.ops if graph.nodes[i].phase == "update"}
    body = sorted({*range(len(graph))} - update)
    if any(j in update for i in body for j, _ in graph.nodes[i].inputs):
        raise SettingsError(
            "the step goes on after its update, so what of it another number of micro-batches "
            "would repeat is not known: measure it"
        )
    nodes: list[Node] = []
    sources: list[int] = []
    starts = []
    new: dict[int, int] = {}
    for copy in range(times):
        new = {}
        first = len(nodes)
        for i in body if copy < times - 1 else sorted({*body, *update}):
            new[i] = len(nodes)
            inputs = tuple((new[j], k) for j, k in graph.nodes[i].inputs)
            nodes.append(replace(graph.nodes[i], inputs=inputs))
            sources.append(i)
        if copy:
            starts.append(next(i for i in range(first, len(nodes)) if not nodes[i].is_variable))
    wanted = tuple((new[i], k) for i, k in graph.wanted)
    return Graph(tuple(nodes), wanted), np.array(sources, dtype=np.intp), frozenset(starts)


def forward_size(run: Run, wanted: Settings, views: Set[int], notes: list[str]) -> int:
    """Ops a segment of the forward pass: of one without gradients, `bulk_inference` says it.

    Raises:
        SettingsError: something else than these sizes has cut the forward pass of a training step.
    """
    sizes, own = wanted.bulk_in_force, run.settings.bulk_in_force.forward
    segments = [s for s in run.segments if s.phase == "forward"]
    largest = max((sum(i not in views for i in s.nodes) for s in segments), default=0)
    is_bulked, is_larger = run.settings.mode == "bulked", largest > 2 * own  # a call is cut nowhere
    if any(node.phase != "forward" for node in run.graphs[0].nodes if not node.is_variable):
        if is_bulked and is_larger:
            raise SettingsError(
                f"a segment of the run's forward pass holds {largest:,} ops, and bulk_forward says "
                f"{own:,}: it is of a kit.bulk scope, or of a part without gradients, and what "
                "another size makes of that is not known: measure it"
            )
        return sizes.forward
    if is_bulked and not is_larger and any(s.cut == "size" for s in segments):
        return sizes.forward
    notes.append("the step has a forward pass only, which is taken for one without gradients")
    return sizes.inference


def step_ns(shape: Shape, costs: Costs) -> float:
    """How long a steady step takes: from the end of one to the end of the next."""
    ends = _ends(*_simulated(shape, costs))
    return float(ends[-1] - ends[-1 - SHOWN]) / SHOWN


def modelled(shape: Shape, costs: Costs, notes: Sequence[str]) -> tuple[float, Timeline]:
    """What `step_ns` gives, and the last steps as a timeline of origin "modelled"."""
    spans, marks = _simulated(shape, costs)
    ends = _ends(spans, marks)[-1 - SHOWN :]
    shown = last_steps(spans, ends)
    known = {(k, _name(sync)): sync for k, syncs in shape.waits.items() for sync in syncs}
    syncs = [
        replace(known[s.segment, s.name], at_ns=s.start_ns, wait_ns=s.stop_ns - s.start_ns)
        for s in shown
        if s.kind == "wait"
    ]
    return (ends[-1] - ends[0]) / SHOWN, Timeline.of(shown, syncs, "modelled", notes)


def last_steps(spans: Sequence[Span], ends: Sequence[int]) -> list[Span]:
    """The steps that end there but the first, and what lies in them; times count from its end."""
    begin, end = ends[0], ends[-1]
    shown = [
        replace(s, start_ns=max(s.start_ns, begin) - begin, stop_ns=min(s.stop_ns, end) - begin)
        for s in spans
        if s.stop_ns > begin and s.start_ns < end and s.stop_ns > s.start_ns
    ]
    steps = [
        Span(_HOST, f"step {i}", "step", a - begin, b - begin)
        for i, (a, b) in enumerate(pairwise(ends))
    ]
    return [*steps, *shown]


def _simulated(shape: Shape, costs: Costs) -> tuple[list[Span], list[int]]:
    """All spans, and the place of each step's last one on the host.

    In a steady step the loader's queue is full at first if loading takes less than the step, else
    it is always empty. To fill or to empty it would take many steps.
    """
    spans, marks = _simulated_from(shape, costs, is_full=True)
    if not shape.prefetch:
        return spans, marks
    ends = _ends(spans, marks)
    loading = (costs.inputs + costs.inputs_away) * shape.batches
    if loading * SHOWN <= ends[-1] - ends[-1 - SHOWN]:
        return spans, marks
    return _simulated_from(shape, costs, is_full=False)


def _simulated_from(shape: Shape, costs: Costs, *, is_full: bool) -> tuple[list[Span], list[int]]:
    steps = _Steps(shape, costs, is_full=is_full)
    for _ in range(STEPS):
        steps.add()
    spans = simulate(steps.work)
    last = 0  # a wait is seen to begin when the host has nothing else to do
    for i, span in enumerate(spans):
        if span.lane == _HOST:
            if span.kind in ("wait", "ahead"):
                spans[i] = replace(span, start_ns=last)
            last = span.stop_ns
    return spans, steps.marks


def _name(sync: SyncPoint) -> str:
    return f"{sync.cause} at {sync.site}"


def _ends(spans: Sequence[Span], marks: Sequence[int]) -> list[int]:
    return [spans[i].stop_ns for i in marks]


class _Steps:
    """The work of some steps, one after the other.

    Args:
        is_full: the loader's queue is, when the first step begins.
    """

    def __init__(self, shape: Shape, costs: Costs, *, is_full: bool) -> None:
        self.work: list[Work] = []
        self.marks: list[int] = []  # the last work of each step on the host
        self._shape, self._costs = shape, costs
        self._done: list[int] = []  # the device work of each segment issued so far
        self._ends: list[int] = []  # of each step
        self._loaded: deque[int] = deque()  # the work that loads each batch that nobody has taken
        arrays = [costs.launch_value * (len(s.reads) + len(s.writes)) for s in shape.segments]
        self._launches = [costs.launch + ns for ns in arrays]
        self._again = [costs.sync + AGAIN * ns for ns in arrays]
        self._phases = [
            [
                (phase, len(list(ops)))
                for phase, ops in groupby(shape.graph.nodes[i].phase for i in s.nodes)
            ]
            for s in shape.segments
        ]
        recorded = (costs.record.get(phase, 0.0) * n for part in self._phases for phase, n in part)
        self._switch_ns = max(SWITCH_NS, round(sum(recorded) / MOST_SWITCHES))
        self._begin_loading(is_full=is_full)

    def add(self) -> None:
        """One more step."""
        mode = self._shape.step_mode
        if mode == "replay" and not self._shape.waits:
            self._replay()
        else:
            self._record(guessing=self._shape.is_guessed)
        ahead = self._ends[-STEPS_AHEAD:] if self._ends else []
        self._host("a step ahead of the device", "ahead", self._costs.sync, tuple(ahead))
        self.marks.append(len(self.work) - 1)
        self._ends.append(self._done[-1])

    def _record(self, *, guessing: bool) -> None:
        self._input()
        first = len(self._done)
        if guessing:
            self._guess(0)
        for k, segment in enumerate(self._shape.segments):
            took = 0.0
            for phase, ops in self._phases[k]:
                took += self._costs.record.get(phase, 0.0) * ops
                self._away(phase, ops)
                self._recorded(phase, self._costs.record.get(phase, 0.0) * ops)
            # A guessed segment has been issued before, so its cut wakes no worker.
            cut_ns = self._costs.cut if guessing else self._costs.cut_after(took)
            self._host(f"cut: {segment.cut}", "plan", cut_ns, self._room())
            if not guessing:
                self._issue(k)
            for sync in self._shape.waits.get(k, ()):
                after = (self._done[first + k],)
                self._host(_name(sync), "wait", self._costs.sync, after, k)
            if segment.cut == "micro-batch":
                self._input()
                if guessing:
                    self._guess(k + 1)

    def _replay(self) -> None:
        for _ in range(self._shape.batches):
            self._input()
        self._host("replay", "plan", self._costs.look)
        for k in range(len(self._shape.segments)):
            self._host("replay", "plan", self._again[k], self._room())
            self._issue(k)

    def _guess(self, first: int) -> None:
        """Issue the segments from here on whose inputs are there."""
        for k in range(first, len(self._shape.segments)):
            self._host("guess", "plan", self._again[k], self._room())
            self._issue(k)
            if self._shape.segments[k].cut == "micro-batch":
                return

    def _room(self) -> tuple[int, ...]:
        """The host may be only so many segments ahead."""
        return (self._done[-SEGMENTS_AHEAD],) if len(self._done) >= SEGMENTS_AHEAD else ()

    def _issue(self, k: int) -> None:
        handed = len(self.work) - 1
        before = (self._done[-1],) if self._done and self._shape.serial else ()
        segment = self._shape.segments[k]
        name = f"segment {k} ({format_count(len(segment.nodes), 'op')})"
        self._put(_WORKER, name, "dispatch", self._launches[k], (handed, *before), _PYTHON, k)
        if self._shape.calls and self._shape.calls[k]:
            called = self._shape.calls[k]
            self._put(_DEVICE, name, "callback", called, (len(self.work) - 1,), "", k)
        self._put(_DEVICE, name, "kernel", self._shape.device[k], (len(self.work) - 1,), "", k)
        self._done.append(len(self.work) - 1)

    def _input(self) -> None:
        """A batch: loaded by the host, or taken from the queue of a thread that loads ahead.

        With a batch in its hands that the queue has no room for, the thread waits: so it is ahead
        by one more than the queue holds, as `kit.measure.base.loading.prefetched` is.
        """
        if not self._shape.prefetch:
            self._load(_HOST, ())
            return
        self._host("next batch", "input", 0.0, (self._loaded.popleft(),))
        self._load(LOADER, (len(self.work) - 1,))
        self._loaded.append(len(self.work) - 1)

    def _begin_loading(self, *, is_full: bool) -> None:
        ahead = min(self._shape.prefetch, STEPS * self._shape.batches)  # more are never taken
        for _ in range(ahead + 1 if ahead else 0):
            if is_full:
                self._put(LOADER, "next batch", "input", 0.0)
            else:
                self._load(LOADER, ())
            self._loaded.append(len(self.work) - 1)

    def _load(self, lane: str, after: tuple[int, ...]) -> None:
        """Bring a batch; what Python does for it needs Python's lock."""
        self._put(lane, "next batch", "input", self._costs.inputs_away, after)
        self._put(lane, "next batch", "input", self._costs.inputs, after, _PYTHON)

    def _recorded(self, phase: str, ns: float) -> None:
        for left in range(round(ns), 0, -self._switch_ns):
            self._host(phase, "record", min(left, self._switch_ns))

    def _away(self, phase: str, ops: int) -> None:
        """A sleep, a file, a lock or code of the program's: the worker may run Python meanwhile."""
        if ns := self._costs.away.get(phase, 0.0) * ops:
            self._put(_HOST, "as in the measured run", "elsewhere", ns)

    def _host(
        self, name: str, kind: str, ns: float, after: tuple[int, ...] = (), k: int = -1
    ) -> None:
        self._put(_HOST, name, kind, ns, after, _PYTHON, k)

    def _put(self, lane: str, name: str, kind: str, ns: float, after: tuple[int, ...] = (),
             lock: str = "", k: int = -1) -> None:  # fmt: skip
        self.work.append(Work(lane, name, kind, round(ns), after, lock, k))
