"""What the code of a step names further away: attributes of objects, classes, other functions.

A replay has to ask for them before each step, so the way to each is found once, by the words that
are in the code, and only its last piece is looked up again.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import inspect
import json
import os
import pickle
import re
import sys
from abc import ABCMeta, get_cache_token
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from operator import attrgetter, methodcaller
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any
from weakref import ref

from kit.runtime.recording.sites import is_kits, is_users
from kit.runtime.steps.look import BYTES_A_THING, Held
from kit.runtime.steps.names import (
    BY_HAND,
    COMPARES,
    MAKERS,
    MISSING,
    SPACES,
    attributes,
    called_by_libraries,
    imported_by,
    is_generated,
    is_of_kit,
    is_of_users,
    line_of,
    module_of,
    named,
    reads_any_attribute,
    texts_in,
    unnamed_in,
    words_in,
    wrapped_by,
)
from kit.runtime.steps.outside import answers
from kit.runtime.steps.reach import HOOKS, Part, Unseen

__all__ = ["Link", "Search", "Shape"]

_LIMIT = 5000  # things that are compared before each step
_MOST_MB = _LIMIT * BYTES_A_THING // 10**6
_CALLED = {"forward", "__getattribute__"}  # by no name, whether or not a class has them yet
_SELDOM = vars(object).keys() | MAKERS | {"__del__"}  # they name all that an object has
_READERS = {
    getattr, vars, dir, eval, exec, dataclasses.asdict, dataclasses.astuple, copy.copy,
    copy.deepcopy, pickle.dump, pickle.dumps, json.dump, json.dumps, inspect.getmembers,
}  # fmt: skip
_BY_TEXT = {"hasattr", "attrgetter", "methodcaller"}  # a text is the name of what they ask for
_WORD = re.compile(r"[^\W\d]\w*")
_FIELD = re.compile(r"[.\[{]([^\W\d]\w*)")  # of "{0.weight}"
_SCRIPTED = {"ScriptModule", "ScriptMethod"}  # of torch
_WATCHED = (int, float, complex, str)  # are compared, of a module that has been run
_CODE = (FunctionType, BuiltinFunctionType)
_OF_THE_ENVIRONMENT = {os.getenv, getattr(os, "getenvb", None)}  # there is no second one on Windows


class Link:
    """One attribute or variable: what it was, and how to ask for it again."""

    def __init__(self, name: str, owner: Any, key: Any, held: Held) -> None:
        self._name, self._key = name, key
        self._owner: Callable[[], Any] = lambda: owner
        if type(owner) is not dict:  # the globals of a function
            with suppress(TypeError):  # of a namespace, which nothing can hold weakly
                self._owner = ref(owner)
        self._held = held

    def change(self) -> str:
        """The name of what has changed; "" if it is the same thing, with the same in it."""
        return self._held.change(_look_up(self._owner(), self._key))


class Shape:
    """An object's class, a class's bases or a function's code; and which attributes it lacked.

    IPython's autoreload puts other ones in their place.
    """

    def __init__(self, name: str, owner: Any, words: Collection[str], *, is_dynamic: bool) -> None:
        self._name = name
        self._owner: Callable[[], Any] = lambda: owner
        with suppress(TypeError):  # of a namespace, which nothing can hold weakly
            self._owner = ref(owner)
        self._kind = _kind_of(owner)
        is_counted = is_dynamic or _is_space(owner)  # a class has many, and seldom gets one
        self._count = len(_own(owner)) if is_counted else None
        self._absent = frozenset(words).difference(_own(owner))

    def change(self) -> str:
        """The name of the thing, if it is another, or has got an attribute that the code names."""
        owner = self._owner()
        if _kind_of(owner) is self._kind:
            own = _own(owner)
            is_new = not self._absent.isdisjoint(own)
            if not (is_new if self._count is None else len(own) != self._count):
                return ""
        return self._name


class Search:
    """Goes from a function to objects, by the words of its code, and from there to methods.

    Attributes:
        roots: what the function itself has around it; a loop may make it anew for each call.
        links: all else that has to be compared.
        unseen: a thing that cannot be compared before each step, in words; or "".
    """

    def __init__(
        self,
        function: Any,
        roots: list[Part],
        *,
        without: Collection[Any],
        watched: Collection[int],
        hooks: Collection[Any],
    ) -> None:
        """Search.

        Args:
            roots: what the function has around it.
            without: functions that are called in any case.
            watched: ids of modules and optimizers whose numbers are compared anyway.
            hooks: functions that are called without being named.
        """
        self.links: list[Link | Shape] = []
        self.unseen = ""
        self._known: set[tuple[int, Any]] = set()
        self._without, self._watched = without, set(watched)
        self._words: set[str] = set()
        self._reads_any = False  # attribute, by a name that is not among the words
        self._functions: list[FunctionType] = []
        self._owners: list[Part] = []
        self._seen: dict[int, Any] = {}  # by ids, which stay those of these things
        self._count = 0
        self._answers = answers()
        try:
            self._add("the function", function)
            self.roots = [(name, self._hold(name, thing)) for name, thing in roots]
            self._hold("a hook of all modules", [*hooks])
            self._go_from(function)
        except Unseen as error:
            self.unseen = str(error)

    def _go_from(self, step: Any) -> None:
        before = -1
        while before != (before := self._progress()):
            for one in self._functions:
                self._go_on(one, is_first=one is step)
            for name, owner in self._owners:
                self._go_through(name, owner)
        self._note_shapes(step)

    def _progress(self) -> int:
        found = len(self._words) + len(self._owners) + len(self._functions)
        return found + self._reads_any

    def _note_shapes(self, step: Any) -> None:
        """Of all that was found; a loop may make the step's own function anew for each call."""
        words, is_dynamic = self._words | _CALLED, self._reads_any
        things: list[Part] = [(x.__name__, x) for x in self._functions if x is not step]
        for name, owner in self._owners:
            kind = type(owner)
            if kind in SPACES or is_of_users(kind):
                things.append((name, owner))
            is_class = issubclass(kind, type)
            things += [(x.__name__, x) for x in (owner if is_class else kind).__mro__]
        known = set[int]()
        for name, thing in things:
            is_other = issubclass(type(thing), type) and not is_of_users(thing)
            if not is_other and id(thing) not in known:
                known.add(id(thing))
                self.links.append(Shape(name, thing, words, is_dynamic=is_dynamic))

    def _hold(self, name: str, thing: Any) -> Held:
        """What the thing is compared with; the search goes on from where it leads.

        Raises:
            Unseen: it cannot be compared, or that would take too long.
        """
        held = Held(name, thing)
        self._count += 1 if held.look is None else held.look.count
        why = "" if held.look is None else held.look.unseen
        if self._count > _LIMIT:
            why = f"more than {_LIMIT:,} things or {_MOST_MB} MB of arrays, with {name}"
        if why:
            raise self._unseen(name, why)
        for part in held.stops(thing):
            self._add(*part)
        return held

    def _unseen(self, name: str, what: str) -> Unseen:
        at = line_of(name.removeprefix("global "), self._functions)
        return Unseen(f"the step names {what}{at}, and that cannot be compared before each step")

    def _add(self, name: str, thing: Any) -> None:
        """A function or an object from which the code may go on.

        Raises:
            Unseen: it is of TorchScript.
        """
        kind = type(thing)
        if id(thing) in self._seen:
            return
        if any(
            base.__name__ in _SCRIPTED and module_of(base)[:5] == "torch" for base in kind.__mro__
        ):
            raise self._unseen(name, f"{name} (of TorchScript: its numbers are in C++)")
        if kind in _CODE and thing in _READERS:
            self._reads_any = True
        elif kind in (attrgetter, methodcaller):
            self._words.update(_WORD.findall(repr(thing)))
        elif issubclass(kind, type) and module_of(thing) == "decimal":
            self._ask(name, sys.modules["decimal"].getcontext)
        if kind in _CODE:
            self._ask(name, thing)
        if kind is FunctionType:
            if is_kits(path := thing.__code__.co_filename) or thing in self._without:
                return
            self._seen[id(thing)] = thing
            if is_users(path):
                self._functions.append(thing)
            elif wrapped_by(thing):
                self._link(name, thing, wrapped_by, wrapped_by(thing))
            return
        self._seen[id(thing)] = thing
        for key, hooks in _hooks_of(thing):  # whether these are the same is asked anyway
            self._hold(f"{name}.{key}", hooks)
        if is_of_kit(kind) and (inner := attributes(thing).get("__wrapped__")) is not None:
            self._link(name, thing, "__wrapped__", inner)  # by `kit.hybridize`
        if _has_names(thing, self._watched):
            self._owners.append((name, thing))

    def _ask(self, name: str, function: Any) -> None:
        """A function that answers something else after a setting was changed is asked again."""
        if function in self._answers:
            self._link(f"what {name} answers", function, _call, function())
        elif function in _OF_THE_ENVIRONMENT:
            self._link("os.environ", os, "environ", os.environ)

    def _go_on(self, function: FunctionType, *, is_first: bool) -> None:
        """From a function; what the step's own has around it is compared as it is."""
        code = function.__code__
        self._words |= words_in(code) | unnamed_in(code)
        self._reads_any |= reads_any_attribute(code)
        around = [*named(function)]
        texts = [*texts_in(code), *(x for _, x in around if type(x) is str)]
        for text in texts if self._words & {"format", "format_map"} else ():
            self._words.update(_FIELD.findall(text))
        for text in texts if self._words & _BY_TEXT else ():
            self._words.update(text.split("."))
        for name, module in imported_by(function):
            self._add(name, module)
        for i, (name, thing) in enumerate(around):
            plain = name.removeprefix("global ")
            if not is_first:
                space = function.__globals__
                if plain not in space and thing is not MISSING:
                    space = vars(builtins)
                owner, key = (function, i) if plain == name else (space, plain)
                self._link(f"{name} of {function.__name__}", owner, key, thing)
        for key in self._words & attributes(function).keys():
            self._link(f"{function.__name__}.{key}", function, key, attributes(function)[key])

    def _go_through(self, name: str, owner: Any) -> None:
        """Through what is named of an object, or of a class or module."""
        own, kind = _own(owner), type(owner)
        is_module, is_class = issubclass(kind, ModuleType), issubclass(kind, type)
        is_all = (self._reads_any and not is_module) or _is_box(kind)
        words = self._words
        if is_class:  # an object may be made of it
            words = words | MAKERS | _unnamed_of(owner, words)
            if issubclass(kind, ABCMeta):  # which classes it takes for its own, `isinstance` asks
                self._link(f"{name}.register", get_cache_token, _call, get_cache_token())
        for key in own.keys() if is_all else words & own.keys():
            if not (issubclass(type(own[key]), _WATCHED) and id(owner) in self._watched):
                self._link(f"{name}.{key}", owner, key, own[key])
        for key, part in _parts_of(own):
            self._add(f"{name}.{key}", part)
            if id(owner) in self._watched and "_modules" in attributes(part):
                self._watched.add(id(part))
        if "_modules" in own and id(owner) not in self._watched:  # it was not called itself
            self._link(name, owner, _layers_of, _layers_of(owner))
        elif "_modules" in own and (kept := _on_host(owner)):
            self._link(name, owner, _on_host, kept)
        for base in owner.__bases__ if is_class else ():
            self._add(name, base)
        if is_module and kind is not ModuleType:
            for key in self._words & vars(kind).keys():  # a setting of a package's
                self._link(f"{name}.{key}", owner, key, _look_up(owner, key))
        for base in () if is_module else filter(is_of_users, kind.__mro__):
            own = vars(base)
            for key in own.keys() if is_all else (words | _unnamed_of(base, words)) & own.keys():
                self._go_to_class(f"{name}.{key}", owner, base, key)

    def _go_to_class(self, name: str, owner: Any, kind: type, key: str) -> None:
        """To what an object has of its class, unless it gets an attribute of that name itself."""
        is_slot = type(vars(kind)[key]) is MemberDescriptorType
        owner, thing = (owner, _look_up(owner, key)) if is_slot else (kind, vars(kind)[key])
        self._link(name, owner, key, thing)

    def _link(self, name: str, owner: Any, key: Any, thing: Any) -> None:
        if (id(owner), key) not in self._known:
            self._known.add((id(owner), key))
            self.links.append(Link(name, owner, key, self._hold(name, thing)))


def _has_names(thing: Any, watched: Collection[int]) -> bool:
    """Has it attributes that the code may name? Those of an optimizer that steps are watched."""
    kind = type(thing)
    if issubclass(kind, type):
        return is_of_users(thing)
    if is_of_users(kind) or kind in SPACES or issubclass(kind, ModuleType):
        return True
    own = attributes(thing)
    if hasattr(kind, "__array__"):
        return not own.keys() <= {"_is_param"}  # torch's own name
    is_watched = "param_groups" in own and id(thing) in watched
    return bool(own and not is_watched and not is_of_kit(kind))


def _parts_of(own: Any) -> Iterator[Part]:
    """The layers and tensors of a layer."""
    for table in ("_modules", "_parameters", "_buffers"):
        if type(found := own.get(table)) is dict:
            yield from found.items()


def _layers_of(layer: Any) -> dict[str, Any]:
    return dict(_parts_of(attributes(layer)))


def _on_host(layer: Any) -> dict[str, Any]:
    """The tensors of a layer that are on the host: the step has their numbers as constants."""
    return {
        key: part
        for key, part in _parts_of(attributes(layer))
        if hasattr(type(part), "__array__") and str(part.device) == "cpu"
    }


def _hooks_of(thing: Any) -> Iterator[Part]:
    """The functions that a layer, an optimizer or a tensor has been given to call."""
    own = attributes(thing)
    if hasattr(type(thing), "__array__"):
        own = {key: getattr(thing, key, None) for key in HOOKS}
    for key, hooks in own.items():
        if key[-6:] == "_hooks" and hooks and issubclass(type(hooks), dict):
            yield key, hooks


def _is_box(kind: type) -> bool:
    """Is it a package's own kind of dict or list, or made of one? Its code may read all it has."""
    return issubclass(kind, (Mapping, Sequence)) and any(
        base.__dictoffset__ != 0 and not is_of_users(base) and not is_of_kit(base)
        for base in kind.__mro__
    )


def _unnamed_of(kind: type, words: Set[str]) -> set[str]:
    """What of a class the program need not name: libraries call it, or `with` and `*` do.

    Args:
        words: of the program, with what `unnamed_in` says of its code.
    """
    names = {name for name, thing in vars(kind).items() if type(thing) is FunctionType}
    asked = {name for name in names & COMPARES if BY_HAND + name in words}
    by_hand = {name for name in asked if not is_generated(vars(kind)[name].__code__)}
    special = {name for name in names - _SELDOM if name[:2] == "__" == name[-2:]} | by_hand
    return special | called_by_libraries(kind) | _CALLED


def _kind_of(owner: Any) -> Any:
    if type(owner) is FunctionType:
        return owner.__code__
    return owner.__mro__ if issubclass(type(owner), type) else type(owner)


def _own(owner: Any) -> Any:
    return vars(owner) if _is_space(owner) else attributes(owner)


def _is_space(thing: Any) -> bool:
    return issubclass(type(thing), (type, ModuleType))


def _look_up(owner: Any, key: Any) -> Any:
    kind = type(owner)
    if kind is dict:
        return owner.get(key, MISSING)
    if kind is FunctionType and type(key) is int:
        return next((x for i, (_, x) in enumerate(named(owner)) if i == key), MISSING)
    if callable(key):
        return MISSING if owner is None else key(owner)
    if issubclass(kind, (type, ModuleType)):
        found = vars(owner).get(key, MISSING)
        is_asked = found is MISSING and kind is not ModuleType and issubclass(kind, ModuleType)
        return getattr(owner, key, MISSING) if is_asked else found
    own = attributes(owner)
    slot: Any = None if key in own else getattr(kind, key, None)
    if type(slot) is MemberDescriptorType:
        with suppress(AttributeError):  # it has no value
            return slot.__get__(owner, kind)
    return own.get(key, MISSING)


def _call(function: Any) -> Any:
    return function()
