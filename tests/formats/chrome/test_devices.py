"""Devices whose calls or events have no rules: nothing is told of them that the file lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.runs.analysis.headline import busy_of
from kit.runs.conditions import MUCH
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict

# What Kineto calls the events of each sort of device; the last are of forks.
CATEGORIES = ("mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters", "glow_runtime",
              "hpu_op", "xpu_runtime", "xpu_driver", "xpu_sync", "xpu_scope_profiler",
              "privateuse1_runtime", "privateuse1_driver", "mlu_runtime", "musa_runtime",
              "gcu_runtime")  # fmt: skip


def event(category: str, name: str, at: float, length: float, tid: int = 1) -> dict[str, Any]:
    args = {"correlation": int(at), "device": 0}
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": length, "pid": 1,
            "tid": tid, "args": args}  # fmt: skip


HOST = [
    event("user_annotation", "ProfilerStep#0", 0, 100),
    event("cpu_op", "aten::mm", 5, 40),
    event("cpu_op", "aten::item", 50, 45),
]
KERNELS = [event("kernel", "gemm", 20, 10, 7)]


def opened(folder: Path, *events: dict[str, Any]) -> Run:
    device = {"id": 0, "name": "ARTEMIS"}
    file = folder / "trace.json"
    file.write_text(json.dumps({"deviceProperties": [device], "traceEvents": list(events)}))
    return kit.open_trace(file)


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_device_whose_events_are_not_read_gets_no_verdict(tmp_path: Path, category: str) -> None:
    """The ops of its host were shown as kernels of a CPU, of a trace in which no GPU was seen."""
    run = opened(tmp_path, *HOST, event(category, "dma_request", 20, 10))
    found = verdict(run)
    assert found is not None
    assert found.limit.doubt
    assert found.advice == ()
    assert not run.timeline.where(kind=("kernel", "record")).any()
    assert not run.knows_waits
    (note,) = [note for note in run.timeline.notes if "are not read" in note]
    name = category.partition("_")[0]
    assert f"events of {name} " in note
    assert "no GPU was traced" not in summary(run)
    assert run.environment["device"] == f"{name} (ARTEMIS)"


def test_kernels_of_a_device_whose_calls_are_not_read_give_no_verdict(tmp_path: Path) -> None:
    """Of an XPU, whose kernels are written as CUDA's are: it was device-bound."""
    call = event("xpu_runtime", "urEnqueueKernelLaunch", 10, 5)
    kernel = event("kernel", "gemm", 12, 85, 7) | {"args": {"device": 0, "stream": 1}}
    run = opened(tmp_path, *HOST, call, kernel)
    assert str(run.limited_by()) == "not said: events of xpu are not read"
    run.save(tmp_path / "saved.kitrun")
    assert kit.open_trace(tmp_path / "saved.kitrun").limited_by() == run.limited_by()


@pytest.mark.parametrize(
    "said",
    [
        {"ph": "M", "name": "process_labels", "pid": 9, "args": {"labels": "NPU"}},
        {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "Ascend Hardware"}},
        event("enqueue", "Enqueue@aclnnMatmul", 20, 1),
    ],
)
def test_an_ascend_npu_is_told_from_a_cpu(tmp_path: Path, said: dict[str, Any]) -> None:
    """torch_npu writes what the device ran without a category: its host's ops were the kernels."""
    kernel = event("", "MatMulV3", 20, 60, 9)
    del kernel["cat"]
    labels = {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "CPU"}}
    run = opened(tmp_path, labels, said, *HOST, kernel)
    assert run.environment["device"] == "npu (ARTEMIS)"
    assert run.limited_by().doubt == "events of npu are not read"
    assert not run.timeline.where(kind="kernel").any()
    assert any("events of npu are not read" in note for note in run.timeline.notes)


@pytest.mark.parametrize("name", ["_mps_convolution", "mps_linear_backward", "_lstm_mps"])
def test_an_op_of_a_macs_gpu_tells_that_ops_only_launch(tmp_path: Path, name: str) -> None:
    run = opened(tmp_path, *HOST, event("cpu_op", f"aten::{name}", 6, 30))
    assert run.limited_by().doubt == "events of mps are not read"
    assert verdict(run).advice == ()  # type: ignore[union-attr]
    assert not run.timeline.where(kind="kernel").any()


def test_an_op_with_a_name_that_only_resembles_is_none_of_a_macs(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    events = [*HOST, event("cpu_op", "aten::clamps", 6, 30)]
    file.write_text(json.dumps({"traceEvents": events}))
    assert "device" not in kit.open_trace(file).environment


@pytest.mark.parametrize("category", [*CATEGORIES, ""])
def test_kernels_whose_calls_are_not_read_say_nothing_of_waits(
    tmp_path: Path, category: str
) -> None:
    """A wait is a call: where no call is known, the host that waited was said to record."""
    more = [event(category, "urEventWait", 60, 30)] if category else []
    run = opened(tmp_path, *HOST, *KERNELS, *more)
    assert [s.name for s in run.timeline.spans if s.kind == "kernel"] == ["gemm"]
    assert not run.timeline.where(kind="record").any()
    assert not run.knows_waits
    assert {row.cause for row in run.idle} == {"unknown"}
    notes = " ".join(run.timeline.notes)
    # of the calls of other devices, which are in the file, it was said that they were not
    assert ("no call that launches a kernel, or waits" in notes) == (not category)
    assert ("are not read" in notes) == bool(category)
    assert "the host never waited" not in summary(run)


def test_a_gpu_that_is_named_and_not_traced_gets_no_verdict(tmp_path: Path) -> None:
    """Of a program on a GPU, traced without its activities: torch's ops may only have launched."""
    run = opened(tmp_path, *HOST)
    found = verdict(run)
    assert found is not None
    assert found.limit.doubt == "the GPU that the file names was not traced"
    assert found.advice == ()
    assert run.environment["device"] == "cuda (ARTEMIS), not traced"
    assert any("ProfilerActivity.CUDA" in note for note in run.timeline.notes)
    run.save(tmp_path / "saved.kitrun")
    assert kit.open_trace(tmp_path / "saved.kitrun").limited_by() == found.limit


def test_a_batch_that_is_loaded_says_nothing_of_waits(tmp_path: Path) -> None:
    loading = event("cpu_op", "enumerate(DataLoader)#_Iter.__next__", 1, 3)
    run = opened(tmp_path, *HOST, *KERNELS, loading)
    assert {row.cause for row in run.idle} == {"unknown", "input"}
    assert not run.knows_waits
    assert "Sync points are unknown" in summary(run)


def _launched(begin: float, lasts: float = 50) -> list[dict[str, Any]]:
    """A step of 10 ms in which a call at 0.1 ms launches a kernel, and the host then waits."""
    call = {"correlation": 7}
    return [
        event("user_annotation", "ProfilerStep#0", 0, 10_000),
        event("cpu_op", "aten::mm", 50, 100),
        event("cuda_runtime", "cudaLaunchKernel", 100, 5) | {"args": call},
        event("cuda_runtime", "cudaStreamSynchronize", 200, 9_700),
        event("kernel", "gemm", begin, lasts, 7) | {"args": {"device": 0, "stream": 7, **call}},
    ]


def test_work_from_before_the_recording_is_no_dispatch_and_gives_no_verdict(tmp_path: Path) -> None:
    """The device is idle only in the file: the queue held work that was launched before it."""
    run = opened(tmp_path, *_launched(9_000))
    (late,) = [row for row in run.idle if row.cause == "not begun"]
    assert late.total_ms == pytest.approx(8.8)  # from the wait on
    assert run.not_begun_fraction == pytest.approx(0.88)
    found = verdict(run)
    assert found is not None
    assert "for 88% of the step the device had been given work" in found.limit.doubt
    assert found.next_step.startswith("record from a moment at which the device has nothing left")
    assert "dispatch-bound" not in summary(run)


def test_what_to_do_is_of_the_reason_that_is_said(tmp_path: Path) -> None:
    """Of two reasons one was said, and the cure of the other given."""
    run = opened(tmp_path, *_launched(9_000, lasts=5_000))
    assert run.not_begun_fraction > MUCH
    found = verdict(run)
    assert found is not None
    assert "comes after the last step" in found.limit.doubt
    assert found.next_step.startswith("end each traced step with a wait for its work")
    # Alone, "busy 10%" was told of a step whose kernels take half of it.
    assert "device busy 10% (80% of its kernels' time comes later)," in summary(run)
    assert busy_of(run) == "of the traced step (80% of its kernels' time comes later)"


def test_a_kernel_that_begins_soon_was_dispatched(tmp_path: Path) -> None:
    run = opened(tmp_path, *_launched(1_100))
    assert run.not_begun_fraction == 0
    assert "not begun" not in {row.cause for row in run.idle}
    assert not run.limited_by().doubt


def _queued(*between: dict[str, Any]) -> list[dict[str, Any]]:
    """The same, and before it, launched earlier, what ends 1 ms after the wait has begun."""
    call = {"correlation": 6}
    return [
        *_launched(9_000),
        event("cuda_runtime", "cudaLaunchKernel", 20, 5) | {"args": call},
        event("kernel", "gemm", 40, 1_160, 7) | {"args": {"device": 0, "stream": 7, **call}},
        *between,
    ]


def test_a_hole_in_which_nothing_runs_is_no_dependency(tmp_path: Path) -> None:
    """The next kernel had been launched long before, and "waited for the kernel before"."""
    run = opened(tmp_path, *_queued())
    assert {row.cause: row.total_ms for row in run.idle}["not begun"] == pytest.approx(7.8)
    assert "for 78% of the step the device had been given work" in run.limited_by().doubt


def test_a_kernel_that_waited_for_a_collective_was_begun(tmp_path: Path) -> None:
    args = {"args": {"device": 0, "stream": 20, "correlation": 9}}
    run = opened(
        tmp_path, *_queued(event("kernel", "ncclDevKernel_AllReduce", 1_200, 7_000) | args)
    )
    assert run.not_begun_fraction == 0
    causes = {row.cause: row.total_ms for row in run.idle}
    assert causes["communication"] == pytest.approx(7)
    assert causes["dependency"] == pytest.approx(0.8)


def test_a_gpu_without_a_name_is_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": _launched(200)}))
    assert kit.open_trace(file).environment["device"] == "cuda"
