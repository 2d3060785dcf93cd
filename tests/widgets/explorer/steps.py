"""Steps for an explorer: what counts its runs, and can be made to wait."""

from __future__ import annotations

import threading

from kit.errors import Cancelled
from kit.runs.settings import Settings
from tests.factories import make_run

LONG_S = 20.0
QUICK = Settings(steps=2, warmup=0)


class Step:
    """A step that counts, and that can be made to wait."""

    def __init__(self) -> None:
        self.started: list[Settings] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def __call__(self, settings, /, *, progress, cancelled):
        self.started.append(settings)
        assert self.gate.wait(LONG_S)
        if self.error is not None:
            raise self.error
        if cancelled():
            raise Cancelled("stopped")
        progress("measuring", 0.5)
        return make_run(settings, steps=1, kernels=5 + settings.batch_size)


class Prepare:
    """Compiles nothing, and notes what for; at `block` it waits until it is cancelled."""

    def __init__(self) -> None:
        self.asked: list[Settings] = []
        self.block = False
        self.error: BaseException | None = None
        self.entered, self.left = threading.Event(), threading.Event()
        self.idle = threading.Semaphore(0)

    def __call__(self, settings, /, *, progress, cancelled):
        self.asked.append(settings)
        progress("1 of 2 programs", 0.5)
        self.entered.set()
        if self.error is not None:
            raise self.error
        if self.block:
            while not cancelled():
                threading.Event().wait(0.001)
            self.left.set()
            raise Cancelled("gave way")
        return 2
