"""Traces of real GPUs that others have published: what is shown is what the file's events say.

The sums are made here from the JSON alone. `tests/data/published/LICENSE` names the source.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import kit

DATA = Path(__file__).parents[2] / "data" / "published"
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = {  # calls that hand work to the device and do not wait for it
    "mi250": ("hipLaunchKernel", "hipExtModuleLaunchKernel"),
    "triton": ("cuLaunchKernel",),
    "alexnet": ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"),
    "event_sync_multi_stream": ("cudaLaunchKernel", "cudaMemsetAsync"),
}


def events_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.json.gz") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize("name", LAUNCHES)
def test_kernels_streams_and_launches_are_those_of_the_file(name: str) -> None:
    events = events_of(name)
    run = kit.open_trace(DATA / f"{name}.json.gz")
    on_gpu = [event for event in events if event.get("cat") in GPU]
    kernels = [span for span in run.timeline.spans if span.kind == "kernel"]
    assert len(kernels) == len(on_gpu)
    shown = sum(span.stop_ns - span.start_ns for span in kernels)
    assert shown == pytest.approx(sum(event["dur"] for event in on_gpu) * 1e3, abs=len(kernels))
    streams = {f"device/{event['pid']} stream {event['tid']}" for event in on_gpu}
    assert {span.lane for span in kernels} == streams
    names = [event["name"] for event in events if event["name"] in LAUNCHES[name]]
    calls = [span.name for span in run.timeline.spans if span.kind == "dispatch"]
    assert sorted(calls) == sorted(names) != []


def test_a_copy_that_amds_library_waits_for_is_a_sync_point() -> None:
    run = kit.open_trace(DATA / "mi250.json.gz")
    waited = [e["dur"] for e in events_of("mi250") if e["name"] == "hipMemcpyWithStream"]
    assert [sync.cause for sync in run.timeline.syncs] == ["copy_to_device"] * 2
    shown = [sync.wait_ns / 1e3 for sync in run.timeline.syncs]
    assert shown == pytest.approx(waited, abs=0.01)


def test_the_waits_of_a_training_step_are_the_files_synchronize_calls() -> None:
    names = [event["name"] for event in events_of("alexnet")]
    wanted = sum(names.count(f"cuda{what}Synchronize") for what in ("Stream", "Device", "Event"))
    assert len(kit.open_trace(DATA / "alexnet.json.gz").timeline.syncs) == wanted
