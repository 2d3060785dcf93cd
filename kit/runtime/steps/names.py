"""What code names, and whose classes are whose."""

from __future__ import annotations

import builtins
import dis
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache, wraps
from inspect import unwrap
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from kit.runtime.recording.sites import format_site, is_users

__all__ = [
    "BY_HAND", "COMPARES", "MAKERS", "MISSING", "SPACES", "attributes", "called_by_libraries",
    "codes_in", "imported_by", "imported_by_text", "is_generated", "is_of_kit", "is_of_users",
    "last_word", "line_of", "module_of", "named", "of_kind", "reads_any_attribute",
    "reads_any_global", "texts_in", "unbound", "unnamed_in", "words_in", "wrapped_by",
]  # fmt: skip

A = TypeVar("A")

MAKERS = frozenset({"__init__", "__new__", "__post_init__"})  # called by no name of their own
MISSING = object()  # in the place of a variable that has no value
SPACES = (SimpleNamespace, Namespace)  # of Python's own, where a program keeps its settings
_CALLABLE = (FunctionType, MethodType, dict)  # a dict may hold functions, as of `singledispatch`
_BUILT_IN = frozenset(sys.builtin_module_names)
_BUILTINS = dict(vars(builtins))  # what a program puts there counts as a global of its own
# Python's functions that reach a thing whose name the code need not have.
_OF_GLOBALS = frozenset({"globals", "eval", "exec"})
_OF_ATTRIBUTES = _OF_GLOBALS | {"getattr", "vars", "dir"}
_METHODS = (FunctionType, staticmethod, classmethod)
_IMPORTERS = frozenset({"import_module", "__import__"})
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # two are of a class's body
# Methods that torch's C++ calls, too; the second one only since torch 2.14.
_BY_C = frozenset({"forward", "setup_context", "backward", "vjp"})
_TEXTS = {"__repr__", "__str__", "__format__"}
_EQUAL, _ORDER = ("==", "!="), ("<", "<=", ">", ">=")
_EQUALS = frozenset({"__eq__", "__ne__"})
_ORDERS = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
COMPARES = _EQUALS | _ORDERS | {"__hash__"}
BY_HAND = "by hand "  # a method that counts only where a person wrote it: it names a field or two
_BY_KEY = {"hash", "set", "frozenset", "dict"}
_BY_EQUALITY = {"index", "count", "remove"}
_BY_ORDER = {"sorted", "sort", "min", "max"}


def of_kind(find: Callable[[Any], A]) -> Callable[[Any], A]:
    """The same function of a class, which looks once: it is asked before each step."""
    known: WeakKeyDictionary[type, A] = WeakKeyDictionary()

    @wraps(find)
    def found(kind: Any) -> A:
        if (answer := known.get(kind)) is None:
            answer = known[kind] = find(kind)
        return answer

    return found


def named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names that is not its own."""
    code = function.__code__
    for i, thing in enumerate(function.__defaults__ or ()):
        yield f"default {i + 1}", thing
    for name, thing in (function.__kwdefaults__ or {}).items():
        yield f"{name}=", thing
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty
            yield name, MISSING
    for name in _globals_of(code):
        thing = function.__globals__.get(name, MISSING)
        if thing is MISSING and name in (more := vars(builtins)):
            thing = MISSING if more[name] is _BUILTINS.get(name, MISSING) else more[name]
        yield f"global {name}", thing


@lru_cache(maxsize=256)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The globals that it names, and those that the functions in it name."""
    names: dict[str, None] = {}
    for part in dis.get_instructions(code):
        if part.opname in _LOADS:
            names[part.argval] = None
        elif isinstance(part.argval, CodeType):
            names |= dict.fromkeys(_globals_of(part.argval))
    return tuple(names)


def unbound(functions: Collection[Any]) -> list[Any]:
    """These, and the functions of those of them that are methods of an object."""
    return [*functions, *(one.__func__ for one in functions if type(one) is MethodType)]


def is_generated(code: CodeType) -> bool:
    """By dataclasses or attrs: it names all fields."""
    return code.co_filename == "<string>" or code.co_filename.startswith("<attrs ")


@lru_cache(maxsize=1024)
def unnamed_in(code: CodeType) -> frozenset[str]:
    """Special methods that the code calls by `==`, `<` or a formatted text; names in patterns."""
    found = set[str]()
    for one in codes_in(code):
        before = ""
        for part in dis.get_instructions(one):
            is_constant = before == "LOAD_CONST"  # a number or text, which a dataclass never equals
            if part.opname == "COMPARE_OP":
                sign = part.argrepr.strip("bol()")
                names = _EQUALS if sign in _EQUAL else _ORDERS if sign in _ORDER else set()
                found |= {BY_HAND + name for name in names} if is_constant else names
            elif part.opname == "CONTAINS_OP":
                found |= {BY_HAND + "__eq__", BY_HAND + "__hash__"}
            elif part.opname in ("BINARY_SUBSCR", "STORE_SUBSCR") and not is_constant:
                found.add(BY_HAND + "__hash__")
            if part.opname.startswith(("FORMAT_", "CONVERT_VALUE")):
                found |= _TEXTS
            before = part.opname
        found |= {x for names in one.co_consts if type(names) is tuple for x in names
                  if type(x) is str}  # fmt: skip
    words = words_in(code)
    found |= _TEXTS if words & {"repr", "str", "format"} else set()
    found |= {BY_HAND + "__hash__"} if words & _BY_KEY else set()
    found |= {BY_HAND + "__eq__"} if words & _BY_EQUALITY else set()
    return frozenset(found | (_ORDERS if words & _BY_ORDER else set()))


def wrapped_by(function: FunctionType) -> list[Any]:
    """What a library's function calls for a program, as those of `torch.no_grad()` do."""
    around = [attributes(function).get("__wrapped__")]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            around.append(cell.cell_contents)
    return [x for x in around if type(x) in _CALLABLE or is_of_users(type(x))]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_in(inner)


@lru_cache(maxsize=1024)
def texts_in(code: CodeType) -> frozenset[str]:
    """The texts among its constants, which may be names of attributes and modules."""
    return frozenset(x for one in codes_in(code) for x in one.co_consts if type(x) is str)


def imported_by_text(code: CodeType) -> frozenset[str]:
    """What may be modules that the code imports by `import_module("cfg")`: all its texts."""
    return frozenset() if _IMPORTERS.isdisjoint(words_in(code)) else texts_in(code)


@lru_cache(maxsize=1024)
def words_in(code: CodeType) -> frozenset[str]:
    """The names of variables around it, of attributes and of modules that a code has."""
    return frozenset(x for one in codes_in(code) for x in (*one.co_names, *one.co_freevars))


@lru_cache(maxsize=1024)
def _imports_in(code: CodeType) -> frozenset[str]:
    parts = (part for one in codes_in(code) for part in dis.get_instructions(one))
    named = {part.argval for part in parts if part.opname == "IMPORT_NAME"}
    return imported_by_text(code) | named


def imported_by(function: FunctionType) -> Iterator[tuple[str, ModuleType]]:
    """The modules that a function imports itself."""
    package = function.__globals__.get("__package__") or ""
    for word in _imports_in(function.__code__):
        for name in (word, f"{package}.{word}"):
            if type(module := sys.modules.get(name)) is ModuleType:
                yield name, module


def reads_any_global(code: CodeType) -> bool:
    """May it read a global that it does not name? `model.eval()` is no call of Python's."""
    return not _OF_GLOBALS.isdisjoint(_globals_of(code))


def reads_any_attribute(code: CodeType) -> bool:
    """May it read an attribute that it does not name?"""
    return "__dict__" in words_in(code) or not _OF_ATTRIBUTES.isdisjoint(_globals_of(code))


def called_by_libraries(kind: type) -> set[str]:
    """What a class of the program's has in place of a library's, whose code calls it by name."""
    others = [base for base in kind.__mro__ if base is not object and not is_of_users(base)]
    own = {name for name in vars(kind) if name[:2] != "__"}
    inherited = {name for name in own if any(name in vars(base) for base in others)}
    return inherited & _BY_C.union(*map(_words_of, others))


@lru_cache(maxsize=256)
def _words_of(kind: type) -> frozenset[str]:
    """The names in a class's methods; not a method's own name, nor those in what writes a text."""
    methods = {
        name: unwrap(thing)
        for name, thing in vars(kind).items()
        if name != "__repr__" and type(thing) in _METHODS
    }
    return frozenset(
        word
        for name, function in methods.items()
        if type(function) is FunctionType
        for word in words_in(function.__code__) - {name}
    )


def last_word(name: str) -> str:
    """The word by which code asks for what has this name: "cfg" of `self.cfg["lr"]`."""
    return name.partition("[")[0].rpartition(".")[2]


def line_of(name: str, functions: Collection[FunctionType]) -> str:
    """ " at train.py:41", where the functions change what has this name, or where they name it."""
    last = last_word(name)
    found = ""
    for code in (code for one in functions for code in codes_in(one.__code__)):
        for part in dis.get_instructions(code):
            if part.argval == last and part.positions and part.positions.lineno:
                at = f" at {format_site((code.co_filename, part.positions.lineno))}"
                if part.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
                    return at
                found = found or at
    return found


def module_of(kind: type) -> str:
    """The module of a class; "" of one that says it in another way, as some of Cython's do."""
    found = kind.__module__
    return found if type(found) is str else ""


def is_of_kit(kind: type) -> bool:
    """Is it a class of the kit's own?"""
    return module_of(kind).partition(".")[0] == "kit"


@of_kind
def is_of_users(kind: type) -> bool:
    """Is it a class of the program's own?"""
    name = module_of(kind)
    path = getattr(sys.modules.get(name), "__file__", None) or "<cell>"
    return not (name in _BUILT_IN or not name or is_of_kit(kind)) and is_users(path)


def attributes(thing: Any) -> dict[str, Any]:
    """An object's own attributes; none of one that has slots. Runs no code of its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
