"""Idle time by the rule and the names of Holistic Trace Analysis (HTA)."""

from __future__ import annotations

import numpy as np

from kit.trace.active import Gaps, Ints, Kernels, launches
from kit.trace.timeline import Timeline

__all__ = ["HTA_CAUSES", "HTA_DELAY_NS", "hta_idle", "hta_places"]

HTA_CAUSES = ("host wait", "kernel wait", "other")
HTA_DELAY_NS = 30  # HTA's default `consecutive_kernel_delay`


def hta_idle(timeline: Timeline, delay_ns: int = HTA_DELAY_NS) -> dict[str, dict[str, int]]:
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
    for lane in timeline.lanes:
        mask = timeline.where(kind="kernel") & (timeline.lane == timeline.lanes.index(lane))
        kernels = Kernels(timeline, mask)
        if not len(kernels.start):
            continue
        gaps = kernels.gaps(int(kernels.start[0]), int(kernels.latest[-1]))
        named = hta_places(gaps, launches(timeline, gaps.after)[0], delay_ns)
        lengths = gaps.stop - gaps.start
        found[lane] = {cause: int(lengths[named == i].sum()) for i, cause in enumerate(HTA_CAUSES)}
    return found


def hta_places(gaps: Gaps, launched: Ints, delay_ns: int = HTA_DELAY_NS) -> Ints:
    """The place in `HTA_CAUSES` of each gap, given when the kernel after it was launched."""
    is_short = gaps.stop - gaps.start < delay_ns
    return np.where(launched > gaps.start, 0, np.where(is_short & (gaps.after >= 0), 1, 2))
