"""Events that a file has twice, as where it was merged with itself, or with one that overlaps it.

Counts, sums and steps would be doubled. What a device ran, and the calls that launched it, have
numbers: nothing runs twice at one time on one stream under one number. Other events may be alike
where a file counts whole microseconds, so of these only many together are taken for copies.

Traces of several processes may be merged into one file, too: then their devices, steps and waits
are no longer told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.roles import Role
from kit.trace.intervals import Ints

__all__ = ["MERGED", "alike", "are_copies", "are_merged", "find_twins"]

MERGED = (
    "the file has the work of several processes, as where traces were merged into one file: it is "
    "shown as if of one, and which of them launched a kernel is not known for sure. Open the trace "
    "of each process, or a folder of them with kit.open_ranks"
)

MANY = 0.1  # of the events that were looked at
_NUMBERED = (Role.LAUNCH, Role.TRANSFER, Role.WAIT, Role.KERNEL)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # of a multiplicative hash


def find_twins(columns: Mapping[str, NDArray[Any]], usable: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The places of events that are alike to one before them, of those that have a time."""
    role = columns["role"]
    # A function of Python's within itself is no harm, and there are millions.
    chosen = np.flatnonzero(usable & (role != Role.PYTHON) & (role < Role.OWN))
    twins = chosen[alike([column[chosen] for column in columns.values()])]
    is_sure = np.isin(role[twins], _NUMBERED) & (columns["link"][twins] > 0)
    return twins if are_copies(len(twins), len(chosen)) else twins[is_sure]


def are_copies(alike: int, count: int) -> bool:
    """Are so many events that are alike to others too many for chance?"""
    return alike > MANY * count


def alike(columns: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """The rows that are equal to one before them, in order."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = column.view(np.uint64) if column.dtype.kind == "f" else column.astype(np.uint64)
        key = (key ^ bits) * _ODD
        key ^= key >> np.uint64(29)
    again = np.sort(key)
    again = again[1:][again[1:] == again[:-1]]
    if not len(again):  # nearly always
        return np.zeros(0, np.intp)
    some = np.flatnonzero(again[np.searchsorted(again, key).clip(max=len(again) - 1)] == key)
    some = some[np.argsort(key[some], kind="stable")]
    same = np.flatnonzero(key[some[1:]] == key[some[:-1]])  # the columns are for these
    first, second = some[same], some[same + 1]
    is_twin = np.ones(len(same), bool)
    for column in columns:
        is_twin &= column[first] == column[second]
    return np.sort(second[is_twin])


def are_merged(process: Ints, number: Ints, times: tuple[Ints, Ints]) -> bool:
    """Is a good part of some calls of another process than most of them?

    A process gives each call a number of its own. In containers all may be process 1: one that
    comes again, and not within the call that has it, is of another process.

    Args:
        number: that joins a call and what it launched; 0 or less: none.
        times: starts and stops of the calls.
    """
    order = np.lexsort((times[0], number, process))
    process, number, start, stop = (column[order] for column in (process, number, *times))
    again = (process[1:] == process[:-1]) & (number[1:] == number[:-1]) & (number[1:] > 0)
    again &= start[1:] >= stop[:-1]
    _, counts = np.unique(process[np.append(True, ~again)[: len(order)]], return_counts=True)
    return are_copies(len(order) - int(counts.max(initial=0)), len(order))
