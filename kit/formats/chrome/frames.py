"""Python functions in a trace of torch's: where each is, and whose; and which ones only wait."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.files import is_no_users
from kit.trace.imported import Spans, cut_name
from kit.trace.intervals import Ints

__all__ = ["MODULE", "Frames", "Stacks", "asleep"]

MODULE = "nn.Module: "  # begins the name of a call of a module
_MAX_STACK = 20_000  # characters
_MAX_STACKS = 32 << 20  # characters of all that are remembered
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): ")
_LIBRARIES = {"torch", "torchvision", "torchaudio", "numpy", "functorch", "triton", "transformers",
              "accelerate", "lightning", "pytorch_lightning", "deepspeed", "apex", "IPython",
              "ipykernel", "traitlets", "tornado", "asyncio", "concurrent", "multiprocessing",
              "importlib", "unittest", "collections", "logging", "ctypes"}  # fmt: skip
_DEEPEST = 200  # frames to look at
LEAST_NS = 1_000_000  # what is shorter may be no wait at all, as of a lock that is free
_WAITS = re.compile(
    r"<built-in (function (sleep|select|read|wait4|waitpid)>|method ("
    r"acquire of _thread|get of _queue|poll of select|(read\w*|write|flush) of _io|"
    r"(accept|connect|recv\w*|send\w*) of _?socket))"
)


class Frames:
    """The functions of a trace by the numbers of their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._places: dict[int, tuple[str, bool]] = {}

    def is_module(self, name: int) -> bool:
        """Is it the call of a module?"""
        return self._names[name].startswith(MODULE)

    def place(self, name: int) -> tuple[str, bool]:
        """Where a function begins, "" if its name does not say, and is it the user's?"""
        if name not in self._places:
            self._places[name] = _place(self._names[name])
        return self._places[name]

    def around(self, frame: int, names: NDArray[Any], frames: NDArray[Any]) -> tuple[str, str]:
        """The user's function of a frame and those around, and the library's that it called.

        Args:
            names, frames: of each event, its name's number and the frame around, or -1.
        """
        via = ""
        for _ in range(_DEEPEST):
            if frame < 0:
                break
            place, is_users = self.place(int(names[frame]))
            if is_users:
                return place, via
            via, frame = via or place, frames[frame]
        return via, ""


class Stacks:
    """The stacks of ops, which torch 1.8 to 1.12 wrote with each: functions, innermost first.

    Source:
        `stacksToStr` and `callstackStr` in torch's torch/csrc/autograd/profiler_kineto.cpp
    """

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._chars = 0

    def users(self, stack: Any) -> str:
        """The innermost function of the user's; "" if there is none."""
        if type(stack) is not str:
            return ""
        found = self._found.get(stack)
        if found is None:
            functions = (text.strip() for text in stack[:_MAX_STACK].split(";"))
            found = next((text for text in functions if _place(text)[1]), "")
            self._chars += len(stack)
            if self._chars <= _MAX_STACKS:
                self._found[stack] = found
        return found


def _place(text: str) -> tuple[str, bool]:
    match = _FRAME.match(text)
    if match is None:
        return "", False
    return f"{match['file']}:{match['line']}", not _is_library(match["file"])


def _is_library(file: str) -> bool:
    """Not the user's: torch cuts what is on Python's path off, so names begin with the package."""
    if file.startswith("<"):
        return not file.startswith("<ipython-input")
    first, *rest = file.replace("\\", "/").split("/")
    if rest:
        return first in _LIBRARIES or is_no_users(file)
    return first.removesuffix(".py") in sys.stdlib_module_names


def asleep(
    names: Sequence[str],
    calls: NDArray[np.intp],
    columns: tuple[Ints, Ints, Ints, Ints],
    place: Callable[[int], str],
    number: Callable[[str], int],
) -> Spans:
    """A span for each call of a C function of Python's that only waits, if it is long.

    It is named after the function that called it.

    Args:
        names: of the file, by their numbers.
        calls: events of Python functions on one thread.
        columns: of all events their names' numbers, threads, starts and stops.
        place: where the function is that called an event; "" if that is not known.
        number: of a name, that of the timeline.
    """
    name, thread, start, stop = (column[calls] for column in columns)
    waits = [i for i in np.unique(name).tolist() if _WAITS.match(names[i])]
    kept = np.isin(name, waits) & (stop - start >= LEAST_NS)
    found = [number(cut_name(place(i) or "an unknown line")) for i in calls[kept].tolist()]
    numbers = np.array(found, np.int32)
    return Spans(thread[kept].astype(np.int32), "elsewhere", numbers, start[kept], stop[kept])
