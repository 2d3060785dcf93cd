"""What a trace that was made to hurt may cost: bounded memory, one pass over a name."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kit.errors import TraceFileError
from kit.formats.chrome import collectives, events, lanes, nesting
from kit.formats.chrome import json as scanner
from kit.formats.chrome.arguments import Arguments
from kit.formats.chrome.collectives import Messages
from kit.formats.chrome.events import Events
from kit.formats.chrome.read import read_chrome
from kit.formats.chrome.roles import Role
from kit.formats.chrome.steps import Annotation, find_steps
from kit.trace.communication import BYTES_UNKNOWN
from kit.trace.host import phases
from kit.trace.imported import MAX_SPAN_NAME
from tests.formats.chrome.traces import cuda_trace, damaged, mutated, random_events


def op(**more: Any) -> dict[str, Any]:
    """An op of torch's."""
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "tid": 1} | more


def written(folder: Path, content: str) -> Path:
    """A file with this text."""
    file = folder / "trace.json"
    file.write_text(content)
    return file


def test_events_that_only_begin_are_few_whatever_their_threads(monkeypatch):
    monkeypatch.setattr(lanes, "_MAX_OPEN", 10)
    gathered = Events()
    for thread in range(1000):
        gathered.add(op(ph="B", tid=thread, args={"x": list(range(1000))}))
    gathered.close()
    assert gathered.repairs["event", "inside of 10 others: left out"] == 990
    assert gathered.repairs["event", "with a begin and no end: left out"] == 10


def test_ends_of_threads_that_nothing_began_on_are_not_kept():
    gathered = Events()
    for thread in range(1000):
        gathered.add(op(ph="E", tid=thread))
    assert not gathered._halves._open
    assert gathered.repairs["event", "with an end and no begin: left out"] == 1000


def test_a_pair_keeps_its_arguments_and_frees_its_place(monkeypatch):
    monkeypatch.setattr(lanes, "_MAX_OPEN", 1)
    gathered = Events()
    for at in (1, 5):
        begun = op(ph="B", cat="kernel", ts=at, args={"correlation": at, "stream": 7, "device": 0})
        gathered.add(begun)
        gathered.add(op(ph="E", ts=at + 2))
    gathered.close()
    assert gathered.column("link").tolist() == [1, 5]
    gathered.close()  # once more
    assert gathered.column("length_us").tolist() == [2.0, 2.0]
    assert list(gathered.lanes.numbers) == ["device/0 stream 7"]


def test_shapes_in_thousands_of_lists_are_not_known():
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    arguments = Arguments()
    assert arguments.number("aten::mm", {"Input Dims": deep, "Input type": ["float"]}) == -1
    assert arguments.number("aten::mm", {"Input Dims": [[2]], "Input type": ["float"]}) == 0


def test_the_text_in_the_place_of_a_thread_is_cut(tmp_path: Path):
    named = {"ph": "M", "name": "thread_name", "tid": "t" * 100_000, "args": {"name": "mine"}}
    file = written(tmp_path, json.dumps([op(tid="t" * 100_000), op(tid="u" * 100_000), named]))
    timeline = read_chrome(file).timeline
    assert max(map(len, timeline.lanes)) < 200


def test_correlations_of_64_bits_link_a_kernel_to_its_launch(tmp_path: Path):
    call = op(cat="cuda_runtime", name="hipLaunchKernel", args={"correlation": 1 << 40})
    kernel = op(cat="kernel", name="gemm", ts=9, args={"correlation": 1 << 40, "stream": 0})
    timeline = read_chrome(written(tmp_path, json.dumps([call, kernel]))).timeline
    kinds = timeline.where(kind=("dispatch", "kernel"))
    assert len(set(timeline.segment[kinds].tolist())) == 1
    assert timeline.segment[kinds][0] < -1


def test_many_lists_of_events_hold_no_more_than_one(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(scanner, "MAX_EVENTS", 10)
    some = json.dumps([op()] * 6)
    file = written(tmp_path, f'{{"traceEvents": {some}, "traceEvents": {some}}}')
    with pytest.raises(TraceFileError, match="more than 10 events"):
        read_chrome(file)


def test_ranges_that_outlast_all_before_them_cost_no_more_than_others():
    """Each walked past all of those: a million events would have taken hours."""
    start = np.arange(1000)
    role = np.full(1000, Role.ANNOTATION, np.int8)
    found = nesting._around(np.zeros(1000, np.int32), start, 10**6 + 2000 * start, role)
    assert (found[: nesting._DEEPEST + 1] == events.NONE).all()
    assert (found[nesting._DEEPEST + 1 :] >= 0).all()


def test_sync_points_of_our_own_files_are_bounded(monkeypatch):
    monkeypatch.setattr(events, "_MAX_OWN_SYNCS", 3)
    gathered = Events()
    for _ in range(5):
        gathered.add(op(cat="kit.sync", name="item", args={"cause": "item"}))
    assert len(gathered.own_syncs) == 3
    assert gathered.repairs["sync point", "after the first 3: left out"] == 2


def test_members_of_process_groups_are_kept_once_and_bounded(monkeypatch):
    monkeypatch.setattr(collectives, "_MAX_ALL_MEMBERS", 8)
    messages = Messages()
    for event in range(100):
        ranks = list(range(4)) if event < 98 else list(range(event, event + 4))
        said = {"Process Group Ranks": ranks, "Group size": 4, "Process Group Name": "0"}
        messages.add(event, "ncclDevKernel_AllReduce", said)
    channels = [message.channel for _, message in messages.items()]
    assert len({id(channel) for channel in channels}) == 3
    assert [c.members for c in channels[97:]] == [(0, 1, 2, 3), (98, 99, 100, 101), ()]
    assert {c.size for c in channels} == {4}


def test_more_bytes_than_a_message_can_have_are_not_known():
    messages = Messages()
    said = {"In msg nelems": 1 << 50, "Out msg nelems": 1, "dtype": "Float"}
    messages.add(0, "ncclDevKernel_AllReduce", said)
    (message,) = (message for _, message in messages.items())
    assert message.size_bytes == BYTES_UNKNOWN


@settings(max_examples=50, deadline=None)
@given(st.text("1#: _-a", max_size=8))
def test_the_number_at_the_end_of_a_name_is_no_part_of_it(name: str):
    bare = re.sub(r"[\s#:_-]*\d+$", "", name) or name
    assume(bare == name or not bare.endswith("1"))  # "a1:1" is of "a1", and that is of "a"
    found = find_steps([Annotation(name, 0, 10), Annotation(bare, 10, 20)], (0, 20))
    assert len(found.steps) == 2


def test_a_long_name_of_digits_is_read_in_one_pass():
    name = "1" * (MAX_SPAN_NAME - 1) + "a"  # the square of its length would be a minute
    assert len(find_steps([Annotation(name, i, i + 1) for i in range(9)], (0, 9)).steps) == 9


def test_what_begins_where_a_step_ends_is_of_the_next_step():
    steps = np.array([[0, 100], [100, 200]])
    engine = np.array([[50, 80], [100, 130]])
    found = list(phases(steps, engine, np.zeros(0, np.int64), np.zeros((0, 2), np.int64)))
    assert found[:3] == [("forward", 0, 50), ("backward", 50, 80), ("update", 80, 100)]
    assert found[3] == ("backward", 100, 130)


values = st.recursive(
    st.sampled_from(["},{", '"}, {', "]", "\\", "A" * 40, 1, 2.5, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    given_events=st.lists(st.dictionaries(st.sampled_from(["ph", "args"]), values), max_size=12),
    indent=st.sampled_from([None, 2]),
    piece=st.integers(2, 200),
    cut=st.integers(0, 300),
)
def test_events_decoded_together_are_those_decoded_one_by_one(
    tmp_path_factory, given_events: list[Any], indent: int | None, piece: int, cut: int
) -> None:
    text = json.dumps({"traceEvents": given_events, "more": [{}, {}]}, indent=indent)
    file = tmp_path_factory.mktemp("together") / "t.json"
    file.write_text(text[: len(text) - cut] if cut < 150 else text)
    read: list[list[Any]] = []
    for size in (0, piece):
        found: list[Any] = []
        read.append(found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanner, "_PIECE", size)
            patch.setattr(scanner, "_FEW", 1)
            try:
                found.append(scanner.read_events(file, found.extend))
            except TraceFileError as error:
                found.append(str(error))
    assert read[0] == read[1]


def test_a_trace_with_faults_reads_alike_decoded_together_and_one_by_one(
    tmp_path: Path, monkeypatch
) -> None:
    """Together orjson decodes, where it is installed: no judge of numbers of more than 64 bits."""
    rng, file = random.Random(6), tmp_path / "t.json"
    whole = json.dumps(cuda_trace()).encode()
    texts = [mutated(whole, rng) for _ in range(20)]
    texts += [random_events(rng, 60) for _ in range(20)]
    texts += [damaged(cuda_trace(), rng) for _ in range(20)]

    def read(piece: int) -> Any:
        monkeypatch.setattr(scanner, "_PIECE", piece)
        try:
            read = read_chrome(file)
        except TraceFileError as error:
            return str(error)
        return replace(read, timeline=None), read.timeline.notes, [*read.timeline.spans]

    found = []
    for text in texts:
        file.write_bytes(text.replace(str(2**70).encode(), b"7"))
        found.append(read(600))
        assert found[-1] == read(0)
    assert sum(not isinstance(one, str) for one in found) > 20


def test_events_decoded_together_are_counted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scanner, "MAX_EVENTS", 50)
    file = tmp_path / "t.json"
    file.write_text(json.dumps([{"ph": "X"}] * 50))
    scanner.read_events(file, lambda events: None)
    file.write_text(json.dumps([{"ph": "X"}] * 51))
    with pytest.raises(TraceFileError, match="more than 50 events"):
        scanner.read_events(file, lambda events: None)
