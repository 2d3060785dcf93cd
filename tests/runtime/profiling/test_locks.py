"""Launches whose worker waits for Python's lock: that time is the program's, not the launch's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kit
from kit.runtime.profiling.locks import UNKNOWN_NS, without_lock
from kit.trace import Span

MS = 1_000_000


def ms(number: float) -> int:
    return round(number * MS)


def shortened(
    start: float, stop: float, worked: float | None, *kernels: tuple[float, float]
) -> tuple[float, float]:
    """Milliseconds of the launch of segment 7, after it was looked at."""
    launch = Span("host/worker", "(3 ops)", "dispatch", ms(start), ms(stop), segment=7)
    made = [Span("device/0", "k", "kernel", ms(a), ms(b), segment=7) for a, b in kernels]
    known = {7: UNKNOWN_NS if worked is None else ms(worked)}
    (found,) = without_lock([launch], known, made)
    return found.start_ns / MS, found.stop_ns / MS


def test_a_launch_that_waited_for_the_lock_is_as_long_as_its_worker_worked() -> None:
    assert shortened(0, 6, 1, (5, 5.5)) == pytest.approx((5 - 10 / 11, 5.5 + 1 / 11), abs=1e-5)
    assert shortened(0, 6, 1, (0, 0.5)) == pytest.approx((0, 1.5))  # it waited to return
    start, stop = shortened(0, 9, 1, (2, 4), (3, 5))
    assert stop - start == pytest.approx(3 + 1)  # the device's time and the worker's
    assert shortened(0, 6, 0, (2, 4)) == (2, 4)


def test_a_launch_that_hardly_waited_or_of_which_nothing_is_known_stays() -> None:
    assert shortened(0, 6, None, (5, 5.5)) == (0, 6)
    assert shortened(0, 6, 5.2, (5, 5.5)) == (0, 6)
    assert shortened(0, 0.4, 0, (0.2, 0.3)) == (0, 0.4)
    assert shortened(0, 6, 0, (0, 6)) == (0, 6)  # nothing but the device
    record = Span("host/main", "forward", "record", 0, ms(6), segment=7)
    assert without_lock([record], {7: 0}, []) == [record]


def test_a_launch_without_kernels_ends_when_it_did() -> None:
    assert shortened(0, 6, 1) == pytest.approx((5, 6))


@pytest.mark.parametrize("mode", ["lazy", "bulked"])
def test_a_program_that_computes_in_python_is_not_called_dispatch_bound(mode: str) -> None:
    """It keeps the lock for 5 ms at a time, so that each launch seemed to take so long."""

    @kit.workload
    def spins(ctx: kit.Context) -> Callable[[], Any]:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(ctx.device)
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.ones(8, 64).to(ctx.device)

        def step() -> Any:
            end = time.perf_counter() + 0.006
            while time.perf_counter() < end:
                pass
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        return step

    shares = kit.run(spins, kit.Settings(mode=mode, steps=10, warmup=3)).limit_shares
    assert shares["recording"] + shares["own"] > 2 * shares["dispatch"], shares
