"""Numbers the segments of a session and gives them to its executor, not too far ahead of it."""

from __future__ import annotations

import time
from collections import Counter, deque

from kit.ir.plan import SEGMENTS_AHEAD, STEPS_AHEAD
from kit.runtime.profiling.host_spans import HostSpans
from kit.runtime.recording.bulk import Task
from kit.runtime.session.executor import Executor
from kit.runtime.session.waits import Waits

__all__ = ["Issuer"]


class Issuer:
    """The way from a cut bulk to the executor, with counters and spans of what went by.

    Attributes:
        step: how many steps the session has ended.
        last: the task that was issued last.
    """

    def __init__(self, executor: Executor, spans: HostSpans, waits: Waits) -> None:
        self.executor = executor
        self.spans = spans
        self.waits = waits
        self.counts: Counter[str] = Counter()
        self.step = 0
        self.last: Task | None = None
        self._segments = 0
        self._position = 0  # of the next segment in its step
        self._markers: list[Task] = []  # the last task of each step that may still run
        self._ahead: deque[Task] = deque(maxlen=SEGMENTS_AHEAD + 1)  # the latest tasks

    def next_segment(self) -> int:
        """The number of the next segment."""
        self._segments += 1
        return self._segments - 1

    def place(self, task: Task) -> None:
        """The task is the next segment of this step."""
        task.step, task.position = self.step, self._position
        self._position += 1

    def note(self, task: Task) -> None:
        """Count a segment, and show where it was cut."""
        self.counts["segment.count"] += 1
        self.counts[f"cut.{task.cut.reason}"] += 1
        self.spans.cut(task)

    def issue(self, task: Task) -> None:
        """Count a segment and give it to the executor."""
        self.note(task)
        self.push(task)

    def push(self, task: Task) -> None:
        """Give a task to the executor."""
        self.executor.push(task)
        self.last = task
        self._ahead.append(task)

    def has(self, task: Task) -> bool:
        """True if the executor has got the task."""
        return task.operation is not None or task in self.executor.held

    def displace(self, task: Task) -> None:
        """The task that was placed last will not come."""
        self._position = task.position

    def confirm(self, task: Task) -> None:
        """The program has asked for a task that was a guess."""
        self.executor.confirm(task)

    def cancel(self, task: Task) -> None:
        """A guess was wrong: it need not run."""
        if task.operation is not None:
            self.executor.engine.cancel(task.operation)

    def finish(self, task: Task) -> None:
        """Block until the device has run this segment; other threads may record meanwhile."""
        with self.waits.waiting():
            self.executor.finish(task)

    def throttle(self) -> None:
        """More is going to be recorded: wait if that is too far ahead of the device."""
        ahead = self._ahead
        if len(ahead) > SEGMENTS_AHEAD:
            start = time.perf_counter_ns()
            self.finish(ahead[-SEGMENTS_AHEAD // 2])  # not one by one: threads switch
            while len(ahead) > SEGMENTS_AHEAD // 2:  # another thread may have done it meanwhile
                ahead.popleft()
            self.counts["ahead.count"] += 1
            self.spans.add("segments ahead", "ahead", start, self.waits.until_ns)

    def end_step(self) -> None:
        """The step ends with the task that was issued last."""
        self.step += 1
        self._position = 0
        if self.last is not None:
            self._markers.append(self.last)

    def wait_for_steps(self) -> None:
        """Wait until the device is no more than `STEPS_AHEAD` steps behind."""
        while len(self._markers) > STEPS_AHEAD:
            start = time.perf_counter_ns()
            self.finish(self._markers.pop(0))
            self.spans.add("a step ahead of the device", "ahead", start, self.waits.until_ns)

    def note_replay(self, start: int) -> None:
        """Segments were issued without being recorded, since `start`."""
        self.spans.add("replay", "plan", start, time.perf_counter_ns())

    def forget(self) -> None:
        """Let go of the tasks that have run."""
        self._ahead.clear()
