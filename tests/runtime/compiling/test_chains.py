"""A loop whose every link is also used beside it is not compiled over and over."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import kit.runtime.session.compiler
from kit.ir import Aval
from kit.runs.settings import Settings
from kit.runtime.compiling.chains import MUCH, PART, ends_of_parts
from kit.runtime.compiling.lower import Executable, compile_segment
from kit.runtime.recording.bulk import Op
from kit.torch.device import open_session

ROWS = 40


def advantages(rewards: torch.Tensor, values: torch.Tensor, dones: torch.Tensor) -> Any:
    """Generalized advantage estimation, as programs for reinforcement learning write it."""
    found = torch.zeros_like(rewards)
    last: Any = 0
    for t in reversed(range(ROWS)):
        going = 1.0 - dones[t + 1]
        delta = rewards[t] + 0.99 * values[t + 1] * going - values[t]
        found[t] = last = delta + 0.99 * 0.95 * going * last
    return found, found + values[:-1]


def test_the_rows_of_a_loop_are_compiled_once_and_are_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Executable] = []

    def kept(*args: Any, **options: Any) -> Executable:
        made.append(compile_segment(*args, **options))
        return made[-1]

    monkeypatch.setattr(kit.runtime.session.compiler, "compile_segment", kept)
    torch.manual_seed(0)
    given = torch.randn(ROWS, 4), torch.randn(ROWS + 1, 4), (torch.rand(ROWS + 1, 4) < 0.1).float()
    with open_session(Settings(mode="lazy")) as session:
        there = [x.to("kit") for x in given]
        session.wait_all()
        found = [x.tolist() for x in advantages(*there)]
    for mine, torchs in zip(found, advantages(*given), strict=True):
        torch.testing.assert_close(torch.tensor(mine), torchs)
    largest = max(made, key=lambda one: len(one.ops))
    assert len(largest.ops) > 8 * ROWS
    text = largest.compiled.as_text()
    assert text.count("\n") < 8 * len(largest.ops)  # without parts, four times as many
    parts = re.findall(r"^ *(?:ROOT )?%([\w.\-]+) = [^\n]* call\(", text, re.M)
    assert len(parts) > ROWS / PART
    assert all(largest.instructions.members(name) for name in parts)


def program(links: int, users: int) -> list[tuple[Op, tuple[int, ...]]]:
    """A chain of sums, of which the last ones are each also summed up."""
    row = Aval((4,), "float32")
    add = Op(1, "aten.add.Tensor", ((), {}), (row, row), (row,), 0)
    total = Op(2, "aten.sum.default", ((), {}), (row,), (Aval((), "float32"),), 0)
    nodes: list[tuple[Op, tuple[int, ...]]] = []
    slot = -1
    for i in range(links):
        nodes.append((add, (slot, -2)))
        slot = len(nodes) - 1
        if i >= links - users:
            nodes.append((total, (slot,)))
    return nodes


def test_a_chain_that_is_used_at_its_end_only_is_left_as_it_is() -> None:
    assert not ends_of_parts(program(links=2 * MUCH, users=0))
    assert not ends_of_parts(program(links=200, users=4))
    assert not ends_of_parts(program(links=PART, users=PART))
    (add, refs), *_ = program(links=1, users=0)
    assert not ends_of_parts([(replace(add, name="anything"), refs)] * 2 * MUCH)


def test_a_chain_that_is_used_at_each_link_ends_a_part_at_each_few() -> None:
    nodes = program(links=100, users=100)
    sums = [i for i, (op, _) in enumerate(nodes) if op.id == 1]
    assert sorted(ends_of_parts(nodes)) == sums[PART - 1 :: PART]
