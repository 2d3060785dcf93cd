"""Clocks and files that a step asks: their answers change, though no variable does."""

from __future__ import annotations

import datetime
import dis
import glob
import io
import os
import pathlib
import random
import secrets
import sys
import time
import uuid
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from inspect import getattr_static
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from kit.runtime.recording.sites import format_site
from kit.runtime.steps.names import MAKERS, codes_in, last_word, line_of, named, words_in

__all__ = ["answers", "asked"]

_METHODS = {"read_text", "read_bytes"}  # of a path
_OF_PATHS = {"exists", "is_file", "is_dir", "is_symlink", "open", "stat", "lstat", "iterdir",
             "glob", "rglob", "walk"}  # fmt: skip
_FILES = {"exists", "lexists", "isfile", "isdir", "islink", "getmtime", "getctime", "getatime",
          "getsize"}  # fmt: skip
_ASKED: list[tuple[Any, set[str]]] = [
    (time, {name for name in vars(time) if "time" in name or name in ("perf_counter", "monotonic")}
     - {"strptime", "struct_time", "mktime", "timezone"}  # strftime takes now if it gets no time
     | {"perf_counter_ns", "monotonic_ns"}),
    (datetime.datetime, {"now", "utcnow", "today"}),
    (datetime.date, {"today"}),
    (os, {"urandom", "stat", "lstat", "access", "walk", "listdir", "scandir", "times",
          "getloadavg"}),
    (os.path, _FILES),
    (io, {"open"}),
    (glob, {"glob", "iglob"}),
    (random, {"Random", "SystemRandom"}),
    (np.random, {"default_rng", "RandomState", "SeedSequence"}),
    (uuid, {"uuid1", "uuid4"}),
    (secrets, set(secrets.__all__)),
    (pathlib.Path, _METHODS | _OF_PATHS),
]  # fmt: skip
# Functions that say how a setting of the process is, by their modules: they can be asked again.
_ANSWERS = {
    "decimal": ["getcontext"],
    "os": ["getcwd", "getpid"],
    "sys": ["getrecursionlimit", "getswitchinterval"],
    "locale": ["getlocale", "localeconv"],
    "gc": ["isenabled"],
    "numpy": ["geterr", "get_printoptions"],
    "torch": [
        "get_num_threads", "get_num_interop_threads", "get_float32_matmul_precision",
        "are_deterministic_algorithms_enabled", "is_anomaly_enabled", "initial_seed",
        "is_deterministic_algorithms_warn_only_enabled", "is_inference_mode_enabled",
    ],
}  # fmt: skip
_FILLING = {"PUSH_NULL", "PRECALL", "CACHE", "EXTENDED_ARG", "RESUME"}  # between word and argument
_NAMED = {id(thing): (owner, word)  # of functions alone: any variable may be the same number
          for owner, asking in _ASKED for word in asking
          if callable(thing := getattr_static(owner, word, None))}  # fmt: skip
_SEEDED = {"Random", "default_rng", "RandomState", "SeedSequence"}  # draw the same from one seed
_BUILTIN = {"global open", "global input"}
_UNNAMED = MAKERS | {"__del__"}


def asked(
    functions: Sequence[FunctionType],
    by_libraries: Set[str] = frozenset(),
    paths: Set[str] = frozenset(),
    held: Sequence[tuple[str, Any]] = (),
) -> str:
    """The clock or file that the first of these functions asks, or one that it calls by name.

    In words, with its line; "" if there is none.

    Args:
        by_libraries: names of methods that are called without being named.
        paths: names of variables and attributes that are paths.
        held: functions, and those of methods, with the names of what holds them; see `Look`.
    """
    reached = {"<lambda>", *by_libraries}  # grows by the words of each that is called
    attributes = set(by_libraries)
    for function in _called(functions, reached, held):
        attributes |= _attributes_in(function.__code__)
        for word, shown in _asked_by(function, paths):
            return f"{shown} at {_site(function, word)}"
    for name, thing in held:
        holder = last_word(name)  # a module is named alike: `time.sleep` does not ask `time.time`
        is_attribute = "." in name.partition("[")[0]
        is_named = holder in (attributes if is_attribute else reached)
        is_called = is_named or (bool(name) and not holder.isidentifier())
        if is_called and (found := _NAMED.get(id(_plain(thing)))) is not None:
            owner, word = found
            if word not in _SEEDED:
                return f"{owner.__name__}.{word}{line_of(name, functions)}"
    return ""


def answers() -> set[Any]:
    """The functions whose answers tell a setting of the process, of the modules imported so far."""
    found = ((sys.modules.get(name), names) for name, names in _ANSWERS.items())
    asked = {getattr(module, name, None) for module, names in found for name in names}
    return asked - {None}


def _site(function: FunctionType, word: str) -> str:
    """The line where the function has this word; of a default, its first one."""
    path, first = function.__code__.co_filename, function.__code__.co_firstlineno
    lines = (
        part.positions.lineno
        for code in codes_in(function.__code__)
        for part in dis.get_instructions(code)
        if part.argval == word and part.positions and part.positions.lineno
    )
    return format_site((path, next(lines, first)))


@lru_cache(maxsize=1024)
def _attributes_in(code: CodeType) -> frozenset[str]:
    """The names that the code asks of a thing or a module: not those of its variables."""
    return frozenset(
        part.argval
        for one in codes_in(code)
        for part in dis.get_instructions(one)
        if part.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
    )


def _called(
    functions: Sequence[FunctionType], reached: set[str], held: Sequence[tuple[str, Any]]
) -> Iterator[FunctionType]:
    """The first function, and what it may call: a method that nobody names is no part of a step."""
    words = [(function, words_in(function.__code__)) for function in functions]
    all_words = set().union(*(names for _, names in words))
    holders: dict[int, set[str]] = {}
    for name, function in held:
        holders.setdefault(id(function), set()).add(last_word(name))
    waiting = words[1:]
    ready = words[:1]
    while ready:
        for function, names in ready:
            yield function
            reached |= names
        ready = [
            (f, names)
            for f, names in waiting
            if _is_called(f, reached, all_words)
            or any(x in reached or x not in all_words for x in holders.get(id(f), ()))
        ]
        waiting = [pair for pair in waiting if pair not in ready]


def _is_called(function: FunctionType, reached: set[str], all_words: set[str]) -> bool:
    name, around = function.__name__, function.__qualname__.split(".")[-2:-1]
    if name in _UNNAMED:
        return not reached.isdisjoint(around)  # the class is named
    if name in reached or name.startswith("__"):
        return True
    is_method = bool(around) and around != ["<locals>"]
    return not is_method and name not in all_words  # it lies in a list of callbacks


def _asked_by(function: FunctionType, paths: Set[str]) -> Iterator[tuple[str, str]]:
    """Each word of its code that asks something outside, and how that is called."""
    words = _attributes_in(function.__code__)
    for method in words & (_METHODS | _OF_PATHS if _knows_paths(function, paths) else _METHODS):
        yield method, method
    for name, thing in named(function):
        if name in _BUILTIN and type(thing) is object:  # no global of the program's
            yield name.removeprefix("global "), name.removeprefix("global ")
        inner = [vars(thing).get(word) for word in words] if type(thing) is ModuleType else []
        for owner, asking in _ASKED:
            if any(owner is one for one in (thing, *inner)):
                for word in words & asking:
                    if not _is_seeded(function, word, word):
                        yield word, f"{owner.__name__}.{word}"
        if (found := _NAMED.get(id(_plain(thing)))) is not None:
            plain, (owner, word) = name.removeprefix("global "), found
            if not _is_seeded(function, plain, word):
                yield plain, f"{owner.__name__}.{word}"


def _plain(thing: Any) -> Any:
    """What a class has of a method of its own, as of `now = datetime.now`."""
    if type(thing) is BuiltinFunctionType and type(thing.__self__) is type:
        return vars(thing.__self__).get(thing.__name__)
    return thing


def _is_seeded(function: FunctionType, word: str, asking: str) -> bool:
    """Is a generator made with a seed wherever the function has this word, or only named there?

    It may be made without one by another name that it is bound to.
    """
    after = [part for code in codes_in(function.__code__) for part in _after(code, word)]
    is_without = any(
        part.argval is None  # the seed; and what returns the class
        or (part.opname.startswith("CALL") and part.arg == 0)
        or (part.opname.startswith("STORE_") and part.argval != word)
        for part in after
    )
    return asking in _SEEDED and bool(after) and not is_without


def _after(code: CodeType, word: str) -> Iterator[dis.Instruction]:
    """What comes after the word, wherever it is: of its call, the first argument or the call."""
    parts = [part for part in dis.get_instructions(code) if part.opname not in _FILLING]
    for part, following in pairwise(parts):
        if part.argval == word and part.opname.startswith(("LOAD_", "IMPORT_FROM")):
            yield following


def _knows_paths(function: FunctionType, paths: Set[str]) -> bool:
    """Does it name something of pathlib's, or what is a path?"""
    words = words_in(function.__code__)
    is_known = "pathlib" in words or not words.isdisjoint(paths)
    return is_known or any(_is_of_pathlib(thing) for _, thing in named(function))


def _is_of_pathlib(thing: Any) -> bool:
    if type(thing) is ModuleType:
        return thing is pathlib
    return issubclass(thing if issubclass(type(thing), type) else type(thing), pathlib.PurePath)
