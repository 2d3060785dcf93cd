"""Traces of rocprof, rocprofv3, jax's trace viewer and Chakra: what is shown is what they say."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.errors import TraceFileError
from kit.formats import trace_viewer as viewer
from kit.formats.chrome import json as chrome_json
from kit.reports.markdown import report_markdown
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.trace.metrics import says_host
from kit.widgets.numbers.syncs import syncs_drawn
from tests.factories import HOSTILE
from tests.formats.made_profiles import CPU, chakra, rocprof, rocprofv3, trace_viewer

REAL = Path(__file__).parents[1] / "data" / "published" / "mi350_rocprofv3.json.gz"


def opened(file: Path, made: dict[str, Any], step_by: str = "") -> Run:
    file.write_text(json.dumps(made))
    return kit.open_trace(file, step_by=step_by)


def shown(run: Run) -> set[tuple[str, str, str, int]]:
    """Lane, kind, name and length of each span."""
    return {(s.lane, s.kind, s.name, s.stop_ns - s.start_ns) for s in run.timeline.spans}


def test_the_kernels_of_a_real_file_of_rocprofv3_are_its_dispatches() -> None:
    tool = json.loads(gzip.decompress(REAL.read_bytes()))["rocprofiler-sdk-tool"][0]
    records = tool["buffer_records"]["kernel_dispatch"]
    run = kit.open_trace(REAL)
    kernels = [s for s in run.timeline.spans if s.kind in ("kernel", "communication")]
    lengths = sorted(r["end_timestamp"] - r["start_timestamp"] for r in records)
    assert sorted(s.stop_ns - s.start_ns for s in kernels) == lengths
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in tool["kernel_symbols"]}
    wanted = sorted(names[r["dispatch_info"]["kernel_id"]] for r in records)
    assert sorted(s.name for s in kernels) == wanted
    queues = {r["dispatch_info"]["queue_id"]["handle"] for r in records}
    assert {s.lane for s in kernels} == {f"device/0 stream {queue}" for queue in queues}
    assert any(s.kind == "communication" for s in kernels)
    assert run.environment["device"] == "rocm (AMD Instinct MI350X)"


def test_of_a_file_with_kernels_only_nothing_is_said_of_the_host() -> None:
    run = kit.open_trace(REAL)
    assert not says_host(run.timeline)
    text = summary(run)
    assert "Sync points are unknown: no call of the host was read from the file." in text
    assert "unknown: no call of the host was read from the file" in report_markdown([run])
    assert "Unknown: no call of the host was read from the file." in syncs_drawn(run)[0]
    assert "recording-bound" not in text
    assert "sync points a step" not in text
    assert {row.cause for row in run.idle} <= {"unknown", "communication"}
    (note,) = [note for note in run.timeline.notes if "says nothing of the host" in note]
    assert "why the device computed nothing while no collective ran" in note  # as that is known


def test_calls_copies_and_ranges_of_rocprofv3_are_shown(tmp_path: Path) -> None:
    run = opened(tmp_path / "7_results.json", rocprofv3(), step_by="train")
    assert shown(run) >= {
        ("host/main", "step", "step 0", 5_950),
        ("host/main", "dispatch", "hipLaunchKernel", 200),
        ("host/main", "wait", "synchronize", 4_000),
        ("device/0 stream copies", "kernel", "Memcpy HtoD", 500),
        ("device/0 stream 18", "kernel", "gemm<float>(int)", 1_003),
        ("device/1 stream 18", "kernel", "gemm<float>(int)", 1_500),
    }
    assert says_host(run.timeline)
    assert "2 kernels by calls" in summary(run)


def test_ranges_of_torchs_emit_nvtx_are_ops_on_amds_gpus_too(tmp_path: Path) -> None:
    made, other = json.dumps(rocprofv3()), json.dumps(rocprof())
    for file, text in (("7_results.json", made), ("results.json", other)):
        ops = json.loads(text.replace('"train"', '"aten::mm, seq = 4, op_id = 9"'))
        run = opened(tmp_path / file, ops)
        assert {caller.op for caller in run.callers if caller.calls} <= {"aten::mm"}
        assert [sync.cause for sync in run.timeline.syncs] == ["mm"]


def test_each_process_of_a_file_has_names_calls_and_streams_of_its_own(tmp_path: Path) -> None:
    """Both have a kernel 7, a call 4, a range 30 and a stream 18, and number their calls anew."""
    made = rocprofv3()
    later = re.sub(r"63857982(\d{6})", r"63858982\1", json.dumps(rocprofv3()))
    other = json.loads(later.replace("gemm", "conv").replace("train", "test"))
    (tool,) = other["rocprofiler-sdk-tool"]
    tool["metadata"] = {"pid": 4711}
    tool["strings"]["buffer_records"][0]["operations"] = ["hipExtLaunchKernel", "hipMemcpy"]
    tool["agents"][1]["logical_node_type_id"] = 5
    del tool["buffer_records"]["kernel_dispatch"][1], tool["buffer_records"]["hip_api"][1]
    made["rocprofiler-sdk-tool"].append(tool)
    run = opened(tmp_path / "a_results.json", made)
    found = shown(run)
    assert {each for each in found if "gemm" in each[2] or "conv" in each[2]} == {
        ("device/0 stream 18", "kernel", "gemm<float>(int)", 1_003),
        ("device/1 stream 18", "kernel", "gemm<float>(int)", 1_500),
        ("device/5 stream 18", "kernel", "conv<float>(int)", 1_003),
    }
    calls = {each[2] for each in found if each[1] == "dispatch"}
    assert calls == {"hipLaunchKernel", "hipExtLaunchKernel"}
    between = (
        "select c.name, k.start_ns - c.start_ns from spans k join spans c on k.launch = c.launch "
        "and c.kind = 'dispatch' where k.kind = 'kernel' and k.name like 'conv%'"
    )
    assert run.query(between).rows == (("hipExtLaunchKernel", 500),)
    tool["agents"][1]["logical_node_type_id"] = 0
    assert ("device/0 stream 18 (process 4711)", "kernel", "conv<float>(int)", 1_003) in shown(
        opened(tmp_path / "b_results.json", made)
    )


def test_times_of_a_machine_that_runs_for_years_are_exact(tmp_path: Path) -> None:
    """rocprofv3 counts from the machine's start: of a kernel of 1,003 ns a float kept 1,000."""
    text = json.dumps(rocprofv3())
    plain = opened(tmp_path / "a_results.json", rocprofv3()).timeline
    later = re.sub(r"63857982(\d{6})", r"172063857982\1", text)
    assert later != text
    assert opened(tmp_path / "b_results.json", json.loads(later)).timeline == plain


def test_rocprof_times_are_those_of_its_arguments(tmp_path: Path) -> None:
    run = opened(tmp_path / "results.json", rocprof(), step_by="train")
    assert shown(run) >= {
        ("host/main", "step", "step 0", 9_000),
        ("host/main", "dispatch", "hipLaunchKernel", 250),
        ("host/main", "wait", "synchronize", 8_000),
        ("device/0 stream copies", "kernel", "Memcpy HtoD", 700),
        ("device/0 stream 2", "kernel", "gemm<float>(int)", 6_003),
    }
    assert any("no real file" in note for note in run.timeline.notes)


def test_rocprof_is_known_whatever_the_order_of_its_keys(tmp_path: Path) -> None:
    made = rocprof()
    made["traceEvents"] = [dict(reversed(event.items())) for event in made["traceEvents"]]
    assert opened(tmp_path / "a.json", made).environment["imported from"] == "rocprof"


def test_the_json_of_a_jax_profile_is_the_profile(tmp_path: Path) -> None:
    profile = trace_viewer(tmp_path / "vm.trace.json", steps=3)
    run, whole = kit.open_trace(tmp_path / "vm.trace.json"), kit.open_trace(profile)
    assert run.timeline.lanes == whole.timeline.lanes
    assert [s.name for s in run.timeline.spans] == [s.name for s in whole.timeline.spans]
    assert [s.kind for s in run.timeline.spans] == [s.kind for s in whole.timeline.spans]
    pairs = zip(run.timeline.spans, whole.timeline.spans, strict=True)
    assert all(abs(a.start_ns - b.start_ns) <= 2 and abs(a.stop_ns - b.stop_ns) <= 2
               for a, b in pairs)  # fmt: skip
    assert [s.cause for s in run.timeline.syncs] == [s.cause for s in whole.timeline.syncs]
    assert len(run.timeline.intervals(kind="step")) == 3


def planes_json(**lines: list[tuple[str, float, float]]) -> dict[str, Any]:
    """A device's plane as XLA's trace viewer writes it; the names of threads come last."""
    events: list[dict[str, Any]] = []
    for tid, (line, spans) in enumerate(lines.items()):
        events += [{"ph": "X", "pid": 3, "tid": tid, "ts": at, "dur": length, "name": name}
                   for name, at, length in spans]  # fmt: skip
        events.append({"ph": "M", "pid": 3, "tid": tid, "name": "thread_name",
                       "args": {"name": line.replace("_", " ")}})  # fmt: skip
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}


def device_json(plane: str, **lines: list[tuple[str, float, float]]) -> dict[str, Any]:
    made = planes_json(**lines)
    made["traceEvents"].append(
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": plane}}
    )
    return made


def test_streams_of_a_gpu_and_ops_of_a_tpu_are_lanes(tmp_path: Path) -> None:
    gpu = device_json("/device:GPU:1 (pid 3)", **{"Stream #7(Compute)": [("gemm", 1.5, 2.25)],
                      "XLA_Ops": [("dot.1", 1.5, 2.25)]})  # fmt: skip
    assert shown(opened(tmp_path / "gpu.json", gpu)) == {
        ("device/1 stream 7(Compute)", "kernel", "gemm", 2_250)
    }
    loop, inside = (
        ("%while.1 = (f32[8]) while(...)", 0.0, 10.0),
        ("%add.2 = f32[8] add()", 1.0, 3.0),
    )
    tpu = device_json("/device:TPU:0", XLA_Modules=[("jit_step(1)", 0.0, 12.0)],
                      XLA_Ops=[loop, inside, ("%all-reduce.3 = f32[8] all-reduce()", 10.0, 1.5)],
                      Steps=[("1", 0.0, 12.0)])  # fmt: skip
    run = opened(tmp_path / "tpu.json", tpu)
    assert shown(run) == {
        ("device/0 XLA Ops", "kernel", "add.2", 3_000),
        ("device/0 XLA Ops", "communication", "all-reduce.3", 1_500),
    }
    assert (run.environment["device"], run.settings.device) == ("tpu", "auto")
    assert any("has met one real profile" in note for note in run.timeline.notes)


def test_events_beyond_what_xla_writes_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "_FULL", 2)
    made = device_json("/device:GPU:0", **{"Stream #1": [("a", 0.0, 1.0), ("b", 2.0, 1.0)]})
    run = opened(tmp_path / "a.json", made)
    assert any("others are missing" in note for note in run.timeline.notes)


def test_an_execution_trace_opens_where_it_holds_times(tmp_path: Path) -> None:
    run = opened(tmp_path / "et.json", chakra())
    assert ("device/0 stream 7", "kernel", "gemm<float>(int)", 40_250) in shown(run)
    assert any("real files with times" in note for note in run.timeline.notes)
    with pytest.raises(TraceFileError, match="4 nodes without times that make a timeline"):
        opened(tmp_path / "plain.json", chakra(with_times=False))


def test_what_chakra_wrote_in_2023_has_times_and_devices(tmp_path: Path) -> None:
    """Published files of eight ranks, each with its GPU, were said to have no times."""
    at = 1_694_128_201_427_000
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "id": 4, "parent": 3, "pid": 1, "tid": 22,
              "ts": at + 3, "dur": 7}  # fmt: skip
    said = {"device": 1, "stream": 22, "correlation": 9}
    nodes = [
        {"name": "aten::mm", "id": 3, "tid": 1, "ts": at, "dur": 5},
        kernel | {"args": said},
        kernel | {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "args": said | {"bytes": 832}},
    ]
    run = opened(tmp_path / "dlrm_1_plus.json", {"schema": "1.0.1", "pid": 7, "nodes": nodes})
    assert ("device/1 stream 22", "kernel", "gemm", 7_000) in shown(run)
    assert [(copy.what, copy.size_bytes) for copy in run.copies] == [("Memcpy HtoD", 832)]
    assert not any("real files with times" in note for note in run.timeline.notes)


@pytest.mark.parametrize(
    "content",
    [
        b'{\n  "workload_graph": [{"Id": 216, "NodeType": 4, "data_deps": [], "runtime": 318}]}',
        b"^\x12\x10\n\x06schema\xea\x01\x051.0.1\x12\t\n\x03pidh\xa6\xff\x06",
    ],
)
def test_chakras_graph_for_simulators_is_named_and_what_to_open_instead(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "chakra.0.et").write_bytes(content)
    with pytest.raises(TraceFileError, match=r"not when it began, so .* Open the trace of torch"):
        kit.open_trace(tmp_path / "chakra.0.et")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (rocprofv3(kernel_dispatch=[], memory_copy=[]), "no kernels and no copies"),
        ({"rocprofiler-sdk-tool": []}, "no kernels and no copies"),
        ({"schema": "1.0.1", "nodes": {}}, "1 node without times"),
        (planes_json(), "no step, kernel or dispatch"),
    ],
)
def test_a_file_without_what_it_is_for_says_so(
    tmp_path: Path, made: dict[str, Any], said: str
) -> None:
    with pytest.raises(TraceFileError, match=said):
        opened(tmp_path / "bad.json", made)


def test_a_duration_that_is_none_is_0_and_said(tmp_path: Path) -> None:
    """A node of Chakra's was left out, without a word."""
    made = chakra()
    made["nodes"][1]["inclusive_dur"], made["nodes"][2]["inclusive_dur"] = -5.0, "x"
    made["nodes"].append(made["nodes"][3] | {"id": 5, "ts": None})
    run = opened(tmp_path / "et.json", made)
    assert run.timeline.where(kind="kernel").sum() == 1
    notes = " ".join(run.timeline.notes)
    assert "2 durations below 0 or no number: taken as 0" in notes
    assert "1 event without a time: left out" in notes
    spans = {"Stream #7": [("gemm", 1.5, -2.25), ("add", 5.0, 2.25)]}
    run = opened(tmp_path / "a.json", device_json("/device:GPU:0", **spans))
    assert "1 duration below 0: taken as 0" in run.timeline.notes


@pytest.mark.parametrize("where", ["ts", "dur", "BeginNs", "start_timestamp", "inclusive_dur"])
def test_a_number_of_hundreds_of_digits_is_no_time(tmp_path: Path, where: str) -> None:
    """Python reads whole numbers of any length, and no float holds them."""
    spans = {"Stream #7": [("gemm", 1.5, 2.25), ("add", 5.0, 2.25)]}
    texts = [
        json.dumps(made)
        for made in (device_json("/device:GPU:0", **spans), rocprof(), rocprofv3(), chakra())
    ]
    found = re.compile(rf'("{where}": )"?[\d.]+"?')
    odd = [found.sub(rf"\g<1>{'9' * 400}", text, count=1) for text in texts if found.search(text)]
    assert odd
    for text in odd:
        file = tmp_path / "odd.json"
        file.write_text(text)
        assert len(kit.open_trace(file).timeline) > 0


def test_a_cut_file_is_a_clear_error(tmp_path: Path) -> None:
    for name, made in (("v3", rocprofv3()), ("et", chakra()), ("v1", rocprof())):
        whole = json.dumps(made)
        (tmp_path / name).write_text(whole[: len(whole) // 2])
        with pytest.raises(TraceFileError, match=r"cut off|no kernels"):
            kit.open_trace(tmp_path / name)
        (tmp_path / name).write_bytes(gzip.compress(whole.encode())[:-20])
        with pytest.raises(TraceFileError, match="packing is damaged"):
            kit.open_trace(tmp_path / name)


def test_more_records_than_a_trace_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_json, "MAX_EVENTS", 20)
    with pytest.raises(TraceFileError, match="more than 20 events"):
        opened(tmp_path / "a.json", rocprofv3())
    (tmp_path / "deep.json").write_text('{"rocprofiler-sdk-tool": ' + "[" * 100_000)
    with pytest.raises(TraceFileError):
        kit.open_trace(tmp_path / "deep.json")


def test_text_of_a_stranger_stays_text(tmp_path: Path) -> None:
    made = rocprofv3()
    tool = made["rocprofiler-sdk-tool"][0]
    tool["kernel_symbols"][0]["formatted_kernel_name"] = HOSTILE
    tool["agents"][1]["product_name"] = HOSTILE
    run = opened(tmp_path / "a.json", made)
    assert HOSTILE in {s.name for s in run.timeline.spans}
    assert "\x1b" not in summary(run)
    assert CPU not in {int(lane[7]) for lane in run.timeline.lanes if lane.startswith("device/")}
