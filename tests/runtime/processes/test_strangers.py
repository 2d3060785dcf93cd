"""What strangers, wrong secrets and malformed messages do to a run over processes: nothing."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import SessionError
from kit.runtime.processes import links, wire
from kit.runtime.processes.channel import Channel
from kit.runtime.processes.links import free_port
from tests.runtime.processes.channels import (
    at_once,
    connected,
    greeted,
    is_hung_up,
    made_channel,
    proof,
    say,
)
from tests.waiting import leaves_no_thread


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


def test_half_a_message_stops_nobody_and_is_blamed_on_its_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "BEAT_S", 0.1)
    made, peer = with_a_raw_member()
    os.write(peer.fileno(), (1000).to_bytes(4, "big") + b"[")
    jobs = [lambda c=c: c.clock() for c in made]
    assert all(clock.error_ns >= 0 for clock in at_once(*jobs))  # the others are served
    made[0]._links._wires[2].heard -= 30.0  # as if so long ago
    assert "process 2 of 3 was silent" in made[1].wait_for_failure(20)
    peer.close()
    for channel in made:
        channel.close()


def test_a_message_that_trickles_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BEAT_S", 0.1)
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
        with leaves_no_thread():
            silent += [connected(port) for _ in range(9)]
            for peer in silent:
                while not is_hung_up(peer):  # it may have been greeted before
                    pass
        return silent

    run_with(strangers)
