"""`kit query`: a question in SQL to the tables of a trace or a saved run."""

from __future__ import annotations

import argparse

from kit.cli.terminal import complain, say

__all__ = ["query"]


def query(options: argparse.Namespace) -> int:
    """Ask a trace or a saved run in SQL; without a question, list its tables.

    The question may read and nothing else: kit query trace.json "select name, total_ms from kernels
    order by total_ms desc limit 5"
    """
    import kit
    from kit.runs.tables.query import tables_text

    options.trace.stat()  # the file of a question to come: one that is not there is an error
    if not options.sql:
        say(tables_text())
        return 0
    run = kit.open_trace(options.trace, step_by=options.step_by)
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
