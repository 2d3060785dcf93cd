"""Random numbers: those that a program draws are no others because something was measured."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np

__all__ = ["random_kept"]


@contextlib.contextmanager
def random_kept(*, pythons: bool = False) -> Iterator[None]:
    """After the block the program draws from torch what it would have drawn without it.

    A run seeds torch, so that it can be repeated: training that goes on in the same notebook would
    have the same dropout and the same order of samples after each.

    Args:
        pythons: also from Python's and from numpy's generators.
    """
    with contextlib.ExitStack() as undo:
        if pythons:
            undo.callback(random.setstate, random.getstate())
            undo.callback(np.random.set_state, np.random.get_state())
        if torch := sys.modules.get("torch"):
            on_cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            undo.enter_context(torch.random.fork_rng(devices=[*on_cuda]))
        yield
