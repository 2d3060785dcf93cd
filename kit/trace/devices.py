"""The devices of a timeline: which lanes are one's, and what ran on each.

Also what the calls of their runtimes do to the host, and what native torch computes on a CPU beside
its ops.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from kit.trace.intervals import Ints, without
from kit.trace.timeline import Timeline

__all__ = [
    "COMPILED",
    "CPU_SENDS",
    "OTHER_DEVICES",
    "TORCH_CPU",
    "at_work",
    "beside",
    "by_device",
    "compiles",
    "count_devices",
    "device_of",
    "is_collective",
    "is_compiled",
    "is_free",
    "is_launch",
    "is_librarys",
    "is_runtimes",
    "is_transfer",
    "is_wait",
    "region_name",
    "sends_on_host",
    "stream_lane",
]

# How Kineto, or a fork of it, begins the categories of devices whose events have no rules here; of
# a Mac's GPU (mps) there are none, only ops.
OTHER_DEVICES = frozenset(
    {"mtia", "xpu", "hpu", "glow", "privateuse1", "mlu", "musa", "gcu", "npu", "mps"}
)
NEXT_TO_NOTHING = 0.01  # of what the busiest device runs
TORCH_CPU = "device/0 torch cpu"
CPU_SENDS = "device/0 collectives"  # of gloo and others, whose threads the host's ops wait for
_ON_HOST = ("gloo:", "mpi:", "ucc:")
COMPILED = "## Call CompiledFxGraph"  # begins the name of what is around code of torch.compile's
# torch's own names that are no work, or whose work is an aten op's
_LIBRARYS = re.compile(
    r"(?!aten::|autograd::|c10d::|_?c10d_functional|prim::|profiler::|symm_mem::|torch::)\w+::\w"
)
_FUNCTIONAL = re.compile(r"_?c10d_functional\w*::")
_DEVICE = re.compile(r"(?:process \d+ )?[^ ]*")
# The functions of CUDA and HIP that return when the device has done its work.
_WAITS = frozenset({
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy",
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cudaThreadSynchronize",
    "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize", "hipMemcpy",
    "hipCtxSynchronize",
    "hipMemcpyWithStream",  # returns when the copy is done: torch reads and copies by it on AMD
})  # fmt: skip
# Those that give memory back: they, too, return when the device has done what it was given.
_FREES = frozenset({
    "cudaFree", "cudaFreeHost", "cuMemFree", "cuMemFreeHost", "hipFree", "hipHostFree",
    "hipFreeHost",
})  # fmt: skip
_RUNTIMES = re.compile(r"(?:cuda|cu|hip)[A-Z]\w*")
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch", "hipLaunch",
             "hipModuleLaunch", "hipExtModuleLaunch", "hipExtLaunch", "hipGraphLaunch")  # fmt: skip
_TRANSFERS = ("cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset", "hipMemcpy", "hipMemset")


def device_of(lane: str) -> str:
    """The device that a lane belongs to: "device/0" for "device/0 Stream #7".

    Of several processes, "process 1 device/2" for "process 1 device/2 compute".
    """
    return lane[: _DEVICE.match(lane).end()]  # type: ignore[union-attr]  # it matches ""


def stream_lane(device: object, stream: object) -> str:
    """The lane of a stream of a GPU: "device/0 stream 7"."""
    return f"device/{device} stream {stream}"


def count_devices(timeline: Timeline) -> int:
    """How many devices are seen to work; at least 1, to divide by."""
    return max(len(at_work(timeline)), 1)


def at_work(timeline: Timeline) -> dict[str, Ints]:
    """Device -> its kernels, of those that run more than next to nothing beside the busiest.

    Where each rank of a job fills a byte on the first device, that one waits for nobody. Where a
    program does no more than call Python, its devices have no kernel.
    """
    found = by_device(timeline, "kernel")
    if not found:
        return {device: spans[:0] for device, spans in by_device(timeline, "callback").items()}
    length = timeline.stop_ns - timeline.start_ns
    ran = {device: int(length[spans].sum()) for device, spans in found.items()}
    least = NEXT_TO_NOTHING * max(ran.values(), default=0)
    return {device: spans for device, spans in found.items() if ran[device] >= least}


def by_device(timeline: Timeline, kind: str) -> dict[str, Ints]:
    """Device -> its spans of a kind; the devices in the order of their lanes."""
    spans = np.flatnonzero(timeline.where(kind=kind))
    lane = timeline.lane[spans]
    ran = np.flatnonzero(np.bincount(lane, minlength=len(timeline.lanes))).tolist()
    named = [device_of(timeline.lanes[i]) for i in ran]
    devices = {device: i for i, device in enumerate(dict.fromkeys(named))}
    # All are sorted once, by numbers of few bits: a stranger's file may name thousands of devices,
    # and to look for each of them in all spans would take for ever.
    number = np.zeros(len(timeline.lanes), np.min_scalar_type(len(devices)))
    number[ran] = [devices[device] for device in named]
    of = number[lane]
    ends = np.bincount(of, minlength=len(devices)).cumsum()
    parts = np.split(spans[np.argsort(of, kind="stable")], ends[:-1])
    return dict(zip(devices, parts, strict=False))  # of no device there is one part, without spans


def is_wait(call: str) -> bool:
    """Does a function of CUDA's or HIP's wait? Its versions, such as _v2 and _ptsz, do, too."""
    return call.partition("_")[0] in _WAITS


def is_free(call: str) -> bool:
    """Does a function of CUDA's or HIP's give memory back, and first wait for the device?"""
    return call.partition("_")[0] in _FREES


def is_launch(call: str) -> bool:
    """Is it a function of CUDA's or HIP's that launches a kernel, or a graph of them?"""
    return call.startswith(_LAUNCHES)


def is_runtimes(call: str) -> bool:
    """Is it any function of CUDA's or HIP's? `cudaUtils.py:12` is a line of the user's."""
    return bool(_RUNTIMES.fullmatch(call))


def is_transfer(call: str) -> bool:
    """Is it a function of CUDA's or HIP's that copies or fills, and need not wait for it?"""
    return call.startswith(_TRANSFERS) and not is_wait(call)


def is_compiled(name: str) -> bool:
    """Is it around code of torch.compile's?"""
    return name.startswith(COMPILED)


def compiles(name: str) -> bool:
    """Is it a part of what torch.compile does to compile?"""
    return name.endswith("(dynamo_timed)")


def is_librarys(name: str) -> bool:
    """Is an op of this name another library's, as "quantized::linear"?

    It may call aten's, and computes beside them, as code of torch.compile's does.
    """
    return bool(_LIBRARYS.match(name))


def sends_on_host(name: str) -> bool:
    """Is it a collective of a library that communicates on the host?"""
    return name.startswith(_ON_HOST)


def is_collective(name: str) -> bool:
    """Is it a collective that compiled code calls? It waits there, and computes nothing."""
    return bool(_FUNCTIONAL.match(name))


def region_name(name: str) -> str:
    """What is shown for it: each compiled function has a name of 50 random letters."""
    return "compiled code" if is_compiled(name) else name


def beside(regions: Ints, ops: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """What is left of regions beside the ops in them, and of which region each piece is.

    Shape:
        regions, in order of their starts; ops; pieces: (n, 2)
    """
    pieces = without(regions, ops)
    return pieces, np.searchsorted(regions[:, 0], pieces[:, 0], "right") - 1
