"""Traced steps that a profiler made longer: what is said of the measured ones is true of these."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.runs.analysis.headline import busy_of, headline_differences, headline_text
from kit.runs.change import time_notes
from kit.runs.verdict.verdict import verdict
from kit.trace import Span, Timeline, headline
from kit.trace.limits import BUSY, limited_by
from kit.widgets.base.cards import headline_html
from kit.widgets.compare.data import comparison_rows

MS = 1_000_000


def steps_of(kernels_ms: int, host_ms: int) -> Timeline:
    """Two steps: the host records all along, and the kernels run as early as they can."""
    whole = max(kernels_ms, host_ms)
    spans = []
    for i in range(2):
        at = i * whole * MS
        lengths = (("host/main", "step", whole), ("host/main", "record", host_ms))
        spans += [Span(lane, f"{kind} {i}", kind, at, at + ms * MS) for lane, kind, ms in lengths]
        stream = "device/0 stream 7"
        spans.append(Span(stream, "gemm", "kernel", at, at + kernels_ms * MS))
    return Timeline.of(spans, origin="profiled")


def run_of(kernels_ms: int, host_ms: int, slowed: int, device: str = "cuda (H100)") -> kit.Run:
    """Its traced steps' host is slowed by so many times, and the kernels are not."""
    step_ns = max(kernels_ms, host_ms) * MS
    timeline = steps_of(kernels_ms, host_ms * slowed)
    settings = kit.Settings(mode="torch", steps=3)
    return kit.Run(settings, (), (step_ns,) * 3, timeline, environment={"device": device})


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4))
def test_the_limit_is_that_of_the_steps_as_they_are_without_the_profiler(
    kernels: int, host: int, slowed: int
) -> None:
    run = run_of(kernels, host, slowed)
    truth = limited_by(steps_of(kernels, host))
    found = run.limited_by()
    assert (found.what == "device") == (truth.what == "device")
    if truth.what == "device":
        assert math.isclose(found.share, truth.share, rel_tol=0.1)  # what goes for equal lengths
    part, whole = run.busy_of_measured, max(kernels, host)
    traced = max(kernels, host * slowed)
    assert math.isnan(part) is (traced <= whole)
    if traced > whole:
        assert math.isclose(part, kernels / whole)
        assert math.isclose(run.headline().device_busy_fraction, kernels / whole)
    assert run.is_stretched is (traced > 1.1 * whole)


def test_busy_is_that_of_a_measured_step_and_said_of_both() -> None:
    run = run_of(kernels_ms=7, host_ms=20, slowed=3)
    assert run.headline().device_busy_fraction == 0.35
    assert "step 20 ms" in headline_text(run)
    assert "device busy 35% (12% of a traced step)" in headline_text(run)
    assert busy_of(run) == "of a measured step, 12% of a traced one"
    assert busy_of(run) in headline_html(run)
    (note,) = [text for text in time_notes(run) if "a traced step took 60 ms" in text]
    assert "fractions and parts of a step, but not device busy, are of traced steps" in note
    found = verdict(run)
    assert found is not None
    assert str(found.limit) == "recording-bound (88% of the traced step)"
    assert "need 35% of a measured step, so no more than 65% of that one is lost" in found.said


def test_two_runs_are_compared_as_they_are_without_the_profiler() -> None:
    """A native step, which it makes three times as long, and a replayed one, which it does not."""
    found = headline_differences(run_of(7, 20, slowed=3), run_of(7, 20, slowed=1))
    busy = found["device_busy_fraction"]
    assert (busy.old, busy.new) == (0.35, 0.35)
    assert not busy.is_changed
    rows = comparison_rows([run_of(7, 20, slowed=3), run_of(7, 20, slowed=1)])
    assert [row.device_idle_ms for row in rows] == [13, 13]


def test_a_step_that_waits_for_the_host_only_under_the_profiler_is_the_devices() -> None:
    run = run_of(kernels_ms=19, host_ms=20, slowed=3)
    assert headline(run.timeline).device_busy_fraction < BUSY
    found = verdict(run)
    assert found is not None
    assert str(found.limit) == "device-bound (95% of the step)"
    assert "where nothing is traced" in found.said
    assert "fewer ops in them is less work" in found.next_step


def test_traced_steps_that_did_other_work_say_nothing_of_measured_ones() -> None:
    """A validation pass among the traced steps: "device-bound (100%)", where the truth was 25 %."""
    run = replace(run_of(30, 60, 1), step_times_ns=(20 * MS,) * 3)
    assert math.isnan(run.busy_of_measured)
    assert run.headline().device_busy_fraction == 0.5
    tail = Span("device/0 stream 7", "gemm", "kernel", 60 * MS + 8 * MS, 60 * MS + 28 * MS)
    run = run_of(7, 20, 3)
    longer = Timeline.of([*run.timeline.spans, tail], origin="profiled")  # in one of two, 28 ms
    assert math.isnan(replace(run, timeline=longer).busy_of_measured)
    two_sorts = replace(run_of(7, 20, 3), sorts=(0, 1))
    assert math.isnan(two_sorts.busy_of_measured)
    assert not math.isnan(replace(two_sorts, sorts=(0, 0)).busy_of_measured)


def test_what_could_be_saved_is_of_the_step_that_the_limit_is_of() -> None:
    run = replace(run_of(180, 230, 1), step_times_ns=(200 * MS,) * 3)
    found = verdict(run)
    assert found is not None
    assert str(found.limit) == "device-bound (90% of the step)"
    assert "where nothing is traced" in found.said
    nearly = verdict(replace(run, timeline=steps_of(199, 230), step_times_ns=(220 * MS,) * 3))
    assert nearly is not None
    assert str(nearly.limit) == "device-bound (90% of the step)"
    assert "21 ms a step could be saved" in nearly.said


def test_on_a_cpu_the_kernels_are_slowed_with_the_host() -> None:
    run = run_of(7, 20, 3, device="cpu (Xeon)")
    assert math.isnan(run.busy_of_measured)
    assert "device busy 12%, " in headline_text(run)
