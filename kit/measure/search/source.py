"""Whether a saved run is still of the workload that is swept: its text, and what it was given.

Its text is that of the builder, and of the user's functions and classes that the builder leads to
by their names: the model stands in one of these. A file that was edited since it was imported has
another text than what runs: then it is the code that counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import cached_property, partial
from itertools import islice
from numbers import Number
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from kit.errors import suppressed
from kit.measure.base.context import Workload
from kit.measure.search.codes import GROWN, functions_of, is_edited, is_of_user, names_of, set_later
from kit.measure.search.statements import statements_of
from kit.runs.labels import VALUES
from kit.runtime.recording.sites import is_users
from kit.runtime.steps.names import SPACES, attributes, last_word

__all__ = ["not_compared", "source_of", "why_another"]

SOURCE = "workload source"  # key in a saved run's environment
_MOST = 1000  # things of a list that are looked at: it may have a whole dataset
_MOST_NAMED = 50  # keys of a dict that are noted one by one
_DEEPEST = 10  # dicts in dicts: one may hold itself
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_READS_ALL = frozenset({"__dict__", "asdict", "astuple", "vars"})  # the fields of an object
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_CODE = "code of "  # a function without a text; what Python makes of it is its version's
_EDITED = "code that ran"


def source_of(workload: Workload) -> dict[str, str]:
    """What a run's environment notes of its builder: another where its text or a value is.

    The text and the constants are one digest, under `SOURCE`. Under `VALUES` each value that the
    builder reads has one of its own, so that the one that differs can be named; a digest, as some
    are passwords.
    """
    build: Any = workload.build
    found = _Found(build)
    bound: list[Any] = []
    if isinstance(build, partial):
        bound += [build.args, dict(sorted(build.keywords.items()))]
        build = build.func
    for cell in getattr(build, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            # What may change while it runs, such as a list of losses, is no other workload's.
            bound += [x for x in [cell.cell_contents] if _is_fixed(x)]
    text = found.text_of(build if inspect.isroutine(build) else type(build))
    try:
        said = [text, *map(_text, bound), *found.texts]
    except RecursionError:  # something holds itself
        said = [text, *(type(x).__qualname__ for x in bound), *found.texts]
    values = {name: _digest(words)[:8] for name, words in sorted(found.values().items())}
    return {
        SOURCE: f"{_EDITED} in {_PYTHON}: " * found.is_edited + _digest(said),
        VALUES: json.dumps(values, separators=(",", ":")),
    }


def why_another(saved: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Why a run that noted this is not of the workload of now; "" if it is."""
    old, new = _values_in(saved), _values_in(now)
    other = [name for name in new if name in old and old[name] != new[name]]
    before, after = saved.get(SOURCE, ""), now[SOURCE]
    if not before:
        return "it does not say of which source it is"
    if before != after and _EDITED in before + after:
        return "the code that ran is not its file's text, as where that was edited after the import"
    if other:
        return f"another value: {_first(other)}"
    if before != after:
        also = "" if VALUES in saved else ", or a constant that it reads"
        return f"the workload's source has changed since{also}"
    other = sorted(x for x in old.keys() ^ new.keys() if not x.startswith(_CODE))
    if VALUES in saved and other:
        return f"not there, or not read, in both: {_first(other)}"
    return ""


def not_compared(saved: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The values that an older kit did not note; "" if these are none."""
    # The digest has the constants, which are those with plain names.
    names = [name for name in _values_in(now) if not name.isidentifier()]
    return _first(names) if names and VALUES not in saved else ""


def _values_in(noted: Mapping[str, str]) -> dict[str, Any]:
    with contextlib.suppress(ValueError, TypeError):  # somebody wrote it by hand
        return dict(json.loads(noted.get(VALUES, "{}")))
    return {}


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="replace")).hexdigest()[:20]


class _Found:
    """What a builder leads to.

    Attributes:
        texts: those of the user's functions and classes, and the constants, that it leads to by
            their names.
        is_edited: the text of some of it is not what runs.
    """

    def __init__(self, build: Any) -> None:
        self.texts: list[str] = []
        self.is_edited = False
        self._notes: list[tuple[str, str]] = []
        self._named: list[tuple[str, Any]] = []
        self._fields: list[tuple[str, str, Any]] = []  # of classes and of the builder's object
        self._read: set[str] = set()
        self._changed: set[tuple[str, str]] = set()  # by all functions; see `names_of`
        self._made: set[tuple[int, str]] = set()  # globals whose statements were looked at
        self._left_out: dict[type, frozenset[str] | None] = {}  # see `set_later`
        self._within = set[int]()  # the user's objects in the value that is put in words
        self._build = build.func if isinstance(build, partial) else build
        self._todo = deque([build])
        self._later = deque[Any]()  # what names alone do not lead to: noted among the values
        self._is_later = False
        seen: dict[int, Any] = {}
        while self._todo or self._later:
            self._is_later = self._is_later or not self._todo
            thing = (self._todo or self._later).popleft()
            if id(thing) not in seen:
                seen[id(thing)] = thing  # kept, so that no other gets its identity
                self._look(thing)

    def values(self) -> dict[str, list[str]]:
        """The plain values that are read, in words, by their names."""
        found: dict[str, list[str]] = {}
        fields = [(f"{owner}.{name}", x) for owner, name, x in self._fields if self._reads(name)]
        for name, value in (*self._named, *fields):
            # A step may append to it, as to a list of the losses.
            is_grown = isinstance(value, (list, set)) and (GROWN, last_word(name)) in self._changed
            self._within.clear()
            rows = [*islice(() if is_grown else self._rows(name, value), 100 * _MOST)]
            if len(rows) > _MOST_NAMED:
                rows = [(name, " ".join(map(": ".join, rows)))]
            for path, words in rows:
                found.setdefault(path, []).append(words)
        for name, words in self._notes:
            found.setdefault(name, []).append(words)
        return found

    def text_of(self, thing: Any) -> str:
        """Its text; "" where Python has none, or where it is not that of what runs."""
        parts = functions_of(thing) if inspect.isclass(thing) else [thing]
        if any(map(is_edited, parts)):
            self.is_edited = True
            return ""
        with suppressed(OSError, TypeError):
            return inspect.getsource(thing)
        return ""  # as of a class of a notebook, whose methods have one

    def _look(self, thing: Any) -> None:
        if isinstance(thing, (list, tuple, dict)):
            parts = [*thing.values()] if isinstance(thing, dict) else thing
            self._todo += filter(_has_text, parts[:_MOST])  # a step may append to it: no objects
        elif isinstance(thing, partial):
            self._todo += [thing.func, *thing.args, *thing.keywords.values()]
            self._named += [(f"partial({i})", x) for i, x in enumerate(thing.args)]
            self._named += [(f"partial({name})", x) for name, x in thing.keywords.items()]
        elif inspect.ismethod(thing):
            self._todo += [thing.__func__, thing.__self__]
            if thing is self._build:
                self._see_fields(type(thing.__self__), getattr(thing.__self__, "__dict__", {}))
        elif isinstance(thing, Workload):
            self._todo.append(thing.build)
        elif inspect.isfunction(thing):
            if is_users(thing.__code__.co_filename):
                self._look_into(thing)
            self._todo.append(getattr(thing, "__wrapped__", None))
        elif inspect.isclass(thing):
            if is_of_user(thing):
                self._say(thing.__qualname__, self.text_of(thing))
                self._todo += [*thing.__bases__, *functions_of(thing)]
                self._see_fields(
                    thing, {k: v for k, v in vars(thing).items() if not k.startswith("__")}
                )
        elif not inspect.ismodule(thing):
            wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # runs no code of its own
            self._todo += [type(thing), wrapped]
            if thing is self._build:
                self._see_fields(type(thing), getattr(thing, "__dict__", {}))

    def _say(self, name: str, text: str) -> None:
        if self._is_later:
            self._notes.append((f"source of {name}", text))
        else:
            self.texts.append(text)

    def _see_fields(self, kind: type, fields: Mapping[str, Any]) -> None:
        self._fields += [(kind.__qualname__, name, value) for name, value in fields.items()]
        self._later += filter(_has_text, fields.values())
        self._later += [x.func for x in fields.values() if isinstance(x, cached_property)]

    def _look_into(self, function: FunctionType) -> None:
        """Its text, and what its names lead to."""
        code, name = function.__code__, function.__qualname__
        text = self.text_of(function)
        self._say(name, text)
        if not text:
            self._notes.append((f"{_CODE}{name} in {_PYTHON}", _words_of(code)))
        elif hasattr(function, "__wrapped__"):  # the text is that of what it wraps
            with suppressed(OSError):
                self._notes.append((f"source of {code.co_name}", inspect.getsource(code)))
        names, changed = self._note_names(code)
        defaults, count = function.__defaults__ or (), code.co_argcount
        given = [*zip(code.co_varnames[count - len(defaults) : count], defaults, strict=True)]
        given += (function.__kwdefaults__ or {}).items()
        self._named += given
        self._later += [value for _, value in given]
        for cell_name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not filled yet
                self._todo.append(cell.cell_contents)
                is_changed = ("STORE_DEREF", cell_name) in changed
                self._named += [] if is_changed else [(cell_name, cell.cell_contents)]
        self._follow(names, changed, function.__globals__)

    def _note_names(self, code: CodeType) -> tuple[list[str], set[tuple[str, str]]]:
        names, read, changed = names_of(code)
        self._read |= read
        self._changed |= changed
        return names, changed

    def _follow(
        self, names: Sequence[str], changed: Set[tuple[str, str]], known: Mapping[str, Any]
    ) -> None:
        """What these names stand for among the globals."""
        modules = list[dict[str, Any]]()
        for name in names:
            value = known.get(name, sys.modules.get(name))
            if inspect.ismodule(value):
                modules += [vars(value)] if is_users(getattr(value, "__file__", None) or "") else []
            elif name in known:
                self._see(name, value, ("STORE_GLOBAL", name) in changed)
                self._look_at_making(name, value, known)
            else:
                self._todo.append(value)
        for module in modules:
            owner = module.get("__name__", "")
            found = [name for name in names if name in module]
            self._todo += [module[name] for name in found]
            self._named += [(f"{owner}.{name}", module[name]) for name in found]
            for name in found:
                self._look_at_making(name, module[name], module)

    def _look_at_making(self, name: str, value: Any, known: Mapping[str, Any]) -> None:
        """Of an object that says little of itself: the text that makes it."""
        if (id(known), name) in self._made or not _tells_little(value):
            return
        self._made.add((id(known), name))
        for statement in statements_of(name, known):
            self.is_edited = self.is_edited or statement.is_newer
            self._notes.append((name, statement.text))
            names, changed = self._note_names(statement.code)
            # where a script lies, and by which name it runs, is no workload's
            names = [x for x in names if x not in ("__file__", "__name__")]
            self._follow(names, changed, statement.known)

    def _see(self, name: str, value: Any, is_changed: bool) -> None:
        """A global of a function."""
        if is_changed or not _is_fixed(value):
            self._todo.append(value)
        else:
            self.texts += [f"{name}={_text(value)}"] * (not self._is_later)
        if not is_changed:
            self._named.append((name, value))

    def _reads(self, name: str) -> bool:
        return name in self._read or not _READS_ALL.isdisjoint(self._read)

    def _rows(self, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
        """A value in words, as far as it is plain: numbers and texts, and what holds these.

        Of a tensor or an array its dtype and its shape. Of the fields of an object only those that
        some function reads: a script's arguments say also where its output goes. And of a class of
        the user's only those that are set as an object is made: others have counts.
        """
        rows: Iterable[tuple[str, Any]] = ()
        if isinstance(value, (list, tuple, set)):  # the first of many, as of a dataset
            value = tuple(islice(value, _MOST)) if type(value) is not set else frozenset(value)
        if _is_fixed(value) or isinstance(value, (Enum, Number, bytes, range)):
            yield name, _text(value)
        elif words := _shape_text(value):
            yield name, words
        elif isinstance(value, dict):
            rows = ((f"{name}[{_text(k)}]", x) for k, x in value.items())
        elif isinstance(value, tuple):
            rows = ((f"{name}[{i}]", x) for i, x in enumerate(value))
        elif isinstance(value, SPACES) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)
        ):
            fields = getattr(value, "__dict__", {})
            rows = ((f"{name}.{k}", x) for k, x in fields.items() if self._reads(k))
        elif is_of_user(kind := type(value)):
            if kind not in self._left_out:
                self._left_out[kind] = set_later(kind)
            if (left_out := self._left_out[kind]) is not None:
                rows = self._fields_of(name, value, left_out)
        if depth < _DEEPEST:
            for path, x in islice(rows, _MOST):
                yield from self._rows(path, x, depth + 1)

    def _fields_of(self, name: str, thing: Any, left_out: Set[str]) -> Iterator[tuple[str, Any]]:
        """Those that are read and that nothing sets later, with their paths.

        Once for each object: of some that hold each other there are millions of paths.
        """
        if id(thing) in self._within:
            return
        self._within.add(id(thing))
        for field, value in attributes(thing).items():
            is_set = ("STORE_ATTR", f"{last_word(name)}.{field}") in self._changed
            if self._reads(field) and field not in left_out and not is_set:
                yield f"{name}.{field}", value


def _has_text(thing: Any) -> bool:
    """Is it, or does it hold, a function or a class?"""
    kinds = (FunctionType, MethodType, type, partial, Workload, list, tuple, dict)
    return isinstance(thing, kinds)


def _tells_little(thing: Any) -> bool:
    """Is it an object whose fields, as far as they are compared, may not say how it was made?"""
    plain = (Enum, Number, bytes, range, set, ModuleType, Workload, *SPACES)
    return not (
        _has_text(thing)
        or _is_fixed(thing)
        or isinstance(thing, plain)
        or inspect.isroutine(thing)
        or dataclasses.is_dataclass(thing)
        or _shape_text(thing)
    )


def _words_of(code: CodeType) -> str:
    """What a function does: all of its code but the lines."""
    # From Python 3.13 on the code of a class has a constant of where it begins.
    lines = [code.co_firstlineno] if "__firstlineno__" in code.co_names else []
    consts = [x for x in code.co_consts if x not in lines]
    parts = [_words_of(x) if isinstance(x, CodeType) else _text(x) for x in consts]
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return f"{code.co_code.hex()} {counts} {names} [{', '.join(parts)}]"


def _is_fixed(value: Any) -> bool:
    """Can nobody change it?"""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_fixed, value))
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    is_dtype = type(value).__name__ == "dtype"
    return value is None or frozen or is_dtype or isinstance(value, (str, int, float, complex))


def _shape_text(value: Any) -> str:
    """Of a tensor or an array what its numbers are, of which each process may draw others."""
    with suppressed(Exception):  # of a class that has no such attributes, or others
        return "" if is_of_user(type(value)) else f"{value.dtype} {[*value.shape]}"
    return ""


def _text(value: Any) -> str:
    """The same in each process for the same value; of what says nothing of itself, its type.

    So it is of most objects: two datasets of one class are taken for the same.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, row.name, None) for row in dataclasses.fields(value)]
        return f"{type(value).__qualname__}{_text(parts)}"
    if not isinstance(value, Number) and (words := _shape_text(value)):
        return words
    if getattr(type(value), "__repr__", None) != object.__repr__:
        with suppressed(Exception):  # a `__repr__` of the user's
            return _ADDRESS.sub("", repr(value))
    return type(value).__qualname__
