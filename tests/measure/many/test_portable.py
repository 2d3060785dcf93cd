"""What goes to another process and comes back is what it was: workloads, runs, errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SweepError, SweepInterrupted
from kit.measure.base.context import Workload
from kit.runs.settings import Settings
from kit.workloads import bert_of, zero_grad_by
from kit.workloads.convnets import convnet
from tests.factories import make_run

NATIVE = Settings(mode="torch", steps=1, warmup=0)


def all_workloads() -> Iterator[Workload]:
    for name in ("bert", "flips", "mlp", "jax_mlp", "zero_grad", "resnet50_v1b", "inception_v3",
                 "resnet50_v1b_inference", "inception_v3_inference"):  # fmt: skip
        yield getattr(kit.workloads, name)
    yield bert_of("small")
    yield zero_grad_by("hybridize", arrays=3, repeats=1)
    yield convnet("resnet50_v1b", "tiny", "NHWC")


@pytest.mark.parametrize("workload", list(all_workloads()), ids=lambda w: w.name)
def test_every_workload_of_kit_can_be_sent(workload: Workload):
    back = pickle.loads(pickle.dumps(workload))
    assert (back.name, back.doc, back.framework) == (
        workload.name,
        workload.doc,
        workload.framework,
    )


def test_a_sent_workload_gives_the_same_losses():
    workload = zero_grad_by("foreach", arrays=3, repeats=1)
    back = pickle.loads(pickle.dumps(workload))
    assert kit.run(back, NATIVE).losses == kit.run(workload, NATIVE).losses


@given(seed=st.integers(0, 100), hostile=st.booleans())
@settings(max_examples=10)
def test_a_run_and_its_settings_are_equal_after_a_trip(seed: int, hostile: bool):
    run = make_run(Settings(seed=seed, bulk_forward=seed + 1), hostile=hostile, seed=seed)
    back = pickle.loads(pickle.dumps(run))
    assert back == run
    assert back.settings == run.settings
    assert hash(back.settings) == hash(run.settings)


@pytest.mark.parametrize(
    "error",
    [
        SweepError([1], {"cell": ValueError("no")}),
        SweepInterrupted([1], [2], "folder"),
    ],
)
def test_the_errors_of_a_sweep_can_be_sent(error: Any):
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error)
    assert back.runs == error.runs
