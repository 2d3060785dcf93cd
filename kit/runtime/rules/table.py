"""Lowering rules: how one op becomes jax. A table is a value; join tables with `|`.

A rule has the signature of the aten op that it lowers: tensors arrive as jax arrays, lifted Python
floats as 0-d jax arrays, everything else as it was. Whatever it returns is cast to the dtypes that
torch infers for the op, so a rule need not repeat torch's type promotion.

An in-place op uses the rule of its functional twin: "aten.add_.Tensor" is lowered by
"aten.add.Tensor". An op that writes several tensors returns their new values, flat, in the order
of its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kit.errors import LoweringError

__all__ = ["Rule", "Rules", "functional_name"]

Rule = Callable[..., Any]


class Rules(Mapping[str, Rule]):
    """An immutable table from op name to rule.

    `a | b` joins two tables; a name in both is an error, unless `b.over(a)` says that b wins.

    Raises:
        LoweringError: two tables that are joined lower the same op.
    """

    def __init__(self, table: Mapping[str, Rule]) -> None:
        self._table = MappingProxyType(dict(table))

    def __getitem__(self, op: str) -> Rule:
        return self._table[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __or__(self, other: Mapping[str, Rule]) -> Rules:
        if clash := sorted(set(self) & set(other)):
            raise LoweringError(
                f"two rules for {', '.join(clash[:5])}. To replace a rule: new.over(old)"
            )
        return Rules({**self, **other})

    def over(self, base: Mapping[str, Rule]) -> Rules:
        """Join with `base`; where both have a rule, this table's is taken."""
        return Rules({**base, **self})

    def find(self, op: str) -> Rule | None:
        """The rule for an op, or for the functional twin of an in-place op, or for its family.

        A family is what stands before the first dot: "jax.dot_general" falls back to "jax.*".
        """
        found = self._table.get(op) or self._table.get(functional_name(op))
        return found or self._table.get(f"{op.partition('.')[0]}.*")


def functional_name(op: str) -> str:
    """`aten.add_.Tensor` -> `aten.add.Tensor`; anything else stays as it is."""
    parts = op.split(".")
    if len(parts) >= 2 and parts[1].endswith("_") and not parts[1].endswith("__"):
        parts[1] = parts[1][:-1]
    return ".".join(parts)
