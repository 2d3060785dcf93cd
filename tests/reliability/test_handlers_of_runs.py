"""What the handler of a signal raises while the kit measures, records or saves is no error of that.

See `test_handlers.py` for what it does to the steps themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.runtime.session.interrupts import INTERRUPTS
from tests.reliability.training import TimeLimit

SIGNAL = signal.SIGUSR1 if sys.platform != "win32" else signal.SIGTERM


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    INTERRUPTS.hook()
    signal.signal(SIGNAL, limit)
    yield
    signal.signal(SIGNAL, before)


def limit(*_: Any) -> None:
    raise TimeLimit


def _counted(built: list[Any], at: int) -> Any:
    """A workload in whose run of this number a signal arrives."""

    def build(ctx: Any) -> Any:
        built.append(ctx)
        x = torch.ones(2)

        def step() -> Any:
            if len(built) == at:
                signal.raise_signal(SIGNAL)
            return x.sum()

        return step

    return kit.workload(build)


NATIVE = kit.Settings(mode="torch", steps=1, warmup=0)


def test_a_handlers_error_has_the_runs_that_a_sweep_has_finished() -> None:
    """They were lost; those of an interrupt are kept."""
    with pytest.raises(TimeLimit) as caught:
        kit.sweep(_counted([], at=3), {"seed": [0, 1, 2, 3]}, NATIVE)
    assert [run.settings.seed for run in caught.value.runs] == [0, 1]  # type: ignore[attr-defined]
    assert "what was measured is in this error's .runs" in caught.value.__notes__


def test_a_handlers_error_with_slots_ends_a_sweep_as_it_is() -> None:
    class Slots(TimeLimit):
        @property
        def runs(self) -> None: ...

    def raise_it(*_: Any) -> None:
        raise Slots

    signal.signal(SIGNAL, raise_it)
    with pytest.raises(Slots) as caught:
        kit.sweep(_counted([], at=2), {"seed": [0, 1]}, NATIVE)
    assert caught.value.runs is None


def test_a_time_limit_while_a_run_is_saved_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most raise `TimeoutError`, which is an OSError: it was a warning, and forgotten."""

    def time_is_over(*_: Any) -> None:
        raise TimeoutError("time is over")

    def sync(file: int) -> None:
        monkeypatch.undo()
        signal.raise_signal(SIGNAL)

    signal.signal(SIGNAL, time_is_over)
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(TimeoutError, match=r"^time is over") as caught:
        kit.sweep(_counted([], at=0), {"seed": [0, 1]}, NATIVE, path=tmp_path)
    assert [run.settings.seed for run in caught.value.runs] == [0]  # type: ignore[attr-defined]
    assert len(list(tmp_path.iterdir())) == 1
