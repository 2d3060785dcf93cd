"""Graphs of a model and at random, and what each view of them must keep to."""

from __future__ import annotations

from hypothesis import strategies as st

from kit.ir import PHASES, Aval, Graph, Node
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Timeline
from kit.widgets.graph.view import graph_payload

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
