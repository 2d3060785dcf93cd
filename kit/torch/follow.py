"""Follows a torch program: which module runs, and when an optimizer steps, by torch's own hooks."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import CodeType
from typing import Any
from weakref import WeakSet, finalize, ref

import torch
from torch.nn.modules import module as nn_module

from kit.errors import is_a, note
from kit.runtime.recording.sites import callers
from kit.runtime.session.session import Session
from kit.torch.constants import is_scripted, of_module, of_optimizer
from kit.torch.optimizers import (
    FOLLOWED,
    OptimizerWatch,
    makes_state,
    step_around,
)
from kit.torch.scaling.fused import prefer_fused
from kit.torch.trainers import CpuTraining, LibrarySteps

__all__ = ["Follower"]


class _Thread(threading.local):
    """Whose backward passes run in this thread itself."""

    def __init__(self) -> None:
        self.followed: WeakSet[Follower] = WeakSet()  # of the sessions that are open here
        self.before: Any = None  # gives back how it was before the first of them


_HERE = _Thread()


class Follower(OptimizerWatch):
    """The hooks of one session, from when it is made until `close`, or until that is freed."""

    def __init__(self, session: Session) -> None:
        self._session = ref(session)  # torch holds the hooks, and these shall hold no session
        self._on_cpu = CpuTraining()
        hooks = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._unhook = finalize(session, _freed, self, hooks)
        self._unhook.atexit = False
        FOLLOWED.follow(self)  # not before: it holds what follows
        # Backward runs in the thread that asks for it: torch sizes its pool of device threads at
        # the process's first backward, which may have been before device "kit" was registered.
        if _HERE.before is None:
            _HERE.before = torch.autograd.set_multithreading_enabled(False)
            _HERE.before.__enter__()
        _HERE.followed.add(self)

    def close(self) -> None:
        """The session closes: nothing is followed any more."""
        _HERE.followed.discard(self)
        others = (other._session() for other in _HERE.followed)
        are_open = any(session is not None and session.is_open for session in others)
        if not are_open and _HERE.before is not None:
            _HERE.before.__exit__(None, None, None)
            _HERE.before = None
        self._unhook()

    def _enter_module(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():  # else what follows would be guarded in compiled code
            return
        session = self._session()
        stream = None if session is None else session.here.stream
        if session is not None and stream is not None and stream.place is not None:
            if not stream.place.scope or is_scripted(module):
                session.stepper.watch(module, of_module)
            stream.place.enter(module)
            stream.look()

    def _leave_module(self, module: Any, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if output is None and is_a(error := sys.exception(), RecursionError):
            _say_how_deep(error)
        session = self._session()
        stream = None if session is None else session.here.stream
        if stream is not None and stream.place is not None:
            stream.place.leave(module)
            stream.look()

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        session = self._session()
        if session is None or not session.is_open:
            return
        prefer_fused(optimizer)
        if (stream := session.here.stream) is not None:
            session.stepper.watch(optimizer, of_optimizer)
            self._on_cpu.look(optimizer, session)
            has_closure = len(args) > 1 or "closure" in kwargs  # it makes values of its own
            is_new = not has_closure and makes_state(optimizer)
            around = step_around() if is_new else None
            stream.makes_state = None if around is None else partial(_is_running, around.f_code)

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        session = self._session()
        if session is not None and (stream := session.here.stream) is not None:
            stream.makes_state = None
            LibrarySteps.of(session).after_optimizer(optimizer, session)

    def before_batch(self, iterator: Any) -> None:
        session = self._session()
        stream = None if session is None else session.here.stream
        if session is None or stream is None or stream.place is None or not stream.is_main:
            return
        if stream.place.next_batch(iterator) and stream.is_pending:
            LibrarySteps.of(session).after_evaluated(session)


def _is_running(code: CodeType) -> bool:
    """Is this function among the callers? Torch calls no hook where an optimizer's step raises."""
    return any(f.f_code is code for f in callers(sys._getframe(1)))


def _say_how_deep(error: RecursionError) -> None:
    """Counted with torch 2.13: it calls one more function of its own where there are hooks."""
    if not getattr(error, "__notes__", ()):
        note(
            error,
            "kit: while a session is open, a module within another takes five of Python's nested "
            "calls, and four without. If the model is meant to be as deep, allow more of them "
            f"before the first step: sys.setrecursionlimit({3 * sys.getrecursionlimit()})",
        )


def _freed(follower: Follower, hooks: list[Any]) -> None:
    """The session closes, or was dropped and is freed: that may be in the middle of a step."""
    FOLLOWED.leave(follower)
    for hook in hooks:
        hook.remove()
