"""The planner view: its columns, its sliders, hostile names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.embed import file_html
from bokeh.resources import INLINE
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import SettingsError
from kit.ir import Graph, Node
from kit.ir.plan import OpStream, plan
from kit.runs.bulk_sizes import UNLIMITED
from kit.widgets.base.theme import COLORS, INK
from kit.widgets.numbers.plan import (
    CYCLE,
    MAX_OPS,
    ROW,
    PlanView,
    plan_payload,
    plan_text,
)
from tests.factories import HOSTILE, make_run
from tests.widgets.base.test_theme import VISION, _lab


def stream_of(**options: Any) -> OpStream:
    run = make_run(**options)
    return OpStream.of(run.graphs[0], run.segments)


def test_each_op_is_a_cell_and_each_segment_has_an_end() -> None:
    stream = stream_of(scopes=60)
    segments = plan(stream, 5, 7)
    payload = plan_payload(stream, segments)
    ops, cuts = payload["ops"], payload["cuts"]
    n = len(stream.graph.ops)
    assert n > 2 * ROW
    assert {len(column) for column in ops.values()} == {n}
    assert len(cuts["x"]) == len(segments)
    assert payload["rows"] == -(-n // ROW)
    places = list(zip(ops["top"], ops["left"], strict=True))
    assert places == sorted(places)  # it reads like text
    at = 0
    for segment in segments:
        colors = set(ops["color"][at : at + len(segment.nodes)])
        assert len(colors) == 1
        if at:
            assert ops["color"][at - 1] not in colors
        at += len(segment.nodes)


def test_the_sliders_cut_again_at_once() -> None:
    view = PlanView(stream_of(scopes=12), 15, 15)
    before = len(view.segments)
    view.forward.value = 1
    assert len(view.segments) > before
    assert len(view.sources["cuts"].data["x"]) == len(view.segments)
    assert f"{len(view.segments):,} segments" in view.text.value
    view.forward.value = view.backward.value = UNLIMITED
    assert len(view.segments) <= before
    assert view.error.value == ""


def test_what_a_strangers_program_is_called_stays_text() -> None:
    stream = stream_of(hostile=True)
    view = PlanView(OpStream(stream.graph, stream.calls, notes=(HOSTILE,)))
    assert "<script>" not in view.text.value
    assert "\ud800" not in json.dumps(view.sources["ops"].data["op"], ensure_ascii=False)


def test_the_sentence_counts_segments_by_phase_and_reason() -> None:
    stream = stream_of()
    text = plan_text(stream, plan(stream, 3, 1000))
    segments = plan(stream, 3, 1000)
    forward = sum(s.phase == "forward" for s in segments)
    by_size = sum(s.cut == "size" for s in segments)
    assert text.startswith(f"{stream.counted} ops → {len(segments)} segments: {forward} forward, ")
    assert f"{by_size} size" in text
    assert text.endswith("1 mark_step.")
    viewed = replace(stream, views=frozenset(stream.graph.ops[:1]))
    assert plan_text(viewed, plan(viewed, 3, 3)).endswith("1 view does not count.")


def test_something_else_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"PlanView shows what kit\.plan\(workload\) gives"):
        PlanView("bert")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="at least 1"):
        PlanView(stream_of(), 0)


def test_a_reason_stands_at_its_line_and_a_forced_one_is_red() -> None:
    graph = make_run(scopes=6).graphs[0]
    middle = graph.ops[len(graph.ops) // 2]
    stream = OpStream(graph, frozenset(graph.ops), forced={middle: "sync"})
    payload = plan_payload(stream, plan(stream, UNLIMITED, UNLIMITED))
    labels = payload["labels"]
    at = labels["text"].index("sync")
    place = graph.ops.index(middle)
    assert place - 1 < labels["x"][at] < place
    assert labels["color"][at] == COLORS["wait"]
    assert {"forward", "backward", "update", "phase", "mark_step"} <= set(labels["text"])
    assert INK in payload["cuts"]["color"]
    assert COLORS["wait"] in payload["cuts"]["color"]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_labels_lie_in_their_row_and_reasons_do_not_cover_each_other(
    forward: int, backward: int, scopes: int
) -> None:
    stream = stream_of(scopes=scopes)
    payload = plan_payload(stream, plan(stream, forward, backward))
    labels, width = payload["labels"], payload["width"]
    assert len({len(column) for column in labels.values()}) == 1
    letter = 6.4 * width / 820
    ends: dict[int, float] = {}
    for x, y, text, align in zip(*(labels[k] for k in ("x", "y", "text", "align")), strict=True):
        assert -0.5 * letter - 0.5 <= x <= width
        if align == "right":
            assert x - len(text) * letter >= ends.get(int(y), -1) - 0.6 * letter
            ends[int(y)] = x


def test_nothing_one_op_and_very_many_are_drawn() -> None:
    nothing = OpStream(Graph(()), frozenset())
    assert plan_text(nothing, plan(nothing, 15, 15)) == "0 ops → 0 segments."
    one = OpStream(Graph((Node("aten.add", (), (), ()),)), frozenset({0}))
    assert plan_text(one, plan(one, 15, 15)).startswith("1 op → 1 segment: 1 forward. Cuts: ")
    many = Graph(tuple(Node("aten.add", (), (), ()) for _ in range(MAX_OPS + 50)))
    for stream in (nothing, one, OpStream(many, frozenset(many.ops))):
        view = PlanView(stream)
        assert view.error.value == ""
        assert len(view.sources["ops"].data["op"]) == min(len(stream.graph.ops), MAX_OPS)
        assert len(file_html(view.figure, INLINE)) > 0
    assert f"The first {MAX_OPS:,} ops are drawn" in view.text.value


@pytest.mark.parametrize("vision", VISION)
def test_neighbouring_segments_can_be_told_apart_and_are_no_phases(vision: str) -> None:
    labs = [_lab(color, vision) for color in CYCLE]
    for a, b in zip(labs, [*labs[1:], labs[0]], strict=True):
        assert np.linalg.norm(a - b) > 13
    for phase in ("forward", "backward", "update"):
        other = _lab(COLORS[phase], vision)
        assert min(float(np.linalg.norm(lab - other)) for lab in labs) > 13
