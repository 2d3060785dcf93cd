"""An optimizer that leaves its implementation open: fused on device kit, and torch's numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from kit.runs.settings import Settings
from kit.torch.device import open_session

pytestmark = pytest.mark.as_shipped


def train(device: str, steps: int, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n).to(device)) for n in (3, 5)]
    optimizer = kind(params, lr=0.05, **options)
    for i in range(steps):
        sum(((p - i) ** 2).sum() for p in params).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer, [p.detach().cpu() for p in params]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_the_choice_left_open_is_fused_and_gives_torchs_numbers(kind: Any, options: Any) -> None:
    _, expected = train("cpu", 12, kind, **options)
    with open_session(Settings(mode="lazy"), strict=True) as session:
        optimizer, got = train("kit", 12, kind, **options)
        assert optimizer.param_groups[0]["fused"] is True
        assert [s.cause for s in session.syncs] == ["copy to host"] * 2
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "said", [{"foreach": True}, {"foreach": False}, {"capturable": True}, {"fused": False}], ids=str
)
def test_what_the_program_says_stays(said: dict[str, bool]) -> None:
    with open_session():
        optimizer, _ = train("kit", 2, **said)
        assert {key: optimizer.param_groups[0][key] for key in said} == said
        assert not optimizer.param_groups[0]["fused"]


def test_an_optimizer_of_another_device_and_other_kinds_are_left_alone() -> None:
    with open_session():
        with pytest.warns(UserWarning, match="trains on the CPU inside a session"):
            optimizer, _ = train("cpu", 2)
        assert optimizer.param_groups[0]["fused"] is None
        optimizer, _ = train("kit", 2, torch.optim.SGD)
        assert optimizer.param_groups[0]["fused"] is None


def test_a_state_from_another_implementation_goes_on() -> None:
    native, _ = train("cpu", 4)
    state = native.state_dict()
    with open_session():
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n).to("kit")) for n in (3, 5)]
        optimizer = torch.optim.AdamW(params, lr=0.05)
        optimizer.load_state_dict(state)
        sum(p.sum() for p in params).backward()
        optimizer.step()
        assert float(optimizer.state[params[0]]["step"]) == 5


@pytest.mark.parametrize(("fused", "donates"), [(None, False), (None, True), (False, True)])
def test_the_step_that_makes_an_optimizers_state_is_the_program_of_the_next_ones(
    fused: bool | None, donates: bool
) -> None:
    torch.manual_seed(0)
    native = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    x = torch.randn(3, 4)

    def losses(model: Any, x: Any, run: Any) -> list[Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)

        def step() -> Any:
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return [run(step) for _ in range(4)]

    with open_session(Settings(mode="lazy")) as session:
        session.policy.donates = donates
        model = copy.deepcopy(native).to("kit")
        found = [loss.cpu() for loss in losses(model, x.to("kit"), session.run_step)]
        phases = [c.phase for c in session.compiles]
        assert phases == ["update", "forward"]  # the state's zeros, and the one step
    torch.testing.assert_close(found, losses(native, x, lambda step: step()))


def test_state_that_no_op_reads_is_there_after_the_step() -> None:
    class Lazy(torch.optim.Optimizer):
        """Makes its state, and does not use it yet."""

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                self.state[p]["kept"] = torch.full_like(p, 3.5)

    with open_session(Settings(mode="lazy")) as session:
        p = torch.nn.Parameter(torch.ones(2, device="kit"))
        optimizer = Lazy([p], {})
        (p * 2).sum().backward()
        optimizer.step()
        session.mark_step()
        assert optimizer.state[p]["kept"].tolist() == [3.5, 3.5]
        assert session.metrics()["cut.state"] == 1


class PerParameter(torch.optim.Optimizer):
    """Makes the state of a parameter and uses it, one parameter after the other."""

    def __init__(self, params: Any, fails: bool = False) -> None:
        super().__init__(params, {})
        self.fails = fails

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if "sum" not in self.state[p]:
                self.state[p]["sum"] = torch.zeros_like(p)
            p.sub_(self.state[p]["sum"].add_(p.grad), alpha=0.1)
            if self.fails:
                raise ValueError("no such luck")


def test_state_that_is_made_and_used_parameter_by_parameter_is_one_segment() -> None:
    native = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))

    def train(model: Any, end: Any) -> list[Any]:
        optimizer = PerParameter(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2).to(next(model.parameters()).device)).sum().backward()
            optimizer.step()
            end()
        return [p.detach().cpu() for p in model.parameters()]

    with open_session(Settings(mode="lazy")) as session:
        found = train(copy.deepcopy(native).to("kit"), session.mark_step)
        assert session.metrics()["cut.state"] == 1
        assert session.metrics()["compile.count"] == 2
    torch.testing.assert_close(found, train(native, lambda: None))


def test_after_an_optimizers_step_that_raised_zeros_are_no_state() -> None:
    with open_session(Settings(mode="lazy")) as session:
        p = torch.nn.Parameter(torch.ones(2, device="kit"))
        (p * 2).sum().backward()
        with pytest.raises(ValueError, match="no such luck"):
            PerParameter([p], fails=True).step()
        session.mark_step()
        before = session.metrics()["cut.state"]
        assert (torch.zeros(2, device="kit") + p.detach()).tolist() == pytest.approx([0.8, 0.8])
        assert session.metrics()["cut.state"] == before == 1


@pytest.mark.parametrize("step_mode", ["retrace", "replay", "speculate"])
def test_a_constant_that_each_step_overwrites_is_whole_in_each(step_mode: str) -> None:
    with open_session(Settings(mode="lazy", step_mode=step_mode)) as session:
        x = torch.ones(16, device="kit")

        def step() -> Any:
            given = torch.arange(16.0).to("kit")
            return given.add_(x) * 2

        found = [session.run_step(step).cpu() for _ in range(8)]
    assert all(torch.equal(one, (torch.arange(16.0) + 1) * 2) for one in found)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_stays_in_the_program_of_its_step(kind: Any) -> None:
    with open_session(Settings(mode="lazy")) as session:
        p = torch.nn.Parameter(torch.ones(3, device="kit"))
        optimizer = kind([p], lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
            session.mark_step()
        assert session.metrics().get("cut.state", 0) == 0


def test_a_graph_that_is_older_than_the_step_is_refused_as_torch_does() -> None:
    """The gradient would be of the weights that the step has written."""
    with open_session(Settings(mode="lazy")):
        weight = torch.nn.Parameter(torch.ones(3).to("kit"))
        optimizer = torch.optim.Adam([weight])
        first, second = (weight**2).sum(), (weight**3).sum()
        first.backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


def test_an_adam_of_ones_own_without_torchs_settings_steps() -> None:
    class Own(torch.optim.Adam):
        def __init__(self, params: Any, lr: float) -> None:
            torch.optim.Optimizer.__init__(self, params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad)

    with open_session(Settings(mode="lazy")):
        weight = torch.nn.Parameter(torch.ones(3).to("kit"))
        (weight**2).sum().backward()
        Own([weight], 0.25).step()
        assert weight.tolist() == [0.5] * 3
