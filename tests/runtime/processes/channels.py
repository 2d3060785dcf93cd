"""Channels of processes that are threads here, and peers that greet them by hand."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from kit.runtime.processes.channel import Channel
from kit.runtime.processes.greeting import Badge
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
