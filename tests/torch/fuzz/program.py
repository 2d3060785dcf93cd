"""Random programs of torch, as text: a list of lines that run on any device.

A line is drawn from what the tensors are at that point of a run on the CPU, so most lines are
right; some raise, and then device kit must raise the same.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from tests.torch.fuzz.computes import COPIES, EXACT, SMOOTH
from tests.torch.fuzz.draw import DTYPES, Draw, NoLine
from tests.torch.fuzz.gradients import GRADIENTS, READS
from tests.torch.fuzz.views import VIEWS
from tests.torch.fuzz.writes import WRITES

__all__ = ["Program", "namespace", "program", "run_line"]

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
HOWS: tuple[dict[str, Any], ...] = (
    {"mode": "lazy"},
    {"mode": "imperative"},
    {"bulk_forward": 2, "bulk_backward": 2},
    {"bulk_forward": 15, "bulk_backward": 15},
    {"bulk_forward": 3, "bulk_backward": 1, "segment_mode": "launch"},
)
LINES = 14  # of a program, at most
LARGEST = 1000.0  # number in a program


@dataclass(frozen=True)
class Program:
    """Lines of Python, and the settings of the session that runs them."""

    lines: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=dict)

    def script(self) -> str:
        """The program as a user would write it, but for `device`."""
        return "\n".join([f"# kit.Settings(**{self.how})", *self.lines])

    def without(self, line: int) -> Program:
        return replace(self, lines=self.lines[:line] + self.lines[line + 1 :])


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


def program(random: Random) -> Program:
    """A program. One that computes smooth functions asks nothing that a rounding could decide."""
    kinds = [random.choice(DTYPES), random.choice(DTYPES)]
    is_smooth = random.random() < 0.35
    if is_smooth:
        kinds = ["float32", random.choice(["float32", "float32", "float64", "float16", "bfloat16"])]
    tables = [(VIEWS, 5), (SMOOTH if is_smooth else EXACT, 5), (COPIES, 1)]
    if not is_smooth or random.random() < 0.5:
        tables.append((WRITES, random.choice([2, 6])))
    if is_smooth or random.random() < 0.3:
        tables.append((GRADIENTS, random.choice([3, 6])))
    if not is_smooth:
        tables.append((READS, 1))
    how = dict(random.choice(HOWS))
    writer = _Writer(random, kinds, tables)
    return Program(tuple(writer.lines), how)


class _Writer:
    """Writes one program, line by line, and runs it on the CPU meanwhile."""

    def __init__(self, random: Random, dtypes: list[str], tables: list[Any]) -> None:
        self.lines: list[str] = []
        self._draw = Draw(random, dtypes)
        self._random = random
        self._names = namespace("cpu")
        self._count = 0
        for _ in range(random.randint(1, 2)):
            self._add(f"@ = {self._draw.start()}")
        if tables[-1][0] is not READS and random.random() < 0.8:
            self._try(GRADIENTS[0], GRADIENTS)
        wanted = random.randint(2, LINES)
        for _ in range(3 * LINES):
            if len(self.lines) >= wanted or not self._is_small():
                break
            ((table, _),) = random.choices(tables, [weight for _, weight in tables])
            if random.random() < 0.04:
                self._add("mark()")
            else:
                self._try(random.choice(table), table)
        if not self._is_small():
            self.lines.pop()

    def _try(self, line: Any, table: Any) -> None:
        try:
            text = line(self._draw)
        except NoLine:
            return
        if table is READS:
            self._add(f"r = {text}")
        elif table in (WRITES, GRADIENTS):
            self._add(text)
        else:
            self._add(f"@ = {text}")

    def _add(self, text: str) -> None:
        name = f"t{self._count}"
        line = text.replace("t = ", f"{name} = ").replace("(t * t)", f"({name} * {name})")
        line = line.replace("@ =", f"{name} =")
        error = run_line(line, self._names)
        if error is not None and self._random.random() < 0.8:
            return
        self.lines.append(line)
        self._count += 1
        self._draw.names = tensors(self._names)

    def _is_small(self) -> bool:
        """No number has grown large: rounding is not what is tested here."""
        for t in tensors(self._names).values():
            if t.is_floating_point() and t.numel() and t.detach().abs().max() > LARGEST:
                return False
        return True
