"""Ops of several types and factors: torch widens before it multiplies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kit.torch.device import open_session

BYTES = torch.tensor([250, 251], dtype=torch.uint8)
HALVES = torch.tensor([60000.0, 1.0], dtype=torch.float16)
Place = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Callable[[Place], torch.Tensor]] = {
    "add, a number of bytes": lambda on: on(torch.arange(4)).add_(on(BYTES[0]), alpha=2),
    "add, bytes to floats": lambda on: torch.add(on(torch.ones(2)), on(BYTES), alpha=2),
    "add, halves to floats": lambda on: torch.add(on(torch.ones(2)), on(HALVES), alpha=2),
    "add, signed bytes to bytes": lambda on: torch.add(
        on(BYTES), on(torch.tensor([100, 101], dtype=torch.int8)), alpha=3
    ),
    "add, a large number to bytes": lambda on: on(BYTES).add(200, alpha=2),
    "sub": lambda on: torch.sub(on(torch.ones(2)), on(BYTES), alpha=2),
    "rsub": lambda on: torch.rsub(on(BYTES), on(torch.arange(2)), alpha=2),
    "rsub, a number": lambda on: torch.rsub(on(BYTES), 200, alpha=2),
    "addcmul, halves": lambda on: torch.addcmul(on(torch.ones(2)), on(HALVES), on(HALVES), value=2),
    "addcmul, bytes": lambda on: torch.addcmul(on(torch.arange(2)), on(BYTES), on(BYTES)),
    "foreach": lambda on: torch._foreach_add([on(torch.ones(2))], [on(BYTES)], alpha=2)[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_factor_is_multiplied_in_the_type_of_the_result(name: str) -> None:
    expected = PROGRAMS[name](torch.clone)
    with open_session():
        got = PROGRAMS[name](lambda x: x.to("kit", copy=True)).cpu()
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_quotient_of_zero_has_the_sign_of_its_parts(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -0.0, 5.0, -5.0], dtype=dtype)
    y = torch.tensor([2.0, -2.0, 4.0, -2.0, 2.0, 2.0], dtype=dtype)
    with open_session():
        on, by = x.to("kit"), y.to("kit")
        found = [on // by, torch.div(on, by, rounding_mode="floor"), on // 2]
        got = [q.cpu() for q in found]
    for quotient, native in zip(got, (x // y, x // y, x // 2), strict=True):
        assert torch.equal(quotient, native)
        assert torch.equal(quotient.signbit(), native.signbit())


def test_what_a_decomposition_made_contiguous_can_be_written() -> None:
    """By its schema `contiguous` gives a view, which a write could not go through."""
    x = torch.arange(4).reshape(2, 2)
    with open_session():
        on = x.to("kit")
        made = torch.diag_embed(on.transpose(1, 0))
        made.select(0, -1).select(1, -2).clamp_(min=7)
        copy = on.transpose(1, 0).contiguous()
        copy.add_(1)
        own = on.contiguous()
        own.add_(10)
        got = made.cpu(), copy.cpu(), on.cpu()
    expected = torch.diag_embed(x.transpose(1, 0))
    expected.select(0, -1).select(1, -2).clamp_(min=7)
    assert torch.equal(got[0], expected)
    assert torch.equal(got[1], x.transpose(1, 0) + 1)
    assert torch.equal(got[2], x + 10)
