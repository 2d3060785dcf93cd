"""Native loops that wait for something else than the device, and loops that only compute."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.measure.native.events import timeline_of
from kit.runs.run import Run
from kit.runs.verdict.advice import advise
from kit.runtime.profiling.elsewhere import Look
from kit.trace.host import ENGINE
from kit.trace.kinds import WORKERS_BEGIN, WORKERS_END
from kit.trace.limits import limited_by
from tests.measure.native.test_torch import Event, gpu_step

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does"),
    pytest.mark.usefixtures("one_torch_thread"),
]
WAIT_S = 0.008


def watched(work: Callable[[], object], batches: Any = None) -> Run:
    """A loop of plain torch that does this in each step."""
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with kit.watch(steps=1, skip=1) as watch:
        for x in batches or [torch.ones(4, 8)] * 8:
            loss = net(x).sum()
            work()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return watch.run


def share(run: Run, category: str) -> float:
    return {row.category: row.share for row in run.breakdown()}.get(category, 0.0)


def line_of(code: str, path: str = __file__) -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.strip() == code)
    return f"{Path(path).name}:{number}"


def sleeps() -> None:
    time.sleep(WAIT_S)


def sleeps_shortly() -> None:
    for _ in range(20):
        time.sleep(WAIT_S / 20)


def reads_a_file() -> None:
    """A file to which nobody writes: it is given up after a while."""
    out, into = os.pipe()
    select.select([out], [], [], WAIT_S)
    os.close(out)
    os.close(into)


def takes_a_lock() -> None:
    """One that another thread has: it is given up after a while."""
    lock, has, enough = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            enough.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    has.wait()
    lock.acquire(timeout=WAIT_S)
    enough.set()
    holder.join()


WAITS = {
    sleeps: "time.sleep(WAIT_S)",
    sleeps_shortly: "time.sleep(WAIT_S / 20)",
    reads_a_file: "select.select([out], [], [], WAIT_S)",
    takes_a_lock: "lock.acquire(timeout=WAIT_S)",
}


@pytest.mark.alone
@pytest.mark.parametrize("wait", WAITS)
def test_a_loop_that_waits_says_so_and_at_which_line(wait: Callable[[], None]) -> None:
    run = watched(wait)
    (cost,) = [row for row in kit.line_costs(run) if row.site == line_of(WAITS[wait])]
    assert cost.elsewhere_ms > 0.5 * WAIT_S * 1e3
    assert sum(row.share for row in run.breakdown()) == pytest.approx(1)
    assert share(run, "device busy") < 0.5
    advised = {a.site for a in advise(run) if a.rule == "host waits elsewhere"}
    assert cost.site in advised
    line = int(cost.site.rpartition(":")[2])
    shown = {s.first + i: text for s in run.sources for i, text in enumerate(s.lines)}
    assert WAITS[wait] in shown[line]


def computes_python() -> None:
    sum(i * i for i in range(60_000))


def computes_with_many_threads() -> None:
    torch.mm(LARGE, LARGE)


LARGE = torch.ones(400, 400)


@pytest.mark.alone
@pytest.mark.parametrize("compute", [computes_python, computes_with_many_threads])
def test_a_loop_that_computes_waits_for_nothing(compute: Callable[[], None]) -> None:
    """Where the machine does other work, torch's threads do wait for each other: of three tries."""
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        runs = [watched(compute)]
        while share(runs[-1], "host waits elsewhere") >= 0.1 and len(runs) < 3:
            runs.append(watched(compute))
    finally:
        torch.set_num_threads(threads)
    assert share(runs[-1], "host waits elsewhere") < 0.1
    assert limited_by(runs[-1].timeline).what in ("own", "recording", "device")


class _Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(WAIT_S)
        return torch.ones(4, 8)


class _Ready(_Slow):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4, 8)


class _SlowSampler:
    def __init__(self, spends: Callable[[], None]) -> None:
        self._spends = spends

    def __len__(self) -> int:
        return 32

    def __iter__(self) -> Iterator[int]:
        for i in range(len(self)):
            self._spends()
            yield i


def sleeps_long() -> None:
    time.sleep(5 * WAIT_S)


def computes_long() -> None:
    until = time.thread_time() + 2 * WAIT_S
    while time.thread_time() < until:
        pass


class _SlowItems:
    """A dataset for jax."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(WAIT_S)
        return np.ones(4, np.float32)


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12
@pytest.mark.parametrize("workers", [0, 1])
def test_a_step_that_waits_for_its_loader_is_input_bound(workers: int) -> None:
    loader = torch.utils.data.DataLoader(_Slow(), batch_size=None, num_workers=workers)
    run = watched(lambda: None, loader)
    assert share(run, "input") > share(run, "host waits elsewhere")
    assert limited_by(run.timeline).what == "input"
    (advice,) = [a for a in advise(run) if a.rule == "input"]
    assert ("though the DataLoader has workers" in advice.text) == (workers > 0)
    assert "itself" not in advice.text


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("spends", [sleeps_long, computes_long])
def test_a_sampler_is_not_made_faster_by_more_workers(spends: Callable[[], None]) -> None:
    loader: Any = torch.utils.data.DataLoader(
        _Ready(),
        batch_size=None,
        sampler=_SlowSampler(spends),  # type: ignore[arg-type]
        num_workers=1,
    )
    run = watched(lambda: None, loader)
    (advice,) = [a for a in advise(run) if a.rule == "input"]
    assert "this process is itself at work" in advice.text
    assert "num_workers" not in advice.text
    assert advice.site == (line_of("time.sleep(5 * WAIT_S)") if spends is sleeps_long else "")


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_step_that_begins_and_ends_the_workers_is_told_to_keep_them() -> None:
    loader = torch.utils.data.DataLoader(_Ready(), batch_size=None, num_workers=1)
    run = watched(lambda: next(iter(loader)))
    t = run.timeline
    assert {WORKERS_BEGIN, WORKERS_END} < {t.names[i] for i in t.name[t.where(kind="input")]}
    assert limited_by(t).what == "input"
    (advice,) = [a for a in advise(run) if a.rule == "input"]
    assert "most of that time workers of a DataLoader begin and end" in advice.text
    kind = type(iter(loader))
    assert not hasattr(kind.__init__, "__wrapped__")
    assert not hasattr(kind._shutdown_workers, "__wrapped__")


@pytest.mark.alone
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_native_step_waits_for_any_batches_as_input(prefetch: int) -> None:
    """No DataLoader, so torch's profiler has no event of its own; and a thread, where one loads."""

    def batches() -> Iterator[torch.Tensor]:
        while True:
            sleeps()
            yield torch.ones(8, 8) @ torch.ones(8, 8)

    @kit.workload
    def loading(ctx: kit.Context) -> Callable[[], Any]:
        loader = ctx.loader(batches())
        return lambda: next(loader).sum()

    settings = kit.Settings(mode="torch", device="cpu", steps=2, warmup=1, prefetch=prefetch)
    run = kit.run(loading, settings)
    assert run.limited_by().what == "input"
    parts = {row.category: row.exposed_ms for row in run.breakdown()}
    assert parts["input"] > 0.5 * WAIT_S * 1e3
    assert parts.get("host waits elsewhere", 0) < 0.1 * parts["input"]
    assert "aten::matmul" not in {s.name for s in run.timeline.spans if s.kind == "kernel"}
    (advice,) = [a for a in advise(run) if a.rule == "input"]
    assert ("most of the time at test_blocked.py:" in advice.text) == (not prefetch)


def test_a_native_step_of_a_builder_that_sleeps_says_so_too() -> None:
    @kit.workload
    def sleepy(ctx: kit.Context) -> Callable[[], Any]:
        weight = torch.nn.Parameter(torch.ones(8, 8, device=ctx.device))

        def step() -> Any:
            sleeps()
            return (weight @ weight).sum()

        return step

    run = kit.run(sleepy, kit.Settings(mode="torch", device="cpu", steps=1, warmup=1))
    (cost,) = [r for r in kit.line_costs(run) if r.site == line_of(WAITS[sleeps])]
    assert cost.elsewhere_ms > 0.5 * WAIT_S * 1e3


def test_a_native_step_of_jax_that_sleeps_dispatches_nothing_meanwhile() -> None:
    @kit.workload(framework="jax")
    def sleepy(ctx: Any) -> Callable[[], Any]:
        x = jax.numpy.ones((8, 8))

        def step() -> Any:
            sleeps()
            return (x @ x).sum()

        return step

    run = kit.run(sleepy, kit.Settings(mode="torch", device="cpu", steps=1, warmup=1))
    away = {row.site: row.elsewhere_ms for row in kit.line_costs(run)}
    assert away[line_of(WAITS[sleeps])] > 0.5 * WAIT_S * 1e3
    parts = {row.category: row.exposed_ms for row in run.breakdown()}
    assert parts["host waits elsewhere"] == pytest.approx(sum(away.values())), away
    assert sum(parts.values()) == pytest.approx(
        np.diff(run.timeline.intervals(kind="step")).mean() / 1e6
    )


@pytest.mark.alone
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_native_step_of_jax_waits_for_its_batches_as_input(prefetch: int) -> None:
    """As torch's does: its loader's sleep was "host waits elsewhere"."""

    @kit.workload(framework="jax")
    def loading(ctx: Any) -> Callable[[], Any]:
        loader = ctx.loader(_SlowItems())
        return lambda: jax.numpy.sum(next(loader))

    settings = kit.Settings(mode="torch", device="cpu", steps=2, warmup=1, prefetch=prefetch)
    run = kit.run(loading, settings.replace(batch_size=1))
    assert run.limited_by().what == "input"
    parts = {row.category: row.exposed_ms for row in run.breakdown()}
    assert parts["input"] > 0.5 * WAIT_S * 1e3
    assert parts.get("host waits elsewhere", 0) < 0.1 * parts["input"]
    assert parts["dispatch"] < parts["input"]
    (advice,) = [a for a in advise(run) if a.rule == "input"]
    assert ("most of the time at test_blocked.py:" in advice.text) == (not prefetch)


# Events and looks made by hand.


def test_a_step_of_three_ms_that_sleeps_for_two_is_limited_by_that() -> None:
    """And no word of recording, whose rows are what the thread really ran."""
    step = Event("kit step 0", 0, 3000, is_user_annotation=True)
    ops = [Event("aten::mm", 100, 300, step), Event("aten::mm", 2700, 2800, step)]
    ran = [(0, 0, ""), (1000, 500, "other"), (2000, 500, "other"), (3000, 1000, "")]
    looks = [
        Look(at * 1000, cpu * 1000, bool(call), ("mine.py", 5), 0, 0, call)  # type: ignore[arg-type]
        for at, cpu, call in ran
    ]
    run = kit.Run(
        kit.Settings(mode="torch"), (), (3_000_000,), timeline_of([step, *ops], looks=looks)
    )
    assert {row.category: row.exposed_ms for row in run.breakdown() if row.exposed_ms} == {
        "device busy": pytest.approx(0.3),
        "host waits elsewhere": 2.0,
        "forward recording": pytest.approx(0.7),
    }
    limit = run.limited_by()
    assert (limit.what, limit.share) == ("elsewhere", pytest.approx(2 / 3))
    assert [(a.rule, a.site, a.ms) for a in run.advice()] == [
        ("host waits elsewhere", "mine.py:5", pytest.approx(2))
    ]


def looks_at(*rows: tuple[float, str]) -> list[Look]:
    """(microseconds, the call that the thread is in): it never runs."""
    us = 1_000_000  # each unit of `gpu_step` is stretched to a millisecond
    return [
        Look(int(at * us), 0, bool(call), ("mine.py", 5), 0, 0, call)  # type: ignore[arg-type]
        for at, call in rows
    ]


def stretched(events: list[Event]) -> list[Event]:
    for event in events:
        event.start, event.stop = event.start * 1000, event.stop * 1000
    return events


def test_a_thread_that_waits_for_the_gpu_waits_nowhere_else() -> None:
    """Blocked all of the step: in a copy, a read, kit's own wait, a backward pass, and a sleep."""
    engine = Event("autograd::engine::evaluate_function: Mul", 61, 65)
    events = stretched([*gpu_step(0), engine])
    found = timeline_of(
        events, device="cuda", looks=looks_at(*((float(t), "other") for t in range(101)))
    )
    away = found.intervals(kind="elsewhere") / 1e6
    np.testing.assert_array_equal(away, [[0, 1], [9, 20], [60, 61], [65, 71], [99, 100]])


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=40))
def test_from_node_to_node_of_a_backward_pass_the_thread_waits_for_the_engine(
    nodes: list[tuple[int, int]],
) -> None:
    """Of 800 nodes it was 4 ms a step, with the advice to do that in another thread."""
    at, events, long = 1000, [], 0
    for gap_us, length_us in nodes:
        if events and gap_us >= 100:  # a hook may have slept there
            long += gap_us
        at += gap_us if events else 0
        events.append(Event(f"{ENGINE}: Mul", at, at + length_us))
        at += length_us
    step = Event("kit step 0", 1000, at, is_user_annotation=True)
    looks = [Look(us * 1000, 0, True, ("mine.py", 5), 0, 0, "lock") for us in (1000, at)]
    found = timeline_of([step, *events], device="cuda", looks=looks)
    away = found.intervals(kind="elsewhere")
    assert (away[:, 1] - away[:, 0]).sum() == long * 1000


def test_a_loader_that_sleeps_waits_nowhere_but_in_its_batch() -> None:
    """Of a sleep of 60 ms in the batch, what the clocks gave too much was laid outside of it."""
    step = Event("kit step 0", 0, 100, is_user_annotation=True)
    load = Event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 80, step)
    stack = Event("aten::stack", 70, 80, load)
    events = stretched([step, load, stack, Event("aten::mm", 80, 100, step)])
    looks = [replace(look, cpu_ns=0) for look in looks_at((0, ""), (40, "other"), (69, "other"))]
    looks.append(replace(looks[-1], at_ns=100_000_000, cpu_ns=31_000_000, call="", waits=False))
    found = timeline_of(events, looks=[replace(looks[0], at_ns=10_000_000), *looks[1:]])
    run = kit.Run(kit.Settings(mode="torch"), (), (100_000_000,), found)
    assert {row.category: row.exposed_ms for row in run.breakdown() if row.exposed_ms} == {
        "input": 70, "device busy": 20, "forward recording": 10}  # fmt: skip
    assert {row.cause: row.total_ms for row in run.idle} == {"input": 70, "host recording": 10}
    assert [(a.rule, a.site) for a in run.advice()][:1] == [("input", "mine.py:5")]


@pytest.mark.parametrize(("call", "parts"), [("cuLaunchKernel", 0), ("mine", 1)])
def test_a_launch_that_waits_for_room_in_the_queue_is_no_code_of_the_programs(
    call: str, parts: int
) -> None:
    """Triton's own launches: a full queue has them wait, at work."""
    step = Event("kit step 0", 0, 100, is_user_annotation=True)
    ops = [Event("aten::mm", 0, 10, step), Event(call, 10, 90, step)]
    ops += [Event("aten::mm", 90, 100, step)]
    looks = [
        replace(x, cpu_ns=x.at_ns, is_own=True) for x in looks_at(*((t, "") for t in range(101)))
    ]
    found = timeline_of(stretched([step, *ops]), device="cuda", looks=looks)
    assert found.where(kind="own").sum() == parts


def test_looks_from_outside_the_steps_say_nothing() -> None:
    events = stretched(gpu_step(50))
    looks = looks_at((0.0, "other"), (49.0, "other"), (50.0, "other"), (200.0, ""), (300.0, ""))
    assert timeline_of(events, device="cuda", looks=looks[:2]).where(kind="elsewhere").sum() == 0
    found = timeline_of(events, device="cuda", looks=looks)
    assert found.intervals(kind="elsewhere").max() <= found.intervals(kind="step").max()


def test_where_nothing_is_seen_the_run_says_so() -> None:
    for looks in ([], [Look(0, 0, False)], [Look(t, 0, False, queued_ns=-1) for t in range(9)]):
        notes = timeline_of(gpu_step(0), device="cuda", looks=looks).notes
        assert any("counts as recording" in note for note in notes)
    assert timeline_of(gpu_step(0), device="cuda").notes == ()
