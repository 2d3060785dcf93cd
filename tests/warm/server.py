"""Imports what takes long, once, and forks for each process that is asked for.

`python server.py SOCKET RUN`; it ends when the file of the socket is gone, or the process RUN,
which may be killed. What is loaded at its start was told by the environment then: a process that
has another one is refused.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import io
import marshal
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from types import CodeType, ModuleType
from typing import TextIO

LOADED = (
    "torch", "torch._dynamo",  # an optimizer's first step loads the second
    "jax", "jax.numpy",
    "bokeh.plotting", "jupyter_bokeh", "ipykernel.ipkernel", "ipykernel.zmqshell",
)  # fmt: skip
# Read once: by Python, by jax and torch, and by the libraries that compute.
READ_AT_START = (
    "PYTHON", "LANG", "LC_", "JAX_", "TORCH_", "OMP_", "MKL_", "OPENBLAS_", "LD_",
)  # fmt: skip
READ_LATER = ("PYTHONPATH", "PYTHONFAULTHANDLER")


def fixed(environment: dict[str, str]) -> dict[str, str]:
    """What of an environment was read when this process began."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in READ_LATER
    }


def next_client(path: str, run: int) -> socket.socket:
    """In a fork for each process that is asked for: the connection to its client."""
    run_ended = os.pidfd_open(run)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen(100)
        os.rename(f"{path}.new", path)  # it answers from now on
        if os.fork():  # whoever has started it goes on
            os._exit(0)
        os.setsid()
        while True:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            ready, _, _ = select.select([listener, run_ended], [], [], 1)
            if run_ended in ready or not os.path.exists(path):
                os._exit(0)
            if ready:
                client, _ = listener.accept()
                if not os.fork():
                    return client
                client.close()


def asked_by(client: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """In a fork that has its files: the arguments, folder and environment of a client."""
    asked, files, _, _ = socket.recv_fds(client, 2**20, 253)
    arguments, folder, environment, numbers = marshal.loads(asked)
    mine, theirs = fixed(dict(os.environ)), fixed(environment)
    if mine != theirs:
        differ = sorted({name for name, _ in mine.items() ^ theirs.items()})
        client.send(f"{', '.join(differ)}: read before; start sys.executable instead".encode())
        os._exit(1)
    if child := os.fork():
        for file in files:
            os.close(file)
        with suppress(OSError):  # it may be gone
            client.send(str(child).encode())
        ends = os.pidfd_open(child)  # its number may be another's as soon as it has ended
        threading.Thread(target=end_with, args=(client, ends), daemon=True).start()
        status = os.waitpid(child, 0)[1]
        with suppress(OSError):
            client.send(str(status).encode())
        os._exit(0)
    client.close()
    os.setsid()
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, 256) for file in files]
    os.closerange(3, 256)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = written_to(1, sys.stdout), written_to(2, sys.stderr)
    return arguments, folder, environment


def written_to(number: int, before: TextIO) -> io.TextIOWrapper:
    """`sys.stdout` or `sys.stderr` of another file, which is no terminal."""
    is_direct = bool(os.environ.get("PYTHONUNBUFFERED"))
    file = open(number, "wb", 0 if is_direct else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        file, before.encoding, before.errors, "\n", before.line_buffering, is_direct
    )


def end_with(client: socket.socket, child: int) -> None:
    """Wait until the client is gone; then the child, if it still works, goes as well."""
    with suppress(OSError):  # it sends nothing: this returns once it has ended
        client.recv(1)
    with suppress(ProcessLookupError):  # so has the child
        signal.pidfd_send_signal(child, signal.SIGKILL)


def begin(
    arguments: list[str], folder: str, environment: dict[str, str], path: list[str]
) -> tuple[str, CodeType | None]:
    """Make this process what Python is when it begins: the module to run, or the code."""
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if "JPY_PARENT_PID" in os.environ:  # by which a kernel knows its parent
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
    os.chdir(folder)
    tempfile.tempdir = None  # torch has asked for that of the server
    sys.modules["__main__"] = main = ModuleType("__main__")
    path = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    own = subprocess._args_from_interpreter_flags()
    if arguments[: len(own)] == own:  # as multiprocessing hands them on
        del arguments[: len(own)]
    while arguments[0].startswith("-W"):  # multiprocessing hands it on as one word
        sys.warnoptions.append(arguments.pop(0)[2:] or arguments.pop(0))
    warnings._processoptions(sys.warnoptions)
    first, *rest = arguments
    if first == "-m":
        sys.path[:] = [folder, *path]
        sys.argv[:] = ["-m", *rest[1:]]
        return rest[0], None
    if first == "-c":
        sys.path[:] = ["", *path]
        sys.argv[:] = ["-c", *rest[1:]]
        return "", compile(rest[0], "<string>", "exec")
    assert not first.startswith("-"), f"{first} is not known here"
    sys.path[:] = [os.path.dirname(os.path.realpath(first)), *path]
    sys.argv[:] = arguments
    main.__file__ = os.path.abspath(first)
    with open(first, "rb") as script:
        return "", compile(script.read(), main.__file__, "exec")


if __name__ == "__main__":
    own_path = sys.path[1:]  # it is started without PYTHONPATH
    multiprocessing.set_executable(os.path.join(os.path.dirname(sys.argv[1]), "python"))
    for loaded in LOADED:
        import_module(loaded)
    gc.collect()
    gc.freeze()
    module, code = begin(*asked_by(next_client(sys.argv[1], int(sys.argv[2]))), own_path)
    if code is None:
        runpy._run_module_as_main(module)
    else:
        exec(code, sys.modules["__main__"].__dict__)
