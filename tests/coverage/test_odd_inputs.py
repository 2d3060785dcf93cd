"""Odd dtypes, shapes and layouts: device kit computes what CPU torch does, and refuses as it does.

The long form is `python -m tests.coverage.odd_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session
from tests.coverage.odd_inputs import case, find

CASES = range(20)


def test_odd_inputs_give_what_cpu_torch_gives() -> None:
    cache = ExecutableCache()
    for number in CASES:
        made = case(number)
        if made is not None:
            found = find(made, cache)
            assert found.kind != "different", f"case {number}: {made.name}{made.text}\n{found.what}"


REFUSED: dict[str, Callable[[str], object]] = {
    "a scalar for a part of a diagonal": lambda d: torch.zeros(10, 0, device=d).diagonal_scatter(
        torch.zeros((), device=d), -2
    ),
    "a scalar added at an index": lambda d: torch.zeros(1, device=d).index_add(
        0, torch.tensor(0, device=d), torch.tensor(1.0, device=d)
    ),
    "an empty picture": lambda d: F.interpolate(
        torch.zeros(2, 3, 4, 4, 0, device=d), scale_factor=1.7, mode="trilinear"
    ),
    "a matrix without dimensions": lambda d: torch.addmv(
        *(torch.tensor(1, device=d) for _ in range(3))
    ),
    "a draw by integers": lambda d: torch.multinomial(torch.ones(3, device=d).int(), 1),
    "a draw from a cube": lambda d: torch.multinomial(torch.ones(2, 2, 2, device=d), 1),
    "a dropout of truths": lambda d: F.dropout(torch.ones(5, device=d).bool()),
    "a dimension that is not there": lambda d: torch.ones(300, 300, device=d).softmax(5),
    "to sort along no dimension": lambda d: torch.ones(3, 3, device=d).sort(-3),
    "to split along no dimension": lambda d: torch.ones(3, 3, device=d).split(2, 2),
    "parts of less than nothing": lambda d: torch.ones(3, 3, device=d).split(-1),
    "parts of nothing": lambda d: torch.ones(3, 3, device=d).split(0),
    "parts of a number": lambda d: torch.ones((), device=d).split(-3),
    "a diagonal too long": lambda d: torch.ones(3, 5, device=d).diagonal_scatter(
        torch.ones(3, device=d), -1
    ),
    "a row too short": lambda d: torch.ones(3, 5, device=d).select_scatter(
        torch.ones(1, device=d), 0, 0
    ),
    "too few rows": lambda d: torch.ones(3, 5, device=d).slice_scatter(
        torch.ones(1, 5, device=d), 0, 0, 2
    ),
    "a mirror behind the end": lambda d: F.pad(torch.ones(1, 3, device=d), (3, 0), mode="reflect"),
    "a frame inside": lambda d: F.conv1d(
        torch.ones(1, 4, 4, device=d), torch.ones(1, 4, 2, device=d), padding=-1
    ),
    "a loss of less than nothing": lambda d: F.smooth_l1_loss(
        torch.ones(3, device=d), torch.ones(3, device=d), beta=-1
    ),
    "a gamma function of nothing": lambda d: torch.mvlgamma(torch.ones(3, device=d), 0),
    "a range from above": lambda d: torch.ones(3, device=d).uniform_(3, -3),
    "a spread of less than nothing": lambda d: torch.ones(3, device=d).normal_(3, -3),
    "a chance of three": lambda d: torch.ones(3, device=d).bernoulli_(3.0),
    "a matrix that has no factors to solve with": lambda d: torch.linalg.lu_factor(
        torch.ones(3, 3, device=d)
    ),
    "integers for a pseudo-inverse": lambda d: torch.linalg.pinv(torch.ones(3, 3, device=d).int()),
    "no draws": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_shape_that_torch_refuses_is_refused_in_its_words(what: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        REFUSED[what]("cpu")
    with open_session(), pytest.raises(expected.type) as got:
        REFUSED[what]("kit")
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_what_torch_takes_is_taken() -> None:
    def results(device: str) -> list[list[object]]:
        turned = torch.arange(6, device=device).reshape(2, 3).t()
        small, wide = torch.ones(1, 3, device=device), torch.ones(2, 3, 2, device=device)
        poles = torch.tensor([0.0, -1.0, 2.0, -2.0], device=device)
        return [
            torch.view_copy(turned, (6,)).tolist(),
            torch.linalg.lu_factor_ex(wide).info.tolist(),
            torch.linalg.lu_factor_ex(wide[:, :0]).info.tolist(),
            torch.linalg.matrix_exp(torch.zeros(2, 2, device=device).bfloat16()).tolist(),
            torch.special.zeta(torch.tensor([2.0, 3.0, 4.0, 0.5], device=device), poles).tolist()[
                :2
            ],
            F.pad(small, (2, 2), mode="reflect").tolist(),
            [part.tolist() for part in wide[:0].split(0)],
        ]

    with open_session():
        assert results("kit") == results("cpu")
