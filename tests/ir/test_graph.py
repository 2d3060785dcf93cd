"""`Graph`: its rules, its text form and its hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

from kit.errors import GraphError
from kit.ir import PHASES, VARIABLES, Aval, Graph, Node
from kit.ir.graph import is_view
from kit.runtime.rules.shape import VIEW_RULES
from tests.factories import HOSTILE, make_run

GOLDEN = Path(__file__).parent.parent / "golden" / "graph.txt"
SQUARE = Aval((4, 4), "float32")


def parameter(**changes: object) -> Node:
    return replace(Node("parameter", (), (), (SQUARE,)), **changes)


def add(*inputs: tuple[int, int], **changes: object) -> Node:
    node = Node("aten.add.Tensor", inputs, (("alpha", "1"),), (SQUARE,), "train.py:3")
    return replace(node, **changes)


def graph(*nodes: Node, wanted: tuple[tuple[int, int], ...] = ()) -> Graph:
    return Graph(nodes, wanted)


def test_a_well_formed_graph_is_returned_by_check():
    g = graph(parameter(), add((0, 0), (0, 0)), wanted=((1, 0),))
    assert g.check() is g


def test_an_empty_graph_is_well_formed_and_prints_nothing():
    assert (str(graph().check()), len(graph()), graph().ops) == ("", 0, ())


@pytest.mark.parametrize("source", [(1, 0), (2, 0), (-1, 0), (0, 1), (0, -1)])
def test_an_input_that_is_no_earlier_value_is_an_error_that_shows_the_node(source):
    with pytest.raises(GraphError, match=r"is not an earlier value: %1 = aten\.add\.Tensor"):
        graph(parameter(), add(source)).check()


@pytest.mark.parametrize("op", sorted(VARIABLES))
def test_a_variable_with_inputs_is_an_error(op):
    with pytest.raises(GraphError, match=rf"variable %1 \({op}\) has inputs"):
        graph(parameter(), parameter(op=op, inputs=((0, 0),))).check()


def test_an_unknown_phase_is_an_error_that_gives_the_allowed_ones():
    with pytest.raises(GraphError, match=r"phase 'sideways' is not one of .*'backward'"):
        graph(parameter(phase="sideways")).check()


@pytest.mark.parametrize("wanted", [(1, 0), (0, 1), (-1, 0), (0, -1)])
def test_a_wanted_value_that_does_not_exist_is_an_error(wanted):
    with pytest.raises(GraphError, match=r"wanted value .* does not exist"):
        graph(parameter(), wanted=(wanted,)).check()


def test_ops_are_the_nodes_that_are_executed():
    g = graph(parameter(), parameter(op="scalar"), add((0, 0), (1, 0)), parameter(op="input"))
    assert g.ops == (2,)


def test_the_text_of_a_training_step_is_the_golden_one():
    (g,) = make_run(scopes=2).graphs
    assert str(g) + "\n" == GOLDEN.read_text()


def test_the_text_of_a_second_output_names_it():
    two = add((0, 0), avals=(SQUARE, Aval((), "int64")))
    text = str(graph(parameter(), two, add((1, 0), (1, 1), attrs=(), site="")))
    assert "%1 = aten.add.Tensor(%0) {alpha=1} : float32[4,4], int64[]" in text
    assert "%2 = aten.add.Tensor(%1, %1.1) : float32[4,4]  # forward" in text


@pytest.mark.parametrize(
    "changes", [{"site": "other.py:9"}, {"scope": "Bert.head"}, {"segment": 3}, {"phase": "update"}]
)
def test_the_hash_does_not_depend_on_where_a_node_came_from(changes):
    assert graph(parameter(), add((0, 0), **changes)).hash == graph(parameter(), add((0, 0))).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "aten.mul.Tensor"},
        {"inputs": ((0, 0), (0, 0))},
        {"attrs": (("alpha", "2"),)},
        {"avals": (Aval((4, 5), "float32"),)},
        {"avals": (Aval((4, 4), "float16"),)},
    ],
)
def test_the_hash_depends_on_what_is_computed(changes):
    assert graph(parameter(), add((0, 0), **changes)).hash != graph(parameter(), add((0, 0))).hash


def test_the_hash_depends_on_which_values_are_wanted():
    nodes = (parameter(), add((0, 0)))
    assert graph(*nodes, wanted=((1, 0),)).hash != graph(*nodes).hash


def test_a_graph_that_was_hashed_equals_one_that_was_not():
    hashed, fresh = graph(parameter()), graph(parameter())
    assert len(hashed.hash) == 16
    assert hashed == fresh


def test_a_changed_copy_of_a_graph_that_was_hashed_has_a_hash_of_its_own():
    hashed = graph(parameter(), add((0, 0)))
    assert hashed.hash != replace(hashed, nodes=hashed.nodes[:1]).hash == graph(parameter()).hash


def test_an_aval_knows_its_text_and_its_bytes():
    assert str(Aval((8, 32), "float32")) == "float32[8,32]"
    assert (Aval((8, 32), "bfloat16").size_bytes, Aval((), "int64").size_bytes) == (512, 8)
    assert (Aval((0, 3), "float32").size_bytes, Aval((3,), "unknown").size_bytes) == (0, 12)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
     "float8_e4m3fn", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"],
)  # fmt: skip
def test_an_element_takes_as_many_bytes_as_in_memory(dtype):
    assert Aval((3,), dtype).size_bytes == 3 * jnp.dtype(dtype).itemsize


@pytest.mark.parametrize("mode", ["imperative", "bulked", "lazy"])
def test_a_synthetic_run_is_consistent_with_itself(mode):
    run = make_run(make_run().settings.replace(mode=mode, bulk_forward=4), scopes=5, hostile=True)
    (g,) = run.graphs
    g.check()
    assert sorted(i for s in run.segments for i in s.nodes) == list(g.ops)
    assert all(g.nodes[i].segment == s.index for s in run.segments for i in s.nodes)
    assert {s.phase for s in run.segments} == set(PHASES)
    assert all(HOSTILE in g.nodes[i].op for i in g.ops)
    written = set()
    for s in run.segments:  # what a segment reads is a variable, or was written before
        assert all(g.nodes[i].is_variable or (i, o) in written for i, o in s.reads)
        written |= set(s.writes)
    assert {w for w in g.wanted if not g.nodes[w[0]].is_variable} <= written


def test_every_view_that_the_runtime_knows_is_a_view_of_a_saved_run():
    assert [op for op in VIEW_RULES if not is_view(op)] == []
    assert not is_view("aten.add.Tensor")
    assert not is_view("view")
