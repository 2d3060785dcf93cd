"""`kit.watch`: record some steps of a training loop that exists, while it runs as it is.

    with kit.watch(steps=10) as watch:
        for x, y in loader:
            ...
            watch.step()      # or nothing: then `optimizer.step()` ends a step
    watch.run

A recording warms up, times steps, traces a few more, and is over; the loop goes on. All of that
happens in the loop's thread, between two steps. `start` and `stop` only leave a request for it, so
they may be called from anywhere: another thread, another cell, a signal handler.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Thread, current_thread
from threading import enumerate as threads
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from kit.errors import SettingsError, named
from kit.measure.attached.capture import Capture
from kit.measure.attached.later import LaterSteps
from kit.measure.attached.native import NativeRecorder
from kit.measure.attached.optimizers import (
    Leader,
    device_of,
    index_of,
    is_captured,
    is_inner,
    notes_of_left_out,
    session_around,
)
from kit.measure.attached.recorder import EXPLICIT, FAILED, Recorded, Recorder
from kit.measure.attached.recording import Recording, Wanted, is_the_loops
from kit.measure.base.loss import told
from kit.measure.base.turns import HELD, TURNS
from kit.runs.run import Run
from kit.runs.steady import MOST_WARMUP
from kit.runtime.recording.sites import format_site, here
from kit.torch.optimizers import FOLLOWED, OptimizerWatch
from kit.versions import warn_of_untried

if TYPE_CHECKING:
    from kit.measure.attached.device_kit import StepMarks

__all__ = ["LoopWatch", "watch"]

_BOUNDARY = "a step ends at `watch.step()`, or else at the `step()` of an optimizer of torch.optim"


def watch(
    steps: int = 10,
    *,
    skip: int | None = None,
    name: str = "",
    when_complete: Callable[[], object] | None = None,
    when: str | os.PathLike[str] | int | None = None,
    save: str | os.PathLike[str] | None = None,
) -> LoopWatch:
    """Record some steps of a training loop that exists: `with kit.watch() as watch:` around it.

    The loop stays as it is, and runs to its end. A step ends at `watch.step()`, or, in a loop that
    does not call it, at the `step()` of its first optimizer, or of one that replaces that and has
    the recording begin again. `watch.run` is a `Run` as of `kit.run`: natively recorded, or on
    device "kit" where a session is open. If the loop ends early, by an error, an interrupt or its
    own end, `watch.run` has the steps until then.

    Args:
        steps: how many to measure; on the CPU or CUDA six more follow for the timeline (up to 25
            with a loader's workers), on device kit five.
        skip: how many steps go first, unmeasured; by default until they are steady, 6 to 20, or to
            60 while they use up what a loader's workers had ready; 20 in a job of several ranks.
        name: what the run is called; by default the file of the loop.
        when_complete: called in the loop's thread, between two steps, when all are recorded; what
            it raises ends the loop.
        when: what begins a recording, each time; by default the `with` block does, once. A signal
            (`signal.SIGUSR1`), or the path of a file that is written then (`touch PATH`).
        save: where each recording is written when it ends; the second gets a `_2` before the
            suffix, and of several ranks (by torch.distributed, torchrun, srun or mpirun) each gets
            a `_rank` and its number.

    Raises:
        SettingsError: a number is out of range, `when` is neither a signal nor a path, or
            `when_complete` cannot be called.
        OSError: `save` names something else than a plain file.
    """
    warn_of_untried("python", "torch")
    if when_complete is not None and not callable(when_complete):
        raise SettingsError(f"when_complete is a function, not {type(when_complete).__name__}")
    return LoopWatch(Wanted(steps, skip), str(name), when_complete, Capture(when, save))


class LoopWatch(OptimizerWatch):
    """Watches one loop; see `kit.watch`. Use it in a `with` block, or call `close` at the end."""

    def __init__(
        self,
        wanted: Wanted,
        name: str,
        when_complete: Callable[[], object] | None,
        capture: Capture,
    ) -> None:
        self._wanted = wanted
        self._capture = capture
        self._look: Callable[[], bool] | None = None  # for the file, in the `with` block
        self._name = name
        self._when_complete = when_complete
        # The newest one: a recording to begin, or why to end the one that goes on. Left by any
        # thread or signal handler, taken by the loop's: a deque's own methods are atomic.
        self._requests: deque[Wanted | str] = deque(maxlen=1)
        self._recording: Recording | None = None
        self._runs: tuple[Run, ...] = ()
        self._before = 0  # runs of the loop that it watched before it was closed
        self._later = LaterSteps()
        self._unsaved: tuple[Run, ...] = ()  # recorded last, and not written yet
        self._ended = ""
        self._is_explicit = False  # the loop calls `step`
        self._leader = Leader()
        self._left_out: list[int] = []  # steps of optimizers that were replaced, before it began
        self.strangers: Collection[Thread] = WeakSet(threads())  # that are not the loop's
        self._marks: StepMarks | None = None  # on device kit
        self._is_closed = False

    def __enter__(self) -> LoopWatch:
        try:
            if self._capture:
                self._reopen()
                self._look = self._capture.is_asked if self._capture.file is not None else None
                self._capture.open(self._asked)
                FOLLOWED.follow(self)
            elif not self._requests:
                self.start()
            return self
        except BaseException:  # an interrupt: nobody closes what was not entered
            self.close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._later.end()
            self.close(_said(error))
        except BaseException:  # an interrupt in the middle: no hook, no profiler is left
            self.close(_said(error))
            raise

    def __repr__(self) -> str:
        recording = self._recording
        if recording is None:
            waits = "begins with the next step" if self.is_recording else "records nothing"
            return f"<kit.watch: {self._ended or waits}>"
        return f"<kit.watch: {recording.said}>"

    # -- for whoever watches ---------------------------------------------------------------------

    def start(self, steps: int | None = None, skip: int | None = None) -> None:
        """Begin a new recording at the end of the step that runs now; the loop need not stop.

        Args:
            steps, skip: as of `kit.watch`; those given there if not given.

        Raises:
            SettingsError: a number is out of range.
        """
        self._reopen()
        before = self._wanted
        self._wanted = Wanted(
            before.steps if steps is None else steps, before.skip if skip is None else skip
        )
        self._requests.append(self._wanted)
        FOLLOWED.follow(self)

    def _reopen(self) -> None:
        """After a `close` the next loop is another one, and may end its steps in another way."""
        if self._is_closed:
            self._is_closed = self._is_explicit = False
            self._ended, self._before, self._later = "", len(self._runs), LaterSteps()

    def _asked(self) -> None:
        """A signal asks for a recording; one that goes on is not begun again."""
        if not self._is_closed and not self.is_recording:
            self.start()

    def stop(self) -> None:
        """End the recording at the end of the step that runs now; `run` has the steps so far."""
        if self._recording is not None:
            self._requests.append("stopped")
        else:
            self._requests.clear()

    def close(self, error: str = "") -> None:
        """Watch no more: nothing but `start` begins a recording.

        What was recorded stays in `run`. A recording of another thread ends with its next step.

        Args:
            error: what ended the loop, in words.
        """
        self._is_closed = True  # before the look at the recording: see `_between`
        self._look = None
        self._capture.close()
        self._requests.clear()
        recording = self._recording
        owner = current_thread() if recording is None else recording.thread
        if owner is not current_thread() and owner.is_alive():
            self._requests.append("stopped")  # the profiler ends in its own thread
            return
        _leave(self)
        if recording is not None:
            where = f"in step {recording.count + 1}"
            self._end(f"ended by {error}, {where}" if error else f"the loop ended, {where}")
        elif len(self._runs) > self._before:
            self._runs = (*self._runs[:-1], self._later.noted(self._runs[-1]))
            self._later = LaterSteps()
        self._save()  # what an interrupt has left

    @property
    def run(self) -> Run:
        """The last finished recording; of one that goes on, the steps so far, without a timeline.

        Raises:
            SettingsError: no step was recorded, or none since the watch was opened again.
        """
        if len(self._runs) > self._before:
            return self._runs[-1]
        recording = self._recording
        if recording is None or not recording.recorded.steps:
            if self._capture and recording is None and not self._ended:
                raise SettingsError(f"nothing was recorded: {self._capture.condition()}")
            why = f" ({self._ended})" if self._ended else ""
            raise SettingsError(f"the watch has seen no step: {_BOUNDARY}{why}")
        return recording.run_so_far()

    @property
    def runs(self) -> Sequence[Run]:
        """All finished recordings, in order."""
        return self._runs

    @property
    def ended(self) -> str:
        """Why the last recording ended, in words; "" while none has."""
        return self._ended

    @property
    def is_recording(self) -> bool:
        """True while steps are recorded, or will be from the end of this step on."""
        return self._recording is not None or any(
            isinstance(request, Wanted) for request in tuple(self._requests)
        )

    # -- for the loop ----------------------------------------------------------------------------

    # Where torch.compile compiles the step of a loop, it compiles nothing of the kit with it.
    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, loss: Any = None) -> None:
        """A step of the loop ends here.

        Args:
            loss: of the step; a tensor is not read before the recording is over.

        Raises:
            SettingsError: the loss is no tensor and no number.
        """
        if self._look is not None and not self.is_recording and self._look():
            self.start()
        if self._recording is None and self._marks is None and not self._requests:
            self._later.end_step()
            return
        if not self._is_explicit:
            self._is_explicit = True
            self._begin_again()
        self._step_ended(EXPLICIT, None, loss)

    def leave_behind(self) -> None:
        """In a forked child: its steps are others, and torch's profiler cannot be stopped there."""
        self._is_closed, self._look = True, None
        self._recording, self._runs, self._unsaved = None, (), ()
        self._requests.clear()
        self._ended = "a forked child is not watched"

    def _begin_again(self) -> None:
        """The steps that an optimizer has ended until now are others: forget them."""
        if self._recording is not None:
            self._recording.close("")
            self._recording = None
            if not self._requests:
                self._requests.append(self._wanted)

    def _follow_another(self) -> None:
        """Another optimizer ends the steps of the loop from here on."""
        if (now := self._recording) is not None:
            self._begin_again()
            self._left_out.append(now.count + 1)

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if HELD.get() is not None and TURNS.is_held():  # an explorer measures in its thread
            return
        if self._is_closed and self._recording is None:
            _leave(self)
        if self._look is not None and not self.is_recording and self._look():
            self.start()
        if self._recording is None and self._marks is None and not self._requests:
            if not (self._is_explicit or is_inner(optimizer)) and self._leader.goes_on(optimizer):
                self._later.end_step()
            return
        leader, now = self._leader, self._recording
        if self._is_explicit:
            return
        if now is not None and now.thread is not current_thread():
            now.others += leader.steps_first(optimizer) and not is_inner(optimizer)
            return
        begins = now is None and bool(self._requests)
        replaces = False
        if not begins and not leader.ends_step(optimizer):
            replaces = leader.is_replaced(optimizer, MOST_WARMUP if now is None else now.enough)
            if not replaces:
                if now is not None and not (leader.optimizer() is optimizer or is_inner(optimizer)):
                    now.step_beside(optimizer)
                return
        if is_inner(optimizer) or is_captured():
            return
        if replaces:
            self._follow_another()
        leader.take(optimizer)
        self._step_ended(f"{type(optimizer).__name__}.step()", optimizer, None)

    def _step_ended(self, boundary: str, optimizer: Any, loss: Any) -> None:
        """Do what is due between two steps; whatever goes wrong, the loop goes on."""
        if (now := self._recording) is not None and now.thread is not current_thread():
            now.others += 1
            return
        loss = told(loss)
        if self._marks is not None:
            self._marks.end_step()  # what it raises is the program's own
        try:
            self._between(boundary, optimizer, loss)
        except Exception as error:
            if is_the_loops(error):
                raise
            self._ended = f"{FAILED}: {named(error)}"
            self._end(self._ended)
        is_complete = now is not None and now.is_over and self._recording is not now
        if is_complete and self._when_complete is not None:
            self._when_complete()
            self._later.begin()  # what that took is no time of the loop's

    def _between(self, boundary: str, optimizer: Any, loss: Any) -> None:
        if (now := self._recording) is not None:
            now.end_step(loss)
            if now.is_over:
                self._end("")
        try:
            request = self._requests.popleft()
        except IndexError:
            if now is None:
                self._later.end_step()
            return
        if self._recording is not None:
            self._end("stopped" if isinstance(request, str) else "started again")
        if isinstance(request, Wanted):
            recorder = self._recorder(optimizer)
            site = here()
            name = self._name or format_site(site).rpartition(":")[0] or "a loop"
            ends_at = ", ".join(filter(None, (boundary, format_site(site))))
            recorded = Recorded(name, ends_at, site, notes=notes_of_left_out(self._left_out))
            self._later = LaterSteps(request.asked_ns)
            self._recording = Recording(recorded, recorder, request, self.strangers)
            if self._is_closed:  # by another thread, which has not seen this recording
                self._end("the watch was closed")

    def _recorder(self, optimizer: Any) -> Recorder:
        device = device_of(optimizer)
        session = session_around()
        if device != "kit" or session is None:
            self._marks = None
            return NativeRecorder(device, index_of(optimizer))
        from kit.measure.attached.device_kit import KitRecorder, StepMarks

        if self._marks is None:
            self._marks = StepMarks(session)
            session.at_end(partial(_leave, self))
            self._marks.end_step()
        return KitRecorder(session)

    def _end(self, why: str) -> None:
        recording = self._recording
        if recording is not None:
            _insist(lambda: self._finish(recording, why))
        _leave(self)  # where another thread has closed it

    def _finish(self, recording: Recording, why: str) -> None:
        """Close it, keep its run, write that: what is done already is not done again."""
        try:
            self._ended = recording.close(why)
        except Exception:  # of the profiler; what was measured is kept
            self._keep(recording)
            self._save()
            raise
        self._keep(recording)
        self._save()
        self._later.begin()

    def _keep(self, recording: Recording) -> None:
        """The run of a closed recording becomes the last one, once."""
        if self._recording is not recording:
            return
        made: tuple[Run, ...] = ()
        try:
            if recording.recorded.steps:
                made = (recording.finished(),)
        except Exception as error:
            if is_the_loops(error):
                raise
            self._ended = f"{FAILED}: {named(error)}"
        self._runs, self._unsaved, self._recording = (*self._runs, *made), made, None
        self._left_out = []

    def _save(self) -> None:
        """Write what was recorded last, if that was asked for."""
        for run in self._unsaved:
            if unsaved := self._capture.keep(run):
                self._ended = f"{self._ended}; {unsaved}" if self._ended else unsaved
        self._unsaved = ()


def _leave(watch: LoopWatch) -> None:
    """Call a closed watch no more, but where the session's steps would no longer end then."""
    marks = watch._marks
    if watch._is_closed and (marks is None or not marks.is_needed):
        FOLLOWED.leave(watch)


def _insist(act: Callable[[], None]) -> None:
    """Do it; where the handler of a signal raises meanwhile, do it again before that is raised."""
    try:
        act()
    except BaseException:
        act()
        raise


def _said(error: BaseException | None) -> str:
    """What has ended a loop, in words; "" if nothing did."""
    return "" if error is None else named(error, 200)
