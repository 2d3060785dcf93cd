"""`sweep`: a run for each cell of a grid; can be interrupted, resumed and spread over workers.

A finished cell is kept at once, and with a `path` also saved at once, so nothing that was measured
is lost: not by an interrupt, and not by another cell that fails.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from kit.errors import (
    Cancelled,
    RunFileError,
    SettingsError,
    SweepError,
    SweepInterrupted,
    but_of_handlers,
    is_a,
    is_of_handler,
    note,
    suppressed,
)
from kit.measure.base.context import Workload
from kit.measure.base.provenance import provenance
from kit.measure.base.turns import TURNS, CancelledFn
from kit.measure.many.placement import Placement
from kit.measure.many.portable import check_importable, let_go, portable
from kit.measure.search.saved import files_of, folder_at, read
from kit.measure.search.source import not_compared, source_of
from kit.runs.knob import check_by_name
from kit.runs.labels import COMMIT, OF_MACHINE
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.recording.sites import level_of_user
from kit.shown import Progress
from kit.text import format_count

__all__ = ["sweep"]

_Future: TypeAlias = "Future[Run | BaseException]"

PARALLEL = "measured in parallel"  # key in a run's environment
_POLL_S = 0.2  # how soon a cancel is seen while workers are busy
# What a workload was when the last sweep of it began, by what that one left: its steps may change
# what it reads, such as a count, and the next sweep of this process goes on with the folder.
_BEGAN: dict[tuple[str, ...], dict[str, str]] = {}
_GIVEN_UP = "the executor gave this cell up: it was shut down, or has lost its workers"


def sweep(workload: Any, grid: Mapping[str, Sequence[Any]], settings: Settings | None = None, *,
          path: str | os.PathLike[str] | None = None, executor: Executor | None = None,
          progress: Progress | None = None, cancelled: CancelledFn | None = None,
          ) -> list[Run]:  # fmt: skip
    """A run for each combination of the grid's values, the last name varying fastest.

    `kit.sweep` says more.

    Raises:
        SettingsError: a name or a value is wrong, or the workload cannot be sent to the executor's
            processes; nothing has been run then.
        SweepError: some cells failed; all the others were run.
        SweepInterrupted: with the runs that had finished.
        Cancelled: `cancelled()` became true.
        BaseException: what the handler of a signal has raised, with these runs in its `.runs`.
    """
    placement = Placement.of(workload)
    base = placement.workload.fit(settings)
    check_by_name(grid, "what to sweep", {"batch_size": [8, 16]})
    if executor is not None and not hasattr(executor, "submit"):
        raise SettingsError(f"an executor has a submit, and {type(executor).__name__} has none")
    grid = {name: _values(name, values) for name, values in grid.items()}
    cells = [
        base.replace(**dict(zip(grid, values, strict=True))) for values in product(*grid.values())
    ]
    if isinstance(executor, ProcessPoolExecutor):
        _check_processes(executor, placement.workload)
    state = _Sweep(placement, cells, None if path is None else folder_at(path), progress, cancelled)
    try:
        state.load()
        try:
            if executor is None:
                state.run_here()
            else:
                state.run_by(executor)
        finally:
            state.leave()
        if not state.failures:
            state.compare_machines()
    except KeyboardInterrupt as error:
        let_go(error)
        state.save()  # the interrupt may have come while a run was being written
        missing = [c for i, c in enumerate(cells) if i not in state.runs]
        # `from None`: where a step was when Ctrl-C came says nothing
        raise SweepInterrupted(state.finished, missing, state.where) from None
    except BaseException as error:
        if is_of_handler(error):
            state.save()
            state.give_runs(error)
        raise
    if state.failures:
        first = next(iter(state.failures.values()))
        raise SweepError(state.finished, state.failures, list(grid)) from first
    return state.finished


def _values(name: str, values: object) -> list[Any]:
    if isinstance(values, Iterable) and not isinstance(values, str):
        if found := list(values):
            return found
        raise SettingsError(f"{name!r} has no value to sweep over: leave it out, or give some")
    raise SettingsError(
        f"a sweep needs a list of values for each setting: {{{name!r}: [{values!r}]}}, "
        f"not {{{name!r}: {values!r}}}"
    )


@dataclass
class _Sweep:
    """What is done of one sweep. Its methods may be left at any point by an interrupt."""

    placement: Placement
    cells: list[Settings]
    folder: Path | None
    progress: Progress | None
    cancelled: CancelledFn | None
    runs: dict[int, Run] = field(default_factory=dict)  # by the cell's place
    failures: dict[Settings, BaseException] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    loaded: bool = False  # some are of an earlier call

    @property
    def finished(self) -> list[Run]:
        return [self.runs[i] for i in sorted(self.runs)]

    @property
    def where(self) -> str:
        return "" if self.folder is None else str(self.folder)

    @cached_property
    def source(self) -> dict[str, str]:
        """That of the workload before its first cell: a builder may change what it names."""
        now = source_of(self.placement.workload)
        return _BEGAN.get((self.placement.name, *now.values()), now)

    @property
    def pending(self) -> list[int]:
        return [i for i in range(len(self.cells)) if i not in self.runs]

    def load(self) -> None:
        """Take over what an earlier call has saved."""
        if self.folder is None:
            return
        unknown = ""
        for i, file in enumerate(files_of(self.folder, self.placement, self.cells)):
            run, why = read(file, self.placement.name, self.cells[i], self.source)
            if run is not None:
                self.runs[i] = run
                self.saved.add(i)
                self.loaded = True
                unknown = unknown or not_compared(run.environment, self.source)
            elif why:
                self.warn(f"{file} is measured again: {why}")
        if unknown:
            kept = f"{self.folder} has runs of an older kit, which did not note {unknown}"
            self.warn(f"{kept}: whether these are the same is not known")
        if self.runs:
            self.report("loaded", 0.0)

    def leave(self) -> None:
        """Remember what the steps have changed of what their builder reads."""
        with suppressed(Exception):  # of an object of the user's: the runs are there
            if self.folder is not None:
                left = source_of(self.placement.workload)
                _BEGAN[self.placement.name, *left.values()] = self.source

    def run_here(self) -> None:
        """One cell after the other; they share what they compile."""
        caches: list[ExecutableCache] = []
        for i in self.pending:
            text = f"run {i + 1} of {len(self.cells)}"
            try:
                made = self.placement.run(
                    self.cells[i],
                    progress=self._part(text),
                    cancelled=self.cancelled,
                    caches=caches,
                )
            except (Exception, SystemExit) as error:  # the other cells are still run
                if is_a(error, Cancelled) or is_of_handler(error):
                    raise
                self.fail(i, error)
            else:
                self.keep(i, made)
                self.report(f"{text}: done", 0.0)

    def run_by(self, executor: Executor) -> None:
        """All cells; what the executor lost is then tried once more, each cell by itself.

        A worker that dies takes the cells along that only waited there, and dask blames them too.
        """
        lost = self._spread(executor, self.pending)
        for i, error in lost.items():
            alone = len(lost) == 1 or is_a(error, CancelledError)
            if alone or self._spread(executor, [i]):
                self.fail(i, error)

    def _spread(self, executor: Executor, places: Iterable[int]) -> dict[int, Exception]:
        """One future a cell; those that have not started when this is left are cancelled.

        Returns:
            Those that the executor lost on the way, by place. All other errors are failures.
        """
        stop = threading.Event()
        inside = stop.is_set if isinstance(executor, ThreadPoolExecutor) else None
        placement, note = _to_send(self.placement, executor), _workers(executor)
        waiting: dict[_Future, int] = {}
        lost: dict[int, Exception] = {}
        try:
            for i in places:
                try:
                    task = (placement, self.cells[i], note, inside, _process(), uuid4().hex)
                    waiting[executor.submit(_measure, *task)] = i
                except but_of_handlers(Exception) as error:  # shut down, or its processes died
                    self.fail(i, error)
            while waiting:
                if self.cancelled is not None and self.cancelled():
                    done = f"{len(self.runs)} of {len(self.cells)}"
                    raise Cancelled(f"cancelled with {done} cells done")
                self._take(wait(waiting, _POLL_S, FIRST_COMPLETED).done, waiting, lost)
                self.report(f"{len(self.runs)} of {len(self.cells)} runs are done", 0.0)
        except BaseException:
            stop.set()
            for future, i in waiting.items():
                if not future.cancel() and future.done() and future.exception() is None:
                    self.note(i, future.result())
            raise
        return lost

    def _take(
        self, done: Iterable[_Future], waiting: dict[_Future, int], lost: dict[int, Exception]
    ) -> None:
        """Note what has come, and let go of its future.

        A cluster remembers a result as long as there is a future for it, and measures it again if
        the worker that has it dies.
        """
        for future in sorted(done, key=waiting.__getitem__):
            i = waiting[future]
            error = CancelledError(_GIVEN_UP) if future.cancelled() else future.exception()
            if error is None:
                self.note(i, future.result())
            elif is_a(error, Exception) and not is_a(error, Cancelled):
                lost[i] = error
            else:
                raise error
            del waiting[future]

    def note(self, i: int, made: Run | BaseException) -> None:
        """What `_measure` gave for a cell."""
        if isinstance(made, Run):
            self.keep(i, made)
        else:
            self.fail(i, made)

    def keep(self, i: int, run: Run) -> None:
        """A cell is done: it is remembered first, then saved."""
        if i in self.runs:
            return
        if self.folder is not None:
            run = replace(run, environment={**run.environment, **self.source})
        self.runs[i] = run
        self.save()

    def save(self) -> None:
        """Write what is not in the folder yet."""
        if self.folder is None:
            return
        files = files_of(self.folder, self.placement, self.cells)
        for i in sorted(set(self.runs) - self.saved):
            try:
                self.runs[i].save(files[i])
            except but_of_handlers(OSError, RunFileError) as error:
                self.warn(f"this run could not be saved, and is kept in memory only: {error}")
            self.saved.add(i)

    def fail(self, i: int, error: BaseException) -> None:
        """Keep what a cell raised."""
        let_go(error)
        self.failures[self.cells[i]] = error

    def compare_machines(self) -> None:
        """Say so if saved and new runs come from different machines or versions."""
        for native in (True, False):
            found = [r for r in self.runs.values() if (r.settings.mode == "torch") == native]
            for name in ("device", *OF_MACHINE, COMMIT):
                values = sorted({v for r in found if (v := r.environment.get(name)) is not None})
                if name == COMMIT and self.loaded and values:
                    values = sorted({*values, provenance().get(COMMIT, values[0])})
                if len(values) > 1:
                    may = "may not" if name == COMMIT else "do not"
                    self.warn(f"these runs {may} compare: {name} is {' or '.join(values)}")

    def warn(self, text: str) -> None:
        """Say what is odd; where Python makes an error of it (`-W error`), that holds the runs."""
        try:
            warnings.warn(text, stacklevel=level_of_user())
        except Warning as error:
            self.give_runs(error)
            raise

    def give_runs(self, error: Any) -> None:
        """To an error that is not the kit's, if it takes them: one with slots does not."""
        with suppress(AttributeError):
            error.runs = self.finished
            note(error, "what was measured is in this error's .runs")

    def report(self, text: str, fraction: float) -> None:
        """`fraction` is of the cell that is being measured."""
        if self.progress is not None:
            done = len(self.runs) + len(self.failures)
            self.progress(text, min((done + fraction) / max(len(self.cells), 1), 1.0))

    def _part(self, name: str) -> Progress | None:
        if self.progress is None:
            return None
        return lambda text, fraction: self.report(f"{name}: {text}", fraction)


def _measure(
    placement: Placement,
    cell: Settings,
    note: str,
    cancelled: CancelledFn | None,
    home: str,
    ticket: str,
) -> Run | BaseException:
    """What an executor runs: one cell, with an `ExecutableCache` of its own.

    What the cell raises is returned, so that an error of the future is the executor's own. No two
    calls have the same `ticket`, because dask takes equal calls for one.
    """
    with TURNS.measure(cancelled=cancelled):
        if cancelled is not None and cancelled():
            raise Cancelled("the sweep has ended")
        try:
            made = placement.run(cell, cancelled=cancelled)
        except Cancelled:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is given back
            if _process() == home:
                return error
            return portable(error)
    return replace(made, environment={**made.environment, PARALLEL: note})


def _process() -> str:
    return f"{platform.node()}:{os.getpid()}"  # two containers may have the same pid


def _to_send(placement: Placement, executor: Executor) -> Placement:
    """A workload of `__main__` has a name that leads to it here only, so its builder goes whole.

    The executors that are not Python's own have picklers for that.
    """
    workload = placement.workload
    own = isinstance(executor, (ProcessPoolExecutor, ThreadPoolExecutor))
    if own or getattr(workload.build, "__module__", "") != "__main__":
        return placement
    return replace(placement, workload=replace(workload, build=partial(workload.build)))


def _workers(executor: Executor) -> str:
    if isinstance(executor, ThreadPoolExecutor):
        return "no: threads of one process take turns"
    count = getattr(executor, "_max_workers", None)  # no executor says it publicly
    return format_count(count, "worker") if isinstance(count, int) else "number of workers unknown"


def _check_processes(executor: ProcessPoolExecutor, workload: Workload) -> None:
    """Refuse what would hang or break the pool.

    Raises:
        SettingsError: the processes are forks, or the workload cannot be sent to them.
    """
    context = getattr(executor, "_mp_context", None) or multiprocessing.get_context()
    if context.get_start_method() == "fork":
        raise SettingsError(
            "this executor forks, and a fork of a process that uses XLA can hang: make it with "
            'ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))'
        )
    advice = (
        "another process must be able to import it. Put the builder into a module, as a function "
        "of its own, not inside another one; or use executor=None, or an executor that sends "
        "functions whole (dask.distributed's client.get_executor(), loky)"
    )
    check_importable(workload, advice)
