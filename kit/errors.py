"""Every exception that kit raises on purpose.

    KitError
    ├── SettingsError (ValueError)        a setting has a value that it cannot have
    ├── SessionError (RuntimeError)       no session is open, or the tensor's session is closed
    ├── LoweringError                     an op could not become XLA
    │   └── UnsupportedOp (NotImplementedError)   no rule, and it may not run on the host
    ├── ExecutionError (RuntimeError)     XLA failed while a segment was compiled or run
    ├── EngineError (RuntimeError)        the engine was used as it cannot be: closed, forked, freed
    ├── GraphError (ValueError)           a graph breaks one of the rules in `Graph.check`
    ├── TimelineError (ValueError)        a question that this timeline cannot answer
    ├── RunFileError (ValueError)         a saved run is damaged, foreign, or too large
    ├── LayoutError (RuntimeError)        graphviz could not lay a graph out
    └── Cancelled                         the user cancelled a run

Each message says what is wrong, where in the user's code, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "Cancelled",
    "EngineError",
    "ExecutionError",
    "GraphError",
    "KitError",
    "LayoutError",
    "LoweringError",
    "RunFileError",
    "SessionError",
    "SettingsError",
    "TimelineError",
    "UnsupportedOp",
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


class ExecutionError(KitError, RuntimeError):
    """XLA failed to compile or to run a segment; the message names the op and the user's line."""


class EngineError(KitError, RuntimeError):
    """The engine was used as it cannot be: closed, in a forked child, on a freed variable."""


class GraphError(KitError, ValueError):
    """A graph breaks one of the rules listed in `Graph.check`."""


class TimelineError(KitError, ValueError):
    """The question has no answer on this timeline (for example: the overlap of no spans)."""


class RunFileError(KitError, ValueError):
    """A saved run is damaged, was written by something else, or is larger than allowed."""


class LayoutError(KitError, RuntimeError):
    """graphviz could not lay a graph out: it is missing, failed, or took too long."""


class Cancelled(KitError):
    """The user cancelled a run before it ended; nothing of it is kept."""
