"""Whether a step changes Python state that it reaches for itself: a replay would not.

A step whose state is the same at its end as at its beginning does the same again, if its batch and
what the program changes in between are the same. One that counts, `self.n += 1`, may do something
else each tenth time, so it is not replayed.
"""

from __future__ import annotations

import dis
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from gc import get_referents
from itertools import chain, count, islice, zip_longest
from numbers import Number
from operator import length_hint
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np

from kit.runtime.recording.sites import format_site, is_users
from kit.runtime.steps.functions import attributes, is_of_kit, named

__all__ = ["OwnState"]

_ITEMS = 1000  # of a list or dict that are compared; of a larger one its length, too
_THINGS = 100_000  # that are compared, the nearest first
_SMALL = 4096  # bytes of a host array that are compared
_VALUES = (Number, str, bytes, type(None))
_LISTS = (list, tuple, deque, set, frozenset)

Part = tuple[str, Any]  # a name, which begins with "." or "[", or is a variable's; a thing


class OwnState:
    """The Python state that a step reaches for, as it is when the step begins.

    Variables around it, globals and defaults, those of the functions and classes of the user's that
    are reached by them, attributes, what is in lists and dicts, places of iterators, and small
    arrays of the host; and the random numbers that Python, numpy and the front ends draw there.

    Attributes:
        draws_beside: a loader's thread may draw at any time.
    """

    def __init__(self, step: Any, *, without: Collection[Any], frontends: Sequence[Any]) -> None:
        """Remember the state.

        Args:
            without: functions that a replay calls, too, so that what they change does not count.
            frontends: they draw random numbers of the host.
        """
        self._step, self._without, self._frontends = step, without, frontends
        self._codes: dict[CodeType, None] = {}
        self.draws_beside = False
        self._change = ""
        self._look()

    def fetch(self, load: Callable[[], Any]) -> Any:
        """Ask a loader for a batch: what that changes and draws does not count."""
        self._change = self.change()
        try:
            return load()
        finally:
            self._look()

    def change(self) -> str:
        """What the step has changed since it began, in words; "" if nothing."""
        if self._change:
            return self._change
        if not self.draws_beside and self._draws() != self._drawn:
            return "the step draws random numbers on the host, and a replay would not"
        for old, new in zip_longest(self._seen, self._walk(), fillvalue=("", None)):
            if old[0] != new[0] or not _is_same(old[1], new[1]):
                name = old[0] or new[0]
                return f"the step changes {name}{self._line(name)}, and a replay would not"
        return ""

    def _look(self) -> None:
        self._seen = [] if self._change else list(self._walk())
        self._drawn = self._draws()

    def _draws(self) -> Any:
        """How far the random numbers of the host are."""
        of_numpy = np.random.get_state(legacy=False)["state"].values()
        plain = [x.tobytes() if isinstance(x, np.ndarray) else x for x in of_numpy]
        return random.getstate(), plain, [one.host_draws() for one in self._frontends]

    def _walk(self) -> Iterator[tuple[str, Any]]:
        """All values that are reached, with their names; the nearest first."""
        things: list[Part] = [("", self._step)]
        known: set[int] = set(map(id, self._without))
        for name, thing in things:  # grows while it is gone through
            if isinstance(thing, _VALUES):
                yield name, thing
            elif id(thing) not in known:
                known.add(id(thing))
                if (content := _content(thing)) is not None:
                    yield name, content
                if len(things) < _THINGS:
                    things += [(_joined(name, part), inner) for part, inner in self._parts(thing)]

    def _parts(self, thing: Any) -> Iterator[Part]:
        kind = type(thing)
        if isinstance(thing, FunctionType):
            if is_users(thing.__code__.co_filename):
                self._codes[thing.__code__] = None
                yield from _of_function(thing)
        elif isinstance(thing, MethodType):
            yield from (("", thing.__func__), ("self", thing.__self__))
        elif isinstance(thing, partial):
            yield from (("", thing.func), ("", thing.args), ("", thing.keywords))
        elif isinstance(thing, _LISTS):
            yield from ((f"[{i}]", x) for i, x in enumerate(islice(list(thing), _ITEMS)))
        elif isinstance(thing, dict):
            yield from ((f"[{key!r:.40}]", x) for key, x in islice(list(thing.items()), _ITEMS))
        elif isinstance(thing, GeneratorType):
            if is_users(thing.gi_code.co_filename):
                self._codes[thing.gi_code] = None
                yield from () if thing.gi_frame is None else thing.gi_frame.f_locals.items()
        elif isinstance(thing, type):
            if _is_users_class(thing):
                yield from ((f".{name}", x) for name, x in vars(thing).items())
        elif hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
            yield from (("", inner) for inner in get_referents(thing))
        elif not (isinstance(thing, ModuleType) or hasattr(kind, "__array__") or is_of_kit(kind)):
            yield from ((f".{name}", x) for name, x in _all_attributes(thing))
            yield "", kind

    def _line(self, name: str) -> str:
        """Where the step changes what has this name, or where it names it."""
        last = name.partition("[")[0].rpartition(".")[2]
        found = ""
        for code in chain.from_iterable(map(_with_inner, self._codes)):
            for part in dis.get_instructions(code):
                if part.argval == last and part.positions and part.positions.lineno:
                    at = f" at {format_site((code.co_filename, part.positions.lineno))}"
                    if part.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
                        return at
                    found = found or at
        return found


def _joined(name: str, part: str) -> str:
    return name + part if part[:1] in ("", ".", "[") else part


def _content(thing: Any) -> Any:
    """What a thing is by itself, without its parts; None if it is but these."""
    kind = type(thing)
    if isinstance(thing, (*_LISTS, dict)):
        return len(thing)
    if isinstance(thing, count):
        return repr(thing)
    if isinstance(thing, GeneratorType) and is_users(thing.gi_code.co_filename):
        return -1 if thing.gi_frame is None else thing.gi_frame.f_lasti
    if isinstance(thing, random.Random):
        return hash(thing.getstate())
    if isinstance(thing, np.random.Generator):
        return str(thing.bit_generator.state)
    if hasattr(kind, "__length_hint__") and kind.__module__ == "builtins":
        return length_hint(thing, -1)
    if hasattr(kind, "__array__") and str(getattr(thing, "device", "")) == "cpu":
        return _bytes_of(thing)
    return None


def _bytes_of(array: Any) -> bytes | None:
    """The numbers of a small array of the host."""
    if array.nbytes > _SMALL:
        return None
    try:
        plain = array.detach() if hasattr(array, "detach") else array
        return np.asarray(plain).tobytes()
    except (TypeError, RuntimeError):  # of a kind that numpy lacks
        return None


def _of_function(function: FunctionType) -> Iterator[Part]:
    names = function.__code__.co_names
    for name, thing in named(function):
        yield name.removeprefix("global "), thing
        if isinstance(thing, ModuleType) and is_users(getattr(thing, "__file__", None) or ""):
            inner = vars(thing)
            yield from ((f"{thing.__name__}.{x}", inner[x]) for x in names if x in inner)
    yield from ((f".{name}", x) for name, x in vars(function).items())


def _all_attributes(thing: Any) -> Iterator[Part]:
    """Those in slots, too."""
    yield from list(attributes(thing).items())
    for base in type(thing).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)


def _is_users_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return not is_of_kit(kind) and is_users(getattr(module, "__file__", None) or "<cell>")


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def _is_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and (old == new or old != old)
