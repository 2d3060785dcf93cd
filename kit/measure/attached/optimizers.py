"""A watched loop's optimizer: where it trains, and whether its step ends one of the loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from kit.errors import SettingsError
from kit.runtime.session.session import current_session

__all__ = ["device_of", "index_of", "is_captured", "is_inner", "parameters_of"]


def _code_around_steps() -> CodeType | None:
    """Torch's function around the `step` of each class; None in a torch that has it otherwise."""
    maker = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    parts = maker.__code__.co_consts if isinstance(maker, FunctionType) else ()
    found = (x for x in parts if isinstance(x, CodeType) and x.co_name == "wrapper")
    return next(found, None)


_AROUND_STEPS = _code_around_steps()


def is_inner(optimizer: Any) -> bool:
    """Is this the end of a `super().step()`, inside another `step` of the same optimizer?"""
    around = 0
    frame: Any = sys._getframe()
    while frame is not None and around < 2:
        if frame.f_code is _AROUND_STEPS:  # torch's, around the `step` of each class
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
    except RuntimeError:  # an allocator of the program's own does not tell
        return True


def index_of(optimizer: Any) -> int | None:
    """Of the GPU that has its first parameters; None where none has."""
    return next((p.device.index for p in parameters_of(optimizer) if p.device.type == "cuda"), None)


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """Those of all groups, in order."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def device_of(optimizer: Any) -> str:
    """Where the loop trains: by its optimizer's parameters, or else by what is in use."""
    kinds = {p.device.type for p in parameters_of(optimizer)}
    in_use = [name for name in ("kit", "cuda") if name in kinds]
    if not kinds and current_session() is not None:
        return "kit"
    if not kinds:
        return "cuda" if _holds_cuda_memory() else "cpu"
    if in_use or "cpu" in kinds:
        return in_use[0] if in_use else "cpu"
    raise SettingsError(
        f"the loop trains on {min(kinds)!r}: kit.watch records steps on the CPU, on CUDA, "
        "and on device kit in an open session"
    )
