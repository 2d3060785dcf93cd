"""Input on device kit: the loader's thread prepares and copies ahead, and what goes wrong there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import SettingsError
from kit.measure.base import loading
from kit.trace import breakdown
from tests.waiting import leaves_no_thread

QUICK = kit.Settings(mode="lazy", steps=6, warmup=3, batch_size=4)


class Slow(torch.utils.data.Dataset[Any]):
    """Items that cost host time: numpy's sort lets other threads run, as decoding does."""

    def __init__(self, size: int, *, fail_at: int = -1) -> None:
        self.size, self.fail_at = size, fail_at

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if index == self.fail_at:
            raise OSError("disk gone")
        noise = np.sort(np.random.default_rng(index).standard_normal(self.size))
        return torch.from_numpy(noise[:: self.size // 64].astype(np.float32)[:64])


def workload_of(data: Any, *, work: int = 2) -> kit.Workload:
    @kit.workload
    def reading(ctx: kit.Context) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(work))).to(ctx.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = ctx.loader(data)

        def step() -> Any:
            total: Any = 0
            for x in ctx.micro_batches(batches):
                loss = model(x).square().mean() / ctx.accumulate
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total

        return step

    return reading


def spans_of(run: kit.Run, lane: str) -> list[str]:
    return [s.name for s in run.timeline.spans if s.lane == lane and s.kind == "input"]


def test_prefetch_moves_preparation_and_copy_to_the_loaders_lane() -> None:
    reading = workload_of(Slow(20_000), work=12)
    plain, ahead = (kit.run(reading, QUICK.replace(prefetch=k)) for k in (0, 2))
    assert {"next batch", "copy to device"} <= set(spans_of(plain, "host/main"))
    assert "host/loader" not in plain.timeline.lanes
    batches = sorted(
        (s.start_ns, s.stop_ns) for s in plain.timeline.spans if s.name == "next batch"
    )  # torch's loader brings them inside of the context's, which says it already
    assert all(a[1] <= b[0] for a, b in pairwise(batches))
    assert {"next batch", "copy to device"} <= set(spans_of(ahead, "host/loader"))
    assert set(spans_of(ahead, "host/main")) <= {"waiting for a batch"}
    assert ahead.losses == plain.losses


@pytest.mark.parametrize("settings", [
    QUICK, QUICK.replace(mode="bulked", bulk_forward=3), QUICK.replace(step_mode="replay", steps=9),
    QUICK.replace(step_mode="speculate"), QUICK.replace(accumulate=3),
])  # fmt: skip
def test_prefetch_changes_no_number(settings: kit.Settings) -> None:
    reading = workload_of(Slow(256))
    plain = kit.run(reading, settings)
    ahead = kit.run(reading, settings.replace(prefetch=2))
    assert ahead.losses == plain.losses
    if replayed := plain.metrics.get("replay.steps"):
        assert ahead.metrics["replay.steps"] == replayed + ahead.settings.settling


class Sleepy(Slow):
    """Items that take as long as they say, and little of the processor."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(ITEM_S)
        return super().__getitem__(index)


ITEM_S = 0.005


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_what_a_full_queue_gives_away_is_neither_measured_nor_traced(mode: str) -> None:
    """While the program pauses, the loader fills its queue: the next steps would not wait."""
    settings = QUICK.replace(mode=mode, steps=4, prefetch=4)
    batch_ns = settings.batch_size * ITEM_S * 1e9
    for _ in range(5):  # a busy machine may let the program pause at any time, and the loader go on
        run = kit.run(workload_of(Sleepy(64)), settings)
        steps = run.timeline.intervals(kind="step")
        traced_ns = (steps[:, 1] - steps[:, 0]).sum()
        taken = (sum(run.step_times_ns) / settings.steps, traced_ns / len(steps))
        if min(taken) > 0.5 * batch_ns:  # one may be late, one early
            break
    else:
        raise AssertionError("each run took batches that were prepared in a pause")
    assert len(run.losses) == len(run.step_times_ns) == 4
    assert run.timeline.start_ns.min() >= 0
    assert (run.timeline.stop_ns > run.timeline.start_ns).mean() > 0.9  # nothing before the window


def test_a_batch_costs_what_it_costs_the_loaders_thread() -> None:
    """A run whose queue is full never waits; without the thread its step would."""
    inner, batch_ms = workload_of(Sleepy(64)), QUICK.batch_size * ITEM_S * 1e3

    @kit.workload
    def slow(ctx: kit.Context) -> Callable[[], Any]:
        step = inner(ctx)

        def slowly() -> Any:
            time.sleep(2 * batch_ms / 1e3)
            return step()

        return slowly

    run = kit.run(slow, QUICK.replace(prefetch=2))
    alone = kit.predict(run, run.settings.replace(prefetch=0))
    assert alone.step_ms > run.step_ms + batch_ms / 2


@pytest.mark.alone
def test_a_step_that_waits_for_its_batches_is_named_input_bound() -> None:
    run = kit.run(workload_of(Slow(400_000)), QUICK.replace(steps=3, prefetch=1))
    assert run.limited_by().what == "input"
    assert run.limited_by().share > 0.5
    quick = kit.run(workload_of(torch.ones(64, 64), work=40), QUICK)
    assert quick.limited_by().what != "input"


def test_the_loaders_own_work_is_not_charged_to_the_step() -> None:
    run = kit.run(workload_of(Slow(256), work=20), QUICK.replace(prefetch=2))
    charged = {row.category: row.exposed_ms for row in breakdown(run.timeline)}
    loader = run.timeline.intervals(lane="host/loader")
    assert len(loader)
    waiting = [s for s in run.timeline.spans if s.lane == "host/main" and s.kind == "input"]
    assert charged["input"] <= sum(s.stop_ns - s.start_ns for s in waiting) / 1e6 + 1e-9


def test_micro_batches_are_issued_one_by_one() -> None:
    run = kit.run(workload_of(Slow(256)), QUICK.replace(accumulate=3))
    cuts = [segment.cut for segment in run.segments]
    assert cuts == ["micro-batch", "micro-batch", "mark_step"]
    native = kit.run(workload_of(Slow(256)), QUICK.replace(accumulate=3, mode="torch"))
    np.testing.assert_allclose(run.losses, native.losses, rtol=1e-4)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_of_the_dataset_comes_out_of_the_step(prefetch: int) -> None:
    with pytest.raises(OSError, match="disk gone"):
        kit.run(workload_of(Slow(64, fail_at=5)), QUICK.replace(prefetch=prefetch, steps=20))
    assert not any(t.name == "kit prefetch" for t in threading.enumerate())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_ends_early_says_so(prefetch: int) -> None:
    once = (torch.ones(4, 64) for _ in range(5))
    with pytest.raises(SettingsError, match="the loader ended after 5 batches"):
        kit.run(workload_of(once), QUICK.replace(prefetch=prefetch))


def test_an_iterator_of_the_users_own_that_ends_names_the_step() -> None:
    @kit.workload
    def finite(ctx: kit.Context) -> Callable[[], Any]:
        values = iter([torch.ones(2), torch.ones(2)])
        return lambda: next(values).to(ctx.device).sum()

    with pytest.raises(SettingsError, match="has ended, at step 3 of 14"):
        kit.run(finite, QUICK)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_native_run_ends_its_loaders_thread_though_the_program_keeps_the_loader(
    framework: str,
) -> None:
    kept = []

    def build(ctx: kit.Context) -> Callable[[], Any]:
        data = np.ones((8, 2), np.float32)
        batches = ctx.loader(list(torch.from_numpy(data)) if framework == "torch" else data)
        kept.append(batches)
        return lambda: next(batches).sum()

    workload = kit.workload(framework=framework)(build)
    with leaves_no_thread():
        kit.run(workload, QUICK.replace(mode="torch", prefetch=2))
    assert kept


def test_a_batch_that_never_comes_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PATIENCE_S", 0.05)
    go_on, is_there = threading.Event(), threading.Event()

    def batches() -> Iterator[int]:
        yield 1
        is_there.set()
        go_on.wait(60)

    ready = loading.prefetched(batches(), 2)
    assert next(ready) == 1
    is_there.wait(60)
    with leaves_no_thread():
        with pytest.warns(UserWarning, match=r"prepared at test_loading.py:\d+, after 0.05 s"):
            ready.close()
        go_on.set()
