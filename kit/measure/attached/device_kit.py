"""Records the steps of a loop on device kit, in the session that is open around it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

import torch

from kit.measure.attached.recorder import EXPLICIT, Recorded
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.base.ready import ReadyBatches
from kit.measure.kit_run import LEAD_IN, run_of_session
from kit.measure.native.kineto import let_go
from kit.measure.native.loaders import batches_noted
from kit.runs.compiles import FIRST_MEASURED
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import snippets_of
from kit.runtime.profiling.freeze import TracedSteps
from kit.runtime.recording.sites import format_site
from kit.runtime.session.session import Session, current_session
from kit.runtime.session.tracer import Tracing
from kit.torch.trainers import LibrarySteps
from kit.trace import SyncPoint, Timeline

__all__ = ["KitRecorder", "StepMarks"]


class StepMarks:
    """Ends the session's steps where the loop ends its own, unless the program does so itself.

    A loop that goes on after its watch was closed needs them as before: in mode "lazy" a step that
    nothing ends becomes one program without a bound. Of several in a session the newest ends them.
    """

    _newest: ClassVar[WeakKeyDictionary[Session, ref[StepMarks]]] = WeakKeyDictionary()

    def __init__(self, session: Session) -> None:
        self._session = session
        self._others = LibrarySteps.of(session)
        self._others.watch()
        has_ended = session in self._newest or self._others.has_ended(session)
        self._step = None if has_ended else self._now
        self._newest[session] = ref(self)

    @property
    def is_needed(self) -> bool:
        """Does the session go on, without others that end its steps?"""
        return self._session.is_open and self._newest[self._session]() is self

    def end_step(self) -> None:
        """A step of the loop has ended."""
        is_here = current_session() is self._session  # and not one inside, with steps of its own
        if is_here and self.is_needed and self._now == self._step:
            self._session.mark_step()
        self._step = self._now

    @property
    def _now(self) -> int:
        """The session's step, without those that its own evaluations have ended."""
        return self._session.step - self._others.evaluated


class KitRecorder:
    """By the session's own tracing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waits = session.reads.follow()
        self._last_sync = 0
        self._first = session.step  # the first measured one, counted as `Compile.step` is
        self._syncs: tuple[SyncPoint, ...] | None = None  # of the measured steps, once over
        self._metrics: dict[str, float] = {}
        self._open = contextlib.ExitStack()
        self._tracing: Tracing | None = None
        self._traced = 0

    @property
    def trace_length(self) -> int:
        """With the steps that only fill the pipeline."""
        return LEAD_IN + TRACED_STEPS

    def begin_clock(self) -> None:
        """From here on the steps count, and what they wait for."""
        self._session.wait_all()
        self._waits.clear()
        self._last_sync = 0
        self._first = self._session.step

    def tick(self, is_last: bool, loss: Any) -> None:
        """A step has ended; what still runs belongs to the last one."""
        if is_last:
            self._session.wait_all()
        self._last_sync = len(self._waits)

    def begin_trace(self, ready: ReadyBatches) -> None:
        """The steps from now on are traced; the first ones only fill the pipeline."""
        self._note_measured()
        let_go()
        tracer = self._session.tracer
        self._tracing = self._open.enter_context(tracer.tracing(lead_in=LEAD_IN))
        self._open.enter_context(batches_noted(tracer))

    def trace_step(self) -> bool:
        """One more step has ended."""
        assert self._tracing is not None, "a trace has begun"
        self._tracing.end_step()
        self._traced += 1
        return self._traced == LEAD_IN + TRACED_STEPS

    def end_trace(self) -> None:
        """What was traced until now is kept."""
        self._open.close()
        if self._syncs is None:
            self._note_measured()

    def make_run(self, recorded: Recorded) -> Run:
        """The run of what was recorded."""
        session = self._session
        syncs, metrics = self._syncs, self._metrics
        if syncs is None:  # it goes on
            syncs, metrics = tuple(self._waits[: self._last_sync]), session.metrics()
        losses = recorded.kept_losses()
        traced = (self._tracing and self._tracing.steps) or TracedSteps(
            Timeline.of([], [], "recorded"), (), ()
        )
        notes = (*recorded.all_notes, *self._of_replay(recorded), *traced.timeline.notes)
        traced = replace(traced, timeline=replace(traced.timeline, notes=notes))
        steps = recorded.steps
        return run_of_session(
            session,
            traced,
            settings=session.settings.replace(
                **{row.name: row.default for row in knobs_of(Settings) if row.is_of_builders},
                steps=max(len(steps), 1),
                warmup=len(recorded.warming) if recorded.times else 0,
                step_mode=session.settings.step_mode if session.stepper.has_run else "retrace",
            ),
            losses=losses,
            step_times_ns=tuple(steps),
            sync_points=syncs,
            metrics={**metrics, FIRST_MEASURED: float(self._first)},
            name=recorded.name,
            environment={
                **session.report.environment(),
                "torch": torch.__version__,
                **recorded.environment,
            },
            sources=snippets_of([recorded.site, *traced.places], format_site),
            conditions=recorded.conditions,
        )

    def _of_replay(self, recorded: Recorded) -> list[str]:
        """That an optimizer is not called in a replayed step, which then ends none here."""
        is_explicit = recorded.boundary.startswith(EXPLICIT)
        if is_explicit or not self._session.stepper.counts["replay.steps"]:
            return []
        return [
            "a replayed step calls no optimizer, so that it was not seen here: end each step with "
            f"{EXPLICIT}"
        ]

    def _note_measured(self) -> None:
        session = self._session
        self._metrics = session.metrics() | session.overheads()
        self._syncs = tuple(self._waits[: self._last_sync])
        self._waits = []
