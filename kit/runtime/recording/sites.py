"""Which line of the user's code something comes from."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from inspect import unwrap
from types import FrameType
from typing import Any

from kit.files import in_packages
from kit.notebook import notebook_shell
from kit.runtime.recording.bulk import NOWHERE, Site

__all__ = [
    "KIT",
    "callers",
    "format_site",
    "here",
    "installed",
    "is_kits",
    "is_standard",
    "is_torchs",
    "is_users",
    "level_of_user",
    "line_of",
    "line_of_frame",
    "not_a_librarys",
    "passes_on",
    "site_of",
]

# The folder of kit itself.
KIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_WORKLOADS = KIT + "workloads" + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep  # Python's own modules
_SEPARATOR = re.compile(r"[/\\]")


def format_site(site: tuple[str, int]) -> str:
    """`("project/train.py", 41)` -> `train.py:41`, a notebook's cell `In[3]:41`; "" if unknown."""
    path, line = site
    if not path:
        return ""
    name = _SEPARATOR.split(path)[-1]
    if "ipykernel" in path and (number := _cell_number(path)) is not None:
        name = f"In[{number}]"
    return f"{name}:{line}"


def _cell_number(path: str) -> int | None:
    """The execution count of the cell that IPython gave this file name. Tried with IPython 9."""
    numbers = getattr(getattr(notebook_shell(), "compile", None), "_filename_map", {})
    found = numbers.get(path)
    return found if isinstance(found, int) else None


def site_of(function: Any) -> Site:
    """The line where a function begins; `NOWHERE` of what is no function of Python's."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(unwrap(function), "__code__", None)
    return NOWHERE if code is None else (code.co_filename, code.co_firstlineno)


def line_of(error: BaseException) -> str:
    """ ", at train.py:41": the last line of the traceback that is neither kit's nor a library's."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            found = f", at {format_site((trace.tb_frame.f_code.co_filename, trace.tb_lineno))}"
        trace = trace.tb_next
    return found


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that have called it, the nearest first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def here() -> Site:
    """The line of the user's that this is called from; `NOWHERE` if only libraries call."""
    around = ((f.f_code.co_filename, f.f_lineno) for f in callers(sys._getframe(1)))
    return next((site for site in around if is_users(site[0])), NOWHERE)


def level_of_user() -> int:
    """The `stacklevel` with which the caller's `warnings.warn` names the user's line."""
    around = enumerate(callers(sys._getframe(1)), 1)
    return next(i for i, f in around if f.f_back is None or is_users(f.f_code.co_filename))


def line_of_frame(frame: Any) -> Site:
    """The user's line that a frame is at or was called from; `NOWHERE` if the kit called it."""
    frame = not_a_librarys(frame)
    if frame is None or is_kits(frame.f_code.co_filename):
        return NOWHERE
    return frame.f_code.co_filename, frame.f_lineno


def not_a_librarys(frame: Any) -> Any:
    """Itself, or the nearest around it that is the user's or the kit's; None if there is none."""
    while frame is not None:  # no generator: each look at a thread asks, and holds Python's lock
        path = frame.f_code.co_filename
        if is_kits(path) or is_users(path):
            return frame
        frame = frame.f_back
    return None


def passes_on(frame: Any) -> bool:
    """True for the kit's mode that sees a program's calls of torch: what goes on is the call's.

    And for what Python's collector calls, as jax's hook: what goes on is that of who collects.
    """
    code = frame.f_code
    if code.co_name == "__torch_function__" and is_kits(code.co_filename):
        return True
    return any(getattr(hook, "__code__", None) is code for hook in gc.callbacks)


def is_users(path: str) -> bool:
    """True for a file that is neither kit's nor Python's own nor of an installed package.

    The shipped steps count as the user's code, wherever kit is installed.
    """
    if _is_shipped_step(path):
        return True
    return not (is_standard(path) or is_kits(path) or in_packages(path))


def installed(path: str) -> str:
    """The path inside of the installation, "logging/__init__.py"; "" for the user's own files."""
    if _is_shipped_step(path):
        return ""
    inside = path.removeprefix(_STANDARD).replace(os.sep, "/") if is_standard(path) else ""
    return in_packages(path) or inside


def is_torchs(path: str) -> bool:
    """True for a file of torch, and of jax: their Python between two ops is recording."""
    return in_packages(path).startswith(("torch/", "jax/"))


def is_standard(path: str) -> bool:
    """True for a file of Python's own modules; installed packages may lie in a folder of theirs."""
    return path.startswith("<frozen") or (path.startswith(_STANDARD) and not in_packages(path))


def is_kits(path: str) -> bool:
    """True for a file of kit itself; the shipped steps count as the user's code."""
    return path.startswith(KIT) and not path.startswith(_WORKLOADS)


def _is_shipped_step(path: str) -> bool:
    """True for a file of `kit.workloads`, wherever kit is installed."""
    return path.startswith(_WORKLOADS)
