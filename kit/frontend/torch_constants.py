"""What a recorded step has as constants, though the program may change it: of modules, optimizers.

A replay does not run the step's Python, so it has to ask before each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kit.runtime.steps_recorded import numbers_in

__all__ = ["of_module", "of_optimizer"]


def of_module(module: nn.Module) -> Callable[[], Any]:
    """Asks which modules are in it and train, and which parameters need or have a gradient.

    By `_modules` and `_parameters`, as torch's own `named_modules` does, which takes more than
    twice as long: every replayed step waits for this.
    """

    def look() -> Any:
        seen: list[Any] = []
        modules: list[Any] = [module]
        for one in modules:  # grows while it is gone through
            seen += (id(one), one.training)
            for parameter in one._parameters.values():
                if parameter is not None:
                    seen += (id(parameter), parameter.requires_grad, parameter.grad is None)
            modules += filter(None, one._modules.values())
        return seen

    return look


def of_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Asks for the numbers of its groups, such as the learning rate."""

    def look() -> Any:
        groups = optimizer.param_groups
        numbers = [[x for key, x in group.items() if key != "params"] for group in groups]
        return list(numbers_in(numbers)), [len(group["params"]) for group in groups]

    return look
