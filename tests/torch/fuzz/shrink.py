"""Leave out of a failing program every line that it fails without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.torch.fuzz.program import Program

__all__ = ["shrunk"]


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the lines that its failure does not need."""
    line = len(program) - 1
    while line >= 0:
        shorter = program.without(line)
        if fails(shorter):
            program = shorter
            line = min(line, len(program))
        line -= 1
    plain = replace(program, how={**program.how, "mode": "imperative"})
    return plain if fails(plain) else program
