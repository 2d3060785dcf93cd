"""LSTM and GRU cells that take their gates out of one matrix, each in several ways.

A cell multiplies once for all of its gates and then needs the parts: four of an LSTM's product,
three of each of a GRU's two. Going back, each part's gradient has to become part of the whole
product's gradient again, and how a part was taken decides what that costs. `GATES` are the ways of
Flux PR 1761, and two that it asked for.

Source: the equations and the order of the gates are those of torch's `nn.LSTM` and `nn.GRU`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kit.frontend.torch_hybrid import hybridize

__all__ = ["CELLS", "GATES", "GatedRNN"]

Split = Callable[[Tensor, int], tuple[Tensor, ...]]
State = tuple[Tensor, ...]  # (hidden,) or (hidden, cell)
CELLS = {"lstm": 4, "gru": 3}  # gates in one matrix


def _slice(x: Tensor, n: int) -> tuple[Tensor, ...]:
    return tuple(part.clone() for part in _view(x, n))


def _view(x: Tensor, n: int) -> tuple[Tensor, ...]:
    h = x.shape[-1] // n
    return tuple(x[..., k * h : (k + 1) * h] for k in range(n))


def _chunk(x: Tensor, n: int) -> tuple[Tensor, ...]:
    return x.chunk(n, -1)


class _Multigate(torch.autograd.Function):
    """All parts at once; going back, their gradients are written into one buffer.

    The `multigate` of Flux PR 1761: `dy -> vcat(dy...)`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> tuple[Tensor, ...]:
        """Shape: (..., n h) to n times (..., h)."""
        return _view(x, n)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        """Shape: n times (..., h) to (..., n h)."""
        return torch.cat(grads, -1), None


def _multigate(x: Tensor, n: int) -> tuple[Tensor, ...]:
    return _Multigate.apply(x, n)  # type: ignore[no-untyped-call,no-any-return]


# gates -> how a part is taken; "fused" and "torch" take none
SPLITS: dict[str, Split] = {
    "slice": _slice,  # a copy of each part, as `x[a:b]` makes in Julia and jax
    "view": _view,  # shows it instead; both go back by a matrix of zeros for each part
    "chunk": _chunk,  # one op for all parts, and one that goes back
    "multigate": _multigate,  # the same, with an adjoint written by hand
}
GATES = (*SPLITS, "fused", "torch")


def _lstm(split: Split, from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    i, f, g, o = split(from_input + from_hidden, 4)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(split: Split, from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    input_r, input_z, input_n = split(from_input, 3)
    hidden_r, hidden_z, hidden_n = split(from_hidden, 3)
    reset, keep = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    new = (input_n + reset * hidden_n).tanh()
    return (new + keep * (state[0] - new),)


# All that is pointwise in a cell and its adjoint, one op each on device "kit".


@hybridize
def _lstm_forward(from_input: Tensor, from_hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    i, f, g, o = (from_input + from_hidden).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    tanh = new.tanh()
    return o * tanh, new, i, f, g, o, tanh


@hybridize
def _lstm_backward(grad_hidden: Tensor, grad_cell: Tensor, cell: Tensor, i: Tensor, f: Tensor,
                   g: Tensor, o: Tensor, tanh: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    grad = grad_cell + grad_hidden * o * (1 - tanh * tanh)
    parts = (grad * g * i * (1 - i), grad * cell * f * (1 - f), grad * i * (1 - g * g),
             grad_hidden * tanh * o * (1 - o))  # fmt: skip
    return torch.cat(parts, -1), grad * f


@hybridize
def _gru_forward(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    input_r, input_z, input_n = from_input.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, -1)
    reset, keep = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    new = (input_n + reset * hidden_n).tanh()
    return new + keep * (hidden - new), reset, keep, new


@hybridize
def _gru_backward(grad: Tensor, hidden: Tensor, from_hidden: Tensor, reset: Tensor, keep: Tensor,
                  new: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad_keep = grad * (hidden - new) * keep * (1 - keep)
    grad_new = grad * (1 - keep) * (1 - new * new)
    grad_reset = grad_new * from_hidden.chunk(3, -1)[2] * reset * (1 - reset)
    from_input = torch.cat((grad_reset, grad_keep, grad_new), -1)
    to_hidden = torch.cat((grad_reset, grad_keep, grad_new * reset), -1)
    return from_input, to_hidden, grad * keep


class _FusedLstm(torch.autograd.Function):
    """An LSTM cell after its products, with the adjoint by hand."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        """Shape: (batch, 4 h) twice and (batch, h) to (batch, h) twice."""
        hidden, new, *gates = _lstm_forward(*given)
        ctx.save_for_backward(given[2], *gates)
        return hidden, new

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Shape: (batch, h) twice to (batch, 4 h) twice and (batch, h)."""
        gates, cell = _lstm_backward(*grads, *ctx.saved_tensors)
        return gates, gates, cell


class _FusedGru(torch.autograd.Function):
    """A GRU cell after its products, with the adjoint by hand."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        """Shape: (batch, 3 h) twice and (batch, h) to (batch, h)."""
        hidden, *gates = _gru_forward(*given)
        ctx.save_for_backward(given[2], given[1], *gates)
        return hidden

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Shape: (batch, h) to (batch, 3 h) twice and (batch, h)."""
        return _gru_backward(*grads, *ctx.saved_tensors)


def _fused(cell: str, from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    if cell == "lstm":
        return _FusedLstm.apply(from_input, from_hidden, state[1])  # type: ignore[no-untyped-call,no-any-return]
    return (_FusedGru.apply(from_input, from_hidden, state[0]),)  # type: ignore[no-untyped-call]


class GatedRNN(nn.Module):
    """Layers of LSTM or GRU cells over a sequence; equal to `nn.LSTM` or `nn.GRU`, whose
    parameters they use.

    Args:
        cell: one of `CELLS`.
        gates: one of `GATES`; "torch" is torch's own layer.
        inputs, hidden, layers: as in `nn.LSTM`.
    """

    def __init__(self, cell: str, gates: str, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.cell, self.gates = cell, gates
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = kind(inputs, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The last layer's output at each time, and its last hidden state.

        Shape:
            (batch, time, inputs) to time times (batch, hidden), and (batch, hidden)
        """
        if self.gates == "torch":
            outputs, state = self.rnn(x)
            hidden = state[0] if self.cell == "lstm" else state
            return outputs.unbind(1), hidden[-1]
        sequence = x.unbind(1)
        for layer in range(self.rnn.num_layers):
            sequence = self._layer(sequence, layer)
        return sequence, sequence[-1]

    def _layer(self, sequence: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_input, w_hidden, b_input, b_hidden = (
            getattr(self.rnn, f"{name}_l{layer}") for name in names
        )
        first = sequence[0]
        zeros = torch.zeros(len(first), self.rnn.hidden_size, dtype=first.dtype,
                            device=first.device)  # fmt: skip
        state: State = (zeros, zeros) if self.cell == "lstm" else (zeros,)
        outputs = []
        for x in sequence:
            from_input = linear(x, w_input, b_input)
            from_hidden = linear(state[0], w_hidden, b_hidden)
            state = self._cell(from_input, from_hidden, state)
            outputs.append(state[0])
        return tuple(outputs)

    def _cell(self, from_input: Tensor, from_hidden: Tensor, state: State) -> State:
        if self.gates == "fused":
            return _fused(self.cell, from_input, from_hidden, state)
        run = _lstm if self.cell == "lstm" else _gru
        return run(SPLITS[self.gates], from_input, from_hidden, state)
