"""`kit lab`: JupyterLab on a notebook, and on this machine only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import Kit, write


def test_jupyterlab_is_started_on_the_notebook_and_on_this_machine_only(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
):
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "")
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    Path("notebooks").mkdir()
    write("notebooks/01_where_does_the_step_go.ipynb", "{}")
    kit("lab")
    kit("lab", "notebooks/01_where_does_the_step_go.ipynb", "--port", "9", "--no-browser")
    for command in started:
        assert command[1:4] == ["-m", "jupyterlab", "--ip=127.0.0.1"]
        url = "--LabApp.default_url=/lab/tree/notebooks/01_where_does_the_step_go.ipynb"
        assert url in command
    assert "--no-browser" not in started[0]
    assert os.environ["MALLOC_ARENA_MAX"] == "1"  # for its kernels
    assert {"--no-browser", "--port=9"} <= set(started[1])
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert "JupyterLab prints below" in kit("lab")[2]
    assert "--no-browser" in started[2]
    kit("lab", write("50% #1?.ipynb", "{}"))
    assert "--LabApp.default_url=/lab/tree/50%25%20%231%3F.ipynb" in started[3]


def test_what_stands_after_two_dashes_is_for_jupyterlab(kit: Kit, monkeypatch: pytest.MonkeyPatch):
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, command: started.append(command))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "")
    kit("lab", "--port", "9", "--", "--collaborative", "--ServerApp.token=mine")
    assert started[0][-2:] == ["--collaborative", "--ServerApp.token=mine"]
    assert "JupyterLab's own arguments stand after --" in kit("lab", "--collaborative")[2]


def test_where_no_process_becomes_another_jupyterlab_is_waited_for(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
):
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "call", lambda command: len(command))
    monkeypatch.delattr(os, "execv")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")  # theirs is kept
    try:
        assert kit("lab")[0] >= 6
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # Ctrl-C is JupyterLab's
    finally:
        signal.signal(signal.SIGINT, handler)
