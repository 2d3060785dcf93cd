"""Python functions in a trace of torch's: where each is, and whose."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kit.files import is_no_users

__all__ = ["MODULE", "Frames", "Stacks"]

MODULE = "nn.Module: "  # begins the name of a call of a module
_MAX_STACK = 20_000  # characters
_MAX_STACKS = 32 << 20  # characters of all that are remembered
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): ")
_LIBRARIES = {"torch", "torchvision", "torchaudio", "numpy", "functorch", "triton", "transformers",
              "accelerate", "lightning", "pytorch_lightning", "deepspeed", "apex", "IPython",
              "ipykernel", "traitlets", "tornado", "asyncio", "concurrent", "multiprocessing",
              "importlib", "unittest", "collections", "logging", "ctypes"}  # fmt: skip
_DEEPEST = 200  # frames to look at


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
