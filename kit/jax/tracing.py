"""A jax function and its traces: one `Program` for each kind of arguments."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax

from kit.errors import note
from kit.jax.arguments import (
    Signature,
    difference,
    kind_of,
    path_text,
    paths_of,
    settings_of_jax,
)
from kit.jax.array import TRACING, Kind
from kit.jax.places import caller, here
from kit.jax.program import Program, is_without_numbers
from kit.runtime.recording.sites import format_site, level_of_user, line_of, site_of
from kit.text import format_count

__all__ = ["Trace", "Traced", "TracedFunction", "telling_changes"]

_OF_LISTS = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)


@dataclass(frozen=True)
class Trace:
    """One time that the Python function was run to see its equations, and why it was."""

    reason: str
    site: str
    equations: int

    def __str__(self) -> str:
        count = format_count(self.equations, "equation")
        return f"{self.reason} ({count}{f', at {self.site}' if self.site else ''})"


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace has found: the program, and what its results are."""

    program: Program
    tree: Any  # of the results
    kinds: tuple[Kind, ...]  # of the results that have numbers: those of the program
    others: tuple[tuple[int, Kind], ...]  # of derivatives by integers, and where these stand

    @classmethod
    def of(cls, closed: Any, results: Any, phase: str | None) -> Traced:
        """What jax's trace, and the results that it shows, are.

        Raises:
            LoweringError: the function does what cannot be recorded.
        """
        kinds: list[Kind] = []
        others: list[tuple[int, Kind]] = []
        for place, aval in enumerate(closed.out_avals):
            kind = tuple(aval.shape), aval.dtype, bool(aval.weak_type)
            if is_without_numbers(aval):
                others.append((place, kind))
            else:
                kinds.append(kind)
        tree = jax.tree.structure(results)
        return cls(Program.of(closed, phase), tree, tuple(kinds), tuple(others))


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
        inner = _innermost(function)
        self.name: str = getattr(inner, "__name__", type(inner).__name__)
        self.traces: list[Trace] = []
        self._phase = phase
        self._static = _StaticArguments(function, static_argnames) if static_argnames else None
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
        known = tuple((name, type(x), x) for name, x in sorted(static.items()))
        return leaves, (tree, kinds, known, tuple(settings_of_jax().items()))

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
        function = self._static.filled(static) if self._static else self.function
        trace = jax.make_jaxpr(telling_changes(function, self.name), return_shape=True)
        before, TRACING.function = TRACING.function, self.name
        try:
            closed, results = trace(*shaped_args, **shaped_kwargs)
        except Exception as error:
            start = format_site(site_of(self.function))
            start = f", at {start}" if start else here()
            note(
                error,
                f"kit: while {self.name} was traced{line_of(error) or start}: {reason}. "
                "A step is traced with arrays that have no numbers yet, as by jax.jit"
                f"{_cure(error)}",
            )
            raise
        finally:
            TRACING.function = before
        made = self._traced[signature] = Traced.of(closed, results, self._phase)
        self.traces.append(Trace(reason, format_site(caller()[0]), len(made.program.equations)))
        return made

    def _split(self, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Positional and keyword arguments without the static ones, and those."""
        return self._static.split(args, kwargs) if self._static else (args, kwargs, {})

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


def telling_changes(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function, which warns where a trace of it changes an object and loses that.

    A trace is given copies of modules, as of flax's nnx. A dict may be changed as a scratchpad.
    """
    if type(function) is not FunctionType:
        return _Telling(function, name)
    return _TELLING.get(function) or _TELLING.setdefault(function, _Telling(function, name))


class _Telling:
    """What jax is given in a function's place: jax finds its traces by which object that is.

    It lives as long as the function, which it does not keep alive.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        is_plain = type(function) is FunctionType
        self._function: Callable[[], Any] = ref(function) if is_plain else lambda: function
        self.__name__ = self.__qualname__ = name
        with suppress(TypeError, ValueError):  # of some functions in C nobody knows
            self.__signature__ = inspect.signature(function)

    @property
    def __wrapped__(self) -> Any:
        """Whose file and line jax's errors name."""
        return _innermost(self._function())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = jax.tree.leaves((args, kwargs))
        results = self._function()(*args, **kwargs)
        if lost := _lost(before, args, kwargs, results):
            more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
            warnings.warn(
                f"{self.__name__} changes {lost[0]}{more} in place and does not return that: as "
                "with jax.jit the change is lost, and what only it needs is not computed. Return "
                "each module and optimizer that it changes, and give the next call what this one "
                "gave",
                stacklevel=level_of_user(),
            )
        return results


_TELLING: WeakKeyDictionary[Callable[..., Any], _Telling] = WeakKeyDictionary()


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _lost(before: list[Any], args: Any, kwargs: Any, results: Any) -> list[str]:
    """The places in objects among the arguments where another array stands now, and no result.

    What an object makes anew at each look, or as a number of Python's or numpy's, is none.
    """
    try:
        known = {id(x) for x in (*before, *jax.tree.leaves(results))}
        after, _ = jax.tree.flatten_with_path((args, kwargs))
        again = jax.tree.leaves((args, kwargs))
    except (TypeError, ValueError):  # no pytree: a scratchpad; of a result jax says it itself
        return []
    return [
        path_text(path)
        for (path, x), same in zip(after, again, strict=True)
        if isinstance(x, jax.core.Tracer)
        and id(x) not in known
        and x is same
        and not all(isinstance(key, _OF_LISTS) for key in path)
    ]


def _cure(error: BaseException) -> str:
    """What helps against an error of jax's own that names what a function was given."""
    said = str(error)
    if "LazyArray" in said:
        return ": a LazyArray that the function closes over must be an argument of it"
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            ": a branch on an array's numbers is jnp.where or jax.lax.cond, and an argument that "
            "is True or False for the whole program is named in static_argnames"
        )
    if "lowered and compiled" in said:
        return ": give kit.jax.step the function itself, not what its lower().compile() has made"
    if "Tracer" in said:
        return ": what must be a number or a text of Python's is named in static_argnames"
    return ""


class _StaticArguments:
    """Those of a function's arguments that are no arrays, wherever in a call they stand."""

    def __init__(self, function: Callable[..., Any], names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._function = function
        self._signature = inspect.signature(function)
        known = self._signature.parameters.values()
        self._defaults = {
            p.name: p.default for p in known if p.name in self._names and p.default is not p.empty
        }
        self._places = [
            p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]

    def split(self, args: Any, kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        """The arguments with None in the places of the static ones, and these by name."""
        bound = self._signature.bind(*args, **kwargs)
        for name, value in self._defaults.items():
            bound.arguments.setdefault(name, value)
        static: dict[str, Any] = {}

        def without(name: str, value: Any) -> Any:
            if name not in self._names:
                return value
            try:
                hash(value)
            except TypeError as error:
                raise TypeError(
                    f"the static argument {name} cannot be told from others{here()}: {error}. "
                    "Give a tuple for a list, or let the function close over it"
                ) from None
            static[name] = value
            return None

        return *self._changed(without, bound.args, bound.kwargs), static

    def filled(self, static: dict[str, Any]) -> Callable[..., Any]:
        """The function of the other arguments."""

        def function(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._changed(static.get, args, kwargs)
            return self._function(*args, **kwargs)

        return function

    def _changed(
        self, change: Callable[[str, Any], Any], args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Each argument as `change(name, argument)` gives it; those of `*args` have no name."""
        names = chain(self._places, repeat(""))
        changed = tuple(change(name, x) for name, x in zip(names, args, strict=False))
        return changed, {name: change(name, x) for name, x in kwargs.items()}
