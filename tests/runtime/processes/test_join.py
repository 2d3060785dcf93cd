"""The channel between processes: who has come, who has gone, what time it is. Real sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np
import pytest

from kit.errors import SessionError, SettingsError
from kit.runtime.processes import channel as processes_channel
from kit.runtime.processes.channel import Channel, free_port
from kit.runtime.processes.join import _gather, _sum, current_processes, join_processes


def connected(port: int) -> Connection[Any, Any]:
    """To process 0's port, as soon as it is there."""
    while True:
        try:
            return Connection(socket.create_connection(("127.0.0.1", port)).detach())
        except OSError:
            time.sleep(0.02)


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """What each gives or raises, called at the same time."""
    found: list[Any] = [None] * len(jobs)

    def call(i: int) -> None:
        try:
            found[i] = jobs[i]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def opened(count: int, timeout_s: float = 30.0) -> list[Channel]:
    port = free_port()
    made = [Channel(rank, count, timeout_s=timeout_s) for rank in range(count)]
    assert at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made)) == [None] * count
    return made


@pytest.fixture
def three() -> Iterator[list[Channel]]:
    made = opened(3)
    yield made
    for channel in made:
        channel.leave()
    for channel in made:
        channel.close()


def test_all_bring_something_and_all_get_everybodys_as_often_as_they_come(
    three: list[Channel],
) -> None:
    def visits(channel: Channel) -> list[Any]:
        return [
            channel.meet("the barrier", [channel.rank, i, 0.1 + channel.rank]) for i in range(20)
        ]

    found = at_once(*(lambda c=c: visits(c) for c in three))
    assert found == [[[[r, i, 0.1 + r] for r in range(3)] for i in range(20)]] * 3


def test_a_process_that_leaves_is_missed_by_name_and_not_before_it_must_come(
    three: list[Channel],
) -> None:
    three[2].leave()
    pairs = at_once(*(lambda c=c: c.meet("the update") for c in three[:2]))
    for error in pairs:
        assert isinstance(error, SessionError)
        assert "the update will not happen: process 2 ended without coming" in str(error)
    assert not three[0].failure


def test_a_failure_reaches_everybody_with_its_cause_and_ends_all_waiting(
    three: list[Channel],
) -> None:
    def fails() -> None:
        time.sleep(0.2)  # the others wait by now
        three[1].fail(ValueError("no such token"))

    *waiting, _ = at_once(lambda: three[0].meet("the end"), lambda: three[2].meet("the end"), fails)
    for error in waiting:
        assert str(error) == "process 1 of 3 failed with ValueError: no such token"
    three[0].fail(KeyError("later"))  # only the first counts
    assert [c.failure for c in three] == [str(waiting[0])] * 3
    with pytest.raises(SessionError, match="no such token"):
        three[2].meet("something else")


@pytest.mark.parametrize("lost", [0, 2])
def test_a_connection_that_ends_without_a_word_is_a_failure(lost: int) -> None:
    channels = opened(3)
    told = threading.Event()
    other = channels[1]
    other.on_failure.append(told.set)
    for _, peer in sorted(channels[lost]._peers.items()):  # the one that is asked first
        with socket.socket(fileno=os.dup(peer.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # as a kill would
    assert told.wait(20)
    assert f"process {lost} of 3 has gone" in other.failure
    for channel in channels:
        channel.close()


def test_a_process_that_hangs_is_taken_for_dead() -> None:
    port = free_port()
    first = Channel(0, 2, timeout_s=1.0)

    def come() -> Connection[Any, Any]:
        peer = connected(port)
        peer.send_bytes(json.dumps([processes_channel._GREETING, 1, 2]).encode())
        return peer  # and then nothing more

    _, peer = at_once(lambda: first.open("127.0.0.1", port), come)
    assert "process 1 of 2 was silent for 3 s" in first.wait_for_failure(20)
    peer.close()
    first.close()


def test_one_that_does_not_read_keeps_nobody_else_waiting() -> None:
    port = free_port()
    made = [Channel(rank, 3, timeout_s=30) for rank in range(2)]

    def come() -> Connection[Any, Any]:
        peer = connected(port)
        peer.send_bytes(json.dumps([processes_channel._GREETING, 2, 3]).encode())
        return peer

    *_, peer = at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made), come)
    big = "x" * 3_000_000  # more than the sockets hold
    for channel in made:
        channel.announce("nobody listens", big)
    made[0].fail(ValueError("enough"))
    assert made[1].wait_for_failure(20) == "process 0 of 3 failed with ValueError: enough"
    peer.close()
    for channel in made:
        channel.close()


def test_who_is_early_waits_for_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_channel, "_BEAT_S", 0.2)  # so silence is 0.6 s
    port = free_port()
    made = [Channel(rank, 3, timeout_s=0.1 + 20 * (rank == 0)) for rank in range(3)]
    made[2].timeout_s = made[1].timeout_s = 20.0

    def late() -> None:
        time.sleep(1.5)
        made[2].open("127.0.0.1", port)

    jobs = [lambda c=c: c.open("127.0.0.1", port) for c in made[:2]]
    assert at_once(*jobs, late) == [None] * 3
    assert [c.failure for c in made] == [""] * 3
    for channel in made:
        channel.leave()
        channel.close()


def test_what_process_0_announces_arrives_in_its_order(three: list[Channel]) -> None:
    heard: list[list[int]] = [[], []]
    for channel, items in zip(three[1:], heard, strict=True):
        channel.on_announced("order", items.append)
    for i in range(50):
        three[0].announce("order", i)
    at_once(*(lambda c=c: c.meet("the end") for c in three))
    assert heard == [list(range(50))] * 2


def test_clocks_are_compared_whatever_they_show(
    three: list[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert three[0].clock().offset_ns == 0
    honest = three[1].clock()  # the same clock: its error covers what is measured
    assert abs(honest.offset_ns) <= honest.error_ns < 1e9
    real, shift = time.perf_counter_ns, 5_000_000_000
    mine = three[1]._thread

    def shifted() -> int:
        is_mine = threading.current_thread() in (mine, threading.main_thread())
        return real() + (shift if is_mine else 0)

    monkeypatch.setattr(time, "perf_counter_ns", shifted)
    found = three[1].clock()
    assert abs(found.offset_ns + shift) <= found.error_ns


def test_who_does_not_come_or_comes_twice_or_counts_otherwise_is_said() -> None:
    port = free_port()
    with pytest.raises(SessionError, match=r"processes 1, 2 did not come within 0\.3 s"):
        Channel(0, 3, timeout_s=0.3).open("127.0.0.1", port)
    with pytest.raises(SessionError, match=r"process 1 cannot reach process 0 .* within 0\.3 s"):
        Channel(1, 2, timeout_s=0.3).open("127.0.0.1", free_port())
    port = free_port()
    made = [Channel(r, 3, timeout_s=20) for r in (0, 1, 1)]
    first, *others = at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made))
    assert "process 1 came twice" in str(first)
    assert any("process 1 came twice" in str(error) for error in others)
    for channel in made:
        channel.close()
    port = free_port()
    made = [Channel(0, 2, timeout_s=20), Channel(1, 4, timeout_s=20)]
    for error in at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made)):
        assert "process 1 says that there are 4 processes, process 0 2" in str(error)


def test_a_stranger_at_the_port_changes_nothing() -> None:
    port = free_port()
    made = [Channel(rank, 2, timeout_s=30) for rank in range(2)]

    def strangers() -> None:
        silent, rude = connected(port), connected(port)
        rude.send_bytes(json.dumps([processes_channel._GREETING, "1", 2]).encode())
        with socket.create_connection(("127.0.0.1", port)) as lines:
            lines.sendall(b"GET / HTTP/1.1\r\n\r\n")
        made[1].open("127.0.0.1", port)
        silent.close()
        rude.close()

    assert at_once(lambda: made[0].open("127.0.0.1", port), strangers) == [None] * 2
    assert at_once(*(lambda c=c: c.meet("x", c.rank) for c in made)) == [[0, 1], [0, 1]]
    for channel in made:
        channel.leave()
        channel.close()


def test_a_small_message_does_not_wait_for_the_one_before(three: list[Channel]) -> None:
    """40 ms, by TCP's own rules: now and then a step took that long."""
    for channel in three:
        for peer in channel._peers.values():
            with socket.socket(fileno=os.dup(peer.fileno())) as end:
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_cannot_travel_is_refused_before_it_is_sent(three: list[Channel]) -> None:
    with pytest.raises(SessionError, match="only numbers, texts"):
        three[0].meet("the barrier", {1, 2})


def test_arguments_are_checked_before_anything_begins() -> None:
    for coordinator, count, rank, what in (
        ("host0", 2, 0, "coordinator must be 'host:port'"),
        ("host0:99999", 2, 0, "coordinator must be 'host:port'"),
        ("host0:80", 0, 0, "count must be a number of processes"),
        ("host0:80", 2, 2, "rank must be from 0 to 1"),
    ):
        with pytest.raises(SettingsError, match=what), join_processes(coordinator, count, rank):
            pass
    with join_processes("127.0.0.1:80", 1, 0):  # alone: nothing is opened
        assert current_processes() is None


def test_arrays_of_all_types_are_added_up_and_gathered_by_process() -> None:
    rng = np.random.default_rng(0)
    shapes = [((), "float32"), ((3, 2), "float32"), ((4,), "int32"), ((0,), "float32"),
              ((2,), "float16"), ((5, 1), "float64"), ((3,), "float16")]  # fmt: skip
    columns = [rng.integers(-9, 9, (3, *shape)).astype(dtype) for shape, dtype in shapes]
    with jax.enable_x64(True):
        totals = jax.jit(jax.vmap(_sum, axis_name="process"))(columns)
    for column, total in zip(columns, totals, strict=True):
        assert total.dtype == column.dtype
        for of_one in np.asarray(total):
            np.testing.assert_array_equal(of_one, column.sum(0))
    every = _gather(columns)
    assert len(every) == 3 * len(columns)
    np.testing.assert_array_equal(every[1], columns[1][0])
    np.testing.assert_array_equal(every[-1], columns[-1][2])
