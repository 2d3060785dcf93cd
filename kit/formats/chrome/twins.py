"""Events that a file has twice, as where it was merged with itself, or with one that overlaps it.

Counts, sums and steps would be doubled. What a device ran, and the calls that launched it, have
numbers: nothing runs twice at one time on one stream under one number. Other events may be alike
where a file counts whole microseconds, so of these only many together are taken for copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.roles import Role

__all__ = ["COLUMNS", "find_twins"]

COLUMNS = ("role", "name", "thread", "start_us", "length_us", "link", "node")
MANY = 0.1  # of the events that were looked at
_NUMBERED = (Role.LAUNCH, Role.TRANSFER, Role.WAIT, Role.KERNEL)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # of a multiplicative hash


def find_twins(columns: Mapping[str, NDArray[Any]], usable: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The places of events that are alike to one before them, of those that have a time."""
    role = columns["role"]
    # A function of Python's within itself is no harm, and there are millions.
    chosen = np.flatnonzero(usable & (role != Role.PYTHON) & (role < Role.OWN))
    if len(chosen) < 2:
        return chosen[:0]
    key = np.zeros(len(chosen), np.uint64)
    for name in COLUMNS:
        column = columns[name][chosen]
        bits = column.view(np.uint64) if column.dtype.kind == "f" else column.astype(np.uint64)
        key = (key ^ bits) * _ODD
        key ^= key >> np.uint64(29)
    order = np.argsort(key, kind="stable")
    alike = np.flatnonzero(key[order[1:]] == key[order[:-1]])  # few: the columns are for these
    first, second = chosen[order[alike]], chosen[order[alike + 1]]
    is_twin = np.ones(len(alike), bool)
    for name in COLUMNS:
        is_twin &= columns[name][first] == columns[name][second]
    twins = np.sort(second[is_twin])
    is_sure = np.isin(role[twins], _NUMBERED) & (columns["link"][twins] > 0)
    return twins if len(twins) > MANY * len(chosen) else twins[is_sure]
