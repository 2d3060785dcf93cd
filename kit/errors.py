"""Every exception that kit raises on purpose; those that the handlers of signals have raised.

    KitError
    ├── SettingsError (ValueError)        a setting has a value that it cannot have
    ├── SessionError (RuntimeError)       no session is open, or the tensor's session is closed
    ├── LoweringError                     an op could not become XLA
    │   └── UnsupportedOp (NotImplementedError)   no rule, and it may not run on the host
    ├── ExecutionError (RuntimeError)     XLA failed while a segment was compiled or run
    ├── DeviceCheckError                  a check on the device has found a bad number
    │   ├── BadIndexError (IndexError)        ... given as an index or a label
    │   ├── BadValueError (RuntimeError)      ... given where torch raises a RuntimeError
    │   │   └── BadMatrixError (torch.linalg.LinAlgError)   ... in a matrix, NaN
    │   └── BadNumberError (FloatingPointError)   an op made NaN or an infinity; only if asked for
    ├── EngineError (RuntimeError)        an engine that is closed, forked or freed; no more threads
    ├── ScalerError (RuntimeError)        a gradient scaler was used in an order that it cannot be
    ├── GraphError (ValueError)           a graph breaks one of the rules in `Graph.check`
    ├── TimelineError (ValueError)        a question that this timeline cannot answer
    ├── RunFileError (ValueError)         a saved run is damaged, foreign, or too large
    ├── TraceFileError (ValueError)       a foreign trace is damaged, unknown, or too large
    ├── QueryError (ValueError)           a question to a run that cannot be answered
    ├── LayoutError (RuntimeError)        graphviz could not lay a graph out
    ├── SweepError (RuntimeError)         some cells of a sweep failed; the others are in `.runs`
    ├── SweepInterrupted (KeyboardInterrupt)  a sweep was interrupted; what is done is in `.runs`
    └── Cancelled                         the user cancelled a run

Each message says what is wrong, where in the user's code, and what to do about it.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from inspect import CO_VARARGS
from itertools import pairwise
from types import FrameType
from typing import Any, TypeVar

__all__ = [
    "RAISED_AT",
    "BadIndexError",
    "BadMatrixError",
    "BadNumberError",
    "BadValueError",
    "Cancelled",
    "DeviceCheckError",
    "EngineError",
    "ExecutionError",
    "GraphError",
    "KitError",
    "LayoutError",
    "LoweringError",
    "QueryError",
    "RunFileError",
    "ScalerError",
    "SessionError",
    "SettingsError",
    "SweepError",
    "SweepInterrupted",
    "TimelineError",
    "TraceFileError",
    "UnsupportedOp",
    "but_of_handlers",
    "call_handler",
    "given_to",
    "is_of_handler",
    "named",
    "named_in_a_line",
    "note",
    "suppressed",
    "to_raise",
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


class KitError(Exception):
    """Base of everything in this file: catching it catches only kit's own errors."""


class SettingsError(KitError, ValueError):
    """A setting has a value that it cannot have."""


class SessionError(KitError, RuntimeError):
    """No session is open here, or the tensor belongs to one that has been closed."""


class LoweringError(KitError):
    """An op could not be turned into XLA."""


class UnsupportedOp(LoweringError, NotImplementedError):
    """No lowering rule is registered for an op, and it may not run on the host instead."""

    def __init__(
        self, op: str, known: Iterable[str] = (), site: str = "", why: str = "", skeleton: str = ""
    ) -> None:
        close = get_close_matches(op, list(known), n=3)
        hint = f" Closest registered ops: {', '.join(close)}." if close else ""
        where = f"\n  recorded at {site}" if site else ""
        reason = f"\n  {why}" if why else ""
        short = f"kit.Session(rules=kit.DEFAULT_RULES | kit.Rules({{{op!r}: your_function}}))"
        example = "\n    ".join((skeleton or short).splitlines())
        super().__init__(
            f"no lowering rule for op {op!r}.{hint}{where}{reason}\n  To add one:\n    {example}"
        )
        self.op = op
        self.site = site

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, and not made again of its text, where it goes to another process."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ExecutionError(KitError, RuntimeError):
    """XLA failed to compile or to run a segment; the message names the op and the user's line."""


class DeviceCheckError(KitError):
    """A check on the device has found a number that should not be there, such as a bad index.

    The subclasses are of the types that torch raises; the message begins with torch's words.

    Attributes:
        op, site, step: which op, on which line of the user's, in which step of the session.
        value: the first such number.
        allowed: what it may be, in words.
    """

    def __init__(
        self, message: str, *, op: str = "", site: str = "", step: int = 0, value: float = 0,
        allowed: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.op, self.site, self.step = op, site, step
        self.value, self.allowed = value, allowed


class BadIndexError(DeviceCheckError, IndexError):
    """An index or a label is out of bounds."""


class BadValueError(DeviceCheckError, RuntimeError):
    """A number is out of the range of an op, where torch raises a RuntimeError."""


class BadMatrixError(BadValueError):
    """A matrix has NaN; a `torch.linalg.LinAlgError`, too, as soon as device kit is registered."""


class BadNumberError(DeviceCheckError, FloatingPointError):
    """An op made NaN or an infinity of other numbers; found with `check_numbers="on"` only."""


class EngineError(KitError, RuntimeError):
    """The engine is closed, a variable freed, this a forked child; or no thread can be started."""


class ScalerError(KitError, RuntimeError):
    """A gradient scaler was used in an order that it cannot be: torch's own rules."""


class GraphError(KitError, ValueError):
    """A graph breaks one of the rules listed in `Graph.check`."""


class TimelineError(KitError, ValueError):
    """The question has no answer on this timeline (for example: the overlap of no spans)."""


class RunFileError(KitError, ValueError):
    """A saved run is damaged, was written by something else, or is larger than allowed."""


class TraceFileError(KitError, ValueError):
    """A trace of another program is damaged, of a format that kit does not read, or too large."""


class QueryError(KitError, ValueError):
    """A question to the tables of a run is wrong, takes too long, or does more than to read."""


class LayoutError(KitError, RuntimeError):
    """graphviz could not lay a graph out: it is missing, failed, or took too long."""


class Cancelled(KitError):
    """The user cancelled a run before it ended; nothing of it is kept."""


class SweepError(KitError, RuntimeError):
    """Some cells of a sweep failed; all the others were run.

    Attributes:
        runs: the finished runs, in the grid's order.
        failures: what the other cells raised, by their settings.
    """

    def __init__(
        self, runs: Sequence[Any], failures: Mapping[Any, BaseException], names: Sequence[str] = ()
    ) -> None:
        """`names`: the settings that tell the cells apart."""
        self.runs, self.failures, self.names = list(runs), dict(failures), tuple(names)
        lines = []
        for cell, error in self.failures.items():
            values = ", ".join(f"{name}={getattr(cell, name)!r}" for name in self.names)
            lines.append(f"  {values or cell}: {named_in_a_line(error)}")
        super().__init__(
            f"{_cells(len(self.failures))} of a sweep failed, {len(self.runs)} finished:\n"
            + "\n".join(lines)
            + "\n  The finished runs are in this error's .runs, what each cell raised in .failures"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.runs, self.failures, self.names)


class SweepInterrupted(KitError, KeyboardInterrupt):
    """A sweep was interrupted. What had finished is kept.

    Attributes:
        runs: the finished runs, in the grid's order.
        missing: the settings of the cells that are still to be measured.
    """

    def __init__(self, runs: Sequence[Any], missing: Sequence[Any], path: str = "") -> None:
        self.runs, self.missing, self.path = list(runs), list(missing), path
        go_on = (
            f"They are in {path!r}: call sweep again with the same path to go on."
            if path
            else "They are in this error's .runs (in a notebook: sys.last_value.runs). "
            "kit.sweep(..., path=FOLDER) can go on where it was interrupted."
        )
        total = len(self.runs) + len(self.missing)
        super().__init__(f"interrupted: {len(self.runs)} of {_cells(total)} are done. {go_on}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.runs, self.missing, self.path)


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
    return () if isinstance(error, kinds) and is_of_handler(error) else kinds


class suppressed(suppress):
    """An error of these kinds is forgotten, but what the handler of a signal has raised is not."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        is_known = super().__exit__(kind, error, trace)
        return is_known and error is not None and not is_of_handler(error)


def _cells(count: int) -> str:
    return f"{count} cell{'s' * (count != 1)}"
