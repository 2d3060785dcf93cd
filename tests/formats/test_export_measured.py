"""What an export says beside its spans: of the measured steps, and of what launched a kernel."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kit
from kit.runs.analysis.headline import headline_text
from kit.runs.change import time_notes
from kit.runs.compiles import Compile
from kit.runs.device.callers import callers_text
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace.imported import Caller
from kit.trace.metrics import waits_of
from tests.factories import make_run, native_run


def again(run: Run, folder: Path, said: dict[str, Any] | None = None) -> Run:
    path = kit.export_trace(run, folder / "trace.json")
    if said is not None:
        data = json.loads(path.read_text())
        data["otherData"] |= said
        path.write_text(json.dumps(data))
    return kit.open_trace(path)


def compiling(fraction: float) -> Run:
    """Half of the 200 measured steps compile a program each; the traced ones compile nothing."""
    run = make_run()
    each_ms = fraction * sum(run.step_times_ns) / 1e6 / 100
    notes = tuple(
        Compile(step, 0, "forward", "shape", "shape changed", 5, compile_ms=each_ms)
        for step in range(run.settings.warmup, run.settings.warmup + 100)
    )
    return replace(run, compiles=notes)


@pytest.mark.parametrize("fraction", [0.12, 0.6])
def test_an_export_keeps_what_the_measured_steps_compiled(tmp_path, fraction: float):
    """It opened as "sync-bound (15% of the step)", without a word of compiling."""
    run = compiling(fraction)
    opened = again(run, tmp_path)
    for found in (opened, again(opened, tmp_path)):
        assert found.measured.compiled_text == run.measured.compiled_text != ""
        assert found.limited_by() == run.limited_by()
    assert (opened.limited_by().what == "compile") == (fraction > 0.5)


def test_an_export_keeps_the_waits_of_the_measured_steps(tmp_path):
    """The card had the traced steps' wait beside the measured steps' time."""
    run = make_run()
    run = replace(run, sync_points=tuple(replace(s, wait_ns=700_000) for s in run.sync_points))
    opened = again(run, tmp_path)
    for found in (opened, again(opened, tmp_path)):
        assert found.sync_points == run.sync_points != run.timeline.syncs
        assert waits_of(found) == waits_of(run)
        assert headline_text(found) == headline_text(run)
    assert opened.timeline.syncs == run.timeline.syncs
    ask = "select site, syncs, wait_ms from lines where syncs > 0"
    assert opened.query(ask).rows == run.query(ask).rows
    opened.save(tmp_path / "opened.kitrun")
    assert waits_of(Run.load(tmp_path / "opened.kitrun")) == waits_of(run)


def test_an_export_keeps_that_nothing_waited(tmp_path):
    opened = again(replace(make_run(), sync_points=()), tmp_path)
    assert opened.headline().sync_wait_ms == 0
    assert opened.timeline.syncs


def test_the_waits_of_a_native_run_are_those_of_its_traced_steps(tmp_path):
    opened = again(make_run(Settings(mode="torch")), tmp_path)
    assert not opened.sees_waits_untraced
    assert opened.sync_points == opened.timeline.syncs


def test_an_export_keeps_that_the_traced_steps_differ(tmp_path):
    run = replace(make_run(), sorts=(0, 0, 2))
    assert "step 2 did other ops" in " ".join(time_notes(run))
    assert time_notes(again(run, tmp_path)) == time_notes(run)


@pytest.mark.parametrize(
    "said",
    [
        {"sync_points": [[0, 1, 2, 3]]},
        {"sync_points": [[0, 1, -2]]},
        {"sync_points": [[True, 1, 2]]},
        {"sync_points": [[0, 1 << 60, 2]]},
        {"sync_points": [[7, 1, 2]]},
        {"sync_points": {"0": 1}},
        {"places": [["item", "train.py:1"]]},
        {"places": 3},
        {"step_times_ns": "none"},
        {"origin": "by hand"},
        {"sorts": [0, 0, 3]},
        {"sorts": [0, "0", 1]},
        {"sorts": [0]},
    ],
    ids=str,
)
def test_what_a_stranger_writes_of_measured_steps_is_not_believed(tmp_path, said: dict[str, Any]):
    opened = again(make_run(), tmp_path, {"sorts": [0, 0, 0]} | said)
    assert opened.sync_points == (
        make_run().sync_points if "sorts" in said else opened.timeline.syncs
    )
    assert opened.sorts == (() if "sorts" in said else (0, 0, 0))
    opened.save(tmp_path / "opened.kitrun")
    Run.load(tmp_path / "opened.kitrun")


def with_callers() -> Run:
    """Each kernel of a native run was launched by the same op, at one line of one module."""
    run = native_run()
    t = run.timeline
    node = np.where(t.where(kind="kernel"), 0, -1).astype(np.int32)
    caller = Caller("aten::mm", ("Net_0", "Linear_3"), (), "train.py:41", calls=1, kernels=6)
    return replace(run, timeline=replace(t, node=node), callers=(caller,))


def test_a_kernel_of_a_native_run_says_its_op_module_and_line(tmp_path):
    path = kit.export_trace(with_callers(), tmp_path / "trace.json")
    kernels = [
        e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "kit.kernel"
    ]
    said = {"node": 0, "op": "aten::mm", "scope": "Net_0/Linear_3", "site": "train.py:41"}
    assert kernels[0]["args"] == said
    with open(kit.export_trace(with_callers(), tmp_path / "trace.csv"), newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["kind"] == "kernel")
    assert (row["op"], row["scope"], row["site"]) == ("aten::mm", "Net_0/Linear_3", "train.py:41")


def test_an_export_without_callers_does_not_blame_the_trace(tmp_path):
    """It asked for with_modules=True, with which the trace had been made."""
    said = callers_text(again(with_callers(), tmp_path), "module")
    assert "kit.export_trace" in said
    assert "with_modules" not in said
