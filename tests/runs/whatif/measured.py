"""Runs to predict from: a synthetic one that knows its costs, with the check of a loss scale."""

from __future__ import annotations

from dataclasses import replace

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.waits import SCALER
from tests.factories import make_run

CHECK, ON_DEVICE = "dynamic, host check", "dynamic, on device"
OVERHEADS = {"overhead.launch_ns": 7_000.0, "overhead.sync_ns": 9_000.0}


def measured(settings: Settings | None = None, **more: int) -> Run:
    """A synthetic run that also knows what a launch and a wait cost."""
    run = make_run(settings, **more)
    return replace(run, metrics=OVERHEADS, environment={"device": "cpu (cpu)"})


def with_scaler(settings: Settings | None = None) -> Run:
    """The same, whose one wait is the loss-scale check, in the midst of the step."""
    run = measured((settings or Settings()).replace(loss_scaling=CHECK), syncs=2)
    syncs = [
        replace(s, site="train.py:41", via=f"torch/amp/{SCALER}:371")
        for s in run.timeline.syncs[::2]
    ]
    return replace(run, timeline=replace(run.timeline, syncs=tuple(syncs)))
