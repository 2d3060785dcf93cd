"""How many batches the workers of torch's DataLoaders have ready: steps that use them up are short.

A long step (the first one compiles) lets the workers fill their queue, and the steps after it take
from there: a loop that is measured then shows no wait for its loader, though each step of a long
run waits. So a warm-up goes on while the count falls, and traced steps begin once it is as before.

The queue of a loader is torch's own matter: where it is kept otherwise, nothing is counted.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from kit.errors import but_of_handlers
from kit.runs.steady import ALIKE, MOST_WARMUP, WINDOW, drift
from kit.text import format_ms
from kit.threads import living

__all__ = ["MOST_EMPTYING", "MOST_LEAD_IN", "ReadyBatches", "used_up_text"]

MOST_EMPTYING = 60  # warm-up steps, while the batches that are ready run out
MOST_LEAD_IN = 20  # steps under the profiler, which keeps all that it sees
_MORE_READY = (
    f"after {MOST_LEAD_IN} steps under the profiler a DataLoader still had more batches ready than "
    "in the measured steps: how long steps wait for a batch is not seen in the traced ones"
)
_LEAST = 2  # batches that were used up, more or less, before that is told
_WINDOW = 2 * WINDOW  # steps that are judged: workers that began together bring many at once
_FELL = 0.5  # of a batch, from the earlier half of these steps to the later one


class ReadyBatches:
    """The batches that are ready at the end of each step.

    The loaders are looked for where a process was started since the last look, as at an epoch's
    begin: that goes through all objects of Python.
    """

    def __init__(self) -> None:
        self._found: list[weakref.ref[Any]] = []
        self._children: frozenset[int | None] = frozenset()  # at the last look
        self._most = math.inf  # batches with which traced steps may begin
        self._usual = 0  # steps under the profiler that had no more, the last ones in a row
        self.counts: list[int] = []  # at the ends of steps; all 0 without workers

    def note(self) -> int:
        """A step has ended: how many are ready now."""
        if (children := _children()) != self._children:
            self._children = children
            self._found = [weakref.ref(found) for found in _live_iterators()]
        queues = [q for ref in self._found if (q := ref()) is not None and not _is_over(q)]
        self.counts.append(sum(map(_ready_of, queues)))
        return self.counts[-1]

    @property
    def is_falling(self) -> bool:
        """Do the last steps take more batches than come?"""
        last = self.counts[-_WINDOW:]
        half = len(last) // 2
        return len(last) >= WINDOW and fmean(last[:half]) - fmean(last[half:]) > _FELL

    def end_measured(self, steps: int) -> None:
        """The last steps were measured: where they found no batch ready, traced ones shall not."""
        last = self.counts[-steps - 1 :]
        self._most = fmean(last) + 1 if last and not min(last) else math.inf

    def is_warm(
        self, times: Sequence[int], fixed: int | None, agree: Callable[[bool], bool] = bool
    ) -> bool:
        """Is the warm-up over: have its last steps no trend, and are no batches running out?

        Args:
            times: of the steps until now.
            fixed: how many steps were asked for; None where the steps decide.
            agree: do all who take the step call it steady?
        """
        if fixed is not None:
            return len(times) >= fixed
        if len(times) < WINDOW:
            return False
        is_steady = not drift(times[-WINDOW:]) or len(times) >= MOST_WARMUP
        return agree(is_steady and not self.is_falling) or len(times) >= MOST_EMPTYING

    def led_in(self, number: int) -> tuple[bool, str]:
        """After so many steps under the profiler: may traced ones begin, and what is to be known.

        They may once no more batches are ready than in the measured steps, or after `MOST_LEAD_IN`.
        A worker may have made the next batch half while the profiler began: one step takes that,
        where measured steps wait for workers. Without measured ones they may at once.
        """
        is_usual = self.note() < self._most
        self._usual = self._usual + 1 if is_usual else 0
        may_wait = bool(self._found) and math.isfinite(self._most)
        is_led_in, is_last = self._usual > may_wait, number >= MOST_LEAD_IN
        return is_led_in or is_last, "" if is_usual or not is_last else _MORE_READY


def used_up_text(counts: Sequence[int], times_ns: Sequence[int]) -> str:
    """A sentence for measured steps that took more batches than came; "" if they did not.

    Args:
        counts: what was ready before the first of them, and at the end of each.
        times_ns: what they took.
    """
    steps, used = len(times_ns), (counts[0] - counts[-1] if counts else 0)
    if used < _LEAST or used <= ALIKE * steps or drift(counts) >= 0:  # they go up and down
        return ""
    step_ms = fmean(times_ns) / 1e6
    long = f", up to {format_ms(step_ms * steps / (steps - used))} a step" if used < steps else ""
    return (
        f"the measured steps used up {used} batches that workers of a DataLoader "
        "had prepared before: once these are gone, each step waits for the workers, if they are "
        f"slower than the step{long}. Measure more steps, or raise the warm-up"
    )


def _children() -> frozenset[int | None]:
    """The processes that multiprocessing has started here, as far as it knows them."""
    known = getattr(sys.modules.get("multiprocessing.process"), "_children", None)
    return frozenset(child.pid for child in known.copy()) if isinstance(known, set) else frozenset()


def _live_iterators() -> list[Any]:
    """The iterators over loaders with workers that Python's garbage collector knows of."""
    kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter",
                   None)  # fmt: skip
    if kind is None:
        return []
    return living(kind)


def _is_over(iterator: Any) -> bool:
    """The epoch has ended, or its workers have."""
    is_used_up = not getattr(iterator, "_tasks_outstanding", 0)
    return (is_used_up and not _ready_of(iterator)) or bool(getattr(iterator, "_shutdown", True))


def _ready_of(iterator: Any) -> int:
    """Batches that wait in the queues, or beside these where others go first; 0 if not known."""
    names = ("_data_queue", "_worker_result_queue")  # the same one without a thread that pins
    queues = {id(q): q for name in names if (q := getattr(iterator, name, None)) is not None}
    try:
        waiting = sum(int(queue.qsize()) for queue in queues.values())
    except but_of_handlers(NotImplementedError, OSError, AttributeError, ValueError):
        return 0  # macOS does not tell
    aside = getattr(iterator, "_task_info", {}).values()
    return waiting + sum(isinstance(info, tuple) and len(info) == 2 for info in list(aside))
