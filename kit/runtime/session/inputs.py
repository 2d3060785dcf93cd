"""What comes into a session from the host: arrays that are copied to the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kit.ir import Aval
from kit.runtime.recording.bulk import Cell, Value
from kit.runtime.recording.sites import format_site, here
from kit.runtime.recording.stream import ThreadState
from kit.runtime.session.issuer import Issuer
from kit.runtime.steps.stepper import Stepper
from kit.trace.kinds import COPY

__all__ = ["Inputs"]

LARGE = 1 << 20  # bytes: of such a copy the line is worth the look for it


class Inputs:
    """Copies arrays to the device, and tells the step that is recorded."""

    def __init__(self, here: ThreadState, issuer: Issuer, stepper: Stepper) -> None:
        self._here = here
        self._issuer = issuer
        self._stepper = stepper

    def constant(self, array: Any, kind: str = "input", since_ns: int | None = None) -> Value:
        """A value from the host: the array is copied to the device and must not change after.

        Args:
            since_ns: when its front end began to make a fresh array of the program's.
        """
        start = time.perf_counter_ns() if since_ns is None else since_ns
        value = Value(Aval(tuple(array.shape), str(array.dtype)))
        value.cell = Cell(None, kind=kind)
        if (cells := self._here.cells) is not None:
            cells.append(value.cell)
        else:
            self._stepper.note_input(value.cell, array)
        value.cell.array = self._issuer.executor.put(array)
        stop, lane = time.perf_counter_ns(), self._here.lane
        where = format_site(here()) if array.nbytes >= LARGE else ""
        self._issuer.spans.add(f"{COPY} at {where}" if where else COPY, "input", start, stop, lane)
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
