"""What one sample gave on a device, and whether two devices gave the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["Seen", "as_good", "gradients", "moved", "other_strides", "same", "seeded", "seen"]

RTOL = 2e-4  # XLA and torch sum in other orders
ATOL = 5e-5  # of the tensor's largest number, if that is more than 1


WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass(frozen=True)
class Seen:
    """A tensor as it was on its device."""

    numbers: torch.Tensor  # on the CPU
    stride: tuple[int, ...]
    requires_grad: bool


def seen(item: Any) -> Any:
    """Tensors, in whatever holds them, as `Seen`; everything else as it is."""

    def look(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.layout is not torch.strided:
            x = x.to_dense()
        host = x.detach().cpu().resolve_conj().resolve_neg()
        return Seen(host.clone(), tuple(x.stride()), x.requires_grad)

    return tree_map(look, item)


def moved(item: Any, device: str, *, through_a_view: bool = False) -> Any:
    """A copy on the device, a leaf of autograd if the original was one.

    Device "wide" is the CPU in double precision. `through_a_view`: each tensor becomes every second
    number of a larger one.
    """
    wide = device == "wide"
    device = "cpu" if wide else device

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            x, wants_grad = x.detach().clone().to(device), x.requires_grad
            x = x.to(WIDER.get(x.dtype, x.dtype)) if wide else x
            if through_a_view:
                x = torch.stack([torch.ones_like(x), x], -1)[..., 1]
            return x.requires_grad_(wants_grad)
        is_device = isinstance(x, torch.device) or x == "cpu"
        return torch.device(device) if is_device else x

    return tree_map(move, item)


def same(got: Any, expected: Any, *, exact: bool, loose: float = 1.0) -> None:
    """The same numbers, shapes and dtypes; `exact=False` leaves the numbers out.

    Raises:
        AssertionError: they differ; the message says how.
    """
    (flat, kind), (wanted, wanted_kind) = tree_flatten(got), tree_flatten(expected)
    assert len(flat) == len(wanted), f"{kind} instead of {wanted_kind}"
    for a, b in zip(flat, wanted, strict=True):
        if isinstance(b, Seen):
            assert isinstance(a, Seen), f"{type(a).__name__} instead of a tensor"
            _same_tensor(a, b, exact, loose)
        elif exact and isinstance(b, float):
            assert_close(a, b, rtol=RTOL * loose, atol=ATOL * loose, equal_nan=True)
        elif exact and not isinstance(b, torch.device):
            assert (type(a), a) == (type(b), b), f"{a!r} instead of {b!r}"


def _same_tensor(a: Seen, b: Seen, exact: bool, loose: float) -> None:
    x, y = a.numbers, b.numbers
    assert x.shape == y.shape, f"shape {tuple(x.shape)} instead of {tuple(y.shape)}"
    assert x.dtype == y.dtype, f"{x.dtype} instead of {y.dtype}"
    assert a.requires_grad == b.requires_grad, f"requires_grad={a.requires_grad}"
    if exact:
        floats = y.is_floating_point() or y.is_complex()
        size = y.abs()[y.isfinite()].max().item() if floats and y.isfinite().any() else 0
        atol = ATOL * loose * max(1.0, float(size))
        assert_close(x, y, rtol=RTOL * loose, atol=atol, equal_nan=True)


def as_good(got: Any, expected: Any, exact: Any) -> bool:
    """True if no tensor of `got` is much further from the exact numbers than CPU torch's is."""
    leaves = zip(*(tree_flatten(x)[0] for x in (got, expected, exact)), strict=True)
    return all(_error(a, c) <= 4 * _error(b, c) for a, b, c in leaves if isinstance(b, Seen))


def _error(a: Seen, exact: Seen) -> float:
    x, y = a.numbers, exact.numbers
    if x.shape != y.shape or x.isnan().ne(y.isnan()).any():
        return float("inf")
    size = y.abs()[y.isfinite()].max().item() if y.isfinite().any() else 0
    gap = (x.to(y.dtype) - y).abs()[~(x == y) & ~y.isnan()]
    return gap.max().item() + 1e-5 * size if gap.numel() else 1e-5 * size


def other_strides(got: Any, expected: Any) -> str:
    """`(3, 1) instead of (1, 2)`, if some tensor lies otherwise in memory than CPU torch's."""
    for a, b in zip(tree_flatten(got)[0], tree_flatten(expected)[0], strict=True):
        if isinstance(b, Seen) and b.numbers.numel():
            sizes = zip(b.numbers.shape, a.stride, b.stride, strict=True)
            if any(n > 1 and s != t for n, s, t in sizes):
                return f"{a.stride} instead of {b.stride}"
    return ""


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """The same random numbers each time."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def gradients(out: Any, inputs: Any) -> list[Any]:
    """Of a fixed linear function of the outputs, with respect to every input that wants one."""
    outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in tree_flatten(inputs)[0] if isinstance(x, torch.Tensor)]
    leaves = [x for x in leaves if x.requires_grad]
    if not outputs or not leaves:
        return []
    weights = []
    for x in outputs:
        numbers = torch.linspace(0.5, 1.5, max(x.numel(), 1), dtype=torch.float32)[: x.numel()]
        weights.append(numbers.reshape(x.shape).to(x.dtype).to(x.device))
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))
