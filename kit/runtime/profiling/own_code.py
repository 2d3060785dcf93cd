"""Where the recording thread runs the program's own code: its Python, or ops on CPU tensors.

Recording is timed from one op to the next, and what the program does between two of them would pass
for recording, which larger bulks and fused optimizers shorten. So a stretch without an op, in which
the looks of `kit.runtime.profiling.elsewhere` find the thread at work outside of the kit and of
torch's Python, is the program's own.
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
    return stretches([at for task in tasks for at in task.seen.times or ()], spans, looks)


def stretches(
    ops_ns: Sequence[int], spans: Iterable[Span], looks: Sequence[Look]
) -> list[tuple[Site, Span]]:
    """The stretches of own code, each a span named after its line, with this line.

    Args:
        ops_ns: when each op was recorded.
        spans: all that is known of the recording thread; only recording may be cut here.
        looks: what was seen of that thread.
    """
    of_host = [s for s in spans if s.lane == _MAIN and s.kind != "step"]
    record = _times(s for s in of_host if s.kind == "record")
    other = _times(s for s in of_host if s.kind != "record")
    ops = np.sort(np.array(ops_ns, np.int64))
    if not len(record) or not len(ops) or len(looks) < 2:
        return []
    at = np.array([look.at_ns for look in looks], np.int64)
    marks = np.stack([ops, ops], axis=1)  # an interval of no length cuts where an op was recorded
    found = []
    for part in without(record, np.concatenate([other, marks])):
        start, stop = part.tolist()
        if stop - start >= LEAST_NS and (site := _site_of(looks, *np.searchsorted(at, part))):
            found.append((site, Span(_MAIN, format_site(site), "own", start, stop)))
    return found


def _site_of(looks: Sequence[Look], first: int, last: int) -> Site | None:
    """The line at which the program was seen most often; None if it did not run, or recorded.

    Args:
        first, last: the looks of a stretch, the last one not included.
    """
    inside = looks[first:last]
    own = Counter(look.site for look in inside if look.is_own and look.call != "other")
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
