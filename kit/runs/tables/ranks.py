"""The ranks of a job as plain tables: what `Ranks` compares, and each table of a run with its rank.

`kit.formats.ranks.ask` reads the runs that the latter need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from kit.runs.run import Run
from kit.runs.tables.columns import (
    TABLES,
    Field,
    Table,
    Values,
    integers,
    made,
    real,
    table,
    text,
    whole,
)
from kit.trace.ranks.ranks import Ranks
from kit.trace.ranks.tables import RankRow

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


def _begin_ns(ranks: Ranks, rows: Iterable[RankRow]) -> Values:
    begins = _begins(ranks)
    zero = min(begins.values(), default=0)
    return integers(begins[r.rank] - zero if r.rank in begins else -1 for r in rows)


class _Arrival(NamedTuple):
    """A rank's part in a collective; times count from where the first rank's time is 0."""

    collective: int
    rank: int
    start_ns: int
    stop_ns: int


def _arrivals(ranks: Ranks) -> list[_Arrival]:
    zero = min(_begins(ranks).values(), default=0)
    return [
        _Arrival(i, rank, at - zero, row.stop_ns[rank] - zero)
        for i, row in enumerate(ranks.collectives)
        for rank, at in row.start_ns.items()
    ]


def _of_each() -> Iterator[Table]:
    """The tables of a run, of all ranks together."""
    for t in TABLES:
        fields = (made(f.name, f.meaning, is_signed=f.is_signed) for f in t.fields)
        rank = made("rank", "whose trace it is of")
        yield Table(t.name, t.meaning, partial(_with_rank, t), (rank, *fields))


def _with_rank(of: Table, one: OneRank) -> dict[str, Values]:
    """The columns of a table by name, and the rank."""
    found = of.columns(one.run)
    names = (field.name for field in of.fields)
    return {"rank": np.full(len(found[0]), one.rank), **dict(zip(names, found, strict=True))}


_ERROR = "by which it may be wrong"
TABLES_OF_EACH = tuple(_of_each())
TABLES_OF_RANKS = (
    table(
        "ranks",
        "a rank; means of its steps",
        lambda ranks: ranks.ranks,
        whole("rank", "from 0"),
        text("file", "that it was read from"),
        whole("step_count", "how many it has", lambda r: r.steps),
        real("step_ms", "compute_ms, exposed_ms, memory_ms and idle_ms add up to it"),
        real("compute_ms", "a kernel ran that neither communicates nor copies"),
        real("communication_ms", "a collective ran, whatever else did"),
        real("exposed_ms", "a collective ran, and nothing computed"),
        real("waited_ms", "of that: other ranks had not come yet; none: no clock says so"),
        real("memory_ms", "a copy or a fill ran, and nothing else"),
        real("idle_ms", "nothing ran", lambda r: sum(r.idle_ms.values())),
        real(
            "hidden",
            "the part of communication_ms under which something computed",
            lambda r: r.overlap,
        ),
        whole("came_last", "collectives to which it came last, for sure", lambda r: r.last),
        Field(
            "begin_ns",
            "add it to a time of the rank in spans, gaps, ...: the time on the common clock; none: "
            "not known",
            _begin_ns,
        ),
        real("clock_error_ns", _ERROR, lambda r: r.clock.error_ns),
        text("clock", "how that was found", lambda r: r.clock.how),
    ),
    table(
        "slowest",
        "a step that several ranks have",
        lambda ranks: ranks.steps,
        text("step", "its name", lambda r: r.name),
        real("step_ms", "of the rank that took longest"),
        whole(
            "rank",
            "the one with most time of its own; none: no one stands out",
            lambda r: r.slowest,
        ),
        real(
            "own_ms",
            "of that rank, without its waits for others",
            lambda r: r.own_ms if r.slowest >= 0 else math.nan,
        ),
        real("over_ms", "by which the one with most is above the next"),
        real("error_ms", _ERROR),
        text("why", "what it did longer than the middle one of the others"),
        real("why_ms", "by how much", lambda r: r.why_ms if r.why else math.nan),
    ),
    table(
        "collectives",
        "a collective that several ranks have",
        lambda ranks: ranks.collectives,
        Field("collective", "its number", lambda _, rows: np.arange(len(rows))),
        text("operation", "all_reduce, all_gather, ...", lambda r: r.channel.operation),
        text("process_group", "if the files name it", lambda r: r.channel.group),
        text("step", "in which the host asked for it, or 'by its number'"),
        whole("place", "in the step, or its number in the group"),
        whole("last_rank", "that came last; none: not sure", lambda r: r.last),
        whole("missing", "ranks of the group that are not here"),
        whole("late_ns", "by which the last came after the one before it"),
        whole("spread_ns", "and after the first"),
        real("error_ns", "by which these two may be wrong"),
        whole("size_bytes", "of a rank's largest buffer"),
        real("bus_bytes_per_s", "as nccl-tests counts it; none: not known", lambda r: r.bus_rate),
    ),
    table(
        "arrivals",
        "a rank's part in a collective, on the common clock",
        _arrivals,
        whole("collective", "its row in collectives"),
        whole("rank", "that took part"),
        whole("start_ns", "its begin on this rank", is_signed=True),
        whole("stop_ns", "its end on this rank", is_signed=True),
    ),
    table(
        "copies",
        "all copies of one kind on one rank, of files that say the bytes",
        lambda ranks: ranks.copies,
        whole("rank", "from 0"),
        text("what", "Memcpy HtoD, Memset, ..."),
        whole("count", "how many"),
        whole("size_bytes", "of all of them"),
        real("total_ms", "of all of them"),
        real("bytes_per_s", "of all of them", lambda r: r.rate),
    ),
)
