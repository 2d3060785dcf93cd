"""Read the traces of ranks: several files at a time, each in a process that ends with its file.

A process gives back what `RankTrace` keeps, as JSON; so the memory of all is bounded by that of the
few files that are being read, whatever a file holds. Small files are read here: to start a process
takes longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

from kit.cores import usable_cores
from kit.errors import KitError, TraceFileError
from kit.formats.ranks.files import AnyPath, perhaps_hosts, rank_files, rank_in_name
from kit.formats.ranks.member import read_rank
from kit.shown import Progress
from kit.text import check_whole_number, format_count, format_ns
from kit.trace.ranks.one import RankTrace
from kit.trace.ranks.ranks import Ranks

__all__ = ["open_ranks", "ranks_of", "why_unread"]

SMALL_BYTES = 4 << 20  # a file of so much takes as long as a process to start
APART_NS = 10_000_000_000  # more than the clocks of two hosts of one job differ by
MAX_LISTED = 12  # ranks in a sentence


def open_ranks(
    paths: AnyPath | Iterable[AnyPath], *, step_by: str = "", workers: int | None = None,
    progress: Progress | None = None,
) -> Ranks:  # fmt: skip
    """The ranks of one job, each from its own trace, compared on one clock.

    `ranks = kit.open_ranks("traces/"); print(ranks.to_text())`. `ranks.ranks`, `ranks.steps` and
    `ranks.collectives` are the tables; docs/ranks.md says how each number is found and how sure it
    is. A rank that is missing, damaged or there twice is named in `ranks.problems`, and the others
    are shown.

    Args:
        paths: a folder with a trace for each rank, or the files: whatever `kit.open_trace` reads.
        step_by: as of `kit.open_trace`.
        workers: files that are read at the same time; by default one for each core. Each takes the
            memory that its file needs while it is read.
        progress: called with a text and the part, from 0 to 1, of the files that are read.

    Raises:
        TraceFileError: there is no trace, or none that can be read; the message says why.
        OSError: there is no such file or folder.
    """
    if workers is not None:
        check_whole_number(TraceFileError, "workers", workers)
    files = rank_files(paths)
    pool = ThreadPoolExecutor(workers or min(len(files), usable_cores()))
    try:
        found = list[RankTrace | str]()
        for one in pool.map(lambda file: _read(file, step_by), files):
            found.append(one)
            if progress is not None:
                counted = format_count(len(files), "file")
                progress(f"{len(found):,} of {counted} read", len(found) / len(files))
    finally:  # after Ctrl-C the files that nobody reads yet stay unread
        pool.shutdown(wait=False, cancel_futures=True)
    return ranks_of(paths, files, found, step_by)


def ranks_of(
    paths: AnyPath | Iterable[AnyPath], files: Sequence[Path], found: Sequence[RankTrace | str],
    step_by: str,
) -> Ranks:  # fmt: skip
    """The ranks compared, given what was read of each file, or in words why nothing was."""
    read = [one for one in found if isinstance(one, RankTrace)]
    problems = [one for one in found if isinstance(one, str)]
    if not read:
        raise TraceFileError(
            f"none of {format_count(len(files), 'file')} could be read: {problems[0]}"
        )
    traces, doubled = _one_each(_without_hosts(read, files))
    problems += doubled
    problems += [*_missing(traces), *_apart(traces), *_without_clock(traces)]
    return Ranks(_name(paths, files), tuple(traces), tuple(problems), step_by)


def _read(file: Path, step_by: str) -> RankTrace | str:
    """The rank, or in words why there is none."""
    try:
        if file.stat().st_size <= SMALL_BYTES or not sys.executable:
            return read_rank(file, step_by)
        return _read_apart(file, step_by)
    except (KitError, OSError) as error:
        return why_unread(file, error)


def why_unread(file: Path, error: Exception) -> str:
    """What is said of a file that could not be read."""
    return f"{file.name!r} could not be read: {error}"


def _read_apart(file: Path, step_by: str) -> RankTrace:
    """Read a file in a process of its own, whose memory is free again afterwards."""
    # -P: a module that lies beside the traces, in the current folder, must not be imported
    command = [sys.executable, "-P", "-m", "kit.formats.ranks.member", os.fspath(file), step_by]
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    if done.returncode < 0:
        raise TraceFileError(
            f"the process that read it was killed by signal {-done.returncode}, perhaps for want "
            "of memory: give fewer workers"
        )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TraceFileError(f"the process that read it has failed: {last}") from None
    if "error" in said:
        raise TraceFileError(said["error"])
    return RankTrace.of_json(said)


def _without_hosts(read: Sequence[RankTrace], files: Sequence[Path]) -> list[RankTrace]:
    """The same, with rank -1 where the number of a host, in files' names, passed for it.

    It is one if several programs of that number ran at once.
    """
    perhaps, by_rank = perhaps_hosts(files), defaultdict[int, list[RankTrace]](list)
    for trace in read:
        if trace.is_from_name and Path(trace.file) in perhaps and trace.rank >= 0:
            by_rank[trace.rank].append(trace)
    if not any(map(_are_several, by_rank.values())):
        return list(read)
    of_hosts = {trace.file for traces in by_rank.values() for trace in traces}
    return [replace(trace, rank=-1) if trace.file in of_hosts else trace for trace in read]


def _are_several(traces: Sequence[RankTrace]) -> bool:
    """Are two of these of different programs: on two machines, or at one time?

    One program writes several traces one after the other; and the copy of a file is of one time.
    """
    known = sorted((t for t in traces if t.has_clock and len(t.steps)), key=_window)
    return any(
        (a.host and b.host and a.host != b.host)
        or (
            _window(b)[0] < _window(a)[1]
            and _window(b) != _window(a)
            and not (a.process and a.process == b.process)
        )
        for a, b in pairwise(known)
    )


def _window(trace: RankTrace) -> tuple[int, int]:
    """From its first step to its last, on the clock of its file."""
    return trace.zero_ns + int(trace.steps[0, 0]), trace.zero_ns + int(trace.steps[-1, 1])


def _one_each(read: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Each rank once, and which were in several files; what names no rank gets the next free."""
    by_rank: dict[int, list[RankTrace]] = defaultdict(list)
    for trace in read:
        by_rank[trace.rank].append(trace)
    unnamed = by_rank.pop(-1, [])
    problems = [
        f"rank {rank} is in {_shown(several)}"
        for rank, several in sorted(by_rank.items())
        if len(several) > 1
    ]
    traces = [several[0] for several in by_rank.values()]
    worlds = sorted({trace.world for trace in traces if trace.world})
    if len(worlds) > 1:
        counts = ", ".join(f"{world:,}" for world in worlds)
        problems.append(f"the files are of jobs of {counts} ranks: compare those of one job")
    if worlds:  # torch writes the rank into every file of a job, or into none
        problems += [
            f"{_short(trace)} names no rank, as the others do: of another program, and left out"
            for trace in unnamed
        ]
    else:
        traces += _numbered(unnamed, set(by_rank), problems)
    return sorted(traces, key=lambda trace: trace.rank), problems


def _numbered(
    unnamed: Sequence[RankTrace], taken: set[int], problems: list[str]
) -> Iterator[RankTrace]:
    """A rank for each process whose files name none."""
    processes: dict[str, list[RankTrace]] = defaultdict(list)
    for trace in sorted(unnamed, key=lambda trace: trace.file):
        processes[trace.process or trace.file].append(trace)
    free = (number for number in count() if number not in taken)
    for several, rank in zip(processes.values(), free, strict=False):
        yield replace(several[0], rank=rank)
        problems.append(
            f"the number in {_short(several[0])} is a host's or a GPU's, as several ranks have one "
            f"number: called rank {rank}"
            if several[0].is_from_name and rank_in_name(Path(several[0].file)) >= 0
            else f"neither {_short(several[0])} nor its name says its rank: called rank {rank}"
        )
        if len(several) > 1:
            problems.append(f"one process, and so one rank, has written {_shown(several)}")


def _shown(several: Sequence[RankTrace]) -> str:
    more = ", ..." * (len(several) > 4)
    others = ", ".join(map(_short, several[1:4])) + more
    return f"{len(several)} files: {_short(several[0])} is shown, not {others}"


def _short(trace: RankTrace) -> str:
    return repr(Path(trace.file).name)


def _missing(traces: Sequence[RankTrace]) -> Iterator[str]:
    there = {trace.rank for trace in traces}
    said = max(trace.world for trace in traces)
    world = max(said, max(there) + 1)
    absent = [rank for rank in range(min(world, 65_536)) if rank not in there]
    if not absent:
        return
    if 0 not in there and not said and all(trace.is_from_name for trace in traces):
        # A job has a rank 0: the number may be a host's, or a setting's as in "lora_rank8".
        yield (
            f"the numbers of the ranks are what the files' names say, {_listed(sorted(there))}: "
            "whether others are missing is not known"
        )
        return
    yield (
        f"{format_count(len(absent), 'rank')} of {world:,} missing: {_listed(absent, ', ')}. What "
        "is said of the others holds without them only"
    )


def _apart(traces: Sequence[RankTrace]) -> Iterator[str]:
    """Which ranks were recorded when none of those before them was, if only names say the rank."""
    if any(trace.world for trace in traces):
        return
    known = [trace for trace in traces if trace.has_clock and len(trace.steps)]
    until: int | None = None
    for trace in sorted(known, key=lambda trace: _window(trace)[0]):
        begin, end = _window(trace)
        if until is not None and begin - until > APART_NS:
            yield (
                f"rank {trace.rank} was recorded {format_ns(begin - until)} after the others, and "
                "ranks of one job are at one time: two jobs are compared by kit diff"
            )
        until = max(end, until or end)


def _without_clock(traces: Sequence[RankTrace]) -> Iterator[str]:
    without = [trace.rank for trace in traces if not trace.has_clock]
    if not without:
        return
    whose = "all ranks" if len(without) == len(traces) else f"{format_count(len(without), 'rank')}"
    yield (
        f"no common clock: the files of {whose} were saved or exported by the kit: their times "
        "count from the begin of each. Who came last and who waited is not said of them; open the "
        "traces that their profiler wrote"
    )


def _listed(ranks: Sequence[int], last: str = " and ") -> str:
    """`4 and 8`; of many the first ones."""
    if len(ranks) > MAX_LISTED:
        return ", ".join(map(str, ranks[:MAX_LISTED])) + ", ..."
    return last.join(filter(None, (", ".join(map(str, ranks[:-1])), str(ranks[-1]))))


def _name(paths: AnyPath | Iterable[AnyPath], files: Sequence[Path]) -> str:
    if isinstance(paths, str | os.PathLike):
        return Path(paths).resolve().name or os.fspath(paths)
    try:
        return os.path.basename(os.path.commonpath([file.parent.resolve() for file in files]))
    except ValueError:  # drives of Windows have nothing in common
        return format_count(len(files), "file")
