"""Ask the ranks of a job in SQL; the files are read again, one at a time, where a question needs
more than what was compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import QueryError
from kit.formats.readers import open_trace
from kit.runs.tables.columns import Table
from kit.runs.tables.query import Answer, Part, ask
from kit.runs.tables.ranks import TABLES_OF_EACH, TABLES_OF_RANKS, OneRank
from kit.trace.ranks.ranks import Ranks

__all__ = ["query_ranks"]


def query_ranks(ranks: Ranks, sql: str) -> Answer:
    """What a `select` over the tables of all ranks gives.

    `kit.query_ranks(kit.open_ranks("traces/"), "select rank, sum(charged_ms) from kernels group by
    rank")`. docs/query.md has the tables: those of a run, with a column rank, and what was
    compared. Nothing but reading is allowed.

    Raises:
        QueryError: the question is wrong, does more than to read, or takes too long; or the tables
            have too many rows.
        TraceFileError, OSError: a file has changed since, or is gone.
    """
    if not isinstance(ranks, Ranks):
        raise QueryError(
            f"query_ranks takes what kit.open_ranks gives, and this is a {type(ranks).__name__}"
        )

    def parts(named: Sequence[Table]) -> Iterator[Part]:
        yield [table for table in named if table in TABLES_OF_RANKS], ranks
        of_each = [table for table in named if table in TABLES_OF_EACH]
        for trace in ranks.traces if of_each else ():
            run = open_trace(trace.file, step_by=ranks.step_by)
            yield of_each, OneRank(trace.rank, run)

    return ask(sql, (*TABLES_OF_RANKS, *TABLES_OF_EACH), parts)
