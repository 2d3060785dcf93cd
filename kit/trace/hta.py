"""Idle time, overlap, queues and launches by the rules of Holistic Trace Analysis (HTA)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from kit.trace.active import NONE, Gaps, Kernels, launches, named, paired
from kit.trace.intervals import Ints
from kit.trace.kinds import ON_DEVICE
from kit.trace.metrics import union_ns
from kit.trace.timeline import Timeline

__all__ = [
    "HTA_CAUSES",
    "HtaLaunches",
    "hta_idle",
    "hta_launches",
    "hta_overlap",
    "hta_places",
    "hta_queue",
]

HTA_CAUSES = ("host wait", "kernel wait", "other")
# HTA's default is 30; it says nanoseconds, but its times are microseconds.
_HTA_DELAY_NS = 30_000
_SENT = re.compile(r"nccl|hip|hccl|.*ncclKernel")  # names of kernels that communicate
_CALLS = re.compile(r"cudaLaunchKernel(ExC)?$|cudaMem(cpy|set)Async$")
_QUEUED = re.compile(
    r"(cudaLaunchKernel(ExC)?|cuLaunchKernel(Ex)?|hip(ExtModule)?LaunchKernel"
    r"|(cuda|hip)Mem(cpy|set)Async)$"
)
_EVERY_CALL = re.compile(r"(?!.*Graph)")  # the driver's and AMD's, too
_NOT_COMPUTED = re.compile(
    r"nccl|hip|hccl|.*Memcpy|.*Memset|.*dma|.*Sync|Stream Wait Event|cuda.*LaunchKernel|runFunction"
)


def hta_idle(timeline: Timeline, delay_ns: int = _HTA_DELAY_NS) -> dict[str, dict[str, int]]:
    """Idle time of each device lane by HTA's rule: lane -> `HTA_CAUSES` -> nanoseconds.

    The gap before a kernel is "host wait" if the kernel was launched after the kernel before it had
    ended; else "kernel wait" if it is shorter than `delay_ns`; else "other". A launch is the start
    of the dispatch of the kernel's segment; where none was seen, it is not after anything. HTA
    takes the end of the kernel before, which on a CUDA stream is the latest end so far; on lanes
    whose kernels overlap, this takes the latest end, so that no gap is negative.

    Source:
        `_analyze_idle_time_for_stream` in hta/analyzers/breakdown_analysis.py,
        https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html
    """
    found = {}
    on_device = timeline.where(kind=ON_DEVICE)
    for i, lane in enumerate(timeline.lanes):
        kernels = Kernels(timeline, np.flatnonzero(on_device & (timeline.lane == i)))
        if not len(kernels.start):
            continue
        gaps = kernels.gaps(int(kernels.start[0]), int(kernels.latest[-1]))
        places = hta_places(gaps, launches(timeline, gaps.after)[0], delay_ns)
        lost = [int((gaps.stop - gaps.start)[places == p].sum()) for p in range(len(HTA_CAUSES))]
        found[lane] = dict(zip(HTA_CAUSES, lost, strict=True))
    return found


def hta_places(gaps: Gaps, launched: Ints, delay_ns: int = _HTA_DELAY_NS) -> Ints:
    """The place in `HTA_CAUSES` of each gap, given when the kernel after it was launched."""
    is_short = gaps.stop - gaps.start < delay_ns
    return np.where(launched > gaps.start, 0, np.where(is_short & (gaps.after >= 0), 1, 2))


def hta_overlap(timeline: Timeline) -> float:
    """Fraction of the time of communication kernels in which a computation kernel ran too.

    Returns:
        A number in [0, 1]; nan if nothing communicates.

    Source:
        https://hta.readthedocs.io/en/latest/source/features/comm_comp_overlap.html
    """
    kernel = timeline.where(kind=ON_DEVICE)
    sent = kernel & named(timeline, _SENT.match)
    computed = kernel & ~named(timeline, _NOT_COMPUTED.match)
    lengths = [union_ns(timeline.times(x)) for x in (sent, computed, sent | computed)]
    return (lengths[0] + lengths[1] - lengths[2]) / lengths[0] if lengths[0] else math.nan


def hta_queue(timeline: Timeline, *, every: bool = False) -> dict[str, Ints]:
    """How many launches are on their way, by the lane that they go to; in order of time.

    A call adds one to the lane of what it launches, and what it launched takes one off when it
    begins. Only of files that say which call launched what.

    Args:
        every: calls of any library; HTA counts here those of CUDA's driver and of AMD, too, and
            also `hipMemcpyWithStream`, which waits for what it launches.

    Shape:
        lane -> (n, 2): a time in nanoseconds, and the length from then on

    Source:
        https://hta.readthedocs.io/en/latest/source/features/trace_counters.html
    """
    call, kernel = _pairs(timeline, _EVERY_CALL if every else _QUEUED)
    found = {}
    for lane in np.unique(timeline.lane[kernel]).tolist():
        mine = timeline.lane[kernel] == lane
        at = np.concatenate([timeline.start_ns[call[mine]], timeline.start_ns[kernel[mine]]])
        change = np.repeat([1, -1], int(mine.sum()))
        order = np.lexsort((-change, at))  # at one time calls come first: HTA has no order
        found[timeline.lanes[lane]] = np.stack([at[order], np.cumsum(change[order])], axis=1)
    return found


@dataclass(frozen=True)
class HtaLaunches:
    """For each kernel that a call launched, in order of the calls.

    Units:
        nanoseconds
    """

    call_ns: Ints  # how long the call took
    kernel_ns: Ints  # and what it launched
    delay_ns: Ints  # from the end of the call to the begin of the kernel; 0 if that came before


def hta_launches(timeline: Timeline, *, every: bool = False) -> HtaLaunches:
    """How long calls that launch take, and what they launch, of files that say so.

    Args:
        every: calls of any library, AMD's too; HTA counts some of CUDA's runtime.

    Source:
        https://hta.readthedocs.io/en/latest/source/features/cuda_kernel_launch_stats.html
    """
    call, kernel = _pairs(timeline, _EVERY_CALL if every else _CALLS)
    order = np.lexsort((timeline.start_ns[kernel], timeline.start_ns[call]))
    call, kernel = call[order], kernel[order]
    start, stop = timeline.start_ns, timeline.stop_ns
    return HtaLaunches(
        stop[call] - start[call],
        stop[kernel] - start[kernel],
        (start[kernel] - stop[call]).clip(0),
    )


def _pairs(timeline: Timeline, names: re.Pattern[str]) -> tuple[Ints, Ints]:
    """The call and the kernel of each launch; of none that launches a graph of CUDA's."""
    is_call = timeline.where(kind="dispatch") & (timeline.segment < NONE)
    calls = np.flatnonzero(is_call & named(timeline, names.match))
    kernel, call = paired(timeline, np.flatnonzero(timeline.where(kind=ON_DEVICE)), calls)
    return call, kernel
