"""The report file: one file, small, escaped, written whole, and clear about what is wrong."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.reports.grid import axes_of, baselines
from kit.reports.html import report_html, write_report
from kit.reports.markdown import breakdown_by_batch_table, breakdown_table, step_time_table
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.change import step_text, traced_text
from kit.runs.conditions import Conditions
from kit.runs.knob import OwnKnob
from kit.runs.labels import WATCHED
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import safe_markdown
from kit.trace import CATEGORIES, Timeline
from kit.widgets.compare.data import run_labels
from kit.widgets.views import VIEWS, ViewRow
from tests.factories import empty_run, make_run, native_run, one_span_run


def blocks(page: str) -> list[dict[str, Any]]:
    packed = re.findall(r'id="run-\d+">([^<]*)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(x))) for x in packed]


def index_of(page: str) -> dict[str, Any]:
    return json.loads(re.findall(r'id="index">([^<]*)</script>', page)[0])


def graph_scene(page: str) -> dict[str, Any]:
    """The scene of the first run's graph, its columns taken out of the shared pool."""
    packed = re.findall(r'id="pool">([^<]*)</script>', page)
    pool = json.loads(gzip.decompress(base64.b64decode(packed[0])))
    scene = blocks(page)[0]["views"]["graph"]
    columns = {name: {c: pool[n] for c, n in scene[name].items()} for name in ("rows", "parts")}
    return {**scene, **columns["parts"], "rows": columns["rows"]}


def test_a_page_asks_the_network_for_nothing():
    page = report_html([make_run()])
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


def test_the_run_that_is_shown_first_is_in_the_file_once():
    """Its figures were made of it, too, which took as long again."""
    page = report_html([make_run()])
    (models,) = re.findall(r'id="models">([^<]*)</script>', page)
    assert b"fusion.0" not in gzip.decompress(base64.b64decode(models))
    assert "fusion.0" in json.dumps(blocks(page))


def test_thirty_six_runs_of_five_hundred_kernels_stay_under_three_megabytes(tmp_path: Path):
    grid = itertools.product(["none", "static", "dynamic, on device"], [1, 15, 50], [2, 4, 8, 16])
    runs = [
        make_run(Settings(loss_scaling=a, bulk_backward=b, batch_size=c), kernels=170, seed=i)
        for i, (a, b, c) in enumerate(grid)
    ]
    assert len(runs) == 36
    assert write_report(runs, tmp_path / "r.html").stat().st_size < 3_000_000


def test_the_controls_are_what_varies_in_order():
    grid = itertools.product((16, 4), (UNLIMITED, 15), ("static", "none"))
    settings = [Settings(batch_size=b, bulk_forward=f, loss_scaling=s) for b, f, s in grid]
    axes = axes_of([replace(empty_run(), settings=s) for s in settings])
    assert [(a.name, a.as_dict()["values"]) for a in axes] == [
        ("bulk_forward", ["15", "unlimited"]),
        ("loss_scaling", ["static", "none"]),
        ("batch_size", ["4", "16"]),
    ]
    assert axes_of([empty_run()]) == ()


def test_how_long_a_watched_script_took_to_warm_up_is_no_control():
    settings = [Settings(mode="torch", warmup=n, steps=10) for n in (6, 9)]
    watched = [replace(empty_run(), settings=s, environment={WATCHED: "complete"}, label=label)
               for s, label in zip(settings, "ab", strict=True)]  # fmt: skip
    assert [axis.name for axis in axes_of(watched)] == ["run"]
    mixed = axes_of([watched[0], replace(empty_run(), settings=settings[1])])
    assert [axis.name for axis in mixed] == ["run"]  # one of them was told: that is no difference


def test_beside_runs_that_were_told_a_setting_a_watched_one_says_that_it_was_not():
    told = [Settings(batch_size=b, loss_scaling=s) for b, s in ((4, "none"), (8, "static"))]
    watched = replace(empty_run(), environment={WATCHED: "complete"})
    runs = [watched, *(replace(empty_run(), settings=s) for s in told)]
    axes = axes_of(runs)
    assert [(a.label, a.as_dict()["values"]) for a in axes] == [
        ("loss scaling", ["none", "static", "not told"]),
        ("batch size", ["4", "8", "not told"]),
    ]
    assert not axes[1].is_number
    assert run_labels(runs) == [
        "settings not told",
        "loss scaling none · batch size 4",
        "loss scaling static · batch size 8",
    ]  # fmt: skip
    assert run_labels([replace(watched, label="before"), *runs[1:]])[0] == "before"


def test_variants_of_a_step_with_the_same_settings_are_all_there():
    runs = [replace(make_run(seed=i), name=f"gates: lstm, {way}") for i, way in enumerate("ab")]
    page = report_html(runs)
    assert [block["views"]["headline"] for block in blocks(page)] == [
        blocks(report_html([run]))[0]["views"]["headline"] for run in runs
    ]
    assert axes_of(runs)[0].as_dict() == {
        "name": "variant",
        "label": "variant",
        "number": False,
        "values": ["gates: lstm, a", "gates: lstm, b"],
    }
    assert "<title>Where does the step go? gates: lstm</title>" in page


def test_runs_that_differ_in_nothing_else_are_all_there_by_their_labels():
    runs = [replace(make_run(seed=i), label=label) for i, label in enumerate(("before", "after"))]
    page = report_html(runs)
    assert [block["views"]["headline"] for block in blocks(page)] == [
        blocks(report_html([run]))[0]["views"]["headline"] for run in runs
    ]
    assert index_of(page)["axes"] == [
        {"name": "run", "label": "run", "number": False, "values": ["before", "after"]}
    ]
    assert [cell["at"] for cell in index_of(page)["cells"]] == [[0], [1]]
    assert index_of(page)["first"] == 1


@pytest.mark.parametrize("field", ["label", "name"])
def test_no_two_runs_have_the_same_text_however_long_their_names_are(field: str):
    same = "the name of an experiment that somebody gave in the morning, with a learning rate of 0."
    names = [f"{same}{end}" for end in "123"]
    names += [f"{same}{middle}{same}" for middle in "45"]  # which differ in what is cut out
    axis = axes_of([replace(make_run(seed=i), **{field: n}) for i, n in enumerate(names)])[0]
    values = axis.as_dict()["values"]
    assert [value[-1] for value in values[:3]] == ["1", "2", "3"]
    assert values[4] == f"{values[3]} (2)"


def test_a_run_without_a_name_is_called_so():
    runs = [replace(empty_run(), name=name) for name in ("mine", "")]
    assert axes_of(runs)[0].as_dict()["values"] == ["mine", "unnamed run"]


@pytest.mark.parametrize("taken", ["variant", "run"])
def test_a_builders_knob_has_its_name_for_itself_in_a_report(taken: str):
    def run(value: int, name: str, label: str) -> Run:
        own = OwnKnob(taken, value, (1, 2, 3), 1)
        return replace(empty_run(), settings=Settings(own=(own,)), name=name, label=label)

    told = itertools.product((1, 2), "ab", ("before", "after"))
    axes = axes_of([run(*each) for each in told])
    assert len({axis.name for axis in axes}) == 3
    assert baselines(axes) == [None, 0, None, 2, None, 4, None, 6]
    alone = axes_of([run(value, "a", "") for value in (1, 2, 3)])
    assert baselines(alone) == [None, None, None]  # nothing was measured before and after


def test_a_page_says_of_each_run_how_it_differs_from_each_other():
    before, noisy, slow = (replace(make_run(), label=x) for x in ("before", "rerun", "slow"))
    slow = replace(slow, step_times_ns=tuple(2 * t for t in slow.step_times_ns))
    found = blocks(report_html([before, noisy, slow]))
    assert found[1]["changes"][0]["said"].endswith("a step: no change beyond the spread (0% ± 4%)")
    assert found[1]["changes"][0]["said"].startswith("nothing that can be told from noise; ")
    slower = "a step takes 3.11 ms instead of 1.55 ms (100% ± 8% slower)"
    assert found[2]["changes"][0]["said"] == slower
    assert [change.get("told") for change in found[0]["changes"]] == [None, False, True]
    assert "100% worse" in found[2]["changes"][0]["cards"]["step_ms"]
    assert found[0]["changes"][2]["said"].endswith("(50% ± 2% faster)")
    assert found[0]["changes"][0] == {}
    assert "<b>before (bulked)</b> → <b>slow (bulked)</b>" in found[2]["views"]["diff"]
    assert found[0]["views"]["diff"] == ""


def test_a_page_opens_on_the_run_that_waits_most_beside_the_fastest():
    host_check, none = Settings(loss_scaling="dynamic, host check"), Settings(loss_scaling="none")
    free = make_run(none, syncs=0)
    fast = replace(free, step_times_ns=tuple(t // 2 for t in free.step_times_ns))
    runs = [make_run(host_check), fast, make_run(none.replace(bulk_backward=1), syncs=0)]
    index = index_of(report_html(runs))
    assert (index["first"], index["beside"]) == (0, 1)
    said = blocks(report_html(runs))[0]["changes"][1]["said"]
    assert re.search(r"there is a red wait of [\d.]+ [mµ]s a step, where there was none", said)
    index = index_of(report_html(runs, current=runs[2]))
    assert (index["first"], index["beside"]) == (2, 1)
    alone = index_of(report_html([fast]))
    assert (alone["first"], alone["beside"]) == (0, None)


def test_a_step_has_a_band_in_which_a_rerun_is_expected():
    (cell,) = index_of(report_html([make_run()]))["cells"]
    assert cell["low"] < cell["step"] < cell["high"]
    (bare,) = index_of(report_html([one_span_run()]))["cells"]
    assert bare["low"] is None


def test_the_page_knows_which_runs_were_disturbed():
    busy = Conditions(cores=2, others=1.3)
    runs = [make_run(Settings(batch_size=4)),
            replace(make_run(Settings(batch_size=8)), conditions=busy)]  # fmt: skip
    assert [cell["doubt"] for cell in index_of(report_html(runs))["cells"]] == [
        "",
        "measured on a busy machine: others used 1.3 of 2 cores",
    ]


def test_runs_of_a_sweep_are_not_compared_in_full_but_two_runs_are():
    sizes = [make_run(Settings(batch_size=b)) for b in (2, 4, 8)]
    assert [bool(block["views"]["diff"]) for block in blocks(report_html(sizes))] == [False] * 3
    assert [bool(block["views"]["diff"]) for block in blocks(report_html(sizes[:2]))] == [
        False,
        True,
    ]
    both = [replace(run, label=x) for x in "ab" for run in sizes]
    assert [bool(b["views"]["diff"]) for b in blocks(report_html(both))] == [False] * 3 + [True] * 3
    assert "a sample" in blocks(report_html(sizes[:2]))[1]["changes"][0]["said"]


@given(
    st.lists(
        st.tuples(st.sampled_from([4, 8]), st.sampled_from("ab"), st.sampled_from(["", "x", "y"])),
        min_size=1,
        max_size=9,
    )
)
def test_no_two_runs_share_a_place_whatever_they_are(given_runs: list[tuple[int, str, str]]):
    runs = [
        replace(empty_run(), settings=Settings(batch_size=size), name=name, label=label, file=label)
        for size, name, label in given_runs
    ]
    axes = axes_of(runs)
    places = {tuple(axis.places[i] for axis in axes) for i in range(len(runs))}
    assert len(places) == len(runs)


def test_the_graph_is_there_with_every_group_laid_out():
    run = make_run()
    scene = graph_scene(report_html([run]))
    assert sum(node >= 0 for node in scene["rows"]["node"]) == len(run.graphs[0].ops)
    groups = [shape for shape in scene["rows"]["shape"] if shape >= 0]
    assert all(scene["shapes"][shape]["boxes"] for shape in groups)


@pytest.mark.parametrize("run", [empty_run(), one_span_run(), make_run(Settings(mode="torch"))])
def test_odd_runs_make_a_page(run: Any):
    assert len(blocks(report_html([run]))) == 1


def test_a_page_without_any_graph_leaves_no_empty_card_for_it():
    native = native_run()
    hidden = '<section aria-label="IR graph" hidden>'
    assert hidden in report_html([native])
    texts = {row.key: row.text(native) for row in VIEWS}
    assert "Source lines" in texts["source"]  # it slept at one
    assert "mode torch records no ops: there is no graph" in texts["notes"]
    (source,) = (row for row in VIEWS if row.key == "source")
    assert source.text(empty_run()) == ""
    assert hidden not in report_html([native, make_run()])


def test_a_view_is_one_row_of_the_table():
    row = ViewRow("mine", "my <view>", "right", html=lambda run: f"batch {run.settings.batch_size}")
    page = report_html([make_run()], views=(*VIEWS, row))
    assert '<section id="mine" aria-label="my &lt;view&gt;"></section>' in page
    assert "mine" in index_of(page)["parts"]
    assert [block["views"]["mine"] for block in blocks(page)] == ["batch 8"]


def test_a_view_may_be_called_like_what_the_page_keeps_of_a_run():
    row = ViewRow("changes", "mine", "right", html=lambda run: "my changes")
    (block,) = blocks(report_html([make_run()], views=(*VIEWS, row)))
    assert (block["views"]["changes"], block["changes"]) == ("my changes", [{}])


def test_no_view_has_the_id_of_something_else_on_the_page():
    ids = re.findall(r' id="([^"]+)"', report_html([make_run()]))
    assert {row.key for row in VIEWS if row.html is not None} <= set(ids)
    assert sorted(ids) == sorted(set(ids))


def test_hostile_text_cannot_leave_its_place():
    page = report_html([make_run(hostile=True)], title="<script>alert(1)</script>")
    assert "<script>alert" not in page
    for block in blocks(page):
        for part in ("headline", "syncs", "breakdown", "unlowered", "notes"):
            assert "<script" not in block["views"][part].lower()
            assert not re.search(r"<img", block["views"][part], re.I)


def test_nothing_to_report_is_an_error_and_leaves_no_file(tmp_path: Path):
    with pytest.raises(SettingsError, match="no runs"):
        write_report([], tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_the_systems_own_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        write_report([make_run()], tmp_path / "no" / "r.html")


def test_a_report_that_fails_half_way_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "r.html"
    target.write_text("old")

    def full(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_report([make_run()], target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_kit_report_takes_finished_runs_but_no_sweep_of_them(tmp_path: Path):
    path = kit.report([make_run()], path=tmp_path / "r.html")
    assert path.exists()
    with pytest.raises(SettingsError, match="these runs are finished"):
        kit.report(make_run(), {"batch_size": [1]}, tmp_path / "x.html")
    with pytest.raises(SettingsError, match="these runs are finished"):
        kit.report([make_run()], settings=Settings(), path=tmp_path / "x.html")


def test_the_command_reports_saved_runs_and_says_what_is_wrong(tmp_path: Path):
    make_run().save(tmp_path / "a.kitrun")
    (tmp_path / "bad.kitrun").write_bytes(b"not a run")
    command = [sys.executable, "-m", "kit.reports", "-o", "r.html"]
    good = subprocess.run([*command, "a.kitrun"], cwd=tmp_path, capture_output=True, text=True)
    assert (good.returncode, good.stdout.strip()) == (0, "wrote r.html")
    bad = subprocess.run([*command, "bad.kitrun"], cwd=tmp_path, capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr.startswith("kit: 'bad.kitrun' is not a run")
    assert "Traceback" not in bad.stderr


def test_the_breakdown_table_adds_up_and_the_step_table_has_the_speedup():
    run = make_run()
    assert breakdown_table(run).splitlines()[-1].startswith("| **traced step** |")
    runs = [make_run(Settings(mode=m, batch_size=b)) for m in ("torch", "lazy") for b in (8, 4)]
    table = step_time_table(runs).splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["4", "8"]
    assert step_text(runs[3]) in table[2]
    assert "x ± " in table[2].rpartition("|")[0].rpartition("|")[2]  # as sure as it is
    with pytest.raises(SettingsError, match="needs one run in mode 'torch'"):
        step_time_table(runs[:3])
    watched = replace(runs[0], environment={WATCHED: "complete"}, label="mine")
    with pytest.raises(SettingsError, match="batch size of mine is not known"):
        step_time_table([watched, *runs[1:]])
    assert "| batch not told |" in breakdown_by_batch_table([watched])


def test_steps_of_microseconds_are_not_shown_as_none() -> None:
    run, times = make_run(), np.array([0.002])
    t = run.timeline
    start, stop = ((x * times).astype(np.int64) for x in (t.start_ns, t.stop_ns))
    run = replace(run, timeline=replace(t, start_ns=start, stop_ns=stop, syncs=()))
    table = breakdown_by_batch_table([run])
    assert "| device busy |" in table
    assert "(0 ms)" not in table.partition("device busy")[2].partition("\n")[0]
    for shown in (breakdown_table(run), table, run.to_markdown()):
        assert " ns" in shown
        assert "| 0.0" not in shown


def test_the_breakdowns_by_batch_size_say_which_run_is_not_to_be_believed() -> None:
    slow = make_run(Settings(batch_size=16))
    busy = replace(slow, conditions=Conditions(cores=2, others=1.5))
    for run, reasons in ((slow, [traced_text(slow)]), (busy, [busy.doubt, traced_text(busy)])):
        table, _, said = breakdown_by_batch_table([run]).partition("\n\n")
        assert table.splitlines()[0].endswith(" batch 16 |")
        assert table.splitlines()[-1].startswith("| **traced step** |")
        assert all(reasons)
        assert said == "".join(f"- batch 16: {safe_markdown(why, 1000)}\n" for why in reasons)


def test_what_only_a_later_run_did_stands_in_its_place_above_the_sum() -> None:
    run = make_run(Settings(batch_size=8))
    step = next(span for span in run.timeline.spans if span.kind == "step")
    slept = replace(step, name="a.py:1", kind="elsewhere", stop_ns=step.stop_ns // 2)
    more = Timeline.of([*run.timeline.spans, slept], run.timeline.syncs)
    table = breakdown_by_batch_table([run, replace(run, timeline=more)]).partition("\n\n")[0]
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert names[-1] == "**traced step**"
    assert "host waits elsewhere" in names
    assert names[:-1] == [name for name in CATEGORIES if name in names]


def test_a_path_in_markdown_becomes_markdown(tmp_path: Path):
    runs = [make_run(Settings(batch_size=b), seed=b, hostile=True) for b in (4, 8)]
    text = write_report(runs, tmp_path / "report.md", title="<b>ours</b>").read_text()
    assert text.startswith("# &lt;b&gt;ours")
    for heading in ("Step breakdown", "Kernels", "Sync points", "All 2 runs"):
        assert f"## {heading}\n" in text
    assert "## What limits the step\n" in text
    assert "## What would help\n" in text
    assert "<script" not in text
    assert "<img" not in text


def test_no_runs_are_no_markdown(tmp_path: Path):
    with pytest.raises(SettingsError, match="nothing to report"):
        write_report([], tmp_path / "report.md")
