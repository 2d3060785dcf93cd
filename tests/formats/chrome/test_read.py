"""Chrome traces: torch's own, GPU ones written by hand, and files that are wrong in some way."""

from __future__ import annotations

import gzip
import json
import math
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TraceFileError
from kit.formats.chrome import json as reader
from kit.formats.chrome.json import MAX_HEAD_CHARS, MAX_VALUE_CHARS, read_events
from kit.formats.chrome.read import read_chrome
from kit.measure.native.events import timeline_of
from kit.trace import Span, SyncPoint, Timeline, breakdown, kernel_table
from kit.trace.active import launches
from kit.trace.gaps import count_devices, idle_gaps
from kit.trace.imported import MAX_LANES, MAX_SPAN_NAME, MAX_SYNCS, Spans
from tests.formats.chrome.traces import cuda_trace, damaged, mutated, random_events, torch_trace


def written(folder: Path, content: Any, name: str = "trace.json") -> Path:
    """A file of this content: bytes, a text, or what becomes JSON."""
    path = folder / name
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def op(name: str = "aten::mm", ts: Any = 10, dur: Any = 5, **more: Any) -> dict[str, Any]:
    """One event of torch's."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            **more}  # fmt: skip


def step(ts: Any, dur: Any, number: int = 0) -> dict[str, Any]:
    return op(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def opened(folder: Path, *events: Any) -> Timeline:
    return read_chrome(written(folder, {"traceEvents": list(events)})).timeline


def shown(timeline: Timeline, kind: str, zero: int = 0) -> list[tuple[str, int, int]]:
    """(name, start, stop) of the spans of one kind."""
    return [(s.name, s.start_ns - zero, s.stop_ns - zero) for s in timeline.spans if s.kind == kind]


def cuda(folder: Path, **how: Any) -> Timeline:
    return read_chrome(written(folder, cuda_trace(**how))).timeline


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_gives_what_the_same_profile_gives_live(tmp_path, accumulate: int, suffix: str):
    path = tmp_path / "trace.json"
    profiler = torch_trace(path, accumulate=accumulate)
    live = timeline_of(profiler.events())
    file = written(tmp_path, path.read_bytes(), f"copy.{suffix}")
    imported = read_chrome(file).timeline
    zero = imported.intervals(kind="step")[0, 0]
    for kind in ("step", "record"):
        for mine, theirs in zip(shown(imported, kind, zero), shown(live, kind), strict=True):
            assert mine[0] == theirs[0]
            assert mine[1:] == pytest.approx(theirs[1:], abs=2)
    inside = [s for s in shown(imported, "kernel", zero) if s[1] >= 0]
    theirs = [s for s in shown(live, "kernel") if s[1] > 0 or s[2] > 0]
    assert [s[0] for s in inside] == [s[0] for s in theirs]
    assert {"forward", "backward", "update"} == {s[0] for s in shown(imported, "record")}
    assert imported.origin == "imported"


def test_reads_of_a_cpu_trace_have_their_function_and_a_caveat(tmp_path):
    torch_trace(tmp_path / "t.json", name="ProfilerStep#", with_stack=True)
    t = read_chrome(tmp_path / "t.json").timeline
    assert [s.cause for s in t.syncs] == ["item", "item"]
    assert all(s.site.rpartition(":")[0].endswith("traces.py") for s in t.syncs)
    assert any("waits for nothing" in note for note in t.notes)
    assert any("where its function begins" in note for note in t.notes)
    assert [s[0] for s in shown(t, "step")] == ["step 0", "step 1"]


def test_what_an_optimizer_reads_of_its_step_counts_is_no_sync_point(tmp_path):
    """They are on the CPU, whatever the model is on: AdamW reads one for each parameter."""
    events = [
        step(0, 100),
        op("aten::item", 5, 2),
        op("Optimizer.step#AdamW.step", 40, 30, cat="user_annotation"),
        *(op("aten::item", at, 2) for at in (41, 50, 68)),
        op("aten::item", 80, 2),
        op("aten::item", 45, 2, tid=9),
    ]
    starts = [s.at_ns for s in opened(tmp_path, *events).syncs]
    assert starts == [5_000, 45_000, 80_000]


def test_kernels_and_copies_of_a_gpu_lie_on_their_streams(tmp_path):
    t = cuda(tmp_path)
    kernels = [s for s in t.spans if s.kind == "kernel"]
    assert {s.lane for s in kernels} == {"device/0 stream 7", "device/0 stream 20"}
    assert len(kernels) == 8
    assert not any("aten" in s.name or "ProfilerStep" in s.name for s in kernels)


def test_launches_and_transfers_are_dispatch_on_the_thread_that_called(tmp_path):
    t = cuda(tmp_path)
    launches = {(s.lane, s.name) for s in t.spans if s.kind == "dispatch"}
    assert launches == {
        ("host/main", "cudaLaunchKernel"),
        ("host/main", "cudaMemcpyAsync"),
        ("host/pt_autograd_0", "cudaLaunchKernel"),
    }


def test_a_kernel_is_linked_to_the_call_that_launched_it(tmp_path):
    timeline = cuda(tmp_path)
    kernels = np.flatnonzero(timeline.where(kind="kernel"))
    starts, spans = launches(timeline, kernels)
    assert {timeline.names[timeline.name[i]] for i in spans.tolist()} == {
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
    }
    assert (starts < timeline.start_ns[kernels]).all()
    assert len({*spans.tolist()}) == len(kernels)


def test_kernels_of_many_launches_are_one_row_of_the_table(tmp_path):
    rows = kernel_table(cuda(tmp_path))
    assert {(r.name, r.count, r.segment) for r in rows if "sgemm" in r.name} == {
        ("sgemm_128x64<float>", 2, -1),
        ("sgemm_64x64<float>", 2, -1),
    }


def test_waits_of_a_gpu_have_cause_line_and_span(tmp_path):
    t = cuda(tmp_path)
    assert [(s.cause, s.site, s.via, s.wait_ns) for s in t.syncs] == 2 * [
        ("copy_to_device", "train.py:41", "", 25_000),
        ("item", "train.py:41", "torch/_tensor.py:900", 300_000),
    ]
    waits = [(s.start_ns, s.stop_ns - s.start_ns) for s in t.spans if s.kind == "wait"]
    assert waits == [(s.at_ns, s.wait_ns) for s in t.syncs]
    assert "1 wait outside of the steps left out" in t.notes


def test_a_step_of_a_gpu_trace_has_its_phases_and_its_input(tmp_path):
    t = cuda(tmp_path)
    zero = int(t.intervals(kind="step")[0, 0])
    phases = shown(t, "record", zero)[:3]
    assert phases == [
        ("forward", 0, 200_000),
        ("backward", 200_000, 300_000),
        ("update", 300_000, 900_000),
    ]
    assert [x[1:] for x in shown(t, "input", zero)] == [(2_000, 22_000), (1_002_000, 1_022_000)]
    rows = breakdown(t)
    assert sum(r.exposed_ms for r in rows) == pytest.approx(0.9)


def test_a_device_clock_that_is_behind_is_said_and_not_hidden(tmp_path):
    assert not any("clock" in note for note in cuda(tmp_path).notes)
    late = cuda(tmp_path, skew_us=-50.0)
    assert any(
        "4 of 8 kernels begin before the call that launched them, by up to 46.0 us" in note
        for note in late.notes
    )


def test_the_device_is_named(tmp_path):
    imported = read_chrome(written(tmp_path, cuda_trace()))
    assert imported.environment["device"] == "cuda (NVIDIA H200)"


def test_calls_without_kernels_are_a_gpu_whose_kernels_were_not_seen(tmp_path):
    trace = cuda_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("pid") == 7]
    t = read_chrome(written(tmp_path, trace)).timeline
    assert not t.where(kind="kernel").any()
    assert any("saw no GPU kernel" in note for note in t.notes)


def test_a_kernel_without_a_time_is_a_gpu_whose_kernels_are_not_known(tmp_path):
    kernel = op("gemm", "x", cat="kernel", pid=0, tid=7)
    t = opened(tmp_path, step(0, 100), op(), kernel)
    assert not t.where(kind="kernel").any()
    assert "no kernel has a time: what the GPU did is not known" in t.notes
    assert not any("no GPU was traced" in note for note in t.notes)


def kernels(timeline: Timeline) -> list[Span]:
    """What ran; a trace that marks no steps has a step around it."""
    return [s for s in timeline.spans if s.kind == "kernel"]


def test_begin_and_end_events_are_joined(tmp_path):
    whole = opened(tmp_path, op("aten::mm", 10, 5), op("aten::t", 11, 2))
    begun = [{**op("aten::mm", 10), "ph": "B"}, {**op("aten::t", 11), "ph": "B"}]
    halves = opened(tmp_path, *begun, {**op(ts=13), "ph": "E"}, {**op(ts=15), "ph": "E"})
    assert halves.spans == whole.spans
    assert shown(whole, "kernel") == [("aten::mm", 0, 5000)]
    assert kernels(whole)[0].lane == "device/0 torch cpu"


def test_the_order_of_events_does_not_matter(tmp_path):
    trace = cuda_trace()
    expected = read_chrome(written(tmp_path, trace)).timeline
    random.Random(1).shuffle(trace["traceEvents"])
    got = read_chrome(written(tmp_path, trace)).timeline
    assert set(got.spans) == set(expected.spans)
    assert got.syncs == expected.syncs


@pytest.mark.parametrize("dur", [-5, math.nan, math.inf, None, "five", 1e300], ids=str)
def test_a_duration_that_is_none_is_0_and_said(tmp_path, dur: Any):
    t = opened(tmp_path, op(ts=10, dur=5), op("aten::relu", 20, dur))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000), ("aten::relu", 10_000, 10_000)]
    assert "1 durations that are negative or no number were taken as 0" in t.notes


@pytest.mark.parametrize("ts", [math.nan, None, "soon", "inf", "9" * 50, 2**70, 1e300], ids=str)
def test_an_event_without_a_time_is_left_out_and_said(tmp_path, ts: Any):
    t = opened(tmp_path, op(ts=10), op("aten::relu", ts))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000)]
    assert "1 events without a time were left out" in t.notes


def test_numbers_in_quotes_are_read(tmp_path):
    t = opened(tmp_path, op(ts="10.5", dur="5"), op("aten::relu", "1.65e1", " 2 "))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000), ("aten::relu", 6000, 8000)]
    assert not any("no number" in note or "without a time" in note for note in t.notes)


@pytest.mark.parametrize("phase", [{}, {"ph": None}, {"ph": 7}, {"ph": ["X"]}], ids=str)
def test_an_event_that_does_not_say_what_it_is_is_left_out_and_said(tmp_path, phase: Any):
    odd = {k: v for k, v in op("aten::relu", 20).items() if k != "ph"} | phase
    t = opened(tmp_path, op(ts=10), odd)
    assert shown(t, "kernel") == [("aten::mm", 0, 5000)]
    assert "1 events that do not say what they are (ph) were left out" in t.notes


def test_an_event_of_another_clock_is_left_out_and_said(tmp_path):
    unix = 1_790_857_026_000_000.0
    t = opened(tmp_path, op(ts=unix), op("aten::relu", unix + 9), op(ts=10))
    assert len(kernels(t)) == 2
    assert "1 events more than a day away from the others were left out" in t.notes


def test_ops_that_overlap_without_nesting_are_said(tmp_path):
    t = opened(tmp_path, op(ts=10, dur=50), op("aten::relu", 30, 100))
    assert any("1 events end after what they began in" in note for note in t.notes)


def test_steps_that_overlap_have_phases_that_do_not(tmp_path):
    t = opened(tmp_path, step(0, 100), step(50, 100, 1), op(ts=10))
    assert [(a, b) for _, a, b in shown(t, "record")] == [(0, 50_000), (50_000, 150_000)]


def test_a_trace_without_steps_says_what_to_call(tmp_path):
    t = opened(tmp_path, op())
    assert any("prof.step()" in note for note in t.notes)


def test_hostile_text_stays_text_and_long_text_is_cut(tmp_path):
    evil = "aten::<script>\x00\u202e" + "W" * 2_000_000
    t = opened(tmp_path, op(evil))
    assert t.names[0].startswith("aten::<script>\x00\u202eWWW")
    assert len(t.names[0]) == MAX_SPAN_NAME
    assert any("names were cut" in note for note in t.notes)


def test_names_that_differ_after_a_thousand_characters_stay_two(tmp_path):
    long = "void kernel<" + "cutlass::" * 2_000
    names = [f"{long}{i}>" for i in range(2)]
    ops = [op(name, 10 * i, 5, cat="kernel", args={"stream": 7}) for i, name in enumerate(names)]
    t = opened(tmp_path, *ops)
    assert [name for name in t.names if "kernel<" in name] == names
    assert {row.name for row in kernel_table(t)} == set(names)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("packs", [bytes, gzip.compress])
def test_a_trace_in_another_encoding_is_the_same_trace(tmp_path, encoding, packs):
    path = tmp_path / "trace.json"
    text = json.dumps(cuda_trace(), ensure_ascii=False)
    path.write_bytes(packs(text.encode(encoding)))
    assert read_chrome(path).timeline == opened(tmp_path, *cuda_trace()["traceEvents"])


@pytest.mark.parametrize("between", ["\n", " ", ",\n", ""])
def test_events_one_after_another_are_a_trace(tmp_path, between):
    path = tmp_path / "trace.json"
    events = cuda_trace()["traceEvents"]
    path.write_text(between.join(map(json.dumps, events)))
    assert read_chrome(path).timeline == opened(tmp_path, *events)


@pytest.mark.parametrize("tail", [b"junk", b"\x1f\x8a", b"PK\x03\x04" * 100])
def test_bytes_after_a_packed_trace_are_left_out_and_named(tmp_path, tail):
    path, whole = tmp_path / "trace.json.gz", json.dumps(cuda_trace()).encode()
    path.write_bytes(gzip.compress(whole) + tail)
    t = read_chrome(path).timeline
    assert any("follows the end" in note for note in t.notes)
    assert replace(t, notes=()) == replace(opened(tmp_path, *cuda_trace()["traceEvents"]), notes=())
    path.write_bytes(gzip.compress(whole[:-50]) + tail)
    with pytest.raises(TraceFileError, match="cut off"):
        read_chrome(path)


def test_text_after_a_trace_is_left_out_and_named(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(cuda_trace()) + "\n{}")
    assert any("follows the end" in note for note in read_chrome(path).timeline.notes)


def test_more_lanes_than_can_be_drawn_become_one(tmp_path):
    many = [op("k", i, 1, cat="kernel", args={"device": 0, "stream": i}) for i in range(1000)]
    t = opened(tmp_path, *many)
    assert len(t.lanes) == MAX_LANES
    assert len(kernels(t)) == 1000
    assert count_devices(t) == 1
    assert "device/0 other lanes" in t.lanes


def test_many_threads_take_no_lane_from_a_device_or_the_steps(tmp_path):
    calls = [op("cudaLaunchKernel", i, 1, cat="cuda_runtime", tid=2 + i) for i in range(300)]
    work = [op("k", 300 + 100 * i, 150, cat="kernel", args={"device": i % 2, "stream": 7 + i})
            for i in range(4)]  # fmt: skip
    few = opened(tmp_path, step(299, 600), *work)
    t = opened(tmp_path, *calls, step(299, 600), *work)
    assert len(t.lanes) <= MAX_LANES
    assert {s.lane for s in kernels(t)} == {s.lane for s in kernels(few)}
    assert [s.lane for s in t.spans if s.kind == "step"] == ["host/main"]
    assert [g.lane for g in idle_gaps(t)] == [g.lane for g in idle_gaps(few)]
    assert "305 lanes: 106 of them are drawn together" in t.notes


def test_waits_that_are_too_many_are_said_not_to_be_counted():
    part = Spans(0, "step", 0, np.array([0]), np.array([10]))
    syncs = [SyncPoint(i, 1, "item") for i in range(MAX_SYNCS + 5)]
    t = Spans.timeline([part], ["host/main"], ["step 0"], syncs)
    assert len(t.syncs) == MAX_SYNCS
    assert t.notes == ("20,005 sync points: the longest 20,000 are kept, no other one is counted",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"PK\x03\x04", "not JSON"),
        (b"\x00\x01\x02", "not JSON"),
        (b"hello", "not JSON"),
        (b"5", "not JSON"),
        (b"{}", "no 'traceEvents'"),
        (b'{"a": 1}', "no list 'traceEvents'"),
        (b'{"traceEvents": {}}', "no list 'traceEvents'"),
        (b'{"traceEvents": 5', "cut off"),
        (b'{"traceEvents": [', "cut off"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut off"),
        (b'{"traceEvents": [{"ph": "X"}', "cut off"),
        (b'{"traceEvents": [{"ph": "X"},', "cut off"),
        (b'{"traceEvents": [{"ph": "X"}]', "cut off"),
        (b'{"traceEvents": [{"ph": X}]}', "not JSON"),
        (b'{"traceEvents": [{"ph": "X"} {}]}', "not JSON"),
        (b'{"traceEvents": [{"ph": "X"}], 5: 6}', "not JSON"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply|cut off"),
        (b'{"traceEvents": []}', "neither torch.profiler's nor kit's"),
        (b'{"traceEvents": [{"ph": "X", "cat": "v8", "name": "gc", "ts": 1}]}', "neither"),
        (
            b'{"otherData": {"format": "overlap-kit trace", "version": 9}, "traceEvents": []}',
            "version 9",
        ),
        ("[1]".encode("utf-16"), "neither torch.profiler's nor kit's"),
        (b"\n\x10B\x02\x08\x01P\x01" + bytes(99), "No protobuf is read, such as Perfetto's"),
    ],
    ids=range(24),
)
def test_a_file_that_is_no_trace_says_what_it_is(tmp_path, content: bytes, message: str):
    with pytest.raises(TraceFileError, match=message) as raised:
        read_chrome(written(tmp_path, content))
    assert "trace.json" in str(raised.value)


@pytest.mark.parametrize(
    ("category", "name", "args"),
    [
        ("FEE", "torch.mm", {}),  # of viztracer
        ("kernel", "sched_switch", {"cpu": 3}),  # of Linux
        ("runtime", "gc", {}),
        ("memcpy", "memcpy", {}),
        ("operator", "FullyConnected", {}),  # of MXNet
        ("Kernel", "ampere_sgemm", {"stream": "7", "op_name": "MatMul"}),  # of ONNX Runtime
        ("action processing", "Compiling a.cc", {}),  # of bazel
        (None, "Source", {"detail": "a.h"}),  # of clang's -ftime-trace
    ],
)
def test_another_programs_trace_is_refused_whatever_its_categories_are_called(
    tmp_path, category: Any, name: str, args: dict[str, Any]
):
    """Linux's events were the kernels of a GPU that was busy for 43 % of a step."""
    with pytest.raises(TraceFileError, match=r"its events.* are neither torch.profiler's"):
        opened(tmp_path, *(op(name, 10 * i, 5, cat=category, args=args) for i in range(3)))


def test_a_file_that_is_not_there_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_chrome(tmp_path / "nothing.json")


def test_a_list_that_lacks_its_end_is_read_as_the_format_allows(tmp_path):
    t = read_chrome(written(tmp_path, b"[" + json.dumps(op()).encode() + b",\n")).timeline
    assert len(kernels(t)) == 1
    assert any("no end" in note for note in t.notes)


def test_a_gzip_file_that_was_cut_off_is_an_error(tmp_path):
    path = written(tmp_path, cuda_trace(), "t.json.gz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TraceFileError, match="gzip packing is damaged"):
        read_chrome(path)


def test_a_gzip_file_with_a_wrong_byte_is_an_error(tmp_path):
    path = written(tmp_path, cuda_trace(), "t.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(TraceFileError):
        read_chrome(path)


@pytest.mark.parametrize("begin", [b" ", b'"a', b"[["], ids=["spaces", "a text", "brackets"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path, begin: bytes):
    packer = zlib.compressobj(9, wbits=31)
    data = packer.compress(b'{"traceEvents": [' + begin)
    data += packer.compress(begin[-1:] * (160 << 20))
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(data + packer.flush())
    with pytest.raises(TraceFileError, match=r"times its size|value of more than|too deeply"):
        read_chrome(path)


def test_one_event_of_millions_of_tiny_values_is_refused_and_is_said_where(tmp_path):
    """Three characters of it take 64 bytes of memory."""
    data = b'{"traceEvents": [[' + b"[]," * (MAX_VALUE_CHARS * 2 // 3) + b"[]]]}"
    path = written(tmp_path, data)
    with pytest.raises(TraceFileError, match=r"value of more than .* at character 17$"):
        read_chrome(path)


def test_what_is_kept_beside_the_events_is_bounded_in_all(tmp_path):
    one = b"[" + b"1," * (MAX_HEAD_CHARS // 6) + b"1]"
    parts = b"".join(b'"k%d": %s, ' % (i, one) for i in range(5))
    head = read_events(written(tmp_path, b"{" + parts + b'"traceEvents": []}'), lambda event: None)
    assert list(head) == ["k0", "k1"]


@given(
    events=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=8,
    ),
    indent=st.none() | st.integers(0, 3),
    chunk=st.integers(1, 50),
)
def test_events_are_read_as_json_would_whatever_the_window(
    tmp_path_factory, events: list[Any], indent: int | None, chunk: int
):
    path = tmp_path_factory.mktemp("window") / "t.json"
    whole = {"before": [1, "]"], "traceEvents": events, "after": 12345}
    path.write_text(json.dumps(whole, indent=indent))
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_CHUNK", chunk)
        head = read_events(path, found.append)
    assert json.dumps(found) == json.dumps(events)
    assert head == {"before": [1, "]"], "after": 12345}


@given(data=st.binary(max_size=300))
def test_random_bytes_are_a_trace_file_error(tmp_path_factory, data: bytes):
    path = tmp_path_factory.mktemp("bytes") / "t.json"
    path.write_bytes(data)
    with pytest.raises(TraceFileError):
        read_chrome(path)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_opens_or_says_why_not(tmp_path, seed: int):
    rng = random.Random(seed)
    good = cuda_trace()
    for data in (
        damaged(good, rng),
        mutated(json.dumps(good).encode(), rng),
        random_events(rng, rng.choice([1, 20, 300])),
    ):
        try:
            t = read_chrome(written(tmp_path, data)).timeline
        except TraceFileError:
            continue
        assert (t.stop_ns >= t.start_ns).all()
        assert all(s.wait_ns >= 0 for s in t.syncs)
        assert isinstance(t.syncs, tuple)


def test_syncs_are_sync_points(tmp_path):
    assert all(type(s) is SyncPoint for s in cuda(tmp_path).syncs)
