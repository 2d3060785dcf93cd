"""All that can be reached from a Python thing, at one moment: two looks tell what has changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from itertools import zip_longest
from operator import attrgetter, is_, methodcaller
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ref

import numpy as np

from kit.errors import but_of_handlers
from kit.runtime.recording.sites import is_kits, is_standard, is_users
from kit.runtime.steps.names import (
    SPACES,
    attributes,
    called_by_libraries,
    is_of_kit,
    is_of_users,
    last_word,
    module_of,
    of_kind,
    unbound,
)
from kit.runtime.steps.reach import (
    LOCKS,
    PLAIN,
    STATE,
    Items,
    Part,
    Unseen,
    has_hidden_fields,
    is_opaque,
    parts_of,
)

__all__ = ["BYTES_A_THING", "Batch", "Held", "Look"]

_THINGS = 30_000  # that are compared
_PLAIN_A_THING = 50  # numbers and texts of a list that are compared as quickly as a thing
_PARTS_A_THING = 5  # of a list or dict that has more than these in it
BYTES_A_THING = 2000  # of an array of the host, likewise
# How a near look takes a thing of a class: what is in it; which thing it is, and code goes on from
# there; that, and its numbers and texts; that, and what is in it; which it is, and what is in it.
_INTO, _TO, _SETTINGS, _BOTH, _THING = range(5)
_READERS = (BuiltinFunctionType, attrgetter, methodcaller)  # who calls these may reach for more
_VALUES = (int, float, complex, str, np.generic)
_BOXES = (list, tuple, dict)
_STOPS = (FunctionType, type, ModuleType)
# Packages of Python's whose objects change by the work of other threads.
_BUSY = {"threading", "logging", "concurrent", "multiprocessing", "asyncio", "socket", "subprocess"}


class Look:
    """All that can be reached from one thing, as it is now.

    A near look goes through what only code of Python and C reads: containers, arrays of the host,
    and what has no attributes. It stops at functions, modules and the program's objects, of which
    code reads what it names; those are compared by identity, and of a package's object the numbers
    and texts among its attributes, too. It keeps alive only numbers, texts, and what nothing can
    hold weakly.

    Attributes:
        unseen: a thing whose state cannot be compared, in words; "" if there is none.
        functions: those of the user's that were reached, the nearest first.
        by_libraries: names of methods of the user's that libraries call; but of a near look.
        paths: the last words of the names of paths, as "log" of `self.log`; but of a near look.
        held: functions of Python's and of packages, and those of methods, with the names of what
            holds them, as "read" of `read = path.read_text`; but of a near look.
        stops: where a near look has stopped, with the names there.
        arrays: those of the device, but of a near look. It keeps them alive: take them.
        boxes: lists, tuples and dicts, likewise.
        count: things that were compared; 50 numbers in a list are one, as are 2 kB of an array.
    """

    def __init__(
        self,
        name: str,
        thing: Any,
        *,
        without: Collection[Any] = (),
        also: Collection[Any] = (),
        is_near: bool = False,
    ) -> None:
        """Look.

        Args:
            without: functions that do not count, nor what is reached only through them.
            also: functions that count, too.
        """
        self.unseen = ""
        self.functions: list[FunctionType] = []
        self.by_libraries: set[str] = set()
        self.paths: set[str] = set()
        self.held: list[Part] = []
        self.stops: list[Part] = []
        self.arrays: list[Part] = []
        self.boxes: list[Part] = []
        self.count = 0
        self._without = unbound(without) if without else ()
        self._is_near = is_near
        self._seen: list[Part] = []
        try:
            self._go_through([(name, thing), *(("a hook", hook) for hook in also)])
        except but_of_handlers(Exception) as error:  # code of the program's, as of a metaclass
            self.unseen = f"things of which one raises {type(error).__name__}"

    def change(self, after: Look) -> str:
        """The name of the first thing that another look found changed; "" if none is."""
        for (name, old), (new_name, new) in zip_longest(
            self._seen, after._seen, fillvalue=("", None)
        ):
            if old is not new and not _is_same(old, new):
                return _place(name or new_name, old, new).partition(STATE)[0]
            if name != new_name:
                return (name or new_name).partition(STATE)[0]
        return ""

    def let_go(self) -> None:
        """Of the arrays, and of what has one: who looks would keep them otherwise."""
        for found in (self.held, self.arrays, self.boxes):
            found.clear()

    def _go_through(self, things: list[Part]) -> None:
        known: dict[int, int] = {}
        seen, is_near = self._seen, self._is_near
        for name, thing in things:  # grows while it is gone through; the nearest first
            kind = type(thing)
            if kind in PLAIN:
                seen.append((name, thing))
                continue
            if not is_near:
                self._note_name(name, thing)
            if (number := known.get(id(thing))) is not None:
                seen.append((name, (number,)))
                continue
            known[id(thing)] = len(known)
            self.count += 1
            if self.count > _THINGS:
                break
            way = _way_of(kind) if is_near else _INTO
            if way != _INTO and self._stops_at(name, thing, way):
                continue
            if kind in (FunctionType, MethodType) and thing in self._without:
                continue
            if not is_near:
                self._note_code(thing)
            if (inside := self._inside(name, thing)) is None:
                continue
            content, parts = inside
            seen.append((name, content))
            self._note_content(name, thing, content)
            if way == _BOTH:  # its attributes are read by their names
                parts = [part for part in parts if part[0][:1] != "." or part[0] == STATE]
            if is_near:
                self.count += len(parts) // _PARTS_A_THING
            things += [(_joined(name, part), inner) for part, inner in parts]
        if self.count > _THINGS:
            self.unseen = self.unseen or f"more than {_THINGS:,} things, as many as {name} has"

    def _stops_at(self, name: str, thing: Any, way: int) -> bool:
        """Note which thing it is. A near look goes into few of those."""
        if way in (_BOTH, _THING) and STATE in name:  # that is made anew
            return False
        self._seen.append((name, _hold(thing)))
        if way != _THING:
            self.stops.append((name, thing))
        if way == _SETTINGS:
            settings = repr(thing) if type(thing) in LOCKS else _settings(thing)
            self._seen.append((name, settings))
        return way in (_TO, _SETTINGS)

    def _inside(self, name: str, thing: Any) -> tuple[Any, list[Part]] | None:
        """What `parts_of` gives; None, and it is noted as unseen, where that is not to be known."""
        kind = type(thing)
        try:
            if self._is_near and kind is GeneratorType and not is_kits(thing.gi_code.co_filename):
                raise Unseen
            return parts_of(thing)
        except but_of_handlers(Exception) as error:  # code of the program's, as of a __reduce__
            raises = "" if type(error) is Unseen else f" raises {type(error).__name__}"
            what = f"{name.partition(STATE)[0]} ({module_of(kind)}.{kind.__qualname__}{raises})"
            self.unseen = self.unseen or what
            return None

    def _note_code(self, thing: Any) -> None:
        """Of the user's: a function, and what libraries call of a class."""
        if type(thing) is FunctionType and is_users(thing.__code__.co_filename):
            self.functions.append(thing)
        if issubclass(type(thing), type) and is_of_users(thing):
            self.by_libraries |= called_by_libraries(thing)

    def _note_content(self, name: str, thing: Any, content: Any) -> None:
        """Arrays and containers, or what it costs to compare this."""
        kind = type(thing)
        if is_of_kit(kind) and hasattr(kind, "__array__"):
            self.arrays += [(name, thing)] * (not self._is_near)
        elif not self._is_near and issubclass(kind, _BOXES) and type(content) is not Items:
            self.boxes.append((name, thing))
        elif type(content) is Items:
            self.count += len(content) // _PLAIN_A_THING
        elif self._is_near and hasattr(kind, "__array__"):
            self.count += thing.nbytes // BYTES_A_THING

    def _note_name(self, name: str, thing: Any) -> None:
        """Of a path, and of a function: they may have several."""
        kind = type(thing)
        if issubclass(kind, PurePath):
            self.paths.add(last_word(name))
        elif kind is MethodType:
            self.held.append((name, thing.__func__))
        elif kind is BuiltinFunctionType or (
            kind is FunctionType and not is_users(thing.__code__.co_filename)
        ):
            self.held.append((name, thing))


class Batch:
    """What a loader has brought beside what it copies to the device: constants of the step.

    Args:
        batch: what it gives.
        copied: the arrays that it has copied for that, which are others each time.
        cells_of: gives the arrays behind a tensor of the device.
    """

    def __init__(
        self, batch: Any, copied: Collection[Any], cells_of: Callable[[Any], list[Any]]
    ) -> None:
        self._look = Look("batch", batch)
        own = set(map(id, copied))
        self._held = [
            (name, ref(cell))
            for name, thing in self._look.arrays
            for cell in cells_of(thing)
            if id(cell) not in own
        ]
        self._look.let_go()

    def change(self, after: Batch) -> str:
        """What the next one brings that this one did not, in words; "" if it brings the same."""
        if name := self._look.change(after._look):
            return f"a loader brings another {name} than the last time, beside its tensors"
        if after._look.unseen:
            return f"a loader brings {after._look.unseen}, and that cannot be compared"
        for (name, old), (_, new) in zip_longest(self._held, after._held, fillvalue=("it", None)):
            if old is None or new is None or old() is None or old() is not new():
                return f"a loader brings a tensor that was on the device ({name}), another one"
        return ""


class Held:
    """A thing as it was: what a later one in its place is compared with, before each step.

    Attributes:
        look: a near look at it; None of what is compared by value or by identity alone.
    """

    __slots__ = ("_name", "_one", "look")

    def __init__(self, name: str, thing: Any) -> None:
        self._name = name
        kind = type(thing)
        is_single = kind in PLAIN or _way_of(kind) == _TO or _is_of_a_module(thing)
        self._one = _hold(thing) if is_single else None
        self.look = None if is_single else Look(name, thing, is_near=True)

    def stops(self, thing: Any) -> list[Part]:
        """Where code of the program goes on from the thing that it was made of; once."""
        if self.look is None:
            return [] if type(thing) in PLAIN else [(self._name, thing)]
        found, self.look.stops = self.look.stops, []
        return found

    def change(self, thing: Any) -> str:
        """What has changed, by its name: the thing is another one, or not as it was; or ""."""
        if self.look is None:
            one, held = self._one, _hold(thing)
            return "" if one is held or _is_same(one, held) else self._name
        now = Look(self._name, thing, is_near=True)
        return self.look.change(now) or (self._name if now.unseen else "")


class _Same:
    """What nothing can hold weakly."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def _is_plain(kind: type) -> bool:
    """Is such a thing, a number or a text, compared by value alone?"""
    return kind in PLAIN or issubclass(kind, _VALUES)


def _hold(thing: Any) -> Any:
    """A weak reference to it if that can be; a value by itself."""
    if type(thing) in PLAIN:
        return thing
    try:
        return ref(thing)  # the same one, as long as the thing lives
    except TypeError:
        return _Same(thing)


@of_kind
def _way_of(kind: type) -> int:
    if issubclass(kind, _STOPS) or kind in (object, *SPACES) or is_of_kit(kind):
        return _TO
    if kind in _READERS:
        return _BOTH
    if is_of_users(kind):
        return _BOTH if has_hidden_fields(kind) else _TO
    if kind is GeneratorType:
        return _THING
    if is_opaque(kind):
        return _SETTINGS
    if hasattr(kind, "__array__"):
        return _INTO if issubclass(kind, np.ndarray | np.generic) else _BOTH
    if has_hidden_fields(kind) or kind is MethodType:
        return _INTO
    name = module_of(kind)
    path = getattr(sys.modules.get(name), "__file__", None)
    if name.partition(".")[0] not in _BUSY and (path is None or is_standard(path)):
        return _THING
    return _TO if hasattr(kind, "__next__") else _SETTINGS  # of an iterator they are its place


def _is_of_a_module(thing: Any) -> bool:
    """Is it a function of C that has nothing to go on with?"""
    is_function = type(thing) is BuiltinFunctionType
    return is_function and isinstance(thing.__self__, ModuleType | type | None)


def _settings(thing: Any) -> Items:
    """The numbers and texts among the attributes of a package's object."""
    own = attributes(thing)
    keys = [key for key, value in own.items() if _is_plain(type(value))]
    found = Items(keys, keys, ".{}")
    found += map(own.__getitem__, keys)
    return found


def _joined(name: str, part: str) -> str:
    return name + part if part[:1] in ("", ".", "[") else part


def _is_same(old: Any, new: Any) -> bool:
    """Are these equal values, or one thing?"""
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is Items:
        return len(old) == len(new) and (all(map(is_, old, new)) or all(map(_is_equal, old, new)))
    if kind is _Same:
        return old.thing is new.thing
    return kind is not ref and _is_equal(old, new)  # one thing has one reference


def _is_equal(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new or (old != old and new != new))


def _place(name: str, old: Any, new: Any) -> str:
    """Where in a list of numbers and texts, or in a dict of these, two looks differ first."""
    if type(old) is not Items or type(new) is not Items or len(old) != len(new):
        return name
    i = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if not _is_equal(a, b))
    return name + old.form.format(i if old.keys is None else old.keys[i % len(old.keys)])
