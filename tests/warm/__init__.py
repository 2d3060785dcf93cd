"""A Python that starts with torch and jax loaded: `[warm_python(), "-m", "kit", ...]`.

To import them takes four seconds of the processor, and the tests start a hundred processes. One
server per run of the tests imports them once, and each process is a fork of it that runs what it is
given as `python` would: its options `-c`, `-m` and `-W`, its folder, environment and open files,
its end. Nothing of kit is loaded before. A test of how a process starts, of what it imports or of
its terminal takes `sys.executable`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

__all__ = ["RUN", "SERVER", "warm_kernel", "warm_python"]

SERVER = "KIT_TESTS_WARM"  # in the environment: the server's socket, shared by the workers
RUN = "KIT_TESTS_RUN"  # there, too: the number of the process that has started them
_HERE = Path(__file__).parent


@cache
def warm_python() -> str:
    """What stands for `sys.executable` in a command; starts the server if this run has none."""
    if sys.platform != "linux":  # no other system hands on all files of a process
        return sys.executable
    import fcntl  # Windows has none

    server = Path(os.environ[SERVER])
    with server.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker starts the server, the others wait for that
        if not server.exists():
            _start(server)
    return str(server.with_name("python"))


def _start(server: Path) -> None:
    python, log = server.with_name("python"), server.with_suffix(".log")
    client = shlex.join([sys.executable, "-IS", f"{_HERE / 'client.py'}", f"{server}"])
    python.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
    python.chmod(0o700)
    command = [sys.executable, _HERE / "server.py", server, os.environ[RUN]]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as out:  # it goes on in the background
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=own)
    if status:
        raise RuntimeError(f"no server of warm processes: {log.read_text()}")


def warm_kernel(folder: Path) -> str:
    """A JUPYTER_PATH, written to this folder, on which the kernel "python3" is such a process."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [warm_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    known = {"argv": command, "display_name": "Python 3 (ipykernel)", "language": "python"}
    spec.write_text(json.dumps(known), encoding="utf-8")
    return str(folder)
