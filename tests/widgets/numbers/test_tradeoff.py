"""The trade-off of step time and compile time: its front, its columns, its table."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from bokeh.embed import json_item
from bokeh.models import LogScale
from hypothesis import given
from hypothesis import strategies as st

from kit.runs.change import Difference
from kit.runs.settings import Settings
from kit.widgets.numbers.tradeoff import (
    MAX_ROWS,
    TradeoffView,
    pareto_front,
    tradeoff_columns,
    tradeoff_figure,
    tradeoff_html,
)
from tests.factories import HOSTILE


def row(words: str = "mode lazy", **changes: Any) -> dict[str, Any]:
    """One row as `Tuned.tried` has it."""
    values: dict[str, Any] = {
        "words": words, "settings": Settings(), "step_ms": 5.0, "spread_ms": 0.2,
        "ms_per_sample": 5.0 / 8, "compile_ms": 900.0, "compiles": 4, "compiles_from_disk": 0,
        "pays_off_after": 120.5, "live_bytes": math.nan, "peak_bytes": math.nan, "runs": 3,
        "steps": 30, "note": "", "is_start": False, "is_best": False, "is_possible": True,
    }  # fmt: skip
    return values | changes


def tried() -> list[dict[str, Any]]:
    return [
        row("mode lazy", is_best=True, step_ms=4.0, compile_ms=1500.0),
        row("50 ops a segment", step_ms=5.0, compile_ms=300.0),
        row("as given", is_start=True, step_ms=6.0, compile_ms=900.0, pays_off_after=0.0),
        row("prefetch 3", step_ms=1.0, is_possible=False, note="because its losses differ"),
        row("batch", step_ms=math.nan, spread_ms=math.nan, ms_per_sample=math.nan,
            is_possible=False, note="because it failed with MemoryError: no room"),
    ]  # fmt: skip


times = st.one_of(st.floats(0, 100), st.sampled_from([1.0, 2.0, math.nan]))


@given(st.lists(st.tuples(times, times), max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]]):
    front = pareto_front(points)
    known = [p for p in points if not any(map(math.isnan, p))]

    def is_beaten(p: tuple[float, float]) -> bool:
        return any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in known)

    assert [points[i] for i in front] == sorted({p for p in known if not is_beaten(p)})


def test_the_given_and_the_best_are_named_and_drawn_on_top():
    made = tradeoff_columns(tried())
    assert made["labels"]["text"] == ["as given", "best"]
    assert made["points"]["words"][-2:] == ["as given (given)", "mode lazy (best)"]
    assert len(made["points"]["x"]) == 4  # the failed one has no point
    assert made["front"] == {"x": [0.3, 1.5], "y": [5.0, 4.0]}


def test_a_start_that_is_the_best_has_one_label():
    made = tradeoff_columns([row("as given", is_start=True, is_best=True)])
    assert made["labels"]["text"] == ["as given, the best"]


def test_labels_turn_inwards_at_the_right_edge():
    made = tradeoff_columns(tried())
    assert made["labels"]["align"] == ["right", "right"]
    left = [row("as given", is_start=True, compile_ms=10.0), row(is_best=True)]
    assert tradeoff_columns(left)["labels"]["align"] == ["left", "right"]


def test_times_are_a_samples_where_batches_differ():
    rows = [row(is_start=True), row(settings=Settings(batch_size=64), ms_per_sample=0.1)]
    made = tradeoff_columns(rows)
    assert made["y_label"] == "time of a sample (ms)"
    assert sorted(made["points"]["y"]) == [0.1, 5.0 / 8]
    spread = made["points"]["high"] - made["points"]["y"]
    assert list(spread) == pytest.approx([0.1 * 0.2 / 5, 0.2 / 8])
    assert "a sample" in tradeoff_html(rows)
    assert "a sample" not in tradeoff_html([row()])
    samples = made["points"]["sample"]
    assert sorted(samples) == ["100 ± 4 µs", "625 ± 25 µs"]
    assert all(f">{text}<" in tradeoff_html(rows) for text in samples)


@pytest.mark.parametrize("spread_ms", [math.nan, math.inf, 1e6, 5.1])
def test_a_spread_that_says_nothing_is_called_unknown(spread_ms: float):
    columns = tradeoff_columns([row(spread_ms=spread_ms)])
    assert columns["points"]["step"] == ["5.00 ms ± unknown"]
    assert columns["points"]["sample"] == ["625 µs ± unknown"]


@pytest.mark.parametrize(("slowest", "is_log"), [(10.0, False), (500.0, True)])
def test_very_different_times_are_drawn_on_a_log_axis(slowest: float, is_log: bool):
    rows = [row(step_ms=5.0), row("as given", is_start=True, step_ms=slowest, spread_ms=499.0)]
    assert tradeoff_columns(rows)["is_log"] == is_log
    plot = tradeoff_figure(rows)
    assert isinstance(plot.y_scale, LogScale) == is_log
    low, high = tradeoff_columns(rows)["y_range"]
    assert low < 5.0 < slowest < high
    assert min(tradeoff_columns(rows)["points"]["low"]) >= 0


@pytest.mark.parametrize("rows", [[], [row(step_ms=math.nan)], [row(compile_ms=0.0, step_ms=0.0)],
                                  [row(HOSTILE, note=HOSTILE, is_best=True)], tried()])  # fmt: skip
def test_any_rows_can_be_drawn(rows: list[dict[str, Any]]):
    text = json.dumps(json_item(tradeoff_figure(rows)))
    assert "\u202e" not in text
    view = TradeoffView(rows, HOSTILE)
    html = view.summary.value + view.table.value
    assert "<script" not in html
    assert "<img" not in html


def test_the_table_says_what_each_setting_costs():
    html = tradeoff_html(tried())
    assert html.count("<tr") == 6
    assert "4.00 ± 0.20 ms" in html
    assert "121 steps" in html
    assert "not chosen, because its losses differ" in html
    assert "unknown" in html
    assert "peak memory" not in html
    assert "from disk" not in html
    assert "nan" not in html


def test_memory_and_disk_are_told_where_known():
    html = tradeoff_html([row(peak_bytes=3e9, compiles_from_disk=2), row()])
    assert "3 GB" in html
    assert "not measured" in html
    assert "on disk already" in html
    bound = tradeoff_html([row(peak_bytes=3e9), row(peak_bound=9e9)])
    assert "≤ 9 GB" in bound
    assert "≤ 3 GB" not in bound
    assert "of the whole process on one device" in bound


@pytest.mark.parametrize(("ms", "spread", "text"), [
    (0.0123, 0.001, "12.3 ± 1.0 µs"), (4.88, 0.627, "4.88 ± 0.63 ms"),
    (412.0, 20.0, "412 ± 20 ms"), (2500.0, 40.0, "2.50 ± 0.04 s"),
])  # fmt: skip
def test_a_time_and_its_spread_have_one_unit(ms: float, spread: float, text: str):
    assert text in tradeoff_html([row(step_ms=ms, spread_ms=spread)])


@pytest.mark.parametrize(("after", "text"), [
    (math.inf, "never"), (0.0, "at once"), (1234.2, "1,235 steps"), (math.nan, "unknown"),
])  # fmt: skip
def test_when_a_compile_is_paid_back_is_said(after: float, text: str):
    assert text in tradeoff_html([row(pays_off_after=after)])


def test_of_very_many_settings_the_first_are_shown():
    html = tradeoff_html([row(f"prefetch {i}") for i in range(MAX_ROWS + 5)])
    assert html.count("<tr") == MAX_ROWS + 1
    assert f"The first {MAX_ROWS} of {MAX_ROWS + 5} are shown" in html


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.45, 0.55, "± 5%"), (0.97, 1.05, "no change, ± 4%"), (0.5, 1.6, "maybe, ± 55%")],
)
def test_a_ratio_says_how_sure_it_is(low: float, high: float, text: str):
    change = Difference(6.0, 5.0, low, high)
    rows = [row(change=change), row("as given", is_start=True, step_ms=6.0)]
    assert f">{text}</div>" in tradeoff_html(rows)
    assert "maybe 1.20x as fast" in tradeoff_html(
        [row(ms_per_sample=1.0), row("as given", is_start=True, ms_per_sample=1.2)]
    )
