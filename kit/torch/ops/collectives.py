"""Collectives of `torch.distributed`, such as `all_reduce`: made by torch on the host.

The numbers travel to the host, the collective is waited for, and the results go back: right, and a
sync point. On several devices of one process, `kit.DataParallel` sums gradients without one.
"""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.ops.host import bring_back, on_host
from kit.torch.ops.schema import Recipe, flat_tensors
from kit.torch.tensors.private import private
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["collective_recipe"]

_POINT_TO_POINT = ("c10d.send.", "c10d.recv_")


def collective_recipe(func: Any) -> Recipe:
    """The recipe for an op of `c10d`; all of them write the tensors of their first argument."""
    name = str(func)
    if name.startswith(_POINT_TO_POINT):  # their work can be waited for once, and torch does it
        raise RuntimeError(
            "torch.distributed.send and recv take no tensors of device kit: send x.cpu(), receive "
            "into a CPU tensor, and x.copy_(received)"
        )

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        host_args, host_kwargs, copies = on_host(args, kwargs, cause=f"collective {name}")
        out = func(*host_args, **host_kwargs)
        for item in out if isinstance(out, list | tuple) else (out,):
            if isinstance(item, torch.ScriptObject):  # the work, which runs in another thread
                private("torch.distributed.Work.unbox")(item).wait()
        for tensor in flat_tensors([args[0]]):
            if isinstance(tensor, KitTensor):
                tensor.ref.write(tape, tape.from_host(copies[id(tensor)][1], tensor.dtype))
        return bring_back(tape, out, list(copies.values()))

    return recipe
