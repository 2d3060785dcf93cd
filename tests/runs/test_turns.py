"""Several runs of each side make a change surer where they took turns, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.runs.change import doubt_of, steps_difference
from kit.runs.conditions import Conditions
from kit.runs.labels import TIME
from kit.runs.run import Run
from kit.runs.spread import by_turns
from tests.factories import make_run


def measured_at(run: Run, *seconds: int) -> list[Run]:
    """Runs like this one, which ended in these seconds."""
    return [replace(run, environment={TIME: f"2026-01-01 00:00:{s:02} UTC"}) for s in seconds]


def test_runs_of_two_folders_that_took_no_turns_are_no_surer_for_being_many() -> None:
    """All of one side may be of a slow hour; so the doubt stays, and what a rerun differs by."""
    still = make_run()
    slow = replace(still, step_times_ns=tuple(round(1.06 * t) for t in still.step_times_ns))
    busy = replace(slow, conditions=Conditions(cores=2, others=1.3))
    one = steps_difference(measured_at(still, 1), measured_at(slow, 2))
    apart = steps_difference(measured_at(still, 1, 2, 3), measured_at(slow, 4, 5, 6))
    turns = steps_difference(measured_at(still, 1, 3, 5), measured_at(slow, 2, 4, 6))
    assert turns.spread < 0.7 * one.spread
    assert 0.7 * one.spread < apart.spread <= one.spread
    apart = steps_difference(measured_at(still, 1, 2, 3), measured_at(busy, 4, 5, 6))
    assert (apart.kind, apart.doubt) == ("unclear", doubt_of(busy))


@pytest.mark.parametrize(
    ("old", "new", "are_turns"),
    [
        ("135", "246", True),
        ("145", "236", True),  # the other one begins, each second time
        ("123", "456", False),
        ("126", "345", False),
        ("111", "111", True),  # within one second
        ("112", "223", True),
        ("1", "2", True),
        ("12", "34", False),
    ],
)
def test_sides_take_turns_where_they_change_as_often_as_there_are_runs(
    old: str, new: str, are_turns: bool
) -> None:
    assert by_turns(old, new) == are_turns
    assert not by_turns([*old, ""], [*new])
