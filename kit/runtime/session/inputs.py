"""What comes into a session from the host: arrays that are copied to the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kit.ir import Aval
from kit.runtime.recording.bulk import Cell, Value
from kit.runtime.recording.stream import ThreadState
from kit.runtime.session.issuer import Issuer
from kit.runtime.steps.stepper import Stepper
from kit.trace.kinds import COPY

__all__ = ["Inputs"]


class Inputs:
    """Copies arrays to the device, and tells the step that is recorded."""

    def __init__(self, here: ThreadState, issuer: Issuer, stepper: Stepper) -> None:
        self._here = here
        self._issuer = issuer
        self._stepper = stepper

    def constant(self, array: Any, kind: str) -> Value:
        """A value from the host: the array is copied to the device and must not change after."""
        start = time.perf_counter_ns()
        value = Value(Aval(tuple(array.shape), str(array.dtype)))
        value.cell = Cell(None, kind=kind)
        if (cells := self._here.cells) is not None:
            cells.append(value.cell)
        else:
            self._stepper.note_input(value.cell, array)
        value.cell.array = self._issuer.executor.put(array)
        stop, lane = time.perf_counter_ns(), self._here.lane
        self._issuer.spans.add(COPY, "input", start, stop, lane)
        return value

    @contextlib.contextmanager
    def loading(self) -> Iterator[list[Cell]]:
        """In a loader's thread: what it copies to the device is a batch for a later step."""
        here = self._here
        cells: list[Cell] = []
        here.lane, here.cells = "host/loader", cells
        try:
            yield cells
        finally:
            here.cells = None
