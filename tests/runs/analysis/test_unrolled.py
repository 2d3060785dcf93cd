"""Cells that a program runs in a Python loop: found by line, with the layer of torch to use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.runs.device.unrolled import unrolled_cells
from kit.runs.verdict.advice import advise
from kit.widgets.graph.tree import build_tree
from tests.factories import make_run


def graph_of(make: Callable[[], nn.Module], time_steps: int, *, by_hand: bool) -> kit.ir.Graph:
    """The graph of a step that runs a cell in a loop, or a layer."""

    @kit.workload
    def recurrent(ctx: kit.Context) -> Callable[[], Any]:
        module = make().to(ctx.device)
        x = torch.randn(time_steps, 2, 3).to(ctx.device)

        def step() -> Any:
            if not by_hand:
                loss = module(x)[0].sum()
            else:
                state: Any = None
                for now in x:
                    state = module(now, state)
                loss = (state[0] if isinstance(state, tuple) else state).sum()
            loss.backward()
            return loss

        return step

    return kit.plan(recurrent, kit.Settings(mode="lazy")).graph


@pytest.mark.parametrize(("kind", "layer"), [(nn.LSTMCell, "nn.LSTM"), (nn.GRUCell, "nn.GRU")])
def test_many_cells_of_one_line_are_advised_to_be_a_layer(kind: Any, layer: str) -> None:
    graph = graph_of(lambda: kind(3, 4), 8, by_hand=True)
    (row,) = unrolled_cells(graph)
    assert (row.layer, row.cells) == (layer, 8)
    (advice,) = (a for a in advise(replace(make_run(), graphs=(graph,))) if "cells" in a.rule)
    assert advice.site == row.site
    assert row.site.startswith("test_unrolled.py:")
    assert f"{row.site} runs 8 cells a step" in advice.text
    assert f"{layer} with the same weights" in advice.text


def test_a_few_cells_and_a_layer_get_no_advice() -> None:
    assert unrolled_cells(graph_of(lambda: nn.LSTMCell(3, 4), 7, by_hand=True)) == []
    assert unrolled_cells(graph_of(lambda: nn.LSTM(3, 4), 9, by_hand=False)) == []


def test_a_layer_is_drawn_as_a_loop_with_its_time_steps() -> None:
    boxes = build_tree(graph_of(lambda: nn.GRU(3, 4), 9, by_hand=False)).boxes
    found = [(b.label.rpartition(": ")[2], b.sublabel) for b in boxes if "gru" in b.label]
    assert found == [
        ("gru", "loop of 9, float32[9,2,4]"),
        ("gru_backward", "loop of 9, float32[12,3]"),
    ]
