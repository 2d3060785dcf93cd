"""Rules that are written for speed: torch's numbers, in the kernels that were meant."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from kit.runtime.rules.default import DEFAULT_RULES


def rule(name: str) -> Any:
    found = DEFAULT_RULES.find(name)
    assert found is not None
    return found


def program(function: Any, *shapes: tuple[int, ...]) -> str:
    """What XLA makes of a function of float arrays of these shapes."""
    given = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return jax.jit(function).lower(*given).compile().as_text() or ""


@settings(max_examples=20)  # each is compiled
@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    dim=st.integers(-2, 1),
    start=st.integers(-5, 5),
    end=st.one_of(st.integers(-5, 5), st.just(2**63 - 1)),
    step=st.integers(1, 4),
)
def test_the_adjoint_of_any_slice_is_torchs(
    shape: list[int], dim: int, start: int, end: int, step: int
) -> None:
    dim = dim % len(shape) - len(shape) * (dim < 0)
    part = torch.ops.aten.slice.Tensor(torch.empty(shape), dim, start, end, step)
    grad = torch.randn(part.shape)
    found = rule("aten.slice_backward.default")(
        jnp.asarray(grad.numpy()), tuple(shape), dim, start, end, step
    )
    expected = torch.ops.aten.slice_backward(grad, shape, dim, start, end, step)
    np.testing.assert_array_equal(found, expected.numpy())


def test_the_adjoint_of_a_slice_is_one_kernel() -> None:
    def back(grad: Array) -> Any:
        return rule("aten.slice_backward.default")(grad, (8, 16), 1, 4, 8, 1)

    text = program(back, (8, 4))
    entry = text.partition("\nENTRY ")[2]
    assert re.findall(r" = \S+ (\w+)\(", entry) in (
        ["parameter", "constant", kernel] for kernel in ("fusion", "pad")
    )


def test_the_adjoint_of_a_linear_layer_is_torchs() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    bias = torch.zeros(5, requires_grad=True)
    grad = torch.randn(2, 3, 5)
    torch.nn.functional.linear(x, weight, bias).backward(grad)
    arrays = [jnp.asarray(t.detach().numpy()) for t in (x, grad, weight)]
    found = rule("aten.linear_backward.default")(*arrays, (True, True, True))
    for ours, theirs in zip(found, (x, weight, bias), strict=True):
        assert theirs.grad is not None
        np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_on_a_cpu_a_transposed_matrix_is_copied_before_it_multiplies() -> None:
    def back(grad: Array, x: Array) -> Any:
        return rule("aten.mm.default")(grad.T, x)

    text = program(back, (16, 8), (16, 4))
    assert "lhs_contracting_dims={1}" in text
    assert "conditional" not in text  # the platform was chosen when it was compiled
