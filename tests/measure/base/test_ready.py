"""Batches that a DataLoader's workers have ready: steps that use them up are not the loop's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
import torch

import kit
from kit.measure.base import ready
from kit.measure.base.ready import ReadyBatches, used_up_text
from tests.waiting import until

READY = 8  # what the worker prepares ahead

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:.*fork"),  # of jax, and of Python 3.12
]


class Gated(torch.utils.data.Dataset[torch.Tensor]):
    """Gives as many items as the test lets through."""

    def __init__(self) -> None:
        self.gate = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.gate.acquire()
        return torch.ones(4)


class Slow:
    """A loop whose loader has some batches ready, and then brings one for every second step."""

    def __init__(self) -> None:
        data = Gated()
        self._let = data.gate.release
        self._batches: Iterator[torch.Tensor] = iter(
            torch.utils.data.DataLoader(
                data, num_workers=1, prefetch_factor=READY, multiprocessing_context="fork"
            )
        )
        self.ready = ReadyBatches()
        self._steps = 0
        self._net = torch.nn.Linear(4, 2)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.1)
        self.bring(READY)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(10 * READY):  # the worker ends once it waits for no item
            self._let()
        self._batches = iter(())  # else a test after it would find the loader

    def bring(self, count: int) -> None:
        there = self.ready.note()
        for _ in range(count):
            self._let()
        until(lambda: self.ready.note() == there + count)

    def step(self) -> torch.Tensor:
        self._steps += 1
        if not self._steps % 2 or not self.ready.note():
            self.bring(1)
        loss = self._net(next(self._batches)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss


def test_a_warm_up_goes_on_until_what_was_prepared_is_used_up() -> None:
    with Slow() as loop, kit.watch(steps=6) as watch:
        while not watch.runs:
            loop.step()
    assert watch.run.settings.warmup > READY
    assert not [note for note in watch.run.timeline.notes if "used up" in note]
    assert watch.run.timeline.where(kind="input").any()
    with Slow() as loop:
        made = kit.run(lambda ctx: loop.step, kit.Settings(mode="torch", steps=6))
    assert made.conditions.warmup_steps > READY
    assert not [note for note in made.timeline.notes if "used up" in note]


def test_measured_steps_that_use_up_what_was_prepared_say_so() -> None:
    with Slow() as loop, kit.watch(steps=8, skip=1) as watch:
        while not watch.runs:
            loop.step()
    assert "the measured steps used up 4 batches" in " ".join(watch.run.timeline.notes)
    settings = kit.Settings(mode="torch", steps=8, warmup=2)
    with Slow() as loop:
        made = kit.run(lambda ctx: loop.step, settings)
    assert "the measured steps used up 4 batches" in " ".join(made.timeline.notes)


def test_traced_steps_wait_until_no_more_is_ready_than_in_the_measured_ones() -> None:
    """The profiler takes long to begin, and workers go on meanwhile."""
    with Slow() as loop, kit.watch(steps=4, skip=2 * READY) as watch:
        for _ in range(2 * READY + 6):  # the steps that are looked at are next
            loop.step()
        loop.bring(4)
        count = 0
        while not watch.runs:
            loop.step()
            count += 1
    assert count >= 2 * 3 + 4
    assert not [note for note in watch.run.timeline.notes if "still had" in note]


def test_the_batch_that_was_made_while_the_profiler_began_is_no_traced_steps() -> None:
    """Of three steps that wait for a worker, the first would wait for what was left of one."""
    with Slow() as loop:
        for _ in range(2 * READY):
            loop.step()
        loop.ready.end_measured(4)
        assert loop.ready.led_in(0) == (False, "")
        loop.step()
        assert loop.ready.led_in(1) == (True, "")
        # Of a job's rank nothing is measured: one with workers would take a step more than others,
        # and wait for ever in its collectives.
        assert ReadyBatches().led_in(0) == (True, "")
    alone = ReadyBatches()
    alone.note()
    alone.end_measured(1)
    assert alone.led_in(0) == (True, "")


def test_the_sentence_says_what_a_step_may_take_if_that_is_known() -> None:
    times = [10_000_000] * 6
    assert "up to 20 ms a step" in used_up_text([8, 8, 7, 7, 6, 6, 5], times)
    said = used_up_text([9, 8, 7, 6, 5, 4, 3], times)  # no batch came
    assert "used up 6 batches" in said
    assert "up to" not in said
    assert used_up_text([3, 2, 3, 3, 2, 3, 2], times) == ""
    assert used_up_text([], []) == ""


def test_loaders_are_looked_for_only_once_a_process_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To look goes through all objects of Python, and a step waits for it."""
    looks: list[int] = []
    find = ready._live_iterators
    monkeypatch.setattr(ready, "_live_iterators", lambda: looks.append(1) or find())
    forked = multiprocessing.get_context("fork")
    over = forked.Event()
    counted = ReadyBatches()
    for _ in range(3):
        counted.note()
    before = len(looks)
    child = forked.Process(target=over.wait)
    child.start()
    try:
        for _ in range(5):
            assert counted.note() == 0
    finally:
        over.set()
        child.join()
    assert len(looks) == before + 1
