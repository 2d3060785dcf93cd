"""`kit query`: a question in SQL to the tables of a trace or a saved run."""

from __future__ import annotations

import argparse

from kit.cli.terminal import bar_of_reading, complain, file_of, say

__all__ = ["query"]


def query(options: argparse.Namespace) -> int:
    """Ask a trace or a saved run in SQL; without a question, list its tables.

    Of a folder with a trace for each rank, the tables have all ranks, with a column rank. The
    question may read and nothing else: kit query trace.json "select name, total_ms from kernels
    order by total_ms desc limit 5"
    """
    _check(options)
    import kit
    from kit.formats.ranks.ask import query_folder
    from kit.formats.ranks.files import is_folder_of_ranks
    from kit.runs.tables.query import tables_text
    from kit.runs.tables.ranks import TABLES_OF_EACH, TABLES_OF_RANKS

    options.trace.stat()  # the file of a question to come: one that is not there is an error
    is_ranks = is_folder_of_ranks(options.trace)
    if not options.sql:
        say(tables_text((*TABLES_OF_RANKS, *TABLES_OF_EACH)) if is_ranks else tables_text())
        return 0
    if is_ranks:
        answer, problems = query_folder(options.trace, options.sql, options.step_by)
        for problem in problems:
            complain(f"note: {problem}")
    else:
        with bar_of_reading("kit query") as tell:
            run = kit.open_trace(file_of(options.trace), step_by=options.step_by, progress=tell)
        answer = run.query(options.sql)
    if options.json:
        say(answer.to_json())
    elif options.csv:
        say(answer.to_csv().removesuffix("\n"))
    else:
        say(answer.to_text(options.rows))
    if answer.is_cut and (options.json or options.csv):
        complain("there are more rows: the answer was cut")
    return 0


def _check(options: argparse.Namespace) -> None:
    """End with status 2 where the form of an answer is asked for that there is not."""
    if options.csv and options.json:
        options.parser.error("--csv and --json are two forms of one answer: give one of them")
    if not options.sql and (options.csv or options.json):
        options.parser.error(
            "--csv and --json are for an answer: put a question in SQL after the file, such as "
            '"select * from kernels"'
        )
