"""Run a workload on device "kit" and measure it: the kit half of `experiment.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from kit.errors import SettingsError
from kit.ir.plan import OpStream
from kit.measure.base.allocator import memory_metrics, of_xla
from kit.measure.base.context import Context, Workload, as_workload
from kit.measure.base.loop import TRACED_STEPS, Pace, timed_steps, to_trace
from kit.measure.base.machine import Watch
from kit.measure.base.turns import CancelledFn, in_turn
from kit.measure.native.kineto import let_go
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import snippets_of
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.profiling.freeze import TracedSteps
from kit.runtime.recording.sites import format_site
from kit.runtime.session.session import Session
from kit.runtime.session.setup import Setup
from kit.shown import Progress
from kit.text import format_count
from kit.trace import SyncPoint, Timeline
from kit.trace.kinds import TRACE
from kit.trace.syncs import from_first

__all__ = ["LEAD_IN", "measure", "open_workload", "record_plan", "run_of_session"]

LEAD_IN = 2  # traced steps that only fill the pipeline


def measure(
    workload: Any,
    settings: Settings,
    *,
    progress: Progress | None = None,
    cancelled: CancelledFn | None = None,
    cache: ExecutableCache | None = None,
) -> Run:
    """Warm up, time steps untraced, `settings.steps` or enough, then trace three more.

    Runs that are given the same `cache` compile what they have in common once.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
    """
    chosen, watch = as_workload(workload), Watch()
    opened, context, versions = open_workload(chosen, settings, cache)
    with opened as session:
        allocated = of_xla(session.device)
        step = chosen(context())
        syncs = session.reads.follow()
        timed = timed_steps(
            lambda: session.run_step(step),
            settings,
            # `run_step` ends the steps
            Pace(session.wait_all, quiet=partial(watch.begin, cancelled), start=syncs.clear),
            progress=progress,
            cancelled=cancelled,
            source=step,
        )
        waits = tuple(syncs)
        metrics = memory_metrics(allocated, of_xla(session.device))
        metrics |= session.metrics() | session.overheads()
        if progress is not None:
            progress("tracing", 0.95)
        lead_in = LEAD_IN + settings.settling
        let_go()
        last = to_trace(lambda: session.run_step(step), settings)
        steps = _steps(last, lead_in + TRACED_STEPS, watch.end)
        with _loaders_noted(session, chosen):
            traced = session.trace(steps, lead_in=lead_in)
        timeline = traced.timeline
        notes = (*timed.notes, *_traced_text(timeline), *timeline.notes)
        traced = replace(traced, timeline=replace(timeline, notes=notes))
        _check_recorded(chosen, traced, timed.kept[0])
        return run_of_session(
            session,
            traced,
            settings=settings,
            losses=timed.losses,
            step_times_ns=tuple(timed.times),
            sync_points=waits,
            metrics=metrics,
            name=chosen.name,
            environment={**session.report.environment(), **versions},
            sources=snippets_of(traced.places, format_site, step=step),
            conditions=watch.conditions(timed.warmup),
        )


def _check_recorded(workload: Workload, traced: TracedSteps, loss: Any) -> None:
    """Refuse a step whose loss comes from jax alone."""
    if not isinstance(loss, jax.Array) or any(map(len, traced.graphs)):
        return
    mark = ', and mark the builder @kit.workload(framework="jax")'
    raise SettingsError(
        f"no op of {workload.name!r} ran on device kit: jax computed its step by itself. "
        "Give the function that jax.jit has compiled to kit.jax.step, and call that in the "
        f"step{'' if workload.framework == 'jax' else mark}"
    )


def run_of_session(
    session: Session, traced: TracedSteps, *, sync_points: Iterable[SyncPoint], **measured: Any
) -> Run:
    """A run of what a session traced and compiled; all other fields are given as they are."""
    return Run(
        sync_points=from_first(sync_points),
        timeline=traced.timeline,
        graphs=traced.graphs,
        segments=traced.segments,
        fused=traced.fused,
        recorded_ns=traced.recorded_ns,
        sorts=traced.sorts,
        compiles=session.compiles,
        changes=session.report.log.changes(),
        unlowered=dict(session.unlowered),
        **measured,
    )


@in_turn
def record_plan(workload: Any, settings: Settings) -> OpStream:
    """The ops of one steady step, recorded and not run: `kit.ir.plan.plan` cuts them."""
    chosen = as_workload(workload)
    # nothing but reads cuts it
    recorded = chosen.fit(settings).replace(mode="lazy", step_mode="retrace")
    opened, context, _ = open_workload(chosen, recorded, None)
    with opened as session:
        return session.plan(chosen(context()))


Opened = tuple[Session, Callable[[], Context], dict[str, str]]


def open_workload(
    workload: Workload,
    settings: Settings,
    cache: ExecutableCache | None,
    setup: Setup | None = None,
) -> Opened:
    """A session that is still to be entered, what makes the context in it, and versions to note."""
    if workload.framework == "jax":  # torch is not loaded for it
        from kit.jax.frontend import JaxFrontend
        from kit.measure.base.jax import JaxContext

        session = Session(settings, cache=cache, frontends=(JaxFrontend(),), setup=setup)
        return session, lambda: JaxContext(settings, "kit"), {}
    import torch

    from kit.torch.device import open_session

    def context() -> Context:
        torch.manual_seed(settings.seed)
        return Context(settings, "kit")

    opened = open_session(settings, cache=cache, setup=setup)
    return opened, context, {"torch": torch.__version__}


def _loaders_noted(session: Session, workload: Workload) -> AbstractContextManager[None]:
    if workload.framework == "jax":  # torch is not loaded for it
        return nullcontext()
    from kit.measure.native.loaders import batches_noted

    return batches_noted(session.tracer)


def _traced_text(timeline: Timeline) -> tuple[str, ...]:
    """A note, if jax ran functions in the traced steps to see their ops."""
    names = [name for name in timeline.names if name.startswith(TRACE)]
    if not names:
        return ()
    starts = np.concatenate([timeline.intervals(kind="lower", name=name)[:, 0] for name in names])
    steps = timeline.intervals(kind="step")
    count = len(set(np.searchsorted(steps[:, 1], starts, "right").tolist()))
    return (
        f"jax traced functions anew in {count} of the {format_count(len(steps), 'traced step')}, "
        f"such as {names[0].removeprefix(TRACE)}. A function is traced again where it is made anew "
        "(call kit.jax.step once, before the steps) or has arguments of another shape or dtype",
    )


def _steps(
    step: Callable[[], Any], count: int, then: Callable[[], object]
) -> Callable[[Callable[[], None]], None]:
    def run(end_step: Callable[[], None]) -> None:
        losses = []  # kept, as the measured loop does: a value that dies makes another program
        for _ in range(count):
            losses.append(step())
            end_step()
        then()  # before what they did is worked out, which takes as long

    return run
