"""What a move starts: a model's picture, one run, and compiling ahead once all is idle."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from html import unescape

import pytest
from ipywidgets import HTML

from kit.errors import Cancelled, SettingsError
from kit.runs.analysis.headline import Headlines
from kit.runs.conditions import Conditions
from kit.runs.settings import Settings
from kit.widgets.explorer.rerun import Newest, Reruns
from kit.widgets.timeline.columns import end_ns
from kit.widgets.views import VIEWS
from tests.waiting import until
from tests.widgets.explorer.steps import LONG_S, QUICK, Prepare, Step


def test_it_is_shown_and_stored_while_it_measures(explore):
    step = Step()
    step.gate.clear()
    explorer = explore(step, views=VIEWS)
    until(lambda: explorer.actions.progress.layout.display != "none")
    for mime in ("text/plain", "text/html"):
        assert "FloatProgress" not in explorer._repr_mimebundle_()[mime]
    step.gate.set()
    measured = explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(bulk_forward=5)
    until(lambda: "MODELLED" in explorer.views["headline"].value)
    page = unescape(explorer.page())
    assert "MODELLED" in page
    assert f"The last run was measured with: <b>{measured.settings.to_string()}<" in page
    step.gate.set()


def test_a_move_is_answered_by_the_model_before_the_run_has_ended(explore):
    step = Step()
    explorer = explore(step)
    measured = explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(bulk_forward=5)
    until(lambda: explorer.actions.announcer.value.startswith("modelled: "))
    assert explorer.views["timeline"].run.timeline.origin == "modelled"
    assert explorer.run is measured
    assert "MODELLED" in explorer.views["headline"].value
    assert "kit-modelled" in explorer.views["timeline"]._dom_classes
    assert "kit-stale" in explorer.views["advice"]._dom_classes
    step.gate.set()
    run = explorer.wait(LONG_S)
    assert explorer.views["timeline"].run is run
    assert explorer.views["timeline"].ghost is measured  # the run before, and never a model's
    assert explorer.views["timeline"].axis_ns >= end_ns(measured.timeline)
    assert "MODELLED" not in explorer.views["headline"].value
    assert "kit-modelled" not in explorer.views["timeline"]._dom_classes
    assert (
        explorer.views["timeline"].outline is not None
    )  # what was expected, under what was measured
    assert explorer.views["timeline"].outline.origin == "modelled"
    assert "kit-stale" not in explorer.views["advice"]._dom_classes
    assert explorer.actions.announcer.value.startswith("measured in ")


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_a_model_that_is_not_confirmed_makes_way_for_the_last_measurement(explore, how):
    step = Step()
    explorer = explore(step)
    measured = explorer.wait(LONG_S)
    step.gate.clear()
    step.error = ValueError("no") if how == "fail" else None
    explorer.set(bulk_forward=5)
    until(lambda: "MODELLED" in explorer.views["headline"].value and len(step.started) == 2)
    if how == "cancel":
        explorer.cancel()
    step.gate.set()
    with pytest.raises((ValueError, Cancelled)):
        explorer.wait(LONG_S)
    assert explorer.views["timeline"].run is measured
    assert "MODELLED" not in explorer.views["headline"].value
    assert "kit-stale" not in explorer.views["advice"]._dom_classes


@pytest.mark.parametrize(("how", "what"), [("fail", "failed"), ("cancel", "was cancelled")])
@pytest.mark.parametrize(
    ("changes", "shown", "wanted"),
    [
        ({"batch_size": 16}, "the run with batch size 8", "The one with batch size 16"),
        ({"dtype": "bfloat16"}, "the run with autocast dtype float32",
         "The one with autocast dtype bfloat16"),
    ],
)  # fmt: skip
def test_above_the_cards_it_says_whose_they_still_are(explore, how, what, changes, shown, wanted):
    step = Step()
    explorer = explore(step)
    explorer.wait(LONG_S)
    headline = explorer.views["headline"]
    assert "Still " not in headline.value
    step.gate.clear()
    step.error = ValueError("no") if how == "fail" else None
    explorer.set(**changes)
    until(lambda: len(step.started) == 2)
    if how == "cancel":
        explorer.cancel()
    step.gate.set()
    with pytest.raises((ValueError, Cancelled)):
        explorer.wait(LONG_S)
    assert f"Still {shown}.</b>" in headline.value
    assert f"{wanted} {what}." in headline.value
    step.error = None
    explorer.rerun()
    explorer.wait(LONG_S)
    assert "Still " not in headline.value


def test_what_a_move_has_changed_is_worked_out_once_and_announced_too(explore, monkeypatch):
    explorer, pairs, differences = explore(), [], Headlines.differences
    monkeypatch.setattr(
        Headlines, "differences", lambda *pair: pairs.append(pair[0]._runs) or differences(*pair)
    )
    explorer.wait(LONG_S)
    announced = explorer.actions.announcer
    assert "→" not in announced.value  # there is nothing to compare with
    for move in (lambda: explorer.set(batch_size=16), explorer.history.undo.click):
        move()
        explorer.wait(LONG_S)
        changed = explorer.views["headline"].value.partition('class="kit-changed"')[2]
        said = re.sub("<[^>]*>", "", changed.partition("</div>")[0].partition(">")[2])
        assert "batch size" in said
        assert unescape(announced.value).endswith(unescape(said).strip("."))
        assert explorer.actions.status.value.count("→") == 0  # it stands above the cards
        now = [pair for pair in pairs if pair[1] is explorer.run]
        assert len(now) == 1
        pairs.clear()


def test_where_no_model_can_tell_the_cards_say_whose_they_are_while_it_measures(explore):
    step = Step()
    explorer = explore(step)
    explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(dtype="bfloat16")
    until(lambda: "is being measured." in explorer.views["headline"].value)
    assert "Still the run with autocast dtype float32" in explorer.views["headline"].value
    step.gate.set()
    explorer.wait(LONG_S)
    assert "Still " not in explorer.views["headline"].value


def test_a_move_just_as_a_run_ends_is_shown_and_not_taken_for_cancelled(explore):
    explorer = explore(auto_run=False)
    rest, moves = explorer._reruns._on_idle, [4]

    def moved_before() -> None:
        if moves:
            explorer.set(batch_size=moves.pop())
        rest()

    explorer._reruns._on_idle = moved_before
    explorer.rerun()
    until(lambda: not moves)
    run = explorer.wait(LONG_S)
    assert run.settings.batch_size == 4
    assert explorer.run is run
    assert explorer.actions.announcer.value.startswith("measured in ")


@pytest.mark.parametrize("ends", ["a run", "a failure"])
@pytest.mark.parametrize("then", ["a move", "an undo"])
def test_what_comes_too_late_for_the_settings_is_not_shown(explore, ends, then):
    step = Step()
    explorer = explore(step)
    first, reruns, came = explorer.wait(LONG_S), explorer._reruns, threading.Event()
    name = "_on_result" if ends == "a run" else "_on_error"
    tell = getattr(reruns, name)

    def come(*what) -> None:
        came.set()
        tell(*what)  # waits for the lock

    setattr(reruns, name, come)
    reruns._on_progress = lambda *_: None  # told while the lock is held below, it would wait first
    step.gate.clear()
    step.error = None if ends == "a run" else RuntimeError("too late")
    explorer.set(batch_size=16)
    until(lambda: len(step.started) == 2)
    with explorer._lock:
        step.gate.set()
        assert came.wait(LONG_S)
        step.error = None
        _ = explorer.set(batch_size=4) if then == "a move" else explorer.undo()
    run = explorer.wait(LONG_S)
    until(lambda: explorer.actions.cancel.disabled)
    assert run.settings.batch_size == (4 if then == "a move" else first.settings.batch_size)
    assert explorer.run is run
    assert explorer.actions.announcer.value.startswith("measured ")
    assert explorer.failure.value == ""


def test_a_run_that_cannot_be_drawn_is_a_failure_that_is_shown(explore, monkeypatch):
    explorer = explore()
    explorer.wait(LONG_S)
    monkeypatch.setattr(explorer.pictures, "show", lambda *_: 1 / 0)
    explorer.set(batch_size=16)
    with pytest.raises(ZeroDivisionError):
        explorer.wait(LONG_S)
    assert "division by zero" in explorer.failure.value
    assert explorer.actions.announcer.value.startswith("the run failed")


def test_what_no_model_knows_is_only_measured(explore):
    step = Step()
    explorer = explore(step)
    measured = explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(dtype="bfloat16")
    until(lambda: len(step.started) == 2)
    assert explorer.views["timeline"].run is measured
    step.gate.set()
    assert explorer.wait(LONG_S).predicted_ms == 0


def test_a_burst_of_200_moves_runs_once_shows_the_newest_and_then_all_is_idle(explore, monkeypatch):
    monkeypatch.setattr("kit.widgets.explorer.view.REST_S", 1.0)  # on a machine that is slow, too
    step, prepare = Step(), Prepare()
    explorer = explore(step, prepare=prepare)
    explorer.wait(LONG_S)
    until(lambda: "is ready" in explorer.ahead.text.value)
    before = len(prepare.asked)
    sizes = [2, 4, 16, 32]
    for i in range(200):
        explorer.controls["batch_size"].value = sizes[i % 4]
    run = explorer.wait(LONG_S)
    assert run.settings.batch_size == 32
    assert [s.batch_size for s in step.started] == [8, 32]  # the first, and the last of the burst
    assert len(explorer.runs) == 2
    until(lambda: "is ready" in explorer.ahead.text.value and explorer._foresight.wait(0))
    assert len(prepare.asked) <= before + 16
    assert len(set(prepare.asked)) == len(prepare.asked)  # nothing is prepared twice
    assert explorer.history.undo.disabled is False


def test_a_request_rests_until_the_clock_says_so_and_a_newer_one_takes_its_place():
    now = [0.0]
    step = Step()
    reruns = Reruns(step, clock=lambda: now[0])
    for i in range(1, 201):
        reruns.request(QUICK.replace(batch_size=i), rest_s=0.15)
        now[0] += 0.05
    assert step.started == []
    now[0] += 1.0
    reruns.request(QUICK.replace(batch_size=7))  # without a rest
    assert reruns.wait(LONG_S).settings.batch_size == 7
    assert [s.batch_size for s in step.started] == [7]
    reruns.request(QUICK, rest_s=1e6)
    reruns.cancel()  # it need not rest for that
    with pytest.raises(Cancelled):
        reruns.wait(LONG_S)
    reruns.request(QUICK, rest_s=1e6)
    assert reruns.close(LONG_S)


def test_closing_does_not_wait_for_a_run_that_never_ends(explore):
    step = Step()
    explorer = explore(step, prepare=Prepare())
    explorer.wait(LONG_S)
    step.gate.clear()
    explorer.set(bulk_forward=5)
    until(lambda: len(step.started) == 2)
    explorer.close()
    thread = explorer._reruns._thread
    assert thread.is_alive()
    assert thread.daemon  # it does not keep the kernel alive either
    step.gate.set()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert explorer.run.settings == QUICK


def test_a_disturbed_run_is_measured_again_by_the_button_of_its_advice(explore):
    class Disturbed(Step):
        def __call__(self, settings, /, **options):
            busy = Conditions(cores=2.0, others=1.3)
            return replace(super().__call__(settings, **options), conditions=busy)

    step = Disturbed()
    explorer = explore(step)
    first = explorer.wait(LONG_S)
    assert "others used 1.3 of 2 cores" in explorer.views["headline"].value
    (button,) = explorer.views["advice"].buttons.children
    assert button.description == "Measure again"
    button.click()
    assert explorer.wait(LONG_S) is not first
    assert len(step.started) == 2


def test_settings_as_text_are_taken_and_junk_is_a_message(explore):
    explorer = explore(auto_run=False)
    text = explorer.history.text
    assert text.value == QUICK.to_string() == "steps=2&warmup=0"
    text.value = "batch_size=4&loss_scaling=dynamic, on device&steps=2"
    assert explorer.settings == Settings(batch_size=4, loss_scaling="dynamic, on device", steps=2)
    assert text.value == "loss_scaling=dynamic,+on+device&batch_size=4&steps=2"
    before = explorer.settings
    text.value = "batch_siz=<script>"
    assert explorer.settings == before
    assert "did you mean" in explorer.failure.value
    assert text.value == "batch_siz=<script>"  # to be mended
    with pytest.raises(SettingsError):
        Settings.parse(text.value)


def test_views_can_be_put_beside_the_graph(explore):
    explorer = explore(auto_run=False, views=VIEWS)
    views = HTML("a"), HTML("b")
    explorer.add_view("source", views[0])
    explorer.add_view("memory", views[1])
    tabs = explorer.pictures._left.children[0]
    assert tabs.children == (explorer.views["graph"], *views)
    assert tuple(tabs.titles) == ("IR graph", "source", "memory")


def test_a_view_can_be_put_where_no_other_is(explore):
    few = [row for row in VIEWS if row.place in ("numbers", "timeline")]
    explorer = explore(auto_run=False, views=few)
    explorer.add_view("mine", mine := HTML("mine"))
    (tabs,) = explorer.pictures._left.children
    assert (tabs.children, tabs.titles) == ((mine,), ("mine",))


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_the_newest_item_wins_also_where_one_fails(kind, caplog):
    begun, gate, done = threading.Event(), threading.Event(), []

    def act(item):
        begun.set()
        assert gate.wait(LONG_S)
        if item == "bad":
            raise kind("bad")
        done.append(item)

    newest = Newest(act, "test")
    newest.put("bad")
    assert begun.wait(LONG_S)
    for item in (1, 2, 3):
        newest.put(item)
    gate.set()
    assert newest.wait(LONG_S)
    newest.put(4)
    assert newest.wait(LONG_S)
    newest.close()
    newest.put(5)
    assert newest.wait(LONG_S)
    assert done == [3, 4]
