"""Ask the ranks of a job in SQL; the files are read again, one at a time, where a question needs
more than what was compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from kit.errors import KitError, QueryError, but_of_handlers
from kit.formats.ranks.files import perhaps_hosts, rank_files
from kit.formats.ranks.member import read_both
from kit.formats.ranks.read import open_ranks, ranks_of, why_unread
from kit.formats.readers import open_trace
from kit.runs.tables.columns import Table
from kit.runs.tables.query import Answer, Part, ask, named_tables
from kit.runs.tables.ranks import TABLES_OF_EACH, TABLES_OF_RANKS, OneRank
from kit.trace.ranks.one import RankTrace
from kit.trace.ranks.ranks import Ranks

__all__ = ["query_folder", "query_ranks"]

_ALL = (*TABLES_OF_RANKS, *TABLES_OF_EACH)


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

    return ask(sql, _ALL, parts)


def query_folder(folder: Path, sql: str, step_by: str = "") -> tuple[Answer, tuple[str, ...]]:
    """The same of a folder, and what is wrong with its files, of which each is read once.

    Not even once where the question needs none; and again where a file names no rank, as its number
    is known when all are read.

    Raises:
        QueryError, TraceFileError, OSError: as of `query_ranks` and `open_ranks`.
    """
    named = named_tables(sql, _ALL)
    problems: list[str] = []
    if not named:
        return ask(sql, _ALL, lambda _: ()), ()
    if any(table in TABLES_OF_EACH for table in named):
        try:
            return ask(sql, _ALL, partial(_read_once, folder, step_by, problems)), tuple(problems)
        except _NamesNoRank:
            pass
    ranks = open_ranks(folder, step_by=step_by)
    return query_ranks(ranks, sql), ranks.problems


class _NamesNoRank(Exception):
    """Neither a file nor its name says which rank it is."""


def _read_once(
    folder: Path, step_by: str, problems: list[str], named: Sequence[Table]
) -> Iterator[Part]:
    """Each rank as its file is read, and then all of them compared; fills the problems, too."""
    files, found, taken = rank_files(folder), list[RankTrace | str](), set[int]()
    hosts = perhaps_hosts(files)
    for file in files:
        try:
            trace, run = read_both(file, step_by)
        except but_of_handlers(KitError, OSError) as error:
            found.append(why_unread(file, error))
            continue
        if trace.rank < 0 or (trace.is_from_name and file in hosts):
            raise _NamesNoRank
        found.append(trace)
        if trace.rank not in taken:
            taken.add(trace.rank)
            yield [table for table in named if table in TABLES_OF_EACH], OneRank(trace.rank, run)
    ranks = ranks_of(folder, files, found, step_by)
    problems += ranks.problems
    yield [table for table in named if table in TABLES_OF_RANKS], ranks
