"""A long chain of cheap ops is lowered in parts, where XLA would compute it over and over.

XLA's CPU compiler computes a cheap op (a sum, a product, a choice) anew in each kernel that takes
its result, and so all that it was made of. Where a link of a chain is also used beside it, as in
`rows[t] = last = delta + 0.9 * last`, the work and the compile grow with the square: 34 s of the
processor for 128 such rows of four numbers. An identity that XLA may not inline ends a part: it is
a kernel of its own, whose result is read. (An optimization barrier does not: the compiler takes it
out before it fuses.)

`jax.experimental.xla_metadata` was tried with jax 0.10.2; without it no chain is parted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax

from kit.runtime.recording.bulk import Op

try:
    from jax.experimental import xla_metadata
except ImportError:
    xla_metadata = None  # type: ignore[assignment]

__all__ = ["apart", "ends_of_parts"]

PART = 8  # links of a chain that XLA may compute again
# How often a link is taken in by an op that computes it again: in all, and for each op. ResNet-50
# has 0.9 for each op, BERT 0.2; 64 rows of an advantage estimate have 5, and more rows have more.
MUCH, MUCH_FOR_EACH = 1000, 2

_CHEAP = frozenset({
    "add", "sub", "mul", "neg", "rsub", "addcmul", "lerp", "abs", "relu", "threshold_backward",
    "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "masked_fill", "fill",
    "eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_or", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_not", "copy", "clone", "_to_copy", "to", "cast",
})  # fmt: skip
_WRITES = ("kit.write_view", "kit.write_at")  # a part of the first input, with the second
_PART = "kit.part_at"


def ends_of_parts(nodes: Sequence[tuple[Op, tuple[int, ...]]]) -> Collection[int]:
    """The nodes of a program whose results end a part; none if little would be computed again."""
    again, ends = 0, set()
    links: list[int] = []  # of the chain that ends in each slot
    in_part: list[int] = []  # of these, since the part began
    for i, (op, refs) in enumerate(nodes):
        made = _links(op, taken := [links[r] if r >= 0 else 0 for r in refs])
        since = _links(op, [in_part[r] if r >= 0 else 0 for r in refs])
        if not _is_cheap(op):
            again += sum(taken[1:] if made else taken)
        if since >= PART:
            ends.add(i)
            since = 0
        links += [made] * len(op.outputs)
        in_part += [since] * len(op.outputs)
    return ends if again > max(MUCH, MUCH_FOR_EACH * len(nodes)) else ()


def _links(op: Op, taken: Sequence[int]) -> int:
    """Of the chain that ends in an op, whose inputs end chains of so many."""
    if _is_cheap(op):
        return 1 + max(taken, default=0)
    if op.name in _WRITES:
        return 1 + taken[0]
    return taken[0] if taken and (op.is_view or op.name == _PART) else 0


def _is_cheap(op: Op) -> bool:
    return op.called in _CHEAP


def apart(results: list[Any]) -> list[Any]:
    """The same arrays, behind a call that XLA does not inline."""
    metadata = getattr(xla_metadata, "set_xla_metadata", None)
    if metadata is None:
        return results
    with metadata(inlineable="false"):
        return list(_same(*results))


@jax.jit
def _same(*arrays: Any) -> tuple[Any, ...]:
    return arrays
