"""Run a program on device kit and on CPU torch, line by line, and say where they part."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from kit.errors import SessionError, UnsupportedOp
from kit.runs.settings import Settings
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session
from tests.torch.fuzz.program import Program, namespace, run_line, tensors
from tests.torch.fuzz.steps import run_steps

__all__ = ["Outcome", "outcome"]

# How far two results may be apart, as a part of the largest number: sums go in another order.
_CLOSE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        kind: same; different; refused: kit says clearly that it cannot; or unstable: CPU torch
            itself comes to something else where it rounds another way, or takes the smallest
            numbers for 0, as XLA's CPU does.
        line: of the program, where the two parted.
        what: how they differ.
    """

    kind: str
    line: int = -1
    what: str = ""

    @property
    def signature(self) -> str:
        """The same for failures that are alike."""
        words = re.sub(r"\bt\d+", "", self.what)
        return f"{self.kind} " + re.sub(r"[-\d.,()\[\]]+|nan|inf|True|False", "", words)[:60]


def outcome(program: Program, cache: Any = None, rules: Rules = DEFAULT_RULES) -> Outcome:
    """What became of a program."""
    with open_session(Settings(**program.how), cache=cache, rules=rules) as session:
        here = namespace("cpu")
        there = namespace("kit", mark=session.mark_step)
        found = _in_lockstep(program, here, there, session)
    is_of_numbers = re.search(r"shape|strides|requires_grad|is_leaf|Error", found.what) is None
    if found.kind == "different" and is_of_numbers and _is_unstable(program, found):
        return Outcome("unstable", found.line, found.what)
    return found


def _in_lockstep(program: Program, here: Any, there: Any, session: Any) -> Outcome:
    for i, line in enumerate(program.lines):
        expected, got = run_line(line, here), run_line(line, there)
        if is_refusal(got) and type(got) is not type(expected):
            return Outcome("refused", i, f"{type(got).__name__}: {got}")
        if isinstance(got, NameError) and isinstance(expected, NameError):
            continue
        if type(got) is not type(expected):
            return Outcome("different", i, f"{show(got)} instead of {show(expected)}")
        is_read = line.startswith("r = ") and got is None and not _is_free(line, here)
        if is_read and (what := _other(there["r"], here["r"])):
            return Outcome("different", i, f"read: {what}")
    return _other_steps(program, here, there, session) or _other_tensors(program, here, there)


def _is_free(line: str, names: Any) -> bool:
    """Does the line ask for the strides of what was computed, of which torch promises none?"""
    found = re.fullmatch(r"r = (\w+)\.stride\(.*\)", line)
    return found is not None and not names[found[1]]._is_view()


def _other_steps(program: Program, here: Any, there: Any, session: Any) -> Outcome | None:
    """How a step of the program differs, if one does."""
    if not program.step:
        return None
    line = len(program.lines)
    expected, got = _attempt(program, here), _attempt(program, there, session)
    if isinstance(expected, Exception) or isinstance(got, Exception):
        if type(expected) is type(got):
            return Outcome("same")
        kind = "refused" if is_refusal(got) else "different"
        return Outcome(kind, line, f"{show(got)} instead of {show(expected)}")
    for number, pair in enumerate(zip(got, expected, strict=True)):
        if what := _other(*pair):
            return Outcome("different", line, f"step {number}: {what}")
    return None


def _attempt(program: Program, names: Any, session: Any = None) -> Any:
    """What the steps return, or the error of one."""
    try:
        found = run_steps(program, names, session)
        return [[t.cpu() for t in result] for result in found]
    except Exception as error:  # noqa: BLE001 - it is compared
        return error


def _other_tensors(program: Program, here: Any, there: Any) -> Outcome:
    end = len(program.lines)
    expected = tensors(here)
    for name, tensor in expected.items():
        if name not in there:
            return Outcome("different", end, f"no {name}")
        try:
            if what := _other(there[name], tensor):
                return Outcome("different", end, f"{name}: {what}")
            if tensor.is_leaf and (what := _other(there[name].grad, tensor.grad)):
                return Outcome("different", end, f"{name}.grad: {what}")
        except Exception as error:  # noqa: BLE001 - reading runs what was recorded
            return Outcome("different", end, f"{name}: {show(error)}")
    return Outcome("same")


def show(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:200]}"


def is_refusal(error: Exception | None) -> bool:
    """Does the error say that device kit cannot do it?"""
    return isinstance(error, SessionError | UnsupportedOp) or (
        error is not None
        # torch's own: of a CPU tensor that shall take the data of the device's; and of a layer, one
        # op there, so that its second gradient goes through the graph of its input and frees it
        and any(
            said in str(error)
            for said in (
                "device kit",
                "have incompatible tensor type",
                "through the graph a second time",
            )
        )
    )


def _other(got: Any, expected: Any) -> str:
    """How two results differ; "" if they do not."""
    if isinstance(expected, torch.Tensor):
        return _other_tensor(got, expected)
    if isinstance(expected, list | tuple):
        if type(got) is not type(expected) or len(got) != len(expected):
            return f"{got!r} instead of {expected!r}"
        return next(filter(None, map(_other, got, expected)), "")
    if isinstance(expected, float) and isinstance(got, float):
        both_nan = math.isnan(got) and math.isnan(expected)
        is_same = both_nan or math.isclose(got, expected, rel_tol=1e-4, abs_tol=1e-4)
    else:
        is_same = type(got) is type(expected) and got == expected
    return "" if is_same else f"{got!r} instead of {expected!r}"


def _other_tensor(got: Any, expected: torch.Tensor) -> str:
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} instead of a tensor"
    traits = ["shape", "dtype"]
    # Torch lets integers want gradients by some ways; what a fused backward op gives may want them
    # where none of the simpler ops' results would.
    if expected.is_floating_point() and (expected.requires_grad or not got.requires_grad):
        traits += ["requires_grad", "is_leaf"]
    for trait in traits:
        if getattr(got, trait) != getattr(expected, trait):
            return f"{trait} {getattr(got, trait)} instead of {getattr(expected, trait)}"
    # Torch promises no strides of what is computed: its own meta kernels differ from its CPU.
    is_laid_out = expected.numel() and expected._is_view()
    lies = zip(got.shape, got.stride(), expected.stride(), strict=True)
    if is_laid_out and any(n > 1 and s != t for n, s, t in lies):
        return f"strides {got.stride()} instead of {expected.stride()}"
    x = got.detach().cpu().resolve_conj().resolve_neg()
    y = expected.detach().resolve_conj().resolve_neg()
    return "" if is_close(x, y) else f"{x.tolist()} instead of {y.tolist()}"


def is_close(x: torch.Tensor, y: torch.Tensor, loose: float = 1.0) -> bool:
    rtol = _CLOSE.get(y.dtype)
    if rtol is None or not y.numel():
        return torch.equal(x, y)
    whole = y.to(torch.complex128 if y.is_complex() else torch.float64)
    finite = whole.abs()[whole.isfinite()]
    atol = rtol * loose * max(1.0, finite.max().item() if finite.numel() else 0.0)
    return torch.allclose(x.to(whole.dtype), whole, rtol=0, atol=atol, equal_nan=True)


class _Shaken(TorchDispatchMode):
    """Torch with another rounding of each result, to which the smallest numbers are 0."""

    def __enter__(self) -> Any:
        torch.set_flush_denormal(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_flush_denormal(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(a.alias_info for a in func._schema.arguments):
            return out

        def shake(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
                return x
            step = torch.finfo(x.dtype).eps
            return x.mul_(1 + 2 * step) if x.numel() else x

        return tree_map(shake, out)


def _is_unstable(program: Program, found: Outcome) -> bool:
    """Does CPU torch itself come to something else where each result is rounded another way?"""
    here, shaken = namespace("cpu"), namespace("cpu")
    for line in program.lines:
        expected = run_line(line, here)
        with _Shaken():
            got = run_line(line, shaken)
        if type(expected) is not type(got):
            return True
        if line.startswith("r = ") and got is None and _other(shaken["r"], here["r"]):
            return True
    if found.line < len(program.lines):
        return False
    if program.step:
        expected, got = _attempt(program, here), None
        with _Shaken():
            got = _attempt(program, shaken)
        return isinstance(got, list) and bool(_other(got, expected))
    name = re.match(r"(\w+)(\.grad)?:", found.what)
    if name is None:
        return False
    pair = (shaken.get(name[1]), here.get(name[1]))
    if name[2]:
        pair = tuple(x.grad for x in pair)  # type: ignore[union-attr]
    x, y = pair
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return not is_close(x.detach().resolve_conj(), y.detach().resolve_conj(), loose=0.05)
