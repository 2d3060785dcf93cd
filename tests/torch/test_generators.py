"""`torch.Generator("kit")`: numbers of its own on device kit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kit
from kit.torch.mapping import named_devices

Draw = Callable[[torch.Generator, torch.Tensor], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "rand": lambda g, x: torch.rand(8, generator=g, device=x.device),
    "randint": lambda g, x: torch.randint(9, (8,), generator=g, device=x.device),
    "randperm": lambda g, x: torch.randperm(8, generator=g, device=x.device),
    "normal": lambda g, x: torch.normal(x, x, generator=g),
    "rand_like": lambda g, x: torch.rand_like(x, generator=g),
    "randn_like": lambda g, x: torch.randn_like(x, generator=g),
    "randint_like": lambda g, x: torch.randint_like(x, 99, generator=g),
    "randint_like of two ends": lambda g, x: torch.randint_like(x, 5, 99, generator=g),
    "multinomial": lambda g, x: torch.multinomial(x, 5, generator=g),
    "bernoulli": lambda g, x: torch.bernoulli(x / 3, generator=g),
    "bernoulli of a number": lambda g, x: torch.bernoulli(x, 0.4, generator=g),
    "bernoulli_": lambda g, x: x.bernoulli_(0.4, generator=g),
    "bernoulli_ of a tensor": lambda g, x: x.bernoulli_(x / 3, generator=g),
    "uniform_": lambda g, x: x.uniform_(generator=g),
    "random_": lambda g, x: x.random_(generator=g),
    "exponential_": lambda g, x: x.exponential_(generator=g),
    "trunc_normal_": lambda g, x: torch.nn.init.trunc_normal_(x, generator=g),
    "rrelu": lambda g, x: torch.ops.aten.rrelu_with_noise(
        -x, torch.zeros_like(x), 0.1, 0.9, True, g
    ),
    "poisson": lambda g, x: torch.poisson(x * 50, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_draw_takes_its_numbers_from_the_generator(name: str) -> None:
    def drawn(seed: int) -> list[Any]:
        generator = torch.Generator("kit").manual_seed(seed)
        twice = [DRAWS[name](generator, torch.ones(8, device="kit")) for _ in range(4)]
        return [x.tolist() for x in twice]

    with kit.Session():
        before = torch.kit.get_rng_state().tolist()  # type: ignore[attr-defined]
        first, again, other = drawn(1), drawn(1), drawn(2)
        assert torch.kit.get_rng_state().tolist() == before  # type: ignore[attr-defined]
    assert first == again
    assert first != other
    assert first[0] != first[1] or first[1] != first[2] or first[2] != first[3]


def test_its_state_is_kept_and_copied_as_torchs_own() -> None:
    with kit.Session():
        first = torch.Generator(device=torch.device("kit", 0)).manual_seed(4)
        assert isinstance(first, torch.Generator)
        assert first.device.type == "kit"
        assert first.initial_seed() == 4
        torch.rand(3, generator=first, device="kit")
        made = torch.Generator("kit")
        made.set_state(first.get_state())
        others = [made, first.clone_state(), copy.deepcopy(first)]
        others.append(pickle.loads(pickle.dumps(first)))
        numbers = [torch.rand(3, generator=x, device="kit").tolist() for x in [first, *others]]
        assert numbers == numbers[:1] * 5


def test_a_step_that_draws_from_one_is_not_replayed_with_old_numbers() -> None:
    with kit.Session(kit.Settings(step_mode="replay")) as session:
        generator = torch.Generator("kit").manual_seed(0)
        x = torch.ones(3, device="kit")

        def step() -> torch.Tensor:
            return x * torch.rand(3, generator=generator, device="kit")

        numbers = [session.run_step(step).tolist() for _ in range(12)]
        generator.manual_seed(0)
        assert numbers == [step().tolist() for _ in range(12)]
        assert not session.metrics().get("replay.steps")


def test_one_of_an_accelerator_that_kit_stands_in_for_is_device_kits() -> None:
    with kit.Session(), named_devices() as names:
        for device, found in (("cuda", "kit"), ("cpu", "cpu")):
            generator = torch.Generator(device=device).manual_seed(1)
            assert generator.device.type == found
            assert torch.randn(3, generator=generator, device="cuda").device.type == "kit"
        assert torch.Generator().device.type == "cpu"
        assert "stood in for cuda" in names.said
    assert torch.Generator("cpu").device.type == "cpu"
