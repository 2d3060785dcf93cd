"""Small programs are lowered in one MLIR context, one after the other.

jax makes a context for each program, with all of its dialects. Of a program of one op that takes
twice as long as to trace and lower it, and a step op by op has hundreds (jax 0.10.2: 6 of 9 ms). A
context keeps each type, place and constant that was ever in it: so after some programs there is a
new one. A large program has a context of its own, as has all that others lower.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

try:
    from jax._src.interpreters import mlir
except ImportError:  # then each program has its own
    mlir = None  # type: ignore[assignment]

__all__ = ["one_context"]

_PROGRAMS = 64  # are lowered in one context
_OPS = 64  # has a program at most that shares one; of a larger one, it takes a tenth of the time


class _Kept(threading.local):
    """The context of one thread."""

    context: Any = None
    left = 0  # programs that it will still serve
    is_wanted = False  # kit lowers a small program


_KEPT = _Kept()


@contextmanager
def one_context(ops: int, program: Any) -> Iterator[None]:
    """While this thread lowers a program, a jaxpr, of so many ops."""
    _KEPT.is_wanted = ops <= _OPS and not _holds_array(program) and _let_jax_ask()
    try:
        yield
    finally:
        _KEPT.is_wanted = False


def _holds_array(program: Any) -> bool:
    """Does it, or a function that it calls, as a `jax.jit` in it? Its context would keep that."""
    if getattr(program, "consts", ()):
        return True
    for equation in program.eqns:
        if any(getattr(getattr(x, "val", None), "size", 1) > 1 for x in equation.invars):
            return True
        for given in equation.params.values():
            parts = given if isinstance(given, (tuple, list)) else (given,)
            if any(hasattr(part, "eqns") and _holds_array(part) for part in parts):
                return True
    return False


@cache
def _let_jax_ask() -> bool:
    """Put a function that gives the kept context in the place of jax's; false if jax has none."""
    original = getattr(mlir, "make_ir_context", None)
    if original is None:
        return False

    def make_ir_context() -> Any:
        if not _KEPT.is_wanted:
            return original()
        if _KEPT.left <= 0:
            _KEPT.context, _KEPT.left = original(), _PROGRAMS
        _KEPT.left -= 1
        return _KEPT.context

    mlir.make_ir_context = make_ir_context
    return True
