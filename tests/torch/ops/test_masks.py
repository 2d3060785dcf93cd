"""Truths as numbers: 0 times NaN is NaN, in whatever programs the ops are.

XLA makes a choice of a product with a converted truth; so a mask that multiplies hid NaN where both
ops were in one program.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from kit.runs.settings import Settings
from kit.torch.device import open_session

pytestmark = pytest.mark.as_shipped

MODES = ("imperative", "bulked", "lazy")
Rule = Callable[..., Any]


def gradient(of: Rule, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(of(x).sum(), x)[0]


def _recurrent(x: torch.Tensor) -> list[torch.Tensor]:
    """The slope of relu at NaN is 1 to torch."""
    torch.manual_seed(0)
    cell = torch.nn.RNN(1, 1, nonlinearity="relu").to(x.device)
    out, _ = cell(x.roll(1).reshape(4, 1, 1))
    return list(torch.autograd.grad(out[:2].sum(), list(cell.parameters())))


# of numbers that are NaN, inf, 2 and -3, and a mask that hides the first two
CASES: dict[str, Rule] = {
    "mean of what is kept": lambda x, m: (x * m).sum() / m.sum(),
    "from the numbers": lambda x, m: x.log() * (x > 0).float(),
    "in place": lambda x, m: x.clone().mul_(m),
    "halves": lambda x, m: x.half() * (x > 0).half(),
    "divided": lambda x, m: [m / 0.0, m / torch.zeros_like(x), m // 0.0, m / x],
    "the others": lambda x, m: (~m).float() * x,
    "product of a row": lambda x, m: torch.einsum("i,ij->j", m.float(), x[:, None].expand(4, 3)),
    "as it was": lambda x, m: [x * (m * 1.0), x * (m + 0.0), x * (m / 1.0), x * m**1.0],
    "integers": lambda x, m: [
        x * m.int(), x * m.long().float(), x * functional.one_hot(m.long(), 2).T],
    "copied": lambda x, m: x * torch.zeros_like(x).copy_(m),
    "written": lambda x, m: x * torch.gt(x, 0, out=torch.zeros_like(x)),
    "a number": lambda x, m: [m * nan, torch.add(x, m, alpha=inf)],
    "three": lambda x, m: [
        torch.addcmul(torch.zeros_like(x), x, m), torch.addcmul(x, m, x, value=2),
        torch.addcdiv(torch.zeros_like(x), m, torch.zeros_like(x))],
    "lists": lambda x, m: [torch._foreach_mul([x], [m]), torch._foreach_div([m], [0.0])],
    "complex": lambda x, m: torch.view_as_real((x + 1j) * m),
    "a step": lambda x, m: x * torch.heaviside(m * 2.0 - 1, torch.zeros_like(x)),
    "the largest": lambda x, m: [gradient(lambda x: x.amax(), x),
                                 gradient(lambda x: x.aminmax().max, x)],
    "dropout": lambda x, m: [functional.dropout(x, 1.0),
                             torch.ops.aten.native_dropout_backward(x, m, 2.0)],
    "a cell": lambda x, m: _recurrent(x),
}  # fmt: skip


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def outcome(call: Rule, device: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.detach().cpu() for t in flat(call(*(t.to(device) for t in tensors)))]


def check(call: Rule, mode: str, *tensors: torch.Tensor) -> None:
    expected = outcome(call, "cpu", *tensors)
    with open_session(Settings(mode=mode)):
        found = outcome(call, "kit", *tensors)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_what_a_mask_multiplies_stays_nan(name: str, mode: str) -> None:
    mask = torch.tensor([False, False, True, True])
    check(CASES[name], mode, torch.tensor([nan, inf, 2.0, -3.0]), mask)


@pytest.mark.parametrize("mode", MODES)
def test_dropout_does_not_drop_nan(mode: str) -> None:
    """A NaN that is dropped is NaN in torch; the others are, too."""
    with open_session(Settings(mode=mode)):
        x = torch.full((64,), nan, device="kit", requires_grad=True)
        dropped = functional.dropout(x, 0.5)
        assert dropped.isnan().all()
        assert torch.autograd.grad((dropped * nan).sum(), x)[0].isnan().all()


MASKS: dict[str, Rule] = {
    "given": lambda x, m: m, "finite": lambda x, m: x.isfinite(), "above": lambda x, m: x > 0,
    "not": lambda x, m: ~m, "both": lambda x, m: m & (x < 1),
}  # fmt: skip
NUMBERS: dict[str, Rule] = {
    "truths": lambda m: m, "float": lambda m: m.float(), "double": lambda m: m.double(),
    "scaled": lambda m: m * 1.0, "added": lambda m: m + 0.0, "opposite": lambda m: 1 - m.float(),
    "whole": lambda m: m.long(), "halves": lambda m: m.bfloat16(),
}  # fmt: skip
USES: dict[str, Rule] = {
    "times": lambda x, n: x * n, "by": lambda x, n: n * x, "in place": lambda x, n: (x + 1).mul_(n),
    "over": lambda x, n: n / x, "twice": lambda x, n: (x * n) * n,
    "summed": lambda x, n: (x * n).sum(), "laid over": lambda x, n: x[:, None] * n,
}  # fmt: skip
SEEN = list(product(MASKS, NUMBERS, USES))


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([nan, inf, -inf, 0.0, -1.5, 2.0]), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.sampled_from(SEEN),
)
def test_a_masks_product_does_not_depend_on_the_cut(
    numbers: list[float], mask: list[bool], way: tuple[str, str, str]
) -> None:
    made, as_numbers, use = MASKS[way[0]], NUMBERS[way[1]], USES[way[2]]
    for mode in MODES:
        check(lambda x, m: use(x, as_numbers(made(x, m))), mode,
              torch.tensor(numbers), torch.tensor(mask))  # fmt: skip
