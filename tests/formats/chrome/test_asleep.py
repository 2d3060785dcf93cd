"""A host that sleeps or computes between its ops, in traces with and without stacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import kit
from kit.runs.run import Run
from kit.runs.verdict.verdict import verdict
from kit.trace import union_ns
from tests.formats.chrome.test_callers import event, opened

MS = 1000  # microseconds
SLEEP = "<built-in function sleep>"


def sleeps() -> None:
    """Two of 10 ms, one in a wait for a lock."""
    lock = threading.Lock()
    lock.acquire()
    time.sleep(0.01)
    lock.acquire(timeout=0.01)


def computes() -> None:
    """For 5 ms and longer, in one piece."""
    for k in range(200_000):
        k * k


def traced(tmp_path: Path, between: Callable[[], None], *, with_stack: bool) -> Run:
    """Three steps that do this between two ops."""
    x = torch.ones(8, 8)
    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    how: Any = {"activities": [ProfilerActivity.CPU], "schedule": plan, "with_stack": with_stack}
    with profile(**how, acc_events=True) as profiler:
        for _ in range(5):
            x.mm(x).relu()
            between()
            x.mm(x)
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    return kit.open_trace(tmp_path / "trace.json")


def test_with_stacks_a_sleep_is_no_recording_and_has_its_functions_line(tmp_path: Path) -> None:
    run = traced(tmp_path, sleeps, with_stack=True)
    rows = {row.category: row.total_ms for row in run.breakdown()}
    assert rows["host waits elsewhere"] >= 20
    idle = {(row.cause, row.site) for row in run.idle}
    here = Path(__file__).name
    (site,) = [site for cause, site in idle if cause == "host waits elsewhere"]
    assert site.split(":")[0].endswith(here)
    assert run.limited_by().what == "elsewhere"
    said = verdict(run)
    assert said is not None
    assert "sleeps" in said.said
    assert said.advice[0].rule == "host waits elsewhere"


def test_without_stacks_the_verdict_does_not_take_a_sleep_for_python(tmp_path: Path) -> None:
    run = traced(tmp_path, sleeps, with_stack=False)
    assert run.limited_by().what == "recording"
    said = verdict(run)
    assert said is not None
    assert "waits for Python" not in said.said
    assert "or sleeps" in said.said
    assert said.next_step.startswith("if it computes: ")


def test_with_stacks_what_python_computes_has_its_functions_line(tmp_path: Path) -> None:
    """It was told that a trace shows this only if it was made with stacks, as it had been."""
    run = traced(tmp_path, computes, with_stack=True)
    assert run.limited_by().what == "own"
    said = verdict(run)
    assert said is not None
    assert said.advice[0].rule == "own code"
    assert said.advice[0].site.endswith(f"{Path(__file__).name}:{computes.__code__.co_firstlineno}")
    assert (
        "computes on the host between two ops (Python, or a wait that is no" in said.advice[0].text
    )
    without = verdict(traced(tmp_path, computes, with_stack=False))
    assert without is not None
    assert not without.advice
    assert without.said.endswith("tells only if it was made with_stack=True")


OWN = {"train.py:9"}


@pytest.mark.parametrize(
    ("category", "name", "sites"),
    [
        ("python_function", "other.py(3): f", {"other.py:3"}),
        ("python_function", "torch/a.py(3): f", set()),
        ("python_function", "<built-in function collect>", OWN),
        ("python_function", "<built-in method dot of numpy.ndarray object at 0x7f>", OWN),
        ("python_function", "<built-in function linear>", set()),
        ("python_function", SLEEP, set()),
        ("user_annotation", "mine", OWN),
        ("cpu_op", "aten::mm", set()),
        ("cpu_op", "enumerate(DataLoader)#_X.__next__", set()),
    ],
)
def test_whose_function_runs_for_long_without_a_call(
    tmp_path: Path, category: str, name: str, sites: set[str]
) -> None:
    """For 5 ms of the function's 6; in the other one ten calls come one after the other."""
    given = [
        event("user_annotation", "ProfilerStep#1", 0, 10 * MS),
        event("cpu_op", "aten::mm", 1 * MS, 1 * MS),
        event("python_function", "torch/b.py(1): main", 0, 10 * MS),
        event("python_function", "train.py(9): g", 2 * MS, 6 * MS),
        *(event("python_function", "a.py(3): f", (2 + k / 10) * MS, 100) for k in range(10)),
        event(category, name, 3 * MS, 5 * MS),
        event("cpu_op", "aten::mm", 8 * MS, 2 * MS),
    ]
    timeline = opened(tmp_path, given).timeline
    own = timeline.where(kind="own")
    assert {timeline.names[i] for i in timeline.name[own]} == sites
    assert union_ns(timeline.times(own)) == 5 * MS * 1000 * bool(sites)


@pytest.mark.parametrize(
    ("name", "thread", "length", "waits"),
    [
        (SLEEP, 1, 5 * MS, True),
        ("<built-in method acquire of _thread.lock object at 0x7f>", 1, 5 * MS, True),
        ("<built-in method read of _io.BufferedReader object at 0x7f>", 1, 5 * MS, True),
        ("<built-in function waitpid>", 1, 5 * MS, True),
        (SLEEP, 1, 0.5 * MS, False),
        (SLEEP, 2, 5 * MS, False),
        ("<built-in function linear>", 1, 5 * MS, False),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f>", 1, 5 * MS, False),
        ("train.py(3): sleep", 1, 5 * MS, False),
    ],
)
def test_which_calls_wait(
    tmp_path: Path, name: str, thread: int, length: float, waits: bool
) -> None:
    """Only C functions of Python's that do nothing else, long ones, on the thread of the steps."""
    events: list[Any] = [
        event("user_annotation", "ProfilerStep#1", 0, 10 * MS),
        event("cpu_op", "aten::mm", 1 * MS, 1 * MS),
        event("python_function", "train.py(7): main", 0, 10 * MS, thread),
        event("python_function", name, 3 * MS, length, thread),
    ]
    timeline = opened(tmp_path, events).timeline
    found = timeline.intervals(kind="elsewhere")
    assert union_ns(found) == (length * 1000 if waits else 0)
    assert {timeline.names[i] for i in timeline.name[timeline.where(kind="elsewhere")]} == (
        {"train.py:7"} if waits else set()
    )
