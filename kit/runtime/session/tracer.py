"""Steps under the profiler, and steps that are only recorded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kit.ir.plan import OpStream
from kit.runtime.profiling.device_spans import profiled
from kit.runtime.profiling.elsewhere import looks, waits_of
from kit.runtime.profiling.freeze import TracedSteps, freeze_step, freeze_trace
from kit.runtime.profiling.own_code import own_code
from kit.runtime.recording.stream import CutPolicy
from kit.runtime.session.issuer import Issuer
from kit.runtime.session.reads import Reads
from kit.runtime.session.streams import ThreadStreams
from kit.runtime.steps.stepper import Stepper
from kit.threads import without_collection

__all__ = ["Tracer", "Tracing"]


@dataclass
class Tracing:
    """A trace that is on, and what it saw once it is over."""

    end_step: Callable[[], None]  # a step ends here and the next begins
    steps: TracedSteps | None = None


class Tracer:
    """Freezes what the parts of a session collect while a few steps run."""

    def __init__(
        self,
        policy: CutPolicy,
        issuer: Issuer,
        streams: ThreadStreams,
        stepper: Stepper,
        reads: Reads,
    ) -> None:
        self._policy = policy
        self._issuer = issuer
        self._streams = streams
        self._stepper = stepper
        self._reads = reads
        self._open: set[tuple[int, str, str]] = set()  # spans: thread, kind and name

    def trace(self, steps: Callable[[Callable[[], None]], None], *, lead_in: int) -> TracedSteps:
        """Run steps under the profiler; see `Session.trace`."""
        with self.tracing(lead_in=lead_in) as tracing:
            steps(tracing.end_step)
        assert tracing.steps is not None, "the block has ended without an error"
        return tracing.steps

    @contextlib.contextmanager
    def tracing(self, *, lead_in: int) -> Iterator[Tracing]:
        """Trace the steps of the block, each of which ends with a call of `end_step`."""
        reads, spans, executor = self._reads, self._issuer.spans, self._issuer.executor
        reads.wait_all()
        try:
            spans.start(lead_in)
            self._streams.current.phase = ""
            executor.spans.clear()
            executor.is_tracing = self._policy.is_tracing = True
            syncs = reads.follow()
            tracing = Tracing(spans.end_step)
            # What a trace keeps makes the garbage collector stop everything for 0.2 s.
            with profiled() as profile, without_collection():
                with looks() as seen:
                    yield tracing
                spans.stop()
                reads.wait_all()
            waited = waits_of(seen)
            known = [*spans.spans, *executor.spans, *(away.span for away in waited)]
            own = own_code((task for task, _ in spans.tasks), known, seen)
            tracing.steps = freeze_trace(
                spans.tasks,
                [*known, *(span for _, span in own)],
                profile,
                syncs,
                self._stepper.describe(),
                waited_at=[*reads.places, *(away.site for away in waited), *(s for s, _ in own)],
            )
        finally:
            self.forget()
            self._issuer.forget()

    @contextlib.contextmanager
    def span(self, kind: str, name: str, *, at_least_ns: int = 0) -> Iterator[None]:
        """A span of the thread that asks, for the time of the block."""
        start, key = time.perf_counter_ns(), (threading.get_ident(), kind, name)
        is_inner = key in self._open
        self._open.add(key)
        try:
            yield
        finally:
            if not is_inner:
                self._open.discard(key)
                self.note(kind, name, start, at_least_ns=at_least_ns)

    def note(self, kind: str, name: str, start_ns: int, *, at_least_ns: int = 0) -> None:
        """A span of the thread that asks, from then until now.

        Inside of an open one of its kind and name it is a part of that.
        """
        stop_ns = time.perf_counter_ns()
        is_inner = (threading.get_ident(), kind, name) in self._open
        if stop_ns - start_ns >= at_least_ns and not is_inner:
            self._issuer.spans.add(name, kind, start_ns, stop_ns, self._streams.here.lane)

    def forget(self) -> None:
        """Collect no more, and let go of what was collected."""
        spans, executor = self._issuer.spans, self._issuer.executor
        executor.is_tracing = self._policy.is_tracing = False
        spans.stop()
        for task, _ in spans.tasks:
            task.seen.origins = ()  # each names an older task, and so on
        spans.clear()
        executor.spans.clear()

    def plan(
        self, step: Callable[[], Any], end_step: Callable[[], None], *, steps: int
    ) -> OpStream:
        """Record steps without running them; see `Session.plan`."""
        spans, executor, syncs = self._issuer.spans, self._issuer.executor, self._reads.follow()
        try:
            executor.is_holding = executor.is_tracing = self._policy.is_planning = True
            for _ in range(steps):  # the first makes the optimizer's state
                spans.start(0)
                syncs.clear()
                step()
                end_step()
            tasks = [task for task, _ in spans.tasks]
            graph, segments, nodes = freeze_step(tasks)
        finally:
            executor.is_holding = self._policy.is_planning = False
            self._streams.end_plan()
            self.forget()
            self._issuer.forget()
        pairs = [(nodes[task.index], task.cut.bulk) for task in tasks]
        calls = [ids[k] for ids, bulk in pairs for k in bulk.calls if k < len(ids)]
        views = [
            i for ids, bulk in pairs for i, op in zip(ids, bulk.ops, strict=True) if op.is_view
        ]
        notes = dict.fromkeys(
            f"{s.cause} at {s.site or 'an unknown line'} reads a value: what is before it was run"
            for s in syncs
        )
        return OpStream.of(graph, segments, calls=calls, views=views, notes=notes)
