"""A child that a step or a script forks ends as it would without the kit; the parent's run is one.

Each test runs in a process of its own, which kills a child that has not ended after a while.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kit
from tests.warm import warm_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")

# One that hangs says where, long before pytest ends its worker.
_FORKS = """
import faulthandler, os, sys, time
faulthandler.dump_traceback_later(200, exit=True)
import torch

def status_of(child):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"

def trained(device):
    torch.manual_seed(0)
    net, x = torch.nn.Linear(6, 3).to(device), torch.randn(6, 6).to(device)
    optimizer, calls = torch.optim.SGD(net.parameters(), lr=0.1), []

    def step(at=None, fork=None):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        if len(calls) == at:
            fork()
        calls.append(at)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
"""
_STEPS = f"""{_FORKS}
import functools
import kit
print = functools.partial(print, flush=True)  # a child that ends writes what its parent has not

class Leaves(BaseException):
    pass

def leave():
    child = os.fork()
    if not child:
        raise Leaves
    print(status_of(child))

def leave_by_exit():
    child = os.fork()
    if not child:
        sys.exit(6)
    print(status_of(child))

def build(ctx, fork=leave):
    step = trained(ctx.device)
    return lambda: step(2, fork)

settings = kit.Settings(steps=2, warmup=1)
for mode in ("bulked", "torch"):
    try:
        print(*kit.run(kit.workload(build), settings.replace(mode=mode)).losses)
    except Leaves:
        os._exit(5)
explorer = kit.Explorer(kit.workload(lambda ctx: build(ctx, leave_by_exit)), settings)
print(*explorer.wait(120).losses)
explorer.close()
step = trained("cpu")
with kit.watch(steps=2, skip=1) as watch:
    try:
        for _ in range(12):
            step(5, leave)  # in the trace
    except Leaves:
        child = True
    else:
        child = False
if child:
    os._exit(4 if not watch.runs and "forked" in watch.ended else 1)
print(len(watch.run.step_times_ns), len(watch.run.timeline) > 0)
"""
_SCRIPT = f"""{_FORKS}
def train(name):
    step = trained("cpu")
    for _ in range(40):
        loss = step()
    print(name, loss.item(), flush=True)

children = []
for name in ("rank A", "rank B"):
    children.append(os.fork())
    if not children[-1]:
        train(name)
        sys.exit(3)
print(*map(status_of, children))
if "itself" in sys.argv:
    train("itself")
"""


def test_a_child_that_a_step_forks_leaves_the_run_and_the_run_goes_on() -> None:
    """It waited for ever, for libgomp's threads, and torch's profiler's: both are its parent's."""
    command = [warm_python(), "-W", "ignore", "-c", _STEPS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    said = done.stdout.split("\n")
    assert said[0::2][:4] == ["5", "5", "6", "4"], done.stdout + done.stderr
    assert said[1] == said[5]
    assert [float(x) for x in said[1].split()] == pytest.approx([*map(float, said[3].split())])
    assert said[7] == "2 True"


@pytest.mark.parametrize("itself", ["itself", ""])
def test_of_a_script_that_forks_ranks_only_what_it_does_itself_is_recorded(
    itself: str, tmp_path: Path
) -> None:
    """Each child wrote its run to the one file, and printed it."""
    script, save = tmp_path / "train.py", tmp_path / "now.kitrun"
    script.write_text(_SCRIPT)
    command = [warm_python(), "-W", "ignore", "-m", "kit", "run", str(script), "--save", str(save)]
    done = subprocess.run([*command, "--", itself], capture_output=True, text=True, timeout=240)
    assert "3 3\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("rank A") == done.stdout.count("rank B") == 1
    assert done.stdout.count("\nsaved ") == save.exists() == bool(itself)
    assert "no step to record" in done.stderr or itself
    assert not itself or len(kit.Run.load(save).step_times_ns) == 10
