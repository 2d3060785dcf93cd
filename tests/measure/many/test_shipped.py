"""The workloads that come with kit: on two devices they have the losses of one, whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SettingsError
from kit.measure.base.context import Context
from kit.measure.many.context import ReplicaContext
from kit.measure.many.replicas import run
from kit.workloads import (
    flips,
    mlp,
    resnet50_v1b,
    resnet50_v1b_inference,
    rnn_gates,
    zero_grad_by,
)
from kit.workloads.convnets import MODELS, ResNet50, Size
from kit.workloads.many_arrays import WAYS
from tests.smaller import smaller_bert

UNEVEN = kit.Settings(batch_size=5, steps=3, warmup=1)
TWO = ["cpu:0", "cpu:0"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet of two blocks, as compiling it is most of what these tests do."""
    size = Size(divide=16, image=16, classes=10, blocks=(1, 1))
    monkeypatch.setitem(MODELS, "resnet50_v1b", (ResNet50, {"tiny": size}))


def losses(workload: Any, settings: kit.Settings = UNEVEN, **options: Any) -> tuple[Any, Any]:
    """Those of two devices, and of one."""
    both = run(workload, settings, devices=TWO, **options)
    alone = kit.run(workload, settings)
    assert len(both.losses) == len(alone.losses) == settings.steps
    return both.losses, alone.losses


@pytest.mark.parametrize(
    ("cell", "gates"), [("lstm", "slice"), ("lstm", "torch"), ("gru", "multigate")]
)
def test_gates_of_some_kinds(cell: str, gates: str) -> None:
    both, alone = losses(rnn_gates(cell, gates, layers=1, hidden=4, length=2))
    assert both == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("mode", ["retrace", "replay"])
def test_gates_with_micro_batches_recorded_and_replayed(mode: str) -> None:
    settings = UNEVEN.replace(accumulate=2, step_mode=mode, warmup=4)
    both, alone = losses(rnn_gates(gates="fused", layers=2, hidden=4, length=2), settings)
    assert both == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("size", [5, 300], ids=["of few", "of more than it has by itself"])
def test_narrow_layers(size: int) -> None:
    both, alone = losses(mlp, UNEVEN.replace(batch_size=size))
    assert both == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    "workload", [flips, *(zero_grad_by(w, arrays=3, repeats=2) for w in WAYS)], ids=["flips", *WAYS]
)
def test_what_has_no_batch(workload: Any) -> None:
    both, alone = losses(workload, UNEVEN.replace(steps=2))
    assert both == alone


def test_masked_words_but_for_how_many_each_part_masks() -> None:
    both, alone = losses(smaller_bert(), UNEVEN.replace(batch_size=8))
    assert both == pytest.approx(alone, abs=0.02)


@pytest.mark.parametrize("size", [5, 20], ids=["of few", "of more than it has by itself"])
def test_inference_of_images(small: None, size: int) -> None:
    both, alone = losses(resnet50_v1b_inference, UNEVEN.replace(batch_size=size, steps=2))
    assert both == pytest.approx(alone, rel=1e-5)


def test_training_on_images_if_its_batch_norms_are_kits(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they come, each part has statistics of its own."""
    monkeypatch.setattr(nn, "BatchNorm2d", kit.SyncBatchNorm)
    both, alone = losses(resnet50_v1b, UNEVEN.replace(steps=2))
    assert both == pytest.approx(alone, rel=1e-3)


# -- ctx.part ------------------------------------------------------------------------------------


def test_one_device_works_on_all_of_a_batch_that_was_made_once() -> None:
    x = torch.randn(5, 2)
    assert Context(UNEVEN, "cpu").part(x) is x


def test_a_batch_in_containers_is_cut_for_each_replica_and_the_loss_weighed_by_its_parts() -> None:
    parts: list[Any] = []

    @kit.workload
    def made_once(ctx: Any) -> Any:
        assert isinstance(ctx, ReplicaContext)
        torch.manual_seed(ctx.seed)
        model = nn.Linear(2, 1).to(ctx.device)
        part = ctx.part({"x": torch.arange(14.0).view(7, 2), "all": torch.tensor(3.0)})
        parts.append(part)
        x = part["x"].to(ctx.device)
        return lambda: model(x).mean().detach()

    made = run(made_once, UNEVEN.replace(steps=1, warmup=0), devices=TWO)  # the settings say 5
    assert [part["x"].tolist() for part in parts] == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[8, 9], [10, 11], [12, 13]],
    ]
    assert [part["all"].item() for part in parts] == [3, 3]
    torch.manual_seed(UNEVEN.seed)
    expected = nn.Linear(2, 1)(torch.arange(14.0).view(7, 2)).mean().item()
    assert made.losses == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ctx: torch.randn(4, 2).to(ctx.device), r"on the CPU.*ctx\.part\(x\)\.to\("),
        (lambda ctx: [torch.randn(4), torch.randn(4).to(ctx.device)], "tensors on the CPU"),
        (lambda ctx: 4, "tensors on the CPU"),
        (lambda ctx: torch.randn(1, 2), "a batch of 1 cannot be split over 2 devices"),
        (lambda ctx: (torch.randn(4), torch.randn(5)), r"different lengths, \[4, 5\]"),
    ],
    ids=["on the device", "one on the device", "no tensor", "too small", "of two lengths"],
)
def test_what_cannot_be_cut_is_refused(make: Any, words: str) -> None:
    def build(ctx: Any) -> Any:
        ctx.part(make(ctx))

    with pytest.raises(SettingsError, match=words):
        run(build, UNEVEN, devices=TWO)
