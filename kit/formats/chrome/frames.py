"""Python functions in a trace of torch's: where each begins, and whose it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

__all__ = ["MODULE", "Frames"]

MODULE = "nn.Module: "  # begins the name of a call of a module
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): ")
_LIBRARIES = {"torch", "torchvision", "torchaudio", "numpy", "functorch", "triton", "transformers",
              "accelerate", "lightning", "pytorch_lightning", "deepspeed", "apex", "IPython",
              "ipykernel", "traitlets", "tornado", "asyncio", "concurrent", "multiprocessing",
              "importlib", "unittest", "collections", "logging", "ctypes"}  # fmt: skip
_INSTALLED = re.compile(r"(^|[/\\])(site-packages|dist-packages|python3\.\d+)[/\\]")


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
            match = _FRAME.match(self._names[name])
            self._places[name] = (
                (f"{match['file']}:{match['line']}", not _is_library(match["file"]))
                if match
                else ("", False)
            )
        return self._places[name]


def _is_library(file: str) -> bool:
    """Not the user's: torch cuts what is on Python's path off, so names begin with the package."""
    if file.startswith("<"):
        return not file.startswith("<ipython-input")
    first, *rest = file.replace("\\", "/").split("/")
    if rest:
        return first in _LIBRARIES or _INSTALLED.search(file) is not None
    return first.removesuffix(".py") in sys.stdlib_module_names
