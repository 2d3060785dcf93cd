"""Which collective of one rank is which of another: by operation, process group and number.

A number that the file gives to a collective of its group is believed. Without one, collectives are
counted within the step in which the host asked for them. Where ranks count differently, something
of that step was not traced, and its collectives of that group are left out. Sends and receives are
between two ranks only: they are not matched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.text import format_count
from kit.trace.communication import Channel
from kit.trace.intervals import Ints, Mask
from kit.trace.ranks.one import RankTrace

__all__ = ["NUMBERED", "Matched", "match"]

_PAIRWISE = frozenset({"send_recv", "send", "recv", "permute", ""})
NUMBERED = "by its number"  # in the place of a step
Key = tuple[Channel, str, int]  # the channel, the step, the place in it


@dataclass(frozen=True)
class Matched:
    """Collectives that at least two ranks have, in order of their first end.

    Shape:
        start, stop, seen: (collectives, ranks); times on the clocks of the files
    """

    keys: tuple[Key, ...]
    start: Ints
    stop: Ints
    seen: Mask
    which: Ints  # into the `collectives` of each rank; -1 where it has none
    notes: tuple[str, ...] = ()


def match(ranks: Sequence[RankTrace]) -> Matched:
    """The collectives of all ranks, side by side."""
    found = [_keys(rank) for rank in ranks]
    uneven = _uneven(found)
    rows: dict[Key, dict[int, int]] = defaultdict(dict)
    for r, keys in enumerate(found):
        for key, i in keys.items():
            if (key[0], key[1]) not in uneven or key[1] == NUMBERED:
                rows[key][r] = i
    rows = {key: row for key, row in rows.items() if len(row) > 1}
    shape = (len(rows), len(ranks))
    start, stop = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    which = np.full(shape, -1, np.int64)
    for row, places in enumerate(rows.values()):
        for r, i in places.items():
            one = ranks[r].collectives[i]
            start[row, r] = ranks[r].zero_ns + one.start_ns
            stop[row, r] = ranks[r].zero_ns + one.stop_ns
            which[row, r] = i
    seen = which >= 0
    ends = np.where(seen, stop, np.iinfo(np.int64).max).min(axis=1) if len(rows) else stop[:, 0]
    order = np.argsort(ends, kind="stable")
    names = list(rows)
    return Matched(
        tuple(names[i] for i in order.tolist()),
        start[order],
        stop[order],
        seen[order],
        which[order],
        tuple(_notes(ranks, uneven, names)),
    )


def _keys(rank: RankTrace) -> dict[Key, int]:
    """Key -> the place of a collective in its rank."""
    found: dict[Key, int] = {}
    counts: Counter[tuple[Channel, str]] = Counter()
    numbered = {c.channel for c in rank.collectives if c.number >= 0}
    numbered -= {c.channel for c in rank.collectives if c.number < 0}
    for i, one in enumerate(rank.collectives):
        if one.channel.operation in _PAIRWISE:
            continue
        if one.channel in numbered:
            found.setdefault((one.channel, NUMBERED, one.number), i)
            continue
        step = rank.step_of(one)
        if step < 0 and len(rank.steps):
            continue  # before the first step, or after the last: a part of what was traced there
        name = rank.step_names[step] if len(rank.steps) else ""
        found[one.channel, name, counts[one.channel, name]] = i
        counts[one.channel, name] += 1
    return found


def _uneven(found: Sequence[dict[Key, int]]) -> set[tuple[Channel, str]]:
    """Channels and steps of which ranks have different numbers of collectives."""
    counts: dict[tuple[Channel, str], set[int]] = defaultdict(set)
    for keys in found:
        for pair, count in Counter((channel, step) for channel, step, _ in keys).items():
            counts[pair].add(count)
    return {pair for pair, several in counts.items() if len(several) > 1}


def _notes(
    ranks: Sequence[RankTrace], uneven: set[tuple[Channel, str]], matched: Sequence[Key]
) -> list[str]:
    notes = []
    nameless = sum(not channel.group and not channel.members for channel, _, _ in matched)
    if nameless and len(ranks) > 2:
        notes.append(
            f"the files name no process group of {format_count(nameless, 'collective')}: they "
            "were matched as if all ranks were one group. With several groups, what is said of "
            "them is wrong"
        )
    steps = sorted({step for _, step in uneven if step != NUMBERED})
    if steps:
        notes.append(
            f"in {len(steps)} of the steps ({', '.join(steps[:5])}{', ...' * (len(steps) > 5)}) "
            "ranks have different numbers of collectives of one group: these were not compared"
        )
    pairwise = sum(one.channel.operation in _PAIRWISE for rank in ranks for one in rank.collectives)
    if pairwise:
        notes.append(
            f"{pairwise:,} sends, receives and kernels of an unknown operation were not matched"
        )
    return notes
