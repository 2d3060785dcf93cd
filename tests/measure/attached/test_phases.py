"""Loops of several phases: their optimizers replace each other, and a watch follows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SettingsError
from kit.measure.attached import later
from kit.measure.attached.optimizers import Leader
from kit.measure.base.loop import TRACED_STEPS
from kit.runs.conditions import Conditions, doubt
from kit.runs.steady import MOST_WARMUP
from kit.runs.verdict.summary import summary
from kit.text import format_ms
from tests.factories import make_run
from tests.measure.attached.loops import Loop

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def _steps(optimizer: torch.optim.Optimizer, count: int) -> None:
    weight = optimizer.param_groups[0]["params"][0]
    for _ in range(count):
        weight.square().sum().backward()
        optimizer.step()


def _sgd(size: int = 4) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(size, size))], lr=0.01)


def test_where_the_first_optimizer_is_gone_the_next_one_ends_steps() -> None:
    with kit.watch(steps=5, skip=2) as watch:
        for _ in range(3):  # of a cross-validation, each too short to be recorded
            _steps(_sgd(), 4)
        _steps(_sgd(), 20)
    assert watch.ended.startswith("complete")
    assert watch.run.timeline.where(kind="step").sum() == TRACED_STEPS
    said = "12 steps before these are left out: they ended with the step() of an optimizer that"
    assert any(note.startswith(said) for note in watch.run.timeline.notes)


def test_where_optimizers_are_made_all_the_time_the_one_that_outlives_them_ends_steps() -> None:
    """As in meta-learning: some inner steps for each task, and one of the model's for them all."""
    outer, tasks, inner_steps = _sgd(), 2, 3
    with kit.watch(steps=5, skip=2) as watch:
        for _ in range(24):
            for _ in range(tasks):
                inner = _sgd()
                _steps(inner, inner_steps)
            _steps(outer, 1)
    assert watch.ended.startswith("complete")
    phases = [s.name for s in watch.run.timeline.spans if s.kind == "record"]
    assert phases.count("backward") == (tasks * inner_steps + 1) * TRACED_STEPS
    assert watch.run.environment["a step ends at"].startswith("SGD.step()")
    (note,) = [note for note in watch.run.timeline.notes if "left out" in note]
    assert note.endswith("and so on: call watch.step() where a step of the loop ends")


def test_an_optimizer_that_is_made_anew_for_the_same_model_begins_nothing_again() -> None:
    """As in the rounds of federated training, each shorter than a recording."""
    weight = nn.Parameter(torch.ones(4, 4))
    with kit.watch(steps=5, skip=2) as watch:
        for _ in range(6):
            optimizer = torch.optim.SGD([weight], lr=0.01)
            _steps(optimizer, 4)
    assert watch.ended.startswith("complete")
    assert not any("left out" in note for note in watch.run.timeline.notes)


def test_an_optimizer_that_is_kept_and_stepped_no_more_is_replaced_too() -> None:
    head, model = _sgd(), _sgd()
    with kit.watch(steps=5, skip=2) as watch:
        _steps(head, 4)
        _steps(model, 60)
    assert watch.ended.startswith("complete")
    assert any("4 steps before these" in note for note in watch.run.timeline.notes)


def test_the_many_steps_of_another_optimizer_in_each_step_replace_none() -> None:
    critic, generator = _sgd(), _sgd()
    with kit.watch(steps=3, skip=1) as watch:
        for _ in range(12):
            _steps(generator, 1)
            _steps(critic, 10)
    phases = [s.name for s in watch.run.timeline.spans if s.kind == "record"]
    assert phases.count("backward") == 11 * TRACED_STEPS
    assert not any("left out" in note for note in watch.run.timeline.notes)


def test_two_optimizers_that_lead_in_turns_do_not_replace_each_other_for_ever() -> None:
    """A GAN whose recordings began once at one of them and once at the other."""
    leader, both = Leader(), [Loop().optimizer for _ in range(2)]
    for k in range(12):
        first, second = both[k % 2], both[1 - k % 2]
        leader.take(first)
        for _ in range(5):
            assert not leader.is_replaced(second, 100)
            assert leader.ends_step(first)


def test_a_watch_that_is_used_again_takes_the_next_loop_as_it_is() -> None:
    watch, loop = kit.watch(steps=2, skip=0), Loop()
    with watch:
        for _ in loop.steps(12):
            watch.step()
    first = watch.run
    with watch:
        with pytest.raises(SettingsError, match="the watch has seen no step"):
            watch.run.name  # noqa: B018 - not that of the first loop
        assert watch.ended == ""
        loop.train(12)  # by its optimizer
    assert watch.runs == (first, watch.run)
    assert watch.run.environment["a step ends at"].startswith("AdamW.step()")


def test_a_loop_whose_time_is_outside_of_what_was_recorded_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where games are played between the phases of training."""
    clock = itertools.count(step=10**9)
    monkeypatch.setattr(later, "perf_counter_ns", lambda: next(clock))
    loop = Loop()
    with kit.watch(steps=3, skip=0) as watch:
        loop.train(11)  # one more than is recorded
        assert watch.ended.startswith("complete")
        loop.train(2)
        Loop().train(2)  # another loop's steps are not counted
        loop.train(1)
        recorded = watch.run
    said = set(watch.run.timeline.notes) - set(recorded.timeline.notes)
    own = format_ms(fmean(recorded.step_times_ns) / 1e6)
    busy = ", unless other programs did that" * bool(doubt(recorded.conditions))
    assert list(said) == [
        f"after the recording the loop made 4 steps in 4 s, 1 s each in the mean; the measured "
        f"ones took {own}: the rest of the loop's time is outside of what was recorded{busy}"
    ]
    watch.close()
    assert len(watch.run.timeline.notes) == len(recorded.timeline.notes) + 1


def later_steps(monkeypatch: pytest.MonkeyPatch, count: int, *, each_ns: int) -> later.LaterSteps:
    """So many steps after the recording, each as long as this on a clock of their own."""
    clock = itertools.count(step=each_ns)
    monkeypatch.setattr(later, "perf_counter_ns", lambda: next(clock))
    steps = later.LaterSteps()
    steps.begin()
    for _ in range(count):
        steps.end_step()
    return steps


@pytest.mark.parametrize(
    ("own_ms", "said"),
    [(10, []), (13, []), (40, ["a slower beginning"]), (1, ["outside of what was recorded"])],
)
def test_later_steps_that_are_much_slower_or_faster_than_the_measured_ones_are_said(
    own_ms: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = later_steps(monkeypatch, 3, each_ns=10**7)
    run = replace(make_run(), step_times_ns=(own_ms * 10**6,) * 3)
    notes = set(steps.noted(run).timeline.notes) - set(run.timeline.notes)
    assert [part for note in notes for part in said if part in note] == said
    assert bool(notes) == bool(said)


@pytest.mark.parametrize("own_ms", [40, 1])
@pytest.mark.parametrize("others", [0.0, 1.8])
def test_on_a_busy_machine_later_steps_may_be_others_by_other_programs(
    own_ms: int, others: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of equal steps was told of "a slower beginning, as of an epoch that fills a cache"."""
    steps = later_steps(monkeypatch, 3, each_ns=10**7)
    taken = Conditions(cores=2, others=others)
    run = replace(make_run(), step_times_ns=(own_ms * 10**6,) * 3, conditions=taken)
    said = steps.noted(run).timeline.notes[-1]
    assert said.endswith(", unless other programs did that") == (others > 0)


@pytest.mark.parametrize(("own_ms", "said"), [((4, 16), False), ((9, 11), True)])
def test_noise_of_the_measured_steps_is_no_time_outside_of_them(
    own_ms: tuple[int, int], said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 ms each was "the rest of the loop's time" beside steps of 4 ms to 16 ms."""
    steps = later_steps(monkeypatch, 6, each_ns=14 * 10**6)
    run = replace(make_run(), step_times_ns=tuple(ms * 10**6 for ms in own_ms * 2))
    assert any("each in the mean" in note for note in steps.noted(run).timeline.notes) == said


def test_what_takes_long_after_the_last_step_or_in_a_few_later_ones_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A validation at the end of the only epoch: 1 s of 1.6 s, and no word of it."""
    now = [0]
    monkeypatch.setattr(later, "perf_counter_ns", lambda: now[0] + 1)
    steps = later.LaterSteps()
    run = replace(make_run(), step_times_ns=(5 * 10**6,) * 10)
    steps.begin()
    now[0] += 1000 * 10**6
    steps.end_step()
    (note,) = set(steps.noted(run).timeline.notes) - set(run.timeline.notes)
    assert "made 1 step in 1 s" in note
    steps.begin()
    now[0] += 1000 * 10**6
    assert steps.noted(run).timeline.notes == run.timeline.notes
    steps.end()
    (note,) = set(steps.noted(run).timeline.notes) - set(run.timeline.notes)
    assert note.startswith("after the loop's last step the program went on for 1 s")


def test_what_took_long_before_the_only_phase_that_was_seen_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with --stop, before games are played again: 20 s of them, and 0.1 s of steps were told.

    It was also said of each script that imports and loads for a second or two.
    """
    now = [0]
    monkeypatch.setattr(later, "perf_counter_ns", lambda: now[0])
    run = replace(make_run(), step_times_ns=(5 * 10**6,) * 20)
    for before_ms, later_steps, is_said in ((20000, 0, True), (20000, 1, False), (9000, 0, False)):
        now[0] = before_ms * 10**6
        steps = later.LaterSteps(asked_ns=0)
        steps.begin()
        for _ in range(later_steps):
            steps.end_step()
        notes = set(steps.noted(run).timeline.notes) - set(run.timeline.notes)
        assert bool(notes) == is_said
        assert all(note.startswith("recording began 20 s after it was asked for") for note in notes)


def test_another_optimizer_that_steps_several_times_in_each_step_is_named() -> None:
    """A step of 34 ms stood beside tqdm's 7 ms an iteration."""
    rare, often = _sgd(), _sgd()
    with kit.watch(steps=3, skip=1) as watch:
        for _ in range(12):
            _steps(rare, 1)
            _steps(often, 5)
    (note,) = [note for note in watch.run.timeline.notes if "another optimizer" in note]
    assert "makes 5: SGD.step(), test_phases.py:" in note
    ends_at = watch.run.environment["a step ends at"]
    assert ends_at in note
    assert f"a step ends at {ends_at}" in summary(watch.run)


def test_the_steps_of_the_next_optimizer_after_a_recording_count_as_the_loops() -> None:
    """A second phase, of 95 % of the loop, was not mentioned at all."""
    loop, after = Loop(), Loop()
    with kit.watch(steps=3, skip=0) as watch:
        loop.train(12)
        assert watch.ended.startswith("complete")
        before = watch._later._count
        after.train(MOST_WARMUP + 12)
        assert watch._later._count >= before + 10


class _Calls(torch.optim.SGD):
    """Its step has torch's inside, which torch's hooks hear of, too."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def _step_by_group(optimizer: torch.optim.Optimizer) -> None:
    every = optimizer.param_groups
    for group in every:
        optimizer.param_groups = [group]
        optimizer.step()
    optimizer.param_groups = every


@pytest.mark.parametrize(
    ("kind", "update"), [(torch.optim.SGD, _step_by_group), (_Calls, _Calls.step)]
)
def test_a_step_after_the_recording_that_is_heard_of_several_times_counts_once(
    kind: Any, update: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of DeepSpeed, group by group, or one with torch's own `step` inside."""
    clock = itertools.count(step=10**9)
    monkeypatch.setattr(later, "perf_counter_ns", lambda: next(clock))
    weights = [nn.Parameter(torch.ones(2, 1)) for _ in range(3)]
    torch.optim.SGD(weights)  # from now on torch hooks the class's step
    optimizer = kind([{"params": [weight]} for weight in weights], lr=0.1)
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(15):
            sum(weight.sum() for weight in weights).backward()
            update(optimizer)
    assert "after the recording the loop made 6 steps in 6 s" in watch.run.timeline.notes[-1]


def test_the_steps_of_the_next_loop_are_said_of_no_run_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=10**9)
    monkeypatch.setattr(later, "perf_counter_ns", lambda: next(clock))
    loop, watch = Loop(), kit.watch(steps=2, skip=0, when=tmp_path / "go")
    with watch:
        watch.start()
        for _ in loop.steps(10):
            watch.step()
    first = watch.run
    with watch:  # nobody asks
        for _ in loop.steps(10):
            watch.step()
    assert watch.runs == (first,)
