"""How a run of several processes ends that one of them, its caller or its parent ends."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

import kit
from kit.errors import Cancelled, SessionError
from kit.measure.many.launch import _Child
from tests.measure.many.steps import (
    SCRIPT,
    SETTINGS,
    children,
    classify,
    dies,
    first_dies,
    first_hangs,
    last_hangs,
    last_sleeps,
    raises,
)
from tests.warm import warm_python


@pytest.mark.parametrize(("workload", "who"), [(dies, 1), (first_dies, 0)], ids=["last", "first"])
def test_a_killed_process_ends_the_run_with_its_name(workload: kit.Workload, who: int) -> None:
    with pytest.raises(SessionError, match=rf"process {who} of 2 was killed by signal 9 \(SIGKILL"):
        kit.run(workload, SETTINGS, processes=2)
    assert not children()


@pytest.mark.parametrize(
    ("workload", "who"), [(last_hangs, 1), (first_hangs, 0)], ids=["last", "first"]
)
def test_a_process_that_stands_still_ends_the_run_with_its_name(
    workload: kit.Workload, who: int
) -> None:
    with pytest.raises(SessionError, match=rf"process {who} of 2 was silent for 6 s: it hangs"):
        kit.run(workload, SETTINGS, processes=2, timeout_s=8)
    assert not children()


def test_a_process_that_is_stuck_in_its_step_ends_the_run_with_its_name() -> None:
    with pytest.raises(SessionError, match=r"process 1 did not come to it within 5 s"):
        kit.run(last_sleeps, SETTINGS, processes=2, timeout_s=5)
    assert not children()


def test_what_a_process_raises_comes_through_with_its_process_replica_and_line() -> None:
    with pytest.raises(ValueError, match="the data of this shard is broken") as caught:
        kit.run(raises, SETTINGS, processes=2)
    notes = "\n".join(caught.value.__notes__)
    assert "kit: this was in replica 1 of 2, at steps.py:" in notes
    assert "kit: this was in process 1 of 2" in notes


@pytest.fixture(scope="module")
def cancelled() -> list[str]:
    """A run that was cancelled in its steps: the addresses at which its processes listened."""
    addresses: list[str] = []

    def progress(name: str, part: float) -> None:
        if name.startswith("measuring") and not addresses:
            sockets = [s for child in children() for s in child.net_connections("inet")]
            found = (s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN)
            addresses.extend(ip.removeprefix("::ffff:") for ip in found)

    with pytest.raises(Cancelled):
        kit.run(classify, SETTINGS.replace(steps=100_000), processes=2, progress=progress,
                cancelled=lambda: bool(addresses))  # fmt: skip
    return addresses


def test_a_run_can_be_cancelled_and_leaves_no_process(cancelled: list[str]) -> None:
    assert not children()


def test_processes_of_one_machine_listen_to_nobody_outside(cancelled: list[str]) -> None:
    own = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None)}
    assert set(cancelled) <= {"127.0.0.1", *own}  # gloo listens where the host's own name leads


def test_an_error_of_who_is_told_of_the_progress_is_no_death_of_a_process() -> None:
    """ "ended with exit status None" was said, after ten seconds, of a process that was well."""
    child = object.__new__(_Child)
    child.is_done, child.error = False, None
    child.pipe, theirs = multiprocessing.Pipe(duplex=False)

    def broken(name: str, part: float) -> None:
        raise BrokenPipeError("nobody reads what is printed")

    theirs.send(("progress", "measuring", 0.5))
    with theirs, child.pipe, pytest.raises(BrokenPipeError, match="nobody reads"):
        child.hear(broken)
    assert child.error is None


PARENT = """
import os
import sys
sys.path.insert(0, {folder!r})
from train import mine
import kit

if __name__ == "__main__":
    print(os.getpid(), flush=True)
    settings = kit.Settings(steps=100_000, warmup=1)
    kit.run(mine, settings, processes=2, progress=lambda name, part: print(name, flush=True))
"""


def test_the_processes_of_a_parent_that_is_killed_end_as_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(folder=str(tmp_path)))
    there = {**os.environ, "TMPDIR": str(tmp_path)}  # what is killed leaves its folder
    parent = subprocess.Popen(
        [warm_python(), str(script)], stdout=subprocess.PIPE, text=True, env=there
    )
    assert parent.stdout is not None
    with parent.stdout:
        while not (said := parent.stdout.readline()).strip().isdigit():
            assert parent.poll() is None
        while "measuring" not in parent.stdout.readline():
            assert parent.poll() is None
    started = children(int(said))
    assert len(started) == 2
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []
