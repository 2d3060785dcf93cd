"""Run the step of a program several times, as its session's step mode says."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.torch.fuzz.program import Program, function, run_line, tensors

__all__ = ["STEPS", "run_steps"]

STEPS, CHANGED = 9, 6


def run_steps(program: Program, names: dict[str, Any], session: Any = None) -> list[list[Any]]:
    """What each step of a program returns; between two of them, what it reads is changed.

    Args:
        names: of the device, once the lines before the step have run.
        session: of device kit, or None on the CPU.
    """
    device = names["device"]
    batches = iter((torch.arange(6.0) % 4 - 1 + i % 3).reshape(2, 3) for i in range(2 * STEPS))

    def load() -> torch.Tensor:
        return next(batches).to(device)

    names["fetch"] = load if session is None else lambda: session.fetch(load)
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(function(program), "<program>", "exec"), names)
        step = names["step"]
        for i in range(STEPS):
            if i == CHANGED:
                change(program, names)
            results.append(step() if session is None else session.run_step(step))
    return results


def change(program: Program, names: dict[str, Any]) -> None:
    """What a program may do between two steps: change a number, write, replace a tensor, learn."""
    which = len(program.step) % 4
    if which == 1:
        names["change"]()
    first = min(tensors(names), default=None)
    if first is None:
        return
    if which == 2:
        run_line(f"with torch.no_grad(): {first}.fill_(1)", names)
    if which == 3:
        run_line(f"{first} = {first}.detach().clone()", names)
    if which == 0:
        flip = f"{first}.requires_grad_(not {first}.requires_grad)"
        hook = f"{first}.register_hook(lambda g: g * 2)"
        run_line(flip if len(program.lines) % 2 else hook, names)
