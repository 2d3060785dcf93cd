"""Step modes: replayed and guessed steps give the same bits, and say why they could not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kit.measure.base.context import Context, Workload, workload
from kit.measure.experiment import run
from kit.runs.settings import Settings
from kit.runtime.recording.bulk import Cut, Seen, Task
from kit.runtime.session.issuer import MAX_AHEAD
from kit.runtime.session.session import Session
from kit.runtime.steps.payoff import WINDOW, Payoff
from kit.runtime.steps.stepper import CONFIRM, STOPPED, VERIFY_EVERY
from kit.torch.device import open_session
from tests.measure.attached.test_native import python_calls


def net(ctx: Context, **optimizer: Any) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(ctx.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    ).to(ctx.device)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, **optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
    return model, opt, ctx.loader(data), ctx.scaler()


@workload
def regression(ctx: Context) -> Callable[[], Any]:
    model, opt, batches, scaler = net(ctx, capturable=True)

    def step() -> Any:
        total = torch.zeros((), device=ctx.device)
        for _ in range(ctx.accumulate):
            x, y = next(batches)
            loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return total

    return step


@workload
def reading(ctx: Context) -> Callable[[], Any]:
    """The same, with a wait for the device at the end of each step."""
    step = regression(ctx)

    def read() -> Any:
        loss = step()
        loss.item()
        return loss

    return read


SETTINGS: list[dict[str, Any]] = [
    {"mode": "lazy"},
    {"mode": "lazy", "accumulate": 2, "prefetch": 2},
    {"bulk_forward": 4, "bulk_backward": 9},
    {"segment_mode": "launch"},
    {"mode": "lazy", "loss_scaling": "dynamic, host check"},
    {"mode": "lazy", "loss_scaling": "dynamic, on device"},
    {"mode": "lazy", "loss_scaling": "dynamic, deferred"},
]


def test_a_replay_that_donates_gives_the_same_bits() -> None:
    def losses(donates: bool) -> list[float]:
        settings = Settings(mode="lazy", step_mode="replay", batch_size=4)
        with open_session(settings) as session:
            session.policy.donates = donates
            torch.manual_seed(0)
            step = regression(Context(settings, "kit"))
            kept = [session.run_step(step) for _ in range(12)]
            assert session.metrics()["replay.steps"] > 4
            return [x.item() for x in kept]

    assert losses(True) == losses(False)


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_the_step_modes_give_the_same_bits(changes: dict[str, Any]) -> None:
    base = Settings(batch_size=4, steps=VERIFY_EVERY + 8, warmup=CONFIRM + 3, **changes)
    recorded = run(regression, base)
    for mode in ("replay", "speculate"):
        other = run(regression if mode == "replay" else reading, base.replace(step_mode=mode))
        assert other.losses == recorded.losses
        assert other.metrics["compile.count"] == recorded.metrics["compile.count"]
        looks = changes.get("loss_scaling") in ("dynamic, host check", "dynamic, deferred")
        if mode == "replay":
            replayed = other.metrics.get("replay.steps", 0)
            assert (replayed == 0) if looks else (replayed >= base.steps - 2)
        else:
            issued, right = (other.metrics[f"speculate.{x}"] for x in ("issued", "right"))
            # From a whole window on only if it pays. On a busy machine the device is done before
            # the program asks in a step or two, and no step is guessed after one without a wait.
            assert issued == right >= WINDOW // 2


def python_calls_of(step_mode: Any, *, reads: bool) -> tuple[int, Session]:
    """How many functions of Python the steady step runs in this thread."""
    with open_session(Settings(mode="lazy", step_mode=step_mode, batch_size=4)) as session:
        step = (reading if reads else regression)(Context(session.settings, "kit"))
        for _ in range(6):
            session.run_step(step)
        return python_calls(lambda: session.run_step(step)), session


def test_a_step_that_waits_for_nothing_is_not_guessed_and_costs_what_retrace_does() -> None:
    retraced, _ = python_calls_of("retrace", reads=False)
    guessed, session = python_calls_of("speculate", reads=False)
    assert "speculate.issued" not in session.metrics()
    assert "waits for the device in none of them" in session.explain()
    assert guessed <= retraced + 4
    retraced, _ = python_calls_of("retrace", reads=True)
    guessed, session = python_calls_of("speculate", reads=True)
    assert session.metrics()["speculate.issued"] >= 3
    assert "waits for the device in none of them" not in session.explain()
    assert guessed < retraced * 1.25  # of a step of 44 ops


def test_a_step_that_begins_to_wait_is_guessed_and_one_that_ceases_is_not() -> None:
    with open_session(Settings(mode="lazy", step_mode="speculate")) as session:
        x = torch.ones(4, device="kit")

        def step(reads: bool) -> Any:
            y = x.mul_(1.5).sum()
            return float(y) if reads else y

        def run_steps(reads: bool) -> int:
            before = session.stepper.counts["speculate.issued"]
            for _ in range(6):
                session.run_step(lambda: step(reads))
            return session.stepper.counts["speculate.issued"] - before

        assert run_steps(False) == 0
        assert run_steps(True) >= 2
        assert run_steps(False) <= 1  # after the last step that waited
        assert run_steps(True) >= 2
        assert STOPPED not in session.metrics()
        session.stepper.payoff.cost(-(10**15))  # as if guessing had taken days
        for _ in range(WINDOW):
            run_steps(True)
        assert run_steps(True) == 0
        assert session.metrics()[STOPPED] == 1


def judged(gain_ns: int, cost_ns: int, *, is_right: bool = True) -> Payoff:
    """After a window of steps that wait, each with such a guess, which took so long."""
    payoff = Payoff()
    for _ in range(WINDOW):
        payoff.note_wait()
        payoff.begin_step()
        payoff.judge(Task(0, Cut(None, (), "", ()), seen=Seen(dispatch_ns=(1, 1 + gain_ns))),
                     is_right=is_right)  # fmt: skip
        payoff.cost(time.thread_time_ns() - cost_ns)
        payoff.end_step()
    return payoff


def test_guesses_that_gain_less_than_they_cost_end_for_good_and_that_is_said() -> None:
    second = 10**9
    assert judged(2 * second, second).said == ""
    stopped = judged(second, 2 * second)
    assert "did not pay" in stopped.said
    assert "2,000,0" in stopped.said  # us a step
    assert "1,000,000 us" in stopped.said
    stopped.note_wait()
    assert not stopped.begin_step()
    assert not stopped.is_guessing
    assert judged(second, 0, is_right=False).stopped  # the device ran them for nothing


def test_a_replayed_step_is_drawn_from_its_own_kernels() -> None:
    replayed = run(regression, Settings(mode="lazy", step_mode="replay", steps=3, warmup=8))
    spans = [s for s in replayed.timeline.spans if s.kind != "kernel"]
    assert {s.name for s in spans if s.kind == "plan"} >= {"replay"}
    assert not [s for s in spans if s.kind == "record"]
    assert [s for s in replayed.timeline.spans if s.kind == "kernel" and s.node >= 0]


def reasons(build: Callable[[Context], Any], steps: int = 12) -> dict[str, int]:
    with open_session(Settings(mode="lazy", step_mode="replay", batch_size=4)) as session:
        step = Workload("w", build)(Context(session.settings, "kit"))
        for _ in range(steps):
            session.run_step(step)
        assert "replay.steps" not in session.metrics()
        assert any(
            line.startswith("recorded") and "because" in line
            for line in session.explain().splitlines()
        )
        return dict(session.stepper.reasons)


def test_a_number_that_changes_each_step_is_named_with_its_line() -> None:
    def build(ctx: Context) -> Any:
        model, opt, batches, _ = net(ctx, foreach=True)  # it counts its steps in Python

        def step() -> Any:
            x, y = next(batches)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        return step

    (reason, *_) = [r for r in reasons(build) if "number changes" in r]
    assert "test_step_modes.py" in reason


def test_an_optimizer_that_leaves_the_choice_open_can_be_replayed() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay", batch_size=4)) as session:
        model, opt, batches, _ = net(Context(session.settings, "kit"))

        def step() -> Any:
            x, y = next(batches)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        for _ in range(12):
            session.run_step(step)
        assert session.metrics()["replay.steps"] > 4


def test_a_step_that_waits_for_the_device_is_recorded_and_the_wait_is_named() -> None:
    def build(ctx: Context) -> Any:
        x = torch.ones(3, device="kit")

        def step() -> Any:
            y = x * 2.5
            assert y.sum().item() == 7.5
            return y

        return step

    assert any("item at test_step_modes.py" in r for r in reasons(build))


def test_a_step_that_keeps_its_tensors_is_recorded() -> None:
    kept: list[Any] = []

    def build(ctx: Context) -> Any:
        x = torch.ones(3, device="kit")

        def step() -> Any:
            kept.append(x * 2.5)
            return kept[-1] + x

        return step

    assert any("keeps a tensor of each step" in r for r in reasons(build))
    kept.clear()


def test_a_step_that_sends_its_own_data_is_recorded() -> None:
    def build(ctx: Context) -> Any:
        x = torch.ones(3, device="kit")
        return lambda: x * torch.randn(3).to("kit")

    assert any("copies other data from the host" in r for r in reasons(build))


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


def test_a_loader_that_fails_in_a_replay_gives_its_batches_in_order_afterwards() -> None:
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
        assert got == [202.0 * i for i in range(12)]


def test_a_change_is_found_at_the_next_check() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        ask = attrgetter("away.factor")  # no name in the step's code
        far = SimpleNamespace(away=SimpleNamespace(factor=2.0 + 0.5))

        def step() -> Any:
            return (x * ask(far)).sum()

        replaying(step, session, CONFIRM + 2)
        far.away.factor = 4.5
        results = replaying(step, session, VERIFY_EVERY + 1)
        assert results[0].item() == 5.0
        assert results[-1].item() == 9.0
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
        for _ in range(3 * MAX_AHEAD):
            session.run_step(lambda: (x * 2).sum())
        session.wait_all()
        assert session.stepper.counts["replay.steps"] > 2 * MAX_AHEAD
        assert tasks() - before < 2 * MAX_AHEAD
