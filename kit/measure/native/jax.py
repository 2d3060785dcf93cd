"""The baseline of a jax workload: the same step by jax.jit, with no session of kit.

`kit.jax.step(fn)` is `jax.jit(fn)` where no session is open, so the builder needs no change. As
on device "kit", the host may be one step ahead of the device; a step's time is from one such
place to the next.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from threading import get_ident
from typing import Any

import jax
import numpy as np

from kit.ir.plan import STEPS_AHEAD
from kit.measure.base.allocator import memory_metrics, of_xla
from kit.measure.base.context import as_workload
from kit.measure.base.jax import JaxContext
from kit.measure.base.loop import TRACED_STEPS, Pace, timed_steps, to_trace
from kit.measure.base.machine import Watch
from kit.measure.base.turns import CancelledFn
from kit.measure.native.kineto import let_go
from kit.runs.run import BASELINE, JIT, Run
from kit.runs.settings import Settings
from kit.runs.sources import snippets_of
from kit.runtime.profiling.device_spans import profiled
from kit.runtime.profiling.devices import pick_device
from kit.runtime.profiling.elsewhere import Look, blocked_of, looks, moved
from kit.runtime.profiling.freeze import freeze_trace
from kit.runtime.recording.sites import format_site
from kit.shown import Progress
from kit.text import format_count
from kit.trace import Span, Timeline
from kit.trace.intervals import common, joined, without
from kit.trace.kinds import ON_DEVICE

__all__ = ["measure"]

_READ = "a read of a value"
UNSEEN = "what the program reads is not seen: jax.jit has no hook for it"
_COMPILING = {  # what jax tells of as it ends -> a name and a kind of span
    "/jax/core/compile/jaxpr_trace_duration": ("trace", "lower"),
    "/jax/core/compile/jaxpr_to_mlir_module_duration": ("lower", "lower"),
    "/jax/core/compile/backend_compile_duration": ("compile", "compile"),
}


def measure(workload: Any, settings: Settings, *, progress: Progress | None = None,
            cancelled: CancelledFn | None = None) -> Run:  # fmt: skip
    """Warm up, time steps untraced, `settings.steps` or enough, then profile three more.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: a GPU was asked for and jax sees none.
    """
    chosen, watch = as_workload(workload), Watch()
    device = pick_device(settings.device)
    allocated = of_xla(device)
    seen = _Seen()
    loading = partial(seen.span, kind="input")
    with (
        jax.default_device(device),
        contextlib.closing(JaxContext(settings, device.platform, loading)) as context,
        seen.compiles(),
    ):
        step = chosen(context)
        paced = _Paced(step, seen)
        timed = timed_steps(
            paced.run,
            settings,
            Pace(paced.finish, paced.mark, quiet=lambda: watch.begin(cancelled)),
            progress=progress,
            cancelled=cancelled,
            source=step,
        )
        metrics = memory_metrics(allocated, of_xla(device))
        notes = (*timed.notes, *_compiled_text(paced.compiled[-len(timed.times) :]))
        if progress is not None:
            progress("tracing", 0.95)
        last = to_trace(paced.run, settings)
        timeline = _trace(paced, last, settings.settling, watch.end)
        return Run(
            settings=settings,
            losses=timed.losses,
            step_times_ns=tuple(timed.times),
            timeline=replace(timeline, notes=(*notes, *timeline.notes)),
            metrics=metrics,
            environment=_environment(device),
            name=chosen.name,
            sources=snippets_of((), format_site, step=step),
            conditions=watch.conditions(timed.warmup),
        )


class _Seen:
    """What the host did, as spans; kept while steps are traced.

    Attributes:
        compiled: programs that XLA has compiled for this thread.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.is_kept = False
        self.compiled = 0
        self._thread = get_ident()

    @contextlib.contextmanager
    def span(self, name: str, kind: str) -> Iterator[None]:
        """What the block does."""
        start = time.perf_counter_ns()
        yield
        if self.is_kept:
            self.spans.append(Span("host/main", name, kind, start, time.perf_counter_ns()))

    @contextlib.contextmanager
    def compiles(self) -> Iterator[None]:
        """While the block runs, what jax traces and compiles is seen."""
        jax.monitoring.register_event_duration_secs_listener(self._note)
        try:
            yield
        finally:
            with contextlib.suppress(AssertionError, ValueError):  # the program has cleared all
                jax.monitoring.unregister_event_duration_listener(self._note)

    def _note(self, event: str, duration_secs: float, **_: Any) -> None:
        if event not in _COMPILING or get_ident() != self._thread:
            return
        name, kind = _COMPILING[event]
        self.compiled += kind == "compile"
        if self.is_kept:
            stop = time.perf_counter_ns()
            self.spans.append(Span("host/main", name, kind, stop - int(duration_secs * 1e9), stop))


class _Paced:
    """The step, with the host at most `STEPS_AHEAD` steps ahead of the device.

    Attributes:
        compiled: of each step, how many programs XLA compiled in it.
    """

    def __init__(self, step: Callable[[], Any], seen: _Seen) -> None:
        self._step = step
        self._results: deque[Any] = deque()
        self.seen = seen
        self.compiled: list[int] = []

    def run(self) -> Any:
        """One step; its result may still be on its way."""
        before = self.seen.compiled
        with self.seen.span("the step's Python, and jax.jit's dispatch", "dispatch"):
            result = self._step()
            self._results.append(result)
        self.compiled.append(self.seen.compiled - before)
        return result

    def mark(self) -> None:
        """The step ends: wait until the one before has run."""
        with self.seen.span("a step ahead of the device", "ahead"):
            while len(self._results) > STEPS_AHEAD:
                jax.block_until_ready(self._results.popleft())

    def finish(self) -> None:
        """Wait for everything, the new state included."""
        with self.seen.span("the end", "ahead"):
            self._results.clear()
            jax.block_until_ready(jax.live_arrays())


def _trace(
    paced: _Paced, step: Callable[[], Any], settling: int, then: Callable[[], object]
) -> Timeline:
    paced.finish()
    paced.seen.is_kept = True
    steps = []
    let_go()
    with profiled() as profile, looks() as looked:
        for _ in range(settling):
            step()
            paced.mark()
        for i in range(TRACED_STEPS):
            start = time.perf_counter_ns()
            step()
            paced.mark()
            if i == TRACED_STEPS - 1:
                paced.finish()
            steps.append(Span("host/main", f"step {i}", "step", start, time.perf_counter_ns()))
        then()  # before what they did is worked out, which takes as long
    found = freeze_trace([], [*steps, *paced.seen.spans], profile, (), [UNSEEN]).timeline
    zero = steps[0].start_ns
    return _with_waits(found, [moved(look, -zero) for look in looked])


def _with_waits(timeline: Timeline, looked: Sequence[Look]) -> Timeline:
    """What of the step's Python was a batch, a compile, a sleep, a file or a lock, and no dispatch.

    A program that reads a value waits for the device, between its kernels, too.
    """
    reads = joined(
        np.array(
            [(a.at_ns, b.at_ns) for a, b in pairwise(looked) if a.in_read and b.in_read], np.int64
        ).reshape(-1, 2)
    )
    compiling = [timeline.intervals(kind=kind) for kind in ("lower", "compile")]
    waiting = [timeline.intervals(kind=kind) for kind in (*ON_DEVICE, "ahead")]
    known = np.concatenate([*waiting, *compiling])
    away = [a.span for a in blocked_of(looked, known) if a.start_ns >= 0]
    slept = np.array([(a.start_ns, a.stop_ns) for a in away], np.int64).reshape(-1, 2)
    cut = np.concatenate([slept, reads, timeline.intervals(kind="input"), *compiling])
    if not len(cut):
        return timeline
    spans: list[Span] = []
    for span in timeline.spans:
        if span.kind != "dispatch":
            spans.append(span)
            continue
        whole = np.array([[span.start_ns, span.stop_ns]], np.int64)
        parts = without(whole, cut).tolist()
        spans += [replace(span, start_ns=start, stop_ns=stop) for start, stop in parts]
        spans += [Span(span.lane, _READ, "ahead", *ends) for ends in common(whole, reads).tolist()]
    return Timeline.of([*spans, *away], timeline.syncs, timeline.origin, timeline.notes)


def _compiled_text(compiled: Sequence[int]) -> tuple[str, ...]:
    """A note, if XLA compiled in the measured steps."""
    count = sum(map(bool, compiled))
    if not count:
        return ()
    return (
        f"XLA compiled in {count} of the {format_count(len(compiled), 'measured step')}, "
        f"{format_count(sum(compiled), 'program')} in all: with a new shape or dtype, jax.jit "
        "traces and compiles a function again, as it does a function that is made anew",
    )


def _environment(device: Any) -> dict[str, str]:
    return {
        BASELINE: JIT,
        "device": f"{device.platform} ({device.device_kind})",
        "jax": jax.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
