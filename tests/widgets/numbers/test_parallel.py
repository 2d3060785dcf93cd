"""The view of gradients on their way: its columns, and that each slider asks the model."""

from __future__ import annotations

import numpy as np
import pytest

from kit.errors import SettingsError
from kit.runs.gradients import Backward, Link, best_buckets, predict_parallel
from kit.widgets.base.live_plot import LivePlot
from kit.widgets.numbers.parallel import ParallelView, curve_columns, lane_columns

STEP = Backward(60, tuple((3 * i, 100_000) for i in range(1, 21)), 2e4, 5e4, 1e6, 2e5)
LINK = Link(50, 1)


def test_the_curve_has_the_models_numbers_and_measured_ones_where_there_are_any() -> None:
    columns = curve_columns(STEP, LINK, devices=2, bucket_bytes=2e5, measured={1: 9.0, 60: 8.0})
    assert columns["bulk"][0] == 1
    assert columns["bulk"][-1] == STEP.ops
    at = predict_parallel(STEP, bulk=1, link=LINK, bucket_bytes=2e5)
    assert columns["ms"][0] == at.step_ns / 1e6
    assert columns["exposed"][0] == at.exposed_ns / 1e6
    assert list(columns["measured"][[0, -1]]) == [9.0, 8.0]
    assert np.isnan(columns["measured"][1:-1]).all()


def test_what_was_measured_stands_at_its_own_size() -> None:
    measured = {17: 9.0, 18: 8.0, 500: 7.0}
    columns = curve_columns(STEP, LINK, devices=2, bucket_bytes=2e5, measured=measured)
    shown = zip(columns["bulk"].tolist(), columns["measured"].tolist(), strict=True)
    assert [x for x in shown if not np.isnan(x[1])] == [(17, 9.0), (18, 8.0), (STEP.ops, 7.0)]


def test_the_lanes_show_each_segment_and_bucket_of_both_steps() -> None:
    by_size = predict_parallel(STEP, bulk=10, link=LINK, bucket_bytes=2e5)
    best = best_buckets(STEP, LINK)[1]
    columns = lane_columns(by_size, best)
    assert len(columns["lane"]) == sum(2 + s.segments + s.buckets for s in (by_size, best))
    assert len(set(columns["lane"])) == 4
    assert columns["what"].count("gradients") == sum(s.buckets for s in (by_size, best))
    assert max(columns["right"]) == max(by_size.step_ns, best.step_ns) / 1e6


def test_each_slider_asks_the_model_and_an_error_is_shown_under_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = ParallelView(STEP, LINK, bucket_mb=0.2, measured={60: 8.0})
    assert view.step == predict_parallel(STEP, bulk=60, link=LINK, bucket_bytes=2e5)
    assert np.nanmax(view.curve.data["measured"]) == 8.0
    best = best_buckets(STEP, LINK)[1].step_ns / 1e6
    assert view.best.data == {"bulk": [1, STEP.ops], "ms": [best, best]}
    before = view.step.step_ns
    view.bulk.value = 8
    assert view.step.step_ns < before
    view.speed.value, view.latency.value, view.devices.value = 25.0, 5.0, 8
    view.bucket.value = view.bucket.options[-1][1]
    assert view.step.buckets == 1
    assert np.isnan(view.curve.data["measured"]).all()  # nobody has measured that link
    assert f"{view.step.step_ns / 1e6:.2f} ms" in view.text.value
    assert "8 devices, each with a part of the batch, over a link of 5 µs" in view.text.value
    assert "were measured" not in view.text.value
    monkeypatch.setattr("kit.widgets.numbers.parallel.predict_parallel", lambda *a, **k: 1 / 0)
    view.bulk.value = 1
    assert "division by zero" in view.error.value


def test_no_legend_takes_the_width_of_a_phone_from_a_plot() -> None:
    view = ParallelView(STEP, LINK)
    for plot in (part.plot for part in view.children if isinstance(part, LivePlot)):
        assert plot.legend[0] in plot.below
    view.close()


def test_one_device_is_not_called_several() -> None:
    view = ParallelView(STEP, LINK, devices=1)
    assert "gradients travel?</b> 1 device over a link of 50 µs" in view.text.value
    assert view.step.timeline.notes == ("1 device, a link of 50 us and 1 GB/s",)


def test_what_is_no_measurement_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"measure_backward\(net, step\) gives, not str"):
        ParallelView("a run")  # type: ignore[arg-type]
