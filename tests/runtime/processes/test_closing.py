"""A channel that is closed before it is open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.errors import SessionError
from kit.runtime.processes.channel import Channel
from kit.runtime.processes.greeting import Badge
from kit.runtime.processes.links import free_port


def test_to_open_a_closed_channel_is_an_error_and_no_wait() -> None:
    channel = Channel(Badge(0, 2, "a secret of this test", "run"), timeout_s=30.0)
    channel.close()
    pool = ThreadPoolExecutor(1)
    opened = pool.submit(channel.open, "127.0.0.1", free_port())
    with pytest.raises(SessionError, match="closed while it opened"):
        opened.result(20)
    pool.shutdown()
