"""`Conditions`: what else the machine did while a run was measured, and when that is too much.

`doubt` is the one rule for whether a run's verdict and advice may be shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from kit.text import format_count, format_number, format_percent
from kit.trace.devices import OTHER_DEVICES
from kit.trace.imported import NOT_TRACED, STALLED, TOGETHER
from kit.trace.kernels import wrong_times
from kit.trace.kinds import ON_DEVICE
from kit.trace.metrics import says_device, says_host
from kit.trace.timeline import Timeline

__all__ = [
    "DISTURBED",
    "IN_TURNS",
    "KNOWN",
    "LATER",
    "MUCH",
    "OF_OTHERS",
    "OUTSIDE",
    "UNKNOWN_CONDITIONS",
    "Conditions",
    "Unseen",
    "doubt",
    "in_cores",
    "is_throttled",
    "outside_fraction",
    "unseen",
]

DISTURBED = 0.10  # of the cores: what others may take before the verdict is withheld
MANY_PAGES = 10_000  # a second, some hundredths of a core: from there on they are told
OF_OTHERS = "steps of other threads"  # of a run's environment: how many of the loop's they made
IN_TURNS = "several threads made the loop's steps in turns, and one of them was recorded"
OUTSIDE = "programs that the step runs outside of kit.jax.step"  # in a doubt
MUCH = 0.1  # of the steps: without what happened there, no limit can be told
KNOWN = 0.90  # of the kernels' time: what must be known by op
_EARLIER = (
    "record from a moment at which the device has nothing left to do, by a schedule with warmup or "
    "with torch.cuda.synchronize() before the profiler starts, and without other programs on it. "
    "Events that were left out of the file look the same"
)
_BEHIND = (
    "end each traced step with a wait for its work, torch.cuda.synchronize() or "
    "jax.block_until_ready(result), so that a step lasts until its kernels have run; or trace more "
    "steps, until the host can get no further ahead"
)
LATER = (
    "trace later steps, by a schedule with warmup: the first launch of a kernel loads its code, "
    "and a profiler that begins makes its buffers"
)
_APART = (
    "open the trace of each process for itself, or a folder of them with kit.open_ranks, which "
    "compares them"
)
_ALONE = "open the trace that they were taken from, with all kernels and the calls of the host"
_RECORD_AGAIN = (
    "record again, with another version of the profiler if it writes such times each time: the "
    "notes say which are wrong"
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What else went on from the first measured step to the end of the traced ones.

    nan: not known, as on a system that does not say, or where the steps took too short a time: of
    these `others` and `steal` are since the run began, if that is long enough.

    Units:
        cores, others, threads, steal, system, own_threads: seconds of processor a second
    """

    cores: float = math.nan  # that the process may use
    others: float = math.nan  # taken by other processes, on these cores
    threads: float = math.nan  # taken by threads of Python that had been there before the run
    steal: float = math.nan  # taken by other guests of the same host
    load: float = math.nan  # mean number of running tasks in the minute before
    clock_before_mhz: float = math.nan
    clock_after_mhz: float = math.nan
    collections: float = math.nan  # runs of Python's garbage collector
    warmup_steps: float = math.nan  # before the measured ones
    system: float = math.nan  # of its own time: in the operating system, which clears pages there
    fresh_pages: float = math.nan  # a second: memory that the process touched for the first time
    throttled: float = math.nan  # part of the periods in which its container's limit stopped it
    full_collections: float = math.nan  # of `collections`, those that went through all objects
    own_threads: float = math.nan  # taken by threads of Python that the run has beside the step's

    def __eq__(self, other: object) -> bool:
        """Unknown equals unknown."""
        if not isinstance(other, Conditions):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[float | None, ...]:
        numbers = (getattr(self, row.name) for row in fields(self))
        return tuple(None if math.isnan(number) else number for number in numbers)

    def __str__(self) -> str:
        return _conditions_text(self)


UNKNOWN_CONDITIONS = Conditions()  # of an old file, or of somebody's trace

_TAKERS: Mapping[str, str] = {
    "others": "others",
    "threads": "other threads of this process",
    "steal": "other guests of the host",
}


def doubt(conditions: Conditions, known: float = math.nan, outside: float = 0.0) -> str:
    """Why no verdict is given; "" if one is.

    Args:
        known: the part of the kernels' time that is known by op; nan where kernels have no ops.
        outside: `outside_fraction`, a part of what is not known.
    """
    if is_throttled(conditions):
        return (
            f"measured under a limit of {in_cores(conditions.cores)}, which "
            f"stopped the process in "
            f"{format_percent(conditions.throttled)} of all periods"
        )
    taken = {name: getattr(conditions, name) for name in _TAKERS}
    whole = sum(x for x in taken.values() if x > 0)  # nan is not
    if whole > DISTURBED * conditions.cores:
        most = max(whole, 1e-9)
        said = [
            f"{_TAKERS[name]} used {format_number(round(x, 2))}"
            for name, x in taken.items()
            if x > 0.1 * most
        ]
        return f"measured on a busy machine: {' and '.join(said)} of {in_cores(conditions.cores)}"
    if known < KNOWN and outside > (1 - known) / 2:
        return (
            f"{format_percent(outside)} of the kernels' time is of {OUTSIDE}, as by another "
            "function of jax.jit or by jax.random: these kernels have no ops and no lines"
        )
    if known < KNOWN:
        return (
            f"only {format_percent(known)} of the kernels' time could be matched with ops of the "
            "traced steps: something else was profiled, too, the profiler lost part, or the steps "
            "differ more than is kept (in files of older versions: at all)"
        )
    return ""


def outside_fraction(timeline: Timeline, environment: Mapping[str, str]) -> float:
    """The part of all kernels' time of which a step of jax runs kernels that no segment has."""
    if timeline.origin != "profiled" or "jax" not in environment or "torch" in environment:
        return 0.0
    kernels = timeline.where(kind=ON_DEVICE)
    lengths = (timeline.stop_ns - timeline.start_ns)[kernels]
    return float(lengths[timeline.segment[kernels] < 0].sum() / max(lengths.sum(), 1))


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why a timeline does not tell what limits a step, and what to do; "" where it does."""

    why: str = ""
    cure: str = ""  # "" also where more than a timeline has to be known for that


def unseen(
    timeline: Timeline, environment: Mapping[str, str], *, not_begun: float, after_steps: float
) -> Unseen:
    """The first reason that holds.

    Args:
        not_begun, after_steps: `Run.not_begun_fraction`, `Run.after_steps_fraction`.
    """
    is_imported, device = timeline.origin == "imported", environment.get("device", "")
    if is_imported and TOGETHER in environment:
        return Unseen("the file holds the work of several processes", _APART)
    if is_imported and (why := wrong_times(timeline).doubt):
        return Unseen(why, _RECORD_AGAIN)
    if after_steps >= MUCH:
        said = (
            f"{format_percent(after_steps)} of the kernels' time that the steps launched comes "
            "after the last step: a step is what the host did, and the device is behind it"
        )
        return Unseen(said, _BEHIND)
    if not_begun >= MUCH:
        said = (
            f"for {format_percent(not_begun)} of the step the device had been given work and is "
            "not seen to begin it"
        )
        return Unseen(said, _EARLIER)
    if is_imported and STALLED in environment:
        said = f"{environment[STALLED]} are work of the profiler and of CUDA's driver"
        return Unseen(said, LATER)
    kind = device.partition(" ")[0]
    if is_imported and kind in OTHER_DEVICES:
        return Unseen(f"events of {kind} are not read")
    if device.endswith(NOT_TRACED):
        return Unseen("the GPU that the file names was not traced")
    if not says_device(timeline):
        return Unseen("what the device did was not seen")
    if is_imported and not says_host(timeline) and not timeline.where(kind="kernel").any():
        return Unseen("the file holds collectives alone, and not what ran beside them", _ALONE)
    return Unseen()


def in_cores(taken: float) -> str:
    """`0.5 cores`, `1 core`: seconds of processor a second."""
    return format_count(round(taken, 2), "core")


def is_throttled(conditions: Conditions) -> bool:
    """Did its container's limit stop the process too often? Measuring again would not help."""
    return conditions.throttled > DISTURBED


def _conditions_text(conditions: Conditions) -> str:
    """What is known, in one line; "" if nothing is."""
    c = conditions
    parts = [
        f"{words} used {format_number(round(getattr(c, name), 2))}"
        for name, words in _TAKERS.items()
        if getattr(c, name) >= 0 and (name == "others" or getattr(c, name) >= 0.005)
    ]
    if parts:
        parts[-1] += f" of {in_cores(c.cores)}"
    if c.throttled >= 0.005:
        parts.append(f"stopped by its limit in {format_percent(c.throttled)} of all periods")
    if c.fresh_pages >= MANY_PAGES:
        parts.append(
            f"{in_cores(c.system)} of its own in the operating system, "
            f"{round(c.fresh_pages, -2):,.0f} fresh pages a second"
        )
    if c.own_threads >= 0.005:
        parts.append(f"{in_cores(c.own_threads)} of its own other threads of Python")
    if c.load >= 0:
        parts.append(f"load {format_number(round(c.load, 1))}")
    if c.clock_before_mhz > 0 and c.clock_after_mhz > 0:
        before, after = (f"{x / 1e3:.2f}" for x in (c.clock_before_mhz, c.clock_after_mhz))
        parts.append(f"clock {before} GHz" if before == after else f"clock {before} to {after} GHz")
    if c.collections >= 0:
        full = f" ({int(c.full_collections)} of all objects)" if c.full_collections > 0 else ""
        parts.append(f"{format_count(int(c.collections), 'garbage collection')}{full}")
    if c.warmup_steps >= 0:
        parts.append(format_count(int(c.warmup_steps), "warm-up step"))
    return ", ".join(parts)
