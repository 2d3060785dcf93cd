"""The memory view: columns, figures, selection, variants, and what a report shows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from bokeh.embed import file_html
from bokeh.resources import INLINE
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.ir import Aval, Graph, Node
from kit.runs.analysis.memory import memory
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.base.selection import NOTHING, Links
from kit.widgets.memory.data import HOLDS, MAX_BARS, NO_GRAPH, mark_columns, memory_payload
from kit.widgets.memory.tables import by_op_drawn, memory_drawn, variant_labels, variants_html
from kit.widgets.memory.view import MemoryView, memory_model
from tests.factories import empty_run, make_run

NATIVE = Settings(mode="torch")


def long_run(ops: int) -> Run:
    """A chain in which nothing is dropped: the last op reads all."""
    aval = Aval((1000,), "float32")
    nodes = [Node("input", (), (), (aval,))]
    nodes += [Node("aten.exp.default", ((i, 0),), (), (aval,), f"t.py:{i}") for i in range(ops)]
    nodes.append(Node("aten.cat.default", tuple((i, 0) for i in range(ops)), (), (aval,)))
    return replace(empty_run(), graphs=(Graph(tuple(nodes)).check(),), name="long")


def test_the_area_is_the_report_in_units_that_read_well() -> None:
    run = make_run()
    report, payload = memory(run), memory_payload(run)
    area = payload["area"]
    assert [n for nodes in area["nodes"] for n in nodes] == list(report.nodes)
    scale = {"bytes": 1, "kB": 1e3, "MB": 1e6}[payload["unit"]]
    assert max(area["live"]) * scale == pytest.approx(report.peak)
    assert max(area["live"]) < payload["end"]
    for variables, kept, live in zip(area["variables"], area["kept"], area["live"], strict=True):
        assert 0 <= variables <= kept <= live
    own = [(a - b) * scale for a, b in zip(area["live"], area["kept"], strict=True)]
    assert own == pytest.approx(report.temporary)
    assert "modelled" in payload["title"]


def test_the_holders_of_the_peak_are_in_groups_of_one_op_and_line() -> None:
    run = make_run()
    report, bars = memory(run), memory_payload(run)["bars"]
    assert bars["right"] == sorted(bars["right"], reverse=True)
    assert sum(bars["right"]) <= 1 + 1e-9
    assert {n for nodes in bars["nodes"] for n in nodes} <= {h.node for h in report.holders}
    assert set(bars["kind"]) <= set(HOLDS)
    variables = [
        right
        for right, kind in zip(bars["right"], bars["kind"], strict=True)
        if kind == "variables"
    ]
    assert sum(variables) * report.peak == pytest.approx(report.variables)


def test_parameters_and_the_optimizers_state_are_told_apart() -> None:
    aval = Aval((1000,), "float32")
    nodes = [Node("parameter", (), (), (aval,)) for _ in range(3)]
    nodes += [
        Node("aten.exp.default", ((0, 0),), (), (aval,), "t.py:1"),
        Node("aten.lerp.Scalar", ((1, 0), (3, 0)), (), (aval,), "t.py:2", "update"),
        Node("aten.lerp.Scalar", ((2, 0), (3, 0)), (), (aval,), "t.py:2", "update"),
        Node("aten.add.Tensor", ((0, 0), (4, 0)), (), (aval,), "t.py:2", "update"),
    ]
    graph = Graph(tuple(nodes), ((4, 0), (5, 0), (6, 0))).check()
    run = replace(empty_run(), graphs=(graph,))
    bars, html = memory_payload(run)["bars"], memory_drawn(run)[0]
    named = dict(zip(bars["op"], bars["site"], strict=True))
    assert named["2 × optimizer state"] == "only the update reads it"
    assert named["parameter"] == "the update reads it, and so does forward or backward"
    assert "12 kB are variables, there all the time (optimizer state 8 kB, parameters 4 kB)" in html
    assert "2 × optimizer state" in html
    assert "only the update reads it" in html


def test_of_very_many_ops_several_share_a_bar_and_the_fullest_is_shown() -> None:
    payload = memory_payload(long_run(5 * MAX_BARS))
    area = payload["area"]
    assert len(area["left"]) <= MAX_BARS
    assert "fullest of" in payload["note"]
    assert sum(len(nodes) for nodes in area["nodes"]) == 5 * MAX_BARS + 1
    peak = memory(long_run(5 * MAX_BARS)).peak
    assert max(area["live"]) == pytest.approx(peak / 1e6)


def test_what_a_loop_makes_inside_is_said_not_to_be_counted() -> None:
    run = long_run(3)
    nodes = (*run.graphs[0].nodes, Node("jax.scan", ((1, 0),), (), (Aval((3,), "float32"),)))
    assert (
        "what jax.scan makes inside" in memory_payload(replace(run, graphs=(Graph(nodes),)))["note"]
    )


@pytest.mark.parametrize("run", [None, empty_run(), make_run(NATIVE)])
def test_nothing_to_show_is_said(run: Run | None) -> None:
    payload = memory_payload(run)
    assert payload["message"]["text"] == ["no run" if run is None else NO_GRAPH]
    view = MemoryView(run)
    assert view.error.value == ""
    view.selection = Links(make_run()).of_nodes([1])
    assert view.sources["marks"].data["left"] == []
    click(view, "area", [])
    assert view.selection == NOTHING


def test_a_hostile_run_can_be_drawn() -> None:
    run = make_run(hostile=True)
    view = MemoryView([run, make_run()])
    assert view.error.value == ""
    for html in (
        view.table.value,
        view.by_op.html.value,
        memory_drawn(run)[0],
    ):
        assert "<script" not in html
        assert "<img" not in html
        html.encode()
    for figure in memory_model(memory_payload(run))[0]:
        assert "alert('kit')</script>" not in file_html(figure, INLINE, "memory")
    json.dumps(view.sources["area"].data["site"], ensure_ascii=False).encode()


def click(view: MemoryView, name: str, indices: list[int], drawing: int | None = None) -> None:
    """What a click in the figure `name` brings: the bars that it hit, and then that it was one."""
    view.sources[name].selected.indices = indices
    picks = view.sources[f"{name} picks"]
    drawing = view.sources[name].tags[0] if drawing is None else drawing
    serial = picks.data["serial"][0] + 1
    picks.data = {"indices": [indices], "drawing": [drawing], "serial": [serial]}


def test_a_click_on_the_run_before_selects_nothing_of_this_one() -> None:
    view = MemoryView(make_run())
    before = view.sources["area"].tags[0]
    view.run = make_run(seed=1)  # while a cell runs, the page's messages wait
    for name in ("area", "bars"):
        click(view, name, [1], before)
        assert view.selection == NOTHING
        assert view.sources[name].selected.indices == []  # and no bar is marked
    click(view, "area", [1])
    assert view.selection != NOTHING


def test_a_click_on_an_op_selects_its_node_and_on_a_holder_all_of_its_nodes() -> None:
    run = make_run()
    view, links = MemoryView(run), Links(run)
    seen: list[Any] = []
    view.observe(lambda change: seen.append(change["new"]), "selection")
    click(view, "area", [3])
    (node,) = view.sources["area"].data["nodes"][3]
    assert view.selection == links.of_nodes([node], view.sources["area"].data["op"][3])
    click(view, "bars", [0])
    assert view.selection.nodes == set(view.sources["bars"].data["nodes"][0])
    assert len(seen) == 2  # no echo
    click(view, "bars", [9_999])  # a click on the figure of another run, which comes late
    assert view.selection == NOTHING
    view.selection = picked = links.of_nodes([2, 3], "two ops")
    view.sources["area"].selected.indices = [3]  # jupyter_bokeh says what the kernel changed before
    assert view.selection == picked


def test_a_row_of_what_writes_selects_its_nodes_and_is_marked_with_them() -> None:
    run = make_run()
    view, (_, picks) = MemoryView(run), by_op_drawn(run)
    view.by_op.selection = picks[1]  # as a click on the row does
    assert view.selection == picks[1]
    assert set(view.sources["area"].selected.indices)
    view.selection = picks[0]
    assert view.by_op.selection == picks[0]


def test_a_selection_from_elsewhere_is_shown_and_not_set_again() -> None:
    run = make_run()
    view = MemoryView(run)
    picked = Links(run).of_nodes(memory(run).nodes[4:6], "two ops")
    seen: list[Any] = []
    view.observe(lambda change: seen.append(change["new"]), "selection")
    view.selection = picked
    assert seen == [picked]
    assert view.sources["area"].selected.indices == [4, 5]
    marks = view.sources["marks"].data
    assert (marks["left"][0], marks["right"][0]) == (4, 6)  # where they run, joined
    assert len(marks["left"]) > 1  # and while what they make is live
    view.selection = NOTHING
    assert view.sources["marks"].data["left"] == []
    assert view.sources["area"].selected.indices == []
    view.selection = picked
    view.run = make_run(seed=1)
    assert view.selection == NOTHING


@settings(max_examples=25)
@given(st.sets(st.integers(-2, 60)))
def test_marks_cover_exactly_the_places_of_the_nodes(nodes: set[int]) -> None:
    report = memory(make_run())
    marks = mark_columns(report, frozenset(nodes), 1.0)
    rows = list(zip(marks["left"], marks["right"], marks["top"], strict=True))
    covered = {at for left, right, top in rows if top > 0 for at in range(left, right)}
    assert covered == {at for at, i in enumerate(report.nodes) if i in nodes}
    assert all(0 <= left < right <= len(report.nodes) for left, right, _ in rows)


def test_several_runs_are_a_table_and_a_button_each() -> None:
    runs = [
        replace(make_run(Settings(bulk_forward=k, bulk_backward=k)), name=f"net: {k}")
        for k in (1, 5)
    ]
    runs.append(replace(make_run(NATIVE), name="net: native"))
    view = MemoryView(runs)
    assert view.run is runs[0]
    assert view.table.value.count("<tr") == 4
    assert len(view.choice.options) == 3
    ends = []
    for i in (0, 1):
        view.choice.value = i
        assert view.run is runs[i]
        ends.append(view.figures[0].y_range.end)
    assert ends[0] == ends[1]  # so that the runs compare
    view.choice.value = 2
    assert view.sources["message"].data["text"] == [NO_GRAPH]
    view.run = make_run(seed=3)
    assert view.runs == (view.run,)
    assert view.table.value == ""


def test_ratios_are_to_the_first_and_unknown_is_a_dash() -> None:
    first = make_run()
    twice = replace(first, step_times_ns=tuple(t * 2 for t in first.step_times_ns))
    html = variants_html([first, twice, make_run(NATIVE)])
    assert "0.5×" in html
    assert "–" in html
    names = [replace(first, name=f"rnn_gates: lstm, {g}") for g in ("slice", "chunk")]
    assert variant_labels(names) == ["slice", "chunk"]


def test_a_report_has_the_picture_the_holders_and_the_nodes_of_each_row() -> None:
    run = make_run()
    html, picks = memory_drawn(run)
    assert html.count("<polygon") == 3
    assert f"{memory(run).allocations:,} buffers" in html
    bars = memory_payload(run)["bars"]
    assert html.count('data-row="') == len(bars["nodes"]) + len(by_op_drawn(run)[1]) == len(picks)
    numbers = re.findall(r'data-row="(\d+)"', html)
    assert len(set(numbers)) == len(numbers)  # in one listing
    assert memory_drawn(make_run(NATIVE)) == ("", [])


def test_something_else_than_a_run_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"a run is needed here.*not str"):
        kit.MemoryView(["run"])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match=r"a run is needed here.*not int"):
        kit.MemoryView(3)  # type: ignore[arg-type]


MEASURED = {"memory.live_bytes": 1.5e9, "memory.peak_bytes": 3.25e9}


@pytest.mark.parametrize(
    ("device", "metrics", "said"),
    [("cpu (cpu)", {}, "measured: nothing, a CPU's allocator does not count"),
     ("cuda (NVIDIA H100)", MEASURED,
      "measured: 1.5 GB in use after the steps, peak 3.25 GB with warm-up and compiling "
      "(of the whole process, on one device)"),
     ("gpu (NVIDIA H100)", {"memory.live_bytes": 1.5e9, "memory.peak_bound": 9e9},
      "measured: 1.5 GB in use after the steps, peak not above the 9 GB of before the run "
      "(of the whole process, on one device)"),
     ("gpu (of a run that is older than the count)", {}, "")],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_what_the_allocator_counted_stands_beside_the_model(mode, device, metrics, said) -> None:
    run = replace(make_run(Settings(mode=mode)), metrics=metrics, environment={"device": device})
    note, html = memory_payload(run)["note"], memory_drawn(run)[0]
    assert said in note.replace("\n", " ")
    assert max(map(len, note.splitlines())) <= 60  # a phone shows as many, and cuts the rest
    is_shown = mode == "lazy" or bool(metrics)
    assert (said[1:] in html) is (is_shown or not said)
    assert ("measured:" in note, "easured:" in html) == (bool(said), bool(said) and is_shown)
    assert ("this run has none" in html) is (mode == "torch" and is_shown)


def test_the_legend_is_no_wider_than_a_phone():
    (area, _), _ = memory_model(memory_payload(make_run()))
    (legend,) = area.legend
    letters = [len(item.label.value) for item in legend.items]
    rows = [letters[i : i + legend.ncols] for i in range(0, len(letters), legend.ncols)]
    assert max(6.5 * sum(row) + 35 * len(row) for row in rows) < 420


@pytest.mark.parametrize("site", ["", "train.py:41", "x" * 300 + ".py:7"])
def test_what_stands_at_the_peak_is_no_wider_than_a_phone(site: str):
    run = make_run()
    nodes = tuple(
        replace(n, op="_log_softmax_backward_data" if n.inputs else n.op, site=site)
        for n in run.graphs[0].nodes
    )
    run = replace(run, graphs=(replace(run.graphs[0], nodes=nodes), *run.graphs[1:]))
    [text] = memory_payload(run)["peak"]["text"]
    assert text.startswith("peak ")
    assert len(text) <= 44
