"""Which calls and reads of a torch trace are waits of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kit
from kit.formats.chrome.read import read_chrome
from kit.reports.html import report_html
from kit.runs.verdict.verdict import verdict
from kit.trace import Timeline, limit_shares
from kit.trace.kernels import after_steps_fraction
from tests.formats.chrome.traces import cuda_trace, op, opened, step, written

DOWN = "Memcpy DtoH (Device -> Pageable)"


def call(name: str, ts: float, dur: float, link: int = 0, tid: int = 1) -> dict[str, Any]:
    args = {"correlation": link} if link else {}
    return op(name, ts, dur, cat="cuda_runtime", tid=tid, args=args)


def ran(name: str, ts: float, dur: float, link: int, device: int = 0) -> dict[str, Any]:
    args = {"correlation": link, "device": device, "stream": 7}
    cat = "gpu_memcpy" if "Mem" in name else "kernel"
    return op(name, ts, dur, cat=cat, pid=0, tid=7, args=args)


def waits(timeline: Timeline) -> list[tuple[str, int]]:
    """Cause and microseconds."""
    return [(sync.cause, sync.wait_ns // 1000) for sync in timeline.syncs]


def said(timeline: Timeline) -> str:
    return " ".join(timeline.notes)


@pytest.mark.parametrize(
    ("what", "called", "copied", "waited"),
    [
        (DOWN, (20, 35), (50, 2), [("item", 37)]),  # it waits in the call, and a little after it
        (DOWN, (20, 10), (50, 2), [("item", 2)]),
        ("Memcpy HtoD (Pageable -> Device)", (20, 35), (22, 38), [("item", 37)]),
        ("Memcpy DtoH (Device -> Pinned)", (20, 35), (50, 2), [("item", 2)]),
        ("Memcpy DtoD (Device -> Device)", (20, 35), (50, 2), [("item", 2)]),
    ],
)
def test_a_copy_that_blocks_in_its_own_call_is_one_wait_with_the_call_after_it(
    tmp_path: Path,
    what: str,
    called: tuple[float, float],
    copied: tuple[float, float],
    waited: list[tuple[str, int]],
) -> None:
    """On NVIDIA's nearly all of a read's wait is in `cudaMemcpyAsync`: it was said to be 0.0 ms."""
    read = op("aten::_local_scalar_dense", 15, 50)
    calls = call("cudaMemcpyAsync", *called, 1), call("cudaStreamSynchronize", 55, 2, 2)
    t = opened(tmp_path, step(0, 100), read, *calls, ran(what, *copied, 1))
    assert waits(t) == waited
    assert sum(s.stop_ns - s.start_ns for s in t.spans if s.kind == "wait") == waited[0][1] * 1000


@pytest.mark.parametrize(
    ("name", "waited"),
    [
        ("cudaMemcpyAsync", []),
        ("cuMemcpyDtoHAsync_v2", []),
        ("cuMemcpyDtoH_v2", [("synchronize", 45)]),
        ("cudaMemcpy2D_ptds", [("synchronize", 45)]),
        ("cudaMemcpyFromSymbol", [("synchronize", 45)]),
    ],
)
def test_a_copy_of_pinned_memory_waits_unless_its_function_is_called_async(
    tmp_path: Path, name: str, waited: list[tuple[str, int]]
) -> None:
    """Only `cudaMemcpy` was known to wait: a step that reads its result so had no sync point."""
    copy = ran("Memcpy DtoH (Device -> Pinned)", 60, 2, 1)
    assert waits(opened(tmp_path, step(0, 100), call(name, 20, 45, 1), copy)) == waited


@pytest.mark.parametrize("name", ["cudaThreadSynchronize", "hipCtxSynchronize"])
def test_old_names_of_a_wait_for_the_device_are_waits(tmp_path: Path, name: str) -> None:
    later = call("cudaLaunchKernel", 80, 5, 1), ran("gemm", 85, 9, 1)
    t = opened(tmp_path, step(0, 100), call(name, 20, 45), *later)
    assert waits(t) == [("synchronize", 45)]


def test_a_copy_of_another_op_is_a_wait_of_its_own(tmp_path: Path) -> None:
    ops = op("aten::copy_", 10, 50), op("aten::_local_scalar_dense", 60, 20)
    calls = call("cudaMemcpyAsync", 20, 35, 1), call("cudaStreamSynchronize", 62, 15, 2)
    t = opened(tmp_path, step(0, 100), *ops, *calls, ran(DOWN, 50, 2, 1))
    assert waits(t) == [("copy_to_host", 35), ("item", 15)]


def test_waits_and_batches_of_a_thread_beside_the_steps_are_not_theirs(tmp_path: Path) -> None:
    """A thread that logs waited for most of the step, which was then bound by syncs."""
    work = [
        event
        for i in range(20)
        for event in (
            call("cudaLaunchKernel", 10 + 50 * i, 5, 1 + i),
            ran("gemm", 20 + 50 * i, 10, 1 + i),
        )
    ]
    other = call("cudaEventSynchronize", 5, 900, 99, tid=2)
    batch = op("enumerate(DataLoader)#_SingleProcess.__next__", 5, 900, tid=3)
    t = opened(tmp_path, step(0, 1100), *work, other, batch)
    assert waits(t) == []
    assert not t.where(kind=("wait", "input")).any()
    assert "1 wait of threads beside the steps' left out" in said(t)
    assert "1 loader call of threads beside the steps' left out" in said(t)
    assert limit_shares(t)["sync"] == limit_shares(t)["input"] == 0


def test_waits_of_a_thread_that_launches_much_or_runs_a_backward_pass_are(tmp_path: Path) -> None:
    engine = op("autograd::engine::evaluate_function: MmBackward0", 20, 70, tid=2)
    launches = call("cudaLaunchKernel", 5, 5, 1), call("cudaLaunchKernel", 11, 5, 2, tid=3)
    sync = (
        call("cudaStreamSynchronize", 30, 20, 3, tid=2),
        call("cudaEventSynchronize", 40, 9, 4, 3),
    )
    t = opened(tmp_path, step(0, 100), engine, *launches, *sync, ran("gemm", 20, 50, 1))
    assert [us for _, us in waits(t)] == [20, 9]


def whole(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """A trace without steps: a device that has nothing to do for the first 500 us."""
    return [
        op("aten::mm", 0, 600),
        call("cudaLaunchKernel", 500, 10, 1),
        ran("gemm", 510, 400, 1),
        *more,
    ]


def test_torchs_own_wait_at_the_end_of_a_recording_is_none_of_the_program(tmp_path: Path) -> None:
    """What had been idle before the first wait was charged to it, as if the trace went around."""
    last = call("cudaDeviceSynchronize", 700, 210, 2)
    t = opened(tmp_path, *whole(last))
    assert waits(t) == []
    assert "a wait for the whole device ends the recording" in said(t)
    assert limit_shares(t)["sync"] == 0
    after = opened(tmp_path, *whole(last, op("aten::add", 950, 5)))
    assert waits(after) == [("synchronize", 210)]
    marked = opened(tmp_path, step(0, 1000), *whole(last))
    assert waits(marked) == [("synchronize", 210)]


def test_a_whole_trace_is_no_step_that_repeats(tmp_path: Path) -> None:
    """What is idle before its first wait is not what the last one costs."""
    read = call("cudaStreamSynchronize", 700, 210, 2)
    assert limit_shares(opened(tmp_path, *whole(read)))["sync"] == 0
    assert limit_shares(opened(tmp_path, step(0, 1000), *whole(read)))["sync"] > 0.2


def test_a_cpus_profile_on_a_machine_with_a_gpu_is_a_cpus(tmp_path: Path) -> None:
    """Its ops were lost: the profiler's own wait was taken for a program of the GPU's."""
    trace = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "traceEvents": [
            step(0, 100),
            op("aten::mm", 10, 50),
            call("cudaDeviceSynchronize", 120, 5, 2),
        ],
    }
    run = kit.open_trace(written(tmp_path, trace))
    assert [s.name for s in run.timeline.spans if s.kind == "kernel"] == ["aten::mm"]
    assert "device" not in run.environment
    assert not run.limited_by().doubt
    trace["traceEvents"].pop()
    assert "not traced" in kit.open_trace(written(tmp_path, trace)).limited_by().doubt


def behind(device_us: float, *, steps: int = 10, before: bool = False) -> list[dict[str, Any]]:
    """Steps of 2 ms whose kernels take so long, one after another."""
    events: list[dict[str, Any]] = []
    free = 0.0
    if before:
        events += [call("cudaLaunchKernel", -50, 5, 99), ran("gemm", 0, device_us, 99)]
        free = device_us
    for i in range(steps):
        at = 2000.0 * i
        free = max(free, at + 20)
        events += [step(at, 1990, i), op("aten::mm", at + 5, 1900)]
        events += [call("cudaLaunchKernel", at + 10, 5, 1 + i), ran("gemm", free, device_us, 1 + i)]
        free += device_us
    return events


def test_a_device_that_is_behind_at_the_end_withholds_the_verdict(tmp_path: Path) -> None:
    """The steps were said to take 2 ms, and nine of ten kernels were dropped without a word."""
    trace = {"traceEvents": behind(20_000)}
    run = kit.open_trace(written(tmp_path, trace))
    assert run.timeline.steps == 10
    assert after_steps_fraction(run.timeline) == pytest.approx(0.9, abs=0.01)
    assert "90% of the kernels' time that the steps launched" in run.limited_by().doubt
    assert "90% of the kernels' time that the steps launched comes after" in said(run.timeline)
    found = verdict(run)
    assert found is not None
    assert "torch.cuda.synchronize()" in found.next_step


def test_a_device_that_is_always_behind_by_as_much_is_not_doubted(tmp_path: Path) -> None:
    steady = kit.open_trace(written(tmp_path, {"traceEvents": behind(2000, before=True)}))
    assert after_steps_fraction(steady.timeline) < 0.001
    assert steady.limited_by().what == "device"
    late = kit.open_trace(written(tmp_path, {"traceEvents": behind(2150, steps=20)}))
    assert 0 < after_steps_fraction(late.timeline) < 0.1
    assert not late.limited_by().doubt
    assert "comes after the last step" in said(late.timeline)


def test_two_optimizers_of_one_class_are_one_update_of_a_step(tmp_path: Path) -> None:
    """Steps were half as long: from the one optimizer to the other."""
    events = []
    for i in range(4):
        at = 1000.0 * i
        engine = "autograd::engine::evaluate_function: MmBackward0"
        events += [op("aten::mm", at, 100), op(engine, at + 200, 100)]
        for k in range(2):
            update = op("Optimizer.step#AdamW.step", at + 400 + 200 * k, 100)
            events.append({**update, "cat": "user_annotation"})
    t = opened(tmp_path, *events)
    assert [(s.stop_ns - s.start_ns) // 1000 for s in t.spans if s.kind == "step"] == [1000] * 3


def test_ranges_in_ranges_make_no_thread_the_main_one(tmp_path: Path) -> None:
    """A loader's thread has nested ranges, whose lengths were added up."""
    nested = [op(f"load {i}", 0 + i, 990 - 2 * i, cat="user_annotation", tid=2) for i in range(5)]
    steps = [op("train", 100 * i, 95, cat="user_annotation") for i in range(10)]
    calls = [call("cudaLaunchKernel", 100 * i + 10, 5, 1 + i) for i in range(10)]
    kernels = [ran("gemm", 100 * i + 20, 30, 1 + i) for i in range(10)]
    t = opened(tmp_path, *nested, *steps, *calls, *kernels)
    assert t.steps == 10


def test_the_made_trace_waits_as_cuda_does(tmp_path: Path) -> None:
    t = read_chrome(written(tmp_path, cuda_trace())).timeline
    assert waits(t) == 2 * [("copy_to_device", 25), ("item", 306)]


@pytest.mark.parametrize("name", ["cudaFree", "cuMemFree_v2", "cudaFreeHost", "hipFree"])
@pytest.mark.parametrize(("end", "waited"), [(400, 350), (455, 400)])
def test_memory_that_is_given_back_waits_for_the_work_that_is_on_its_way(
    tmp_path: Path, name: str, end: float, waited: int
) -> None:
    """As of torch.cuda.empty_cache() in each step: "the host never waited", and Python was slow."""
    calls = call("cudaLaunchKernel", 10, 5, 1), call(name, 50, 400)
    t = opened(tmp_path, step(0, 900), op("aten::mm", 5, 20), *calls, ran("gemm", 20, end - 20, 1))
    assert waits(t) == [("free", waited)]
    found = [(s.name, s.stop_ns - s.start_ns) for s in t.spans if s.kind == "elsewhere"]
    assert found == [(name, 50_000)] * (end < 450)  # what follows the wait, and not that once more


def test_memory_that_is_given_back_waits_for_one_of_two_devices(tmp_path: Path) -> None:
    """The other one's kernel went on until 2,000: no sync point was seen."""
    launches = call("cudaLaunchKernel", 10, 5, 1), call("cudaLaunchKernel", 20, 5, 2)
    kernels = ran("gemm", 20, 425, 1), ran("gemm", 30, 1970, 2, device=1)
    t = opened(tmp_path, step(0, 2100), *launches, call("cudaFree", 50, 400), *kernels)
    assert waits(t) == [("free", 395)]


def test_memory_of_one_process_waits_for_no_device_of_another(tmp_path: Path) -> None:
    """As of ranks that Nsight Systems traces into one file."""
    other = [call("cudaLaunchKernel", i, 2, 10 + i) | {"pid": 2} for i in (10, 500)]
    work = ran("gemm", 30, 415, 20, device=1), ran("gemm", 510, 10, 510, device=1)
    mine = call("cudaLaunchKernel", 10, 5, 1), ran("gemm", 20, 10, 1)
    free = call("cudaFree", 50, 400)
    t = opened(tmp_path, step(0, 900), *mine, free, *other, *work)
    assert waits(t) == []


@pytest.mark.parametrize("name", ["cudaFree", "cudaFreeHost"])
def test_work_that_goes_on_in_short_kernels_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """5 us each and 1 us apart, launched before: the call ended as one of them did."""
    launches = [call("cudaLaunchKernel", i / 10, 0.1, 1 + i) for i in range(330)]
    kernels = [ran("add", 40 + 6 * i, 5, 1 + i) for i in range(330)]
    t = opened(tmp_path, step(0, 2100), *launches, call(name, 50, 400), *kernels)
    assert waits(t) == []


@pytest.mark.parametrize("kernel", [(20, 25), (20, 600), (20, 45)])
def test_memory_that_is_given_back_beside_other_work_is_no_wait(
    tmp_path: Path, kernel: tuple[float, float]
) -> None:
    """The work was done before, goes on after it, or had 15 us left."""
    calls = call("cudaLaunchKernel", 10, 5, 1), call("cudaFree", 50, 400)
    t = opened(tmp_path, step(0, 900), op("aten::mm", 5, 20), *calls, ran("gemm", *kernel, 1))
    assert waits(t) == []


def test_a_long_call_of_the_runtime_is_no_recording(tmp_path: Path) -> None:
    """30 s in cudaDeviceGetStreamPriorityRange were said to be the time of Python."""
    calls = [
        call("cudaLaunchKernel", 10, 5, 1),
        call("cudaMalloc", 100, 700),
        call("cudaGetDevice", 850, 19),  # as long as a launch: there are many of them
        call("cudaMalloc", 100, 700, tid=2),
    ]
    events = [step(0, 900), op("aten::mm", 5, 20), *calls, ran("gemm", 20, 10, 1)]
    file = written(tmp_path, {"traceEvents": events})
    run = kit.open_trace(file)
    assert [s.name for s in run.timeline.spans if s.kind == "elsewhere"] == ["cudaMalloc"]
    assert "1 runtime call of threads beside the steps' left out" in said(run.timeline)
    assert "1 cuda_runtime" in said(run.timeline)
    assert str(run.limited_by()).startswith("elsewhere-bound (78%")
    (advice,) = [a for a in run.advice() if a.rule == "host waits elsewhere"]
    assert advice.text.startswith("the host is in cudaMalloc, a call of the device's runtime")


def test_a_long_call_of_the_runtime_is_no_line_of_the_program(tmp_path: Path) -> None:
    """A page had a section of source lines, with a file `cudaMalloc` whose text was not kept."""
    calls = call("cudaLaunchKernel", 10, 5, 1), call("cudaMalloc", 100, 700)
    events = [step(0, 900), op("aten::mm", 5, 20), *calls, ran("gemm", 20, 10, 1)]
    run = kit.open_trace(written(tmp_path, {"traceEvents": events}))
    (row,) = run.query("select site, elsewhere_ms from lines").rows
    assert row == (None, pytest.approx(0.7))
    assert "Lines" not in run.to_markdown()
    assert "Source lines" not in report_html([run])
