"""Errors that were raised: what they say, copies to raise, those that handlers of signals raise."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType
from typing import Any, TypeGuard, TypeVar

__all__ = [
    "RAISED_AT",
    "but_of_handlers",
    "call_handler",
    "given_to",
    "is_a",
    "is_of_handler",
    "named",
    "named_in_a_line",
    "note",
    "suppressed",
    "to_raise",
    "traceback_of",
    "words_of",
]

E = TypeVar("E", bound=BaseException)

RAISED_AT = "raised at\n"  # begins a note: the traceback of an error of another process or thread


def to_raise(kept: E) -> E:
    """A copy of an error that is kept, to raise it.

    An error that was raised has the frames that it came through, with their tensors. Of those,
    torch's graphs hold others that Python's collector cannot see: what keeps the error would
    never be freed.
    """
    made = type(kept).__new__(type(kept), *kept.args)
    made.__dict__.update(kept.__dict__)
    if notes := getattr(kept, "__notes__", None):
        made.__notes__ = list(notes)
    made.__cause__, made.__suppress_context__ = kept.__cause__, kept.__suppress_context__
    return made


def is_a(error: BaseException | None, *kinds: type[E]) -> TypeGuard[E]:
    """Is an error of one of these kinds, as `except` asks?

    `isinstance` would also ask a program's own class for its `__class__`, which may raise.
    """
    return issubclass(type(error), kinds)


def words_of(error: BaseException) -> str:
    """What an error says; "" where its own code for that fails."""
    try:
        return str(error)
    except but_of_handlers(Exception):  # of a program's own class
        return ""


def named(error: BaseException, most: int | None = None) -> str:
    """`ValueError: what it says`, of that so many characters; its type alone if that is nothing."""
    return _with_type(error, words_of(error)[:most])


def named_in_a_line(error: BaseException) -> str:
    """The same of the first line of what it says, without the end of a long one."""
    return _with_type(error, words_of(error).strip().split("\n", 1)[0][:300])


def traceback_of(error: BaseException) -> str:
    """What Python prints of an error; of one that cannot be asked, where it was raised."""
    try:
        return "".join(traceback.format_exception(error))
    except but_of_handlers(Exception):  # of a program's own class
        lines = traceback.format_tb(error.__traceback__)
        return "".join([*lines, f"{named(error)}\n"])


def _with_type(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def note(error: BaseException, text: str) -> None:
    """Add a note to a program's error, which stays the one that is raised if it takes none."""
    with suppressed(Exception):  # a frozen dataclass, or a method of its own
        error.add_note(text)


def call_handler(handler: Callable[..., object], *args: Any) -> None:
    """Call the handler of a signal, whose errors `is_of_handler` tells from all others."""
    handler(*args)


def is_of_handler(error: BaseException) -> bool:
    """Has the handler of a signal raised this, whatever ran then?"""
    trace, running = error.__traceback__, set[FrameType]()
    at: FrameType | None = sys._getframe(1)  # its own would be held by what it holds
    while at is not None:
        running.add(at)
        at = at.f_back
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is call_handler.__code__ or (frame not in running and _is_handler(frame)):
            return True
        trace = trace.tb_next
    return False


def _is_handler(frame: FrameType) -> bool:
    """Has Python itself called this function, which has ended, as the handler of a signal?

    It does so until a session opens. It gives the number of the signal and the frame that this has
    come in, which is the function's caller. The variables of one that runs are not to be looked
    at: Python would hold them until it ends.
    """
    return any(at is frame.f_back and type(at) is FrameType and type(n) is int
               for n, at in pairwise(given_to(frame)))  # fmt: skip


def given_to(frame: FrameType) -> Iterator[Any]:
    """The arguments of a function, those of `*rest` one by one, as far as they are still there."""
    code, known = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
    for name in code.co_varnames[:count]:
        value = known.get(name)
        # `isinstance` would ask a proxy for its class, which may raise: of an object that is gone
        yield from value if type(value) is tuple else (value,)


def but_of_handlers(*kinds: type[E]) -> tuple[type[E], ...]:
    """For `except`: errors of these kinds, but none that the handler of a signal has raised.

    That of a time limit may be an OSError, such as `TimeoutError`, or of any other kind. It is the
    program's, whatever the kit did when it came.
    """
    error = sys.exception()
    return () if is_a(error, *kinds) and is_of_handler(error) else kinds


class suppressed(suppress):
    """An error of these kinds is forgotten, but what the handler of a signal has raised is not."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        is_known = super().__exit__(kind, error, trace)
        return is_known and error is not None and not is_of_handler(error)
