"""The baseline of jax: what a step of jax.jit waits for."""

from __future__ import annotations

from kit.measure.native.jax import _with_waits
from kit.runtime.profiling.elsewhere import Look
from kit.trace import Span, Timeline


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
