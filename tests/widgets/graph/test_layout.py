"""The IR graph view: where each box is drawn, without graphviz too, and what is said of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import psutil
import pytest
from bokeh.embed import file_html
from bokeh.models import HoverTool
from bokeh.plotting import column
from bokeh.resources import INLINE
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import LayoutError
from kit.ir import PHASES, Graph, Node
from kit.runs.analysis.nodes import node_ns
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Span, Timeline
from kit.widgets.graph.dot import run_dot
from kit.widgets.graph.layout import place
from kit.widgets.graph.view import GraphView, graph_model, graph_payload
from tests.factories import HOSTILE, empty_run, make_run, one_span_run
from tests.waiting import until
from tests.widgets.graph.scenes import (
    AVAL,
    bert,
    check_placed,
    graphs,
    keys,
    row_of,
    run_of,
    scene_of,
)


@pytest.fixture
def no_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


# -- where it is


@settings(deadline=None, max_examples=40)
@given(graphs(), st.data())
def test_whatever_is_open_nothing_overlaps_and_children_are_inside_their_frames(graph, data):
    scene = scene_of(graph)
    groups = [k for k in keys(scene) if k]
    opened = data.draw(st.sets(st.sampled_from(groups))) if groups else set()
    check_placed(scene, place(scene, opened))
    placed = place(scene, groups)
    check_placed(scene, placed)
    assert set(placed.rects) == set(range(len(scene["rows"]["parent"])))


def test_without_dot_a_grid_is_drawn_that_holds_the_same_promises_and_says_so(no_dot):
    scene = scene_of(bert(3))
    assert scene["drawn_by"] == "a plain grid: dot was not found"
    check_placed(scene, place(scene, keys(scene)))
    assert len(scene["dots"]) == len(scene["shapes"])  # for graphviz in the page


def test_forward_runs_down_backward_runs_up_beside_it_and_the_update_is_below():
    scene = scene_of(bert(2))
    placed = place(scene)
    down = [placed.rects[row_of(scene, f"forward/layers.{i}")][1] for i in range(2)]
    up = [placed.rects[row_of(scene, f"backward/layers.{i}")][1] for i in range(2)]
    assert down == sorted(down)
    assert up == pytest.approx(down, abs=0.2)
    forward, backward, update = (placed.rects[row_of(scene, phase)] for phase in PHASES)
    assert forward[0] + forward[2] / 2 < backward[0] - backward[2] / 2
    assert update[1] - update[3] / 2 > max(y + h / 2 for _, y, _, h in (forward, backward))
    assert placed.width <= max(backward[0] + backward[2] / 2, update[2]) + 0.1


def test_opening_a_group_keeps_the_order_of_everything_else():
    scene = scene_of(bert(2))
    before, after = place(scene), place(scene, {"forward/layers.0", "forward/layers.0/attention"})
    rows = [i for i in before.rects if scene["rows"]["parent"][i] == 0]
    for axis in (0, 1):
        order = sorted(rows, key=lambda i: round(before.rects[i][axis], 1))
        moved = [after.rects[i][axis] for i in order]
        assert all(a <= b + 0.5 for a, b in pairwise(moved))
    assert set(after.rects) > set(before.rects)


def test_equal_blocks_are_laid_out_equally_and_only_once():
    scene = scene_of(bert(40))
    shapes = {int(scene["rows"]["shape"][row_of(scene, f"forward/layers.{i}")]) for i in range(40)}
    assert len(shapes) == 1
    assert len(scene["shapes"]) < 30
    assert scene["shapes"] == scene_of(bert(40))["shapes"]


def test_all_groups_of_a_graph_take_one_dot_process_and_the_next_time_none(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "kit.widgets.graph.dot.run_dot", lambda *a: calls.append(len(a[1])) or run_dot(*a)
    )
    graph = bert(4, ops=21)
    first = scene_of(graph)
    assert len(calls) == 1
    assert scene_of(graph)["shapes"] == first["shapes"]
    assert len(calls) == 1


def test_edges_from_phase_to_phase_join_the_innermost_boxes_in_sight():
    scene = scene_of(bert(2))
    pairs = {
        (keys(scene)[e.source], keys(scene)[e.target]): e
        for e in place(scene).edges
        if e.is_crossing
    }
    assert pairs["forward/layers.0", "backward/layers.0"].values == 1
    opened = place(scene, {"backward/layers.0"}).edges
    ends = {
        keys(scene)[e.target]
        for e in opened
        if e.is_crossing and keys(scene)[e.source] == "forward/layers.0"
    }
    assert ends == {"backward/layers.0/mlp", "backward/layers.0/attention"}


# -- graphviz that is not as it should be


def _fake_dot(monkeypatch, tmp_path, script):
    dot = tmp_path / "dot"
    dot.write_text(f"#!/bin/sh\n{script}\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "a plain grid: dot failed with status 3"),
        ("exec /bin/sleep 30", "a plain grid: dot took longer than 0.3 s"),
        ("echo 'sh: no such plugin'", "a plain grid: dot answered something that is no layout"),
        (
            """echo '{"name": "g0", "bb": "x", "objects": 7}'""",
            "a plain grid: dot gave no layout for it",
        ),
        (
            """echo '{"name": "g999", "bb": "0,0,1,1", "objects": []}'""",
            "a plain grid: dot gave no layout for it",
        ),
    ],
    ids=["fails", "hangs", "prints text", "prints other json", "answers something else"],
)
def test_a_dot_that_misbehaves_is_replaced_by_the_grid(monkeypatch, tmp_path, script, said):
    _fake_dot(monkeypatch, tmp_path, script)
    scene = scene_of(bert(1), timeout_s=0.3)
    assert scene["drawn_by"] == said
    check_placed(scene, place(scene, keys(scene)))


def test_what_dot_answered_before_it_hung_is_used(monkeypatch, tmp_path):
    shape = """{"name":"g0","bb":"0,0,100,50","objects":[{"name":"n0","_gvid":0,"pos":"50,25"}]}"""
    _fake_dot(monkeypatch, tmp_path, f"echo '{shape}'; exec /bin/sleep 30")
    nodes = (Node("aten.mm.default", (), (), AVAL),)
    assert scene_of(Graph(nodes), timeout_s=0.3)["drawn_by"] == "graphviz dot"


def test_an_answer_of_dot_that_failed_is_not_remembered():
    for _ in range(2):
        with pytest.raises(LayoutError, match="dot failed"):
            run_dot("/nonexistent/dot", ["{}"], 1.0)


def test_a_dot_that_is_interrupted_leaves_no_process(monkeypatch, tmp_path):
    began = tmp_path / "began"
    os.mkfifo(began)
    _fake_dot(monkeypatch, tmp_path, f"trap '' INT; echo >'{began}'; exec /bin/sleep 30")

    main, before = threading.get_ident(), psutil.Process().children()

    def interrupt() -> None:
        began.read_text()  # once dot has begun
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        run_dot(str(tmp_path / "dot"), ["{}"], 30.0)
    sender.join()
    until(lambda: psutil.Process().children() == before)  # not even a zombie is left


# -- what is said about it


def test_a_kernel_counts_for_its_node_once_a_step():
    t = Timeline.of([Span("host/main", "step", "step", 0, 10), Span("host/main", "step", "step",
                    10, 20), Span("device/0 kernels", "k", "kernel", 1, 5, 0, 3),
                    Span("device/0 kernels", "k", "kernel", 11, 13, 0, 3),
                    Span("device/0 kernels", "k", "kernel", 14, 15)])  # fmt: skip
    run = replace(Run(Settings(), (), (), t), graphs=make_run().graphs)
    assert node_ns(run) == {3: 3.0}
    assert node_ns(empty_run()) == {}


def test_a_group_has_the_sums_of_what_is_in_it():
    run = make_run()
    scene, graph = graph_payload(run), run.graphs[0]
    rows, spent = scene["rows"], node_ns(run)
    cut = {i: s.index for s in run.segments for i in s.nodes}
    for i, end in enumerate(rows["end"]):
        nodes = [int(n) for n in rows["node"][i:end] if n >= 0]
        assert rows["ops"][i] == len(nodes)
        assert rows["time"][i] == pytest.approx(sum(spent.get(n, 0) for n in nodes), abs=0.01)
        assert rows["bytes"][i] == sum(a.size_bytes for n in nodes for a in graph.nodes[n].avals)
        assert rows["low"][i] == min(cut[n] for n in nodes)
        assert rows["high"][i] == max(cut[n] for n in nodes)
        assert scene["strings"][rows["dtype"][i]] == "float32"


@pytest.mark.parametrize(
    "run", [None, empty_run(), one_span_run(), make_run(), make_run(hostile=True)]
)
def test_every_run_draws_and_its_payload_is_plain_data(run):
    payload = graph_payload(run)
    plot, sources = graph_model(payload)
    as_text = json.dumps(payload, ensure_ascii=False, allow_nan=False, default=lambda a: a.tolist())
    as_text.encode("utf-8")
    for name, source in sources.items():
        assert len({len(v) for v in source.data.values()}) <= 1, name
    assert len(file_html(column(plot), INLINE).encode()) > 0
    for hover in plot.select(HoverTool):
        assert "{safe}" not in hover.tooltips


def test_a_run_without_a_graph_says_why():
    run = make_run()
    native = replace(run, graphs=(), settings=run.settings.replace(mode="torch"))
    assert graph_payload(native)["message"] == (
        "native torch runs op by op:\nthere is no graph to draw"
    )
    assert graph_payload(empty_run())["message"] == "this run has no graph"
    assert graph_payload(None)["message"] == "no run yet"


def test_names_in_many_scripts_and_with_metacharacters_stay_text_in_every_export():
    names = [
        "模型",
        "модель",
        "मॉडल",
        '"];a->b;"\\N',
        "<b>&amp;</b>",
        "<<TABLE>>",
        "\\",
        "x" * 5000,
    ]
    nodes = [Node(f"aten.{n}.default", ((i - 1, 0),) if i else (), (), AVAL, f"{n}.py:1",
                  "forward", f"M.{n}.{i % 3}") for i, n in enumerate(names * 2)]  # fmt: skip
    view = GraphView(run_of(Graph(tuple(nodes))))
    view.expanded = frozenset(keys(graph_payload(view.run)))
    root = ET.fromstring(view.svg())
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("模型" in t for t in texts if t)
    assert graph_payload(view.run)["title"] in texts
    assert {e.tag.rpartition("}")[2] for e in root.iter()} == {
        "svg", "defs", "marker", "path", "rect", "text"}  # fmt: skip
    program = shutil.which("dot") or ""
    (answer,) = run_dot(program, [view.dot().removeprefix("digraph step ")], 20.0).values()
    count = sum("label" in o and not o["name"].startswith("cluster") for o in answer["objects"])
    assert count == len(nodes)
    hostile = GraphView(make_run(hostile=True))
    ET.fromstring(hostile.svg())
    assert HOSTILE not in hostile.dot()


def test_where_no_thread_can_start_dot_the_grid_stands_in(monkeypatch, tmp_path):
    def no_thread(*_args, **_options):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(LayoutError, match="dot failed: EngineError"):
        run_dot(str(tmp_path / "dot"), ["{}"], 1.0)
