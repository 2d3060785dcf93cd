"""One recording of a loop's steps: warm up, time, trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kit.errors import SettingsError, is_a, is_of_handler, named, suppressed
from kit.measure.attached.recorder import EXPLICIT, FAILED, Recorded, Recorder
from kit.measure.base.machine import Watch as MachineWatch
from kit.measure.base.provenance import provenance
from kit.measure.base.ranks import ranks_of_job
from kit.measure.base.ready import MOST_EMPTYING, MOST_LEAD_IN, ReadyBatches, used_up_text
from kit.runs.run import Run
from kit.runs.steady import MOST_WARMUP, WINDOW
from kit.runtime.recording.sites import format_site, here
from kit.text import check_whole_number, format_count

__all__ = ["Recording", "Wanted", "is_of_a_worker", "is_the_loops"]

_ENDED_IN_TRACE = (
    "the recording ended while steps were traced: the timeline has those that were whole, or none"
)
LEAST = 2  # measured steps that a recording is worth asking for


class Wanted:
    """What `start` asks for, and when."""

    def __init__(self, steps: int, skip: int | None) -> None:
        for what, number, least in (("steps", steps, 1), ("skip", skip, 0)):
            if number is not None:
                check_whole_number(SettingsError, f"{what} of a watch", number, at_least=least)
        self.steps, self.skip, self.asked_ns = steps, skip, time.perf_counter_ns()
        if skip is None and ranks_of_job() > 1:
            self.skip = MOST_WARMUP  # that all ranks record the same steps


class Recording:
    """One recording: warm up, time, trace; each `end_step` is the end of one step."""

    def __init__(
        self,
        recorded: Recorded,
        recorder: Recorder,
        wanted: Wanted,
        strangers: Iterable[threading.Thread],
    ) -> None:
        self.recorded = recorded
        self.thread = threading.current_thread()
        self.count = 0  # steps that have ended
        self.is_over = False
        self._recorder = recorder
        self._wanted = wanted
        self._machine = MachineWatch(strangers)
        self._ready = ReadyBatches()
        self._is_tracing = False
        self._has_clock = False
        if self._is_warm():
            self._begin_clock()
        else:
            recorder.begin_clock()
        self.others = 0  # steps of other threads since this one's last
        self._beside: dict[int, tuple[str, int]] = {}  # by id: other optimizers, and their steps
        self._before = time.perf_counter_ns()

    def end_step(self, loss: Any) -> None:
        """One step has ended: note it, and prepare the next."""
        self.count += 1
        self.recorded.of_others += self.others
        self.others = 0
        if self._is_tracing:
            self._trace(self._recorder.trace_step)
        else:
            is_last = self._has_clock and len(self.recorded.times) == self._wanted.steps - 1
            self._recorder.tick(is_last, loss)
            took = time.perf_counter_ns() - self._before
            self._ready.note()
            if self._has_clock:
                self._measured(took, loss)
            else:
                self.recorded.warming.append(took)
                if self._is_warm():
                    self._begin_clock()
        self._before = time.perf_counter_ns()

    def step_beside(self, optimizer: Any) -> None:
        """Another optimizer than the one that ends the steps has made one within this step."""
        name, count = self._beside.get(id(optimizer), ("", 0))
        name = name or f"{type(optimizer).__name__}.step(), {format_site(here())}"
        self._beside[id(optimizer)] = name, count + 1

    def close(self, why: str) -> str:
        """Record no more; gives why it ended, in words. A second call changes nothing."""
        if self.recorded.ended:
            return self.recorded.ended
        if self._has_clock and self.recorded.usage is None:
            self.recorded.usage = self._machine.end()  # before what was traced is worked out
            self._note_used_up()
        try:
            self._recorder.end_trace()
        except BaseException as error:
            with suppressed(Exception):  # the first error is told, and the run is kept
                self._recorder.end_trace()  # an error in the middle must not leave a profiler on
            if not is_a(error, Exception) or is_the_loops(error):
                raise
            self.recorded.notes.append(f"what the profiler saw is lost: {named(error)}")
        if not self._is_tracing and self.count and not why.startswith(FAILED):
            self.recorded.notes.append(self._too_short())
        if others := self.recorded.of_others:
            self.recorded.notes.append(
                f"other threads made {format_count(others, 'step')} of this loop meanwhile: a step "
                "here is the time from one of this thread's to its next, with theirs in between. "
                "Have one thread make all of them to record that"
            )
        self.recorded.notes += self._notes_of_beside()
        if self._is_tracing and not self.is_over:
            self.recorded.notes.append(_ENDED_IN_TRACE)
        self.recorded.ended = f"{why or 'complete'}: {self.said}"
        return self.recorded.ended

    @property
    def said(self) -> str:
        """How far it is, in words."""
        return f"measured {len(self.recorded.times)} of {format_count(self._wanted.steps, 'step')}"

    @property
    def enough(self) -> int:
        """Steps of the loop that are enough for all that is wanted, with the first one."""
        skip = self._most_warmup if self._wanted.skip is None else self._wanted.skip
        lead_in = MOST_LEAD_IN * any(self._ready.counts)
        return 1 + skip + self._wanted.steps + self._recorder.trace_length + lead_in

    @property
    def _most_warmup(self) -> int:
        return MOST_EMPTYING if any(self._ready.counts) else MOST_WARMUP

    def run_so_far(self) -> Run:
        """The steps that have ended; may be asked for while the loop runs in another thread."""
        so_far = replace(
            self.recorded,
            warming=list(self.recorded.warming),
            times=list(self.recorded.times),
            losses=[],
            ended="it goes on",
        )
        return self._recorder.make_run(so_far)

    def finished(self) -> Run:
        """The run of a recording that was closed."""
        made = self._recorder.make_run(self.recorded)
        return replace(made, environment={**made.environment, **provenance()})

    def _too_short(self) -> str:
        """Why no step was traced, and what to ask for instead."""
        steps, skip, tail = self._wanted.steps, self._wanted.skip, self._recorder.trace_length
        ended = self.count + 1  # a recording begins after a first step
        warm = f"{WINDOW} to {self._most_warmup}" if skip is None else f"{skip}"
        said = (
            f"no step was traced: the recording ended after {format_count(ended, 'step')}, and "
            f"needs {warm} to warm up, {steps} to measure and {tail} to trace. {self.enough} are "
            "enough"
        )
        left = self.count - tail
        if left < LEAST:
            return said
        fewer = min(2, left - LEAST)
        rest = left - fewer
        return (
            f"{said}; so are these with skip={fewer}, steps={rest} (--skip {fewer} --steps {rest})"
        )

    def _notes_of_beside(self) -> list[str]:
        """Of a GAN, say: that a step here has several of another optimizer's."""
        often = {name: round(count / max(self.count, 1)) for name, count in self._beside.values()}
        return [
            f"within each step, which ends at {self.recorded.boundary}, another optimizer makes "
            f"{count}: {name}. If that one ends a step for you, call {EXPLICIT} there"
            for name, count in often.items()
            if count > 1
        ]

    def _note_used_up(self) -> None:
        before, times = len(self.recorded.warming), self.recorded.times
        counts = self._ready.counts[max(before - 1, 0) : before + len(times)]
        if said := used_up_text(counts, times):
            self.recorded.notes.append(said)

    def _is_warm(self) -> bool:
        return self._ready.is_warm(self.recorded.warming, self._wanted.skip)

    def _measured(self, took: int, loss: Any) -> None:
        self.recorded.times.append(took)
        if loss is not None:
            self.recorded.losses.append(loss)
        if len(self.recorded.times) == self._wanted.steps:
            self._is_tracing = True
            if ranks_of_job() == 1:  # else all lead in equally long, and trace the same steps
                self._ready.end_measured(self._wanted.steps)
            self._trace(lambda: self._recorder.begin_trace(self._ready))

    def _begin_clock(self) -> None:
        self._machine.begin()
        self._recorder.begin_clock()
        self._has_clock = True

    def _trace(self, do: Callable[[], bool | None]) -> None:
        """Begin to trace, or go on; true: no more steps are needed."""
        try:
            self.is_over = bool(do())
        except Exception as error:
            if is_the_loops(error):
                raise
            self.recorded.notes.append(f"no step was traced: {error}")
            self.is_over = True


def is_the_loops(error: BaseException) -> bool:
    """Is it none of the recording's? Torch and handlers of signals raise in whatever line runs."""
    return is_of_a_worker(error) or is_of_handler(error)


def is_of_a_worker(error: BaseException) -> bool:
    """A loader's worker was killed."""
    return is_a(error, RuntimeError) and str(error).startswith("DataLoader worker")
