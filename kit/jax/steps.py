"""`step(fn)`: a jax function whose calls are recorded, op by op, in the open session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import jax

from kit.errors import SessionError, SettingsError
from kit.ir import PHASES
from kit.jax.array import TRACING, LazyArray
from kit.jax.frontend import JaxFrontend
from kit.jax.places import here
from kit.jax.tracing import Trace, TracedFunction, telling_changes
from kit.runtime.session.session import current_session
from kit.shown import Lines
from kit.text import format_count

__all__ = ["Step", "step"]

# Arguments of jax.jit that a step has none of -> what there is instead.
_OF_JIT = {
    "static_argnums": "name these arguments in static_argnames",
    **dict.fromkeys(("donate_argnums", "donate_argnames"), "buffers are not donated"),
    **dict.fromkeys(("in_shardings", "out_shardings"), "there is one device"),
}


class Step:
    """A jax function; inside `with kit.Session(...)` a call records it and returns at once.

    Arguments and results are pytrees of arrays. Results are `LazyArray`s, which may be given to the
    next call as they are. Outside of a session, in another step and under a transformation of jax,
    a call is `jax.jit` of the same function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnames: str | Sequence[str] = (),
        phase: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"kit.jax.step takes a function, not {type(function).__name__}")
        if phase is not None and phase not in PHASES:
            raise SettingsError(f"phase must be one of {PHASES}, not {phase!r}")
        static = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        functools.update_wrapper(self, function)
        self.function, self.phase = function, phase
        self._traced = TracedFunction(function, static, phase)
        told = telling_changes(function, self._traced.name)
        self._jitted = jax.jit(told, static_argnames=static or None)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A step of a class is a method of its objects, as with `jax.jit`."""
        return self if instance is None else MethodType(self, instance)

    @property
    def traces(self) -> list[Trace]:
        """Each time that the function was traced, and why; `explain()` has them in words."""
        return self._traced.traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = current_session()
        if TRACING.function:  # part of another step
            return self._jitted(*args, **kwargs)
        if session is None:
            return self._plain(args, kwargs)
        try:
            given = self._traced.signature(args, kwargs)
        except TypeError:
            if any(map(_is_traced, jax.tree.leaves((args, kwargs)))):
                return self._jitted(*args, **kwargs)  # within jax.grad, say
            raise
        frontend: JaxFrontend = session.frontend(JaxFrontend)
        return frontend.run(self._traced, args, kwargs, given)

    def trace(self, *args: Any, **kwargs: Any) -> Step:
        """Trace for these arguments now, without recording anything."""
        _, signature = self._traced.signature(args, kwargs)
        if self._traced.find(signature) is None:
            self._traced.trace(args, kwargs, signature)
        return self

    def explain(self) -> str:
        """Why the function was traced, each time."""
        lines = [f"{i}: {trace}" for i, trace in enumerate(self.traces, 1)]
        return Lines(
            "\n".join(
                [f"{self._traced.name} was traced {format_count(len(lines), 'time')}", *lines]
            )
        )

    def __repr__(self) -> str:
        return f"kit.jax.step({self._traced.name}, traced {format_count(len(self.traces), 'time')})"

    def _plain(self, args: Any, kwargs: Any) -> Any:
        for leaf in jax.tree.leaves((args, kwargs)):
            if isinstance(leaf, LazyArray):
                leaf.kit_value()  # says it if its session is closed
                raise SessionError(f"no kit session is open in this thread{here()}")
        return self._jitted(*args, **kwargs)


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Has it an argument of this very name?"""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some functions in C nobody knows
        return False


def step(function: Callable[..., Any], *args: Any, static_argnames: str | Sequence[str] = (),
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
        TypeError: an argument is no pytree of arrays, or one of jax.jit's own.
        LoweringError: the function does what cannot be recorded, such as writing to a mutable ref.
    """
    for name in kwargs.keys() & _OF_JIT.keys():
        if not _takes(function, name):
            raise TypeError(f"kit.jax.step has no {name}{here()}: {_OF_JIT[name]}")
    made = Step(function, static_argnames, phase)
    return made.trace(*args, **kwargs) if args or kwargs else made
