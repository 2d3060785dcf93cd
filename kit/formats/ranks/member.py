"""Read one rank: a trace of any format, and what its program has sent to others.

As a program, `python -m kit.formats.ranks.member FILE STEP_BY`, it prints the rank as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from kit.errors import KitError
from kit.formats.ranks.files import rank_in_name
from kit.formats.readers import read_trace
from kit.formats.run_of import run_of
from kit.runs.run import Run
from kit.trace.active import NONE, named
from kit.trace.communication import Channel, Collective, communicates, operation_of
from kit.trace.imported import Imported, Member
from kit.trace.kinds import ON_DEVICE
from kit.trace.ranks.one import RankTrace, rank_trace
from kit.trace.timeline import Timeline

__all__ = ["read_both", "read_rank"]


def read_rank(file: Path, step_by: str) -> RankTrace:
    """The rank that a file holds; -1 where neither the file nor its name says which.

    Raises:
        TraceFileError, RunFileError: it cannot be read; the message says why.
        OSError: there is no such file.
    """
    return read_both(file, step_by)[0]


def read_both(file: Path, step_by: str) -> tuple[RankTrace, Run]:
    """The same, and the run that the file holds."""
    read = read_trace(file, step_by)
    if isinstance(read, Imported):
        run, member = run_of(read, file), read.member
    else:
        run, member = read, Member(has_clock=False)
    if not member.collectives:
        member = replace(member, collectives=_collectives(run.timeline))
    trace = rank_trace(
        run.timeline,
        member,
        rank=member.rank if member.rank >= 0 else rank_in_name(file),
        file=os.fspath(file),
    )
    return replace(trace, is_from_name=member.rank < 0), run


def _collectives(timeline: Timeline) -> tuple[Collective, ...]:
    """The kernels that communicate by their names, of a format that says no more."""
    kernels = np.flatnonzero(timeline.where(kind=ON_DEVICE) & named(timeline, communicates))
    return tuple(
        Collective(
            Channel(operation_of(timeline.names[timeline.name[i]])),
            int(timeline.start_ns[i]),
            int(timeline.stop_ns[i]),
            called_ns=NONE,
        )
        for i in kernels.tolist()
    )


def main(arguments: list[str]) -> int:
    """Print the rank, or the error, as JSON."""
    file, step_by = arguments
    try:
        said = read_rank(Path(file), step_by).to_json()
    except (KitError, OSError) as error:
        said = {"error": str(error)}
    sys.stdout.write(json.dumps(said))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
