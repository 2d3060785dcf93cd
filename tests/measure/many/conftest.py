"""Processes that begin at once, as there are some forty of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import spawn

import pytest

from tests.warm import warm_python

# What each process imports before it does anything, and what the first optimizer of torch does.
_NEEDED = ["kit.measure.many.replicas", "kit.runtime.processes.join", "torch._dynamo"]


@pytest.fixture(autouse=True)
def _processes_share_their_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each is a fork of one that has imported torch and jax, and has started none of their threads.

    The tests that call the command line start theirs as users do.
    """
    from kit.measure.many import launch  # loads jax

    usual = spawn.get_executable()
    multiprocessing.set_executable(warm_python())
    multiprocessing.set_forkserver_preload(_NEEDED)
    monkeypatch.setattr(launch, "_CONTEXT", multiprocessing.get_context("forkserver"))
    yield
    multiprocessing.set_executable(usual)
