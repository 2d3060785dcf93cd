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

from kit.torch.hybrid.hybrid import hybridize

__all__ = ["CELLS", "GATES", "GatedRNN"]

Split = Callable[[Tensor, int], tuple[Tensor, ...]]
State = tuple[Tensor, ...]  # (hidden,) or (hidden, cell)
Tensors = tuple[Tensor, ...] | list[Tensor]  # of each time step
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
    return (torch.lerp(new, state[0], keep),)


# A layer by hand: its cell is one op each way on device "kit", and so are, for all time steps at
# once, the products with its inputs and the gradients of its weights.


@hybridize
def _from_inputs(sequence: Tensors, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Shape: time times (batch, inputs) to time times (batch, n h)."""
    product = linear(torch.cat(sequence), weight, bias)
    return [part.clone() for part in product.split(len(sequence[0]))]


@hybridize
def _to_inputs(from_input: Tensors, from_hidden: Tensors, sequence: Tensors, hiddens: Tensors,
               weight: Tensor | None) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of both weights, both biases and, if their weight is given, the inputs."""
    rows, hidden_rows = torch.cat(from_input), torch.cat(from_hidden)
    weights = rows.t() @ torch.cat(sequence), hidden_rows.t() @ torch.cat(hiddens)
    inputs = () if weight is None else (rows @ weight).split(len(sequence[0]))
    return (*weights, rows.sum(0), hidden_rows.sum(0), *(part.clone() for part in inputs))


@hybridize
def _lstm_forward(given: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor,
                  ) -> tuple[Tensor, ...]:  # fmt: skip
    i, f, g, o = (given + linear(hidden, weight, bias)).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat((i, f, g, o), -1)


@hybridize
def _lstm_backward(grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None,
                   cell: Tensor, new: Tensor, gates: Tensor, weight: Tensor | None,
                   ) -> tuple[Any, ...]:  # fmt: skip
    """`grad` comes from the output, the two others from the next time step, if any."""
    i, f, g, o = gates.chunk(4, -1)
    tanh = new.tanh()
    grad_hidden = _sum(grad, grad_hidden)
    grad_cell = _sum(grad_hidden * o * (1 - tanh * tanh), grad_cell)
    parts = (
        grad_cell * g * i * (1 - i),
        grad_cell * cell * f * (1 - f),
        grad_cell * i * (1 - g * g),
        grad_hidden * tanh * o * (1 - o),
    )
    product = torch.cat(parts, -1)
    if weight is None:
        return product, None, None
    return product, product @ weight, grad_cell * f


@hybridize
def _gru_forward(
    given: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    input_r, input_z, input_n = given.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = linear(hidden, weight, bias).chunk(3, -1)
    reset, keep = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    new = (input_n + reset * hidden_n).tanh()
    return torch.lerp(new, hidden, keep), torch.cat((reset, keep, new, hidden_n), -1)


@hybridize
def _gru_backward(grad: Tensor | None, grad_hidden: Tensor | None, hidden: Tensor, gates: Tensor,
                  weight: Tensor | None) -> tuple[Any, ...]:  # fmt: skip
    reset, keep, new, hidden_n = gates.chunk(4, -1)
    grad = _sum(grad, grad_hidden)
    grad_keep = grad * (hidden - new) * keep * (1 - keep)
    grad_new = grad * (1 - keep) * (1 - new * new)
    grad_reset = grad_new * hidden_n * reset * (1 - reset)
    from_input = torch.cat((grad_reset, grad_keep, grad_new), -1)
    from_hidden = torch.cat((grad_reset, grad_keep, grad_new * reset), -1)
    if weight is None:
        return from_input, from_hidden, None
    return from_input, from_hidden, grad * keep + from_hidden @ weight


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor:
    if a is None or b is None:
        found = b if a is None else a
        assert found is not None
        return found
    return a + b


class _FusedLstm(torch.autograd.Function):
    """A layer of LSTM cells, with the adjoint by hand."""

    @staticmethod
    def forward(ctx: Any, w_input: Tensor, w_hidden: Tensor, b_input: Tensor, b_hidden: Tensor,
                *sequence: Tensor) -> Tensors:  # fmt: skip
        """Shape: (4 h, inputs), (4 h, h), (4 h,) twice, time times (batch, inputs) to time times
        (batch, h)
        """
        zeros = _zeros(sequence[0], w_hidden)
        hiddens, cells = [zeros], [zeros]
        gates = list[Tensor]()
        for given in _from_inputs(sequence, w_input, b_input):
            found = _lstm_forward(given, hiddens[-1], cells[-1], w_hidden, b_hidden)
            for kept, one in zip((hiddens, cells, gates), found, strict=True):
                kept.append(one)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(w_input, w_hidden, *sequence, *gates, *hiddens, *cells)
        return tuple(hiddens[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Shape: those of `forward`, back."""
        n = len(grads)
        w_input, w_hidden, *kept = ctx.saved_tensors
        sequence, gates, hiddens, cells = (
            kept[:n],
            kept[n : 2 * n],
            kept[2 * n : 3 * n + 1],
            kept[3 * n + 1 :],
        )
        products = list[Tensor]()
        hidden = cell = None
        for t in reversed(range(n)):
            product, hidden, cell = _lstm_backward(
                _some(grads[t], hidden, cells[t]), hidden, cell, cells[t], cells[t + 1], gates[t],
                w_hidden if t else None)  # fmt: skip
            products.insert(0, product)
        wanted = w_input if ctx.needs_input_grad[4] else None
        found = _to_inputs(products, products, sequence, hiddens[:-1], wanted)
        return (*found, *[None] * (4 + n - len(found)))


class _FusedGru(torch.autograd.Function):
    """A layer of GRU cells, with the adjoint by hand."""

    @staticmethod
    def forward(ctx: Any, w_input: Tensor, w_hidden: Tensor, b_input: Tensor, b_hidden: Tensor,
                *sequence: Tensor) -> Tensors:  # fmt: skip
        """Shape: (3 h, inputs), (3 h, h), (3 h,) twice, time times (batch, inputs) to time times
        (batch, h)
        """
        hiddens, gates = [_zeros(sequence[0], w_hidden)], list[Tensor]()
        for given in _from_inputs(sequence, w_input, b_input):
            hidden, kept = _gru_forward(given, hiddens[-1], w_hidden, b_hidden)
            hiddens.append(hidden)
            gates.append(kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(w_input, w_hidden, *sequence, *gates, *hiddens)
        return tuple(hiddens[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Shape: those of `forward`, back."""
        n = len(grads)
        w_input, w_hidden, *kept = ctx.saved_tensors
        sequence, gates, hiddens = kept[:n], kept[n : 2 * n], kept[2 * n :]
        from_input, from_hidden = list[Tensor](), list[Tensor]()
        hidden = None
        for t in reversed(range(n)):
            to_input, to_hidden, hidden = _gru_backward(
                _some(grads[t], hidden, hiddens[t]),
                hidden,
                hiddens[t],
                gates[t],
                w_hidden if t else None,
            )
            from_input.insert(0, to_input)
            from_hidden.insert(0, to_hidden)
        wanted = w_input if ctx.needs_input_grad[4] else None
        found = _to_inputs(from_input, from_hidden, sequence, hiddens[:-1], wanted)
        return (*found, *[None] * (4 + n - len(found)))


def _zeros(x: Tensor, w_hidden: Tensor) -> Tensor:
    return torch.zeros(len(x), w_hidden.shape[1], dtype=x.dtype, device=x.device)


def _some(grad: Tensor | None, later: Tensor | None, like: Tensor) -> Tensor | None:
    """A gradient from the output, where none comes from a later time step either."""
    return torch.zeros_like(like) if grad is None and later is None else grad


FUSED = {"lstm": _FusedLstm, "gru": _FusedGru}


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
        w_input, w_hidden, b_input, b_hidden = weights = [
            getattr(self.rnn, f"{name}_l{layer}") for name in names
        ]
        if self.gates == "fused":
            return FUSED[self.cell].apply(*weights, *sequence)  # type: ignore[no-any-return]
        zeros = _zeros(sequence[0], w_hidden)
        state: State = (zeros, zeros) if self.cell == "lstm" else (zeros,)
        run = _lstm if self.cell == "lstm" else _gru
        outputs = []
        for x in sequence:
            from_input = linear(x, w_input, b_input)
            from_hidden = linear(state[0], w_hidden, b_hidden)
            state = run(SPLITS[self.gates], from_input, from_hidden, state)
            outputs.append(state[0])
        return tuple(outputs)
