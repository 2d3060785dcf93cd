"""Small programs share an MLIR context, and are the same as in contexts of their own."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

from kit.runtime.compiling import contexts
from kit.runtime.compiling.contexts import one_context


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_KEPT", contexts._Kept())


def lowered(length: int) -> Any:
    """A program that has not been lowered yet: jax knows functions by their identity."""
    shape = jax.ShapeDtypeStruct((length,), np.dtype("float32"))
    return jax.jit(lambda x: x * 2 + 1).trace(shape).lower().compiler_ir()


def shared(length: int, ops: int = 1, constants: int = 0) -> Any:
    with one_context(ops, constants):
        return lowered(length)


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
    assert shared(2, constants=1).context is not kept
    assert lowered(2).context is not kept
    with pytest.raises(ZeroDivisionError), one_context(1):
        _ = 1 / 0
    assert lowered(2).context is not kept
    assert shared(2).context is kept


def test_a_jax_that_has_no_such_function_makes_each_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contexts, "mlir", None)
    monkeypatch.setattr(contexts, "_let_jax_ask", contexts._let_jax_ask.__wrapped__)
    assert shared(2).context is not shared(2).context
