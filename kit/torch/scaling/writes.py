"""What an optimizer's step writes on device kit beside its parameters and their state.

An average of the weights that a hook of the step keeps, or a step that calls torch's own: a scaler
that takes a bad step back takes this back, too. So it does where the step puts another tensor in
the place of one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from threading import get_ident
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any
from weakref import ref

import torch

from kit.errors import SettingsError
from kit.runtime.recording.bulk import Value
from kit.runtime.recording.sites import is_users
from kit.runtime.steps.names import named, wrapped_by
from kit.torch.scaling.fused import hooks_of, stepped
from kit.torch.tensors.buffer import Buffer
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = ["OtherWrites", "other_writes"]

_MOST = 1000  # things to go through for the tensors that a hook or an optimizer reaches
_OWN = "its"
_PLAIN = (int, float, str, bytes, NoneType, type, ModuleType)
_OF_EACH = {"defaults", "state", "param_groups"}  # attributes of every optimizer


@contextmanager
def other_writes(tape: Tape, optimizer: torch.optim.Optimizer) -> Iterator[OtherWrites]:
    """Notes, inside the block, each buffer that this thread writes, with its value before.

    Not those of parameters and state, of which the scalers keep copies, and not gradients: torch
    leaves those of a skipped step, too.
    """
    writes = OtherWrites(tape, optimizer)
    with tape.noting(writes.note):
        yield writes


class OtherWrites:
    """What was written, and what was there before.

    Memory that was made meanwhile, and is gone again, is forgotten at once: its values shall be no
    results of a segment.
    """

    def __init__(self, tape: Tape, optimizer: torch.optim.Optimizer) -> None:
        self._tape, self._optimizer = tape, optimizer
        grads = [p.grad for p in stepped(optimizer)]
        self._known = {id(b) for b in (*_known(optimizer), *_buffers(grads))}
        self._thread = get_ident()
        self._noted: dict[int, tuple[ref[Buffer], Value | None]] = {}  # by the buffer's id
        held = _held_by(optimizer).items()
        self._shown = {at: _Shown(x) for at, x in held if id(x.ref.base) not in self._known}

    def note(self, buffer: Buffer) -> None:
        """A thread is about to write this."""
        key = id(buffer)
        if get_ident() == self._thread and key not in self._known and key not in self._noted:
            self._noted[key] = ref(buffer, partial(self._forget, key)), buffer.value

    def _forget(self, key: int, _: Any) -> None:
        self._noted.pop(key, None)

    def values(self) -> Iterator[tuple[Buffer, Value]]:
        """Each buffer that was written and is still there, and its value before.

        Raises:
            SettingsError: a tensor was replaced by one that cannot get the numbers of before.
        """
        held = _held_by(self._optimizer)
        if not self._noted and not held:
            return
        state = set(map(id, _known(self._optimizer)))  # what this step has made is known by now
        found: dict[int, tuple[Buffer, Value]] = {}
        for key, (alive, old) in list(self._noted.items()):
            buffer = alive()
            if buffer is not None and key not in state:
                found[key] = buffer, self._tape.full(buffer.spec, 0) if old is None else old
        for buffer, value in self._replaced(held, state):
            found[id(buffer)] = buffer, value
        yield from found.values()

    def _replaced(
        self, held: dict[Any, KitTensor], state: set[int]
    ) -> Iterator[tuple[Buffer, Value]]:
        """The new memory in the place of a tensor that is no more there, and the value of that."""
        before = {id(one.base()) for one in self._shown.values()}
        given: dict[int, Value | None] = {}
        for place, tensor in held.items():
            old, buffer = self._shown.get(place), tensor.ref.base
            if old is None or old.base() is buffer or id(buffer) in state:
                continue
            is_new = id(buffer) not in before  # and gets the numbers of one only
            is_new &= given.setdefault(id(buffer), old.value) is old.value
            if not is_new or not old.is_like(_Shown(tensor)):
                if place[0] != _OWN:  # as in a hook's log of norms, whose places shift
                    continue
                raise SettingsError(
                    f"{type(self._optimizer).__name__}.step() replaces a tensor, {place[1]}, by "
                    "one that cannot be taken back on the device; write it in place, or use "
                    "loss_scaling='dynamic, host check'"
                )
            yield buffer, self._tape.full(buffer.spec, 0) if old.value is None else old.value

    def tensors(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same, as tensors: (what was written, what was there)."""
        for buffer, old in self.values():
            whole: Any = KitTensor.over(self._tape, buffer, buffer.spec)
            before: Any = wrap(self._tape, old, buffer.spec)
            yield whole, before


class _Shown:
    """What a tensor shows: of which memory, by which views, and the value there."""

    def __init__(self, tensor: KitTensor) -> None:
        shown: Any = tensor.ref
        self.base, self.value, self._aval = ref(shown.base), shown.base.value, shown.base.spec.aval
        self._views: list[Any] = []
        while shown is not shown.base:
            self._views.append(shown.op)
            shown = shown.parent

    def is_like(self, other: _Shown) -> bool:
        """Would a tensor that shows the other one's memory show this value as it is?"""
        return (self._aval, self._views) == (other._aval, other._views)


def _held_by(optimizer: torch.optim.Optimizer) -> dict[tuple[str, str, int], KitTensor]:
    """The tensors among its own attributes, in its groups, and that its hooks reach, by place."""
    hooks, own = hooks_of(optimizer), dict(vars(optimizer))
    for key in [key for key in own if key in _OF_EACH or key.startswith("_optimizer_")]:
        del own[key]  # torch's own
    of_groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    if not hooks and not any(map(_may_hold, [*own.values(), *of_groups])):
        return {}
    found: dict[tuple[str, str, int], KitTensor] = {}
    for whose, things in ((_OWN, {**own, "groups": of_groups}), ("a hook's", hooks)):
        seen = Counter[str]()
        for name, tensor in _tensors_in(whose, things):
            found[whose, name, seen[name]] = tensor
            seen[name] += 1
    return found


def _tensors_in(name: str, thing: Any) -> Iterator[tuple[str, KitTensor]]:
    """The tensors of device kit in there, the nearest first, as far as `_MOST` things go."""
    waiting, seen = deque([(name, thing)]), set[int]()
    while waiting and len(seen) < _MOST:
        name, thing = waiting.popleft()
        if isinstance(thing, KitTensor):
            yield name, thing
        elif id(thing) not in seen and not isinstance(thing, _PLAIN):
            seen.add(id(thing))
            waiting.extend(islice(_parts_of(name, thing), _MOST))


def _parts_of(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What a container, a function or an object holds, names or has as attributes."""
    if isinstance(thing, dict):
        for key, value in list(thing.items()):  # the text of a tensor would be a sync point
            yield f"{name}[{repr(key) if isinstance(key, str | int) else '...'}]", value
    elif isinstance(thing, list | tuple):
        yield from ((f"{name}[{i}]", value) for i, value in enumerate(thing))
    elif isinstance(thing, FunctionType) and is_users(thing.__code__.co_filename):
        yield from named(thing)
    elif isinstance(thing, FunctionType):
        yield from ((name, part) for part in wrapped_by(thing))
    elif isinstance(thing, MethodType):
        yield from ((name, part) for part in (thing.__self__, thing.__func__))
    elif isinstance(thing, partial):
        yield from ((name, part) for part in (thing.func, thing.args, thing.keywords))
    else:
        own = getattr(thing, "__dict__", None) or {}
        yield from ((f"{name}.{key}", value) for key, value in list(own.items()))


def _may_hold(thing: Any) -> bool:
    """May a tensor be in there? Settings are numbers, and a scheduler puts a method."""
    if isinstance(thing, dict | tuple):
        return any(map(_may_hold, thing.values() if isinstance(thing, dict) else thing))
    return not isinstance(thing, int | float | str | NoneType | FunctionType | MethodType)


def _known(optimizer: torch.optim.Optimizer) -> list[Buffer]:
    params = stepped(optimizer)
    states = [x for p in params for x in optimizer.state.get(p, {}).values()]
    return _buffers((*params, *states))


def _buffers(tensors: Iterable[Any]) -> list[Buffer]:
    return [x.ref.base for x in tensors if isinstance(x, KitTensor)]
