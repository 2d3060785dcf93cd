"""Arithmetic of one node, from its op and the shapes of what it reads and makes.

Counted are matrix products, convolutions, attention and recurrent layers, where the arithmetic of a
training step is. An addition and a multiplication are two operations. Everything else counts 0: it
is bound by memory on any device. What a hybridized function, or a loop, a solver or a kernel of
jax, computes is not known: it is one node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from kit.ir import RECURRENT, Graph, Node

__all__ = ["COUNTED", "node_flops", "runs_program"]

Shape = tuple[int, ...]
Shapes = Sequence[Shape]
_KERNEL = re.compile(r"rhs_spec=\((\d+), (\d+)")
_LEFT = re.compile(r"\(\(\(([\d, ]*)\)")
_RAGGED = re.compile(
    r"=\(\(\(([\d, ]*)\), \([\d, ]*\)\), \(\(([\d, ]*)\).*lhs_ragged_dimensions=\((\d+)\)"
)
_LOOPS = ("jax.scan", "jax.while", "jax.cond")  # also where all that they carry is single numbers
_ARRAY_INSIDE = re.compile(r"\b\d+:\w+\[\d")  # "0:float32[8, 8]": a jaxpr names an array so


def node_flops(graph: Graph, node: int) -> float:
    """Floating-point operations of a node; 0 if its op is not in `COUNTED`, or its shapes are odd.

    nan for one that `runs_program`, and for a ragged product that is ragged along its batch.

    mm, bmm, addmm, ...   2 M K N for (M, K) times (K, N), for each matrix of the batch
    linear                2 |out| K; backward: the same for each of the two gradients that is made
    convolution           2 |out| |weight| / (output channels), transposed: 2 |x| |weight| / (input
                          channels); backward: the same for each of the two gradients
    attention             2 B L S (E + V) for queries (B, L, E), keys (B, S, E), values (B, S, V);
                          backward: 2 B L S (3 E + 2 V), the scores being computed again; a causal
                          mask takes nothing away
    lstm, gru, rnn_*      2 T B |weights| for inputs (T, B, I); backward: the same for the gradients
                          of the weights, of the inputs and of the states, each by its own weights
    jax.dot_general       2 |out| (product of the contracted dimensions)
    jax.ragged_dot_..     the same; ragged along a contracted dimension, that of all groups together
    jax.conv_general_..   as convolution; with a dilated input, which is full of zeros, transposed

    Source:
        the same counts as torch.utils.flop_counter
    """
    n = graph.nodes[node]
    if runs_program(n):
        return math.nan
    count = COUNTED.get(".".join(n.op.split(".")[:2]))
    if count is None:
        return 0
    inputs = [graph.nodes[i].avals[k].shape for i, k in n.inputs]
    try:
        return count(inputs, [a.shape for a in n.avals], dict(n.attrs))
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return 0  # not the op that its name says: a file from elsewhere


def runs_program(node: Node) -> bool:
    """True for an op with ops inside, which are no nodes of the graph.

    What a scatter or a reduction combines two numbers by is none.
    """
    if node.op in ("kit.hybrid", *_LOOPS):
        return True
    return node.op.startswith("jax.") and any(_ARRAY_INSIDE.search(text) for _, text in node.attrs)


def _product(at: int) -> Callable[[Shapes, Shapes, Mapping[str, str]], int]:
    """Every element of the left factor is used once for each column of the right one."""

    def count(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
        right = inputs[at + 1]
        return 2 * prod(inputs[at]) * (right[-1] if len(right) > 1 else 1)

    return count


def _linear(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    return 2 * prod(outputs[0]) * inputs[1][-1]


def _linear_backward(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    x, grad, weight = inputs[:3]
    return 2 * prod(grad) * weight[-1] * sum(shape in (x, weight) for shape in outputs)


def _convolution(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    x, weight = inputs[:2]
    moved = x if attrs.get("arg6") == "True" else outputs[0]
    return 2 * prod(moved) * prod(weight) // weight[0]


def _convolution_backward(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    grad, x, weight = inputs[:3]
    moved = x if attrs.get("arg7") == "True" else grad
    made = sum(len(shape) == len(x) for shape in outputs)
    return 2 * prod(moved) * prod(weight) // weight[0] * made


def _attention(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    q, k, v = inputs[:3]
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_backward(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    _, q, k, v = inputs[:4]
    return 2 * prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1])


def _recurrent(states: int) -> Callable[[Shapes, Shapes, Mapping[str, str]], int]:
    """A direction of a recurrent layer: each weight is used once in each time step and row."""

    def count(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
        weights = [prod(shape) for shape in inputs[1 + states :] if len(shape) == 2]
        return 2 * prod(inputs[0][:2]) * sum(weights)

    return count


def _recurrent_backward(states: int) -> Callable[[Shapes, Shapes, Mapping[str, str]], int]:
    def count(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
        # gradients of the outputs and of the last state; the text is there if some are None
        given = attrs["arg0"].count("_") if "arg0" in attrs else 1 + states
        x, *others = inputs[given:]
        first, *rest = (prod(shape) for shape in others[states:] if len(shape) == 2)
        to_inputs, _, to_weights = (
            word == "True" for word in attrs["wanted"].strip("[]").split(", ")
        )
        made = to_inputs * first + sum(rest) + to_weights * (first + sum(rest))
        return 2 * prod(x[:2]) * made

    return count


def _dot_general(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    found = _LEFT.match(attrs.get("dimension_numbers", ""))
    if not found:
        return 0
    return 2 * prod(outputs[0]) * prod(inputs[0][d] for d in _numbers(found.group(1)))


def _ragged_dot(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> float:
    """Each row belongs to one group; a product along the rows gives a matrix for each group."""
    found = _RAGGED.search(attrs["ragged_dot_dimension_numbers"])
    if not found:
        return 0
    contracted, batch, (ragged,) = map(_numbers, found.groups())
    if ragged in batch:
        return math.nan
    made = outputs[0][1:] if ragged in contracted else outputs[0]
    return 2 * prod(made) * prod(inputs[0][d] for d in contracted)


def _numbers(text: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", text)]


def _jax_convolution(inputs: Shapes, outputs: Shapes, attrs: Mapping[str, str]) -> int:
    found = _KERNEL.search(attrs["dimension_numbers"])
    if not found:
        return 0
    x, weight = inputs[:2]
    made, read = (weight[int(dim)] for dim in found.groups())  # channels of the kernel
    if set(re.findall(r"\d+", attrs["lhs_dilation"])) <= {"1"}:
        return 2 * prod(outputs[0]) * prod(weight) // made
    return 2 * prod(x) * prod(weight) // (read * int(attrs["feature_group_count"]))


COUNTED = MappingProxyType(
    {
        **dict.fromkeys(("aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot"), _product(0)),
        **dict.fromkeys(("aten.addmm", "aten.baddbmm", "aten.addbmm"), _product(1)),
        "aten.linear": _linear,
        "aten.linear_backward": _linear_backward,
        "aten.convolution": _convolution,
        "aten.convolution_overrideable": _convolution,
        "aten.convolution_backward": _convolution_backward,
        "aten.convolution_backward_overrideable": _convolution_backward,
        "aten.scaled_dot_product_attention": _attention,
        "aten._scaled_dot_product_fused_attention_overrideable": _attention,
        "aten._scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
        **{f"kit.{kind}": _recurrent(count) for kind, count in RECURRENT.items()},
        **{f"kit.{kind}_backward": _recurrent_backward(count) for kind, count in RECURRENT.items()},
        "jax.dot_general": _dot_general,
        "jax.ragged_dot_general": _ragged_dot,
        "jax.conv_general_dilated": _jax_convolution,
    }
)
