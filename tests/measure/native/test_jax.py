"""The baseline of jax: what a step of jax.jit waits for."""

from __future__ import annotations

from dataclasses import replace

from kit.measure.native.jax import _with_waits
from kit.runs.run import BASELINE, JIT
from kit.runs.settings import Settings
from kit.runs.verdict.verdict import verdict
from kit.runtime.profiling.elsewhere import Look
from kit.trace import Span, Timeline
from tests.factories import make_run


def test_what_the_baseline_waits_in_a_read_is_the_devices_and_no_sleep() -> None:
    spans = [
        Span("host/main", "step 0", "step", 0, 10_000_000),
        Span("host/main", "step", "dispatch", 0, 10_000_000),
        Span("device/0 thread 1", "dot", "kernel", 0, 2_000_000),
    ]
    looked = [
        Look(at * 1_000_000, 0, True, ("train.py", 7), 0, 0, "lock", in_read=True)
        for at in range(4, 8)
    ]
    found = _with_waits(Timeline.of(spans), looked)
    assert found.intervals(kind="ahead").tolist() == [[4_000_000, 7_000_000]]
    assert found.intervals(kind="elsewhere").tolist() == []
    assert found.intervals(kind="dispatch").tolist() == [[0, 4_000_000], [7_000_000, 10_000_000]]


def test_a_wait_that_may_be_a_copy_by_numpy_is_not_said_to_be_for_something_else() -> None:
    """`np.asarray(x)` has no function of Python's: its wait for the device looks like a lock."""
    spans = [
        Span("host/main", "step 0", "step", 0, 100),
        Span("host/main", "train.py:3", "elsewhere", 0, 90),
        Span("device/0 thread 1", "dot", "kernel", 95, 100),
    ]
    made = make_run(Settings(mode="torch"))
    environment = {**made.environment, BASELINE: JIT}
    made = replace(made, timeline=Timeline.of(spans), environment=environment)
    found = verdict(replace(made, step_times_ns=(100,) * 20))
    assert found is not None
    for said in (found.said, found.advice[0].text):
        assert "np.asarray(x)" in said
        assert "something else than the device" not in said
