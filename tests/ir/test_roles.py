"""What a step's variables are: told from who reads them, and against what a real step has."""

from __future__ import annotations

from collections import Counter

import pytest

import kit
from kit.ir import ROLES, Aval, Graph, Node, roles
from kit.workloads import mlp
from kit.workloads.small_ops import LAYERS

WEIGHT, NUMBER = (Aval((4, 4), "float32"),), (Aval((), "float32"),)


@pytest.mark.parametrize(
    ("op", "aval", "phases", "role"),
    [
        ("parameter", WEIGHT, ("forward", "update"), "parameter"),
        ("parameter", WEIGHT, ("backward", "update"), "parameter"),
        ("parameter", WEIGHT, ("update",), "optimizer state"),
        ("parameter", WEIGHT, ("forward", "backward"), "made before the step"),
        ("parameter", WEIGHT, (), "made before the step"),
        ("parameter", NUMBER, ("update",), "number"),
        ("input", WEIGHT, ("forward", "update"), "from the host"),
        ("scalar", NUMBER, ("forward",), "number"),
    ],
)
def test_the_role_of_a_variable_is_told_by_the_phases_that_read_it(op, aval, phases, role):
    variable = Node(op, (), (), aval)
    reads = [Node("aten.exp.default", ((0, 0),), (), aval, phase=phase) for phase in phases]
    assert roles(Graph((variable, *reads)).check()) == {0: role}
    assert role in ROLES


def test_what_is_executed_has_no_role():
    nodes = (Node("input", (), (), WEIGHT), Node("aten.exp.default", ((0, 0),), (), WEIGHT))
    assert set(roles(Graph(nodes))) == {0}


@pytest.mark.parametrize("mode", ["lazy", "imperative"])
def test_a_real_step_has_its_models_parameters_and_two_averages_of_each(mode):
    run = kit.run(mlp, kit.Settings(mode=mode, steps=1, warmup=2))
    found = Counter(roles(run.graphs[0]).values())
    parameters = 2 * (LAYERS + 1)  # of each layer and of the last one: weight and bias
    assert found["parameter"] == parameters
    assert found["optimizer state"] == 2 * parameters  # AdamW's
    assert found["from the host"] == 2  # points and what is learned of them
    assert "made before the step" not in found
