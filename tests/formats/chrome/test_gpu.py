"""Chrome traces of a GPU: its streams, launches, waits and steps, and what it does not tell."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kit
from kit.formats.chrome.lanes import Lanes
from kit.formats.chrome.read import read_chrome
from kit.formats.foreign import Streams
from kit.runs.verdict.verdict import verdict
from kit.trace import SyncPoint, breakdown, kernel_table
from kit.trace.active import launches
from kit.trace.metrics import says_device
from tests.formats.chrome.traces import (
    cuda,
    cuda_trace,
    op,
    opened,
    shown,
    step,
    written,
)


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
        ("item", "train.py:41", "torch/_tensor.py:900", 306_000),
    ]
    waits = [(s.start_ns, s.stop_ns - s.start_ns) for s in t.spans if s.kind == "wait"]
    assert waits == [(s.at_ns, s.wait_ns) for s in t.syncs]
    assert "1 wait outside of the steps left out" in t.notes


def test_a_copy_without_a_correlation_is_linked_to_no_other(tmp_path):
    """0 means none: a copy to the host was one to the device, since another had gone there."""
    trace = cuda_trace()
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["args"].get("correlation") in (1, 11):
            event["args"]["correlation"] = 0
        if "HtoD" in event["name"] and event["ts"] > 2000:
            event["name"] = "Memcpy DtoH (Device -> Pageable)"
    syncs = read_chrome(written(tmp_path, trace)).timeline.syncs
    assert "copy_to_device" not in {s.cause for s in syncs}


def test_each_thread_has_a_lane_whatever_it_is_called(tmp_path):
    """One was drawn with another that is called as the first would be, "w (1, 4)"."""
    trace = cuda_trace()
    for thread, name in ((702, "w (1, 704)"), (703, "w"), (704, "w"), (705, "main")):
        trace["traceEvents"] += [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1000.0, "dur": 1,
             "pid": 1, "tid": thread, "args": {}},
        ]  # fmt: skip
    t = read_chrome(written(tmp_path, trace)).timeline
    assert {lane for lane in t.lanes if "/w" in lane or "main" in lane} == {
        "host/main", "host/main (1, 705)", "host/w", "host/w (1, 704)", "host/w (1, 704) 2",
    }  # fmt: skip


def test_a_file_merged_of_two_processes_says_that_launches_are_not_sure(tmp_path):
    """Each counts its calls from 1: a kernel had begun "before its call", by another's clock."""
    trace = cuda_trace()
    assert "merged" not in " ".join(read_chrome(written(tmp_path, trace)).timeline.notes)
    for event in [e for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"]:
        trace["traceEvents"].append(event | {"pid": 99, "ts": event["ts"] + 50.0})
    said = " ".join(read_chrome(written(tmp_path, trace)).timeline.notes)
    assert "as where traces were merged into one file" in said
    assert "clock differs" not in said


def test_long_streams_of_processes_have_lanes_of_their_own():
    """The number of the process was cut off behind a name of 39 characters."""
    streams, lanes = Streams(), Lanes()
    found = {lanes.stream(0, streams.of(process, 0, "s" * 39)) for process in (1, 2, 3)}
    assert len(found) == 3


def test_of_a_copy_without_a_link_nobody_says_where_it_went(tmp_path):
    """It was called a copy to the host, whatever it was."""
    trace = cuda_trace()
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "gpu_memcpy":
            del event["args"]["correlation"]
    syncs = read_chrome(written(tmp_path, trace)).timeline.syncs
    assert [s.cause for s in syncs] == 2 * ["copy", "item"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("CopyHostToDevice", "copy_to_device"), ("Memcpy DtoH (Device -> Pageable)", "copy_to_host")],
)
def test_a_copy_is_known_by_the_name_of_its_transfer(tmp_path, name, cause):
    trace = cuda_trace()
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "gpu_memcpy" and "HtoD" in event["name"]:
            event["name"] = name
    syncs = read_chrome(written(tmp_path, trace)).timeline.syncs
    assert [s.cause for s in syncs] == 2 * [cause, "item"]


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


def _skewed(folder, us):
    return kit.open_trace(written(folder, cuda_trace(skew_us=us)))


def test_a_device_clock_that_is_behind_is_said_and_not_hidden(tmp_path):
    assert not any("clock" in note for note in _skewed(tmp_path, 0.0).timeline.notes)
    late = _skewed(tmp_path, -50.0)
    assert any(
        "4 of 8 kernels begin before the call that launched them, by up to 46 µs" in note
        for note in late.timeline.notes
    )
    assert not late.limited_by().doubt


def test_kernels_that_begin_far_before_their_launch_give_no_verdict(tmp_path):
    """A note said that the clocks differ, and what limits the step was told as surely as ever."""
    found = verdict(_skewed(tmp_path, -300.0))
    assert found.limit.doubt == (
        "kernels begin 296 µs before their launch: the clocks of device and host differ"
    )
    assert found.next_step.startswith("record again")


def test_reads_that_end_before_their_copy_give_no_verdict(tmp_path):
    """Of a device's clock that is late nothing was said."""
    found = verdict(_skewed(tmp_path, 300.0))
    assert found.limit.doubt == (
        "waits end 292 µs before the copy that they are for: the clocks of device and host differ"
    )


@pytest.mark.parametrize(("length", "is_much"), [(200.0, True), (40.0, False)])
def test_what_the_profiler_and_the_driver_do_is_not_the_programs(tmp_path, length, is_much):
    """The step was "dispatch-bound", with the advice to launch less."""
    trace = cuda_trace()
    for at in (1550.0, 2550.0):  # the device is idle
        stall = op("Activity Buffer Request", at, length, cat="overhead", pid=-1, tid=0)
        trace["traceEvents"].append(stall)
    run = kit.open_trace(written(tmp_path, trace))
    (note,) = [note for note in run.timeline.notes if "work of its own" in note]
    assert note.startswith(f"for {length:.0f} µs a step no kernel ran")
    assert note.endswith(": Activity Buffer Request")
    found = verdict(run)
    said = "22% of the steps are work of the profiler and of CUDA's driver"
    assert found.limit.doubt == (said if is_much else "")
    assert found.next_step.startswith("trace later steps") == is_much


@pytest.mark.parametrize(("ts", "dur"), [("x", 5), (float("nan"), 5), (1e300, 5), (1550, -5)])
def test_work_of_the_profiler_without_a_time_is_no_matter(tmp_path, ts, dur):
    stall = op("Lazy Function Loading", ts, dur, cat="overhead", pid=-1, tid=0)
    t = opened(tmp_path, stall, *cuda_trace()["traceEvents"])
    assert not any("work of its own" in note for note in t.notes)


def test_kernels_that_all_last_0_are_a_device_that_was_not_seen(tmp_path):
    """The host was said to limit the step, as if the device had been idle."""
    trace = cuda_trace()
    assert not any("last 0" in n for n in kit.open_trace(written(tmp_path, trace)).timeline.notes)
    for event in trace["traceEvents"]:
        event["dur"] = 0.0 if event.get("pid") == 0 else event.get("dur")
    run = kit.open_trace(written(tmp_path, trace))
    assert not says_device(run.timeline)
    assert run.limited_by().doubt == "most kernels last 0 in the file"
    assert "4 of 4 kernels last 0 in the file" in run.timeline.notes


def test_a_kernel_that_outlasts_the_next_ones_of_its_stream_gives_no_verdict(tmp_path):
    """AMD's profilers write such: the device was said to be busy for all of the step."""
    trace = cuda_trace()
    first = next(e for e in trace["traceEvents"] if e.get("cat") == "kernel")
    first["dur"] += 500  # the next one ends at 530 of the step, this one at 830
    run = kit.open_trace(written(tmp_path, trace))
    assert run.limited_by().doubt == "kernels last beyond others that follow on the same stream"
    (note,) = [note for note in run.timeline.notes if "their durations are wrong" in note]
    assert note.startswith("1 kernel lasts beyond others that follow on the same stream, by up to")


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


def test_a_file_of_collectives_alone_says_nothing_of_the_kernels_beside_them(tmp_path):
    """As a tool that merges ranks writes it: "communication-bound", with compute left out."""
    at = {"cat": "kernel", "pid": 0, "args": {"device": 0, "stream": 7}}
    sent = op("ncclDevKernel_Generic(ncclDevComm*)", 10, 50, **at)
    computed = op("gemm", 70, 5, **at)
    call = op("cudaLaunchKernel", 2, 3, cat="cuda_runtime")
    for events, is_told in (([sent], False), ([sent, computed], True), ([sent, call], True)):
        run = kit.open_trace(written(tmp_path, events))
        assert ("collectives alone" in verdict(run).limit.doubt) is not is_told
        assert ("communication-bound" in run.to_markdown()) is is_told


def test_syncs_are_sync_points(tmp_path):
    assert all(type(s) is SyncPoint for s in cuda(tmp_path).syncs)


def test_the_main_thread_has_the_ops_that_no_backward_pass_calls(tmp_path):
    """With more ops in the backward pass its thread was the main one, and the steps were lost."""
    trace = cuda_trace()
    kept = [e for e in trace["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    more = [
        {**event, "ts": event["ts"] + 5 * i, "dur": 4.0, "args": {}}
        for event in kept
        if event["name"] == "aten::mm" and event["tid"] == 8
        for i in range(8)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**trace, "traceEvents": kept + more}))
    t = read_chrome(path).timeline
    assert "from one optimizer step to the next" in " ".join(t.notes)
    assert {t.lanes[i] for i in t.lane[t.where(kind="input")]} == {"host/main"}
