"""The parts of the explorer, each by itself: log, bar, pictures, foresight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest
from ipywidgets import HTML

from kit.errors import SessionError, SettingsError
from kit.reports.html import write_report
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import Prediction, predict
from kit.widgets.base.listing import Listing
from kit.widgets.base.selection import NOTHING, Links
from kit.widgets.explorer.actions import ActionBar, FailureBox
from kit.widgets.explorer.foresight import Foresight, Models
from kit.widgets.explorer.log import RunLog
from kit.widgets.explorer.pictures import Pictures
from kit.widgets.views import VIEWS, ViewRow
from tests.factories import HOSTILE, make_run
from tests.runs.whatif.measured import measured
from tests.waiting import leaves_no_thread

RUN = make_run(steps=1)


def pictures(*more: ViewRow) -> Pictures:
    return Pictures((*VIEWS, *more), lambda change: None)


def test_a_log_writes_its_runs_and_says_where(tmp_path):
    calls = []
    log = RunLog("mlp", lambda runs, path, **options: calls.append((runs, path, options)))
    with pytest.raises(SessionError, match="wait for the first one"):
        log.save(tmp_path / "r.html", None)
    assert log.newest_of(RUN.settings) is None
    other, again = make_run(RUN.settings.replace(batch_size=2)), make_run(RUN.settings)
    for run in (RUN, again, other):
        log.add(run)
    assert log.newest_of(RUN.settings) is again
    assert log.save(tmp_path / "r.html", RUN) == f"saved 3 runs to {tmp_path / 'r.html'}"
    runs = [RUN, again, other]
    assert calls == [(runs, tmp_path / "r.html", {"title": "mlp", "current": RUN})]
    assert log.to_markdown(RUN).startswith(RUN.to_markdown())
    with pytest.raises(SessionError, match="without a report writer"):
        RunLog("mlp", None).save("r.html", RUN)


def test_the_button_replaces_no_report_but_its_own(tmp_path, monkeypatch):
    """Two explorers of one notebook wrote the same file, and the page of `kit.report` was lost."""
    monkeypatch.chdir(tmp_path)
    logs = [RunLog(title, write_report) for title in ("first", "second")]
    for log in logs:
        log.add(RUN)
        for _ in range(2):
            said = log.save_beside(RUN)
    assert said == f"saved 1 run to {tmp_path / 'report_2.html'}"
    assert "first" in Path("report.html").read_text()
    assert "second" in Path("report_2.html").read_text()
    write_report([RUN], "report.html", title="by hand")
    assert logs[0].save_beside(RUN).endswith("report_3.html")
    assert "by hand" in Path("report.html").read_text()


def test_a_bar_can_cancel_only_what_runs_and_announces_only_news():
    pressed: list[str] = []
    bar = ActionBar(
        on_run=lambda: pressed.append("run"),
        on_cancel=lambda: pressed.append("cancel"),
        on_save=lambda: pressed.append("save"),
    )
    assert bar.cancel.disabled
    bar.start()
    assert not bar.cancel.disabled
    bar.show_progress(HOSTILE, 7.0)
    assert bar.progress.value == 1.0
    assert "<script" not in bar.status.value
    assert bar.announcer.value == "not run yet"
    bar.say("measured", is_news=True)
    assert bar.announcer.value == "measured"
    bar.rest()
    assert (bar.cancel.disabled, bar.progress.layout.display) == (True, "none")
    for button in (bar.run, bar.cancel, bar.save):
        button.click()
    assert pressed == ["run", "cancel", "save"]


def test_what_a_control_raised_is_shown_until_one_works_and_a_runs_failure_stays():
    box = FailureBox(Lock())
    box.guard(lambda: {}["no folder"])
    assert "no folder" in box.value
    box.guard(lambda: None)
    assert box.value == ""
    box.show(ValueError("the run failed"))
    box.guard(lambda: None)
    assert "the run failed" in box.value


def test_pictures_show_a_model_in_two_views_and_take_it_back():
    shown = pictures()
    shown.show(RUN)
    prediction = predict([RUN], RUN.settings.replace(bulk_forward=5))
    shown.show_model(prediction, RUN)
    views = shown.views
    assert views["timeline"].run.timeline.origin == "modelled"
    assert "MODELLED" in views["headline"].value
    assert views["graph"].run is RUN
    assert "kit-stale" in views["advice"]._dom_classes
    shown.stay(RUN, None, prediction.settings, "was cancelled")
    assert views["timeline"].run is RUN
    assert "MODELLED" not in views["headline"].value
    assert "kit-stale" not in views["advice"]._dom_classes


def test_a_new_view_with_a_selection_follows_the_others():
    row = ViewRow("mine", "mine", "left", live=lambda _: Listing("mine", lambda run: ("x", ())))
    shown = pictures(row)
    shown.show(RUN)
    picked = Links(RUN).of_nodes(RUN.graphs[0].ops[:2], "two ops")
    shown.views["graph"].selection = picked
    assert shown.views["mine"].selection == picked
    shown.selected.clear.click()
    assert shown.views["graph"].selection == NOTHING


def test_a_view_beside_the_graph_is_a_tab():
    shown = pictures()
    shown.add_tab("a", HTML("a"))
    shown.add_tab("b", HTML("b"))
    (columns,) = [w for w in shown.widgets if type(w).__name__ == "Box"]
    tabs = columns.children[0].children[0]
    assert tuple(tabs.titles) == ("IR graph", "a", "b")
    assert tabs.children[0] is shown.views["graph"]


def test_foresight_answers_with_a_prediction_or_with_none_and_not_before_the_first_run():
    runs: list[Run] = []
    answers: list[tuple[Settings, Prediction | None]] = []
    foresight = Foresight(lambda: runs, lambda *answer: answers.append(answer))
    moved = RUN.settings.replace(bulk_forward=5)
    foresight.ask(moved)
    assert foresight.wait(20)
    assert answers == []
    runs.append(RUN)
    foresight.learn(RUN)
    assert foresight.wait(20)
    foresight.ask(moved)
    assert foresight.wait(20)
    assert foresight.expected(moved) is answers[0][1]
    assert foresight.expected(RUN.settings) is None
    other = replace(RUN.settings, dtype="bfloat16")
    foresight.ask(other)
    assert foresight.wait(20)
    assert answers[1] == (other, None)
    foresight.close()
    with leaves_no_thread():
        foresight.ask(moved)
    assert len(answers) == 2


def test_a_run_that_cannot_tell_leaves_the_answer_to_an_older_one():
    older = measured(Settings(step_mode="retrace"), syncs=0)
    newer = measured(Settings(step_mode="replay"), syncs=0)
    newer = replace(newer, metrics={**newer.metrics, "replay.steps": 9.0})
    asked = older.settings.replace(bulk_forward=2)
    assert Models().predict([older, newer], asked).step_ms == predict(older, asked).step_ms
    with pytest.raises(SettingsError, match="step_mode='retrace'"):
        Models().predict([newer], asked)
