"""What ops that belong to no module compute together, in words: "attention", "optimizer: AdamW".

A rule holds for the names that it needs; the first that holds wins. Where none does, the ops that
compute something are named, and those that only show or move memory are not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

from kit.ir.graph import VIEW_OPS, Node
from kit.text import format_count, safe_label

__all__ = ["computed_by", "optimizer_of", "short_op"]

_COPIES = ("cat", "clone", "contiguous", "copy", "full", "stack", "to_copy", "write_view")
_MOVES = frozenset(name.strip("_") for name in (*VIEW_OPS, *_COPIES))
_FUSED = "fused_"  # how the names of torch's fused optimizers begin
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}
_PRODUCTS = frozenset({"baddbmm", "bmm", "dot_general", "einsum", "matmul", "mm"})
_ARITHMETIC = frozenset({"add", "div", "mean", "mul", "neg", "rsub", "sub", "sum"})
_FEW = 2  # names that are told of more than fit into so many characters
_ROOM = 24


_ATTENTION = ("scaled_dot_product", "_attention")
# What a group is called; words of which it has one each; what else the name stands for.
_RULES: tuple[tuple[str, tuple[tuple[str, ...], ...], tuple[str, ...]], ...] = (
    ("attention", (_ATTENTION,), ()),
    ("attention", (), (*_PRODUCTS, "softmax", "dropout", "mask")),  # see `_attends`
    ("cross entropy", (("log_softmax",), ("nll_loss",)), ()),
    ("optimizer", (("addcdiv",), ("sqrt",)), ("foreach", "addcmul", "lerp")),
    ("gradient norm", (("linalg_vector_norm", "foreach_norm"),), ("norm", "foreach", "clamp")),
)


def computed_by(nodes: Sequence[Node]) -> str:
    """The name of a group of these ops."""
    optimizers = {text: None for node in nodes if (text := optimizer_of(node))}
    if optimizers:
        return safe_label(", ".join(optimizers), 60)
    names = [short_op(node.op).strip("_") for node in nodes]
    told = [name for name in dict.fromkeys(names) if name not in _MOVES]
    for words, needs, parts in _RULES:
        if all(_any(names, *need) for need in needs) if needs else _attends(names):
            return words + _and_more(told, [*chain(*needs), *parts])
    if not told:
        return "views and copies"
    loss = next((name for name in told if "_loss" in name), "")
    if loss:
        words = loss.removesuffix("_backward").removesuffix("_forward")
        return words.replace("_", " ") + _and_more(told, (words,))
    fits = len(told) <= _FEW or len(", ".join(told)) <= _ROOM
    return ", ".join(told if fits else [*told[:_FEW], "…"])


def optimizer_of(node: Node) -> str:
    """`optimizer: AdamW, 68 tensors` of an op that updates them all at once; "" of any other."""
    name = short_op(node.op).strip("_")
    if not name.startswith(_FUSED) or name.removeprefix(_FUSED) not in _OPTIMIZERS:
        return ""
    text = f"optimizer: {_OPTIMIZERS[name.removeprefix(_FUSED)]}"
    tensors = _tensors(node)
    return f"{text}, {format_count(tensors, 'tensor')}" if tensors else text


def short_op(op: str) -> str:
    """`aten.mm.default` -> `mm`: the name without its library and overload."""
    parts = op.split(".")
    return safe_label(parts[1] if len(parts) > 1 and parts[1] else op, 60)


def _tensors(node: Node) -> int:
    """How many parameters a fused Adam updates; 0 where its lists could be cut in several ways.

    It takes parameters, gradients, two or three lists of averages, and a list of step numbers, then
    up to two numbers of a loss scale; all but the last two come out again.
    """
    if "adam" not in node.op:
        return 0
    taken, made = len(node.inputs), len(node.avals)
    found = [
        made // lists
        for lists in (4, 5)
        if made % lists == 0 and 0 <= taken - made - made // lists <= 2
    ]
    return found[0] if len(found) == 1 else 0


def _any(names: Collection[str], *parts: str) -> bool:
    return any(part in name for name in names for part in parts)


def _attends(names: Sequence[str]) -> bool:
    """Is there a softmax between two products? A product and any softmax are a classifier, too."""
    products = [i for i, name in enumerate(names) if name in _PRODUCTS]
    return any(
        products[0] < i < products[-1]
        for i, name in enumerate(names)
        if products and "softmax" in name and "log_softmax" not in name
    )


def _and_more(told: Collection[str], parts: Sequence[str]) -> str:
    """`, …` where a group has ops that its name does not stand for; arithmetic belongs to all."""
    is_all = all(name in _ARITHMETIC or _any([name], *parts) for name in told)
    return "" if is_all else ", …"
