"""Processes that begin at once, as there are some forty of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

# What each process imports before it does anything, and what the first optimizer of torch does.
_NEEDED = ["kit.measure.many.replicas", "kit.runtime.processes.join", "torch._dynamo"]


@pytest.fixture(autouse=True, scope="module")
def _processes_share_their_imports(warm_processes: None) -> Iterator[None]:
    """Each is a fork of one that has imported torch and jax, and has started none of their threads.

    Runs that all tests of a file look at are made like the others. The tests that call the command
    line start theirs as users do.
    """
    from kit.measure.many import launch  # loads jax

    multiprocessing.set_forkserver_preload(_NEEDED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_CONTEXT", multiprocessing.get_context("forkserver"))
        yield
