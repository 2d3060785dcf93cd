"""Odd dtypes, shapes and layouts: device kit computes what CPU torch does, and refuses as it does.

The long form is `python -m tests.coverage.odd_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from kit.runtime.session.executor import ExecutableCache
from kit.torch.device import open_session
from tests.coverage.odd_inputs import case, find

CASES = range(40)


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
    "no draws": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_shape_that_torch_refuses_is_refused_in_its_words(what: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED[what]("cpu")
    with open_session(), pytest.raises(RuntimeError) as got:
        REFUSED[what]("kit")
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
