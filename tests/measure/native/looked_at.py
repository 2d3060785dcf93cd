"""Steps under torch's profiler, and what is found to have launched their ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kit.measure.native.events import STEP, steps_of
from kit.measure.native.instruments import Profiler
from kit.measure.native.launches import Launches, find_launches
from kit.measure.native.lines import Lines, ModuleNames

Step = Callable[[], torch.Tensor]


def profiled(step: Step) -> tuple[list[Any], Launches]:
    """Two steps under torch's profiler, and what is found to have launched their ops."""
    modules = ModuleNames()
    looks = [Lines("cpu", modules) for _ in range(2)]
    step()
    for look in looks:
        with look:
            step()
    profiler = Profiler("cpu")
    profiler.start()
    for i in range(2):
        with profiler.region(f"{STEP}{i}"):
            step()
    profiler.stop()
    events = profiler.events()
    return events, find_launches(events, steps_of(events), looks, device="cpu")
