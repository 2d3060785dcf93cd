"""How deep a loader's queue is, in predictions: held to a count of each microsecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.ir import Graph, Segment
from kit.ir.graph import Aval, Node
from kit.runs.whatif.costs import Costs
from kit.runs.whatif.steps import Shape, step_ns
from kit.trace import SyncPoint

US = 1_000
NODE = Node("aten.relu.default", (), (), (Aval((1,), "float32"),))


def predicted_us(gaps: list[int], load: int, depth: int) -> float:
    """What a step takes whose host waits so long for the device after each batch that it takes."""
    last = len(gaps) - 1
    segments = tuple(
        Segment(i, (i,), (), (), "mark_step" if i == last else "micro-batch")
        for i in range(len(gaps))
    )
    wait = SyncPoint(0, 0, "item", "loss.item()", "train.py:1")
    waits = dict.fromkeys(range(len(gaps)), (wait,))
    device = tuple(float(US * gap) for gap in gaps)
    shape = Shape(Graph((NODE,) * len(gaps)), segments, device, waits, prefetch=depth)
    nothing = Costs({}, 0, 0, 0, 0, 0, 0, 0, np.zeros(len(gaps)), 0, 0, inputs_away=US * load)
    return step_ns(shape, nothing) / US


def counted_us(gaps: list[int], load: int, depth: int, steps: int = 150) -> float:
    """The same, by a queue, a loader and a host that are looked at each microsecond."""
    queued, in_hand, to_load = 0, False, load  # batches, one that has no room, left to load
    to_do, place, ends, now = 0, 0, [], 0
    while len(ends) < steps:
        has_moved = True
        while has_moved:  # what takes no time
            has_moved = False
            if not in_hand and to_load == 0:
                in_hand = has_moved = True
            if in_hand and queued < depth:
                queued, in_hand, to_load, has_moved = queued + 1, False, load, True
            if to_do == 0 and queued:
                if place == len(gaps):
                    ends.append(now)
                    place = 0
                queued, to_do, place, has_moved = queued - 1, gaps[place], place + 1, True
        now += 1
        to_do, to_load = max(to_do - 1, 0), max(to_load - 1, 0)
    half = steps // 2
    return (ends[-1] - ends[half]) / (steps - 1 - half)


@given(
    gaps=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    load=st.integers(1, 30),
    depth=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_a_queue_of_so_many_batches_is_what_a_count_finds(
    gaps: list[int], load: int, depth: int
) -> None:
    assert predicted_us(gaps, load, depth) == pytest.approx(counted_us(gaps, load, depth), rel=0.1)


def test_a_queue_deeper_than_all_batches_costs_no_more_to_predict() -> None:
    assert predicted_us([1, 30], 20, 2**40) == predicted_us([1, 30], 20, 100)


def test_a_deep_queue_brings_batches_for_a_burst() -> None:
    """Four micro-batches at once and then a long wait for the device."""
    gaps = [1, 1, 1, 97]
    assert predicted_us(gaps, 20, 1) == counted_us(gaps, 20, 1) == pytest.approx(137, abs=2)
    assert predicted_us(gaps, 20, 4) == counted_us(gaps, 20, 4) == 100
    assert predicted_us(gaps, 30, 4) == counted_us(gaps, 30, 4) == 120  # the loader's own pace
