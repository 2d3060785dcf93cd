"""What a device does: computes, sends to other devices, or moves memory; how much is hidden.

A kernel of a communication library (NCCL, RCCL, gloo, a collective of XLA's) occupies the device,
but computes nothing: most of its time it waits for the slowest of its group. So time is divided in
the order compute, communication, memory, idle: what communicates while something computes costs
nothing, and the rest is exposed. The four parts add up to the steps.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kit.trace.active import named
from kit.trace.intervals import Ints, joined, without
from kit.trace.timeline import Timeline

__all__ = [
    "BYTES_UNKNOWN",
    "READS",
    "Channel",
    "Collective",
    "Copy",
    "CopyTotal",
    "DeviceWork",
    "calls_python",
    "cause_of",
    "communicates",
    "copy_of",
    "copy_totals",
    "device_work",
    "kind_on_device",
    "moves_memory",
    "operation_of",
    "way_of",
]

# Kernels of libraries that communicate: NCCL, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, torch's symmetric
# memory, gloo, MPI, UCC; DeepEP and MORI, for experts' tokens; of TensorRT-LLM, which FlashInfer
# has, too, all-reduces and exchanges of such tokens; quickreduce; and what XLA calls its
# collectives: by the op, or by the primitive of jax that asked for it.
_LIBRARY = re.compile(
    r"(void )?(nccl|rccl|mscclKernel|oneccl|hccl|nvshmem|gloo:|mpi:|ucc:|nccl:)"
    r"|.*(ncclKernel|ncclDevKernel|(one|two)_?[sS]hot_?[aA]ll_?[rR]educe|multimem_|cross_device_reduce)"
    r"|(void )?[\w:]*(\b(intra|inter)node(_ll)?::(cached_)?(dispatch|combine|notify)"
    r"|\bEp(Dispatch|Combine)(Intra|Inter)Node|allreduce_fusion_kernel|allreduce_prototype_"
    r"|\bmoe(AllToAll|A2ADispatch|A2ACombine)Kernel\b)"
    r"|(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
    r"(-start|-done)?(\.\d+)*$"
    r"|(unreduced_)?(psum|pmax|pmin|ppermute|pbroadcast|psend|precv|all_gather|reduce_scatter"
    r"|(ragged_)?all_to_all)(_invariant|_reduced)?(\.\d+)*([-_](start|done))?(\.\d+)*$",
    re.DOTALL,
)
BYTES_UNKNOWN = -1
READS = ("aten::item", "aten::_local_scalar_dense")  # ops that read one number
_COPY = re.compile(r"Mem(cpy [A-Z]to[A-Z]|cpy[A-Z]2[A-Z]\b|set)")
_MEMORY = re.compile(
    r"Mem(cpy|set)\b|Memcpy([A-Z](2|to)[A-Z]|Other)|memcpy|memset|CopyHostToDevice|CopyDeviceToHost"
    r"|copy-(start|done)(\.\d+)*$"  # XLA's, beside which other ops run
    r"|__amd_rocclr_(copy|fill)"  # kernels by which AMD's runtime copies and fills
)
# Kernels of XLA's that call a Python function of the program's, and wait for it.
_CALLBACK = re.compile(
    r"((io|pure|debug)_callback|debug_print)(\.\d+)*$|xla_(ffi_)?(partitioned_)?python_"
)
# The first whose letters occur in a name, without its underscores and capitals, is its operation.
_OPERATIONS = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "collectivepermute": "permute",
    "ppermute": "permute",
    "psum": "all_reduce",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send_recv",
    "recv": "recv",
    "send": "send",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}


def communicates(name: str) -> bool:
    """Is this the name of a kernel that sends to, or waits for, other devices?"""
    return _LIBRARY.match(name) is not None


def copy_of(name: str) -> str:
    """Of "Memcpy HtoD (Pinned -> Device)" the beginning, "Memcpy HtoD"; "" of other names."""
    match = _COPY.match(name)
    return match[0] if match else ""


def way_of(name: str) -> str:
    """The cause of a wait for a transfer of this name; "" of what goes neither up nor down."""
    if any(word in name for word in ("HtoD", "HostToDevice", "MemcpyH2D")):
        return "copy_to_device"
    down = ("DtoH", "DeviceToHost", "MemcpyD2H")
    return "copy_to_host" if any(word in name for word in down) else ""


def cause_of(op: str, way: str) -> str:
    """Why the host waits in an op of torch's.

    Args:
        way: where the op has copied to, by `way_of`; "" if that is not known.
    """
    if op in READS:
        return "item"
    return way or "copy" if op == "aten::copy_" else op.removeprefix("aten::")


@lru_cache(maxsize=10_000)
def kind_on_device(name: str) -> str:
    """The kind of a span that ran on a device, by its name; one of `kit.trace.kinds.ON_DEVICE`."""
    if calls_python(name):
        return "callback"
    return "communication" if communicates(name) else "kernel"


def calls_python(name: str) -> bool:
    """Is this the name of a kernel that calls a Python function of the program's?"""
    return _CALLBACK.match(name) is not None


def moves_memory(name: str) -> bool:
    """Is this the name of a copy, or of filling memory?"""
    return _MEMORY.match(name) is not None


def operation_of(name: str) -> str:
    """Of "ncclDevKernel_AllReduce_Sum_f32" and of "_allreduce": "all_reduce"; "" if unknown."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((said for letters, said in _OPERATIONS.items() if letters in plain), "")


@dataclass(frozen=True, slots=True)
class Channel:
    """What makes collectives comparable between ranks: the operation and the process group."""

    operation: str  # "all_reduce"; "" if not known
    group: str = ""  # as the file names it; "" if it does not
    members: tuple[int, ...] = ()  # ranks of the group, if the file says so
    size: int = 0  # of the group; 0 if not known

    def __hash__(self) -> int:
        """Without the members, of which there may be thousands: each collective is looked up."""
        return hash((self.operation, self.group, self.size))


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one rank, as its trace shows it.

    Units:
        nanoseconds of the rank's own timeline; bytes of the largest buffer that a rank has, as
        nccl-tests counts them
    """

    channel: Channel
    start_ns: int
    stop_ns: int
    size_bytes: int = BYTES_UNKNOWN
    number: int = -1  # in its group, if the file says so
    called_ns: int = -1  # when the host asked for it; -1 if not known
    is_even: bool = False  # does each rank send as much to every other? matters to all-to-alls


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy, or filling, of memory by a device.

    Units:
        nanoseconds of the timeline; bytes
    """

    what: str  # "Memcpy HtoD", "Memset": the beginning of its name
    start_ns: int
    stop_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyTotal:
    """All copies in one direction.

    Units:
        bytes; nanoseconds, those of copies at the same time added up
    """

    what: str
    count: int
    size_bytes: int
    total_ns: int

    @property
    def rate(self) -> float:
        """Bytes a second: all bytes over the time of all copies; nan if none took any time."""
        return self.size_bytes / self.total_ns * 1e9 if self.total_ns else math.nan


def copy_totals(copies: Iterable[Copy]) -> tuple[CopyTotal, ...]:
    """A total for each direction; what took longest comes first."""
    found: dict[str, list[Copy]] = defaultdict(list)
    for copy in copies:
        found[copy.what].append(copy)
    totals = (
        CopyTotal(
            what,
            len(some),
            sum(copy.size_bytes for copy in some),
            sum(copy.stop_ns - copy.start_ns for copy in some),
        )
        for what, some in found.items()
    )
    return tuple(sorted(totals, key=lambda total: (-total.total_ns, total.what)))


@dataclass(frozen=True)
class DeviceWork:
    """When a device does what: unions, in order, without overlap. Shape: each (n, 2)."""

    compute: Ints
    communication: Ints
    memory: Ints

    @property
    def exposed(self) -> Ints:
        """Communication under which nothing computes."""
        return without(self.communication, self.compute)

    @property
    def busy(self) -> Ints:
        """Whatever the device does."""
        return joined(np.concatenate([self.compute, self.communication, self.memory]))


def device_work(timeline: Timeline) -> DeviceWork:
    """What the devices of a timeline do; several count as one."""
    kernel = timeline.where(kind="kernel")
    sent = kernel & named(timeline, communicates)  # of runs from before there was the kind
    sent |= timeline.where(kind=("communication", "reduction"))
    moved = kernel & ~sent & named(timeline, moves_memory)
    return DeviceWork(*(joined(timeline.times(x)) for x in (kernel & ~sent & ~moved, sent, moved)))
