"""The what-if views: what stands in them, and that a slider asks the model."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape

import pytest
from bokeh.models import LabelSet

import kit
from kit.errors import SettingsError
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import predict
from kit.trace import Timeline
from kit.widgets.numbers.whatif import WhatIfView, modelled_run, whatif_figure, whatif_html
from kit.widgets.timeline.payload import timeline_payload
from tests.factories import make_run, native_run


def measured(settings: Settings | None = None, **more: int) -> Run:
    made = make_run(settings, **more)
    return replace(made, metrics={"overhead.launch_ns": 7000.0, "overhead.sync_ns": 9000.0})


def test_the_table_has_a_row_for_each_prediction():
    run = measured()
    html = whatif_html(run, [predict(run), predict(run, Settings(mode="lazy"))])
    assert html.count("<tr ") == 3
    assert "Predicted against measured" in html
    assert "as measured" in html
    assert "mode=&#x27;lazy&#x27;" in html


def test_a_measured_run_of_the_same_settings_stands_beside_its_prediction():
    run = measured()
    prediction = predict(run)
    slower = replace(run, step_times_ns=tuple(2 * t for t in run.step_times_ns))
    html = whatif_html(run, [prediction], [slower])
    assert f"{slower.step_ms:.2f} ms" in html
    assert re.search(r"−50\.0% ± [0-9.]+%<", html)
    assert "within the spread" not in html


def test_steps_and_seed_do_not_keep_a_measured_run_from_its_prediction():
    run = measured()
    other = replace(run, settings=run.settings.replace(steps=99, seed=3))
    html = whatif_html(run, [predict(run)], [other])
    assert re.search(r"≈?0\.0% ± [0-9.]+%, within the spread<", html)


def test_a_prediction_that_nobody_measured_has_no_error():
    run = measured()
    made = predict(run, Settings(mode="lazy"))
    table, _, assumed = whatif_html(run, [made], [run]).partition("assumed:")
    assert "%" not in re.sub(r"<[^>]*>", "", table)
    assert made.step_text in table
    assert "nine of ten such predictions are off by at most 25%" in assumed


def test_assumptions_are_said_once():
    run = measured()
    made = [predict(run, Settings(bulk_forward=n)) for n in (2, 3)]
    text = "written and read at the rate"
    assert whatif_html(run, made).count(text) == 1


def test_what_is_made_of_a_run_in_doubt_says_so():
    run = measured()
    busy = replace(run, conditions=Conditions(cores=2, others=1.5))
    for shown, of in ((False, run), (True, busy)):
        for text in (whatif_html(of, [predict(of)]), WhatIfView(of).text.value):
            assert ("the run may be off" in text) == shown
            assert ("others used 1.5 of 2 cores" in text) == shown


def test_hostile_text_is_escaped():
    run = measured(hostile=True)
    html = whatif_html(run, [predict(run, Settings(mode="lazy"))])
    assert "<script" not in html
    assert "<img" not in html


def test_the_figure_says_measured_and_modelled():
    run = measured()
    plot = whatif_figure(run, predict(run, Settings(mode="lazy")))
    assert "(profiled)" in plot.title.text
    assert "(modelled)" in plot.title.text


def test_the_strips_are_called_measured_and_predicted():
    run = measured()
    titles = whatif_figure(run, predict(run)).select_one(LabelSet).source.data["text"]
    heads = [text for text in titles if text[0] != " "]
    assert [head.split(" · ")[0] for head in heads] == ["1  measured", "2  predicted"]


def test_what_is_assumed_stands_once_in_the_view():
    view = WhatIfView(measured())
    assert all(text in unescape(view.text.value) for text in view.prediction.assumptions)
    assert timeline_payload(view._drawn())["note"] == ""
    view.close()


def test_the_modelled_strip_is_paler_than_the_measured_one():
    run = measured()
    plot = whatif_figure(run, predict(run))
    data = plot.select_one({"name": "bars"}).data_source.data
    tops = sorted(set(data["top"]))
    upper = [a for a, top in zip(data["alpha"], data["top"], strict=True) if top == tops[0]]
    lower = [a for a, top in zip(data["alpha"], data["top"], strict=True) if top == tops[-1]]
    assert max(lower) < max(upper)


def test_a_modelled_run_has_the_predicted_time_and_timeline():
    run = measured()
    prediction = predict(run, Settings(mode="lazy"))
    made = modelled_run(run, prediction)
    assert made.step_ms == pytest.approx(prediction.step_ms, abs=1e-5)
    assert made.timeline.origin == "modelled"
    assert (made.graphs, made.segments) == ((), ())  # the bars are of the segments of another plan


def test_the_view_begins_with_the_replay():
    run = measured()
    view = WhatIfView(run)
    assert view.prediction.step_ms == pytest.approx(run.step_ms, rel=1e-3)
    assert "(modelled)" in view.figure.title.text


def test_a_slider_asks_the_model():
    run = measured()
    view = WhatIfView(run)
    view.speed.value = 10.0
    assert view.prediction.step_ms == predict(run, device_speed=10.0).step_ms
    assert "1/10" in view.text.value


def test_how_many_times_as_fast_is_said_with_its_interval_and_as_a_perhaps_where_1_is_in_it():
    """Beside "7.4 ms to 19.8 ms" of a step of 16 ms stood "1.32 times as fast"."""
    run = replace(measured(), step_times_ns=(16_000_000,) * 30)
    view = WhatIfView(run)
    for low, high, said in (
        (7.4, 19.8, "; maybe 1.33 times as fast (0.808 to 2.16)<"),
        (10.0, 14.0, "; 1.33 times as fast (1.14 to 1.6)<"),
        (math.nan, math.nan, "; maybe 1.33 times as fast<"),
    ):
        view.prediction = replace(view.prediction, step_ms=12.0, low_ms=low, high_ms=high)
        view._say()
        assert said in view.text.value
    view.speed.value = 10.0  # nobody has measured that
    assert re.search("; maybe [0-9.]+ times as fast<", view.text.value)


def test_the_bulk_sizes_are_those_of_the_sliders():
    view = WhatIfView(measured())
    view.forward.value, view.backward.value = 5, 50
    assert view.prediction.settings.bulk_sizes == (5, 50)


def test_no_limit_in_both_phases_is_mode_lazy():
    view = WhatIfView(measured())
    view.forward.value = view.backward.value = view.forward.options[-1][1]
    assert view.prediction.settings.mode == "lazy"


def test_a_sync_point_can_be_taken_away():
    view = WhatIfView(measured(syncs=2))
    (box,) = view.without
    assert view.prediction.syncs == 2  # both of one line, as its one box
    box.value = True
    assert view.prediction.syncs == 0


def test_a_sync_point_of_no_known_line_has_a_box_that_says_so():
    run = measured()
    syncs = tuple(replace(sync, site="", via="") for sync in run.timeline.syncs)
    run = replace(run, timeline=replace(run.timeline, syncs=syncs), sync_points=())
    (box,) = WhatIfView(run).without
    assert box.description == f"without {syncs[0].cause} at an unknown line"


def test_of_many_places_that_wait_the_dearest_have_boxes_and_the_others_are_counted():
    run = measured(syncs=30)
    sites = [
        f"/home/someone/a_project/with_a_long_name/source/train_loop.py:{i}" for i in range(30)
    ]
    syncs = tuple(
        replace(s, site=sites[i % 30], cause="unlowered op aten.nonzero", wait_ns=1000 + i % 30)
        for i, s in enumerate(run.timeline.syncs)
    )
    view = WhatIfView(replace(run, timeline=replace(run.timeline, syncs=syncs), sync_points=()))
    names = [box.description for box in view.without]
    assert [name[-3:] for name in names] == [f":{i}" for i in range(29, 17, -1)]
    assert "kit.predict(run, without=...) asks about the other 18, too" in view.text.value
    view.without[0].value = True
    assert view.prediction.syncs == 29


def test_a_failure_is_shown_under_the_view():
    view = WhatIfView(measured())
    view.speed.set_trait("options", [("1 x", 1.0), ("none", -1.0)])
    view.speed.value = -1.0
    assert "device_speed must be a finite number above 0" in view.error.value


def test_a_native_run_is_asked_for_what_its_program_could_follow():
    view = WhatIfView(native_run())
    assert view.forward.disabled
    assert view.backward.disabled
    assert "bulk sizes stand still" in view.text.value
    view.is_loading_ahead.value = True
    assert view.prediction.step_ms == pytest.approx(60)
    view.host_speed.value = 10.0
    assert view.prediction.step_ms == pytest.approx(51)
    assert view.error.value == ""
    assert view.prediction.timeline.origin == "modelled"


def test_a_faster_host_and_batches_ahead_are_asked_of_a_run_on_kit():
    view = WhatIfView(measured())
    view.host_speed.value = 100.0
    assert "recording and launching take 1/100 of their time" in view.text.value
    view.is_loading_ahead.value = True
    assert view.prediction.settings.prefetch == 2


def test_a_run_of_plain_torch_without_a_step_cannot_be_asked():
    with pytest.raises(SettingsError):
        WhatIfView(replace(native_run(), timeline=Timeline.of([])))


def test_the_view_is_public():
    assert kit.WhatIfView is WhatIfView
