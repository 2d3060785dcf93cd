"""`step(fn)`: a jax function whose calls are recorded, op by op, in the open session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from kit.errors import SessionError
from kit.frontend.jax_array import LazyArray
from kit.frontend.jax_places import caller, user_line
from kit.frontend.jax_program import Bound, Program
from kit.runtime.lowering import format_site
from kit.runtime.session import Session, current_session
from kit.runtime.stream import Value

__all__ = ["Step", "Trace", "apply", "step"]

Kind = tuple[tuple[int, ...], Any, bool]  # shape, dtype, weak type
Signature = tuple[Any, tuple[Kind, ...], tuple[tuple[str, Any], ...], str]
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


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

    def __init__(self, function: Callable[..., Any], static_argnames: Sequence[str] = ()) -> None:
        if not callable(function):
            raise TypeError(f"kit.jax.step takes a function, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self.function = function
        self.traces: list[Trace] = []
        self._static = tuple(static_argnames)
        self._parameters = inspect.signature(function) if self._static else None
        self._name = getattr(function, "__name__", type(function).__name__)
        self._traced: dict[Signature, _Traced] = {}
        self._bound: WeakKeyDictionary[Session, dict[Signature, Bound]] = WeakKeyDictionary()
        self._jitted = jax.jit(function, static_argnames=self._static or None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = current_session()
        if session is None:
            return self._plain(args, kwargs)
        leaves, signature = self._signature(args, kwargs)
        traced = self._traced.get(signature)
        if traced is None:
            traced = self._trace(args, kwargs, signature)
        bound = self._bound.setdefault(session, {}).get(signature)
        if bound is None:
            bound = self._bound[session][signature] = traced.program.bind(session)
        values = [self._value(session, leaf, signature, i) for i, leaf in enumerate(leaves)]
        results = bound.record(session, values)
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
                leaf.kit_value()  # says that its session is closed
                raise SessionError("an array of a kit session, but none is open in this thread")
        return self._jitted(*args, **kwargs)

    def _split(self, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Positional and keyword arguments without the static ones, and those."""
        if self._parameters is None:
            return args, kwargs, {}
        bound = self._parameters.bind(*args, **kwargs)
        static = {n: bound.arguments.pop(n) for n in self._static if n in bound.arguments}
        return (), dict(bound.arguments), static

    def _signature(self, args: Any, kwargs: Any) -> tuple[list[Any], Signature]:
        args, kwargs, static = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            kinds = tuple(map(_kind, leaves))
        except TypeError:
            kinds = tuple(self._kind_at(args, kwargs, i, x) for i, x in enumerate(leaves))
        width = str(jax.dtypes.canonicalize_dtype(np.float64))  # the user's own x64 setting
        return leaves, (tree, kinds, tuple(static.items()), width)

    def _kind_at(self, args: Any, kwargs: Any, i: int, leaf: Any) -> Kind:
        try:
            return _kind(leaf)
        except TypeError as error:
            raise TypeError(
                f"{_paths(args, kwargs)[i]} of {self._name} is {error}, at "
                f"{format_site(caller()[0])}. Arguments are pytrees of arrays and numbers; name "
                "what is neither in static_argnames, or close over it"
            ) from None

    def _value(self, session: Session, leaf: Any, signature: Signature, i: int) -> Value:
        if isinstance(leaf, LazyArray):
            value = leaf.kit_value()
            if leaf.session is not session:
                raise SessionError(
                    f"an argument of {self._name} at {format_site(caller()[0])} belongs to another "
                    "open kit session; copy it: np.asarray(x)"
                )
            return value
        return session.constant(_host(leaf, signature[1][i][1]))

    # -- tracing ---------------------------------------------------------------------------------

    def _trace(self, args: Any, kwargs: Any, signature: Signature) -> _Traced:
        args, kwargs, static = self._split(args, kwargs)
        reason = self._reason(args, kwargs, signature)
        tree, kinds, _, _ = signature
        shapes = [jax.ShapeDtypeStruct(s, d, weak_type=w) for s, d, w in kinds]
        shaped_args, shaped_kwargs = jax.tree.unflatten(tree, shapes)
        site = format_site(caller()[0])
        try:
            closed, results = jax.make_jaxpr(
                functools.partial(self.function, **static), return_shape=True
            )(*shaped_args, **shaped_kwargs)
        except Exception as error:
            where = user_line(error)
            error.add_note(
                f"kit: while {self._name} was traced{f' at {where}' if where else ''}: {reason}. A "
                "step is traced with arrays that have no numbers yet, as by jax.jit"
            )
            raise
        program = Program.of(closed)
        outputs = tuple((tuple(a.shape), a.dtype, bool(a.weak_type)) for a in closed.out_avals)
        made = self._traced[signature] = _Traced(program, jax.tree.structure(results), outputs)
        self.traces.append(Trace(reason, site, len(program.equations)))
        return made

    def _reason(self, args: Any, kwargs: Any, signature: Signature) -> str:
        """What differs from the most alike of the earlier traces."""
        if not self._traced:
            return "first call"
        paths = _paths(args, kwargs)
        return min((_difference(paths, old, signature) for old in self._traced), key=len)


def step(function: Callable[..., Any], *args: Any, static_argnames: Sequence[str] = (),
         **kwargs: Any) -> Step:  # fmt: skip
    """Make a jax function a step that is recorded in the open `kit.Session`.

    train = kit.jax.step(train_step)
    with kit.Session(kit.Settings(bulk_forward=15)):
        state, loss = train(state, batch)

    Args:
        function: any function that `jax.jit` takes.
        args, kwargs: if given, it is traced for such arguments now, so that errors come early.
        static_argnames: arguments that are no arrays; each new value is a new trace.

    Raises:
        TypeError: an argument is no pytree of arrays.
        LoweringError: the function does what cannot be recorded, such as writing to a mutable ref.
    """
    made = Step(function, static_argnames)
    return made.trace(*args, **kwargs) if args or kwargs else made


def apply(session: Session, function: Callable[..., Any], *operands: Any) -> Any:
    """One small step in the session of a `LazyArray`: what `loss / 2` records."""
    if session is not current_session():
        raise SessionError(
            f"an array of a kit session is used outside of it, at {format_site(caller()[0])}"
        )
    return _small_step(function)(*operands)


@functools.cache
def _small_step(function: Callable[..., Any]) -> Step:
    return Step(function)


def _kind(leaf: Any) -> Kind:
    """Shape, dtype and weak type of an argument.

    Raises:
        TypeError: it is no array; the message says what it is.
    """
    if isinstance(leaf, LazyArray):
        return leaf.shape, leaf.dtype, leaf.weak_type
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError("a value of another jax transformation (jit, grad or vmap around kit)")
    if not isinstance(leaf, _ARRAYS):
        raise TypeError(f"a {type(leaf).__name__}, not an array")
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSUMm":
        raise TypeError(f"a numpy array of dtype {leaf.dtype}")
    aval = jax.typeof(leaf)
    return tuple(aval.shape), aval.dtype, bool(aval.weak_type)  # type: ignore[attr-defined]


def _host(leaf: Any, dtype: Any) -> Any:
    """An argument as the runtime takes it: integers for keys, memory that nobody else writes."""
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(leaf)
        return leaf
    return np.array(leaf, dtype=dtype)


def _paths(args: Any, kwargs: Any) -> list[str]:
    """`args[1]['x']` for each leaf."""
    found, _ = jax.tree.flatten_with_path((args, kwargs))
    names = ("args", "kwargs")
    return [names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in found]


def _difference(paths: list[str], old: Signature, new: Signature) -> str:
    if old[0] != new[0]:
        return f"the structure of the arguments changed from {_short(old[0])} to {_short(new[0])}"
    changes = [
        f"{path} changed from {_kind_text(a)} to {_kind_text(b)}"
        for path, a, b in zip(paths, old[1], new[1], strict=True)
        if a != b
    ]
    changes += [
        f"the static argument {name} changed from {dict(old[2]).get(name)!r} to {value!r}"
        for name, value in new[2]
        if (name, value) not in old[2]
    ]
    if old[3] != new[3]:
        changes.append(f"jax's default float changed from {old[3]} to {new[3]}")
    return "; ".join(changes[:5]) or "the static arguments changed"


def _kind_text(kind: Kind) -> str:
    shape, dtype, weak = kind
    return f"{dtype}[{','.join(map(str, shape))}]{' (weak type)' if weak else ''}"


def _short(tree: Any) -> str:
    text = str(tree).removeprefix("PyTreeDef")
    return text if len(text) <= 120 else f"{text[:120]}…"
