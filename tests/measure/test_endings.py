"""A script that made an explorer ends as any script does, whatever its threads are doing."""

from __future__ import annotations

import subprocess
import textwrap

from tests.warm import warm_python

# A step inside torch's C++, which ends the process if Python kills its thread there.
_SCRIPT = """
    import threading
    import torch
    from kit.runs.settings import Settings
    from kit.widgets.explorer.rerun import Reruns

    inside = threading.Event()

    def train(settings, *, progress, cancelled):
        weight = torch.ones(64, 64, requires_grad=True)
        while not cancelled():
            (weight @ weight).relu().sum().backward()
            inside.set()
        raise SystemExit

    Reruns(train).request(Settings())
    inside.wait(60)
    print("the last line")
"""


def test_a_script_ends_well_while_a_step_runs():
    command = [warm_python(), "-c", textwrap.dedent(_SCRIPT)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "the last line\n"), done.stderr


# What the frames of a cancelled step hold is freed in C++, as a tensor is, and takes its time.
_HOLDING = """
    import os, threading, time
    from kit.errors import Cancelled
    from kit.runs.settings import Settings
    from kit.widgets.explorer.rerun import Reruns

    class Held:
        def __del__(self):
            time.sleep(1)
            os.write(1, b"freed\\n")

    inside = threading.Event()

    def train(settings, *, progress, cancelled):
        held = Held()
        inside.set()
        while not cancelled():
            time.sleep(0.01)
        raise Cancelled("the program ends")

    Reruns(train).request(Settings())
    inside.wait(60)
"""


def test_what_a_cancelled_step_holds_is_freed_before_the_end():
    """It was freed while Python ended: one script in eight ended with SIGABRT on a slow machine."""
    command = [warm_python(), "-c", textwrap.dedent(_HOLDING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr


def test_a_script_ends_well_while_an_explorer_is_idle_or_runs():
    code = (
        "import sys, time, kit\nfrom kit.workloads import mlp\n"
        "explorer = kit.Explorer(mlp, kit.Settings(steps=2, warmup=1))\n"
        "time.sleep(float(sys.argv[1]))\nprint('the last line')"
    )
    for seconds in ("0", "2"):
        command = [warm_python(), "-c", code, seconds]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "the last line\n"), done.stderr
