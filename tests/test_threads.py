"""Stacks of other threads are read, and objects found, without harm to them."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.errors import EngineError
from kit.runtime.engine.engine import Engine
from kit.threads import (
    exit_status,
    living,
    living_types,
    read_stacks,
    start_thread,
    without_collection,
)
from tests.reliability.stops.errors import interrupt, lines_of, run_with
from tests.waiting import leaves_no_thread
from tests.warm import warm_python

# One thread calls functions whose frames differ in size, another reads its stack. The collector
# runs often, and what it calls lets go of Python's lock, as any callback may.
READER = """
import gc, sys, threading, time
from kit.threads import read_stacks

def collected(phase, info):
    if threading.current_thread() is reader:
        time.sleep(1e-4)

def read(thread):
    while not ended.is_set():
        read_stacks(lambda: walk(sys._current_frames().get(thread)))
        kept.clear()
        time.sleep(1e-5)

def walk(frame):
    while frame is not None:
        frame.f_code.co_filename
        kept.append(frame)
        frame = frame.f_back

functions, turn, kept, ended = [], [0], [], threading.Event()
for k in range(12):
    names = [f"v{i}" for i in range(3 * k + 1)]
    body = "; ".join(f"{name} = [n]" for name in names)
    next_one = f"functions[(7 * n + 5 * {k} + turn[0]) % 12](n - 1)"
    exec(f"def f{k}(n):\\n    {body}\\n    return 0 if n <= 0 else {next_one} + 1")
    functions.append(globals()[f"f{k}"])
reader = threading.Thread(target=read, args=(threading.get_ident(),))
reader.start()
gc.callbacks.append(collected)
gc.set_threshold(150)
sys.setswitchinterval(1e-5)
end = time.perf_counter() + 3
while time.perf_counter() < end and reader.is_alive():
    turn[0] += 1
    functions[turn[0] % 12](turn[0] % 50)
print("alive" if reader.is_alive() else "")
ended.set()
reader.join()
"""

FORKS = """
import gc, os
from kit.threads import without_collection

with without_collection():
    child = os.fork()
    if not child:
        was_on = gc.isenabled()
        with without_collection():
            is_on = gc.isenabled()
        os._exit(0 if was_on and not is_on and gc.isenabled() else 1)
    print(os.waitpid(child, 0)[1], gc.isenabled(), end=" ")
print(gc.isenabled(), end="")
"""


@pytest.fixture(params=[True, False])
def is_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the collector is on."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_a_stack_that_changes_is_read_without_a_crash() -> None:
    """Without the block, Python 3.11 does not live for a second here."""
    command = [sys.executable, "-X", "faulthandler", "-c", READER]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_afterwards_the_collector_is_as_it_was(is_on: bool) -> None:
    assert read_stacks(gc.isenabled) is (is_on and sys.version_info >= (3, 12))
    assert gc.isenabled() is is_on
    with pytest.raises(KeyError):
        read_stacks(lambda: {}["nothing"])
    assert gc.isenabled() is is_on


def test_an_interrupt_at_any_line_leaves_the_collector_as_it_was(is_on: bool) -> None:
    def read() -> None:
        read_stacks(gc.isenabled)

    lines = lines_of(read)
    for line in lines:
        with contextlib.suppress(KeyboardInterrupt):
            run_with(read, line, interrupt)
        assert gc.isenabled() is is_on, f"after an interrupt at {line}"
    assert len(lines) > (6 if sys.version_info < (3, 12) else 1)


def test_an_interrupt_in_a_block_without_collection_leaves_it_as_it_was(is_on: bool) -> None:
    def block() -> None:
        with without_collection():
            assert not gc.isenabled()

    lines = lines_of(block)
    for line in lines:
        with contextlib.suppress(KeyboardInterrupt):
            run_with(block, line, interrupt)
        assert gc.isenabled() is is_on, f"after an interrupt at {line}"
        block()
        assert gc.isenabled() is is_on, f"in the block after an interrupt at {line}"
    assert len(lines) > 6


def test_an_interrupt_at_any_line_leaves_no_thread_that_nobody_knows() -> None:
    """One that is known does its work; so it is with an engine, which knows one worker."""

    def start() -> None:
        nonlocal known
        known = start_thread(lambda: ran.append(threading.current_thread()), "tried")

    def start_worker() -> None:
        engine.start()

    known: threading.Thread | None = None
    ran: list[threading.Thread] = []
    code = start_thread.__code__
    last = (code, max(number for *_, number in code.co_lines() if number))
    with leaves_no_thread():
        lines = [line for line in lines_of(start) if line[0].co_name != "start_thread"]
    assert len(lines) > 1
    for line in lines:
        known = None
        ran.clear()
        with leaves_no_thread(), contextlib.suppress(KeyboardInterrupt):
            run_with(start, line, interrupt)
        assert ran == ([known] if known else []), f"after an interrupt at {line}"
    for line in [*lines, last]:
        with leaves_no_thread():
            engine = Engine()
            with contextlib.suppress(KeyboardInterrupt):
                run_with(start_worker, line, interrupt)
            engine.wait(engine.push(lambda: ran.append(threading.current_thread())))
            assert ran.pop() is engine._worker
            engine.close()


def test_the_last_block_that_ends_switches_the_collector_on(is_on: bool) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(without_collection())
        second.enter_context(without_collection())
        first.close()
        assert not gc.isenabled()
    assert gc.isenabled() is is_on


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
def test_a_forked_child_has_none_of_its_parents_blocks() -> None:
    command = [sys.executable, "-c", FORKS]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 False True", "")


def test_two_readers_at_once_leave_the_collector_as_it_was(is_on: bool) -> None:
    def read() -> None:
        for _ in range(2_000):
            read_stacks(sys._current_frames)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert gc.isenabled() is is_on


def test_at_pythons_end_no_limit_is_blamed_for_a_thread_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(EngineError, match="Python is ending; join the thread that still trains"):
        start_thread(lambda: None, "kit prefetch")


class Kind:
    pass


class Slotted(Kind):
    __slots__ = ("one",)


class Other:
    pass


def test_objects_of_a_class_and_of_its_subclasses_are_found() -> None:
    kept = [Kind(), Slotted(), Other()]
    assert {*map(id, living(Kind))} == {id(kept[0]), id(kept[1])}
    assert {*map(id, living(Kind, Other))} == {*map(id, kept)}
    assert {Kind, Slotted, Other} <= living_types()
    del kept
    assert living(Kind) == []


def test_tuples_that_other_threads_make_meanwhile_are_not_broken() -> None:
    """`gc.get_objects` broke about one in each search: a `SystemError` in a user's thread."""
    kept, many = [Kind()], [[i] for i in range(100_000)]
    broken: list[SystemError] = []
    is_over = threading.Event()

    def make() -> None:
        while not is_over.is_set():
            try:
                tuple(x for x in range(200))
            except SystemError as error:
                broken.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert living(Kind) == kept
            assert Kind in living_types()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert len(many) == 100_000
    assert not broken


@pytest.mark.parametrize("code", [None, 0, 3, -1, 256, 2**31, 2**63 - 1, 2**63, 10**30, -(10**30)])
def test_a_status_is_what_python_itself_would_give(code: int | None) -> None:
    done = subprocess.run([warm_python(), "-c", f"raise SystemExit({code})"])
    assert exit_status(code) == done.returncode
