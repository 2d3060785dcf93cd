"""What torch's tables have few samples of: writes by a mask, multi-tensor ops, integer powers."""

from __future__ import annotations

import pytest
import torch

from kit.torch.device import open_session

FOREACH = ("acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
           "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
           "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc")  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "mask_shape", "before"),
    [
        ((4, 5), (4, 5), ()),
        ((4, 5), (4,), ()),
        ((4, 5), (5,), (slice(None),)),
        ((2, 4, 5), (4,), (slice(None),)),
        ((2, 4, 5), (4,), (0,)),
        ((), (), ()),
    ],
)
def test_a_number_written_by_a_mask_stays_on_the_device(
    shape: tuple[int, ...], mask_shape: tuple[int, ...], before: tuple[object, ...]
) -> None:
    expected, mask = torch.randn(shape), torch.randn(mask_shape) > 0
    with open_session() as session:
        found, on_device = expected.to("kit"), mask.to("kit")
        expected[(*before, mask)] = -1.5
        found[(*before, on_device)] = -1.5
        assert torch.equal(found.cpu(), expected)
        assert not session.unlowered


@pytest.mark.parametrize("name", FOREACH)
def test_a_multi_tensor_op_is_torchs_and_stays_on_the_device(name: str) -> None:
    tensors = [torch.rand(3) * 0.8 + 0.1, torch.rand(2, 2) * 0.8 + 0.1]
    with open_session() as session:
        moved = [x.to("kit") for x in tensors]
        new = getattr(torch, f"_foreach_{name}")(moved)
        getattr(torch, f"_foreach_{name}_")(moved)
        for a, b, x in zip(new, moved, getattr(torch, f"_foreach_{name}")(tensors), strict=True):
            torch.testing.assert_close(a.cpu(), x, rtol=1e-5, atol=1e-6)
            assert torch.equal(a.cpu(), b.cpu())
        assert not session.unlowered


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_an_integer_takes_any_power(dtype: torch.dtype) -> None:
    base = torch.tensor([0, 1, 3, 10, 7, 2, 3, 0, 5]).to(dtype)
    power = torch.tensor([64, 65, 65, 70, 2, 1, 100, 0, 66]).to(dtype)
    with open_session():
        assert torch.equal((base.to("kit") ** power.to("kit")).cpu(), base**power)


def test_integer_factors_are_rounded_to_zero() -> None:
    c, a, b = (
        torch.arange(n).reshape(shape) for n, shape in ((4, (2, 2)), (6, (2, 3)), (6, (3, 2)))
    )
    with open_session():
        found = torch.addmm(c.to("kit"), a.to("kit"), b.to("kit"), beta=1.7, alpha=2.9).cpu()
    assert torch.equal(found, torch.addmm(c, a, b, beta=1.7, alpha=2.9))
