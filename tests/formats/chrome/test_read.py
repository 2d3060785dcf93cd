"""Chrome traces: torch's own, and events that are wrong, late, doubled or too many."""

from __future__ import annotations

import gzip
import json
import math
import random
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import record_function

from kit.errors import TraceFileError
from kit.formats.chrome.read import read_chrome
from kit.measure.native.events import timeline_of
from kit.trace import SyncPoint, headline, kernel_table
from kit.trace.devices import count_devices
from kit.trace.gaps import idle_gaps
from kit.trace.imported import MAX_LANES, MAX_SPAN_NAME, MAX_SYNCS, Spans
from tests.formats.chrome.traces import (
    cuda_trace,
    kernels,
    op,
    opened,
    shown,
    step,
    torch_trace,
    written,
)


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


def _compiled(work: Any, record: Any = _RecordFunctionFast) -> Any:
    """As torch.compile's code calls it: with work of its own around the ops that it calls."""
    with record("## Call CompiledFxGraph fxyz ##"):
        time.sleep(0.01)
        found = work()
        time.sleep(0.01)
    return found


@torch.library.custom_op("kit_tests::own", mutates_args=())
def _own(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)
    return x.clone()


def _librarys(work: Any) -> Any:
    _own(torch.ones(3))
    with record_function("mine::forward"):  # is nobody's op
        return work()


@pytest.mark.alone
@pytest.mark.parametrize(
    ("around", "names"),
    [
        (_compiled, {"compiled code"}),
        (partial(_compiled, record=record_function), {"compiled code"}),  # as older ones wrote it
        (_librarys, {"kit_tests::own"}),
    ],
)
def test_what_a_cpu_computes_in_no_op_of_torchs_is_a_kernel_live_and_in_a_file(
    tmp_path, around: Any, names: set[str]
):
    """A compiled step was "recording-bound", with advice to compile it."""
    path = tmp_path / "trace.json"
    live = timeline_of(torch_trace(path, around=around).events())
    imported = read_chrome(path).timeline
    for timeline in (live, imported):
        found = {s.name for s in timeline.spans if s.kind == "kernel"}
        assert {name for name in found if not name.startswith("aten::")} == names
        busy = headline(timeline).device_busy_fraction
        assert busy > 0.8
        phases = [name for name, _, _ in shown(timeline, "record")]
        assert phases == ["forward", "backward", "update"] * 2
    assert headline(live).device_busy_fraction == pytest.approx(busy, abs=0.01)


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
        op("aten::item", 45, 2, tid=9),  # beside the steps
    ]
    starts = [s.at_ns for s in opened(tmp_path, *events).syncs]
    assert starts == [5_000, 80_000]


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
    assert "1 duration below 0 or no number: taken as 0" in t.notes


@pytest.mark.parametrize("ts", [math.nan, None, "soon", "inf", "9" * 50, 2**70, 1e300], ids=str)
def test_an_event_without_a_time_is_left_out_and_said(tmp_path, ts: Any):
    t = opened(tmp_path, op(ts=10), op("aten::relu", ts))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000)]
    assert "1 event without a time: left out" in t.notes


def test_numbers_in_quotes_are_read(tmp_path):
    t = opened(tmp_path, op(ts="10.5", dur="5"), op("aten::relu", "1.65e1", " 2 "))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000), ("aten::relu", 6000, 8000)]
    assert not any("no number" in note or "without a time" in note for note in t.notes)


@pytest.mark.parametrize("phase", [{}, {"ph": None}, {"ph": 7}, {"ph": ["X"]}], ids=str)
def test_an_event_that_does_not_say_what_it_is_is_left_out_and_said(tmp_path, phase: Any):
    odd = {k: v for k, v in op("aten::relu", 20).items() if k != "ph"} | phase
    t = opened(tmp_path, op(ts=10), odd)
    assert shown(t, "kernel") == [("aten::mm", 0, 5000)]
    assert "1 event without its kind (ph): left out" in t.notes


def test_an_event_of_another_clock_is_left_out_and_said(tmp_path):
    unix = 1_790_857_026_000_000.0
    t = opened(tmp_path, op(ts=unix), op("aten::relu", unix + 9), op(ts=10))
    assert len(kernels(t)) == 2
    assert "1 event more than a day away from the others: left out" in t.notes


def test_ops_that_overlap_without_nesting_are_said(tmp_path):
    t = opened(tmp_path, op(ts=10, dur=50), op("aten::relu", 30, 100))
    assert any("1 event with an end after that of what is around" in note for note in t.notes)


def test_steps_that_overlap_have_phases_that_do_not(tmp_path):
    t = opened(tmp_path, step(0, 100), step(50, 100, 1), op(ts=10))
    assert [(a, b) for _, a, b in shown(t, "record")] == [(0, 50_000), (50_000, 150_000)]


def test_gradients_that_are_zeroed_before_the_second_backward_pass_are_no_update(tmp_path):
    """As of a GAN: the generator's forward pass was called an update."""

    def one(at: float, name: str) -> list[Any]:
        return [
            op("aten::mm", at, 30),
            op(f"Optimizer.zero_grad#{name}.zero_grad", at + 30, 2, cat="user_annotation"),
            op("autograd::engine::evaluate_function: MmBackward0", at + 40, 20),
            op(f"Optimizer.step#{name}.step", at + 60, 5, cat="user_annotation"),
        ]

    t = opened(tmp_path, step(0, 200), *one(0, "Adam"), *one(100, "SGD"))
    assert shown(t, "record") == [
        ("forward", 0, 40_000),
        ("backward", 40_000, 60_000),
        ("update", 60_000, 65_000),
        ("forward", 65_000, 140_000),
        ("backward", 140_000, 160_000),
        ("update", 160_000, 200_000),
    ]


def test_a_closure_that_an_optimizer_calls_is_forward_and_backward_not_its_update(tmp_path):
    """As Lightning's: a forward pass of accumulated gradients was called an update."""

    def one(at: float) -> list[Any]:
        engine = "autograd::engine::evaluate_function: MmBackward0"
        return [
            op("aten::mm", at, 10),
            op(engine, at + 10, 10),
            op("Optimizer.step#SGD.step", at + 20, 70, cat="user_annotation"),
            op("aten::mm", at + 25, 30),
            op(engine, at + 60, 10),
        ]

    t = opened(tmp_path, step(0, 200), *one(0), *one(100))
    assert shown(t, "record") == [
        ("forward", 0, 10_000),
        ("backward", 10_000, 20_000),
        ("forward", 20_000, 60_000),
        ("backward", 60_000, 70_000),
        ("update", 70_000, 90_000),
        ("forward", 90_000, 110_000),
        ("backward", 110_000, 120_000),
        ("forward", 120_000, 160_000),
        ("backward", 160_000, 170_000),
        ("update", 170_000, 200_000),
    ]


def test_a_trace_without_steps_says_what_to_call(tmp_path):
    t = opened(tmp_path, op())
    assert any("prof.step()" in note for note in t.notes)


def test_hostile_text_stays_text_and_long_text_is_cut(tmp_path):
    evil = "aten::<script>\x00\u202e" + "W" * 2_000_000
    t = opened(tmp_path, op(evil))
    assert t.names[0].startswith("aten::<script>\x00\u202eWWW")
    assert len(t.names[0]) == MAX_SPAN_NAME
    assert any("characters: cut" in note for note in t.notes)


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


def test_of_spans_that_start_together_the_longest_comes_first_whatever_part_it_is_of():
    parts = [Spans(0, "kernel", 0, np.array([start, 9]), np.array([stop, 10]))
             for start, stop in ((3, 4), (3, 8))]  # fmt: skip
    t = Spans.timeline(parts, ["device/0"], ["mm"])
    assert t.stop_ns.tolist() == [8, 4, 10, 10]


def test_a_file_of_one_event_has_one_span(tmp_path):
    t = opened(tmp_path, op("aten::mm", 3, 5))
    assert shown(t, "kernel") == [("aten::mm", 0, 5000)]


def test_waits_that_are_too_many_are_said_not_to_be_counted():
    part = Spans(0, "step", 0, np.array([0]), np.array([10]))
    syncs = [SyncPoint(i, 1, "item") for i in range(MAX_SYNCS + 5)]
    t = Spans.timeline([part], ["host/main"], ["step 0"], syncs)
    assert len(t.syncs) == MAX_SYNCS
    assert t.notes == ("20,005 sync points: the longest 20,000 are kept, no other one is counted",)


def test_ops_that_make_a_batch_are_no_work_of_a_cpu(tmp_path):
    """A step that waits for its loader was "device-bound"."""
    t = opened(
        tmp_path,
        step(0, 100),
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40),
        op("aten::stack", 5, 30),
        op("torchvision::resize", 36, 3),
        op("aten::mm", 50, 20),
    )
    assert shown(t, "kernel") == [("aten::mm", 50_000, 70_000)]


def test_code_of_torch_compiles_alone_is_a_step_with_phases(tmp_path):
    """Without an op of aten's, "what the device did was not seen"."""
    t = opened(tmp_path, op("## Call CompiledFxGraph fx ##", 0, 80))
    assert shown(t, "kernel") == [("compiled code", 0, 80_000)]
    assert shown(t, "record") == [("forward", 0, 80_000)]


def test_compiled_code_between_two_backward_passes_is_a_forward_pass(tmp_path):
    """With two micro-batches a step, the second forward pass was called backward."""
    engine = "autograd::engine::evaluate_function: CompiledFunctionBackward"
    calls = [
        event
        for at in (0, 40)
        for event in (
            op("## Call CompiledFxGraph forward ##", at, 20),
            op(engine, at + 20, 20),
            op("## Call CompiledFxGraph backward ##", at + 21, 18),
        )
    ]
    t = opened(tmp_path, step(0, 80), *calls)
    assert [name for name, _, _ in shown(t, "record")] == ["forward", "backward"] * 2


@pytest.mark.parametrize("cat", ["cpu_op", "user_annotation"])
def test_a_collective_in_compiled_code_is_no_work(tmp_path, cat: str):
    t = opened(
        tmp_path,
        step(0, 100),
        op("## Call CompiledFxGraph fx ##", 10, 80, cat=cat),
        op("_c10d_functional::wait_tensor", 30, 40),
    )
    assert shown(t, "kernel") == [
        ("compiled code", 10_000, 30_000),
        ("compiled code", 70_000, 90_000),
    ]
    assert not any("no op of torch is in the file" in note for note in t.notes)


def test_nanoseconds_since_1970_are_no_times_of_a_trace(tmp_path):
    """ "4 events without a time: left out" was said of them, and "nothing was timed"."""
    trace = cuda_trace()
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] = int(1.7e18 + 1e3 * event["ts"])
    with pytest.raises(TraceFileError, match="nanoseconds, where a trace has microseconds"):
        read_chrome(written(tmp_path, trace))
