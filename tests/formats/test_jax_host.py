"""The host of a jax profile: what its threads wait for, and what of them is a step."""

from __future__ import annotations

from pathlib import Path

import pytest

import kit
from kit.errors import TraceFileError
from tests.formats.test_xplane import _names as names_of
from tests.formats.test_xplane import field, opened, space


def test_a_sleep_of_the_steps_thread_is_no_wait_for_the_device(tmp_path: Path):
    """All of it was said of the read before, though the sleep is in the file."""
    names = ("train", "$mine.py:7 step", "$time sleep", "$<unknown> acquire", "$mine.py:9 sleep",
             "$train:12 get")  # fmt: skip
    stat = field(4, field(1, 1) + field(4, 3))

    def line(name: str, *events: tuple[int, int, int]) -> bytes:
        found = b"".join(
            field(4, field(1, kind) + field(2, at * 10**9) + field(3, length * 10**8)
                  + (stat if kind == 1 else b""))
            for kind, at, length in events
        )  # fmt: skip
        return field(3, field(2, name) + field(3, 1000) + found)

    main = line("main", (1, 0, 500), (2, 1, 400), (3, 2, 50), (4, 10, 9), (4, 20, 30), (5, 30, 50),
                (6, 450, 30))  # fmt: skip
    host = field(1, field(2, "/host:CPU") + main + line("other", (3, 2, 50)) + names_of(4, *names)
                 + names_of(5, "step_num"))  # fmt: skip
    t = opened(tmp_path, space([(10, 50, "dot")], steps=False) + host)
    found = [(s.lane, s.name, s.start_ns, s.stop_ns) for s in t.spans if s.kind == "elsewhere"]
    assert found == [
        ("host/main", "mine.py:7", 2_000_000, 7_000_000),
        ("host/main", "mine.py:7", 20_000_000, 23_000_000),
    ]


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
