"""`kit run` on scripts whose threads train: they are in the session, watched, and waited for."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kit.runs.run import Run
from tests.cli.calls import Kit
from tests.warm import warm_python

IN_A_THREAD = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor

import torch


def train():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2).to("cpu")
    optimizer = torch.optim.Adam(net.parameters())
    points = torch.ones(3, 4).to("cpu")
    for _ in range(30):
        net(points).sum().backward()
        optimizer.step()
    print(f"{net.weight.sum().item():.4f} on {net.weight.device.type}", flush=True)


"""


def written(text: str) -> str:
    Path("train.py").write_text(text, "utf-8")
    return "train.py"


@pytest.mark.parametrize("end", ["", "; sys.exit(3)", "; raise SystemExit"])
@pytest.mark.parametrize("on", [(), ("--on", "kit")])
def test_a_script_that_trains_in_a_thread_is_watched_until_that_ends(
    kit_run: Kit, end: str, on: tuple[str, ...]
) -> None:
    """With --on kit the thread had no session, and died; else it was not watched."""
    exec(IN_A_THREAD, found := dict[str, Any]())
    with contextlib.redirect_stdout(io.StringIO()) as native:
        found["train"]()
    expected = native.getvalue().replace("cpu", "kit") if on else native.getvalue()
    script = written(f"{IN_A_THREAD}threading.Thread(target=train).start(){end}")
    status, said, wrong = kit_run(script, "--steps", 2, "--skip", 1, "--save", "a.kitrun", *on)
    assert status == (3 if "3" in end else 0)
    assert said.startswith(expected)
    assert "Traceback" not in wrong
    assert Run.load("a.kitrun").environment["a step ends at"] == "Adam.step(), train.py:15"


def test_a_pool_that_is_left_running_is_not_waited_for(kit_run: Kit) -> None:
    """Python ends its threads, which would wait for work for ever."""
    pool = "pool = ThreadPoolExecutor(1); pool.submit(print, 'x').result()"
    status, _, wrong = kit_run(written(f"{IN_A_THREAD}{pool}"))
    assert status == 1
    assert "a pool of threads, which is watched until the last line only, was not" in wrong


@pytest.mark.parametrize("wait", ["while main.is_alive(): time.sleep(0.01)", "main.join()"])
def test_a_thread_that_waits_for_the_scripts_end_sees_it(kit_run: Kit, wait: str) -> None:
    """As under Python, whose main thread has ended while the others are waited for."""
    watcher = f"import time\ndef follow():\n    main = threading.main_thread()\n    {wait}\n"
    end = "threading.Thread(target=follow).start(); train()"
    script = written(f"{IN_A_THREAD}{watcher}{end}")
    status, _, wrong = kit_run(script, "--steps", 2, "--skip", 1, "--save", "a.kitrun")
    assert (status, wrong) == (0, "")
    assert threading.main_thread().is_alive()
    assert Run.load("a.kitrun").environment["a step ends at"] == "Adam.step(), train.py:15"


PRODUCED = """
import atexit, multiprocessing, threading, torch

def produce(queue):
    while True:
        queue.put([1.0] * 4)

queue = multiprocessing.get_context("fork").Queue(2)
{kind}(target=produce, args=(queue,)).start()
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters())
atexit.register(print, "at its exit")
while True:
    net(torch.tensor(queue.get())).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forks")
@pytest.mark.parametrize("kind", ["threading.Thread", "multiprocessing.Process"])
def test_stop_ends_a_script_whose_batches_are_made_in_a_thread_or_process(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PRODUCED.format(kind=kind), "utf-8")
    ended = stopped(tmp_path, finish_s=0.1)
    assert ended.returncode == 0
    assert ended.stderr == (
        "kit: threads or processes of train.py went on for 0.1 s after --stop, and are ended: "
        "a file that they were writing may be incomplete\n"
    )
    assert "saved a.kitrun" in ended.stdout
    assert ended.stdout.endswith("at its exit\n")
    assert len(Run.load(tmp_path / "a.kitrun").step_times_ns) == 2


def stopped(folder: Path, finish_s: float) -> subprocess.CompletedProcess[str]:
    """`kit run train.py --stop`, which lets the script's threads finish for so many seconds."""
    text = (
        "import sys; from kit.cli import main; from kit.cli.scripts import program; "
        f"program._FINISH_S = {finish_s}; sys.exit(main.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [warm_python(), "-c", text, "run", "train.py", "--steps", "2", "--skip", "0", "--stop",
         "--save", "a.kitrun"],
        cwd=folder, timeout=120, capture_output=True, text=True,
    )  # fmt: skip


WRITES = """
import multiprocessing, threading, time, torch
from concurrent.futures import ThreadPoolExecutor

fork = multiprocessing.get_context("fork")
is_stopped = fork.Event()

def write():
    is_stopped.wait()
    with open("checkpoint", "w") as file:
        for part in range(20):
            file.write(f"{{part}} ")
            file.flush()
            time.sleep(0.02)
        file.write("whole")

pool = ThreadPoolExecutor(2)
{begin}
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters())
try:
    while True:
        net(torch.ones(4)).sum().backward()
        optimizer.step()
finally:
    is_stopped.set()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no forks")
@pytest.mark.parametrize(
    "begin",
    ["threading.Thread(target=write).start()", "fork.Process(target=write).start()",
     "pool.submit(write)"],
)  # fmt: skip
def test_stop_lets_threads_and_processes_finish_what_they_write(begin: str, tmp_path: Path) -> None:
    """A checkpoint was cut off in the middle."""
    (tmp_path / "train.py").write_text(WRITES.format(begin=begin), "utf-8")
    ended = stopped(tmp_path, finish_s=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "checkpoint").read_text("utf-8").endswith(" whole")


PICKLES = """
import atexit, threading, time, torch
from concurrent.futures import ThreadPoolExecutor

class Net(torch.nn.Linear):
    pass

def save():
    if threading.current_thread() is not threading.main_thread():
        over.wait()
        time.sleep(0.3)
    torch.save(net, "model.pt")

over = threading.Event()
net = Net(4, 2)
optimizer = torch.optim.SGD(net.parameters())
{begin}
try:
    for _ in range(8):
        net(torch.ones(4)).sum().backward()
        optimizer.step()
finally:
    over.set()
"""


SHORT = ("--steps", "2", "--skip", "0")


def pickling(begin: str, folder: Path) -> None:
    """The script, and the same as a module of a package."""
    for file in (folder / "train.py", folder / "package" / "train.py"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(PICKLES.format(begin=begin), "utf-8")


@pytest.mark.parametrize("arguments", [("train.py",), ("-m", "package.train")])
def test_a_thread_that_outlives_the_last_line_can_pickle_what_the_script_defines(
    kit_run: Kit, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint was lost: "Can't pickle <class '__main__.Net'>"; the exit status was 0."""
    pickling("threading.Thread(target=save).start()", Path())
    monkeypatch.delitem(sys.modules, "package", raising=False)
    importlib.invalidate_caches()
    status, _, wrong = kit_run(*arguments, *SHORT)
    assert (status, wrong) == (0, "")
    assert Path("model.pt").exists()


@pytest.mark.parametrize(
    ("begin", "arguments"),
    [
        ("threading.Thread(target=save).start()", ["train.py", "--stop"]),
        ("pool = ThreadPoolExecutor(1); pool.submit(save)", ["train.py"]),
        ("atexit.register(save)", ["-m", "package.train"]),
    ],
)
def test_so_can_what_outlives_the_recording(
    begin: str, arguments: list[str], tmp_path: Path
) -> None:
    pickling(begin, tmp_path)
    call = [warm_python(), "-m", "kit", "run", *arguments, *SHORT]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "model.pt").exists()
