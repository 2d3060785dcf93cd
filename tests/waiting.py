"""Waiting in a test for what another thread does."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["until"]


def until(claim: Callable[[], bool]) -> None:
    """Return once the claim is true; fail if it never is."""
    for _ in range(20_000):
        if claim():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came true")
