"""The IR graph view: what is folded, where it is drawn, what clicking does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bokeh.embed import file_html
from bokeh.models import Button, CustomJS, HoverTool
from bokeh.plotting import column
from bokeh.resources import INLINE
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import LayoutError
from kit.ir import PHASES, Aval, Graph, Node
from kit.run import Run, Settings
from kit.run_nodes import node_ns
from kit.trace import Span, Timeline
from kit.widgets.graph import (
    GRAPH_JS,
    GraphView,
    graph_js_args,
    graph_model,
    graph_payload,
    layout,
)
from kit.widgets.graph_dot import run_dot
from kit.widgets.graph_tree import lifted_edges, short_op, visible_boxes
from tests.browser.labserver import open_browser
from tests.factories import empty_run, make_run, one_span_run

AVAL = (Aval((4, 8), "float32"),)


def _bert(layers: int, *, ops: int = 12) -> Graph:
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


def _leaves(boxes):
    return [i for box in boxes if not box.is_frame for i in box.nodes]


@pytest.fixture
def no_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_collapsed_every_op_is_in_exactly_one_box_and_variables_in_none():
    graph = _bert(3)
    boxes, all_fit = visible_boxes(graph, ())
    assert sorted(_leaves(boxes)) == list(graph.ops)
    assert all_fit


def test_the_top_shows_what_is_inside_the_model_phase_by_phase():
    boxes, _ = visible_boxes(_bert(2), ())
    labels = {phase: [b.label for b in boxes if b.parent == phase] for phase in PHASES}
    assert labels["forward"] == ["embeddings", "layers.0", "layers.1", "sum"]
    assert labels["backward"] == ["layers.1", "layers.0"]
    assert [b.key for b in boxes if not b.parent] == list(PHASES)


def test_expanding_a_group_shows_its_children_in_place_and_keeps_every_op():
    graph = _bert(2)
    boxes, _ = visible_boxes(graph, {"forward/layers.1", "forward/layers.1/attention"})
    inside = {b.key: b.label for b in boxes if b.parent == "forward/layers.1"}
    assert list(inside.values()) == ["attention", "mlp"]
    assert [b.label for b in boxes if b.parent == "forward/layers.1/attention"] == [
        "query", "output"]  # fmt: skip
    assert next(b.kind for b in boxes if b.key == "forward/layers.1") == "open"
    assert sorted(_leaves(boxes)) == list(graph.ops)


def test_keys_of_other_graphs_are_ignored():
    graph = _bert(2)
    assert visible_boxes(graph, {"forward/layers.99", "x"})[0] == visible_boxes(graph, ())[0]


def test_a_long_run_of_siblings_is_folded_and_can_be_opened_piece_by_piece():
    nodes = [Node("aten.mul.Tensor", (), (), AVAL, phase="update") for _ in range(500)]
    graph = Graph(tuple(nodes))
    boxes, _ = visible_boxes(graph, ())
    assert len(boxes) == 2
    boxes, _ = visible_boxes(graph, {boxes[1].key})
    assert "… 60 more ops" in [b.label for b in boxes]
    assert len(boxes) < 40
    assert sorted(_leaves(boxes)) == list(range(500))


def test_a_group_that_would_make_too_many_boxes_stays_closed():
    graph = _bert(8)
    keys = {f"forward/layers.{i}" for i in range(8)}
    boxes, all_fit = visible_boxes(graph, keys, limit=30)
    assert len(boxes) <= 30
    assert not all_fit
    assert sorted(_leaves(boxes)) == list(graph.ops)


@given(
    st.lists(st.tuples(st.sampled_from(["", "M", "M.a", "M.a.b", "M.c.0", "M.c.1.d", "N.x"]),
                       st.sampled_from(PHASES)), max_size=60),
    st.data(),
)  # fmt: skip
def test_any_expansion_of_any_graph_shows_each_op_once(ops, data):
    nodes = tuple(Node("aten.mm.default", ((i - 1, 0),) if i else (), (), AVAL, phase=phase,
                       scope=scope) for i, (scope, phase) in enumerate(ops))  # fmt: skip
    graph = Graph(nodes)
    expanded: set[str] = set()
    for _ in range(4):
        boxes, _ = visible_boxes(graph, expanded)
        assert sorted(_leaves(boxes)) == list(graph.ops)
        assert len({b.key for b in boxes}) == len(boxes)
        groups = [b.key for b in boxes if not b.is_frame]
        if groups:
            expanded.add(data.draw(st.sampled_from(groups)))


def test_edges_are_lifted_to_the_boxes_and_count_distinct_values():
    graph = _bert(2)
    boxes, _ = visible_boxes(graph, ())
    edges = {(e.source, e.target): e for e in lifted_edges(graph, boxes)}
    assert edges["forward/embeddings", "forward/layers.0"].values == 1
    assert edges["backward/layers.1", "backward/layers.0"].values == 1
    assert edges["forward/layers.0", "backward/layers.0"].size_bytes == AVAL[0].size_bytes
    assert all(a != b for a, b in edges)


def test_opening_a_step_of_three_thousand_nodes_takes_one_dot_call_for_each_phase():
    graph = _bert(60, ops=24)
    assert len(graph) > 3_000
    run_dot.cache_clear()
    placed = layout(graph)
    assert run_dot.cache_info().misses <= 3
    assert len(placed.boxes) < 80
    layout(graph)
    assert run_dot.cache_info().misses <= 3


def test_forward_runs_down_backward_runs_up_beside_it():
    placed = {b.box.key: b for b in layout(_bert(3)).boxes}
    down = [placed[f"forward/layers.{i}"].y for i in range(3)]
    up = [placed[f"backward/layers.{i}"].y for i in range(3)]
    assert down == sorted(down)
    assert up == pytest.approx(down)
    assert placed["forward"].x < placed["backward"].x < placed["update"].x


@pytest.mark.parametrize("has_dot", [True, False])
def test_boxes_do_not_overlap_and_lie_inside_their_frames(has_dot, request):
    if not has_dot:
        request.getfixturevalue("no_dot")
    expanded = {"forward/layers.0", "forward/layers.0/attention", "backward/layers.1"}
    placed = layout(_bert(3), expanded=expanded)
    by_key = {b.box.key: b for b in placed.boxes}
    leaves = [b for b in placed.boxes if not b.box.is_frame]
    for i, a in enumerate(leaves):
        for b in leaves[:i]:
            assert abs(a.x - b.x) >= (a.w + b.w) / 2 or abs(a.y - b.y) >= (a.h + b.h) / 2
        frame = by_key[a.box.parent]
        assert abs(a.x - frame.x) <= (frame.w - a.w) / 2
        assert abs(a.y - frame.y) <= (frame.h - a.h) / 2
    assert min(b.x - b.w / 2 for b in placed.boxes) >= 0
    assert max(b.y + b.h / 2 for b in placed.boxes) == placed.height


@pytest.mark.parametrize("has_dot", [True, False])
def test_edges_run_from_their_source_to_their_target(has_dot, request):
    if not has_dot:
        request.getfixturevalue("no_dot")
    placed = layout(_bert(2))
    by_key = {b.box.key: b for b in placed.boxes}
    assert placed.edges
    for e in placed.edges:
        for key, x, y in ((e.edge.source, e.xs[0], e.ys[0]), (e.edge.target, e.xs[-1], e.ys[-1])):
            box = by_key[key]
            assert abs(x - box.x) <= box.w / 2 + 2
            assert abs(y - box.y) <= box.h / 2 + 2


def test_without_dot_a_grid_is_drawn_and_says_so(no_dot):
    placed = layout(_bert(2))
    assert placed.drawn_by == "a plain grid: dot was not found"
    assert len(placed.boxes) == len(visible_boxes(_bert(2), ())[0])


def test_a_dot_that_fails_or_hangs_is_replaced_by_the_grid(monkeypatch, tmp_path):
    dot = tmp_path / "dot"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    dot.write_text("#!/bin/sh\nexit 3\n")
    dot.chmod(0o755)
    assert "dot failed: CalledProcessError" in layout(_bert(1)).drawn_by
    dot.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    assert layout(_bert(1), timeout_s=0.2).drawn_by == "a plain grid: dot took longer than 0.2 s"


def test_an_answer_of_dot_that_failed_is_not_remembered():
    with pytest.raises(LayoutError, match="dot failed"):
        run_dot("/nonexistent/dot", "digraph {}", 1.0)
    with pytest.raises(LayoutError, match="dot failed"):
        run_dot("/nonexistent/dot", "digraph {}", 1.0)


def test_a_kernel_counts_for_its_node_once_a_step():
    t = Timeline.of([Span("host/main", "step", "step", 0, 10), Span("host/main", "step", "step",
                    10, 20), Span("device/0 kernels", "k", "kernel", 1, 5, 0, 3),
                    Span("device/0 kernels", "k", "kernel", 11, 13, 0, 3),
                    Span("device/0 kernels", "k", "kernel", 14, 15)])  # fmt: skip
    assert node_ns(Run(Settings(), (), (), t)) == {3: 3.0}
    assert node_ns(empty_run()) == {}


def test_a_box_tells_ops_shapes_time_and_line():
    boxes = graph_payload(make_run())["boxes"]
    i = next(i for i, kind in enumerate(boxes["kind"]) if kind == "group")
    assert " ops: " in boxes["what"][i]
    assert "the largest is float32[" in boxes["makes"][i]
    assert boxes["time"][i].endswith(" a step")
    assert "segment" in boxes["place"][i]
    assert boxes["label"][i].startswith("▸ ")


def test_the_note_counts_what_is_not_drawn_and_says_who_drew():
    run = make_run()
    note = graph_payload(run)["note"]
    hidden = len(run.graphs[0]) - len(run.graphs[0].ops)
    assert f"{hidden} parameters and inputs are not drawn" in note
    assert "drawn by graphviz dot" in note


def test_colouring_by_segment_tells_segments_apart():
    run = make_run()
    everything = frozenset(b.box.key for b in layout(run.graphs[0]).boxes)
    by_phase = graph_payload(run, everything)
    by_segment = graph_payload(run, everything, color_by="segment")
    assert by_phase["boxes"]["color"] != by_segment["boxes"]["color"]
    assert by_phase["boxes"]["x"] == by_segment["boxes"]["x"]


@pytest.mark.parametrize("run", [None, empty_run(), one_span_run(), make_run(),
                                 make_run(hostile=True)])  # fmt: skip
def test_every_run_draws_and_its_payload_is_plain_data(run):
    payload = graph_payload(run)
    plot, sources = graph_model(payload)
    json.dumps(payload, ensure_ascii=False, allow_nan=False).encode("utf-8")
    for name, source in sources.items():
        assert len({len(v) for v in source.data.values()}) <= 1, name
    assert len(file_html(column(plot), INLINE).encode()) > 0
    for hover in plot.select(HoverTool):
        assert "{safe}" not in hover.tooltips


def test_a_run_without_a_graph_says_why():
    run = make_run()
    native = replace(run, graphs=(), settings=run.settings.replace(mode="torch"))
    assert graph_payload(native)["message"]["text"] == [
        "native torch runs op by op: there is no graph to draw"]  # fmt: skip
    assert graph_payload(empty_run())["message"]["text"] == ["this run has no graph"]


def test_clicking_a_group_opens_it_and_its_title_closes_it():
    view = GraphView(make_run())
    data = view.sources["boxes"].data
    i = data["kind"].index("group")
    key = data["key"][i]
    view.sources["boxes"].selected.indices = [i]
    assert view.expanded == {key}
    assert view.sources["boxes"].selected.indices == []
    data = view.sources["boxes"].data
    i = data["key"].index(key)
    assert data["kind"][i] == "open"
    assert data["label"][i].startswith("▾ ")
    view.sources["boxes"].selected.indices = [i]
    assert view.expanded == frozenset()


def test_clicking_an_op_sets_the_node_and_a_phase_does_nothing():
    view = GraphView(make_run())
    view.expanded = frozenset(k for k, kind in zip(
        *(view.sources["boxes"].data[c] for c in ("key", "kind")), strict=True)
        if kind == "group")  # fmt: skip
    data = view.sources["boxes"].data
    i = data["kind"].index("op")
    view.sources["boxes"].selected.indices = [i]
    assert data["what"][i].startswith(f"%{view.node} = ")
    before = view.expanded
    view.sources["boxes"].selected.indices = [data["kind"].index("phase")]
    assert view.expanded == before


def test_collapse_all_closes_every_group():
    view = GraphView(make_run())
    closed = list(view.sources["boxes"].data["key"])
    view.expanded = frozenset(closed)
    assert len(view.sources["boxes"].data["key"]) > len(closed)
    view.children[0].children[1].click()
    assert view.expanded == frozenset()
    assert list(view.sources["boxes"].data["key"]) == closed


def test_assigning_a_run_redraws_and_keeps_what_is_open():
    view = GraphView(make_run())
    key = view.sources["boxes"].data["key"][view.sources["boxes"].data["kind"].index("group")]
    view.expanded = frozenset({key})
    view.run = make_run(seed=5)
    data = view.sources["boxes"].data
    assert data["kind"][data["key"].index(key)] == "open"
    view.run = None
    assert view.sources["message"].data["text"] == ["no run yet"]


def test_short_names_of_ops():
    assert [short_op(x) for x in ("aten.mm.default", "relu", "", "a.")] == ["mm", "relu", "", "a."]


@pytest.fixture
def offline():
    with open_browser(offline=True) as opened:
        yield opened


@pytest.mark.browser
def test_in_a_browser_the_whole_graph_is_in_sight_and_a_payload_replaces_another(offline, tmp_path):
    run = make_run(hostile=True, scopes=4)
    payload = graph_payload(run)
    plot, sources = graph_model(payload)
    new = graph_payload(run, frozenset({payload["boxes"]["key"][1]}))
    button = Button(label="next")
    button.js_on_click(CustomJS(args=graph_js_args(plot, sources),
                                code=f"const payload = {json.dumps(new)};" + GRAPH_JS))  # fmt: skip
    path = tmp_path / "graph.html"
    path.write_text(file_html(column(button, plot, sizing_mode="stretch_width"), INLINE))
    page = offline.page
    page.goto(path.as_uri())
    page.wait_for_function("window.Bokeh && Bokeh.documents[0]?.is_idle")
    state = """() => { const f = Bokeh.documents[0].get_model_by_name('graph');
        const boxes = f.renderers.find((r) => r.name == 'boxes').data_source;
        const [x, y] = [f.x_range, f.y_range];
        return {boxes: boxes.get_length(), title: f.title.text, x: [x.start, x.end],
          aspect: (f.inner_width / (x.end - x.start)) / (f.inner_height / (y.start - y.end)),
          font: f.renderers.find((r) => r.name == 'label').glyph.text_font_size.value}; }"""
    before = page.evaluate(state)
    assert before["x"][0] < 0 < payload["view"]["width"][0] < before["x"][1]
    assert before["aspect"] == pytest.approx(1, abs=0.01)
    assert 8 < float(before["font"].removesuffix("px")) < 16
    page.get_by_role("button", name="next").click()
    page.wait_for_function("Bokeh.documents[0].is_idle")
    after = page.evaluate(state)
    assert after["boxes"] == len(new["boxes"]["key"]) > before["boxes"]
    assert after["title"] == new["title"]
    assert after["aspect"] == pytest.approx(1, abs=0.01)
    assert (offline.outside, offline.errors()) == ([], [])
