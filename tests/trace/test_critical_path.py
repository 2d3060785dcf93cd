"""The critical path: against the work on every chain there is, one after another."""

from __future__ import annotations

import time
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.critical_path import PATH_KINDS, PathEdge, critical_path, path_table
from kit.trace.host import Host, blocked
from kit.workloads import mlp
from tests.factories import empty_run, make_run

END = 40
STEPS = [Span("host/main", f"step {i}", "step", 20 * i, 20 * i + 20) for i in range(2)]


def host(kind: str, start: int, stop: int) -> Span:
    return Span("host/main", "forward", kind, start, stop)


def worker(kind: str, start: int, stop: int, segment: int = 0) -> Span:
    return Span("host/worker", f"segment {segment}", kind, start, stop, segment)


def kernel(start: int, stop: int, segment: int = 0, name: str = "k") -> Span:
    return Span("device/0 k", name, "kernel", start, stop, segment)


def reduction(start: int, stop: int) -> Span:
    return Span("device/0 reduction", "bucket 0", "reduction", start, stop)


def path_of(*spans: Span, syncs: tuple[SyncPoint, ...] = ()) -> tuple[PathEdge, ...]:
    return critical_path(Timeline.of([*STEPS, *spans], syncs))


def test_a_wait_leads_from_the_line_to_the_kernel_the_dispatch_and_the_recording() -> None:
    path = path_of(
        host("record", 0, END),
        host("plan", 5, 6),
        worker("dispatch", 8, 10),
        kernel(11, 25),
        host("wait", 7, 27),
        syncs=(SyncPoint(7, 20, "item", "train.py:7"),),
    )
    assert [(e.kind, e.start_ns, e.stop_ns, e.why) for e in path] == [
        ("host recording", 0, 6, "recorded before"),
        ("delay", 6, 8, "handed over"),
        ("dispatch", 8, 10, "recorded before"),
        ("delay", 10, 11, "not begun yet"),
        ("kernel", 11, 25, "issued by segment 0"),
        ("wait", 25, 27, "waited for at train.py:7"),
        ("host recording", 27, 40, "recorded before"),
    ]
    assert path[5].site == "train.py:7"
    assert [e.work_ns for e in path] == [6, 0, 2, 0, 14, 0, 13]


def test_without_a_wait_a_busy_host_is_the_path() -> None:
    path = path_of(host("record", 0, END), worker("dispatch", 2, 4), kernel(4, 30))
    assert [(e.kind, e.length_ns) for e in path] == [("host recording", END)]


def test_a_device_that_never_stops_is_the_path_though_the_host_waits() -> None:
    path = path_of(host("wait", 5, 39), kernel(0, 20, name="a"), kernel(20, 38, 1, "b"))
    assert [(e.kind, e.segment, e.why) for e in path] == [
        ("kernel", 0, "issued before the steps"),
        ("kernel", 1, "runs after a"),
        ("wait", -1, "waited for at no line"),
        ("host other", -1, "recorded before"),
    ]


def test_kernels_of_one_segment_are_one_edge_with_the_pauses_between_them() -> None:
    path = path_of(host("wait", 0, END), kernel(0, 10), kernel(12, 30), kernel(31, 39))
    assert [(e.kind, e.start_ns, e.stop_ns, e.work_ns, e.count) for e in path] == [
        ("kernel", 0, 39, 36, 3),
        ("wait", 39, 40, 0, 1),
    ]


def test_time_of_a_dispatch_under_a_busy_device_is_not_its_work() -> None:
    path = path_of(
        host("wait", 0, END), worker("dispatch", 0, 30), kernel(4, 20), kernel(25, 39, 1)
    )
    assert [(e.kind, e.work_ns) for e in path] == [
        ("dispatch", 4),
        ("kernel", 16),
        ("delay", 0),
        ("kernel", 14),
        ("wait", 0),
    ]


def call(start: int, stop: int, number: int, lane: str = "host/main") -> Span:
    return Span(lane, "cudaLaunchKernel", "dispatch", start, stop, -2 - number)


def test_a_path_of_the_hosts_own_calls_ends_with_the_last_kernel() -> None:
    path = path_of(
        host("record", 0, END),
        call(5, 6, 0),
        call(30, 31, 1),
        kernel(7, 25, -2),
        kernel(25, 38, -3),
    )
    assert [(e.kind, e.start_ns, e.stop_ns, e.why) for e in path] == [
        ("host recording", 0, 5, "recorded before"),
        ("dispatch", 5, 6, "recorded before"),
        ("delay", 6, 7, "handed over"),
        ("kernel", 7, 25, "launched by its call"),
        ("kernel", 25, 38, "runs after k"),
        ("host recording", 38, 40, "the device has nothing left"),
    ]


def test_the_thread_of_the_backward_pass_is_the_host_while_it_launches() -> None:
    path = path_of(host("record", 0, 10), call(20, 22, 0, "host/autograd"), kernel(22, 40, -2))
    assert [(e.kind, e.length_ns) for e in path] == [
        ("host recording", 10),
        ("host other", 10),
        ("dispatch", 2),
        ("kernel", 18),
    ]


def full_queue(us: int) -> Timeline:
    """1,500 kernels of 100 us: the host runs 1,000 ahead, and then each call waits."""
    spans = []
    for i in range(1500):
        begun = 100 * i + 10
        at = 10 * i if i < 1000 else 100 * (i - 1000) + 10_000
        spans.append(Span("host/main", "cudaLaunchKernel", "dispatch", at * us,
                          (at + (5 if i < 1000 else 95)) * us, -2 - i))  # fmt: skip
        spans.append(kernel(begun * us, (begun + 100) * us, -2 - i))
    end = max(s.stop_ns for s in spans)
    steps = [Span("host/main", "step 0", "step", 0, end), host("record", 0, end)]
    return Timeline.of([*steps, *spans])


def test_a_call_that_finds_the_queue_full_waits() -> None:
    t = full_queue(1000)
    is_blocked = blocked(t)
    assert 400 < is_blocked.sum() <= 500
    assert all(t.stop_ns[i] - t.start_ns[i] == 95_000 for i in np.flatnonzero(is_blocked))
    shares = {row.kind: row.share for row in path_table(critical_path(t))}
    assert shares["kernel"] > 0.99


def test_a_copy_that_returns_when_it_is_done_waits_for_what_was_before_it() -> None:
    us = 1000
    spans = [
        Span("host/main", "cudaLaunchKernel", "dispatch", 0, 5 * us, -2),
        Span("host/main", "cudaMemcpyAsync", "dispatch", 10 * us, 900 * us, -3),
        kernel(6 * us, 800 * us, -2),
        kernel(800 * us, 890 * us, -3, "Memcpy HtoD"),
    ]
    step = Span("host/main", "step 0", "step", 0, 1000 * us)
    t = Timeline.of([step, host("record", 0, 1000 * us), *spans])
    assert [t.names[t.name[i]] for i in np.flatnonzero(blocked(t))] == ["cudaMemcpyAsync"]


def test_an_update_that_waits_for_gradients_leads_to_their_reduction() -> None:
    path = path_of(host("wait", 0, END), kernel(0, 10), reduction(10, 30), kernel(30, 39, 1, "u"))
    assert [(e.kind, e.work_ns, e.why) for e in path[:3]] == [
        ("kernel", 10, "issued before the steps"),
        ("reduction", 20, "runs after k"),
        ("kernel", 9, "runs after bucket 0"),
    ]


def test_a_timeline_without_steps_has_no_path() -> None:
    assert critical_path(Timeline.of([kernel(0, 9)])) == ()
    assert critical_path(empty_run().timeline) == ()
    assert path_table(()) == ()


def test_the_table_gathers_edges_and_adds_up_to_the_steps() -> None:
    path = critical_path(make_run(syncs=2).timeline)
    rows = path_table(path)
    assert sum(r.share for r in rows) == pytest.approx(1)
    assert sum(r.count for r in rows) == len(path)
    assert any(r.kind == "wait" and r.site == "train.py:44" for r in rows)


times = st.tuples(st.integers(0, END - 2), st.integers(1, 15))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    kinds = st.sampled_from(["record", "plan", "wait", "ahead", "input", "elsewhere", "own"])
    spans = [*STEPS]
    spans += [
        host(k, a, a + n) for k, (a, n) in draw(st.lists(st.tuples(kinds, times), max_size=5))
    ]
    for (a, n), s, kind in draw(st.lists(st.tuples(times, st.integers(0, 1), st.sampled_from(
            ["dispatch", "dispatch", "compile"])), max_size=4)):  # fmt: skip
        spans.append(worker(kind, a, a + n, s))
    for (a, n), s in draw(st.lists(st.tuples(times, st.integers(-1, 1)), max_size=5)):
        spans.append(kernel(a, a + n, s))
    lanes = st.sampled_from(["host/main", "host/autograd"])
    launches = st.tuples(times, st.integers(0, 8), st.integers(1, 15), lanes)
    for i, ((a, n), later, m, lane) in enumerate(draw(st.lists(launches, max_size=3))):
        spans += [call(a, a + n, i, lane), kernel(a + later, a + later + m, -2 - i)]
    spans += [reduction(a, a + n) for a, n in draw(st.lists(times, max_size=2))]
    return Timeline.of(spans)


@given(timelines())
def test_no_chain_has_more_work_and_the_path_covers_the_steps(t: Timeline) -> None:
    path = critical_path(t)
    assert path[0].start_ns == 0
    assert path[-1].stop_ns == END
    assert all(a.stop_ns == b.start_ns for a, b in pairwise(path))
    assert all(0 <= e.work_ns <= e.length_ns > 0 for e in path)
    assert {e.kind for e in path} <= set(PATH_KINDS)
    assert sum(e.work_ns for e in path) == max(Chains(t).all())


class Chains:
    """Every chain of a timeline, by asking what may come before what."""

    def __init__(self, t: Timeline) -> None:
        spans = t.spans
        self.kernels = [(i, s) for i, s in enumerate(spans) if s.kind in ("kernel", "reduction")]
        self.workers = [s for s in spans if s.lane == "host/worker" and s.start_ns < END]
        self.calls = {s.segment: s for s in spans if s.segment < -1 and s.kind == "dispatch"}
        lanes = {"host/main", *(s.lane for s in self.calls.values())}
        self.main = [s for s in spans if s.lane in lanes and s.kind != "step"]
        edges = {x for s in self.main for x in (s.start_ns, s.stop_ns)} | {0, END}
        self.bounds = sorted(x for x in edges if 0 <= x <= END)
        self.dispatches = [s for s in self.workers if s.kind == "dispatch"]
        self.cuts = sorted((s.start_ns, s.stop_ns) for s in self.main if s.kind == "plan")
        stops = sorted(stop for _, stop in self.cuts)
        self.cuts = [(a, b) for (a, _), b in zip(self.cuts, stops, strict=True)]
        self.ahead = next(
            n
            for n in count()
            if all(
                i + n >= len(self.dispatches) or start <= self.dispatches[i + n].start_ns
                for i, (start, _) in enumerate(self.cuts)
            )
        )

    def all(self) -> list[int]:
        """The work on each chain; if the host's calls launch, of those to the last kernel."""
        if any(self.call_before(s) is not None for _, s in self.kernels):
            inside = [(i, s) for i, (_, s) in enumerate(self.kernels) if s.start_ns < END]
            end = max(min(s.stop_ns, END) for _, s in inside)
            last = [i for i, s in inside if min(s.stop_ns, END) == end]
            after = sum(not self.is_wait(now) for now in range(end, END))
            return [after + x for i in last for x in self.kernel(i)]
        found = self.host(END)
        for i in range(len(self.kernels)):
            found += self.kernel(i)
        return found

    def host(self, at: int) -> list[int]:
        k = self.bounds.index(at)
        if not k:
            return [0]
        since = self.bounds[k - 1]
        is_wait = self.is_wait(since)
        found = [x + (0 if is_wait else at - since) for x in self.host(since)]
        for i, (_, s) in enumerate(self.kernels):
            if is_wait and since < min(s.stop_ns, END) <= at:
                found += self.kernel(i)
        return found

    def is_wait(self, now: int) -> bool:
        return any(s.kind in ("wait", "ahead") and s.start_ns <= now < s.stop_ns for s in self.main)

    def call_before(self, kernel: Span) -> int | None:
        """When the host's own call had launched a kernel, or had begun to."""
        mine = self.calls.get(kernel.segment)
        if mine is None or kernel.start_ns >= END:
            return None
        at = mine.stop_ns if mine.stop_ns <= kernel.start_ns else mine.start_ns
        ends = [s.stop_ns for _, s in self.kernels if s.lane == kernel.lane]
        freed = max((end for end in ends if end <= kernel.start_ns), default=0)
        return at if freed <= at <= END else None

    def worker(self, k: int) -> list[int]:
        me = self.workers[k]
        found = [0]
        for j, other in enumerate(self.workers):
            if other.stop_ns <= me.start_ns:
                found += [x + self.idle(other.start_ns, other.stop_ns) for x in self.worker(j)]
        i = sum(s.kind == "dispatch" for s in self.workers[:k]) - self.ahead
        if 0 <= i < len(self.cuts):
            start, stop = self.cuts[i]
            done = stop if stop <= me.start_ns else start
            if done <= me.start_ns:
                found += self.host(done)
        return found

    def kernel(self, k: int) -> list[int]:
        me = self.kernels[k][1]
        found = [0]
        for j, (_, other) in enumerate(self.kernels):
            if other.stop_ns <= me.start_ns:
                found += self.kernel(j)
        called = self.call_before(me)
        if called is not None:
            found += self.host(called)
        mine = [
            j
            for j, s in enumerate(self.workers)
            if s.kind == "dispatch" and s.segment == me.segment and s.start_ns <= me.start_ns
        ]
        if mine and me.segment >= 0:
            j = max(mine, key=lambda j: (self.workers[j].start_ns, j))
            left = min(self.workers[j].stop_ns, me.start_ns)
            found += [x + self.idle(self.workers[j].start_ns, left) for x in self.worker(j)]
        return [x + min(me.stop_ns, END) - me.start_ns for x in found]

    def idle(self, start: int, stop: int) -> int:
        return sum(
            not any(s.start_ns <= i < s.stop_ns for _, s in self.kernels)
            for i in range(start, min(stop, END))
        )


def test_the_path_of_a_real_run_covers_its_steps() -> None:
    t = kit.run(mlp, kit.Settings(mode="lazy", steps=1, warmup=1)).timeline
    path = critical_path(t)
    steps = t.intervals(kind="step")
    assert (path[0].start_ns, path[-1].stop_ns) == (steps.min(), steps.max())
    assert all(a.stop_ns == b.start_ns for a, b in pairwise(path))
    assert sum(e.work_ns for e in path) > 0.5 * (steps.max() - steps.min())


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8),
    st.integers(0, 60),
)
def test_a_wait_has_the_line_of_the_last_sync_point_that_goes_on(
    waits: list[tuple[int, int]], at: int
) -> None:
    syncs = [SyncPoint(a, w, "item", f"t.py:{i}") for i, (a, w) in enumerate(sorted(waits))]
    host = Host(Timeline.of(STEPS, syncs), 0, END)
    near = [s.site for s in syncs if s.at_ns < at <= s.at_ns + s.wait_ns]
    assert host.site(at) == (near[-1] if near else "")


def test_the_lines_of_thousands_of_waits_are_found_without_a_look_at_each_other_one() -> None:
    syncs = [SyncPoint(2 * i, 1, "item", f"t.py:{i}") for i in range(10_000)]
    host = Host(Timeline.of(STEPS, syncs), 0, END)
    begun = time.process_time()
    assert [host.site(2 * i + 1) for i in range(10_000)] == [s.site for s in syncs]
    assert all(not host.site(2 * i) for i in range(10_000))
    assert time.process_time() - begun < 1
