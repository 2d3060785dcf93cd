"""Checkpoints: `torch.save` and `torch.load`, and a training that goes on as if never stopped."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kit.errors import SessionError
from kit.runs.settings import Settings
from kit.torch import backend
from kit.torch.device import open_session

PLACES: dict[str, Callable[[], Any]] = {
    "kit": lambda: "kit",
    "kit:0": lambda: "kit:0",
    "a device": lambda: torch.device("kit"),
    "a table": lambda: {"cpu": "kit"},
}


def saved(item: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(item, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_loads_to_the_device(
    place: str, weights_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.arange(6.0).reshape(2, 3)
    made = {
        "w": w,
        "a row of it": w[1],
        "turned": w.t(),
        "a parameter": nn.Parameter(torch.ones(2)),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "no number": torch.zeros(0, 2),
        "one number": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        "complex": torch.tensor([1 + 2j]),
    }
    with open_session():
        # This looks at all objects, which took seconds where each storage of a file did it.
        monkeypatch.setattr(backend, "DeviceQuestion", lambda: pytest.fail("it is made again"))
        found = torch.load(saved(made), map_location=PLACES[place](), weights_only=weights_only)
        for name, expected in made.items():
            assert found[name].device.type == "kit"
            assert found[name].stride() == expected.stride()
            assert torch.equal(found[name].detach().cpu(), expected.detach())
        assert isinstance(found["a parameter"], nn.Parameter)
        found["a row of it"][0] = 77  # memory that was shared is shared
        assert found["w"][1, 0].item() == found["turned"][0, 1].item() == 77


def test_without_a_place_a_file_holds_cpu_tensors_that_open_anywhere() -> None:
    with open_session():
        model = nn.Linear(2, 2).to("kit")
        file = saved(model.state_dict())
    found = torch.load(file)
    assert {x.device.type for x in found.values()} == {"cpu"}
    with open_session():
        again = nn.Linear(2, 2).to("kit")
        again.load_state_dict(found)
        assert torch.equal(again.weight.detach().cpu(), found["weight"])


@pytest.mark.parametrize("mode", ["lazy", "bulked"])
def test_tensors_that_share_memory_share_it_in_the_file(mode: str) -> None:
    with open_session(Settings(mode=mode)):
        x = torch.arange(1000.0, device="kit")
        tied = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)).to("kit")
        tied[1].weight = tied[0].weight
        made = [x, x[2:5], x.view(2, 500).t(), x.view(torch.int32), torch.ones(2, 2, device="kit")]
        host = [torch.arange(1000.0), torch.arange(1000.0).view(torch.int32), torch.ones(2, 2)]
        size = len(saved(host).getvalue())
        assert len(saved(made).getvalue()) < size + 500
        whole, part, turned, as_integers, _ = torch.load(saved(made))
        x[3] = -1.0  # since then written, and in the next file
        assert torch.load(saved(made))[1].tolist() == [2, -1, 4]
        states = torch.load(saved(tied.state_dict()))
        expected = tied[0].weight.detach().cpu()
    whole[2] = 77
    assert part.tolist() == [77, 3, 4]
    assert (part.storage_offset(), turned.stride(), turned[2, 0].item()) == (2, (1, 500), 77)
    assert as_integers.view(torch.float32)[2].item() == 2
    assert torch.equal(states["1.weight"], expected)
    assert states["0.weight"].data_ptr() == states["1.weight"].data_ptr()


def test_a_replayed_step_counts_in_the_next_file() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay")) as session:
        layer = nn.Linear(2, 1).to("kit")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            layer(torch.ones(1, 2, device="kit")).sum().backward()
            optimizer.step()

        found, earlier = [], []
        for _ in range(8):
            session.run_step(step)
            found.append(layer.bias.item() - torch.load(saved(layer.bias)).item())
            earlier.append(layer.bias.__reduce_ex__(2))  # a pickle that is still being written
        assert session.stepper.counts["replay.steps"] > 0
        assert found == [0.0] * 8


def test_a_whole_model_goes_to_the_device_and_trains() -> None:
    with open_session():
        file = saved(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to("kit"))
        model = torch.load(file, map_location="kit", weights_only=False)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 3, device="kit")).square().sum().backward()
        before = model[0].weight.detach().cpu()
        optimizer.step()
        assert not torch.equal(model[0].weight.detach().cpu(), before)


def test_loading_to_the_device_needs_a_session_and_one_that_exists() -> None:
    with open_session(), pytest.raises(RuntimeError, match="kit:1"):
        torch.load(saved(torch.ones(2)), map_location="kit:1")
    with pytest.raises(SessionError, match=r"with kit\.Session"):
        torch.load(saved(torch.ones(2)), map_location="kit")


class Training:
    """A model with dropout, AdamW, a schedule and a gradient scaler."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(1)
        self.device = device
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
        self.scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)
        self.parts = [self.model, self.optimizer, self.schedule, self.scaler]

    def step(self, number: int) -> float:
        x = torch.full((3, 4), float(number)).to(self.device)
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        return loss.item()

    def save(self) -> io.BytesIO:
        states = [part.state_dict() for part in self.parts]
        return saved((states, torch.get_rng_state(), torch.kit.get_rng_state()))  # type: ignore[attr-defined]

    def load(self, file: io.BytesIO, place: Any) -> None:
        states, host, device = torch.load(file, map_location=place)
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(host.cpu())
        torch.kit.set_rng_state(device)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", [None, "cpu", "kit"])
def test_a_training_resumes_with_the_losses_of_no_interruption(place: Any) -> None:
    with open_session():
        training = Training("kit")
        expected = [training.step(i) for i in range(6)]
    with open_session():
        training = Training("kit")
        losses = [training.step(i) for i in range(3)]
        file = training.save()
    with open_session():
        again = Training("kit")
        again.load(file, place)
        losses += [again.step(i) for i in range(3, 6)]
    assert losses == expected


def test_a_checkpoint_goes_to_the_cpu_and_back_with_the_devices_random_numbers() -> None:
    def steps(training: Training, numbers: range, *, dropout: bool = True) -> list[float]:
        training.model.train(dropout)  # the CPU would drop others
        return [training.step(i) for i in numbers]

    with open_session():
        training = Training("kit")
        expected = steps(training, range(2)) + steps(training, range(2, 4), dropout=False)
        expected += steps(training, range(4, 6))
    with open_session():
        training = Training("kit")
        losses = steps(training, range(2))
        file = training.save()
    training = Training("cpu")
    training.load(file, "cpu")
    losses += steps(training, range(2, 4), dropout=False)
    file = training.save()
    with open_session():
        training = Training("kit")
        training.load(file, "kit")
        losses += steps(training, range(4, 6))
    assert losses == pytest.approx(expected, rel=1e-4)


def test_a_state_of_random_numbers_that_is_set_before_the_session_counts_in_it() -> None:
    def draw() -> list[float]:
        return torch.rand(3, device="kit").tolist()  # type: ignore[no-any-return]

    device: Any = torch.kit  # type: ignore[attr-defined]
    with open_session():
        state = device.get_rng_state()
        expected = draw()
    device.set_rng_state(state)
    assert torch.equal(device.get_rng_state(), state)
    torch.random.set_rng_state(torch.get_rng_state())
    with open_session():
        assert draw() == expected
    device.set_rng_state(state)
    torch.manual_seed(8)  # the newer word
    with open_session():
        seeded = draw()
    with open_session():  # each state counts once
        assert draw() == seeded != expected


def test_a_state_that_was_saved_where_no_session_was_changes_nothing() -> None:
    device: Any = torch.kit  # type: ignore[attr-defined]
    unknown = device.get_rng_state()
    with open_session():
        device.set_rng_state_all([unknown])
        assert device.initial_seed() == torch.initial_seed() % 2**32
