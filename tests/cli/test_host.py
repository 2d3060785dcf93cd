"""On a machine with few cores, the main job leaves one to the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_ASK = """
import json, os
from kit.cli.host import leave_a_core
print(json.dumps([leave_a_core({environ}, {cores}), {before}]))
"""


def asked(environ: str, cores: int, before: str = "0") -> list[object]:
    """In a process of its own, where jax is not loaded and nobody has left a core yet."""
    code = _ASK.format(environ=environ, cores=cores, before=before)
    clean = {name: value for name, value in os.environ.items() if name != "NPROC"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_one_of_few_cores_is_left_and_xla_has_the_others() -> None:
    said, left = asked("os.environ", 2, "os.environ['NPROC']")
    assert str(said).startswith("NPROC=1: XLA leaves one of the 2 cores to the host")
    assert left == "1"


def test_xla_takes_as_many_threads_as_it_is_told() -> None:
    code = "os.environ.get('NPROC'), __import__('jax').numpy.ones(3).sum().item()"
    assert asked("os.environ", 2, f"[{code}]")[1] == ["1", 3.0]


@pytest.mark.parametrize(("environ", "cores"), [("{'NPROC': '2'}", 2), ("{}", 1), ("{}", 64)])
def test_what_was_said_and_machines_of_one_or_many_cores_are_left_alone(
    environ: str, cores: int
) -> None:
    assert asked(environ, cores)[0] == ""


def test_jax_that_is_loaded_has_read_it_already() -> None:
    assert asked("__import__('jax') and {}", 2)[0] == ""
