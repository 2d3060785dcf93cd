"""Loaders in predictions: what a thread that loads takes from the host, and what it hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import costs_of
from kit.runs.whatif.predict import calibrated, predict
from kit.runs.whatif.steps import Shape, step_ns
from kit.trace import Span, Timeline
from kit.trace.kinds import KINDS
from tests.runs.whatif.measured import measured


def test_a_host_that_sleeps_does_not_record_meanwhile_and_leaves_python_to_the_worker() -> None:
    run = measured(Settings(mode="imperative"), syncs=0)
    records = [s for s in run.timeline.spans if s.kind == "record" and s.name == "forward"]
    half = [
        Span(s.lane, "mine.py:3", "elsewhere", s.start_ns, (s.start_ns + s.stop_ns) // 2)
        for s in records
    ]
    sleepy = replace(run, timeline=Timeline.of([*run.timeline.spans, *half]))
    own, found = costs_of(run), costs_of(sleepy)
    ops = sum(run.graphs[0].nodes[i].phase == "forward" for i in run.graphs[0].ops)
    slept = min(  # the step that had least of it
        sum(s.stop_ns - s.start_ns for s in half if begin <= s.start_ns < end)
        for begin, end in run.timeline.intervals(kind="step").tolist()
    )
    assert found.away["forward"] * ops == pytest.approx(slept, rel=0.01)
    assert found.record["forward"] < own.record["forward"]
    assert own.away == {}
    made = predict(sleepy, sleepy.settings.replace(mode="lazy")).timeline
    shown = made.intervals(kind="elsewhere")
    assert np.diff(shown).sum() / len(made.intervals(kind="step")) == pytest.approx(slept, rel=0.01)
    assert calibrated(replace(sleepy, step_times_ns=(9 * sleepy.step_times_ns[0],))).away == (
        found.away
    )  # a sleep takes as long in a trace
    replayed = predict(sleepy, sleepy.settings.replace(step_mode="replay")).timeline
    assert not replayed.where(kind="elsewhere").any()


def with_loading(run: Run, lane: str, asleep: float) -> tuple[Run, int]:
    """The same, loading a batch in the first half of each step's forward; so much of it asleep."""
    steps = [s for s in run.timeline.spans if s.kind == "step"]
    records = [s for s in run.timeline.spans if s.kind == "record" and s.name == "forward"]
    first = [next(s for s in records if s.start_ns >= step.start_ns) for step in steps]
    halves = [(s.start_ns, (s.stop_ns - s.start_ns) // 2) for s in first]
    loads = [Span(lane, "next batch", "input", at, at + ns) for at, ns in halves]
    sleeps = [Span(lane, "mine.py:3", "elsewhere", at, at + round(ns * asleep))
              for at, ns in halves if asleep]  # fmt: skip
    spans = [s for s in run.timeline.spans if s.kind != "input"] + loads + sleeps
    return replace(run, timeline=Timeline.of(spans)), min(ns for _, ns in halves)


def test_a_loader_that_sleeps_is_counted_once_and_takes_as_long_in_a_trace() -> None:
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.8)
    own = costs_of(run)
    assert own.away.get("forward", 0.0) == 0.0  # it is the loader's
    assert own.inputs + own.inputs_away == pytest.approx(took, rel=0.01)
    assert own.inputs_away == pytest.approx(0.8 * took, rel=0.01)
    quick = calibrated(replace(run, step_times_ns=(run.step_times_ns[0] * 3 // 4,)))
    assert quick.inputs_away == own.inputs_away
    assert quick.inputs < own.inputs
    short = replace(run, step_times_ns=(round(own.inputs_away / 2),) * 10)
    assert predict(short).step_ms == pytest.approx(short.step_ms, rel=0.01)  # it slept less then
    made = predict(run, run.settings.replace(mode="lazy")).timeline
    loaded = made.intervals(kind="input", lane="host/main")
    assert np.diff(loaded).sum() / len(made.intervals(kind="step")) >= own.inputs_away


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_a_sleep_that_was_seen_in_one_step_only_is_one_of_all(seen: int) -> None:
    """Looks come once a millisecond, and miss short sleeps: the others pass for Python."""
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.8)
    sleeps = [s for s in run.timeline.spans if s.kind == "elsewhere"]
    assert len(sleeps) == run.timeline.steps == 3
    missed = {s for i, s in enumerate(sleeps) if i != seen}
    kept = Timeline.of([s for s in run.timeline.spans if s not in missed])
    found = costs_of(replace(run, timeline=kept))
    assert found.inputs_away == pytest.approx(0.8 * took, rel=0.25)
    assert found.inputs + found.inputs_away == pytest.approx(took, rel=0.05)
    never = [s for s in run.timeline.spans if s not in set(sleeps)]
    assert costs_of(replace(run, timeline=Timeline.of(never))).inputs_away == 0


def test_one_long_sleep_among_the_steps_is_none_of_all() -> None:
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.0)
    last = run.timeline.intervals(kind="step")[-1][1]
    long = [Span("host/main", what, kind, last - 9 * took, last)
            for what, kind in (("next batch", "input"), ("mine.py:3", "elsewhere"))]  # fmt: skip
    found = costs_of(replace(run, timeline=Timeline.of([*run.timeline.spans, *long])))
    assert found.inputs + found.inputs_away == pytest.approx(took, rel=0.05)


def test_another_prefetch_says_what_loading_was_taken_for() -> None:
    run, _ = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.8)
    ahead = predict(run, run.settings.replace(prefetch=2)).assumptions
    assert [said for said in ahead if "in turns with recording, and sleeps" in said]
    loaded, _ = with_loading(measured(Settings(mode="lazy", prefetch=2), syncs=0), "host/loader", 0)
    alone = predict(loaded, loaded.settings.replace(prefetch=0)).assumptions
    assert [said for said in alone if "while the host recorded is not seen" in said]
    assert not [said for said in predict(run).assumptions if "loading takes" in said]


def test_while_a_worker_prepares_a_launch_the_loader_has_no_lock() -> None:
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.0)
    spans = [s for s in run.timeline.spans if s.kind not in ("dispatch", "kernel")]
    alone = replace(run, timeline=Timeline.of(spans))
    assert costs_of(alone).inputs == pytest.approx(took, rel=0.01)
    loads = [s for s in spans if s.kind == "input"]
    launches = [
        Span("host/worker", "launch", "dispatch", s.start_ns, s.start_ns + took // 4) for s in loads
    ]
    beside = replace(run, timeline=Timeline.of([*spans, *launches]))
    assert costs_of(beside).inputs == pytest.approx(0.75 * took, rel=0.02)
    kernels = [replace(s, lane="device/0", kind="kernel") for s in launches]  # these need no lock
    busy = replace(run, timeline=Timeline.of([*spans, *launches, *kernels]))
    assert costs_of(busy).inputs == pytest.approx(took, rel=0.01)


def test_a_loader_of_python_hides_nothing_and_one_that_sleeps_hides_all() -> None:
    """Beside a host that records, and so has Python's lock, the device having next to no work."""
    run = measured(Settings(mode="lazy"), syncs=0)
    graph, segments = run.graphs[0], run.segments
    took = 100_000 * len(graph.ops)  # to record a step, and to load a batch
    record = dict.fromkeys(("forward", "backward", "update"), 100_000.0)
    own = replace(costs_of(run), record=record, inputs=0.0, inputs_away=0.0)
    ahead = Shape(graph, segments, (0.0,) * len(segments), prefetch=2)
    alone = step_ns(replace(ahead, prefetch=0), own)
    assert step_ns(ahead, replace(own, inputs=took)) == pytest.approx(alone + took, rel=0.05)
    asleep = replace(own, inputs_away=0.9 * took)
    assert step_ns(ahead, asleep) == pytest.approx(alone, rel=0.05)
    assert step_ns(replace(ahead, prefetch=0), asleep) == pytest.approx(
        alone + 0.9 * took, rel=0.05
    )


def test_a_loader_beside_recording_waits_for_the_lock_and_one_beside_nothing_sleeps() -> None:
    run = measured(Settings(mode="lazy", prefetch=2), syncs=0)
    loading, _ = with_loading(run, "host/loader", 0.0)
    own = costs_of(loading)
    assert own.inputs > 0 == own.inputs_away
    last = run.timeline.intervals(kind="step")[-1][1]
    alone = Span("host/loader", "next batch", "input", last, last + 10_000_000)
    slow = replace(run, timeline=Timeline.of([*loading.timeline.spans, alone]))
    assert costs_of(slow).inputs_away > 0 == costs_of(slow).inputs


def test_what_a_callback_lasts_is_no_python_of_launching() -> None:
    """On a CPU a dispatch lasts as long as what it launched, be that a kernel or a callback."""
    run = replace(
        measured(Settings(mode="lazy"), syncs=0),
        metrics={"overhead.launch_ns": 7_000.0, "overhead.sync_ns": 90.0},
    )
    t = run.timeline
    t = replace(t, stop_ns=t.stop_ns + 100_000 * t.where(kind="dispatch"))
    kinds = np.where(t.where(kind="kernel"), KINDS.index("callback"), t.kind)
    own, called = (costs_of(replace(run, timeline=x)) for x in (t, replace(t, kind=kinds)))
    assert called.record == own.record
    assert called.inputs == own.inputs
