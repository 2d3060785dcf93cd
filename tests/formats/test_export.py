"""What kit exports: valid for Chrome's format, drawable by Perfetto, and the same when opened."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.errors import RunFileError, SettingsError, TraceFileError
from kit.runs.change import traced_text
from kit.runs.conditions import Conditions
from kit.runs.run import KNOWN_FRACTION, Fused, Run
from kit.runs.settings import Settings
from kit.text import format_ms, safe_terminal
from kit.trace import KINDS, Span, SyncPoint, Timeline, headline
from kit.trace.critical_path import critical_path
from kit.trace.hta import hta_idle, hta_queue
from kit.widgets.timeline.view import timeline_payload
from tests.factories import empty_run, make_run, one_span_run
from tests.formats.chrome.traces import cuda_trace, damaged, mutated
from tests.reliability.files.traces import look

RUNS = {
    "bulked": make_run(),
    "native": make_run(Settings(mode="torch")),
    "no syncs": make_run(syncs=0),
    "one span": one_span_run(),
    "empty": empty_run(),
}


def exported(run: Run, folder: Path, suffix: str = "json") -> Path:
    return kit.export_trace(run, folder / f"trace.{suffix}")


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def problems(events: list[dict[str, Any]]) -> list[str]:
    """What breaks the rules of the Trace Event Format, or what Perfetto would draw wrongly.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    found = []
    flows: dict[Any, list[str]] = defaultdict(list)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for e in events:
        if type(e.get("pid")) is not int or type(e.get("tid")) is not int or e["pid"] < 1:
            found.append(f"pid or tid: {e}")
        if not isinstance(e.get("name"), str) or not isinstance(e.get("args", {}), dict):
            found.append(f"name or args: {e}")
        if e["ph"] == "M":
            continue
        if type(e.get("ts")) not in (int, float) or not isinstance(e.get("cat"), str):
            found.append(f"ts or cat: {e}")
            continue
        if e["ph"] == "X":
            if type(e.get("dur")) not in (int, float) or e["dur"] < 0:
                found.append(f"dur: {e}")
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] in "sf":
            flows[e["id"]].append(e["ph"])
        else:
            found.append(f"phase: {e}")
    found += [f"flow {i}: {phases}" for i, phases in flows.items() if phases != ["s", "f"]]
    named = Counter((e["pid"], e["tid"]) for e in events if e["name"] == "thread_name")
    found += [f"track without one name: {t}" for t in tracks if named[t] != 1]
    for track, slices in tracks.items():
        open_: list[float] = []
        for start, stop in sorted(slices, key=lambda x: (x[0], -x[1])):
            while open_ and open_[-1] <= start + 1e-6:
                open_.pop()
            if open_ and stop > open_[-1] + 1e-6:
                found.append(f"slices of track {track} cross at {start}")
            open_.append(stop)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_an_export_keeps_the_rules_of_the_format(tmp_path, name: str):
    assert problems(events_of(exported(RUNS[name], tmp_path))) == []


@pytest.mark.parametrize("change", [
    {"ts": None}, {"dur": -1}, {"pid": "2"}, {"ph": "B"}, {"tid": 99}, {"dur": 30.0}, {"cat": 3},
], ids=str)  # fmt: skip
def test_the_validator_sees_a_broken_event(tmp_path, change: dict[str, Any]):
    events = events_of(exported(make_run(), tmp_path))
    at = next(i for i, e in enumerate(events) if e.get("cat") == "kit.input")
    events[at] = events[at] | change
    assert problems(events)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
@pytest.mark.parametrize("name", RUNS)
def test_an_export_opens_as_what_it_was(tmp_path, name: str, suffix: str):
    run = RUNS[name]
    again = kit.open_trace(exported(run, tmp_path, suffix))
    assert again.timeline.origin == "imported"
    assert Counter(again.timeline.spans) == Counter(run.timeline.spans)
    assert set(again.timeline.lanes) == set(run.timeline.lanes)
    assert len(again.timeline.lanes) == len(run.timeline.lanes)
    assert again.timeline.syncs == run.timeline.syncs
    assert again.step_times_ns == run.step_times_ns
    assert again.name == (run.name or f"trace.{suffix}")
    assert set(run.timeline.notes) <= set(again.timeline.notes)


def test_an_export_keeps_why_its_run_was_doubted(tmp_path):
    """It opened as "recording-bound (64% of the step)", with cures."""
    run = replace(make_run(), conditions=Conditions(cores=2.0, others=1.31, load=3.5))
    again = kit.open_trace(exported(run, tmp_path))
    assert again.conditions == run.conditions
    assert again.doubt == run.doubt != ""
    assert again.limited_by().doubt == run.doubt
    (tmp_path / "again").mkdir()
    assert kit.open_trace(exported(again, tmp_path / "again")).doubt == run.doubt


def test_an_export_keeps_that_kernels_were_lost(tmp_path):
    run = make_run()
    t = run.timeline
    node = np.where((t.kind == KINDS.index("kernel")) & (np.arange(len(t)) % 2 == 0), -1, t.node)
    run = replace(run, timeline=replace(t, node=node.astype(np.int32)))
    assert "of the kernels' time could be matched" in run.doubt
    assert kit.open_trace(exported(run, tmp_path)).doubt == run.doubt


def test_the_measured_steps_of_an_export_are_other_steps_than_the_traced_ones(tmp_path):
    """A step of 0.5 ms stood above parts that add up to 1.1 ms, and nothing was said."""
    run = replace(make_run(), step_times_ns=tuple(500_000 + i for i in range(200)))
    again = kit.open_trace(exported(run, tmp_path))
    assert again.timeline.origin == "imported"
    assert again.measures_untraced
    assert traced_text(again) == traced_text(run) != ""
    (tmp_path / "foreign.json").write_text(json.dumps(cuda_trace()))
    foreign = kit.open_trace(tmp_path / "foreign.json")
    assert not foreign.measures_untraced
    (tmp_path / "again").mkdir()
    for opened, is_untraced in ((again, True), (foreign, False)):
        twice = kit.open_trace(exported(opened, tmp_path / "again"))
        assert twice.measures_untraced == is_untraced


def test_an_exported_gpu_run_knows_how_busy_a_measured_step_is(tmp_path):
    run = make_run()
    busy = headline(run.timeline).device_busy_fraction
    shorter = round(run.traced_ms * 1e6 * (busy + 1) / 2)
    gpu = {"device": "cuda (NVIDIA H100)"}
    run = replace(run, environment=gpu, step_times_ns=(shorter,) * 20)
    again = kit.open_trace(exported(run, tmp_path))
    assert again.busy_of_measured == pytest.approx(run.busy_of_measured)
    assert run.busy_of_measured > busy


@pytest.mark.parametrize(
    "said",
    [
        {"conditions": [], "origin": 3},
        {"conditions": {"cores": "2", "others": math.nan, "load": -1, "self": 3, "steal": True}},
        {"conditions": {"cores": 1e400, KNOWN_FRACTION: -1}},
        {"conditions": {KNOWN_FRACTION: "0.1"}},
        {"step_times_ns": None, "environment": {"exported from origin": "profiled"}},
        {"origin": "measured by hand", "environment": {"exported from origin": "recorded"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_stranger_writes_of_a_run_is_not_believed(tmp_path, said: dict[str, Any]):
    path = exported(make_run(), tmp_path)
    data = json.loads(path.read_text())
    data["otherData"] |= said
    path.write_text(json.dumps(data))
    run = kit.open_trace(path)
    assert run.conditions == Conditions()
    assert run.doubt == ""
    assert run.measures_untraced == (not {"step_times_ns", "origin"} & set(said))


def test_what_each_call_has_launched_is_known_again(tmp_path):
    path = tmp_path / "torch.json"
    path.write_text(json.dumps(cuda_trace()))
    run = kit.open_trace(path)
    again = kit.open_trace(exported(run, tmp_path)).timeline
    assert Counter(again.spans) == Counter(run.timeline.spans)
    assert critical_path(again) == critical_path(run.timeline)
    queues = hta_queue(again)
    assert {lane: queue.tolist() for lane, queue in queues.items()} == {
        lane: queue.tolist() for lane, queue in hta_queue(run.timeline).items()
    }
    assert len(queues) == 2


def test_a_lane_of_several_tracks_is_one_lane_again(tmp_path):
    """Steps have a track of their own, and so have kernels that cross: numbers are of lanes."""
    spans = [
        Span("host/main", "step 0", "step", 0, 1000),
        Span("host/main", "forward", "record", 0, 600),
        Span("host/main", "item", "wait", 600, 950),
        *(Span("device/0 k", "k", "kernel", a, b) for a, b in ((0, 300), (200, 500), (700, 900))),
    ]
    waits = [SyncPoint(600, 350, "item", "train.py:7")]
    run = replace(empty_run(), timeline=Timeline.of(spans, waits))
    again = kit.open_trace(exported(run, tmp_path)).timeline
    assert again.lanes == run.timeline.lanes
    assert critical_path(again) == critical_path(run.timeline)
    assert hta_idle(again) == hta_idle(run.timeline)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any spans: several lanes of a name's group, overlapping, of no length, late."""
    offset = draw(st.sampled_from([0, 7, 10**12]))
    times = st.integers(0, 60)
    spans = draw(st.lists(st.builds(
        lambda lane, name, kind, start, length, segment, node: Span(
            lane, name, kind, offset + start, offset + start + length, segment, node),
        st.sampled_from(["host/main", "host/worker", "device/0 a", "device/0 b", "odd"]),
        st.text(max_size=5), st.sampled_from(KINDS), times, times,
        st.integers(-1, 3), st.integers(-1, 3)), max_size=25))  # fmt: skip
    texts = st.text(max_size=5)
    late = times.map(lambda t: t + offset)
    syncs = draw(st.lists(st.builds(SyncPoint, late, times, texts, texts), max_size=4))
    return Timeline.of(spans, syncs, "profiled")


@given(timeline=timelines())
def test_any_timeline_survives_export(tmp_path_factory, timeline: Timeline):
    folder = tmp_path_factory.mktemp("any")
    path = exported(replace(empty_run(), timeline=timeline), folder)
    assert problems(events_of(path)) == []
    again = kit.open_trace(path).timeline
    assert Counter(again.spans) == Counter(timeline.spans)
    assert Counter(again.syncs) == Counter(timeline.syncs)


@pytest.mark.parametrize("days", [2, -2, 40])
def test_a_run_that_begins_days_from_time_0_keeps_its_sync_points(tmp_path, days: int):
    at = days * 86_400 * 10**9
    timeline = Timeline.of(
        [Span("host/main", "step 0", "step", at, at + 9_000)],
        [SyncPoint(at + 5_000, 2_000, "item", "train.py:7")],
    )
    again = kit.open_trace(exported(replace(make_run(), timeline=timeline), tmp_path)).timeline
    assert again.syncs == timeline.syncs


def test_a_sync_point_days_from_every_span_is_left_out_and_told(tmp_path):
    far = SyncPoint(3 * 86_400 * 10**9, 2_000, "item")
    timeline = Timeline.of([Span("host/main", "step 0", "step", 0, 9_000)], [far])
    again = kit.open_trace(exported(replace(make_run(), timeline=timeline), tmp_path)).timeline
    assert again.syncs == ()
    assert any("sync point" in note and "day" in note for note in again.notes)


def test_a_kernel_says_its_node_and_line(tmp_path):
    run = make_run()
    events = [e for e in events_of(exported(run, tmp_path)) if e.get("cat") == "kit.kernel"]
    for e in events:
        node = run.graphs[0].nodes[e["args"]["node"]]
        assert e["args"]["op"] == node.op
        assert e["args"]["site"] == node.site
        assert e["args"]["scope"] == node.scope
        assert e["args"]["segment"] == node.segment


def test_a_fused_kernel_lists_what_it_computes(tmp_path):
    run = make_run()
    t = run.timeline
    kernel = next(s for s in t.spans if s.kind == "kernel")
    run = replace(run, fused=(Fused(kernel.segment, kernel.name, (2, 3)),))
    found = [e for e in events_of(exported(run, tmp_path)) if "computes" in e.get("args", {})]
    assert {e["name"] for e in found} == {kernel.name}
    assert found[0]["args"]["computes"] == [f"%{i} {run.graphs[0].nodes[i].op}" for i in (2, 3)]


def test_each_dispatch_points_at_the_first_kernel_of_its_segment(tmp_path):
    run = make_run(steps=3)
    events = events_of(exported(run, tmp_path))
    starts = {(e["tid"], e["ts"]): e for e in events if e["ph"] == "X"}
    arrows = defaultdict(dict)
    for e in events:
        if e["ph"] in "sf":
            arrows[e["id"]][e["ph"]] = starts[e["tid"], e["ts"]]
    assert len(arrows) == sum(s.kind == "dispatch" for s in run.timeline.spans)
    for arrow in arrows.values():
        dispatch, kernel = arrow["s"], arrow["f"]
        assert (dispatch["cat"], kernel["cat"]) == ("kit.dispatch", "kit.kernel")
        segment = dispatch["args"]["segment"]
        between = [
            e
            for e in events
            if e.get("cat") == "kit.kernel"
            and e["args"]["segment"] == segment
            and dispatch["ts"] <= e["ts"] < kernel["ts"]
        ]
        assert kernel["args"]["segment"] == segment
        assert between == []


def test_a_hostile_run_exports_as_data(tmp_path):
    run = make_run(hostile=True)
    for suffix in ("json", "json.gz", "csv", "md"):
        exported(run, tmp_path, suffix)
    assert problems(events_of(tmp_path / "trace.json")) == []
    timeline_payload(kit.open_trace(tmp_path / "trace.json"))
    text = (tmp_path / "trace.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert all(ord(c) >= 32 or c == "\n" for c in text)


def test_a_table_has_a_row_for_each_span(tmp_path):
    run = make_run()
    rows = list(csv.DictReader(io.StringIO(exported(run, tmp_path, "csv").read_text())))
    spans = [Span(r["lane"], r["name"], r["kind"], int(r["start_ns"]), int(r["stop_ns"]),
                  int(r["segment"]), int(r["node"])) for r in rows]  # fmt: skip
    assert spans == run.timeline.spans
    kernel = next(r for r in rows if r["kind"] == "kernel")
    assert kernel["site"] == run.graphs[0].nodes[int(kernel["node"])].site


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "\uff1d1"])
def test_no_cell_of_a_table_is_a_formula(tmp_path, name: str):
    timeline = Timeline.of([Span("device/0", name, "kernel", 0, 1)])
    path = exported(replace(empty_run(), timeline=timeline), tmp_path, "csv")
    with open(path, newline="") as file:
        assert [r["name"] for r in csv.DictReader(file)] == [f"'{safe_terminal(name)}"]


def test_a_page_has_breakdown_kernels_and_sync_points(tmp_path):
    run = make_run(kernels=60)
    text = exported(run, tmp_path, "md").read_text()
    for row in run.breakdown():
        assert f"| {row.category} | {format_ms(row.exposed_ms)} |" in text
    kernels = text.partition("## Kernels")[2].partition("## Sync points")[0]
    assert kernels.count("\n| fusion") == 20
    assert "| train.py:44 |" in text


@pytest.mark.parametrize("name", ["x.txt", "x", "json", "x.json.zip"])
def test_another_suffix_is_an_error_that_lists_them(tmp_path, name: str):
    with pytest.raises(SettingsError, match=r"\.json, \.json\.gz, \.csv, \.md"):
        kit.export_trace(make_run(), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        kit.export_trace(make_run(), tmp_path / "none" / "x.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(IsADirectoryError):
        kit.export_trace(make_run(), tmp_path / "folder.json")
    assert os.listdir(tmp_path) == ["folder.json"]


def test_equal_runs_export_equal_bytes(tmp_path):
    for suffix in ("json.gz", "csv", "md"):
        first = exported(make_run(), tmp_path, suffix).read_bytes()
        assert exported(make_run(), tmp_path, suffix).read_bytes() == first


def test_a_saved_run_is_opened_as_it_is(tmp_path):
    make_run().save(tmp_path / "a.kitrun")
    make_run().save(tmp_path / "b.zip")
    assert kit.open_trace(tmp_path / "a.kitrun").timeline == make_run().timeline
    assert kit.open_trace(tmp_path / "b.zip").segments == make_run().segments


def test_a_damaged_saved_run_is_a_run_file_error(tmp_path):
    (tmp_path / "a.kitrun").write_bytes(b"PK not a zip")
    with pytest.raises(RunFileError):
        kit.open_trace(tmp_path / "a.kitrun")


def test_an_imported_run_has_the_steps_of_its_trace(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(cuda_trace()))
    run = kit.open_trace(tmp_path / "t.json")
    assert run.step_ms == pytest.approx(0.9)
    assert run.settings.mode == "torch"
    assert run.settings.device == "gpu"
    assert run.headline().syncs_per_step == 2
    assert run.environment["imported from"] == "torch.profiler"
    assert run.name == "t.json"
    assert any("what the profiler cost" in note for note in run.timeline.notes)
    run.save(tmp_path / "again.kitrun")
    assert Run.load(tmp_path / "again.kitrun").timeline == run.timeline


def test_a_gzip_file_is_known_by_its_first_bytes(tmp_path):
    (tmp_path / "t.json").write_bytes(gzip.compress(json.dumps(cuda_trace()).encode()))
    assert len(kit.open_trace(tmp_path / "t.json").timeline.syncs) == 4


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_export_opens_and_draws_or_says_why_not(tmp_path, seed: int):
    rng = random.Random(seed)
    path = exported(make_run(hostile=seed % 2 == 0), tmp_path)
    good = path.read_bytes()
    for data in (damaged(json.loads(good), rng), mutated(good, rng)):
        path.write_bytes(data)
        assert look(path) in ("run", TraceFileError.__name__)
