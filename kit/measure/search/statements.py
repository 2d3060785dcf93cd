"""The statements outside of functions that make what a global of a script or a notebook stands for.

An object says little of itself that is the same in each process: those of `Config(hidden=64)` and
of `Config(hidden=128)`, a library's, are told apart by the text that made them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from kit.errors import suppressed
from kit.measure.base.machine import began_s
from kit.runtime.recording.sites import is_users

__all__ = ["Statement", "statements_of"]

_Simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.ImportFrom
_OTHER = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr
_MOST_STEPS = 10  # of imports from one module to the next
_STARTS_S = 2.0  # when a process began is told to a second, and it imports first


@dataclass(frozen=True, slots=True)
class Statement:
    """One of them: its text, what Python makes of it, and the globals of its module."""

    text: str
    code: CodeType
    known: Mapping[str, Any]

    @property
    def is_newer(self) -> bool:
        """Was its file written since the process began? Then another one may have run."""
        with suppressed(KeyError, OSError, TypeError):
            return os.stat(self.known["__file__"]).st_mtime > began_s() + _STARTS_S
        return False


def statements_of(
    name: str, known: Mapping[str, Any], steps: int = _MOST_STEPS
) -> Iterator[Statement]:
    """Those that bind the name, or change what it stands for.

    Args:
        known: the globals in which the name is.
    """
    for statement in _in_texts(name, _texts_of(known)):
        if not isinstance(statement, ast.ImportFrom):
            yield Statement(*_made_of(statement), known)
            continue
        called = next(x.name for x in statement.names if name == (x.asname or x.name))
        with contextlib.suppress(ImportError):
            path = "." * statement.level + (statement.module or "")
            module = sys.modules.get(
                importlib.util.resolve_name(path, known.get("__package__") or "")
            )
            if steps and is_users(getattr(module, "__file__", None) or ""):
                yield from statements_of(called, vars(module), steps - 1)


def _made_of(statement: _Simple) -> tuple[str, CodeType]:
    """Its text and its code; its kind alone if it is too deep for these, as a sum of hundreds."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # a cell may wait
    try:
        code = compile(ast.Module([statement], []), "<statement>", "exec", flags, dont_inherit=True)
        return ast.unparse(statement), code
    except RecursionError:
        return type(statement).__name__, compile("", "<statement>", "exec", dont_inherit=True)


def _texts_of(known: Mapping[str, Any]) -> Sequence[str | bytes]:
    """Of a module its file; of a notebook the cells that ran, in their order."""
    file = known.get("__file__")
    if not isinstance(file, str):
        cells = known.get("In")
        return [x for x in cells if isinstance(x, str)] if isinstance(cells, list) else []
    with suppressed(OSError):
        return [Path(file).read_bytes()]  # its first lines may say of which encoding it is
    return []


def _in_texts(name: str, texts: Sequence[str | bytes]) -> Sequence[_Simple]:
    """Of several texts those from the last on that binds the name."""
    found: list[_Simple] = []
    for text in reversed(texts):
        here = [(x, how) for x in _statements_in(text) if (how := _does(x, name))]
        found = [x for x, _ in here] + found
        if any(how == "binds" for _, how in here):
            break
    return found


@lru_cache(maxsize=256)
def _statements_in(text: str | bytes) -> tuple[_Simple, ...]:
    """All of them but those in functions and classes."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        return tuple(_simple(ast.parse(text)))
    return ()


def _simple(node: ast.AST) -> Iterator[_Simple]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, _Simple):
            yield inner
        elif not isinstance(inner, _OTHER):
            yield from _simple(inner)


def _does(statement: _Simple, name: str) -> str:
    """Whether it "binds" the name or "changes" what that stands for; "" if neither."""
    if isinstance(statement, ast.ImportFrom):
        return "binds" if any(name == (x.asname or x.name) for x in statement.names) else ""
    if isinstance(statement, ast.Expr):
        is_call = isinstance(statement.value, ast.Call)
        return "changes" if is_call and _root(statement.value) == name else ""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    parts = [x for target in targets for x in getattr(target, "elts", [target])]
    if any(isinstance(x, ast.Name) and x.id == name for x in parts):
        return "changes" if isinstance(statement, ast.AugAssign) else "binds"
    return "changes" if any(_root(x) == name for x in parts) else ""


def _root(node: ast.expr) -> str:
    """The name that an expression begins with: "config" of `config.sizes[0].set(3)`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
