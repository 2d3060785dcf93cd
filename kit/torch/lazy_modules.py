"""Layers that learn their sizes in their first forward pass: `nn.LazyLinear(10).to("kit")`.

On CUDA a parameter without a shape gets one where it is, and stays the same object. A tensor of the
host cannot become one of device kit, so here the parameter waits on the host, though it says that
it is on the device. Once it has a shape and numbers, its module moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from kit.torch.tensors.tensor import KitTensor

__all__ = ["await_shapes", "follow_lazy_modules", "with_waiting"]

Convert = Callable[[Any], Any]
_HANDLES = "_kit_arrival"  # where a module keeps its hooks, as torch's lazy modules keep theirs


class _Waiting:
    """What waits on the host, and says that it is on the device."""

    plain: type  # what torch makes, and what a file holds
    device = property(lambda self: torch.device("kit", 0))

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], "cpu", *args[2:])
        else:
            kwargs["device"] = "cpu"
        return super().__new__(cls, *args, **kwargs)

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Get a shape, on the host."""
        super().materialize(shape, "cpu", dtype)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain, (self.requires_grad,)  # type: ignore[attr-defined]


class _WaitingParameter(_Waiting, UninitializedParameter):
    plain = UninitializedParameter


class _WaitingBuffer(_Waiting, UninitializedBuffer):
    plain = UninitializedBuffer


_KINDS: dict[Any, Any] = {
    UninitializedParameter: _WaitingParameter,
    UninitializedBuffer: _WaitingBuffer,
}
_PLAIN: Any = tuple(_KINDS)
for _plain, _waiting in _KINDS.items():
    _waiting.__name__ = _plain.__name__  # torch prints it, in its errors too


def follow_lazy_modules() -> None:
    """Have `nn.LazyLinear(10, device="kit")` make parameters that wait, too."""
    for kind, waiting in _KINDS.items():
        kind.__new__ = _choosing(kind.__new__, kind, waiting)
    nn_module.register_module_parameter_registration_hook(_see_registered)
    nn_module.register_module_buffer_registration_hook(_see_registered)


def _choosing(original: Any, kind: Any, waiting: Any) -> Any:
    @functools.wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("device", args[1] if len(args) > 1 else None)
        device = torch.get_default_device() if asked is None else torch.device(asked)
        if cls is kind and device.type == "kit":
            return waiting(*args, **kwargs)
        return original(cls, *args, **kwargs)

    return make


def _see_registered(module: nn.Module, name: str, part: Any) -> None:
    if isinstance(part, _Waiting):
        _await_shape(module)


def with_waiting(fn: Convert) -> Convert:
    """What `nn.Module._apply` shall do with each tensor, where some have no shape yet.

    What `fn` does with them is tried on an empty tensor.
    """

    def convert(tensor: Any) -> Any:
        if not isinstance(tensor, _PLAIN):
            return fn(tensor)
        made = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        is_here = isinstance(made, KitTensor)
        if is_here is not isinstance(tensor, _Waiting):
            tensor.__class__ = _KINDS[type(tensor)] if is_here else tensor.plain
        if not is_here:
            return fn(tensor)
        tensor.data = torch.empty(0, dtype=made.dtype, device="cpu")
        return tensor.data if isinstance(tensor, nn.Parameter) else tensor

    return convert


def await_shapes(modules: list[nn.Module]) -> None:
    """Move these modules once they have the shapes that they wait for."""
    for module in modules:
        if any(isinstance(part, _Waiting) for part in _parts(module)):
            _await_shape(module)
        else:
            _wait_no_more(module)


def _parts(module: nn.Module) -> Any:
    return chain(module._parameters.values(), module._buffers.values())


def _await_shape(module: nn.Module) -> None:
    if _HANDLES not in vars(module):
        vars(module)[_HANDLES] = (
            module.register_forward_pre_hook(_arrive),  # after the hook that gives the shapes
            module.register_load_state_dict_pre_hook(_arrive),
        )


def _arrive(module: nn.Module, *_: Any) -> None:
    if any(map(is_lazy, _parts(module))):  # a checkpoint that has none of them
        return
    _wait_no_more(module)
    module.to("kit")


def _wait_no_more(module: nn.Module) -> None:
    for handle in vars(module).pop(_HANDLES, ()):
        handle.remove()
