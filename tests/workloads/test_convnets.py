"""The two networks of PR 14200: their published sizes, and the same numbers as native torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

import kit
from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload
from kit.workloads.convnets import LAYOUTS, MODELS, Size, convnet

# Fewer blocks than in "tiny", but one of each kind: to compile them is most of what these tests do.
LEAST = {
    "resnet50_v1b": Size(divide=16, image=16, classes=10, blocks=(1, 2)),
    "inception_v3": Size(divide=16, image=75, classes=10, blocks=(1, 1, 1)),
}


@pytest.fixture
def _least(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, size in LEAST.items():
        monkeypatch.setitem(MODELS, model, (MODELS[model][0], {"tiny": size}))


@pytest.fixture
def _float64() -> Iterator[None]:
    """Rounding grows through batch norm and flips ReLUs: in float32, torch's own two layouts give
    gradients of the small Inception that differ by percents."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


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


def test_inception_with_its_second_head_has_the_published_size() -> None:
    make, sizes = MODELS["inception_v3"]
    with torch.device("meta"):
        network = make(replace(sizes["full"], auxiliary=True))
        images = torch.empty(2, 3, 299, 299)
        assert [x.shape for x in network(images)] == [(2, 1000), (2, 1000)]
        assert network.eval()(images).shape == (2, 1000)
    assert sum(p.numel() for p in network.parameters()) == 27_161_264


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


@pytest.mark.usefixtures("_least")
@pytest.mark.parametrize(
    ("model", "layout"),
    [("resnet50_v1b", "NCHW"), ("inception_v3", "NCHW")],
)
def test_gradients_and_statistics_equal_native_torch(model: str, layout: str) -> None:
    expected = gradients(model, "cpu", layout)
    with kit.Session(kit.Settings(mode="lazy"), strict=True) as session:
        found = gradients(model, "kit", layout)
        assert not session.unlowered
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-8)


def natively(workload: Workload, settings: kit.Settings) -> list[float]:
    step = workload(Context(settings.replace(mode="torch"), "cpu"))
    return [step().item() for _ in range(settings.steps)]


def on_kit(workload: Workload, settings: kit.Settings) -> list[float]:
    """The losses, of steps that wait for nothing and leave nothing to the host."""
    with kit.Session(settings, strict=True) as session:
        step = workload(Context(settings, "kit"))
        losses = [session.run_step(step) for _ in range(settings.steps)]
        assert not session.syncs
        assert not session.unlowered
        return [loss.item() for loss in losses]


@pytest.mark.usefixtures("_float64", "_least")
@pytest.mark.parametrize(
    ("model", "layout", "mode", "options"),
    [
        ("resnet50_v1b", "NCHW", "lazy", {}),
        ("resnet50_v1b", "NHWC", "bulked", {}),
        ("inception_v3", "NCHW", "bulked", {"auxiliary": True}),
    ],
)
def test_three_training_steps_equal_native_torch(
    model: str, layout: str, mode: str, options: dict[str, bool]
) -> None:
    workload = convnet(model, "tiny", layout, **options)
    settings = kit.Settings(mode=mode, bulk_forward=15, bulk_backward=15, steps=3)
    expected = natively(workload, settings)
    assert on_kit(workload, settings) == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == 3  # it changes the weights


@pytest.mark.usefixtures("_least")
@pytest.mark.parametrize(
    ("model", "layout", "mode"),
    [
        ("resnet50_v1b", "NCHW", "lazy"),
        ("resnet50_v1b", "NHWC", "bulked"),
        ("inception_v3", "NHWC", "lazy"),
        ("inception_v3", "NCHW", "bulked"),
    ],
)
def test_inference_sees_its_images_as_native_torch_does(model: str, layout: str, mode: str) -> None:
    workload = convnet(model, "tiny", layout, training=False)
    settings = kit.Settings(mode=mode, bulk_forward=15, bulk_inference=15, steps=2)
    expected = natively(workload, settings)
    assert expected[0] != pytest.approx(expected[1], rel=1e-3)
    assert on_kit(workload, settings) == pytest.approx(expected, rel=1e-5)


def test_a_step_runs_on_the_device_alone_and_learns() -> None:
    workload = convnet("resnet50_v1b", "tiny")
    run = kit.run(workload, kit.Settings(steps=6, warmup=2, batch_size=16))
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
    for model, training in (("resnet50_v1b", True), ("inception_v3", False)):
        with pytest.raises(SettingsError, match="auxiliary=True is for the training"):
            convnet(model, training=training, auxiliary=True)
