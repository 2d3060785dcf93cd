"""What changed, in one sentence: only what the spread exceeds, and counts, which have none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kit.runs.analysis.diff import diff_runs
from kit.runs.analysis.headline import headline_differences, syncs_of_steps
from kit.runs.analysis.sentence import change_sentence
from kit.runs.analysis.story import best_of, lost_ms, story_of
from kit.runs.change import Difference
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import SyncPoint, Timeline
from kit.widgets.numbers.headline import changed_html
from tests.factories import empty_run, make_run


def difference(
    old: float, new: float, *, spread: float = 0.0, is_ratio: bool = False
) -> Difference:
    middle = new / old if is_ratio else new - old
    return Difference(old, new, middle - spread, middle + spread, is_ratio=is_ratio)


def said(**changed: Difference) -> str:
    """The sentence where all else is the same."""
    same = {
        "step_ms": difference(10.0, 10.1, spread=0.03, is_ratio=True),
        "device_busy_fraction": difference(0.7, 0.71, spread=0.05),
        "overlap_fraction": difference(0.5, 0.5, spread=0.05),
        "sync_wait_ms": difference(0.0, 0.0),
        "syncs_per_step": difference(0.0, 0.0),
    }
    return change_sentence(same | changed)


def test_a_wait_that_is_gone_and_a_busier_device_are_told():
    found = said(
        step_ms=difference(144.0, 94.0, spread=0.02, is_ratio=True),
        device_busy_fraction=difference(0.71, 0.97, spread=0.05),
        sync_wait_ms=difference(50.0, 0.0, spread=2.0),
        syncs_per_step=difference(1.0, 0.0),
    )
    assert found == (
        "a step takes 94 ms instead of 144 ms (35% ± 2% faster); the red wait is gone "
        "(it took 50 ms a step); the device is busy 97% instead of 71%"
    )


def test_a_read_every_twenty_steps_is_no_change_by_the_number_of_steps():
    run = make_run(steps=60)
    read = run.sync_points[0]
    few, more, none = (
        replace(run, step_times_ns=run.step_times_ns[:steps], sync_points=(read,) * reads)
        for steps, reads in ((45, 2), (60, 3), (15, 0))
    )
    assert headline_differences(few, more)["syncs_per_step"].kind == "unclear"
    assert headline_differences(few, none)["syncs_per_step"].kind == "unclear"
    every = replace(more, sync_points=(read,) * 60)
    assert headline_differences(none, every)["syncs_per_step"].kind == "more"
    assert headline_differences(none, none)["syncs_per_step"].kind == "same"


def test_waits_that_only_a_trace_sees_are_counted_in_its_steps() -> None:
    run = make_run(Settings(mode="torch"), steps=3, syncs=1)
    fewer = replace(run, timeline=replace(run.timeline, syncs=run.timeline.syncs[:2]))
    assert len(run.step_times_ns) > 100  # measured, and none of them tells of a wait
    assert headline_differences(fewer, run)["syncs_per_step"].kind == "unclear"


def test_waits_that_a_trace_sees_are_those_of_the_steps_in_which_they_are() -> None:
    run = make_run(Settings(mode="torch"), steps=3, syncs=2)
    syncs = run.timeline.syncs[:3]  # two in the first step, one in the second
    few = replace(run, timeline=replace(run.timeline, syncs=syncs))
    assert [len(found) for found in syncs_of_steps(few)] == [2, 1, 0]
    unmarked = replace(few, timeline=Timeline.of([], syncs), step_times_ns=())
    assert syncs_of_steps(unmarked) == []
    untraced = syncs_of_steps(replace(make_run(), sync_points=syncs))  # nobody knows which
    assert sorted(map(len, untraced))[-2:] in ([1, 1], [1, 2], [0, 3])


def with_reads(at: Sequence[int], wait_ms: float, steps: int = 100) -> Run:
    """A run that reads in these steps of 2 ms, whose waits differ by one percent."""
    run = make_run(steps=3)
    read = run.sync_points[0]
    syncs = tuple(
        replace(read, at_ns=2_000_000 * i, wait_ns=round(1e6 * wait_ms * (1 + i % 2 / 100)))
        for i in at
    )
    return replace(run, step_times_ns=(2_000_000, 2_010_000) * (steps // 2), sync_points=syncs)


def test_reads_that_depend_on_the_data_are_no_change_as_counts_by_chance() -> None:
    """Of reruns of `if loss > best: loss.item()`, 82 in 100 were called changed."""
    old, new = (with_reads([i for i in range(100) if i * k % 7 < 3], 0.1) for k in (1, 3))
    more = with_reads([i for i in range(100) if i * 5 % 7 < 4], 0.1)
    for a, b in ((old, new), (old, more)):
        assert headline_differences(a, b)["syncs_per_step"].kind in ("same", "unclear")
    all_ = with_reads(range(100), 0.1)
    assert headline_differences(old, all_)["syncs_per_step"].kind == "more"
    tenth, fifth = with_reads(range(0, 100, 10), 0.1), with_reads(range(0, 100, 5), 0.1)
    assert headline_differences(tenth, fifth)["syncs_per_step"].kind == "more"  # no chance there


def test_a_wait_in_each_tenth_step_that_grew_fivefold_is_told() -> None:
    """It was "1 row with too few steps to know the spread", of a thousand steps."""
    old, new = (with_reads(range(0, 1000, 10), ms, steps=1000) for ms in (1.0, 5.0))
    assert headline_differences(old, new)["sync_wait_ms"].kind == "more"
    assert headline_differences(old, old)["sync_wait_ms"].kind != "more"
    (row,) = diff_runs(old, new).syncs
    assert row.is_changed
    assert "too few steps" not in diff_runs(old, new).text().partition("Where the host")[2][:120]


def test_what_the_spread_does_not_exceed_is_nothing():
    assert said() == (
        "nothing that can be told from noise; a step: no change beyond the spread (+1% ± 3%)"
    )
    wide = said(device_busy_fraction=difference(0.5, 0.9, spread=0.5))
    assert wide.startswith("nothing that can be told from noise; ")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ((0.001, 1), (0.0, 0), "the sync point is gone; a step"),
        ((0.0, 0), (8.0, 1), "there is a red wait of 8 ms a step, where there was none"),
        ((8.0, 1), (2.0, 1), "the host waits 2 ms a step instead of 8 ms"),
        ((8.0, 2), (8.0, 1), "there is 1 sync point a step instead of 2"),
        ((0.0, 0), (0.0, 1), "there is 1 sync point a step, where there was none"),
        ((0.0, 0), (0.0, 3), "there are 3 sync points a step, where there was none"),
        ((0.0, 3), (0.0, 0), "the sync points are gone; a step"),
        ((8.0, 1), (8.0, 3), "there are 3 sync points a step instead of 1"),
        ((8.0, 1), (2.0, 2), "the host waits 2 ms a step instead of 8 ms; there are 2 sync points"),
    ],
)
def test_a_wait_is_told_by_its_time_and_its_count(old, new, told):
    found = said(
        sync_wait_ms=difference(old[0], new[0], spread=0.01),
        syncs_per_step=difference(old[1], new[1]),
    )
    assert found.startswith(told)


def test_a_run_that_another_program_disturbed_changes_nothing_but_counts():
    busy = {"step_ms": replace(difference(10.0, 20.0, is_ratio=True), doubt="busy cores")}
    assert said(**busy).startswith("nothing that can be told from noise; a step: maybe 100%")
    assert said(**busy).endswith("busy cores")


def test_runs_without_numbers_say_so():
    assert change_sentence(headline_differences(empty_run(), empty_run())) == "not measured in both"


def test_the_sentence_of_two_runs_names_the_setting_that_was_moved():
    old = make_run(Settings(loss_scaling="dynamic, host check"))
    html = changed_html(old, make_run(Settings(loss_scaling="none"), syncs=0))
    assert "loss scaling dynamic, host check → none:" in html
    assert "the red wait is gone (it took " in html
    assert "Since the run before:" in changed_html(old, old)
    assert "<img" not in changed_html(make_run(hostile=True), make_run(hostile=True, seed=1))


def timed(run: Run, factor: float) -> Run:
    return replace(run, step_times_ns=tuple(round(t * factor) for t in run.step_times_ns))


def test_the_story_is_where_most_device_time_is_lost_to_waits():
    waits, free = make_run(syncs=2), make_run(syncs=0)
    runs = [free, waits, timed(waits, 1.5), timed(free, 0.5)]
    assert lost_ms(free) == 0
    assert lost_ms(waits) > 0
    assert story_of(runs) == 2
    assert best_of(runs) == 3
    assert story_of([free]) is None
    assert math.isnan(lost_ms(empty_run()))
    assert (story_of([empty_run()]), best_of([empty_run()])) == (None, None)
    large = replace(timed(free, 0.9), settings=Settings(batch_size=80))
    assert best_of([*runs, large]) == 4  # by the sample
    assert best_of([*runs, large], like=waits) == 3


def logging_run(steps: int, logs: int, *, reads: int = 2, places: int = 1, every: int = 0) -> Run:
    """A run of so many steps of 10 ms; every tenth reads several numbers at each of some lines."""
    step = 10_000_000
    syncs = [
        SyncPoint(10 * log * step + 1000 * (place * reads + i), 500, "item", f"train.py:{place}")
        for log in range(logs)
        for place in range(places)
        for i in range(reads)
    ]
    syncs += [
        SyncPoint(k * step, 500, "item", "own.py:1") for k in range(steps) for _ in range(every)
    ]
    return replace(make_run(), step_times_ns=(step,) * steps, sync_points=tuple(syncs))


def test_numbers_logged_every_tenth_step_are_not_more_sync_points_in_another_run() -> None:
    """print(loss.item(), acc.item()): 3 of 37 steps and 5 of 41 were "0.244 instead of 0.162"."""
    for made in ({"reads": 2}, {"reads": 1, "places": 2}, {"reads": 5, "places": 2}):
        few, many = (logging_run(*counts, **made) for counts in ((37, 3), (41, 5)))
        found = headline_differences(few, many)["syncs_per_step"]
        assert found.amount > 0
        assert found.kind == "unclear"
        assert diff_runs(few, many).points == ()
        assert "sync points" not in change_sentence(headline_differences(few, many))


def test_one_very_long_step_hides_no_change_of_rare_reads() -> None:
    """As many reads as it is long counted as those of one step."""
    few, many = (logging_run(100, 10, reads=reads) for reads in (1, 5))
    many = replace(many, step_times_ns=(*many.step_times_ns[1:], 1_000_000_000))
    assert headline_differences(few, many)["syncs_per_step"].kind == "more"


def test_the_reads_of_a_step_that_also_validates_are_of_one_step() -> None:
    few, many = (logging_run(*counts, reads=1) for counts in ((37, 3), (41, 5)))
    few, many = (
        replace(
            run,
            step_times_ns=tuple(10_000_000 if k % 10 else 100_000_000 for k in range(steps)),
            sync_points=tuple(
                replace(sync, at_ns=10 * sync.at_ns + 4_000_000 * i)
                for sync in run.sync_points
                for i in range(20)
            ),
        )
        for run, steps in ((few, 37), (many, 41))
    )
    assert headline_differences(few, many)["syncs_per_step"].kind == "unclear"


def test_a_read_in_each_step_is_counted_exactly_beside_a_rare_one() -> None:
    one, two = (logging_run(40, 4, reads=1, every=every) for every in (1, 2))
    assert headline_differences(one, two)["syncs_per_step"].kind == "more"
    assert headline_differences(two, one)["syncs_per_step"].kind == "less"


def test_traced_steps_say_exactly_how_often_each_of_them_waits() -> None:
    """A native run: three traced steps, of which one reads twice."""
    run = make_run(Settings(mode="torch"))
    more = replace(run, timeline=replace(run.timeline, syncs=twice(run.timeline.syncs[:1], run)))
    assert headline_differences(run, more)["syncs_per_step"].kind == "unclear"
    both = replace(run, timeline=replace(run.timeline, syncs=twice(run.timeline.syncs, run)))
    assert headline_differences(run, both)["syncs_per_step"].kind == "more"


def twice(syncs: Sequence[SyncPoint], run: Run) -> tuple[SyncPoint, ...]:
    """The waits of a run, these of them again, right after they ended."""
    again = [replace(sync, at_ns=sync.at_ns + 1) for sync in syncs]
    return tuple(sorted([*run.timeline.syncs, *again], key=lambda sync: sync.at_ns))
