"""A script on device kit that is slow is told what for, while it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import kit
from kit.measure.attached import slow
from tests.cli.calls import Kit, write

GROWS = """
import sys

import torch

for i in range(60):
    torch.ones(3 + i, device="cuda").exp().cumsum(0).sum().item()
    if "of them" in sys.stderr.getvalue():
        break
"""
READS = """
import sys

import torch

x = torch.ones(3, device="cuda")
for i in range(50_000):
    (x + 1.5).sum().item()
    if "numbers read" in sys.stderr.getvalue():
        break
"""
QUICK = """
import torch

net = torch.nn.Linear(3, 2).to("cuda")
net(torch.ones(4, 3, device="cuda")).sum().item()
"""


@pytest.fixture
def told(kit_run: Kit, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, float], str]:
    """Run a script; what stands on stderr, where the first line comes after so many seconds."""

    def run(name: str, code: str, first_s: float) -> str:
        monkeypatch.setattr(slow, "FIRST_S", first_s)
        monkeypatch.setattr(slow, "LOOK_S", 0.02)
        return kit_run(write(name, code), "--on", "kit")[2]

    return run


def test_a_loop_that_compiles_again_and_again_is_named_while_it_runs(
    told: Callable[[str, str, float], str],
) -> None:
    wrong = told("grow.py", GROWS, 0.2)
    assert "went into compiling" in wrong
    assert " were for grow.py:7, because the shape changes (float32[3], float32[4]" in wrong
    assert "pad to a fixed size" in wrong


def test_a_loop_that_reads_many_numbers_is_named_while_it_runs(
    told: Callable[[str, str, float], str],
) -> None:
    wrong = told("reads.py", READS, 1.0)
    assert "0 steps: " in wrong
    assert "numbers read, each a wait for the device, most of them at reads.py:8." in wrong


def test_nothing_is_said_of_a_script_that_takes_no_longer_than_others(kit_run: Kit) -> None:
    script = write("quick.py", QUICK)
    _, _, wrong = kit_run(script, "--on", "kit")
    assert "after" not in wrong


def test_the_first_program_that_is_not_ready_is_not_counted_as_none() -> None:
    """It said that 11.8 s went into compiling 0 programs."""
    now = slow._Spent(at_s=15.0, compile_s=9.8, compiles=0, steps=0)
    with kit.Session() as session:
        said = slow._said(slow._Spent(), now, 9.8, session)
    assert "9.8 s went into compiling a program that is not ready yet; a loop" in said


@pytest.mark.parametrize(("mode", "is_named"), [("lazy", True), ("bulked", False)])
def test_a_program_that_is_too_large_to_wait_for_has_a_cure(mode: str, is_named: bool) -> None:
    """A public script that writes 128 rows one after the other made no step in 400 s."""
    now = slow._Spent(at_s=45.0, compile_s=41.0, compiles=7, steps=0)
    with kit.Session(kit.Settings(mode=mode)) as session:
        said = slow._said(slow._Spent(), now, 30.0, session)
    assert "7 programs, and one that is not ready after 30 s" in said
    assert ("--set mode=bulked" in said) is is_named
