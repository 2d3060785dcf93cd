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
    "h100_bert": (
        "cuLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync",
        "cudaMemsetAsync",
    ),
    "mi300_bert": ("hipExtModuleLaunchKernel", "hipLaunchKernel", "hipModuleLaunchKernel"),
    "b200_vllm": ("cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaMemcpyAsync"),
}  # fmt: skip


def events_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.json.gz") as file:
        return json.load(file)["traceEvents"]


@pytest.mark.parametrize("name", LAUNCHES)
def test_kernels_streams_and_launches_are_those_of_the_file(name: str) -> None:
    events = events_of(name)
    run = kit.open_trace(DATA / f"{name}.json.gz")
    on_gpu = [event for event in events if event.get("cat") in GPU]
    kernels = [s for s in run.timeline.spans if s.kind in ("kernel", "communication")]
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
    timeline = kit.open_trace(DATA / "alexnet.json.gz").timeline
    assert len(timeline.syncs) == wanted - 1  # the last is the profiler's own
    assert any("a wait for the whole device ends the recording" in n for n in timeline.notes)


def test_long_calls_of_the_runtime_are_no_work_of_python() -> None:
    names = ("cudaDeviceGetStreamPriorityRange", "cudaFree", "cudaMalloc")
    run = kit.open_trace(DATA / "alexnet.json.gz")
    spans = [s for s in run.timeline.spans if s.kind == "elsewhere"]
    for name in names:
        took = sum(e["dur"] for e in events_of("alexnet") if e["name"] == name)
        shown = sum(s.stop_ns - s.start_ns for s in spans if s.name == name)
        assert shown / 1e3 == pytest.approx(took, rel=1e-3)
    assert run.limited_by().what == "elsewhere"


def test_what_talks_to_other_gpus_is_told_from_what_computes() -> None:
    run = kit.open_trace(DATA / "b200_vllm.json.gz")
    talks = [span.name for span in run.timeline.spans if span.kind == "communication"]
    named = [
        event["name"]
        for event in events_of("b200_vllm")
        if event.get("cat") == "kernel"
        and ("nccl" in event["name"] or "all_reduce" in event["name"])
    ]
    assert sorted(talks) == sorted(named) != []


@pytest.mark.parametrize("name", ["h100_bert", "mi300_bert"])
def test_a_value_that_a_model_reads_is_found_at_its_function(name: str) -> None:
    """A mask is decided on the host: `item` in transformers, for the line of the user."""
    syncs = kit.open_trace(DATA / f"{name}.json.gz").timeline.syncs
    read = [sync for sync in syncs if sync.cause == "item"]
    assert [sync.site for sync in read] == [
        "moca/library/model_hub/huggingface/model/adapters/text_base_model.py:28"
    ]
    assert read[0].via == "transformers/modeling_attn_mask_utils.py:429"
