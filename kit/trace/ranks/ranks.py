"""Some ranks, read and compared, and what a terminal or a page of Markdown shows of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from kit.text import (
    format_bytes,
    format_count,
    format_ms,
    format_number,
    format_percent,
    is_nothing,
    markdown_table,
    safe_markdown,
    safe_terminal,
    terminal_table,
)
from kit.trace.ranks.one import RankTrace
from kit.trace.ranks.tables import (
    CollectiveRow,
    Compared,
    CopyRow,
    RankRow,
    StepRow,
    compare_ranks,
)

__all__ = ["Cells", "Ranks", "clock_text", "collective_cells", "collective_heads", "copy_cells",
           "copy_heads", "costliest",
           "rank_cells", "rank_heads", "step_cells", "step_heads"]  # fmt: skip

MAX_ROWS = 12
Cells = list[list[str]]
_UNSURE = "none stands out"
rank_heads = ("rank", "step ms", "compute", "exposed comm.", "of that waited", "memory", "idle",
              "most idle by", "comm. hidden", "came last", "clock")  # fmt: skip
step_heads = ("step", "ms", "slowest rank", "its own ms", "above the next", "longer than others")
collective_heads = ("collective", "group", "step", "came last", "after the one before",
                    "after the first", "bytes", "bus GB/s")  # fmt: skip
copy_heads = ("rank", "copies", "in all", "bytes", "ms", "GB/s")


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of one job, each from its own trace.

    Attributes:
        traces: what was read, in the order of ranks.
        problems: ranks that are missing, or in two files; files that could not be read.
        step_by: what a step was said to be when the files were read.
    """

    name: str
    traces: tuple[RankTrace, ...]
    problems: tuple[str, ...] = ()
    step_by: str = ""

    @cached_property
    def compared(self) -> Compared:
        """The tables, worked out once."""
        return compare_ranks(self.traces)

    @property
    def ranks(self) -> tuple[RankRow, ...]:
        """A row for each rank: where its steps went, and how its clock was set."""
        return self.compared.ranks

    @property
    def steps(self) -> tuple[StepRow, ...]:
        """A row for each step that several ranks have: which one was the slowest, and why."""
        return self.compared.steps

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """A row for each collective that several ranks have: who came last, and by how much."""
        return self.compared.collectives

    @property
    def copies(self) -> tuple[CopyRow, ...]:
        """A row for each kind of copy of each rank, with its bandwidth."""
        return self.compared.copies

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: problems first; what several traces say is said once."""
        said: dict[str, list[int]] = {}
        for trace in self.traces:
            for note in trace.notes:
                said.setdefault(note, []).append(trace.rank)
        of_ranks = (
            f"{note} ({'all ranks' if len(of) == len(self.traces) else _numbers(of)})"
            for note, of in said.items()
        )
        return (*self.problems, *self.compared.notes, *of_ranks)

    @property
    def has_clock(self) -> bool:
        """Are there two ranks whose times can be compared?"""
        return sum(row.clock.is_known for row in self.ranks) > 1

    @property
    def said(self) -> str:
        """Which rank is slow and why, in one sentence."""
        named = [row for row in self.steps if row.slowest >= 0]
        if not self.steps:
            return "No step is in the traces of two ranks: there is nothing to compare."
        if not named and not self.has_clock:
            return "The ranks have no common clock: which one is the slowest is not known."
        if not named:
            most = max(self.steps, key=lambda row: row.over_ms)
            why = f": the most above the next, {_above(most)}, is not sure" * (most.over_ms > 0)
            if lost := [row.rank for row in self.ranks if row.steps and not row.clock.is_known]:
                whom = "them" if len(lost) > 1 else "it"
                why = f": how long {_numbers(lost)} waited, and who for {whom}, is not known"
            return f"In no step one rank stands out as the slowest{why}."
        parts = []
        for rank, count in Counter(row.slowest for row in named).most_common(3):
            mine = [row for row in named if row.slowest == rank]
            parts.append(f"rank {rank} in {count}{_longer(mine)}")
        return f"Of {format_count(len(self.steps), 'step')} the slowest was {', '.join(parts)}."

    def to_markdown(self) -> str:
        """The tables as Markdown."""
        parts = [f"# {safe_markdown(self.name)}: {format_count(len(self.traces), 'rank')}"]
        parts.append(safe_markdown(self.said, 600))
        parts += [f"- {safe_markdown(note, 300)}" for note in self.notes]
        for title, heads, rows in self._tables(safe_markdown, len(self.collectives)):
            parts += [f"## {title}", markdown_table(heads, rows) if rows else "none"]
        return "\n\n".join(parts) + "\n"

    def to_text(self) -> str:
        """The same for a terminal; of the collectives those that cost most."""
        parts = [f"{safe_terminal(self.name)}: {format_count(len(self.traces), 'rank')}"]
        parts[0] += f"\n{safe_terminal(self.said, 600)}"
        parts += [f"note: {safe_terminal(problem, 300)}" for problem in self.problems]
        for title, heads, rows in self._tables(safe_terminal, MAX_ROWS):
            body = terminal_table(heads, rows, left=(0, 1)) if rows else "none"
            parts.append(f"{title}\n{body}")
        rest = self.notes[len(self.problems) :]
        parts += ["\n".join(f"note: {safe_terminal(note, 300)}" for note in rest[:8])]
        return "\n\n".join(part for part in parts if part)

    def _tables(
        self, safe: Callable[[object], str], most: int
    ) -> Iterable[tuple[str, Sequence[str], Cells]]:
        yield "Ranks: means of their steps in ms", rank_heads, [*map(rank_cells, self.ranks)]
        steps = [[safe(cell) for cell in step_cells(row)] for row in self.steps]
        yield "Steps", step_heads, steps
        rows = costliest(self.collectives)[:most]
        cells = [[safe(cell) for cell in collective_cells(row)] for row in rows]
        more = f", the {most} of {len(self.collectives):,} that cost most" * (
            len(self.collectives) > most
        )
        yield f"Collectives{more}", collective_heads, cells
        copies = [*map(copy_cells, self.copies)]
        yield f"Copies{_left(copies, most)}", copy_heads, copies[:most]

    def __repr__(self) -> str:
        return (
            f"Ranks({self.name[:60]!r}, {format_count(len(self.traces), 'rank')}, "
            f"{format_count(len(self.steps), 'step')}, "
            f"{format_count(len(self.collectives), 'collective')}, "
            f"{format_count(len(self.problems), 'problem')})"
        )


def costliest(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Those with a rank that kept the others waiting, by how long."""
    return sorted(rows, key=lambda row: (row.last < 0, -row.late_ns, row.step, row.place))


def rank_cells(row: RankRow) -> list[str]:
    """The texts of a row, as `rank_heads`."""
    idle = sum(row.idle_ms.values())
    most = max(row.idle_ms, key=lambda cause: row.idle_ms[cause], default="")
    times = (row.step_ms, row.compute_ms, row.exposed_ms, row.waited_ms, row.memory_ms, idle)
    return [
        str(row.rank),
        *map(format_number, times),
        f"{most} {format_number(row.idle_ms[most])}" if idle else "",
        format_percent(row.overlap, "nothing sent"),
        f"{row.last:,}",
        clock_text(row),
    ]


def clock_text(row: RankRow) -> str:
    """How far a rank's clock is from the reference's, how sure that is, and how it was found."""
    clock = row.clock
    if not clock.is_known:
        return clock.how
    if not clock.error_ns and not clock.offset_ns:
        return clock.how
    offset_ms, error_ms = clock.offset_ns / 1e6, clock.error_ns / 1e6
    if not offset_ms:
        return f"0 ± {format_ms(error_ms)}, {clock.how}"
    sign = "+" if offset_ms > 0 else "−"
    return f"{sign}{_plus_minus(abs(offset_ms), error_ms)}, {clock.how}"


def _plus_minus(ms: float, error_ms: float) -> str:
    """`0.9 ms ± 1.2 ms`: both in the unit of the larger one; what that rounds away is left out."""
    form = partial(format_ms, beside=ms)
    if is_nothing(error := form(error_ms), form):
        return format_ms(ms)
    return f"{format_ms(ms, beside=error_ms)} ± {error}"


def _above(row: StepRow) -> str:
    return _plus_minus(row.over_ms, row.error_ms)


def step_cells(row: StepRow) -> list[str]:
    """The texts of a row, as `step_heads`."""
    if row.slowest < 0:
        return [row.name, format_number(row.step_ms), _UNSURE, "", "", ""]
    return [
        row.name,
        format_number(row.step_ms),
        f"rank {row.slowest}",
        format_number(row.own_ms),
        _above(row),
        f"{row.why} +{format_ms(row.why_ms)}" if row.why else "",
    ]


def collective_cells(row: CollectiveRow) -> list[str]:
    """The texts of a row, as `collective_heads`."""
    missing = f", {format_count(row.missing, 'rank')} not here" if row.missing else ""
    return [
        row.channel.operation,
        row.channel.group or "not named",
        f"{row.step} #{row.place}".strip(),
        (f"rank {row.last}" if row.last >= 0 else "not sure") + missing,
        _plus_minus(row.late_ns / 1e6, row.error_ns / 1e6),
        format_ms(row.spread_ns / 1e6),
        format_bytes(row.size_bytes) if row.size_bytes >= 0 else "unknown",
        format_number(row.bus_rate / 1e9) if not math.isnan(row.bus_rate) else "unknown",
    ]


def copy_cells(row: CopyRow) -> list[str]:
    """The texts of a row, as `copy_heads`."""
    rate = format_number(row.rate / 1e9)
    times = (f"{row.count:,}", format_bytes(row.size_bytes), format_number(row.total_ms), rate)
    return [str(row.rank), row.what, *times]


def _left(rows: Sequence[object], most: int) -> str:
    return f", {most} of {len(rows):,}" * (len(rows) > most)


def _numbers(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5 and 4 more`."""
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) != 1)} {shown}{more}"


def _longer(steps: Sequence[StepRow]) -> str:
    """What took the slowest rank of these steps most time beside the others; "" if not known."""
    longer: dict[str, list[float]] = defaultdict(list)
    for row in steps:
        if row.why:
            longer[row.why].append(row.why_ms)
    if not longer:
        return ""
    why, each = max(longer.items(), key=lambda item: sum(item[1]))
    some = f" in {len(each)} of them" if len(each) < len(steps) else ""
    return f" ({why} {format_ms(sum(each) / len(each))} longer than in the others{some})"
