"""Long calls of a GPU's runtime in a native step."""

from __future__ import annotations

from kit.measure.native.events import timeline_of
from tests.measure.native.test_torch import Event


def test_memory_that_a_step_takes_and_gives_back_is_no_recording() -> None:
    """As of torch.cuda.empty_cache() in each step: it was called the time of Python."""
    step = Event("kit step 0", 0, 1000, is_user_annotation=True)
    engine = Event("autograd::engine::evaluate_function: MmBackward0", 600, 900, step, thread=2)
    events = [
        Event("aten::mm", 5, 25, step),
        Event("cudaLaunchKernel", 10, 15, step),
        Event("gemm", 20, 400, gpu=True),
        Event("cudaFree", 50, 450, step),
        Event("cudaMalloc", 460, 560, step),
        Event("cudaGetDevice", 570, 589, step),  # as long as a launch
        Event("cudaMalloc", 700, 800, engine, thread=2),
        Event("cudaHostAlloc", 100, 900, thread=3),  # a loader's
    ]
    found = timeline_of([step, engine, *events], device="cuda")
    assert [(s.cause, s.at_ns, s.wait_ns) for s in found.syncs] == [("free", 50_000, 350_000)]
    away = [(s.name, s.start_ns, s.stop_ns) for s in found.spans if s.kind == "elsewhere"]
    assert away == [
        ("cudaFree", 400_000, 450_000),
        ("cudaMalloc", 460_000, 560_000),
        ("cudaMalloc", 700_000, 800_000),
    ]


def test_what_another_gpu_does_hides_no_wait_to_give_memory_back() -> None:
    step = Event("kit step 0", 0, 1000, is_user_annotation=True)
    events = [
        Event("gemm", 20, 400, gpu=True),
        Event("gemm", 30, 900, gpu=True, device_index=1),
        Event("cudaFree", 50, 450, step),
    ]
    (found,) = timeline_of([step, *events], device="cuda").syncs
    assert (found.cause, found.at_ns, found.wait_ns) == ("free", 50_000, 350_000)
