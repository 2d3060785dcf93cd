"""What the code that a builder leads to names, reads and changes, and whether it is its file's."""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from kit.errors import but_of_handlers, suppressed
from kit.runtime.recording.sites import is_users
from kit.runtime.steps.names import MAKERS, codes_in, last_word

__all__ = ["GROWN", "functions_of", "is_edited", "is_of_user", "names_of", "set_later"]

GROWN = "grown"  # how a function changes a list or a set
_GROWS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft",
                    "remove", "discard", "clear", "sort", "reverse"})  # fmt: skip
# What a class names that keeps a time, a number or a folder of this process.
_OF_A_PROCESS = frozenset({"time", "datetime", "perf_counter", "perf_counter_ns", "monotonic",
                           "getpid", "uuid", "uuid4", "tempfile", "mkdtemp"})  # fmt: skip
_READS = ("LOAD_", "RETURN_CONST")  # the second one in Python 3.12 and 3.13


def is_of_user(kind: type) -> bool:
    """Is it a class of the user's?"""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)  # of a notebook's there is none
    return is_users(file) if file else kind.__module__ == "__main__"


def functions_of(kind: type) -> Iterator[Any]:
    """The methods of a class that have a text."""
    for value in vars(kind).values():
        plain = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(plain):
            yield plain


def set_later(kind: type) -> frozenset[str] | None:
    """The fields that a class sets after an object is made; None if these may be of a process,
    such as the time at which a timer begins.
    """
    later = set[str]()
    for base in filter(is_of_user, kind.__mro__):
        for function in functions_of(base):
            _, read, changed = names_of(function.__code__)
            if function.__name__ not in MAKERS:
                later |= {last_word(name) for how, name in changed if how == "STORE_ATTR"}
            elif not _OF_A_PROCESS.isdisjoint(read):
                return None
    return frozenset(later)


def is_edited(thing: Any) -> bool:
    """Is a function other code than what its file has now?"""
    code = getattr(thing, "__code__", None)
    if not isinstance(code, CodeType) or not is_users(code.co_filename):
        return False
    try:
        stat = os.stat(code.co_filename)
    except but_of_handlers(OSError, ValueError):  # of a notebook or of `exec`: nobody can edit it
        return False
    return code not in _codes_of(code.co_filename, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _codes_of(file: str, _time: int, _size: int) -> frozenset[CodeType]:
    with suppressed(OSError, SyntaxError, ValueError):
        return frozenset(codes_in(compile(Path(file).read_bytes(), file, "exec", 0, True)))
    return frozenset()


def names_of(code: CodeType) -> tuple[list[str], set[str], set[tuple[str, str]]]:
    """Of it and the functions in it: all names; those that it reads; what it changes, and how.

    A text counts as a name that is read: `getattr(args, "width")`. A field is changed as
    "args.width", a list as what holds it is called: `self.losses.append(loss)` changes "losses".
    """
    names, read, changed = list[str](), set[str](), set[tuple[str, str]]()
    for part in codes_in(code):
        names += part.co_names
        rows = [*dis.get_instructions(part)]
        before = ""  # what the instruction before has loaded; of two at once the second
        counted = dict[str, str]()  # by field: `config.steps += 1` loads `config` once, and copies
        for row, after in zip(rows, [*rows[1:], rows[-1]], strict=True):
            is_argument = after.opname == "CALL_KW"  # its arguments' names, from Python 3.13 on
            several = isinstance(row.argval, tuple) and row.argval
            loaded, before = before, several[-1] if several else row.argval
            if row.opname == "COPY":
                counted[after.argval] = loaded
            if row.opname in ("STORE_GLOBAL", "STORE_DEREF"):
                changed.add((row.opname, row.argval))
            elif row.opname == "STORE_ATTR":
                changed.add((row.opname, f"{counted.pop(row.argval, loaded)}.{row.argval}"))
            elif row.opname.startswith(_READS) and "FAST" not in row.opname and not is_argument:
                texts = row.argval if isinstance(row.argval, tuple) else (row.argval,)
                read |= {x for x in texts if isinstance(x, str)}
                if row.opname in ("LOAD_ATTR", "LOAD_METHOD") and row.argval in _GROWS:
                    changed.add((GROWN, loaded))
    return names, read, changed
