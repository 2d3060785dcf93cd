"""The top room: the public verbs, wired from the rooms below. Imported only when one is used.

`kit.run`, `kit.sweep`, `kit.Session`, `kit.Explorer` and `kit.report` are defined here because each
joins two rooms that must not know each other: views see data, never the machinery that makes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import SettingsError
from kit.notebook import in_kernel
from kit.runs.loss_scaling import HOST_CHECK, NONE, ON_DEVICE
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.shown import Progress
from kit.trace.ranks.ranks import Ranks
from kit.widgets.base.progress import bar_when_told, progress_or_bar

if TYPE_CHECKING:
    from kit.ir.plan import OpStream
    from kit.measure.many.placement import Placement
    from kit.measure.search.autotune import Tuned
    from kit.runtime.rules.table import Rules
    from kit.runtime.session.session import Session as RuntimeSession
    from kit.widgets.compare.view import Comparison
    from kit.widgets.explorer.view import Explorer as ExplorerWidget

__all__ = ["DEFAULT_SWEEP", "Explorer", "Session", "autotune", "bulk", "compare", "plan", "report",
           "run", "set_bulk_size", "sweep"]  # fmt: skip

# The last name varies fastest: the loss scalings, which the report compares, take turns.
DEFAULT_SWEEP: dict[str, list[Any]] = {
    "batch_size": [4, 8, 16],
    "bulk_backward": [1, 15, 50],
    "loss_scaling": [NONE, HOST_CHECK, ON_DEVICE],
}


def run(
    workload: Any,
    settings: Settings | None = None,
    *,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    label: str = "",
    progress: Progress | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    **options: Any,
) -> Run:
    """Run a workload's step under these settings, and measure it.

    One run at a time is measured in a process: a run that waits, such as for an explorer's, says
    for what.

    Args:
        workload: what `@kit.workload` decorates: given a `Context`, it returns the step.
        settings: `kit.Settings()` if not given.
        devices: more than 1: each works on a part of every batch, as in `kit.DataParallel`.
        processes: more than 1: so many are started on this machine, each with as many devices; the
            workload must be in a module that they can import. For several hosts see
            `kit.join_processes` and `kit run --rank`.
        label: what reports and diffs call this run, such as "before"; else its file's name does.
        progress: called with a text and a fraction of the whole, between steps; true: a bar.
        cancelled: asked between steps and while it waits; true ends the run with `Cancelled`.
        options: settings by name: `kit.run(mine, width=128)`; with several devices or processes as
            for `kit.DataParallel`: bucket_mb, cut, link, and timeout_s, how long each waits.

    Raises:
        KitError: settings that cannot be; anything that the step raises comes through with a note.
    """
    from kit.measure.base.turns import TURNS, waiting

    placement, chosen = _asked(workload, settings, devices, processes, options)
    with contextlib.ExitStack() as turn:
        report = turn.enter_context(progress_or_bar(progress or False, "run"))
        with bar_when_told("run") as tell:
            turn.enter_context(TURNS.measure(cancelled=cancelled, tell=waiting(report) or tell))
        made = placement.run(chosen, progress=report, cancelled=cancelled)
    return replace(made, label=str(label)) if label else made


def plan(workload: Any, settings: Settings | None = None) -> OpStream:
    """Record one step of a workload without running it: the op stream that `kit.PlanView` shows.

    `kit.ir.plan.plan(stream, forward, backward)` cuts it by any bulk sizes, as the runtime would.

    Raises:
        SettingsError: mode "torch" has no op stream.
    """
    from kit.measure.kit_run import record_plan

    chosen = settings or Settings()
    if chosen.mode == "torch":
        raise SettingsError("mode 'torch' runs without kit's runtime, so nothing is cut there")
    return record_plan(workload, chosen)


def sweep(
    workload: Any,
    grid: Mapping[str, Sequence[Any]],
    settings: Settings | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    progress: Progress | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    **options: Any,
) -> list[Run]:
    """A run for each combination of the grid's values, the last name varying fastest.

    An interrupt loses nothing that was measured, and with a `path` the same call goes on later.

    Args:
        workload: what `@kit.workload` decorates.
        grid: values by the setting's name.
        settings: of all that the grid does not name; `kit.Settings()` if not given.
        path: a folder. Each finished run is saved there at once; one that is there already, of this
            code (with what it reads; of tensors the shapes, of objects what makes them, no files)
            under these settings, is loaded. Another is measured again: a warning says why.
        executor: any `concurrent.futures.Executor`, also that of a dask cluster
            (`client.get_executor()`): one task a cell, each with an `ExecutableCache` of its own.
            Cells that run at the same time on one machine disturb each other's timing, so each
            run says so in `environment["measured in parallel"]`.
            Threads of one process take turns, because torch's random state and the profiler
            belong to the process. A process pool has to be made with the "spawn" context; on one
            GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false lets its processes share the memory.
        devices, processes, options: of each run, as for `kit.run`.
        progress: called with a text and a fraction of the whole. By default a bar, in a notebook
            or on a terminal; false: none.
        cancelled: asked between steps; true ends the sweep with `Cancelled`.

    Raises:
        SettingsError: a name or a value is wrong; nothing has been run then.
        SweepError: some cells failed; all the others were run, and are in its `runs`.
        SweepInterrupted: an interrupt (also a KeyboardInterrupt); what is done is in its `runs`.
        Cancelled: `cancelled()` became true.
        BaseException: what the handler of a signal has raised; what is done is in its `runs`.
    """
    from kit.measure.search.sweeps import sweep as measure

    placement, base = _asked(workload, settings, devices, processes, options)
    with progress_or_bar(progress, "sweep") as report:
        return measure(placement, grid, base, path=path, executor=executor, progress=report,
                       cancelled=cancelled)  # fmt: skip


def compare(
    workload_or_runs: Any,
    settings: Sequence[Settings] | None = None,
    *,
    baseline: int = 0,
    repeats: int = 1,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    progress: Progress | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    **options: Any,
) -> Comparison:
    """Several settings of one workload, or finished runs, side by side.

    In a notebook: a table, and the timelines on one time axis. On a terminal: the table.
    `kit.compare(bert, [kit.Settings(loss_scaling=s) for s in ("none", "dynamic, host check")])`

    Args:
        workload_or_runs: what `@kit.workload` decorates; or one finished run or several, which are
            taken as they are.
        settings: one run for each; they share what they compile. Not given with finished runs.
        baseline: the place of the run that the others are compared with.
        repeats: how often to measure each, all settings in turn, so that a machine that is slow
            for a while is slow for all. The run with the median step time is shown, and all of
            them say how sure a difference is; they are in `repeats` of the comparison.
        devices, processes, options: of each run, as for `kit.run`.
        progress: as for `kit.sweep`.
        cancelled: asked between steps; true ends it with `Cancelled`, and nothing is kept.

    Raises:
        SettingsError: there is nothing to compare, or an argument is wrong; nothing has been run.
        Exception: whatever the workload raises, unchanged.
    """
    from kit.widgets.compare.data import check_baseline
    from kit.widgets.compare.view import Comparison

    if isinstance(workload_or_runs, Run | Iterable):
        if settings is not None or (repeats, devices, processes, options) != (1, 1, 1, {}):
            raise SettingsError("these runs are finished; give the workload itself to run it")
        if isinstance(workload_or_runs, Run):
            return Comparison((workload_or_runs,), baseline)
        return Comparison(tuple(workload_or_runs), baseline)
    from kit.measure.many.placement import placed
    from kit.measure.search.rounds import measure_in_turn
    from kit.runs.change import median_run

    placement, changes = placed(workload_or_runs, devices, processes, options)
    given = [settings] if isinstance(settings, Settings) else list(settings or ())
    cells = [placement.workload.fit(x, changes) for x in given] if changes else given
    check_baseline(baseline, max(len(cells), 1))
    with progress_or_bar(progress, "compare") as report:
        made = measure_in_turn(placement, cells, repeats, progress=report, cancelled=cancelled)
    every = tuple(map(tuple, made))
    return Comparison(tuple(map(median_run, every)), baseline, every)


def autotune(
    workload: Any,
    settings: Settings | None = None,
    *,
    budget_s: float = 60.0,
    vary: Mapping[str, Sequence[Any]] | None = None,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    progress: Progress | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    **options: Any,
) -> Tuned:
    """The fastest settings that can be found in a time, without changing what is computed.

    `tuned = kit.autotune(bert); print(tuned.summary()); kit.run(bert, tuned.best)`. In a notebook
    `tuned` shows step time against compile time.

    Varied are the bulk size (5, 15, 50, 200 and none: mode "lazy"), `step_mode`, `segment_mode`,
    `prefetch` (0, 2) and, if the loss scaling is dynamic, the dynamic modes, which give the same
    weights. Settings whose losses differ from those of the given ones are shown and never chosen.
    The chosen ones win by more than the spread of the measurement; if none does, the simplest is
    chosen, which may be what was given.

    Args:
        workload: what `@kit.workload` decorates.
        settings: where the search starts; `kit.Settings()` if not given.
        budget_s: no run begins after so many seconds. The given settings are always measured.
        vary: values by name, instead of or beside the above; `{"prefetch": [0]}` keeps that one.
            A batch size, `accumulate` or `dtype` changes the training, so it is varied only if
            named here. Times are then compared by sample, and losses among equal trainings.
        devices, processes, options: of each run, as for `kit.run`.
        progress: called with a text and a fraction of the budget. By default a bar, in a notebook
            or on a terminal; false: none.
        cancelled: asked between steps; true ends the search with `Cancelled`.

    Raises:
        SettingsError: a name or a value is wrong; nothing has been run then.
        Exception: what the workload raises under the given settings. Under others an exception
            only rules them out.
    """
    from kit.measure.search.autotune import autotune as search

    placement, start = _asked(workload, settings, devices, processes, options)
    with progress_or_bar(progress, "autotune") as report:
        return search(placement, start, budget_s=budget_s, vary=vary, progress=report,
                      cancelled=cancelled, draw=_draw_tuned)  # fmt: skip


def _asked(workload: Any, settings: Settings | None, *where: Any) -> tuple[Placement, Settings]:
    """A workload and where it runs, and its settings, those among the options included."""
    from kit.measure.many.placement import placed

    placement, changes = placed(workload, *where)
    return placement, placement.workload.fit(settings, changes)


def _draw_tuned(tuned: Tuned) -> Any:
    """The view that a notebook shows of it; None elsewhere."""
    if not in_kernel():
        return None
    from kit.widgets.numbers.tradeoff import TradeoffView

    view = TradeoffView(tuned.tried, tuned.summary())
    view.said = repr(tuned)
    return view


def Session(
    settings: Settings | None = None,
    *,
    rules: Rules | None = None,
    strict: bool = False,
    **options: Any,
) -> RuntimeSession:
    """A lazy-tensor session: inside `with kit.Session():`, `device="kit"` works in torch.

    Args:
        settings: how steps are recorded, cut, checked and run; `kit.Settings()` if not given. What
            a builder follows, such as the batch size, has no effect here.
        rules: lowering rules; yours: `kit.DEFAULT_RULES | kit.Rules({"aten.x.default": function})`.
        strict: an op without a rule raises `UnsupportedOp`; it runs on the host otherwise.
        options: settings by name: `kit.Session(bulk_forward=50)`.

    Raises:
        SettingsError: a name or a value is wrong, or the mode is "torch".
    """
    from kit.runtime.rules.default import DEFAULT_RULES
    from kit.torch.device import open_session

    settings = Settings.checked(Settings() if settings is None else settings)
    settings = settings.replace(**options) if options else settings
    if settings.mode == "torch":
        raise SettingsError(
            "mode 'torch' runs without device kit, so there is no session of it: run the program "
            "on its own device, and measure it with kit.watch or kit.run"
        )
    return open_session(settings, rules=rules or DEFAULT_RULES, strict=strict)


def bulk(size: int | tuple[int, int]) -> contextlib.AbstractContextManager[None]:
    """Inside `with kit.bulk(size):` this thread's segments hold `size` ops, as MXNet's `bulk` did.

    The block's end issues what is left, also when an exception leaves it. Scopes nest, and only
    this thread's ops are affected: each thread has its own size.

    Args:
        size: ops a segment; or (forward, backward).

    Raises:
        SettingsError: the size is not a whole number of at least 1.
        SessionError: no session is open here.
    """
    return _session("kit.bulk").bulk_scope(size)


def set_bulk_size(size: int | tuple[int, int]) -> int | tuple[int, int]:
    """Ops a segment from now on, in this thread; gives the size of before, to put it back.

    What has been recorded is issued at once if it is more than that.

    Raises:
        SettingsError: the size is not a whole number of at least 1.
        SessionError: no session is open here.
    """
    return _session("kit.set_bulk_size").set_bulk_size(size)


def _session(name: str) -> RuntimeSession:
    from kit.runtime.session.session import session_for

    return session_for(name)


def Explorer(
    workload: Any,
    settings: Settings | None = None,
    *,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    auto_run: bool = True,
    compile_ahead: bool = True,
    **options: Any,
) -> ExplorerWidget:
    """The widget: controls that rerun the step, and its timeline, graph and sync points.

    Display it as the last line of a notebook cell. `explorer.run` is the newest run. A move of a
    control is answered by a model at once, and by a measurement as soon as it is done.

    Args:
        devices, processes, options: of each run, as for `kit.run`. With several no model answers
            at once, and nothing is compiled ahead; processes are started anew for each run.
        auto_run: run at once, not only when a control is moved.
        compile_ahead: while nothing runs, no cell either, compile what one step of each control
            would need. The workload's Python is called for that, and nothing of it is run on the
            device. There is a box in the widget to switch it off, too.

    Raises:
        SettingsError: an option that cannot be.
    """
    from kit.measure.base.openmp import let_go_after_cells
    from kit.measure.search.prepare import Prepared
    from kit.reports.html import write_report
    from kit.widgets.explorer.view import Explorer as Widget

    placement, chosen = _asked(workload, settings, devices, processes, options)
    let_go_after_cells()
    prepared = Prepared(placement)  # what is compiled stays: going back to a setting is quick
    return Widget(
        prepared.run,
        chosen,
        name=prepared.name,
        auto_run=auto_run,
        write_report=write_report,
        prepare=prepared.prepare if compile_ahead and placement.is_alone else None,
    )


def report(
    source: Any,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    path: str | Path = "report.html",
    *,
    settings: Settings | None = None,
    title: str | None = None,
    devices: int | Sequence[str] = 1,
    processes: int = 1,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Path:
    """Write one HTML file whose sliders move over recorded runs, with no kernel and no network.

    Args:
        source: a workload, which is run for each combination in `sweep`; a run; several; or ranks.
        sweep: values by setting; nine to thirty runs make a good report.
        path: the file; it is replaced only when the new one is complete.
        devices, processes, options: of each run, as for `kit.run`.
        progress: as for `kit.sweep`.

    Raises:
        SettingsError: `sweep`, `settings` or devices were given with finished runs, there are no
            runs, or `path` ends in neither .html nor .md.
        OSError: the file cannot be written, or `path` is a pipe, a device or a folder.
    """
    from kit.reports.html import write_report
    from kit.reports.ranks import write_ranks
    from kit.reports.target import check_report_target, keeping

    second: object = sweep
    if isinstance(second, str | os.PathLike):
        name = os.fspath(second)
        raise SettingsError(f"the second argument is what to sweep: give the file as path={name!r}")
    check_report_target(path)
    if isinstance(source, Run):
        source = [source]
    if isinstance(source, Ranks) or (
        isinstance(source, Sequence) and all(isinstance(x, Run) for x in source)
    ):
        if (sweep, settings, devices, processes, options) != (None, None, 1, 1, {}):
            raise SettingsError("these runs are finished; give the workload itself to sweep it")
        if isinstance(source, Ranks):
            return write_ranks(source, path, title=title)
        return write_report(list(source), path, title=title)
    from kit.measure.search.sweeps import sweep as measure

    placement, base = _asked(source, settings, devices, processes, options)
    grid = DEFAULT_SWEEP if sweep is None else sweep
    with keeping([]) as runs, progress_or_bar(progress, "report") as tell:
        runs += measure(placement, grid, base, progress=tell)
        return write_report(runs, path, title=title)
