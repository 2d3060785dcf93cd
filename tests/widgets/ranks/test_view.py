"""The page of many ranks: rows on one clock, tables, and one selection in all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kit
from kit.reports.ranks import ranks_html
from kit.trace import Timeline
from kit.trace.communication import Channel
from kit.trace.imported import Member
from kit.trace.ranks.one import coarse, rank_trace
from kit.trace.ranks.ranks import Ranks
from kit.widgets.base.selection import NOTHING
from kit.widgets.ranks.lanes import COLOR, lanes_html, of_rank
from kit.widgets.ranks.view import ranks_drawn
from kit.workloads.made_ranks import Job, write_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("ranks")
    job = Job(ranks=3, slow={2: 1.5}, clock_us={1: 5_000_000.0})
    write_ranks(folder, job)
    return kit.open_ranks(folder)


def test_ranks_whose_clocks_differ_by_seconds_are_drawn_on_one(ranks: Ranks):
    drawn = lanes_html(ranks).split("<details>")[1:]
    waited = [_bars(row.split("</summary>")[0], COLOR["waited"]) for row in drawn]
    ends = [np.array(bars)[:, 1] for bars in waited[:2]]
    np.testing.assert_allclose(ends[0], ends[1], atol=0.5)  # of 1,000: all wait for rank 2
    assert not waited[2] or max(b - a for a, b in waited[2]) < 1.0


def test_rows_without_a_common_clock_say_where_they_begin(ranks: Ranks):
    def without(*lost: int) -> Ranks:
        unmatched = [
            replace(trace, collectives=(), has_clock=False) if i in lost else trace
            for i, trace in enumerate(ranks.traces)
        ]
        return Ranks(ranks.name, tuple(unmatched))

    none = ranks_html(without(0, 1, 2))
    assert "on one clock" not in none
    assert "Ranks, each from its first step" in none
    assert "each from its own trace,\neach from its first step." in none
    assert "clock not known" not in none.split("Ranks, each from")[1].split("<h")[0]
    one = without(1)
    rows = lanes_html(one).split("<details>")[1:]
    said = ["clock not known: begins with the others" in row for row in rows]
    assert said == [not row.clock.is_known for row in one.ranks] == [False, True, False]
    assert "Ranks, on one clock" in ranks_html(one)


def test_a_row_opens_to_the_lanes_of_its_rank(ranks: Ranks):
    drawn = lanes_html(ranks)
    assert drawn.count("<details>") == 3
    for rank in range(3):
        assert f"device/{rank} stream 7" in drawn
        assert f"device/{rank} stream 20" in drawn


def test_picking_a_rank_marks_it_in_rows_and_tables(ranks: Ranks):
    view = kit.RanksView(ranks)
    html, picks = ranks_drawn(ranks)
    assert picks[:3] == [of_rank(0), of_rank(1), of_rank(2)]
    shown = {int(n) for n in re.findall(r'data-row="(\d+)"', html)}
    assert shown == {i for i, pick in enumerate(picks) if pick != NOTHING}
    view._field.value = "2 1 1"
    assert view.selection == of_rank(2)
    marked = {int(n) for n in re.findall(r"data-row='(\d+)'", view._marks.value)}
    assert marked == {i for i, pick in enumerate(picks) if pick == of_rank(2)}
    assert len(marked) > 5
    view.run = None
    assert view.value == ""
    assert view.selection == NOTHING


def test_the_page_says_first_who_is_slow_and_why(ranks: Ranks):
    page = ranks_html(ranks)
    assert "Of 3 steps the slowest was rank 2 in 3 (compute" in page
    assert page.index("Of 3 steps") < page.index("Ranks, on one clock")


def test_a_report_of_ranks_is_a_page_or_markdown(ranks: Ranks, tmp_path: Path):
    assert "startRanks" in kit.report(ranks, path=tmp_path / "a.html").read_text("utf-8")
    assert kit.report(ranks, path=tmp_path / "a.md").read_text("utf-8") == ranks.to_markdown()


def test_ranks_without_anything_are_drawn():
    empty = Ranks("x", (rank_trace(Timeline.of([]), Member(), rank=0),))
    assert "nothing to compare" in ranks_drawn(empty)[0]
    assert "No collective" in ranks_html(empty)


def test_text_of_a_trace_is_no_markup(ranks: Ranks):
    evil = "<script>alert(1)</script>"
    traces = [
        replace(
            trace,
            step_names=tuple(f"{evil}{i}" for i in range(3)),
            collectives=tuple(
                replace(c, channel=Channel("all_reduce", evil)) for c in trace.collectives
            ),
            lanes=tuple(replace(lane, name=evil) for lane in trace.lanes),
            notes=(evil,),
        )
        for trace in ranks.traces
    ]
    page = ranks_html(Ranks(evil, tuple(traces), (evil,)))
    assert "alert(1)" in page
    assert evil not in page


def test_pieces_are_joined_over_their_smallest_gaps():
    times = np.array([[0, 1], [2, 3], [10, 11], [11, 12], [40, 41]], np.int64)
    assert coarse(times, 3).tolist() == [[0, 3], [10, 12], [40, 41]]
    assert coarse(times, 1).tolist() == [[0, 41]]
    assert coarse(times, 5).tolist() == times.tolist()


def _bars(svg: str, color: str) -> list[tuple[float, float]]:
    """Begin and end of each bar of a colour."""
    paths = re.findall(rf'<path d="([^"]*)" fill="{color}"', svg)
    found = re.findall(r"M([\d.]+) \d+h([\d.]+)", "".join(paths))
    return [(float(x), float(x) + float(w)) for x, w in found]
