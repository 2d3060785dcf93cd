"""What a step reads and a program changes between two steps counts in the next one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import kit
from kit.runs.settings import Settings
from kit.runtime.steps.functions import KnownFunction
from kit.torch.device import open_session
from tests.torch.steps.held import HELD


class Trainer:
    """A step as a method: what it reads are attributes."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def step(self) -> torch.Tensor:
        return self.x * 2


GLOBAL = torch.zeros(1)


def of_variable(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    def step() -> torch.Tensor:
        return now * 2

    made = []
    for now in [x] * 8 + [y] * 8:  # noqa: B007 - the step reads it
        made.append(run(step))
    return made


def of_lambdas(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    made = []
    for now in [x] * 8 + [y] * 8:
        made.append(run(lambda: now * 2))  # noqa: B023 - it is called at once
    return made


def of_default(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    return [run(lambda now=now: now * 2) for now in [x] * 8 + [y] * 8]


def of_global(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    global GLOBAL
    made = []
    for GLOBAL in [x] * 8 + [y] * 8:  # noqa: B007 - the step reads it
        made.append(run(step_of_global))
    return made


@pytest.mark.parametrize("made", HELD, ids=lambda f: f.__name__)
def test_what_is_in_a_variable_counts_in_the_next_step(made: Any) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        change, step = made(torch.ones(2, device="kit"))
        found = []
        try:
            for by in [2.0] * 8 + [5.0] * 8:
                if len(found) == 8:
                    assert session.stepper.counts["replay.steps"] > 2
                if len(found) in (0, 8):
                    change(by)
                found.append(session.run_step(step).tolist())
        finally:
            change(2.0)
        assert found == [[2.0] * 2] * 8 + [[5.0] * 2] * 8
        assert session.stepper.counts["replay.steps"] > 5
        assert any("between two steps" in why for why in session.stepper.reasons)


def test_a_number_that_the_step_does_not_name_keeps_it_replayed() -> None:
    """A trainer counts its steps beside the method that is the step."""
    with open_session(Settings(step_mode="replay")) as session:
        trainer = Trainer(torch.ones(2, device="kit"))
        for trainer.count in range(8):  # type: ignore[attr-defined]
            session.run_step(trainer.step)
        assert session.stepper.counts["replay.steps"] == 3  # all after the fifth


def test_a_large_list_is_compared_where_that_is_quick_and_else_the_step_is_recorded() -> None:
    many: list[Any] = [0.0] * 100_000

    def step() -> Any:
        return many

    known = KnownFunction(step)
    assert known.change(step) == ""
    many[50_000] = 1.0
    assert "many[50000]" in known.change(step)
    known = KnownFunction(step)
    many.append(0.0)
    assert "many" in known.change(step)
    many[0] = many
    assert "more than 5,000 things" in KnownFunction(step).change(step)
    del many[9:]
    assert KnownFunction(step).change(step) == ""


@pytest.mark.parametrize(("numbers", "replayed", "said"), [
    (0, 3, ""),  # transformers makes such tensors for each layer of a decoder
    (5_000, 3, ""),
    (50_000, 0, "copies a large array from the host"),
])  # fmt: skip
def test_an_equal_array_that_the_step_copies_each_time_keeps_it_replayed(
    numbers: int, replayed: int, said: str
) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x, sent = torch.ones(2, device="kit"), [1.0] * numbers

        def step() -> torch.Tensor:
            return x * torch.tensor(sent, device="kit").sum()

        for _ in range(8):
            found = session.run_step(step).tolist()
        assert found == [float(numbers)] * 2
        assert session.stepper.counts["replay.steps"] == replayed
        assert said in " ".join(session.stepper.reasons)


@pytest.mark.parametrize("bulk", [1, 50])
def test_pooling_which_turns_in_torchs_own_code_what_it_has_made_is_replayed(bulk: int) -> None:
    """A Swin was recorded each time, and told to give a tensor of torch's a new name."""
    net = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.AdaptiveAvgPool1d(1))
    points = torch.arange(24.0).reshape(2, 2, 6)
    (expected := net(points).sum()).backward()
    gradient = net[0].weight.grad * 9
    with open_session(Settings(step_mode="replay", bulk_forward=bulk)) as session:
        net.to("kit")
        x = points.to("kit")

        def step() -> torch.Tensor:
            loss = net(x).sum()
            loss.backward()
            return loss.detach()

        for _ in range(8):
            found = session.run_step(step).cpu()
        assert session.stepper.counts["replay.steps"] == 4  # all after the fourth
        torch.testing.assert_close(found, expected.detach())
        torch.testing.assert_close(net[0].weight.grad.cpu(), gradient)


@pytest.mark.parametrize(
    "turn",
    [
        lambda x: x.as_strided_((2, 2), (1, 2)),
        lambda x: x.mul_(1).as_strided_((2, 2), (1, 2)),
        lambda x: (x * 1).t_(),
        lambda x: x.view(2, 2).as_strided_((2, 2), (1, 2)),
    ],
)
def test_what_else_is_turned_in_place_keeps_a_step_recorded_and_the_line_is_named(
    turn: Any,
) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x = torch.arange(4.0, device="kit").view(2, 2).clone()
        for _ in range(8):
            session.run_step(lambda: turn(x).sum())
        assert session.stepper.counts["replay.steps"] == 0
        (said,) = session.stepper.reasons
    assert re.fullmatch(r".* in place, by (as_strided_|t_) at test_replay.py:\d+; give.*", said)


def step_of_global() -> torch.Tensor:
    return sum(GLOBAL * k for k in (1, 1))  # type: ignore[return-value]


def of_attribute(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    trainer, made = Trainer(x), []
    for now in [x] * 8 + [y] * 8:
        trainer.x = now
        made.append(run(trainer.step))
    return made


@pytest.mark.parametrize("steps", [of_variable, of_lambdas, of_default, of_global, of_attribute],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_another_tensor_in_a_variable_is_read_though_the_one_before_is_alive(steps: Any) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x, y = torch.ones(3, device="kit"), torch.full((3,), 5.0, device="kit")
        made = steps(x, y, session.run_step)
        assert [one.tolist() for one in made] == [[2.0] * 3] * 8 + [[10.0] * 3] * 8
        assert session.stepper.counts["replay.steps"] >= 6
        name = {of_global: "global GLOBAL", of_attribute: "self.x", of_default: "default 1"}
        said = f"what it holds has changed, between two steps: {name.get(steps, 'now')}"
        assert session.stepper.reasons[said] == 1


@pytest.mark.parametrize("holder", [list, dict])
def test_a_variable_that_the_step_sets_itself_keeps_it_replayed(holder: Any) -> None:
    """Also where it holds the state, as a step in jax's style gives it back."""
    with open_session(Settings(step_mode="replay")) as session:
        start = torch.ones(3, device="kit")
        alone, state = start, holder([(0, start)])

        def step() -> None:
            nonlocal alone, state
            alone = alone * 2
            state = holder([(0, dict(state)[0] * 2)])

        del start
        for _ in range(12):
            session.run_step(step)
        assert alone.tolist() == dict(state)[0].tolist() == [2.0**12] * 3
        assert session.stepper.counts["replay.steps"] > 0


def test_a_number_that_changes_in_each_step_is_one_reason() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        for i in range(7):
            session.run_step(lambda i=i: x.mul_(1 + i / 8))
        (said,) = (why for why in session.stepper.reasons if "number changes" in why)
        assert "test_replay.py:" in said
        assert said.endswith("such as from 1.125 to 1.25")
        assert session.stepper.reasons[said] == 5


def test_one_replayed_step_is_said_in_the_singular() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x = torch.ones(2, device="kit")
        for _ in range(10):
            session.run_step(lambda: x * 2)
            if session.stepper.counts["replay.steps"] == 1:
                break
        assert "replay: 1 step issued without being recorded" in session.explain()


def test_a_tensor_that_is_given_other_memory_counts_in_the_next_step() -> None:
    """As of averaged weights, which are swapped in for a test; something still held the others."""
    with open_session(Settings(step_mode="replay")) as session:
        weight = torch.nn.Parameter(torch.ones(3, device="kit"))
        other = torch.full((3,), 5.0, device="kit")

        def step() -> torch.Tensor:
            with torch.no_grad():
                return weight.sum()

        for _ in range(9):
            session.run_step(step)
        kept, weight.data = weight.data, other
        assert session.run_step(step).item() == 15
        weight.data = kept
        assert session.run_step(step).item() == 3


def test_an_array_that_is_reset_counts_in_the_next_step() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        weight, made = torch.ones(3, device="kit"), torch.ones(3, device="kit")
        kit.reset_arrays([torch.ones(3, device="kit")])

        def step() -> None:
            made.copy_(weight * 2)

        for _ in range(9):
            session.run_step(step)
        kit.reset_arrays([made])
        session.run_step(step)
        assert made.tolist() == [2.0, 2.0, 2.0]


def test_a_mode_that_counts_ops_counts_those_of_each_step() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x = torch.ones(4, 4, device="kit")

        def step() -> torch.Tensor:
            return x @ x

        for _ in range(9):
            session.run_step(step)
        with FlopCounterMode(display=False) as counted:
            for _ in range(9):
                session.run_step(step)
        assert counted.get_total_flops() == 9 * 2 * 4**3
        assert "a mode of torch's sees each op of the step" in session.explain()
        before = session.stepper.counts["replay.steps"]
        for _ in range(9):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] > before


def test_a_mode_that_changes_functions_counts_in_the_next_step() -> None:
    class Doubled(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
            result = func(*args, **kwargs or {})
            return result * 2 if func is torch.Tensor.add else result

    with open_session(Settings(step_mode="replay")) as session, torch.device("kit"):
        x = torch.ones(4)

        def step() -> torch.Tensor:
            return x.add(1)

        for _ in range(9):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"]  # though torch.device is such a mode
        with Doubled():
            assert session.run_step(step).tolist() == [4.0] * 4
        assert session.run_step(step).tolist() == [2.0] * 4


@pytest.mark.parametrize("kind", ["buffer", "parameter", "attribute"])
def test_a_number_on_the_host_that_a_layer_holds_counts_in_the_next_step(kind: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        layer: Any = torch.nn.Linear(2, 2).to("kit")
        x, scale = torch.ones(1, 2, device="kit"), torch.tensor(1.0)
        if kind == "buffer":
            layer.register_buffer("scale", scale)
        else:
            layer.scale = (
                torch.nn.Parameter(scale, requires_grad=False) if kind == "parameter" else scale
            )
        found = []
        for i in range(8):
            if i == 6:
                assert session.stepper.counts["replay.steps"] > 0
                layer.scale.fill_(3.0)
            found.append(session.run_step(lambda: (layer(x) * layer.scale).sum().detach()))
        torch.testing.assert_close(found[6], 3 * found[5])
        torch.testing.assert_close(found[7], found[6])


def test_a_layer_in_a_layer_is_not_asked_for_a_device_of_its_own() -> None:
    class Loss(torch.nn.Module):
        @property
        def device(self) -> Any:
            return next(self.parameters()).device  # it has none

        def forward(self, x: Any) -> Any:
            return x.sum()

    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        layer: Any = torch.nn.Linear(2, 2)
        layer.loss = Loss()
        layer.to("kit").register_buffer("scale", torch.tensor(1.0))
        x = torch.ones(1, 2, device="kit")
        for _ in range(8):
            session.run_step(lambda: layer.loss(layer(x) * layer.scale).detach())
        assert session.stepper.counts["replay.steps"] > 0, session.explain()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_step_of_torchscript_is_recorded_each_time() -> None:
    """A replay ended it with a TypeError of kit's own."""
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        inner = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
        net, x = torch.nn.Sequential(inner, torch.nn.ReLU()).to("kit"), torch.ones(1, 2).to("kit")

        results = [session.run_step(lambda: net(x)).cpu() for _ in range(8)]
        assert "the step has a scripted Linear" in session.explain()
        assert torch.equal(results[0], net(x).detach().cpu())


class _Scales(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    @torch.jit.export
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class _Holds(torch.nn.Module):
    """Holds TorchScript, and calls it where no hook runs."""

    def __init__(self, inner: Any, way: str) -> None:
        super().__init__()
        self.way = way
        if way == "in a list":
            self.inners = [inner]
        else:
            self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        if self.way == "in a list":
            return self.inners[0].encode(x)
        return self.inner.encode(x) if self.way == "a method" else self.inner.forward(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    "way", ["a method", "its forward", "in a list", "the step's", "the step's method"]
)
def test_a_number_of_torchscript_counts_in_the_next_step(way: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        inner: Any = torch.jit.script(_Scales())
        encode = inner.encode
        net, x = _Holds(inner, way).to("kit"), torch.ones(1, device="kit")
        steps: dict[str, Any] = {
            "the step's": lambda: inner.encode(x),
            "the step's method": lambda: encode(x),
        }
        found = []
        for i in range(8):
            inner.scale = 2.0 if i < 6 else 5.0
            found.append(session.run_step(steps.get(way, lambda: net(x))).item())
        assert found == [2.0] * 6 + [5.0] * 2
        assert "script" in session.explain().lower(), session.explain()
