"""Step modes: replayed and guessed steps give the same bits, and say why they could not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kit.measure.base.context import Context, Workload, workload
from kit.measure.experiment import run
from kit.runs.settings import Settings
from kit.runtime.recording.bulk import Cut, Seen, Task
from kit.runtime.session.session import Session
from kit.runtime.steps.payoff import WINDOW, Payoff
from kit.runtime.steps.stepper import CONFIRM, STOPPED, VERIFY_EVERY
from kit.torch.device import open_session
from tests.measure.attached.loops import python_calls


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
    # With state between the steps so many that one in the middle is recorded, else as are judged.
    keeps = "accumulate" in changes or changes.get("loss_scaling") == "dynamic, on device"
    steps = VERIFY_EVERY + 8 if keeps else WINDOW + 8
    base = Settings(batch_size=4, steps=steps, warmup=CONFIRM + 3, **changes)
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
