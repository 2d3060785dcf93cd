"""A clock that is set while steps are traced moves nothing on a timeline: nothing is shown."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import torch

import kit
from kit.measure.experiment import run
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.runtime.profiling import clocks
from kit.runtime.profiling.clocks import DayClock
from kit.workloads import mlp


def test_a_jump_is_told_and_a_clock_that_is_slowly_put_right_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = SimpleNamespace(perf=0, day=7 * 10**18)
    fake = SimpleNamespace(
        perf_counter_ns=lambda: now.perf,
        time_ns=lambda: now.day,
        get_clock_info=lambda name: SimpleNamespace(resolution=1e-9),
    )
    monkeypatch.setattr(clocks, "time", fake)
    clock = DayClock()
    assert clock.apart_ns == now.day
    now.perf, now.day = 10**10, now.day + 10**10 + 5 * 10**6  # 0.5 in a thousand: by NTP
    assert clock.note() == ""
    now.day += 10**9
    assert "it is 1 s off" in clock.note()
    fake.get_clock_info = lambda name: SimpleNamespace(resolution=1.0)
    assert clock.note() == ""


def test_the_clocks_are_compared_where_nothing_came_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that lost its core between two clocks moved all kernels of a trace."""
    times = iter([0, 9_000_000, *(x for i in range(1, 5) for x in (i * 10**7, i * 10**7 + 100))])
    day = iter([5, *(i * 10**7 + 50 + 3 for i in range(1, 5))])
    fake = SimpleNamespace(perf_counter_ns=times.__next__, time_ns=day.__next__)
    monkeypatch.setattr(clocks, "time", fake)
    assert clocks._apart_ns() == 3


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_run_whose_clock_jumped_shows_no_times_of_the_profiler(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Steps of 2 ms were drawn with 13, 48 and 84; or most kernels were missing."""
    monkeypatch.setattr(clocks, "_apart_ns", count(0, 10**9).__next__)
    made = run(mlp, Settings(mode=mode, steps=2, warmup=2))
    assert not made.timeline.where(kind="kernel").any()
    assert "the system's clock was set" in made.timeline.notes[0]
    assert "the system's clock was set" in summary(made)
    assert len(made.step_times_ns) == 2


def test_so_does_a_watched_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "_apart_ns", count(0, 10**9).__next__)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight])
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(12):
            weight.sum().backward()
            optimizer.step()
    assert not len(watch.run.timeline)
    assert "the system's clock was set" in " ".join(watch.run.timeline.notes)
