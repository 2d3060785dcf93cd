"""The two networks of PR 14200: their published sizes, and the same numbers as native torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import kit
from kit.errors import SettingsError
from kit.workloads.convnets import LAYOUTS, MODELS, convnet


@pytest.mark.parametrize(
    ("model", "parameters"), [("resnet50_v1b", 25_557_032), ("inception_v3", 23_834_568)]
)
def test_the_full_networks_have_the_published_size(model: str, parameters: int) -> None:
    make, sizes = MODELS[model]
    with torch.device("meta"):
        network = make(sizes["full"])
        side = sizes["full"].image
        assert network(torch.empty(2, 3, side, side)).shape == (2, 1000)
    assert sum(p.numel() for p in network.parameters()) == parameters


def gradients(model: str, device: str, layout: str) -> list[torch.Tensor]:
    """One training pass in float64, where rounding is too small to grow through batch norm."""
    make, sizes = MODELS[model]
    torch.manual_seed(0)
    side = sizes["tiny"].image
    images, labels = torch.randn(8, 3, side, side).double(), torch.arange(8)
    network: Any = make(sizes["tiny"]).double().to(memory_format=LAYOUTS[layout])
    network = network.to(device)
    loss = functional.cross_entropy(network(images.to(device)), labels.to(device))
    loss.backward()
    found = [loss, *(p.grad for p in network.parameters()), *network.state_dict().values()]
    return [x.detach().cpu() for x in found]


@pytest.mark.parametrize(
    ("model", "layout"),
    [("resnet50_v1b", "NCHW"), ("resnet50_v1b", "NHWC"), ("inception_v3", "NCHW")],
)
def test_gradients_and_statistics_equal_native_torch(model: str, layout: str) -> None:
    expected = gradients(model, "cpu", layout)
    with kit.Session(kit.Settings(mode="lazy"), strict=True) as session:
        found = gradients(model, "kit", layout)
        assert not session.unlowered
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", ["bulked", "lazy"])
def test_a_step_runs_on_the_device_alone_and_learns(mode: str) -> None:
    workload = convnet("resnet50_v1b", "tiny")
    run = kit.run(workload, kit.Settings(mode=mode, steps=6, warmup=2, batch_size=16))
    assert not run.unlowered
    assert run.sync_points == ()
    assert run.losses[-1] < run.losses[0]


@pytest.mark.parametrize("model", [*MODELS])
def test_inference_equals_native_torch_and_is_one_segment(model: str) -> None:
    workload = convnet(model, "tiny", training=False)
    assert workload.name == f"{model}_inference"
    native = kit.run(workload, kit.Settings(mode="torch", steps=2, warmup=0))
    run = kit.run(workload, kit.Settings(steps=2, warmup=1))
    whole = [s for s in run.segments if s.cut != "size"]
    assert len(whole) == 1
    assert run.losses[0] == pytest.approx(native.losses[1], rel=1e-4)


def test_wrong_names_are_refused_with_the_right_ones() -> None:
    with pytest.raises(SettingsError, match=r"model must be one of \['resnet50_v1b'"):
        convnet("resnet18")
    with pytest.raises(SettingsError, match="layout must be one of"):
        convnet("inception_v3", layout="CHWN")
    with pytest.raises(SettingsError, match="size must be one of"):
        convnet("inception_v3", "small")
