"""The channel between processes: who has come, who has gone, what time it is. Real sockets."""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import SessionError, SettingsError
from kit.runtime.processes import greeting, links, wire
from kit.runtime.processes.channel import Channel
from kit.runtime.processes.greeting import Badge, checked_secret
from kit.runtime.processes.join import _gather, _sum, current_processes, join_processes
from kit.runtime.processes.links import free_port

SECRET = "the secret of these tests"


def made_channel(rank: int, count: int, *, timeout_s: float = 30.0, secret: str = SECRET,
                 run: str = "tests") -> Channel:  # fmt: skip
    return Channel(Badge(rank, count, secret, run), timeout_s=timeout_s)


def connected(port: int) -> Connection[Any, Any]:
    """To process 0's port, as soon as it is there."""
    while True:
        try:
            return Connection(socket.create_connection(("127.0.0.1", port)).detach())
        except OSError:
            time.sleep(0.02)


def proof(secret: str, *said: object) -> str:
    """As the protocol has it, written once more."""
    return hmac.new(secret.encode(), json.dumps(said).encode(), "sha256").hexdigest()


def greeted(
    port: int, rank: int, count: int, *, secret: str = SECRET, run: str = "tests"
) -> Connection[Any, Any]:
    """A connection that has greeted process 0 as a process of the run does."""
    peer = connected(port)
    name, drawn = json.loads(peer.recv_bytes())
    assert name == "overlap-kit"
    who = [rank, count, run, "mine"]
    peer.send_bytes(json.dumps([*who, proof(secret, "join", drawn, *who)]).encode())
    return peer


def say(peer: Connection[Any, Any], *message: Any) -> None:
    peer.send_bytes(json.dumps(message).encode())


def is_hung_up(peer: Connection[Any, Any]) -> bool:
    """Whether process 0 has closed a connection, without a word."""
    try:
        return peer.poll(20) and not peer.recv_bytes()
    except (EOFError, OSError):
        return True


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
    made = [made_channel(rank, count, timeout_s=timeout_s) for rank in range(count)]
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
    for _, link in sorted(channels[lost]._links._wires.items()):  # the one asked first
        with socket.socket(fileno=os.dup(link.transport.get_extra_info("socket").fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # as a kill would
    assert told.wait(20)
    assert f"process {lost} of 3 has gone" in other.failure
    for channel in channels:
        channel.close()


def test_a_process_that_hangs_is_taken_for_dead() -> None:
    port = free_port()
    first = made_channel(0, 2, timeout_s=1.0)
    # it greets, and then it says nothing more
    _, peer = at_once(lambda: first.open("127.0.0.1", port), lambda: greeted(port, 1, 2))
    assert "process 1 of 2 was silent for 3 s" in first.wait_for_failure(20)
    peer.close()
    first.close()


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
    with pytest.raises(SessionError, match=r"processes 1, 2 did not come within 0\.3 s"):
        made_channel(0, 3, timeout_s=0.3).open("127.0.0.1", port)
    with pytest.raises(SessionError, match=r"process 1 cannot reach process 0 .* within 0\.3 s"):
        made_channel(1, 2, timeout_s=0.3).open("127.0.0.1", free_port())
    port = free_port()
    made = [made_channel(0, 2), made_channel(1, 4)]
    for error in at_once(*(lambda c=c: c.open("127.0.0.1", port) for c in made)):
        assert "process 1 says that there are 4 processes, process 0 2" in str(error)
    for channel in made:
        channel.close()


def run_with(strangers: Callable[[int], list[Connection[Any, Any]]]) -> None:
    """A run of two processes has its right result, whatever strangers do before one comes."""
    port = free_port()
    made = [made_channel(rank, 2) for rank in range(2)]

    def late() -> list[Connection[Any, Any]]:
        held = strangers(port)
        made[1].open("127.0.0.1", port)
        return held

    first, held = at_once(lambda: made[0].open("127.0.0.1", port), late)
    assert first is None
    assert isinstance(held, list), held
    assert at_once(*(lambda c=c: c.meet("x", c.rank) for c in made)) == [[0, 1], [0, 1]]
    assert [c.failure for c in made] == ["", ""]
    for peer in held:
        peer.close()
    for channel in made:
        channel.leave()
    for channel in made:
        channel.close()


def test_a_strangers_packet_changes_nothing() -> None:
    def strangers(port: int) -> list[Connection[Any, Any]]:
        silent, rude, half, huge = (connected(port) for _ in range(4))
        say(rude, "overlap-kit", 1, 2)  # as it was once enough
        os.write(half.fileno(), b"\0\0")
        os.write(huge.fileno(), b"\x7f\xff\xff\xff" + b"x" * 1000)
        with socket.create_connection(("127.0.0.1", port)) as lines:
            lines.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for peer in (rude, huge):
            assert json.loads(peer.recv_bytes())[0] == "overlap-kit"
            assert is_hung_up(peer)
        return [silent, rude, half, huge]

    run_with(strangers)


def test_a_wrong_secret_and_a_process_of_another_run_are_refused() -> None:
    def strangers(port: int) -> list[Connection[Any, Any]]:
        wrong = greeted(port, 1, 2, secret="the secret of an earlier job")
        assert is_hung_up(wrong)
        other = greeted(port, 1, 2, run="yesterday's")
        why, _ = json.loads(other.recv_bytes())
        assert why == "process 1 is of the run \"yesterday's\", process 0 of 'tests'"
        return [wrong, other]

    run_with(strangers)


def test_a_greeting_that_was_overheard_is_worth_nothing() -> None:
    overheard: list[bytes] = []

    def strangers(port: int) -> list[Connection[Any, Any]]:
        again = connected(port)
        again.recv_bytes()
        again.send_bytes(overheard[0])
        assert is_hung_up(again)
        return [again]

    def listening(peer: Connection[Any, Any], data: bytes) -> None:
        overheard.append(data)
        sent(peer, data)

    sent = Connection.send_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send_bytes", listening)
        run_with(lambda port: [greeted(port, 1, 2, run="another")])
    assert len(overheard) == 1
    run_with(strangers)


def test_a_doubled_rank_is_refused_and_the_run_goes_on() -> None:
    port = free_port()
    made = [made_channel(r, 3) for r in (0, 1, 2)]
    double = made_channel(1, 3)

    def late() -> None:
        while 1 not in made[0]._links._wires:
            time.sleep(0.02)
        with pytest.raises(SessionError, match="process 1 came twice: give each its own number"):
            double.open("127.0.0.1", port)
        made[2].open("127.0.0.1", port)

    jobs = [lambda c=c: c.open("127.0.0.1", port) for c in made[:2]]
    assert at_once(*jobs, late) == [None] * 3
    assert at_once(*(lambda c=c: c.meet("x", c.rank) for c in made)) == [[0, 1, 2]] * 3
    for channel in made:
        channel.leave()
    for channel in (*made, double):
        channel.close()


def with_a_raw_member(count: int = 3) -> tuple[list[Channel], Connection[Any, Any]]:
    """Channels of all processes but the last, and a connection that has joined as the last."""
    port = free_port()
    made = [made_channel(rank, count) for rank in range(count - 1)]
    jobs = [lambda c=c: c.open("127.0.0.1", port) for c in made]
    *opened, peer = at_once(*jobs, lambda: greeted(port, count - 1, count))
    assert opened == [None] * (count - 1)
    assert json.loads(peer.recv_bytes())[0] == ""
    return made, peer


def test_a_member_speaks_for_its_own_rank_only() -> None:
    made, peer = with_a_raw_member()
    say(peer, "brought", "x 1", "first of 2")
    say(peer, "brought", "x 1", "second of 2")
    found = at_once(*(lambda c=c: c.meet("x", f"of {c.rank}") for c in made))
    assert found == [["of 0", "of 1", "first of 2"]] * 2
    say(peer, "brought", 1, "y 1", "in the name of process 1")  # it cannot even be said
    why = "process 2 of 3 broke the rules between the processes of a run: it sent what no"
    for channel in made:
        assert channel.wait_for_failure(20).startswith(why)
    while (told := json.loads(peer.recv_bytes()))[1] != "failed":
        pass
    assert told[0] == 2  # and hears it
    peer.close()
    for channel in made:
        channel.close()


def test_who_answers_for_process_0_must_know_the_secret_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def squat() -> None:
            for _ in range(2):
                peer = Connection(server.accept()[0].detach())
                say(peer, "overlap-kit", "drawn")
                peer.recv_bytes()
                say(peer, "", proof("a guess of the secret", "answer", "drawn", "", 1, ""))
                peer.close()

        channel = made_channel(1, 2, timeout_s=0.3)
        *_, error = at_once(squat, lambda: channel.open(*server.getsockname()))
    assert isinstance(error, SessionError)
    assert "what answers there does not know the secret" in str(error)
    channel.close()


MALFORMED = {
    "no JSON": b"{",
    "no list": b"{}",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "empty": b"[]",
    "unknown": b'["hello"]',
    "short": b'["brought"]',
    "other types": b'["beat", "x"]',
    "a list for a key": b'["brought", [], 1]',
    "an order of another than process 0": b'["announced", "group 1", "x"]',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_ends_the_run_with_the_name_of_its_sender(message: bytes) -> None:
    made, peer = with_a_raw_member(2)
    peer.send_bytes(message)
    assert "process 1 of 2 broke the rules" in made[0].wait_for_failure(20)
    peer.close()
    made[0].close()


def test_a_message_that_is_too_large_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    made, peer = with_a_raw_member(2)
    os.write(peer.fileno(), (800_000_000).to_bytes(4, "big"))
    assert "a message of 800,000,000 bytes, more than" in made[0].wait_for_failure(20)
    peer.close()
    made[0].close()
    monkeypatch.setattr(wire, "MAX_BYTES", 100)
    with pytest.raises(SessionError, match="too much for one message"):
        made[0].announce("x", "y" * 100)


def test_half_a_message_stops_nobody_and_is_blamed_on_its_sender() -> None:
    made, peer = with_a_raw_member()
    os.write(peer.fileno(), (1000).to_bytes(4, "big") + b"[")
    jobs = [lambda c=c: c.clock() for c in made]
    assert all(clock.error_ns >= 0 for clock in at_once(*jobs))  # the others are served
    made[0]._links._wires[2].heard -= 30.0  # as if so long ago
    assert "process 2 of 3 was silent" in made[1].wait_for_failure(20)
    peer.close()
    for channel in made:
        channel.close()


def test_a_message_that_trickles_has_an_end() -> None:
    made, peer = with_a_raw_member(2)
    os.write(peer.fileno(), (1000).to_bytes(4, "big") + b"[")
    arriving = made[0]._links._wires[1].frames
    while not arriving.began:
        time.sleep(0.02)
    arriving.began -= 31.0  # as if so long ago; the channel's timeout is 30 s
    os.write(peer.fileno(), b"1")
    why = "process 1 of 2 broke the rules between the processes of a run: it sent half a message"
    assert made[0].wait_for_failure(20).startswith(why)
    peer.close()
    made[0].close()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.integers(), st.text(), st.none()), max_size=3), max_size=5),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_messages_come_whole_however_their_bytes_arrive(
    messages: list[list[Any]], cuts: list[int]
) -> None:
    data = b"".join(map(wire.frame, messages))
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    frames, found = wire.Frames(), []
    for start, stop in pairwise(at):
        found += frames.take(data[start:stop])
        whole = sum(len(wire.frame(message)) for message in found)
        assert (frames.began > 0) == (whole < stop)
    assert found == messages


def test_an_error_in_what_is_called_ends_the_run_by_its_name(three: list[Channel]) -> None:
    def fails(item: Any) -> None:
        raise KeyError(item)

    three[1].on_announced("order", fails)
    three[1].on_failure.append(lambda: fails("and in what hears of it"))
    called = threading.Event()
    three[1].on_failure.append(called.set)
    three[0].announce("order", "no such collective")
    why = "process 1 of 3 failed with KeyError: 'no such collective'"
    assert three[2].wait_for_failure(20).startswith(why)
    assert called.wait(20)
    assert "after that, KeyError: 'and in what hears of it'" in three[1].failure


def test_silent_greeters_are_closed_in_time_and_cost_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "GREETING_S", 0.2)
    monkeypatch.setattr(links, "_STRANGERS", 3)

    def strangers(port: int) -> list[Connection[Any, Any]]:
        silent = [connected(port)]
        before = threading.active_count()
        silent += [connected(port) for _ in range(9)]
        for peer in silent:
            while not is_hung_up(peer):  # it may have been greeted before
                pass
        assert threading.active_count() <= before
        return silent

    run_with(strangers)


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
