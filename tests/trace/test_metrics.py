"""Each metric against counting one nanosecond at a time, and on timelines made by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.trace import (
    CATEGORIES,
    KINDS,
    Span,
    SyncPoint,
    Timeline,
    breakdown,
    breakdown_ns,
    busy_fraction,
    headline,
    overlap_fraction,
    sync_table,
    union_ns,
)
from kit.trace.metrics import says_device
from tests.factories import empty_run, make_run, native_run, one_span_run

LANE = {"kernel": "device/0 kernels", "reduction": "device/0 reduction",
        "communication": "device/0 stream 20", "callback": "device/0 thread 9",
        "lower": "host/worker", "compile": "host/worker", "dispatch": "host/worker"}  # fmt: skip
PHASES = ["forward", "backward", "update"]
STARTS_AND_LENGTHS = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 30)), max_size=12)


LOADING = "of the loader's thread"


def span(kind: str, start: int, stop: int, name: str = "") -> Span:
    lane = "host/loader" if name == LOADING else LANE.get(kind, "host/main")
    return Span(lane, name, kind, start, stop)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any spans at all, and steps that follow each other."""
    kinds = st.sampled_from([k for k in KINDS if k != "step"])
    names = st.sampled_from([*PHASES, LOADING])
    rows = draw(
        st.lists(st.tuples(kinds, names, st.integers(-40, 80), st.integers(0, 40)), max_size=25)
    )
    edges = sorted(draw(st.lists(st.integers(-30, 70), max_size=5)))
    steps = [span("step", a, b, "step") for a, b in pairwise(edges)]
    return Timeline.of([*steps, *(span(k, a, a + n, name) for k, name, a, n in rows)])


def instants(t: Timeline, *kinds: str, name: str = "", loader: bool = False) -> set[int]:
    """Every nanosecond in which a span of one of these kinds went on."""
    return {
        i
        for s in t.spans
        if s.kind in kinds and name in ("", s.name) and (loader or s.lane != "host/loader")
        for i in range(s.start_ns, s.stop_ns)
    }


def charged_to(i: int, sets: dict[str, set[int]]) -> str:
    order = ["device busy", "communication", "host callback", "reduction", "compile", "dispatch",
             "sync wait", "input", "host waits elsewhere", "own code",
             *(f"{phase} recording" for phase in PHASES)]  # fmt: skip
    return next((category for category in order if i in sets[category]), "unknown")


def sets_of(t: Timeline) -> dict[str, set[int]]:
    return {
        "device busy": instants(t, "kernel"),
        "communication": instants(t, "communication"),
        "host callback": instants(t, "callback"),
        "reduction": instants(t, "reduction"),
        "compile": instants(t, "lower", "compile"),
        "dispatch": instants(t, "dispatch"),
        "sync wait": instants(t, "wait"),
        "input": instants(t, "input"),
        "host waits elsewhere": instants(t, "elsewhere"),
        "own code": instants(t, "own"),
    } | {
        f"{phase} recording": instants(t, "record", name=phase) - instants(t, "ahead")
        for phase in PHASES
    }


@given(STARTS_AND_LENGTHS)
def test_a_union_matches_counting_one_nanosecond_at_a_time(rows):
    intervals = np.array([(a, a + n) for a, n in rows], np.int64).reshape(-1, 2)
    assert union_ns(intervals) == len({i for a, n in rows for i in range(a, a + n)})


@given(timelines(), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_overlap_matches_counting_one_nanosecond_at_a_time(t, of, under):
    a, b = instants(t, of, loader=True), instants(t, under, loader=True)
    if a:
        assert overlap_fraction(t, of=of, under=under) == len(a & b) / len(a)
    else:
        with pytest.raises(TimelineError, match=f"needs '{of}' spans"):
            overlap_fraction(t, of=of, under=under)


@given(timelines())
def test_busy_matches_counting_one_nanosecond_at_a_time(t):
    busy, window = instants(t, "kernel"), instants(t, "step")
    if not t.where(kind="step").any() and len(t):
        window = set(range(int(t.start_ns.min()), int(t.stop_ns.max())))
    if any(lane.startswith("device/") for lane in t.lanes) and window:
        assert busy_fraction(t, lane="device") == len(busy & window) / len(window)
    else:
        with pytest.raises(TimelineError, match=r"no lane is called|lasts longer than 0 ns"):
            busy_fraction(t, lane="device")


@given(timelines())
def test_a_breakdown_charges_each_nanosecond_of_the_steps_once(t):
    steps, sets = instants(t, "step"), sets_of(t)
    charged = [charged_to(i, sets) for i in steps]
    away = sets["sync wait"] | sets["input"] | sets["host waits elsewhere"] | sets["own code"]
    for category, (total, exposed) in breakdown_ns(t).items():
        assert exposed == charged.count(category)
        if category != "unknown":
            work = sets[category] - away if "recording" in category else sets[category]
            assert total == len(work & steps)


@given(timelines())
def test_the_exposed_parts_of_a_breakdown_add_up_to_the_mean_step(t):
    lengths = [s.stop_ns - s.start_ns for s in t.spans if s.kind == "step"]
    assert sum(exposed for _, exposed in breakdown_ns(t).values()) == sum(lengths)
    rows = breakdown(t)
    if sum(lengths):
        rare = {"communication", "host callback", "reduction", "host waits elsewhere", "own code"}
        rare |= set() if says_device(t) else {"device busy"}
        shown = [c for c in CATEGORIES if c not in rare or breakdown_ns(t)[c][0] > 0]
        assert [r.category for r in rows] == shown
        mean_ms = sum(lengths) / len(lengths) / 1e6
        assert math.isclose(math.fsum(r.exposed_ms for r in rows), mean_ms, rel_tol=1e-12)
        assert math.isclose(math.fsum(r.share for r in rows), 1.0, rel_tol=1e-12)
    else:
        assert rows == ()


@given(timelines())
def test_the_headline_overlap_is_of_recording_that_neither_waits_nor_copies(t):
    sets, kernels = sets_of(t), instants(t, "kernel")
    away = sets["sync wait"] | sets["input"] | instants(t, "ahead", "elsewhere", "own")
    recording = instants(t, "record") - away
    found = headline(t).overlap_fraction
    if recording and kernels:
        assert found == len(recording & kernels) / len(recording)
    else:
        assert math.isnan(found)


def test_a_step_made_by_hand_is_broken_down_as_by_hand():
    t = Timeline.of([
        span("step", 0, 100), span("record", 0, 40, "forward"), span("record", 40, 90, "backward"),
        span("wait", 70, 90), span("dispatch", 30, 50), span("kernel", 45, 80),
        span("kernel", 95, 120), span("lower", 10, 15), span("compile", 15, 20),
        span("reduction", 78, 84),
    ])  # fmt: skip
    assert breakdown_ns(t) == {
        "device busy": (40, 40), "communication": (0, 0), "host callback": (0, 0),
        "reduction": (6, 4),
        "compile": (10, 10), "dispatch": (20, 15),
        "forward recording": (40, 20), "backward recording": (30, 0), "update recording": (0, 0),
        "input": (0, 0), "sync wait": (20, 6), "unknown": (5, 5),
        "host waits elsewhere": (0, 0), "own code": (0, 0),
    }  # fmt: skip
    assert breakdown(t)[0].share == 0.4


def test_ops_that_the_recording_thread_computes_hide_none_of_its_recording():
    on_gpu = native_run(lane="device/0 stream 7").headline()
    assert 0 < on_gpu.overlap_fraction < 1
    on_cpu = native_run().headline()
    assert math.isnan(on_cpu.overlap_fraction)
    assert on_cpu.device_busy_fraction == on_gpu.device_busy_fraction


def test_overlap_is_not_symmetric():
    t = Timeline.of([span("dispatch", 0, 10), span("kernel", 5, 45)])
    assert overlap_fraction(t, of="dispatch", under="kernel") == 0.5
    assert overlap_fraction(t, of="kernel", under="dispatch") == 0.125


def test_a_lane_that_is_not_there_is_an_error_that_gives_the_ones_that_are():
    with pytest.raises(TimelineError, match="no lane is called 'gpu'; there are: 'host/main'"):
        busy_fraction(make_run().timeline, lane="gpu")


def test_a_lane_of_a_step_is_not_busy_with_the_step_itself():
    t = Timeline.of([span("step", 0, 10), span("record", 0, 4, "forward")])
    assert busy_fraction(t, lane="host/main") == 0.4


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [(np.zeros((2, 3)), "have shape"), (np.zeros(4), "have shape"), ([[5, 4]], "stops before")],
)
def test_intervals_that_are_none_are_an_error(bad, sentence):
    with pytest.raises(TimelineError, match=sentence):
        union_ns(bad)


def test_the_headline_of_a_run_takes_times_and_waits_from_its_untraced_steps():
    run = make_run(syncs=2)
    h = run.headline()
    assert h.step_ms == run.step_ms
    assert h.syncs_per_step == 2
    waits = [s.wait_ns for s in run.sync_points]
    assert h.sync_wait_ms == pytest.approx(sum(waits) / 1e6 / len(run.step_times_ns))
    assert h.device_busy_fraction == busy_fraction(run.timeline, lane="device")


def test_the_headline_of_a_timeline_takes_them_from_its_steps():
    t = make_run(syncs=2, steps=4).timeline
    h = headline(t)
    lengths = sorted(s.stop_ns - s.start_ns for s in t.spans if s.kind == "step")
    assert h.step_ms == pytest.approx((lengths[1] + lengths[2]) / 2e6)
    assert h.syncs_per_step == 2
    assert h.sync_wait_ms == pytest.approx(sum(s.wait_ns for s in t.syncs) / 4e6)


def test_what_an_empty_run_cannot_say_is_nan_and_not_zero():
    h = empty_run().headline()
    assert all(math.isnan(x) for x in (h.step_ms, h.device_busy_fraction, h.overlap_fraction,
                                       h.sync_wait_ms, h.syncs_per_step))  # fmt: skip
    assert empty_run().breakdown() == ()


def test_one_kernel_without_a_step_is_busy_all_the_time_and_breaks_down_into_nothing():
    assert one_span_run().headline().device_busy_fraction == 1.0
    assert one_span_run().breakdown() == ()


def test_more_waiting_is_never_more_overlap():
    base = [span("step", 0, 100), span("record", 0, 100, "forward"), span("kernel", 50, 100)]
    assert headline(Timeline.of(base)).overlap_fraction == 0.5
    assert headline(Timeline.of([*base, span("wait", 50, 100)])).overlap_fraction == 0.0


def test_sync_points_of_one_place_and_cause_are_one_row_and_the_longest_wait_is_first():
    syncs = [
        SyncPoint(0, 1_000_000, "print", "a.py:1"),
        SyncPoint(5, 2_000_000, "item", "a.py:2", "torch/amp/grad_scaler.py:371"),
        SyncPoint(9, 4_000_000, "item", "a.py:2", "torch/amp/grad_scaler.py:371"),
        SyncPoint(9, 500_000, "item", "a.py:1"),
    ]
    rows = sync_table(syncs, steps=2)
    assert [(r.site, r.cause, r.count, r.count_per_step, r.wait_ms_per_step) for r in rows] == [
        ("a.py:2", "item", 2, 1.0, 3.0),
        ("a.py:1", "print", 1, 0.5, 0.5),
        ("a.py:1", "item", 1, 0.5, 0.25),
    ]
    assert rows[0].via == "torch/amp/grad_scaler.py:371"


def test_no_sync_points_are_no_rows_and_no_steps_are_an_error():
    assert sync_table([], steps=0) == ()
    with pytest.raises(TimelineError, match="at least one step, not 0"):
        sync_table([SyncPoint(0, 1, "item")], steps=0)
