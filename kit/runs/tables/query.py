"""Ask a run in SQL: its tables in a database in memory, which one `select` reads and cannot change.

The question is its user's own; the names in the tables are a stranger's, so each stays a text, and
what is shown goes through `kit.text`. A table is filled when the question names it, of many ranks
one rank after another. A text is kept once, however many rows have it: each table is a view that
looks it up.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.errors import QueryError
from kit.runs.run import Run
from kit.runs.tables.columns import TABLES, Field, Table, Texts, Values
from kit.runs.tables.sqlite import Budget, as_text, may_read
from kit.text import (
    check_whole_number,
    format_count,
    no_formula,
    safe_html,
    safe_terminal,
    terminal_table,
)

__all__ = ["MAX_ROWS", "Answer", "Part", "ask", "named_tables", "query", "tables_text"]

MAX_ROWS = 1_000_000  # of an answer
MAX_CHARS = 256 << 20  # of all its texts
MAX_OPERATIONS = 2_000_000_000  # of SQLite: half a minute, and so much may be sorted on disk
MAX_FILLED = 12_000_000  # rows of all tables, of all ranks: a gigabyte
_SHOWN = 30  # rows, where an answer shows itself
_CELL = 60  # characters
_AT_ONCE = 50_000  # rows
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

Cell = str | int | float | None
Part = tuple[Sequence[Table], Any]  # some tables, and what has rows of all of them


@dataclass(frozen=True)
class Answer:
    """The rows that a question gave; shows itself as a table."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_cut: bool = False  # there are more rows than an answer can have

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return iter(self.rows)

    def to_text(self, most: int = _SHOWN) -> str:
        """A table for a terminal: the first rows, with long texts cut.

        Raises:
            QueryError: `most` is no number of rows.
        """
        check_whole_number(QueryError, "the number of rows to print", most, at_least=0)
        if not self.rows:
            return f"no rows ({', '.join(safe_terminal(h, _CELL) for h in self.heads)})"
        numbers = [all(not isinstance(x, str) for x in c) for c in zip(*self.rows, strict=True)]
        table = terminal_table(
            [safe_terminal(head, _CELL) for head in self.heads],
            [[safe_terminal(_plain(c), _CELL) for c in row] for row in self.rows[:most]],
            [i for i, is_number in enumerate(numbers) if not is_number],
        )
        return "\n".join([table, *self._rest(most)])

    def to_csv(self) -> str:
        """Whole texts, quoted; one that a spreadsheet would run as a formula has a ' before it."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow([no_formula(head) for head in self.heads])
        for row in self.rows:
            writer.writerow([no_formula(x) if isinstance(x, str) else x for x in row])
        return buffer.getvalue()

    def to_json(self) -> str:
        """A list with an object for each row; every character that is not ASCII is escaped."""
        rows = (json.dumps(dict(zip(self.heads, row, strict=True))) for row in self.rows)
        return "[{}]".format(",\n ".join(rows))

    def _rest(self, most: int) -> list[str]:
        left = len(self.rows) - most
        said = [f"and {format_count(left, 'more row')}"] if left > 0 else []
        return [*said, *(["there are more: the answer was cut"] if self.is_cut else [])]

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>{}</tr>".format(
                "".join(f"<{tag}>{safe_html(cell, 2 * _CELL)}</{tag}>" for cell in cells)
            )

        body = "".join(line([_plain(c) for c in row], "td") for row in self.rows[:_SHOWN])
        rest = "".join(f"<p>{text}</p>" for text in self._rest(_SHOWN))
        return f"<table><thead>{line(self.heads, 'th')}</thead><tbody>{body}</tbody></table>{rest}"


def query(run: Run, sql: str, *, operations: int = MAX_OPERATIONS) -> Answer:
    """What one `select` over the tables of a run gives; see `Run.query`.

    Args:
        operations: of SQLite, at most.

    Raises:
        QueryError: the question is wrong, asks for more than to read, or takes too long.
    """
    return ask(sql, TABLES, lambda named: [(named, run)], operations=operations)


def ask(
    sql: str,
    tables: Sequence[Table],
    parts: Callable[[Sequence[Table]], Iterable[Part]],
    *,
    operations: int = MAX_OPERATIONS,
) -> Answer:
    """The same of any tables.

    Args:
        parts: given the tables that the question names, where the rows of each come from.

    Raises:
        QueryError: as of `query`; or the tables have too many rows.
    """
    budget = Budget(operations)
    named = named_tables(sql, tables)
    with closing(sqlite3.connect(":memory:")) as database:
        database.text_factory = as_text
        _fill(database, parts(named))
        _bound(database, may_read)
        budget.watch(database)
        try:
            cursor = database.execute(sql)
            if cursor.description is None:
                raise QueryError("it asks for nothing: write select ... from ...")
            return _answer(cursor)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            raise _reason(budget, error, tables) from None


def named_tables(sql: str, tables: Sequence[Table]) -> list[Table]:
    """Those that a question reads, as SQLite sees it, before any is filled.

    Raises:
        QueryError: the question is wrong, or asks for more than to read.
    """
    read: set[str] = set()

    def look(action: int, what: str | None, more: str | None, *rest: str | None) -> int:
        if action == sqlite3.SQLITE_READ and what is not None:
            read.add(what.lower())
        return may_read(action, what, more, *rest)

    with closing(sqlite3.connect(":memory:")) as database:
        for table in tables:
            names = ", ".join(field.name for field in table.fields)
            database.execute(f"create table {table.name} ({names})")
        _bound(database, look)
        database.set_progress_handler(lambda: 1, 1)  # it is prepared, and stops at its first step
        try:
            database.execute(sql)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                raise _reason(Budget(1), error, tables) from None
    return [table for table in tables if table.name in read]


def _bound(database: sqlite3.Connection, may: Callable[..., int]) -> None:
    """Let a question do no more than it may."""
    for limit, value in _LIMITS.items():
        database.setlimit(limit, value)
    database.set_authorizer(may)


def _reason(budget: Budget, error: Exception, tables: Sequence[Table]) -> BaseException:
    """What to raise for an error of SQLite's."""
    if budget.is_spent:
        return QueryError("it takes too long: is there a join without a condition?")
    if budget.was_interrupted(error):
        return KeyboardInterrupt()
    is_refused = str(error).startswith("not authorized") or "prohibited" in str(error)
    if is_refused or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
        return QueryError("it may read the tables of the run, and do nothing else")
    names = ", ".join(table.name for table in tables)
    return QueryError(
        f"{str(error).rstrip('.')}. The tables are {names}; kit query TRACE lists their columns"
    )


def _fill(database: sqlite3.Connection, parts: Iterable[Part]) -> None:
    """Make the tables of all parts, with every text once."""
    numbers: dict[str, int] = {}
    filled: dict[str, int] = {}  # name of a table -> its rows
    for tables, source in parts:
        for table in tables:
            columns = table.columns(source)
            if table.name not in filled:
                _make(database, table, columns)
            filled[table.name] = filled.get(table.name, 0) + len(columns[0])
            if sum(filled.values()) > MAX_FILLED:
                raise QueryError(
                    f"{' and '.join(filled)} of all ranks have more than {MAX_FILLED:,} rows: "
                    "ask the file of one rank"
                )
            _insert(database, table, columns, numbers)
    database.execute("create table texts (id integer primary key, text text)")
    database.executemany("insert into texts values (?, ?)", ((i, x) for x, i in numbers.items()))
    database.commit()


def _make(database: sqlite3.Connection, table: Table, columns: Sequence[Values]) -> None:
    """A table without rows, and the view of its name, which looks texts up."""
    names = [field.name for field in table.fields]
    shown = (
        f"(select text from texts where id = d.{name}) as {name}"
        if isinstance(column, Texts)
        else f"d.{name}"
        for name, column in zip(names, columns, strict=True)
    )
    data = f"{table.name}_data"
    database.execute(f"create table {data} ({', '.join(names)})")
    database.execute(f"create view {table.name} as select {', '.join(shown)} from {data} d")


def _insert(
    database: sqlite3.Connection,
    table: Table,
    columns: Sequence[Values],
    numbers: dict[str, int],
) -> None:
    """Add rows; `numbers` has, and gets, the place of each text."""
    values: list[NDArray[Any]] = []
    for column in columns:
        if isinstance(column, Texts):
            known = [numbers.setdefault(x, len(numbers)) for x in map(_text, column.texts)]
            values.append(np.array([*known, -1], np.int64)[column.numbers])
        else:
            values.append(column)
    places = ", ".join("?" * len(values))
    for first in range(0, len(values[0]), _AT_ONCE):
        cells = (
            _cells(column[first : first + _AT_ONCE], field)
            for column, field in zip(values, table.fields, strict=True)
        )
        rows = zip(*cells, strict=True)
        database.executemany(f"insert into {table.name}_data values ({places})", rows)


def _text(text: str) -> str:
    """As SQLite can keep it: without halves of characters."""
    return text.encode(errors="replace").decode()


def _cells(values: Any, field: Field) -> list[Cell]:
    """A column as SQLite takes it; what is not known is null."""
    found: list[Cell] = values.tolist()
    unknown = np.isnan(values) if values.dtype.kind == "f" else values == -1
    if not field.is_signed:
        for i in np.flatnonzero(unknown).tolist():
            found[i] = None
    return found


def _answer(cursor: sqlite3.Cursor) -> Answer:
    """The rows, as far as an answer can have them."""
    rows: list[tuple[Cell, ...]] = []
    chars = 0
    for row in cursor:
        chars += sum(len(x) for x in row if isinstance(x, str | bytes))
        if len(rows) >= MAX_ROWS or chars > MAX_CHARS:
            return Answer(_heads(cursor), tuple(rows), is_cut=True)
        rows.append(tuple(map(_cell, row)))
    return Answer(_heads(cursor), tuple(rows))


def _heads(cursor: sqlite3.Cursor) -> tuple[str, ...]:
    """The names of the columns; of two that are alike, the second has a number."""
    heads: list[str] = []
    taken: set[str] = set()
    for name, *_ in cursor.description:
        head, count = name, 1
        while head in taken:
            count += 1
            head = f"{name} ({count})"
        taken.add(head)
        heads.append(head)
    return tuple(heads)


def _cell(value: Any) -> Cell:
    """What JSON can have, too: no bytes, and no infinity."""
    if isinstance(value, bytes):
        return value.hex()
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_odd else value


def _plain(cell: Cell) -> str:
    """A number to six figures; nothing for what is not known."""
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) and abs(cell) < 1e6 else str(cell)


def tables_text(tables: Sequence[Table] = TABLES) -> str:
    """Each table and its columns, for a terminal."""
    found = []
    for table in tables:
        rows = [[f"  {field.name}", field.meaning] for field in table.fields]
        width = max(len(name) for name, _ in rows) + 2
        lines = "\n".join(f"{name.ljust(width)}{meaning}" for name, meaning in rows)
        found.append(f"{table.name}: {table.meaning}\n{lines}")
    return "\n\n".join(found)
