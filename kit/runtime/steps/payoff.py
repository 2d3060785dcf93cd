"""Does it pay to guess the segments of a step before they are recorded?

A program that never waits for the device is recorded beside it anyway: to issue its segments
earlier gains nothing. So steps are guessed, and noted for that, only while the program waits in
each. And there the device has to gain more time than the guessing itself takes.
"""

from __future__ import annotations

from time import perf_counter_ns, thread_time_ns

from kit.runtime.recording.bulk import Task

__all__ = ["WINDOW", "Payoff"]

WINDOW = 16  # guessed steps over which gain and cost are added up
QUIET = 2  # steps without a wait, before no step is noted any more


class Payoff:
    """Gain and cost of the guesses of one session.

    Attributes:
        stopped: why no step is guessed any more, in words; "" while some may be.
    """

    def __init__(self) -> None:
        self.stopped = ""
        self._waits = 0  # since the last step began
        self._quiet = 0  # steps in a row without a wait
        self._steps = 0  # in this window
        self._gain_ns = 0
        self._cost_ns = 0

    def note_wait(self) -> None:
        """The program waits for the device."""
        self._waits += 1

    def begin_step(self) -> bool:
        """A step begins: shall it be noted, so that a later one can be guessed?"""
        self._quiet = 0 if self._waits else self._quiet + 1
        self._waits = 0
        return not self.stopped and self._quiet <= QUIET

    @property
    def said(self) -> str:
        """Why steps are not guessed, in words; "" while they are."""
        quiet = "the program waits for the device in none of them, so there is nothing to hide"
        return self.stopped or (quiet if self._quiet else "")

    @property
    def is_guessing(self) -> bool:
        """Shall this step be guessed?"""
        return not self.stopped and not self._quiet

    def judge(self, guess: Task, *, is_right: bool) -> None:
        """A guess was right or wrong: for so long the device has run it, early or for nothing."""
        begun, ended = guess.seen.dispatch_ns
        took = (ended or perf_counter_ns()) - begun if begun else 0
        if is_right:
            self._gain_ns += took
        else:
            self._cost_ns += took

    def cost(self, since_ns: int) -> None:
        """Guessing, and noting what is guessed from, has taken the thread's time since then."""
        self._cost_ns += thread_time_ns() - since_ns

    def end_step(self) -> None:
        """A step has ended that was noted."""
        if not self.is_guessing:
            return
        self._steps += 1
        if self._steps < WINDOW:
            return
        if self._gain_ns < self._cost_ns:
            gain, cost = (ns / self._steps / 1e3 for ns in (self._gain_ns, self._cost_ns))
            self.stopped = (
                f"it did not pay: it took the host {cost:,.0f} us a step, and the device ran "
                f"{gain:,.0f} us a step of what was guessed before it was recorded"
            )
        self._steps = self._gain_ns = self._cost_ns = 0
