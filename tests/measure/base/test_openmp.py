"""Threads of torch's ops that a measured thread leaves behind slow down the next one: none are."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kit.measure.base import openmp
from kit.measure.base.openmp import let_go, let_go_after_cells
from kit.measure.base.turns import Turns

WORKERS = 5
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp is torch's on Linux")


@pytest.fixture(autouse=True)
def _many_workers() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(WORKERS + 1)
    let_go()
    yield
    let_go()
    torch.set_num_threads(before)


def threads() -> int:
    """Of this process, as the system counts them."""
    return len(os.listdir("/proc/self/task"))


def are(found: int, expected: int) -> bool:
    """So many, but for one or two of another test's that come or go meanwhile."""
    return abs(found - expected) < WORKERS / 2


def compute() -> None:
    torch.ones(1 << 20).add_(1)


def test_what_torch_has_started_is_ended_and_starts_anew() -> None:
    before = threads()
    for _ in range(3):
        compute()
        assert are(threads(), before + WORKERS)
        let_go()
        assert are(threads(), before)


def in_thread(act: Callable[[], Any]) -> None:
    """Act in a thread that goes on to live, and look meanwhile."""
    is_done, may_end = threading.Event(), threading.Event()

    def live() -> None:
        act()
        is_done.set()
        may_end.wait()

    before, thread = threads(), threading.Thread(target=live)
    thread.start()
    is_done.wait()
    found = threads() - before - 1
    may_end.set()
    thread.join()
    assert are(found, 0)


def test_a_thread_that_has_measured_or_recorded_keeps_none() -> None:
    turns = Turns()

    def measure() -> None:
        with turns.measure():
            compute()
            with turns.measure():  # a run inside of a sweep
                compute()

    def record() -> None:
        with turns.record():
            compute()

    in_thread(measure)
    in_thread(record)


def test_those_of_another_thread_stay() -> None:
    compute()
    before = threads()
    in_thread(let_go)
    assert are(threads(), before)


def test_a_notebooks_cells_leave_none_once_an_explorer_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callbacks: dict[str, list[Any]] = {"post_run_cell": []}
    events = SimpleNamespace(
        callbacks=callbacks, register=lambda event, act: callbacks[event].append(act)
    )
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(events=events))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    for _ in range(2):
        let_go_after_cells()
    assert len(callbacks["post_run_cell"]) == 1
    before = threads()
    compute()
    callbacks["post_run_cell"][0](None)
    assert are(threads(), before)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    let_go_after_cells()  # no notebook


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    openmp._library.cache_clear()
    monkeypatch.setattr(openmp, "loaded", lambda *_: SimpleNamespace())
    assert openmp._library() is None
    let_go()
    openmp._library.cache_clear()
