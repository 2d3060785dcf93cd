"""Waiting in a test for what another thread does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import ref

__all__ = ["freed", "in_another_thread", "leaves_no_thread", "until"]


@contextmanager
def leaves_no_thread() -> Iterator[None]:
    """What runs in it ends each thread that it starts; those of earlier tests may end meanwhile."""
    before = set(threading.enumerate())
    yield
    until(lambda: set(threading.enumerate()) <= before)


@contextmanager
def in_another_thread(block: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Another thread is inside of its block for as long as this one is inside of this."""
    is_inside, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with block():
            is_inside.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    until(is_inside.is_set)
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def freed(held: ref[Any]) -> bool:
    """Is the object gone, once all garbage is collected?"""
    gc.collect()
    return held() is None


def until(claim: Callable[[], bool]) -> None:
    """Return once the claim is true; fail if it never is."""
    for _ in range(20_000):
        if claim():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came true")
