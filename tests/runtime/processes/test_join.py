"""The channel between processes: who has come, who has gone, what time it is. Real sockets."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kit.errors import SessionError, SettingsError
from kit.runtime.processes import greeting, links
from kit.runtime.processes.channel import Channel
from kit.runtime.processes.greeting import checked_secret
from kit.runtime.processes.join import current_processes, join_processes
from kit.runtime.processes.links import free_port
from kit.runtime.processes.tensors import _gather, _sum
from tests.runtime.processes.channels import (
    SECRET,
    at_once,
    greeted,
    made_channel,
    opened,
    say,
)
from tests.waiting import leaves_no_thread
from tests.warm import warm_python


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


def test_one_that_waits_where_the_others_run_more_steps_says_so() -> None:
    first, second = opened(2, timeout_s=2.5)
    first.progress = 3  # its gradients of a third step are there; a beat tells the other
    of_first, of_second = at_once(
        lambda: first.meet("the mean of others"), lambda: second.meet("the mean of losses")
    )
    assert "within 2.5 s. If it is only slow" in str(of_first)
    assert "though process 0 made gradients in a step that process 1 did not run" in str(of_second)
    for channel in (first, second):
        channel.leave()
    for channel in (first, second):
        channel.close()


# As its program ends, a thread is still in a collective of gloo that the other process has left.
STUCK = """
import atexit, sys, threading, time
from kit.runtime.processes import join
join._FAREWELL_S = 0.1
alone = join.Processes("127.0.0.1:80", 1, 0, devices=None, timeout_s=1, secret=None, run="")
atexit.register(alone._at_exit)
atexit.register(print, "the program's own end")
for seconds in map(float, sys.argv[1:]):
    alone.stuck.append(threading.Thread(target=time.sleep, args=[seconds], daemon=True))
    alone.stuck[-1].start()
"""


@pytest.mark.parametrize(("seconds", "status"), [("0.01", 0), ("60", 1)])
def test_a_program_ends_with_a_thread_that_is_stuck_in_a_collective(
    seconds: str, status: int
) -> None:
    made = subprocess.run([warm_python(), "-c", STUCK, seconds], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (status, "the program's own end\n"), made.stderr


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
    for _, link in sorted(channels[lost]._links._wires.items()):  # the one asked first
        with socket.socket(fileno=os.dup(link.transport.get_extra_info("socket").fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # as a kill would
    assert told.wait(20)
    assert f"process {lost} of 3 has gone" in other.failure
    for channel in channels:
        channel.close()


def test_a_process_that_hangs_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BEAT_S", 0.2)
    port = free_port()
    first = made_channel(0, 2, timeout_s=1.0)
    # it greets, and then it says nothing more
    _, peer = at_once(lambda: first.open("127.0.0.1", port), lambda: greeted(port, 1, 2))
    assert "process 1 of 2 was silent for 0.75 s" in first.wait_for_failure(20)
    peer.close()
    first.close()


def test_one_that_is_silent_after_it_has_left_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Process 0 ends last, and waited for the end of a connection: for ever, of a lost host."""
    monkeypatch.setattr(links, "BEAT_S", 0.05)
    port = free_port()
    first = made_channel(0, 2)
    first._links._silence_s = 0.3
    _, peer = at_once(lambda: first.open("127.0.0.1", port), lambda: greeted(port, 1, 2))
    say(peer, "left")
    first.leave()
    assert at_once(first.wait_until_gone) == [None]
    assert first.failure == ""
    peer.close()
    first.close()


def test_a_system_that_has_no_room_for_connections_is_an_error_and_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("asyncio.events.new_event_loop", full)
    (error,) = at_once(lambda: made_channel(1, 2).open("127.0.0.1", 9911))
    assert isinstance(error, SessionError)
    assert "process 1 cannot open its connections: [Errno 24] Too many open files" in str(error)


def test_one_that_does_not_read_keeps_nobody_else_waiting() -> None:
    port = free_port()
    made = [made_channel(rank, 3) for rank in range(2)]
    jobs = [lambda c=c: c.open("127.0.0.1", port) for c in made]
    *_, peer = at_once(*jobs, lambda: greeted(port, 2, 3))
    big = "x" * 3_000_000  # more than the sockets hold
    made[0].announce("nobody listens", big)
    made[1]._send("brought", "a meeting", big)
    made[0].fail(ValueError("enough"))
    assert made[1].wait_for_failure(20) == "process 0 of 3 failed with ValueError: enough"
    peer.close()
    for channel in made:
        channel.close()


def test_who_is_early_waits_for_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BEAT_S", 0.2)  # so silence is 0.6 s
    port = free_port()
    made = [made_channel(rank, 3, timeout_s=0.1 + 20 * (rank == 0)) for rank in range(3)]
    made[2]._links._timeout_s = made[1]._links._timeout_s = 20.0

    def late() -> None:
        time.sleep(1.5)
        made[2].open("127.0.0.1", port)

    jobs = [lambda c=c: c.open("127.0.0.1", port) for c in made[:2]]
    assert at_once(*jobs, late) == [None] * 3
    assert [c.failure for c in made] == [""] * 3
    for channel in made:
        channel.leave()
        channel.close()


def test_who_comes_last_hears_what_was_said_before() -> None:
    port = free_port()
    made = [made_channel(rank, 3) for rank in range(3)]

    def late() -> None:
        while not made[0]._brought:
            time.sleep(0.02)
        made[2].open("127.0.0.1", port)

    def comes(channel: Channel) -> list[Any]:
        channel.open("127.0.0.1", port)
        return channel.meet("the start", channel.rank)

    jobs = [lambda c=c: comes(c) for c in made[:2]]
    assert at_once(*jobs, lambda: (late(), made[2].meet("the start", 2))[1]) == [[0, 1, 2]] * 3
    for channel in made:
        channel.leave()
    for channel in made:
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
    mine = three[1]._links._thread

    def shifted() -> int:
        is_mine = threading.current_thread() in (mine, threading.main_thread())
        return real() + (shift if is_mine else 0)

    monkeypatch.setattr(time, "perf_counter_ns", shifted)
    found = three[1].clock()
    assert abs(found.offset_ns + shift) <= found.error_ns


def test_who_does_not_come_or_counts_otherwise_is_said() -> None:
    port = free_port()
    with (
        leaves_no_thread(),
        pytest.raises(SessionError, match=r"processes 1, 2 did not come within 0\.3 s"),
    ):
        made_channel(0, 3, timeout_s=0.3).open("127.0.0.1", port)
    with (
        leaves_no_thread(),
        pytest.raises(SessionError, match=r"process 1 cannot reach process 0 .* within 0\.3 s"),
    ):
        made_channel(1, 2, timeout_s=0.3).open("127.0.0.1", free_port())
    port = free_port()
    made = [made_channel(0, 2), made_channel(1, 4)]
    for error in at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made)):
        assert "process 1 says that there are 4 processes, process 0 2" in str(error)
    for channel in made:
        channel.close()


def test_a_coordinator_may_have_an_ipv6_address() -> None:
    port = free_port("::1")
    made = [made_channel(rank, 2) for rank in range(2)]
    assert at_once(*(lambda c=c: c.open("::1", port) for c in made)) == [None] * 2
    for channel in made:
        channel.leave()
    for channel in made:
        channel.close()


def test_a_secret_comes_from_the_environment_or_a_file_that_nobody_else_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KIT_RUN_SECRET", raising=False)
    monkeypatch.delenv("KIT_RUN_SECRET_FILE", raising=False)
    with pytest.raises(SettingsError, match="need a secret: give KIT_RUN_SECRET the same random"):
        checked_secret()
    file = tmp_path / "secret"
    monkeypatch.setenv("KIT_RUN_SECRET_FILE", str(file))
    with pytest.raises(SettingsError, match="cannot be read"):
        checked_secret()
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="others can read"):
        checked_secret()
    file.chmod(0o600)
    assert checked_secret() == "0123456789abcdef"
    monkeypatch.setenv("KIT_RUN_SECRET", "short")
    with pytest.raises(SettingsError, match="a secret of 5 characters can be guessed"):
        checked_secret()
    assert "0123456789abcdef" not in repr(greeting.Badge(0, 2, "0123456789abcdef"))


def test_a_small_message_does_not_wait_for_the_one_before(three: list[Channel]) -> None:
    """40 ms, by TCP's own rules: now and then a step took that long."""
    for channel in three:
        for link in channel._links._wires.values():
            end = link.transport.get_extra_info("socket")
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_cannot_travel_is_refused_before_it_is_sent(three: list[Channel]) -> None:
    with pytest.raises(SessionError, match="only numbers, texts"):
        three[0].meet("the barrier", {1, 2})


def test_arguments_are_checked_before_anything_begins() -> None:
    for coordinator, count, rank, what in (
        ("host0", 2, 0, "coordinator must be 'host:port'"),
        ("host0:99999", 2, 0, "coordinator must be 'host:port'"),
        ("::1:99", 2, 0, "'\\[address\\]:port' with an IPv6 address"),
        ("host0:80", 0, 0, "count must be a number of processes"),
        ("host0:80", 2, 2, "rank must be from 0 to 1"),
    ):
        with (
            pytest.raises(SettingsError, match=what),
            join_processes(coordinator, count, rank, secret=SECRET),
        ):
            pass
    with (
        pytest.raises(SettingsError, match="a secret of 1 char"),
        join_processes("host0:80", 2, 0, secret="x"),
    ):
        pass
    for timeout_s in (0, -1.0, math.nan, math.inf, True, "5"):
        with (
            pytest.raises(SettingsError, match="a timeout must be more than 0 seconds"),
            join_processes("host0:80", 2, 0, secret=SECRET, timeout_s=timeout_s),  # type: ignore[arg-type]
        ):
            pass


def test_who_has_not_joined_anybody_may_join_later() -> None:
    for _ in range(2):
        with join_processes("127.0.0.1:80", 1, 0):  # alone: nothing is opened
            assert current_processes() is None
        with (
            pytest.raises(SessionError, match="cannot reach process 0"),
            join_processes(f"127.0.0.1:{free_port()}", 2, 1, secret=SECRET, timeout_s=0.1),
        ):
            pass


@pytest.mark.parametrize(("code", "why"), [(None, ""), (0, ""), (3, "failed with SystemExit: 3")])
def test_a_program_that_ends_itself_well_is_no_failure(code: int | None, why: str) -> None:
    with pytest.raises(SystemExit), join_processes("127.0.0.1:80", 1, 0) as joined:
        sys.exit(code)
    assert why in joined.channel.failure
    assert bool(why) == bool(joined.channel.failure)


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
