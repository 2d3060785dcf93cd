"""Threads that must meet: in order, with everybody's errors, and never for ever."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import EngineError, SessionError, SettingsError
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import Variable
from kit.runtime.replicas.devices import pick_devices
from kit.runtime.replicas.group import Group
from kit.runtime.replicas.member import note_replica
from kit.runtime.replicas.pool import Pool
from kit.runtime.replicas.rendezvous import Rendezvous
from kit.runtime.replicas.turns import Turns
from tests.warm import warm_python


@contextlib.contextmanager
def pool(count: int, timeout_s: float = 30.0) -> Iterator[Pool]:
    made = Pool(Group(count, timeout_s), lambda rank: contextlib.nullcontext())
    try:
        yield made
    finally:
        made.close()


def run(made: Pool, job: Callable[[int], Any]) -> list[Any]:
    return made.run([lambda r=r: job(r) for r in range(made.group.count)])  # type: ignore[misc]


def test_results_come_in_the_order_given_and_from_the_same_threads_each_time() -> None:
    with pool(3) as threads:
        first = run(threads, lambda r: (r, threading.get_ident()))
        assert [r for r, _ in first] == [0, 1, 2]
        assert len({ident for _, ident in first} | {threading.get_ident()}) == 4
        assert run(threads, lambda r: (r, threading.get_ident())) == first


def test_the_first_error_is_raised_with_its_rank_its_line_and_what_else_failed() -> None:
    def job(rank: int) -> None:
        if rank == 2:
            raise ValueError("no such luck")

    with pool(3) as threads:
        with pytest.raises(ValueError, match="no such luck") as caught:
            run(threads, job)
        assert "this was in replica 2 of 3, at test_group.py:" in caught.value.__notes__[0]
        assert run(threads, lambda r: r) == [0, 1, 2]


def test_an_error_says_its_replica_once_where_the_session_has_said_it_before() -> None:
    def job(rank: int) -> None:
        if rank == 1:
            error = ValueError("no such luck")
            note_replica(error, rank)
            raise error

    with pool(2) as threads, pytest.raises(ValueError, match="no such luck") as caught:
        run(threads, job)
    (note,) = caught.value.__notes__
    assert note.startswith("kit: this was in replica 1 of 2, at test_group.py:")


@settings(max_examples=15)
@given(
    late=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    visits=st.integers(1, 3),
)
def test_a_meeting_gives_all_of_each_visit_by_rank_whoever_comes_first(
    late: list[int], visits: int
) -> None:
    with pool(3) as threads:
        meeting = Rendezvous(threads.group)

        def job(rank: int) -> list[Any]:
            seen = []
            for visit in range(visits):
                time.sleep(late[(rank + visit) % len(late)] / 2000)
                seen.append(meeting.get(rank, meeting.put(rank, (rank, visit))))
            return seen

        expected = [[(r, visit) for r in range(3)] for visit in range(visits)]
        assert run(threads, job) == [expected] * 3


@pytest.mark.alone
@pytest.mark.parametrize(
    ("third", "error", "words", "timeout_s"),
    [
        (lambda: 1 / 0, ZeroDivisionError, "division by zero", 30),
        (lambda: None, SessionError, r"replica 2 ended without coming.*same number of batches", 30),
        (
            lambda: next(iter(())),
            SessionError,
            r"iterator of replica 2 has ended \(StopIteration\)",
            30,
        ),
        (lambda: time.sleep(0.4), SessionError, r"replica 2 did not come within 0\.2 s", 0.2),
    ],
    ids=["fails", "returns", "has no more batches", "is late"],
)
def test_who_waits_for_a_replica_that_does_not_come_is_told_and_the_pool_goes_on(
    third: Callable[[], object], error: type[Exception], words: str, timeout_s: float
) -> None:
    with pool(3, timeout_s) as threads:
        meeting = Rendezvous(threads.group)

        def job(rank: int) -> Any:
            return third() if rank == 2 else meeting.get(rank, meeting.put(rank, rank))

        with pytest.raises(error, match=words):
            run(threads, job)
        threads.group.timeout_s = 30.0  # a machine may be slow
        again = run(threads, lambda r: meeting.get(r, meeting.put(r, r)))
        assert again == [[0, 1, 2]] * 3


def test_one_thread_at_a_time_gets_on_and_who_waits_lets_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.runtime.replicas.turns.STANDSTILL_S", 3600.0)
    seen: list[str] = []
    with pool(3) as threads:
        meeting = Rendezvous(threads.group)

        def part(rank: int, name: str) -> None:
            for _ in range(20):
                seen.append(f"{name} of {rank}")
                time.sleep(0.0005)  # another thread can have the GIL

        def job(rank: int) -> None:
            part(rank, "first")
            meeting.get(rank, meeting.put(rank, 0))
            part(rank, "second")

        run(threads, job)
    runs = [name for i, name in enumerate(seen) if i == 0 or name != seen[i - 1]]
    assert sorted(runs) == [f"{name} of {r}" for name in ("first", "second") for r in range(3)]
    assert len(seen) == 120


def test_a_turn_that_does_not_get_on_is_passed_over() -> None:
    """What a program waits for is not known here: it may be what another replica does."""
    with pool(2) as threads:
        gate = threading.Barrier(2)
        assert sorted(run(threads, lambda r: gate.wait(30))) == [0, 1]
        assert run(threads, lambda r: r) == [0, 1]


def test_a_waiting_thread_that_takes_part_gives_its_turn_away_and_gets_it_again() -> None:
    turns = Turns()
    said: list[bool] = []
    with turns.while_waiting():
        pass
    assert said == []
    with turns.part(said.append):
        other = threading.Thread(target=_passed_over, args=(turns, said))
        other.start()
        other.join()
        with turns.while_waiting(), turns.part(said.append):
            pass
    with turns.part(said.append):
        pass
    assert said[0] is True
    assert said.count(True) == said.count(False)


def _passed_over(turns: Turns, said: list[bool]) -> None:
    with turns.part(said.append), turns.while_waiting():
        pass


@pytest.mark.parametrize("to", [True, False])
def test_an_error_of_who_is_told_of_turns_keeps_no_turn(to: bool) -> None:
    def fail(is_mine: bool) -> None:
        if is_mine is to:
            raise MemoryError

    turns, said = Turns(), list[bool]()
    with pytest.raises(MemoryError), turns.part(fail):
        pass
    with turns.while_waiting(), turns.part(said.append):
        assert turns._holder == threading.get_ident()
    assert said == [True, False]


def test_who_gives_up_at_a_meeting_is_not_there_for_who_comes_later() -> None:
    """Each would go on as if all had been there, or nobody: replicas would part."""
    with pool(2, 0.2) as threads:
        meeting = Rendezvous(threads.group)
        left = threading.Event()

        def job(rank: int) -> Any:
            if rank == 1:
                left.wait(30)
            try:
                return meeting.get(rank, meeting.put(rank, rank))
            finally:
                left.set()

        errors: list[BaseException] = []

        def noting(rank: int) -> Any:
            try:
                return job(rank)
            except SessionError as error:
                errors.append(error)
                raise

        with pytest.raises(SessionError):
            run(threads, noting)
        assert len(errors) == 2


def test_a_replica_that_never_ends_is_named_and_nobody_hangs() -> None:
    gate = threading.Event()
    made = Pool(Group(2, 0.2), lambda rank: contextlib.nullcontext())
    meeting = Rendezvous(made.group)
    with pytest.raises(SessionError, match="did not come within") as caught:
        run(made, lambda r: gate.wait() if r else meeting.get(r, meeting.put(r, 0)))
    assert any("replica 1 did not end within 2 s" in note for note in caught.value.__notes__)
    with pytest.raises(SessionError, match="has not ended its last part; make a new one"):
        run(made, lambda r: r)
    made.close()
    made._threads[0].join()  # the other one has ended
    gate.set()
    made._threads[1].join()


def test_replicas_that_are_at_work_take_nothing_else() -> None:
    """Called by a replica itself, or by a second thread, it waited for ever."""
    at_work, may_end = threading.Event(), threading.Event()
    with pool(2) as threads:
        with pytest.raises(SessionError, match="at work: it is used by one thread at a time"):
            run(threads, lambda r: run(threads, lambda r: r))
        other = threading.Thread(
            target=run, args=(threads, lambda r: at_work.set() if r else may_end.wait(30))
        )
        other.start()
        at_work.wait(30)
        with pytest.raises(SessionError, match="at work: it is used by one thread at a time"):
            run(threads, lambda r: r)
        may_end.set()
        other.join()
        assert run(threads, lambda r: r) == [0, 1]


def test_a_meeting_keeps_nothing_of_the_visits_that_are_over() -> None:
    with pool(2) as threads:
        meeting = Rendezvous(threads.group)

        def job(rank: int) -> None:
            for visit in range(20):
                assert meeting.get(rank, meeting.put(rank, visit)) == [visit, visit]

        run(threads, job)
        assert not meeting._visits


def test_a_thread_that_cannot_begin_raises_where_the_pool_is_made_and_the_others_end() -> None:
    lived: list[tuple[int, str]] = []
    threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def enter(rank: int) -> Iterator[None]:
        threads.append(threading.current_thread())
        if rank == 1:
            raise SettingsError("no room")
        lived.append((rank, "entered"))
        yield
        lived.append((rank, "left"))

    with pytest.raises(SettingsError, match="no room"):
        Pool(Group(3), enter)
    assert sorted(lived) == [(r, what) for r in (0, 2) for what in ("entered", "left")]
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_turn_has_taken_and_given_is_not_held_after_it(fails: bool) -> None:
    made: weakref.WeakSet[Group] = weakref.WeakSet()

    def job(rank: int, taken: Group) -> Group:
        if fails and rank:
            raise ValueError("no such luck")
        made.add(given := Group(1))
        return given

    def turn(threads: Pool) -> None:
        taken = [Group(1), Group(1)]
        made.update(taken)
        expected = (
            pytest.raises(ValueError, match="no such luck") if fails else contextlib.nullcontext()
        )
        with expected:
            assert len(threads.run([partial(job, r, x) for r, x in enumerate(taken)])) == 2

    with pool(2) as threads:
        turn(threads)
        gc.collect()
        assert not made


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (0, "devices must be at least 1, not 0"),
        ([], r"devices must be at least 1, not \[\]"),
        (True, "devices must be at least 1, not True"),
        ("cpu", "a number or a list of names, not 'cpu'"),
        (["cpu:0", "cpu:99"], "replica 1: there is no device 'cpu:99'; there are: cpu:0"),
        (["tpu:0"], "replica 0: there is no device 'tpu:0'"),
        ([":0"], "replica 0: there is no device ':0'"),
        (["cpu"], "replica 0: there is no device 'cpu'; there are: cpu:0"),
        ((), r"devices must be at least 1, not \(\)"),
        ((0, 1), "replica 0: a device is a name such as 'cpu:0'.*, not 0.*devices=2"),
        (["cpu:0", None], "replica 1: a device is a name such as .*, not None"),
    ],
)
def test_devices_that_cannot_be_are_refused(wanted: Any, words: str) -> None:
    jax.devices()  # it has begun, and makes no more of them
    with pytest.raises(SettingsError, match=words):
        pick_devices(wanted)


def test_a_device_of_jax_is_taken_as_it_is() -> None:
    first = jax.devices()[0]
    assert pick_devices((first, "cpu:0")) == [first, first]


@pytest.mark.parametrize(
    ("before", "named", "found"),
    [
        ("", ["cpu:0", "cpu:2"], "0 2 of 3"),
        ("jax.config.update('jax_num_cpu_devices', 4)", ["cpu:1"], "1 of 4"),
        (
            "jax.devices()",
            ["cpu:0", "cpu:2"],
            "replica 1: there is no device 'cpu:2'; there are: cpu:0. Jax was told so, or "
            "began before .*XLA_FLAGS=--xla_force_host_platform_device_count=3 before Python",
        ),
        (
            "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'",
            ["cpu:2"],
            "there are: cpu:0, cpu:1. Jax .*XLA_FLAGS=--xla_force_host_platform_device_count=3",
        ),
        ("", ["cpu:7", None], "replica 1: a device is a name.* jax knows nothing"),
    ],
    ids=["not begun", "told of more", "begun", "told by the environment", "no name"],
)
def test_jax_is_told_of_the_cpu_devices_that_are_named(
    before: str, named: list[str], found: str
) -> None:
    script = f"""
import os, jax
{before}
from kit.errors import SettingsError
from kit.runtime.replicas.devices import pick_devices
try:
    print(*(d.id for d in pick_devices({named})), "of", jax.local_device_count())
except SettingsError as error:
    print(error, "jax knows nothing" if jax.config.jax_num_cpu_devices == -1 else "jax was told")
"""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [warm_python(), "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert re.search(found, done.stdout.strip())


@pytest.mark.parametrize("timeout_s", [0, -1, True])
def test_a_timeout_is_more_than_nothing(timeout_s: Any) -> None:
    with pytest.raises(SettingsError, match="more than 0 seconds"):
        Group(2, timeout_s)


def test_a_held_operation_runs_once_it_is_released_and_keeps_no_thread_busy() -> None:
    engine = Engine()
    x, y = Variable(), Variable()
    log: list[str] = []
    held = engine.push(lambda: log.append("held"), (), (x,), is_held=True)
    reader = engine.push(lambda: log.append("reader"), (x,), (y,))
    engine.wait(engine.push(lambda: log.append("other")))
    assert log == ["other"]
    engine.release(held)
    engine.wait(reader)
    assert log == ["other", "held", "reader"]
    engine.close()
    with pytest.raises(EngineError):
        engine.push(lambda: None, is_held=True)
