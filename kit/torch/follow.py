"""Follows a torch program: which module runs, and when an optimizer steps, by torch's own hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kit.runtime.session.session import Session
from kit.torch.constants import of_module, of_optimizer
from kit.torch.optimizers import prefer_fused

__all__ = ["Follower"]


class Follower:
    """The hooks of one session, from when it is made until `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks: list[Any] = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(prefer_fused),
            register_optimizer_step_pre_hook(self._enter_update),
        ]
        # Backward runs in the thread that asks for it: torch sizes its pool of device threads at
        # the process's first backward, which may have been before device "kit" was registered.
        self._threads = torch.autograd.set_multithreading_enabled(False)
        self._threads.__enter__()

    def close(self) -> None:
        """The session closes: nothing is followed any more."""
        self._threads.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: Any, args: Any) -> None:
        stream = self._session.here.stream
        if stream is not None and stream.place is not None:
            if not stream.place.scope:
                self._session.stepper.watch(module, of_module)
            stream.place.enter(module)
            stream.look()

    def _leave_module(self, module: Any, args: Any, output: Any) -> None:
        stream = self._session.here.stream
        if stream is not None and stream.place is not None:
            stream.place.leave(module)
            stream.look()

    def _enter_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._session.here.stream is not None:
            self._session.stepper.watch(optimizer, of_optimizer)
