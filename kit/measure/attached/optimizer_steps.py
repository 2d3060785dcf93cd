"""The ends of optimizers' steps, by one hook that stays in torch.

Torch goes through its table of hooks in each thread that steps, and the program's step fails where
a hook comes or goes meanwhile. So the kit puts one in, once a process, and never takes it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["FOLLOWED", "OptimizerSteps"]

Heard = Callable[[Any, Any, Any], None]  # (optimizer, args, kwargs), in the thread of the step


class OptimizerSteps:
    """Tells watches of each optimizer's step; they may come and go in any thread or signal.

    Where `torch.compile` compiles an optimizer's step, it compiles this hook with it, but none of
    the watches' own code.
    """

    def __init__(self) -> None:
        self._watches: dict[int, Heard] = {}  # only by a dict's own methods, which are atomic
        self._tell = torch.compiler.disable(self._tell_all)
        register_optimizer_step_post_hook(self._ended)

    def __len__(self) -> int:
        return len(self._watches)

    def follow(self, watch: object, heard: Heard) -> None:
        """Call `heard` after each step from now on, for this watch."""
        self._watches[id(watch)] = heard

    def leave(self, watch: object) -> None:
        """Call this watch no more, but perhaps for a step that ends now."""
        self._watches.pop(id(watch), None)

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watches:
            self._tell(optimizer, args, kwargs)

    def _tell_all(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for heard in list(self._watches.values()):
            heard(optimizer, args, kwargs)


FOLLOWED = OptimizerSteps()
