"""Ctrl-C and `kill` in a script: it ends soon, and what was recorded is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.runs.run import Run
from tests.cli.calls import Kit, write

INTERRUPTED = """
import torch

net = torch.nn.Linear(3, 2).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 3, device="cuda")
for _ in range({steps}):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
kept = [torch.ones(3 + i, device="cuda").cumsum(0) for i in range(3)]
{reads}
raise KeyboardInterrupt
"""


def test_after_an_interrupt_what_is_pending_is_not_compiled(tmp_path: Path) -> None:
    """It was, before the script ended: for most of a minute in a loop whose shapes grow."""
    script = tmp_path / "none.py"
    programs = tmp_path / "programs"
    for reads, is_compiled in (("kept[0].tolist()", True), ("", False)):
        script.write_text(INTERRUPTED.format(steps=0, reads=reads))
        command = [sys.executable, "-m", "kit", "run", str(script), "--on", "kit"]
        ended = subprocess.run(
            command, env={**os.environ, "KIT_CACHE_DIR": str(programs)},
            capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 130
        assert ended.stderr.startswith("kit: interrupted\n")
        assert "Traceback" not in ended.stderr
        assert bool([*programs.rglob("*segment*")]) == is_compiled
        shutil.rmtree(programs)


def test_after_an_interrupt_the_steps_are_kept(kit_run: Kit) -> None:
    script = write("train.py", INTERRUPTED.format(steps=9, reads=""))
    status, _, wrong = kit_run(script, "--on", "kit", "--skip", 1, "--save", "a.kitrun")
    assert status == 130
    assert "Traceback" not in wrong
    assert len(Run.load("a.kitrun").step_times_ns) > 3


WITH_SIGNALS = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork, no SIGHUP")
TERMINATED = """
import os, signal, threading, time
import torch

net = torch.nn.Linear(3, 2).to("{device}")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 3, device="{device}")
if not (child := os.fork()):
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for _ in range(20):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
threading.Thread(target=time.sleep, args=(3,)).start()  # the file does not wait for it
try:
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)
except {caught}:
    print("goes on", flush=True)
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)
"""


@WITH_SIGNALS
@pytest.mark.parametrize(("name", "on"), [("SIGTERM", "kit"), ("SIGHUP", "")])
def test_after_a_kill_the_steps_are_kept(name: str, on: str, tmp_path: Path) -> None:
    """A job that its queue takes back, or a time limit, lost all that was recorded."""
    device = "cuda" if on else "cpu"
    ended = _run(
        TERMINATED.format(device=device, name=name, caught="ZeroDivisionError"), on, tmp_path
    )
    number = getattr(signal, name)
    assert ended.returncode == 128 + number, ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"child: {-number}" in ended.stdout
    assert len(Run.load(tmp_path / "a.kitrun").step_times_ns) > 3


@WITH_SIGNALS
def test_a_second_kill_ends_a_script_that_goes_on(tmp_path: Path) -> None:
    ended = _run(
        TERMINATED.format(device="cpu", name="SIGTERM", caught="KeyboardInterrupt"), "", tmp_path
    )
    assert ended.returncode == -signal.SIGTERM
    assert "goes on" in ended.stdout


def _run(text: str, on: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-W", "ignore", "-m", "kit", "run", "train.py", "--skip", "2"]
    command += ["--save", "a.kitrun", *(["--on", on] if on else [])]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
