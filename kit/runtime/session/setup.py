"""What a session is built on: its device, its executor, and its place among other sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.runtime.session.executor import Executor

__all__ = ["Setup"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a session is built on, where that is not the usual."""

    executor: Callable[..., Executor] = Executor
    device: Any = None  # a jax device, instead of the one that the settings name
    donates: bool = True  # False: no memory of an array is given to another, on any device
    while_waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    note_error: Callable[[BaseException], None] = lambda error: None  # before a read raises it
