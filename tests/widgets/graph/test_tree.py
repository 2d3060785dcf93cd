"""The boxes of a graph: what is folded into which, what each is called, and no op in two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from kit.ir import PHASES, Graph, Node
from kit.ir.names import computed_by, optimizer_of, short_op
from kit.widgets.graph.layout import place
from kit.widgets.graph.payload import KINDS
from kit.widgets.graph.tree import MAX_SIBLINGS, build_tree, scope_parts
from tests.widgets.graph.scenes import AVAL, bert, graphs, keys, scene_of


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
        (["mm", "gelu", "mm", "_softmax"], "mm, gelu, softmax"),
        (["bmm", "_softmax", "bmm", "gelu"], "attention, …"),
        (["_scaled_dot_product_flash_attention_for_cpu"], "attention"),
        (["_log_softmax", "view", "nll_loss_forward"], "cross entropy"),
        (["linear", "_log_softmax", "view", "nll_loss_forward"], "cross entropy, …"),
        (["nll_loss_backward", "_log_softmax_backward_data"], "cross entropy"),
        (["mse_loss"], "mse loss"),
        (["mse_loss_backward", "mul"], "mse loss"),
        (["view", "transpose", "stack", "clone"], "views and copies"),
        (["view", "gelu", "add"], "gelu, add"),
        (["view", "sub", "pow", "mean", "mul"], "sub, pow, mean, mul"),
        (["view", "gelu", "mul", "sub", "pow", "mean"], "gelu, mul, …"),
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
