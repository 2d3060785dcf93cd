"""`Timeline`: columns made from spans, masks over them, equality."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.trace import COLUMNS, KINDS, ORIGINS, Span, SyncPoint, Timeline, each_step
from kit.trace.devices import by_device, device_of
from kit.trace.timeline import per_step
from tests.factories import make_run

SPANS = st.builds(
    lambda lane, name, kind, start, length, ids: Span(
        lane, name, kind, start, start + length, *ids
    ),
    st.sampled_from(["host/main", "host/worker", "device/0 kernels", "device"]),
    st.text(max_size=5),
    st.sampled_from(KINDS),
    st.integers(-1000, 1000),
    st.integers(0, 1000),
    st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
)


STEPS = st.builds(
    lambda start, length: Span("host/main", "s", "step", start, start + length),
    st.integers(-1000, 1000),
    st.integers(0, 500),
)


@given(st.lists(STEPS), st.lists(SPANS), st.lists(st.integers(-1000, 1000)))
def test_a_step_alone_is_what_lies_in_it_cut_at_its_edges(steps, spans, at):
    t = Timeline.of([*steps, *spans], syncs=[SyncPoint(x, 1, "item") for x in at])
    alone, hulls = each_step(t), []
    for low, high in sorted((s.start_ns, s.stop_ns) for s in t.spans if s.kind == "step"):
        if low == high:
            continue  # nothing lies in it
        if hulls and low < hulls[-1][1]:
            hulls[-1] = hulls[-1][0], max(high, hulls[-1][1])
        else:
            hulls.append((low, high))
    for (low, high), one in zip(hulls, alone, strict=True):
        assert one.spans == [
            replace(s, start_ns=max(s.start_ns, low), stop_ns=min(s.stop_ns, high))
            for s in t.spans
            if s.stop_ns > low and s.start_ns < high
        ]
        assert [s.at_ns for s in one.syncs] == [x for x in sorted(at) if low <= x < high]


@given(st.lists(SPANS))
def test_the_columns_hold_the_spans_sorted_by_start(spans):
    t = Timeline.of(spans)
    assert sorted(map(repr, t.spans)) == sorted(map(repr, spans))
    assert list(t.start_ns) == sorted(s.start_ns for s in spans)
    assert {c: getattr(t, c).dtype.name for c in COLUMNS} == COLUMNS


@given(st.lists(SPANS), st.sampled_from([None, *KINDS]), st.sampled_from([None, "host", "device"]))
def test_where_selects_by_kind_and_by_group_of_lanes(spans, kind, lane):
    t = Timeline.of(spans)
    expected = [
        s
        for s in t.spans
        if kind in (None, s.kind) and (lane is None or s.lane.split("/")[0] == lane)
    ]
    assert [s for s, keep in zip(t.spans, t.where(kind=kind, lane=lane), strict=True) if keep] == (
        expected
    )
    assert t.intervals(kind=kind, lane=lane).tolist() == [[s.start_ns, s.stop_ns] for s in expected]


def test_an_empty_timeline_lasts_no_time():
    t = Timeline.of([])
    assert (len(t), t.duration_ns, t.spans, t.lanes) == (0, 0, [], ())
    assert t.intervals(kind="kernel").shape == (0, 2)


def test_one_span_lasts_its_own_time():
    assert Timeline.of([Span("device/0", "k", "kernel", 5, 12)]).duration_ns == 7


def test_lanes_keep_the_order_of_their_first_appearance():
    spans = [Span(lane, "", "wait", at, 9) for lane, at in (("b", 3), ("a", 1), ("b", 2))]
    assert Timeline.of(spans).lanes == ("b", "a")


def test_sync_points_are_sorted_by_time():
    late, early = SyncPoint(9, 1, "item"), SyncPoint(2, 5, "print")
    assert Timeline.of([], [late, early]).syncs == (early, late)


def test_an_unknown_kind_is_an_error_that_gives_the_known_ones():
    with pytest.raises(TimelineError, match=r"span kinds \['nap'\] are not in .*'kernel'"):
        Timeline.of([Span("host/main", "", "nap", 0, 1)])
    with pytest.raises(TimelineError, match="kind 'nap' is not one of"):
        Timeline.of([]).where(kind="nap")


def test_a_span_that_stops_before_it_starts_is_an_error():
    with pytest.raises(TimelineError, match="stops before it starts"):
        Timeline.of([Span("host/main", "", "wait", 5, 4)])


def test_an_unknown_origin_is_an_error_that_gives_the_known_ones():
    assert Timeline.of([], origin="modelled").origin in ORIGINS
    with pytest.raises(TimelineError, match=r"origin 'guessed' is not one of .*'imported'"):
        Timeline.of([], origin="guessed")


def test_columns_of_two_lengths_are_an_error():
    t = make_run().timeline
    columns = {c: getattr(t, c) for c in COLUMNS} | {"node": t.node[1:]}
    with pytest.raises(TimelineError, match="must have one length"):
        Timeline(t.lanes, t.names, **columns)


def test_timelines_are_equal_when_all_that_they_hold_is():
    one, same, other = make_run().timeline, make_run().timeline, make_run(seed=1).timeline
    assert one == same
    assert one != other
    assert one != "a timeline"
    shifted = {c: getattr(one, c) for c in COLUMNS} | {"node": np.zeros_like(one.node)}
    assert one != Timeline(one.lanes, one.names, **shifted, syncs=one.syncs, notes=one.notes)


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, (1, "")), (1, (1, " a step")), (3, (3, " a step"))]
)
def test_a_total_is_divided_by_the_steps_and_without_steps_by_one(
    steps: int, expected: tuple[int, str]
) -> None:
    spans = [Span("device/0", "matmul", "kernel", 0, 9)]
    spans += [Span("host/main", f"step {i}", "step", 10 * i, 10 * i + 9) for i in range(steps)]
    assert per_step(Timeline.of(spans)) == expected


@given(st.lists(SPANS))
def test_what_ran_on_each_device_is_found_among_the_spans_of_others(spans: list[Span]) -> None:
    t = Timeline.of(spans)
    expected: dict[str, list[int]] = {}
    for lane in t.lanes:
        for i, span in enumerate(t.spans):
            if span.lane == lane and span.kind == "kernel":
                expected.setdefault(device_of(lane), []).append(i)
    found = by_device(t, "kernel")
    assert list(found) == list(expected)
    assert {device: rows.tolist() for device, rows in found.items()} == {
        device: sorted(rows) for device, rows in expected.items()
    }


def test_devices_without_end_are_found_in_one_pass() -> None:
    """Each was looked for among the spans of all: ten seconds for twenty thousand of them."""
    spans = [Span(f"device/{i % 40_000}", "k", "kernel", i, i + 1) for i in range(80_000)]
    found = by_device(Timeline.of(spans), "kernel")
    assert len(found) == 40_000
    assert found["device/7"].tolist() == [7, 40_007]
