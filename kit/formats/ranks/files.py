"""Which files hold the ranks of a job, and which rank a file's name says that it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from kit.errors import TraceFileError
from kit.files import as_path

__all__ = [
    "MAX_RANKS",
    "AnyPath",
    "is_folder_of_ranks",
    "perhaps_hosts",
    "rank_files",
    "rank_in_name",
]

MAX_RANKS = 4_096  # files that are read in one go
_SUFFIXES = (".json", ".json.gz", ".kitrun", ".sqlite", ".xplane.pb")
_NUMBER = r"[\s_.=-]*(\d{1,6})(?!\d)"
# "8gpu8_rank3" is rank 3, and a local rank is that of one host only.
_RANK = re.compile(r"(?<!local)(?<!local[\s_.-])rank" + _NUMBER, re.IGNORECASE)
# The first that fits. Hosts are called so, too.
_PERHAPS = tuple(re.compile(word + _NUMBER, re.IGNORECASE) for word in ("worker", "gpu"))
# A saved run's name is of its user's, as "lora_rank8" with the digest of its settings behind.
_SAVED = re.compile(rf"(?:^|[\s_.-]){_RANK.pattern}(_\d+)?\.kitrun$", re.IGNORECASE)
_OF_FOLDER = re.compile(rf"{_RANK.pattern}$", re.IGNORECASE)

AnyPath = str | os.PathLike[str]


def rank_files(paths: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """The files of a folder, or those that are given, each once, in the order of their names.

    Raises:
        TraceFileError: there are none, or more than `MAX_RANKS`; says what is looked for.
        OSError: there is no such file or folder.
    """
    if isinstance(paths, Iterable) and not isinstance(paths, str | bytes | os.PathLike):
        given = [as_path(path) for path in paths]
    else:
        given = [as_path(paths)]
    found: dict[str, Path] = {}
    for path in given:
        os.stat(path)  # says that it is not there
        for file in _in_folder(path) if path.is_dir() else [path]:
            found[os.path.realpath(file)] = file
    if not found:
        where = ", ".join(repr(os.fspath(path)) for path in given[:3]) or "nothing"
        raise TraceFileError(
            f"{where} holds no trace: a folder of ranks has one file for each rank, "
            f"{', '.join('*' + suffix for suffix in _SUFFIXES)}"
        )
    if len(found) > MAX_RANKS:
        raise TraceFileError(f"{len(found):,} files are more than {MAX_RANKS:,} ranks")
    return sorted(found.values(), key=_order)


def is_folder_of_ranks(path: Path) -> bool:
    """Is this a folder of traces of torch's or Nsight's, and not a profile of jax?

    Saved runs are ranks if their names end as `kit.watch` ends those of ranks, or if each is in a
    folder of its rank: those of a sweep are no ranks of one job, nor are "lora_rank4" and
    "lora_rank8". A job has a rank 0, or one is given a part of it that has no gap.
    """
    files = _in_folder(path) if path.is_dir() else []
    saved = [file for file in files if file.name.endswith(".kitrun")]
    ranks = {_saved_rank(file, path) for file in saved}
    return (
        bool(files)
        and not any(map(_is_profile, files))
        and (not ranks or min(ranks) == 0 or (-1 not in ranks and _have_no_gap(ranks)))
    )


def _saved_rank(file: Path, path: Path) -> int:
    is_below = file.parent != path
    match = _SAVED.search(file.name) or (is_below and _OF_FOLDER.search(file.parent.name))
    return int(match[1]) if match else -1


def _have_no_gap(numbers: set[int]) -> bool:
    return max(numbers) - min(numbers) < len(numbers)


def rank_in_name(file: Path) -> int:
    """3 of "trace_rank-3.pt.trace.json.gz" and of "rank_3/step.kitrun"; -1 if it says none."""
    matches = (_sure(file), *(pattern.search(file.name) for pattern in _PERHAPS))
    return next((int(match[1]) for match in matches if match), -1)


def perhaps_hosts(files: Iterable[Path]) -> frozenset[Path]:
    """Those whose names may say "gpu" or "worker" for no rank: several files have a number.

    As "gpu07_4000.json" and "gpu07_4001.json", two processes of one host, or "node0_gpu0" and
    "node1_gpu0"; or "gpu0_step100" and "gpu0_step200", two traces of one rank. What differs behind
    a dot only, as the time of each cycle, is one process's.
    """
    perhaps = [file for file in files if not _sure(file)]
    names = {_before_dot(file) for file in perhaps} - {(-1, "")}
    are_ranks = len(names) == len({rank for rank, _ in names})
    return frozenset() if are_ranks else frozenset(perhaps)


def _before_dot(file: Path) -> tuple[int, str]:
    """The number behind "gpu" or "worker", and the name up to the first dot behind that."""
    match = next(filter(None, (pattern.search(file.name) for pattern in _PERHAPS)), None)
    if not match:
        return -1, ""
    return int(match[1]), file.name[: match.end()] + file.name[match.end() :].partition(".")[0]


def _sure(file: Path) -> re.Match[str] | None:
    """Where its name, or its folder's, says "rank"."""
    return _RANK.search(file.name) or _OF_FOLDER.search(file.parent.name)


def _in_folder(folder: Path) -> list[Path]:
    """The traces in a folder; if it holds none, those of its folders: one for each rank.

    Of a folder that `jax.profiler.trace` has written, the hosts of the newest session. A link that
    leads nowhere is one of them: its rank is told as one that cannot be read.
    """
    found = _traces(folder.iterdir()) or _traces(folder.glob("*/*"))
    if found:
        profiles = {file.with_suffix("").with_suffix("") for file in found if _is_profile(file)}
        return [file for file in found if _is_profile(file) or _without(file) not in profiles]
    hosts = sorted(folder.rglob("*.xplane.pb"), key=lambda file: (file.parent.name, file.name))
    return [file for file in hosts if file.parent == hosts[-1].parent]


def _traces(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if file.name.endswith(_SUFFIXES) and not file.is_dir()]


def _is_profile(file: Path) -> bool:
    return file.name.endswith(".xplane.pb")


def _without(file: Path) -> Path:
    """Its name without what jax calls the trace that it writes beside each profile."""
    return file.with_name(file.name.removesuffix(".gz").removesuffix(".trace.json"))


def _order(file: Path) -> tuple[int, str, str]:
    return rank_in_name(file), file.name, os.fspath(file)
