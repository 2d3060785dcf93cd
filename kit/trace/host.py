"""What the host does from one time to the next, for the critical path; the phases of a step.

A call of CUDA returns at once, until so many launches are on their way that the queue is full. Then
each call waits until the device has taken one: the host does not compute, it waits. So it does in
a copy that returns when it is done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.trace.active import NONE, Active
from kit.trace.communication import way_of
from kit.trace.intervals import Ints, Mask, distinct, joined
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = ["AT_ONCE_NS", "ENGINE", "LONG_NS", "Host", "blocked", "busy_callers",
           "idle_in", "is_update", "phases", "waits_for_copy"]  # fmt: skip

PART = 0.1  # of all launches: so much makes a thread a part of the host
DEEP = 256  # launches on their way: CUDA's queue takes about 1,000
_NEARLY = 0.9  # of the most that were on their way; of a wait
LONG_NS = 20_000  # a launch that does not wait takes 5 to 10 us
AT_ONCE_NS = 10_000  # from a copy to the call after it that waits: 2 us in published traces
ENGINE = "autograd::engine::evaluate_function"  # begins the name of each function of autograd's
_UPDATE = "Optimizer.step"
_NEVER = np.iinfo(np.int64).max
_Ends = tuple[int, int]


class Host:
    """What the host does, as atoms between `times`: one kind each, a wait or work.

    The host is the main thread, with each thread of a foreign trace that launches a good part of
    the kernels: while autograd's thread launches them, the main one waits for it.
    """

    def __init__(self, timeline: Timeline, low: int, high: int) -> None:
        self.on = _on_host(timeline)
        self.timeline = timeline
        kinds = (
            ("wait", ("wait", "ahead"), self.on),
            ("wait", ("dispatch",), self.on & blocked(timeline)),
            ("compile", ("lower", "compile"), self.on),
            ("input", ("input",), self.on),
            ("host waits elsewhere", ("elsewhere",), self.on),
            ("own code", ("own",), self.on),
            ("dispatch", ("dispatch",), self.on),
            ("host recording", ("record", "plan"), self.on),
        )
        active = [Active.of(timeline, of, among) for _, of, among in kinds]
        edges = [np.array([low, high])] + [x for a in active for x in (a.start, a.stop)]
        times = distinct(np.concatenate(edges))
        self.times = times[(times >= low) & (times <= high)]
        by = [a.at(self.times[:-1]) for a in active]
        held = [spans >= 0 for spans in by]
        first = np.argmax([*held, np.ones(len(self.times) - 1, dtype=bool)], axis=0)
        names = [*(name for name, *_ in kinds), "host other"]
        self.kinds = [names[i] for i in first.tolist()]
        spans = np.array([*by, np.full(len(self.times) - 1, NONE)])
        self.spans = spans[first, np.arange(len(first))].tolist()
        self.cuts = timeline.intervals(kind="plan")
        self._sync_starts = [s.at_ns for s in timeline.syncs]
        ends = (s.at_ns + s.wait_ns for s in timeline.syncs)
        self._latest_ends = list(accumulate(ends, max))  # up to each, of all before it

    def site(self, at: int) -> str:
        """The line of the sync point whose wait ends at this time or goes on."""
        syncs = self.timeline.syncs
        i = bisect_left(self._sync_starts, at) - 1
        while i >= 0 and at <= self._latest_ends[i]:
            if at <= syncs[i].at_ns + syncs[i].wait_ns:
                return syncs[i].site
            i -= 1
        return ""


def _on_host(timeline: Timeline) -> Mask:
    """The spans of the threads that are the host."""
    steps = np.flatnonzero(timeline.where(kind="step"))
    calls = timeline.lane[timeline.where(kind="dispatch") & (timeline.segment < NONE)]
    found: Mask = np.isin(timeline.lane, [timeline.lane[steps[0]], *busy_callers(calls)])
    return found


def busy_callers(calls: NDArray[Any]) -> list[Any]:
    """The threads that launch a good part of all kernels: with that of the steps they are the host.

    Args:
        calls: the thread of each launch.
    """
    threads, count = np.unique(calls, return_counts=True)
    found: list[Any] = threads[count >= PART * count.sum()].tolist()
    return found


def idle_in(calls: Ints, work: Ints) -> Ints:
    """When a device had done its work, of each call that seems to wait for that; else its start.

    The work ends within the call, or soon after: the clocks of device and host differ. No other
    follows at once, as of kernels that had been launched before: the host launches none meanwhile.

    Shape:
        calls, work (n, 2): starts and stops
    """
    busy = joined(np.stack([work[:, 0], work[:, 1] + AT_ONCE_NS], axis=1))
    begin, end = calls.T
    at = np.searchsorted(busy[:, 0], end) - 1
    last = busy[at.clip(0), 1] - AT_ONCE_NS if len(busy) else begin
    waits = (at >= 0) & (last - begin >= LONG_NS) & (end - begin >= _NEARLY * (last - begin))
    done: Ints = np.where(waits, np.minimum(last, end), begin)
    return done


def waits_for_copy(
    call: str, name: str, call_ns: tuple[int, int], copy_ns: tuple[int, int]
) -> bool:
    """Does a call that copies return no earlier than its copy is done, or nearly done?

    As `cudaMemcpyAsync` does from or to memory that is not pinned, and the call after it that waits
    then finds nothing to wait for. What goes to the device passes through buffers of CUDA's own,
    the last of which may be on its way still. Pinned memory lets only the functions called "Async"
    return early, not `cuMemcpyDtoH`.

    Args:
        call: its name.
        name: of the copy on the device.
        call_ns, copy_ns: begin and end of the call, and of the copy.
    """
    is_early = "Pinned" in name and call.partition("_")[0].endswith("Async")
    is_of_host = bool(way_of(name)) and not is_early
    return is_of_host and call_ns[1] - call_ns[0] >= LONG_NS and 2 * call_ns[1] >= sum(copy_ns)


def is_update(name: str) -> bool:
    """Is this an optimizer's step? To zero the gradients may come before a backward pass."""
    return name.startswith(_UPDATE)


def phases(steps: Ints, engine: Ints, ops: Ints, updates: Ints) -> Iterator[tuple[str, int, int]]:
    """(phase, its start, its stop) for each part of each step, without gaps.

    Shape:
        steps, engine (runs of autograd's functions), updates (the optimizer's work): (n, 2);
        ops, starts of ops that are no part of a backward pass: (n,)
    Units:
        nanoseconds
    """
    steps, engine, updates = (
        x[np.argsort(x[:, 0], kind="stable")] for x in (steps, engine, updates)
    )
    ops = np.sort(ops)
    ends = np.minimum(steps[:, 1], np.append(steps[1:, 0], _NEVER))  # where steps overlap
    for begin, end in zip(steps[:, 0].tolist(), ends.tolist(), strict=True):
        passes = _passes(_within(engine, begin, end), ops)
        yield from _parts((begin, end), passes, _within(updates, begin, end))


def _within(intervals: Ints, begin: int, end: int) -> list[_Ends]:
    """Those that start in the step."""
    low, high = np.searchsorted(intervals[:, 0], (begin, end)).tolist()
    return [(start, stop) for start, stop in intervals[low:high].tolist()]


def _passes(engine: Sequence[_Ends], ops: Ints) -> list[_Ends]:
    """The backward passes: runs of the autograd engine with no other op between them."""
    before = np.searchsorted(ops, [start for start, _ in engine]).tolist()
    passes: list[_Ends] = []
    for i, (start, stop) in enumerate(engine):
        if i and before[i] == before[i - 1]:
            passes[-1] = (passes[-1][0], max(passes[-1][1], stop))
        else:
            passes.append((start, stop))
    return passes


def _parts(
    step: _Ends, passes: Sequence[_Ends], updates: Sequence[_Ends]
) -> Iterator[tuple[str, int, int]]:
    """The phases of one step.

    After a backward pass comes the update, if an optimizer's step ends before the next pass; else,
    as with accumulated gradients or in a closure, forward again.

    Args:
        passes: the backward passes, in order.
        updates: the steps of optimizers, in order of their start.
    """
    ended = sorted(stop for _, stop in updates)
    marks = [("forward", step[0])]
    if not passes and updates:
        marks.append(("update", updates[0][0]))
    for i, (start, stop) in enumerate(passes):
        is_last = i == len(passes) - 1
        end = step[1] if is_last else passes[i + 1][0]
        stop = min(stop, end)
        work = ended[bisect_right(ended, stop) : bisect_right(ended, end)]
        marks.append(("backward", start))
        if work or is_last:
            marks.append(("update", stop))
        if not is_last:
            marks.append(("forward", max(work, default=stop)))
    marks.append(("", step[1]))
    for (name, start), (_, stop) in pairwise(marks):
        if stop > start:
            yield name, start, stop


def blocked(timeline: Timeline) -> Mask:
    """Which spans are calls that wait for the device.

    The queue of launches is full, or others are on their way and the call returns only when what it
    launched has run, as a copy from memory that is not pinned.
    """
    found = np.zeros(len(timeline), dtype=bool)
    call, done_ns = _launched(timeline)
    if len(call):
        start, stop = timeline.times(call).T
        begun, gone = np.arange(len(call)), np.searchsorted(np.sort(done_ns), start, "right")
        on_way = (begun - gone).clip(0)  # when the call began
        is_full = on_way >= max(_NEARLY * int(on_way.max()), DEEP)
        is_last = (on_way > 0) & (done_ns <= stop)
        found[call] = (is_full | is_last) & (stop - start >= LONG_NS)
    return found


def _launched(timeline: Timeline) -> tuple[Ints, Ints]:
    """The calls that have launched something, in order of time, and when the last of it had run."""
    call = np.flatnonzero(timeline.where(kind="dispatch") & (timeline.segment < NONE))
    kernel = np.flatnonzero(timeline.where(kind=ON_DEVICE) & (timeline.segment < NONE))
    numbers, group = np.unique(timeline.segment[kernel], return_inverse=True)
    done_ns = np.zeros(len(numbers), np.int64)
    np.maximum.at(done_ns, group, timeline.stop_ns[kernel])
    call = call[np.isin(timeline.segment[call], numbers)]
    call = call[np.argsort(timeline.start_ns[call], kind="stable")]
    return call, done_ns[np.searchsorted(numbers, timeline.segment[call])]
