"""What the recording thread did while a trace was on: spans by phase, and the tasks it cut."""

from __future__ import annotations

import time

from kit.runtime.recording.bulk import Task
from kit.trace import Span

__all__ = ["HostSpans"]


class HostSpans:
    """Collects while it is on; costs one comparison a call while it is off."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.tasks: list[tuple[Task, int]] = []
        self._on = False
        self._phase = ""
        self._since = 0
        self._step_start = 0
        self._step = 0

    def start(self, lead_in: int) -> None:
        """Forget what was collected, and collect from now on; steps before 0 lead in."""
        self.clear()
        self._on, self._phase, self._step = True, "", -lead_in
        self._step_start = self._since = time.perf_counter_ns()

    def clear(self) -> None:
        """Forget what was collected."""
        self.spans, self.tasks = [], []

    def stop(self) -> None:
        """Collect no more; what there is stays."""
        self._close(time.perf_counter_ns())
        self._on = False

    def add(self, name: str, kind: str, start: int, stop: int, lane: str = "host/main") -> None:
        """Note something that the recording thread did, or a loader's."""
        if self._on:
            self.spans.append(Span(lane, name, kind, start, stop))

    def enter(self, phase: str) -> None:
        """The program is in this phase from now on; a new step begins forward."""
        if self._on and phase != self._phase:
            now = time.perf_counter_ns()
            if self._phase:
                self._close(now)
                self._since = now
            self._phase = phase

    def leave(self) -> None:
        """The phase ends here; the next op says which comes."""
        self._close(time.perf_counter_ns())

    def pause(self) -> None:
        """The thread waits for something, in the middle of a phase perhaps."""
        phase = self._phase
        self.leave()
        self._phase = phase

    def resume(self) -> None:
        """It goes on where it was."""
        self._since = time.perf_counter_ns()

    def end_step(self) -> None:
        """One step ends here and the next begins."""
        if self._on:
            now = time.perf_counter_ns()
            self._close(now)
            if self._step >= 0:
                self.add(f"step {self._step}", "step", self._step_start, now)
            self._step += 1
            self._step_start = self._since = now

    def cut(self, task: Task) -> None:
        """Note that a bulk was cut."""
        if self._on:
            self.tasks.append((task, self._step))
            self.add(f"cut: {task.cut.reason}", "plan", *task.seen.plan_ns)

    def arrive(self, task: Task) -> None:
        """Note what the program waits for without having cut it."""
        if self._on:
            self.tasks.append((task, self._step))

    def _close(self, now: int) -> None:
        if self._on and self._phase and now > self._since:
            self.add(self._phase, "record", self._since, now)
        self._phase = ""
        self._since = now
