"""A slice whose place moves needs one program for all places; the numbers are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kit.ir import Aval
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.places import MOVED, PATIENCE, Moved, Places
from kit.runtime.recording.bulk import Op
from kit.runtime.recording.template import HOLE
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session
from tests.measure.attached.loops import python_calls

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


def moved_slices(session: Any) -> int:
    """How many slices of the program that was compiled last take their places as inputs."""
    rows = session.compile_diff().rows
    return sum(any(name in row.right_text for name in MOVED) for row in rows)


def test_only_the_slices_that_moved_take_their_places_as_inputs() -> None:
    def step(x: torch.Tensor, i: int, k: int) -> Any:
        return (x[i] + x[k] * 2 + x[2:5].sum()).tolist()

    plain = torch.arange(27.0).reshape(9, 3)
    with open_session(Settings(mode="lazy")) as session:
        x = plain.to("kit")
        for i in range(TIMES):
            assert step(x, i, 4) == step(plain, i, 4)
        assert moved_slices(session) == 1
        compiled = len(session.compiles)
        for i in range(TIMES):  # another slice begins to move: one more program for both
            assert step(x, 8 - i, i) == step(plain, 8 - i, i)
        assert moved_slices(session) == 2
        assert len(session.compiles) == compiled + 1
        assert [made.kind for made in session.compiles[-2:]] == ["place", "place"]


def test_slices_that_begin_to_move_one_after_the_other_need_few_programs() -> None:
    count = 3 * PATIENCE

    def step(x: torch.Tensor, at: list[int]) -> Any:
        return sum((x[i] * (k + 1.5) for k, i in enumerate(at)), x[0] * 0).tolist()

    plain = torch.arange(27.0).reshape(9, 3)
    with open_session(Settings(mode="lazy")) as session:
        x = plain.to("kit")
        at = [0] * count
        for k in range(count):
            for place in range(1, PATIENCE + 2):
                at[k] = place
                assert step(x, at) == step(plain, at)
        assert len(session.compiles) <= PATIENCE + 1 + PATIENCE


@pytest.mark.parametrize("mode", ["lazy", "imperative"])
def test_a_second_session_with_the_same_programs_needs_none_for_another_place(mode: Any) -> None:
    cache = ExecutableCache()
    x = torch.arange(27.0).reshape(9, 3)
    for first in (0, PATIENCE + 1):
        with open_session(Settings(mode=mode), cache=cache) as session:
            for i in range(first, first + PATIENCE + 1):
                assert (x.to("kit")[i] * 2).tolist() == (x[i] * 2).tolist()
    assert not session.compiles


def test_a_program_that_was_compiled_before_is_no_other_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.runtime.compiling.cache.MAX_PROGRAMS", 1)
    with open_session(Settings(mode="lazy")) as session:
        x = torch.arange(9.0).to("kit")
        for _ in range(PATIENCE + 2):  # each of the two programs makes room for the other
            assert x[2].item() == 2
            assert (x[3] * 2).item() == 6
        assert not moved_slices(session)


def test_a_second_program_with_moved_places_is_held_against_its_own_kind() -> None:
    with open_session(Settings(mode="lazy")) as session:
        for rows in (9, 10):
            x = torch.arange(3.0 * rows).reshape(rows, 3).to("kit")
            for i in range(TIMES):
                (x[i] * 2).tolist()
        kinds = [compiled.kind for compiled in session.compiles]
        constants = ["constant"] * (PATIENCE - 1)
        assert kinds == ["first", *constants, "place", "shape", *constants, "place"]
        x[1:4].tolist()
        last = session.compiles[-1]
        assert "kit.part_at" not in last.sentence


def segments(count: int) -> list[tuple[list[Op], list[int]]]:
    """Segments of so many ops, and their keys, whose first op is a slice that moves."""
    aval, part = Aval((9,), "float32"), Aval((), "float32")
    others = [Op(1000, "aten.exp.default", ((HOLE,), {}), (part,), (part,), 0)] * (count - 1)
    rest = [x for k in range(count - 1) for x in (1000, k)]
    return [
        (
            [Op(i, "aten.select.int", ((HOLE, 0, i), {}), (aval,), (part,), 0, True), *others],
            [i, -1, *rest],
        )
        for i in range(PATIENCE + 1)
    ]


def calls_of(count: int) -> int:
    """How many functions of Python it takes to find the program of such segments."""
    places, found = Places(DEFAULT_RULES), list[Moved | None]()
    made = segments(count)
    calls = python_calls(lambda: found.extend(places.moved(*one, ()) for one in made))
    assert found[-1] is not None
    assert list(found[-1].ops) == [0]
    return calls


def test_to_find_the_program_of_a_moved_slice_runs_no_python_for_each_op() -> None:
    assert calls_of(10) == calls_of(500)
