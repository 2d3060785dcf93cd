"""Planes of XLA's profiler as kernels: the lanes of a GPU's streams and of a CPU's threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kit.trace.planes import device_events


def plane(name: str, **lines: list[tuple[str, int, int, dict[str, Any]]]) -> Any:
    """A plane as `jax.profiler.ProfileData` gives it: line -> (name, start, end, stats)."""
    made = [
        SimpleNamespace(
            name=line,
            events=[
                SimpleNamespace(name=name, start_ns=start, end_ns=stop, stats=list(stats.items()))
                for name, start, stop, stats in events
            ],
        )
        for line, events in lines.items()
    ]
    return SimpleNamespace(name=name, lines=made)


def seen(*planes: Any, offset: int = 0) -> list[tuple[str, str, int, int]]:
    return [(e.lane, e.name, e.start_ns, e.stop_ns) for e in device_events(planes, offset)]


def test_each_stream_of_each_gpu_is_a_lane_and_derived_lines_are_none():
    stream = {"Stream #7(Compute)": [("gemm", 10, 30, {"hlo_op": "dot.1"})]}
    other = {"Stream #9(MemcpyH2D)": [("MemcpyH2D", 5, 8, {})], "XLA Ops": [("dot.1", 10, 30, {})]}
    found = seen(plane("/device:GPU:0", **stream), plane("/device:GPU:1", **other), offset=100)
    assert found == [
        ("device/1 stream 9(MemcpyH2D)", "MemcpyH2D", 105, 108),
        ("device/0 stream 7(Compute)", "dot.1", 110, 130),
    ]


def test_a_kernel_without_an_op_keeps_all_of_its_name():
    """A library's, in C++; of an op in a loop the last part is its name."""
    gemm = "void cutlass::Kernel2<cutlass_80::gemm>(cutlass_80::gemm::Params)"
    events = [(gemm, 1, 2, {}), ("fusion", 3, 4, {"hlo_op": "while.1::body::fusion.2"})]
    found = seen(plane("/device:GPU:0", **{"Stream #7(Kernel)": events}))
    assert [name for _, name, *_ in found] == [gemm, "fusion.2"]


def test_threads_of_a_cpu_are_numbered_by_their_first_kernel():
    late = [("add", 50, 60, {"hlo_op": "add"})]
    early = [("mul", 20, 30, {"hlo_op": "mul"}), ("Wait for x", 30, 40, {"hlo_op": "w"})]
    found = seen(plane("/host:CPU", **{"tf_XLAEigen/2": late, "tf_XLAEigen/1": early}))
    assert found == [("device/0 thread 1", "mul", 20, 30), ("device/0 thread 2", "add", 50, 60)]


def test_each_device_of_a_cpu_has_lanes_of_its_own_for_the_threads_that_they_share():
    """As one device, they were busy wherever any of them was."""
    first, second = ({"hlo_op": "dot", "device_ordinal": number} for number in (0, 3))
    shared = [("dot", 10, 20, first), ("dot", 40, 50, second)]
    found = seen(plane("/host:CPU", a=shared, b=[("dot", 15, 30, second)]))
    assert found == [
        ("device/0 thread 1", "dot", 10, 20),
        ("device/3 thread 2", "dot", 15, 30),
        ("device/3 thread 1", "dot", 40, 50),
    ]
    looped = [("while.5", 10, 60, first | {"run_id": 1}), ("dot", 20, 30, second | {"run_id": 1})]
    assert [name for _, name, *_ in seen(plane("/host:CPU", a=looped))] == ["while.5", "dot"]


def test_a_kernel_lasts_until_the_end_that_carries_its_number():
    begin = [("dot", 10, 11, {"hlo_op": "dot", "_p": 4})]
    end = [("end: dot", 11, 40, {"_c": 4})]
    assert seen(plane("/host:CPU", a=begin, b=end)) == [("device/0 thread 1", "dot", 10, 40)]


def test_beside_a_gpu_the_hosts_calls_that_launch_its_kernels_are_none():
    launch = plane("/host:CPU", python=[("cuLaunchKernel", 0, 9, {"hlo_op": "dot.1"})])
    kernel = plane("/device:GPU:0", **{"Stream #7": [("gemm", 4, 8, {"hlo_op": "dot.1"})]})
    assert seen(launch, kernel) == [("device/0 stream 7", "dot.1", 4, 8)]
    without_kernels = plane("/device:GPU:0", Steps=[("1", 0, 9, {})])
    assert seen(launch, without_kernels) == [("device/0 thread 1", "cuLaunchKernel", 0, 9)]


def test_other_planes_have_no_kernels():
    assert seen(plane("/host:metadata", a=[("dot", 0, 1, {"hlo_op": "dot"})])) == []


def test_of_a_loop_or_a_branch_on_a_cpu_only_the_ops_in_it_are_kernels():
    """Both counted: half of the kernels' time was that of a `while`."""
    first, second = ({"hlo_op": "x", "hlo_module": "f", "run_id": run} for run in (1, 2))
    events = [
        ("while.5", 10, 12, first | {"_p": 4}),
        ("cond.1.clone", 11, 30, first),
        ("dot", 15, 25, first),
        ("dot", 40, 60, first),
        ("call", 65, 75, first),  # in which no op has an event of its own
        ("while_loop_fusion", 35, 45, first),
        ("while", 14, 28, second),
    ]
    found = seen(plane("/host:CPU", a=events, b=[("end: while.5", 61, 62, {"_c": 4})]))
    assert [(name, start) for _, name, start, _ in found] == [
        ("while", 14),
        ("dot", 15),
        ("while_loop_fusion", 35),
        ("dot", 40),
        ("call", 65),
    ]
