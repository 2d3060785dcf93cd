"""A signal handler of the program's own, or a `__del__`: it may raise, or use a kit tensor."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import pytest
import torch

import kit
from kit.errors import SessionError
from kit.measure.attached.loop import LoopWatch
from kit.runtime.engine.engine import Engine
from kit.runtime.recording.bulk import Bulk
from kit.runtime.session.interrupts import INTERRUPTS
from kit.runtime.session.streams import ThreadStreams
from kit.torch.dispatch import Dispatcher
from kit.torch.tensors.unwinding import DeviceQuestion
from tests.reliability.stops.errors import run_with
from tests.reliability.training import TimeLimit
from tests.warm import warm_python

SIGNAL = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM
Middle = list[Callable[..., Any]]
RECORDER: Middle = [Bulk.add_one, Bulk._append, Dispatcher.dispatch]
ENGINE: Middle = [ThreadStreams._issue, Engine.submit, Engine.wait]
LINE = Bulk._append.__code__.co_firstlineno + 3  # in the middle of an op
SAID = "a signal handler or __del__ uses a kit tensor while an op is recorded"


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (SIGNAL, signal.SIGTERM)}
    yield
    sys.settrace(None)
    kept = INTERRUPTS.kept.copy()
    INTERRUPTS.kept.clear()  # else it would be raised in the next test
    for number, handler in before.items():
        signal.signal(number, handler)
    assert not kept


class Steps:
    """Three steps of SGD, in the second of which something happens at one line of the kit."""

    def __init__(self, middle: Middle, happen: Callable[[Any], None]) -> None:
        self.happen = happen
        self.lines: dict[CodeType, list[int]] = {f.__code__: [] for f in middle}

    def run(self, at: tuple[CodeType, int] | None = None) -> list[torch.Tensor]:
        """The weights after it; without a line, notes which lines there are."""
        torch.manual_seed(0)
        happened: list[int] = []
        with kit.Session(kit.Settings(mode="bulked", bulk_forward=3, bulk_backward=3)) as session:
            net = torch.nn.Linear(4, 4).to("kit")
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x = torch.randn(2, 4).to("kit")

            def look(frame: Any, event: str, _: Any) -> Any:
                code, line = frame.f_code, frame.f_lineno
                if code not in self.lines:
                    return None
                if event == "line" and at is None and line not in self.lines[code]:
                    self.lines[code].append(line)
                elif event == "line" and (code, line) == at and not happened:
                    happened.append(1)
                    self.happen(net)
                return look

            for step in range(3):
                sys.settrace(look if step == 1 else None)
                optimizer.zero_grad()
                loss = net(x).tanh().square().mean()
                loss.backward()
                optimizer.step()
                loss.item()
                sys.settrace(None)
                session.mark_step()
            assert at is None or happened
            return [p.detach().cpu() for p in net.parameters()]


def read(net: Any) -> None:
    net.weight.detach().sum().item()


def record(net: Any) -> None:
    net.weight.detach().sum()


@pytest.mark.compiles  # else a read may have nothing to wait for
@pytest.mark.parametrize(("middle", "use"), [(RECORDER, record), (ENGINE, read)])
def test_a_handler_at_any_line_in_the_middle_of_an_op_changes_no_number(
    middle: Middle, use: Callable[[Any], None]
) -> None:
    said: list[str] = []

    def happen(net: Any) -> None:
        def handle(*_: Any) -> None:
            try:
                use(net)
            except SessionError as error:
                said.append(str(error))

        signal.signal(SIGNAL, handle)
        signal.raise_signal(SIGNAL)

    steps = Steps(middle, happen)
    want = steps.run()
    assert all(steps.lines.values())
    for code, lines in steps.lines.items():
        for line in lines:
            got = steps.run((code, line))
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b), f"{code.co_qualname}:{line}"
    assert said
    assert all(text.startswith(SAID) for text in said)


def test_what_a_handler_raises_comes_out_at_the_users_line_and_the_next_step_is_right() -> None:
    def handle(*_: Any) -> None:
        torch.ones(2, device="kit").sum()

    signal.signal(SIGNAL, handle)
    append, hit = Bulk._append.__code__, list[int]()

    def look(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is append and event == "line" and not hit:
            hit.append(1)
            signal.raise_signal(SIGNAL)
        return look if frame.f_code is append else None

    with kit.Session():
        x = torch.ones(2, device="kit")
        sys.settrace(look)
        with pytest.raises(SessionError, match=SAID):
            x + 1
        sys.settrace(None)
        assert (x + 2).tolist() == [3.0, 3.0]
        signal.raise_signal(SIGNAL)  # between two ops a handler may do as it likes


def test_a_del_in_the_middle_of_an_op_is_refused() -> None:
    said: list[str] = []

    class Dying:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __del__(self) -> None:
            try:
                self.x.sum()
            except SessionError as error:
                said.append(str(error))

    append = Bulk._append.__code__
    dying: list[Dying] = []

    def look(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is append and event == "line":
            dying.clear()
        return look if frame.f_code is append else None

    with kit.Session():
        x = torch.ones(2, device="kit")
        dying.append(Dying(x))
        sys.settrace(look)
        y = x + 1
        sys.settrace(None)
        assert y.tolist() == [2.0, 2.0]
    assert len(said) == 1
    assert said[0].startswith(SAID)


def limit(*_: Any) -> None:
    raise TimeLimit


_LIMITED = """
import random, signal, torch, kit

class TimeLimit(Exception):
    pass

def limit(*_):
    raise TimeLimit

signal.signal(signal.SIGALRM, limit)
chance, raised = random.Random(1), 0
with kit.Session():
    net, x = torch.nn.Linear(4, 4).to("kit"), torch.ones(2, 4, device="kit")
    for _ in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 2e-3))
            while True:
                (net(x) - x).tanh()
        except TimeLimit:
            raised += 1
    print(raised, (x + 1).sum().item())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers")
def test_a_handler_that_raises_at_any_time_ends_no_process() -> None:
    """One did, by SIGABRT: torch looks for signals in C++ code that must not raise."""
    done = subprocess.run([warm_python(), "-c", _LIMITED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "150 16.0\n"), done.stderr[-4000:]


def test_a_program_sees_its_own_handlers_whenever_it_has_set_them() -> None:
    def other(*_: Any) -> None: ...

    assert signal.signal(SIGNAL, limit) is not limit
    with kit.Session():
        assert signal.getsignal(SIGNAL) is limit
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.signal(SIGNAL, other) is limit
        assert signal.signal(SIGNAL, signal.SIG_IGN) is other
        assert signal.signal(SIGNAL, limit) == signal.SIG_IGN
        with pytest.raises(TypeError):
            signal.signal(SIGNAL, "limit")  # type: ignore[arg-type]
    assert signal.getsignal(SIGNAL) is limit


def test_only_c_code_that_holds_the_devices_question_asks_it() -> None:
    """A list of all objects, as one makes to find a leak, made each Ctrl-C wait for ever."""
    question = DeviceQuestion()
    assert not question.is_asked()
    found = gc.get_objects()
    assert any(x is question._answer for x in found)
    assert not question.is_asked()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(question._answer))
    assert question.is_asked()
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(question._answer))
    assert not question.is_asked()


@contextmanager
def time_limit() -> Iterator[None]:
    """As programs have it."""
    before = signal.signal(SIGNAL, limit)
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)


def test_a_time_limit_is_raised_before_its_block_is_left() -> None:
    """An op that is under way ends first, and the block with it."""
    before, made = signal.getsignal(SIGNAL), list[Any]()

    def work() -> None:
        with time_limit():
            add, arrive = lambda: made.append(x + 1), partial(INTERRUPTS.arrive, limit, SIGNAL)
            assert run_with(add, (Bulk._append.__code__, LINE), arrive)

    with kit.Session():
        x = torch.ones(2, device="kit")
        with pytest.raises(TimeLimit):
            work()
        assert signal.getsignal(SIGNAL) == before
        assert made[0].tolist() == [2.0, 2.0]


def test_a_handler_that_puts_itself_away_is_not_stopped_by_what_was_kept() -> None:
    """As the second SIGTERM does: it ended nothing, in the middle of an op."""
    heard: list[str] = []

    def handle(*_: Any) -> None:
        if not heard:
            heard.append("first")
            raise TimeLimit
        signal.signal(SIGNAL, signal.SIG_DFL)
        heard.append("second")

    def twice(frame: Any) -> None:
        INTERRUPTS.arrive(handle, SIGNAL, frame)
        INTERRUPTS.arrive(handle, SIGNAL, frame)

    with kit.Session() as session:
        x = torch.ones(2, device="kit")
        signal.signal(SIGNAL, handle)
        run_with(lambda: x + 1, (Bulk._append.__code__, LINE), twice)
        with pytest.raises(TimeLimit):
            session.mark_step()
    assert heard == ["first", "second"]


def leave(*_: Any) -> None:
    sys.exit(3)


def test_what_two_handlers_raise_is_both_raised() -> None:
    def arrive(frame: Any) -> None:
        INTERRUPTS.arrive(limit, SIGNAL, frame)
        INTERRUPTS.arrive(limit, SIGNAL, frame)  # which is one with the first
        INTERRUPTS.arrive(leave, signal.SIGTERM, frame)

    raised = []
    with kit.Session() as session:
        x = torch.ones(2, device="kit")
        run_with(lambda: x + 1, (Bulk._append.__code__, LINE), arrive)
        for _ in range(3):
            try:
                session.mark_step()
            except (TimeLimit, SystemExit) as error:
                raised.append(type(error))
    assert raised == [TimeLimit, SystemExit]


@pytest.mark.skipif(sys.platform == "win32", reason="nothing looks a second time")
def test_what_a_second_handler_raises_needs_no_op() -> None:
    """The first one's time limit has ended, and its signal has no handler."""

    def arrive(frame: Any) -> None:
        INTERRUPTS.arrive(limit, SIGNAL, frame)
        INTERRUPTS.arrive(leave, signal.SIGTERM, frame)

    def work(x: torch.Tensor) -> None:
        try:
            with time_limit():
                run_with(lambda: x + 1, (Bulk._append.__code__, LINE), arrive)
        except TimeLimit:
            time.sleep(20)

    signal.signal(signal.SIGTERM, leave)
    with kit.Session():
        x = torch.ones(2, device="kit")
        with pytest.raises(SystemExit):
            work(x)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12
def test_a_forked_child_hears_its_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's next one was a second look, and calls no handler."""
    heard: list[int] = []
    signal.signal(SIGNAL, lambda *_: heard.append(1))
    INTERRUPTS.hook()
    monkeypatch.setattr(INTERRUPTS, "_sent", SIGNAL)
    child = os.fork()
    if not child:
        try:
            signal.raise_signal(SIGNAL)
        finally:
            os._exit(len(heard))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_what_a_handler_raises_is_no_error_of_a_sessions_end() -> None:
    """The end forgets an error that no read has asked for."""
    session = kit.Session().__enter__()
    x = torch.ones(2, device="kit")
    run_with(
        lambda: x + 1, (Bulk._append.__code__, LINE), partial(INTERRUPTS.arrive, limit, SIGNAL)
    )
    with pytest.raises(TimeLimit):
        session.__exit__()
    assert not session.is_open


@pytest.mark.parametrize("act", [kit.sweep, kit.autotune])
def test_what_a_handler_raises_in_a_step_ends_more_than_its_run(act: Any) -> None:
    """It was an error of one cell of a sweep, as was the `sys.exit` of a queue's time limit."""
    built: list[Any] = []

    def build(ctx: Any) -> Any:
        def step() -> Any:
            if len(built) > 1:
                signal.raise_signal(SIGNAL)
            return x.sum()

        built.append(ctx)
        x = torch.ones(2).to(ctx.device)
        return step

    signal.signal(SIGNAL, limit)
    grid = {"bulk_forward": [1, 2, 3]}
    options = {"vary": grid, "budget_s": 60} if act is kit.autotune else {"grid": grid}
    with pytest.raises(TimeLimit):
        act(kit.workload(build), settings=kit.Settings(steps=2, warmup=0), **options)
    assert len(built) == 2


def test_what_a_handler_raises_in_a_watch_is_no_error_of_the_recording() -> None:
    """The recording ended, and the loop went on."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    signal.signal(SIGNAL, limit)
    INTERRUPTS.hook()

    def arrive(frame: Any) -> None:
        signal.raise_signal(SIGNAL)

    def train() -> None:
        with kit.watch(steps=2, skip=0) as watch:
            for _ in range(20):
                net(torch.ones(2)).sum().backward()
                optimizer.step()
        raise AssertionError(watch.ended)

    line = LoopWatch._between.__code__, LoopWatch._between.__code__.co_firstlineno + 2
    with pytest.raises(TimeLimit):
        run_with(train, line, arrive)
