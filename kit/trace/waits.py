"""Which idle instants of a device belong to a wait of the host before them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kit.trace.active import NONE, Gaps, Ints, Pieces, without
from kit.trace.timeline import Timeline

__all__ = ["after_waits", "excused", "goes_around", "waits"]


_END = np.iinfo(np.int64).max


def excused(timeline: Timeline) -> Ints:
    """Idle time that no wait before it is to blame for: it has a cause of its own. Shape: (n, 2).

    Gradients are on their way, a collective runs, or the host waits for something else than the
    device.
    """
    kinds = ("reduction", "communication", "elsewhere")
    return np.concatenate([timeline.intervals(kind=kind) for kind in kinds])


def after_waits(timeline: Timeline, gaps: Gaps) -> Pieces:
    """Idle time handed out to the waits that caused it, one instant after another.

    The rule is that of `idle_after`, which says how much; this says which instants.
    """
    steps = np.sort(timeline.intervals(kind="step")[:, 0])
    real = ~gaps.is_program
    idle = np.stack([gaps.start[real], gaps.stop[real]], axis=1)
    start, stop = without(idle, excused(timeline)).T
    pieces: list[tuple[int, int, int]] = []
    open_: list[list[int]] = []  # [sync, what is left of it], the latest last
    step = NONE
    syncs = timeline.syncs if len(steps) else ()
    for i, sync in enumerate(syncs):
        now = int(np.searchsorted(steps, sync.at_ns, "right"))
        open_ = open_ if now == step else []
        step = now
        open_.append([i, sync.wait_ns])
        at = sync.at_ns + sync.wait_ns
        until = syncs[i + 1].at_ns if i + 1 < len(syncs) else _END
        pieces += _handed(start, stop, (at, until), open_)
    if goes_around(timeline):
        pieces += _handed(start, stop, (-_END, syncs[0].at_ns), open_)
    columns = np.array(sorted(pieces), dtype=np.int64).reshape(-1, 3)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2])


def _handed(
    start: Ints, stop: Ints, window: tuple[int, int], open_: list[list[int]]
) -> Iterator[tuple[int, int, int]]:
    """The idle time of a window, handed to the waits that are open, the latest first."""
    at, until = window
    k = int(np.searchsorted(stop, at, "right"))
    while k < len(start) and start[k] < until and open_:
        a, b = max(int(start[k]), at), min(int(stop[k]), until)
        k += 1
        while a < b and open_:
            taken = min(open_[-1][1], b - a)
            if taken:
                yield a, a + taken, open_[-1][0]
            a += taken
            open_[-1][1] -= taken
            if not open_[-1][1]:
                open_.pop()


def goes_around(timeline: Timeline) -> bool:
    """True if what follows the last wait is seen at the begin of the first step.

    What a read at the end of a step costs is seen in the step after it. For the last one the trace
    has ended, but what it costs is as before the first: each step waits at that place, so the step
    before the trace has done so too.
    """
    steps = np.sort(timeline.intervals(kind="step")[:, 0])
    if not timeline.syncs or not len(steps):
        return False
    last = timeline.syncs[-1]
    same = [
        int(np.searchsorted(steps, s.at_ns, "right"))
        for s in timeline.syncs
        if (s.site, s.via, s.cause) == (last.site, last.via, last.cause)
    ]
    return set(same) == set(range(1, len(steps) + 1))


def waits(timeline: Timeline) -> Pieces:
    """The waits at sync points; where two overlap, the later one has the rest."""
    start = np.array([s.at_ns for s in timeline.syncs], np.int64)
    stop = start + np.array([s.wait_ns for s in timeline.syncs], np.int64)
    if len(start):
        stop[:-1] = np.minimum(stop[:-1], start[1:])
    return Pieces(start, stop, np.arange(len(start)))
