"""Processes that are killed while they save, and disks that are full: a file is whole or absent."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kit.runs.run import Run
from tests.factories import make_run

__all__ = ["fill_disk", "kill_savers"]

ROOT = Path(__file__).parents[3]
_SAVER = """
import sys
from pathlib import Path
from kit.reports.html import write_report
from tests.factories import make_run
runs = [make_run(seed=seed) for seed in range(2)]
folder = Path(sys.argv[1])
print("ready", flush=True)
while True:
    for run in runs:
        run.save(folder / "run.kitrun")
        write_report([run], folder / "page.html")
"""
_FULL = """
import resource, signal, sys
from pathlib import Path
from kit.reports.html import write_report
from tests.factories import make_run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # as if the disk had no more
run, folder = make_run(steps=40), Path(sys.argv[1])
for write in (lambda: run.save(folder / "run.kitrun"),
              lambda: write_report([run], folder / "page.html")):
    try:
        write()
    except OSError as error:
        print("refused", error.errno)
"""


def kill_savers(count: int, chance: random.Random, folder: Path) -> int:
    """Kill that many processes while they save and report; gives how many files were looked at.

    Raises:
        AssertionError: a file is neither the old one nor the new one.
    """
    runs = [make_run(seed=seed) for seed in range(2)]
    looked = 0
    for _ in range(count):
        command = [sys.executable, "-c", _SAVER, str(folder)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(chance.uniform(0, 0.5))
            child.kill()
        looked += _look(folder / "run.kitrun", lambda file: Run.load(file) in runs)
        looked += _look(folder / "page.html", lambda file: file.read_text().endswith("</html>\n"))
    return looked


def _look(file: Path, is_whole: Callable[[Path], bool]) -> int:
    if not file.exists():
        return 0
    assert is_whole(file), f"{file.name} was cut off"
    return 1


def fill_disk(folder: Path) -> None:
    """Save and report where no more than 2,000 bytes fit in a file.

    Raises:
        AssertionError: that was no error, or an older file is gone, or half a file is left.
    """
    run = make_run(seed=7)
    run.save(folder / "run.kitrun")
    (folder / "page.html").write_text("older")
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
    assert Run.load(folder / "run.kitrun") == run
    assert (folder / "page.html").read_text() == "older"
    assert sorted(file.name for file in folder.iterdir()) == ["page.html", "run.kitrun"]
