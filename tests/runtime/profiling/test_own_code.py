"""The program's own code between two ops: from looks made by hand, and of real steps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.runtime.profiling.elsewhere import Look
from kit.runtime.profiling.own_code import stretches
from kit.torch.mapping import DeviceNames
from kit.trace import Span

MS = 1_000_000
MINE, OTHER = ("/home/me/train.py", 7), ("/home/me/train.py", 9)
RECORD = Span("host/main", "forward", "record", 0, 20 * MS)


def look(at: float, *, cpu: float | None = None, queued: float = 0, site: Any = MINE,
         call: Any = "", is_own: bool = True) -> Look:  # fmt: skip
    ran = at if cpu is None else cpu
    return Look(int(at * MS), int(ran * MS), False, site, int(queued * MS), call=call,
                is_own=is_own)  # fmt: skip


def found(looks: list[Look], *ops: float, spans: tuple[Span, ...] = (RECORD,)) -> Any:
    times = np.array([(int(at * MS),) * 2 for at in ops], np.int64).reshape(-1, 2)
    return [
        (s.name, s.kind, s.start_ns / MS, s.stop_ns / MS) for _, s in stretches(times, spans, looks)
    ]


def test_what_lies_between_two_ops_is_own_code_if_the_looks_saw_the_program() -> None:
    assert found([look(t) for t in range(21)], 2, 12, 20) == [
        ("train.py:7", "own", 0, 2), ("train.py:7", "own", 2, 12), ("train.py:7", "own", 12, 20),
    ]  # fmt: skip


def test_ops_in_a_row_leave_none() -> None:
    assert found([look(t) for t in range(21)], *(t / 2 for t in range(41))) == []


def test_it_has_the_line_that_was_seen_most() -> None:
    looks = [look(t, site=OTHER if 4 <= t < 11 else MINE) for t in range(21)]
    assert [row[0] for row in found(looks, 2, 12)] == ["train.py:7", "train.py:9", "train.py:7"]


@pytest.mark.parametrize("seen", [{"is_own": False}, {"call": "other"}, {"cpu": 0.0}],
                         ids=["at work in torch or the kit", "asleep", "blocked"])  # fmt: skip
def test_recording_and_waiting_are_not_own_code(seen: dict[str, Any]) -> None:
    assert found([look(t, **seen) for t in range(21)], 2, 12) == []


def test_a_thread_that_stands_in_line_for_a_core_still_computes() -> None:
    """On a busy machine: it had a core for a third of the time."""
    looks = [look(t, cpu=0.3 * t, queued=0.7 * t) for t in range(21)]
    assert [row[2:] for row in found(looks, 2, 12)] == [(0, 2), (2, 12), (12, 20)]


def test_a_thread_that_lost_its_core_between_two_ops_computes_nothing() -> None:
    looks = [look(t, cpu=0.02 * t, queued=0.98 * t) for t in range(21)]
    assert found(looks, 2, 12) == []


def test_what_is_known_otherwise_stays_so_and_no_look_says_nothing() -> None:
    loading = Span("host/main", "next batch", "input", 3 * MS, 11 * MS)
    looks = [look(t) for t in range(21)]
    parts = found(looks, 2, 12, spans=(RECORD, loading))
    assert [row[2:] for row in parts] == [(0, 2), (2, 3), (11, 12), (12, 20)]
    assert found([look(1, is_own=False), look(20)], 2, 12) == []
    assert found([], 2, 12) == []
    assert found(looks, spans=()) == []


def test_a_look_is_of_the_time_at_which_it_saw_the_line() -> None:
    """It then waits for Python's lock, and ends in the stretch of the next line."""
    looks = [look(t) for t in range(21)]
    looks[5] = replace(looks[5], site=OTHER, seen_ns=int(1.9 * MS))
    others = looks[0], look(20, is_own=False)
    later = found([others[0], replace(looks[5], seen_ns=-1), others[1]], 2, 12)
    assert [row[:3] for row in later] == [("train.py:7", "own", 0), ("train.py:9", "own", 2)]
    assert [row[2] for row in found([others[0], looks[5], others[1]], 2, 12)] == [0]


def test_torchs_python_is_the_programs_where_torch_runs_the_step_itself() -> None:
    """It writes a checkpoint, say."""
    ops = np.array([(2 * MS, 3 * MS), (12 * MS, 20 * MS)])
    looks = [look(t, is_own=False) for t in range(21)]
    assert stretches(ops, [RECORD], looks) == []
    spans = [span for _, span in stretches(ops, [RECORD], looks, is_native=True)]
    assert spans == [
        Span("host/main", "train.py:7", "own", 0, 2 * MS),
        Span("host/main", "train.py:7", "own", 3 * MS, 12 * MS),
    ]
    issuing = [replace(x, issues=True) for x in looks]  # an optimizer, before its ops
    assert stretches(ops, [RECORD], issuing, is_native=True) == []


def test_a_look_that_waited_for_the_lock_is_of_what_kept_it_but_not_after_another_op() -> None:
    """Python's collector keeps it for 100 ms, and the look comes once that waits for something."""
    waits = Span("host/main", "train.py:7", "elsewhere", 11 * MS, 12 * MS)
    for at, begins in ((11.2, [0, 2]), (12.5, [0])):
        looks = [look(0), look(1), look(at), look(20, is_own=False)]
        rows = found(looks, 2, 12, 12.4, 20, spans=(RECORD, waits))
        assert [row[2] for row in rows if row[3] <= 12] == begins


NUMBERS = torch.arange(10_000)


def randn() -> None:
    torch.randn(2000, 1000)


def python() -> None:
    sum(i * i for i in range(400_000))


def small_ops() -> None:
    with DeviceNames():  # of `kit run --on kit`: each call of torch passes a function of the kit
        torch.stack([NUMBERS[i : i + 8] for i in range(3_000)])


KEPT: list[Any] = []


def collect() -> None:
    """Python's collector then calls jax's hook: each look saw that one, and nothing of the line."""
    KEPT[:] = KEPT or [[i] for i in range(600_000)]
    gc.collect()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does")
@pytest.mark.alone
@pytest.mark.parametrize("compute", [randn, python, small_ops, collect])
def test_a_step_that_computes_on_the_host_says_so_at_its_line(compute: Callable[[], None]) -> None:
    """It counted as recording of the line after it, with the advice to record less."""

    @kit.workload
    def mine(ctx: Any) -> Callable[[], Any]:
        x = torch.randn(64, 64).to(ctx.device)

        def step() -> Any:
            y = (x @ x).relu()
            compute()
            return (y @ x).sum()

        return step

    run = kit.run(mine, kit.Settings(mode="lazy", steps=5))
    KEPT.clear()
    rows = {row.category: row.total_ms for row in run.breakdown()}
    recorded = sum(ms for name, ms in rows.items() if "recording" in name)
    assert rows["own code"] > max(5, recorded)
    assert run.limit_shares["own"] == max(run.limit_shares.values())
    (line,) = [row.site for row in run.idle if row.cause == "own code"][:1]
    assert line.startswith(Path(__file__).name)
    assert run.advice()[0].rule == "own code"
