"""The explorer without a browser: controls rerun the step, and every view shows the newest run."""

from __future__ import annotations

import threading
from dataclasses import replace
from html import unescape

import pytest

import kit
from kit.errors import Cancelled, SessionError, SettingsError
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.run import Run
from kit.runs.settings import MODES, Settings
from kit.widgets.base.selection import NOTHING, Links
from kit.widgets.explorer.log import MAX_RUNS, RunLog
from kit.widgets.explorer.view import Explorer
from kit.widgets.views import VIEWS, ViewRow
from tests.factories import HOSTILE, empty_run, make_run, one_span_run
from tests.widgets.explorer.steps import LONG_S, QUICK, Step


def shown(explorer: Explorer) -> dict[str, str]:
    return {
        name: explorer.views[name].value
        for name in ("headline", "syncs", "breakdown", "unlowered", "notes")
    }


def test_it_runs_at_once_and_every_view_shows_the_run(explore):
    explorer = explore(name="mlp", views=VIEWS)
    run = explorer.wait(LONG_S)
    assert explorer.run is run
    assert explorer.runs == [run]
    assert explorer.views["timeline"].run is run
    assert explorer.views["graph"].run is run
    assert run.settings == explorer.settings == QUICK
    assert "step time" in explorer.views["headline"].value
    assert "train.py:44" in explorer.views["syncs"].value
    assert "measured in" in explorer.actions.status.value
    assert explorer.actions.progress.layout.display == "none"
    assert explorer.actions.cancel.disabled


def test_without_auto_run_nothing_runs_until_asked(explore):
    explorer = explore(auto_run=False)
    assert explorer.run is None
    with pytest.raises(SessionError, match="nothing was run yet"):
        explorer.wait(LONG_S)
    explorer.actions.run.click()
    assert explorer.wait(LONG_S).settings == QUICK


@pytest.mark.parametrize(
    ("control", "value"),
    [("mode", "lazy"), ("bulk_forward", UNLIMITED), ("bulk_backward", 1), ("batch_size", 16),
     ("loss_scaling", "static"), ("dtype", "bfloat16")],
)  # fmt: skip
def test_moving_a_control_reruns_with_its_value(explore, control, value):
    explorer = explore(views=VIEWS)
    before = explorer.wait(LONG_S)
    pictures = shown(explorer)
    explorer.controls[control].value = value
    run = explorer.wait(LONG_S)
    assert run is not before
    assert run.settings == QUICK.replace(**{control: value})
    assert shown(explorer) != pictures
    assert explorer.runs == [before, run]


def test_the_headline_shows_the_change_from_the_run_before(explore):
    explorer = explore()
    explorer.wait(LONG_S)
    assert "better" not in explorer.views["headline"].value
    explorer.set(batch_size=32)
    explorer.wait(LONG_S)
    assert (
        "better" in explorer.views["headline"].value or "worse" in explorer.views["headline"].value
    )


def test_the_controls_offer_every_mode_and_loss_scaling_and_wait_for_the_slider_to_rest(explore):
    controls = explore(auto_run=False).controls
    assert [value for _, value in controls["mode"].options] == list(MODES)
    assert [value for _, value in controls["loss_scaling"].options] == list(LOSS_SCALING)
    assert controls["bulk_forward"].options[-1] == ("unlimited", UNLIMITED)
    sliders = (controls["bulk_forward"], controls["bulk_backward"], controls["batch_size"])
    assert not any(slider.continuous_update for slider in sliders)


def test_bulk_sizes_can_be_moved_only_in_mode_bulked(explore):
    explorer = explore(auto_run=False)
    for mode in MODES:
        explorer.set(mode=mode)
        assert explorer.controls["bulk_forward"].disabled == (mode != "bulked")
        assert explorer.controls["bulk_backward"].disabled == (mode != "bulked")


def test_set_moves_the_controls_and_starts_one_run(explore):
    explorer = explore()
    explorer.wait(LONG_S)
    explorer.set(bulk_forward=50, batch_size=4, mode="lazy")
    assert explorer.wait(LONG_S).settings == QUICK.replace(
        bulk_forward=50, batch_size=4, mode="lazy"
    )
    controls = explorer.controls
    assert (controls["bulk_forward"].value, controls["batch_size"].value) == (50, 4)
    assert controls["mode"].value == "lazy"
    assert len(explorer.runs) == 2


@pytest.mark.parametrize("unusual", [Settings(bulk_forward=7, bulk_backward=12_345, batch_size=3),
                                     Settings(bulk_forward=10**9, batch_size=1)])  # fmt: skip
def test_settings_that_no_control_offers_are_added_to_it(explore, unusual):
    explorer = explore(settings=unusual)
    assert explorer.wait(LONG_S).settings == unusual
    assert explorer.controls["batch_size"].value == unusual.batch_size
    values = [x for _, x in explorer.controls["bulk_forward"].options]
    assert values == sorted(set(values))
    explorer.set(batch_size=77)
    assert explorer.wait(LONG_S).settings == unusual.replace(batch_size=77)


def test_impossible_settings_are_refused_and_nothing_changes(explore):
    explorer = explore()
    run = explorer.wait(LONG_S)
    for wrong in ({"batch_size": 0}, {"mode": "eager"}, {"bulk": 3}):
        with pytest.raises(SettingsError):
            explorer.set(**wrong)
    assert explorer.settings == QUICK
    assert explorer.wait(LONG_S) is run


def test_settings_that_can_be_run_take_away_the_message_of_those_that_could_not(explore):
    step = Step()
    explorer = explore(step)
    explorer.wait(LONG_S)
    explorer.history.text.value = "batch_size=-5"
    assert "batch_size must be a whole number of at least 1" in explorer.failure.value
    step.gate.clear()  # the run is under way, and has no result to take it away
    explorer.history.text.value = "batch_size=4"
    assert explorer.failure.value == ""
    step.gate.set()


def test_an_impossible_value_in_a_control_is_a_message_and_the_control_goes_back(explore):
    explorer = explore()
    explorer.wait(LONG_S)
    explorer.controls["batch_size"].options = [("0", 0), *explorer.controls["batch_size"].options]
    explorer.controls["batch_size"].value = 0
    assert "batch_size must be a whole number" in explorer.failure.value
    assert explorer.controls["batch_size"].value == explorer.settings.batch_size == 8
    explorer.set(batch_size=16)
    assert explorer.wait(LONG_S).settings.batch_size == 16
    assert explorer.failure.value == ""


def test_a_failed_run_is_shown_escaped_the_picture_stays_and_the_next_run_works(explore):
    def step(settings, /, *, progress, cancelled):
        if settings.batch_size == 32:
            raise RuntimeError(f"no memory {HOSTILE}")
        return make_run(settings, steps=1)

    explorer = explore(step, views=VIEWS)
    run = explorer.wait(LONG_S)
    pictures = shown(explorer)
    explorer.set(batch_size=32)
    with pytest.raises(RuntimeError, match="no memory"):
        explorer.wait(LONG_S)
    assert "<b style" in explorer.failure.value
    assert "<script" not in explorer.failure.value
    assert "<details" in explorer.failure.value
    assert "the run failed" in explorer.actions.status.value
    now = shown(explorer)
    assert now.pop("headline").endswith(pictures.pop("headline"))  # under whose numbers they are
    assert now == pictures
    assert explorer.run is run
    assert f"measured with: <b>{run.settings.to_string()}</b>" in unescape(explorer.page())
    assert "batch size: 32" not in explorer.page()
    explorer.set(batch_size=16)
    assert explorer.wait(LONG_S).settings.batch_size == 16
    assert explorer.failure.value == ""


def test_cancel_keeps_the_picture_and_says_so(explore):
    entered = threading.Event()

    def step(settings, /, *, progress, cancelled):
        if settings.batch_size == 16:
            entered.set()
            assert stopped.wait(LONG_S)
            assert cancelled()
            raise Cancelled("stopped")
        return make_run(settings, steps=1)

    stopped = threading.Event()
    explorer = explore(step)
    run = explorer.wait(LONG_S)
    explorer.set(batch_size=16)
    assert entered.wait(LONG_S)
    assert not explorer.actions.cancel.disabled
    assert explorer.actions.progress.layout.display == ""
    explorer.actions.cancel.click()
    stopped.set()
    with pytest.raises(Cancelled):
        explorer.wait(LONG_S)
    assert explorer.run is run
    assert explorer.failure.value == ""
    assert "cancelled" in explorer.actions.status.value
    assert explorer.actions.cancel.disabled


def test_only_the_newest_of_many_moves_is_kept(explore):
    first, entered = threading.Event(), threading.Event()

    def step(settings, /, *, progress, cancelled):
        entered.set()
        assert first.wait(LONG_S)
        return make_run(settings, steps=1)

    explorer = explore(step)
    assert entered.wait(LONG_S)
    for size in (2, 4, 16, 32):
        explorer.controls["batch_size"].value = size
    first.set()
    assert explorer.wait(LONG_S).settings.batch_size == 32
    assert [run.settings.batch_size for run in explorer.runs] == [32]


def test_progress_is_shown_and_bounded(explore):
    seen = []

    def step(settings, /, *, progress, cancelled):
        for text, fraction in (("warm <b>up</b>", -1.0), ("half", 0.5), ("over", 7.0)):
            progress(text, fraction)
            seen.append((explorer.actions.progress.value, explorer.actions.status.value))
            threading.Event().wait(0.15)  # another text is told after a tenth of a second
        return make_run(settings, steps=1)

    explorer = explore(step, auto_run=False)
    explorer.rerun()
    explorer.wait(LONG_S)
    assert [value for value, _ in seen] == [0.0, 0.5, 1.0]
    assert "warm &lt;b&gt;up" in seen[0][1]


@pytest.mark.parametrize(
    "odd", [empty_run(), one_span_run(), make_run(hostile=True), make_run(Settings(mode="torch"))]
)
def test_any_run_can_be_drawn_after_any_other(explore, odd):
    waiting = [make_run(steps=1), odd, make_run(steps=1), odd]

    def step(settings, /, *, progress, cancelled):
        return waiting.pop()

    explorer = explore(step, auto_run=False, views=VIEWS)
    while waiting:
        expected = waiting[-1]
        explorer.rerun()
        assert explorer.wait(LONG_S).timeline is expected.timeline
    assert explorer.failure.value == ""
    for html in shown(explorer).values():
        html.encode("utf-8")


def test_a_hostile_title_is_escaped_and_short(explore):
    explorer = explore(auto_run=False, name=HOSTILE)
    heading = explorer.children[0].value
    assert "<script" not in heading
    assert heading.encode("utf-8")
    assert len(heading) < 1000


def test_the_report_is_written_from_all_runs(explore, tmp_path):
    calls = []
    explorer = explore(
        write_report=lambda runs, path, **options: calls.append((runs, path, options)), name="mlp"
    )
    explorer.wait(LONG_S)
    explorer.set(batch_size=4)
    explorer.wait(LONG_S)
    explorer.save(tmp_path / "r.html")
    assert calls == [
        (explorer.runs, tmp_path / "r.html", {"title": "mlp", "current": explorer.run})
    ]
    assert "saved 2 runs to" in explorer.actions.status.value
    assert "r.html" in explorer.actions.status.value


def test_a_report_that_cannot_be_written_is_shown_by_the_button_and_raised_by_save(explore):
    def refuse(runs, path, **options):
        raise OSError("disk full")

    explorer = explore(write_report=refuse)
    explorer.wait(LONG_S)
    with pytest.raises(OSError, match="disk full"):
        explorer.save("r.html")
    explorer.actions.save.click()
    assert "disk full" in explorer.failure.value


def test_saving_before_the_first_run_says_what_to_do(explore):
    explorer = explore(auto_run=False, write_report=lambda *a, **k: None)
    with pytest.raises(SessionError, match="wait for the first one"):
        explorer.save("r.html")


def test_text_only_front_ends_see_the_run_in_one_line(explore):
    explorer = explore(auto_run=False)
    assert repr(explorer) == "Explorer(no run yet)"
    explorer.rerun()
    explorer.wait(LONG_S)
    text = explorer._repr_mimebundle_()["text/plain"]
    assert text.startswith("Explorer(Run('synthetic', mode 'bulked', 1.")
    assert "\n" not in text


def test_observers_are_told_of_each_run(explore):
    explorer = explore(auto_run=False)
    seen: list[Run] = []
    explorer.observe(lambda change: seen.append(change["new"]), "run")
    explorer.rerun()
    assert seen == [explorer.wait(LONG_S)]


def test_old_runs_are_dropped_beyond_the_limit(explore):
    log = RunLog("mine", None)
    runs = [replace(make_run(steps=1), name=str(i)) for i in range(MAX_RUNS + 2)]
    for run in runs:
        log.add(run)
    assert list(log.runs) == runs[2:]


def test_a_view_is_one_row_of_the_table(explore):
    row = ViewRow("mine", "my view", "right", html=lambda run: f"batch {run.settings.batch_size}")
    explorer = explore(views=(*VIEWS, row))
    assert explorer.wait(LONG_S).settings.batch_size == 8
    assert explorer.views["mine"].value == "batch 8"
    explorer.set(batch_size=16)
    explorer.wait(LONG_S)
    assert explorer.views["mine"].value == "batch 16"
    assert "batch 16" in explorer.page()


def test_a_view_that_does_not_apply_to_a_run_is_not_shown(explore):
    def step(settings, /, *, progress, cancelled):
        return make_run(settings, steps=1, hostile=settings.batch_size == 16)

    explorer = explore(step, views=VIEWS)
    host_ops = explorer.views["unlowered"]
    assert not explorer.wait(LONG_S).unlowered
    assert (host_ops.run, host_ops.layout.display) == (None, "none")
    explorer.set(batch_size=16)
    assert explorer.wait(LONG_S).unlowered
    assert "Ops that ran on the host" in host_ops.value
    assert host_ops.layout.display != "none"


def test_close_ends_the_thread_and_a_control_then_says_so(explore):
    explorer = explore()
    explorer.wait(LONG_S)
    thread = explorer._reruns._thread
    explorer.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    explorer.controls["batch_size"].value = 2
    assert "closed" in explorer.failure.value


def test_what_the_model_had_said_is_kept_with_the_run_and_its_error_is_shown(explore):
    explorer = explore()
    first = explorer.wait(LONG_S)
    assert first.predicted_ms == 0
    assert "the model" not in explorer.actions.status.value
    explorer.set(bulk_forward=5)
    second = explorer.wait(LONG_S)
    assert second.predicted_ms == pytest.approx(kit.predict(first, second.settings).step_ms)
    assert "the model had said" in explorer.actions.status.value
    explorer.set(dtype="bfloat16")  # of which no model knows
    assert explorer.wait(LONG_S).predicted_ms == 0


def test_what_is_picked_in_one_view_is_picked_in_all_and_gone_with_the_run(explore):
    explorer = explore(lambda settings, **_: make_run(settings), views=VIEWS)
    run = explorer.wait(30)
    picked = Links(run).of_nodes(run.graphs[0].ops[:3], "three ops")
    explorer.views["graph"].selection = picked
    views = (
        explorer.views["timeline"],
        explorer.views["source"],
        explorer.views["syncs"],
        explorer.views["kernels"],
    )
    assert {view.selection for view in views} == {picked}
    assert "three ops: 3 ops" in explorer.pictures.selected.text.value
    explorer.rerun()
    explorer.wait(30)
    assert {view.selection for view in (explorer.views["graph"], *views)} == {NOTHING}


def test_runs_become_markdown(explore):
    explorer = explore(auto_run=False)
    with pytest.raises(SessionError, match="no run to report yet"):
        explorer.to_markdown()
    explorer.rerun()
    assert explorer.wait(LONG_S).to_markdown() == explorer.to_markdown()
    explorer.set(batch_size=16)
    explorer.wait(LONG_S)
    assert "batch size 16" in explorer.to_markdown()
    assert explorer.to_markdown().startswith("# synthetic")


@pytest.mark.parametrize(
    ("count", "disk", "said"),
    [
        (0, 0, "every program was in the cache"),
        (4, 0, "; 4 programs compiled in 2.0 s"),
        (4, 1, "; 3 programs compiled, 1 more read from disk in 2.0 s"),
        (4, 4, "; 4 programs read from disk in 2.0 s"),
    ],
)
def test_what_was_read_from_disk_is_not_called_compiled(explore, count: int, disk: int, said: str):
    found = {"compile.count": count, "compile.from_disk": disk, "compile.ns": 2e9}

    def step(settings, **options):
        return replace(make_run(settings, steps=1), metrics={"segment.count": 3.0, **found})

    explorer = explore(step)
    explorer.wait(LONG_S)
    assert said in explorer.actions.status.value


def test_a_text_that_is_pinned_in_the_timeline_is_in_the_explorers_run():
    shown = Explorer(lambda settings, *, progress, cancelled: make_run(settings))
    try:
        first = shown.wait(60)
        shown.views["timeline"].pin(1_000, "late batch")
        assert [pin.text for pin in shown.run.pins] == ["late batch"]
        assert shown.runs == [shown.run] != [first]
        assert "late batch" in shown.to_markdown()
        shown.views["timeline"].unpin(0)
        assert shown.run.pins == ()
        assert shown.runs == [shown.run]
        assert "late batch" not in shown.to_markdown()
    finally:
        shown.close()
