"""What a program has, changes and is told while its steps are replayed."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kit.ir.plan import SEGMENTS_AHEAD
from kit.measure.base.context import Context
from kit.measure.experiment import run
from kit.runs.settings import Settings
from kit.runtime.recording.bulk import Task
from kit.runtime.session.session import Session
from kit.runtime.steps.stepper import CONFIRM, VERIFY_EVERY
from kit.torch.device import open_session


def replaying(step: Callable[[], Any], session: Session, steps: int) -> list[Any]:
    return [session.run_step(step) for _ in range(steps)]


def test_tensors_of_the_program_follow_the_replayed_steps() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        weight = torch.zeros(2, device="kit")
        grad = {}

        def step() -> Any:
            grad["now"] = weight * 2.0
            weight.add_(1.0)
            return weight.sum()

        results = replaying(step, session, 10)
        assert session.metrics()["replay.steps"] > 3
        assert weight.tolist() == [10.0, 10.0]
        assert grad["now"].tolist() == [18.0, 18.0]
        assert [r.item() for r in results] == [2.0 * (i + 1) for i in range(10)]
        weight.mul_(0.0)  # between two steps: a fresh start
        assert session.run_step(step).item() == 2.0
        assert session.run_step(step).item() == 4.0


def test_a_batch_of_another_shape_is_recorded_and_not_lost() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        batches = iter([torch.full((2 if i != 8 else 5,), float(i)) for i in range(12)])

        def step() -> Any:
            return session.fetch(lambda_load).sum()

        def lambda_load() -> Any:
            return next(batches).to("kit")

        got = [r.item() for r in replaying(step, session, 12)]
        assert got == [i * (2.0 if i != 8 else 5.0) for i in range(12)]
        assert session.metrics()["replay.steps"] > 2


def test_a_batch_that_brings_another_number_is_recorded_and_not_lost() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        batches = iter([{"x": torch.ones(2), "more": [2.5 if i < 8 else 4.5]} for i in range(12)])

        def load() -> Any:
            batch = next(batches)
            return {**batch, "x": batch["x"].to("kit")}

        def step() -> Any:
            batch = session.fetch(load)
            return (batch["x"] * batch["more"][0]).sum()

        got = [r.item() for r in replaying(step, session, 12)]
        assert got == [5.0] * 8 + [9.0] * 4
        assert session.metrics()["replay.steps"] > 2
        assert any("batch['more'][0]" in reason for reason in session.stepper.reasons)


def test_what_a_step_calls_is_called_again_at_its_place() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        seen: list[int] = []

        def note() -> None:
            seen.append(session.metrics()["segment.count"])

        def step() -> Any:
            y = x * 2
            session.flush("test")
            session.stepper.note_call(note)
            note()
            total = y.sum()
            session.flush("test")
            session.stepper.note_call(note)
            note()
            return total

        replaying(step, session, 9)
        assert session.metrics()["replay.steps"] > 2
        assert seen == list(range(1, 19))


def test_another_function_is_another_step() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        got = [session.run_step(lambda: (x * 2.5).sum()).item() for _ in range(8)]
        assert session.metrics()["replay.steps"] > 2
        assert [*got, session.run_step(lambda: (x * 4.5).sum()).item()] == [5.0] * 8 + [9.0]


def test_what_a_program_keeps_or_changes_between_steps_stays_so() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        w = torch.zeros(2, device="kit")
        other = torch.zeros(2, device="kit")

        def step() -> Any:
            w.add_(1.0)
            return w.sum()

        replaying(step, session, 8)
        kept, copied = w.clone(), other.copy_(w)
        assert session.run_step(step).item() == 18.0
        assert session.run_step(step).item() == 20.0
        assert (kept.tolist(), copied.tolist()) == ([8.0] * 2, [8.0] * 2)
        before = session.metrics()["replay.steps"]
        assert before > 2
        w.mul_(0.0)
        session.wait_all()
        assert session.run_step(step).item() == 2.0
        assert session.metrics()["replay.steps"] == before


def test_a_loader_that_fails_in_a_replay_costs_the_other_its_batch_as_in_torch() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        first, second, fails = iter(range(100)), iter(range(100)), [False]

        def load() -> Any:
            return torch.full((2,), float(next(first))).to("kit")

        def load_more() -> Any:
            if fails[0]:
                fails[0] = False
                raise OSError("the disk is gone")
            return torch.full((2,), float(next(second))).to("kit")

        def step() -> Any:
            return (session.fetch(load) * 100 + session.fetch(load_more)).sum()

        got = [r.item() for r in replaying(step, session, 8)]
        fails[0] = True
        with pytest.raises(OSError, match="the disk is gone"):
            session.run_step(step)
        got += [r.item() for r in replaying(step, session, 4)]
        assert got == [202.0 * i for i in range(8)] + [202.0 * i + 200 for i in range(8, 12)]


def test_a_change_is_found_at_the_next_check() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        logging.addLevelName(77, "x" * 3)  # only the package's own code looks it up

        def step() -> Any:
            return (x * (2.5 + len(logging.getLevelName(77)))).sum()

        replaying(step, session, CONFIRM + 2)
        logging.addLevelName(77, "x" * 5)
        results = replaying(step, session, VERIFY_EVERY + 1)
        assert results[0].item() == 11.0
        assert results[-1].item() == 15.0
        assert any("replayed steps later" in r for r in session.stepper.reasons)


def test_an_error_in_a_step_ends_the_replay_and_the_session_goes_on() -> None:
    with open_session(Settings(mode="lazy", step_mode="speculate")) as session:
        x = torch.ones(2, device="kit")
        fails = [False]

        def step() -> Any:
            y = x * 2.5
            if fails[0]:
                raise ValueError("mine")
            return y + x

        replaying(step, session, 5)
        fails[0] = True
        with pytest.raises(ValueError, match="mine"):
            session.run_step(step)
        fails[0] = False
        assert session.run_step(step).tolist() == [3.5, 3.5]


@pytest.mark.parametrize("is_other_tensor", [False, True])
def test_a_wrong_guess_changes_nothing(is_other_tensor: bool) -> None:
    with open_session(Settings(mode="lazy", step_mode="speculate")) as session:
        weight = torch.zeros(2, device="kit")
        up, down = torch.full((2,), 1.5, device="kit"), torch.full((2,), -0.5, device="kit")
        session.mark_step()

        def step(sign: float) -> Any:
            if is_other_tensor:
                weight.add_(up if sign > 0 else down)
            else:
                weight.add_(1.5) if sign > 0 else weight.sub_(0.5)
            weight.sum().item()  # else there is nothing to guess for
            return weight.clone()

        signs = [1, 1, 1, 1, -1, 1, 1, 1, -1, -1, 1]
        got = [session.run_step(lambda s=s: step(s)) for s in signs]
        expected, total = [], 0.0
        for sign in signs:
            total += 1.5 if sign > 0 else -0.5
            expected.append([total, total])
        assert [g.tolist() for g in got] == expected
        metrics = session.metrics()
        assert metrics["speculate.wrong"] >= 2
        assert metrics["speculate.right"] >= 2
        assert all(session.stepper.reasons)


def test_a_parameters_memory_is_taken_over_by_its_next_version() -> None:
    with open_session(Settings(mode="lazy")) as session:
        weight = torch.zeros(1000, device="kit")
        session.run_step(lambda: weight.add_(1.5))
        session.wait_all()
        old = weight.ref.read(weight.tape).cell.array
        session.run_step(lambda: weight.add_(1.5))
        session.wait_all()
        assert old.is_deleted()
        snapshot = weight.clone()  # from now on somebody else needs it
        session.run_step(lambda: weight.add_(1.5))
        assert snapshot[0].item() == 3.0
        assert weight[0].item() == 4.5


def test_what_a_program_has_copied_between_steps_is_not_written_over() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        w, fixed = torch.zeros(2, device="kit"), torch.ones(2, device="kit")

        def step() -> Any:
            w.add_(fixed)
            return fixed

        got = replaying(step, session, 6)
        kept = w.clone()
        session.run_step(step)
        session.run_step(step)
        fixed.add_(1.0)  # what a replay has returned is a tensor of its own
        session.mark_step()
        assert session.metrics()["replay.steps"] >= 3
        assert (kept.tolist(), got[-1].tolist(), w.tolist()) == ([6.0] * 2, [1.0] * 2, [8.0] * 2)


def test_a_replay_that_ends_in_the_middle_leaves_what_it_has_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_session(Settings(step_mode="replay", bulk_forward=1)) as session:
        first, second = torch.zeros(2, device="kit"), torch.zeros(2, device="kit")

        def step() -> None:
            first.add_(1.0)
            second.add_(1.0)

        replaying(step, session, 6)
        issue, issued = session.issuer.issue, []

        def once(task: Task) -> None:
            if issued:
                raise MemoryError
            issued.append(task)
            issue(task)

        with monkeypatch.context() as patch:
            patch.setattr(session.issuer, "issue", once)
            with pytest.raises(MemoryError):
                session.run_step(step)
        assert len(issued) == 1
        assert (first.tolist(), second.tolist()) == ([7.0] * 2, [6.0] * 2)
        session.run_step(step)
        assert (first.tolist(), second.tolist()) == ([8.0] * 2, [7.0] * 2)


def test_replayed_steps_leave_no_tasks_behind() -> None:
    def tasks() -> int:
        gc.collect()
        return sum(type(o) is Task for o in gc.get_objects())

    before = tasks()  # of others in this process
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(4, device="kit")
        for _ in range(3 * SEGMENTS_AHEAD):
            session.run_step(lambda: (x * 2).sum())
        session.wait_all()
        assert session.stepper.counts["replay.steps"] > 2 * SEGMENTS_AHEAD
        assert tasks() - before < 2 * SEGMENTS_AHEAD


def test_a_step_whose_input_has_a_gradient_is_replayed_though_it_returns_its_graph() -> None:
    """As wav2vec2 trains its first layers: the loss's graph holds the input of the step before."""

    def build(ctx: Context) -> Any:
        x = torch.ones(3, device="kit")

        def step() -> Any:
            leaf = x[:, None].requires_grad_()
            (loss := leaf.square().sum()).backward()
            return loss

        return step

    made = run(build, Settings(mode="lazy", step_mode="replay", warmup=8, steps=3))
    assert made.metrics["replay.steps"] > 5
