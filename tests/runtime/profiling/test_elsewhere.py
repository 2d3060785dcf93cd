"""Where the host waits for something else: from looks made by hand, and on real threads."""

from __future__ import annotations

import asyncio
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.runtime.profiling.elsewhere import Look, blocked_of, waits_of
from kit.runtime.profiling.elsewhere import looks as looking
from kit.runtime.recording.sites import format_site
from tests.reliability.stops.errors import ACTS, lines_of, run_with
from tests.waiting import leaves_no_thread

MS = 1_000_000
HERE = (__file__, 7)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does")


def looks(*rows: tuple[float, float, bool]) -> list[Look]:
    """(time, processor time, does it wait), in milliseconds."""
    return [Look(int(at * MS), int(cpu * MS), waits, HERE) for at, cpu, waits in rows]


def ends(found: list[Any]) -> list[tuple[float, float]]:
    return [(a.start_ns / MS, a.stop_ns / MS) for a in found]


def test_a_stretch_begins_and_ends_between_two_looks_where_the_processor_time_says() -> None:
    seen = looks((0, 0, False), (1, 0.4, True), (2, 0.4, True), (3, 0.7, False), (4, 1.7, False))
    assert ends(waits_of(seen)) == [(0.4, 2.7)]
    assert waits_of(seen)[0].site == HERE


def test_a_thread_without_a_core_does_not_wait() -> None:
    assert waits_of(looks((0, 0, False), (1, 0, False), (2, 0, False), (3, 0, False))) == []


def test_a_thread_that_works_between_the_looks_does_not_wait() -> None:
    """As one that is stopped for a moment by each look, since a look takes Python's lock."""
    assert waits_of(looks(*((t, 0.8 * t, True) for t in range(6)))) == []


def test_a_short_stretch_is_left_out() -> None:
    assert waits_of(looks((0, 0, False), (0.9, 0, True), (1.9, 1, False))) == []


def test_what_the_kit_itself_waits_for_is_not_meant() -> None:
    own = [Look(t * MS, 0, True, ("", 0)) for t in range(5)]
    assert waits_of(own) == []


def test_what_happened_between_looks_that_are_far_apart_is_not_guessed() -> None:
    assert waits_of(looks((0, 0, True), (1, 0, True), (21, 2, True), (41, 4, False))) == waits_of(
        looks((0, 0, True), (1, 0, True))
    )
    assert ends(waits_of(looks((0, 0, True), (20, 0.1, True)))) == [(0.1, 20)]


def test_two_lines_are_two_stretches() -> None:
    seen = [Look(t * MS, 0, True, ("a.py", 1 + t // 3)) for t in range(6)]
    assert [(a.site[1], a.start_ns // MS, a.stop_ns // MS) for a in waits_of(seen)] == [
        (1, 0, 2),
        (2, 2, 5),
    ]


def seen(*rows: tuple[float, float, str], queued: float = 0) -> list[Look]:
    """(time, processor time, the call that it waits in), in milliseconds."""
    known = int(queued * MS)
    return [
        Look(int(at * MS), int(cpu * MS), bool(call), HERE, known, 0, call)  # type: ignore[arg-type]
        for at, cpu, call in rows
    ]


def blocked(found: list[Look], *known: tuple[float, float]) -> list[tuple[float, float]]:
    return ends(blocked_of(found, (np.array(known).reshape(-1, 2) * MS).astype(np.int64)))


def test_what_no_look_saw_is_counted_by_the_clocks() -> None:
    """Six short sleeps in three milliseconds: each look finds the thread at work."""
    rows = [(float(t), 0.4 * t, "") for t in range(4)]
    assert blocked(seen(*rows)) == [(0.4, 1), (1.4, 2), (2.4, 3)]


def test_a_sleep_is_one_stretch_from_where_it_begins_to_where_it_ends() -> None:
    rows = [(0, 0, ""), (1, 0.4, "other"), (2, 0.4, "other"), (3, 0.7, "")]
    assert blocked(seen(*rows)) == [(0.4, 2.7)]


def test_time_without_a_core_is_not_blocked_even_if_told_late() -> None:
    """The system counts it when the thread has a core again: 3 ms after the first look here."""
    late = [Look(t * MS, 0 if t < 3 else 1 * MS, False, HERE, 0 if t < 3 else 2 * MS)
            for t in range(4)]  # fmt: skip
    assert blocked(late) == []


def test_what_a_look_itself_holds_up_is_not_blocked() -> None:
    held = [Look(t * MS, int(0.8 * t * MS), False, HERE, 0, int(0.15 * t * MS)) for t in range(5)]
    assert blocked(held) == []


def test_a_thread_that_waits_for_pythons_lock_waits_at_no_line() -> None:
    """Another thread of the program computes in Python: the looks have to wait for it, too."""
    rows = seen((0, 0, "lock"), (6, 1, ""), (12, 2, "lock"), (18, 3, "other"), (24, 3, "other"))
    late = [replace(look, is_late=True) for look in rows]
    assert blocked(late) == [(13, 24)]  # one that sleeps asks for no lock
    assert blocked(rows) == [(0, 5), (7, 12), (13, 24)]


def test_what_follows_a_look_that_waited_for_pythons_lock_may_be_such_a_wait_too() -> None:
    """The look that ends it may have come in time, as the last one, or one of several in turn."""
    for call, stays in (("", []), ("lock", []), ("other", [(7, 12)])):
        rows = seen((0, 0, ""), (6, 1, ""), (12, 2, call))
        assert blocked([rows[0], replace(rows[1], is_late=True), rows[2]]) == stays, call


def test_a_thread_that_waits_at_a_lock_of_the_programs_does_so_whoever_has_pythons() -> None:
    """As for a batch that another thread makes in Python, which has Python's lock meanwhile."""
    rows = seen((0, 0, "lock"), (6, 0, "lock"), (12, 0, "lock"), (18, 1, "lock"))
    late = [replace(look, is_late=True, in_lock=True) for look in rows]
    assert blocked(late) == [(0, 12)]  # and perhaps in the last 6, or in some of them
    assert blocked([late[0], replace(late[1], in_lock=False), *late[2:]]) == []


def test_a_wait_without_a_line_of_the_users_is_the_kits_own_only_where_that_is_at_work() -> None:
    """A pool's thread waits for what to do next in Python's own code."""
    rows = [replace(look, site=("", 0)) for look in seen((0, 0, "lock"), (2, 0, "lock"))]
    assert blocked(rows) == [(0, 2)]
    assert blocked([replace(look, is_kits=True) for look in rows]) == []


def test_a_read_of_jax_waits_for_the_device_and_for_nothing_else() -> None:
    seen = [Look(t * MS, 0, True, HERE, 0, 0, "lock", in_read=True) for t in range(4)]
    assert blocked(seen) == []
    asleep = [replace(look, in_read=False) for look in seen]
    assert blocked(asleep) == [(0, 3)]


@linux
@pytest.mark.parametrize("read", [float, jax.block_until_ready, jax.device_get])
def test_a_real_read_of_jax_is_told_from_a_sleep(read: Callable[[Any], Any]) -> None:
    often, turn = 300_000, lambda _, y: jax.numpy.tanh(y @ y)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, often, turn, x).sum())
    x = jax.block_until_ready(slow(np.eye(8))) * np.eye(8)
    with looking() as seen:
        read(slow(x))
        time.sleep(0.02)
    assert any(look.in_read for look in seen)
    assert any(look.call == "other" and not look.in_read for look in seen)


@linux
@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12: that is the point
def test_threads_switch_as_before_in_a_forked_child_and_where_no_look_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader's worker kept the shorter interval for life."""
    before = sys.getswitchinterval()
    with looking(often=True):
        assert sys.getswitchinterval() < before
        if not (child := os.fork()):
            os._exit(sys.getswitchinterval() != before)
        assert os.waitpid(child, 0)[1] == 0
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with looking(often=True):
        assert sys.getswitchinterval() == before


def test_threads_that_compute_an_op_together_wait_for_each_other_in_it() -> None:
    """In the op, wherever the looks place it; but a sleep is none of the op's."""
    for call, stays in (("lock", []), ("", []), ("other", [(0.7, 1)])):
        rows = [(0, 0, ""), (1, 0.5, call), (2, 1.5, "")]
        assert blocked(seen(*rows), (0, 0.7)) == stays, call


def test_a_lock_is_seen_beside_an_op_and_rather_too_short_than_too_long() -> None:
    rows = [(0, 0, ""), (1, 0.5, "lock"), (2, 0.5, "lock"), (3, 0.6, "")]
    assert blocked(seen(*rows), (0, 0.5), (2.9, 3)) == [(1, 2.8)]


def test_where_the_system_does_not_count_time_without_a_core_nothing_is_said() -> None:
    assert blocked(seen((0, 0, ""), (5, 0, "other"), queued=-1e-6)) == []
    assert blocked([]) == []


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["runs", "blocked", "queued"])), min_size=1
    ),
    st.sets(st.integers(0, 60)),
)
def test_the_clocks_give_all_time_that_was_blocked_and_no_more(
    pieces: list[tuple[int, str]], cuts: set[int]
) -> None:
    """Against counting: a thread runs, is blocked or has no core, and looks come when they come."""
    ticks = [what for length, what in pieces for _ in range(length)]
    at = sorted({0, len(ticks), *(c for c in cuts if c < len(ticks))})

    def had(what: str, until: int) -> int:
        return sum(t == what for t in ticks[:until]) * MS

    looked = [Look(t * MS, had("runs", t), False, HERE, had("queued", t)) for t in at]
    found = blocked_of(looked, np.zeros((0, 2), np.int64))
    assert sum(a.stop_ns - a.start_ns for a in found) == had("blocked", len(ticks))
    for before, now in pairwise(at):
        inside = sum(max(0, min(a.stop_ns, now * MS) - max(a.start_ns, before * MS)) for a in found)
        assert inside == had("blocked", now) - had("blocked", before)


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def read_pipe() -> None:
    out, into = os.pipe()
    threading.Timer(0.4, os.write, (into, b"x")).start()
    os.read(out, 1)
    os.close(out)
    os.close(into)


def take_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=0.4)


@linux
@pytest.mark.alone
@pytest.mark.parametrize("wait", [lambda: time.sleep(0.4), read_pipe, take_lock])
def test_a_real_wait_is_seen_with_its_line_and_computing_is_not(wait: Callable[[], Any]) -> None:
    with looking() as seen:
        compute(0.05)
        start = time.perf_counter_ns()
        wait()
        stop = time.perf_counter_ns()
        compute(0.05)
    found = waits_of(seen)
    assert found
    file = Path(__file__).name
    assert {format_site(a.site).split(":")[0] for a in found} == {file}
    inside = sum(min(a.stop_ns, stop) - max(a.start_ns, start) for a in found)
    assert 0.1 * (stop - start) < inside <= stop - start
    outside = sum(a.stop_ns - a.start_ns for a in found) - inside
    assert outside < inside


@linux
@pytest.mark.alone
def test_a_sleep_at_either_end_is_as_long_as_by_the_clock() -> None:
    """The looks come each millisecond, and what lies before the first or after the last counts.

    Beside other workers it failed: the clock also has the time in which a thread that has woken
    finds no core, which is no sleep. Rounds with such time say nothing of the looks.
    """
    shares: list[float] = []
    until = time.monotonic() + 30
    while len(shares) < 9:
        if time.monotonic() > until:
            pytest.fail("other programs had the cores for half a minute: nothing can be told")
        with looking() as seen:
            start = time.perf_counter_ns()
            time.sleep(0.004)
            middle = time.perf_counter_ns()
            compute(0.005)
            after = time.perf_counter_ns()
            time.sleep(0.004)
            slept = time.perf_counter_ns() - after + middle - start
        if seen[-1].queued_ns - seen[0].queued_ns > 0.1 * MS:
            continue
        found = blocked_of(seen, np.zeros((0, 2), np.int64))
        shares.append(sum(a.stop_ns - a.start_ns for a in found) / slept)
    assert 0.93 < np.median(shares) < 1.05


@linux
@pytest.mark.alone
def test_a_thread_beside_one_that_computes_in_python_is_blocked_nowhere() -> None:
    """33 of 50 ms were "blocked": a wait for Python's lock up to the first look, or the last."""
    enough = threading.Event()

    def spin() -> None:
        while not enough.is_set():
            pass

    beside = threading.Thread(target=spin)
    beside.start()
    try:
        with looking() as seen:
            compute(0.04)
    finally:
        enough.set()
        beside.join()
    found = blocked_of(seen, np.zeros((0, 2), np.int64))
    assert sum(a.stop_ns - a.start_ns for a in found) < 6 * MS


@linux
@pytest.mark.alone
def test_a_wait_for_another_thread_that_computes_in_python_is_seen_with_its_line() -> None:
    batches: queue.Queue[int] = queue.Queue()

    def make() -> None:
        compute(0.05)
        batches.put(1)

    with looking() as seen:
        beside = threading.Thread(target=make)
        beside.start()
        batches.get()
    beside.join()
    found = blocked_of(seen, np.zeros((0, 2), np.int64))
    line = (__file__, _line_of("batches.get()"))
    assert sum(a.stop_ns - a.start_ns for a in found if a.site == line) > 25 * MS


@linux
@pytest.mark.alone
def test_a_wait_of_coroutines_is_not_said_of_the_line_that_has_begun_them() -> None:
    with looking() as seen:
        asyncio.run(asyncio.sleep(0.05))
    found = blocked_of(seen, np.zeros((0, 2), np.int64))
    assert sum(a.stop_ns - a.start_ns for a in found if a.site == ("", 0)) > 25 * MS
    began = (__file__, _line_of("asyncio.run(asyncio.sleep(0.05))"))
    assert sum(a.stop_ns - a.start_ns for a in found if a.site == began) < 15 * MS


@linux
@pytest.mark.alone
def test_a_look_that_waits_for_the_thread_it_looks_at_is_not_late() -> None:
    """A step that computes before it sleeps: its sleep was not told, as if others had computed."""
    with looking() as seen:
        for _ in range(5):
            compute(0.004)
            time.sleep(0.002)
    assert sum(x.is_late for x in seen) <= len(seen) / 2


@linux
@pytest.mark.alone
def test_a_step_that_sleeps_says_which_line_and_is_not_told_to_leave_a_core() -> None:
    @kit.workload
    def sleepy(ctx: kit.Context) -> Callable[[], Any]:
        weight = torch.nn.Parameter(torch.ones(32, 32).to(ctx.device))
        opt = torch.optim.SGD([weight], lr=0.1)

        def step() -> Any:
            loss = (weight @ weight).sum()
            time.sleep(0.4)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        return step

    run = kit.run(sleepy, kit.Settings(mode="lazy", steps=1, warmup=2))
    site = f"{Path(__file__).name}:{_line_of('time.sleep(0.4)')}"
    shares = {row.category: row.share for row in run.breakdown()}
    assert shares["host waits elsewhere"] > 0.4
    assert run.limited_by().what == "elsewhere"
    (advice,) = [a for a in run.advice() if a.rule == "host waits elsewhere"]
    assert advice.site == site
    assert "cores" not in {a.rule for a in run.advice()}
    (cost,) = [row for row in kit.line_costs(run) if row.site == site]
    assert cost.elsewhere_ms > 50
    assert any(s.file == Path(__file__).name for s in run.sources)


@linux
@pytest.mark.parametrize("at", ["kit.runtime.profiling.elsewhere._Looking._at_work",
                                "threading.Thread.join"])  # fmt: skip
def test_an_interrupt_while_the_looks_end_leaves_no_thread_and_no_file_open(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = psutil.Process()
    before = process.num_fds()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    ended, patches = pytest.raises(KeyboardInterrupt), monkeypatch.context()
    with leaves_no_thread(), ended, patches as patched, looking():
        patched.setattr(at, interrupted)
    assert process.num_fds() == before


@linux
@pytest.mark.parametrize("act", ACTS)
def test_what_comes_at_any_line_of_the_looks_leaves_no_thread(act: str) -> None:
    """Without memory for the first look the second thread looked for ever."""

    def look() -> None:
        with looking(often=True):
            pass

    look()
    lines, switched = lines_of(look), sys.getswitchinterval()
    assert len(lines) > 30
    for line in lines:
        with leaves_no_thread(), suppress(MemoryError, KeyboardInterrupt):
            run_with(look, line, ACTS[act])
        sys.setswitchinterval(switched)  # at the line that does so it was left


def _line_of(code: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip() == code)
