"""The planner view: its columns, its sliders, hostile names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kit.errors import SettingsError
from kit.ir.plan import OpStream, plan
from kit.run_bulk import UNLIMITED
from kit.widgets.plan import ROW, PlanView, plan_figure, plan_payload, plan_text
from tests.factories import HOSTILE, make_run


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
    plan_figure(stream, 3, 3)


def test_the_sentence_counts_segments_by_phase_and_reason() -> None:
    stream = stream_of()
    text = plan_text(stream, plan(stream, 3, 1000))
    assert "ops in" in text
    assert "1 by mark_step" in text
    assert "by size" in text


def test_something_else_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"PlanView shows what kit\.plan\(workload\) gives"):
        PlanView("bert")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="at least 1"):
        PlanView(stream_of(), 0)
