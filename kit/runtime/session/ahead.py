"""Compile what a step will need before it is asked for: record it without running it.

A session whose executor is a `PlanningExecutor` records as ever, so its segments are those that a
run will have; but nothing is copied to the device and nothing runs. The program reads zeros, or
that all numbers are finite, so that a step under loss scaling goes the way it nearly always goes.
The programs are then compiled on a thread of their own, one at a time. XLA cannot be interrupted:
a program that is being compiled when the work is stopped is compiled to its end, as the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from kit.errors import Cancelled, ExecutionError
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.disk_cache import use_disk_cache
from kit.runtime.compiling.lower import Executable
from kit.runtime.recording.bulk import Task
from kit.runtime.session.executor import Executor
from kit.threads import start_thread

__all__ = ["Ahead", "NeededProgram", "PlanningExecutor"]

MAX_OPS = 2000  # of one program: XLA takes some 2 s for as many, and cannot be stopped
MAX_TASKS = 100_000  # of one recording: a loop that waits for a number sees zeros for ever
_IS_WELL = frozenset({"all", "reduce_and", "isfinite", "is_finite"})  # read as true
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class NeededProgram:
    """One program that a step needs."""

    key: Any
    ops: int
    make: Callable[[], Executable]


class PlanningExecutor(Executor):
    """Notes the programs that its tasks need; runs nothing, and makes up what is read.

    Args:
        programs: filled with each program that a task needs, by its key.
        cancelled: once true, the next task raises `Cancelled`.
    """

    def __init__(
        self, *args: Any, programs: dict[Any, NeededProgram], cancelled: Callable[[], bool],
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.programs = programs
        self._cancelled = cancelled
        self._tasks = 0

    def start(self, owner: Any) -> None:
        use_disk_cache()

    def push(self, task: Task) -> None:
        self._tasks += 1
        if self._cancelled():
            raise Cancelled("this step is recorded no further")
        if self._tasks > MAX_TASKS:
            raise ExecutionError("the step has no end as long as nothing of it runs")
        for key, ops, make in self.needed_by(task):
            if key not in self.programs:
                self.programs[key] = NeededProgram(key, ops, make)

    def wait(self, task: Task) -> None:
        missing = [(slot, cell) for slot, cell in task.results() if cell.array is None]
        if not missing:
            return
        made = [(op.name, aval) for op in task.cut.bulk.ops for aval in op.outputs]
        for slot, cell in missing:
            name, aval = made[slot]
            is_well = aval.dtype == "bool" and bool(_IS_WELL.intersection(name.split(".")))
            cell.array = np.full(aval.shape, is_well, jnp.dtype(aval.dtype))

    def finish(self, task: Task) -> None:
        self.wait(task)

    def put(self, array: Any) -> Any:
        return array


class Ahead:
    """Compiles programs into a cache on one thread at a time, which ends with its work.

    Args:
        around: makes the block in which the thread works, so that others see that it does.
    """

    def __init__(
        self,
        cache: ExecutableCache,
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._cache, self._around = cache, around
        self._thread: threading.Thread | None = None

    def compile(
        self,
        programs: Iterable[NeededProgram],
        *,
        tell: Callable[[int, int], None],
        cancelled: Callable[[], bool],
    ) -> int:
        """Compile those that are missing, and give their number; `tell(ready, needed)` as it goes.

        Programs of more than `MAX_OPS` ops are left to the run that needs them.

        Raises:
            Cancelled: `cancelled()` became true; the program in the works comes to its end.
            Exception: the first program that cannot be compiled.
        """
        known = list(programs)
        missing = [p for p in known if p.key not in self._cache.executables and p.ops <= MAX_OPS]
        ready = len(known) - len(missing)
        self._wait(self._thread, cancelled)  # for what another call has left in the works
        if not missing:
            return 0
        job = _Job(self._cache, missing, self._around)
        told = -1
        try:
            # No daemon: Python would kill it inside of XLA at the program's end, which aborts.
            self._thread = start_thread(job.work, "kit compile ahead", is_daemon=False)
            while self._thread.is_alive():
                if job.done != told:
                    told = job.done
                    tell(ready + told, len(known))
                if cancelled():
                    raise Cancelled("cancelled while compiling ahead")
                self._thread.join(_LOOK_S)
        finally:
            job.stop = True  # after an interrupt Python's end would wait for all of them
        if job.error is not None:
            raise job.error
        return job.made

    def _wait(self, thread: threading.Thread | None, cancelled: Callable[[], bool]) -> None:
        while thread is not None and thread.is_alive():
            if cancelled():
                raise Cancelled("cancelled while another program was being compiled")
            thread.join(_LOOK_S)


class _Job:
    """What one thread compiles."""

    def __init__(
        self,
        cache: ExecutableCache,
        programs: Sequence[NeededProgram],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._cache, self._programs, self._around = cache, programs, around
        self.done = self.made = 0
        self.stop = False
        self.error: Exception | None = None

    def work(self) -> None:
        with self._around():
            for program in self._programs:
                if self.stop:
                    return
                try:
                    self.made += self._cache.make_ahead(program.key, program.make)
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    self.error = error
                    return
                self.done += 1
