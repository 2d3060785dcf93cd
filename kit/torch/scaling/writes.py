"""What an optimizer's step writes on device kit beside its parameters and their state.

An average of the weights that a hook of the step keeps, or a step that calls torch's own: a scaler
that takes a bad step back takes this back, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

import torch

from kit.runtime.recording.bulk import Value
from kit.torch.scaling.fused import stepped
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import Buffer, KitTensor, wrap

__all__ = ["OtherWrites", "other_writes"]


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

    def note(self, buffer: Buffer) -> None:
        """A thread is about to write this."""
        key = id(buffer)
        if get_ident() == self._thread and key not in self._known and key not in self._noted:
            self._noted[key] = ref(buffer, partial(self._forget, key)), buffer.value

    def _forget(self, key: int, _: Any) -> None:
        self._noted.pop(key, None)

    def values(self) -> Iterator[tuple[Buffer, Value]]:
        """Each buffer that was written and is still there, and its value before."""
        if not self._noted:
            return
        state = set(map(id, _known(self._optimizer)))  # what this step has made is known by now
        for key, (alive, old) in list(self._noted.items()):
            buffer = alive()
            if buffer is not None and key not in state:
                yield buffer, self._tape.full(buffer.spec, 0) if old is None else old

    def tensors(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same, as tensors: (what was written, what was there)."""
        for buffer, old in self.values():
            whole: Any = KitTensor.over(self._tape, buffer, buffer.spec)
            before: Any = wrap(self._tape, old, buffer.spec)
            yield whole, before


def _known(optimizer: torch.optim.Optimizer) -> list[Buffer]:
    params = stepped(optimizer)
    states = [x for p in params for x in optimizer.state.get(p, {}).values()]
    return _buffers((*params, *states))


def _buffers(tensors: Iterable[Any]) -> list[Buffer]:
    return [x.ref.base for x in tensors if isinstance(x, KitTensor)]
