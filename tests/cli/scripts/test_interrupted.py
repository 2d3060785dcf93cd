"""Ctrl-C and `kill` in a script: it ends soon, and what was recorded is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.errors import SweepInterrupted
from kit.runs.run import Run
from tests.cli.calls import Kit, write
from tests.factories import make_run
from tests.warm import warm_python

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
        command = [warm_python(), "-m", "kit", "run", str(script), "--on", "kit"]
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
LOOP = """
import multiprocessing, os, signal, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch

net = torch.nn.Linear(3, 2).to("{device}")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 3, device="{device}")
for _ in range(20):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()

def kill(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    time.sleep(60)
"""
# A file would not wait for the thread and the processes that it has left.
KILLED = """
if not (child := os.fork()):
    kill()
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
threading.Thread(target=time.sleep, args=(600,)).start()
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
subprocess.Popen(f"kill {os.getpid()}; sleep 0.2; kill {os.getpid()}", shell=True)  # as `timeout`
time.sleep(60)
"""
HUNG_UP = """
threading.Thread(target=time.sleep, args=(600,)).start()
print("trained", flush=True)
time.sleep(60)
"""
# Closes the terminal of a command once that has said so.
IN_TERMINAL = """
import os, pty, sys
child, terminal = pty.fork()
if not child:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"trained" not in seen:
    seen += os.read(terminal, 10_000)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
CLEANED = """
def write():
    time.sleep(1)
    print("written")

def clean(*_):
    print("cleaned", flush=True)
    os._exit(7)

try:
    kill()
except KeyboardInterrupt:
    pool = ThreadPoolExecutor()
    pool.submit(write)  # Python waits for it
    pool.submit(lambda: (time.sleep(2), kill()))
signal.signal(signal.SIGTERM, clean)
"""
LATE = """
import sys
Run = sys.modules["kit.runs.run"].Run
save = Run.save

def late(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    save(*args)

Run.save = late
"""
TIMED = """
import sys
Run = sys.modules["kit.runs.run"].Run
save = Run.save

def late(*args):
    time.sleep(1.2)
    save(*args)

def limit(*_):
    raise TimeoutError("too late")

Run.save = late
signal.signal(signal.SIGALRM, limit)
signal.alarm(1)
"""
AGAIN = """
try:
    kill()
except KeyboardInterrupt:
    print("goes on", flush=True)
    time.sleep(1.1)
    kill()
"""


@WITH_SIGNALS
@pytest.mark.parametrize("is_in_background", [False, True])
def test_after_a_kill_the_steps_are_kept(is_in_background: bool, tmp_path: Path) -> None:
    """A job that its queue takes back, or a time limit, lost all that was recorded.

    A shell lets what it starts in the background ignore Ctrl-C.
    """
    around = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh") if is_in_background else ()
    ended = _run(LOOP.format(device="cuda") + KILLED, tmp_path, "--on", "kit", around=around)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"child: {-signal.SIGTERM}" in ended.stdout
    assert len(Run.load(tmp_path / "a.kitrun").step_times_ns) > 3


@WITH_SIGNALS
def test_when_its_terminal_is_closed_the_steps_are_kept_and_it_ends(tmp_path: Path) -> None:
    in_terminal = (sys.executable, "-c", IN_TERMINAL)
    ended = _run(LOOP.format(device="cpu") + HUNG_UP, tmp_path, around=in_terminal)
    assert ended.returncode == 128 + signal.SIGHUP, ended.stdout
    assert len(Run.load(tmp_path / "a.kitrun").step_times_ns) > 3


@WITH_SIGNALS
def test_a_script_that_handles_it_ends_as_it_wants(tmp_path: Path) -> None:
    """What it had given to a pool of threads was cut off."""
    ended = _run(LOOP.format(device="cpu") + CLEANED, tmp_path)
    assert "written\ncleaned\n" in ended.stdout
    assert ended.returncode == 7
    assert Run.load(tmp_path / "a.kitrun").step_times_ns


@WITH_SIGNALS
def test_what_is_being_saved_is_saved_first(tmp_path: Path) -> None:
    ended = _run(LOOP.format(device="cpu") + LATE, tmp_path)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "saved a.kitrun" in ended.stdout
    assert Run.load(tmp_path / "a.kitrun").step_times_ns


@WITH_SIGNALS
def test_a_time_limit_of_a_script_ends_with_it(tmp_path: Path) -> None:
    """Natively it does; here it ended what sums up the run, with status 1."""
    ended = _run(LOOP.format(device="cpu") + TIMED, tmp_path)
    assert ended.returncode == 0
    assert not ended.stderr
    assert "saved a.kitrun" in ended.stdout


@WITH_SIGNALS
def test_a_second_kill_ends_a_script_that_goes_on(tmp_path: Path) -> None:
    ended = _run(LOOP.format(device="cpu") + AGAIN, tmp_path)
    assert ended.returncode == -signal.SIGTERM
    assert "goes on" in ended.stdout


def _run(
    text: str, folder: Path, *arguments: str, around: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    python = sys.executable if around else warm_python()
    command = [python, "-W", "ignore", "-m", "kit", "run", "train.py", "--skip", "2"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [*around, *command, "--save", "a.kitrun", *arguments], cwd=folder, env=env,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip


ENDED = """
import os, torch

os.environ.update(RANK="1", WORLD_SIZE="2")  # as a script does that reads what Slurm has set
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    net(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
os._exit(0)
"""


def test_what_was_recorded_is_saved_though_the_script_ends_its_process(tmp_path: Path) -> None:
    """And each rank's to its own file, also where only the script says which one this is."""
    command = [warm_python(), "-m", "kit", "run", "train.py", "--steps", "2", "--skip", "0"]
    for more, label in ((ENDED, "old"), (ENDED.replace("os._exit(0)", ""), "new")):
        (tmp_path / "train.py").write_text(more, "utf-8")
        ended = subprocess.run([*command, "--save", "a.kitrun", "--label", label], cwd=tmp_path)
        assert ended.returncode == 0
        saved = [file.name for file in tmp_path.glob("*.kitrun")]
        assert saved == ["a_rank1.kitrun"]
        assert Run.load(tmp_path / "a_rank1.kitrun").label == label


def test_what_a_report_has_measured_is_kept_where_its_page_is_not_written(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **__: object) -> None:
        raise SweepInterrupted([make_run(), make_run()], [])

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("kit.report", interrupted)
    status, _, err = kit("report")
    assert status == 130
    (folder,) = tmp_path.glob("kit-runs-*")
    assert f"the 2 runs that are done: kit report {folder}\n" in err
    assert len(list(folder.glob("*.kitrun"))) == 2


@pytest.mark.parametrize("option", ["--save=out/a.kitrun", "--report=out/a.html"])
def test_what_a_script_has_done_is_kept_where_its_file_cannot_be_written(
    kit_run: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Path("out").mkdir()
    code = INTERRUPTED.format(steps=9, reads="import os; os.rmdir('out')")
    script = write("train.py", code.replace('"cuda"', '"cpu"').replace("raise Key", "#"))
    status, out, wrong = kit_run(script, "--skip", 1, option)
    assert status == 1
    assert "there is no such folder to write to" in wrong
    (file,) = tmp_path.glob("kit-runs-*/*.kitrun")
    assert f"the run that is done: kit report {file.parent}\n" in wrong
    assert out.startswith(f"{Run.load(file).name}: recorded")
