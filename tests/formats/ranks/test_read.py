"""`kit.open_ranks` and `kit view FOLDER`: made jobs whose numbers are known, and bad folders."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.cli.main import main
from kit.errors import TraceFileError
from kit.formats.chrome.collectives import Messages
from kit.formats.ranks import read
from kit.formats.ranks.files import is_folder_of_ranks, rank_files, rank_in_name
from kit.reports.ranks import ranks_html
from kit.runs.run import Run
from kit.workloads.made_ranks import LAYERS, Job, made_traces, write_ranks
from tests.factories import make_run
from tests.formats.chrome.traces import damaged
from tests.formats.made_profiles import nsys

PUBLISHED = Path(__file__).parents[2] / "data" / "published"
JOB = Job(
    ranks=4,
    steps=3,
    slow={3: 1.25},
    late={(1, 1): 2_000.0},
    clock_us={1: 350.0, 2: -90_000.0, 3: 4.0},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("ranks")
    write_ranks(made, JOB)
    return made


def test_known_clocks_late_comers_and_reasons_are_found(folder: Path):
    ranks = kit.open_ranks(folder)
    assert ranks.problems == ()
    offsets = {row.rank: row.clock.offset_ns / 1e3 for row in ranks.ranks}
    first = next(row.rank for row in ranks.ranks if row.clock.how == "the reference")
    base = JOB.clock_us.get(first, 0.0)
    for row in ranks.ranks:
        wrong_us = abs(offsets[row.rank] - (base - JOB.clock_us.get(row.rank, 0.0)))
        assert wrong_us <= JOB.jitter_us
        assert row.clock.error_ns <= JOB.jitter_us * 1e3
    said = {step.name: (step.slowest, step.why) for step in ranks.steps}
    assert said == {
        "step 10": (3, "compute"),
        "step 11": (1, "idle: input"),
        "step 12": (3, "compute"),
    }
    assert len(ranks.collectives) == JOB.steps * LAYERS
    assert {row.last for row in ranks.collectives if row.step != "step 11"} == {3}
    assert {row.size_bytes for row in ranks.collectives} == {JOB.elements * 4}


def test_exposed_communication_is_what_no_kernel_hides(folder: Path):
    for row in kit.open_ranks(folder).ranks:
        raw = json.loads((folder / f"rank{row.rank}.json").read_text("utf-8"))["traceEvents"]
        marks = [e for e in raw if e["name"].startswith("ProfilerStep")]
        sent = [e for e in raw if e["name"].startswith("nccl")]
        computed = [e for e in raw if e["cat"] == "kernel" and not e["name"].startswith("nccl")]
        exposed = sum(
            any(e["ts"] <= t < e["ts"] + e["dur"] for e in sent)
            and not any(e["ts"] <= t < e["ts"] + e["dur"] for e in computed)
            for mark in marks
            for t in _every(mark, 5.0)
        )
        assert row.exposed_ms == pytest.approx(exposed * 5e-3 / JOB.steps, abs=0.05)


def test_a_folder_of_nsights_exports_is_a_job(tmp_path: Path, capsys) -> None:
    """It was said to hold no profile of jax; and copies were none, though exports say the bytes."""
    for rank in range(2):
        nsys(tmp_path / f"job_rank{rank}.sqlite", name="ncclDevKernel_AllReduce_Sum_f32")
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [0, 1]
    assert [row.channel.operation for row in ranks.collectives] == ["all_reduce"] * 2
    copies = [(row.rank, row.what, row.count, row.size_bytes) for row in ranks.copies]
    assert copies == [(rank, "Memcpy HtoD", 2, 8192) for rank in range(2)]
    assert main(["view", str(tmp_path)]) == 0
    assert "2 ranks" in capsys.readouterr().out


def test_a_collective_is_no_busy_time_of_one_trace_either(folder: Path):
    run = kit.open_trace(folder / "rank0.json")
    (rank, *_) = kit.open_ranks(folder / "rank0.json").ranks
    rows = {row.category: row for row in run.breakdown()}
    assert rows["device busy"].exposed_ms == pytest.approx(rank.compute_ms)
    assert rows["communication"].exposed_ms == pytest.approx(rank.exposed_ms)
    assert rows["communication"].total_ms == pytest.approx(rank.communication_ms)
    assert run.headline().device_busy_fraction == pytest.approx(rank.compute_ms / rank.step_ms)
    assert run.limited_by().what == "communication"


def test_the_bandwidth_of_copies_is_the_published_files_own():
    (rank, *_) = [kit.open_ranks(PUBLISHED / "alexnet.json.gz")]
    with gzip.open(PUBLISHED / "alexnet.json.gz") as file:
        events = [e for e in json.load(file)["traceEvents"] if "bytes" in e.get("args", {})]
    for row in rank.copies:
        mine = [e for e in events if e["name"].startswith(row.what)]
        assert (row.count, row.size_bytes) == (len(mine), sum(e["args"]["bytes"] for e in mine))
        assert row.rate == pytest.approx(row.size_bytes / sum(e["dur"] for e in mine) * 1e6)
    assert sum(row.count for row in rank.copies) == len(events) > 0


def test_collectives_without_arguments_are_matched_by_their_order(tmp_path: Path):
    write_ranks(tmp_path, Job(ranks=3, slow={2: 1.5}, has_args=False))
    ranks = kit.open_ranks(tmp_path)
    assert {row.last for row in ranks.collectives} == {2}
    assert {row.size_bytes for row in ranks.collectives} == {-1}


@pytest.mark.parametrize(
    ("annotation", "operation"),
    [("nccl:all_to_all", "all_to_all"), ("nccl:coalesced", None), ("nccl:send 0->1", None)],
)
def test_the_annotation_around_a_launch_says_what_sends_and_receives_are(
    tmp_path: Path, annotation: str, operation: str | None
):
    """As of torch in 2023: neither the kernel nor `record_param_comms` names the collective."""
    for made in made_traces(Job(ranks=3, slow={2: 1.5}, has_args=False)):
        events = made["traceEvents"]
        sent = set()
        for event in events:
            if event["name"].startswith("nccl"):
                event["name"] = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)"
                sent.add(event["args"]["correlation"])
        launches = [e for e in events if e["cat"] == "cuda_runtime"]
        for call in [e for e in launches if e["args"].get("correlation") in sent]:
            around = {"cat": "user_annotation", "name": annotation, "dur": call["dur"] + 2}
            events.append({**call, **around, "ts": call["ts"] - 1, "args": {}})
        (tmp_path / f"rank{made['distributedInfo']['rank']}.json").write_text(json.dumps(made))
    ranks = kit.open_ranks(tmp_path)
    assert {row.channel.operation for row in ranks.collectives} == ({operation} - {None})
    assert {row.last for row in ranks.collectives} == ({2} if operation else set())
    assert any("were not matched" in note for note in ranks.notes) == (operation is None)


def test_an_op_that_names_no_operation_leaves_that_of_its_kernel():
    messages = Messages()
    messages.add(0, "ncclKernel_AllReduce_RING_LL_Sum_float()", {"External id": 5})
    messages.ask({"External id": 5, "Input Dims": [[8]], "Input type": ["float"]})
    ((event, message),) = messages.items()
    assert (event, message.channel.operation, message.size_bytes) == (0, "all_reduce", 32)


@pytest.mark.parametrize(
    ("operation", "kernel", "size"),
    [("all_reduce", "AllReduce", 32), ("all_gather", "AllGather", -1), ("gather", "Gather", -1)],
)
def test_what_a_rank_gives_to_a_gather_is_not_the_largest_buffer(
    operation: str, kernel: str, size: int
):
    """gloo's all_gather of 8 floats on each of 4 ranks was called one of 32 bytes; it is 128."""
    given = {"Input Dims": [[8]], "Input type": ["float"]}
    messages = Messages()
    messages.add(0, f"gloo:{operation}", given)
    messages.add(1, f"ncclKernel_{kernel}_RING_LL_Sum_float()", {"External id": 5})
    messages.ask({"External id": 5, **given})
    assert [message.size_bytes for _, message in messages.items()] == [size, size]


@pytest.mark.parametrize(
    ("name", "sizes", "is_even"),
    [
        ("all_to_all", {}, True),
        ("all_to_all", {"In split size": "[]", "Out split size": "[]"}, True),
        ("all_to_all", {"Out msg nelems": 9}, False),
        ("all_to_allv", {}, False),
        ("all_to_allv", {"In split size": "[4, 4]", "Out split size": "[4, 4]"}, True),
        ("all_to_allv", {"In split size": "[2, 6]", "Out split size": "[2, 6]"}, False),
        ("all_to_allv", {"In split size": "[4, 4, ...]", "Out split size": "[4, 4, ...]"}, False),
        ("all_to_allv", {"In split size": [4, 4]}, False),
        ("", {}, False),
    ],
)
def test_an_all_to_all_is_even_only_if_its_sizes_say_so(
    name: str, sizes: dict[str, Any], is_even: bool
):
    messages = Messages()
    args = {"Collective name": name, "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}
    messages.add(0, "ncclDevKernel_SendRecv()", {**args, **sizes})
    ((_, message),) = messages.items()
    assert message.is_even == is_even


def test_files_read_in_processes_of_their_own_give_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    here = kit.open_ranks(folder)
    monkeypatch.setattr(read, "SMALL_BYTES", 0)
    apart = kit.open_ranks(sorted(folder.iterdir())[:2])
    assert [t.to_json() for t in apart.traces] == [t.to_json() for t in here.traces[:2]]


def test_no_module_beside_the_traces_is_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(read, "SMALL_BYTES", 0)
    ranks = kit.open_ranks(folder / "rank0.json")
    assert len(ranks.ranks) == 1


@pytest.mark.parametrize("times", [(1e17, 2**62), (1e17, 0), (5.0, 2**63), (-1e17, 2**61)])
def test_clocks_far_outside_of_64_bits_are_not_believed(tmp_path: Path, times: tuple[float, int]):
    write_ranks(tmp_path, Job(ranks=3, slow={2: 1.5}))
    for file in list(tmp_path.iterdir())[:2]:
        trace = json.loads(file.read_text("utf-8"))
        trace["baseTimeNanoseconds"] = times[1]
        for event in trace["traceEvents"]:
            event["ts"] += times[0]
        file.write_text(json.dumps(trace))
    assert [row.rank for row in kit.open_ranks(tmp_path).ranks] == [0, 1, 2]


def test_the_hosts_of_the_newest_profile_of_jax_are_ranks(tmp_path: Path):
    for session, host in (("2026_01_01", "a"), ("2026_01_02", "a"), ("2026_01_02", "b")):
        file = tmp_path / "plugins" / "profile" / session / f"{host}.xplane.pb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = [file.relative_to(tmp_path).parts[2:] for file in rank_files(tmp_path)]
    assert found == [("2026_01_02", "a.xplane.pb"), ("2026_01_02", "b.xplane.pb")]
    newest = tmp_path / "plugins" / "profile" / "2026_01_02"
    for host in ("a", "b"):  # what jax writes beside each profile is no other rank
        (newest / f"{host}.trace.json.gz").write_bytes(b"")
    assert [file.name for file in rank_files(newest)] == ["a.xplane.pb", "b.xplane.pb"]
    assert not is_folder_of_ranks(tmp_path)  # `kit view` shows the first host, as before


@pytest.mark.parametrize("seed", range(6))
def test_damaged_ranks_are_shown_or_say_why_not(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    for i, trace in enumerate(made_traces(Job(ranks=3, steps=2, slow={2: 1.5}))):
        for event in rng.sample(trace["traceEvents"], 20):
            if args := event["args"]:
                args[rng.choice(list(args))] = rng.choice([None, -1, 2**70, "x", [], 1e300, True])
        (tmp_path / f"rank{i}.json").write_bytes(damaged(trace, rng))
    try:
        ranks = kit.open_ranks(tmp_path)
    except TraceFileError as error:
        assert "could be read" in str(error)  # noqa: PT017 - either is right
    else:
        assert ranks.to_text()
        assert "<html" in ranks_html(ranks)


def test_open_trace_of_a_folder_of_ranks_says_what_opens_it(folder: Path):
    with pytest.raises(TraceFileError, match=r"kit\.open_ranks"):
        kit.open_trace(folder)


def test_the_runs_of_a_sweep_are_no_ranks(tmp_path: Path):
    make_run().save(tmp_path / "batch_size=2.kitrun")
    assert not is_folder_of_ranks(tmp_path)
    with pytest.raises(TraceFileError, match=r"opened one by one, or by kit\.open_ranks"):
        kit.open_trace(tmp_path)
    (tmp_path / "batch_size=2.kitrun").rename(tmp_path / "rank0.kitrun")
    assert is_folder_of_ranks(tmp_path)
    (tmp_path / "rank0.kitrun").unlink()
    for rank in (4, 5):
        (tmp_path / f"bert_rank{rank}").mkdir()
        make_run().save(tmp_path / f"bert_rank{rank}" / "step.kitrun")
    assert is_folder_of_ranks(tmp_path)
    assert [row.rank for row in kit.open_ranks(tmp_path).ranks] == [4, 5]


def test_a_missing_a_cut_and_a_doubled_rank_are_named_and_the_rest_is_shown(
    folder: Path, tmp_path: Path
):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "rank0.json").unlink()
    cut = (tmp_path / "rank1.json").read_bytes()
    (tmp_path / "rank1.json").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "again.json.gz").write_bytes(gzip.compress((tmp_path / "rank2.json").read_bytes()))
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [2, 3]
    broken, doubled, missing = ranks.problems
    assert "'rank1.json' could not be read" in broken
    assert "cut off" in broken
    assert "rank 2 is in 2 files" in doubled
    assert "again.json.gz" in doubled
    assert missing.startswith("2 ranks of 4 missing: 0, 1.")
    assert {row.missing for row in ranks.collectives} == {2}


def test_the_file_says_its_rank_then_its_name_then_nothing(folder: Path, tmp_path: Path):
    content = json.loads((folder / "rank2.json").read_text("utf-8"))
    (tmp_path / "rank7.json").write_text(json.dumps(content))
    del content["distributedInfo"]
    (tmp_path / "worker_5.pt.trace.json").write_text(json.dumps(content))
    (tmp_path / "x.json").write_text(json.dumps(content))
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [2, 5]  # torch names the rank in all or in none
    assert any("'x.json' names no rank, as the others do" in one for one in ranks.problems)
    (tmp_path / "rank7.json").unlink()
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [0, 5]
    assert any("called rank 0" in problem for problem in ranks.problems)


def test_two_recordings_of_one_process_are_no_two_ranks(folder: Path, tmp_path: Path):
    """As a schedule with `repeat=2` and `tensorboard_trace_handler` write them."""
    for rank, name in enumerate(("vm_7.17957.json", "vm_7.17958.json", "vm_8.17957.json")):
        content = json.loads((folder / f"rank{rank}.json").read_text("utf-8"))
        del content["distributedInfo"]
        for event in content["traceEvents"]:
            if "cuda" in event.get("cat", "") or event.get("cat") in ("cpu_op", "user_annotation"):
                event["pid"] = 7 if rank < 2 else 8
        (tmp_path / name).write_text(json.dumps(content | {"host_name": "vm"}))
    ranks = kit.open_ranks(tmp_path)
    assert [Path(row.file).name for row in ranks.ranks] == ["vm_7.17957.json", "vm_8.17957.json"]
    said = "has written 2 files: 'vm_7.17957.json' is shown, not 'vm_7.17958.json'"
    assert any(said in problem for problem in ranks.problems)


def test_files_of_several_jobs_are_said_to_be(folder: Path, tmp_path: Path):
    for rank, world in ((0, 2), (1, 2), (2, 4)):
        content = json.loads((folder / f"rank{rank}.json").read_text("utf-8"))
        content["distributedInfo"] |= {"world_size": world}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    said = "the files are of jobs of 2, 4 ranks: compare those of one job"
    assert said in kit.open_ranks(tmp_path).problems


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("8gpu8_rank3.json", 3),
        ("worker0_local_rank1_rank5.pt.trace.json.gz", 5),
        ("gpu-2.json", 2),
        ("frankfurt.json", -1),
        ("rank_4/step.kitrun", 4),
        ("rank_4gpus/step.kitrun", -1),
    ],
)
def test_a_rank_in_a_name_is_no_count_of_gpus_and_no_local_rank(name: str, rank: int):
    assert rank_in_name(Path(name)) == rank


def test_saved_runs_are_ranks_too(tmp_path: Path):
    for rank in range(2):
        make_run().save(tmp_path / f"rank{rank}.kitrun")
    ranks = kit.open_ranks(tmp_path)
    assert [row.rank for row in ranks.ranks] == [0, 1]
    assert all("no common clock" in row.clock.how for row in ranks.ranks)


@pytest.mark.parametrize("saved", [(0, 1, 2, 3), (3,)])
@pytest.mark.parametrize("save", [Run.save, kit.export_trace])
def test_no_rank_is_called_late_by_the_times_of_saved_runs(
    folder: Path, tmp_path: Path, saved: tuple[int, ...], save: Callable[[Run, Path], Path]
):
    suffix = "kitrun" if save is Run.save else "json"
    for rank in range(4):
        if rank in saved:
            save(kit.open_trace(folder / f"rank{rank}.json"), tmp_path / f"rank{rank}.{suffix}")
        else:
            shutil.copy(folder / f"rank{rank}.json", tmp_path)
    ranks = kit.open_ranks(tmp_path)
    (problem,) = (problem for problem in ranks.problems if "no common clock" in problem)
    assert ("all ranks" if len(saved) == 4 else "1 rank") in problem
    assert problem in ranks.to_text().replace("\n", " ")
    for row in ranks.ranks:
        assert row.clock.is_known == (row.rank not in saved)
        if row.rank in saved:
            assert math.isnan(row.waited_ms)
            assert not row.last
    assert not any(rank in row.start_ns for row in ranks.collectives for rank in saved)
    assert bool(ranks.collectives) == (len(saved) < 4)
    assert not any(row.slowest >= 0 for row in ranks.steps)
    assert sum(row.compute_ms > 0 for row in ranks.ranks) == 4  # what needs no clock is shown


def test_a_folder_without_traces_and_one_with_bad_ones_are_errors(tmp_path: Path):
    with pytest.raises(TraceFileError, match="holds no trace"):
        kit.open_ranks(tmp_path)
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(TraceFileError, match=r"none of 1 file could be read: 'rank0\.json'"):
        kit.open_ranks(tmp_path)
    with pytest.raises(FileNotFoundError):
        kit.open_ranks(tmp_path / "none")
    with pytest.raises(TraceFileError, match="workers"):
        kit.open_ranks(tmp_path, workers=0)


def test_kit_view_of_a_folder_prints_the_ranks(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["view", str(folder)]) == 0
    shown = capsys.readouterr().out
    for text in ("4 ranks", "idle: input", "all_reduce", "the reference", "step 12"):
        assert text in shown


@pytest.mark.parametrize(
    "args",
    [
        {"Process Group Ranks": "[[[", "In msg nelems": -5, "dtype": []},
        {"Process Group Ranks": ["x"], "Group size": 1e300, "In msg nelems": 2**70, "Seq": True},
        {"Process Group Name": {}, "Collective name": ["a"], "External id": "x"},
        {"Input Dims": [[10**9] * 60], "Input type": ["float"]},
        {"Input Dims": [1, "x"], "Input type": [[], {}]},
        None,
        [],
    ],
)
def test_arguments_of_the_wrong_type_are_not_known(tmp_path: Path, args: object):
    write_ranks(tmp_path, Job(ranks=2))
    for file in tmp_path.iterdir():
        trace = json.loads(file.read_text("utf-8"))
        for event in trace["traceEvents"]:
            if event["name"].startswith("nccl"):
                event["args"] = args
        trace["distributedInfo"] = {"rank": [], "world_size": -3}
        trace["baseTimeNanoseconds"] = "now"
        file.write_text(json.dumps(trace))
    assert [row.rank for row in kit.open_ranks(tmp_path).ranks] == [0, 1]


def _every(mark: dict[str, float], each: float) -> list[float]:
    return [mark["ts"] + each * i for i in range(int(mark["dur"] / each))]


def test_ranks_of_one_host_are_on_its_clock_and_it_is_said(tmp_path: Path):
    for rank, trace in enumerate(made_traces(Job(ranks=2, clock_us={1: 350.0}))):
        trace["host_name"] = "node7"
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    ranks = kit.open_ranks(tmp_path)
    assert [row.clock.how for row in ranks.ranks][1].endswith("whose clocks disagree")
    assert ranks.ranks[1].clock.offset_ns == pytest.approx(-350_000, abs=2_000)
    for rank, trace in enumerate(made_traces(Job(ranks=2))):
        trace["host_name"] = "node7"
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "nccl" not in e["name"]]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    ranks = kit.open_ranks(tmp_path)
    assert ranks.ranks[1].clock.is_known
    assert "0 ± 20 µs, the clock of host 'node7', as rank 0" in ranks.to_text()
