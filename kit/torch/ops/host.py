"""Ops without a rule: torch runs them on the CPU, and the session shows how a rule would begin.

Right, but slow: the device is waited for, arrays travel to the host and back, and a step cannot be
replayed. So each is counted by line, with its milliseconds and the beginning of a rule.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kit.errors import UnsupportedOp, words_of
from kit.runtime.recording.sites import format_site
from kit.torch.ops.schema import (
    DROPPED,
    flat_tensors,
    with_tensors,
    write_slots,
    written_tensors,
)
from kit.torch.tensors.checks import OTHER_DEVICE
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, to_host, wrap

__all__ = [
    "bring_back",
    "error_on_cpu",
    "made_elsewhere",
    "on_host",
    "raise_as_cpu",
    "rule_skeleton",
    "run_on_host",
    "zeros_on_cpu",
]

Copies = dict[int, tuple[KitTensor, torch.Tensor]]


def run_on_host(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Compute on the host and bring the results back, under the op's own name. A sync point.

    Raises:
        UnsupportedOp: the session is strict, or the host cannot run the op either.
    """
    start = time.perf_counter_ns()
    session = tape.session
    site = format_site(tape.place.sync_frame()[0])
    # `prims` are an inner language: a user's rule is for the op that was taken apart into them
    asked = tape.decomposing if func.namespace == "prims" and tape.decomposing else func
    name = str(asked)
    if session.strict:
        raise UnsupportedOp(name, session.rules, site, skeleton=rule_skeleton(asked))
    host_args, host_kwargs, copies = on_host(args, kwargs, cause=f"unlowered op {name}")
    try:
        out = _called(func, host_args, host_kwargs)
    except NotImplementedError as error:
        raise UnsupportedOp(
            name, session.rules, site, why=words_of(error)[:300], skeleton=rule_skeleton(asked)
        ) from error
    _write_back(tape, func, args, kwargs, copies)
    results = bring_back(tape, out, list(copies.values()))
    session.report.note_unlowered(name, site, time.perf_counter_ns() - start, rule_skeleton(asked))
    return results


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """`func` on the CPU, as outside of any dispatch.

    A thread that torch has called for an op of a device leaves a conjugate as a mark that nothing
    reads: `torch.linalg.pinv` of complex numbers was wrong there. Another thread has no such state.
    """
    if not any(x.is_complex() for x in flat_tensors([*args, *kwargs.values()])):
        return func(*args, **kwargs)
    with ThreadPoolExecutor(1) as other:
        return other.submit(func, *args, **kwargs).result()


def on_host(args: Any, kwargs: Any, *, cause: str) -> tuple[Any, Any, Copies]:
    """A call's arguments with CPU copies for tensors, and these copies: a sync point."""
    copies: Copies = {}

    def host(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, KitTensor):
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, _laid_out(to_host(tensor, cause=cause), tensor)
        return copies[id(tensor)][1]

    return with_tensors(args, host, "cpu"), with_tensors(kwargs, host, "cpu"), copies


def _write_back(tape: Tape, func: Any, args: Any, kwargs: Any, copies: Copies) -> None:
    for tensor in written_tensors(write_slots(func), args, kwargs):
        copy = copies[id(tensor)][1]
        if copy.shape == tensor.shape:
            tensor.ref.write(tape, tape.from_host(copy, tensor.dtype))
        else:  # an out= argument that the op has resized
            tensor.data = wrap(
                tape, tape.from_host(copy, tensor.dtype), tape.spec_of(copy.to("meta"))
            )


def bring_back(tape: Tape, out: Any, pairs: list[tuple[KitTensor, torch.Tensor]]) -> Any:
    """A result on the host as one of the device; a copy is the tensor that it was made of."""
    if isinstance(out, torch.Tensor):
        for tensor, copy in pairs:
            if out is copy:
                return tensor
        return wrap(tape, tape.from_host(out, out.dtype), tape.spec_of(out.to("meta")))
    if isinstance(out, list | tuple):
        return type(out)(bring_back(tape, x, pairs) for x in out)
    return out


def made_elsewhere(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """A new tensor like one of the device, where the call names another device for it."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type == "kit":
        return None
    made: torch.Tensor = func(args[0].spec.meta(), *args[1:], **kwargs)
    return made


def _laid_out(host: torch.Tensor, like: KitTensor) -> torch.Tensor:
    """A copy with the strides that the program sees; some ops compute by them."""
    strides = list(like.stride())
    if like.spec.repeats:  # the same places are shared as in the program
        places = torch.arange(like.spec.reach, device="cpu").as_strided(host.shape, strides)
        memory = torch.zeros(like.spec.reach, dtype=host.dtype, device="cpu")
        memory[places.flatten()] = host.flatten()
        return memory.as_strided(host.shape, strides)
    span = 1 + sum((n - 1) * s for n, s in zip(host.shape, strides, strict=True))
    if span > 2 * host.numel():  # smaller gaps will do: what counts is the order
        step = 2
        for d in sorted(range(host.dim()), key=strides.__getitem__):
            strides[d], step = step, step * max(host.shape[d], 1)
    return torch.empty_strided(host.shape, strides, dtype=host.dtype, device="cpu").copy_(host)


def raise_as_cpu(func: Any, args: Any, kwargs: Any, error: Exception) -> None:
    """Raise what CPU torch raises for a small call like this: users know its sentences.

    Not in place of an error of devices: a call like this has all tensors on one.
    """
    if OTHER_DEVICE in str(error):
        return
    sizes = [x.numel() for x in flat_tensors([*args, *kwargs.values()])]
    if sum(sizes) > _SMALL:
        return
    if (own := error_on_cpu(func, args, kwargs, zeros_on_cpu)) is not None:
        for note in getattr(error, "__notes__", []):
            own.add_note(note)
        raise own from None


_SMALL = 1 << 20  # elements


def error_on_cpu(
    func: Any, args: Any, kwargs: Any, blank: Callable[[torch.Tensor], torch.Tensor]
) -> Exception | None:
    """What CPU torch raises for a call with what `blank` makes of each tensor; None if it works."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself has not been made yet
            func(*with_tensors(args, blank, "cpu"), **with_tensors(kwargs, blank, "cpu"))
    except MemoryError:  # this says nothing of the call
        raise
    except Exception as error:  # noqa: BLE001 - given to the caller
        return error.with_traceback(None)
    return None


def zeros_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the same shape and type."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def rule_skeleton(func: Any) -> str:
    """The beginning of a rule for an op, from its schema: ready to paste and to fill in."""
    names, notes = [], []
    keyword_only = False
    for argument in func._schema.arguments:
        if argument.is_out or argument.name in DROPPED:
            continue
        if argument.kwarg_only and not keyword_only:
            keyword_only = True
            names.append("*")
        default = f"={argument.default_value!r}" if argument.has_default_value() else ""
        names.append(f"{argument.name}{default}")
        notes.append(f"{argument.name}: {_kind(str(argument.type))}")
    returns = [_kind(str(r.type)) for r in func._schema.returns]
    rule = re.sub(r"\W", "_", str(func).removesuffix(".default").split(".", 1)[-1])
    name = re.sub(r"(?<=\w)_(?=\.)", "", str(func))
    return (
        f"def {rule}({', '.join(names)}):\n"
        f"    # {'; '.join(notes)}\n"
        f"    # gives {', '.join(returns) or 'nothing'}; dtypes are cast to torch's\n"
        f"    return ...  # in jax.numpy\n\n"
        f"kit.Session(rules=kit.DEFAULT_RULES | kit.Rules({{{name!r}: {rule}}}))"
    )


def _kind(type_name: str) -> str:
    if "Tensor" in type_name:
        return "list of jax arrays" if "List" in type_name else "jax array"
    return {"ScalarType": "dtype name"}.get(type_name, type_name)
