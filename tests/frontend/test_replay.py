"""What a program changes between two steps of its own counts in the next, replayed or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.frontend.torch_device import open_session
from kit.run import Settings

STEPS, CHANGED = 20, 9


def learning_rate(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def betas(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)


def evaluation(model: Any, optimizer: Any) -> None:
    model.eval()


def frozen(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(False)


def accumulated(model: Any, optimizer: Any) -> None:
    F.cross_entropy(
        model(torch.ones(4, 8, device="kit")), torch.ones(4).long().to("kit")
    ).backward()


def forgotten(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()


def shortened(model: Any, optimizer: Any) -> None:
    del model[1]


def added(model: Any, optimizer: Any) -> None:
    bias = nn.Parameter(torch.ones(1, device="kit"))
    optimizer.add_param_group({"params": [bias], "lr": 0.5})
    bias.grad = torch.ones(1, device="kit")


def train(
    change: Callable[[Any, Any], None], step_mode: str, *, zeroes: bool = True
) -> tuple[list[float], list[float], Any]:
    """Losses, and the first weights; `change` is called once, between two steps."""
    with open_session(Settings(mode="lazy", step_mode=step_mode)) as session:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
        model.to("kit")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = iter(torch.randn(STEPS, 4, 8))
        target = torch.tensor([0, 1, 2, 1]).to("kit")

        def step() -> Any:
            x = session.fetch(load)
            loss = nn.CrossEntropyLoss()(model(x), target)  # a module that lives for a step
            loss.backward()
            optimizer.step()
            if zeroes:
                optimizer.zero_grad()
            return loss.detach()

        def load() -> Any:
            return next(batches).to("kit")

        losses = []
        for i in range(STEPS):
            if i == CHANGED:
                if step_mode == "replay":
                    assert session.metrics()["replay.steps"] == CHANGED - 4
                change(model, optimizer)
            losses.append(session.run_step(step))
            if not zeroes:
                optimizer.zero_grad()
        return [x.item() for x in losses], model[0].weight.flatten().tolist(), session


CHANGES = [learning_rate, betas, evaluation, frozen, accumulated, forgotten, shortened, added]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_between_two_steps_counts_in_the_next_one(change: Any) -> None:
    *recorded, _ = train(change, "retrace")
    *replayed, session = train(change, "replay")
    assert replayed == recorded
    if change is not forgotten:
        assert any("between two steps" in why for why in session.stepper.reasons)
    assert session.stepper.counts["replay.steps"] > CHANGED


def test_gradients_may_be_zeroed_between_the_steps() -> None:
    *recorded, _ = train(forgotten, "retrace", zeroes=False)
    *replayed, session = train(forgotten, "replay", zeroes=False)
    assert replayed == recorded
    assert session.stepper.counts["replay.steps"] == STEPS - 4
