"""Some ranks, read and compared, and what a terminal or a page of Markdown shows of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from kit.shown import Column
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

__all__ = [
    "COLLECTIVE_COLUMNS",
    "COPY_COLUMNS",
    "MAX_ROWS",
    "RANK_COLUMNS",
    "STEP_COLUMNS",
    "Ranks",
    "clock_text",
    "costliest",
    "furthest",
]

MAX_ROWS = 12
_CELL = 200  # letters


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
            why = f": {_lead(most)}" * (most.over_ms > 0)
            if lost := [row.rank for row in self.ranks if row.steps and not row.clock.is_known]:
                whom = "them" if len(lost) > 1 else "it"
                why = f": how long {_numbers(lost)} waited, and who for {whom}, is not known"
            return f"In no step is one rank clearly the slowest{why}."
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
        for title, heads, rows in self._tables(
            safe_markdown, max(len(self.collectives), len(self.steps))
        ):
            parts += [f"## {title}", markdown_table(heads, rows) if rows else "none"]
        return "\n\n".join(parts) + "\n"

    def to_text(self) -> str:
        """The same for a terminal; of steps and collectives those that cost most."""
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
        self, safe: Callable[[object, int], str], most: int
    ) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        every, steps = len(self.collectives), len(self.steps)
        more = f", the {most} of {every:,} that cost most" * (every > most)
        widest = f", the {most} of {steps:,} with most above the next" * (steps > most)
        tables: tuple[tuple[str, Sequence[Column[Any]], Sequence[Any]], ...] = (
            ("Ranks: means of their steps in ms", RANK_COLUMNS, self.ranks),
            (f"Steps{widest}", STEP_COLUMNS, furthest(self.steps, most)),
            (f"Collectives{more}", COLLECTIVE_COLUMNS, costliest(self.collectives)[:most]),
            (f"Copies{_left(self.copies, most)}", COPY_COLUMNS, self.copies[:most]),
        )
        for title, columns, rows in tables:
            cells = [[safe(column.cell(row), _CELL) for column in columns] for row in rows]
            yield title, [column.head for column in columns], cells

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


def furthest(rows: Sequence[StepRow], most: int) -> list[StepRow]:
    """So many steps in which one rank is furthest above the next, in the order of time."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i].slowest < 0, -rows[i].over_ms))
    return [rows[i] for i in sorted(order[:most])]


def _most_idle(row: RankRow) -> str:
    """The cause of most of the idle time, and how much; "" where there is none."""
    cause = max(row.idle_ms, key=lambda cause: row.idle_ms[cause], default="")
    return f"{cause} {format_number(row.idle_ms[cause])}" if sum(row.idle_ms.values()) else ""


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


def _lead(row: StepRow) -> str:
    lead, error = (format_ms(ms) for ms in (row.over_ms, row.error_ms))
    return f"the longest lead, {lead}, is within its error, {error}"


def _came_last(row: CollectiveRow) -> str:
    missing = f", {format_count(row.missing, 'rank')} not here" if row.missing else ""
    return (f"rank {row.last}" if row.last >= 0 else "not sure") + missing


RANK_COLUMNS: tuple[Column[RankRow], ...] = (
    Column("rank", lambda r: str(r.rank), is_number=False),
    Column("step ms", lambda r: format_number(r.step_ms)),
    Column("compute", lambda r: format_number(r.compute_ms)),
    Column("exposed comm.", lambda r: format_number(r.exposed_ms)),
    Column("of that waited", lambda r: format_number(r.waited_ms)),
    Column("memory", lambda r: format_number(r.memory_ms)),
    Column("idle", lambda r: format_number(sum(r.idle_ms.values()))),
    Column("most idle by", _most_idle, is_number=False),
    Column("comm. hidden", lambda r: format_percent(r.overlap, "nothing sent")),
    Column("came last", lambda r: f"{r.last:,}"),
    Column("clock", clock_text, is_number=False),
)
STEP_COLUMNS: tuple[Column[StepRow], ...] = (
    Column("step", lambda r: r.name, is_number=False),
    Column("ms", lambda r: format_number(r.step_ms)),
    Column(
        "slowest rank",
        lambda r: f"rank {r.slowest}" if r.slowest >= 0 else "none stands out",
        is_number=False,
    ),
    Column("its own ms", lambda r: format_number(r.own_ms) if r.slowest >= 0 else ""),
    Column("above the next", lambda r: _above(r) if r.slowest >= 0 else ""),
    Column(
        "longer than others",
        lambda r: f"{r.why} +{format_ms(r.why_ms)}" if r.why else "",
        is_number=False,
    ),
)
COLLECTIVE_COLUMNS: tuple[Column[CollectiveRow], ...] = (
    Column("collective", lambda r: r.channel.operation, is_number=False),
    Column("group", lambda r: r.channel.group or "not named", is_number=False),
    Column("step", lambda r: f"{r.step} #{r.place}".strip(), is_number=False),
    Column("came last", _came_last, is_number=False),
    Column("after the one before", lambda r: _plus_minus(r.late_ns / 1e6, r.error_ns / 1e6)),
    Column("after the first", lambda r: format_ms(r.spread_ns / 1e6)),
    Column("bytes", lambda r: format_bytes(r.size_bytes) if r.size_bytes >= 0 else "unknown"),
    Column("bus GB/s", lambda r: format_number(r.bus_rate / 1e9, "unknown")),
)
COPY_COLUMNS: tuple[Column[CopyRow], ...] = (
    Column("rank", lambda r: str(r.rank), is_number=False),
    Column("copies", lambda r: r.what, is_number=False),
    Column("in all", lambda r: f"{r.count:,}"),
    Column("bytes", lambda r: format_bytes(r.size_bytes)),
    Column("ms", lambda r: format_number(r.total_ms)),
    Column("GB/s", lambda r: format_number(r.rate / 1e9)),
)


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
