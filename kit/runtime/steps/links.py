"""What the code of a step names further away: attributes of objects, classes, other functions.

A replay has to ask for them before each step, so the way to each is found once, by the words that
are in the code, and only its last piece is looked up again.
"""

from __future__ import annotations

import dis
import os
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from types import (
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import ref

from kit.runtime.recording.sites import is_kits, is_users
from kit.runtime.steps.names import (
    MAKERS,
    MISSING,
    Held,
    attributes,
    codes_in,
    is_of_kit,
    is_of_users,
    is_plain,
    named,
    unbound,
    words_in,
    wrapped_by,
)

__all__ = ["Link", "links_of"]

_LIMIT = 1000  # objects that are gone through
_ITEMS = 100  # of a list or dict whose objects are
_CALLED = {"forward", "__getattribute__"}  # by no name, as special methods are
_SELDOM = vars(object).keys() | MAKERS | {"__del__"}  # they name all that an object has
_DYNAMIC = {"getattr", "vars", "__dict__", "globals", "eval", "exec"}  # may read any attribute
_CACHED: type = type(lru_cache(len))
_SPACES = (SimpleNamespace, Namespace)  # of Python's own, where a program keeps its settings

_SETS = (set, frozenset)
_LISTS = (list, tuple, deque, *_SETS)

Owner = tuple[str, Any]


class Link:
    """One attribute or variable: what it was, and how to ask for it again."""

    def __init__(self, name: str, owner: Any, key: Any, value: Any) -> None:
        self.name, self._key = name, key
        self._owner: Callable[[], Any] = lambda: owner
        if type(owner) is not dict:  # the globals of a function
            with suppress(TypeError):  # of a namespace, which nothing can hold weakly
                self._owner = ref(owner)
        self._held = Held(value)

    def is_held(self) -> bool:
        """Is it the same thing, with the same in it?"""
        return self._held.is_held(_look_up(self._owner(), self._key))


class Shape:
    """An object's class, a class's bases or a function's code; and which attributes it lacked.

    IPython's autoreload puts other ones in their place.
    """

    def __init__(self, name: str, owner: Any, words: Collection[str], *, is_dynamic: bool) -> None:
        self.name = name
        self._owner: Callable[[], Any] = lambda: owner
        with suppress(TypeError):  # of a namespace, which nothing can hold weakly
            self._owner = ref(owner)
        self._kind = _kind_of(owner)
        is_counted = is_dynamic or _is_space(owner)  # a class has many, and seldom gets one
        self._count = len(_own(owner)) if is_counted else None
        self._absent = frozenset(words).difference(_own(owner))

    def is_held(self) -> bool:
        """Is it the same, and has the thing got no attribute that the code names?"""
        owner = self._owner()
        if _kind_of(owner) is not self._kind:
            return False
        own = _own(owner)
        return self._absent.isdisjoint(own) if self._count is None else len(own) == self._count


def links_of(function: Any, without: Collection[Any]) -> list[Link | Shape]:
    """What the function's code, and all code that it may call by name, names further away.

    Args:
        without: functions that are called in any case.
    """
    return _Search(function, list(without)).links


class _Search:
    """Goes from the function to objects, by the words of its code, and from there to methods."""

    def __init__(self, function: Any, without: list[Any]) -> None:
        self.links: list[Link | Shape] = []
        self._known: set[tuple[int, Any]] = set()
        self._without = unbound(without)
        self._words: set[str] = set()
        self._functions: list[FunctionType] = []
        self._owners: list[Owner] = []
        self._ids: set[int] = set()
        self._boxes: set[int] = set()  # a list may have itself in it
        if isinstance(function, MethodType):
            self._add("self", function.__self__)
            function = function.__func__
        self._add("the function", function)
        before = -1
        while before != (before := len(self._words) + len(self._owners) + len(self._functions)):
            for i, one in enumerate(self._functions):
                self._go_on(one, is_first=i == 0 and one is function)
            for name, owner in self._owners:
                self._go_through(name, owner)
        self._note_shapes(function)

    def _note_shapes(self, step: Any) -> None:
        """Of all that was found; a loop may make the step's own function anew for each call."""
        words, is_dynamic = self._words | _CALLED, self._is_dynamic()
        things: list[Owner] = [(x.__name__, x) for x in self._functions if x is not step]
        for name, owner in self._owners:
            kind = type(owner)
            if kind in _SPACES or is_of_users(kind):
                things.append((name, owner))
            is_class = issubclass(kind, type)
            things += [(x.__name__, x) for x in (owner if is_class else kind).__mro__]
        known = set[int]()
        for name, thing in things:
            is_other = issubclass(type(thing), type) and not is_of_users(thing)
            if not is_other and id(thing) not in known:
                known.add(id(thing))
                self.links.append(Shape(name, thing, words, is_dynamic=is_dynamic))

    def _is_dynamic(self) -> bool:
        return bool(self._words & _DYNAMIC)

    def _add(self, name: str, thing: Any) -> None:
        """A function or an object from which the code may go on."""
        kind = type(thing)
        if id(thing) in self._ids or len(self._ids) > _LIMIT:
            return
        if issubclass(kind, (dict, MappingProxyType, *_LISTS)):
            self._add_items(name, thing)
        if kind is partial:
            self._add(name, thing.func)
            self._add(f"{name}.args", thing.args)
            self._add(f"{name}.keywords", thing.keywords)
            self._link(f"{name}.args", thing, "args", thing.args)
            self._link(f"{name}.keywords", thing, "keywords", thing.keywords)
        elif kind is _CACHED:
            self._add(name, thing.__wrapped__)
        elif kind is MethodType:
            self._add(name, thing.__self__)
            self._add(name, thing.__func__)
        elif kind is FunctionType:
            if is_kits(path := thing.__code__.co_filename) or thing in self._without:
                return
            self._ids.add(id(thing))
            if is_users(path):
                self._functions.append(thing)
            else:
                for inner in wrapped_by(thing):
                    self._add(name, inner)
        elif _has_names(thing):
            self._ids.add(id(thing))
            self._owners.append((name, thing))

    def _add_items(self, name: str, things: Any) -> None:
        if id(things) in self._boxes or len(self._boxes) > _LIMIT:
            return
        self._boxes.add(id(things))
        for key, item in [*islice(_items_of(things), _ITEMS)]:
            if not is_plain(type(item)):
                self._add(f"{name}[{key!r:.40}]" if is_plain(type(key)) else f"{name}[...]", item)
            if not is_plain(type(key)):
                self._add(f"{name}[...]", key)

    def _go_on(self, function: FunctionType, *, is_first: bool) -> None:
        """From a function; what the step's own has around it is compared as it is."""
        self._words |= words_in(function.__code__)
        if "hasattr" in self._words:
            self._words |= _texts_in(function.__code__)
        for name, module in _imported_by(function):
            self._add(name, module)
        for i, (name, thing) in enumerate(named(function)):
            plain = name.removeprefix("global ")
            self._add(plain, thing)
            if not is_first:
                owner, key = (function, i) if plain == name else (function.__globals__, plain)
                self._link(f"{name} of {function.__name__}", owner, key, thing)
        for key in self._words & attributes(function).keys():
            self._link(f"{function.__name__}.{key}", function, key, attributes(function)[key])
            self._add(f"{function.__name__}.{key}", attributes(function)[key])

    def _go_through(self, name: str, owner: Any) -> None:
        """Through what is named of an object, or of a class or module."""
        own = _own(owner)
        is_layer = type(own.get("_modules")) is dict  # its numbers and layers are asked for anyway
        is_dynamic = self._is_dynamic() and type(owner) is not ModuleType
        is_dynamic = is_dynamic or _is_box(type(owner))
        words = self._words | MAKERS if issubclass(type(owner), type) else self._words
        for key in own.keys() if is_dynamic else words & own.keys():
            thing = own[key]
            if not (is_layer and is_plain(type(thing))):
                self._link(f"{name}.{key}", owner, key, thing)
            self._add(f"{name}.{key}", _called(thing))
        for key, layer in own["_modules"].items() if is_layer else ():
            self._add(f"{name}.{key}", layer)
        if owner is os and self._words & {"environ", "getenv"}:
            self._link("os.environ", os.environ, "_data", attributes(os.environ)["_data"])
        for base in owner.__bases__ if issubclass(type(owner), type) else ():
            self._add(name, base)
        for kind in () if type(owner) is ModuleType else filter(is_of_users, type(owner).__mro__):
            for key in (words | _CALLED | _special(kind)) & vars(kind).keys():
                self._go_to_class(f"{name}.{key}", owner, kind, key)

    def _go_to_class(self, name: str, owner: Any, kind: type, key: str) -> None:
        """To what an object has of its class, unless it gets an attribute of that name itself."""
        thing = vars(kind)[key]
        if type(thing) is MemberDescriptorType:
            thing = _look_up(owner, key)
            self._link(name, owner, key, thing)
        else:
            self._link(name, kind, key, thing)
        self._add(name, _called(thing))

    def _link(self, name: str, owner: Any, key: Any, thing: Any) -> None:
        if (id(owner), key) not in self._known:
            self._known.add((id(owner), key))
            self.links.append(Link(name, owner, key, thing))


def _has_names(thing: Any) -> bool:
    kind = type(thing)
    if kind is ModuleType:
        return True
    if issubclass(kind, type):
        return is_of_users(thing)
    is_array = hasattr(kind, "__array__")
    return not is_array and (
        is_of_users(kind) or kind in _SPACES or _is_box(kind) or "_modules" in attributes(thing)
    )


def _is_box(kind: type) -> bool:
    """Is it a package's own kind of dict or list? Its code may read all that it has."""
    is_other = is_plain(kind) or is_of_users(kind) or is_of_kit(kind)
    return not is_other and issubclass(kind, (Mapping, Sequence)) and kind.__dictoffset__ != 0


def _special(kind: type) -> frozenset[str]:
    """The methods of a class that are called without their names, as by `with` or `*`."""
    names = {name for name, thing in vars(kind).items() if type(thing) is FunctionType}
    return frozenset(name for name in names - _SELDOM if name[:2] == "__" == name[-2:])


@lru_cache(maxsize=1024)
def _texts_in(code: CodeType) -> frozenset[str]:
    """The texts among its constants, which may be names of attributes."""
    return frozenset(x for one in codes_in(code) for x in one.co_consts if type(x) is str)


@lru_cache(maxsize=1024)
def _imports_in(code: CodeType) -> frozenset[str]:
    parts = (part for one in codes_in(code) for part in dis.get_instructions(one))
    return frozenset(part.argval for part in parts if part.opname == "IMPORT_NAME")


def _items_of(things: Any) -> Iterator[tuple[Any, Any]]:
    """Those of a list or dict, of which no code of its class is run."""
    kind = type(things)
    if kind is MappingProxyType:
        return iter(things.items())
    if issubclass(kind, dict):
        return iter(dict.items(things))
    base: Any = next(base for base in _LISTS if issubclass(kind, base))
    return enumerate(base.__iter__(things))


def _imported_by(function: FunctionType) -> Iterator[Owner]:
    """The modules that a function imports itself."""
    package = function.__globals__.get("__package__") or ""
    for word in _imports_in(function.__code__):
        for name in (word, f"{package}.{word}"):
            if type(module := sys.modules.get(name)) is ModuleType:
                yield name, module


def _kind_of(owner: Any) -> Any:
    if type(owner) is FunctionType:
        return owner.__code__
    return owner.__mro__ if issubclass(type(owner), type) else type(owner)


def _own(owner: Any) -> Any:
    return vars(owner) if _is_space(owner) else attributes(owner)


def _is_space(thing: Any) -> bool:
    return issubclass(type(thing), (type, ModuleType))


def _called(thing: Any) -> Any:
    """The function of a property or of a method of a class."""
    if type(thing) is property:
        return thing.fget
    return thing.__func__ if type(thing) in (staticmethod, classmethod) else thing


def _look_up(owner: Any, key: Any) -> Any:
    kind = type(owner)
    if kind is dict:
        return owner.get(key, MISSING)
    if kind is FunctionType and type(key) is int:
        return next((x for i, (_, x) in enumerate(named(owner)) if i == key), MISSING)
    if kind is ModuleType or issubclass(kind, type):
        return vars(owner).get(key, MISSING)
    own = attributes(owner)
    slot: Any = None if key in own else getattr(kind, key, None)
    if type(slot) is MemberDescriptorType:
        with suppress(AttributeError):  # it has no value
            return slot.__get__(owner, kind)
    return own.get(key, MISSING)
