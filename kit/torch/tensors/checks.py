"""What is refused before an op is recorded: tensors of two sessions, writes to shared places."""

from __future__ import annotations

from typing import Any

from kit.errors import SessionError
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["check_sessions", "check_writable"]


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
                f"{name} cannot write to a tensor on {tensor.device} from the kit device"
            )
        spec = tensor.spec
        if spec.repeats and any(
            s == 0 and n > 1 for n, s in zip(spec.shape, spec.stride, strict=True)
        ):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )
