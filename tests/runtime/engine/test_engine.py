"""The dependency engine against its oracle, the engine that runs each operation at once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import Cancelled, EngineError, ExecutionError
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import DONE, Variable
from tests.runtime.engine.oracle import NaiveEngine
from tests.waiting import leaves_no_thread


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


# -- random programs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One operation: it mixes what it reads into what it writes."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    fails: bool
    delay: bool
    is_urgent: bool
    wait: str  # "", "read" (of the first variable that it touches) or "all"


VARIABLES = 5

steps = st.builds(
    Step,
    reads=st.lists(st.integers(0, VARIABLES - 1), max_size=4).map(tuple),
    writes=st.lists(st.integers(0, VARIABLES - 1), max_size=3).map(tuple),
    fails=st.integers(0, 7).map(lambda x: x == 0),
    delay=st.integers(0, 9).map(lambda x: x == 0),
    is_urgent=st.integers(0, 3).map(lambda x: x == 0),
    wait=st.sampled_from(["", "", "", "", "read", "all"]),
)


def play(engine: Any, program: list[Step], seed: int) -> list[Any]:
    """What the program sees: each error that a wait raises, and the values at the end."""
    variables = [Variable() for i in range(VARIABLES)]
    memory = [float(i) for i in range(VARIABLES)]
    chance = random.Random(seed)
    seen: list[Any] = []

    def wait(call: Callable[[], None]) -> None:
        try:
            call()
        except ExecutionError as error:
            seen.append(str(error))

    for number, step in enumerate(program):
        pause = chance.random() * 1e-3 if step.delay else 0.0

        def run(number: int = number, step: Step = step, pause: float = pause) -> None:
            if pause:
                time.sleep(pause)
            total = sum(memory[i] for i in step.reads)
            if step.fails:
                raise ValueError(f"operation {number} fails")
            for k, i in enumerate(dict.fromkeys(step.writes)):
                memory[i] = (total * 3 + number + k) % 1000003

        engine.push(
            run,
            tuple(variables[i] for i in step.reads),
            tuple(variables[i] for i in step.writes),
            name=f"op {number}",
            is_urgent=step.is_urgent,
        )
        touched = step.writes or step.reads
        if step.wait == "read" and touched:
            wait(lambda v=variables[touched[0]]: engine.wait_to_read(v))  # type: ignore[misc]
        elif step.wait == "all":
            wait(engine.wait_all)
    wait(engine.wait_all)
    for value, variable in zip(memory, variables, strict=True):
        try:
            engine.wait_to_read(variable)
            seen.append(value)
        except ExecutionError as error:
            seen.append(str(error))
    return seen


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(0, 2**16))
def test_random_programs_mean_what_they_mean_run_at_once(program: list[Step], seed: int) -> None:
    engine = Engine()
    try:
        assert play(engine, program, seed) == play(NaiveEngine(), program, seed)
    finally:
        engine.close()


def test_several_threads_may_push_at_once(engine: Engine) -> None:
    total, mine = [0], [0] * 4
    shared = Variable()

    def push(k: int) -> None:
        own = Variable()

        def add() -> None:
            total[0] += 1  # alone: it writes `shared`

        def count() -> None:
            mine[k] += 1

        for _ in range(300):
            engine.push(add, (shared,), (shared,))
            engine.push(count, (shared,), (own,))
        engine.wait_to_read(own)

    threads = [threading.Thread(target=push, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mine == [300] * 4
    engine.wait_all()
    assert total == [1200]


# -- order -----------------------------------------------------------------------------------------


def test_an_operation_that_names_a_variable_twice_does_not_wait_for_itself(engine: Engine) -> None:
    x, y = Variable(), Variable()
    ran: list[int] = []
    engine.push(lambda: ran.append(1), (x, x, y), (x, x))
    engine.push(lambda: ran.append(2), (x, x), (y, y))
    engine.wait_all()
    assert ran == [1, 2]


def test_of_what_may_run_the_urgent_runs_first() -> None:
    engine = Engine()
    gate, ran = threading.Event(), []
    engine.push(gate.wait)
    for i, is_urgent in enumerate((False, True, False, True)):
        engine.push(lambda i=i: ran.append(i), is_urgent=is_urgent)  # type: ignore[misc]
    gate.set()
    engine.wait_all()
    assert ran == [1, 3, 0, 2]
    engine.close()


# -- errors ----------------------------------------------------------------------------------------


def fail() -> None:
    raise ValueError("no")


def test_an_error_names_the_operation_and_stays_on_what_it_poisoned(engine: Engine) -> None:
    a, b, c = (Variable() for _ in range(3))
    ran: list[str] = []
    engine.push(fail, (), (a,), name="aten.bad")
    engine.push(lambda: ran.append("b"), (a,), (b,), name="aten.next")
    engine.push(lambda: ran.append("c"), (), (c,))
    for _ in range(3):  # sticky, and the same error whichever variable is asked for
        for variable in (a, b):
            with pytest.raises(ExecutionError, match=r"aten\.bad failed: ValueErr"):
                engine.wait_to_read(variable)
    engine.wait_to_read(c)
    assert ran == ["c"]
    engine.wait_all()  # somebody has been told
    engine.push(lambda: ran.append("again"), (), (c,))
    engine.wait_all()
    assert ran == ["c", "again"]


def test_wait_all_raises_the_first_failure_in_program_order_and_names_the_rest(
    engine: Engine,
) -> None:
    x, y = Variable(), Variable()
    engine.push(lambda: (time.sleep(0.02), fail()), (), (x,), name="slow")
    engine.push(fail, (), (y,), name="quick")
    with pytest.raises(ExecutionError, match="slow failed") as caught:
        engine.wait_all()
    assert "quick failed" in caught.value.__notes__[0]
    engine.wait_all()
    with pytest.raises(ExecutionError, match="quick failed"):
        engine.wait_to_read(y)


def test_a_whole_overwrite_heals_and_a_change_in_place_does_not(engine: Engine) -> None:
    x = Variable()
    memory = {"x": 0}
    engine.push(fail, (), (x,))
    engine.push(lambda: memory.update(x=memory["x"] + 1), (x,), (x,))
    with pytest.raises(ExecutionError):
        engine.wait_to_read(x)
    engine.push(lambda: memory.update(x=5), (), (x,))
    engine.wait_to_read(x)
    assert memory == {"x": 5}


def test_errors_do_not_grow_when_they_are_raised_again(engine: Engine) -> None:
    x = Variable()
    engine.push(fail, (), (x,))
    lengths = []
    for _ in range(5):
        with pytest.raises(ExecutionError) as caught:
            engine.wait_to_read(x)
        trace, n = caught.value.__traceback__, 0
        while trace is not None:
            trace, n = trace.tb_next, n + 1
        lengths.append(n)
    assert len(set(lengths)) == 1
    engine.push(fail)
    with pytest.raises(ExecutionError):
        engine.wait_all()


# -- ends ------------------------------------------------------------------------------------------


def test_cancelled_operations_do_not_run_and_say_so_where_they_are_read() -> None:
    engine = Engine()
    gate, ran = threading.Event(), []
    x = Variable()
    first = engine.push(gate.wait)
    second = engine.push(lambda: ran.append(2), (), (x,), name="guess")
    assert engine.cancel(second)
    gate.set()
    engine.wait_all()  # a cancelled operation is no failure
    assert not engine.cancel(first)
    assert ran == []
    with pytest.raises(Cancelled, match="guess was cancelled"):
        engine.wait_to_read(x)
    engine.close()


def test_close_runs_what_is_pending_and_ends_the_threads() -> None:
    with leaves_no_thread():
        engine, ran = Engine(), []
        for i in range(50):
            engine.push(lambda i=i: ran.append(i))  # type: ignore[misc]
        engine.close()
        engine.close()
    assert sorted(ran) == list(range(50))
    with pytest.raises(EngineError, match="closed"):
        engine.push(fail)


def test_close_can_cancel_what_has_not_begun() -> None:
    engine, ran = Engine(), []
    begun, gate = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        gate.wait()
        ran.append(0)

    engine.push(first)
    engine.push(lambda: ran.append(1))
    begun.wait()
    threading.Timer(0.02, gate.set).start()
    engine.close(cancel=True)
    assert ran == [0]


def test_an_operation_that_waits_for_its_own_engine_is_told_so(engine: Engine) -> None:
    x = Variable()
    own: list[Any] = []
    own.append(engine.push(lambda: (time.sleep(0.02), engine.wait(own[0])), (), (x,)))
    with pytest.raises(EngineError, match="waits for the engine that runs it"):
        engine.wait_to_read(x)


def test_an_interrupt_of_wait_all_loses_nothing(engine: Engine) -> None:
    gate, ran = threading.Event(), []
    engine.push(gate.wait)
    engine.push(lambda: ran.append(1))
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.wait_all()
    gate.set()
    engine.wait_all()
    assert ran == [1]


@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12: that is the point
def test_a_forked_child_fails_loudly(engine: Engine) -> None:
    x = Variable()
    gate = threading.Event()
    engine.push(gate.wait, (), (x,))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child's own process
        said = b""
        for use in (lambda: engine.push(fail), lambda: engine.wait_to_read(x)):
            try:
                use()
            except EngineError as error:
                said += str(error).encode()[:30]
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    said = b""
    while part := os.read(reader, 1000):
        said += part
    os.waitpid(child, 0)
    os.close(reader)
    gate.set()
    assert said.count(b"forked") == 2


def test_a_variable_of_two_engines_ends_with_an_error_and_not_in_a_wait_for_ever() -> None:
    one, other = Engine(), Engine()
    x = Variable()
    gate = threading.Event()
    one.push(gate.wait, (), (x,))
    stray = other.push(lambda: None, (x,))  # `one` will let it through, for `other` to complete
    later = one.push(lambda: None, (), (x,))
    gate.set()
    said = []
    for engine, op in ((one, later), (other, stray)):
        try:
            engine.wait(op)
        except EngineError as error:
            said.append(str(error))
    one.close()
    other.close()
    assert all("another engine" in text for text in said)
    assert said or (later.state == stray.state == DONE)
