"""The three dynamic modes on device "kit": native GradScaler's scale and weights, infs included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import kit
from kit.errors import ScalerError, SettingsError
from kit.runtime.session.executor import ExecutableCache
from kit.runtime.session.session import current_session
from kit.torch.device import open_session
from kit.torch.scaling.choose import make_scaler
from kit.torch.scaling.deferred import DeferredScaler
from kit.workloads import mlp

DYNAMIC = ("dynamic, host check", "dynamic, on device", "dynamic, deferred")
CACHE = ExecutableCache()  # one small task, many times
GROWTH = {"init_scale": 2.0**8, "growth_interval": 3}
WAYS = {
    "lazy": kit.Settings(mode="lazy"),
    "bulked": kit.Settings(bulk_forward=3, bulk_backward=4),
    "op by op": kit.Settings(mode="imperative", segment_mode="launch"),
    "speculate": kit.Settings(mode="lazy", step_mode="speculate"),
    "replay": kit.Settings(mode="lazy", step_mode="replay"),
}


class Task:
    """A small regression whose loss is infinite where `bad` says so."""

    def __init__(self, mode: str, device: str, optimizer: Any, options: dict[str, Any]) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.model = model.to(device)
        self.x, self.y = torch.randn(8, 4).to(device), torch.randn(8, 1).to(device)
        self.ones = {b: torch.tensor(float("inf") if b else 1.0).to(device) for b in (False, True)}
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.scaler = make_scaler(mode, device, **GROWTH)
        self.device = device

    def step(self, bad: bool, *, clip: bool = False) -> torch.Tensor:
        loss = ((self.model(self.x) - self.y) ** 2).mean() * self.ones[bad]
        self.scaler.scale(loss).backward()
        if clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if (session := current_session()) is not None and self.device == "kit":
            session.mark_step()
        return loss.detach()

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def train(
    mode: str, device: str, bad: list[bool], *, clip: bool = False, optimizer: Any = None,
    options: dict[str, Any] | None = None, read_scale: bool = True,
) -> tuple[list[torch.Tensor], list[float]]:  # fmt: skip
    chosen = optimizer or torch.optim.AdamW
    task = Task(mode, device, chosen, {"lr": 0.02} if options is None else options)
    scales = []
    for b in bad:
        task.step(b, clip=clip)
        if read_scale:
            scales.append(task.scaler.get_scale())
    return task.weights(), [*scales, task.scaler.get_scale()]


def assert_equal(got: Any, expected: Any) -> None:
    assert got[1] == expected[1]
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.2]))
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_five_hundred_steps_with_infs_at_random_equal_native_grad_scaler(
    seed: int, share: float
) -> None:
    bad = (torch.rand(500, generator=torch.Generator().manual_seed(seed)) < share).tolist()
    expected = train("dynamic, host check", "cpu", bad)
    assert len(set(expected[1])) > 2
    for mode in DYNAMIC:
        with open_session(WAYS["lazy"], cache=CACHE):
            assert_equal(train(mode, "kit", bad), expected)


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


class Averaged(torch.optim.Optimizer):
    """Replaces its state in each step, as many optimizers from outside torch do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["mean"] = 0.9 * state.get("mean", torch.ones_like(p)) + 0.1 * p.grad
            p.sub_(0.05 * state["mean"])


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
    assert "10 checks looked at a step later; 2 steps were taken back" in said
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


def test_a_loss_that_is_read_in_each_step_is_never_one_of_a_wrong_step() -> None:
    bad = [i in (2, 3, 6) for i in range(9)]
    native = Task("dynamic, host check", "cpu", torch.optim.AdamW, {"lr": 0.1})
    expected = [float(native.step(b)) for b in bad]
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {"lr": 0.1})
        got = [task.step(b).item() for b in bad]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5)


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


def test_natively_deferred_means_the_same_weights_on_the_device() -> None:
    bad = [i % 4 == 2 for i in range(12)]
    expected = train("dynamic, host check", "cpu", bad)
    assert_equal(train("dynamic, deferred", "cpu", bad), expected)


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
def test_a_scaler_that_is_stepped_twice_says_so(mode: str) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.scaler.scale(task.model(task.x).sum()).backward()
        task.scaler.step(task.optimizer)
        with pytest.raises(RuntimeError, match="step\\(\\) has already been called"):
            task.scaler.step(task.optimizer)


@pytest.mark.parametrize("mode", SCALED)
def test_unscale_after_step_says_so(mode: str) -> None:
    with open_session(cache=CACHE):
        task = Task(mode, "kit", torch.optim.AdamW, {})
        task.scaler.scale(task.model(task.x).sum()).backward()
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


def test_a_deferred_step_is_one_segment() -> None:
    with kit.Session(WAYS["lazy"]) as session:
        task = Task("dynamic, deferred", "kit", torch.optim.AdamW, {})
        for _ in range(4):
            task.step(False)
        before = session.metrics()["segment.count"]
        for _ in range(5):
            task.step(False)
        assert session.metrics()["segment.count"] - before == 5


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


def test_the_deferred_scaler_is_one_of_kit_only() -> None:
    assert isinstance(make_scaler("dynamic, deferred", "kit"), DeferredScaler)
    assert not isinstance(make_scaler("dynamic, deferred", "cpu"), DeferredScaler)


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
