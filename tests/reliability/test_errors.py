"""An error between any two lines of the recorder leaves a session that works, or says its end."""

from __future__ import annotations

import contextlib
import inspect
import random
import signal
import threading
from typing import Any

import pytest
import torch

import kit
from kit.errors import EngineError
from kit.measure.base.loading import prefetched
from kit.runtime.engine.engine import Engine
from kit.runtime.session.session import Session
from kit.torch.parallel.data_parallel import DataParallel
from kit.widgets.explorer.rerun import Newest, Reruns
from tests.factories import make_run
from tests.reliability.errors import ACTS, out_of_memory, run_with, try_lines
from tests.waiting import leaves_no_thread


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("mode", ["bulked", "replay"])
def test_what_comes_at_a_line_of_a_step_leaves_the_next_step_right(mode: str, act: str) -> None:
    said = try_lines(mode, ACTS[act], random.Random(mode + act), share=0.04)
    assert f"{mode}: 0 of" not in said


@pytest.mark.parametrize("act", ACTS)
def test_what_comes_while_a_bulk_is_let_go_leaves_no_value_pending(act: str) -> None:
    """Lazily: a value that was taken for pending cut the next bulk in the middle of an op."""
    said = try_lines("lazy", ACTS[act], random.Random(0), share=1.0, within="_end")
    assert "lazy: 0 of" not in said


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("mode", "within"),
    [
        ("replicas", "_finish"),  # the replicas were left running, and the next step was refused
        ("jax", "_append"),  # the op list was left with half an op
        ("native", "start"),  # torch's profiler was left on
        ("watched", "__enter__"),  # a hook was left in torch's optimizers
    ],
)
def test_what_comes_at_the_edge_of_a_step_leaves_nothing_on(
    mode: str, within: str, act: str
) -> None:
    said = try_lines(mode, ACTS[act], random.Random(0), share=1.0, within=within)
    assert f"{mode}: 0 of" not in said


def test_a_worker_thread_that_cannot_start_is_an_error_and_not_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("kit worker"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with kit.Session():
        x = torch.ones(3, device="kit") + 1
        with pytest.raises(EngineError, match="no thread for 'kit worker' could be started"):
            x.tolist()
        monkeypatch.undo()
        assert x.tolist() == [2.0] * 3  # and once there are threads again, nothing was lost


@pytest.mark.parametrize("name", ["kit replica 1", "kit prefetch", "kit rerun", "newest"])
def test_without_more_threads_each_part_says_so_and_works_once_there_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    newest = Newest(lambda item: done.set(), "newest")
    reruns = Reruns(lambda settings, **_: make_run(settings, steps=1))
    uses = {
        "kit replica 1": lambda: DataParallel(torch.nn.Linear(2, 2), ["cpu:0"] * 2).open().close(),
        "kit prefetch": lambda: next(prefetched(iter([1]), 1)),
        "kit rerun": lambda: reruns.request(kit.Settings()),
        "newest": lambda: (newest.put(1), done.wait()),
    }
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with (
        leaves_no_thread(),
        pytest.raises(EngineError, match=f"no thread for '{name}' could be started"),
    ):
        uses[name]()
    monkeypatch.undo()
    uses[name]()
    reruns.close()
    newest.close()


def test_a_push_that_fails_leaves_the_engine_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1)
    gate = threading.Event()
    variable, other = engine.variable("x"), engine.variable("y")
    engine.push(gate.wait, (), (variable,))
    real = engine._enter

    def enter(*args: Any, **options: Any) -> None:
        real(*args, **options)
        raise MemoryError

    monkeypatch.setattr(engine, "_enter", enter)
    ran: list[str] = []
    with pytest.raises(MemoryError):
        engine.push(lambda: ran.append("lost"), (variable,), (other,))
    monkeypatch.undo()
    engine.push(lambda: ran.append("kept"), (variable,), (other,))
    gate.set()
    engine.wait_all()
    engine.close()
    assert ran == ["kept"]


def test_without_memory_inside_of_its_closing_a_session_is_closed_all_the_same() -> None:
    code, handler = Session.__exit__.__code__, signal.getsignal(signal.SIGINT)
    lines = sorted({line for *_, line in code.co_lines() if line is not None})
    inside = lines[lines.index(_line_of_closing()) + 1 : -1]  # the last line is after it
    for line in inside:
        session = kit.Session().__enter__()
        with contextlib.suppress(MemoryError):  # as errors are that no read has asked for
            run_with(session.__exit__, (code, line), out_of_memory)
        assert not session.is_open
        assert signal.getsignal(signal.SIGINT) is handler
    assert len(inside) == 3


def _line_of_closing() -> int:
    """The line of `with self._exits`, from which on the session is closed whatever comes."""
    lines, first = inspect.getsourcelines(Session.__exit__)
    return first + next(i for i, line in enumerate(lines) if "with self._exits" in line)
