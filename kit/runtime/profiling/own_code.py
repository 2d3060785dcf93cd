"""Where the recording thread runs the program's own code: its Python, or ops on CPU tensors.

Recording is timed from one op to the next, and what the program does between two of them would pass
for recording, which larger bulks and fused optimizers shorten. So a stretch without an op, in which
the looks of `kit.runtime.profiling.elsewhere` find the thread at work outside of the kit and of
torch's Python, is the program's own. Of steps that torch runs itself its Python counts, too, where
it issues no ops (it writes a checkpoint): that is the doing of the line that calls it. What an
optimizer does before it issues its ops stays recording: fused or captured, it does less of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from kit.runtime.profiling.elsewhere import Look
from kit.runtime.recording.bulk import Site, Task
from kit.runtime.recording.sites import format_site
from kit.trace import Span
from kit.trace.intervals import Ints, without

__all__ = ["own_code", "stretches"]

LEAST_NS = 1_000_000  # what is shorter is not worth a span, and no look may have seen it
RAN_NS = 500_000  # of these: a thread that has lost its core between two ops runs less
MOSTLY = 0.5  # of the looks, or of the time: so much must be the program's
_MAIN = "host/main"


def own_code(
    tasks: Iterable[Task], spans: Iterable[Span], looks: Sequence[Look]
) -> list[tuple[Site, Span]]:
    """The stretches of own code between the ops of these tasks; see `stretches`."""
    times = [at for task in tasks for at in task.seen.times or ()]
    # An interval of no length cuts where an op was recorded.
    return stretches(np.repeat(np.array(times, np.int64)[:, None], 2, axis=1), spans, looks)


def stretches(
    ops: Ints, spans: Iterable[Span], looks: Sequence[Look], *, is_native: bool = False
) -> list[tuple[Site, Span]]:
    """The stretches of own code, each a span named after its line, with this line.

    Args:
        ops: when each op was recorded, or ran.
        spans: all that is known of the recording thread; only recording may be cut here.
        looks: what was seen of that thread.
        is_native: torch runs the steps itself.

    Shape:
        ops (n, 2): starts and stops
    """
    of_host = [s for s in spans if s.lane == _MAIN and s.kind != "step"]
    record = _times(s for s in of_host if s.kind == "record")
    other = _times(s for s in of_host if s.kind != "record")
    if not len(record) or not len(ops) or len(looks) < 2:
        return []
    at = np.array([look.at_ns if look.seen_ns == -1 else look.seen_ns for look in looks], np.int64)
    begun = ops[:, 0]
    found = []
    for part in without(record, np.concatenate([other, ops])):
        start, stop = part.tolist()
        if stop - start < LEAST_NS:
            continue
        first, last = np.searchsorted(at, part).tolist()
        if first == last < len(at) - 1 and not ((begun >= stop) & (begun < at[last])).any():
            last += 1  # Python's lock was kept (in gc.collect), and the look had to wait for it
        if site := _site_of(looks, first, last, is_native=is_native):
            found.append((site, Span(_MAIN, format_site(site), "own", start, stop)))
    return found


def _site_of(looks: Sequence[Look], first: int, last: int, *, is_native: bool) -> Site | None:
    """The line at which the program was seen most often; None if it did not run, or recorded.

    Args:
        first, last: the looks of a stretch, the last one not included.
    """
    inside = looks[first:last]
    awake = [look for look in inside if look.call != "other"]
    own = Counter(
        look.site
        for look in awake
        if look.is_own or (is_native and look.site[0] and not look.issues)
    )
    if not own or own.total() < MOSTLY * len(inside):
        return None
    around = looks[max(first - 1, 0)], looks[min(last, len(looks) - 1)]
    passed = around[1].at_ns - around[0].at_ns
    ran = around[1].cpu_ns - around[0].cpu_ns
    queued = max(around[1].queued_ns - around[0].queued_ns, 0)
    # One that was blocked waits, which has other names; one that only stood in line did nothing.
    is_at_work = ran + queued >= MOSTLY * passed and ran >= RAN_NS
    return own.most_common(1)[0][0] if is_at_work else None


def _times(spans: Iterable[Span]) -> Ints:
    return np.array([(s.start_ns, s.stop_ns) for s in spans], np.int64).reshape(-1, 2)
