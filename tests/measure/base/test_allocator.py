"""What an allocator counted is a run's own where it is, and a bound where something else used more.

No device here counts: the numbers are made, the names of them are XLA's and torch's.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest
import torch

import kit
from kit.measure.base.allocator import Allocated, memory_metrics, of_torch, of_xla
from kit.widgets.memory.data import memory_payload
from kit.workloads import mlp

XLA = {"bytes_in_use": 300, "peak_bytes_in_use": 900, "bytes_limit": 10_000}
TORCH = {"allocated_bytes.all.current": 300, "allocated_bytes.all.peak": 900}


def test_the_names_of_both_libraries_are_read() -> None:
    device = SimpleNamespace(memory_stats=lambda: XLA)
    assert of_xla(device) == of_torch(TORCH) == Allocated(in_use=300, most=900)
    assert of_xla(jax.devices("cpu")[0]) is None
    assert of_torch(torch.cuda.memory_stats()) is None  # no CUDA device, so nothing was counted


@pytest.mark.parametrize(
    ("before", "after", "metrics"),
    [
        (None, None, {}),
        (None, Allocated(3, 9), {"memory.live_bytes": 3, "memory.peak_bytes": 9}),
        (Allocated(1, 8), Allocated(3, 9), {"memory.live_bytes": 3, "memory.peak_bytes": 9}),
        (Allocated(1, 9), Allocated(3, 9), {"memory.live_bytes": 3, "memory.peak_bound": 9}),
    ],
)
def test_a_peak_that_an_earlier_program_had_is_not_taken_for_the_runs_own(
    before: Allocated | None, after: Allocated | None, metrics: dict[str, float]
) -> None:
    assert memory_metrics(before, after) == metrics


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_run_on_a_cpu_claims_no_measured_bytes(mode: str) -> None:
    run = kit.run(mlp, kit.Settings(mode=mode, steps=2, warmup=1))
    assert not [name for name in run.metrics if name.startswith("memory.")]
    assert "a CPU's allocator does not count" in memory_payload(run)["note"]
