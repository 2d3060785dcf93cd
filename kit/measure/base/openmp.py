"""The threads with which torch computes on a CPU: each thread that calls it has some of its own.

libgomp, which torch brings on Linux, lets them wait awake for the next op only while there are no
more of them than cores. So two threads of a program that both have called torch slow each other's
ops down for as long as both live, though only one computes: BERT took 33 ms a step natively in one
thread, not 19, while another thread had trained it before (2 cores). Whoever has measured lets its
own go; torch makes new ones at its next op.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from kit.notebook import notebook_events
from kit.runtime.profiling.libraries import loaded

__all__ = ["let_go", "let_go_after_cells"]

_SOFT = 1  # omp_pause_soft: what was set stays
_PROCESS = os.getpid()  # a forked child has none of its parent's threads, and would wait for them


def let_go() -> None:
    """End the threads that torch's ops of the calling thread have started; none of a running op."""
    if os.getpid() != _PROCESS or "torch" not in sys.modules:
        return
    if (library := _library()) is not None:
        library.omp_pause_resource_all(_SOFT)


def let_go_after_cells() -> None:
    """Have the thread that runs a notebook's cells do so after each: an explorer measures then."""
    events = notebook_events()
    if events is not None and _after_cell not in events.callbacks["post_run_cell"]:
        events.register("post_run_cell", _after_cell)


def _after_cell(*_: object) -> None:
    let_go()


@functools.cache
def _library() -> Any:
    """The libgomp that torch has loaded; None where it has another or none."""
    package = Path(sys.modules["torch"].__file__ or "").parent
    brought = [*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")]
    library = loaded(*map(str, brought), "libgomp.so.1")
    return library if hasattr(library, "omp_pause_resource_all") else None
