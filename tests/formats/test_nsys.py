"""Nsight Systems' export: a real one, and others made here from its documentation."""

from __future__ import annotations

import gzip
import json
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import kit
from kit.cli.main import main
from kit.errors import TraceFileError
from kit.formats import nsys
from kit.runs.tables import sqlite
from tests.factories import HOSTILE
from tests.formats.made_profiles import THREAD
from tests.formats.made_profiles import nsys as nsys_report

SHARED = {"device/0 stream 7", "device/0 stream 7 (process 9)"}  # each has a stream 7
NO_CUDA = "; ".join(
    f"delete from CUPTI_ACTIVITY_KIND_{what}" for what in ("RUNTIME", "KERNEL", "MEMCPY")
)
NO_WORK = f"{NO_CUDA}; delete from NVTX_EVENTS"
PUBLISHED = Path(__file__).parents[1] / "data" / "published"


def test_kernels_copies_calls_and_waits_are_those_of_the_file(tmp_path: Path) -> None:
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite"))
    rows = run.query("select lane, kind, name, start_ns, length_ns from spans where step = 0").rows
    assert ("device/0 stream 7", "kernel", "void gemm<float>(int)", 1001, 7002) in rows
    assert ("device/0 stream 20", "kernel", "Memcpy HtoD", 150, 500) in rows
    assert ("host/main", "dispatch", "cudaLaunchKernel_v7000", 300, 100) in rows
    assert ("host/main", "step", "step 0", 0, 990_000) in rows
    assert [(s.cause, s.at_ns, s.wait_ns) for s in run.timeline.syncs] == [
        ("synchronize", 500, 8500),
        ("synchronize", 1_000_500, 8500),
    ]
    between = (
        "select k.start_ns - c.start_ns from spans k join spans c on k.launch = c.launch "
        "and c.kind = 'dispatch' where k.kind = 'kernel' and k.name like '%gemm%'"
    )
    assert run.query(between).rows == ((701,), (701,))
    assert run.environment["device"] == "cuda (NVIDIA H100)"
    assert not [note for note in run.timeline.notes if "torch" in note]


@pytest.mark.parametrize(("pinned", "waits"), [(0, [38_900] * 2), (1, [8500] * 2)])
def test_a_copy_that_blocks_is_one_wait_with_the_call_after_it(
    tmp_path: Path, pinned: int, waits: list[int]
) -> None:
    file = nsys_report(
        tmp_path / "report.sqlite",
        "alter table CUPTI_ACTIVITY_KIND_MEMCPY add column srcKind int;"
        f"update CUPTI_ACTIVITY_KIND_MEMCPY set srcKind = {pinned};"
        "delete from CUPTI_ACTIVITY_KIND_RUNTIME where nameId = 1;"
        "update CUPTI_ACTIVITY_KIND_RUNTIME set end = end + 30000 where nameId = 3;"
        "update CUPTI_ACTIVITY_KIND_RUNTIME set start = start + 30000, end = end + 30000 "
        "where nameId = 4",
    )
    assert [sync.wait_ns for sync in kit.open_trace(file).timeline.syncs] == waits


def test_a_real_export_of_2022_is_read_though_it_has_each_call_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program in C++, with MPI: nothing is said of Python, of torch or of a backward pass."""
    file = tmp_path / "a100.sqlite"
    file.write_bytes(gzip.decompress((PUBLISHED / "a100_nsys.sqlite.gz").read_bytes()))
    with closing(sqlite3.connect(file)) as database:
        calls = database.execute(
            "select value, sum(end - start), count(*) from CUPTI_ACTIVITY_KIND_RUNTIME join "
            "StringIds on id = nameId where value in ('cudaMemcpy', 'cudaLaunchKernel') group by 1"
        ).fetchall()
        work = [
            row
            for what in ("KERNEL", "MEMCPY")
            for row in database.execute(f"select start, end from CUPTI_ACTIVITY_KIND_{what}")
        ]
    run = kit.open_trace(file)
    spans = run.timeline.spans
    shown = [(s.start_ns, s.stop_ns) for s in spans if s.kind == "kernel"]
    assert len(shown) == len(work) == 20
    assert sum(b - a for a, b in shown) == sum(b - a for a, b in work)
    (_, launching_ns, launches), (_, waiting_ns, waits) = calls
    assert len([s for s in spans if s.kind == "dispatch"]) == launches == 5
    assert sum(s.stop_ns - s.start_ns for s in spans if s.kind == "dispatch") == launching_ns
    assert len(run.timeline.syncs) == waits == 15
    assert sum(s.wait_ns for s in run.timeline.syncs) == waiting_ns
    assert main(["view", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "limit: unknown-bound (47% of the step)" in printed
    assert "until the device is done (synchronize)" in printed
    words = ("Python", "torch.", "detach()", "settings:")
    assert not [word for word in words if word in printed]


def test_a_database_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    run = kit.open_trace(nsys_report(tmp_path / "report"))
    assert len(run.step_times_ns) == 2


def test_a_range_or_a_name_may_be_the_step(tmp_path: Path) -> None:
    file = nsys_report(tmp_path / "report.sqlite")
    assert kit.open_trace(file, step_by="train_step").step_times_ns == (990_000, 990_000)
    assert kit.open_trace(file, step_by="0..0.5").step_times_ns == (500_000,)


def test_ranges_of_torchs_emit_nvtx_are_ops_without_their_numbers(tmp_path: Path) -> None:
    """As in public exports of FSDP jobs: no two texts of one op or annotation were alike."""
    more = "; ".join(
        f"insert into NVTX_EVENTS values ({at + shift}, {at + end}, 59, '{text}', {THREAD}, null)"
        for at in (0, 1_000_000)
        for shift, end, text in (
            (210, 450, f"FSDP::pre_forward (shared), op_id = {7 + at}"),
            (220, 440, f"FlashAttnFunc, seq = {3 + at}, op_id = {8 + at}"),
            (230, 430, f"aten::mm, seq = 4, op_id = {9 + at}, sizes = [[64, 8], [8, 2]]"),
            (460, 9_100, f"aten::item, op_id = {10 + at}"),
            (470, 9_050, f"aten::_local_scalar_dense, op_id = {11 + at}, input_op_ids = [(9,0)]"),
        )
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more), step_by="train_step")
    (gemm,) = [x for x in run.callers if x.kernels == 2 and x.op != ""]
    assert gemm.op == "aten::mm"
    assert gemm.annotation == ("train_step", "FSDP::pre_forward (shared)")
    assert [sync.cause for sync in run.timeline.syncs] == ["item", "item"]


def test_a_trace_without_ranges_does_not_speak_of_torch(tmp_path: Path) -> None:
    file = nsys_report(tmp_path / "report.sqlite", "drop table NVTX_EVENTS")
    assert "Nsight Systems marks no steps" in " ".join(kit.open_trace(file).timeline.notes)
    assert "torch" not in " ".join(kit.open_trace(file).timeline.notes)


def test_times_since_1970_are_as_exact_as_others(tmp_path: Path) -> None:
    """Of `nsys export --ts-normalize=true`: a call of 100 ns took 0, or 250."""
    tables = [f"CUPTI_ACTIVITY_KIND_{what}" for what in ("RUNTIME", "KERNEL", "MEMCPY")]
    zero = 1_732_560_000_123_456_789
    later = ";".join(
        f"update {table} set start = start + {zero}, end = end + {zero}"
        for table in (*tables, "NVTX_EVENTS")
    )
    plain = kit.open_trace(nsys_report(tmp_path / "plain.sqlite")).timeline
    assert kit.open_trace(nsys_report(tmp_path / "utc.sqlite", later)).timeline == plain
    columns = "globalTid, nameId"
    first = (
        f"{later}; insert into {tables[0]} (start, end, {columns}) "
        f"select 0, 100, {columns} from {tables[0]} limit 1"
    )
    lonely = kit.open_trace(nsys_report(tmp_path / "lonely.sqlite", first)).timeline
    assert lonely.spans == plain.spans
    assert "1 event more than a day away from the others: left out" in lonely.notes


def test_a_graph_that_is_traced_as_a_whole_keeps_the_device_busy(tmp_path: Path) -> None:
    """What `nsys profile` does unless asked for nodes: no kernel of a graph is in the file."""
    graphs = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    columns = "start, end, deviceId, streamId, globalPid, correlationId, graphId"
    more = (
        "drop table CUPTI_ACTIVITY_KIND_KERNEL; drop table CUPTI_ACTIVITY_KIND_MEMCPY;"
        "update StringIds set value = 'cudaGraphLaunch_v10000' where id = 1;"
        f"create table {graphs} ({columns});"
        f"insert into {graphs} values (2001, 800000, 0, 7, 0, 2, 5);"
        f"insert into {graphs} values (0, 0, 0, 7, 0, 12, 5)"  # CUPTI's words for a time not known
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))
    shown = "select lane, name, start_ns, length_ns from spans where kind = 'kernel'"
    assert run.query(shown).rows == (("device/0 stream 7", "CUDA graph 5", 2001, 797_999),)
    launched = "select count(*) from spans where kind = 'dispatch' and launch is not null"
    assert run.query(launched).rows == ((1,),)
    said = " ".join(run.timeline.notes)
    assert "2 runs of CUDA graphs" in said
    assert "--cuda-graph-trace=node" in said
    assert "1 event without a time" in said, said


def test_a_version_without_a_column_is_read(tmp_path: Path) -> None:
    drop = (
        "alter table CUPTI_ACTIVITY_KIND_KERNEL drop column demangledName;"
        "drop table TARGET_INFO_GPU; alter table NVTX_EVENTS drop column textId"
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", drop))
    assert "void gemm<float>(int)" in run.timeline.names


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "drop table CUPTI_ACTIVITY_KIND_RUNTIME; drop table CUPTI_ACTIVITY_KIND_KERNEL;"
            "drop table CUPTI_ACTIVITY_KIND_MEMCPY; drop table NVTX_EVENTS",
            "no kernels, launches or waits of CUDA",
        ),
        ("create table CANN_API (a int); " + NO_WORK, "of Ascend NPUs, which is not read"),
        ("create table rocpd_string (a int); " + NO_WORK, "of rocprofv3, which is not read"),
        ("insert into StringIds values (9, zeroblob(2000000))", "too big"),
    ],
)
def test_a_database_that_is_no_trace_says_why(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(TraceFileError, match=said):
        kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))


def test_a_database_of_another_program_is_named_whatever_its_steps_are_called(
    tmp_path: Path,
) -> None:
    """`step_by` was said to name nothing on the thread of the steps, of a file without threads."""
    file = nsys_report(tmp_path / "rocpd.db", "create table rocpd_string (a int); " + NO_WORK)
    with pytest.raises(TraceFileError, match="of rocprofv3, which is not read"):
        kit.open_trace(file, step_by="train")


def test_ranges_alone_that_do_not_repeat_may_be_steps(tmp_path: Path) -> None:
    """Of `nsys profile --trace nvtx`, which was said to have no ranges of NVTX."""
    apart = "update NVTX_EVENTS set text = 'range ' || start, textId = null, end = start + 1000"
    file = nsys_report(tmp_path / "report.sqlite", f"{NO_CUDA}; {apart}")
    assert any("step_by" in note for note in kit.open_trace(file).timeline.notes)
    assert kit.open_trace(file, step_by="range 0").step_times_ns == (1000,)


def test_a_few_calls_that_do_nothing_are_no_trace(tmp_path: Path) -> None:
    """Of a driver that Nsight does not know: an empty run opened, and kit view was content."""
    only = (
        "delete from CUPTI_ACTIVITY_KIND_KERNEL; delete from CUPTI_ACTIVITY_KIND_MEMCPY;"
        "delete from NVTX_EVENTS; delete from CUPTI_ACTIVITY_KIND_RUNTIME where nameId > 1;"
        "update StringIds set value = 'cudaGetDeviceCount' where id = 1;"
        "update CUPTI_ACTIVITY_KIND_RUNTIME set nameId = 1, end = start + 100000;"
        "create table DIAGNOSTIC_EVENT (timestamp int, severity int, text text);"
        "insert into DIAGNOSTIC_EVENT values (1, 1, 'Profiling has started.');"
        "insert into DIAGNOSTIC_EVENT values (2, 2, 'Not all CUDA events\x1b[2J collected.')"
    )
    with pytest.raises(TraceFileError) as told:
        kit.open_trace(nsys_report(tmp_path / "report.sqlite", only))
    said = str(told.value)
    assert "no kernels, launches or waits of CUDA and no ranges of NVTX: trace with `nsys" in said
    assert said.endswith(r"Nsight Systems has written: 'Not all CUDA events\x1b[2J collected.'")


def test_a_long_call_before_the_first_launch_is_in_the_step(tmp_path: Path) -> None:
    """308 of 311 ms were in cudaHostAlloc, and "the whole trace" was 0.2 ms, dispatch-bound."""
    more = (
        "drop table NVTX_EVENTS; insert into StringIds values (90, 'cudaHostAlloc_v3020');"
        f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values (-9000000, -10, 0, {THREAD}, 99, 90, 0)"
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))
    assert run.step_ms > 9
    assert run.limited_by().what == "elsewhere"
    assert "cudaHostAlloc_v3020" in [s.name for s in run.timeline.spans if s.kind == "elsewhere"]


def test_a_view_in_the_place_of_a_table_is_not_asked(tmp_path: Path) -> None:
    endless = (
        "drop table NVTX_EVENTS; create view NVTX_EVENTS as with recursive a(start) as "
        "(select 1 union all select start + 1 from a) select start from a"
    )
    assert len(kit.open_trace(nsys_report(tmp_path / "report.sqlite", endless)).step_times_ns) == 1


def test_each_process_counts_its_calls_for_itself(tmp_path: Path) -> None:
    """Both call theirs 2; without a process a kernel could be of either, and is of none."""
    other = 9 << 24
    more = (
        "update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = 7 << 24;"
        f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values (700, 710, 0, {other | 5}, 2, 1, 0);"
        f"insert into CUPTI_ACTIVITY_KIND_KERNEL values (800, 900, 1, 1, 8, 2, {other}, 2, 2);"
        "insert into CUPTI_ACTIVITY_KIND_KERNEL values (910, 950, 1, 1, 8, 2, 0, 2, 2);"
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))
    rows = run.query(
        "select k.start_ns, c.start_ns from spans k left join spans c on c.launch = k.launch "
        "and c.kind = 'dispatch' where k.kind = 'kernel' and k.start_ns < 10000 and k.name "
        "like 'void%' order by 1"
    ).rows
    assert rows == ((800, 700), (910, None), (1001, 300))
    (note,) = [note for note in run.timeline.notes if "rank%q{RANK}" in note]
    assert note.startswith("2 processes call CUDA, and are shown together")
    assert not [note for note in run.timeline.notes if "merged" in note]
    assert run.limited_by().doubt == "the file holds the work of several processes"
    alone = kit.open_trace(nsys_report(tmp_path / "one.sqlite"))
    assert not [note for note in alone.timeline.notes if "processes" in note]
    assert not alone.limited_by().doubt


def test_a_call_that_is_there_twice_is_one_in_whatever_order(tmp_path: Path) -> None:
    """The inner row stands before the outer one here, and after it in the real file of 2022."""
    more = (
        "insert into StringIds values (6, 'cudaLaunchKernel');"
        "insert into CUPTI_ACTIVITY_KIND_RUNTIME "
        f"values (290, 410, 0, {THREAD}, 2, 6, 0)"
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))
    shown = (
        "select name, start_ns, length_ns from spans where kind = 'dispatch' and step = 0 "
        "and lane = 'host/main'"
    )
    assert run.query(shown).rows == (
        ("cudaMemcpyAsync_v3020", 100, 100),
        ("cudaLaunchKernel", 290, 120),
    )


@pytest.mark.parametrize(
    ("known", "lanes"),
    [
        ("(0, 0, 7), (1, 0, 9)", {"device/0 stream 7", "device/1 stream 7"}),  # a GPU for each
        ("(1, 0, 7), (1, 0, 9)", SHARED),  # one for both
        ("(1, 0, 7), (0, 1, 7)", SHARED),  # CUDA's own order: the program's word
    ],
)
def test_the_first_gpu_of_each_process_may_be_another_one(
    tmp_path: Path, known: str, lanes: set[str]
) -> None:
    more = (
        "update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = 7 << 24;"
        f"insert into CUPTI_ACTIVITY_KIND_KERNEL values (800, 900, 0, 1, 7, 2, {9 << 24}, 2, 2);"
        "create table TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid);"
        f"insert into TARGET_INFO_CUDA_DEVICE values {known}"
    )
    run = kit.open_trace(nsys_report(tmp_path / "report.sqlite", more))
    shown = run.query("select distinct lane from spans where name like 'void%' and kind = 'kernel'")
    assert {lane for (lane,) in shown.rows} == lanes


def test_ctrl_c_while_a_file_is_read_is_no_wrong_file(tmp_path: Path, monkeypatch) -> None:
    class Pressed(nsys.Budget):
        def spend(self) -> int:
            signal.raise_signal(signal.SIGINT)
            return super().spend()

    monkeypatch.setattr(sqlite, "EVERY", 10)
    monkeypatch.setattr(nsys, "Budget", Pressed)
    with pytest.raises(KeyboardInterrupt):
        kit.open_trace(nsys_report(tmp_path / "report.sqlite"))


def test_what_a_file_asks_of_sqlite_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite, "EVERY", 10)
    monkeypatch.setattr(nsys, "_MAX_OPERATIONS", 200)
    with pytest.raises(TraceFileError, match="interrupted"):
        kit.open_trace(nsys_report(tmp_path / "report.sqlite"))


def test_more_events_than_a_trace_has_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(nsys, "MAX_EVENTS", 5)
    with pytest.raises(TraceFileError, match="more than 5 events"):
        kit.open_trace(nsys_report(tmp_path / "report.sqlite"))


def test_more_threads_than_a_trace_has_are_refused(tmp_path: Path, monkeypatch) -> None:
    """Ten million of them, which a file of 270 MB can hold, would take 5 GB."""
    monkeypatch.setattr(nsys, "_MAX_THREADS", 1)
    with pytest.raises(TraceFileError, match="more than 1 threads"):
        kit.open_trace(nsys_report(tmp_path / "report.sqlite"))


def test_odd_values_are_no_error_and_the_file_is_not_changed(tmp_path: Path) -> None:
    odd = (
        "insert into CUPTI_ACTIVITY_KIND_KERNEL "
        "values ('x', null, x'00', 1, 1e999, 'y', 0, 2, 2);"
        "insert into NVTX_EVENTS values (-5, 9e18, 59, x'ff', 'z', 5)"
    )
    file = nsys_report(tmp_path / "report.sqlite", odd, name=HOSTILE.replace("\ud800", ""))
    before = file.read_bytes()
    assert len(kit.open_trace(file).timeline) > 0
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["report.sqlite"]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_opens_or_says_why_not(tmp_path: Path, seed: int) -> None:
    file = nsys_report(tmp_path / "report.sqlite")
    data, chance = bytearray(file.read_bytes()), random.Random(seed)
    for _ in range(1 + seed):
        data[chance.randrange(len(data))] = chance.randrange(256)
    (tmp_path / "bad.sqlite").write_bytes(bytes(data[: chance.choice((len(data), len(data) // 2))]))
    try:
        said = str(kit.open_trace(tmp_path / "bad.sqlite"))
    except TraceFileError as error:
        said = str(error)
    assert "bad.sqlite" in said


def test_the_command_line_views_it(tmp_path: Path, capsys) -> None:
    file = nsys_report(tmp_path / "report.sqlite", name=HOSTILE.replace("\ud800", ""))
    assert main(["view", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert main(["query", str(file), "select name from kernels", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
