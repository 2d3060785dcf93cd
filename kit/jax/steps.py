"""`step(fn)`: a jax function whose calls are recorded, op by op, in the open session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from kit.errors import SessionError, SettingsError
from kit.ir import PHASES
from kit.jax.arguments import Kind, Signature, difference, kind_of, paths_of
from kit.jax.array import LazyArray
from kit.jax.frontend import JaxFrontend
from kit.jax.places import caller, here, user_line
from kit.jax.program import Program
from kit.runtime.recording.sites import format_site
from kit.runtime.session.session import Session, current_session

__all__ = ["Step", "Trace", "apply", "step"]


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
class _Traced:
    program: Program
    tree: Any  # of the results
    kinds: tuple[Kind, ...]


class Step:
    """A jax function; inside `with kit.Session(...)` a call records it and returns at once.

    Arguments and results are pytrees of arrays. Results are `LazyArray`s, which may be given to the
    next call as they are. Outside of a session a call is `jax.jit` of the same function.

    Attributes:
        traces: each time that the function was traced, and why; `explain()` has them in words.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: Sequence[str] = (),
        phase: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"kit.jax.step takes a function, not {type(function).__name__}")
        if phase is not None and phase not in PHASES:
            raise SettingsError(f"phase must be one of {PHASES}, not {phase!r}")
        self.phase = phase
        functools.update_wrapper(self, function)
        self.function = function
        self.traces: list[Trace] = []
        self._static = tuple(static_argnames)
        self._parameters = inspect.signature(function) if self._static else None
        self._name = getattr(function, "__name__", type(function).__name__)
        self._traced: dict[Signature, _Traced] = {}
        self._jitted = jax.jit(function, static_argnames=self._static or None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = current_session()
        if session is None:
            return self._plain(args, kwargs)
        leaves, signature = self._signature(args, kwargs)
        traced = self._traced.get(signature)
        frontend: JaxFrontend = session.frontend(JaxFrontend)
        if traced is None:
            with frontend.tracing(self._name):
                traced = self._trace(args, kwargs, signature)
        kinds = signature[1]
        values = [frontend.value(x, kind[1]) for x, kind in zip(leaves, kinds, strict=True)]
        results = frontend.bind(traced.program).record(session, values)
        arrays = [
            LazyArray(session, value, *kind)
            for value, kind in zip(results, traced.kinds, strict=True)
        ]
        return jax.tree.unflatten(traced.tree, arrays)

    def trace(self, *args: Any, **kwargs: Any) -> Step:
        """Trace for these arguments now, without recording anything."""
        _, signature = self._signature(args, kwargs)
        if signature not in self._traced:
            self._trace(args, kwargs, signature)
        return self

    def explain(self) -> str:
        """Why the function was traced, each time."""
        lines = [f"{i}: {trace}" for i, trace in enumerate(self.traces, 1)]
        return "\n".join([f"{self._name} was traced {len(lines)} times", *lines])

    def __repr__(self) -> str:
        return f"kit.jax.step({self._name}, traced {len(self.traces)} times)"

    # -- one call --------------------------------------------------------------------------------

    def _plain(self, args: Any, kwargs: Any) -> Any:
        for leaf in jax.tree.leaves((args, kwargs)):
            if isinstance(leaf, LazyArray):
                leaf.kit_value()  # says it if its session is closed
                raise SessionError(f"no kit session is open in this thread{here()}")
        return self._jitted(*args, **kwargs)

    def _split(self, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Positional and keyword arguments without the static ones, and those."""
        if self._parameters is None:
            return args, kwargs, {}
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        static = {n: bound.arguments.pop(n) for n in self._static if n in bound.arguments}
        return (), dict(bound.arguments), static

    def _signature(self, args: Any, kwargs: Any) -> tuple[list[Any], Signature]:
        args, kwargs, static = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            kinds = tuple(map(kind_of, leaves))
        except TypeError:
            kinds = tuple(self._kind_at(args, kwargs, i, x) for i, x in enumerate(leaves))
        width = str(jax.dtypes.canonicalize_dtype(np.float64))  # the user's own x64 setting
        return leaves, (tree, kinds, tuple(static.items()), width)

    def _kind_at(self, args: Any, kwargs: Any, i: int, leaf: Any) -> Kind:
        try:
            return kind_of(leaf)
        except TypeError as error:
            raise TypeError(
                f"{paths_of(args, kwargs)[i]} of {self._name} is {error}{here()}. Arguments are "
                "pytrees of arrays and numbers: name what is neither in static_argnames, or let "
                "the function close over it"
            ) from None

    # -- tracing ---------------------------------------------------------------------------------

    def _trace(self, args: Any, kwargs: Any, signature: Signature) -> _Traced:
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
                f"kit: while {self._name} was traced{f', at {where}' if where else ''}: {reason}. "
                "A step is traced with arrays that have no numbers yet, as by jax.jit"
            )
            raise
        program = Program.of(closed, self.phase)
        outputs = tuple((tuple(a.shape), a.dtype, bool(a.weak_type)) for a in closed.out_avals)
        made = self._traced[signature] = _Traced(program, jax.tree.structure(results), outputs)
        self.traces.append(Trace(reason, format_site(caller()[0]), len(program.equations)))
        return made

    def _reason(self, args: Any, kwargs: Any, signature: Signature) -> str:
        """What differs from the most alike of the earlier traces."""
        if not self._traced:
            return "first call"
        paths = paths_of(args, kwargs)
        return min((difference(paths, old, signature) for old in self._traced), key=len)


def step(function: Callable[..., Any], *args: Any, static_argnames: Sequence[str] = (),
         phase: str | None = None, **kwargs: Any) -> Step:  # fmt: skip
    """Make a jax function a step that is recorded in the open `kit.Session`.

    train = kit.jax.step(train_step)
    with kit.Session(kit.Settings(bulk_forward=15)):
        state, loss = train(state, batch)

    Args:
        function: any function that `jax.jit` takes.
        args, kwargs: if given, it is traced for such arguments now, so that errors come early.
        static_argnames: arguments that are no arrays; each new value is a new trace.
        phase: "forward", "backward" or "update" for all of it. Else each equation's own: what jax
            transposed is backward, what follows the last of that is the update.

    Raises:
        TypeError: an argument is no pytree of arrays.
        LoweringError: the function does what cannot be recorded, such as writing to a mutable ref.
    """
    made = Step(function, static_argnames, phase)
    return made.trace(*args, **kwargs) if args or kwargs else made


def apply(session: Session, function: Callable[..., Any], *operands: Any) -> Any:
    """One small step in the session of a `LazyArray`: what `loss / 2` records."""
    if session is not current_session():
        raise SessionError(f"an array of a kit session is used outside of it{here()}")
    return _small_step(function)(*operands)


@functools.cache
def _small_step(function: Callable[..., Any]) -> Step:
    return Step(function)
