"""An error between any two lines of the recorder leaves a session that works, or says its end."""

from __future__ import annotations

import linecache
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from ipywidgets import Widget

import kit
from kit.errors import EngineError, ExecutionError, SessionError
from kit.measure.attached.slow import telling
from kit.measure.base.loading import prefetched
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import Variable, outcome
from kit.runtime.session.interrupts import _is_waiting
from kit.runtime.session.session import Session, current_session
from kit.threads import start_thread
from kit.torch.parallel.data_parallel import DataParallel
from kit.widgets.explorer.rerun import Newest, Reruns
from kit.widgets.explorer.view import Explorer
from tests.factories import make_run
from tests.reliability.growth import alive
from tests.reliability.stops.errors import (
    ACTS,
    Line,
    does_something,
    out_of_memory,
    run_with,
    try_lines,
)
from tests.waiting import leaves_no_thread, until


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
        ("watched", "__exit__"),  # a dispatch mode was left on, for all later ops of the thread
        ("kit run", "__enter__"),  # a session that was freed later broke an optimizer's step
        ("kit run", "__exit__"),  # device kit stood in for "cuda" and "cpu" ever after
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


def _refuse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no thread for this name."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def _tell(session: Session) -> None:
    with telling(session, print):
        pass


def _prefetch(_: Session) -> None:
    next(prefetched(iter(range(9)), 2))


@pytest.mark.parametrize("begin", [_tell, _prefetch])
def test_an_interrupt_as_its_thread_has_begun_ends_it(
    begin: Callable[[Session], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked on, or loaded, until the end of the program, and kept the session."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real(thread)
        if thread.name in ("kit what is slow", "kit prefetch"):
            raise KeyboardInterrupt

    with kit.Session() as session, leaves_no_thread():
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            begin(session)


def test_without_a_thread_for_the_end_of_the_program_a_run_fails_and_the_next_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker of an explorer ended of that, and whoever waited for its run waited for ever."""
    spent = threading.Event()
    rerun = Reruns(
        lambda settings, **_: make_run(settings, steps=1), spare=lambda cancelled: spent.set()
    )
    _refuse("kit rerun awaited", monkeypatch)
    rerun.request(kit.Settings())
    with pytest.raises(EngineError, match="no thread for 'kit rerun awaited' could be started"):
        rerun.wait(20)
    rerun.resume()  # spare work gets no thread either, before and after this
    monkeypatch.undo()
    rerun.request(kit.Settings())
    assert rerun.wait(20).name
    assert spent.wait(20)
    assert rerun.close(20)


def test_who_asks_for_a_run_that_got_no_thread_is_told_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request counted as one that runs, and `wait` waited for ever."""
    newest = Newest(lambda item: None, "newest")
    reruns = Reruns(lambda settings, **_: make_run(settings, steps=1))
    for name, ask in (("newest", newest.put), ("kit rerun", reruns.request)):
        _refuse(name, monkeypatch)
        with pytest.raises(EngineError, match="could be started"):
            ask(kit.Settings())
        monkeypatch.undo()
    assert newest.wait(5)
    with pytest.raises(SessionError, match="nothing was run yet"):
        reruns.wait(5)


def test_an_explorer_that_cannot_be_made_leaves_no_thread_and_no_widget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = partial(Explorer, lambda settings, **_: make_run(settings, steps=1))
    made(auto_run=False).close()  # what all of a process share is there
    before = alive(Widget)
    _refuse("kit rerun", monkeypatch)
    with leaves_no_thread(), pytest.raises(EngineError, match="no thread for 'kit rerun'"):
        made(kit.Settings())
    until(lambda: alive(Widget) <= before)


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
    _refuse(name, monkeypatch)
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
    engine = Engine()
    gate = threading.Event()
    variable, other = Variable(), Variable()
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


def test_without_memory_at_any_line_of_its_closing_a_session_is_closed_all_the_same() -> None:
    handler, parts = signal.getsignal(signal.SIGINT), (Session.__exit__, Session._leave)
    lines = [line for part in parts for line in _lines(part)]
    caught = 0
    for line in lines:
        session = kit.Session().__enter__()
        try:
            run_with(session.__exit__, line, out_of_memory)
        except MemoryError:
            caught += 1
        assert not session.is_open
        assert signal.getsignal(signal.SIGINT) is handler
    assert caught >= 5


def test_without_memory_at_any_line_of_its_opening_a_session_leaves_nothing_open() -> None:
    handler = signal.getsignal(signal.SIGINT)
    for line in _lines(Session.__enter__):
        session = kit.Session()
        try:
            came = run_with(session.__enter__, line, out_of_memory)
        except MemoryError:
            assert not session.is_open
            assert current_session() is None
            assert signal.getsignal(signal.SIGINT) is handler
        else:
            assert not came
            session.__exit__()


def _lines(part: Any) -> list[Line]:
    code = part.__code__
    numbers = sorted({number for *_, number in code.co_lines() if number is not None})
    return [(code, number) for number in numbers[1:] if does_something(code, number)]


def test_without_memory_at_any_line_of_the_worker_nobody_waits_for_ever() -> None:
    """Whoever waited for an operation that was just done did: it was no longer known who."""
    codes = [vars(Engine)[name].__code__ for name in _OF_WORKER] + [outcome.__code__]
    seen: dict[Line, int] = {}
    _wait_for_worker(codes, lambda line: seen.update({line: seen.get(line, 0) + 1}))
    assert {code for code, _ in seen} == set(codes)
    for line, count in seen.items():
        for number in range(1, count + 1):
            _wait_for_worker(codes, _raising_at(line, number))


_OF_WORKER = ("_loop", "_run", "_complete", "_advance", "_let_run", "_wake", "report")


def _raising_at(line: Line, number: int) -> Callable[[Line], None]:
    """What raises where the worker comes to a line for that time."""
    left = number

    def look(at: Line) -> None:
        nonlocal left
        left -= at == line
        if at == line and left == 0:
            raise MemoryError

    return look


def _wait_for_worker(codes: list[CodeType], look: Callable[[Line], None]) -> None:
    """Wait for operations that wait for each other, one of which fails; `look` at the lines."""
    engine, gate = Engine(setting=partial(_traced, codes, look)), threading.Event()
    a, b, c = Variable(), Variable(), Variable()
    with suppress(EngineError):  # the worker has ended
        engine.push(gate.wait, (), (a,))
        for reads, writes in (((a,), (b,)), ((a,), (c,)), ((c,), (a,))):
            engine.push(lambda: None, reads, writes, is_urgent=writes == (a,))
        engine.push(lambda: 1 / 0, (b, c), (b,))

    def wait() -> None:
        for use in (lambda: engine.wait_to_read(b), engine.wait_all, engine.close):
            with suppress(EngineError, ExecutionError):
                use()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: engine._broken is not None or bool(engine._pending) or not waiting.is_alive())
    gate.set()
    waiting.join(60)
    assert not waiting.is_alive()


@contextmanager
def _traced(codes: list[CodeType], look: Callable[[Line], None]) -> Iterator[None]:
    """Look at each line of these functions in this thread, also of those that run already."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in codes:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "with self._lock" not in text:  # it stands for its end, too
            look((frame.f_code, frame.f_lineno))
        return trace

    sys.settrace(trace)
    yield


def test_a_thread_that_dies_before_it_begins_is_told_and_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's own `start` waits for ever where the new thread has no memory for its first line."""
    ran: list[int] = []
    monkeypatch.setattr("kit.threads._BEGIN_S", 0.2)
    told = threading.Event()  # "Exception ignored in thread started by"
    monkeypatch.setattr(sys, "unraisablehook", lambda _: told.set())

    def no_memory(thread: threading.Thread) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "_bootstrap_inner", no_memory)
        with pytest.raises(EngineError, match="no thread for 'kit worker' could be started"):
            Engine().push(lambda: ran.append(1))
    assert not [t for t in threading.enumerate() if t.name == "kit worker"]
    late = threading.Event()
    real = threading.Thread._bootstrap_inner

    def begins_late(thread: threading.Thread) -> None:
        late.wait()
        real(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "_bootstrap_inner", begins_late)
        with leaves_no_thread():
            with pytest.raises(EngineError, match="it did not begin within"):
                Engine().push(lambda: ran.append(1))
            told.clear()
            late.set()
            assert told.wait(60)  # else it is told while another test runs
    assert ran == []


def test_whoever_waits_until_a_thread_has_begun_is_not_interrupted_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread would run, and nobody know of it."""
    frames: list[FrameType] = []
    main, real = threading.get_ident(), threading.Thread._bootstrap_inner

    def begins(thread: threading.Thread) -> None:
        until(lambda: sys._current_frames()[main].f_code.co_filename == threading.__file__)
        threading.Event().wait(0.05)
        frames.append(sys._current_frames()[main])
        real(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", begins)
    start_thread(lambda: None, "short").join()
    assert not _is_waiting(frames[0])
