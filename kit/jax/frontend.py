"""The jax half of a session: it joins when the first jax step is called there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import jax

from kit.errors import SessionError
from kit.jax.arguments import Signature, host_array, kind_of, settings_of_jax
from kit.jax.array import LazyArray
from kit.jax.places import here
from kit.jax.program import Bound, Program
from kit.jax.tracing import TracedFunction
from kit.runtime.recording.bulk import Value
from kit.runtime.session.session import Session, current_session
from kit.versions import warn_of_untried

__all__ = ["JaxFrontend", "device_put"]


class JaxFrontend:
    """Programs that are bound to one session, and the arrays that go in and come out."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._bound: dict[Program, Bound] = {}

    def open(self, session: Session) -> None:
        """The session's first jax step is called."""
        warn_of_untried("jax", "jaxlib")
        self._session = session

    def close(self) -> None:
        """The session closes: constants on its device are let go."""
        self._session = None
        self._bound.clear()

    def mark_step(self) -> None:
        """A new step begins; nothing here belongs to a step."""

    def is_inference(self) -> bool:
        """False: a step of jax says its phases itself."""
        return False

    def is_in_backward(self) -> bool:
        """False: jax has no backward pass that an interrupt could not leave."""
        return False

    def host_draws(self) -> None:
        """None: jax's random numbers come from keys."""

    def modes(self) -> dict[str, Any]:
        """What of jax's own settings decides how a step is traced."""
        return {f"jax's {name}": value for name, value in settings_of_jax().items()}

    def hooks(self) -> list[Any]:
        """None: jax calls no function of the program's beside the step."""
        return []

    def renew(self, result: Any, fresh: Callable[[Value], Value]) -> Any:
        """A step's result with each array over `fresh(its value)`."""
        if not any(isinstance(leaf, LazyArray) for leaf in jax.tree.leaves(result)):
            return result
        return jax.tree.map(
            lambda x: x.over(fresh(x.kit_value())) if isinstance(x, LazyArray) else x, result
        )

    def value_of(self, thing: Any) -> Value | None:
        """The value of an array of a step; None of all else."""
        return thing._value if isinstance(thing, LazyArray) else None

    def holds(self, thing: Any) -> int:
        """How many references to an array of a step there are."""
        return getrefcount(thing) if isinstance(thing, LazyArray) else 0

    def run(
        self, function: TracedFunction, args: Any, kwargs: Any, given: tuple[list[Any], Signature]
    ) -> Any:
        """Record one call of a function; its results are arrays that may not have been computed.

        Args:
            given: what `function.signature` gives for the arguments.
        """
        session = self.session
        leaves, signature = given
        traced = function.find(signature) or function.trace(args, kwargs, signature)
        kinds = signature[1]
        values = [self.value(x, kind[1]) for x, kind in zip(leaves, kinds, strict=True)]
        results = self.bind(traced.program).record(session, values)
        arrays = [
            LazyArray(self, session, value, kind)
            for value, kind in zip(results, traced.kinds, strict=True)
        ]
        return jax.tree.unflatten(traced.tree, arrays)

    def apply(self, function: Callable[..., Any], *operands: Any) -> Any:
        """One small step on a `LazyArray`: what `loss / 2` records.

        Raises:
            SessionError: the array's session is not the one that is open here.
        """
        if self._session is None or self._session is not current_session():
            raise SessionError(f"an array of a kit session is used outside of it{here()}")
        step = _small_step(function)
        return self.run(step, operands, {}, step.signature(operands, {}))

    def bind(self, program: Program) -> Bound:
        """The program with its ops interned here."""
        bound = self._bound.get(program)
        if bound is None:
            bound = self._bound[program] = program.bind(self.session)
        return bound

    def value(self, leaf: Any, dtype: Any) -> Value:
        """An argument as the stream takes it; arrays from elsewhere are copied to the device.

        Raises:
            SessionError: it belongs to another session.
        """
        if not isinstance(leaf, LazyArray):
            return self.session.constant(host_array(leaf, dtype))
        value = leaf.kit_value()
        if leaf.session is not self._session:
            raise SessionError(
                f"an array of another open kit session is used{here()}; copy it: np.asarray(x)"
            )
        return value

    @property
    def session(self) -> Session:
        """The session that it has joined."""
        assert self._session is not None, "used between open and close only"
        return self._session


def device_put(tree: Any) -> Any:
    """Copy a pytree of arrays to the session's device, once; outside of one, to jax's.

    An array that each step takes and none changes, such as a whole dataset, is copied at each call
    otherwise; and one of jax's there is not copied at all, so that it must not be donated.
    """
    session = current_session()
    if session is None:
        return jax.device_put(tree)
    frontend: JaxFrontend = session.frontend(JaxFrontend)

    def put(leaf: Any) -> LazyArray:
        if isinstance(leaf, LazyArray):
            return leaf
        kind = kind_of(leaf)
        if isinstance(leaf, jax.Array):  # the program may donate its own
            leaf = jax.device_put(leaf, may_alias=False)
        return LazyArray(frontend, session, frontend.value(leaf, kind[1]), kind)

    return jax.tree.map(put, tree)


@functools.lru_cache(1024)
def _small_step(function: Callable[..., Any]) -> TracedFunction:
    return TracedFunction(function)
