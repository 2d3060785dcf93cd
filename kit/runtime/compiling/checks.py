"""The probes of one program: looked at while it is lowered, and what they have found, as text.

A program returns what its probes find as one small vector of integers beside its results: for each
probe the place of the first bad number, or -1, and that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kit.errors import BadNumberError, DeviceCheckError
from kit.runs.settings import GPUS, Settings
from kit.runtime.compiling.precision import XLAS, Precision
from kit.runtime.compiling.probes import PROBES, Probe, ProbeOf
from kit.runtime.rules.jax import Static

__all__ = ["NO_CHECKS", "Asked", "Checks", "Probing", "findings"]

FIRST_STEPS = 3  # how many are checked with check_indices="first steps"


@dataclass(frozen=True, slots=True)
class Checks:
    """Which probes a program has, and how it multiplies; part of what it is known by."""

    indices: bool = False  # and other numbers that ops cannot take
    numbers: bool = False  # whether ops make NaN or infinities
    precision: Precision = XLAS

    def __str__(self) -> str:
        probes = ", ".join(["indices"] * self.indices + ["numbers"] * self.numbers) or "none"
        return probes if self.precision == XLAS else f"{probes}; {self.precision}"

    @classmethod
    def by_step(
        cls, settings: Settings, device: Any, frontends: Sequence[Any]
    ) -> Callable[[int], Self]:
        """What tells the checks of a step; of front ends, the first that has `precision` is asked.

        Front ends themselves are not kept.
        """
        on_gpu = frontends if device.platform in GPUS else ()
        asked = (f.precision for f in on_gpu if hasattr(f, "precision"))
        return partial(cls._of, settings, next(asked, Precision))

    @classmethod
    def _of(cls, settings: Settings, precision: Callable[[], Precision], step: int) -> Self:
        """What the programs of a step look at beside computing, and how they multiply."""
        asked = settings.check_indices
        indices = asked == "on" or (asked == "first steps" and step < FIRST_STEPS)
        return cls(indices, settings.check_numbers == "on", precision())

    @property
    def probes(self) -> Mapping[str, ProbeOf]:
        """The probes of each op, by its name."""
        return PROBES if self.indices else {}


NO_CHECKS = Checks()
Arguments = Callable[[], tuple[Sequence[Any], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a probe before the program runs."""

    node: int  # in the segment
    op: str
    error: type[DeviceCheckError]
    says: str
    allowed: str
    is_given: bool  # to the op; else the op has made it
    is_float: bool

    def explained(self, at: int, bits: int, *, site: str, step: int) -> DeviceCheckError:
        """The error of a program that has found this: torch's sentence, then where it was."""
        value = float(np.int64(bits).view(np.float64)) if self.is_float else bits
        says = self.says.format(value=value, at=at)
        where = f"{self.op} at {site or 'an unknown line'}"
        did = "was given" if self.is_given else "made"
        found = f"{where} {did} {value} in step {step}; allowed: {self.allowed}"
        return self.error(
            f"{says} ({found})", op=self.op, site=site, step=step, value=value, allowed=self.allowed
        )


class Probing:
    """Collects the probes of a program while it is lowered."""

    def __init__(self, checks: Checks) -> None:
        self.asked: list[Asked] = []
        self._checks = checks
        self._found: list[Array] = []
        self._known: dict[int, tuple[Array, Array, Array]] = {}  # array, has NaN, has an infinity

    def look(self, node: int, op: str, arguments: Arguments, made: Sequence[Any]) -> None:
        """Put the probes of an op into the program.

        Args:
            arguments: gives its (args, kwargs).
            made: its results.
        """
        probe_of = self._checks.probes.get(op)
        if probe_of is not None:
            args, kwargs = arguments()
            for probe in probe_of(*args, **kwargs):
                self._add(node, op, probe)
        if self._checks.numbers:
            self._look_at_numbers(node, op, flat_numbers(arguments()), made)

    def _look_at_numbers(
        self, node: int, op: str, given: Sequence[Any], made: Sequence[Any]
    ) -> None:
        """What is NaN though nothing given was, and infinite though all that was given is finite.

        So a mask of -inf is no finding, and a softmax of nothing but -inf is one.
        """
        states = [self._state(x) for x in given]
        no_nan, is_finite = jnp.asarray(True), jnp.asarray(True)
        for has_nan, has_infinity in states:
            no_nan &= ~has_nan
            is_finite &= ~(has_nan | has_infinity)
        for x in map(_real, filter(_is_float, made)):
            is_bad = (jnp.isnan(x) & no_nan) | (jnp.isinf(x) & is_finite)
            says = "an op made NaN or an infinity of other numbers"
            self._add(node, op, Probe(is_bad, x, BadNumberError, says, "finite numbers"), made=True)

    def _state(self, number: Any) -> tuple[Array, Array]:
        x = jnp.asarray(number)
        if not _is_float(x):
            return jnp.asarray(False), jnp.asarray(False)
        if id(number) not in self._known:
            real = _real(x)
            self._known[id(number)] = number, jnp.any(jnp.isnan(real)), jnp.any(jnp.isinf(real))
        return self._known[id(number)][1:]

    def packed(self) -> Array | None:
        """What the program returns beside its results; None if it has no probes."""
        if not self._found:
            return None
        with jax.named_scope(f"n{self.asked[-1].node}"):
            return jnp.stack(self._found)

    def _add(self, node: int, op: str, probe: Probe, *, made: bool = False) -> None:
        size = probe.values.size
        if not size:
            return
        is_bad, values = probe.is_bad.reshape(-1), probe.values.reshape(-1)
        at = jnp.min(jnp.where(is_bad, jnp.arange(size, dtype=jnp.int64), size))
        value = values[jnp.minimum(at, size - 1)]
        is_float = _is_float(value)
        if is_float:
            value = jax.lax.bitcast_convert_type(value.astype(jnp.float64), jnp.int64)
        self._found += [jnp.where(at == size, -1, at), value.astype(jnp.int64)]
        self.asked.append(
            Asked(node, op, probe.error, probe.says, probe.allowed, not made, is_float)
        )


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _real(x: Array) -> Array:
    """Complex numbers as real ones that are NaN or infinite where those are."""
    return jnp.real(x) + jnp.imag(x) if jnp.iscomplexobj(x) else x


def flat_numbers(arguments: Any) -> list[Any]:
    """The arrays and floats in lists, tuples and dicts; a literal of a jaxpr is one."""
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, list | tuple):
        return [x for item in arguments for x in flat_numbers(item)]
    given = arguments.value if isinstance(arguments, Static) else arguments
    return [given] if isinstance(given, Array | float | np.generic | np.ndarray) else []


def findings(asked: Sequence[Asked], flags: Any) -> Iterator[tuple[Asked, int, int]]:
    """Each probe that has found something, with the place and the bits of the number."""
    numbers = np.asarray(flags).tolist()
    for probe, at, bits in zip(asked, numbers[::2], numbers[1::2], strict=True):
        if at >= 0:
            yield probe, at, bits
