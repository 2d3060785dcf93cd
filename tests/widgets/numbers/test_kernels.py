"""The kernel table as HTML: rows, sums, ceilings; a stranger's text stays text."""

from __future__ import annotations

from dataclasses import replace

from kit.runs.run import Fused
from kit.trace import Span, Timeline
from kit.trace.kernels import Ceilings
from kit.widgets.numbers.kernels import MAX_ROWS, KernelView, folded_kernels, kernels_drawn
from tests.factories import empty_run, make_run, native_run, one_span_run


def test_a_kernel_is_shown_with_what_it_computes_and_its_part_of_the_time() -> None:
    run = make_run()
    run = replace(run, fused=(Fused(0, "fusion.0", run.segments[0].nodes),))
    text = kernels_drawn(run)[0]
    for said in ("fusion.0", "segment 0", "mm", "train.py:", "all kernels", "100%", "GB/s"):
        assert said in text
    assert "Measured at best" not in text


def test_a_long_name_goes_on_between_its_words() -> None:
    span = Span("device/0 torch cpu", "aten::native_layer_norm_backward", "kernel", 0, 9)
    run = replace(native_run(), timeline=Timeline.of([span], (), "profiled"))
    assert "aten::<wbr>native_<wbr>layer_<wbr>norm_<wbr>backward" in kernels_drawn(run)[0]


def test_a_modules_path_goes_on_after_a_full_stop() -> None:
    assert "Bert.<wbr>layers.<wbr>0.<wbr>attention.<wbr>output" in kernels_drawn(make_run())[0]


def test_a_native_run_has_no_segments_and_without_ceilings_there_is_no_column_of_them() -> None:
    text = kernels_drawn(native_run())[0]
    assert "segment" not in text
    assert "of best" not in text
    assert "?: not known" in text
    assert "of best" in kernels_drawn(native_run(), Ceilings(12.0, 140.0))[0]
    assert "?: not known" not in kernels_drawn(make_run())[0]


def test_the_sum_of_bytes_is_unknown_where_each_is_and_else_at_least_what_is_known() -> None:
    assert "0 B" not in kernels_drawn(one_span_run())[0]
    run = make_run()
    assert "at least" not in kernels_drawn(run)[0]
    bare = Span("device/0 kernels", "bare", "kernel", 0, 9)
    mixed = Timeline.of([*run.timeline.spans, bare], (), "profiled")
    assert "<b>at least " in kernels_drawn(replace(run, timeline=mixed))[0]


def test_a_program_that_only_calls_python_has_a_table_too() -> None:
    span = Span("device/0", "call", "callback", 0, 9)
    run = replace(empty_run(), timeline=Timeline.of([span]))
    assert "<b>100%</b>" in folded_kernels(run)[0]
    assert folded_kernels(empty_run()) == ("", [])


def test_ceilings_are_said() -> None:
    text = kernels_drawn(make_run(), Ceilings(12.0, 140.0))[0]
    assert "12 GB/s, 140 GFLOP/s" in text
    assert "memory" in text


def test_what_is_not_shown_is_counted() -> None:
    text = kernels_drawn(make_run(kernels=30))[0]
    assert f"Not shown: {30 - MAX_ROWS} kernels with" in text


def test_a_strangers_names_are_text() -> None:
    text = kernels_drawn(make_run(hostile=True), Ceilings(12.0, 140.0))[0]
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\ud800" not in text


def test_runs_of_which_little_is_known_are_shown() -> None:
    assert "No kernel was seen" in kernels_drawn(empty_run())[0]
    assert "unknown" in kernels_drawn(one_span_run())[0]


def test_a_new_run_is_drawn_and_none_clears_the_view() -> None:
    view = KernelView(make_run(), Ceilings(12.0, 140.0))
    assert "Measured at best" in view.value
    view.run = one_span_run()
    assert "unknown" in view.value
    view.run = None
    assert view.value == ""
