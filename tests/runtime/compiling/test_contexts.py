"""Small programs share an MLIR context, and are the same as in contexts of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from kit.runtime.compiling import contexts
from kit.runtime.compiling.contexts import one_context


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_KEPT", contexts._Kept())


def traced(length: int, function: Callable[[Any], Any] = lambda x: x * 2 + 1) -> Any:
    """A program that has not been lowered yet: jax knows functions by their identity."""
    shape = jax.ShapeDtypeStruct((length,), np.dtype("float32"))
    return jax.jit(lambda x: function(x)).trace(shape)


def lowered(length: int) -> Any:
    return traced(length).lower().compiler_ir()


def shared(length: int, ops: int = 1, **given: Callable[[Any], Any]) -> Any:
    program = traced(length, **given)
    with one_context(ops, program.jaxpr):
        return program.lower().compiler_ir()


def test_programs_of_a_context_that_served_others_are_those_of_a_new_one() -> None:
    for length in (3, 4, 3):
        assert str(shared(length)) == str(lowered(length))


def test_a_context_serves_so_many_programs_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_PROGRAMS", 3)
    programs = [shared(length) for length in range(2, 7)]
    first, *_, last = [program.context for program in programs]
    assert [p.context is first for p in programs] == [True, True, True, False, False]
    assert programs[3].context is last
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(shared(2)))
    thread.start()
    thread.join()
    assert elsewhere[0].context is not last
    assert shared(2).context is last


def test_large_programs_and_what_others_lower_have_contexts_of_their_own() -> None:
    kept = shared(2).context
    assert shared(2, ops=contexts._OPS + 1).context is not kept
    table = np.arange(2.0, dtype="float32")
    assert shared(2, function=lambda x: x + table).context is not kept
    inner = jax.jit(lambda x: x + table)  # of this one the context kept each table, of 64 programs
    assert shared(2, function=inner).context is not kept
    assert shared(2, function=lambda x: lax.cond(True, inner, inner, x)).context is not kept
    assert shared(2, function=jax.jit(lambda x: x + 1)).context is kept
    assert lowered(2).context is not kept
    with pytest.raises(ZeroDivisionError), one_context(1, traced(2).jaxpr):
        _ = 1 / 0
    assert lowered(2).context is not kept
    assert shared(2).context is kept


def test_a_jax_that_has_no_such_function_makes_each_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts, "mlir", None)
    monkeypatch.setattr(contexts, "_let_jax_ask", contexts._let_jax_ask.__wrapped__)
    assert shared(2).context is not shared(2).context
