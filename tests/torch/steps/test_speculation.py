"""Steps that are guessed while they are recorded, where the guess is wrong."""

from __future__ import annotations

from typing import Any

import torch

from kit.runs.settings import Settings
from kit.torch.device import open_session


def test_a_step_may_fetch_its_batch_after_a_wrong_guess() -> None:
    def losses(device: str, session: Any = None) -> list[float]:
        w, made = torch.ones(3, device=device), []

        def load() -> torch.Tensor:
            return torch.ones(3).to(device)

        def step() -> float:
            doubled = w * 2
            doubled.sum().item()  # each read ends a segment
            other = doubled + 3 if i == 5 else doubled * 3
            other.sum().item()
            x = load() if session is None else session.fetch(load)
            return (doubled * other * x).sum().item()

        for i in range(8):  # noqa: B007 - the step reads it
            made.append(step() if session is None else session.run_step(step))
        return made

    with open_session(Settings(mode="lazy", step_mode="speculate")) as session:
        assert losses("kit", session) == losses("cpu")
        assert session.stepper.counts["speculate.wrong"] > 0


def test_a_step_may_end_sooner_than_the_one_before() -> None:
    def losses(device: str, session: Any = None) -> list[float]:
        w, made = torch.ones(3, device=device), []

        def step() -> float:
            read = (w * 2).sum().item()  # what the last segment of the step before has made
            if i == 5:
                return read
            read += (w * 3).sum().item()
            w.mul_(0.5)
            return read

        for i in range(8):  # noqa: B007 - the step reads it
            made.append(step() if session is None else session.run_step(step))
        return made

    with open_session(Settings(mode="lazy", step_mode="speculate")) as session:
        assert losses("kit", session) == losses("cpu")
        assert session.stepper.counts["speculate.right"] > 0
