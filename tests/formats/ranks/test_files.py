"""Which files are those of the ranks of one job, and which rank a name says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kit
from kit.formats.ranks.ask import query_folder
from kit.formats.ranks.files import is_folder_of_ranks, rank_in_name
from kit.trace import Span, Timeline
from kit.workloads.made_ranks import Job, made_traces, write_ranks
from tests.factories import make_run


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (["rank0.kitrun", "rank1.kitrun"], True),
        (["now_rank0.kitrun", "now_rank1.kitrun", "now_rank1_2.kitrun"], True),
        (["rank0/step.kitrun", "rank1/step.kitrun"], True),
        (["lora_rank8-6b86.kitrun", "lora_rank8-d473.kitrun"], False),
        (["rank8-6b86.kitrun", "rank8-d473.kitrun"], False),
        (["lora_rank4.kitrun", "lora_rank8.kitrun"], False),
        (["now_rank0.kitrun", "now_rank2.kitrun"], True),  # rank 1 is missing
        (["now_rank2.kitrun", "now_rank3.kitrun"], True),
        (["gpu1.kitrun", "gpu2.kitrun"], False),
        (["worker2.kitrun", "worker4.kitrun"], False),
        (["crank1.kitrun"], False),
        (["gpu1.json", "gpu2.json"], True),
    ],
)
def test_a_saved_run_is_a_rank_if_its_name_ends_so(tmp_path: Path, names: list[str], is_one: bool):
    """`kit view` of a sweep over "lora_rank8" showed one of its runs as rank 8 of 9."""
    folder = tmp_path / "rank8"  # whose name says nothing of the runs in it
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert is_folder_of_ranks(folder) == is_one


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["gpu07_4000.17000.json", "gpu07_4001.17000.json"], [0, 1]),  # a host and its processes
        (["node0_gpu0.json", "node0_gpu1.json", "node1_gpu0.json", "node1_gpu1.json"],
         [0, 1, 2, 3]),
        (["train-worker-3_9.json", "train-worker-3_10.json", "train-worker-3_rank1.json"],
         [0, 1, 2]),
        (["worker4.17000.json", "worker4.18000.json", "worker5.17000.json"], [4, 5]),  # two cycles
        (["gpu2.json", "gpu3.json"], [2, 3]),
        (["gpu07.json", "gpu08.json"], [7, 8]),  # two hosts
        (["run.v2_gpu0_a.json", "run.v2_gpu0_b.json"], [0, 1]),
    ],
)  # fmt: skip
def test_a_number_of_several_files_is_a_hosts_or_a_gpus(
    tmp_path: Path, names: list[str], ranks: list[int]
):
    """Each file of a host gpu07 was rank 7: all but one were dropped, "0, 1, ... missing"."""
    for name, made in zip(names, made_traces(Job(ranks=len(names))), strict=True):
        made.pop("distributedInfo")
        (tmp_path / name).write_text(json.dumps(made))
    job = kit.open_ranks(tmp_path)
    assert [row.rank for row in job.ranks] == ranks
    assert not any("missing:" in problem for problem in job.problems)
    is_untold = any("whether others are missing is not known" in text for text in job.problems)
    assert is_untold == (min(ranks) > 0)
    answer, _ = query_folder(tmp_path, "select distinct rank from kernels order by rank")
    assert [rank for (rank,) in answer.rows] == ranks


def test_what_a_file_says_of_its_rank_is_believed_before_its_name(tmp_path: Path):
    """Ranks of files that say no world_size were told to say none, and numbered anew."""
    for rank, made in enumerate(made_traces(Job(ranks=2)), 5):
        made["distributedInfo"] = {"backend": "nccl", "rank": rank}
        (tmp_path / f"h_gpu7_{rank}.json").write_text(json.dumps(made))
    job = kit.open_ranks(tmp_path)
    assert [row.rank for row in job.ranks] == [5, 6]
    assert not any("number" in problem or "names no" in problem for problem in job.problems)


@pytest.mark.parametrize("later_s", [0, 60])
def test_two_traces_of_one_rank_are_no_two_ranks(tmp_path: Path, later_s: int):
    """Those of two steps, or a copy, were ranks beside the first, compared with it."""
    for rank, made in enumerate(made_traces(Job(ranks=2))):
        made.pop("distributedInfo")
        (tmp_path / f"worker{rank}_step100.json").write_text(json.dumps(made))
        for event in made["traceEvents"]:
            if "ts" in event:
                event["ts"] += 1e6 * later_s
        (tmp_path / f"worker{rank}_step200.json").write_text(json.dumps(made))
    job = kit.open_ranks(tmp_path)
    assert [row.rank for row in job.ranks] == [0, 1]
    assert [problem[:20] for problem in job.problems] == [
        "rank 0 is in 2 files",
        "rank 1 is in 2 files",
    ]
    answer, problems = query_folder(tmp_path, "select distinct rank from kernels order by rank")
    assert answer.rows == ((0,), (1,))
    assert problems == job.problems


@pytest.mark.parametrize("later_s", [0, 60])
def test_ranks_of_two_times_may_be_of_two_jobs(tmp_path: Path, later_s: int):
    """Traces of LoRA of ranks 4 and 8 were ranks 4 and 8 of a job of 9, of which 7 were missing."""
    for rank, made in zip((4, 8), made_traces(Job(ranks=2)), strict=True):
        made.pop("distributedInfo")
        for event in made["traceEvents"]:
            event["ts"] += 1e6 * later_s * (rank == 8)
        (tmp_path / f"lora_rank{rank}.json").write_text(json.dumps(made))
    (untold, *doubts) = kit.open_ranks(tmp_path).problems
    assert untold.endswith("4 and 8: whether others are missing is not known")
    assert [text[:41] for text in doubts] == ["rank 8 was recorded 60 s after the others"] * (
        later_s > 0
    )


def test_files_that_say_how_many_ranks_there_are_say_which_are_missing(tmp_path: Path):
    for rank, made in zip((2, 3), made_traces(Job(ranks=2)), strict=True):
        made["distributedInfo"] = {"world_size": 4}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(made))
    assert "2 ranks of 4 missing: 0, 1." in kit.open_ranks(tmp_path).problems[0]


def test_a_folder_that_says_its_rank_is_believed_before_a_host():
    assert rank_in_name(Path("rank_1/gpu07_4000.json")) == 1


def test_collectives_of_saved_runs_are_not_called_different_ones(tmp_path: Path):
    """Their times are of no common clock, so that an end before a begin says nothing."""
    for rank in range(2):
        sent = Span(
            "device/0 collectives", "gloo:all_reduce", "communication", 60 * rank, 60 * rank + 40
        )
        timeline = Timeline.of([Span("host/main", "step 0", "step", 0, 200), sent], (), "profiled")
        replace(make_run(), timeline=timeline).save(tmp_path / f"rank{rank}.kitrun")
    ranks = kit.open_ranks(tmp_path)
    assert not ranks.has_clock
    assert not any("not the same ones" in note for note in ranks.notes)


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs rights there")
def test_a_rank_whose_file_is_gone_is_told_as_one_that_cannot_be_read(tmp_path: Path):
    """Links to a disk that is not mounted left a job of fewer ranks, without a word."""
    write_ranks(tmp_path, Job(ranks=2, steps=3))
    (tmp_path / "rank1.json").rename(tmp_path / "elsewhere")
    (tmp_path / "rank1.json").symlink_to(tmp_path / "nowhere")
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [0]
    assert ranks.problems[0].startswith("'rank1.json' could not be read: ")
    assert "No such file" in ranks.problems[0]
