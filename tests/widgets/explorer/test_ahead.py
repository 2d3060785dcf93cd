"""What is compiled ahead once all is idle: the neighbours, one after another, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kit.widgets.explorer.ahead import MOST, AheadLine
from tests.waiting import until
from tests.widgets.explorer.steps import LONG_S, QUICK, Prepare, Step


def test_the_neighbours_are_compiled_ahead_the_control_moved_last_first(explore):
    prepare = Prepare()
    explorer = explore(prepare=prepare)
    explorer.wait(LONG_S)
    until(lambda: "is ready" in explorer.ahead.text.value)
    first = list(prepare.asked)
    fields = ("bulk_forward", "bulk_backward", "batch_size", "mode", "loss_scaling", "accumulate",
              "dtype")  # fmt: skip
    changed = [[f for f in fields if getattr(s, f) != getattr(QUICK, f)] for s in first]
    assert all(len(names) == 1 for names in changed)
    assert {"batch_size", "bulk_forward", "mode"} <= {names[0] for names in changed}
    assert all(s.mode != "torch" for s in first)
    assert f"{2 * len(first)} programs compiled ahead" in explorer.ahead.text.value
    explorer.controls["batch_size"].value = 4
    explorer.wait(LONG_S)
    until(lambda: len(prepare.asked) > len(first) and "is ready" in explorer.ahead.text.value)
    assert prepare.asked[len(first)].batch_size == 2  # on, to the side that it went to


def test_compiling_ahead_gives_way_to_a_request_and_ends_with_close(explore):
    prepare, step = Prepare(), Step()
    prepare.block = True
    explorer = explore(step, prepare=prepare)
    explorer.wait(LONG_S)
    assert prepare.entered.wait(LONG_S)
    assert not explorer._reruns.is_busy  # nobody has to wait for it
    explorer.set(batch_size=16)
    assert explorer.wait(LONG_S).settings.batch_size == 16
    assert prepare.left.is_set()
    prepare.left.clear()
    until(lambda: len(prepare.asked) > 1)
    thread = explorer._reruns._thread
    explorer.close()
    assert prepare.left.wait(LONG_S)
    thread.join(LONG_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [ValueError("<b>broken</b>"), SystemExit()])
def test_what_fails_ahead_is_not_shown_and_not_tried_again(explore, error):
    prepare, step = Prepare(), Step()
    prepare.error = error
    explorer = explore(step, prepare=prepare)
    explorer.wait(LONG_S)
    until(lambda: "compiled ahead" in explorer.ahead.text.value)
    count = len(prepare.asked)
    assert f"0 of {count} settings one step away are ready" in explorer.ahead.text.value
    assert count > 3
    assert explorer.failure.value == ""
    explorer._reruns.resume()
    step.error = ValueError("<b>broken</b>")
    explorer.set(batch_size=4)
    with pytest.raises(ValueError, match="broken"):
        explorer.wait(LONG_S)
    assert "&lt;b&gt;broken" in explorer.failure.value
    assert len(set(prepare.asked)) == len(prepare.asked)


def test_more_neighbours_than_one_go_takes_are_compiled_in_the_next():
    near = [QUICK.replace(batch_size=i) for i in range(1, MOST + 4)]
    prepare = Prepare()
    ahead = AheadLine(prepare, lambda: near)
    ahead.work(lambda: False)
    assert prepare.asked == near[:MOST]
    assert f"{MOST} of {len(near)} settings one step away are ready" in ahead.text.value
    ahead.work(lambda: False)
    assert prepare.asked == near
    assert "one step of any control is ready" in ahead.text.value


def test_the_line_of_compiling_ahead_says_what_is_so_now():
    near, prepare = [QUICK, QUICK.replace(batch_size=2)], Prepare()
    ahead = AheadLine(prepare, lambda: near)
    ahead.work(lambda: bool(prepare.asked))  # told to stop after the first
    assert "compiling ahead was stopped" in ahead.text.value
    ahead.note(near[1])  # by a run
    ahead.work(lambda: False)
    assert "one step of any control is ready<" in ahead.text.value
    near.clear()  # as in mode "torch"
    ahead.work(lambda: False)
    assert "ready" not in ahead.text.value


def test_compiling_ahead_can_be_switched_off_and_is_not_offered_without_a_means(explore):
    assert explore(auto_run=False).ahead.layout.display == "none"
    prepare = Prepare()
    explorer = explore(prepare=prepare, auto_run=False)
    explorer.ahead.is_on.value = False
    explorer.rerun()
    explorer.wait(LONG_S)
    explorer.set(batch_size=16)
    explorer.wait(LONG_S)
    assert prepare.asked == []
    explorer.ahead.is_on.value = True
    until(lambda: "is ready" in explorer.ahead.text.value)
    assert prepare.asked


def test_nothing_is_compiled_ahead_while_a_cell_runs(explore, monkeypatch):
    hooks: dict[str, list[Any]] = {"pre_run_cell": [], "post_run_cell": []}

    class Events:
        def register(self, event, hook):
            hooks[event].append(hook)

        def unregister(self, event, hook):
            hooks[event].remove(hook)

    monkeypatch.setattr("kit.widgets.explorer.ahead.in_kernel", lambda: True)
    monkeypatch.setattr("kit.widgets.explorer.ahead.notebook_events", Events)
    prepare = Prepare()
    prepare.block = True
    explorer = explore(prepare=prepare)
    explorer.wait(LONG_S)  # in the cell that made it
    assert prepare.asked == []
    hooks["post_run_cell"][0](None)
    assert prepare.entered.wait(LONG_S)
    hooks["pre_run_cell"][0](None)
    assert prepare.left.wait(LONG_S)
    explorer.close()
    assert hooks == {"pre_run_cell": [], "post_run_cell": []}
