"""What a session tells about itself: counters, explanations, the machine.

The counters have the names and the meaning that pytorch/xla's `metrics_report` gave them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax

from kit.ir import Graph, Segment
from kit.ir.graph import GraphDiff
from kit.ir.plan import OpStream
from kit.runs.bulk_sizes import sizes_from_environment
from kit.runs.compiles import Compile
from kit.runs.run import Fused
from kit.runtime.profiling.device_spans import profiled
from kit.runtime.profiling.freeze import freeze_step, freeze_trace, places_of
from kit.runtime.profiling.host_spans import Recorder
from kit.runtime.recording.bulk import Site
from kit.trace import SyncPoint, Timeline

if TYPE_CHECKING:
    from kit.runtime.recording.stream import Here
    from kit.runtime.session.executor import Executor
    from kit.runtime.steps.stepper import Stepper

__all__ = ["Inspection", "as_text", "metrics_report"]

# (name of pytorch/xla's metric, our count, our total, unit of the total)
_METRICS = (
    ("CompileTime", "compile.count", "compile.ns", "ms"),
    ("ExecuteTime", "execute.count", "execute.ns", "ms"),
    ("TransferToDevice", "transfer_to_device.count", "transfer_to_device.bytes", "KiB"),
    ("TransferFromDevice", "transfer_from_device.count", "transfer_from_device.bytes", "KiB"),
    ("SyncWait", "sync.count", "sync.ns", "ms"),
)
_SCALE = {"ms": 1e6, "KiB": 1024}


def metrics_report(
    metrics: Mapping[str, float], unlowered: Mapping[str, int], steps: int
) -> list[tuple[str, int, float, float, str]]:
    """Rows of (metric, samples, total, per step, unit); counters have no total.

    `UncachedCompile` counts programs that were compiled, `CachedCompile` those found in the cache,
    and each op that ran on the host is listed under its own name, as "aten::name".
    """
    rows = []
    for name, count, total, unit in _METRICS:
        amount = metrics.get(total, 0) / _SCALE[unit]
        rows.append((name, int(metrics.get(count, 0)), amount, amount / max(steps, 1), unit))
    for name, count in (("UncachedCompile", "cache.misses"), ("CachedCompile", "cache.hits")):
        rows.append((name, int(metrics.get(count, 0)), 0.0, 0.0, ""))
    for op, times in sorted(unlowered.items()):
        rows.append((op.replace("aten.", "aten::", 1), times, 0.0, 0.0, ""))
    return rows


def as_text(rows: list[tuple[str, int, float, float, str]]) -> str:
    """The rows as aligned lines."""
    lines = []
    for name, samples, total, per_step, unit in rows:
        line = f"{name:24}{samples:>8}"
        if unit:
            line += f"{total:>14.2f} {unit:4}{per_step:>12.3f} {unit} a step"
        lines.append(line)
    return "\n".join(lines)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """What a trace keeps makes Python's garbage collector stop everything for 0.2 s; not now."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Inspection:
    """The part of a session that only looks: every method may be called at any time."""

    _ahead: deque[Any]
    _counts: Counter[str]
    _executor: Executor
    _recorder: Recorder
    fused: tuple[Fused, ...] = ()  # of the last trace
    recorded_ns: tuple[int, ...] = ()  # when each node of the last trace's graph was recorded
    places: tuple[Site, ...] = ()  # the lines that recorded something in it, the most used first
    here: Here
    stream: Any
    sync_places: dict[Site, None]
    syncs: list[SyncPoint]
    wait_all: Callable[[], None]
    mark_step: Callable[[], None]
    is_planning: bool
    is_tracing: bool = False  # then each op is recorded with its time
    stepper: Stepper
    device: Any
    step: int
    unlowered: Counter[str]
    unlowered_ns: Counter[str]
    skeletons: dict[str, str]

    @property
    def compiles(self) -> tuple[Compile, ...]:
        """The compiles so far, each with its reason; the latest few hundred."""
        return tuple(self._executor.compiles.notes)

    def compile_diff(self, i: int = -1) -> GraphDiff:
        """How the graph changed before compile `i` of `compiles`; the last one unless told."""
        return self._executor.compiles.diff(i)

    def metrics_report(self) -> str:
        """The counters as text, with the meaning that they have in pytorch/xla."""
        return as_text(metrics_report(self.metrics(), self.unlowered, self.step))

    def explain(self) -> str:
        """What was recorded, how it was cut, and why each program was compiled, in words."""
        m = Counter({k: int(v) for k, v in self.metrics().items()})
        cuts = ", ".join(f"{m[k]} by {k[4:]}" for k in sorted(m) if k.startswith("cut."))
        lines = [
            f"{m['record.ops']} ops recorded, cut into {m['segment.count']} segments ({cuts})",
            f"{m['compile.count']} compiles ({m['compile.ns'] / 1e6:.0f} ms, "
            f"{m['compile.from_disk']} from disk), {m['cache.hits']} segments found in the cache",
            f"{m['sync.count']} sync points, {m['sync.ns'] / 1e6:.1f} ms waited",
        ]
        said = sizes_from_environment().origin
        environment = f"; in the environment: {said}" if said != "defaults" else ""
        lines.append(f"bulk sizes: {self.stream.sizes} ({self.stream.sizes.origin}{environment})")
        if m["check.count"]:
            again = f"{m['redo.count']} steps were taken back, {m['redo.segments']} segments again"
            lines.append(f"{m['check.count']} checks looked at a step later; {again}")
        lines += self.stepper.describe()
        lines += self._executor.compiles.explain()
        lines += [f"failed whole and ran op by op: {what}" for what in self._executor.recovered]
        for op, n in self.unlowered.most_common():
            ms = self.unlowered_ns[op] / 1e6
            lines.append(f"ran on the host, {n} times, {ms:.1f} ms: {op}")
        for name, skeleton in self.skeletons.items():
            lines += [f"a rule for {name} would begin:", *("  " + x for x in skeleton.splitlines())]
        return "\n".join(lines)

    def note_unlowered(self, name: str, site: str, ns: int, skeleton: str) -> None:
        """An op without a rule has run on the host."""
        key = f"{name} at {site}" if site else name
        self.unlowered[key] += 1
        self.unlowered_ns[key] += ns
        self.skeletons[name] = skeleton

    def note_replay(self, start: int) -> None:
        """A step was issued without being recorded."""
        self._recorder.add("replay", "plan", start, time.perf_counter_ns())

    def environment(self) -> dict[str, str]:
        """Device and versions, for the reader of a saved run."""
        return {
            "device": f"{self.device.platform} ({self.device.device_kind})",
            "jax": jax.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": str(os.cpu_count()),
            "cores for XLA": os.environ.get("NPROC", str(os.cpu_count())),
        }

    def metrics(self) -> dict[str, float]:
        """Counters since the session was opened; times in nanoseconds."""
        counts = {**self._counts, **self._executor.counts}
        counts.update(self.stepper.counts)
        counts.setdefault("segment.count", 0)
        counts["unlowered.count"] = sum(self.unlowered.values())
        return {name: float(counts[name]) for name in sorted(counts)}

    def overheads(self) -> dict[str, float]:
        """What one launch and one wait cost here and now, measured; nanoseconds.

        Keys: `overhead.launch_ns`, `overhead.sync_ns`, as in a run's metrics.
        """
        self.wait_all()
        launch, sync = self._executor.overheads()
        return {"overhead.launch_ns": float(launch), "overhead.sync_ns": float(sync)}

    @contextlib.contextmanager
    def span(self, kind: str, name: str, *, at_least_ns: int = 0) -> Iterator[None]:
        """Time something that the host does, such as preparing input, for the timeline."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            stop = time.perf_counter_ns()
            if stop - start >= at_least_ns:
                self._recorder.add(name, kind, start, stop, self.here.lane)

    def trace(
        self, steps: Callable[[Callable[[], None]], None], *, lead_in: int = 0
    ) -> tuple[Timeline, tuple[Graph, ...], tuple[Segment, ...]]:
        """Run steps under the profiler; give their timeline, and the graph and cuts of the first.

        `steps(end_step)` runs the steps and calls `end_step()` after each. The first `lead_in` of
        them only fill the pipeline: the timeline begins after them and ends with the last step.
        `fused` then says which nodes each kernel computes, `places` which lines were seen.
        """
        self.wait_all()
        recorder, executor = self._recorder, self._executor
        recorder.start(lead_in)
        self.stream.phase = ""
        executor.spans.clear()
        executor.is_tracing = self.is_tracing = True
        first_sync = len(self.syncs)
        with profiled() as profile, _no_collection():
            try:
                steps(recorder.end_step)
                recorder.stop()
                self.wait_all()
            finally:
                executor.is_tracing = self.is_tracing = False
                recorder.stop()
        spans = [*recorder.spans, *executor.spans]
        notes = self.stepper.describe()
        frozen = freeze_trace(recorder.tasks, spans, profile, self.syncs[first_sync:], notes)
        self.places = places_of(recorder.tasks, self.sync_places)
        self.forget_trace()
        self._ahead.clear()
        timeline, graphs, segments, self.fused, self.recorded_ns = frozen
        return timeline, graphs, segments

    def forget_trace(self) -> None:
        """Let go of what was collected in a trace."""
        for task, _ in self._recorder.tasks:
            task.origins = ()  # each names an older task, and so on
        self._recorder.clear()
        self._executor.spans.clear()

    def plan(self, step: Callable[[], Any], *, steps: int = 3) -> OpStream:
        """Record steps without running them; gives the ops of the last one, to be cut by `plan`.

        What a step reads must be computed all the same, and a note says where. Afterwards the
        session only holds what was recorded: nothing of it will run.
        """
        recorder, executor = self._recorder, self._executor
        executor.held, executor.is_tracing, self.is_planning = [], True, True
        for _ in range(steps):  # the first makes the optimizer's state
            recorder.start(0)
            first_sync = len(self.syncs)
            step()
            self.mark_step()
        recorder.stop()
        tasks = [task for task, _ in recorder.tasks]
        graph, segments, nodes = freeze_step(tasks)
        pairs = [(nodes[task.index], task.bulk) for task in tasks]
        calls = [ids[k] for ids, bulk in pairs for k in bulk.calls if k < len(ids)]
        views = [
            i for ids, bulk in pairs for i, op in zip(ids, bulk.ops, strict=True) if op.is_view
        ]
        notes = dict.fromkeys(
            f"{s.cause} at {s.site or 'an unknown line'} reads a value: what is before it was run"
            for s in self.syncs[first_sync:]
        )
        executor.held, executor.is_tracing = [], False
        executor.spans.clear()
        recorder.clear()
        self._ahead.clear()
        return OpStream.of(graph, segments, calls=calls, views=views, notes=notes)
