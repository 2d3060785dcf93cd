"""A `Run` from a foreign trace: the timeline, and what can be said without having run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

from kit.runs.compiles import COMPILED_MS, COMPILES
from kit.runs.conditions import Conditions
from kit.runs.labels import IMPORTED
from kit.runs.run import EXPORTED_AS, KNOWN_FRACTION, MEASURED_WAITS, Run
from kit.runs.settings import Settings
from kit.text import format_percent
from kit.trace.communication import copy_totals
from kit.trace.devices import at_work, by_device
from kit.trace.imported import TOGETHER, Imported
from kit.trace.kernels import after_steps_fraction, wrong_times

__all__ = ["run_of"]

_SAID = 0.01  # less is the last kernel or two
_LATE = "comes after the last step, and is in no number of a step: steps are what the host did"
_STRAY = "ran next to nothing: it is not counted among the devices, and why it was idle is not told"
_TRACED = "step times include what the profiler cost: the file has no step without it"


def run_of(imported: Imported, file: Path) -> Run:
    """The run that a trace shows.

    A foreign trace has traced steps only: they stand for the measured ones too, and a note of the
    timeline says so.
    Settings that the file does not tell are the defaults; mode "torch" means: not by kit's runtime.
    """
    t = replace(imported.timeline, notes=tuple(dict.fromkeys(_notes(imported))))
    steps = t.intervals(kind="step")
    times = imported.step_times_ns
    if times is None:
        times = tuple((steps[:, 1] - steps[:, 0]).tolist())
    environment = {IMPORTED: imported.format, **imported.environment}
    environment.pop(EXPORTED_AS, None)  # a file that has no measured steps may say it, too
    if imported.exported_as:
        environment[EXPORTED_AS] = imported.exported_as
    numbers = imported.conditions
    metrics = {x: numbers[x] for x in (KNOWN_FRACTION, COMPILES, COMPILED_MS) if x in numbers}
    if imported.exported_as and imported.sync_points is not None:
        metrics[MEASURED_WAITS] = float(len(imported.sync_points))
    has_gpu = any(lane.startswith("device/") and "stream" in lane.lower() for lane in t.lanes)
    is_tpu = imported.environment.get("device") == "tpu"
    return Run(
        settings=Settings(
            mode="torch",
            steps=max(1, len(times)),
            warmup=0,
            device="gpu" if has_gpu else "auto" if is_tpu else "cpu",
        ),
        losses=(),
        step_times_ns=times,
        timeline=t,
        sync_points=(imported.sync_points or ()) if MEASURED_WAITS in metrics else t.syncs,
        metrics=metrics,
        environment=environment,
        memory=imported.memory,
        copies=copy_totals(imported.member.copies),
        name=imported.name or file.name,
        file=str(file),
        callers=imported.callers,
        conditions=_conditions(numbers),
        sorts=imported.sorts,
    )


def _notes(imported: Imported) -> Iterator[str]:
    """The timeline's own, and what else is to be known of its times."""
    t = imported.timeline
    yield from t.notes
    if imported.step_times_ns is None and t.steps:
        yield _TRACED
    if (late := after_steps_fraction(t)) >= _SAID:
        yield f"{format_percent(late)} of the kernels' time that the steps launched {_LATE}"
    for device in sorted(by_device(t, "kernel").keys() - at_work(t).keys()):
        yield f"{device} {_STRAY}"
    if TOGETHER not in imported.environment:  # else a kernel may be joined to another one's call
        yield from wrong_times(t).notes


def _conditions(said: Mapping[str, float]) -> Conditions:
    """What a run of kit knew of the machine, from its own export."""
    return Conditions(**{f.name: said[f.name] for f in fields(Conditions) if f.name in said})
