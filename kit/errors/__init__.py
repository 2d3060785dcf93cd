"""Every exception that kit raises on purpose. `kit.errors.caught` has what is asked of raised ones.

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
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kit.errors.caught import (
    RAISED_AT,
    but_of_handlers,
    call_handler,
    given_to,
    is_a,
    is_of_handler,
    named,
    named_in_a_line,
    note,
    suppressed,
    to_raise,
    traceback_of,
    words_of,
)

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


def _cells(count: int) -> str:
    return f"{count} cell{'s' * (count != 1)}"
