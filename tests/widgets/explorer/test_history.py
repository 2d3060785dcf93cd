"""The settings that were chosen, and the way back through them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kit.runs.settings import Settings
from kit.widgets.explorer.history import MOST, History, HistoryBar

QUICK = Settings(steps=2, warmup=0)


@given(st.lists(st.one_of(st.sampled_from(["undo", "redo"]), st.integers(1, 4)), max_size=30))
def test_a_history_is_like_a_list_with_a_place_in_it(moves: list[Any]):
    history = History(QUICK)
    chosen, at = [QUICK], 0
    for move in moves:
        if isinstance(move, int):
            settings = QUICK.replace(batch_size=move)
            history.note(settings)
            if settings != chosen[at]:
                chosen, at = [*chosen[: at + 1], settings], at + 1
        else:
            step = -1 if move == "undo" else 1
            found = history.move(step)
            if 0 <= at + step < len(chosen):
                at += step
                assert found == chosen[at]
            else:
                assert found is None
    assert (history.can(-1), history.can(1)) == (at > 0, at + 1 < len(chosen))


def test_a_history_is_bounded():
    history = History(QUICK)
    for i in range(1, 3 * MOST):
        history.note(QUICK.replace(batch_size=i))
    steps = 0
    while history.move(-1):
        steps += 1
    assert steps == MOST - 1


def test_a_link_that_cannot_be_written_is_told_and_the_bar_stays():
    told: list[Exception] = []

    def write() -> str:
        raise ValueError("no view has a range")

    bar = HistoryBar(QUICK, on_invalid=told.append, on_link=write)
    bar.link.value = "an older link"
    bar.copy.click()
    assert [str(error) for error in told] == ["no view has a range"]
    assert (bar.link.value, bar.shared.layout.display) == ("an older link", "none")
