"""What a process holds does not grow, and what grows is told from what was only not given back."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import pytest

from kit.runtime.session.session import Session
from tests.reliability import growth
from tests.reliability.growth import Held, grown, sessions
from tests.reliability.training import Training

FLAT = Held(500.0, 20.0, 150.0, 200.0, 1_600_000, 0, 3, 4, 12, 0, 0)


def test_sessions_leave_nothing_behind() -> None:
    of_another_test = (Training("lazy"), jnp.zeros(3))
    looks = sessions(3, ["lazy"])
    assert not grown(looks[1:])
    assert looks[-1].programs == looks[1].programs
    assert looks[-1].arrays <= looks[0].arrays
    del of_another_test


def test_a_session_that_is_held_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Session] = []

    class Holding(Training):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            held.append(self.session)

    monkeypatch.setattr(growth, "Training", Holding)
    with pytest.raises(AssertionError, match="1 sessions are held after mode lazy"):
        sessions(1, ["lazy"])


def test_a_leak_is_told_and_what_was_trimmed_is_not() -> None:
    looks = [FLAT] * 9
    assert not grown(looks)
    trimmed = [replace(FLAT, trimmed_mb=100.0 * i) for i in range(9)]
    assert not grown(trimmed)
    leaking = [replace(FLAT, in_use_mb=150.0 + 4 * i) for i in range(9)]
    assert grown(leaking) == ["in_use_mb: 166 -> 178"]
    threads = [replace(FLAT, threads=4 + i // 3) for i in range(9)]
    assert grown(threads) == ["threads: 5 -> 6"]
