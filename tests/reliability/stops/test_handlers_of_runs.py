"""What the handler of a signal raises while the kit measures, records or saves is no error of that.

See `test_handlers.py` for what it does to the steps themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kit
from kit.measure.attached.recorder import Recorded
from kit.measure.attached.recording import Recording, Wanted
from kit.measure.search.source import source_of
from kit.runtime.profiling import device_spans
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


def test_a_time_limit_while_a_run_is_read_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that went on took the file for damaged, and measured its cell again."""

    def time_is_over(*_: Any) -> None:
        raise TimeoutError("time is over")

    def read(self: Any, member: Any) -> bytes:
        monkeypatch.undo()
        signal.raise_signal(SIGNAL)
        return b""

    built: list[Any] = []
    kit.sweep(_counted(built, at=0), {"seed": [0]}, NATIVE, path=tmp_path)
    signal.signal(SIGNAL, time_is_over)
    monkeypatch.setattr("zipfile.ZipFile.read", read)
    with pytest.raises(TimeoutError, match=r"^time is over"):
        kit.sweep(_counted(built, at=0), {"seed": [0]}, NATIVE, path=tmp_path)
    assert len(built) == 1


def test_a_handlers_error_is_raised_where_a_loss_is_read() -> None:
    """It was one of the loss's, and a note of the run."""

    class Loss:
        def __float__(self) -> float:
            signal.raise_signal(SIGNAL)
            return 1.0

    with pytest.raises(TimeLimit):
        Recorded("a loop", times=[1], losses=[Loss()]).kept_losses()


def test_a_handlers_error_is_raised_where_a_trace_is_given_up() -> None:
    """So is one of the program's where the recording ends; the trace's own are forgotten."""
    failures: list[Callable[[], None]] = []

    def end_trace() -> None:
        failures.pop(0)()

    def fail() -> None:
        raise MemoryError

    recorder: Any = SimpleNamespace(end_trace=end_trace, begin_clock=list, trace_length=1)
    for second, raised in ((fail, None), (partial(signal.raise_signal, SIGNAL), TimeLimit)):
        recording = Recording(Recorded("a loop"), recorder, Wanted(2, None), [])
        failures += [fail, second]
        with pytest.raises(raised) if raised else nullcontext():
            recording.close("")
        assert not failures


@pytest.mark.parametrize("at", ["start", "stop"])
def test_a_handlers_error_is_none_of_xlas_profiler(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a note of a run without kernels, and the time limit was lost."""
    begin = device_spans._start

    def start(options: Any) -> Callable[[], Any]:
        end = begin(options)

        def stop() -> Any:
            found = end()
            signal.raise_signal(SIGNAL)
            return found

        if at == "start":
            signal.raise_signal(SIGNAL)
        return stop

    monkeypatch.setattr(device_spans, "_start", start)
    with pytest.raises(TimeLimit), device_spans.profiled():
        pass
    monkeypatch.undo()
    with device_spans.profiled() as profile:
        pass
    assert profile.notes == ()  # the profiler was not left on


def test_a_handlers_error_is_raised_where_a_sweep_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an error of the workload's own objects is forgotten."""
    asked: list[Any] = []

    def source(workload: Any) -> dict[str, str]:
        if asked:
            signal.raise_signal(SIGNAL)
        asked.append(workload)
        return source_of(workload)

    monkeypatch.setattr("kit.measure.search.sweeps.source_of", source)
    with pytest.raises(TimeLimit) as caught:
        kit.sweep(_counted([], at=0), {"seed": [0]}, NATIVE, path=tmp_path)
    assert len(caught.value.runs) == 1  # type: ignore[attr-defined]
