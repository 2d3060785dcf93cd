"""A slice whose place moves needs one program for all places; the numbers are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kit.runs.settings import Settings
from kit.runtime.compiling.places import PATIENCE
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session

Loop = Callable[[torch.Tensor, int], Any]
ROWS = 9
TIMES = PATIENCE + 3


def learned(x: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    leaf = x.detach().clone().requires_grad_()
    part(leaf * 2).square().sum().backward()
    return leaf.grad.tolist()  # type: ignore[union-attr]


def written(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> list[Any]:
    copy = x.clone()
    write(copy)
    return copy.tolist()  # type: ignore[no-any-return]


LOOPS: dict[str, Loop] = {
    "x[i]": lambda x, i: (x[i] * 2).tolist(),
    "x[-i]": lambda x, i: (x[-1 - i] * 2).tolist(),
    "x[i:i + 3]": lambda x, i: (x[i : i + 3] * 2).tolist(),
    "x[i:i + 4:2]": lambda x, i: (x[i : i + 4 : 2] * 2).tolist(),
    "x[i - 9:i - 7]": lambda x, i: (x[i - 9 : i - 7] * 2).tolist(),
    "narrow, of truths": lambda x, i: (~(x > 3).narrow(0, i, 2)).tolist(),
    "the gradient of x[i]": lambda x, i: learned(x, lambda y: y[i]),
    "the gradient of x[i:i + 4:2]": lambda x, i: learned(x, lambda y: y[i : i + 4 : 2]),
    "x[i] = 7": lambda x, i: written(x, lambda y: y[i].fill_(7)),
    "x[:, i:i + 2] = y": lambda x, i: written(x.t(), lambda y: y[:, i : i + 2].copy_(y[:, :2] * 2)),
    "x[i:i + 4:2] += 1": lambda x, i: written(x, lambda y: y[i : i + 4 : 2].add_(1)),
}


def run(loop: Loop, device: str, times: int = TIMES) -> list[Any]:
    x = torch.arange(3.0 * ROWS).reshape(ROWS, 3).to(device)
    return [loop(x, i) for i in range(times)]


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_numbers_at_every_place_are_torchs_and_programs_are_no_more_than_patience(
    loop: Loop,
) -> None:
    expected = run(loop, "cpu")
    with open_session(Settings(mode="lazy")) as session:
        first = run(loop, "kit", PATIENCE + 1)
        compiled = len(session.compiles)
        assert run(loop, "kit") == expected
        assert first == expected[: PATIENCE + 1]
        assert len(session.compiles) == compiled  # the other places need no program of their own


def test_op_by_op_one_program_serves_all_places_too() -> None:
    with open_session(Settings(mode="imperative")) as session:
        run(LOOPS["x[i:i + 3]"], "kit", PATIENCE + 1)
        compiled = len(session.compiles)
        assert run(LOOPS["x[i:i + 3]"], "kit") == run(LOOPS["x[i:i + 3]"], "cpu")
        assert len(session.compiles) == compiled


def test_the_compile_says_that_the_place_is_an_input_now_and_is_no_storm() -> None:
    with open_session(Settings(mode="lazy")) as session:
        run(LOOPS["x[i]"], "kit")
        kinds = [compiled.kind for compiled in session.compiles]
        assert kinds == ["first", *["constant"] * (PATIENCE - 1), "place"]
        assert "aten.select.int is at another place each time" in session.explain()
        assert "recompile storm" not in session.explain()


def test_a_slice_that_stays_and_a_loop_in_a_step_keep_their_places_as_constants() -> None:
    with open_session(Settings(mode="lazy")) as session:
        x = torch.arange(27.0).reshape(9, 3).to("kit")
        for _ in range(3):
            total: Any = sum(x[i].sum() * i for i in range(9))
            assert total.item() == sum(i * (9 * i + 3) for i in range(9))
        assert [compiled.kind for compiled in session.compiles] == ["first"]


def test_a_users_rule_for_slices_is_not_passed_over() -> None:
    rules = Rules({"aten.select.int": lambda x, dim, index: x[index] * 0 - 1}).over(DEFAULT_RULES)
    with open_session(Settings(mode="lazy"), rules=rules):
        found = run(LOOPS["x[i]"], "kit")
    assert found == [[-2.0] * 3] * TIMES
