"""`[memory]` events of torch's profiler: measured memory over time, and what held the peak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.trace.imported import MAX_POINTS, few_points
from kit.widgets.memory.tables import memory_drawn
from tests.factories import HOSTILE

KB = 1024


def op(name: str, start: float, length: float, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}


def took(at: float, size: int, address: int, total: int, **more: Any) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": address, "Total Allocated": total, "Total Reserved": 9999 * KB,
            "Device Type": 1, "Device Id": 0} | more  # fmt: skip
    return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1,
            "tid": 1, "ts": at, "args": args}  # fmt: skip


EVENTS = [
    op("batch 0", 0.0, 100.0, "user_annotation"),
    op("mine/train.py(7): forward", 5.0, 60.0, "python_function"),
    op("aten::linear", 10.0, 30.0),
    op("aten::mm", 12.0, 10.0),
    took(15.0, 4 * KB, 0x10, 104 * KB),  # in mm, freed before the peak
    op("aten::add", 45.0, 10.0),
    took(25.0, 6 * KB, 0x20, 110 * KB),  # in linear, mm has ended
    took(42.0, -4 * KB, 0x10, 106 * KB),
    took(50.0, 8 * KB, 0x10, 114 * KB),  # in add: the peak, at an address that was used before
    took(90.0, -6 * KB, 0x20, 108 * KB),
    took(91.0, 1 * KB, 0x30, 109 * KB),
]


def opened(tmp_path: Path, events: list[dict[str, Any]]) -> Run:
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return kit.open_trace(tmp_path / "a.json")


def test_a_peak_is_held_by_what_was_not_freed_at_its_op_and_line(tmp_path: Path) -> None:
    (memory,) = opened(tmp_path, EVENTS).memory
    assert (memory.device, memory.peak_bytes, memory.peak_ns) == ("device/0", 114 * KB, 50_000)
    assert [(h.op, h.line, h.bytes, h.blocks) for h in memory.held] == [
        ("aten::add", "mine/train.py:7", 8 * KB, 1),
        ("aten::linear", "mine/train.py:7", 6 * KB, 1),
    ]
    assert memory.before == 100 * KB
    assert memory.times_ns == (15_000, 25_000, 42_000, 50_000, 90_000, 91_000)
    assert memory.allocated == tuple(n * KB for n in (104, 110, 106, 114, 108, 109))


def test_it_is_said_to_be_measured_and_kept_in_a_saved_run(tmp_path: Path) -> None:
    run = opened(tmp_path, EVENTS)
    text = memory_drawn(run)[0]
    assert "measured by torch's profiler" in text
    assert "aten::add" in text
    assert "modelled" not in text
    assert "memory of device/0, measured: at most 117 kB" in summary(run)
    view = kit.MemoryView(run)
    assert "measured by torch" in view.measured.value
    run.save(tmp_path / "a.kitrun")
    assert Run.load(tmp_path / "a.kitrun").memory == run.memory
    view.run = None
    assert view.measured.value == ""


def test_events_of_the_wrong_form_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = [took(20.0, 1, 1, 1, Bytes=value) for value in (None, "x", True, 2**60, 1.5)]
    bad += [took(20.0, 1, 1, 1, **{"Device Id": -7}), took(float("nan"), 1, 1, 1)]
    hostile = {"args": None} | {k: v for k, v in took(20.0, 1, 1, 1).items() if k != "args"}
    far = took(9e12, 4 * KB, 0x40, 999 * KB)
    run = opened(tmp_path, [*EVENTS, *bad, hostile, far])
    assert run.memory == opened(tmp_path, EVENTS).memory
    assert any("8 allocations without" in note for note in opened(
        tmp_path, [*EVENTS, *bad, hostile]).timeline.notes)  # fmt: skip


def test_a_device_that_is_not_read_is_named(tmp_path: Path) -> None:
    run = opened(tmp_path, [*EVENTS, op("event_wait", 3.0, 4.0, "mtia_ccp_events")])
    assert any("events of mtia are not read" in note for note in run.timeline.notes)
    assert not any("are not read" in note for note in opened(tmp_path, EVENTS).timeline.notes)


def test_names_of_a_stranger_stay_text(tmp_path: Path) -> None:
    events = [*EVENTS, op(f"aten::{HOSTILE}", 92.0, 5.0), took(93.0, 500 * KB, 0x50, 609 * KB)]
    run = opened(tmp_path, events)
    assert run.memory[0].held[0].op == f"aten::{HOSTILE}"
    assert "<script" not in memory_drawn(run)[0]
    assert "\x1b" not in summary(run)


def test_a_real_profile_has_the_peak_that_its_events_have(tmp_path: Path) -> None:
    with torch.profiler.profile(profile_memory=True, with_stack=True, acc_events=True) as profiler:
        kept = [torch.ones(1000, n) @ torch.ones(n, 100) for n in (3, 4)]
        del kept
    profiler.export_chrome_trace(str(tmp_path / "real.json"))
    events = json.loads((tmp_path / "real.json").read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    (memory,) = kit.open_trace(tmp_path / "real.json").memory
    assert (memory.device, memory.peak_bytes) == ("host", max(totals))
    assert memory.peak_bytes == memory.before + sum(h.bytes for h in memory.held)
    assert "aten::mm" in {h.op for h in memory.held}
    assert any("test_memory.py" in h.line for h in memory.held)
    assert not memory.is_whole


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.integers(1, 40))
def test_few_points_keep_the_highest(values: list[int], most: int) -> None:
    times = np.cumsum(np.arange(len(values)) % 7)
    at, few = few_points(times, np.array(values), most)
    assert len(at) <= max(most, 1)
    assert few.max() == max(values)
    assert (np.diff(at) >= 0).all()
    assert len(few_points(times, np.array(values), MAX_POINTS)[0]) == len(values)


@pytest.mark.parametrize("name", ["alexnet", "h100_bert"])
def test_copies_and_their_bandwidth_are_in_the_text(name: str) -> None:
    run = kit.open_trace(Path(__file__).parents[2] / "data" / "published" / f"{name}.json.gz")
    text = summary(run)
    assert ("copies in the trace" in text) is bool(run.copies)
    for copy in run.copies:
        assert copy.what in text
        assert copy.rate == pytest.approx(copy.size_bytes / (copy.total_ns / 1e9))
    assert run.copies
