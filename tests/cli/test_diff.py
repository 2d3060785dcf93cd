"""`kit diff`: of two runs, of folders and of foreign traces, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kit.runs.knob import OwnKnob
from kit.runs.labels import TIME, WATCHED
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.workloads.made_ranks import Job, write_ranks
from tests.cli.calls import Kit, write
from tests.factories import make_run
from tests.formats.chrome.traces import cuda_trace


def slowed(run: Run, factor: float) -> Run:
    return replace(run, step_times_ns=tuple(round(factor * t) for t in run.step_times_ns))


@pytest.mark.parametrize(
    ("factor", "arguments", "status", "said"),
    [
        (1.0, [], 0, "no change beyond the spread"),
        (1.0, ["--fail-over", "5%"], 0, "passed: nothing is slower by more than 5%"),
        (1.3, [], 0, "30% ± "),
        (1.3, ["--fail-over", "5%"], 1, "FAILED: slower by more than 5% and than the spread"),
        (1.3, ["--fail-over", "0.5"], 0, "passed"),
        (0.7, ["--fail-over", "0"], 0, "passed"),
        (1.3, ["--fail-over", "5%", "--markdown"], 1, "| step | 1.55 ms | 2.02 ms | **30% ± "),
    ],
)
def test_a_diff_says_what_changed_and_fails_over_the_bar(
    kit: Kit, factor: float, arguments: list[str], status: int, said: str
):
    make_run().save("old.kitrun")
    slowed(make_run(), factor).save("new.kitrun")
    found, out, err = kit("diff", "old.kitrun", "new.kitrun", *arguments)
    assert (found, err) == (status, "")
    assert "old (bulked)" in out
    assert said in out


def test_a_step_whose_mean_alone_is_slower_does_not_pass(kit: Kit):
    """Each fifth step took ten times as long: "passed: nothing is slower"."""
    old = replace(make_run(), step_times_ns=(1_200_000, 1_210_000) * 250)
    times = [12_000_000 if i % 5 == 4 else t for i, t in enumerate(old.step_times_ns)]
    old.save("old.kitrun")
    replace(old, step_times_ns=tuple(times)).save("new.kitrun")
    status, out, _ = kit("diff", "old.kitrun", "new.kitrun", "--fail-over", "5%")
    assert status == 1
    assert "no change seen (± 4%), but the mean: 179% ± " in out
    status, out, _ = kit("diff", "new.kitrun", "old.kitrun", "--fail-over", "5%")
    assert status == 0
    assert "cannot be told, by the spread, the mean or because the machine was busy" in out


def test_folders_are_compared_cell_by_cell_and_what_has_no_partner_is_said(kit: Kit):
    for folder, sizes, factor in (("old", (2, 4, 8), 1.0), ("new", (4, 8, 16), 1.4)):
        Path(folder).mkdir()
        for size in sizes:
            run = make_run(Settings(batch_size=size), seed=size)
            slowed(run, factor if size == 8 else 1.0).save(f"{folder}/{size}.kitrun")
    status, out, _ = kit("diff", "old", "new", "--fail-over", "10%")
    assert status == 1
    assert "batch size 4: 1.54 ms -> 1.54 ms, no change beyond the spread" in out
    assert "== batch size 8 ==" in out
    assert "only in the old: batch size 2" in out
    assert "only in the new: batch size 16" in out
    assert out.rstrip().endswith("than the spread: batch size 8")
    Path("new/8.kitrun").unlink()  # its cell died: nothing said so beside "passed"
    status, out, _ = kit("diff", "old", "new", "--fail-over", "10%")
    assert status == 0
    assert out.rstrip().endswith("not measured on both sides: batch size 2; batch size 8")


def test_a_pair_is_named_by_what_both_have_and_not_by_the_label_of_one(kit: Kit):
    for label in ("before", "after"):
        Path(label).mkdir()
        for size in (4, 8):
            run = replace(make_run(Settings(batch_size=size), seed=size), label=label)
            run.save(f"{label}/{size}.kitrun")
    status, out, _ = kit("diff", "before", "after")
    assert (status, "== batch size 4 ==" in out) == (0, True)


def test_recordings_of_one_script_are_repeats_however_many_steps_they_warmed_up(kit: Kit):
    """Of three on each side one pair was compared: "only in the old: 7 warm-up steps; 9 ..."."""
    sides = ("old", (6, 7, 9), 1.0), ("new", (6, 8, 8), 1.3)
    for side, (folder, warmups, factor) in enumerate(sides):
        Path(folder).mkdir()
        for i, warmup in enumerate(warmups):
            run = make_run(Settings(mode="torch", steps=30 + i, warmup=warmup), seed=i)
            noted = {**run.environment, WATCHED: "complete: measured 30 of 30 steps"}
            noted[TIME] = f"2026-01-01 00:00:{10 * i + side:02} UTC"  # they took turns
            slowed(replace(run, environment=noted), factor).save(f"{folder}/{i}.kitrun")
    status, out, _ = kit("diff", "old", "new", "--fail-over", "5%")
    assert status == 1
    assert "30% ± " in out
    assert "only in" not in out
    assert "warm" not in out


def test_the_slow_rank_of_a_job_fails_though_the_others_are_as_before(kit: Kit):
    """They passed as four repeats of one run: "10 ms -> 9.99 ms, no change seen (± 41%)"."""
    for folder, factor in (("old", 1.0), ("new", 1.6)):
        Path(folder).mkdir()
        for rank in range(4):
            slowed(make_run(), factor if rank == 3 else 1.0).save(f"{folder}/now_rank{rank}.kitrun")
    status, out, _ = kit("diff", "old", "new", "--fail-over", "5%")
    assert status == 1
    assert "60% ± " in next(line for line in out.splitlines() if "rank 3: " in line)
    assert out.rstrip().rpartition("\n")[2].endswith("spread: synthetic · bulked, rank 3")
    Path("new/now_rank0.kitrun").unlink()
    assert "only in the old: synthetic · bulked, rank 0" in kit("diff", "old", "new")[1]
    for rank in (1, 2, 3):
        Path(f"new/now_rank{rank}.kitrun").rename(f"new/now_rank{rank + 4}.kitrun")
    assert kit("diff", "old", "new")[0] == 0  # none in common: as repeats
    Path("new/now_rank5.kitrun").rename("new/one.kitrun")  # no folder of ranks
    assert "rank" not in kit("diff", "old", "new")[1].splitlines()[0]


def test_foreign_traces_are_compared(kit: Kit):
    for name in ("a.json", "b.json"):
        write(name, json.dumps(cuda_trace()))
    status, out, err = kit("diff", "a.json", "b.json")
    assert (status, err) == (0, "")
    assert "step: 900 µs -> 900 µs, no change seen (± " in out


def test_what_cannot_be_compared_ends_a_diff_with_2(kit: Kit):
    make_run(Settings(batch_size=2)).save("a.kitrun")
    write("bad.kitrun", "no run")
    for folder, sizes in (("old", (2, 4)), ("new", (8, 16))):
        Path(folder).mkdir()
        for size in sizes:
            make_run(Settings(batch_size=size)).save(f"{folder}/{size}.kitrun")
    for pair, said in (
        (("a.kitrun", "bad.kitrun"), "not a run that can be read"),
        (("a.kitrun", "none.kitrun"), "No such file"),
        (("old", "new"), "no run on one side has the name and the settings"),
    ):
        status, out, err = kit("diff", *pair)
        assert (status, out) == (2, "")
        assert said in err
    knob = OwnKnob("width", 8, (8, 16), 8, where="mine (train.py:1)")
    for size in (2, 4):
        make_run(Settings(batch_size=size, own=(knob,))).save(f"new/{size}.kitrun")
    assert "(a builder's knob on one side only: width)" in kit("diff", "old", "new")[2]
    status, _, err = kit("diff", "a.kitrun", "a.kitrun", "--fail-over", "5")
    assert status == 2
    assert "did you mean 5%?" in err


def test_a_bar_does_not_pass_where_no_step_was_measured(kit: Kit):
    """ "passed: nothing is slower [...]; cannot be told, by the spread or because ... was busy"."""
    for folder, sizes in (("old", (2, 4)), ("new", (4,))):
        Path(folder).mkdir()
        for size in sizes:
            make_run(Settings(batch_size=size)).save(f"{folder}/{size}.kitrun")
    replace(make_run(Settings(batch_size=2)), step_times_ns=()).save("new/2.kitrun")
    assert kit("diff", "old/2.kitrun", "new/2.kitrun")[0] == 0
    status, out, err = kit("diff", "old/2.kitrun", "new/2.kitrun", "--fail-over", "5%")
    assert (status, "passed" in out) == (2, False)
    assert "no step was measured on both sides" in err
    status, out, _ = kit("diff", "old", "new", "--fail-over", "5%")
    assert status == 0
    assert out.rstrip().endswith("; not measured on both sides: batch size 2")
    assert "no kernel of its own" not in kit("diff", "new/2.kitrun", "new/2.kitrun")[1]


def test_a_table_by_launcher_is_of_one_trace(kit: Kit):
    write_ranks(Path("ranks"), Job(ranks=2))
    for name, why in (("ranks", "give the file of one rank"), ("snap.pickle", "no steps")):
        status, out, err = kit("view", name, "--by", "op")
        assert (status, out) == (1, "")
        assert why in err
