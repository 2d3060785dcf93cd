"""Ctrl-C in a command ends it with one line, and its files are whole or untouched."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kit.__main__
from tests.reliability.stops.verbs import VERBS, interrupt, write_trace


def test_interrupts_at_random_times_leave_a_line_and_no_file(tmp_path: Path) -> None:
    chance = random.Random(7)
    write_trace(tmp_path / "a.json", 0.5)
    write_trace(tmp_path / "b.json", 0.5, seed=1)
    became, longest_s = set[str](), 0.6
    while "interrupted" not in became:  # a busy machine may take longer to begin
        became |= {interrupt(name, tmp_path, chance.uniform(0.1, longest_s)) for name in VERBS}
        longest_s *= 2


def test_an_interrupt_ends_a_command_that_waits_for_a_programs_thread() -> None:
    waits = (
        "import sys, threading; from kit.__main__ import main\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "sys.argv = ['kit']; status = main(); print('all is done', flush=True); sys.exit(status)"
    )
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True) as kit:
        assert kit.stdout is not None
        while "all is done" not in kit.stdout.readline():
            pass
        kit.send_signal(signal.SIGINT)
        assert kit.wait() == 130


def test_an_interrupt_while_modules_are_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "kit.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kit.cli.main", raising=False)
    monkeypatch.delattr("kit.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    before = signal.getsignal(signal.SIGINT)
    try:
        assert kit.__main__.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "kit: interrupted\n"


def test_an_interrupt_that_python_drops_comes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was printed and forgotten where it came into a callback of importlib's."""

    class Dropping:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def act() -> int:
        Dropping()
        time.sleep(30)
        return 0

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr("kit.cli.main.main", act)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert kit.__main__.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "kit: interrupted\n"
