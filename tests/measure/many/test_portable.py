"""Errors that go to another process, or are kept: without what their frames hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kit.errors import RAISED_AT
from kit.measure.many.portable import let_go, portable


@dataclass(frozen=True)
class Frozen(Exception):
    """It takes neither notes nor another traceback by assignment."""

    code: int = 3


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as info:
        raise error
    return info.value


def test_the_frames_of_an_error_that_takes_no_notes_are_let_go() -> None:
    error = raised(Frozen())
    let_go(error)
    assert error.__traceback__ is None
    assert isinstance(portable(raised(Frozen())), Exception)


def test_where_an_error_was_raised_is_kept_as_text() -> None:
    error = raised(ValueError("no"))
    let_go(error)
    assert error.__traceback__ is None
    assert error.__notes__[0].startswith(RAISED_AT)
    assert "test_portable.py" in error.__notes__[0]
