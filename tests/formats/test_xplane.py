"""jax profiles: recorded here, written by hand as a GPU's would be, and damaged ones."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.errors import TraceFileError
from kit.formats import xplane
from kit.formats.xplane import read_xplane
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.trace import Timeline, busy_fraction
from kit.trace.imported import MAX_SPAN_NAME
from kit.trace.kernels import after_steps_fraction
from kit.widgets.timeline.view import timeline_payload


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps: two programs, a value read, a result waited for, and a compile."""
    folder = tmp_path_factory.mktemp("profile")
    loss = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((64, 64))
    one_step(loss, x)
    options = jax.profiler.ProfileOptions()
    options.enable_hlo_proto = False
    with jax.profiler.trace(str(folder), profiler_options=options):
        for i in range(3):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                one_step(loss, x)
        jax.jit(lambda x: jnp.sin(x) * 3)(x).block_until_ready()
    return folder


def one_step(loss, x) -> None:
    float(loss(x))
    loss(x + 1).block_until_ready()


@pytest.fixture(scope="module")
def run(profile: Path) -> Run:
    return kit.open_trace(profile)


def of_kind(timeline: Timeline, kind: str) -> list[str]:
    return [s.name for s in timeline.spans if s.kind == kind]


def test_steps_are_what_was_annotated(run: Run):
    assert of_kind(run.timeline, "step") == ["step 0", "step 1", "step 2"]
    assert run.timeline.origin == "imported"
    assert len(run.step_times_ns) == 3


def test_each_step_has_the_kernels_of_its_programs(run: Run):
    t = run.timeline
    steps = t.intervals(kind="step").tolist()
    kernels = [s for s in t.spans if s.kind == "kernel"]
    counts = [sum(a <= k.start_ns < b for k in kernels) for a, b in steps]
    assert counts[0] >= 3
    assert counts[1] == counts[2] == counts[0]
    assert not any(k.name.startswith(("end: ", "ThreadpoolListener")) for k in kernels)
    assert 0 < busy_fraction(t, lane="device") <= 1


def test_reads_are_sync_points_with_their_function(run: Run):
    in_steps = [s for s in run.timeline.syncs if s.cause == "item"]
    assert len(in_steps) == 3
    assert {s.site.rpartition(":")[0] for s in in_steps} == {Path(__file__).name}
    assert all(s.wait_ns > 0 for s in in_steps)


def test_a_wait_for_a_result_is_one_sync_point(run: Run):
    waits = [s for s in run.timeline.syncs if s.cause == "block_until_ready"]
    assert len(waits) <= 4  # none where the result was ready


def test_the_whole_of_a_wait_is_seen(tmp_path: Path):
    slow = jax.jit(lambda x: x @ x @ x @ x @ x)
    x = jnp.ones((1000, 1000))
    slow(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with (
        jax.profiler.trace(str(tmp_path), profiler_options=options),
        jax.profiler.StepTraceAnnotation("train", step_num=0),
    ):
        slow(x).block_until_ready()
    t = kit.open_trace(tmp_path).timeline
    (wait,) = t.syncs
    busy = t.intervals(kind="kernel")
    assert wait.cause == "a read, or block_until_ready"  # np.asarray looks alike
    assert any("whether a value was read there or only waited for" in note for note in t.notes)
    assert any("python_tracer_level=1" in note for note in t.notes)
    assert wait.at_ns + wait.wait_ns >= busy[:, 1].max()
    assert wait.wait_ns > 1_000_000  # what jax notes of its two ends takes 1,000 ns


def test_numpys_copy_of_an_array_is_a_read_and_no_block_until_ready(tmp_path: Path):
    """jax notes a wait for a buffer in it, as in the other."""
    slow = jax.jit(lambda x: x @ x @ x @ x @ x)
    x = jnp.ones((1000, 1000))
    slow(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.enable_hlo_proto = False
    with (
        jax.profiler.trace(str(tmp_path), profiler_options=options),
        jax.profiler.StepTraceAnnotation("train", step_num=0),
    ):
        np.asarray(slow(x))
    t = kit.open_trace(tmp_path).timeline
    (wait,) = t.syncs
    assert wait.cause == "copy to host"
    assert not any("only waited for" in note for note in t.notes)
    assert any("those that begin while the profiler runs" in note for note in t.notes)


def test_a_compile_and_its_lowering_are_seen(run: Run):
    assert len(of_kind(run.timeline, "compile")) == 1
    assert len(of_kind(run.timeline, "lower")) >= 1


def test_each_call_is_one_dispatch(run: Run):
    calls = [n for n in of_kind(run.timeline, "dispatch") if "<lambda>" in n]
    assert len(calls) == 3 * 2 + 1


def test_a_file_is_read_as_its_directory(profile: Path, run: Run):
    file = next(profile.rglob("*.xplane.pb"))
    assert kit.open_trace(file).timeline == run.timeline
    assert read_xplane(file).timeline.spans == run.timeline.spans


def test_what_was_read_draws_saves_and_exports(run: Run, tmp_path: Path):
    timeline_payload(run)
    run.save(tmp_path / "r.kitrun")
    assert Run.load(tmp_path / "r.kitrun").timeline == run.timeline
    again = kit.open_trace(kit.export_trace(run, tmp_path / "r.json")).timeline
    assert set(again.spans) == set(run.timeline.spans)


def test_the_newest_session_of_a_directory_is_shown(profile: Path, tmp_path: Path):
    file = next(profile.rglob("*.xplane.pb"))
    for session in ("2020_01_01_00_00_00", "2030_01_01_00_00_00"):
        (tmp_path / "plugins" / session).mkdir(parents=True)
    (tmp_path / "plugins/2020_01_01_00_00_00/a.xplane.pb").write_bytes(b"\xff")
    for host in ("a", "b"):
        shutil.copy(file, tmp_path / f"plugins/2030_01_01_00_00_00/{host}.xplane.pb")
    t = read_xplane(tmp_path).timeline
    assert any("newest session" in note for note in t.notes)
    assert any("one host of 2" in note for note in t.notes)


def test_a_directory_without_a_profile_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(TraceFileError, match=r"jax\.profiler\.trace"):
        kit.open_trace(tmp_path)


def test_the_chrome_trace_beside_a_profile_has_its_steps_and_waits(profile: Path):
    beside, whole = kit.open_trace(next(profile.rglob("*.trace.json.gz"))), kit.open_trace(profile)
    assert len(beside.timeline.syncs) == len(whole.timeline.syncs)
    steps = [run.timeline.intervals(kind="step").tolist() for run in (beside, whole)]
    assert np.abs(np.array(steps[0]) - np.array(steps[1])).max() <= 2
    assert any("trace viewer" in note for note in beside.timeline.notes)


def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        kit.open_trace(tmp_path / "a.xplane.pb")


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "is empty"), (b"\xff\xff", "no XSpace"), (b"{}", "no XSpace"), (b"\n\x00", "no step")],
    ids=["empty", "bytes", "json", "no planes"],
)
def test_a_file_that_is_no_profile_says_so(tmp_path: Path, data: bytes, message: str):
    (tmp_path / "a.xplane.pb").write_bytes(data)
    with pytest.raises(TraceFileError, match=message):
        kit.open_trace(tmp_path / "a.xplane.pb")


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones as 64 bits."""
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def space(
    events: list[tuple[int, int, str]],
    *,
    plane: str = "/device:GPU:0",
    line: str = "Stream #7(Compute)",
    steps: bool = True,
    zero: int = 1000,
) -> bytes:
    """An XSpace: kernels (start, length in ns, name) of a device, and a step around them.

    https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
    """

    def event(metadata: int, start: int, length: int, stats: bytes = b"") -> bytes:
        times = field(2, start * 1000) + field(3, length * 1000)
        return field(4, field(1, metadata) + times + stats)

    names = list(dict.fromkeys(name for _, _, name in events))
    metadata = _names(4, *names)
    body = b"".join(event(names.index(n) + 1, a, b) for a, b, n in events)
    device = field(1, field(2, plane) + field(3, field(2, line) + field(3, zero) + body) + metadata)
    step = event(1, 0, 900, field(4, field(1, 1) + field(4, 3)))
    host = field(1, field(2, "/host:CPU") + field(3, field(2, "python") + field(3, 1000) + step)
                 + _names(4, "train") + _names(5, "step_num"))  # fmt: skip
    return device + (host if steps else b"")


def _names(number: int, *names: str) -> bytes:
    """A table of names, from 1 on."""
    return b"".join(
        field(number, field(1, i) + field(2, field(1, i) + field(2, name)))
        for i, name in enumerate(names, 1)
    )


def opened(folder: Path, data: bytes) -> Timeline:
    (folder / "gpu.xplane.pb").write_bytes(data)
    return kit.open_trace(folder / "gpu.xplane.pb").timeline


def test_streams_of_a_gpu_are_lanes(tmp_path: Path):
    t = opened(tmp_path, space([(10, 50, "dot.1"), (70, 20, "fusion.2")]))
    assert [(s.lane, s.name, s.kind, s.start_ns, s.stop_ns) for s in t.spans] == [
        ("host/main", "step 3", "step", 0, 900),
        ("device/0 stream 7(Compute)", "dot.1", "kernel", 10, 60),
        ("device/0 stream 7(Compute)", "fusion.2", "kernel", 70, 90),
    ]


def test_each_thread_has_a_lane_whatever_it_is_called(tmp_path: Path):
    """A second "worker" was drawn with "worker 2", and "main" with the thread of the steps."""
    call = field(4, field(1, 1) + field(2, 0) + field(3, 1000))
    threads = ("worker 2", "worker", "worker", "main", "main")
    lines = b"".join(field(3, field(2, name) + field(3, 1000) + call) for name in threads)
    host = field(1, field(2, "/host:CPU") + lines + _names(4, "PjitFunction(f)"))
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    calls = [t.lanes[i] for i in t.lane[t.where(kind="dispatch")].tolist()]
    assert len(set(calls)) == len(calls) == len(threads)


def test_the_steps_are_those_of_one_thread(tmp_path: Path):
    """Of two that train at the same time each step counted: the mean step was half as long."""
    stat = field(4, field(1, 1) + field(4, 3))
    step = [
        field(4, field(1, 1) + field(2, at * 1000) + field(3, 100_000) + stat) for at in (0, 100)
    ]
    lines = (("one", step), ("two", step[:1]))
    host = field(1, field(2, "/host:CPU") + b"".join(
        field(3, field(2, name) + field(3, 1000) + b"".join(steps)) for name, steps in lines)
        + _names(4, "train") + _names(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    assert [(s.start_ns, s.stop_ns) for s in t.spans if s.kind == "step"] == [(0, 100), (100, 200)]
    assert any("1 step marked in others left out" in note for note in t.notes)


def test_waits_and_copies_beside_the_steps_are_not_theirs(tmp_path: Path):
    """A thread that puts batches, and a wait behind the loop, made the steps wait and copy."""
    names = ("train", "PjitFunction(f)", "np.asarray(jax.Array)", "DevicePut")
    stat = field(4, field(1, 1) + field(4, 3))

    def line(name: str, *events: tuple[int, int, int]) -> bytes:
        found = b"".join(
            field(4, field(1, kind) + field(2, at * 1000) + field(3, length * 1000)
                  + (stat if kind == 1 else b""))
            for kind, at, length in events
        )  # fmt: skip
        return field(3, field(2, name) + field(3, 1000) + found)

    main = line("main", (1, 0, 100), (2, 5, 5), (3, 20, 10), (3, 150, 300))
    other = line("loads", (4, 10, 80), (3, 10, 80))
    host = field(1, field(2, "/host:CPU") + main + other + _names(4, *names)
                 + _names(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot"), (60, 390, "dot")], steps=False) + host)
    assert [s.wait_ns for s in t.syncs] == [10]
    assert [(s.kind, s.start_ns) for s in t.spans if s.kind in ("wait", "input")] == [("wait", 20)]
    for said in ("1 wait outside of the steps", "1 wait of threads beside the steps'",
                 "1 device_put of threads beside the steps'"):  # fmt: skip
        assert f"{said} left out" in t.notes
    run = kit.open_trace(tmp_path / "gpu.xplane.pb")
    assert after_steps_fraction(run.timeline) == pytest.approx(350 / 440)
    assert "80% of the kernels' time" in run.limited_by().doubt


def test_of_a_profile_of_jax_without_steps_nothing_is_said_of_torch(tmp_path: Path):
    call = field(4, field(1, 1) + field(2, 0) + field(3, 1000))
    line = field(3, field(2, "main") + field(3, 1000) + call)
    host = field(1, field(2, "/host:CPU") + line + _names(4, "PjitFunction(f)"))
    opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    said = summary(kit.open_trace(tmp_path / "gpu.xplane.pb"))
    assert "Sync points are unknown: the file marks no steps" in said
    assert "torch" not in said


def test_a_profile_without_steps_or_kernels_says_so(tmp_path: Path):
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False))
    assert any("StepTraceAnnotation" in note for note in t.notes)
    t = opened(tmp_path, space([], plane="/device:TPU:0"))
    assert any("no device kernels" in note for note in t.notes)


def test_a_negative_duration_is_0(tmp_path: Path):
    t = opened(tmp_path, space([(100, -50, "dot")]))
    assert (t.stop_ns - t.start_ns).min() == 0


def test_an_event_of_another_clock_is_left_out_and_said(tmp_path: Path):
    t = opened(tmp_path, space([(10, 50, "a"), (20, 50, "b"), (1 << 52, 5, "late")]))
    assert "late" not in t.names
    assert any("more than a day away" in note for note in t.notes)


def test_hostile_names_stay_text_and_are_cut(tmp_path: Path):
    t = opened(tmp_path, space([(10, 5, "<script>\x00\u202e" + "W" * 1_000_000)]))
    assert any(n.startswith("<script>\x00\u202eWW") and len(n) == MAX_SPAN_NAME for n in t.names)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00" * 150_000,
        field(1, field(2, "/host:CPU") + b"\x1a\x00" * 150_000),
        field(1, b"\x22\x00" * 3_000),
        field(1, field(3, b"\x22\x00" * 3_000)),
        field(1, field(3, field(4, b"\x22\x00" * 3_000))),
        field(1, field(4, field(2, b"\x2a\x00" * 3_000))),
    ],
    ids=["planes", "lines", "names", "events", "facts of an event", "facts of a kind"],
)
def test_empty_messages_are_refused_before_memory_is_taken_for_them(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
):
    """Each takes two bytes in the file, and hundreds in the parser and in Python."""
    monkeypatch.setattr(xplane, "MAX_EVENTS", 2_000)
    monkeypatch.setattr(jax.profiler, "ProfileData", None)  # the parser is not asked
    with pytest.raises(TraceFileError, match=r"holds more than \d+,000 (planes|events)"):
        opened(tmp_path, space([(10, 5, "dot")]) + data)


@pytest.mark.parametrize(
    "data",
    [b"\x0a\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 1000, b"\x0b\x0c", b"\x0a\x05ab"],
    ids=["length", "number without an end", "group", "cut off"],
)
def test_what_is_no_message_is_refused_without_taking_its_word(tmp_path: Path, data: bytes):
    with pytest.raises(TraceFileError, match="no XSpace, or was cut off"):
        opened(tmp_path, space([(10, 5, "dot")]) + data)


def test_a_name_that_is_no_text_is_an_error(tmp_path: Path):
    data = space([(10, 5, "dot")]).replace(b"dot", b"\xff\xfe\xfd")
    with pytest.raises(TraceFileError):
        opened(tmp_path, data)


@given(
    events=st.lists(
        st.tuples(
            st.integers(-(2**62), 2**62) | st.integers(0, 1000),
            st.integers(-(2**62), 2**62) | st.integers(0, 100),
            st.text(max_size=5),
        ),
        max_size=6,
    ),
    plane=st.sampled_from(["/device:GPU:0", "/device:GPU:x", "/device:", "/host:CPU", "odd"]),
    line=st.sampled_from(["Stream #7", "Stream", "Steps", "python", ""]),
    zero=st.integers(-(2**63), 2**63 - 1) | st.just(1000),
)
def test_any_numbers_open_or_are_an_error(
    tmp_path_factory, events, plane: str, line: str, zero: int
):
    folder = tmp_path_factory.mktemp("any")
    try:
        t = opened(folder, space(events, plane=plane, line=line, zero=zero))
    except TraceFileError:
        return
    assert (t.stop_ns >= t.start_ns).all()
    timeline_payload(kit.open_trace(folder / "gpu.xplane.pb"))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_profile_opens_or_says_why_not(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    good = space([(10 * i, 5, f"k{i}") for i in range(20)])
    for _ in range(20):
        data = bytearray(good[: rng.randrange(1, len(good))] if rng.random() < 0.2 else good)
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(opened(tmp_path, bytes(data))) > 0
        except TraceFileError:
            continue
