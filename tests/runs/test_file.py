"""The file that a run is saved in: round trips, and files that strangers wrote."""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import RunFileError
from kit.runs.run import Run
from kit.runs.saved import file as run_file
from kit.runs.settings import Settings
from kit.trace import COLUMNS, KINDS, Span, SyncPoint, Timeline
from kit.trace.communication import CopyTotal
from kit.trace.imported import Caller, MeasuredMemory
from kit.trace.syncs import from_first
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

Members = dict[str, bytes]


def members_of(run: Run, folder: Path) -> Members:
    run.save(folder / "whole.kitrun")
    with zipfile.ZipFile(folder / "whole.kitrun") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def load_members(members: Members, folder: Path) -> Run:
    path = folder / "made.kitrun"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return Run.load(path)


def load_changed(change: Callable[[dict[str, Any]], Any], folder: Path) -> Run:
    """Load a valid file of which `change` has edited the JSON."""
    members = members_of(make_run(), folder)
    head = json.loads(members["run.json"])
    change(head)
    return load_members(members | {"run.json": json.dumps(head).encode()}, folder)


def load_bytes(data: bytes) -> Run | None:
    """The run in these bytes, or None if they are refused as they should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.kitrun"
        path.write_bytes(data)
        try:
            return Run.load(path)
        except RunFileError:
            return None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([2**70, -1, 0, "nan", HOSTILE]),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=6,
)
with tempfile.TemporaryDirectory() as _folder:
    MEMBERS = members_of(make_run(scopes=1, kernels=3), Path(_folder))
    HEAD = MEMBERS["run.json"]
    WHOLE = (Path(_folder) / "whole.kitrun").read_bytes()


@pytest.mark.parametrize(
    "run",
    [
        make_run(),
        make_run(hostile=True),
        make_run(Settings(mode="torch", loss_scaling="static", dtype="bfloat16")),
        make_run(Settings(mode="imperative"), scopes=30, kernels=200, syncs=9),
        make_run(scopes=0, kernels=0, syncs=0),
        empty_run(),
        one_span_run(),
        replace(one_span_run(), losses=(float("inf"), -float("inf"), 1e-300)),
        replace(one_span_run(), metrics={"x": np.float32(0.5)}, step_times_ns=(np.int64(3),)),
    ],
)
def test_a_run_that_was_saved_loads_equal_and_saves_to_the_same_bytes(run, tmp_path):
    run.save(tmp_path / "a.kitrun")
    loaded = Run.load(tmp_path / "a.kitrun")
    assert loaded == run
    loaded.save(tmp_path / "b.kitrun")
    assert (tmp_path / "a.kitrun").read_bytes() == (tmp_path / "b.kitrun").read_bytes()


def _measured(**changes: Any) -> MeasuredMemory:
    return replace(MeasuredMemory("host", (0, 5), (1, 2), 2, 5, (), 0, 2), **changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"memory": (_measured(times_ns=(0,)),)}, "memory.0. has 1 times and other sizes"),
        ({"memory": (_measured(times_ns=(5, 0)),)}, "the times of memory.0. are not in order"),
        ({"memory": (_measured(peak_ns=1 << 62),)}, "a time of memory.0. is not in"),
        ({"memory": (_measured(peak_bytes=1 << 62),)}, "a size of memory.0. is not in"),
        ({"copies": (CopyTotal("host to device", 1, -1, 1),)}, "copies.0. is not in"),
        ({"callers": (Caller("aten::mm", calls=1, kernels=1 << 40),), "graphs": (), "segments": ()},
         "callers.0. is not in"),
    ],
)  # fmt: skip
def test_memory_copies_and_callers_that_no_trace_can_have_are_refused(changes, why, tmp_path):
    bare = replace(make_run(), graphs=(), segments=(), recorded_ns=(), fused=())
    replace(bare, memory=(_measured(),)).save(tmp_path / "good.kitrun")
    assert Run.load(tmp_path / "good.kitrun").memory == (_measured(),)
    with pytest.raises(RunFileError, match=why):
        replace(bare, **changes).save(tmp_path / "a.kitrun")


def test_a_loss_that_is_not_a_number_survives_saving(tmp_path):
    replace(one_span_run(), losses=(float("nan"),)).save(str(tmp_path / "a"))
    assert np.isnan(Run.load(str(tmp_path / "a")).losses[0])


def test_a_run_is_the_same_bytes_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_run().save(tmp_path / "here.kitrun")
    monkeypatch.setattr(sys, "platform", "win32")
    make_run().save(tmp_path / "there.kitrun")
    assert (tmp_path / "here.kitrun").read_bytes() == (tmp_path / "there.kitrun").read_bytes()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *(("metrics/parallel.devices", x) for x in ("nan", "inf", -2.0)),
        *(("metrics/overhead.launch_ns", x) for x in ("nan", "inf", -1.0)),
        ("metrics/compile.count", "nan"),
        ("conditions/warmup_steps", "inf"),
        ("conditions/others", "-inf"),
        ("predicted_ms", 1e300),
        *(("step_times_ns/0", x) for x in (-1, 1 << 62)),
        ("segments/0/index", 1 << 31),
        *(("graphs/0/nodes/0/avals/0/shape/0", x) for x in (1 << 62, -1)),
    ],
)
def test_a_number_that_no_run_can_have_is_refused_with_its_name(where, value, tmp_path):
    *path, last = [int(x) if x.isdigit() else x for x in where.split("/")]

    def change(head):
        for step in path:
            head = head[step]
        head[last] = value

    name = next(x for x in reversed(where.split("/")) if not x.isdigit() and x != "shape")
    with pytest.raises(RunFileError, match="nodes" if name == "avals" else name):
        load_changed(change, tmp_path)


def test_a_small_file_that_would_unpack_to_much_is_refused(tmp_path):
    zeros = MEMBERS["timeline/node.npy"][:128].replace(b"(6,)", b"(3,)") + bytes(14 << 20)
    with pytest.raises(RunFileError, match="times its size"):
        load_members(MEMBERS | {"timeline/node.npy": zeros}, tmp_path)


@given(
    st.text(max_size=30),
    st.dictionaries(st.text(max_size=9), st.floats(allow_nan=False)),
    st.lists(st.tuples(st.integers(-(2**53), 2**53 - 1), st.text(max_size=9))),
)
@settings(deadline=None)
def test_any_text_number_and_time_survives_saving(name, metrics, spans):
    kernels = [Span("device/0", text, "kernel", at, at) for at, text in spans]
    run = replace(empty_run(), name=name, metrics=metrics, timeline=Timeline.of(kernels))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "a")
        assert Run.load(Path(folder) / "a") == run


def test_saving_replaces_an_older_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "a.kitrun"
    path.write_text("old")
    make_run().save(path)
    assert Run.load(path) == make_run()
    assert os.listdir(tmp_path) == ["a.kitrun"]


def test_a_save_that_fails_leaves_the_older_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.kitrun"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        make_run().save(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a.kitrun"])


def test_a_file_that_is_not_there_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "none.kitrun")


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"hello" * 99, b"\x93NUMPY", b"PK\x05\x06" + b"\0" * 18]
)
def test_a_file_of_something_else_is_refused(data, tmp_path):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(
        RunFileError, match=r"x' is not a run that can be read: (it is not a zip|its)"
    ):
        Run.load(tmp_path / "x")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_flipped_bytes_are_refused_or_harmless(data):
    whole = bytearray(WHOLE)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] ^= data.draw(st.integers(1, 255))
    run = load_bytes(bytes(whole))
    assert run is None or run == make_run(scopes=1, kernels=3)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_a_file_with_a_piece_missing_is_refused(start, length):
    start %= len(WHOLE)
    cut = WHOLE[:start] + WHOLE[start + 1 + length :]
    assert load_bytes(cut) is None


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_json_in_place_of_any_value_is_refused_or_a_run_that_can_be_shown(data):
    head = json.loads(HEAD)
    place: Any = head
    while isinstance(place, (dict, list)) and len(place):
        holder = place
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        place = place[key]
        if data.draw(st.booleans()):
            break
    holder[key] = data.draw(JSON)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = load_members(MEMBERS | {"run.json": json.dumps(head).encode()}, Path(folder))
        except RunFileError:
            return
        assert repr(run).startswith("Run(")
        assert len(run.timeline.spans) == len(run.timeline)


@given(st.sampled_from(sorted(COLUMNS)), st.binary(min_size=8, max_size=8), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_a_column_are_refused_or_a_run_that_can_be_shown(column, value, row):
    name = f"timeline/{column}.npy"
    header, size = 128, np.dtype(COLUMNS[column]).itemsize
    at = header + size * (row % ((len(MEMBERS[name]) - header) // size))
    changed = MEMBERS[name][:at] + value[:size] + MEMBERS[name][at + size :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = load_members(MEMBERS | {name: changed}, Path(folder))
        except RunFileError:
            return
        assert repr(run).startswith("Run(")
        assert len(run.timeline.spans) == len(run.timeline)
        assert len(run.breakdown()) in (0, 9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h: h.update(version=9), "format is version 9; this kit reads versions up to 6"),
        (lambda h: h.update(version=True), "format is version True"),
        (lambda h: h.update(format="netron"), "it was not written by overlap-kit"),
        (lambda h: h.pop("losses"), "lacks fields or has unknown ones: 'losses'"),
        (lambda h: h.update(extra=1), "lacks fields or has unknown ones: 'extra'"),
        (lambda h: h.update(losses=["one"]), r"losses\[0\] must be a number, not 'one'"),
        (lambda h: h.update(step_times_ns=[1.5]), r"step_times_ns\[0\] must be a whole number"),
        (lambda h: h.update(step_times_ns=[2**63]), "must be a whole number of 64 bits"),
        (lambda h: h["settings"].update(mode="warp"), "mode must be one of 'torch'"),
        (lambda h: h["settings"].update(colour=1), "must be an object with the fields of Settings"),
        (lambda h: h["timeline"].update(origin="guessed"), "origin 'guessed' is not one of"),
        (lambda h: h["timeline"].update(kinds=["nap"]), "spans of kind 'nap' are not known"),
        (lambda h: h["timeline"].update(lanes=[]), "the lane of a span is not in"),
        (lambda h: h["timeline"].update(names=["x"]), "the name of a span is not in"),
        (lambda h: h["graphs"][0]["nodes"][2].update(inputs=[[9, 0]]), "is not an earlier value"),
        (lambda h: h["graphs"][0]["nodes"][2].update(inputs=[[0]]), "must be a list of 2"),
        (lambda h: h["segments"][0].update(nodes=[999]), "segment 0 names a node that is not"),
        (lambda h: h["segments"][0].update(reads=[[2, 1000]]), "segment 0 names output 1000 of"),
        (lambda h: h["segments"][0].update(is_cached=1), "is_cached must be true or false, not 1"),
        (
            lambda h: h.update(sync_points=[{"at_ns": 0, "wait_ns": -1, "cause": ""}]),
            "a sync point has an impossible time",
        ),
        (lambda h: h.update(name=["x"]), r"name must be a text, not \['x'\]"),
        (lambda h: h.update(metrics=[]), r"metrics must be an object, not \[\]"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_place(change, sentence, tmp_path):
    with pytest.raises(RunFileError, match=sentence):
        load_changed(change, tmp_path)


def test_a_file_from_before_a_field_was_added_loads_with_its_default(tmp_path):
    loaded = load_changed(lambda h: [h.pop("name"), h["settings"].pop("prefetch")], tmp_path)
    assert (loaded.name, loaded.settings.prefetch) == ("", 0)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("run.json", b"[" * 100_000, "run.json nests deeper than the recursion limit"),
        ("run.json", b'{"a": \xff}', "run.json is damaged: it is not JSON"),
        ("run.json", b"[]", "it was not written by overlap-kit"),
        ("timeline/lane.npy", b"", "timeline/lane.npy is not an array of int32"),
        ("timeline/lane.npy", MEMBERS["timeline/start_ns.npy"], "is not an array of int32"),
        ("timeline/lane.npy", MEMBERS["timeline/lane.npy"][:-1], "another length than its header"),
        ("timeline/lane.npy", MEMBERS["timeline/lane.npy"] + b"\0" * 4, "another length than its"),
        ("../evil", b"", "its members are not those of a run"),
        ("timeline/evil.npy", b"", "its members are not those of a run"),
    ],
)
def test_a_member_that_is_not_right_is_refused(name, data, sentence, tmp_path):
    with pytest.raises(RunFileError, match=sentence):
        load_members(MEMBERS | {name: data}, tmp_path)


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (Span("device/0", "k", "kernel", -(1 << 60), 0), "the start_ns of a span is not in"),
        (Span("device/0", "k", "kernel", 0, 1 << 60), "the stop_ns of a span is not in"),
        (Span("device/0", "k", "kernel", 0, 1, node=-2), "the node of a span is not in"),
    ],
)
def test_spans_with_impossible_numbers_are_not_written(kernel, sentence, tmp_path):
    with pytest.raises(RunFileError, match=sentence):
        replace(empty_run(), timeline=Timeline.of([kernel])).save(tmp_path / "a.kitrun")


def test_kinds_are_read_by_name_so_that_a_later_kit_may_list_them_in_another_order(tmp_path):
    other = load_changed(lambda h: h["timeline"].update(kinds=KINDS[::-1]), tmp_path).timeline
    swapped = dict(zip(KINDS, reversed(KINDS), strict=True))
    assert [s.kind for s in other.spans] == [swapped[s.kind] for s in make_run().timeline.spans]


def test_a_file_lists_no_kind_that_came_after_those_of_its_spans():
    """A kit from before a kind refused every file that listed it."""
    kinds = json.loads(HEAD)["timeline"]["kinds"]
    assert kinds == [*KINDS[: max(make_run().timeline.kind) + 1]]
    assert len(kinds) < len(KINDS)


def test_a_directory_that_hides_behind_zip64_is_refused(tmp_path):
    locator = b"PK\x06\x07" + bytes(16)
    path = tmp_path / "hidden.kitrun"
    path.write_bytes(WHOLE[:-22] + locator + WHOLE[-22:])
    with pytest.raises(RunFileError, match="it is not a zip file"):
        Run.load(path)


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    with open(tmp_path / "bomb.npy", "wb") as file:
        np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    bomb = (tmp_path / "bomb.npy").read_bytes()
    with pytest.raises(RunFileError, match=r"lane\.npy is not an array of int32"):
        load_members(MEMBERS | {"timeline/lane.npy": bomb}, tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_member_that_would_unpack_to_gigabytes_is_refused_before_it_is_unpacked(tmp_path):
    bomb = b"0" * (run_file.MAX_JSON_BYTES + 1)
    with pytest.raises(RunFileError, match=r"run\.json would unpack to 67,108,865 bytes"):
        load_members(MEMBERS | {"run.json": bomb}, tmp_path)
    assert (tmp_path / "made.kitrun").stat().st_size < 1 << 20


def test_a_member_that_lies_about_its_size_is_refused():
    true, false = struct.pack("<I", len(HEAD)), struct.pack("<I", len(HEAD) // 2)
    assert WHOLE.count(true) == 2
    assert load_bytes(WHOLE.replace(true, false)) is None


def test_a_zip_of_far_too_many_members_is_refused_unread(tmp_path):
    path = tmp_path / "many.kitrun"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(1000):
            archive.writestr(f"{i}", b"")
    with pytest.raises(RunFileError, match="it holds more members than a run has"):
        Run.load(path)


def test_a_run_that_could_not_be_read_again_is_not_written(tmp_path):
    late = SyncPoint(1 << 60, 1, "item")
    with pytest.raises(RunFileError, match="impossible time"):
        replace(make_run(), sync_points=(late,)).save(tmp_path / "a.kitrun")
    with pytest.raises(RunFileError, match="a value of type object cannot be saved"):
        replace(make_run(), environment={"device": object()}).save(tmp_path / "a.kitrun")
    assert os.listdir(tmp_path) == []


def test_a_run_with_more_text_than_a_file_may_hold_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(run_file, "MAX_JSON_BYTES", 100)
    with pytest.raises(RunFileError, match="as JSON, more than 100"):
        make_run().save(tmp_path / "a.kitrun")
    monkeypatch.setattr("kit.runs.saved.checks.MAX_SPANS", 5)
    with pytest.raises(RunFileError, match="longer than 5: trace fewer steps"):
        make_run().save(tmp_path / "a.kitrun")


def test_a_file_that_version_0_1_0_wrote_opens():
    run = Run.load(Path(__file__).parents[1] / "data" / "mlp-0.1.0.kitrun")
    assert (run.name, run.environment["torch"]) == ("mlp", "2.13.0+cpu")
    expected = "loss_scaling=dynamic,+host+check&batch_size=2&steps=2&warmup=2"
    assert run.settings.to_string() == expected
    assert (len(run.losses), len(run.segments), len(run.timeline)) == (2, 6, 457)
    assert len(run.graphs[0]) == 132
    assert run.sync_points[0].cause == "item"
    assert run.sync_points[0].site == "small_ops.py:56"
    assert "small\\_ops.py:56" in run.to_markdown()  # Markdown escapes the underscore


def test_a_machine_that_is_up_for_months_has_runs_that_can_be_saved(tmp_path: Path) -> None:
    """The clock of the waits begins at boot, and a file takes no time of 104 days."""
    boot = 150 * 86_400 * 10**9
    syncs = tuple(SyncPoint(boot + at, 5, "item") for at in (700, 1700))
    assert [sync.at_ns for sync in from_first(syncs)] == [0, 1000]
    run = replace(make_run(), sync_points=from_first(syncs))
    run.save(tmp_path / "a.kitrun")
    assert Run.load(tmp_path / "a.kitrun").sync_points == run.sync_points
    assert from_first([]) == ()
