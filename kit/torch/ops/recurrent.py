"""Recurrent layers as one op: one direction of a layer of `nn.LSTM`, `nn.GRU` or `nn.RNN`.

torch would take the layer apart into some ten ops for each time step, and twice as many backward.
This file takes the call before that and makes an op of each layer and direction, `kit.lstm` and its
kin, whose rule is a loop over the time steps; what joins them is torch's own. What is unusual goes
to torch's decomposition: types that do not fit, `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from kit.ir import RECURRENT
from kit.torch.ops.schema import Special, handed_over
from kit.torch.ops.sequences import packed_places
from kit.torch.tensors.tensor import KitTensor

__all__ = ["RECURRENT_LAYERS", "register_recurrent"]

_aten = torch.ops.aten
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT_GATES = {"lstm": 4, "gru": 4}  # of a time step, for the backward pass

_FORWARD = (
    "(Tensor x, Tensor[] state, Tensor[] weights, Tensor? lengths, *, int time_steps, "
    "bool reverse, bool keeps) -> Tensor[]"
)
_BACKWARD = (
    "(Tensor?[] grads, Tensor x, Tensor[] state, Tensor[] weights, Tensor? lengths, "
    "Tensor[] kept, *, int time_steps, bool reverse, bool[] wanted) -> Tensor[]"
)


def register_recurrent() -> tuple[torch.library.Library, ...]:
    """Define the ops, and take torch's calls; the libraries must be kept alive."""
    own = torch.library.Library("kit", "DEF")
    for kind in RECURRENT:
        own.define(kind + _FORWARD)
        own.define(f"{kind}_backward{_BACKWARD}")
        own.impl(kind, _shapes_of(kind), "Meta")
        own.impl(f"{kind}_backward", _backward_shapes, "Meta")
    aten = torch.library.Library("aten", "IMPL")
    for kind in RECURRENT:
        aten.impl(f"{kind}.input", _whole(kind), "AutogradPrivateUse1")
        aten.impl(f"{kind}.data", _packed(kind), "AutogradPrivateUse1")
    return own, aten


def _shapes_of(kind: str) -> Callable[..., list[torch.Tensor]]:
    def shapes(
        x: Any, state: Any, weights: Any, lengths: Any = None, *,
        time_steps: int, reverse: bool, keeps: bool,
    ) -> list[torch.Tensor]:  # fmt: skip
        time, batch = x.shape[:2]
        outputs = [x.new_empty((time, batch, state[0].shape[-1])), *map(torch.empty_like, state)]
        if not keeps:
            return outputs
        cells = [x.new_empty((time, *s.shape)) for s in state[1:]]
        width = weights[0].shape[0] // _GATES[kind]
        gates = (
            [x.new_empty((time, batch, _KEPT_GATES[kind] * width))] if kind in _KEPT_GATES else []
        )
        return [*outputs, *cells, *gates]

    return shapes


def _backward_shapes(
    grads: Any, x: Any, state: Any, weights: Any, *_: Any, wanted: Sequence[bool], **__: Any
) -> list[torch.Tensor]:
    groups = ([x], state, weights)
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for group, is_wanted in zip(groups, wanted, strict=True)
        if is_wanted
        for tensor in group
    ]


@dataclass(frozen=True)
class _Direction:
    """One direction of a layer: its op, and how many tensors of each kind it takes."""

    kind: str
    reverse: bool
    states: int

    def split(self, tensors: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """The input, the state and the weights."""
        return tensors[0], list(tensors[1 : 1 + self.states]), list(tensors[1 + self.states :])

    def run(self, tensors: Sequence[Any], lengths: Any, *, keeps: bool) -> list[Any]:
        """The op."""
        x, state, weights = self.split(tensors)
        found: list[Any] = getattr(torch.ops.kit, self.kind)(
            x, state, weights, lengths, time_steps=x.shape[0], reverse=self.reverse, keeps=keeps
        )
        return found

    def unrolled(self, tensors: Sequence[Any], lengths: Any) -> list[Any]:
        """The same by torch's ops, one time step after the other: for second derivatives."""
        x, state, weights = self.split(tensors)
        biases = weights[2:4] if len(weights) > 3 else [None, None]
        outputs = [state[0]] * x.shape[0]
        for t in reversed(range(x.shape[0])) if self.reverse else range(x.shape[0]):
            given = F.linear(x[t], weights[0], biases[0])
            new = _CELLS[self.kind](given, F.linear(state[0], weights[1], biases[1]), state)
            if len(weights) % 2:
                new[0] = F.linear(new[0], weights[-1])
            if lengths is not None:
                running = (lengths > t).unsqueeze(1)
                new = [torch.where(running, a, b) for a, b in zip(new, state, strict=True)]
            state = new
            outputs[t] = state[0]
        return [torch.stack(outputs), *state]


def _lstm_cell(given: Any, from_hidden: Any, state: Sequence[Any]) -> list[Any]:
    i, f, g, o = (given + from_hidden).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * cell.tanh(), cell]


def _gru_cell(given: Any, from_hidden: Any, state: Sequence[Any]) -> list[Any]:
    input_r, input_z, input_n = given.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, -1)
    new = (input_n + (input_r + hidden_r).sigmoid() * hidden_n).tanh()
    return [new + (input_z + hidden_z).sigmoid() * (state[0] - new)]


_CELLS: dict[str, Callable[[Any, Any, Sequence[Any]], list[Any]]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": lambda given, from_hidden, state: [(given + from_hidden).tanh()],
    "rnn_relu": lambda given, from_hidden, state: [(given + from_hidden).relu()],
}


class _Layer(torch.autograd.Function):
    """A direction of a layer, with its backward op."""

    @staticmethod
    def forward(ctx: Any, direction: _Direction, lengths: Any, *tensors: Any) -> tuple[Any, ...]:
        """The outputs and the last state."""
        outputs, *rest = direction.run(tensors, lengths, keeps=True)
        last, kept = rest[: direction.states], rest[direction.states :]
        ctx.direction = direction
        ctx.set_materialize_grads(False)
        # a copy, which costs nothing: what the user writes into the outputs is not seen here
        ctx.save_for_backward(lengths, *tensors, outputs.clone(), *kept)
        ctx.inputs = len(tensors)
        return outputs, *last

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The gradients of the tensors that `forward` was given."""
        direction, (lengths, *saved) = ctx.direction, ctx.saved_tensors
        tensors, kept = saved[: ctx.inputs], saved[ctx.inputs :]
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_by_unrolling(direction, tensors, lengths, needs, grads)
        x, state, weights = direction.split(tensors)
        wanted = [any(group) for group in direction.split(needs)[1:]]
        found = iter(
            getattr(torch.ops.kit, f"{direction.kind}_backward")(
                list(grads), x, state, weights, lengths, kept,
                time_steps=x.shape[0], reverse=direction.reverse, wanted=[needs[0], *wanted],
            )
        )  # fmt: skip
        groups = zip(([x], state, weights), (needs[0], *wanted), strict=True)
        made = [next(found) if is_wanted else None for group, is_wanted in groups for _ in group]
        return None, None, *(g if n else None for g, n in zip(made, needs, strict=True))


def _by_unrolling(
    direction: _Direction, tensors: Sequence[Any], lengths: Any, needs: Any, grads: Any
) -> Iterator[Any]:
    """Gradients that have a derivative themselves."""
    # aliases: a path from one input to another outside of the layer is not the layer's
    inputs = [x.view_as(x) if need else x for x, need in zip(tensors, needs, strict=True)]
    outputs = direction.unrolled(inputs, lengths)
    given = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None]
    wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
    found = iter(
        torch.autograd.grad(
            [y for y, _ in given], wanted, [g for _, g in given],
            create_graph=True, allow_unused=True,
        )
    )  # fmt: skip
    return (next(found) if need else None for need in needs)


@dataclass(frozen=True)
class _Network:
    """A call of torch's: layers, in one direction or both."""

    kind: str
    biases: bool
    layers: int
    dropout: float
    train: bool
    both: bool

    def directions(self, state: Sequence[Any], params: Sequence[Any]) -> list[list[Any]]:
        """The first state and the weights of each direction of each layer."""
        count = self.layers * (1 + self.both)
        each = len(params) // count
        return [[*(s[i] for s in state), *params[i * each : (i + 1) * each]] for i in range(count)]

    def fits(self, x: Any, state: Sequence[Any], params: Sequence[Any]) -> bool:
        """True for what torch takes, too, and means the same by; torch refuses some others."""
        count = self.layers * (1 + self.both)
        arrays = RECURRENT[self.kind]
        if len(state) != arrays or x.dim() != 3 or any(s.dim() != 3 for s in state):
            return False
        projects = arrays == 2 and state[0].shape[-1] != state[1].shape[-1]
        if len(params) != count * (2 + 2 * self.biases + projects):
            return False
        tensors = [x, *state, *params]
        return all(t.__class__ is KitTensor and t.dtype is x.dtype for t in tensors) and (
            x.is_floating_point()
            and all(0 not in t.shape for t in tensors)
            and all(s.shape[:2] == (count, x.shape[1]) for s in state)
            and self._weights_fit(x.shape[-1], state, params)
            and x.tape.session.rules.find(f"kit.{self.kind}.default") is not None
        )

    def _weights_fit(self, inputs: int, state: Sequence[Any], params: Sequence[Any]) -> bool:
        hidden, width = state[0].shape[-1], state[-1].shape[-1]
        gates = _GATES[self.kind] * width
        given = self.directions([], params)
        return all(
            [tuple(w.shape) for w in weights]
            == [
                (gates, inputs if i <= self.both else hidden * (1 + self.both)),
                (gates, hidden),
                *([(gates,)] * 2 * self.biases),
                *([(hidden, width)] * (len(weights) % 2)),
            ]
            for i, weights in enumerate(given)
        )

    def decompose(self, op: Any, inputs: Sequence[Any], hx: Any, params: Any, *more: Any) -> Any:
        """Torch's own ops. Its decomposition of several layers leaves out the dropout between them,
        so with dropout it is asked for one layer at a time.
        """
        options = (self.biases, self.layers, 0.0, self.train, self.both, *more)
        if self.layers < 2 or not (self.dropout and self.train):
            return op.decompose(*inputs, hx, params, *options)
        (x, *sizes), last = inputs, []
        state, each = hx if self.kind == "lstm" else [hx], 1 + self.both
        count = len(params) // self.layers
        options = (self.biases, 1, *options[2:])
        for layer in range(self.layers):
            x = F.dropout(x, self.dropout) if layer else x
            part = [s[layer * each : (layer + 1) * each] for s in state]
            weights = params[layer * count : (layer + 1) * count]
            first = part if self.kind == "lstm" else part[0]
            x, *found = op.decompose(x, *sizes, first, weights, *options)
            last.append(found)
        return (x, *(torch.cat(states) for states in zip(*last, strict=True)))

    def run(self, x: Any, state: Sequence[Any], params: Sequence[Any], lengths: Any) -> list[Any]:
        """The outputs, (time, batch, ...), and the last states of all layers."""
        given = self.directions(state, params)
        last = []
        for layer in range(self.layers):
            outputs = []
            for back in range(1 + self.both):
                tensors = [x, *given[layer * (1 + self.both) + back]]
                found = _run(_Direction(self.kind, bool(back), len(state)), tensors, lengths)
                outputs.append(found[0])
                last.append(found[1:])
            x = torch.cat(outputs, -1) if self.both else outputs[0]
            if self.dropout and self.train and layer < self.layers - 1:
                x = F.dropout(x, self.dropout)
        return [x, *(torch.stack(states) for states in zip(*last, strict=True))]


def _run(direction: _Direction, tensors: Sequence[Any], lengths: Any) -> Any:
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Layer.apply(direction, lengths, *tensors)  # type: ignore[no-untyped-call]
    return direction.run(tensors, lengths, keeps=False)


def _whole(kind: str) -> Callable[..., Any]:
    """Torch's call with a whole batch."""
    op = getattr(_aten, kind).input

    def call(x: Any, hx: Any, params: Any, *options: Any) -> Any:
        *others, batch_first = options
        network, state = _Network(kind, *others), hx if kind == "lstm" else [hx]
        time_first = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
        if time_first.shape[:1] == (0,):
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")  # torch's
        if not network.fits(time_first, state, params):
            return network.decompose(op, (x,), hx, params, batch_first)
        outputs, *last = network.run(time_first, state, params, None)
        return (outputs.transpose(0, 1) if batch_first else outputs, *last)

    return call


def _packed(kind: str) -> Callable[..., Any]:
    """Torch's call with a packed batch: padded here, so that each time step has all rows."""
    op = getattr(_aten, kind).data

    def call(data: Any, batch_sizes: Any, hx: Any, params: Any, *options: Any) -> Any:
        network, state = _Network(kind, *options), hx if kind == "lstm" else [hx]
        is_known = batch_sizes.__class__ is torch.Tensor and batch_sizes.device.type == "cpu"
        time, batch = len(batch_sizes), int(batch_sizes[0]) if is_known else 0
        if not is_known or data.dim() != 2:
            return network.decompose(op, (data, batch_sizes), hx, params)
        places = packed_places(batch_sizes, batch).to(data.device)
        rows = data.new_zeros((time * batch, data.shape[1])).index_copy(0, places, data)
        x = rows.reshape(time, batch, -1)
        if not network.fits(x, state, params):
            return network.decompose(op, (data, batch_sizes), hx, params)
        lengths = (batch_sizes[:, None] > torch.arange(batch)).sum(0).to(data.device)
        outputs, *last = network.run(x, state, params, lengths)
        return (outputs.reshape(time * batch, -1).index_select(0, places), *last)

    return call


RECURRENT_LAYERS: dict[str, Special] = {
    f"aten.{kind}.{form}": handed_over(make(kind))
    for kind in RECURRENT
    for form, make in (("input", _whole), ("data", _packed))
}
