"""The host of a jax profile: what its threads wait for, and what of them is a step."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
from jax._src import api, array

import kit
from kit.errors import TraceFileError
from kit.formats.host_events import HostEvent, with_waits
from kit.formats.python_lines import places
from kit.runs.verdict.summary import summary
from kit.widgets.numbers.syncs import syncs_drawn
from tests.formats.test_xplane import _names as names_of
from tests.formats.test_xplane import field, opened, space


def test_a_sleep_of_the_steps_thread_is_no_wait_for_the_device(tmp_path: Path):
    """All of it was said of the read before, though the sleep is in the file."""
    names = ("train", "$mine.py:7 step", "$time sleep", "$<unknown> acquire", "$mine.py:9 sleep",
             "$train:12 get", "$mine.py:7 load", "$mine.py:7 <lambda>")  # fmt: skip
    stat = field(4, field(1, 1) + field(4, 3))

    def line(name: str, *events: tuple[int, int, int]) -> bytes:
        found = b"".join(
            field(4, field(1, kind) + field(2, at * 10**9) + field(3, length * 10**8)
                  + (stat if kind == 1 else b""))
            for kind, at, length in events
        )  # fmt: skip
        return field(3, field(2, name) + field(3, 1000) + found)

    main = line("main", (1, 0, 500), (2, 1, 400), (3, 2, 50), (4, 10, 9), (4, 20, 30), (5, 30, 50),
                (7, 100, 50), (3, 102, 20), (8, 160, 50), (3, 162, 20), (6, 450, 30))  # fmt: skip
    host = field(1, field(2, "/host:CPU") + main + line("other", (3, 2, 50)) + names_of(4, *names)
                 + names_of(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    found = [(s.lane, s.name, s.start_ns, s.stop_ns) for s in t.spans if s.kind == "elsewhere"]
    assert found == [
        ("host/main", "mine.py:7", 2_000_000, 7_000_000),
        ("host/main", "mine.py:7", 20_000_000, 23_000_000),
        ("host/main", "mine.py:7", 102_000_000, 104_000_000),  # perhaps of another mine.py
        ("host/main", "mine.py:7", 162_000_000, 164_000_000),
    ]
    (note,) = (note for note in t.notes if "mine.py:7" in note)
    assert note.startswith("at mine.py:7 several functions begin (load, step), ")


def test_what_is_asked_for_is_a_step_and_so_is_what_repeats(tmp_path: Path):
    """It was refused: what jax writes has its own steps, it said of a file without one."""
    names = ("train", "eval", "PjitFunction(f)", "$mine.py:7 loop", "ThunkRun::Go")

    def line(*events: tuple[int, int, int]) -> bytes:
        found = (field(4, field(1, kind) + field(2, at * 1000) + field(3, length * 1000))
                 for kind, at, length in events)  # fmt: skip
        return field(3, field(2, "main") + field(3, 1000) + b"".join(found))

    def file(*events: tuple[int, int, int]) -> bytes:
        host = field(1, field(2, "/host:CPU") + line(*events) + names_of(4, *names))
        return space([(10, 50, "dot")], steps=False) + host

    def steps(by: str = "") -> list[tuple[int, int]]:
        t = kit.open_trace(tmp_path / "gpu.xplane.pb", step_by=by).timeline
        return [(s.start_ns, s.stop_ns) for s in t.spans if s.kind == "step"]

    twice = [(1, 0, 40), (3, 5, 10), (2, 50, 50), (1, 110, 40), (2, 160, 40)]
    opened(tmp_path, file(*twice, (4, 0, 200), (5, 1, 2)))
    assert steps() == []  # neither of them is a whole step
    assert steps("train") == [(0, 40), (110, 150)]
    assert steps("0..0.00005") == [(0, 50)]
    assert len(steps("loop")) == 1  # a function of Python's
    with pytest.raises(TraceFileError, match=r"there are: 'train' \(2\), 'eval' \(2\)"):
        steps("epoch")
    opened(tmp_path, file((1, 0, 100), (3, 5, 10), (1, 100, 80), (5, 1, 2), (5, 2, 3)))
    assert steps() == [(0, 100), (100, 180)]
    data = space([(10, 50, "dot")])  # which marks "train"
    opened(tmp_path, data)
    assert steps("train") == steps() == [(0, 900)]


def test_a_users_file_that_is_called_as_one_of_jaxs_is_the_users():
    """A sleep in a pipeline.py below a main.py was at an unknown line."""
    around = ("$main.py:5 main", "$pipeline.py:2 next_batch")
    assert places(around, is_same_jax=True) == ("pipeline.py:2", "", "next_batch")
    assert places(around, is_same_jax=False) == ("", "pipeline.py:2", "")  # jax has such files, too
    codes = [
        code
        for module in (api, array)
        for one in (*vars(module).values(), *vars(array.ArrayImpl).values())
        if isinstance(one, types.FunctionType) and (code := one.__code__).co_filename in
        (api.__file__, array.__file__)
    ]  # fmt: skip
    assert len(codes) > 50
    for code in codes:
        own = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        inner = (*around, f"${own} {code.co_name}", "$threading.py:1 wait")
        found = places(inner, is_same_jax=True)
        assert found == ("pipeline.py:2", "threading.py:1", "next_batch"), own


def test_a_call_that_waits_for_an_array_on_several_devices_is_a_wait():
    """Nothing is written of that wait: the host never waited for the device, it said."""
    call, ms = "$api.py:2479 block_until_ready", 1_000_000

    def event(name: str, start: int, stop: int, kind: str = "") -> HostEvent:
        return HostEvent(name, kind, start, stop, -1)

    alone, short = event(call, 0, 2 * ms), event(call, 3 * ms, 3 * ms + 9)
    around, inside = (
        event(call, 4 * ms, 9 * ms),
        event("BlockHostUntilReady", 5 * ms, 6 * ms, "wait"),
    )
    events = [around, inside, short, alone]
    found = [e.kind for e in with_waits(events, are_calls=False)]
    assert found == ["wait", "", "", "wait"]
    assert [e.kind for e in with_waits(events, are_calls=True)] == ["wait", "wait", "", "wait"]


def test_of_waits_without_steps_it_is_not_known_how_many_a_step_has(tmp_path: Path):
    """Nothing was said of them, as if there were none."""
    events = field(4, field(1, 1) + field(2, 5000) + field(3, 1000)) + field(
        4, field(1, 2) + field(2, 20_000) + field(3, 9_000)
    )
    line = field(3, field(2, "main") + field(3, 1000) + events)
    host = field(1, field(2, "/host:CPU") + line
                 + names_of(4, "PjitFunction(f)", "np.asarray(jax.Array)"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    assert [s.cause for s in t.syncs] == ["copy to host"]
    assert not any("only waited for" in note for note in t.notes)
    assert any("at which line some waits are is not known" in note for note in t.notes)
    run = kit.open_trace(tmp_path / "gpu.xplane.pb")
    unknown = "nknown: the file marks no steps, and waits are those of steps"
    assert unknown in summary(run)
    assert unknown in run.to_markdown()
    assert unknown in syncs_drawn(run)[0]


def test_where_waits_cannot_be_seen_it_is_not_said_that_there_were_none(tmp_path: Path):
    call = field(4, field(1, 1) + field(2, 5000) + field(3, 1000))
    lines = field(3, field(2, "main") + field(3, 1000) + call)
    host = field(1, field(2, "/host:CPU") + lines + names_of(4, "PjitFunction(f)"))
    opened(tmp_path, space([(10, 50, "dot")]) + host)
    said = summary(kit.open_trace(tmp_path / "gpu.xplane.pb"))
    assert "No sync points: the notes say which waits cannot be seen." in said
    assert "a call of array.block_until_ready() cannot be seen" in said


def test_the_steps_are_those_of_the_commonest_name(tmp_path: Path):
    """Steps that validate counted as those that train: the mean of both was told."""
    stat = field(4, field(1, 1) + field(4, 3))
    step = [(1, 0, 50), (2, 60, 300), (1, 400, 50), (1, 500, 50)]
    line = b"".join(field(4, field(1, kind) + field(2, at * 1000) + field(3, length * 1000) + stat)
                    for kind, at, length in step)  # fmt: skip
    host = field(1, field(2, "/host:CPU") + field(3, field(2, "main") + field(3, 1000) + line)
                 + names_of(4, "train", "eval") + names_of(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    assert t.intervals(kind="step").tolist() == [[0, 50], [400, 450], [500, 550]]
    assert "1 step called 'eval' left out; step_by='eval' shows them" in t.notes
    t = kit.open_trace(tmp_path / "gpu.xplane.pb", step_by="eval").timeline
    assert t.intervals(kind="step").tolist() == [[50, 350]]  # from the first kernel on


@pytest.mark.parametrize(
    ("names", "steps", "left"),
    [
        ("epoch 0 batch 0, epoch 0 batch 1, epoch 1 batch 0", 3, ""),
        ("step 1/3, step 2/3, step 3/3", 3, ""),
        ("1st step, 2nd step, 3rd step", 3, ""),
        ("lr 0.1, lr 0.02, lr 1e-05", 3, ""),
        ("a, b, c", 3, ""),  # no name is that of half of them
        ("train 1, train 2, eval 1 of 2, test", 2,
         "2 steps called 'eval  of', 'test' left out; step_by='eval  of' shows the first of these"),
        (", ".join(["train"] * 7 + list("abcdefg")), 7,
         "7 steps called 'a', 'b', 'c', 'd', 'e', ... left out; step_by='a' shows the first of "
         "these"),
    ],
)  # fmt: skip
def test_a_number_anywhere_in_its_name_makes_no_step_another(
    tmp_path: Path, names: str, steps: int, left: str
):
    """Of "step 3/12" and the like one step was left, and a note for each other one."""
    called = names.split(", ")
    stat = field(4, field(1, 1) + field(4, 3))
    line = b"".join(
        field(4, field(1, i + 1) + field(2, 100_000 * i) + field(3, 50_000) + stat)
        for i in range(len(called))
    )
    host = field(1, field(2, "/host:CPU") + field(3, field(2, "main") + field(3, 1000) + line)
                 + names_of(4, *called) + names_of(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    assert t.steps == steps
    assert [note for note in t.notes if "left out" in note] == [left] * bool(left)
    if left:
        other = left.partition("step_by='")[2].partition("'")[0]
        assert kit.open_trace(tmp_path / "gpu.xplane.pb", step_by=other).timeline.steps == 1


def test_the_thread_of_the_steps_is_the_one_that_launches(tmp_path: Path):
    """It was the one with the most events, as of a feeder; the other's names were not listed."""

    def line(name: str, *events: tuple[int, int, int]) -> bytes:
        found = (field(4, field(1, kind) + field(2, at * 1000) + field(3, length * 1000))
                 for kind, at, length in events)  # fmt: skip
        return field(3, field(2, name) + field(3, 1000) + b"".join(found))

    puts = [(2, at, 5) for at in range(0, 90, 10)]
    lines = line("feed", *puts, (4, 0, 9)) + line("train", (3, 0, 90), (1, 10, 5))
    host = field(1, field(2, "/host:CPU") + lines
                 + names_of(4, "PjitFunction(f)", "DevicePut", "epoch", "feed"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    calls = t.lane[t.where(kind="dispatch")].tolist()
    assert [t.lanes[lane] for lane in calls] == ["host/main"]
    with pytest.raises(TraceFileError, match=r"'epoch' \(1\), 'feed' \(1\)"):
        kit.open_trace(tmp_path / "gpu.xplane.pb", step_by="nothing")
