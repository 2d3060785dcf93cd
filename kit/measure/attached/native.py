"""Records the steps of a loop that torch runs itself, on the CPU or on CUDA."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from kit.errors import SettingsError
from kit.measure.attached.recorder import Recorded
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.base.ready import ReadyBatches
from kit.measure.native.events import FINISH, STEP, blocking_lines, computed_ns, timeline_of
from kit.measure.native.instruments import DeviceClock, Profiler
from kit.measure.native.launches import NOTHING, find_launches
from kit.measure.native.lines import Lines, ModuleNames, is_compiled_here
from kit.measure.native.torch import environment
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import snippets_of
from kit.runtime.profiling.elsewhere import Look
from kit.runtime.recording.sites import format_site
from kit.runtime.session.forks import entered, is_any_open
from kit.threads import living_types
from kit.torch.tensors.private import private
from kit.trace import Timeline

__all__ = ["NativeRecorder"]

MARK = "kit mark"  # a step ends
_LOOK, _LEAD_IN = 1, 1  # steps before the traced ones: whose lines are noted; the profiler starts
_LEAD_OUT = 1  # after them: a step may end inside `optimizer.step()`, which has to end, too
_NOTHING_OF_TORCH = (
    "torch computed nothing in the traced steps, so there is no timeline of them: a loop of jax is "
    "not seen by a watch; give kit.run a builder whose step is made by kit.jax.step"
)
_LITTLE_OF_TORCH = _NOTHING_OF_TORCH.replace("nothing in", "less than half of", 1)
_NO_LOSS = (
    "where the loop does not wait for jax itself, its step times are those of jax's calls alone, "
    "not of what the device does: give the loss, watch.step(loss), and each step waits for the one "
    "before"
)
_IN_BACKWARD = (
    "steps end inside a backward pass, at whose end torch takes its profiler off: call "
    "watch.step() where a step of the loop ends"
)
_SOME_OF_JAX = "the loop made arrays of jax's, too: what jax computes is not seen, nor waits for it"
_MAY_BE_OF_JAX = (
    "a kit session beside the loop made arrays of jax's; if the loop did, too, what passes for its "
    "sleeps may be waits for jax"
)


class NativeRecorder:
    """By torch's profiler, and by events of CUDA where the loop trains there.

    Args:
        device: "cuda" or "cpu".
        index: of the GPU that the loop trains on; None: torch's current one.
    """

    def __init__(self, device: str, index: int | None = None) -> None:
        self._device, self._index = device, index
        self._clock = DeviceClock(index) if device == "cuda" else None
        self._look = contextlib.ExitStack()
        self._lines: list[Lines] = []  # of the steps that are looked at
        self._modules = ModuleNames()
        self._profiler: Profiler | None = None  # while it runs
        self._events: list[Any] = []
        self._looks: list[Look] = []
        self._note = ""
        self._lead_in_note = ""
        self._launches = NOTHING
        self._traced = 0
        self._marks = 0  # the ends of steps that lie around the traced ones
        self._ready = ReadyBatches()  # of a loader with workers
        self._jax = _JaxArrays()
        self._uses_jax = self._may_use_jax = False  # in the traced steps
        self._loss: Any = None  # the last one that was told

    @property
    def trace_length(self) -> int:
        """With the step in which lines are noted, and those around the traced."""
        return _LOOK + _LEAD_IN + TRACED_STEPS + _LEAD_OUT

    def begin_clock(self) -> None:
        """From here on the steps count."""
        if self._clock is not None:
            torch.cuda.synchronize(self._index)
            self._clock.restart()

    def tick(self, is_last: bool, loss: Any) -> None:
        """A step has ended; the host, which runs ahead, does not know when the device will.

        Of jax it waits for the loss of the step before, as the baseline of a jax workload does.
        """
        if self._clock is not None:
            self._clock.mark()
        if loss is None:
            return
        before, self._loss = self._loss, loss
        # a loop may have donated the loss that it gave
        arrays = [x for x in (before, loss) if _is_of_jax(x) and not x.is_deleted()]
        if before is not None and arrays:
            arrays[0].block_until_ready()

    def begin_trace(self, ready: ReadyBatches) -> None:
        """First look for the lines, in steps of their own: the profiler has none."""
        _refuse_in_backward()
        self._ready = ready
        self._jax.note()
        self._look_at_lines()

    def trace_step(self) -> bool:
        """One more step has ended."""
        self._traced += 1
        self._look.close()
        if self._traced == _LOOK:
            _refuse_in_backward()
            self._profiler = Profiler(self._device)
            self._profiler.start()
            self._look_at_lines()  # the steps of a loop may be of two sorts, by turns
            return False
        assert self._profiler is not None, "it has been started"
        if self._profiler.note:
            return True  # it sees no more
        if not self._marks:  # has a loader prepared more, while the profiler began?
            is_led_in, self._lead_in_note = self._ready.led_in(self._traced - _LOOK)
            if not is_led_in:
                return False
        after = self._marks - TRACED_STEPS
        self._marks += 1
        if after == 0 and self._device == "cuda":
            with torch.profiler.record_function(FINISH):
                torch.cuda.synchronize(self._index)
        with self._profiler.region(MARK):
            pass
        if after == 0:
            self._look_at_lines()  # a third time: steps may call the same ops on different lines
        return after == _LEAD_OUT

    def _look_at_lines(self) -> None:
        if not is_compiled_here():
            self._lines.append(self._look.enter_context(Lines(self._device, self._modules)))

    def end_trace(self) -> None:
        """Stop what is on; the steps that were traced until now stay."""
        self._look.close()
        self._modules = ModuleNames()  # the program's own may be freed
        profiler = self._profiler
        if profiler is not None:
            if self._jax.has_more():
                is_sure = _is_of_jax(self._loss) or not self._jax.may_be_kits
                self._uses_jax = self._uses_jax or is_sure
                self._may_use_jax = not self._uses_jax
            profiler.stop()
            self._events, self._looks = profiler.events(), profiler.looks()
            self._note = profiler.note
            self._profiler = None  # last: an interrupt before it, and this is done again

    def make_run(self, recorded: Recorded) -> Run:
        """The run of what was recorded."""
        losses = recorded.kept_losses()
        timeline = self._timeline(recorded.all_notes)
        times = self._step_times_ns(recorded)
        return Run(
            settings=Settings(
                mode="torch",
                steps=max(len(times), 1),
                warmup=len(recorded.warming) if recorded.times else 0,
                device="gpu" if self._device == "cuda" else "cpu",
            ),
            losses=losses,
            step_times_ns=tuple(times),
            timeline=timeline,
            sync_points=timeline.syncs,
            environment={**environment(self._device, self._index), **recorded.environment},
            name=recorded.name,
            sources=snippets_of(
                [recorded.site, *blocking_lines(timeline, self._looks), *self._launches.sites],
                format_site,
            ),
            conditions=recorded.conditions,
            callers=self._launches.callers,
        )

    def _step_times_ns(self, recorded: Recorded) -> list[int]:
        if self._clock is None:
            return recorded.steps
        torch.cuda.synchronize(self._index)
        return self._clock.step_times_ns()[: len(recorded.steps)]

    def _timeline(self, notes: list[str]) -> Timeline:
        """What the profiler saw between the marks: the steps, after those that lead in."""
        notes = [*notes, *filter(None, [self._note, self._lead_in_note])]
        found = sorted((e.time_range.end, e.thread) for e in self._events if e.name == MARK)
        marks = [end for end, _ in found][: TRACED_STEPS + 1]
        steps = [_step(i, found[i][1], *ends) for i, ends in enumerate(pairwise(marks))]
        if not steps:
            return Timeline.of([], [], "recorded", notes)
        events = [
            e
            for e in self._events
            if e.name != MARK and e.time_range.start < marks[-1] and e.time_range.end > marks[0]
        ]
        launches = find_launches(events, steps, self._lines, device=self._device)
        seen = timeline_of(
            [*events, *steps],
            device=self._device,
            places=[look.places for look in self._lines],
            looks=self._looks,
            caller=launches.of,
            notes=launches.notes,
        )
        worked = computed_ns(events)
        is_little = worked < (marks[-1] - marks[0]) * 1000 / 2
        if not worked or (self._uses_jax and is_little):  # its sleeps may be jax's waits
            why = _LITTLE_OF_TORCH if worked else _NOTHING_OF_TORCH
            untold = [_NO_LOSS] * (self._loss is None and self._uses_jax)
            return Timeline.of([], [], "recorded", [*notes, *untold, why])
        self._launches = launches
        notes += [_SOME_OF_JAX] * self._uses_jax
        notes += [_MAY_BE_OF_JAX] * (self._may_use_jax and is_little)
        return Timeline.of(seen.spans, seen.syncs, seen.origin, [*notes, *seen.notes])


def _refuse_in_backward() -> None:
    """A profiler that begins in a hook of a backward pass is lost there, and ends the process."""
    if private("torch._C._current_autograd_node")() is not None:
        raise SettingsError(_IN_BACKWARD)


def _is_of_jax(loss: Any) -> bool:
    return hasattr(loss, "is_deleted")


class _JaxArrays:
    """Those that a program has, if it uses jax: a new one says that jax has computed.

    To ask jax for its arrays would start it, which takes most of a GPU's memory: so it is asked
    only where Python's garbage collector knows of an array.
    """

    def __init__(self) -> None:
        self._noted: dict[int, Any] = {}
        self._entered = 0  # sessions, until then
        self._is_beside_session = False

    def note(self) -> None:
        """The arrays that there are now."""
        self._entered = entered()
        self._is_beside_session = is_any_open()
        self._noted = {id(array): weakref.ref(array) for array in self._all()}

    def has_more(self) -> bool:
        """Is there one that was not noted?"""
        none = weakref.ref(self)
        return any(self._noted.get(id(a), none)() is not a for a in self._all())

    @property
    def may_be_kits(self) -> bool:
        """A session was open meanwhile, as an explorer's: new ones may be its own."""
        return self._is_beside_session or entered() != self._entered

    def _all(self) -> Sequence[Any]:
        jax = sys.modules.get("jax")
        kind, live = getattr(jax, "Array", None), getattr(jax, "live_arrays", None)
        if kind is None or live is None:
            return ()
        kinds = () if self._noted else living_types()
        is_started = self._noted or any(issubclass(found, kind) for found in kinds)
        return live() if is_started else ()


def _step(number: int, thread: int, start: float, end: float) -> SimpleNamespace:
    """A step as `timeline_of` takes it: as if torch's profiler had seen it."""
    return SimpleNamespace(
        name=f"{STEP}{number}",
        thread=thread,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=SimpleNamespace(name="CPU"),
        cpu_parent=None,
        is_user_annotation=True,
    )
