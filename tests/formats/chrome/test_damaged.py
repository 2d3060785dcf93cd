"""Files that are no trace, or a damaged one: each opens, or says why not."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TraceFileError
from kit.formats.chrome import json as reader
from kit.formats.chrome.json import MAX_HEAD_CHARS, MAX_VALUE_CHARS, read_events
from kit.formats.chrome.read import read_chrome
from tests.formats.chrome.traces import (
    cuda_trace,
    damaged,
    kernels,
    mutated,
    op,
    opened,
    random_events,
    written,
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"PK\x03\x04", "not JSON"),
        (b"\x00\x01\x02", "not JSON"),
        (b"hello", "not JSON"),
        (b"5", "not JSON"),
        (b"{}", "no 'traceEvents'"),
        (b'{"a": 1}', "no list 'traceEvents'"),
        (b'{"traceEvents": {}}', "no list 'traceEvents'"),
        (b'{"traceEvents": 5', "cut off"),
        (b'{"traceEvents": [', "cut off"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut off"),
        (b'{"traceEvents": [{"ph": "X"}', "cut off"),
        (b'{"traceEvents": [{"ph": "X"},', "cut off"),
        (b'{"traceEvents": [{"ph": "X"}]', "cut off"),
        (b'{"traceEvents": [{"ph": X}]}', "not JSON"),
        (b'{"traceEvents": [{"ph": "X"} {}]}', "not JSON"),
        (b'{"traceEvents": [{"ph": "X"}], 5: 6}', "not JSON"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply|cut off"),
        (b'{"traceEvents": []}', "nothing was recorded"),
        (b'{"traceEvents": [{"ph": "X", "cat": "v8", "name": "gc", "ts": 1}]}', "neither"),
        (
            b'{"otherData": {"format": "overlap-kit trace", "version": 9}, "traceEvents": []}',
            "version 9",
        ),
        ("[1]".encode("utf-16"), r"no event of a trace \(1 value in the place of an event"),
        (b'[{"name": "aten::add", "count": 3}]', r"no event of a trace \(1 event without its kind"),
        (  # as torch.profiler writes it of a block in which nothing ran
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}, '
            b'{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1, "dur": 2}]}',
            "nothing was recorded",
        ),
        (b"\n\x10B\x02\x08\x01P\x01" + bytes(99), r"Of protobufs only jax's \*\.xplane\.pb"),
    ],
    ids=range(26),
)
def test_a_file_that_is_no_trace_says_what_it_is(tmp_path, content: bytes, message: str):
    with pytest.raises(TraceFileError, match=message) as raised:
        read_chrome(written(tmp_path, content))
    assert "trace.json" in str(raised.value)


@pytest.mark.parametrize(
    ("category", "name", "args"),
    [
        ("FEE", "torch.mm", {}),  # of viztracer
        ("kernel", "sched_switch", {"cpu": 3}),  # of Linux
        ("runtime", "gc", {}),
        ("memcpy", "memcpy", {}),
        ("operator", "FullyConnected", {}),  # of MXNet
        ("Kernel", "ampere_sgemm", {"stream": "7", "op_name": "MatMul"}),  # of ONNX Runtime
        ("action processing", "Compiling a.cc", {}),  # of bazel
        (None, "Source", {"detail": "a.h"}),  # of clang's -ftime-trace
    ],
)
def test_another_programs_trace_is_refused_whatever_its_categories_are_called(
    tmp_path, category: Any, name: str, args: dict[str, Any]
):
    """Linux's events were the kernels of a GPU that was busy for 43 % of a step."""
    with pytest.raises(TraceFileError, match=r"its events.* are neither torch.profiler's"):
        opened(tmp_path, *(op(name, 10 * i, 5, cat=category, args=args) for i in range(3)))


def test_a_file_that_is_not_there_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_chrome(tmp_path / "nothing.json")


def test_a_list_that_lacks_its_end_is_read_as_the_format_allows(tmp_path):
    t = read_chrome(written(tmp_path, b"[" + json.dumps(op()).encode() + b",\n")).timeline
    assert len(kernels(t)) == 1
    assert any("no end" in note for note in t.notes)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ('"a.py(0): \x01"', "a.py(0): \x01"),  # of pytorch/pytorch#136180
        (r'"C:\code\cuda\users.py(219): f"', r"C:\code\cuda\users.py(219): f"),  # #98432
        (r'"C:\users\\x \"y\"", "at": "\u00e9\t"', 'C:\\users\\x "y"'),
        ('"a \\u00e9 inf", "GB/s": inf, "least": [-inf, nan,-nan ]', "a \xe9 inf"),  # kineto#105
    ],
)
def test_what_torch_itself_has_written_that_is_no_json_is_mended(tmp_path, wrong: str, name: str):
    """Such a name, of something that nobody looks at, lost the trace of a whole job."""
    text = json.dumps({"traceEvents": [op(), op(name="@"), op(ts=20)]}).replace('"@"', wrong)
    for chunk in (1, 7, 1 << 20):
        found: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_CHUNK", chunk)
            read_events(written(tmp_path, text), found.extend)
        assert [event["name"] for event in found] == ["aten::mm", name, "aten::mm"]
        assert found[1].get("at", "\xe9\t") == "\xe9\t"
        assert found[1].get("GB/s") is None
    notes = read_chrome(written(tmp_path, text)).timeline.notes
    assert any("is no JSON" in note for note in notes) == (wrong[-2] != "\x01")


def test_what_torch_has_not_written_so_is_an_error_still(tmp_path):
    for wrong in ('"\\', '"\\x', '"\\u12', "infinite", "x"):
        with pytest.raises(TraceFileError, match=r"not JSON|cut off"):
            read_chrome(written(tmp_path, f'{{"traceEvents": [{{"name": {wrong}'))


def test_a_gzip_file_that_was_cut_off_is_an_error(tmp_path):
    path = written(tmp_path, cuda_trace(), "t.json.gz")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TraceFileError, match="gzip packing is damaged"):
        read_chrome(path)


def test_a_gzip_file_with_a_wrong_byte_is_an_error(tmp_path):
    path = written(tmp_path, cuda_trace(), "t.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(TraceFileError):
        read_chrome(path)


@pytest.mark.parametrize("begin", [b" ", b'"a', b"[["], ids=["spaces", "a text", "brackets"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path, begin: bytes):
    packer = zlib.compressobj(9, wbits=31)
    data = packer.compress(b'{"traceEvents": [' + begin)
    data += packer.compress(begin[-1:] * (160 << 20))
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(data + packer.flush())
    with pytest.raises(TraceFileError, match=r"times its size|value of more than|too deeply"):
        read_chrome(path)


def test_one_event_of_millions_of_tiny_values_is_refused_and_is_said_where(tmp_path):
    """Three characters of it take 64 bytes of memory."""
    data = b'{"traceEvents": [[' + b"[]," * (MAX_VALUE_CHARS * 2 // 3) + b"[]]]}"
    path = written(tmp_path, data)
    with pytest.raises(TraceFileError, match=r"value of more than .* at character 17$"):
        read_chrome(path)


def test_what_is_kept_beside_the_events_is_bounded_in_all(tmp_path):
    one = b"[" + b"1," * (MAX_HEAD_CHARS // 6) + b"1]"
    parts = b"".join(b'"k%d": %s, ' % (i, one) for i in range(5))
    head = read_events(written(tmp_path, b"{" + parts + b'"traceEvents": []}'), lambda events: None)
    assert list(head) == ["k0", "k1"]


@given(
    events=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=8,
    ),
    indent=st.none() | st.integers(0, 3),
    chunk=st.integers(1, 50),
)
def test_events_are_read_as_json_would_whatever_the_window(
    tmp_path_factory, events: list[Any], indent: int | None, chunk: int
):
    path = tmp_path_factory.mktemp("window") / "t.json"
    whole = {"before": [1, "]"], "traceEvents": events, "after": 12345}
    path.write_text(json.dumps(whole, indent=indent))
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_CHUNK", chunk)
        head = read_events(path, found.extend)
    assert json.dumps(found) == json.dumps(events)
    assert head == {"before": [1, "]"], "after": 12345}


def test_where_a_window_ends_no_event_is_tried_by_itself(tmp_path, monkeypatch):
    """JSON's error counts the lines of a megabyte: twice a window, a tenth of all reading."""
    tried = []

    def decoded(text: str, at: int) -> Any:
        tried.append(at)
        return json.JSONDecoder().raw_decode(text, at)

    monkeypatch.setattr(reader, "_decode", decoded)
    read: list[Any] = []
    file = written(tmp_path, [op(f"aten::op_{i}" + "x" * 60, ts=i) for i in range(25_000)])
    assert file.stat().st_size > 3 << 20
    read_events(file, read.extend)
    assert len(read) == 25_000
    assert len(tried) < 20


@given(data=st.binary(max_size=300))
def test_random_bytes_are_a_trace_file_error(tmp_path_factory, data: bytes):
    path = tmp_path_factory.mktemp("bytes") / "t.json"
    path.write_bytes(data)
    with pytest.raises(TraceFileError):
        read_chrome(path)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_opens_or_says_why_not(tmp_path, seed: int):
    rng = random.Random(seed)
    good = cuda_trace()
    for data in (
        damaged(good, rng),
        mutated(json.dumps(good).encode(), rng),
        random_events(rng, rng.choice([1, 20, 300])),
    ):
        try:
            t = read_chrome(written(tmp_path, data)).timeline
        except TraceFileError:
            continue
        assert (t.stop_ns >= t.start_ns).all()
        assert all(s.wait_ns >= 0 for s in t.syncs)
        assert isinstance(t.syncs, tuple)
