"""A watched loop, and steps that other threads make meanwhile: of another loop, or of the same."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import kit
from kit.measure.attached.native import _LITTLE_OF_TORCH, _MAY_BE_OF_JAX, _JaxArrays
from kit.measure.base.turns import HELD, TURNS
from kit.runs.conditions import IN_TURNS, OF_OTHERS
from kit.trace import LIMITS
from tests.measure.attached.loops import Loop
from tests.waiting import in_another_thread

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_another_threads_steps_are_not_counted() -> None:
    loop, other = Loop(), Loop()
    with kit.watch(steps=50, skip=0) as watch:
        loop.train(3)
        thread = threading.Thread(target=other.train, args=(5,))
        thread.start()
        thread.join()
        loop.train(1)
    assert len(watch.run.step_times_ns) == 3  # the first step of the loop began the recording
    assert OF_OTHERS not in watch.run.environment


@pytest.mark.parametrize("turn", [TURNS.measure, TURNS.record])
def test_what_an_explorer_measures_meanwhile_is_none_of_the_loops_steps(turn: Any) -> None:
    """Its steps came first, so the watch followed them, and the loop had "seen no step"."""

    def explore() -> None:
        with turn():
            Loop().train(3)

    with kit.watch(steps=2, skip=0) as watch:
        thread = threading.Thread(target=explore)
        thread.start()
        thread.join()
        Loop().train(12)
    assert watch.ended == "complete: measured 2 of 2 steps"
    assert OF_OTHERS not in watch.run.environment
    assert watch.run.limited_by().what in LIMITS


def test_a_loop_in_a_context_of_a_turn_that_is_over_is_watched() -> None:
    """As of a task that was made in it: the watch followed no step, and had "seen no step"."""
    with TURNS.measure():
        copied = contextvars.copy_context()
        assert copied.run(TURNS.is_held)
    with kit.watch(steps=2, skip=0) as watch:
        copied.run(Loop().train, 12)
    assert copied.run(HELD.get) is None
    assert watch.ended == "complete: measured 2 of 2 steps"


def test_arrays_of_an_explorer_make_no_loop_one_of_jaxs() -> None:
    """A small loop of torch beside one was told to be of jax, and had no timeline."""
    arrays = _JaxArrays()
    with kit.Session():
        arrays.note()
        kept = [jnp.ones(3)]
    assert arrays.has_more()
    assert arrays.may_be_kits
    arrays.note()
    kept.append(jnp.ones(3))
    assert arrays.has_more()
    assert not arrays.may_be_kits
    arrays.note()
    with kit.Session():  # it begins and ends between two looks
        kept.append(jnp.ones(3))
    assert arrays.may_be_kits


@pytest.mark.parametrize("tells_loss", [False, True])
def test_a_loop_beside_a_session_is_one_of_jaxs_for_sure_if_its_loss_is(tells_loss: bool) -> None:
    """Else that is not known, and a note says what its sleeps may be."""
    kept = []
    with in_another_thread(kit.Session), kit.watch(steps=2, skip=0) as watch:
        for _ in range(12):
            kept.append(jnp.ones(3))
            torch.ones(3).add(1)
            time.sleep(0.01)
            watch.step(kept[-1][0] if tells_loss else None)
    timeline = watch.run.timeline
    assert (_MAY_BE_OF_JAX in timeline.notes) == (not tells_loss)
    assert (_LITTLE_OF_TORCH in timeline.notes) == tells_loss == (not len(timeline))


@pytest.mark.parametrize("ends_itself", [False, True])
def test_a_loop_whose_steps_threads_make_in_turns_says_so_and_no_limit(ends_itself: bool) -> None:
    """As `asyncio.to_thread(step)`: a pool's threads share them, and one of these is recorded."""
    loop = Loop()
    with kit.watch(steps=3, skip=1) as watch:

        def step() -> None:
            loop.train(1)
            if ends_itself:
                watch.step()

        for _ in range(16):
            step()
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
    run = watch.runs[0]
    assert int(run.environment[OF_OTHERS]) in range(9, 16)
    assert any(note.startswith("other threads made ") for note in run.timeline.notes)
    assert str(run.limited_by()) == f"not said: {IN_TURNS}"
