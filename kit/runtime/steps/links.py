"""What the code of a step names further away: attributes of objects, classes, other functions.

A replay has to ask for them before each step, so the way to each is found once, by the words that
are in the code, and only its last piece is looked up again.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import ref

from kit.runtime.recording.sites import is_kits, is_users
from kit.runtime.steps.names import (
    MISSING,
    Held,
    attributes,
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
_CALLED = {"__call__", "forward", "__getattr__", "__getitem__", "__iter__", "__next__"}
_DYNAMIC = {"getattr", "vars", "__dict__", "globals", "eval", "exec"}  # may read any attribute
_CACHED: type = type(lru_cache(len))
_SPACES = (SimpleNamespace, Namespace)  # of Python's own, where a program keeps its settings

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


def links_of(function: Any, without: Collection[Any]) -> list[Link]:
    """What the function's code, and all code that it may call by name, names further away.

    Args:
        without: functions that are called in any case.
    """
    return _Search(function, list(without)).links


class _Search:
    """Goes from the function to objects, by the words of its code, and from there to methods."""

    def __init__(self, function: Any, without: list[Any]) -> None:
        self.links: list[Link] = []
        self._known: set[tuple[int, Any]] = set()
        self._without = unbound(without)
        self._words: set[str] = set()
        self._functions: list[FunctionType] = []
        self._owners: list[Owner] = []
        self._ids: set[int] = set()
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

    def _add(self, name: str, thing: Any) -> None:
        """A function or an object from which the code may go on."""
        kind = type(thing)
        if id(thing) in self._ids or len(self._ids) > _LIMIT:
            return
        if kind in (list, tuple, dict, deque):
            items = thing.items() if kind is dict else enumerate(thing)
            for key, item in [*items][:_ITEMS]:
                if not is_plain(type(item)):
                    self._add(f"{name}[{key!r:.40}]", item)
        elif kind is partial:
            self._add(name, thing.func)
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

    def _go_on(self, function: FunctionType, *, is_first: bool) -> None:
        """From a function; what the step's own has around it is compared as it is."""
        self._words |= words_in(function.__code__)
        for i, (name, thing) in enumerate(named(function)):
            plain = name.removeprefix("global ")
            self._add(plain, thing)
            if not is_first:
                owner, key = (function, i) if plain == name else (function.__globals__, plain)
                self._link(f"{name} of {function.__name__}", owner, key, thing)

    def _go_through(self, name: str, owner: Any) -> None:
        """Through what is named of an object, or of a class or module."""
        own = vars(owner) if _is_space(owner) else attributes(owner)
        is_layer = type(own.get("_modules")) is dict  # its numbers and layers are asked for anyway
        is_dynamic = bool(self._words & _DYNAMIC) and type(owner) is not ModuleType
        for key in own.keys() if is_dynamic else self._words & own.keys():
            thing = own[key]
            if not (is_layer and is_plain(type(thing))):
                self._link(f"{name}.{key}", owner, key, thing)
            self._add(f"{name}.{key}", _called(thing))
        for key, layer in own["_modules"].items() if is_layer else ():
            self._add(f"{name}.{key}", layer)
        if owner is os and self._words & {"environ", "getenv"}:
            self._link("os.environ", os.environ, "_data", attributes(os.environ)["_data"])
        for kind in () if _is_space(owner) else filter(is_of_users, type(owner).__mro__):
            for key in (self._words | _CALLED) & vars(kind).keys():
                self._go_to_class(f"{name}.{key}", owner, kind, key)

    def _go_to_class(self, name: str, owner: Any, kind: type, key: str) -> None:
        """To what an object has of its class, unless it gets an attribute of that name itself."""
        thing = vars(kind)[key]
        if type(thing) is MemberDescriptorType:
            thing = _look_up(owner, key)
        else:
            self._link(name, kind, key, thing)
        self._link(name, owner, key, _look_up(owner, key))
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
        is_of_users(kind) or kind in _SPACES or "_modules" in attributes(thing)
    )


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
    if kind is FunctionType:
        return next((x for i, (_, x) in enumerate(named(owner)) if i == key), MISSING)
    if kind is ModuleType or issubclass(kind, type):
        return vars(owner).get(key, MISSING)
    own = attributes(owner)
    slot: Any = None if key in own else getattr(kind, key, None)
    if type(slot) is MemberDescriptorType:
        with suppress(AttributeError):  # it has no value
            return slot.__get__(owner, kind)
    return own.get(key, MISSING)
