"""The model of a step whose gradients travel: held to hand-made numbers and to its own laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import SettingsError, TimelineError
from kit.runs.gradients import (
    Backward,
    Link,
    best_buckets,
    comes_last,
    exposed_ms,
    fit_backward,
    predict_parallel,
)
from kit.trace import Span, Timeline, headline, idle_gaps, union_ns

US = 1_000
MS = 1_000_000
HUGE = 1 << 30
# the step of the table in MXNet PR 14200's spirit: 50 layers of three ops, a gradient in the third
LAYERS = Backward(150, tuple((3 * i, 25_000) for i in range(1, 51)), 20 * US, 55 * US, MS, MS / 5)


def test_a_hand_made_step() -> None:
    step = Backward(4, ((2, 1000), (4, 3000)), 10 * US, 5 * US, 100 * US, 7 * US)
    link = Link(latency_us=10, gb_per_s=1)  # two hops: 2 (10 us + half of the bytes)
    early = predict_parallel(step, bulk=2, link=link, bucket_bytes=1)
    assert (early.segments, early.buckets) == (2, 2)
    assert early.step_ns == (100 + 25 + 25 + 2 * (10 + 1.5) + 7) * US
    assert early.exposed_ns == 23 * US
    late = predict_parallel(step, bulk=4, link=link, bucket_bytes=1)
    assert late.step_ns == (100 + 45 + 2 * (10 + 0.5) + 2 * (10 + 1.5) + 7) * US
    assert late.exposed_ns == 44 * US
    assert late.timeline.origin == "modelled"
    alone = predict_parallel(step, bulk=4, link=link, devices=1)
    assert alone.step_ns == (100 + 45 + 7) * US


@pytest.mark.parametrize("segment_us", [10, 55])
@pytest.mark.parametrize("link", [Link(15, 10), Link(15, 1), Link(15, 0.3), Link(100, 10)], ids=str)
def test_neither_op_by_op_nor_the_whole_backward_pass_is_best_and_a_cut_at_buckets_is(
    link: Link, segment_us: int
) -> None:
    step = Backward(150, LAYERS.gradients, 20 * US, segment_us * US, MS, MS / 5)
    sizes = (1, 3, 5, 15, 30, 60, 100, 150)
    fixed = [best_buckets(step, link, cut="size", bulk=k)[1].step_ns for k in sizes]
    aware = best_buckets(step, link)[1]
    assert aware.step_ns <= min(fixed)
    one_size = [predict_parallel(step, bulk=k, link=link).step_ns for k in sizes]
    assert min(one_size) < one_size[0]
    at = predict_parallel(step, bulk=HUGE, link=link, bucket_bytes=1, cut="size").step_ns
    assert aware.step_ns < at


steps = st.builds(
    lambda sizes, gaps, op, segment: Backward(
        sum(gaps), tuple((sum(gaps[: i + 1]), s) for i, s in enumerate(sizes)), op, segment, 5, 5
    ),
    st.lists(st.integers(1, 10**6), min_size=6, max_size=6),
    st.lists(st.integers(1, 5), min_size=6, max_size=6),
    st.integers(0, 50_000),
    st.integers(0, 50_000),
)


@given(
    step=steps,
    bulk=st.integers(1, 40),
    size=st.integers(1, 10**7),
    devices=st.integers(2, 8),
    cut=st.sampled_from(["size", "bucket"]),
)
def test_laws_of_the_model(step: Backward, bulk: int, size: int, devices: int, cut: str) -> None:
    link = Link(5, 2)
    made = predict_parallel(step, bulk=bulk, link=link, devices=devices, bucket_bytes=size, cut=cut)
    buckets = step.buckets(size)
    assert sum(n for _, n in buckets) == sum(n for _, n in step.gradients)
    ends = step.ends(bulk, buckets, cut=cut)
    assert ends == sorted(set(ends))
    assert ends[-1] == step.ops
    assert max(b - a for a, b in zip([0, *ends], ends, strict=False)) <= bulk
    assert cut == "size" or {at for at, _ in buckets} <= set(ends)
    travel = sum(link.ns(n, devices) for _, n in buckets)
    compute = 5 + round(step.ops * step.op_ns + len(ends) * step.segment_ns) + 5
    assert abs(made.step_ns - compute - made.exposed_ns) <= len(ends) + 3  # each span is rounded
    assert max(compute, travel) - 40 <= made.step_ns <= compute + travel + 40
    free = predict_parallel(
        step, bulk=bulk, link=Link(0, 1e9), devices=devices, bucket_bytes=size, cut=cut
    )
    assert free.step_ns <= made.step_ns


def test_costs_are_read_off_a_straight_line() -> None:
    points = [(10, 5.0 * MS), (50, 7.0 * MS), (90, 9.0 * MS)]
    fit = fit_backward(100, [(100, 8)], points, (1, 2, 1))
    assert fit.segment_ns == pytest.approx(50 * US)
    assert (fit.forward_ns, fit.update_ns) == pytest.approx((1.125 * MS, 1.125 * MS))
    assert fit.op_ns == pytest.approx(2.25 * MS / 100)
    noise = fit_backward(100, [(100, 8)], [(10, 5.0 * MS), (50, 4.0 * MS)], (1, 1, 1))
    assert noise.segment_ns == 0
    assert noise.forward_ns == pytest.approx(1.5 * MS)
    steep = fit_backward(100, [(100, 8)], [(1, 1.0 * MS), (10, 50.0 * MS)], (1, 1, 1))
    assert (steep.op_ns, steep.forward_ns) == (0, 0)
    assert steep.segment_ns == pytest.approx(501 / 101 * MS)


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0, 1e9)), min_size=2, max_size=6))
def test_whatever_was_measured_the_costs_are_not_negative(points: list[tuple[int, float]]) -> None:
    if len({segments for segments, _ in points}) < 2:
        return
    fit = fit_backward(10, [(10, 8)], points, (1, 2, 3))
    assert min(fit.op_ns, fit.segment_ns, fit.forward_ns, fit.update_ns) >= 0


def test_exposed_is_what_is_not_under_the_same_devices_compute() -> None:
    spans = [
        Span("host/main", "step 0", "step", 0, 10 * MS),
        Span("host/main", "step 1", "step", 10 * MS, 20 * MS),
        Span("device/0 compute", "a", "kernel", 0, 4 * MS),
        Span("device/1 compute", "a", "kernel", 0, 8 * MS),
        Span("device/0 reduction", "b", "reduction", 2 * MS, 6 * MS),
        Span("device/1 reduction", "b", "reduction", 2 * MS, 6 * MS),
    ]
    assert exposed_ms(Timeline.of(spans)) == {"device/0": 1.0, "device/1": 0.0}
    assert exposed_ms(Timeline.of(spans[:3])) == {}


def test_whose_gradients_come_last_is_by_the_begin_of_what_ends_together() -> None:
    def arrived(process: int, start_ms: int, stop_ms: int, name: str = "bucket 0") -> Span:
        lane = f"process {process} device/{process} reduction"
        return Span(lane, name, "reduction", start_ms * MS, stop_ms * MS)

    steps = [
        Span("process 0 host/main", f"step {i}", "step", 20 * i * MS, 20 * (i + 1) * MS)
        for i in (0, 1)
    ]
    late = [arrived(p, at, 15) for p, at in enumerate((2, 12, 4))]  # 8 ms after the second last
    then = [arrived(p, 15, 16, "bucket 1") for p in range(3)]
    again = [arrived(p, 20 + at, 35) for p, at in enumerate((5, 9, 10))]  # 1 ms
    assert comes_last(Timeline.of([*steps, *late, *then, *again])) == ("process 1", 4.0)
    assert comes_last(Timeline.of([*steps, *then])) == ("", 0.0)
    assert comes_last(Timeline.of([*steps, arrived(0, 2, 9)])) == ("", 0.0)
    one = Span("device/0 reduction", "bucket 0", "reduction", 2, 9)
    assert comes_last(Timeline.of([*steps, one])) == ("", 0.0)


@given(st.integers(1, 60), st.sampled_from([0.05, 0.5, 5.0]), st.sampled_from(["size", "bucket"]))
def test_a_modelled_device_is_idle_for_reductions_as_long_as_they_are_exposed(
    bulk: int, speed: float, cut: str
) -> None:
    made = predict_parallel(LAYERS, bulk=bulk, link=Link(20, speed), bucket_bytes=3e5, cut=cut)
    idle = [g for g in idle_gaps(made.timeline) if g.cause == "reduction"]
    assert sum(g.length_ns for g in idle) == made.exposed_ns
    busy = made.timeline.intervals(lane="device/0 compute")
    share = union_ns(busy) / made.step_ns
    assert headline(made.timeline).device_busy_fraction == pytest.approx(share)


def test_an_empty_parameter_has_a_gradient_without_bytes() -> None:
    size, best = best_buckets(Backward(4, ((2, 0), (4, 8)), 1, 1), Link())
    assert (1 <= size <= 8, best.buckets) == (True, 1)


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"bulk": 0}, {"devices": 0}, {"bucket_bytes": 0}, {"cut": "never"}):
        with pytest.raises(SettingsError):
            predict_parallel(LAYERS, **({"bulk": 1, "link": Link()} | wrong))  # type: ignore[arg-type]
    for order in (((2, 1), (1, 1)), ((4, 1),), ((0, 1),)):
        with pytest.raises(SettingsError, match="come in the order"):
            Backward(3, order, 1, 1)
    with pytest.raises(SettingsError, match="op_ns must be a finite number at least 0 nano"):
        Backward(3, (), -1, 1)
    with pytest.raises(SettingsError, match="nothing to reduce"):
        best_buckets(Backward(3, (), 1, 1), Link())
    with pytest.raises(TimelineError, match="two different numbers of segments"):
        fit_backward(3, (), [(2, 1.0), (2, 2.0)], (1, 1, 1))
    link = Link(latency_us=10, gb_per_s=1)
    assert (link.ns(8_000, 1), link.ns(8_000, 2), link.ns(8_000, 4)) == (0, 28 * US, 72 * US)
    for bad in ({"latency_us": -1}, {"gb_per_s": 0}, {"gb_per_s": float("nan")}):
        with pytest.raises(SettingsError, match=f"a link's {next(iter(bad))} must be a finite nu"):
            Link(**bad)
