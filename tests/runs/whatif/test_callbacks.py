"""Host callbacks in predictions: Python functions that a program calls are no work of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import predict
from kit.trace import Timeline
from kit.trace.kinds import KINDS
from tests.runs.whatif.measured import measured


def calling() -> tuple[Run, int]:
    """A run one op of which calls Python, and that op."""
    run = measured(Settings(mode="lazy"), syncs=0)
    t = run.timeline
    kernels = t.where(kind="kernel")
    op = int(t.node[kernels][-1])
    kinds = np.where(kernels & (t.node == op), KINDS.index("callback"), t.kind)
    return replace(run, timeline=replace(t, kind=kinds)), op


def lengths(timeline: Timeline, kind: str) -> float:
    return float(np.diff(timeline.intervals(kind=kind)).sum())


def test_a_replay_shows_callbacks_where_the_run_had_them() -> None:
    run, _ = calling()
    made = predict(run)
    assert made.step_ms == pytest.approx(run.step_ms, rel=1e-3)
    kernels, calls = (lengths(run.timeline, kind) for kind in ("kernel", "callback"))
    found = lengths(made.timeline, "callback")
    share = found / (found + lengths(made.timeline, "kernel"))
    # A program itself costs something, which is no callback.
    assert share == pytest.approx(calls / (kernels + calls), rel=0.2)
    none = predict(measured(Settings(mode="lazy"), syncs=0)).timeline
    assert not none.where(kind="callback").any()


def test_on_a_faster_device_a_callback_takes_as_long() -> None:
    run, _ = calling()
    own, made = predict(run), predict(run, device_speed=10)
    calls = lengths(own.timeline, "callback")
    assert lengths(made.timeline, "callback") == calls > 0
    kernels = lengths(own.timeline, "kernel")
    assert lengths(made.timeline, "kernel") == pytest.approx(kernels / 10, rel=1e-3)
    assert any("host callbacks take as long" in text for text in made.assumptions)
    plain = predict(measured(), device_speed=10)
    assert not any("host callbacks" in text for text in plain.assumptions)


@pytest.mark.parametrize("changes", [{"mode": "imperative"}, {"accumulate": 2}])
def test_where_the_ops_are_cut_again_a_callback_is_of_its_op(changes: dict[str, Any]) -> None:
    run, op = calling()
    assert run.graphs[0].nodes[op].phase == "update"  # which is not repeated
    own, made = predict(run).timeline, predict(run, run.settings.replace(**changes)).timeline
    assert len({s.segment for s in made.spans if s.kind == "callback"}) == 1
    assert lengths(made, "callback") == pytest.approx(lengths(own, "callback"), rel=0.01)
