"""The settings that were chosen, and the way back through them."""

from __future__ import annotations

from threading import Lock
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.settings import Settings
from kit.widgets.explorer.actions import FailureBox
from kit.widgets.explorer.history import MOST, PRESETS, History, HistoryBar, preset
from kit.widgets.explorer.link import Link
from tests.factories import make_run
from tests.waiting import until
from tests.widgets.explorer.steps import LONG_S, QUICK, Step


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
    failure = FailureBox(Lock())
    bar = HistoryBar(QUICK, failure, Link(None, Lock(), bool))  # of an explorer without views
    bar.link.value = "an older link"
    bar.copy.click()
    assert "has no attribute" in failure.value
    assert (bar.link.value, bar.shared.layout.display) == ("an older link", "none")


def test_undo_to_measured_settings_shows_their_run_and_measures_only_when_asked(explore):
    step = Step()
    explorer = explore(step)
    first = explorer.wait(LONG_S)
    explorer.set(batch_size=16)
    second = explorer.wait(LONG_S)
    assert explorer.undo()
    assert explorer.run is first
    assert explorer.views["timeline"].run is first
    assert explorer.wait(LONG_S) is first
    assert "measured before" in explorer.actions.announcer.value
    assert explorer.redo()
    assert explorer.run is second
    explorer.history.reset.click()
    assert explorer.run is first
    assert [s.batch_size for s in step.started] == [8, 16]
    explorer.actions.run.click()
    again = explorer.wait(LONG_S)
    assert again is not first
    assert again.settings == first.settings
    assert explorer.redo() is False  # reset was a choice of its own
    explorer.set(batch_size=16)  # a choice is measured, although it was before
    assert explorer.wait(LONG_S) is not second
    assert explorer.undo()
    assert explorer.run is again  # the newest of these settings
    assert len(step.started) == 4


def test_a_run_that_ends_after_an_undo_is_kept_and_not_shown(explore):
    step = Step()
    explorer = explore(step)
    first = explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(batch_size=16)
    until(lambda: len(step.started) == 2)
    assert explorer.undo()
    assert explorer.run is first
    assert explorer._before is None  # the run before it, and not itself
    step.gate.set()
    assert explorer.wait(LONG_S) is first
    until(lambda: explorer.actions.cancel.disabled)
    assert explorer.run is first
    assert "measured before" in explorer.actions.announcer.value
    late = make_run(QUICK.replace(batch_size=16))
    explorer._take(late)  # its step did not look whether it was cancelled
    assert explorer.run is first
    assert explorer.runs == [first, late]


def test_undo_redo_and_reset_run_settings_that_were_not_measured(explore):
    explorer = explore()
    explorer.wait(LONG_S)
    assert explorer.history.undo.disabled
    assert not explorer.undo()
    explorer.set(batch_size=16)
    explorer.controls["bulk_forward"].value = UNLIMITED
    explorer.history.undo.click()
    assert explorer.wait(LONG_S).settings == QUICK.replace(batch_size=16)
    assert explorer.undo()
    assert explorer.settings == QUICK
    assert explorer.redo()
    assert explorer.redo()
    assert not explorer.redo()
    assert explorer.settings.bulk_forward == UNLIMITED
    explorer.history.reset.click()
    assert explorer.settings == QUICK
    assert explorer.history.reset.disabled
    assert explorer.undo()
    assert explorer.wait(LONG_S).settings.bulk_forward == UNLIMITED


def test_a_text_that_is_put_back_takes_its_error_away_and_no_error_of_a_run(explore):
    explorer = explore(auto_run=False)
    kept = explorer.history.text.value
    explorer.history.text.value = "bulk_forward=abc"
    assert "bulk_forward" in explorer.failure.value
    explorer.history.text.value = kept
    assert explorer.failure.value == ""
    explorer.failure.show(ValueError("of a run"))
    explorer.history.text.value = f" {kept}"
    assert "of a run" in explorer.failure.value


def test_a_preset_changes_what_it_names_and_is_named_when_the_settings_are_its(explore):
    explorer = explore(auto_run=False, settings=QUICK.replace(batch_size=4))
    for name, change in PRESETS.items():
        explorer.history.preset.value = name
        assert explorer.settings.batch_size == 4
        assert {field: getattr(explorer.settings, field) for field in change} == dict(change)
        assert explorer.controls["mode"].value == explorer.settings.mode
        explorer.history.preset.value = "native PyTorch"
    assert explorer.history.preset.value == "native PyTorch"
    explorer.set(mode="bulked", bulk_forward=7)
    assert explorer.history.preset.value == explorer.history.preset.options[-2]  # scaling stayed
    assert preset(Settings(bulk_forward=7)) == ""
    both = Settings(
        loss_scaling="dynamic, on device"
    )  # of two presets: the menu jumped to the other
    assert preset(both, "no sync: scaling on the device") == "no sync: scaling on the device"
    assert preset(Settings(), "no sync: scaling on the device") == preset(both) != ""
