"""Each dynamic scaler follows torch's GradScaler: same scale, same weights, infs included."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.optimizer import register_optimizer_step_post_hook

from kit.errors import SettingsError
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.settings import Settings
from kit.torch.device import open_session
from kit.torch.scaling.choose import BUILDERS, make_scaler
from kit.torch.scaling.scaler import OnDeviceScaler, StaticScaler

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.AdamW, {"lr": 0.05}),
    (torch.optim.Adam, {"lr": 0.05, "amsgrad": True}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    (torch.optim.RMSprop, {"lr": 0.05}),
]


def train(scaler: Any, optimizer: Any, options: Any, bad: list[bool], *, clip: bool = False) -> Any:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3))
    opt = optimizer([weight], **options)
    scales = []
    for i, is_bad in enumerate(bad):
        loss = ((weight - i) ** 2).mean() * (float("inf") if is_bad else 1.0)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_([weight], 0.3)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        scales.append(scaler.get_scale())
    return weight.detach(), scales


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS, ids=str)
@given(bad=st.lists(st.booleans(), min_size=1, max_size=25), clip=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_on_device_scaler_equals_grad_scaler(
    optimizer: Any, options: Any, bad: list[bool], clip: bool
) -> None:
    growth = {"init_scale": 2.0**8, "growth_interval": 3}
    plain = make_scaler("dynamic, host check", "cpu", **growth)
    ours = make_scaler("dynamic, on device", "cpu", **growth)
    expected, scales = train(plain, optimizer, options, bad, clip=clip)
    got, our_scales = train(ours, optimizer, options, bad, clip=clip)
    assert our_scales == scales
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


EVERY_OPTIMIZER: list[tuple[Any, dict[str, Any]]] = [
    *OPTIMIZERS,
    (torch.optim.SGD, {"lr": 0.05}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adafactor, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Rprop, {}),
]


@pytest.mark.parametrize("first", [0, 5], ids=["first step skipped", "later steps skipped"])
@pytest.mark.parametrize(("optimizer", "options"), EVERY_OPTIMIZER, ids=str)
def test_sixty_steps_with_infs_give_grad_scalers_weights(
    optimizer: Any, options: dict[str, Any], first: int
) -> None:
    bad = [i % 7 == first for i in range(60)]
    growth = {"init_scale": 2.0**8, "growth_interval": 3}
    plain = make_scaler("dynamic, host check", "cpu", **growth)
    ours = make_scaler("dynamic, on device", "cpu", **growth)
    expected, scales = train(plain, optimizer, options, bad)
    got, our_scales = train(ours, optimizer, options, bad)
    assert our_scales == scales
    assert len(set(scales)) > 2
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


class Averaged(torch.optim.Optimizer):
    """Replaces its state in each step, as many optimizers from outside torch do."""

    def __init__(self, params: Any, *, counter: bool = False) -> None:
        super().__init__(params, {"lr": 0.05})
        self.counter = counter

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["mean"] = 0.9 * state.get("mean", torch.ones_like(p)) + 0.1 * p.grad
                if self.counter:
                    state["calls"] = state.get("calls", 0) + 1
                p.sub_(group["lr"] * state["mean"])


@pytest.mark.parametrize("first", [0, 2])
def test_state_that_is_replaced_and_not_written_in_place_is_taken_back_too(first: int) -> None:
    bad = [i % 4 == first for i in range(12)]
    expected, _ = train(make_scaler("dynamic, host check", "cpu"), Averaged, {}, bad)
    got, _ = train(make_scaler("dynamic, on device", "cpu"), Averaged, {}, bad)
    torch.testing.assert_close(got, expected)


def test_an_optimizer_that_counts_in_python_is_refused_by_name() -> None:
    scaler = make_scaler("dynamic, on device", "cpu")
    with pytest.raises(SettingsError, match="Averaged keeps 'calls' in a Python number"):
        train(scaler, Averaged, {"counter": True}, [False, False])


class CountsOnItself(torch.optim.SGD):
    calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        super().step()


class KeepsALast(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["last"] = [p.grad]
        super().step()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (CountsOnItself, "changes 'calls' of the optimizer"),
        (KeepsALast, "keeps 'last' in a Python list"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "kit"])
@pytest.mark.parametrize("mode", ["dynamic, on device", "dynamic, deferred"])
def test_what_a_step_changes_in_python_is_refused_by_name(
    mode: str, device: str, kind: Any, said: str
) -> None:
    with open_session() if device == "kit" else nullcontext():
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        opt, scaler = kind([weight], lr=0.1, momentum=0.9), make_scaler(mode, device)

        def steps() -> None:
            for _ in range(3):
                scaler.scale(weight.sum()).backward()
                scaler.step(opt)
                scaler.update()

        with pytest.raises(SettingsError, match=f"{kind.__name__}.*{said}"):
            steps()


def test_hooks_of_a_step_are_refused_where_their_writes_cannot_be_noted() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    opt = torch.optim.AdamW([weight], lr=0.1)
    opt.register_step_post_hook(lambda *_: None)
    for factor in (math.inf, 1.0):  # a step that overflows, as first ones do, is refused, too
        weight.grad, scaler = None, make_scaler("dynamic, on device", "cpu")
        scaler.scale(weight.sum() * factor).backward()
        with pytest.raises(SettingsError, match="a step of this AdamW runs hooks"):
            scaler.step(opt)
    assert weight.tolist() == [1.0, 1.0]


def test_hooks_of_every_optimizer_are_hooks_of_this_one() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    opt, scaler = torch.optim.AdamW([weight], lr=0.1), make_scaler("dynamic, on device", "cpu")
    scaler.scale(weight.sum()).backward()
    hook = register_optimizer_step_post_hook(lambda *_: None)
    try:
        with pytest.raises(SettingsError, match="a step of this AdamW runs hooks"):
            scaler.step(opt)
    finally:
        hook.remove()
    scaler.step(opt)  # the kit's own write nothing
    assert (weight.detach() < 1).all()


class CountsInItsGroup(torch.optim.SGD):
    """As timm's Lamb and schedule-free optimizers."""

    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        group["step"] = group.get("step", 0) + 1
        super().step()


@pytest.mark.parametrize("scale", ["number", "tensor"])
def test_an_optimizer_that_counts_in_its_group_is_refused_and_its_step_taken_back(
    scale: str,
) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    opt = CountsInItsGroup([weight], lr=0.1, momentum=0.9)
    if scale == "tensor":
        opt.param_groups[0]["step"] = torch.zeros(())
    scaler = make_scaler("dynamic, on device", "cpu")
    scaler.scale(weight.sum() * float("inf")).backward()
    with pytest.raises(SettingsError, match=r"CountsInItsGroup.step\(\) changes 'step' of its"):
        scaler.step(opt)
    assert weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("later", [{}, {"momentum": 0.9}], ids=["like the first", "momentum"])
def test_a_group_that_is_added_after_some_steps_is_trained_too(
    kind: Any, later: dict[str, float]
) -> None:
    def run(mode: str) -> list[torch.Tensor]:
        first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        opt, scaler = kind([first], lr=0.1), make_scaler(mode, "cpu", init_scale=8.0)
        for i in range(8):
            loss = (first * second).square().sum() * (float("inf") if i in (0, 4, 6) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            second.grad = None
            if i == 3:
                opt.add_param_group({"params": [second], **later})
        return [first.detach(), second.detach()]

    expected = run("dynamic, host check")
    torch.testing.assert_close(run("dynamic, on device"), expected, rtol=1e-5, atol=1e-6)


def test_a_state_that_is_loaded_after_some_steps_leaves_the_check_on_the_device() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    opt, scaler = torch.optim.Adam([weight], lr=0.1), make_scaler("dynamic, on device", "cpu")
    saved = opt.state_dict()
    for i in range(3):
        scaler.scale(weight.sum()).backward()
        scaler.step(opt)
        scaler.update()
        if i == 0:
            opt.load_state_dict(saved)
    assert (weight.detach() < 1).all()


def test_static_scaling_gives_the_weights_of_no_scaling() -> None:
    expected, _ = train(make_scaler("none", "cpu"), torch.optim.AdamW, {"lr": 0.1}, [False] * 9)
    scaler = make_scaler("static", "cpu")
    got, scales = train(scaler, torch.optim.AdamW, {"lr": 0.1}, [False] * 9, clip=False)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert set(scales) == {1024.0}


def test_a_static_scaler_can_be_asked_and_given_what_torchs_can() -> None:
    scaler = make_scaler("static", "cpu", init_scale=8.0)
    assert [x.item() for x in scaler.scale([torch.ones(()), torch.ones(())])] == [8.0, 8.0]
    scaler.update(4.0)
    assert scaler.scale(torch.ones(())).item() == scaler.get_scale() == 4.0
    scaler.update()
    scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=16.0).state_dict())
    assert scaler.scale(torch.ones(())).item() == 16.0
    assert scaler.get_growth_interval() > 0
    with pytest.raises(SettingsError, match="positive finite"):
        scaler.update(0.0)


def test_a_static_scaler_belongs_to_no_session() -> None:
    """Its scale was a tensor of the first session: an error in the second, and natively."""
    scaler = StaticScaler("cpu", 8.0)

    def step(device: str) -> list[float]:
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        scaler.scale(weight.sum()).backward()
        scaler.step(torch.optim.SGD([weight], lr=0.5))
        scaler.update()
        return weight.tolist()

    for _ in range(2):
        with open_session():
            assert step("kit") == [0.5, 0.5]
    assert step("cpu") == [0.5, 0.5]


@pytest.mark.parametrize("change", ["none", "update", "load"])
def test_a_loss_that_is_multiplied_by_get_scale_is_divided_again(change: str) -> None:
    """Also where the program never calls scale(), or has changed the scale since."""
    scaler = StaticScaler("cpu", 8.0)
    if change == "update":
        scaler.update(4.0)
    elif change == "load":
        scaler.load_state_dict({"scale": 4.0})
    weight = torch.nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([weight], lr=0.5)
    (weight.sum() * scaler.get_scale()).backward()
    scaler.unscale_(opt)
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0]
    scaler.step(opt)
    assert weight.tolist() == [0.5, 0.5]


def test_static_unscale_twice_is_torchs_error() -> None:
    scaler = StaticScaler("cpu", 8.0)
    weight = torch.nn.Parameter(torch.ones(1))
    opt = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(opt)


def test_a_fused_optimizer_made_by_the_user_stays_as_it_is() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    opt = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler = OnDeviceScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.step(opt)
    assert opt.param_groups[0]["fused"] is True
    assert float(weight.detach()[0]) < 1.0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_cannot_be_is_refused(scale: float) -> None:
    with pytest.raises(SettingsError, match="positive finite number"):
        make_scaler("static", "cpu", init_scale=scale)


def test_an_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="dynamic, on device"):
        make_scaler("magic", "cpu")


def test_each_mode_of_the_table_has_one_builder():
    assert set(BUILDERS) == set(LOSS_SCALING)


@pytest.mark.parametrize("device", ["kit", "kit:0"])
@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("static", lambda scaler: scaler.update(4.0)),
        ("static", lambda scaler: scaler.load_state_dict({"scale": 2.0})),
        ("dynamic, on device", lambda scaler: scaler.set_growth_interval(1)),
        ("dynamic, on device", lambda scaler: scaler.set_growth_factor(4.0)),
    ],
)
def test_what_a_program_gives_a_scaler_between_two_steps_counts_in_the_next_one(
    mode: str, change: Any, device: str
) -> None:
    def shown(step_mode: str) -> tuple[list[float], int]:
        with open_session(Settings(mode="lazy", step_mode=step_mode)) as session:
            scaler = make_scaler(mode, device, init_scale=8.0, growth_interval=2)
            weight = torch.nn.Parameter(torch.ones(3, device="kit"))
            optimizer = torch.optim.SGD([weight], lr=0.1)

            def step() -> Any:
                scaled = scaler.scale(weight.square().sum())
                optimizer.zero_grad()
                scaled.backward()
                scaler.step(optimizer)
                scaler.update()
                return scaled.detach()

            found = []
            for i in range(12):
                if i == 8:
                    change(scaler)
                found.append(session.run_step(step))
            return [x.item() for x in found], session.stepper.counts["replay.steps"]

    (recorded, _), (replayed, count) = shown("retrace"), shown("replay")
    assert replayed == recorded
    assert count > 0


@pytest.mark.parametrize("mode", ["dynamic, on device", "dynamic, deferred"])
def test_a_step_whose_scaler_is_switched_off_is_replayed(mode: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        scaler = make_scaler(mode, "kit", enabled=False)
        weight = torch.nn.Parameter(torch.ones(3, device="kit"))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            scaler.scale(weight.square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        for _ in range(8):
            session.run_step(step)
        torch.testing.assert_close(weight.detach().cpu(), torch.full((3,), 0.8**8))
        assert session.stepper.counts["replay.steps"] > 0
