"""Loops that exist, as steps that can be interrupted: under `kit.watch`, and as `kit run`."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

import kit
from kit.cli.main import main
from kit.cli.terminal import INTERRUPTED
from kit.torch.device import open_session
from kit.torch.optimizers import FOLLOWED, OptimizerWatch
from tests.reliability.training import TimeLimit, on_cpu, one_step

__all__ = ["Program", "Watched"]

STEPS = 9  # of a loop: one warms up, two are timed, up to six are traced

_SCRIPT = """
import torch

torch.manual_seed(0)
net, x, y = torch.nn.Linear(6, 3), torch.randn(6, 6), torch.randn(6, 3)
net, x, y = net.to("cpu"), x.to("cpu"), y.to("cpu")  # which --on kit takes for device kit
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    optimizer.step()
print("weights", net.weight.sum().item())
"""


def _watches() -> set[OptimizerWatch]:
    """Who follows optimizers now: of sessions that nobody has closed, until they are freed, too."""
    return set(FOLLOWED._watches.values())


class Watched:
    """A whole loop under `kit.watch` is one step.

    Args:
        on_kit: the loop trains on device "kit" in a session; else natively on the CPU.
    """

    alike_after = 2

    def __init__(self, *, on_kit: bool = False) -> None:
        self._device = "kit" if on_kit else "cpu"
        self._session = open_session(kit.Settings(bulk_forward=4)) if on_kit else None
        self._outside = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._session is not None:
            self._outside.enter_context(self._session)
        torch.manual_seed(0)
        self._net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).to(self._device)
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=0.01)
        self._x, self._y = torch.randn(5, 6), torch.randn(5, 3)
        self._batch = self._x.to(self._device), self._y.to(self._device)
        self._others = _watches()
        return self

    def __exit__(self, *error: Any) -> None:
        self._outside.close()

    def recover(self) -> None:
        """Nothing is left half done."""

    def step(self) -> kit.Run:
        with kit.watch(steps=2, skip=1) as watch:
            for _ in range(STEPS):
                one_step(self._net, self._optimizer, *self._batch)
        if "MemoryError" in watch.ended:  # the loop goes on without its recording
            raise MemoryError(watch.ended)
        return watch.run

    def check_next_step(self) -> None:
        # On device kit one goes on to end the steps, and the one before leaves with the next step.
        most = 0 if self._session is None else 2
        assert len(_watches() - self._others) <= most, "a watch is left"
        assert not torch.autograd._profiler_enabled(), "a profiler is left"
        assert not torch._C._len_torch_dispatch_stack(), "a mode is left"
        twin = copy.deepcopy(self._net).cpu() if self._session is None else self._twin()
        adam = torch.optim.Adam(twin.parameters(), lr=0.01)
        adam.load_state_dict(on_cpu(copy.copy(self._optimizer.state_dict())))
        for _ in range(STEPS):
            one_step(twin, adam, self._x, self._y)
        run = self.step()
        for ours, theirs in zip(self._net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)
        assert len(run.step_times_ns) == 2, run.step_times_ns
        assert len(run.timeline) > 0, run.timeline.notes

    def _twin(self) -> Any:
        twin = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        twin.load_state_dict({name: x.cpu() for name, x in self._net.state_dict().items()})
        return twin


class Program:
    """`kit run script.py --on kit --save FILE` is one step."""

    alike_after = 1

    def __enter__(self) -> Self:
        self._outside = contextlib.ExitStack()
        folder = Path(self._outside.enter_context(tempfile.TemporaryDirectory()))
        self._script, self._save = folder / "train.py", folder / "now.kitrun"
        self._script.write_text(_SCRIPT)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(_SCRIPT, {})  # without the kit
        self._weights = self._weights_in(said.getvalue())
        self.step()  # what torch and jax set in the process, they set once
        self._others = _watches()
        self._before = self._outer()
        return self

    def __exit__(self, *error: Any) -> None:
        self._outside.close()

    def recover(self) -> None:
        """The next program begins from the start."""

    def step(self) -> str:
        said, errors = io.StringIO(), io.StringIO()
        options = ["--on", "kit", "--steps", "2", "--skip", "1", "--save", str(self._save)]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            status = main(["run", str(self._script), *options])
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if "TimeLimit" in errors.getvalue():  # an error of the script's, as any other
            raise TimeLimit
        return said.getvalue()

    def check_next_step(self) -> None:
        assert self._outer() == self._before, "the program's surroundings are not what they were"
        if self._save.exists():
            kit.Run.load(self._save)  # whole, or not there
            self._save.unlink()
        said = self.step()
        assert abs(self._weights_in(said) - self._weights) < 1e-4, said
        assert len(kit.Run.load(self._save).step_times_ns) == 2
        assert sorted(file.name for file in self._save.parent.iterdir()) == [
            self._save.name,
            self._script.name,
        ], "an interrupted save has left a file"

    def _outer(self) -> tuple[Any, ...]:
        """What a program in this process may change, and `kit run` puts back."""
        return (
            list(sys.argv),
            list(sys.path),
            dict(os.environ),
            signal.getsignal(signal.SIGINT),
            _watches() <= self._others,
            torch.autograd._profiler_enabled(),
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
            torch.load,
        )

    @staticmethod
    def _weights_in(said: str) -> float:
        line = next(line for line in said.splitlines() if line.startswith("weights"))
        return float(line.split()[1])
