"""Ctrl-C ends no process, loses no number, and the step after it is torch's."""

from __future__ import annotations

import contextvars
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jupyter_client.manager import start_new_kernel

import kit
from kit.runtime.recording.bulk import Bulk
from kit.runtime.session.interrupts import INTERRUPTS, QUIET_S, RETRY_S, postponed
from tests.reliability.kinds import KINDS
from tests.reliability.stops import errors
from tests.warm import warm_kernel, warm_python

ROOT = Path(__file__).parents[3]


def interrupt() -> None:
    """What a terminal does at Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def interrupt_and_sleep() -> None:
    """An interrupt, and then code that has nothing to do with the kit."""
    interrupt()
    time.sleep(60)


def interrupted(x: Any) -> Any:
    """`x + 1`, with an interrupt in the middle, at a line of the recorder's."""
    made: list[Any] = []
    line = (Bulk._append.__code__, Bulk._append.__code__.co_firstlineno + 3)
    assert errors.run_with(lambda: made.append(x + 1), line, errors.interrupt)
    return made[0]


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    """Each test leaves SIGINT as it was."""
    before = signal.getsignal(signal.SIGINT)
    yield
    kept = INTERRUPTS.kept.copy()
    INTERRUPTS.kept.clear()  # else it would be raised in the next test
    assert not kept
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_at_random_times_lose_nothing_in_any_mode() -> None:
    """In a process of its own: an interrupt in the wrong place would end it."""
    command = [warm_python(), "-m", "tests.reliability.stops.interrupts", "--count", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("each next step was torch's") == len(KINDS)


def test_an_interrupt_in_the_users_own_code_is_raised_there() -> None:
    with kit.Session():
        x = torch.ones(3, device="kit") + 1
        with pytest.raises(KeyboardInterrupt):
            interrupt_and_sleep()
        assert (x + 1).tolist() == [3.0] * 3


def dies_by_del() -> None:
    class Dying:
        def __del__(self) -> None:
            interrupt()

    Dying()


def dies_with_a_finalizer() -> None:
    class Dying:
        pass

    dying = Dying()
    weakref.finalize(dying, interrupt)
    del dying


@pytest.mark.parametrize("die", [dies_by_del, dies_with_a_finalizer])
def test_an_interrupt_is_not_raised_where_python_only_prints_errors(
    die: Callable[[], None],
) -> None:
    """There, as in a callback of the garbage collector, it would be lost."""

    def die_and_sleep() -> None:
        die()
        time.sleep(20)

    INTERRUPTS.hook()
    with pytest.raises(KeyboardInterrupt):
        die_and_sleep()


def test_an_interrupt_in_the_middle_of_an_op_is_raised_by_one_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(signal, "pthread_kill")  # Windows has none: nothing looks a second time
    with kit.Session(kit.Settings(bulk_forward=4)) as session:
        x = interrupted(torch.ones(3, device="kit"))
        recorded = 1
        try:
            while True:
                x = x + 1
                recorded += 1
        except KeyboardInterrupt:
            pass
        assert recorded <= 6
        assert x.tolist() == [1.0 + recorded] * 3
        session.mark_step()


def test_an_interrupt_in_a_backward_pass_is_raised_when_the_pass_is_over() -> None:
    seen: list[Any] = []

    def hook(grad: Any) -> None:
        interrupt()
        seen.append("after")

    with kit.Session():
        x = torch.ones(3, device="kit", requires_grad=True)
        y = (x * 2).sum()
        x.register_hook(hook)
        with pytest.raises(KeyboardInterrupt):
            y.backward()
        assert seen == ["after"]
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 3


def test_an_interrupt_that_is_kept_comes_out_of_the_session() -> None:
    with pytest.raises(KeyboardInterrupt), kit.Session():
        interrupted(torch.ones(3, device="kit"))


def test_an_interrupt_in_the_middle_of_an_op_is_raised_once_the_program_goes_on() -> None:
    def add_and_sleep(x: Any) -> None:
        interrupted(x)
        time.sleep(60)

    with kit.Session():
        x = torch.ones(3, device="kit")
        with pytest.raises(KeyboardInterrupt):
            add_and_sleep(x)
        assert (x + 1).tolist() == [2.0] * 3


def test_a_kept_interrupt_waits_for_a_handler() -> None:
    """Between two cells a notebook's kernel has none."""

    def add_and_ignore(x: Any) -> None:
        interrupted(x)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(5 * RETRY_S)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        time.sleep(60)

    with kit.Session():
        x = torch.ones(3, device="kit")
        with pytest.raises(KeyboardInterrupt):
            add_and_ignore(x)


def test_a_session_inside_of_another_gives_the_handler_back() -> None:
    with kit.Session():
        outer = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), kit.Session():
            interrupt_and_sleep()
        assert signal.getsignal(signal.SIGINT) == outer


def test_a_postponed_interrupt_is_raised_at_the_end_of_the_block() -> None:
    done: list[int] = []

    def work(count: int) -> None:
        with postponed():
            for _ in range(count):
                interrupt()
            done.append(count)

    for count in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            work(count)
    assert done == [1]  # a second one does not wait


def test_in_a_session_a_postponed_interrupt_is_raised_after_the_block() -> None:
    """The block outlasts the time after which the session raises what it has kept."""
    done: list[str] = []

    def work() -> None:
        with postponed():
            interrupt()
            time.sleep(5 * QUIET_S)
            done.append("block")
        time.sleep(60)

    with kit.Session():
        x = torch.ones(3, device="kit") + 1
        with pytest.raises(KeyboardInterrupt):
            work()
        with pytest.raises(KeyboardInterrupt):  # and from then on as ever
            interrupt_and_sleep()
        assert x.tolist() == [2.0] * 3
    assert done == ["block"]


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    heard: list[int] = []

    def mine(number: int, frame: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGINT, mine)
    try:
        with kit.Session():
            assert signal.getsignal(signal.SIGINT) is mine
            interrupt()
            assert (torch.ones(2, device="kit") + 1).tolist() == [2.0, 2.0]
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.notebook
def test_a_kernel_that_is_interrupted_goes_on_in_the_next_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel sets its own handler before each cell, so the session takes part in each."""
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path))
    manager, client = start_new_kernel(cwd=str(ROOT))

    def run(code: str, *, is_stopped: bool = False) -> str:
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            text = message["content"].get("text", "")
            said.append(text)
            if is_stopped and "stepping" in text:
                time.sleep(0.3)  # so that it is under way
                manager.interrupt_kernel()

        answer = client.execute_interactive(code, output_hook=hear)
        kind = answer["content"].get("ename", "ok")
        assert kind == ("KeyboardInterrupt" if is_stopped else "ok"), answer["content"]
        return "".join(said)

    try:
        run("from tests.reliability.training import Training\nit = Training('bulked').__enter__()")
        for _ in range(3):
            run("print('stepping', flush=True)\nwhile True: it.step()", is_stopped=True)
            assert "torch's" in run('it.check_next_step()\nprint("torch\'s")')
        run("it.__exit__()")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_interrupt_comes_while_only_another_thread_records() -> None:
    ends, recorded = threading.Event(), threading.Event()

    def work() -> None:
        x = torch.zeros(2, device="kit")
        while not ends.is_set():
            x = x + 1
            recorded.set()

    def wait_for_it() -> None:
        interrupt()
        for _ in range(200):
            time.sleep(0.1)

    with kit.Session(kit.Settings(mode="bulked", bulk_forward=1)):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(work,))
        thread.start()
        try:
            assert recorded.wait(60)
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                wait_for_it()
            assert time.monotonic() - start < 10
        finally:
            ends.set()
            thread.join()
