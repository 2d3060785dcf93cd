"""A trace leaves the step as it was, and a program runs only so far ahead of the device."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest
import torch

import kit
from kit.ir.plan import SEGMENTS_AHEAD
from kit.runtime.profiling.device_spans import profiled
from kit.threads import read_stacks
from kit.trace import kernel_table
from kit.widgets.numbers.segments import segments_html
from kit.workloads import mlp


def chain(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x + 1
    return x


def traced(
    session: Any, after_step: Callable[[], None] = lambda: None
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Trace three steps that each add 1 to a tensor 20 times."""
    state = torch.zeros(3, device="kit")

    def step() -> None:
        nonlocal state
        state = chain(state, 20)

    def steps(end_step: Callable[[], None]) -> None:
        for _ in range(3):
            session.run_step(step)
            end_step()
            after_step()

    found: tuple[Any, tuple[Any, ...], tuple[Any, ...]] = session.trace(steps)
    return found


def test_a_profile_of_the_programs_own_that_fails_is_told_of_kits() -> None:
    """As `jax.profiler.stop_trace` raises, which leaves jax unable to begin another."""
    text = "ALREADY_EXISTS: Another profiling session active."
    with pytest.raises(RuntimeError, match=text) as raised, profiled():
        raise RuntimeError(text)
    (note,) = raised.value.__notes__
    assert "the other profile is kit's" in note


def test_a_trace_keeps_no_arrays_alive() -> None:
    """Otherwise each kernel writes to fresh memory, page fault by page fault: 3 times as slow."""
    alive: list[int] = []

    with kit.Session(kit.Settings(bulk_forward=1)) as session:

        def count() -> None:
            session.wait_all()
            alive.append(len(jax.live_arrays()))

        traced(session, count)
    assert max(alive) - min(alive) < 10


def test_a_graph_is_wanted_for_what_the_next_step_reads_however_it_is_cut() -> None:
    wanted = []
    for size in (1, 7, 1000):
        with kit.Session(kit.Settings(bulk_forward=size)) as session:
            _, (graph,), _ = traced(session)
            wanted.append([(graph.ops.index(i), k) for i, k in graph.wanted])
    assert wanted == [[(19, 0)]] * 3


def test_kernels_of_steps_that_differ_by_a_number_have_the_first_ones_nodes() -> None:
    """Otherwise two thirds of the device's time are of no known op, and the verdict is withheld."""
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.ones(64, 64, device="kit")
        count = 0

        def step() -> None:
            nonlocal x, count
            count += 1
            x = torch.roll(x @ x, count) / 64

        def steps(end_step: Callable[[], None]) -> None:
            for _ in range(3):
                session.run_step(step)
                end_step()

        timeline, _, segments = session.trace(steps)
    rows = kernel_table(timeline)
    known = sum(row.charged_ms for row in rows if row.node >= 0)
    assert len(segments) == 1
    assert known > 0.9 * sum(row.charged_ms for row in rows)


def test_a_trace_is_not_stopped_by_the_garbage_collector() -> None:
    collected: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    with kit.Session(kit.Settings(bulk_forward=1)) as session:
        x = torch.zeros(3, device="kit")

        def steps(end_step: Callable[[], None]) -> None:
            gc.callbacks.append(note)
            session.run_step(lambda: chain(x, 400))
            end_step()
            gc.callbacks.remove(note)

        session.trace(steps)
        assert collected == []
        assert gc.isenabled()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="these collect elsewhere")
@pytest.mark.parametrize("ends_first", ["trace", "read"])
def test_a_trace_and_a_read_of_stacks_leave_the_collector_off_for_each_other(
    ends_first: str,
) -> None:
    """The one that ended first had switched it on, though the other still needed it off."""
    reads, ended, is_on = threading.Event(), threading.Event(), []

    def read() -> None:
        reads.set()
        ended.wait(30)
        is_on.append(gc.isenabled())

    reader = threading.Thread(target=lambda: read_stacks(read))

    def steps(end_step: Callable[[], None]) -> None:
        if ends_first == "trace":  # it has begun first, too
            reader.start()
            reads.wait(30)
        else:
            ended.set()
            reader.join()
            is_on.append(gc.isenabled())
        end_step()

    with kit.Session(kit.Settings(bulk_forward=1)) as session:
        if ends_first == "read":
            reader.start()
            reads.wait(30)
        session.trace(steps)
        if ends_first == "trace":
            ended.set()
            reader.join()
    assert not any(is_on)
    assert gc.isenabled()


def test_a_program_that_runs_ahead_waits_for_the_device_now_and_then() -> None:
    slow = threading.Event()

    def wait(x: Any) -> Any:
        slow.wait(30)
        return x

    def erf(x: Any) -> Any:
        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    rules = kit.Rules({"aten.erf.default": erf}).over(kit.DEFAULT_RULES)
    with kit.Session(kit.Settings(bulk_forward=1), rules=rules) as session:
        x = torch.erf(torch.zeros(3, device="kit"))
        timer = threading.Timer(1.0, slow.set)
        timer.start()
        y = chain(x, SEGMENTS_AHEAD * 3)
        assert slow.is_set()  # it could not get so far ahead
        assert y.tolist() == [SEGMENTS_AHEAD * 3.0] * 3
        assert session.metrics()["ahead.count"] >= 1
        timer.join()


def test_launch_and_sync_overheads_are_measured_and_kept_with_the_run() -> None:
    run = kit.run(mlp, kit.Settings(steps=1, warmup=1))
    for name in ("overhead.launch_ns", "overhead.sync_ns"):
        assert 0 < run.metrics[name] < 1e9
    assert "launching next to nothing takes" in segments_html(run)


def test_kernels_of_another_session_with_the_same_program_are_not_taken_for_the_traced_ones() -> (
    None
):
    def compute() -> None:
        x = torch.ones(400, 400, device="kit")
        (x @ x).tanh().sum().item()

    def other() -> None:
        with kit.Session(kit.Settings(mode="lazy")):
            compute()

    def steps(end_step: Callable[[], None]) -> None:
        for _ in range(3):
            threads.submit(other).result()
            compute()
            end_step()

    with ThreadPoolExecutor(1) as threads, kit.Session(kit.Settings(mode="lazy")) as session:
        compute()
        timeline = session.trace(steps).timeline
    launches = [s for s in timeline.spans if s.kind == "dispatch"]
    own = [s for s in timeline.spans if s.kind == "kernel" and s.segment >= 0]
    assert own
    for kernel in own:
        middle = (kernel.start_ns + kernel.stop_ns) / 2
        assert any(s.start_ns < middle < s.stop_ns for s in launches)
    (note,) = timeline.notes
    assert note == (
        "3 more runs of the same programs, by another session or for a wrong guess: their kernels "
        "are shown as of no segment"
    )
