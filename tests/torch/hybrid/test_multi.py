"""Multi-tensor ops against torch's own, on device kit and on the CPU, each one dispatch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kit
from kit.errors import SettingsError

SHAPES = [(3, 4), (5,), (), (2, 3, 2), (1,), (7, 1)]


def made(device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype).to(device) for s in SHAPES]


def zeros(device: str) -> list[torch.Tensor]:
    return [torch.zeros(s).to(device) for s in SHAPES]


def equal(ours: Any, theirs: Any, **tolerance: float) -> None:
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.detach().cpu(), y.detach(), **tolerance)


@pytest.fixture(params=["cpu", "kit"])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cpu":
        yield "cpu"
    else:
        with kit.Session(kit.Settings(bulk_forward=3)):
            yield "kit"


@pytest.mark.parametrize("share", [True, False])
def test_reset_arrays_zeroes_everything_views_and_mixed_devices_too(
    device: str, share: bool
) -> None:
    arrays = made(device)
    whole = torch.ones(4, 4).to(device)
    integers = torch.arange(5).to(device)
    host = torch.ones(3)
    kit.reset_arrays([*arrays, whole[1:3], integers, host], share=share)
    assert all(float(a.abs().sum()) == 0 for a in [*arrays, integers, host])
    assert whole.sum(1).tolist() == [4.0, 0.0, 0.0, 4.0]
    kit.reset_arrays([])


def test_reset_arrays_refuses_a_leaf_that_requires_grad_as_torch_does(device: str) -> None:
    w = torch.ones(3).to(device).requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        kit.reset_arrays([w])
    assert w.tolist() == [1.0] * 3
    with torch.no_grad():
        kit.reset_arrays([w])
    assert w.tolist() == [0.0] * 3


def test_global_norm_and_all_finite(device: str) -> None:
    for seed in range(3):
        expected = torch.cat([t.flatten() for t in made("cpu", seed)]).norm()
        torch.testing.assert_close(kit.global_norm(made(device, seed)).cpu(), expected)
    arrays = made(device)
    assert bool(kit.all_finite(arrays))
    for bad in (float("inf"), float("nan")):
        arrays[3][0, 1, 1] = bad
        assert not bool(kit.all_finite(arrays))
    with pytest.raises(SettingsError, match="at least one tensor"):
        kit.global_norm([])


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clip_by_global_norm_is_torchs(device: str, max_norm: float) -> None:
    for seed in range(3):
        ours, theirs = made(device, seed), made("cpu", seed)
        holders = [torch.nn.Parameter(torch.zeros_like(t)) for t in theirs]
        for holder, t in zip(holders, theirs, strict=True):
            holder.grad = t
        expected = torch.nn.utils.clip_grad_norm_(holders, max_norm)
        torch.testing.assert_close(kit.clip_by_global_norm(ours, max_norm).cpu(), expected)
        equal(ours, theirs)


def optimized(optimizer: Any, seeds: range, **options: Any) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(t) for t in made("cpu")]
    chosen = optimizer(params, **options)
    for seed in seeds:
        for p, g in zip(params, made("cpu", seed), strict=True):
            p.grad = g
        chosen.step()
    return params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_multi_sgd_is_torchs(device: str, momentum: float) -> None:
    params, momenta = made(device), zeros(device)
    for seed in range(1, 5):
        kit.multi_sgd(params, made(device, seed), momenta if momentum else (), lr=0.1,
                      momentum=momentum, weight_decay=0.01)  # fmt: skip
    expected = optimized(torch.optim.SGD, range(1, 5), lr=0.1, momentum=momentum, weight_decay=0.01)
    equal(params, expected)
    with pytest.raises(SettingsError, match="momentum tensor for each parameter"):
        kit.multi_sgd(params, params, (), lr=0.1, momentum=0.9)


def test_multi_adamw_is_torchs_with_a_rate_that_changes(device: str) -> None:
    params, first, second = made(device), zeros(device), zeros(device)
    step = torch.zeros(()).to(device)
    chosen = [torch.nn.Parameter(t) for t in made("cpu")]
    optimizer = torch.optim.AdamW(chosen, lr=0.01, weight_decay=0.1)
    for seed in range(1, 6):
        rate = 0.01 / seed
        kit.multi_adamw(params, made(device, seed), first, second, step, lr=rate, weight_decay=0.1)
        optimizer.param_groups[0]["lr"] = rate
        for p, g in zip(chosen, made("cpu", seed), strict=True):
            p.grad = g
        optimizer.step()
    equal(params, chosen, rtol=1e-4, atol=1e-6)
    assert float(step) == 5


def lamb(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> Any:
    """Algorithm 2 of the paper, one parameter, in float64."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    r = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + 0.01 * p
    ratio = p.norm() / r.norm() if p.norm() > 0 and r.norm() > 0 else 1.0
    return p - 0.1 * ratio * r, m, v


def test_multi_lamb_is_the_papers_algorithm(device: str) -> None:
    params, first, second = made(device), zeros(device), zeros(device)
    kit.reset_arrays(params[1:2])  # a parameter of norm 0
    step = torch.zeros(()).to(device)
    expected = [
        (p.cpu().double(), z.double(), z.double())
        for p, z in zip(params, zeros("cpu"), strict=True)
    ]
    for number in range(1, 4):
        kit.multi_lamb(params, made(device, number), first, second, step, lr=0.1)
        grads = made("cpu", number)
        expected = [
            lamb(p, g.double(), m, v, number) for (p, m, v), g in zip(expected, grads, strict=True)
        ]
    equal(params, [p.float() for p, _, _ in expected], rtol=1e-4, atol=1e-5)


def test_each_is_one_op_after_its_first_call() -> None:
    with kit.Session() as session:
        params, first, second = made("kit"), zeros("kit"), zeros("kit")
        grads, step = made("kit", 1), torch.zeros((), device="kit")
        calls = {
            "norm": lambda: kit.global_norm(params),
            "finite": lambda: kit.all_finite(params),
            "clip": lambda: kit.clip_by_global_norm(grads, 1.0),
            "adamw": lambda: kit.multi_adamw(params, grads, first, second, step),
            "lamb": lambda: kit.multi_lamb(params, grads, first, second, step),
            "sgd": lambda: kit.multi_sgd(params, grads, lr=0.1),
            "reset": lambda: kit.reset_arrays(grads, share=False),
            "share": lambda: kit.reset_arrays(grads),
        }
        found = {}
        for name, call in calls.items():
            call()
            session.wait_all()
            before = session.metrics()["record.ops"]
            kept = call()
            session.wait_all()
            found[name] = session.metrics()["record.ops"] - before
            del kept
        # the three with a rate make it a tensor first, which is one more
        assert found == {"norm": 1, "finite": 1, "clip": 1, "adamw": 2, "lamb": 2, "sgd": 2,
                         "reset": 1, "share": 0}  # fmt: skip
