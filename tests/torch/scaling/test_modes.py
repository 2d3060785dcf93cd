"""The three dynamic modes on device "kit": native GradScaler's scale and weights, infs included."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import kit
from kit.errors import ScalerError, SettingsError
from kit.runtime.session.session import current_session
from kit.torch.device import open_session
from kit.torch.scaling.choose import make_scaler
from tests.torch.scaling.task import (
    CACHE,
    DYNAMIC,
    GROWTH,
    WAYS,
    Task,
    assert_equal,
    train,
)


@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.2]))
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_two_hundred_steps_with_infs_at_random_equal_native_grad_scaler(
    seed: int, share: float
) -> None:
    bad = (torch.rand(200, generator=torch.Generator().manual_seed(seed)) < share).tolist()
    expected = train("dynamic, host check", "cpu", bad)
    assert len(set(expected[1])) > 2
    for mode in DYNAMIC:
        with open_session(WAYS["lazy"], cache=CACHE):
            assert_equal(train(mode, "kit", bad), expected)


def test_random_numbers_are_those_of_the_other_modes() -> None:
    def run(mode: str) -> list[torch.Tensor]:
        with open_session(WAYS["lazy"], cache=CACHE):
            task = Task(mode, "kit", torch.optim.SGD, {"lr": 0.1})
            task.model.insert(1, nn.Dropout(0.4))
            kept = [task.step(i in (1, 4, 5)) for i in range(9)]
            return [*task.weights(), *(x.cpu() for x in kept), torch.rand(3, device="kit").cpu()]

    expected = run("dynamic, host check")
    for mode in DYNAMIC[1:]:
        torch.testing.assert_close(run(mode), expected, rtol=1e-4, atol=1e-5)


class Averaging(torch.optim.AdamW):
    """Keeps an average of its weights, and counts its steps on the device."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.average = [torch.ones_like(p) for p in self.param_groups[0]["params"]]

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        average_of(self, self.average)


@torch.no_grad()
def average_of(optimizer: torch.optim.Optimizer, average: list[torch.Tensor]) -> None:
    for mean, p in zip(average, optimizer.param_groups[0]["params"], strict=True):
        mean[0].add_(1.0)
        mean.lerp_(p, 0.5)


@pytest.mark.parametrize("way", ["lazy", "op by op", "replay"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (Averaging, {"lr": 0.1}),
    ],
)
@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_what_a_step_and_its_hooks_write_beside_the_weights_is_taken_back(
    mode: str, kind: Any, options: dict[str, Any], way: str
) -> None:
    """One infinite gradient made an average that a hook keeps nan, for ever."""

    def run(mode: str, device: str) -> list[torch.Tensor]:
        task = Task(mode, device, kind, options)
        optimizer = task.optimizer
        if kind is not Averaging:
            optimizer.average = [torch.ones_like(p) for p in task.model.parameters()]
            optimizer.register_step_post_hook(lambda o, *_: average_of(o, o.average))
        session = current_session() if device == "kit" else None
        for i in range(7):
            step = partial(task.step, i in (0, 3, 4))
            step() if session is None else session.run_step(step)
        return [*task.weights(), *(x.cpu() for x in optimizer.average)]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS[way], cache=CACHE):
        torch.testing.assert_close(run(mode, "kit"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, Averaging])
@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_an_optimizer_with_hooks_or_a_step_of_its_own_is_fused_too(mode: str, kind: Any) -> None:
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", kind, {"lr": 0.1})
        task.optimizer.register_step_post_hook(lambda *_: None)
        for bad in (False, True, False):
            task.step(bad)
        (group,) = task.optimizer.param_groups
        assert group["fused"] is True


@pytest.mark.parametrize("way", ["lazy", "replay"])
@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_what_a_hook_of_every_optimizer_writes_is_taken_back(mode: str, way: str) -> None:
    def run(mode: str, device: str) -> list[torch.Tensor]:
        task = Task(mode, device, torch.optim.AdamW, {"lr": 0.1})
        average = [torch.ones_like(p) for p in task.model.parameters()]
        session = current_session() if device == "kit" else None
        hook = register_optimizer_step_post_hook(lambda o, *_: average_of(o, average))
        try:
            for i in range(7):
                step = partial(task.step, i in (0, 3, 4))
                step() if session is None else session.run_step(step)
        finally:
            hook.remove()
        return [*task.weights(), *(x.cpu() for x in average)]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS[way], cache=CACHE):
        torch.testing.assert_close(run(mode, "kit"), expected, rtol=1e-4, atol=1e-5)


def test_what_another_thread_writes_in_a_step_is_not_the_optimizers() -> None:
    """A loader that filled a batch during a bad step found the old batch there."""
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {"lr": 0.1})
        batch, tape = torch.zeros(3, device="kit"), task.x.tape
        notes: list[Any] = []

        def load() -> None:
            with tape.noting(notes.append):
                batch.copy_(torch.ones(3))

        context = copy_context()

        def hook(*_: Any) -> None:
            thread = Thread(target=context.run, args=(load,))
            thread.start()
            thread.join()

        task.optimizer.register_step_post_hook(hook)
        task.step(False)
        batch.zero_()
        task.step(True)
        assert batch.tolist() == [1.0, 1.0, 1.0]
        assert notes == [batch.ref.base] * 2
        assert not tape.on_write


@pytest.mark.parametrize("mode", DYNAMIC[1:])
@pytest.mark.parametrize("kind", [torch.optim.RAdam, torch.optim.RMSprop, torch.optim.AdamW])
def test_a_checkpoint_of_the_optimizer_is_trained_on_elsewhere(mode: str, kind: Any) -> None:
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", kind, {})
        task.step(False)
        file = io.BytesIO()
        torch.save(task.optimizer.state_dict(), file)
    file.seek(0)
    native = Task("none", "cpu", kind, {})
    native.optimizer.load_state_dict(torch.load(file))
    native.step(False)
    assert all(state["step"] == 2.0 for state in native.optimizer.state.values())


@pytest.mark.parametrize("mode", DYNAMIC)
def test_several_optimizers_share_one_scaler(mode: str) -> None:
    def run(mode: str, device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        a, b = (nn.Parameter(torch.randn(3).to(device)) for _ in range(2))
        optimizers = [torch.optim.AdamW([a], lr=0.05), torch.optim.SGD([b], lr=0.05, momentum=0.9)]
        scaler = make_scaler(mode, device, **GROWTH)
        for i in range(12):
            bad_a, bad_b = (float("inf") if i % 5 == k else 1.0 for k in (2, 3))
            loss = (a * bad_a).sum() + ((b - 1) ** 2 * bad_b).sum()
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
            if (session := current_session()) is not None:
                session.mark_step()
        return [a.detach().cpu(), b.detach().cpu(), torch.tensor(scaler.get_scale())]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS["lazy"], cache=CACHE):
        torch.testing.assert_close(run(mode, "kit"), expected, rtol=1e-4, atol=1e-5)


def test_a_saved_scaler_goes_on_where_it_was() -> None:
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for i in range(4):
            task.step(i == 1)
        state = task.scaler.state_dict()
        other = make_scaler("dynamic, on device", "kit")
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert state["scale"] == 2.0**7


# -- precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", DYNAMIC)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_autocast_trains_as_native_autocast_does(dtype: torch.dtype, mode: str) -> None:
    def run(mode: str, device: str) -> list[torch.Tensor]:
        task = Task(mode, device, torch.optim.SGD, {"lr": 0.05})
        for i in range(6):
            with torch.amp.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
                out = task.model(task.x)
            loss = ((out.float() - task.y) ** 2).mean() * task.ones[i == 2]
            task.scaler.scale(loss).backward()
            task.scaler.step(task.optimizer)
            task.scaler.update()
            task.optimizer.zero_grad()
        return [*task.weights(), torch.tensor(task.scaler.get_scale())]

    expected = run("dynamic, host check", "cpu")
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    with open_session(WAYS["lazy"], cache=CACHE):
        got = run(mode, "kit")
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


# -- misuse ------------------------------------------------------------------------------------

SCALED = ("static", *DYNAMIC)


@pytest.mark.parametrize("mode", SCALED)
def test_a_scaler_that_is_stepped_twice_or_unscaled_after_its_step_says_so(mode: str) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.scaler.scale(task.model(task.x).sum()).backward()
        task.scaler.step(task.optimizer)
        with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
            task.scaler.step(task.optimizer)
        with pytest.raises(RuntimeError, match="unscale_\\(\\) is being called after step"):
            task.scaler.unscale_(task.optimizer)


@pytest.mark.parametrize("mode", ["static", *DYNAMIC[1:]])
def test_an_optimizer_without_gradients_is_named_with_what_to_do(mode: str) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.scaler.scale(task.model(task.x).sum())
        with pytest.raises(ScalerError, match=r"an AdamW of 4 parameters none of which.*backward"):
            task.scaler.step(task.optimizer)


def test_torchs_own_scaler_without_gradients_gets_a_note_that_says_what_to_do() -> None:
    @kit.workload
    def forgetful(ctx: kit.Context) -> Callable[[], Any]:
        weight = nn.Parameter(torch.ones(2).to(ctx.device))
        optimizer, scaler = torch.optim.AdamW([weight]), ctx.scaler()

        def step() -> Any:
            loss = scaler.scale(weight.sum())
            scaler.step(optimizer)
            return loss

        return step

    with pytest.raises(AssertionError) as caught:
        kit.run(forgetful, kit.Settings(loss_scaling="dynamic, host check"))
    assert any("no parameter of this optimizer has a gradient" in n for n in caught.value.__notes__)


@pytest.mark.parametrize("mode", SCALED)
@pytest.mark.parametrize("scale", [0.0, -2.0, float("inf"), float("nan")])
def test_a_scale_that_cannot_be_is_refused_in_every_mode(mode: str, scale: float) -> None:
    with pytest.raises(SettingsError, match="positive finite number"):
        make_scaler(mode, "kit", init_scale=scale)


@pytest.mark.parametrize("mode", ["dynamic, on device", "dynamic, deferred"])
@pytest.mark.parametrize("scale", [0.0, -2.0, float("inf"), float("nan")])
def test_a_scale_that_cannot_be_is_refused_later_too(mode: str, scale: float) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.step(False)
        with pytest.raises(SettingsError, match="positive finite number"):
            task.scaler.update(scale)
        state = task.scaler.state_dict()
        with pytest.raises(SettingsError, match="positive finite number"):
            task.scaler.load_state_dict({**state, "scale": scale})
        assert task.scaler.state_dict() == state


@pytest.mark.parametrize("mode", DYNAMIC)
def test_a_scale_given_by_hand_is_taken(mode: str) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.step(False)
        task.scaler.scale(task.model(task.x).sum()).backward()
        task.scaler.step(task.optimizer)
        task.scaler.update(32.0)
        assert task.scaler.get_scale() == 32.0


@pytest.mark.parametrize("mode", DYNAMIC)
def test_a_scale_whose_inverse_is_flushed_to_zero_is_an_overflow(mode: str) -> None:
    with open_session(cache=CACHE) as session:
        weight = nn.Parameter(torch.ones(2, device="kit"))
        optimizer = torch.optim.SGD([weight], lr=100.0, momentum=0.9)  # torch's fused ones divide
        scaler = make_scaler(mode, "kit", init_scale=2.0**127)
        seen = []
        for _ in range(2):
            scaler.scale((weight * 0.001).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            session.mark_step()
            seen.append((scaler.get_scale(), weight.tolist()[0]))
    assert seen == [(2.0**126, 1.0), (2.0**126, pytest.approx(0.9))]


def test_a_constant_scale_whose_inverse_is_flushed_to_zero_is_divided_by() -> None:
    with open_session(cache=CACHE):
        weight = nn.Parameter(torch.ones(2, device="kit"))
        optimizer = torch.optim.SGD([weight], lr=100.0)
        scaler = make_scaler("static", "kit", init_scale=2.0**127)
        scaler.scale((weight * 0.001).sum()).backward()
        scaler.step(optimizer)
        assert weight.tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.01}),
    ],
)
def test_a_fused_optimizer_of_float16_weights_computes_in_float32_as_torchs(
    kind: Any, options: dict[str, Any]
) -> None:
    """The scale is infinite in float16, Adam's eps is 0 there."""

    def run(device: str) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.float16).to(device))
        x = torch.linspace(-1e-3, 2e-3, 8).to(device)
        optimizer = kind([weight], fused=True, **options)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**17)
        for _ in range(5):
            scaler.scale((weight * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return weight.detach().cpu()

    expected = run("cpu")
    assert not torch.equal(expected, torch.linspace(-1, 1, 8, dtype=torch.float16))
    with open_session(WAYS["lazy"], cache=CACHE):
        torch.testing.assert_close(run("kit"), expected, rtol=2e-3, atol=1e-3)
