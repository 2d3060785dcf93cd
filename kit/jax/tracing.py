"""A jax function and its traces: one `Program` for each kind of arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from kit.jax.arguments import Signature, difference, kind_of, paths_of
from kit.jax.array import Kind
from kit.jax.places import caller, here, user_line
from kit.jax.program import Program
from kit.runtime.recording.sites import format_site

__all__ = ["Trace", "Traced", "TracedFunction"]


@dataclass(frozen=True)
class Trace:
    """One time that the Python function was run to see its equations, and why it was."""

    reason: str
    site: str
    equations: int

    def __str__(self) -> str:
        return (
            f"{self.reason} ({self.equations} equations{f', at {self.site}' if self.site else ''})"
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace has found: the program, and what its results are."""

    program: Program
    tree: Any  # of the results
    kinds: tuple[Kind, ...]  # of the results


class TracedFunction:
    """A function that `jax.jit` takes, traced once for each kind of arguments.

    Attributes:
        traces: each time that the function was traced, and why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: Sequence[str] = (),
        phase: str | None = None,
    ) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.traces: list[Trace] = []
        self._phase = phase
        self._static = tuple(static_argnames)
        self._parameters = inspect.signature(function) if self._static else None
        self._traced: dict[Signature, Traced] = {}

    def find(self, signature: Signature) -> Traced | None:
        """The trace for such arguments, if there is one."""
        return self._traced.get(signature)

    def signature(self, args: Any, kwargs: Any) -> tuple[list[Any], Signature]:
        """The arrays among the arguments, and what kind of arguments these are.

        Raises:
            TypeError: an argument is no pytree of arrays.
        """
        args, kwargs, static = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            kinds = tuple(map(kind_of, leaves))
        except TypeError:
            kinds = tuple(self._kind_at(args, kwargs, i, x) for i, x in enumerate(leaves))
        width = str(jax.dtypes.canonicalize_dtype(np.float64))  # the user's own x64 setting
        return leaves, (tree, kinds, tuple(static.items()), width)

    def trace(self, args: Any, kwargs: Any, signature: Signature) -> Traced:
        """Run the function on arrays without numbers, and keep its equations.

        Raises:
            LoweringError: it does what cannot be recorded.
        """
        args, kwargs, static = self._split(args, kwargs)
        reason = self._reason(args, kwargs, signature)
        tree, kinds, _, _ = signature
        shapes = [jax.ShapeDtypeStruct(s, d, weak_type=w) for s, d, w in kinds]
        shaped_args, shaped_kwargs = jax.tree.unflatten(tree, shapes)
        function = functools.partial(self.function, **static) if static else self.function
        trace = jax.make_jaxpr(function, return_shape=True)
        try:
            closed, results = trace(*shaped_args, **shaped_kwargs)
        except Exception as error:
            code = getattr(self.function, "__code__", None)
            start = format_site((code.co_filename, code.co_firstlineno)) if code else ""
            where = user_line(error) or start
            error.add_note(
                f"kit: while {self.name} was traced{f', at {where}' if where else ''}: {reason}. "
                "A step is traced with arrays that have no numbers yet, as by jax.jit"
            )
            raise
        program = Program.of(closed, self._phase)
        outputs = tuple((tuple(a.shape), a.dtype, bool(a.weak_type)) for a in closed.out_avals)
        made = self._traced[signature] = Traced(program, jax.tree.structure(results), outputs)
        self.traces.append(Trace(reason, format_site(caller()[0]), len(program.equations)))
        return made

    def _split(self, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Positional and keyword arguments without the static ones, and those."""
        if self._parameters is None:
            return args, kwargs, {}
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        static = {n: bound.arguments.pop(n) for n in self._static if n in bound.arguments}
        return (), dict(bound.arguments), static

    def _kind_at(self, args: Any, kwargs: Any, i: int, leaf: Any) -> Kind:
        try:
            return kind_of(leaf)
        except TypeError as error:
            raise TypeError(
                f"{paths_of(args, kwargs)[i]} of {self.name} is {error}{here()}. Arguments are "
                "pytrees of arrays and numbers: name what is neither in static_argnames, or let "
                "the function close over it"
            ) from None

    def _reason(self, args: Any, kwargs: Any, signature: Signature) -> str:
        """What differs from the most alike of the earlier traces."""
        if not self._traced:
            return "first call"
        paths = paths_of(args, kwargs)
        return min((difference(paths, old, signature) for old in self._traced), key=len)
