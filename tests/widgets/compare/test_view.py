"""A comparison of runs: rows and strips against brute force, labels, verdict, hostile text."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.embed import file_html
from bokeh.models import Legend
from bokeh.resources import INLINE
from hypothesis import given
from hypothesis import strategies as st

from kit.runs.change import step_interval
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.run import Run
from kit.runs.settings import STEP_MODES, Settings
from kit.text import format_ms
from kit.trace import KINDS, Span, SyncPoint, Timeline
from kit.widgets.base.cards import headline_html
from kit.widgets.base.theme import COLORS
from kit.widgets.compare.data import (
    COLUMNS,
    comparison_cells,
    comparison_rows,
    fastest_text,
    run_labels,
)
from kit.widgets.compare.strips import MAX_BARS, MAX_STEPS, MAX_SYNCS
from kit.widgets.compare.view import (
    Comparison,
    comparison_figure,
    comparison_html,
    comparison_markdown,
    comparison_text,
)
from tests.factories import empty_run, make_run, native_run, one_span_run, timed
from tests.widgets.compare.drawn import columns_of


def _run(*spans: Any, syncs: Any = (), times: Any = (1_000_000,), settings: Any = None) -> Run:
    timeline = Timeline.of([Span(*s) for s in spans], syncs, "profiled")
    settings = settings or Settings()
    return Run(settings=settings, losses=(1.0,), step_times_ns=times, timeline=timeline)


def _covered(run: Run, kind: str) -> np.ndarray:
    """Which nanoseconds of the timeline are inside a span of this kind."""
    inside = np.zeros(int(run.timeline.stop_ns.max()), bool)
    for span in run.timeline.spans:
        if span.kind == kind:
            inside[span.start_ns : span.stop_ns] = True
    return inside


def _of_run(columns: dict[str, Any], what: str, run: int) -> list[dict[str, Any]]:
    part = columns[what]
    rows = [dict(zip(part, values, strict=True)) for values in zip(*part.values(), strict=True)]
    return [row for row in rows if row["run"] == run + 1]


def test_a_rows_numbers_are_those_counted_nanosecond_by_nanosecond():
    run = make_run(Settings(batch_size=4, accumulate=3, bulk_forward=5, bulk_backward=5), syncs=2)
    (row,) = comparison_rows([run])
    kernel, step, record, wait, copy = (
        _covered(run, kind) for kind in ("kernel", "step", "record", "wait", "input")
    )
    recording = record & ~wait & ~copy
    assert row.device_busy_fraction == pytest.approx((kernel & step).sum() / step.sum())
    assert row.overlap_fraction == pytest.approx((recording & kernel).sum() / recording.sum())
    assert row.device_idle_ms == pytest.approx((step & ~kernel).sum() / 3 / 1e6)
    times = sorted(t / 1e6 for t in run.step_times_ns)
    assert row.step_ms == pytest.approx((times[99] + times[100]) / 2)
    assert (row.step_low_ms, row.step_high_ms) == pytest.approx(
        tuple(np.quantile(times, [0.25, 0.75]))
    )
    assert row.sample_ms == pytest.approx(row.step_ms / 12)
    assert row.syncs_per_step == len(run.sync_points) / 200 == 2
    assert row.sync_wait_ms == pytest.approx(sum(s.wait_ns for s in run.sync_points) / 200 / 1e6)
    assert (row.ratio, row.loss) == (1.0, run.losses[-1])


def test_a_ratio_is_to_the_baseline():
    runs = [replace(make_run(), step_times_ns=(t,)) for t in (4_000_000, 2_000_000, 3_000_000)]
    assert [r.ratio for r in comparison_rows(runs)] == [1.0, 0.5, 0.75]
    assert [r.ratio for r in comparison_rows(runs, baseline=1)] == [2.0, 1.0, 1.5]


def test_a_label_names_only_the_settings_that_differ():
    base = Settings(mode="lazy", batch_size=16)
    runs = [make_run(base.replace(loss_scaling=s)) for s in ("none", "dynamic, on device")]
    assert run_labels(runs) == ["loss scaling none", "loss scaling dynamic, on device"]
    runs.append(make_run(base.replace(batch_size=4)))
    assert run_labels(runs)[2] == "loss scaling none · batch size 4"


def test_a_label_names_what_differs_of_the_machine_and_its_versions():
    """Of runs with one and two cores for XLA it was said which is the fastest, and not why."""
    had = {"device": "cpu (cpu)", "torch": "2.13.0", "cores": "2", "cores for XLA": "1"}
    one = replace(make_run(), environment=had)
    two = replace(one, environment={**had, "torch": "2.14.0", "cores for XLA": "2"})
    labels = ["torch 2.13.0 · cores for XLA 1", "torch 2.14.0 · cores for XLA 2"]
    assert run_labels([one, two]) == labels
    native = replace(native_run(), environment={"device": "cpu (x)", "threads of torch": "2"})
    assert not any("torch 2" in label for label in run_labels([one, native]))  # it does not say


def test_a_label_leaves_out_what_has_no_effect_in_its_mode():
    lazy = make_run(Settings(mode="lazy"))
    native = make_run(Settings(mode="torch", bulk_forward=7, step_mode="replay"))
    cut = make_run(Settings(bulk_forward=30, bulk_backward=7))
    assert run_labels([native, lazy]) == ["torch (native)", "lazy"]
    bulked = make_run(Settings(bulk_forward=5, bulk_backward=5))
    assert run_labels([bulked, cut]) == ["bulk size 5", "bulk size 30 forward, 7 backward"]


settings = st.builds(
    Settings,
    mode=st.sampled_from(["imperative", "bulked", "lazy"]),
    bulk_forward=st.sampled_from([1, 15]),
    step_mode=st.sampled_from(STEP_MODES),
    loss_scaling=st.sampled_from(LOSS_SCALING),
    batch_size=st.integers(1, 3),
    accumulate=st.integers(1, 2),
    prefetch=st.integers(0, 2),
    seed=st.integers(0, 1),
)


@given(st.lists(settings, min_size=2, max_size=6))
def test_labels_are_the_same_only_where_nothing_in_effect_differs(chosen: list[Settings]):
    labels = run_labels([replace(empty_run(), settings=s) for s in chosen])
    same = {s if s.mode == "bulked" else s.replace(bulk_forward=15) for s in chosen}
    assert len(set(labels)) == len(chosen)
    told = [label.partition(" · measurement ")[0] for label in labels]
    assert len(set(told)) == len(same)


def test_a_label_that_was_given_stands_first_and_files_and_times_tell_equal_ones_apart():
    before, after = (replace(empty_run(), name="mine", label=x) for x in ("before", "after"))
    assert run_labels([before, after]) == ["before · mine · bulked", "after · mine · bulked"]
    wide = replace(after, settings=Settings(batch_size=64))
    assert run_labels([before, wide])[1] == "after · batch size 64"
    plain = replace(before, label="")
    saved = [replace(plain, file=file) for file in ("a.kitrun", "b.kitrun")]
    assert run_labels(saved) == ["mine · bulked · a", "mine · bulked · b"]
    unknown = [f"mine · bulked · measurement {i}" for i in (1, 2)]
    assert run_labels([plain, before, plain]) == [unknown[0], "before · mine · bulked", unknown[1]]
    assert "before · mine" in comparison_text(comparison_rows([before, after]))
    assert "1: before · mine" in comparison_markdown(comparison_rows([before, after]))
    assert "before &amp;" in headline_html(replace(before, label="before & after"))


def test_the_best_of_a_column_is_marked_with_all_that_are_no_worse_beyond_the_spread():
    slow = replace(make_run(syncs=2), step_times_ns=(90_000_000,) * 10)
    runs = [slow, *(replace(make_run(), step_times_ns=(t,) * 10) for t in (30_000_000, 30_300_000))]
    best = [[c.is_best for c in cells] for cells in comparison_cells(comparison_rows(runs))]
    heads = [c.head for c in COLUMNS]
    assert [row[heads.index("step ms")] for row in best] == [False, True, True]
    assert [row[heads.index("sync points a step")] for row in best] == [False, True, True]
    assert not any(row[heads.index("final loss")] for row in best)


def test_a_loss_that_nobody_told_is_unknown_and_one_that_is_nan_is_nan():
    runs = [replace(make_run(), losses=losses) for losses in ((), (math.nan,))]
    place = [c.head for c in COLUMNS].index("final loss")
    cells = comparison_cells(comparison_rows(runs))
    assert [row[place].text for row in cells] == ["?", "nan"]


def test_what_the_spread_does_not_tell_from_the_best_is_no_best_and_hides_it():
    wild = timed(3, 9, 30)
    rows = comparison_rows([timed(20, 20.2), timed(10, 10.1), wild])
    assert not any(cells[0].is_best for cells in comparison_cells(rows))
    assert [COLUMNS[0].head in row.maybe_best for row in rows] == [True] * 3
    said = fastest_text(rows)
    assert said.startswith("Run 2 is faster: 100 ms a step, ")
    assert said.endswith("The spread does not tell whether it is faster than run 3.")
    known = fastest_text(comparison_rows([timed(20, 20.2), timed(8, 8.1), timed(7, 9, 10)]))
    assert known.startswith("Run 2 is faster: 80.5 ms a step, 60% ± ")
    assert known.endswith("The spread does not tell whether it is faster than run 3.")


def test_where_all_read_the_same_or_one_is_known_nothing_is_best():
    for runs in ([make_run(), make_run()], [make_run(), empty_run()]):
        cells = comparison_cells(comparison_rows(runs))
        assert not any(c.is_best for row in cells for c in row)


def test_the_verdict_names_the_fastest_and_says_how_sure_that_is():
    said = fastest_text(comparison_rows([timed(10, 10.1, 10), timed(8, 8.1, 8)]))
    assert said == "Run 2 is the fastest: 80 ms a step, 20% ± 3% less than the baseline, run 1."
    three = fastest_text(comparison_rows([timed(10, 10.1), timed(8, 8.1), timed(8.1, 8.2)]))
    assert three.endswith("Within the spread as fast: run 3.")
    assert fastest_text(comparison_rows([timed(1)])) == ""
    assert fastest_text(comparison_rows([timed(1), empty_run()])) == ""


def test_noise_makes_no_run_the_fastest_and_has_no_star():
    rows = comparison_rows([timed(*(10, 10.4, 9.6) * 10), timed(*(9.9, 10.3, 9.5) * 10)])
    assert fastest_text(rows) == (
        "No run is faster than the baseline beyond the spread; the next is run 2 with 99 against "
        f"100 ms a step: no change beyond the spread (−1% ± {rows[1].change.spread:.0%})."
    )
    assert [c.note for c in comparison_cells(rows)[1]][1].startswith("no change, ± ")
    assert not any(cells[0].is_best for cells in comparison_cells(rows))
    wide = comparison_rows([timed(9.3, 10, 10.7), timed(7.4, 8, 9)])
    assert "maybe 20% ±" in fastest_text(wide)
    assert "0.80× (maybe, ± 0." in comparison_text(wide)
    wild = comparison_text(comparison_rows([timed(1, 10, 90), timed(1, 5, 95)]))
    assert "(maybe, may be off a hundredfold)" in wild
    single = comparison_rows(
        [replace(timed(1), step_times_ns=(t,)) for t in (20_000_000, 10_000_000)]
    )
    assert "maybe 50% less: too few steps" in fastest_text(single)


def test_other_batch_sizes_are_judged_by_the_sample():
    small = timed(4, 4, 4, settings=Settings(batch_size=4))
    large = timed(6, 6, 6, settings=Settings(batch_size=8))
    said = fastest_text(comparison_rows([small, large]))
    assert said == (
        "Run 2 is the fastest: 7.5 ms a sample, 25% ± 3% less than the baseline, run 1."
    )
    assert comparison_rows([small, large])[1].ratio == pytest.approx(0.75)  # what its ± is of


def test_a_run_without_steps_does_not_change_what_the_others_are_judged_by():
    small = timed(4, 4, 4, settings=Settings(batch_size=4))
    large = timed(6, 6, 6, settings=Settings(batch_size=8))
    none = replace(small, step_times_ns=())
    said = fastest_text(comparison_rows([small, large]))
    assert fastest_text(comparison_rows([small, large, none])) == said


def test_time_begins_at_each_runs_first_traced_step():
    early = ("device/0", "old", "kernel", 0, 1_500_000)
    step = ("host/main", "step 0", "step", 1_000_000, 3_000_000)
    run = _run(early, step, syncs=[SyncPoint(2_000_000, 500_000, "item", "a.py:1")])
    columns = columns_of([run])
    (bar,) = _of_run(columns, "bars", 0)
    assert (bar["left_ms"], bar["right_ms"], bar["busy_ms"]) == (0.0, 0.5, 0.5)
    assert (columns["steps"]["left_ms"], columns["steps"]["right_ms"]) == ([0.0], [2.0])
    assert (columns["syncs"]["x"], columns["syncs"]["right"]) == ([1.0], [1.5])


def test_all_strips_share_one_axis_that_ends_with_the_longest():
    runs = [make_run(seed=i, steps=i + 2) for i in range(3)]
    columns = columns_of(runs)
    ends = [int(r.timeline.stop_ns.max() - r.timeline.intervals(kind="step")[0, 0]) for r in runs]
    assert columns["axis"]["x_end"] == pytest.approx(max(ends) / 1e6)
    figure = comparison_figure(runs, comparison_rows(runs))
    assert (figure.x_range.start, figure.x_range.end) == (0, columns["axis"]["x_end"])


def test_the_title_of_a_strip_says_where_a_rerun_is_to_be_expected():
    runs = [timed(8, 8.1, 8), timed(10), empty_run()]
    runs[1] = replace(runs[1], step_times_ns=(100_000_000,))
    told = " ".join(columns_of(runs)["titles"]["text"])
    low, high = step_interval(runs[0])
    assert f"80 ms a step (reruns: {format_ms(low)} to {format_ms(high)})" in told
    assert "100 ms a step (reruns: ± unknown)" in told
    assert "step time unknown" in told


def test_a_run_that_is_far_slower_goes_on_beyond_the_axis_and_says_so():
    def lasting(ms: int) -> Run:
        stop = ms * 1_000_000
        return _run(
            ("host/main", "step 0", "step", 0, stop), ("host/main", "forward", "record", 0, stop)
        )

    columns = columns_of([lasting(1), lasting(1), lasting(100)])
    assert columns["axis"]["x_end"] == 4
    titles = columns["titles"]["text"]
    assert ["goes on to 100 ms" in line for line in titles] == [False, False, True]
    assert max(columns["bars"]["right_ms"]) == 100


@pytest.mark.parametrize("kernels", [40, 3000])
def test_a_strip_has_few_bars_and_they_hold_all_of_the_devices_time(kernels: int):
    run = make_run(kernels=kernels, steps=MAX_STEPS)
    bars = _of_run(columns_of([run]), "bars", 0)
    assert len(bars) <= MAX_BARS
    assert sum(b["count"] for b in bars) == (run.timeline.kind != KINDS.index("step")).sum()
    device = [b for b in bars if b["color"] == COLORS["kernel"]]
    assert sum(b["busy_ms"] for b in device) == pytest.approx(_covered(run, "kernel").sum() / 1e6)


times = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=60
)


@given(times)
def test_the_device_row_is_the_union_of_its_lanes(kernels: list[tuple[int, int, int]]):
    step = ("host/main", "step 0", "step", 0, 3100)
    run = _run(step, *((f"device/{d}", "k", "kernel", a, a + n) for a, n, d in kernels))
    bars = _of_run(columns_of([run]), "bars", 0)
    busy = _covered(run, "kernel")
    assert sum(b["busy_ms"] for b in bars) == pytest.approx(busy.sum() / 1e6)
    drawn = np.zeros(len(busy), bool)
    for bar in bars:
        left, right = round(bar["left_ms"] * 1e6), round(bar["right_ms"] * 1e6)
        assert bar["alpha"] == pytest.approx(max(bar["busy_ms"] * 1e6 / (right - left), 0.12))
        drawn[left:right] = True
    assert (drawn | ~busy).all()


def test_what_interrupts_recording_is_painted_after_it():
    run = _run(
        ("host/main", "step 0", "step", 0, 100),
        ("host/main", "forward", "record", 0, 100),
        ("host/main", "item", "wait", 40, 60),
    )
    colors = columns_of([run])["bars"]["color"]
    assert colors == [COLORS["forward"], COLORS["wait"]]


def test_host_threads_have_rows_of_their_own_and_many_share_one():
    step = ("host/main", "step 0", "step", 0, 100)
    few = _run(step, ("host/loader", "batch", "input", 0, 50), ("device/0", "k", "kernel", 0, 9))
    assert columns_of([few])["axis"]["labels"] == ["host", "loader", "device"]
    many = _run(step, *((f"host/thread {i}", "x", "input", i, i + 1) for i in range(9)))
    labels = columns_of([many])["axis"]["labels"]
    assert labels == ["host", "thread 0", "thread 1", "more threads", "device"]


def test_steps_as_the_device_had_them_are_not_device_work():
    run = _run(
        ("host/main", "step 0", "step", 0, 100),
        ("device/0", "k", "kernel", 10, 20),
        ("device steps", "step 0", "device step", 10, 90),
    )
    columns = columns_of([run])
    assert columns["axis"]["labels"] == ["host", "device", "its steps"]
    kernels = [b for b in _of_run(columns, "bars", 0) if b["kind"] == "kernel"]
    assert sum(b["busy_ms"] for b in kernels) == pytest.approx(10 / 1e6)
    assert "step 0" in columns["texts"]["text"]


def test_only_the_first_steps_and_the_longest_waits_are_drawn():
    run = make_run(steps=MAX_STEPS + 3)
    columns = columns_of([run])
    assert len(columns["steps"]["left_ms"]) == MAX_STEPS
    assert f"the first {MAX_STEPS} of {MAX_STEPS + 3} traced steps" in columns["notes"]
    assert max(columns["bars"]["right_ms"]) <= columns["steps"]["right_ms"][-1]
    waits = [SyncPoint(i, i, "item") for i in range(MAX_SYNCS + 50)]
    busy = _run(("host/main", "step 0", "step", 0, 1000), syncs=waits)
    columns = columns_of([busy])
    x = columns["syncs"]["x"]
    assert [round(1e6 * v) for v in x] == list(range(50, MAX_SYNCS + 50))
    assert f"the longest {MAX_SYNCS} of {MAX_SYNCS + 50} sync points" in columns["notes"]


def test_the_title_says_where_the_timelines_come_from():
    recorded = replace(empty_run(), timeline=Timeline.of([], origin="modelled"))
    assert "(profiled)" in columns_of([make_run(), make_run()])["title"]
    assert "(profiled, modelled)" in columns_of([make_run(), recorded])["title"]


def test_the_legend_has_the_kinds_that_are_drawn():
    legend = comparison_figure([make_run()], comparison_rows([make_run()])).select_one(Legend)
    labels = [item.label.value for item in legend.items]
    assert labels == ["forward", "backward", "update", "input", "plan", "lower", "compile",
                      "dispatch", "wait (sync)", "kernel"]  # fmt: skip


SETS = {
    "one": [make_run()],
    "twelve": [make_run(Settings(seed=i), seed=i) for i in range(12)],
    "torch": [make_run(Settings(mode="torch")), make_run()],
    "nothing recorded": [empty_run(), one_span_run()],
    "hostile": [make_run(hostile=True), make_run(Settings(mode="torch"), hostile=True, syncs=3)],
}


@pytest.mark.parametrize("runs", SETS.values(), ids=SETS)
def test_every_form_is_made_and_nothing_hostile_is_markup(runs: list[Run]):
    html = comparison_html(comparison_rows(runs))
    assert html.count("<tr") == len(runs) + 1
    page = file_html(comparison_figure(runs, comparison_rows(runs)), INLINE)
    markdown = comparison_markdown(comparison_rows(runs))
    for text in (html, markdown):
        assert "<script" not in text.replace("&lt;script", "")
    assert "alert('kit')</script>" not in page
    assert "<script>alert" not in page
    shown = markdown.partition("\n\n")[0].splitlines()
    cells = [len(line.replace("\\|", "").split("|")) for line in shown]
    assert cells == [len(COLUMNS) + 3] * (len(runs) + 2)
    lines = comparison_text(comparison_rows(runs)).splitlines()
    assert sum(line.lstrip().startswith(f"{i + 1} ") for i in range(len(runs)) for line in lines)
    assert all(line.isprintable() for line in lines)
    json.dumps(columns_of(runs), allow_nan=False)


def test_a_torch_run_has_no_worker_row():
    labels = columns_of(SETS["torch"])["axis"]["labels"]
    assert labels == ["host", "device", "host", "worker", "device"]


def test_twelve_strips_do_not_overlap():
    columns = columns_of(SETS["twelve"])
    tops, bottoms = columns["tracks"]["top"], columns["tracks"]["bottom"]
    assert all(above < top for above, top in zip(bottoms[:-1], tops[1:], strict=True))
    assert len(columns["titles"]["y"]) >= 12
    assert columns["height"] < 1500


def test_outside_of_a_kernel_a_view_is_made_too():
    made = Comparison((make_run(), make_run(Settings(mode="lazy"))))
    assert "Comparison" in made.view().children[0].value
    assert made._repr_mimebundle_()["text/plain"] == repr(made)
