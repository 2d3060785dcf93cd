"""The ends of optimizers' steps, by one hook that stays in torch.

Torch goes through its table of hooks in each thread that steps, and the program's step fails where
a hook comes or goes meanwhile. So the kit puts one in, once a process, and never takes it out.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["FOLLOWED", "OptimizerSteps"]


class Watch(Protocol):
    """Who follows the steps."""

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step has ended; called in its thread."""

    def leave_behind(self) -> None:
        """This is a forked child of the process whose steps are followed."""


class OptimizerSteps:
    """Tells watches of each optimizer's step; they may come and go in any thread or signal.

    Where `torch.compile` compiles an optimizer's step, it compiles this hook with it, but none of
    the watches' own code.
    """

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}  # only by a dict's own methods, which are atomic
        self._tell = torch.compiler.disable(self._tell_all)
        register_optimizer_step_post_hook(self._ended)
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
            os.register_at_fork(after_in_child=self._leave_behind)

    def __len__(self) -> int:
        return len(self._watches)

    def follow(self, watch: Watch) -> None:
        """Tell this watch of each step from now on."""
        self._watches[id(watch)] = watch

    def leave(self, watch: Watch) -> None:
        """Call this watch no more, but perhaps for a step that ends now."""
        self._watches.pop(id(watch), None)

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watches:
            self._tell(optimizer, args, kwargs)

    def _tell_all(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for watch in list(self._watches.values()):
            watch.after_optimizer(optimizer, args, kwargs)

    def _leave_behind(self) -> None:
        for watch in list(self._watches.values()):
            watch.leave_behind()
        self._watches.clear()


FOLLOWED = OptimizerSteps()
