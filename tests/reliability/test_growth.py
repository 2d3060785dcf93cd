"""What a process holds does not grow, and what grows is told from what was only not given back."""

from __future__ import annotations

from dataclasses import replace

from tests.reliability.growth import Held, grown, sessions

FLAT = Held(500.0, 20.0, 150.0, 200.0, 1_600_000, 0, 3, 4, 12, 0, 0)


def test_sessions_leave_nothing_behind() -> None:
    looks = sessions(3, ["lazy"])
    assert not grown(looks[1:])
    assert looks[-1].programs == looks[1].programs
    assert looks[-1].arrays == 0


def test_a_leak_is_told_and_what_was_trimmed_is_not() -> None:
    looks = [FLAT] * 9
    assert not grown(looks)
    trimmed = [replace(FLAT, trimmed_mb=100.0 * i) for i in range(9)]
    assert not grown(trimmed)
    leaking = [replace(FLAT, in_use_mb=150.0 + 4 * i) for i in range(9)]
    assert grown(leaking) == ["in_use_mb: 166 -> 178"]
    threads = [replace(FLAT, threads=4 + i // 3) for i in range(9)]
    assert grown(threads) == ["threads: 5 -> 6"]
