"""What a picked op says of itself, and where the graph says that the program stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.ir import Aval, Graph, Node, Segment
from kit.runs.analysis.nodes import node_kernels
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.trace import Span, SyncPoint, Timeline
from kit.widgets.graph.details import stops_of
from kit.widgets.graph.view import graph_payload
from tests.factories import HOSTILE

AVAL = (Aval((4, 8), "float32"),)
MS = 1_000_000


def stopping(waits_ms: tuple[float, ...] = (1, 4, 3, 6), steps: int = 2) -> Run:
    """Three ops in segments that end with a read, a read, and the step."""
    nodes = (
        Node("parameter", (), (), AVAL),
        Node("aten.mul.Tensor", ((0, 0), (0, 0)), (("arg1", "2"),), AVAL, "train.py:1"),
        Node("aten.add.Tensor", ((1, 0), (0, 0)), (), AVAL, "train.py:2", segment=1),
        Node("aten.neg.default", ((2, 0),), (), AVAL, "train.py:3", segment=2),
    )
    cuts = ("sync", "sync", "mark_step")
    segments = tuple(Segment(i, (i + 1,), (), (), cut) for i, cut in enumerate(cuts))
    spans = [
        Span("device/0", "fusion.1", "kernel", 0, 10, 0),
        Span("device/0", "fusion.1", "kernel", 20, 30, 0),
        Span("device/0", "neg", "kernel", 40, 50, 2, 3),
    ]
    syncs = tuple(
        SyncPoint(i * 10 * MS, round(wait * MS), "item", f"train.py:{7 + i % 2}")
        for i, wait in enumerate(waits_ms)
    )
    return Run(
        Settings(mode="bulked"), (), (10 * MS,) * steps, Timeline.of(spans), sync_points=syncs,
        graphs=(Graph(nodes),), segments=segments, fused=(Fused(0, "fusion.1", (1, 2)),),
    )  # fmt: skip


def test_a_stop_is_at_the_last_op_of_a_segment_that_a_read_ended():
    assert stops_of(stopping()) == {
        1: "the program stops after it: item at train.py:7 waits 2 ms, mean of 2 untraced steps",
        2: "the program stops after it: item at train.py:8 waits 5 ms, mean of 2 untraced steps",
    }


@pytest.mark.parametrize("waits_ms", [(1, 4, 3), (1, 2, 3, 4, 5, 6), ()])
def test_where_sync_points_and_segments_do_not_match_no_line_and_no_wait_is_told(waits_ms):
    said = stops_of(stopping(waits_ms))
    assert said == dict.fromkeys((1, 2), "the program stops after it, to read a value")


def test_where_the_program_waited_for_everything_no_line_and_no_wait_is_told():
    run = stopping()
    spans = [Span("host/main", "wait_all", "ahead", 50, 60)]
    said = stops_of(replace(run, timeline=Timeline.of(spans)))
    assert said == dict.fromkeys((1, 2), "the program stops after it, to read a value")


def test_an_op_that_ran_on_the_host_stops_the_program_as_a_read_does():
    run = stopping()
    first, *others = run.segments
    cut = replace(run, segments=(replace(first, cut="unlowered op"), *others))
    assert stops_of(cut) == stops_of(run)


def test_a_run_that_stops_nowhere_marks_nothing():
    run = stopping(())
    whole = (Segment(0, (1, 2, 3), (), (), "mark_step"),)
    assert stops_of(replace(run, segments=whole)) == {}


def test_an_op_says_its_arguments_its_inputs_and_its_kernels():
    scene = graph_payload(stopping())
    at = scene["rows"]["node"].tolist().index(1)
    texts = {
        name: scene["strings"][scene["rows"][name][at]]
        for name in ("attrs", "makes", "reads", "kernels")
    }
    assert texts == {
        "attrs": "arg1 = 2",
        "makes": "float32[4,8]",
        "reads": "made before the step float32[4,8]\nmade before the step float32[4,8]",
        "kernels": "fusion.1, with 1 more op",
    }
    assert node_kernels(stopping())[3] == [("neg", 1)]
    rows = scene["rows"]
    shared = dict(zip(rows["node"].tolist(), rows["shared"].tolist(), strict=True))
    assert [shared[node] for node in (1, 2, 3)] == [1, 1, 0]


def test_a_kernel_with_a_very_long_name_says_that_it_computes_other_ops_too():
    run, long = stopping(), "fusion." + "x" * 400
    names = tuple(long if name == "fusion.1" else name for name in run.timeline.names)
    fused = (Fused(0, long, (1, 2)),)
    renamed = replace(run, timeline=replace(run.timeline, names=names), fused=fused)
    scene = graph_payload(renamed)
    at = scene["rows"]["node"].tolist().index(1)
    assert scene["strings"][scene["rows"]["kernels"][at]].endswith("…, with 1 more op")


def test_a_strangers_text_is_made_safe_and_long_lists_are_cut():
    run = stopping()
    attrs = tuple((f"{HOSTILE}{i}", HOSTILE) for i in range(40))
    nodes = tuple(replace(n, attrs=attrs) for n in run.graphs[0].nodes)
    scene = graph_payload(replace(run, graphs=(Graph(nodes),)))
    texts = [scene["strings"][i] for i in scene["rows"]["attrs"].tolist() if i]
    assert texts
    for text in texts:
        assert text.endswith("\nand 34 more")
        assert all(c.isprintable() or c == "\n" for c in text.replace("\u200b", ""))
