"""Random programs of torch give on device kit what they give on CPU torch.

`python benchmarks/fuzz.py` runs as many as there is time for; a failing one belongs into `corpus`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from textwrap import dedent

import pytest

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session
from tests.torch.fuzz.corpus import CORPUS
from tests.torch.fuzz.outcome import outcome
from tests.torch.fuzz.program import Program, namespace, run_line
from tests.torch.fuzz.shrink import shrunk
from tests.torch.fuzz.steps import STEPS, run_steps
from tests.torch.fuzz.writer import program

PROGRAMS = 60
CACHE = ExecutableCache()  # programs of single ops are alike


@pytest.mark.parametrize("mode", ["imperative", "lazy"])
@pytest.mark.parametrize("claim", CORPUS)
def test_what_once_failed_does_not(claim: str, mode: str) -> None:
    lines = dedent(CORPUS[claim]).strip().splitlines()
    found = outcome(Program(tuple(lines), {"mode": mode}), CACHE)
    assert found.kind == "same", found.what


def test_programs_give_what_cpu_torch_gives() -> None:
    for number in range(PROGRAMS):
        made = program(Random(number))
        if number % 10:  # most of them op by op: each whole program is one more to compile
            made = replace(made, how={**made.how, "mode": "imperative"})
        found = outcome(made, CACHE)
        assert found.kind != "different", f"program {number}: {found.what}\n{made.script()}"


def test_a_wrong_rule_is_found_and_the_program_shrunk_to_what_shows_it() -> None:
    wrong = Rules({"aten.neg.default": lambda x: x}).over(DEFAULT_RULES)
    long = Program(
        (
            "t0 = torch.arange(3.0).to(device)",
            "t1 = t0 + 1",
            "t2 = -t1",
            "t3 = t2 * 0",
            "t4 = t0.cos()",
        ),
        {"mode": "lazy"},
    )

    def fails(program: Program) -> bool:
        return outcome(program, rules=wrong).kind == "different"

    short = shrunk(long, fails)
    assert short.lines == ("t0 = torch.arange(3.0).to(device)", "t1 = t0 + 1", "t2 = -t1")
    assert "t2" in outcome(short, rules=wrong).what
    assert outcome(short).kind == "same"


def test_steps_are_replayed_with_other_data_and_another_number() -> None:
    made = Program(
        ("t0 = torch.ones(2, 3).to(device)",),
        {"step_mode": "replay"},
        ("t1 = fetch() * k", "t0 += t1"),
    )
    assert outcome(made, CACHE).kind == "same"
    with open_session(Settings(step_mode="replay")) as session:
        names = namespace("kit")
        assert run_line(made.lines[0], names) is None
        assert len(run_steps(made, names, session)) == STEPS
        assert session.metrics()["replay.steps"] > 0


def test_a_step_that_turns_its_state_is_not_replayed() -> None:
    made = Program(
        ("t0 = torch.ones(2, 3).to(device)",), {"step_mode": "replay"}, ("t0.unsqueeze_(0)",)
    )
    assert outcome(made, CACHE).kind == "same"


def test_a_step_asks_a_new_tensor_for_gradients_as_it_asked_the_old_one() -> None:
    first = ("t0 = torch.ones(2, 3).to(device)",)
    step = ("t1 = torch.ones(2).to(device)", "t1 += 1", "t0.requires_grad_()")  # `change` replaces
    assert outcome(Program(first, {"step_mode": "replay"}, step), CACHE).kind == "same"


def test_a_program_is_the_same_each_time() -> None:
    assert program(Random(7)) == program(Random(7))
