"""Gradients on their way between devices: what a link takes, and how a step's bulk size meets it.

Everything here is a model, or a measure of times that others have recorded; nothing is run. The
question is that of MXNet PR 14200: a large backward segment is cheap to issue, but "generated
gradients of the backward pass must wait until the end of a segment before gradient reduction can
get started".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kit.errors import SettingsError, TimelineError
from kit.text import check_number, check_whole_number, format_count
from kit.trace import Span, Timeline, union_ns
from kit.trace.simulate import Work, simulate

__all__ = [
    "Backward",
    "Link",
    "ParallelStep",
    "best_buckets",
    "comes_last",
    "exposed_ms",
    "fit_backward",
    "predict_parallel",
]


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between devices: what one message costs, and what its bytes cost.

    Units:
        latency_us in microseconds a hop; gb_per_s in 1e9 bytes a second, each direction.
    """

    latency_us: float = 30.0
    gb_per_s: float = 10.0

    def __post_init__(self) -> None:
        check_number(SettingsError, "a link's latency_us", self.latency_us, at_least=0)
        check_number(SettingsError, "a link's gb_per_s", self.gb_per_s, above=0)

    def ns(self, size_bytes: int, devices: int) -> int:
        """How long a sum over all devices of so many bytes takes, as a ring would do it.

        Source:
            A ring all-reduce sends 2 (n - 1) messages of 1/n of the bytes, one after the other:
            Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

        Raises:
            SettingsError: a number is out of range.
        """
        check_number(SettingsError, "size_bytes", size_bytes, at_least=0)
        check_whole_number(SettingsError, "devices", devices)
        hops = 2 * (devices - 1)
        return round(hops * (self.latency_us * 1e3 + size_bytes / devices / self.gb_per_s))


@dataclass(frozen=True, slots=True)
class Backward:
    """One replica's step as far as the reduction of its gradients is concerned.

    Units:
        nanoseconds; `gradients` in bytes
    """

    ops: int  # of the backward pass, without views
    gradients: tuple[tuple[int, int], ...]  # (ops recorded when it is made, bytes), in order
    op_ns: float  # what one op costs, whatever the segments are
    segment_ns: float  # what one segment costs besides its ops
    forward_ns: float = 0.0
    update_ns: float = 0.0

    def __post_init__(self) -> None:
        check_whole_number(SettingsError, "the ops of a backward pass", self.ops)
        for name in ("op_ns", "segment_ns", "forward_ns", "update_ns"):
            check_number(SettingsError, name, getattr(self, name), at_least=0, unit="nanoseconds")
        made = [at for at, _ in self.gradients]
        is_in_order = made == sorted(made) and all(0 < at <= self.ops for at in made)
        if not is_in_order:
            raise SettingsError(
                "the gradients of a backward pass come in the order of the ops that make them, not "
                f"at {made[:8]} of {self.ops} ops"
            )

    def buckets(self, size_bytes: float) -> list[tuple[int, int]]:
        """(ops recorded when it is full, bytes) of each bucket of about so many bytes."""
        found: list[tuple[int, int]] = []
        size, last = 0, 0
        for last, gradient in self.gradients:
            size += gradient
            if size >= size_bytes:
                found.append((last, size))
                size = 0
        return [*found, (last, size)] if size else found

    def ends(self, bulk: int, buckets: Sequence[tuple[int, int]], *, cut: str) -> list[int]:
        """Where segments end: every `bulk` ops, and with cut "bucket" where a bucket is full."""
        forced = {at for at, _ in buckets} if cut == "bucket" else set()
        ends, start = [], 0
        for stop in sorted({*forced, self.ops}):
            ends += [*range(start + bulk, stop, bulk), stop]
            start = stop
        return ends


@dataclass(frozen=True, slots=True)
class ParallelStep:
    """A modelled step of several devices.

    Attributes:
        step_ns: from the first work of the forward pass to the end of the update.
        exposed_ns: time for which reduction went on and the device had nothing else to do.
        segments, buckets: how many of the backward pass, and of gradients.
        timeline: of one device, origin "modelled".
    """

    step_ns: int
    exposed_ns: int
    segments: int
    buckets: int
    timeline: Timeline


def predict_parallel(
    step: Backward, *, bulk: int, link: Link, devices: int = 2, bucket_bytes: float = 1e6,
    cut: str = "size",
) -> ParallelStep:  # fmt: skip
    """What a step would take with these segments and buckets over this link: a simulation.

    The segments of the backward pass run one after the other; a bucket travels once the segment
    that completes it has ended and the link is free; the update begins when all have arrived.

    Raises:
        SettingsError: a number is out of range, or `cut` is neither "size" nor "bucket".
    """
    if cut not in ("size", "bucket"):
        raise SettingsError(f"cut must be 'size' or 'bucket', not {cut!r}")
    for name, number in (("bulk", bulk), ("devices", devices)):
        check_whole_number(SettingsError, name, number)
    check_number(SettingsError, "bucket_bytes", bucket_bytes, above=0)
    buckets = step.buckets(bucket_bytes)
    ends = step.ends(bulk, buckets, cut=cut)
    work = [Work("device/0 compute", "forward", "kernel", round(step.forward_ns))]
    for number, (start, stop) in enumerate(pairwise([0, *ends])):
        cost = round((stop - start) * step.op_ns + step.segment_ns)
        name = f"backward, {format_count(stop - start, 'op')}"
        work.append(Work("device/0 compute", name, "kernel", cost, segment=number))
    for number, (at, size) in enumerate(buckets if devices > 1 else ()):
        after = 1 + next(i for i, end in enumerate(ends) if end >= at)
        lane, cost = "device/0 reduction", link.ns(size, devices)
        work.append(Work(lane, f"bucket {number}", "reduction", cost, after=(after,)))
    travels = tuple(range(1 + len(ends), len(work)))
    work.append(Work("device/0 compute", "update", "kernel", round(step.update_ns), after=travels))
    spans = simulate(work)
    total = max(s.stop_ns for s in spans)
    spans.append(Span("host/main", "step 0", "step", 0, total))
    note = (
        f"{format_count(devices, 'device')}, a link of {link.latency_us:g} us and "
        f"{link.gb_per_s:g} GB/s"
    )
    timeline = Timeline.of(spans, (), "modelled", (note,))
    exposed = round(exposed_ms(timeline).get("device/0", 0.0) * 1e6)
    return ParallelStep(total, exposed, len(ends), len(buckets), timeline)


def fit_backward(
    ops: int,
    gradients: Sequence[tuple[int, int]],
    points: Sequence[tuple[int, float]],
    shares: Sequence[float],
) -> Backward:
    """A step's costs from measured ones that differ in their backward segments only.

    Args:
        points: (backward segments, step_ns) of each, measured without a slow link.
        shares: of the compute time, how much is forward, backward and update.

    A straight line through the points: its slope is what a segment costs, and its value at no
    segments is everything else, divided by the shares.

    Raises:
        TimelineError: fewer than two different numbers of segments were measured.
    """
    if len({segments for segments, _ in points}) < 2:
        raise TimelineError("costs need steps with at least two different numbers of segments")
    counts, times = (np.array(column, float) for column in zip(*points, strict=True))
    each, base = np.polyfit(counts, times, 1)
    if each < 0:  # noise: more segments were not slower
        each, base = 0.0, times.mean()
    elif base < 0:  # noise: a line through the origin then
        each, base = counts @ times / (counts @ counts), 0.0
    forward, backward, update = (float(base) * part / sum(shares) for part in shares)
    return Backward(ops, tuple(gradients), backward / ops, float(each), forward, update)


def exposed_ms(timeline: Timeline) -> dict[str, float]:
    """For each device, the milliseconds a step in which it only waited for the reduction.

    That is the time of its lane "reduction" that is not under its lane "compute".
    """
    steps = max(timeline.steps, 1)
    found = {}
    for lane in timeline.lanes:
        device, _, what = lane.rpartition(" ")
        if what == "reduction":
            compute = timeline.intervals(lane=f"{device} compute")
            both = np.concatenate([compute, timeline.intervals(lane=lane)])
            found[device] = (union_ns(both) - union_ns(compute)) / steps / 1e6
    return found


def comes_last(timeline: Timeline) -> tuple[str, float]:
    """The process whose gradients the others wait for longest, and how long: ms a step.

    A reduction begins in each process when its own gradients are there, and ends in all at once.
    ("", 0.0) without reductions over several processes.
    """
    by_process: dict[str, list[Span]] = {}
    for span in timeline.spans:
        if span.kind == "reduction" and span.lane.startswith("process "):
            by_process.setdefault(" ".join(span.lane.split(" ")[:2]), []).append(span)
    late: dict[str, int] = dict.fromkeys(by_process, 0)
    for one in next(iter(by_process.values()), []):
        same = {
            other.start_ns: process
            for process, spans in by_process.items()
            for other in spans
            if other.name == one.name
            and other.start_ns < one.stop_ns
            and one.start_ns < other.stop_ns
        }
        *_, before, last = [0, 0, *sorted(same)]
        if len(same) > 1:
            late[same[last]] += last - before
    latest = max(late, key=late.__getitem__, default="")
    ns = late.get(latest, 0) / max(timeline.steps, 1)
    return (latest, ns / 1e6) if ns else ("", 0.0)


def best_buckets(
    step: Backward, link: Link, *, devices: int = 2, cut: str = "bucket", bulk: int = 1 << 30
) -> tuple[int, ParallelStep]:
    """The fastest bucket size, a power of two from the smallest gradient to all of them."""
    sizes = [size for _, size in step.gradients]
    if not sizes:
        raise SettingsError("this backward pass makes no gradient, so there is nothing to reduce")
    least = max(min(sizes), 1).bit_length() - 1  # an empty parameter has a gradient, too
    tried = [1 << n for n in range(least, sum(sizes).bit_length() + 1)]
    made = {
        size: predict_parallel(
            step, bulk=bulk, link=link, devices=devices, bucket_bytes=size, cut=cut
        )
        for size in tried
    }
    best = min(made, key=lambda size: (made[size].step_ns, size))
    return best, made[best]
