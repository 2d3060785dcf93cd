"""The ranks of a job as plain tables: what `Ranks` compares, and each table of a run with its rank.

`kit.formats.ranks.ask` reads the runs that the latter need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kit.runs.run import Run
from kit.runs.tables.columns import (
    TABLES,
    Field,
    Table,
    Texts,
    Values,
    integers,
    reals,
    some_fields,
)
from kit.trace.ranks.ranks import Ranks

__all__ = ["TABLES_OF_EACH", "TABLES_OF_RANKS", "OneRank"]


@dataclass(frozen=True, slots=True)
class OneRank:
    """A rank, and the run that its file holds."""

    rank: int
    run: Run


def _begins(ranks: Ranks) -> dict[int, int]:
    """Where the time 0 of each rank lies, on the reference's clock; ranks without a clock: none."""
    return {
        trace.rank: trace.zero_ns + row.clock.offset_ns
        for trace, row in zip(ranks.traces, ranks.ranks, strict=True)
        if row.clock.is_known
    }


def _ranks(ranks: Ranks) -> list[Values]:
    rows, begins = ranks.ranks, _begins(ranks)
    zero = min(begins.values(), default=0)
    return [
        integers(r.rank for r in rows),
        Texts.of(r.file for r in rows),
        integers(r.steps for r in rows),
        *(
            reals(getattr(r, f"{what}_ms") for r in rows)
            for what in ("step", "compute", "communication", "exposed", "waited", "memory")
        ),
        reals(sum(r.idle_ms.values()) for r in rows),
        reals(r.overlap for r in rows),
        integers(r.last for r in rows),
        integers(begins[r.rank] - zero if r.rank in begins else -1 for r in rows),
        reals(r.clock.error_ns for r in rows),
        Texts.of(r.clock.how for r in rows),
    ]


def _slowest(ranks: Ranks) -> list[Values]:
    rows = ranks.steps
    is_sure = [r.slowest >= 0 for r in rows]
    return [
        Texts.of(r.name for r in rows),
        reals(r.step_ms for r in rows),
        integers(r.slowest for r in rows),
        reals(r.own_ms if sure else math.nan for r, sure in zip(rows, is_sure, strict=True)),
        reals(r.over_ms for r in rows),
        reals(r.error_ms for r in rows),
        Texts.of(r.why for r in rows),
        reals(r.why_ms if r.why else math.nan for r in rows),
    ]


def _collectives(ranks: Ranks) -> list[Values]:
    rows = ranks.collectives
    return [
        np.arange(len(rows)),
        Texts.of(r.channel.operation for r in rows),
        Texts.of(r.channel.group for r in rows),
        Texts.of(r.step for r in rows),
        integers(r.place for r in rows),
        integers(r.last for r in rows),
        integers(r.missing for r in rows),
        integers(r.late_ns for r in rows),
        integers(r.spread_ns for r in rows),
        reals(r.error_ns for r in rows),
        integers(r.size_bytes for r in rows),
        reals(r.bus_rate for r in rows),
    ]


def _arrivals(ranks: Ranks) -> list[Values]:
    zero = min(_begins(ranks).values(), default=0)
    rows = [
        (i, rank, at - zero, row.stop_ns[rank] - zero)
        for i, row in enumerate(ranks.collectives)
        for rank, at in row.start_ns.items()
    ]
    return [integers(row[i] for row in rows) for i in range(4)]


def _copies(ranks: Ranks) -> list[Values]:
    rows = ranks.copies
    return [
        integers(r.rank for r in rows),
        Texts.of(r.what for r in rows),
        integers(r.count for r in rows),
        integers(r.size_bytes for r in rows),
        reals(r.total_ms for r in rows),
        reals(r.rate for r in rows),
    ]


def _with_rank(columns: Callable[[Run], Sequence[Values]]) -> Callable[[OneRank], list[Values]]:
    def made(one: OneRank) -> list[Values]:
        found = columns(one.run)
        return [np.full(len(found[0]), one.rank), *found]

    return made


def _of_each() -> Iterator[Table]:
    """The tables of a run, of all ranks together."""
    for t in TABLES:
        fields = (Field("rank", "whose trace it is of"), *t.fields)
        yield replace(t, fields=fields, columns=_with_rank(t.columns))


_ERROR = "by which it may be wrong"
TABLES_OF_EACH = tuple(_of_each())
TABLES_OF_RANKS = (
    Table(
        "ranks",
        "a rank; means of its steps",
        some_fields(
            rank="from 0",
            file="that it was read from",
            step_count="how many it has",
            step_ms="compute_ms, exposed_ms, memory_ms and idle_ms add up to it",
            compute_ms="a kernel ran that neither communicates nor copies",
            communication_ms="a collective ran, whatever else did",
            exposed_ms="a collective ran, and nothing computed",
            waited_ms="of that: other ranks had not come yet; none: no clock says so",
            memory_ms="a copy or a fill ran, and nothing else",
            idle_ms="nothing ran",
            hidden="the part of communication_ms under which something computed",
            came_last="collectives to which it came last, for sure",
            begin_ns="add it to a time of the rank in spans, gaps, ...: the time on the common "
            "clock; none: not known",
            clock_error_ns=_ERROR,
            clock="how that was found",
        ),
        _ranks,
    ),
    Table(
        "slowest",
        "a step that several ranks have",
        some_fields(
            step="its name",
            step_ms="of the rank that took longest",
            rank="the one with most time of its own; none: no one stands out",
            own_ms="of that rank, without its waits for others",
            over_ms="by which the one with most is above the next",
            error_ms=_ERROR,
            why="what it did longer than the middle one of the others",
            why_ms="by how much",
        ),
        _slowest,
    ),
    Table(
        "collectives",
        "a collective that several ranks have",
        some_fields(
            collective="its number",
            operation="all_reduce, all_gather, ...",
            process_group="if the files name it",
            step="in which the host asked for it, or 'by its number'",
            place="in the step, or its number in the group",
            last_rank="that came last; none: not sure",
            missing="ranks of the group that are not here",
            late_ns="by which the last came after the one before it",
            spread_ns="and after the first",
            error_ns="by which these two may be wrong",
            size_bytes="of a rank's largest buffer",
            bus_bytes_per_s="as nccl-tests counts it; none: not known",
        ),
        _collectives,
    ),
    Table(
        "arrivals",
        "a rank's part in a collective, on the common clock",
        (
            *some_fields(collective="its row in collectives", rank="that took part"),
            Field("start_ns", "its begin on this rank", is_signed=True),
            Field("stop_ns", "its end on this rank", is_signed=True),
        ),
        _arrivals,
    ),
    Table(
        "copies",
        "all copies of one kind on one rank, of files that say the bytes",
        some_fields(
            rank="from 0",
            what="Memcpy HtoD, Memset, ...",
            count="how many",
            size_bytes="of all of them",
            total_ms="of all of them",
            bytes_per_s="of all of them",
        ),
        _copies,
    ),
)
