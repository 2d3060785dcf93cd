"""The measured loop: how long it warms up, what it times and what it keeps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import SettingsError
from kit.measure.base.loop import LEAST_WARMUP, Pace, Timed, timed_steps
from kit.runs.settings import ENOUGH, UNTIL_STEADY
from kit.runs.steady import LEAST_STEPS, MOST_STEPS, MOST_WARMUP, WINDOW
from kit.workloads import mlp


class Clock:
    """A step takes what the list has; the last one for ever."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.now, self.steps = lengths, 0, 0
        self.events: list[str] = []

    def read(self) -> int:
        return self.now

    def step(self) -> int:
        self.now += self.lengths[min(self.steps, len(self.lengths) - 1)]
        self.steps += 1
        return self.steps


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Timed, Clock]]:
    def run(
        lengths: Sequence[int], agree: Callable[[bool], bool] = bool, **settings: Any
    ) -> tuple[Timed, Clock]:
        clock = Clock(lengths)
        pace = Pace(
            finish=lambda: clock.events.append(f"finish {clock.steps}"),
            start=lambda: clock.events.append(f"start {clock.steps}"),
            keep=lambda number: number,
            agree=agree,
        )
        with monkeypatch.context() as patched:
            patched.setattr(time, "perf_counter_ns", clock.read)
            return timed_steps(clock.step, kit.Settings(**settings), pace), clock

    return run


def test_it_warms_up_until_the_steps_are_steady(timed: Any) -> None:
    found, clock = timed([5000, 60, 60, 61, 60, 60], steps=4)
    assert (found.warmup, len(found.times)) == (WINDOW, 4)
    assert clock.events == ["finish 6", "start 6", "finish 10"]
    falling = [5000, *range(300, 100, -20), 100]
    found, _ = timed(falling, steps=4)
    assert WINDOW < found.warmup < MOST_WARMUP
    assert found.times == [100] * 4


def test_it_gives_up_after_so_many_steps(timed: Any) -> None:
    found, clock = timed([round(1e6 * 0.8**i) for i in range(40)], steps=2)
    assert found.warmup == MOST_WARMUP
    assert clock.steps == MOST_WARMUP + 2


def test_a_number_of_warm_up_steps_is_taken_as_it_is(timed: Any) -> None:
    for warmup in (0, 1, 3, 30):
        found, _ = timed([900, 800, 700, 600, 500, 400, 300], warmup=warmup, steps=2)
        assert found.warmup == warmup
        assert found.kept == [warmup + 1, warmup + 2]


def test_losses_are_of_the_same_steps_however_long_it_warmed_up(timed: Any) -> None:
    quick, _ = timed([60], steps=4)
    slow, _ = timed([5000, *range(300, 100, -20), 100], steps=4)
    assert quick.warmup < slow.warmup
    assert quick.kept == slow.kept == [LEAST_WARMUP + 1 + i for i in range(4)]


def test_all_who_take_the_step_must_call_it_steady(timed: Any) -> None:
    asked: list[bool] = []

    def other_is_not(is_steady: bool) -> bool:
        asked.append(is_steady)
        return len(asked) > 3

    found, _ = timed([60], agree=other_is_not, steps=2)
    assert found.warmup == WINDOW + 3
    assert asked == [True] * 4


def test_warm_up_until_steady_is_the_default_and_has_a_word() -> None:
    settings = kit.Settings()
    assert settings.warmup == UNTIL_STEADY
    assert settings.to_string() == ""
    assert kit.Settings.parse("warmup=steady") == settings
    assert kit.Settings.parse("warmup=3").warmup == 3
    assert kit.Settings(warmup=3).to_string() == "warmup=3"
    with pytest.raises(SettingsError, match="warmup"):
        kit.Settings(warmup=-2)
    with pytest.raises(SettingsError, match="or 'steady'"):
        kit.Settings.parse("warmup=soon")


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_run_says_how_many_steps_it_took_to_warm_up(mode: str) -> None:
    settings = kit.Settings(mode=mode, steps=2)
    run = kit.run(mlp, settings)
    assert WINDOW <= run.conditions.warmup_steps <= MOST_WARMUP
    assert len(run.step_times_ns) == len(run.losses) == 2
    assert run.losses == kit.run(mlp, settings.replace(warmup=LEAST_WARMUP)).losses
    assert f"{run.conditions.warmup_steps:.0f} warm-up steps" in str(run.conditions)


MS = 1_000_000


@pytest.mark.parametrize(
    ("each_ms", "count"),
    [(0.1, MOST_STEPS), (2, 500), (3, 334), (25, 40), (50, 30), (200, 25), (900, 10)],
)
def test_by_default_enough_steps_are_measured_to_fill_a_second(
    timed: Any, each_ms: float, count: int
) -> None:
    found, clock = timed([round(each_ms * MS)])
    assert len(found.times) == count
    assert len(found.kept) == LEAST_STEPS
    assert clock.events == [f"finish {WINDOW}", f"start {WINDOW}", f"finish {WINDOW + count}"]
    asked, _ = timed([round(each_ms * MS)], steps=7)
    assert len(asked.times) == len(asked.kept) == 7


def test_a_slow_first_step_and_what_is_still_to_be_done_are_no_reason_for_fewer(
    timed: Any,
) -> None:
    found, _ = timed([5000 * MS, 10 * MS], warmup=3)
    assert len(found.times) == 100
    unknown, _ = timed([10 * MS], warmup=0)
    assert len(unknown.times) == LEAST_STEPS


def test_a_host_that_runs_ahead_of_the_device_counts_what_the_device_still_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, behind = Clock([1 * MS]), [0]

    def step() -> int:
        behind[0] += 24 * MS  # the device takes 25 ms
        return clock.step()

    def finish() -> None:
        clock.now += behind[0]
        behind[0] = 0

    monkeypatch.setattr(time, "perf_counter_ns", clock.read)
    found = timed_steps(step, kit.Settings(), Pace(finish=finish, keep=lambda number: number))
    assert len(found.times) == 40


def test_all_who_take_the_step_measure_equally_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock([10 * MS])
    monkeypatch.setattr(time, "perf_counter_ns", clock.read)
    pace = Pace(finish=lambda: None, keep=lambda number: number, share=lambda mine: mine + 3)
    assert len(timed_steps(clock.step, kit.Settings(), pace).times) == 103


def test_an_iterator_that_ends_says_how_many_steps_are_needed(timed: Any) -> None:
    def ends() -> int:
        raise StopIteration

    pace = Pace(finish=lambda: None)
    with pytest.raises(SettingsError, match=r"of 21 to 1,025 \(fewer with warmup=3, steps=10\)"):
        timed_steps(ends, kit.Settings(), pace)
    with pytest.raises(SettingsError, match="of 18: give it more data"):
        timed_steps(ends, kit.Settings(warmup=3, steps=10), pace)


def test_an_error_whose_own_words_fail_comes_out_of_the_loop_as_it_is(timed: Any) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fails() -> int:
        raise Mute

    with pytest.raises(Mute) as raised:
        timed_steps(fails, kit.Settings(), Pace(finish=lambda: None))
    assert "warm-up step 0" in raised.value.__notes__[0]


def test_an_error_that_takes_no_note_comes_out_of_the_loop_as_it_is(timed: Any) -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int = 3

    def fails() -> int:
        raise Frozen

    with pytest.raises(Frozen):
        timed_steps(fails, kit.Settings(), Pace(finish=lambda: None))


def test_enough_steps_is_the_default_and_has_a_word() -> None:
    assert (kit.Settings().steps, kit.Settings().least_steps) == (ENOUGH, LEAST_STEPS)
    assert kit.Settings.parse("steps=enough") == kit.Settings.parse("") == kit.Settings()
    assert kit.Settings(steps=12).least_steps == 12
    with pytest.raises(SettingsError, match="steps"):
        kit.Settings(steps=0)


def test_what_else_the_machine_did_is_known_of_a_run_of_short_steps() -> None:
    run = kit.run(mlp, kit.Settings(mode="torch"))
    assert len(run.step_times_ns) > len(run.losses) == LEAST_STEPS
    assert not math.isnan(run.conditions.others)
    assert run.conditions.others >= 0


def test_a_loss_of_several_numbers_is_refused_after_the_first_step() -> None:
    steps = []

    def step() -> torch.Tensor:
        steps.append(1)
        return torch.ones(3)

    with pytest.raises(SettingsError, match=r"one number, not a tensor of shape \(3,\)"):
        timed_steps(step, kit.Settings(), Pace(finish=lambda: None))
    assert len(steps) == 1


@pytest.mark.parametrize("mode", ["lazy", "torch"])
@pytest.mark.parametrize("result", [None, 3, (torch.ones(()),)])
def test_what_is_no_loss_is_refused_after_the_first_step(mode: str, result: Any) -> None:
    calls = []

    def build(ctx: kit.Context) -> Callable[[], Any]:
        def step() -> Any:
            calls.append(None)
            return result

        return step

    with pytest.raises(SettingsError, match=f"as a tensor, not {type(result).__name__}"):
        kit.run(build, kit.Settings(mode=mode, warmup=4, steps=2))
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["lazy", "torch"])
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_loss_of_one_number_may_have_dimensions(framework: str, mode: str) -> None:
    def build(ctx: kit.Context) -> Callable[[], Any]:
        if framework == "jax":
            total = kit.jax.step(lambda x: x.sum(keepdims=True))
            return lambda: total(np.ones((2, 2), np.float32))
        x = torch.ones(2, 2).to(ctx.device)
        return lambda: x.sum((0, 1), keepdim=True)

    workload = kit.workload(framework=framework)(build)
    run = kit.run(workload, kit.Settings(mode=mode, warmup=1, steps=2))
    assert run.losses == (4.0, 4.0)


@pytest.mark.parametrize("report_ms", [1, 20])
def test_a_report_that_takes_long_makes_no_step_shorter(
    monkeypatch: pytest.MonkeyPatch, report_ms: int
) -> None:
    """The device went on with its last step meanwhile: steps of 50 ms were 30, and then 1.

    They come seldom then, but for the last one, which says that all steps are measured.
    """
    clock, busy_until, parts = Clock([1 * MS]), [0], list[float]()

    def step() -> int:
        clock.now = max(clock.now, busy_until[0] - 50 * MS)  # one step ahead of the device
        busy_until[0] = max(busy_until[0], clock.now) + 50 * MS
        return clock.step()

    def finish() -> None:
        clock.now = max(clock.now, busy_until[0])

    def report(text: str, part: float) -> None:
        clock.now += report_ms * MS
        parts.append(part)

    monkeypatch.setattr(time, "perf_counter_ns", clock.read)
    pace = Pace(finish=finish, keep=lambda number: number)
    found = timed_steps(step, kit.Settings(warmup=3, steps=10), pace, progress=report)
    assert np.median(found.times) >= 0.95 * 50 * MS
    assert sum(found.times) >= 0.95 * 10 * 50 * MS
    assert parts[-1] == pytest.approx(0.9)


def test_data_that_ends_in_the_traced_steps_is_said_too() -> None:
    def mine(ctx: Any) -> Any:
        weight = torch.nn.Parameter(torch.ones(3, device=ctx.device))
        batches = iter([torch.ones(3, device=ctx.device)] * 9)
        return lambda: (weight * next(batches)).sum()

    for mode in ("lazy", "torch"):
        with pytest.raises(SettingsError, match=r"in the traced steps, which are the last of 1\d"):
            kit.run(mine, kit.Settings(mode=mode, warmup=3, steps=4))


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_run_changes_no_random_numbers_of_the_program(mode: str) -> None:
    """Training that went on in the notebook had the same dropout after each run."""
    torch.manual_seed(3)
    plain = [torch.rand(1).item() for _ in range(2)]
    torch.manual_seed(3)
    drawn = []
    for _ in range(2):
        kit.run(mlp, kit.Settings(mode=mode, warmup=1, steps=1))
        drawn.append(torch.rand(1).item())
    assert drawn == plain
