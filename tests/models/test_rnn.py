"""RNN, LSTM and GRU layers train on device kit as in native torch, with nothing on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.models.compare import assert_close, assert_trains_alike, lazy

KINDS = ["RNN", "LSTM", "GRU"]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep, both ways": {"num_layers": 2, "bidirectional": True},
    "batch first, no bias": {"batch_first": True, "bias": False},
}


class Packed(nn.Module):
    """A layer over sequences of different lengths."""

    def __init__(self, layer: nn.Module, lengths: list[int], is_sorted: bool = True) -> None:
        super().__init__()
        self.layer, self.lengths, self.is_sorted = layer, torch.tensor(lengths), is_sorted

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(
            x, self.lengths, batch_first=self.layer.batch_first, enforce_sorted=self.is_sorted
        )
        output, state = self.layer(packed)
        return pad_packed_sequence(output, batch_first=self.layer.batch_first)[0], state


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_trains_as_in_torch(kind: str, variant: str) -> None:
    layer = getattr(nn, kind)(3, 5, **VARIANTS[variant])
    assert_trains_alike(layer, [torch.randn(3, 2, 3)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_trains_as_in_torch(kind: str) -> None:
    layer = getattr(nn, kind)(3, 5, bidirectional=True)
    assert_trains_alike(Packed(layer, [3, 2, 1]), [torch.randn(3, 3, 3)])


def test_lengths_in_any_order_cost_one_sync_point_in_torchs_own_code() -> None:
    model = Packed(nn.GRU(3, 5, batch_first=True), [1, 3, 2], is_sorted=False)
    x = torch.randn(3, 3, 3)
    expected = model(x)[0]
    with lazy(strict=True) as session:
        output = model.to("kit")(x.to("kit"))[0]
        assert [(s.cause, s.via.split(":")[0]) for s in session.syncs] == [
            (
                "copy to host",
                "torch/nn/utils/rnn.py",
            )  # lengths[unsorted_indices.cpu()], in pad_packed_sequence
        ]
        assert_close([output.detach().cpu()], [expected.detach()])


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # native torch's own
def test_a_projected_lstm_trains_as_in_torch() -> None:
    assert_trains_alike(nn.LSTM(3, 5, proj_size=2), [torch.randn(3, 2, 3)])


def test_a_relu_rnn_trains_as_in_torch() -> None:
    assert_trains_alike(nn.RNN(3, 5, nonlinearity="relu"), [torch.randn(3, 2, 3)])


@pytest.mark.parametrize("cell", ["RNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_trains_as_in_torch(cell: str, bias: bool) -> None:
    assert_trains_alike(getattr(nn, cell)(3, 5, bias=bias), [torch.randn(2, 3)])


def test_dropout_between_layers_acts_in_training_only() -> None:
    layer = nn.LSTM(3, 5, num_layers=2, dropout=0.5)
    x = torch.randn(4, 2, 3)
    expected = layer.eval()(x)[0]
    with lazy(strict=True):
        layer = layer.to("kit")
        quiet, same = layer(x.to("kit"))[0], layer(x.to("kit"))[0]
        noisy, other = (layer.train()(x.to("kit"))[0] for _ in range(2))
        assert_close([quiet.detach().cpu(), same.detach().cpu()], [expected.detach()] * 2)
        assert not torch.equal(noisy.detach().cpu(), other.detach().cpu())


@settings(max_examples=12)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
def test_packing_then_padding_gives_the_batch_back(lengths: list[int], batch_first: bool) -> None:
    lengths = sorted(lengths, reverse=True)
    x = torch.arange(max(lengths) * len(lengths) * 2.0).reshape(
        (len(lengths), max(lengths), 2) if batch_first else (max(lengths), len(lengths), 2)
    )
    native = pack_padded_sequence(x, lengths, batch_first=batch_first)
    with lazy(strict=True):
        packed = pack_padded_sequence(x.to("kit"), lengths, batch_first=batch_first)
        padded, sizes = pad_packed_sequence(packed, batch_first=batch_first)
        assert torch.equal(packed.data.cpu(), native.data)
        assert torch.equal(packed.batch_sizes, native.batch_sizes)
        assert sizes.tolist() == lengths
        assert torch.equal(padded.cpu(), pad_packed_sequence(native, batch_first=batch_first)[0])


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([1, 4], "must be sorted in decreasing order"),
        ([4, 0], "greater than 0"),
        ([4, 3, 2], "equal to batch_size"),
    ],
)
def test_bad_lengths_raise_torchs_error(lengths: list[int], sentence: str) -> None:
    x = torch.randn(4, 2, 3)
    with pytest.raises(RuntimeError, match=sentence):
        pack_padded_sequence(x, lengths)
    with lazy(), pytest.raises(RuntimeError, match=sentence):
        pack_padded_sequence(x.to("kit"), lengths)


def test_transposing_in_place_keeps_the_memory() -> None:
    with lazy(strict=True):
        x = torch.arange(6.0).reshape(2, 3).to("kit")
        turned = x.detach().transpose_(0, 1)
        turned[0, 1] = 10
        assert turned.shape == (3, 2)
        assert x.cpu().tolist() == [[0, 1, 2], [10, 4, 5]]
