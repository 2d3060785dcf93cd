"""Many ranks as one page: what is slow, a row a rank, and the tables of all three.

    kit.RanksView(kit.open_ranks("traces/"))

Picking a rank anywhere marks it everywhere: in the rows, in the tables, in other views that share
the selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.shown import Column
from kit.text import safe_html
from kit.trace.ranks.ranks import (
    COLLECTIVE_COLUMNS,
    COPY_COLUMNS,
    MAX_ROWS,
    RANK_COLUMNS,
    STEP_COLUMNS,
    Ranks,
    costliest,
    furthest,
)
from kit.widgets.base.listing import Listing
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.base.tables import not_shown, section, sentence, table
from kit.widgets.ranks.lanes import lanes_html, of_rank, placed

__all__ = ["RanksView", "ranks_drawn"]


def ranks_drawn(ranks: Ranks) -> tuple[str, list[Selection]]:
    """The page's HTML, and what each of its rows stands for."""
    picks = [of_rank(trace.rank) for trace in ranks.traces]
    parts = [
        f'<p style="margin:0 0 8px;font-size:15px"><b>{safe_html(ranks.said, 600)}</b></p>',
        "".join(sentence(safe_html(problem, 400)) for problem in ranks.problems),
        section(f"Ranks, {placed(ranks)}", lanes_html(ranks) + sentence(_HINT)),
        _ranks(ranks, picks),
        _steps(ranks, picks),
        _collectives(ranks, picks),
        _copies(ranks, picks),
    ]
    rest = ranks.notes[len(ranks.problems) :]
    parts += [sentence(safe_html(note, 400)) for note in rest]
    return "".join(parts), picks


_HINT = (
    "A row is a rank: computing above, communicating below. Click its bars to open its lanes, its "
    "name to mark it in all tables. Bars that are close together are drawn as one."
)


def _ranks(ranks: Ranks, picks: list[Selection]) -> str:
    named = [row.rank for row in ranks.ranks]
    widths = (5, 7, 8, 9, 9, 7, 7, 15, 8, 7, 18)
    made = _table(RANK_COLUMNS, ranks.ranks, widths, named, picks, least_px=840)
    note = (
        "Means of the steps in ms: compute, exposed communication, memory and idle add up to the "
        "step. Waited: others had not come to the collective yet. The clock is what is added to "
        "the times of a rank, and what collectives disagree by."
    )
    return section("Ranks", made + sentence(note))


def _steps(ranks: Ranks, picks: list[Selection]) -> str:
    if not ranks.steps:
        return ""
    few = furthest(ranks.steps, MAX_ROWS)
    named = [row.slowest for row in few]
    made = _table(STEP_COLUMNS, few, (16, 10, 17, 13, 20, 24), named, picks, least_px=480)
    note = (
        "A rank's own time is its step without what it only waited for others. Where the next rank "
        "is closer than the clocks are known, none is named."
    )
    note += " Those with most above the next are shown." * (len(ranks.steps) > MAX_ROWS)
    note += not_shown(len(ranks.steps) - MAX_ROWS, "step")
    return section("Which rank was the slowest", made + sentence(note))


def _collectives(ranks: Ranks, picks: list[Selection]) -> str:
    if not ranks.collectives:
        return section("Collectives", sentence("No collective is in the traces of two ranks."))
    few = costliest(ranks.collectives)[:MAX_ROWS]
    named = [row.last for row in few]
    widths = (13, 13, 15, 12, 17, 12, 9, 9)
    made = _table(COLLECTIVE_COLUMNS, few, widths, named, picks, least_px=640)
    note = (
        "Those that cost most. After the one before: what all would gain, were the last as early "
        "as that one. After the first: the longest that one has waited."
    )
    note += not_shown(len(ranks.collectives) - MAX_ROWS, "collective")
    return section("Who came last to a collective", made + sentence(note))


def _copies(ranks: Ranks, picks: list[Selection]) -> str:
    if not ranks.copies:
        return ""
    few = ranks.copies[:MAX_ROWS]
    named = [row.rank for row in few]
    made = _table(COPY_COLUMNS, few, (10, 30, 15, 15, 15, 15), named, picks, least_px=520)
    note = "All bytes over the time of all copies."
    note += not_shown(len(ranks.copies) - MAX_ROWS, "kind")
    return section("Copies", made + sentence(note))


def _table(
    columns: Sequence[Column[Any]],
    rows: Sequence[Any],
    widths: Sequence[int],
    named: Sequence[int],
    picks: list[Selection],
    *,
    least_px: int,
) -> str:
    """The rows; what each stands for is added to `picks`.

    Args:
        named: the rank that each row names; below 0: none.
    """
    cells = [
        [f'<div style="overflow-wrap:anywhere">{safe_html(c.cell(row))}</div>' for c in columns]
        for row in rows
    ]
    align = "".join("r" if column.is_number else "l" for column in columns)
    heads = [column.head for column in columns]
    mine = [of_rank(rank) if rank >= 0 else None for rank in named]
    numbered = enumerate(mine, len(picks))
    made = table(heads, cells, align, widths=widths, picks=numbered, least_px=least_px)
    picks += [pick or NOTHING for pick in mine]
    return made


class RanksView(Listing):
    """The ranks of a job; assigning `run` other ranks redraws. `selection` is the rank picked."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        super().__init__("ranks", ranks_drawn, ranks)
