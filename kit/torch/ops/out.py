"""Ops that write their result somewhere, by way of the functional op that returns it.

`torch.add(x, y, out=z)`, and in-place ops such as `digamma_` whose functional form torch can
decompose.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import torch

from kit.errors import SessionError
from kit.runtime.recording.sites import format_site, here, level_of_user
from kit.torch.ops.fitting import check_whole
from kit.torch.ops.host import run_on_host
from kit.torch.ops.schema import Recipe, flat_tensors
from kit.torch.tensors.buffer import Buffer, shows_memory
from kit.torch.tensors.checks import check_writable
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, strided, wrap

__all__ = ["inplace_by_functional", "out_recipe", "resize", "resized", "write_out"]

# Reductions that torch computes in the dtype of `out` where no dtype is given: -2.5 * -1.5 into an
# int8 is -2 * -1.
_IN_DTYPE_OF_OUT = frozenset({"sum", "nansum", "prod", "mean", "cumsum", "cumprod"})


def out_recipe(func: Any, args: Any, kwargs: Any) -> Recipe | None:
    """The recipe for an `out=` variant; None if there is no functional op for it."""
    names = [a.name for a in func._schema.arguments if a.is_out]
    rest = {k: v for k, v in kwargs.items() if k not in names}
    if not flat_tensors([*args, *rest.values()]):
        return _from_host(func, names)
    functional = _functional(func, names)
    if functional is None:
        return None

    in_dtype_of_out = func._schema.name.removeprefix("aten::") in _IN_DTYPE_OF_OUT

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        outs: Any = flat_tensors([kwargs[name] for name in names])  # a name may be of a list
        check_writable(str(func), outs)
        options = {k: v for k, v in kwargs.items() if k not in names}
        if in_dtype_of_out and options.get("dtype") is None:
            options["dtype"] = outs[0].dtype
        results = functional(*args, **options)
        several = isinstance(results, list | tuple)
        if several and len(outs) != len(results):
            raise RuntimeError(
                f"{func.name().removeprefix('aten::').replace('.', '_')} expected an out= "
                f"argument of size {len(results)}, got size {len(outs)}"
            )
        for out, result in zip(outs, results if several else (results,), strict=True):
            _check_cast(result, out)
            write_out(out, result)
        if not func._schema.returns:  # into a list
            return None
        return tuple(outs) if several else outs[0]

    return recipe


def _from_host(func: Any, names: list[str]) -> Recipe:
    """`eye`, `linspace`, `randperm`, ...: nothing on the device goes into them."""

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        outs = [kwargs[name] for name in names]
        made = {n: torch.empty(kwargs[n].shape, dtype=kwargs[n].dtype, device="cpu") for n in names}
        func(*args, **{**kwargs, **made})
        for out, name in zip(outs, names, strict=True):
            value = tape.from_host(made[name], out.dtype)
            write_out(out, wrap(tape, value, tape.spec_of(made[name].to("meta"))))
        return outs[0] if len(outs) == 1 else tuple(outs)

    return recipe


def write_out(out: KitTensor, result: torch.Tensor) -> None:
    """Write a result into an `out=` tensor; one of another shape is resized, as torch does it."""
    if out.shape == result.shape:
        out.copy_(result)
        return
    if out.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(out.shape)}, which does not match the required output shape "
            f"{list(result.shape)}.",
            UserWarning,
            stacklevel=level_of_user(),
        )
    memory = resized(out, result.shape)
    fresh = torch.empty(result.shape, dtype=out.dtype, device=out.device)
    out.data = fresh if memory is None else memory
    out.copy_(result)


def resized(out: KitTensor, shape: Sequence[int]) -> KitTensor | None:
    """The memory of `out`, from where it begins, in another shape: what torch's `resize_` shows.

    Returns:
        None where there is less memory than that.
    """
    tape, base = out.tape, out.ref.base
    stride = torch.empty(tuple(shape), device="meta").stride()
    spec = tape.spec(tuple(shape), stride, out.spec.offset, out.dtype)
    has_room = spec.offset + spec.reach <= base.spec.reach and base.spec.is_dense
    if not has_room or base.spec.dtype is not out.dtype or not shows_memory(out.ref):
        return None
    return strided(tape, base, spec)


def resize(tape: Tape, func: Any, args: Any, kwargs: Any) -> KitTensor:
    """Show the same memory in another shape, or more memory that begins with the same numbers."""
    tensor: KitTensor = args[0]
    shape = args[1].shape if isinstance(args[1], torch.Tensor) else args[1]
    if tuple(shape) == tuple(tensor.shape):
        return tensor
    memory: torch.Tensor | None = resized(tensor, shape)
    if memory is None:
        # Of this tensor and of this call: others would go on with the memory of before.
        is_alone = isinstance(tensor.ref, Buffer) and getrefcount(tensor.ref) == 2
        if tensor.ref.base.spec.reach and not is_alone:
            site = format_site(here()) or "an unknown line"
            raise SessionError(
                f"{func} at {site} would change memory under other tensors; make a new tensor "
                "instead"
            )
        memory = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        memory.view(-1)[: tensor.numel()] = tensor.view(-1)
    tape.session.stepper.note_obstacle("the step resizes a tensor; give it its shape before")
    tensor.data = memory
    return tensor


def _check_cast(result: torch.Tensor, out: torch.Tensor) -> None:
    """Refuse to write floats into integers, in torch's own words."""
    if not torch.can_cast(result.dtype, out.dtype):
        names = [
            torch.empty(0, dtype=x.dtype, device="cpu").type()[len("torch.") : -len("Tensor")]
            for x in (result, out)
        ]
        raise RuntimeError(
            f"result type {names[0]} can't be cast to the desired output type {names[1]}"
        )


def _functional(func: Any, names: list[str]) -> Any:
    """The overload that takes the same arguments but the outs."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name not in names]
    packet = func._overloadpacket
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        schema = candidate._schema
        if [(a.name, str(a.type)) for a in schema.arguments] == wanted and not any(
            a.alias_info and a.alias_info.is_write for a in schema.arguments
        ):
            return candidate
    return None


def inplace_by_functional(func: Any) -> Recipe | None:
    """The recipe for `x.op_(...)` as `x.copy_(op(x, ...))`; None if there is no such op."""
    packet, overload = func._schema.name.removeprefix("aten::"), func._overloadname
    if not packet.endswith("_") or packet.endswith("__"):
        return None
    if str(func._schema.arguments[0].type) != "Tensor":  # an op over lists
        return None
    given = {a.name: i for i, a in enumerate(func._schema.arguments)}
    functions = getattr(torch.ops.aten, packet[:-1], None)
    functional = functions and _taking(functions, set(given), overload)
    if functional is None:
        return None
    order = [given[a.name] for a in functional._schema.arguments]  # polygamma(n, x)

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        if args[0].spec.repeats:
            return run_on_host(tape, func, args, kwargs)
        result = functional(*[args[i] for i in order if i < len(args)], **kwargs)
        _check_cast(result, args[0])
        check_whole(args[0].shape, result.shape)
        return args[0].copy_(result)

    return recipe


def _taking(functions: Any, names: set[str], first: str) -> Any:
    """An overload with these arguments, preferably `first`; None if there is none."""
    for overload in sorted(functions.overloads(), key=lambda name: name != first):
        function = getattr(functions, overload)
        if {a.name for a in function._schema.arguments} == names:
            return function
    return None
