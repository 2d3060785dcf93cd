"""What is kept of the trace of one rank: a few numbers a step, its collectives, coarse lanes.

A trace of 200,000 events becomes some thousand numbers, so that many ranks fit into memory at once.
`to_json` and `of_json` take them from the process that has read the file to the one that compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kit.trace.communication import Channel, Collective, Copy, device_work
from kit.trace.devices import count_devices
from kit.trace.gaps import idle_gaps
from kit.trace.imported import Member
from kit.trace.intervals import Ints, within, without
from kit.trace.timeline import COLUMNS, Timeline

__all__ = ["NAMES", "Lane", "Parts", "RankTrace", "coarse", "rank_trace"]

MAX_PIECES = 2_000  # of one kind on one lane: more than a screen has pixels
MAX_LANES = 12  # of one rank
NAMES = ("compute", "communication", "memory")  # what is drawn of a device


@dataclass(frozen=True)
class Parts:
    """Where each step of a rank went: compute + exposed + memory + idle is the step.

    Shape:
        each (steps,)
    Units:
        nanoseconds
    """

    compute: Ints
    communication: Ints  # all of it, hidden or not
    exposed: Ints  # communication under which nothing computed
    memory: Ints  # under which nothing computed or communicated
    idle: Ints
    causes: Mapping[str, Ints]  # cause -> its part of idle


@dataclass(frozen=True)
class Lane:
    """What one lane does, coarse enough to be drawn. Shape of times: (n, 2)."""

    name: str
    what: str  # one of NAMES
    times: Ints


@dataclass(frozen=True)
class RankTrace:
    """One rank as its trace shows it; all times are of its own timeline.

    Attributes:
        rank: from 0, as the file or its name says.
        zero_ns: the time on the clock of the file at which the timeline is 0.
        steps: begin and end of each. Shape: (steps, 2)
        exposed: communication under which nothing computes. Shape: (n, 2)
        world: how many ranks the file says there are; 0 if it does not.
        has_clock: are its times those of a machine's clock? A saved run has only its own.
        process: host and process id of its program; "" if the file does not say both.
        host: the name of its machine; "" if the file does not say it.
        is_from_name: is the rank what the file's name says, as the file says none?
    """

    rank: int
    file: str
    zero_ns: int
    step_names: tuple[str, ...]
    steps: Ints
    parts: Parts
    collectives: tuple[Collective, ...]
    exposed: Ints
    lanes: tuple[Lane, ...] = ()
    notes: tuple[str, ...] = ()
    world: int = 0
    copies: tuple[Copy, ...] = ()
    has_clock: bool = True
    process: str = ""
    host: str = ""
    is_from_name: bool = False

    def step_of(self, collective: Collective) -> int:
        """The step in which the host asked for it, or in which it began; -1 if in none."""
        at = collective.called_ns if collective.called_ns >= 0 else collective.start_ns
        i = int(np.searchsorted(self.steps[:, 0], at, "right")) - 1
        return i if i >= 0 and at < self.steps[i, 1] else -1

    def to_json(self) -> dict[str, Any]:
        """The same as lists and texts."""
        channels = list(dict.fromkeys(c.channel for c in self.collectives))
        place = {channel: i for i, channel in enumerate(channels)}
        parts = self.parts
        return {
            **{k: getattr(self, k) for k in _PLAIN},
            "step_names": list(self.step_names),
            "notes": list(self.notes),
            "steps": self.steps.tolist(),
            "exposed": self.exposed.tolist(),
            "parts": {k: getattr(parts, k).tolist() for k in _PARTS},
            "causes": {k: v.tolist() for k, v in parts.causes.items()},
            "channels": [[c.operation, c.group, list(c.members), c.size] for c in channels],
            "collectives": [
                [place[c.channel], *(getattr(c, k) for k in _OF_COLLECTIVE)]
                for c in self.collectives
            ],
            "copies": [[c.what, c.start_ns, c.stop_ns, c.size_bytes] for c in self.copies],
            "lanes": [[lane.name, lane.what, lane.times.tolist()] for lane in self.lanes],
        }

    @classmethod
    def of_json(cls, made: Mapping[str, Any]) -> RankTrace:
        """What `to_json` has made."""
        channels = [Channel(o, g, tuple(m), size) for o, g, m, size in made["channels"]]
        causes = {k: np.array(v, np.int64) for k, v in made["causes"].items()}
        parts = {k: np.array(v, np.int64) for k, v in made["parts"].items()}
        return cls(
            **{k: made[k] for k in _PLAIN},
            step_names=tuple(made["step_names"]),
            notes=tuple(made["notes"]),
            steps=_pairs(made["steps"]),
            exposed=_pairs(made["exposed"]),
            parts=Parts(**parts, causes=causes),
            collectives=tuple(Collective(channels[i], *rest) for i, *rest in made["collectives"]),
            copies=tuple(Copy(*each) for each in made["copies"]),
            lanes=tuple(Lane(name, what, _pairs(times)) for name, what, times in made["lanes"]),
        )


_OF_COLLECTIVE = ("start_ns", "stop_ns", "size_bytes", "number", "called_ns", "is_even")
_PLAIN = ("rank", "file", "zero_ns", "world", "has_clock", "process", "host", "is_from_name")
_PARTS = ("compute", "communication", "exposed", "memory", "idle")


def rank_trace(timeline: Timeline, member: Member, *, rank: int, file: str = "") -> RankTrace:
    """What is kept of a rank: of its timeline, and of what its trace says of its job."""
    steps = np.flatnonzero(timeline.where(kind="step"))
    steps = steps[np.argsort(timeline.start_ns[steps], kind="stable")]
    times = timeline.times(steps)
    return RankTrace(
        rank=rank,
        file=file,
        zero_ns=member.zero_ns,
        step_names=tuple(timeline.names[i] for i in timeline.name[steps].tolist()),
        steps=times,
        parts=_parts(timeline, times),
        collectives=tuple(sorted(member.collectives, key=lambda c: c.start_ns)),
        exposed=device_work(timeline).exposed,
        lanes=_lanes(timeline),
        notes=timeline.notes,
        world=member.world,
        copies=member.copies,
        has_clock=member.has_clock,
        process=member.process,
        host=member.host,
    )


def _parts(timeline: Timeline, steps: Ints) -> Parts:
    work = device_work(timeline)
    busy = within(work.busy, steps)
    compute, exposed = within(work.compute, steps), within(work.exposed, steps)
    causes = _causes(timeline, work.busy, steps)
    idle = steps[:, 1] - steps[:, 0] - busy
    if not causes:  # no kernel was seen: nothing is known of the device
        causes = {"unknown": idle}
    return Parts(
        compute=compute,
        communication=within(work.communication, steps),
        exposed=exposed,
        memory=busy - compute - exposed,
        idle=idle,
        causes=causes,
    )


def _causes(timeline: Timeline, busy: Ints, steps: Ints) -> dict[str, Ints]:
    """Idle time of each step by cause; of several devices each counts for its part.

    A gap of `idle_gaps` may hold a collective: that is communication, not idle.
    """
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for gap in idle_gaps(timeline):
        found.setdefault((gap.lane, gap.cause), []).append((gap.start_ns, gap.stop_ns))
    devices = count_devices(timeline)
    summed: dict[str, Ints] = {}
    for (_, cause), times in found.items():
        lengths = within(without(np.array(times, np.int64), busy), steps)
        summed[cause] = summed.get(cause, 0) + lengths
    return {cause: total // devices for cause, total in summed.items() if total.any()}


def _lanes(timeline: Timeline) -> tuple[Lane, ...]:
    """The lanes of the devices, by the time in which they work, each kind of work for itself."""
    found: list[Lane] = []
    names = [n for n in timeline.lanes if "device/" in n]
    for name in names[:MAX_LANES]:
        work = device_work(_only(timeline, name))
        found += [
            Lane(name, what, coarse(getattr(work, what), MAX_PIECES))
            for what in NAMES
            if len(getattr(work, what))
        ]
    return tuple(found)


def _only(timeline: Timeline, lane: str) -> Timeline:
    mask = timeline.lane == timeline.lanes.index(lane)
    return replace(timeline, **{column: getattr(timeline, column)[mask] for column in COLUMNS})


def coarse(times: Ints, most: int) -> Ints:
    """The same with its smallest gaps closed, so that at most so many pieces are left."""
    if len(times) <= most:
        return times
    gaps = times[1:, 0] - times[:-1, 1]
    largest = np.argsort(gaps, kind="stable")[len(gaps) - (most - 1) :]
    first = np.append(0, np.sort(largest) + 1)
    return np.stack([times[first, 0], times[np.append(first[1:] - 1, len(times) - 1), 1]], axis=1)


def _pairs(times: Any) -> Ints:
    return np.array(times, np.int64).reshape(-1, 2)
