"""Events that a file has twice count once, and numbers in quotes are numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kit
from kit.formats.export import export_trace
from kit.runs.run import Run
from kit.runs.verdict.verdict import verdict
from tests.formats.chrome.traces import cuda_trace, op, opened, torch_trace

COLUMNS = ("lane", "kind", "name", "start_ns", "stop_ns", "segment", "node")
NOT_JOINED = "no kernel has the number (correlation) of a call that launched it"


def _run(path: Path, trace: dict[str, Any]) -> Run:
    path.write_text(json.dumps(trace))
    return kit.open_trace(path)


def _same(one: Run, other: Run) -> bool:
    a, b = one.timeline, other.timeline
    is_same = all(np.array_equal(getattr(a, c), getattr(b, c)) for c in COLUMNS)
    is_same &= one.callers == other.callers and one.copies == other.copies
    return is_same and one.memory == other.memory


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_merged_with_itself_says_what_it_says_alone(tmp_path: Path, seed: int):
    trace = cuda_trace()
    if seed:
        random.Random(seed).shuffle(trace["traceEvents"])
    alone = _run(tmp_path / "alone.json", trace)
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    looked_at = [e for e in spans if e["cat"] not in ("python_function", "gpu_user_annotation")]
    trace["traceEvents"] *= 2
    twice = _run(tmp_path / "twice.json", trace)
    assert _same(twice, alone)
    assert f"{len(looked_at)} events that the file has twice, as where it was merged with itself: "\
           "left out" in twice.timeline.notes  # fmt: skip
    assert not any("twice" in note for note in alone.timeline.notes)


def test_a_trace_of_a_cpu_merged_with_itself_says_what_it_says_alone(tmp_path: Path):
    torch_trace(tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    alone = _run(tmp_path / "alone.json", trace)
    trace["traceEvents"] *= 2
    assert _same(_run(tmp_path / "twice.json", trace), alone)


def _took(at: float, size: int, address: int, total: int) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": address, "Total Allocated": total, "Device Type": 1,
            "Device Id": 0}  # fmt: skip
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}


@pytest.mark.parametrize("seed", range(3))
def test_allocations_of_a_trace_merged_with_itself_count_once(tmp_path: Path, seed: int):
    trace = cuda_trace()
    at = sorted({e["ts"] for e in trace["traceEvents"] if e["ph"] == "X"})
    trace["traceEvents"] += [_took(x, 64, i, 64 * (i + 1)) for i, x in enumerate(at[:9])]
    if seed:
        random.Random(seed).shuffle(trace["traceEvents"])
    alone = _run(tmp_path / "alone.json", trace)
    assert [memory.events for memory in alone.memory] == [9]
    trace["traceEvents"] *= 2
    twice = _run(tmp_path / "twice.json", trace)
    assert _same(twice, alone)
    assert any(note.startswith("9 allocations that the file has twice")
               for note in twice.timeline.notes)  # fmt: skip


def test_allocations_that_are_alike_by_chance_are_not_taken_for_copies(tmp_path: Path):
    """Within one microsecond a block is taken, given back, and taken again."""
    trace = cuda_trace()
    first = min(e["ts"] for e in trace["traceEvents"] if e["ph"] == "X")
    again = [_took(first + 1, 64, 7, 128), _took(first + 1, -64, 7, 64)]
    steady = [_took(first + 2 + i, 1, 100 + i, 129 + i) for i in range(20)]
    trace["traceEvents"] += [*again, again[0], *steady]
    found = _run(tmp_path / "a.json", trace)
    assert [memory.events for memory in found.memory] == [23]
    assert sum(held.bytes for held in found.memory[0].held) == 64 + 20
    assert not any("allocations that the file has twice" in note for note in found.timeline.notes)


def test_some_kernels_that_are_there_twice_count_once(tmp_path: Path):
    trace = cuda_trace()
    alone = _run(tmp_path / "alone.json", trace)
    twin = next(e for e in trace["traceEvents"] if e.get("cat") == "kernel")
    trace["traceEvents"].append(dict(twin))
    found = _run(tmp_path / "twice.json", trace)
    assert _same(found, alone)
    assert any(note.startswith("1 event that the file has twice") for note in found.timeline.notes)
    trace["traceEvents"][-1]["ts"] += 0.001  # another run of it
    assert len(_run(tmp_path / "other.json", trace).timeline) == len(alone.timeline) + 1


def test_ops_that_are_alike_by_chance_are_not_taken_for_copies(tmp_path: Path):
    """A clock of whole microseconds gives two short ops one time."""
    events = [op(f"aten::op{i}", 10 * i, 5) for i in range(40)]
    found = opened(tmp_path, *events, op("aten::op3", 30, 5))
    assert not any("twice" in note for note in found.notes)


def _moved(trace: dict[str, Any], *, pid: int, number: int) -> list[dict[str, Any]]:
    """The events once more, 50 us later, as of a process with a GPU that it calls 0, too."""
    moved = []
    for event in (event for event in trace["traceEvents"] if event["ph"] == "X"):
        args = dict(event["args"])
        if "correlation" in args:
            args["correlation"] += number
        is_host = event["pid"] == 7
        moved.append(event | {"ts": event["ts"] + 50, "args": args, "pid": pid * is_host})
    return moved


@pytest.mark.parametrize(("pid", "number"), [(99, 1000), (99, 0), (7, 0)])
def test_of_processes_that_were_merged_into_one_file_no_limit_is_told(
    tmp_path: Path, pid: int, number: int
):
    """A merger may move what CUDA counts; containers may give each process the same number."""
    trace = cuda_trace()
    assert not _run(tmp_path / "alone.json", trace).limited_by().doubt
    trace["traceEvents"] += _moved(trace, pid=pid, number=number)
    found = _run(tmp_path / "merged.json", trace)
    assert found.limited_by().doubt == "the file holds the work of several processes"
    assert sum("as where traces were merged into one file" in n for n in found.timeline.notes) == 1
    said = verdict(found)
    assert said is not None
    assert "kit.open_ranks" in said.next_step
    export_trace(found, tmp_path / "exported.json")
    assert kit.open_trace(tmp_path / "exported.json").limited_by().doubt


def test_of_cpu_processes_that_were_merged_no_limit_is_told(tmp_path: Path):
    events = [op(ts=10 * i, pid=1 + i % 2) for i in range(40)]
    assert _run(tmp_path / "a.json", {"traceEvents": events}).limited_by().doubt
    alone = {"traceEvents": events[::2]}
    assert not _run(tmp_path / "b.json", alone).limited_by().doubt


def _quoted(value: Any) -> Any:
    return str(value) if type(value) is int else value


@pytest.mark.parametrize("change", [_quoted, lambda x: float(x) if type(x) is int else x])
def test_numbers_in_quotes_and_fractions_join_calls_and_kernels(
    tmp_path: Path, change: Callable[[Any], Any]
):
    trace = cuda_trace()
    alone = _run(tmp_path / "alone.json", trace)
    for event in trace["traceEvents"]:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = change(event["args"]["correlation"])
    found = _run(tmp_path / "quoted.json", trace)
    assert _same(found, alone)
    assert len(found.callers) > 0


def test_kernels_that_cannot_be_joined_to_their_calls_say_so(tmp_path: Path):
    trace = cuda_trace()
    assert not any(NOT_JOINED in note for note in _run(tmp_path / "a.json", trace).timeline.notes)
    for event in trace["traceEvents"]:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = f"c{event['args']['correlation']}"
    found = _run(tmp_path / "b.json", trace)
    assert sum(NOT_JOINED in note for note in found.timeline.notes) == 1
    assert found.callers == ()
