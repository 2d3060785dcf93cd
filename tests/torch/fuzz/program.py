"""Programs of torch as text: lines that run on any device, and what they may name."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["Program", "function", "namespace", "run_line", "tensors"]

PRELUDE = """\
import copy, io, pickle
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0

class Inverted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(0)
    @staticmethod
    def backward(ctx, grad):
        return -grad.flip(0)

class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)
    @staticmethod
    def backward(ctx, grad):
        return grad * 3

def layer(size, dtype):
    made = torch.nn.Linear(size, 2, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(torch.arange(2 * size).reshape(2, size) % 3 - 1)
        made.bias.fill_(0.5)
    return made.to(device)

def doubled(module, grads, outs):
    return tuple(grad if grad is None else grad * 2 for grad in grads)

def hooked(size, dtype):
    made = layer(size, dtype)
    made.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    made.register_forward_hook(lambda module, args, out: out + 1)
    made.register_full_backward_hook(doubled)
    return made

def saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    return torch.load(io.BytesIO(file.getvalue()), map_location=device)
"""


@dataclass(frozen=True)
class Program:
    """Lines of Python, and the settings of the session that runs them.

    Attributes:
        lines: run once, one after the other.
        step: after those, the lines of a step that runs `STEPS` times, each time with other data.
        how: the settings.
    """

    lines: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=dict)
    step: tuple[str, ...] = ()

    def script(self) -> str:
        """The program as a user would write it, but for `device`."""
        step = [function(self)] if self.step else []
        return "\n".join([f"# kit.Settings(**{self.how})", *self.lines, *step])

    def __len__(self) -> int:
        return len(self.lines) + len(self.step)

    def without(self, line: int) -> Program:
        """The program without one line, of the step if there are no more others."""
        before = len(self.lines)
        if line < before:
            return replace(self, lines=self.lines[:line] + self.lines[line + 1 :])
        line -= before
        return replace(self, step=self.step[:line] + self.step[line + 1 :])


def function(program: Program) -> str:
    """The step of a program as a function of Python, and one that changes a number it holds."""
    state = ", ".join(sorted(names_in(program.lines)))
    new = sorted(names_in(program.step) - names_in(program.lines), key=lambda name: int(name[1:]))
    return "\n".join(
        [
            "def made():",
            "    k = 1",
            "    def step():",
            f"        global {state or 'unused'}",
            *(f"        {line}" for line in program.step),
            f"        return [{', '.join(f'{name}.detach().clone()' for name in new)}]",
            "    def change():",
            "        nonlocal k",
            "        k = 2",
            "    return step, change",
            "step, change = made()",
        ]
    )


def names_in(lines: tuple[str, ...]) -> set[str]:
    """The names that these lines give to tensors."""
    return set(re.findall(r"\b(t\d+) = ", "\n".join(lines)))


def namespace(device: str, **more: Any) -> dict[str, Any]:
    """What the lines of a program can name."""
    names: dict[str, Any] = {"device": device, "mark": lambda: None, **more}
    exec(compile(PRELUDE, "prelude", "exec"), names)
    return names


def run_line(line: str, names: dict[str, Any]) -> Exception | None:
    """Run a line; give what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(line, "<program>", "exec"), names)
        except Exception as error:  # noqa: BLE001 - it is what a program is compared by
            return error
    return None


def tensors(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those that the program made and can use, by name."""
    return {
        k: v
        for k, v in names.items()
        if isinstance(v, torch.Tensor) and k[0] == "t" and k[1:].isdigit() and _is_usable(v)
    }


def _is_usable(tensor: torch.Tensor) -> bool:
    """False for a view of a custom function's result whose base was written: torch raises."""
    try:
        return tensor.is_leaf or tensor.grad_fn is not None
    except RuntimeError:
        return False
