"""Clocks and files that a step asks: their answers change, though no variable does."""

from __future__ import annotations

import datetime
import dis
import io
import os
import secrets
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from kit.runtime.recording.sites import format_site
from kit.runtime.steps.names import MAKERS, codes_in, named, words_in

__all__ = ["answers", "asked"]

_FILES = {"exists", "isfile", "isdir", "getmtime", "getsize"}
_ASKED: list[tuple[Any, set[str]]] = [
    (time, {name for name in vars(time) if "time" in name or name in ("perf_counter", "monotonic")}
     - {"strftime", "strptime", "struct_time", "mktime", "ctime", "asctime"}
     | {"perf_counter_ns", "monotonic_ns"}),
    (datetime.datetime, {"now", "utcnow", "today"}),
    (datetime.date, {"today"}),
    (os, {"urandom", "stat", "listdir", "scandir", "times", "getloadavg"}),
    (os.path, _FILES),
    (io, {"open"}),
    (uuid, {"uuid1", "uuid4"}),
    (secrets, set(secrets.__all__)),
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
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_METHODS = {"read_text", "read_bytes"}  # of a path
_BUILTIN = {"global open", "global input"}
_UNNAMED = MAKERS | {"__del__"}
_BY_ITSELF = {"forward", "backward", "<lambda>"}  # called by a library, whoever names it


def asked(functions: Sequence[FunctionType]) -> str:
    """The clock or file that the first of these functions asks, or one that it calls by name.

    In words, with its line; "" if there is none.
    """
    for function in _called(functions):
        for word, shown in _asked_by(function):
            return f"{shown} at {_site(function, word)}"
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
        if part.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
    )


def _called(functions: Sequence[FunctionType]) -> Iterator[FunctionType]:
    """The first function, and what it may call: a method that nobody names is no part of a step."""
    words = [(function, words_in(function.__code__)) for function in functions]
    all_words = set().union(*(names for _, names in words))
    reached = set[str]()
    waiting = words[1:]
    ready = words[:1]
    while ready:
        for function, names in ready:
            yield function
            reached |= names
        ready = [(f, names) for f, names in waiting if _is_called(f, reached, all_words)]
        waiting = [pair for pair in waiting if pair not in ready]


def _is_called(function: FunctionType, reached: set[str], all_words: set[str]) -> bool:
    name, around = function.__name__, function.__qualname__.split(".")[-2:-1]
    if name in _UNNAMED:
        return not reached.isdisjoint(around)  # the class is named
    if name in reached or name in _BY_ITSELF or name.startswith("__"):
        return True
    is_method = bool(around) and around != ["<locals>"]
    return not is_method and name not in all_words  # it lies in a list of callbacks


def _asked_by(function: FunctionType) -> Iterator[tuple[str, str]]:
    """Each word of its code that asks something outside, and how that is called."""
    words = _attributes_in(function.__code__)
    for method in words & _METHODS:
        yield method, method
    for name, thing in named(function):
        if name in _BUILTIN and type(thing) is object:  # no global of the program's
            yield name.removeprefix("global "), name.removeprefix("global ")
        inner = [vars(thing).get(word) for word in words] if type(thing) is ModuleType else []
        for owner, asking in _ASKED:
            if any(owner is one for one in (thing, *inner)):
                for word in words & asking:
                    yield word, f"{owner.__name__}.{word}"
            elif type(thing) in _FUNCTIONS and thing.__module__ == owner.__name__:
                for word in asking & {thing.__name__}:
                    yield name.removeprefix("global "), f"{owner.__name__}.{word}"
