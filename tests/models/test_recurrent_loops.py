"""A direction of a recurrent layer is one op, a loop inside: its graph, numbers and derivatives."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import kit
from kit.ir import RECURRENT
from kit.runs.device.flops import node_flops
from kit.runs.settings import Settings
from kit.runs.whatif.costs import is_heavy
from kit.workloads import rnn_gates
from tests.models.compare import assert_close, lazy

KINDS: dict[str, dict[str, Any]] = {
    "LSTM": {},
    "LSTM, projected": {"proj_size": 2},
    "GRU": {},
    "RNN": {},
    "RNN, relu": {"nonlinearity": "relu"},
}
projected = pytest.mark.filterwarnings("ignore:LSTM with projections")  # native torch's own


def make(name: str, **more: Any) -> nn.RNNBase:
    torch.manual_seed(3)
    options = {**KINDS[name], **more}
    return getattr(nn, name.partition(",")[0])(3, 4, **options)  # type: ignore[no-any-return]


def start(layer: nn.RNNBase, batch: int) -> list[Tensor]:
    """A first state with numbers in it."""
    count = layer.num_layers * (1 + layer.bidirectional)
    hidden = torch.randn(count, batch, layer.proj_size or layer.hidden_size)
    cells = [torch.randn(count, batch, layer.hidden_size)] if isinstance(layer, nn.LSTM) else []
    return [hidden, *cells]


def call(layer: nn.RNNBase, x: Any, state: list[Tensor]) -> list[Tensor]:
    """The outputs, padded if the input is packed, and the last state."""
    outputs, last = layer(x, tuple(state) if len(state) > 1 else state[0])
    if isinstance(outputs, PackedSequence):
        outputs = pad_packed_sequence(outputs)[0]
    return [outputs, *(last if isinstance(last, tuple) else [last])]


def results(
    device: str, layer: nn.RNNBase, x: Tensor, state: list[Tensor], lengths: Tensor | None
) -> list[Tensor]:
    """All outputs and all gradients."""
    layer = copy.deepcopy(layer).to(device)
    leaves = [t.detach().to(device).requires_grad_() for t in (x, *state)]
    given = leaves[0] if lengths is None else pack_padded_sequence(leaves[0], lengths)
    outputs = call(layer, given, leaves[1:])
    weights = [torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(device) for y in outputs]
    sum((y * w).sum() for y, w in zip(outputs, weights, strict=True)).backward()  # type: ignore[union-attr]
    grads = [p.grad for p in (*leaves, *layer.parameters())]
    return [t.detach().cpu() for t in (*outputs, *grads) if t is not None]


class Ops(TorchDispatchMode):
    """Counts the ops of torch inside the block, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()
        self.results: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.counts[str(func)] += 1
        self.results[str(func)] = len(found) if isinstance(found, list | tuple) else 1
        return found


@projected
@pytest.mark.parametrize("lengths", [None, [3, 2, 1]])
@pytest.mark.parametrize("name", KINDS)
def test_outputs_states_and_every_gradient_are_torchs(name: str, lengths: Any) -> None:
    layer = make(name, num_layers=2, bidirectional=True)
    x, state = torch.randn(3, 3, 3), start(layer, 3)
    given = None if lengths is None else torch.tensor(lengths)
    expected = results("cpu", layer, x, state, given)
    with lazy(strict=True), Ops() as ops:
        got = results("kit", layer, x, state, given)
    assert_close(got, expected)
    kind = {"RNN": "rnn_tanh", "RNN, relu": "rnn_relu"}.get(name, name.partition(",")[0].lower())
    loops = {op: count for op, count in ops.counts.items() if op.startswith("kit.")}
    assert loops == {f"kit.{kind}.default": 4, f"kit.{kind}_backward.default": 4}


@projected
@pytest.mark.parametrize("name", KINDS)
def test_a_gradient_of_a_gradient_is_torchs(name: str) -> None:
    layer = make(name)
    x, state = torch.randn(2, 2, 3), start(layer, 2)

    def second(device: str) -> list[Tensor]:
        on = copy.deepcopy(layer).to(device)
        leaves = [t.detach().to(device).requires_grad_() for t in (x, *state)]
        loss: Any = sum(y.square().sum() for y in call(on, leaves[0] * 2, leaves[1:]))
        inputs = [*leaves, *on.parameters()]
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty: Any = sum(g.square().sum() for g in grads)
        return [g.cpu() for g in torch.autograd.grad(penalty, inputs)]

    expected = second("cpu")
    with lazy(strict=True):
        torch.testing.assert_close(second("kit"), expected, rtol=1e-3, atol=1e-4)


def test_the_loop_is_one_node_with_its_time_steps_line_and_module() -> None:
    run = kit.run(rnn_gates("lstm", "torch", layers=2, hidden=4, length=7))
    loops = [n for n in run.graphs[0].nodes if n.op.startswith("kit.lstm")]
    assert [n.op for n in loops] == ["kit.lstm.default"] * 2 + ["kit.lstm_backward.default"] * 2
    for node in loops:
        assert dict(node.attrs)["time_steps"] == "7"
        assert node.site.startswith("cells.py:")
        assert node.scope == "GatedRNN.rnn"
    assert not any("cell" in n.op for n in run.graphs[0].nodes)
    ids = {i for i, n in enumerate(run.graphs[0].nodes) if n in loops}
    charged = {int(n) for n in run.timeline.node if n in ids}
    assert charged == ids  # kernels inside of the loop are the loop's


def test_other_lengths_of_as_many_rows_need_no_other_program() -> None:
    layer = make("GRU")
    x = torch.randn(4, 3, 3)
    with lazy(strict=True) as session:
        on, given = copy.deepcopy(layer).to("kit"), x.to("kit")
        for lengths in ([4, 2, 2], [4, 3, 1]):
            packed = pack_padded_sequence(given, torch.tensor(lengths))
            native = pack_padded_sequence(x, torch.tensor(lengths))
            expected, got = layer(native)[0].data, on(packed)[0].data
            assert_close([got.detach().cpu()], [expected.detach()])
            session.mark_step()
        assert len({c.step for c in session.compiles}) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_as_near_as_torchs(dtype: torch.dtype) -> None:
    layer = make("LSTM", bidirectional=True).to(dtype)
    x, state = torch.randn(3, 2, 3, dtype=dtype), [s.to(dtype) for s in start(layer, 2)]
    expected = results("cpu", layer, x, state, None)
    with lazy(strict=True):
        got = results("kit", layer, x, state, None)
    bound = 1e-9 if dtype is torch.float64 else 4e-2
    torch.testing.assert_close(got, expected, rtol=bound, atol=bound)


def test_autocast_runs_the_layer_in_the_lower_precision() -> None:
    layer, x = make("LSTM"), torch.randn(3, 2, 3)
    # as torch does, but on processors without AVX-512, where its own autocast raises
    expected = copy.deepcopy(layer).bfloat16()(x.bfloat16())[0]
    with lazy(strict=True):
        on = copy.deepcopy(layer).to("kit")
        with torch.autocast("kit", dtype=torch.bfloat16):
            got = on(x.to("kit"))[0]
        assert got.dtype is expected.dtype is torch.bfloat16
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=2e-2, atol=2e-2)


def test_writing_into_the_outputs_leaves_the_gradients_right() -> None:
    layer, x = make("LSTM"), torch.randn(3, 2, 3)

    def grads(device: str) -> list[Any]:
        on = copy.deepcopy(layer).to(device)
        outputs = on(x.to(device))[0]
        (outputs.mul_(2) if device == "kit" else outputs * 2).sum().backward()  # torch's refuses
        return [p.grad.cpu() for p in on.parameters()]  # type: ignore[union-attr]

    expected = grads("cpu")
    with lazy(strict=True):
        assert_close(grads("kit"), expected)


def test_without_gradients_nothing_is_kept() -> None:
    layer, x = make("GRU", batch_first=True), torch.randn(2, 3, 3)
    with lazy(strict=True), torch.no_grad(), Ops() as ops:
        got = copy.deepcopy(layer).to("kit")(x.to("kit"))[0]
        assert_close([got.cpu()], [layer(x)[0]])
    assert ops.results["kit.gru.default"] == 2  # the outputs and the last state


def test_inference_mode_gives_torchs_numbers() -> None:
    layer, x = make("GRU", batch_first=True), torch.randn(2, 3, 3)
    with lazy(strict=True), torch.inference_mode():
        assert_close([copy.deepcopy(layer).to("kit")(x.to("kit"))[0].cpu()], [layer(x)[0]])


def test_a_frozen_weight_gets_no_gradient_and_the_rest_do() -> None:
    layer, x = make("LSTM"), torch.randn(3, 2, 3)
    with lazy(strict=True):
        on: Any = copy.deepcopy(layer).to("kit")
        on.weight_hh_l0.requires_grad_(False)
        on(x.to("kit"))[0].sum().backward()
        layer(x)[0].sum().backward()
        native: Any = layer
        assert on.weight_hh_l0.grad is None
        assert_close([on.weight_ih_l0.grad.cpu()], [native.weight_ih_l0.grad])


def test_flops_of_the_loop_are_those_of_its_products() -> None:
    layer, x = make("LSTM"), torch.randn(5, 2, 3)
    weights = 16 * 3 + 16 * 4
    with lazy(strict=True), FlopCounterMode(display=False) as counter:
        layer.to("kit")(x.to("kit"))[0].sum().backward()
    once = 2 * 5 * 2 * weights
    assert counter.get_total_flops() == once + once + 2 * 5 * 2 * 16 * 4
    run = kit.run(rnn_gates("gru", "torch", layers=1, hidden=4, length=5))
    graph, batch = run.graphs[0], run.settings.batch_size
    found = {n.op: node_flops(graph, i) for i, n in enumerate(graph.nodes) if "gru" in n.op}
    once = 2 * 5 * batch * 12 * (4 + 4)
    assert found == {"kit.gru.default": once, "kit.gru_backward.default": once + once // 2}


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_loop_takes_time_by_its_arithmetic_in_predictions(kind: str) -> None:
    assert is_heavy(f"kit.{kind}.default")
    assert is_heavy(f"kit.{kind}_backward.default")


@pytest.mark.parametrize("step_mode", ["retrace", "replay", "speculate"])
def test_dropout_between_layers_draws_anew_in_every_step_of_every_mode(step_mode: str) -> None:
    def losses(seed: int) -> list[float]:
        torch.manual_seed(seed)
        settings = Settings(mode="lazy", step_mode=step_mode)
        with kit.Session(settings) as session:
            layer = make("GRU", num_layers=2, dropout=0.5).to("kit")
            x = torch.ones(3, 2, 3).to("kit")
            return [session.run_step(lambda: layer(x)[0].sum()).item() for _ in range(5)]

    first = losses(1)
    assert len(set(first)) == 5
    assert losses(1) == first


def test_packed_sequences_pass_through_inference_mode() -> None:
    layer, x = make("LSTM", batch_first=True), torch.randn(2, 3, 3)

    def outputs(device: str) -> list[Tensor]:
        on, given = copy.deepcopy(layer).to(device), x.to(device)
        with torch.inference_mode():
            packed = pack_padded_sequence(given, torch.tensor([3, 1]), batch_first=True)
            padded = pad_packed_sequence(on(packed)[0], batch_first=True)[0]
            alone = on(given[0])[0]  # without a batch
        return [padded.cpu(), alone.cpu()]

    expected = outputs("cpu")
    with lazy(strict=True):
        assert_close(outputs("kit"), expected)


def test_no_time_steps_are_refused_in_torchs_words() -> None:
    layer, nothing = make("GRU"), torch.zeros(0, 2, 3)
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        layer(nothing)
    with lazy(), pytest.raises(RuntimeError, match="sequence length to be larger than 0 in RNN"):
        copy.deepcopy(layer).to("kit")(nothing.to("kit"))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_dropout_between_layers_is_not_lost_under_torch_func(name: str) -> None:
    layer, x = make(name, num_layers=2, dropout=1.0), torch.randn(3, 2, 3)

    def found(device: str) -> list[Tensor]:
        on = copy.deepcopy(layer).to(device)
        outputs, pull = torch.func.vjp(lambda v: on(v)[0], x.to(device))
        return [outputs.detach().cpu(), pull(torch.ones_like(outputs))[0].detach().cpu()]

    expected = found("cpu")
    with lazy():
        assert_close(found("kit"), expected)
