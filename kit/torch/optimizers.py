"""Optimizers of a torch program: who follows their steps, and which of these make state.

Who follows them hears of a loader's batches, too: an evaluation steps no optimizer.

Torch goes through its tables of hooks in each thread that steps, and the program's step fails where
a hook comes or goes meanwhile. So the kit puts in one before and one after a step, once a process,
and never takes them out. No hook tells of a step that a `GradScaler` skips, so its `step` does.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kit.threads import in_forked_children
from kit.torch.tensors.private import private

__all__ = ["FOLLOWED", "OptimizerWatch", "makes_state", "step_around"]


Function = Callable[..., None]
# Torch's own, which loads dynamo where the function is called.
_no_dynamo: Callable[[Function], Function] = private("torch._disable_dynamo")


class OptimizerWatch:
    """Who follows the steps; each method is called in the thread of the step."""

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step begins; what this raises, the program's step does."""

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step has ended, or a scaler has skipped it; not called where it raises."""

    def before_batch(self, iterator: Any) -> None:
        """One of torch's loaders is asked for its next batch."""

    def leave_behind(self) -> None:
        """This is a forked child of the process whose steps are followed."""


class _Count(threading.local):
    """How many steps that were followed have ended in this thread."""

    ended = 0


class OptimizerSteps:
    """Tells watches of each optimizer's step; they may come and go in any thread or signal.

    Where `torch.compile` compiles an optimizer's step, it compiles these hooks with it, but none of
    the watches' own code.
    """

    def __init__(self) -> None:
        # Changed only by a dict's own methods, which are atomic.
        self._watches: dict[int, OptimizerWatch] = {}
        self._of_begins: dict[int, OptimizerWatch] = {}  # those of them that have something to do
        self._count = _Count()
        register_optimizer_step_pre_hook(self._begun)
        register_optimizer_step_post_hook(self._ended)
        scaler: Any = torch.amp.GradScaler
        scaler.step = self._or_skipped(scaler.step)
        loader = private("torch.utils.data.dataloader._BaseDataLoaderIter")
        self.bring: Callable[[Any], Any] = loader.__next__  # what a trace may replace meanwhile
        loader.__next__ = self._after_asked(loader.__next__)
        in_forked_children(self._leave_behind)

    def __len__(self) -> int:
        return len(self._watches)

    def follow(self, watch: OptimizerWatch) -> None:
        """Tell this watch of each step from now on."""
        self._watches[id(watch)] = watch
        if type(watch).before_optimizer is not OptimizerWatch.before_optimizer:
            self._of_begins[id(watch)] = watch

    def leave(self, watch: OptimizerWatch) -> None:
        """Call this watch no more, but perhaps for a step that begins or ends now."""
        self._watches.pop(id(watch), None)
        self._of_begins.pop(id(watch), None)

    def _after_asked(self, bring: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A loader's `__next__`, before which watches know that it is asked."""

        @functools.wraps(bring)
        def bringing(iterator: Any) -> Any:
            if self._watches:
                for watch in list(self._watches.values()):
                    watch.before_batch(iterator)
            return self.bring(iterator)

        return bringing

    def _begun(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._of_begins:
            self._before(optimizer, args, kwargs)

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watches:
            self._after(optimizer, args, kwargs)

    def _or_skipped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A scaler's `step`, after which watches know of the optimizer's, whether taken or not."""

        @functools.wraps(step)
        def scaled(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self._watches and isinstance(optimizer, torch.optim.Optimizer)):
                return step(scaler, optimizer, *args, **kwargs)
            before = self._count.ended
            result = step(scaler, optimizer, *args, **kwargs)
            if self._count.ended == before:
                self._ended(optimizer, args, kwargs)
            return result

        return scaled

    @_no_dynamo
    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for watch in list(self._of_begins.values()):
            watch.before_optimizer(optimizer, args, kwargs)

    @_no_dynamo
    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._count.ended += 1
        for watch in list(self._watches.values()):
            watch.after_optimizer(optimizer, args, kwargs)

    def _leave_behind(self) -> None:
        for watch in list(self._watches.values()):
            watch.leave_behind()
        self._watches.clear()
        self._of_begins.clear()


FOLLOWED = OptimizerSteps()


def step_around() -> FrameType | None:
    """In a method of a watch: torch's frame that calls the hooks, and the step between them."""
    hooks = OptimizerSteps._begun.__code__, OptimizerSteps._ended.__code__
    frame: FrameType | None = sys._getframe(1)  # no generator: it is asked in each step of a loop
    while frame is not None and frame.f_code not in hooks:
        frame = frame.f_back
    return None if frame is None else frame.f_back


def makes_state(optimizer: torch.optim.Optimizer) -> bool:
    """True before a step that updates a parameter for the first time."""
    state = optimizer.state
    if len(state) >= sum(len(group["params"]) for group in optimizer.param_groups):
        return False
    return any(
        p.grad is not None and p not in state
        for group in optimizer.param_groups
        for p in group["params"]
    )
