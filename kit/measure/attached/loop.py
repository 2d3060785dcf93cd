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

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from kit.errors import SettingsError
from kit.measure.attached.native import NativeRecorder
from kit.measure.attached.record import Recorded, Recorder
from kit.measure.base.loop import detached
from kit.measure.base.machine import Watch as MachineWatch
from kit.measure.base.provenance import provenance
from kit.runs.run import Run
from kit.runs.steady import MOST_WARMUP, WINDOW, drift
from kit.runtime.recording.sites import format_site, here

__all__ = ["LoopWatch", "watch"]

_NO_STEP = (
    "the watch has seen no step: a step ends at `watch.step()`, or else at the `step()` of an "
    "optimizer of torch.optim"
)


def watch(steps: int = 10, *, skip: int | None = None, name: str = "") -> LoopWatch:
    """Record some steps of a training loop that exists: `with kit.watch() as watch:` around it.

    The loop stays as it is, and runs to its end. A step ends at `watch.step()`, or, in a loop that
    does not call it, at the `step()` of its first optimizer. `watch.run` is a `Run` as of
    `kit.run`: natively recorded, or on device "kit" where a session is open. If the loop ends
    early, by an error, an interrupt or its own end, `watch.run` has the steps until then.

    Args:
        steps: how many to measure; four more, or so, are traced for the timeline.
        skip: how many steps go first, unmeasured; by default until they are steady (6 to 20).
        name: what the run is called; by default the file of the loop.

    Raises:
        SettingsError: a number is out of range.
    """
    return LoopWatch(steps, skip, name)


class _Wanted:
    """What `start` asks for."""

    def __init__(self, steps: int, skip: int | None) -> None:
        for what, number, least in (("steps", steps, 1), ("skip", skip, 0)):
            is_whole = isinstance(number, int) and not isinstance(number, bool)
            if number is not None and not (is_whole and number >= least):
                raise SettingsError(
                    f"{what} of a watch must be a whole number of at least {least}, not {number!r}"
                )
        self.steps, self.skip = steps, skip


class LoopWatch:
    """Watches one loop; see `kit.watch`. Use it in a `with` block, or call `close` at the end."""

    def __init__(self, steps: int, skip: int | None, name: str) -> None:
        self._wanted = _Wanted(steps, skip)
        self._name = name
        self._request: _Wanted | str | None = None  # a recording to begin, or why to end this one
        self._hook: Any = None
        self._recording: _Recording | None = None
        self._runs: list[Run] = []
        self._ended = ""
        self._is_explicit = False  # the loop calls `step`
        self._leader = 0  # the optimizer whose steps end a step

    def __enter__(self) -> LoopWatch:
        if self._request is None:
            self.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        text = "" if error is None else str(error)
        said = f"{kind.__name__}{': ' if text else ''}{text}"[:200] if kind is not None else ""
        self.close(said)

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
        before = self._wanted
        self._wanted = _Wanted(
            before.steps if steps is None else steps, before.skip if skip is None else skip
        )
        self._request = self._wanted
        if self._hook is None:
            self._hook = register_optimizer_step_post_hook(self._after_optimizer)

    def stop(self) -> None:
        """End the recording at the end of the step that runs now; `run` has the steps so far."""
        self._request = "stopped" if self._recording is not None else None

    def close(self, error: str = "") -> None:
        """Watch no more: no hook is left. What was recorded stays in `run`.

        Args:
            error: what ended the loop, in words.
        """
        recording = self._recording
        if recording is not None and recording.thread != threading.get_ident():
            self.stop()  # the profiler ends in its own thread; the hook is idle from then on
            return
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if recording is not None:
            where = f"in step {recording.count + 1}"
            self._end(f"ended by {error}, {where}" if error else f"the loop ended, {where}")

    @property
    def run(self) -> Run:
        """The last finished recording; of one that goes on, the steps so far, without a timeline.

        Raises:
            SettingsError: no step was recorded.
        """
        if self._runs:
            return self._runs[-1]
        recording = self._recording
        if recording is None or not recording.recorded.steps:
            raise SettingsError(_NO_STEP if not self._ended else f"{_NO_STEP}. {self._ended}")
        return recording.run_so_far()

    @property
    def runs(self) -> Sequence[Run]:
        """All finished recordings, in order."""
        return tuple(self._runs)

    @property
    def ended(self) -> str:
        """Why the last recording ended, in words; "" while none has."""
        return self._ended

    @property
    def is_recording(self) -> bool:
        """True while steps are recorded, or will be from the end of this step on."""
        return self._recording is not None or isinstance(self._request, _Wanted)

    # -- for the loop ----------------------------------------------------------------------------

    def step(self, loss: Any = None) -> None:
        """A step of the loop ends here.

        Args:
            loss: of the step; a tensor is not read before the recording is over.

        Raises:
            SettingsError: the loss is no tensor and no number.
        """
        if self._recording is None and self._request is None:
            return
        if not self._is_explicit:
            self._is_explicit = True
            self._begin_again()
        self._step_ended("watch.step()", None, loss)

    def _begin_again(self) -> None:
        """The steps that an optimizer has ended until now are others: forget them."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close("")
            self._request = self._request or self._wanted

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_explicit or (self._recording is None and self._request is None):
            return
        if self._recording is None:
            self._leader = id(optimizer)
        elif self._leader != id(optimizer):
            return
        self._step_ended(f"{type(optimizer).__name__}.step()", optimizer, None)

    def _step_ended(self, boundary: str, optimizer: Any, loss: Any) -> None:
        """Do what is due between two steps; whatever goes wrong, the loop goes on."""
        if (now := self._recording) is not None and now.thread != threading.get_ident():
            return
        if loss is not None and not isinstance(loss, int | float):
            loss = detached(loss)
        try:
            self._between(boundary, optimizer, loss)
        except Exception as error:
            if _is_of_a_worker(error):
                raise
            self._end(f"the recording failed: {error!r}")

    def _between(self, boundary: str, optimizer: Any, loss: Any) -> None:
        now = self._recording
        if now is not None:
            now.end_step(loss)
            if now.is_over:
                self._end("")
        request, self._request = self._request, None
        if request is None:
            return
        if self._recording is not None:
            self._end("stopped" if isinstance(request, str) else "started again")
        if isinstance(request, _Wanted):
            recorder = NativeRecorder(_device_of(optimizer))
            site = here()
            name = self._name or format_site(site).rpartition(":")[0] or "a loop"
            recorded = Recorded(name, f"{boundary}, {format_site(site)}", site)
            self._recording = _Recording(recorded, recorder, request)

    def _end(self, why: str) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self._ended = recording.close(why)
        if recording.recorded.steps:
            self._runs.append(recording.finished())


class _Recording:
    """One recording: warm up, time, trace; each `end_step` is the end of one step."""

    def __init__(self, recorded: Recorded, recorder: Recorder, wanted: _Wanted) -> None:
        self.recorded = recorded
        self.thread = threading.get_ident()
        self.count = 0  # steps that have ended
        self.is_over = False
        self._recorder = recorder
        self._wanted = wanted
        self._machine = MachineWatch()
        self._is_tracing = False
        self._has_clock = False
        if self._is_warm():
            self._begin_clock()
        else:
            recorder.begin_clock()
        self._before = time.perf_counter_ns()

    def end_step(self, loss: Any) -> None:
        """One step has ended: note it, and prepare the next."""
        self._recorder.end_step()
        self.count += 1
        if self._is_tracing:
            self._trace(self._recorder.trace_step)
        else:
            self._recorder.tick()
            took = time.perf_counter_ns() - self._before
            if self._has_clock:
                self._measured(took, loss)
            else:
                self.recorded.warming.append(took)
                if self._is_warm():
                    self._begin_clock()
        self._before = time.perf_counter_ns()

    def close(self, why: str) -> str:
        """Record no more; gives why it ended, in words."""
        try:
            self._recorder.end_trace()
        except Exception as error:
            if _is_of_a_worker(error):
                raise
            self.recorded.notes.append(f"what the profiler saw is lost: {error}")
        if self._has_clock and self.recorded.usage is None:
            self.recorded.usage = self._machine.end()
        self.recorded.ended = f"{why or 'complete'}: {self.said}"
        return self.recorded.ended

    @property
    def said(self) -> str:
        """How far it is, in words."""
        return f"measured {len(self.recorded.times)} of {self._wanted.steps} steps"

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

    def _is_warm(self) -> bool:
        times, skip = self.recorded.warming, self._wanted.skip
        if skip is not None:
            return len(times) >= skip
        if len(times) < WINDOW:
            return False
        return not drift(times[-WINDOW:]) or len(times) >= MOST_WARMUP

    def _measured(self, took: int, loss: Any) -> None:
        self.recorded.times.append(took)
        if loss is not None:
            self.recorded.losses.append(loss)
        if len(self.recorded.times) == self._wanted.steps:
            self._is_tracing = True
            self._trace(self._recorder.begin_trace)

    def _begin_clock(self) -> None:
        self._machine.begin()
        self._recorder.begin_clock()
        self._has_clock = True

    def _trace(self, do: Callable[[], bool]) -> None:
        """Begin to trace, or go on; true: no more steps are needed."""
        try:
            self.is_over = do()
        except Exception as error:
            if _is_of_a_worker(error):
                raise
            self.recorded.notes.append(f"no step was traced: {error}")
            self.is_over = True


def _is_of_a_worker(error: Exception) -> bool:
    """A loader's worker was killed: torch raises that in whatever line the program is then."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


def _device_of(optimizer: Any) -> str:
    """Where the loop trains: by its optimizer's parameters, or else by whether CUDA is in use."""
    kinds = {
        p.device.type for group in getattr(optimizer, "param_groups", ()) for p in group["params"]
    }
    known = kinds or ({"cuda"} if torch.cuda.is_initialized() else {"cpu"})
    for name in ("cuda", "cpu"):
        if name in known:
            return name
    raise SettingsError(
        f"the loop trains on {sorted(known)[0]!r}: kit.watch records steps on the CPU, on CUDA, "
        "and on device kit in an open session"
    )
