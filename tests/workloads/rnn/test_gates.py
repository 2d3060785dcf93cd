"""Gates of an LSTM or GRU in every way: the numbers of torch's own layer, and other ops."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import kit
from benchmarks.rnn_gates import jax_row
from kit.errors import SettingsError
from kit.ir import Graph
from kit.runs.analysis.memory import memory
from kit.workloads.rnn.cells import CELLS, GATES, GatedRNN
from kit.workloads.rnn.gates import rnn_gates
from kit.workloads.rnn.scanned import predict
from tests.factories import empty_run
from tests.models.compare import assert_close, lazy

LAZY = kit.Settings(batch_size=4, steps=3, warmup=1, mode="lazy")
STEPS = 2
SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 2)
)  # batch, time, inputs, hidden, layers

each_cell = pytest.mark.parametrize("cell", [*CELLS])
each_way = pytest.mark.parametrize("gates", GATES)


def everything(model: Any, x: Tensor, device: str) -> list[Tensor]:
    """Outputs, loss and all gradients of some steps of SGD, and the parameters after them."""
    model, x = model.to(device), x.to(device)
    found: list[Tensor] = []
    for _ in range(STEPS):
        if isinstance(model, GatedRNN):
            outputs, last = model(x)
        else:
            sequence, state = model(x)
            outputs = sequence.unbind(1)
            last = (state[0] if isinstance(state, tuple) else state)[-1]
        loss = sum(o.square().mean() for o in outputs) + last.sum()
        loss.backward()
        found += [*outputs, last, loss, *(p.grad for p in model.parameters())]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return [t.detach().cpu() for t in [*found, *model.parameters()]]


def models(cell: str, gates: str, shape: tuple[int, ...]) -> tuple[Any, Any, Tensor]:
    """Ours, torch's with the same parameters, and an input."""
    batch, time, inputs, hidden, layers = shape
    ours = GatedRNN(cell, gates, inputs, hidden, layers)
    return ours, copy.deepcopy(ours.rnn), torch.randn(batch, time, inputs)


@settings(max_examples=40)
@given(st.sampled_from([*CELLS]), st.sampled_from(GATES), SHAPES)
def test_natively_every_way_is_torchs_own_layer(
    cell: str, gates: str, shape: tuple[int, ...]
) -> None:
    ours, theirs, x = models(cell, gates, shape)
    assert isinstance(theirs, nn.LSTM if cell == "lstm" else nn.GRU)
    assert_close(everything(ours, x, "cpu"), everything(theirs, x, "cpu"))


@each_way
@each_cell
def test_on_device_kit_every_way_is_native_torchs_layer(cell: str, gates: str) -> None:
    ours, theirs, x = models(cell, gates, (2, 2, 3, 5, 1))
    expected = everything(theirs, x, "cpu")
    with lazy(strict=True):
        assert_close(everything(ours, x, "kit"), expected)


@settings(max_examples=3)
@given(st.sampled_from([*CELLS]), st.sampled_from(GATES), SHAPES)
def test_on_device_kit_any_shape_is_native_torchs_layer(
    cell: str, gates: str, shape: tuple[int, ...]
) -> None:
    ours, theirs, x = models(cell, gates, shape)
    expected = everything(theirs, x, "cpu")
    with lazy(strict=True):
        assert_close(everything(ours, x, "kit"), expected)


@settings(max_examples=4)
@given(st.sampled_from([*CELLS]), st.sampled_from(GATES[:-1]), SHAPES)
def test_a_scan_is_native_torchs_layer(cell: str, gates: str, shape: tuple[int, ...]) -> None:
    _, theirs, x = models(cell, gates, shape)
    parameters = [
        {"w_input": "weight_ih", "w_hidden": "weight_hh", "b_input": "bias_ih",
         "b_hidden": "bias_hh"} for _ in range(shape[-1])
    ]  # fmt: skip
    params = [
        {ours: _numpy(getattr(theirs, f"{name}_l{i}")).T for ours, name in layer.items()}
        for i, layer in enumerate(parameters)
    ]

    def loss(params: Any) -> Any:
        return (predict(params, x.numpy(), cell=cell, gates=gates) ** 2).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    expected = theirs(x)[0].square().mean()
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for i, layer in enumerate(parameters):
        for ours, name in layer.items():
            native = getattr(theirs, f"{name}_l{i}").grad.numpy().T
            np.testing.assert_allclose(grads[i][ours], native, rtol=1e-4, atol=1e-5)


@each_cell
@pytest.mark.parametrize("time", [0, 2])
def test_the_fused_layers_learn_from_any_one_time_step(cell: str, time: int) -> None:
    ours, theirs, x = models(cell, "fused", (2, 3, 2, 4, 2))
    x.requires_grad_()
    ours(x)[0][time].sum().backward()
    expected = torch.autograd.grad(theirs(x)[0][:, time].sum(), [x, *theirs.parameters()])
    assert x.grad is not None
    assert_close([x.grad, *(p.grad for p in ours.parameters())], [*expected])


def _numpy(parameter: Tensor) -> Any:
    return parameter.detach().numpy()


def ops_of(graph: Graph, phase: str) -> Counter[str]:
    found = (n.op for n in graph if n.phase == phase and not n.is_variable)
    return Counter(".".join(op.split(".")[:2]) for op in found)


@each_cell
def test_the_ways_differ_in_ops_and_bytes(cell: str) -> None:
    streams = {g: kit.plan(rnn_gates(cell, g, hidden=8, length=3), LAZY) for g in GATES}
    cells, parts = 2 * 3, {"lstm": 4, "gru": 6}[cell]
    back = {g: ops_of(stream.graph, "backward") for g, stream in streams.items()}
    assert back["slice"]["aten.slice_backward"] == parts * cells
    assert back["view"]["aten.slice_backward"] == parts * cells
    for gates in ("chunk", "multigate"):
        assert back[gates]["aten.slice_backward"] == 0
        assert back[gates]["aten.cat"] == cells * {"lstm": 1, "gru": 2}[cell]
    for phase in ("forward", "backward"):
        assert ops_of(streams["fused"].graph, phase)["kit.hybrid"] == cells + 2  # one a layer
    written = {
        g: memory(replace(empty_run(), graphs=(stream.graph,))).allocated
        for g, stream in streams.items()
    }
    assert written["slice"] > written["view"] > written["multigate"] > written["fused"]
    assert written["chunk"] == written["multigate"]


@each_cell
def test_a_scan_is_one_op_each_way_for_each_layer(cell: str) -> None:
    runs = {
        g: kit.run(rnn_gates(cell, g, hidden=8, length=3, loop="scanned"), LAZY)
        for g in ("slice", "fused")
    }
    for run in runs.values():
        assert run.losses == pytest.approx(runs["slice"].losses, rel=1e-4)
        assert run.losses[-1] < run.losses[0]
        for phase in ("forward", "backward"):
            assert ops_of(run.graphs[0], phase)["jax.scan"] == 2


@pytest.mark.parametrize("mode", ["torch", "imperative"])
def test_one_sequence_of_one_step_trains_in_every_mode(mode: str) -> None:
    few = kit.Settings(batch_size=1, steps=2, warmup=1, mode=mode)
    losses = [
        kit.run(rnn_gates("gru", g, layers=1, hidden=1, length=1), few).losses
        for g in ("slice", "fused", "torch")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_half_precision_and_micro_batches_train() -> None:
    half = LAZY.replace(dtype="bfloat16", accumulate=2)
    run = kit.run(rnn_gates(gates="fused", layers=1, hidden=4, length=1), half)
    assert run.losses[-1] < run.losses[0] < 1
    assert not run.unlowered


def test_a_workload_goes_to_another_process() -> None:
    for loop in ("unrolled", "scanned"):
        workload = pickle.loads(pickle.dumps(rnn_gates("gru", "fused", loop=loop)))
        assert workload.name.startswith("rnn_gates: gru, fused")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gates": "multigates"}, "gates must be one of 'slice', .*Did you mean 'multigate'"),
        ({"gates": "xyz"}, "not 'xyz'.$"),
        ({"cell": "LSTM"}, "Did you mean 'lstm'"),
        ({"loop": "scan"}, "loop must be one of 'unrolled', 'scanned'.*mean 'scanned'"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1, not 0"),
        ({"length": 0}, "length must be"),
        ({"layers": True}, "layers must be a whole number of at least 1, not True"),
        ({"bidirectional": True}, "one direction only"),
        ({"gates": "torch", "loop": "scanned"}, "torch's own loop"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        rnn_gates(**wrong)


@each_cell
def test_the_benchmarks_scan_computes_what_its_loop_does(cell: str) -> None:
    """It crashed: it gave the scan an argument that was taken away."""
    shape = {"cell": cell, "hidden": 4, "length": 3, "layers": 2}
    looped, found = (
        jax_row(shape, "fused", 2, is_jitted=True, is_scanned=scans)() for scans in (False, True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), looped, found)
