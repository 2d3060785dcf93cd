"""A watched loop's optimizer: where it trains, and whether its step ends one of the loop."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kit.errors import SettingsError, but_of_handlers
from kit.runs.steady import MOST_WARMUP
from kit.runtime.session.forks import is_any_open
from kit.text import format_count
from kit.torch.optimizers import step_around

if TYPE_CHECKING:
    from kit.runtime.session.session import Session

__all__ = ["Leader", "device_of", "index_of", "is_captured", "is_inner",
           "notes_of_left_out", "session_around"]  # fmt: skip


_MANY = 3  # optimizers, one after the other: the loop makes new ones all the time


class Leader:
    """The optimizer whose steps end those of the loop: the first one, until the loop replaces it.

    One that is stepped group by group, as DeepSpeed does, has another first parameter each time,
    and ends a step with its first group only. Where that of another group comes again before it
    has, the program has replaced it. One that is made anew for the same model only continues it.
    Where a program makes one after the other, as for the inner steps of meta-learning, the one that
    outlives them leads.
    """

    def __init__(self) -> None:
        self.optimizer: Callable[[], Any] = _none  # a weak reference
        self._first: Callable[[], Any] = _none  # its first parameter, as it ends a step
        self._groups: set[int] = set()  # with which it was stepped since
        self._others: Counter[int] = Counter()  # steps of other optimizers since
        self._count = 0  # leaders so far
        # By id: an optimizer, and how many had led when it was first beside them, or led last.
        self._beside: dict[int, tuple[Callable[[], Any], int]] = {}

    def take(self, optimizer: Any) -> None:
        """A step of the loop ends with a step of this one, and so will the next."""
        first = next(_parameters_of(optimizer), None)
        if self.optimizer() is not optimizer:
            self._count += first is not self._first()
            self.optimizer = weakref.ref(optimizer)
        self._beside[id(optimizer)] = self.optimizer, self._count
        self._first = _none if first is None else weakref.ref(first)
        self._groups.clear()
        self._others.clear()

    def steps_first(self, optimizer: Any) -> bool:
        """Does it step the parameters that ended a step last, as the leader or in its place?"""
        is_first = next(_parameters_of(optimizer), None) is self._first()
        return is_first and self.optimizer() in (optimizer, None)

    def ends_step(self, optimizer: Any) -> bool:
        """Does this optimizer's step end one of the loop?"""
        if self.steps_first(optimizer):
            return True
        if self.optimizer() is not optimizer:
            return False
        first = id(next(_parameters_of(optimizer), None))
        is_again = first in self._groups
        self._groups.add(first)
        return is_again

    def is_replaced(self, optimizer: Any, most: int) -> bool:
        """Does the loop step this optimizer now instead: the leader is gone, waits for long, or is
        one of many while this one stays?

        Args:
            most: steps of another optimizer, from one of the leader's to the next.
        """
        leader = self.optimizer()
        if leader is None or leader is optimizer:
            return leader is None
        known, since = self._beside.get(id(optimizer), (_none, 0))
        if known() is not optimizer:  # another one had its place in memory
            self._beside[id(optimizer)] = weakref.ref(optimizer), self._count
            self._others[id(optimizer)] = 0
            since = self._count
        self._others[id(optimizer)] += 1
        return self._others[id(optimizer)] > most or self._count - since >= _MANY

    def goes_on(self, optimizer: Any) -> bool:
        """Does its step end one of the loop after a recording? One that stays is followed."""
        is_first = self.steps_first(optimizer)
        if is_first and self.optimizer() is optimizer:
            self._others.clear()  # and nothing else: it is asked in each step of a long training
            return True
        is_end = is_first or self.is_replaced(optimizer, MOST_WARMUP)
        if is_end:
            self.take(optimizer)
        return is_end


def notes_of_left_out(left_out: Sequence[int]) -> list[str]:
    """Of a recording that begins: what was forgotten, for each optimizer that was replaced."""
    if not left_out:
        return []
    said = (
        f"{format_count(sum(left_out), 'step')} before these are left out: they ended with the "
        "step() of an optimizer that the loop has replaced"
    )
    again = ", and so on: call watch.step() where a step of the loop ends"
    return [said + again * (len(left_out) >= _MANY)]


def _none() -> None:
    """There is no optimizer yet."""


def is_inner(optimizer: Any) -> bool:
    """Is this the end of a `super().step()`, inside another `step` of the same optimizer?"""
    around = 0
    frame = step_around()
    code = None if frame is None else frame.f_code
    while frame is not None and around < 2:
        if frame.f_code is code:
            around += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return around > 1


def is_captured() -> bool:
    """Is a graph of CUDA being captured here? Nothing may wait meanwhile, or mark the stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _holds_cuda_memory() -> bool:
    """Is there a tensor on CUDA? Something else may have started it, for a loop on the CPU."""
    if not torch.cuda.is_initialized():
        return False
    try:
        return any(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    except but_of_handlers(RuntimeError):  # an allocator of the program's own does not tell
        return True


def index_of(optimizer: Any) -> int | None:
    """Of the GPU that has its first parameters; None where none has."""
    return next(
        (p.device.index for p in _parameters_of(optimizer) if p.device.type == "cuda"), None
    )


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    """Those of all groups, in order."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def session_around() -> Session | None:
    """The session that is open around the loop; a loop without one does not load jax."""
    if not is_any_open():
        return None
    from kit.runtime.session.session import current_session

    return current_session()


def device_of(optimizer: Any) -> str:
    """Where the loop trains: by its optimizer's parameters, or else by what is in use."""
    kinds = {p.device.type for p in _parameters_of(optimizer)}
    in_use = [name for name in ("kit", "cuda") if name in kinds]
    if not kinds and session_around() is not None:
        return "kit"
    if not kinds:
        return "cuda" if _holds_cuda_memory() else "cpu"
    if in_use or "cpu" in kinds:
        return in_use[0] if in_use else "cpu"
    raise SettingsError(
        f"the loop trains on {min(kinds)!r}: kit.watch records steps on the CPU, on CUDA, "
        "and on device kit in an open session"
    )
