"""What each limit of a step means, and the next step where no advice answers it, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kit.runs.labels import is_native, is_of_jit
from kit.runs.run import Run
from kit.trace import Limit

__all__ = ["LIMIT_ROWS", "LimitRow", "limit_row"]


@dataclass(frozen=True, slots=True)
class LimitRow:
    """What a limit means, and the next step where no advice answers it."""

    said: str
    inside: str  # of a step that the kit's runtime ran
    outside: str = ""  # of one that PyTorch or jax ran; "": the same


_DISPATCH = "give each launch more to do: a larger batch, fewer and larger kernels"
_OUTSIDE = "look at what the host does there, in the timeline and with a profiler of the host"

LIMIT_ROWS = {
    "device": LimitRow(
        "The device has work for most of the step",
        "kit.kernel_table(run) has the kernels that take most: a smaller dtype, fewer bytes or "
        "fewer ops in them is less work",
    ),
    "recording": LimitRow(
        "The device waits for Python to record",
        "record less (step_mode='replay'; optimizers with fused=True or foreach=True), or give the "
        "device more to do (a larger batch)",
        "run less Python for each kernel (torch.compile or jax.jit, CUDA graphs, optimizers with "
        "fused=True), or give the device more to do (a larger batch); at which lines it computes, "
        "a profiler of Python says (here that is seen in native steps on Linux and in traces with "
        "stacks only, from 1 ms on)",
    ),
    "sync": LimitRow(
        "The device has nothing to do while a value is read, and until the host has recorded more",
        "the table of sync points has each line that waits: read less often, or one step later",
    ),
    "input": LimitRow(
        "The step waits for its batches",
        "prepare them ahead (prefetch=2), or make the loader faster",
        "prepare them ahead: a DataLoader with num_workers, prefetch_factor, "
        "persistent_workers=True and pin_memory=True",
    ),
    "elsewhere": LimitRow(
        "The host neither computes nor waits for the device: it sleeps, reads a file, takes a "
        "lock, or is in a call of the driver's (cudaMalloc)",
        "do that in another thread, or less often: the table of idle time has each line",
    ),
    "own": LimitRow(
        "The device waits while the program computes on the host between its ops: in Python, or in "
        "a library that it calls",
        "do that on the device, ahead of the step, or less often: the table of idle time has each "
        "line",
    ),
    "dispatch": LimitRow(
        "The time goes into handing work to the device",
        f"{_DISPATCH}, or larger segments (mode='lazy', larger bulk sizes); kit.SegmentView(run) "
        "has what each costs",
        f"{_DISPATCH} (torch.compile, CUDA graphs, optimizers with fused=True)",
    ),
    "compile": LimitRow(
        "The time goes into compiling",
        "run.compiles has what was compiled and why; if it is only the first steps, raise warmup",
        "trace later steps, after the compiles, or keep shapes as they are",
    ),
    "reduction": LimitRow(
        "Gradients are on their way while the device has nothing else to do",
        "other buckets (bucket_mb), or segments that end where one is full (cut='bucket'), could "
        "hide them; kit.ParallelView models that",
        "other bucket sizes, or more work between two reductions (a larger batch), could hide them",
    ),
    "communication": LimitRow(
        "A collective runs while the device has nothing to compute",
        "kit.open_ranks says which rank the others wait for, and what the transfer itself takes",
        "kit.open_ranks, of the traces of all ranks, says which one the others wait for, and what "
        "the transfer itself takes",
    ),
    "callback": LimitRow(
        "The device waits for Python functions that its own programs call (pure_callback, "
        "io_callback and the like)",
        "call them less often, or after the step, on what it returns (kit.kernel_table(run) has "
        "each callback, on device kit with its line)",
    ),
    "dependency": LimitRow(
        "The next kernel had been issued, and waits on the device for others",
        "the timeline shows what each gap waited for",
        "the timeline shows what each gap waited for: another stream, an event or another device",
    ),
    "program": LimitRow(
        "The device pauses between the kernels of its own programs",
        "fewer, larger kernels: a larger batch, or fewer small ops in a row; on a GPU XLA's "
        "command buffers launch many as one (docs/gpu.md), which then have no lines",
        "fewer, larger kernels in what is launched as one (a CUDA graph, a jitted function): a "
        "larger batch, or fewer small ops in a row",
    ),
    "unknown": LimitRow(
        "What the device waits for is not known: no work of the host was seen there",
        _OUTSIDE,
        f"{_OUTSIDE}; a trace with CPU and device activities shows more",
    ),
}
_OF_JIT = {  # limits that look otherwise in a native run of jax
    "dispatch": LimitRow(
        "The device waits for the step's Python and for jax.jit's dispatch, which are not told "
        "apart",
        "compute less outside of the jitted function, or hand more over at once (a larger batch, "
        "several steps in one jax.lax.scan); the same step on device kit says what its lines take",
    ),
    "elsewhere": LimitRow(
        "The host does not compute: it sleeps, reads a file, takes a lock, or waits for the device "
        "in np.asarray(x) or x.block_until_ready(), which look like a lock here",
        "do that in another thread, or less often: the table of idle time has each line",
    ),
}
_OF_TORCH = {  # the same in a native run of torch, which records nothing
    "recording": replace(
        LIMIT_ROWS["recording"],
        said="The device waits for Python, and for torch's own work around its ops",
    )
}
_OF_STACKS = {  # and in a trace of torch's that has Python's functions
    "own": replace(
        LIMIT_ROWS["own"],
        said="The device waits while a function of the program runs without a call: it computes in "
        "Python, or waits as `with lock` does",
    )
}


def limit_row(run: Run, limit: Limit) -> LimitRow:
    """What to say of this limit of this run."""
    own = _OF_JIT if is_of_jit(run) else _OF_TORCH if is_native(run) else {}
    own = _OF_STACKS if run.traced_as == "imported" else own
    return own.get(limit.what, LIMIT_ROWS[limit.what])
