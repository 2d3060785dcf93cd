"""The deferred mode: what is taken back, when it looks, and what it never reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SessionError, SettingsError
from kit.runtime.session.session import current_session
from kit.torch.device import open_session
from kit.torch.scaling.choose import make_scaler
from kit.torch.scaling.deferred import DeferredScaler
from kit.workloads import mlp
from tests.torch.scaling.task import (
    CACHE,
    DYNAMIC,
    WAYS,
    Averaged,
    Task,
    assert_equal,
    train,
)


@pytest.mark.parametrize("way", WAYS)
@given(
    bad=st.lists(st.booleans(), min_size=1, max_size=14),
    clip=st.booleans(),
    read_scale=st.booleans(),  # a read settles what is open: both must be right
)
@settings(max_examples=4, deadline=None)
def test_deferred_equals_native_however_the_steps_are_cut(
    way: str, bad: list[bool], clip: bool, read_scale: bool
) -> None:
    expected = train("dynamic, host check", "cpu", bad, clip=clip)
    with open_session(WAYS[way], cache=CACHE):
        got = train("dynamic, deferred", "kit", bad, clip=clip, read_scale=read_scale)
    assert got[1][-1] == expected[1][-1]
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.AdamW, {"lr": 0.02, "fused": True}),
    (torch.optim.Adam, {"lr": 0.02, "amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.05}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    (torch.optim.Adagrad, {"lr": 0.05}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.Rprop, {}),
]


@pytest.mark.parametrize("first", [0, 2], ids=["first step skipped", "later steps skipped"])
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=str)
def test_every_optimizer_is_taken_back_exactly(
    optimizer: Any, options: dict[str, Any], first: int
) -> None:
    bad = [i % 5 == first or i == first + 1 for i in range(16)]
    native = {k: v for k, v in options.items() if k != "fused"}
    expected = train("dynamic, host check", "cpu", bad, optimizer=optimizer, options=native)
    with open_session(WAYS["lazy"], cache=CACHE):
        got = train("dynamic, deferred", "kit", bad, optimizer=optimizer, options=options)
    assert_equal(got, expected)


@pytest.mark.parametrize("first", [0, 2])
def test_state_that_is_replaced_and_not_written_is_taken_back_too(first: int) -> None:
    bad = [i % 4 == first for i in range(12)]
    expected = train("dynamic, host check", "cpu", bad, optimizer=Averaged, options={})
    with open_session(WAYS["lazy"], cache=CACHE):
        got = train("dynamic, deferred", "kit", bad, optimizer=Averaged, options={})
    assert_equal(got, expected)


def test_nothing_is_read_by_the_two_modes_that_do_not_wait() -> None:
    bad = [i % 4 == 2 for i in range(12)]
    for mode, syncs in (
        ("dynamic, on device", 0),
        ("dynamic, deferred", 0),
        ("dynamic, host check", 12),
    ):
        with kit.Session(WAYS["lazy"]) as session:
            task = Task(mode, "kit", torch.optim.AdamW, {})
            for b in bad:
                task.step(b)
            assert len(session.syncs) == syncs, mode


def test_the_deferred_check_says_how_often_it_looked_and_took_back() -> None:
    bad = [i in (3, 7) for i in range(10)]
    with kit.Session(WAYS["lazy"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for b in bad:
            task.step(b)
        task.weights()
        metrics, said = session.metrics(), session.explain()
    assert metrics["check.count"] == 10
    assert metrics["redo.count"] == 2
    assert "10 checks looked at a step later; 2 steps taken back" in said
    assert metrics["redo.segments"] >= 2


@pytest.mark.parametrize("way", WAYS)
def test_what_reads_the_weights_after_a_wrong_step_is_taken_back_as_well(way: str) -> None:
    """An average of the weights, a clamp in place, a copy, random numbers drawn in between."""

    def run(mode: str, device: str) -> list[torch.Tensor]:
        task = Task(mode, device, torch.optim.AdamW, {"lr": 0.1})
        weight = task.model[0].weight
        average, clamped = torch.zeros_like(weight.detach()), None
        for i in range(9):
            task.step(i in (2, 3, 6))
            with torch.no_grad():
                average.mul_(0.9).add_(weight, alpha=0.1)
                weight[0].clamp_(-0.3, 0.3)
            clamped = weight.detach().clone()
            if i % 4 == 1:
                assert torch.isfinite(clamped.sum()).item()
        assert clamped is not None
        return [*task.weights(), average.cpu(), clamped.cpu()]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS[way], cache=CACHE):
        got = run("dynamic, deferred", "kit")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_between_two_steps_is_taken_back_with_the_step(way: str) -> None:
    copies: list[torch.Tensor] = []
    with open_session(WAYS[way]) as session:
        weight = torch.nn.Parameter(torch.ones(3, device="kit"))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler = make_scaler("dynamic, deferred", "kit", init_scale=4.0)

        def step() -> torch.Tensor:
            loss = (weight * (float("inf") if len(copies) == 2 else 1.0)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        for _ in range(4):
            session.run_step(step)
            copies.append(weight.detach().clone())
        assert [copy.tolist() for copy in copies] == [[x] * 3 for x in (0.5, 0.0, 0.0, -0.5)]


def _delay(last: torch.Tensor, one_before: torch.Tensor, weight: torch.Tensor) -> None:
    one_before.copy_(last)
    last.copy_(weight)


def _delay_and_zero(last: torch.Tensor, one_before: torch.Tensor, weight: torch.Tensor) -> None:
    one_before.add_(last)
    last.zero_()


def _reset(last: torch.Tensor, one_before: torch.Tensor, weight: torch.Tensor) -> None:
    one_before.add_(last)
    kit.reset_arrays([last])


class Slow(torch.optim.SGD):
    """As Lookahead: the weights are set to what is kept beside them."""

    def step(self, closure: Any = None) -> None:
        super().step()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.copy_(self.state[p].setdefault("slow", torch.zeros_like(p)).add_(p).mul_(0.5))


@pytest.mark.parametrize("way", ["lazy", "speculate", "replay"])
@pytest.mark.parametrize(
    ("optimizer", "hook"),
    [
        (torch.optim.SGD, _delay),
        (torch.optim.SGD, _reset),
        (torch.optim.SGD, kit.hybridize(_delay)),
        (torch.optim.SGD, kit.hybridize(_delay_and_zero)),
        (Slow, _delay),
    ],
    ids=["copy", "reset", "hybridized copy", "hybridized zeros", "weights that are a copy"],
)
def test_memories_that_share_a_value_are_taken_back_each_to_its_own(
    optimizer: Any, hook: Any, way: str
) -> None:
    """After `a.copy_(b)` both showed one value, and a bad step put one's numbers into both."""

    def run(mode: str, device: str) -> list[torch.Tensor]:
        task = Task(mode, device, optimizer, {"lr": 0.1})
        weight = task.model[0].weight.detach()
        kept = [torch.zeros_like(weight) for _ in range(2)]

        @torch.no_grad()
        def after(*_: Any) -> None:
            hook(*kept, weight)

        task.optimizer.register_step_post_hook(after)
        session, seen = current_session() if device == "kit" else None, []
        for i in range(9):
            step = partial(task.step, i in (3, 4, 6))
            step() if session is None else session.run_step(step)
            kept[0].add_(1.0)
            seen.append(torch.cat(kept))
        return [*task.weights(), *(x.cpu() for x in (*kept, *seen))]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS[way], cache=CACHE):
        got = run("dynamic, deferred", "kit")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_deferred_step_keeps_no_copy_of_its_gradients() -> None:
    """A fused optimizer declares that it writes them."""
    with kit.Session(WAYS["lazy"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for _ in range(3):
            task.step(False)
        (check,) = session.redo._open
        state = sum(len(s) for s in task.optimizer.state.values())
        assert len(check.pairs) == len(task.weights()) + state


def test_a_loss_that_is_read_in_each_step_is_never_one_of_a_wrong_step() -> None:
    bad = [i in (2, 3, 6) for i in range(9)]
    native = Task("dynamic, host check", "cpu", torch.optim.AdamW, {"lr": 0.1})
    expected = [float(native.step(b)) for b in bad]
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {"lr": 0.1})
        got = [task.step(b).item() for b in bad]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_unchecked_steps_keep_no_more_than_one_step_alive() -> None:
    with kit.Session(WAYS["bulked"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for _ in range(6):
            task.step(False)
        few = len(session.redo._kept)
        for _ in range(20):
            task.step(False)
        assert len(session.redo._kept) == few


def test_a_plan_of_a_deferred_step_is_that_of_the_step() -> None:
    plans = [kit.plan(mlp, kit.Settings(loss_scaling=mode)) for mode in DYNAMIC[1:]]
    assert [plan.notes for plan in plans] == [(), ()]
    assert abs(plans[0].counted - plans[1].counted) < 6  # the scale after the step, foreseen


def test_a_session_that_has_planned_a_deferred_step_gives_no_number_of_it() -> None:
    with open_session(WAYS["lazy"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.SGD, {"lr": 0.05})
        session.plan(lambda: task.step(True), steps=1)
        for use in (task.weights, lambda: task.step(False)):
            with pytest.raises(SessionError, match="planned steps whose loss scaling"):
                use()


def test_natively_deferred_means_the_same_weights_on_the_device() -> None:
    bad = [i % 4 == 2 for i in range(12)]
    expected = train("dynamic, host check", "cpu", bad)
    assert_equal(train("dynamic, deferred", "cpu", bad), expected)


def test_a_deferred_step_is_one_segment() -> None:
    with kit.Session(WAYS["lazy"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for _ in range(4):
            task.step(False)
        before = session.metrics()["segment.count"]
        for _ in range(5):
            task.step(False)
        assert session.metrics()["segment.count"] - before == 5


def test_a_parameter_that_is_let_show_memory_of_before_is_refused() -> None:
    with open_session(cache=CACHE):
        task = Task("dynamic, deferred", "kit", torch.optim.SGD, {"lr": 0.1})
        first, _, second, _ = task.model.parameters()

        def shares(*_: Any) -> None:
            second.data = first.data[:1, :]

        task.optimizer.register_step_post_hook(shares)
        with pytest.raises(SettingsError, match=r"assigns the .data of a parameter memory that is"):
            task.step(False)


def test_an_optimizer_that_counts_in_python_is_refused_by_name() -> None:
    class Counting(Averaged):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                self.state[p]["calls"] = self.state[p].get("calls", 0) + 1

    with open_session(cache=CACHE):
        task = Task("dynamic, deferred", "kit", Counting, {})
        task.step(False)
        with pytest.raises(SettingsError, match="Counting keeps 'calls' in a Python number"):
            task.step(False)


def test_an_optimizer_that_counts_in_its_group_is_refused_and_its_step_taken_back() -> None:
    class Counting(torch.optim.RMSprop):
        def step(self, closure: Any = None) -> None:
            group = self.param_groups[0]
            group["step"] = group.get("step", 0) + 1
            super().step()

    with open_session(cache=CACHE):
        task = Task("dynamic, deferred", "kit", Counting, {})
        task.step(False)  # makes state, of which only the optimizer knows the start: it waits
        before = task.weights()
        with pytest.raises(SettingsError, match=r"Counting.step\(\) changes 'step' of its param"):
            task.step(True)
        assert all(map(torch.equal, task.weights(), before))


def test_the_deferred_scaler_is_one_of_kit_only() -> None:
    assert isinstance(make_scaler("dynamic, deferred", "kit"), DeferredScaler)
    assert not isinstance(make_scaler("dynamic, deferred", "cpu"), DeferredScaler)
