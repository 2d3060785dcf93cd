"""Profilers beside a watched loop: the program's own, another thread's, one that cannot stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import kit
from kit.errors import SettingsError
from kit.measure.attached.native import MARK, NativeRecorder
from kit.measure.attached.recorder import Recorded
from kit.measure.native import others
from kit.measure.native.instruments import Profiler
from kit.runs.verdict.summary import summary
from kit.torch.optimizers import FOLLOWED
from kit.torch.tensors.private import private
from tests.measure.attached.loops import Loop
from tests.waiting import in_another_thread

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events"),  # of torch 2.11
]


def test_a_loop_under_a_profiler_of_its_own_is_timed_and_says_what_is_missing() -> None:
    loop = Loop()
    with torch.profiler.profile(acc_events=True) as own, kit.watch(steps=3, skip=0) as watch:
        loop.train(12)
    assert len(watch.run.step_times_ns) == 3
    assert "no step was traced" in summary(watch.run)
    assert not any("lost" in note for note in watch.run.timeline.notes)  # nothing had been seen
    assert any("AdamW.step" in e.key for e in own.key_averages())  # its own goes on


def test_optimizers_that_step_inside_the_backward_pass_are_timed_and_not_traced() -> None:
    """torch's profiler would begin in a hook, be taken off with the pass, and end the process."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in net.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    runs = []
    for says_where in (False, True):
        with kit.watch(steps=3, skip=2) as watch:
            for _ in range(30):
                net(torch.ones(4, 8)).square().mean().backward()
                if says_where:
                    watch.step()
        runs.append(watch.run)
    assert [len(run.step_times_ns) for run in runs] == [3, 3]
    assert "steps end inside a backward pass" in summary(runs[0])
    assert [bool(run.callers) for run in runs] == [False, True]


def test_a_profiler_that_cannot_stop_loses_the_trace_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Profiler.stop

    def fails(profiler: Profiler) -> None:
        stop(profiler)
        raise RuntimeError("no room")

    monkeypatch.setattr(Profiler, "stop", fails)
    with kit.watch(steps=2, skip=1) as watch:
        Loop().train(20)
    assert len(watch.run.step_times_ns) == 2
    assert any("what the profiler saw is lost" in note for note in watch.run.timeline.notes)


def test_a_second_thread_is_refused_while_one_is_profiled() -> None:
    """Kineto's second start ended the process."""
    one, two = Profiler("cpu"), Profiler("cpu")
    one.start()
    try:
        with ThreadPoolExecutor(1) as other:
            with pytest.raises(SettingsError, match="one thread at a time, and records another"):
                other.submit(two.start).result()
            other.submit(two.stop).result()
        with pytest.raises(SettingsError, match="another watch of this loop traces"):
            two.start()  # in the thread that is profiled
        assert torch.autograd._profiler_enabled()
    finally:
        one.stop()
    assert two.events() == []
    two.start()  # and now it is free
    two.stop()


def test_a_profiler_of_the_programs_own_in_another_thread_is_no_second_one() -> None:
    """Both at once ended the process, in Kineto."""
    own = partial(torch.profiler.profile, acc_events=True)
    with in_another_thread(own), kit.watch(steps=2, skip=0) as watch:
        Loop().train(10)
    assert "end that one first" in " ".join(watch.run.timeline.notes)
    assert len(watch.run.step_times_ns) == 2


@pytest.mark.parametrize("own", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_profiler_that_another_thread_starts_meanwhile_waits_for_the_end_of_the_kits(
    own: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the process, in Kineto."""
    is_asked = threading.Event()

    def profiled() -> int:
        is_asked.set()
        with own() as seen:
            torch.ones(3).sum()
        return len(getattr(seen, "function_events", None) or seen.events())

    begin = private(others._BEGIN)
    recording = Profiler("cpu")
    with ThreadPoolExecutor(1) as other:
        recording.start()
        try:
            found = other.submit(profiled)
            assert is_asked.wait(10)
            with pytest.raises(TimeoutError):
                found.result(0.1)
            assert torch.autograd._profiler_enabled()
        finally:
            recording.stop()
        assert found.result(60) > 0
        monkeypatch.setattr(others, "PATIENCE_S", 0.01)
        recording = Profiler("cpu")
        recording.start()
        try:
            with pytest.raises(RuntimeError, match="one thread of a process at a time"):
                other.submit(profiled).result(60)
        finally:
            recording.stop()
    assert private(others._BEGIN) is begin


@pytest.mark.parametrize("wait", [2, 4, 5, 7])  # prepared, looked at, begun, traced
def test_a_profiler_that_the_loop_starts_itself_has_what_it_would_and_the_loop_goes_on(
    wait: int,
) -> None:
    """In the step where the kit's was on it raised, or saw nothing, or took what the kit's saw."""
    seen: list[set[str]] = []
    own = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=wait, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profile: seen.append({e.name for e in profile.events()}),
        acc_events=True,
    )
    loop = Loop()
    with kit.watch(steps=1, skip=0) as watch, own:
        for _ in loop.steps(14):
            own.step()
    assert len(loop.losses) == 14
    assert len(seen) == 1
    assert "aten::linear" in seen[0]
    assert not torch.autograd._profiler_enabled()
    assert watch.ended == "complete: measured 1 of 1 step"
    assert any("no step was traced: the program" in note for note in watch.run.timeline.notes)


@pytest.mark.parametrize("first", [3, 6])
@pytest.mark.parametrize("own", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_profiler_around_some_steps_of_the_loop_is_the_loops(
    first: int, own: Callable[[], Any]
) -> None:
    loop = Loop()
    with kit.watch(steps=1, skip=0) as watch:
        loop.train(first)
        with own() as profile:
            loop.train(2)
        loop.train(11 - first)
    assert any("AdamW.step" in e.key for e in profile.key_averages())
    assert len(loop.losses) == 13
    assert not torch.autograd._profiler_enabled()
    assert any("no step was traced: the program" in note for note in watch.run.timeline.notes)


@pytest.mark.parametrize("is_left", [True, False])
def test_a_loop_whose_thread_ends_while_it_is_traced_does_not_keep_the_profiler(
    is_left: bool,
) -> None:
    with contextlib.ExitStack() as undo:
        watch = kit.watch(steps=2, skip=0)
        undo.enter_context(watch)
        thread = threading.Thread(target=Loop().train, args=(5,))
        thread.start()
        thread.join()
        if is_left:
            undo.pop_all()
    with kit.watch(steps=2, skip=0) as again:
        Loop().train(10)
    assert len(again.run.timeline) > 0
    watch.close()
    assert watch.ended.startswith("the loop ended, in step")
    assert watch.run.step_times_ns
    assert not torch.autograd.profiler._is_profiler_enabled
    assert len(FOLLOWED) == 0


@pytest.mark.parametrize("steps", [1, 2, 3])  # of a block: it may begin or end in the noted step
def test_a_programs_own_modes_see_what_they_would_and_are_off_at_their_end(steps: int) -> None:
    """The watch's mode, and the program's, were taken off in each other's place."""
    loop = Loop()

    def counted() -> list[int]:
        found = []
        for _ in range(12 // steps):
            with FlopCounterMode(display=False) as flops:
                loop.train(steps)
            found.append(flops)
        return [each.get_total_flops() for each in found]

    plain = counted()
    with kit.watch(steps=1, skip=0) as watch:
        assert counted() == plain
    assert any(".item(), at loops.py" in note for note in watch.run.timeline.notes)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_torch_does_before_the_traced_steps_is_none_of_their_work() -> None:
    """Of a loop of jax that computes little with torch, a slow batch before hid that."""

    def event(name: str, start: float, stop: float) -> Any:
        return SimpleNamespace(
            name=name,
            thread=1,
            time_range=SimpleNamespace(start=start, end=stop),
            device_type=SimpleNamespace(name="CPU"),
            cpu_parent=None,
            is_user_annotation=False,
        )

    recorder = NativeRecorder("cpu")
    recorder._uses_jax = True
    marks = [event(MARK, at - 1, at) for at in (1000.0, 1100.0, 1200.0, 1300.0)]
    recorder._events = [event("aten::mm", 0, 900), *marks, event("aten::mm", 1110, 1120)]
    made = recorder.make_run(Recorded("loop", times=[100_000] * 3))
    assert not len(made.timeline)
    assert "torch computed less than half of the traced steps" in made.timeline.notes[-1]


def test_a_step_of_jax_lasts_until_the_one_before_has_run() -> None:
    """Its time was that of the call alone, a thousandth of what the device needs."""

    @jax.jit
    def train_step(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(4):
            w = jnp.tanh(w @ w / 400)
        return w, w.sum()

    w, loss = train_step(jnp.ones((400, 400)))
    with kit.watch(steps=2, skip=0) as watch:
        for i in range(14):
            before = loss
            w, loss = train_step(w)
            watch.step(loss)
            if i in (2, 3):  # the measured ones; one loss has come before
                assert before.is_deleted() or before.is_ready()
            if i == 2:
                loss.delete()  # as one that is donated
    assert len(watch.run.step_times_ns) == 2
    said = summary(watch.run)
    assert "jax's calls alone" not in said
    assert "slower beginning" not in said  # the later steps do not wait


def test_the_times_of_jaxs_calls_alone_are_called_that() -> None:
    x = jnp.ones(3)
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(9):
            x = x + 1
            watch.step()
    assert "its step times are those of jax's calls alone" in summary(watch.run)
