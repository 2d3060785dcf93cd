"""The IR graph view: what is folded, where it is drawn, what clicking does."""

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
from kit.ir import PHASES, Aval, Graph, Node
from kit.ir.names import computed_by, optimizer_of, short_op
from kit.runs.analysis.nodes import node_ns
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Span, Timeline
from kit.widgets.graph.dot import run_dot
from kit.widgets.graph.layout import place
from kit.widgets.graph.payload import KINDS
from kit.widgets.graph.tree import MAX_SIBLINGS, build_tree, scope_parts
from kit.widgets.graph.view import GraphView, graph_model, graph_payload
from tests.factories import HOSTILE, empty_run, make_run, one_span_run
from tests.waiting import until

AVAL = (Aval((4, 8), "float32"),)


def bert(layers: int, *, ops: int = 12) -> Graph:
    """Forward and backward through `layers` blocks of `ops` ops, then a flat update."""
    nodes = [Node("input", (), (), AVAL)]

    def add(op, inputs, phase, scope):
        nodes.append(Node(f"aten.{op}.default", tuple((i, 0) for i in inputs), (), AVAL,
                          "train.py:41", phase, scope))  # fmt: skip
        return len(nodes) - 1

    x = add("embedding", [0], "forward", "Bert.embeddings")
    x = add("layer_norm", [x], "forward", "Bert.embeddings")
    kept = []
    for layer in range(layers):
        for k in range(ops):
            part = ("attention.query", "attention.output", "mlp")[k * 3 // ops]
            nodes.append(Node("parameter", (), (), AVAL))
            x = add("mm", [x, len(nodes) - 1], "forward", f"Bert.layers.{layer}.{part}")
        kept.append(x)
    x = add("sum", [x], "forward", "")
    grads = []
    for layer in reversed(range(layers)):
        for k in range(ops):
            part = ("mlp", "attention.output", "attention.query")[k * 3 // ops]
            x = add("mm_backward", [x, kept[layer]], "backward", f"Bert.layers.{layer}.{part}")
        grads.append(x)
    for g in grads:
        add("addcdiv", [g], "update", "")
    return Graph(tuple(nodes)).check()


def run_of(graph: Graph) -> Run:
    return Run(Settings(), (), (), Timeline.of([]), graphs=(graph,))


def scene_of(graph: Graph, **options):
    return graph_payload(run_of(graph), **options)


def keys(scene):
    return [scene["strings"][k] for k in scene["rows"]["key"]]


def row_of(scene, key):
    return keys(scene).index(key)


def check_placed(scene, placed):
    """Nothing overlaps its sibling, everything is in its frame, edges begin and end at boxes."""
    parent = scene["rows"]["parent"]
    inside: dict[int, list[int]] = {}
    for i in placed.rects:
        inside.setdefault(int(parent[i]), []).append(i)
    for above, rows in inside.items():
        for n, i in enumerate(rows):
            x, y, w, h = placed.rects[i]
            for j in rows[:n]:
                x2, y2, w2, h2 = placed.rects[j]
                assert abs(x - x2) >= (w + w2) / 2 - 0.6 or abs(y - y2) >= (h + h2) / 2 - 0.6
            if above >= 0:
                fx, fy, fw, fh = placed.rects[above]
                assert abs(x - fx) <= (fw - w) / 2 + 0.6
                assert abs(y - fy) <= (fh - h) / 2 + 0.6
    for e in placed.edges:
        for i, (px, py) in ((e.source, e.curve[:2]), (e.target, e.curve[-2:])):
            x, y, w, h = placed.rects[i]
            assert abs(px - x) <= w / 2 + 1.5
            assert abs(py - y) <= h / 2 + 1.5
    if placed.rects:
        assert min(x - w / 2 for x, _, w, _ in placed.rects.values()) >= -0.01
        assert min(y - h / 2 for _, y, _, h in placed.rects.values()) >= -0.01


@pytest.fixture
def no_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


scopes = st.sampled_from(["", "M", "M.a", "M.a.b", "M.c.0", "M.c.1", "M.c.2", "M.c.1.d", "N.x",
                          "M.more 12", "M.ops 1", "M.c.0…c.2"])  # fmt: skip


@st.composite
def graphs(draw):
    nodes: list[Node] = []
    for i in range(draw(st.integers(0, 60))):
        ends = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        op = draw(st.sampled_from(["aten.mm.default", "aten.add.Tensor", "parameter"]))
        inputs = () if op == "parameter" else tuple((e, 0) for e in ends)
        nodes.append(Node(op, inputs, (), AVAL, "", draw(st.sampled_from(PHASES)), draw(scopes)))
    return Graph(tuple(nodes)).check()


# -- what is folded


@given(graphs())
def test_every_op_of_any_graph_is_in_exactly_one_deepest_box_and_variables_in_none(graph):
    tree = build_tree(graph)
    leaves = [box.node for box in tree.boxes if box.kind == "op"]
    assert sorted(leaves) == list(graph.ops)
    assert len({box.key for box in tree.boxes}) == len(tree.boxes)
    for box in tree.boxes:
        own = [b.node for b in tree.boxes[box.id : box.end] if b.kind == "op"]
        assert len(own) == box.size[0]
        assert len(box.children) <= MAX_SIBLINGS
        assert all(tree.boxes[c.id].parent == box.id for c in box.children)
        phases = {graph.nodes[i].phase for i in own}
        assert phases == {box.phase}


@given(graphs())
def test_edges_run_between_children_of_one_group_and_count_distinct_values(graph):
    tree = build_tree(graph)
    found: dict[tuple[int, int], int] = {}
    for box in tree.boxes:
        for a, b, values, size in tree.shapes[box.shape].edges if box.children else ():
            found[box.children[a].id, box.children[b].id] = values
            assert size == values * AVAL[0].size_bytes
    expected: dict[tuple[int, int], set[int]] = {}
    for i, leaf in tree.ops.items():
        for s, _ in graph.nodes[i].inputs:
            a, b = _below_common(tree, tree.ops[s], leaf) if s in tree.ops else (-1, -1)
            if a >= 0:
                expected.setdefault((a, b), set()).add(s)
    assert found == {pair: len(values) for pair, values in expected.items()}


def _below_common(tree, a, b):
    up = []
    for i in (a, b):
        path = [i]
        while tree.boxes[path[-1]].parent >= 0:
            path.append(tree.boxes[path[-1]].parent)
        up.append(path[::-1])
    for x, y in zip(*up, strict=False):
        if x != y:
            return (x, y) if tree.boxes[x].parent >= 0 else (-1, -1)
    raise AssertionError("an op that is its own input")


def test_the_top_shows_what_is_inside_the_model_phase_by_phase():
    tree = build_tree(bert(2))
    labels = {b.key: [c.label for c in b.children] for b in tree.boxes if b.kind == "phase"}
    assert list(labels) == list(PHASES)
    assert labels["forward"] == ["embeddings", "layers.0", "layers.1", "sum"]
    assert labels["backward"] == ["layers.1", "layers.0"]


def test_equal_blocks_are_folded_into_one_and_keep_their_own_keys():
    tree = build_tree(bert(12))
    forward = tree.boxes[0]
    assert [c.label for c in forward.children] == ["embeddings", "layers.0 … 11 ×12", "sum"]
    fold = forward.children[1]
    assert fold.kind == "same"
    assert fold.key == "forward/layers.0…layers.11"
    assert [c.key for c in fold.children] == [f"forward/layers.{i}" for i in range(12)]
    assert len({c.shape for c in fold.children}) == 1


def test_a_block_that_differs_deep_inside_is_not_folded_with_the_others():
    graph = bert(6)
    at = next(i for i, n in enumerate(graph.nodes) if n.scope.startswith("Bert.layers.3.mlp"))
    nodes = list(graph.nodes)
    nodes[at] = replace(nodes[at], op="aten.gelu.default")
    tree = build_tree(Graph(tuple(nodes)))
    assert [c.label for c in tree.boxes[0].children] == [
        "embeddings", "layers.0 … 2 ×3", "layers.3", "layers.4", "layers.5", "sum"]  # fmt: skip


def test_five_thousand_ops_in_one_scope_are_taken_in_portions():
    nodes = [
        Node("aten.mul.Tensor", ((i - 1, 0),) if i else (), (), AVAL, phase="update")
        for i in range(5_000)
    ]
    scene = scene_of(Graph(tuple(nodes)))
    placed = place(scene, keys(scene))
    assert "… 60 more ops" in scene["strings"]
    assert max(len(s["boxes"]) for s in scene["shapes"]) <= MAX_SIBLINGS
    assert sum(KINDS[scene["rows"]["kind"][i]] == "op" for i in placed.rects) == 5_000
    assert scene["drawn_by"] == "graphviz dot"


def test_scopes_nested_a_thousand_deep_are_joined_at_the_end():
    assert len(scope_parts(".".join("abcdefghij" * 100))) == 24
    nodes = [
        Node("aten.mm.default", (), (), AVAL, scope=".".join("ab"[k % 2] for k in range(i)))
        for i in range(1, 300)
    ]
    assert build_tree(Graph(tuple(nodes))).boxes[0].size[0] == 299


def _ops(*names: str) -> list[Node]:
    return [Node(f"aten.{name}.default", (), (), AVAL) for name in names]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["view", "_unsafe_view", "bmm", "div", "_softmax", "expand", "bmm"], "attention"),
        (["bmm", "_softmax_backward_data", "mul", "bmm", "clone"], "attention"),
        (["view", "bmm", "_softmax_backward_data", "clone"], "bmm, softmax_backward_data"),
        (["mm", "gelu", "mm", "_softmax"], "mm, gelu, …"),
        (["bmm", "_softmax", "bmm", "gelu"], "attention, …"),
        (["_scaled_dot_product_flash_attention_for_cpu"], "attention"),
        (["_log_softmax", "view", "nll_loss_forward"], "cross entropy"),
        (["linear", "_log_softmax", "view", "nll_loss_forward"], "cross entropy, …"),
        (["nll_loss_backward", "_log_softmax_backward_data"], "cross entropy"),
        (["mse_loss"], "mse loss"),
        (["mse_loss_backward", "mul"], "mse loss"),
        (["view", "transpose", "stack", "clone"], "views and copies"),
        (["view", "gelu", "add"], "gelu, add"),
        (["view", "gelu", "add", "mul"], "gelu, add, …"),
        (["_foreach_addcdiv", "_foreach_sqrt"], "optimizer"),
    ],
)
def test_ops_without_a_module_are_named_by_what_they_compute(names, said):
    assert computed_by(_ops(*names)) == said


def _adam(op: str, tensors: int, lists: int, scale: int = 0) -> Node:
    inputs = tuple((i, 0) for i in range(tensors * (lists + 1) + scale))
    return Node(op, inputs, (), AVAL * (tensors * lists))


@pytest.mark.parametrize("scale", [0, 1, 2])
@pytest.mark.parametrize("lists", [4, 5])
@pytest.mark.parametrize("tensors", [1, 3, 4, 33, 68])
def test_an_optimizer_is_named_with_how_many_tensors_it_updates(tensors, lists, scale):
    said = optimizer_of(_adam("aten._fused_adamw.default", tensors, lists, scale))
    plural = "s" if tensors > 1 else ""
    unsure = "optimizer: AdamW"  # the lists could be cut in two ways: no number
    assert said in (f"optimizer: AdamW, {tensors} tensor{plural}", unsure)
    assert (said != unsure) or tensors in (4, 8)


def test_an_optimizer_and_what_it_needs_are_one_box_of_the_update():
    update = [_adam("aten._fused_adamw.default", 33, 4), *_ops("add", "view", "full")]
    graph = Graph(tuple(replace(node, inputs=(), phase="update") for node in update))
    (phase,) = [b for b in build_tree(graph).boxes if b.kind == "phase"]
    assert [b.label for b in phase.children] == ["optimizer: AdamW"]
    assert optimizer_of(_ops("_fused_sgd")[0]) == "optimizer: SGD"
    assert optimizer_of(_ops("_fused_adamw_of_a_stranger")[0]) == ""


def test_short_names_of_ops():
    assert [short_op(x) for x in ("aten.mm.default", "relu", "", "a.")] == ["mm", "relu", "", "a."]


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
        "native torch runs op by op: there is no graph to draw"
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
