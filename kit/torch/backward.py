"""Backward passes from tensors of device kit: a check that torch leaves out, and errors at the end.

Torch compares the devices of gradients only where all tensors are of its own class; elsewhere one
on the CPU would give a parameter a gradient there. An error inside of a pass waits for the pass to
be over, as `kit.torch.ops.stand_ins` says.
"""

from __future__ import annotations

import functools
from itertools import count
from typing import Any

import torch

from kit.errors import words_of
from kit.torch.accelerator import accelerator_of
from kit.torch.tensors.private import private
from kit.torch.tensors.tensor import KitTensor

__all__ = ["follow_backward"]


def follow_backward() -> None:
    """Follow torch into its engine, from `backward` as well as from `torch.autograd.grad`."""
    original = private("torch.autograd._engine_run_backward")

    @functools.wraps(original)
    def run(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = tuple(map(_beside, count(), outputs, gradients))
        try:
            with accelerator_of(outputs):
                return original(outputs, gradients, *args, **kwargs)
        except RuntimeError as error:
            if "opt_ready_stream && opt_parent_stream" not in words_of(error):
                raise
            raise RuntimeError(
                "a backward pass goes over tensors of device kit and over those of a GPU of "
                "torch's own, which torch cannot do in one: detach one from the other (x.detach())"
            ) from error
        finally:
            for output in outputs:
                if isinstance(output, KitTensor):
                    output.tape.raise_kept()

    autograd: Any = torch.autograd
    autograd._engine_run_backward = run
    _follow_functions()


def _follow_functions() -> None:
    """Check the gradients that the program's own functions give, as torch does among its own."""
    function: Any = torch.autograd.function.BackwardCFunction
    original = function.apply

    @functools.wraps(original)
    def apply(self: Any, *gradients: Any) -> Any:
        given = original(self, *gradients)
        _check_devices(self, given if isinstance(given, tuple) else (given,))
        return given

    function.apply = apply


def _check_devices(function: Any, gradients: tuple[Any, ...]) -> None:
    """Refuse a gradient on a device that no input of the function is on; numbers may be anywhere.

    One of an input that needs none is ignored, as by torch.

    Raises:
        RuntimeError: torch's own sentence.
    """
    devices = [
        g.device if needed and isinstance(g, torch.Tensor) and g.dim() else None
        for g, needed in zip(gradients, function.needs_input_grad, strict=False)
    ]
    if len({*devices} - {None}) == 0:
        return
    wanted = {
        one.device
        for node, place in function.next_functions
        if node is not None
        for one in node._input_metadata[place : place + 1]
    }
    if not any(device.type == "kit" for device in {*devices, *wanted} - {None}):
        return
    for i, device in enumerate(devices):
        if device is not None and wanted and device not in wanted:
            raise RuntimeError(
                f"Function {type(function).__name__} returned an invalid gradient at index {i} - "
                f"expected device {min(wanted, key=str)} but got {device}"
            )


def _beside(index: int, output: Any, gradient: Any) -> Any:
    """The gradient on the device of its output; numbers move, as on CUDA.

    Raises:
        RuntimeError: it is on another device; torch's own sentence.
    """
    pair = (output, gradient)
    if not any(isinstance(x, KitTensor) for x in pair):
        return gradient
    if not all(isinstance(x, torch.Tensor) for x in pair) or output.device == gradient.device:
        return gradient
    if gradient.dim():
        raise RuntimeError(
            f"invalid gradient at index {index} - expected device {output.device} but got "
            f"{gradient.device}"
        )
    return gradient.to(output.device)
