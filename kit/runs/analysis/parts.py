"""What each part of a run's traced steps took: in the mean step, and in each step alone.

The mean is what is shown; the steps alone say how far it varies, which the rule for "changed"
needs (`kit.runs.change`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kit.runs.analysis.headline import syncs_of_steps
from kit.runs.analysis.lines import line_costs, place_of, work_of_steps
from kit.runs.run import Run
from kit.trace import (
    breakdown,
    count_devices,
    each_step,
    idle_gaps,
    kernel_table,
)
from kit.trace.active import hull
from kit.trace.gaps import Gap, IdleRow

__all__ = ["NOTHING", "Part", "Parts", "kernel_kind", "sum_of"]

_NUMBER = re.compile(r"(\.\d+)+$")
_Members = tuple[int, ...]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step.

    Units:
        milliseconds a step
    """

    ms: float  # in the mean step; nan: the run does not have it
    count: float = math.nan  # a step
    steps: tuple[float, ...] = ()  # in each step alone


NOTHING = Part(math.nan)


def kernel_kind(name: str) -> str:
    """The name without the number that XLA gives it: "add_fusion" for "add_fusion.12"."""
    return _NUMBER.sub("", name)


class Parts:
    """The parts of one run: kernels, nodes, lines, categories, causes of idle time, waits."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.devices = count_devices(run.timeline)
        self._steps = max(run.timeline.steps, 1)
        self._each = each_step(run.timeline)
        self._kernels = [
            (row, run.nodes_of(row.segment, row.name, row.node))
            for row in kernel_table(run.timeline)
        ]
        alone = [
            {(r.segment, r.name): r.charged_ms for r in kernel_table(step)} for step in self._each
        ]
        self._alone = {
            (row.segment, row.name): tuple(step.get((row.segment, row.name), 0.0) for step in alone)
            for row, _ in self._kernels
        }
        self._texts = _texts(run)

    def nodes(self) -> dict[int, Part]:
        """A kernel's time is divided equally among the nodes that it computes."""
        found: dict[int, Part] = {}
        for row, members in self._kernels:
            share = 1 / len(members) if members else 0.0
            part = Part(row.charged_ms / self._steps * share, 0.0,
                        tuple(ms * share for ms in self._alone[row.segment, row.name]))  # fmt: skip
            for i in members:
                found[i] = sum_of(found.get(i), part)
        return found

    def kernels(self, number: Mapping[int, int]) -> dict[tuple[_Members, str], Part]:
        """By (what it computes: the numbers of its nodes, its name without number)."""
        found: dict[tuple[_Members, str], Part] = {}
        for row, members in self._kernels:
            key = tuple(sorted(number[i] for i in members if i in number)), kernel_kind(row.name)
            part = Part(row.charged_ms / self._steps, row.count / self._steps,
                        self._alone[row.segment, row.name])  # fmt: skip
            found[key] = sum_of(found.get(key), part)
        return found

    def breakdown(self) -> dict[str, Part]:
        """By category."""
        each = [{r.category: r.exposed_ms for r in breakdown(step)} for step in self._each]
        whole = {r.category: (r.exposed_ms, math.nan) for r in self.run.breakdown()}
        return _parts(whole, each)

    def idle(self) -> dict[str, Part]:
        """By cause and line; of several devices the mean."""
        scale = self._steps * self.devices
        whole = {k: (ms / scale, n / scale) for k, (ms, n) in self._idle().items()}
        return _parts(whole, self._idle_of_steps())

    def syncs(self) -> dict[str, Part]:
        """The waits that the tables tell, by cause and line."""
        whole: dict[str, tuple[float, float]] = {}
        for row in self.run.sync_rows:
            name = f"{row.cause} at {self.place(row.site) or 'an unknown line'}"
            ms, count = whole.get(name, (0.0, 0.0))
            whole[name] = ms + row.wait_ms_per_step, count + row.count_per_step
        each: list[dict[str, float]] = []
        for syncs in syncs_of_steps(self.run):
            each.append(defaultdict(float))
            for sync in syncs:
                name = f"{sync.cause} at {self.place(sync.site) or 'an unknown line'}"
                each[-1][name] += sync.wait_ns / 1e6
        return _parts(whole, each)

    def lines(self) -> dict[str, Part]:
        """Recording, where it is known by line, and device time of each line with an op."""
        rows = [row for row in line_costs(self.run) if row.site and row.nodes]
        mean = self._by_place({row.site: row.work_ms for row in rows})
        each = [self._by_place(step) for step in work_of_steps(self.run)]
        return _parts({name: (ms, math.nan) for name, ms in mean.items()}, each)

    def place(self, site: str) -> str:
        """A line as it is found again after an edit above it: by its text, if that is known."""
        return self._texts.get(site, site)

    def _by_place(self, of_sites: Mapping[str, float]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for site, ms in of_sites.items():
            found[self.place(site)] += ms
        return found

    def _idle_of_steps(self) -> list[dict[str, float]]:
        """Of each step, with the causes that its gaps have among those of all steps."""
        ends = [hull(step) for step in self._each]
        begins = [begin for begin, _ in ends]
        found: list[dict[str, float]] = [defaultdict(float) for _ in ends]
        for gap in idle_gaps(self.run.timeline):
            name, i = self._cause(gap), max(bisect_right(begins, gap.start_ns) - 1, 0)
            while i < len(ends) and begins[i] < gap.stop_ns:
                ns = max(min(ends[i][1], gap.stop_ns) - max(begins[i], gap.start_ns), 0)
                found[i][name] += ns / 1e6 / self.devices
                i += 1
        return found

    def _cause(self, of: Gap | IdleRow) -> str:
        return f"{of.cause} at {self.place(of.site)}" if of.site else of.cause

    def _idle(self) -> dict[str, tuple[float, float]]:
        found: dict[str, tuple[float, float]] = {}
        for row in self.run.idle:
            name = self._cause(row)
            ms, count = found.get(name, (0.0, 0.0))
            found[name] = ms + row.total_ms, count + row.count
        return found


def _texts(run: Run) -> dict[str, str]:
    """Site -> file and text of the line, where the run has the text; equal ones are numbered."""
    found: dict[str, str] = {}
    seen: dict[str, int] = defaultdict(int)
    lines = [(s.file, s.first + i, line) for s in run.sources for i, line in enumerate(s.lines)]
    for file, number, line in sorted(set(lines)):
        if text := line.strip():
            name = f"{place_of(file)[0]}: {text}"
            seen[name] += 1
            found[f"{file}:{number}"] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return found


def sum_of(one: Part | None, other: Part) -> Part:
    """Two parts of one run as one; the second where there is no first."""
    if one is None:
        return other
    steps = tuple(a + b for a, b in zip(one.steps, other.steps, strict=True))
    return Part(one.ms + other.ms, one.count + other.count, steps)


def _parts(
    whole: Mapping[K, tuple[float, float]], each: Sequence[Mapping[K, float]]
) -> dict[K, Part]:
    return {
        key: Part(ms, count, tuple(step.get(key, 0.0) for step in each))
        for key, (ms, count) in whole.items()
    }
