"""A watched loop, and steps that other threads make meanwhile: of another loop, or of the same."""

from __future__ import annotations

import threading

import pytest

import kit
from kit.runs.conditions import IN_TURNS, OF_OTHERS
from tests.measure.attached.loops import Loop

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
