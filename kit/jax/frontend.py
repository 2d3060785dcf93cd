"""The jax half of a session: it joins when the first jax step is called there."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import jax
import numpy as np

from kit.errors import SessionError
from kit.jax.arguments import Signature, host_array, kind_of, settings_of_jax
from kit.jax.array import TRACING, LazyArray
from kit.jax.places import here
from kit.jax.program import Bound, Program
from kit.jax.tracing import Traced, TracedFunction
from kit.runtime.recording.bulk import Value
from kit.runtime.session.session import Session, current_session
from kit.trace.kinds import MADE_ANEW, TRACE
from kit.versions import warn_of_untried

__all__ = ["JaxFrontend", "device_put"]


class JaxFrontend:
    """Programs that are bound to one session, and the arrays that go in and come out."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._bound: dict[Program, Bound] = {}
        self._codes: set[Any] = set()  # of the functions that were traced

    def open(self, session: Session) -> None:
        """The session's first jax step is called."""
        warn_of_untried("jax", "jaxlib")
        self._session = session

    def close(self) -> None:
        """The session closes: constants on its device are let go."""
        self._session = None
        self._bound.clear()
        self._codes.clear()

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
        traced = function.find(signature) or self._trace(function, args, kwargs, signature)
        kinds = signature[1]
        values = [self.value(x, kind[1]) for x, kind in zip(leaves, kinds, strict=True)]
        results = self.bind(traced.program).record(session, values)
        arrays: list[Any] = [
            LazyArray(self, session, value, kind)
            for value, kind in zip(results, traced.kinds, strict=True)
        ]
        for place, kind in traced.others:
            arrays.insert(place, np.zeros(kind[0], kind[1]))  # as of jax.jit
        return jax.tree.unflatten(traced.tree, arrays)

    def _trace(
        self, function: TracedFunction, args: Any, kwargs: Any, signature: Signature
    ) -> Traced:
        """What a function's trace finds, which is lowering and no recording."""
        session, start = self.session, time.perf_counter_ns()
        session.issuer.spans.pause()
        try:
            traced = function.trace(args, kwargs, signature)
        finally:
            session.issuer.spans.resume()
        made = function.traces[-1]
        code = getattr(inspect.unwrap(function.function), "__code__", None)  # small steps have none
        is_anew = len(function.traces) == 1 and code is not None and code in self._codes
        self._codes.add(code)
        session.issuer.spans.add(
            f"{TRACE}{function.name} at {made.site}: {MADE_ANEW if is_anew else made.reason}",
            "lower",
            start,
            time.perf_counter_ns(),
            session.here.lane,
        )
        return traced

    def apply(self, function: Callable[..., Any], *operands: Any) -> Any:
        """One small step on a `LazyArray`: what `loss / 2` records.

        Raises:
            SessionError: the array's session is not the one that is open here.
            TypeError: a step is traced, which closes over the array.
        """
        if TRACING.function:
            raise TypeError(
                f"a LazyArray is used while {TRACING.function} is traced{here()}, which closes "
                "over it: make it an argument of the step"
            )
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
            start = time.perf_counter_ns()
            return self.session.inputs.constant(host_array(leaf, dtype), since_ns=start)
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

    Raises:
        TypeError: a leaf is no array of numbers.
    """
    session = current_session()
    if session is None:
        return jax.device_put(tree)
    frontend: JaxFrontend = session.frontend(JaxFrontend)

    def put(path: Any, leaf: Any) -> LazyArray:
        if isinstance(leaf, LazyArray):
            return leaf
        try:
            kind = kind_of(leaf)
        except TypeError as error:
            raise TypeError(
                f"tree{jax.tree_util.keystr(path)} is {error}{here()}: a device holds arrays of "
                "numbers; keep texts and objects on the host"
            ) from None
        if isinstance(leaf, jax.Array):  # the program may donate its own
            leaf = jax.device_put(leaf, may_alias=False)
        return LazyArray(frontend, session, frontend.value(leaf, kind[1]), kind)

    return jax.tree.map_with_path(put, tree)


@functools.lru_cache(1024)
def _small_step(function: Callable[..., Any]) -> TracedFunction:
    return TracedFunction(function)
