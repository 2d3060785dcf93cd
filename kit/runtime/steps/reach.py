"""What a Python thing is by itself, and what can be reached through it: as two looks compare them.

A thing of a class in Python is its attributes; one of C's is what it tells pickle. What tells
nothing, such as an iterator that cycles, is `Unseen`: nobody knows whether a step changes it.
"""

from __future__ import annotations

import copyreg
import csv
import io
import itertools
import logging
import os
import re
import struct
import sys
import threading
import types
import weakref
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from gc import get_referents
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np

from kit.errors import but_of_handlers, suppressed
from kit.runtime.recording.sites import is_kits, is_users
from kit.runtime.steps.names import (
    attributes,
    imported_by_text,
    is_of_kit,
    is_of_users,
    module_of,
    named,
    of_kind,
    reads_any_global,
    words_in,
    wrapped_by,
)

__all__ = [
    "HOOKS", "LOCKS", "PLAIN", "STATE", "Items", "Part", "Unseen", "has_hidden_fields", "is_opaque",
    "parts_of",
]  # fmt: skip

Part = tuple[str, Any]  # a name, which begins with "." or "[", or is a variable's; a thing
Contents = tuple[Any, list[Part]]  # what a thing is by itself; what can be reached through it
Opener = Callable[[Any], Contents]

STATE = ".(state)"  # the name of what a thing of C tells pickle
PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), type(...), range})
_LARGE = 1 << 24  # bytes of a host array, of which more are not compared
_POINTER = struct.calcsize("P")
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of a tensor
_VALUES = (int, float, complex, str, bytes)  # a class of these may have attributes, too
_LISTS: tuple[Any, ...] = (list, tuple, deque, set, frozenset)
LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Things of C in these packages are settings, locks and programs, unless they are iterators.
_OF_PROGRAMS = {"torch", "jax", "jaxlib", "numpy", "_thread", "_multiprocessing", "_abc", "typing"}
_OF_JAX = {"jax", "jaxlib"}


class Unseen(Exception):
    """The state of a thing cannot be compared."""


class Items(list[Any]):
    """The numbers and texts of a list; of a dict its keys, and then its values.

    Attributes:
        keys: those of the dict; None of a list.
        form: how a key is written behind a name.
    """

    __slots__ = ("form", "keys")

    def __init__(
        self, items: Iterable[Any], keys: list[Any] | None = None, form: str = "[{!r:.40}]"
    ) -> None:
        super().__init__(items)
        self.keys = keys
        self.form = form


def parts_of(thing: Any) -> Contents:
    """What a thing is by itself, and what can be reached through it, with the names there.

    Raises:
        Unseen: it may have a state that cannot be compared.
    """
    return _look_of(type(thing))(thing)


def is_opaque(kind: type) -> bool:
    """Does a thing of this class tell nothing but its attributes, of all that it may have?"""
    look = _look_of(kind)
    return look is _of_nothing or (look is _of_object and has_hidden_fields(kind))


@of_kind
def _look_of(kind: type) -> Opener:
    for kinds, look in _LOOKS:
        if issubclass(kind, kinds):
            return look
    if hasattr(kind, "__array__") and not hasattr(kind, "__next__"):
        return _of_array
    if is_of_kit(kind):
        return _of_kit
    if not has_hidden_fields(kind):
        return _of_object
    if hasattr(kind, "__set__") and not hasattr(kind, "__next__"):
        return _of_nothing  # a field of a class of C
    tells = None if module_of(kind) == "itertools" else _tells_pickle(kind)  # from 3.12 on it warns
    if tells is not None:
        return lambda thing: _of_c_object(thing, tells)
    is_function = _has(kind, "__call__") and _has(kind, "__name__")  # sqlite's connection has none
    is_program = is_function or module_of(kind).partition(".")[0] in _OF_PROGRAMS
    return _of_object if is_program and not hasattr(kind, "__next__") else _of_unseen


def _has(kind: type, name: str) -> bool:
    """Have its things this by their class? A class itself always has a name."""
    return any(name in vars(base) for base in kind.__mro__)


def has_hidden_fields(kind: type) -> bool:
    """Has it memory beside attributes and slots? pickle asks this in the same way."""
    pointers = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0) + len(_slots(kind))
    return kind.__basicsize__ > object.__basicsize__ + pointers * _POINTER


@of_kind
def _slots(kind: type) -> list[tuple[str, Any]]:
    return [
        (name, member)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if type(member) is types.MemberDescriptorType
    ]


def _tells_pickle(kind: Any) -> Callable[[Any], Any] | None:
    if kind.__reduce_ex__ is not object.__reduce_ex__:
        return lambda thing: kind.__reduce_ex__(thing, 4)
    if kind.__reduce__ is not object.__reduce__:
        return kind.__reduce__  # type: ignore[no-any-return]
    return copyreg.dispatch_table.get(kind)


# -- functions and classes -------------------------------------------------------------------------


def _of_function(function: FunctionType) -> Contents:
    if is_kits(path := function.__code__.co_filename):
        return function.__code__, []
    if not is_users(path):
        return function.__code__, [("", inner) for inner in wrapped_by(function)]
    return function.__code__, [
        *((name.removeprefix("global "), thing) for name, thing in named(function)),
        *((f".{name}", thing) for name, thing in vars(function).items()),
        *_of_modules(function),
    ]


def _of_modules(function: FunctionType) -> Iterator[Part]:
    """What a function names of the program's modules, imported by itself or around it."""
    space, names = function.__globals__, set(words_in(function.__code__))
    package = space.get("__package__") or ""
    asked = names | imported_by_text(function.__code__)
    imported = [sys.modules.get(x) for name in asked for x in (name, f"{package}.{name}")]
    modules = [space.get(name) for name in names] + imported
    for module in modules:  # grows while it is gone through
        if type(module) is ModuleType and is_users(getattr(module, "__file__", None) or ""):
            for name in names & vars(module).keys():
                yield f"{module.__name__}.{name}", (thing := vars(module)[name])
                if type(thing) is ModuleType and not any(thing is one for one in modules):
                    modules.append(thing)
    if reads_any_global(function.__code__):
        yield from [(name, thing) for name, thing in space.items() if name[:2] != "__"]
    if names & {"environ", "getenv"}:
        yield "os.environ", os.environ


def _of_c_function(function: Any) -> Contents:
    """Of a method of an object, that object, too: `draw = generator.random`."""
    owner = getattr(function, "__self__", None)
    return function.__name__, [] if isinstance(owner, ModuleType) else [("", owner)]


def _of_kit(thing: Any) -> Contents:
    """Of what `kit.hybridize` has made, the program's function; else the kit keeps no choice."""
    inner = attributes(thing).get("__wrapped__")
    return None, [] if inner is None else [("", inner)]


def _of_cached(function: Any) -> Contents:
    """A call that finds its result in the cache changes nothing."""
    info = function.cache_info()
    return (info.misses, info.currsize), [("", function.__wrapped__)]


def _of_class(kind: type) -> Contents:
    name = f"{module_of(kind)}.{kind.__qualname__}"
    if not is_of_users(kind):
        return name, []
    around = [("", base) for base in (*kind.__bases__, type(kind))]
    return name, [*((f".{name}", thing) for name, thing in vars(kind).items()), *around]


# -- containers, iterators, files ------------------------------------------------------------------


def _of_list(things: Any) -> Contents:
    """Runs no code of its class, which may do anything where it is gone through."""
    kind, more = type(things), list[Part]()
    if kind not in _LISTS:
        kind, more = next(base for base in _LISTS if issubclass(kind, base)), _more(things)
    items = Items(kind.__iter__(things))
    if PLAIN.issuperset(map(type, items)):
        return items, more
    return len(items), [*((f"[{i}]", x) for i, x in enumerate(items)), *more]


def _of_dict(things: Any) -> Contents:
    own = OrderedDict if isinstance(things, OrderedDict) else dict  # each in an order of its own
    keys, more = list(own.keys(things)), [] if type(things) is dict else _more(things)
    items = Items(keys, keys)
    items += own.values(things)
    if isinstance(things, defaultdict):
        more.append(("", things.default_factory))
    if PLAIN.issuperset(map(type, items)):
        return items, more
    odd = [key for key in keys if type(key) not in PLAIN]
    names = [f"[{key!r:.40}]" if type(key) in PLAIN else "[...]" for key in keys]
    found = zip(names, items[len(keys) :], strict=True)
    return len(keys), [*found, *more, *(("[...]", key) for key in odd)]


def _of_generator(generator: GeneratorType[Any, Any, Any]) -> Contents:
    """Its variables, and what lies on its stack: the iterator of a `for` is no variable.

    Not by `f_locals`, which would keep what the variables hold.
    """
    frame = generator.gi_frame
    if frame is None or is_kits(generator.gi_code.co_filename):
        return None, []
    return frame.f_lasti, [("", x) for x in get_referents(generator) if x is not frame]


def _of_text(thing: Any) -> Contents:
    return repr(thing), []


def _of_thread(thing: Any) -> Contents:
    """Of what has other attributes in each thread."""
    return None, [(f".{name}", x) for name, x in thing.__dict__.items()]


def _of_error(error: BaseException) -> Contents:
    return None, [("", error.args), *_more(error)]


def _of_file(file: Any) -> Contents:
    """A step reads nothing from a file that is only written to."""
    if file.closed or not file.readable():
        return None, []
    try:
        place = file.tell()
    except but_of_handlers(OSError) as error:  # it is gone through line by line
        raise Unseen from error
    if isinstance(file, io.BytesIO | io.StringIO):
        return place, [("", file.getvalue())]
    with suppressed(OSError):  # it is no file of the disk
        found = os.fstat(file.fileno())
        return (place, found.st_ino, found.st_size, found.st_mtime_ns), []
    return place, [("", getattr(file, "buffer", None))]


def _through(inner: Callable[[Any], Iterable[Any]]) -> Opener:
    """Of what adds no state to the things that it goes through."""
    return lambda thing: (None, [("", x) for x in inner(thing)])


_of_nothing = _through(lambda _: ())


# -- arrays and other objects ----------------------------------------------------------------------


def _of_array(array: Any) -> Contents:
    """The numbers of an array of the host; which one of a device it is; what hangs on it."""
    parts: list[Part] = [(f".{name}", x) for name, x in attributes(array).items()]
    is_kits = is_of_kit(type(array))
    if is_kits or str(getattr(array, "device", "")) != "cpu":
        hooks = [getattr(array, name, None) for name in HOOKS]
        parts += [("", hook) for hook in hooks if hook is not None]
        writes = None if is_kits else getattr(array, "_version", None)  # torch counts them
        return None if is_kits else _which(array), [*parts, ("", writes)]
    if getattr(getattr(array, "dtype", None), "hasobject", False):
        return array.shape, [*parts, *(("[...]", x) for x in np.asarray(array).ravel().tolist())]
    if getattr(array, "is_leaf", False) and (grad := array.grad) is not None:
        parts.append(("", grad))
    return _numbers_of(array), parts


def _which(array: Any) -> Any:
    """Of an array whose numbers are not read; None of what only holds one, as flax's variables."""
    is_one = hasattr(array, "detach") or module_of(type(array)).partition(".")[0] in _OF_JAX
    return weakref.ref(array) if is_one else None


def _numbers_of(array: Any) -> Any:
    """All of a small array, a checksum of a larger one; torch counts the writes to a tensor."""
    try:
        plain = array.detach() if hasattr(array, "detach") else array
        writes = array._version if plain is not array else None
        if plain.nbytes > _LARGE:
            if writes is None and array.flags.writeable:
                raise Unseen
            return writes
        data = np.asarray(plain).tobytes()
        return writes, data if len(data) <= 64 else zlib.crc32(data)
    except but_of_handlers(AttributeError, TypeError, RuntimeError) as error:
        raise Unseen from error  # sparse; a kind that numpy lacks


def _of_value(value: Any) -> Contents:
    base = next(base for base in _VALUES if issubclass(type(value), base))
    return base.__repr__(value), _more(value)


def _of_object(thing: Any) -> Contents:
    return None, _more(thing)


def _of_c_object(thing: Any, tells: Callable[[Any], Any]) -> Contents:
    try:
        return None, [*_more(thing), (STATE, tells(thing))]
    except but_of_handlers(Exception) as error:
        raise Unseen from error


def _of_unseen(thing: Any) -> Contents:
    raise Unseen


def _more(thing: Any) -> list[Part]:
    """Attributes, also those in slots, and the class."""
    kind = type(thing)
    found = [(f".{name}", x) for name, x in attributes(thing).items()]
    for name, member in _slots(kind):
        with suppress(AttributeError):  # it has no value yet
            found.append((f".{name}", member.__get__(thing, kind)))
    return [*found, ("", kind)]


_LOOKS: tuple[tuple[Any, Opener], ...] = (
    (FunctionType, _of_function),
    (MethodType, _through(lambda method: (method.__func__, method.__self__))),
    (type, _of_class),
    (_LISTS, _of_list),
    (dict, _of_dict),
    (types.MappingProxyType, _through(lambda things: [dict(things)])),
    (GeneratorType, _of_generator),
    (partial, _through(lambda call: (call.func, call.args, call.keywords))),
    (type(lru_cache(len)), _of_cached),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _of_c_function),
    # What a step may write, and reads nothing from; and what never changes.
    ((logging.Logger, logging.Handler, type(csv.writer(io.StringIO()))), _of_nothing),
    ((types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
      types.MethodDescriptorType, types.ClassMethodDescriptorType), _of_nothing),
    ((ModuleType, re.Pattern, re.Match, types.CodeType, types.TracebackType), _of_nothing),
    (io.IOBase, _of_file),
    ((property, staticmethod, classmethod, itertools.chain, itertools.islice,
      itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
      itertools.filterfalse, itertools.compress, itertools.zip_longest, itertools.pairwise,
      types.CellType), _through(get_referents)),
    ((itertools.count, itertools.repeat), _of_text),
    (weakref.ref, _through(lambda reference: [type(reference).__call__(reference)])),
    # It has the methods of what it stands for.
    ((weakref.ProxyType, weakref.CallableProxyType), _through(lambda x: [x.__repr__.__self__])),
    (ContextVar, _through(lambda variable: [variable.get(None)])),
    (threading.local, _of_thread),
    (BaseException, _of_error),
    (_VALUES, _of_value),
)  # fmt: skip
