"""`kit lab`: JupyterLab on this machine's own address, with a notebook open."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from kit.cli.terminal import complain
from kit.runtime.profiling.heap import ONE_HEAP

__all__ = ["FIRST_NOTEBOOK", "is_headless", "lab", "port_number"]

FIRST_NOTEBOOK = Path("notebooks/01_where_does_the_step_go.ipynb")


def lab(options: argparse.Namespace) -> int:
    """Start JupyterLab on this machine's own address, with a notebook open; Ctrl-C ends it.

    JupyterLab's own arguments may follow after --, such as -- --collaborative.
    """
    notebook: Path | None = options.notebook
    if notebook is not None and not notebook.is_file():
        raise FileNotFoundError(2, "there is no such notebook", str(notebook))
    if notebook is None and FIRST_NOTEBOOK.is_file():
        notebook = FIRST_NOTEBOOK
    here = Path.cwd()
    url = "/lab"
    if notebook is not None:
        path = notebook.resolve()
        here = here if path.is_relative_to(here) else path.parent
        url += f"/tree/{quote(path.relative_to(here).as_posix())}"
    command = [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1",
               f"--ServerApp.root_dir={here}", f"--LabApp.default_url={url}"]  # fmt: skip
    if options.port is not None:
        command.append(f"--port={options.port}")
    if getattr(os, "geteuid", lambda: 1)() == 0:
        command.append("--allow-root")
    if options.no_browser or is_headless():
        command.append("--no-browser")
        complain("open the URL that JupyterLab prints below")
    command += options.arguments  # the last ones count: they are the user's
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this Python's kernel, not one of the user's own
    for name, value in ONE_HEAP.items():  # a kernel has threads before it can ask
        os.environ.setdefault(name, value)
    sys.stdout.flush()
    if sys.platform == "win32":  # `execv` there ends this process, and the shell does not wait
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # JupyterLab gets it too, and asks first
        return subprocess.call(command)
    else:
        return os.execv(sys.executable, command)  # its signals and exit status are JupyterLab's own


def port_number(text: str) -> int:
    """The value of --port, for argparse."""
    if not text.isdecimal() or int(text[:9]) > 65_535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text[:40]!r}")
    return int(text[:9])


def is_headless() -> bool:
    """No browser can be seen from here."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform.startswith("linux") and not has_display
