"""The probes of one program: looked at while it is lowered, and what they have found, as text.

A program returns what its probes find as one small vector of integers beside its results: for each
probe the place of the first bad number, or -1, and that number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kit.errors import BadInputError
from kit.runs.settings import Settings
from kit.runtime.compiling.probes import PROBES, Probe, ProbeOf

__all__ = ["NO_CHECKS", "Asked", "Checks", "Probing", "findings"]

FIRST_STEPS = 3  # how many are checked with check_indices="first steps"


@dataclass(frozen=True, slots=True)
class Checks:
    """Which probes a program has; part of what it is known by."""

    indices: bool = False

    def __str__(self) -> str:
        return "indices" if self.indices else "none"

    @classmethod
    def of(cls, settings: Settings, step: int) -> Self:
        """What the programs of a step look at beside computing."""
        asked = settings.check_indices
        return cls(indices=asked == "on" or (asked == "first steps" and step < FIRST_STEPS))

    @property
    def probes(self) -> Mapping[str, ProbeOf]:
        """The probes of each op, by its name."""
        return PROBES if self.indices else {}


NO_CHECKS = Checks()


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a probe before the program runs."""

    node: int  # in the segment
    op: str
    error: type[BadInputError]
    says: str
    allowed: str
    is_float: bool

    def explained(self, at: int, bits: int, *, site: str, step: int) -> BadInputError:
        """The error of a program that has found this: torch's sentence, then where it was."""
        value = float(np.int64(bits).view(np.float64)) if self.is_float else bits
        says = self.says.format(value=value, at=at)
        where = f"{self.op} at {site or 'an unknown line'}"
        found = f"{where} was given {value} in step {step}; allowed: {self.allowed}"
        return self.error(
            f"{says} ({found})", op=self.op, site=site, step=step, value=value, allowed=self.allowed
        )


class Probing:
    """Collects the probes of a program while it is lowered."""

    def __init__(self, checks: Checks) -> None:
        self.asked: list[Asked] = []
        self._probes = checks.probes
        self._found: list[Array] = []

    def look(self, node: int, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Put the probes of an op into the program."""
        probe_of = self._probes.get(op)
        if probe_of is None:
            return
        for probe in probe_of(*args, **kwargs):
            if probe.values.size:
                self._add(node, op, probe)

    def is_for(self, op: str) -> bool:
        """Whether this op has probes."""
        return op in self._probes

    def packed(self) -> Array | None:
        """What the program returns beside its results; None if it has no probes."""
        if not self._found:
            return None
        with jax.named_scope(f"n{self.asked[-1].node}"):
            return jnp.stack(self._found)

    def _add(self, node: int, op: str, probe: Probe) -> None:
        size = probe.values.size
        is_bad, values = probe.is_bad.reshape(-1), probe.values.reshape(-1)
        at = jnp.min(jnp.where(is_bad, jnp.arange(size, dtype=jnp.int64), size))
        value = values[jnp.minimum(at, size - 1)]
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        if is_float:
            value = jax.lax.bitcast_convert_type(value.astype(jnp.float64), jnp.int64)
        self._found += [jnp.where(at == size, -1, at), value.astype(jnp.int64)]
        self.asked.append(Asked(node, op, probe.error, probe.says, probe.allowed, is_float))


def findings(asked: Sequence[Asked], flags: Any) -> Iterator[tuple[Asked, int, int]]:
    """Each probe that has found something, with the place and the bits of the number."""
    numbers = np.asarray(flags).tolist()
    for probe, at, bits in zip(asked, numbers[::2], numbers[1::2], strict=True):
        if at >= 0:
            yield probe, at, bits
