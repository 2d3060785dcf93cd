"""What stands for a storage of torch: of a tensor of device "kit", of a checkpoint loaded to it;
and what a pickle of such a tensor holds."""

from __future__ import annotations

import pickle
from multiprocessing.context import get_spawning_popen
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

__all__ = ["LoadedStorage", "Storage", "copied", "reduced"]

# of a buffer: its version and the step, and the copy on the host
_COPIES: WeakKeyDictionary[Any, tuple[tuple[int, int], Any]] = WeakKeyDictionary()


def copied(tensor: Any) -> torch.Tensor:
    """A tensor's copy on the host, for a pickle: it shows a copy of all of its memory.

    Tensors that share memory share the copy, as long as the pickle that is written holds it.
    """
    base, spec, tape = tensor.ref.base, tensor.spec, tensor.tape
    is_alike = spec.dtype is base.spec.dtype and not base.spec.offset
    if not is_alike or get_spawning_popen() is not None:  # then each takes its own bytes
        return tensor.detach().cpu()  # type: ignore[no-any-return]
    moment = base.version, tape.session.step  # a replayed step writes, and counts no version
    known, held = _COPIES.get(base, (None, None))
    memory = held() if held is not None and known == moment else None
    if memory is None:
        whole: torch.Tensor = type(tensor).over(tape, base, base.spec).cpu()
        if whole.stride() != base.spec.stride:
            return tensor.detach().cpu()  # type: ignore[no-any-return]
        memory = whole.untyped_storage()
        _COPIES[base] = moment, ref(memory)
    host = torch.empty(0, dtype=spec.dtype, device="cpu")
    return host.set_(memory, spec.offset, spec.shape, spec.stride)


def reduced(host: torch.Tensor, protocol: Any) -> Any:
    """What a pickle holds of a tensor's copy on the host, which goes with it.

    While a process is spawned, torch's pickler shares the memory of what it meets. That of the copy
    would be gone before the process opened it, so the bytes go there.
    """
    if get_spawning_popen() is None:
        return host.__reduce_ex__(protocol)
    return pickle.loads, (pickle.dumps(host),)


class Storage:
    """Says which tensors share memory, as safetensors asks before it saves. Not an address."""

    def __init__(self, memory: object, nbytes: int) -> None:
        self._memory, self._nbytes = memory, nbytes

    def data_ptr(self) -> int:
        """A number that belongs to this memory alone, as long as it lives."""
        return id(self._memory)

    def nbytes(self) -> int:
        """How much memory it is."""
        return self._nbytes

    size = __len__ = nbytes

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the storage of a tensor of device kit has no {name!r}, as its memory is XLA's: take "
            "the tensor's .cpu()"
        )


class LoadedStorage(torch.UntypedStorage):
    """The bytes of a checkpoint's storage, still on the host; tensors that show it are kit's.

    Attributes:
        buffer: the memory on the device, once the first tensor that shows it has been made.
    """

    buffer: Any

    @classmethod
    def of(cls, host: torch.UntypedStorage) -> LoadedStorage:
        """A copy of a storage on the host."""
        made = cls(host.nbytes())
        made.copy_(host)
        made.buffer = None
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where tensors over it shall be: torch makes an empty one there first."""
        return torch.device("kit")
