"""Kineto, torch's profiler of GPUs, keeps CUDA's profiling interface (CUPTI): it has to let go.

CUPTI serves one profiler of a process at a time, and XLA's wants it next. Kineto lets go where
`TEARDOWN_CUPTI` is 1, which it asks for as a profile begins and as it ends. So one that begins
after a profile without it loses CUPTI at once, and sees no kernel: an empty one goes before. Seen
on an H100 with torch 2.11.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from kit.errors import but_of_handlers
from kit.runtime.profiling.cupti import has_subscriber

__all__ = ["given_back", "let_go", "quiet"]

_TEARDOWN = "TEARDOWN_CUPTI"
_LETS_GO_S = 2.0  # for which that is waited for, at most
_LEAST_CUDA = (12, 6)  # before it CUDA's graphs fail after CUPTI was given back


def let_go() -> None:
    """Have Kineto give back what a profile of the program's own has left it with, if any has.

    Nothing where torch was not imported or is profiling now.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not _can_give_back(torch) or not has_subscriber():
        return
    from kit.measure.native.others import is_profiling  # imports torch

    if is_profiling():
        return
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    with quiet(), given_back(), torch.profiler.profile(activities=cuda, acc_events=True):
        pass


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """After the profile of the block, which sees a GPU, Kineto lets go of CUPTI.

    It does so in a thread of its own, with the next call of CUDA, where the environment asks for
    it: for good, since a later profile of the program's own, which has to subscribe anew, is asked
    the same.
    """
    torch: Any = sys.modules["torch"]
    if _can_give_back(torch):
        os.environ.setdefault(_TEARDOWN, "1")
    yield
    until = time.monotonic() + _LETS_GO_S
    while os.environ.get(_TEARDOWN) == "1" and has_subscriber():
        torch.cuda.synchronize()
        if time.monotonic() > until:
            break
        time.sleep(0.001)


def _can_give_back(torch: Any) -> bool:
    major, minor = (torch.version.cuda or "0.0").split(".")[:2]
    may = os.environ.get(_TEARDOWN, "1") == "1"  # unless the user wants it otherwise
    return may and (int(major), int(minor)) >= _LEAST_CUDA


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Kineto writes a line of its own to the terminal, which a notebook shows in red."""
    try:
        terminal = os.dup(2)
    except but_of_handlers(OSError):  # it is closed, as of some services: nobody sees that line
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)
