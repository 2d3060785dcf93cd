"""The clock of profilers beside Python's: XLA and torch take their times from that of the day.

That clock jumps where somebody or a time server sets it, and where the machine slept meanwhile.
Then kernels are at other places than the steps that ran them, or take ten times as long.
"""

from __future__ import annotations

import time

from kit.text import format_ns

__all__ = ["DayClock"]

_LEAST_NS = 1_000_000  # a smaller jump is less than what one looks for in a trace
_SLEWED = 1e-3  # of the time that passed, one clock may be made to run faster than the other
_LOOKS = 5  # the thread may lose its core between two clocks; hardly in all of so many looks


class DayClock:
    """How far the clock of the day is from `time.perf_counter_ns`, as it is made.

    Attributes:
        apart_ns: what to take off a time of the day.
    """

    def __init__(self) -> None:
        self._made_ns = time.perf_counter_ns()
        self.apart_ns = _apart_ns()

    def note(self) -> str:
        """What to say if the clock has jumped since; "" if it has not."""
        jump_ns = abs(_apart_ns() - self.apart_ns)
        passed_ns = time.perf_counter_ns() - self._made_ns
        grain_ns = time.get_clock_info("time").resolution * 1e9  # 16 ms on Windows
        if jump_ns <= _LEAST_NS + _SLEWED * passed_ns + 2 * grain_ns:
            return ""
        return (
            f"the system's clock was set, or the machine slept, while steps were traced: it is "
            f"{format_ns(jump_ns)} off, and with it the times of the profiler, which are not "
            "shown. Measure again"
        )


def _apart_ns() -> int:
    """The difference of the clocks by the quickest of some looks."""
    best_ns, apart_ns = -1, 0
    for _ in range(_LOOKS):
        before, day, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        if best_ns < 0 or after - before < best_ns:
            best_ns, apart_ns = after - before, day - (before + after) // 2
    return apart_ns
