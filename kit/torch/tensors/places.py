"""Where in the user's program are we? Site, module scope and phase of each recorded op.

Reads three things that torch offers to its own tracers: the sequence number that ties a backward
node to the forward op that made it, the id of the running backward pass, and global module hooks.
The first two are private, see `kit/torch/tensors/private.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any
from weakref import WeakSet, ref

import torch

from kit.runtime.recording.bulk import NOWHERE, Frame, Site
from kit.runtime.recording.sites import installed, is_kits, is_standard
from kit.torch.tensors.private import private

__all__ = ["ProgramPlace", "outside_torch"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_WRAPPERS = tuple(
    _TORCH + part for part in ("_tensor", "_dynamo", "utils", "_compile", "_ops", "_library")
)
MANY = 100_000  # forward ops whose places are remembered for their backward
# What Python puts between two others, and where every thread begins.
_BETWEEN = {"<string>", contextlib.__file__, sys.modules["threading"].__file__}
_graph_task_id = private("torch._C._current_graph_task_id")
_autograd_node = private("torch._C._current_autograd_node")
_sequence = private("torch._C._autograd._get_sequence_nr")


class ProgramPlace:
    """Follows the program in one thread: which module, which phase, which line."""

    def __init__(self) -> None:
        self.scope = ""
        self._stack: list[tuple[Any, str]] = []
        # Since a batch was drawn: networks ran with gradients, or without; who gave batches.
        self._networks: set[bool] = set()
        self._drawn: WeakSet[Any] = WeakSet()
        self._newest: ref[Any] | None = None  # who gave the newest batch
        self._training: WeakSet[Any] = WeakSet()  # whose batches have met networks with gradients
        # by ids, which others have once the modules are gone: parent, child, its name in there
        self._names: dict[tuple[int, int], tuple[ref[Any], ref[Any], str]] = {}
        self.phase = "forward"
        self.task = -1  # id of the backward pass that runs, -1 outside of one
        self._made: dict[int, Frame] = {}  # sequence number of a forward op -> where it was
        self._made_before: dict[int, Frame] = {}
        self._number = -1
        self._last: Frame = (NOWHERE, "", "")
        self._records: dict[str, bool] = {}  # whether an op may be said to be in this file
        self.caller: Site = NOWHERE  # the line in another thread that this one works for

    def mark_step(self) -> None:
        """A new step begins forward."""
        self.relocate()
        self._networks.clear()
        self.phase = "forward" if self.task == -1 else "backward"
        self._made_before, self._made = self._made, {}
        if self._stack or self.scope:  # an exception left a module without telling us
            self._stack.clear()
            self.scope = ""

    def next_batch(self, iterator: Any) -> bool:
        """A loader is asked for a batch: has its last one been evaluated, without gradients?

        A network without gradients is a teacher of the batches that follow where several loaders
        give those of a step, or one gives two and is known to train.
        """
        is_next = iterator in self._drawn
        has_evaluated = is_next and self._networks == {False} and not self._stack
        has_evaluated = has_evaluated and iterator not in self._training
        if is_next or True in self._networks:
            self._networks.clear()
            self._drawn.clear()
        self._drawn.add(iterator)
        self._newest = ref(iterator)
        return has_evaluated

    def follow(self) -> str:
        """The phase of now."""
        if _graph_task_id() != self.task:
            self.relocate()
        return self.phase

    def relocate(self) -> None:
        """A backward pass begins or ends: from its end on it is the update."""
        self.task = _graph_task_id()
        self.phase = "update" if self.task == -1 else "backward"

    def frame(self) -> Frame:
        """Where the op that is being recorded comes from."""
        if self.task != -1:
            return self._backward_frame()
        known = self._records
        frame: Any = sys._getframe(3)
        site = NOWHERE
        while frame is not None:
            name = frame.f_code.co_filename
            user = known.get(name)
            if user is None:
                user = known[name] = _is_outside(name) and not is_standard(name)
            if user:
                site = (name, frame.f_lineno)
                break
            frame = frame.f_back
        if site is NOWHERE:
            site = self.caller
        found = self._last = (site, "", self.scope)
        number = _sequence() - 1
        if number != self._number:  # autograd has made a node for this op
            self._number = number
            if len(self._made) > MANY:  # the program never calls mark_step
                self._made_before, self._made = self._made, {}
            self._made[number] = found
        return found

    def sync_frame(self) -> Frame:
        """The user's line, and the line of a library that it called, if that did it."""
        site, via = outside_torch(sys._getframe(1))
        return self.caller if site is NOWHERE else site, via, self.scope

    def _backward_frame(self) -> Frame:
        node = _autograd_node()
        number = node._sequence_nr() if node is not None else -1
        found = self._made.get(number) or self._made_before.get(number)
        if found is None:
            found = (self._last[0], "", "")
        return found

    def enter(self, module: Any) -> None:
        """A module's forward pass begins in this thread."""
        if _graph_task_id() == -1:
            self.task, self.phase = -1, "forward"
        parent = self._stack[-1] if self._stack else None
        if parent is None:
            self._note_network(torch.is_grad_enabled())
        name = self._name(parent, module)
        self.scope = f"{parent[1]}.{name}" if parent else name
        self._stack.append((module, self.scope))

    def _note_network(self, has_gradients: bool) -> None:
        self._networks.add(has_gradients)
        newest = None if self._newest is None else self._newest()
        if has_gradients and newest is not None:
            self._training.add(newest)

    def leave(self, module: Any) -> None:
        """It ends, well or not."""
        while self._stack:
            found, _ = self._stack.pop()
            if found is module:
                break
        self.scope = self._stack[-1][1] if self._stack else ""

    def _name(self, parent: tuple[Any, str] | None, module: Any) -> str:
        if parent is None:
            return type(module).__name__
        key = (id(parent[0]), id(module))
        known = self._names.get(key)
        if known is not None and known[0]() is parent[0] and known[1]() is module:
            return known[2]
        name = type(module).__name__
        for path, child in parent[0].named_modules():
            if child is module and path:
                name = path
        self._names[key] = ref(parent[0]), ref(module), name
        return name


def outside_torch(frame: Any) -> tuple[Site, str]:
    """The user's line that a frame was called from, and a library's line between the two, or "".

    A library is what is installed, torch and Python's own modules among it: a metric or a logger
    that reads a number is not where the user can do something.
    """
    via, library = "", NOWHERE
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if _is_outside(name):
            path = installed(name)
            if not path:
                return (name, line), via
            if library is NOWHERE:
                library, via = (name, line), via or f"{path}:{line}"
        elif not via and name.startswith(_TORCH) and not name.startswith(_WRAPPERS):
            via = f"torch/{name.removeprefix(_TORCH).replace(os.sep, '/')}:{line}"
        frame = frame.f_back
    return (NOWHERE, via) if library is NOWHERE else (library, "")


def _is_outside(name: str) -> bool:
    """False for the files of torch and kit, and for what is between two others."""
    return not (name.startswith((_TORCH, "<frozen")) or is_kits(name) or name in _BETWEEN)
