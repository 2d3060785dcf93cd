"""What is refused before an op is recorded: tensors of two sessions or devices, writes to shared
places."""

from __future__ import annotations

from typing import Any

import torch

from kit.errors import SessionError
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["OTHER_DEVICE", "check_devices", "check_sessions", "check_writable"]

OTHER_DEVICE = "Expected all tensors to be on the same device"  # torch's own words
_INDEXED = ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")
# Elsewhere CUDA takes a tensor of the CPU that has no dimension for a number.
_NO_NUMBERS = frozenset(
    f"aten.{name}"
    for name in (
        "cat", "embedding", "equal", "gather", "index_add", "index_add_", "index_copy",
        "index_copy_", "index_reduce", "index_select", "nll_loss_forward",
        "scatter", "scatter_", "scatter_add", "scatter_add_", "searchsorted", "stack", "take",
    )
)  # fmt: skip


def check_devices(tape: Tape, name: str, args: Any, kwargs: Any) -> None:
    """CPU tensors do not mix with kit's, except numbers (0-d) and indices, as on CUDA.

    Raises:
        RuntimeError: they do; or a tensor of the CPU is indexed by one of the device.
    """
    check_sessions(tape, name, (*args, *kwargs.values()))
    is_indexed = name.startswith(_INDEXED)
    if is_indexed and not isinstance(args[0], KitTensor):
        if any(isinstance(index, KitTensor) for index in args[1]):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({args[0].device})"
            )
        raise _mixed(tape, name, args[0])
    takes_numbers = name.rpartition(".")[0] not in _NO_NUMBERS
    for arg in (*args, *kwargs.values()):
        several = isinstance(arg, list | tuple)
        if several and is_indexed:
            continue
        for x in arg if several else (arg,):
            if isinstance(x, torch.Tensor) and not isinstance(x, KitTensor):
                if x.dim() == 0 and takes_numbers:
                    continue
                raise _mixed(tape, name, x)


def _mixed(tape: Tape, name: str, other: torch.Tensor) -> RuntimeError:
    frame = tape.place.sync_frame()
    return RuntimeError(
        f"{OTHER_DEVICE}, but found at least two devices, {tape.device} and {other.device}! (in "
        f"{name} at {frame[0][0]}:{frame[0][1]}; move the other one with .to('kit'))"
    )


def check_sessions(tape: Tape, name: str, arguments: Any) -> None:
    """Every tensor must belong to this session: another one has another engine.

    Raises:
        SessionError: one does not.
    """
    for argument in arguments:
        for x in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(x, KitTensor) and x.tape is not tape:
                raise SessionError(
                    f"{name} got tensors of this session and of another session; bring one over "
                    "with x.cpu() in its own session, then .to('kit')"
                )


def check_writable(name: str, written: list[KitTensor]) -> None:
    """Refuse what torch refuses: to write where several elements share one place.

    Raises:
        RuntimeError: torch's own sentence.
    """
    for tensor in written:
        if not isinstance(tensor, KitTensor):
            raise RuntimeError(
                f"{name} cannot write to a tensor on {tensor.device} from device kit"
            )
        spec = tensor.spec
        if spec.repeats and any(
            s == 0 and n > 1 for n, s in zip(spec.shape, spec.stride, strict=True)
        ):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )
