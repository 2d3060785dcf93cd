"""Idle gaps: against asking every unit of time one by one, and on real runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given

import kit
from kit.runs.verdict.summary import summary
from kit.trace import Span, SyncPoint, Timeline, breakdown_ns, gaps, idle_after, union_ns
from kit.trace.devices import count_devices
from kit.trace.gaps import Gap, idle_gaps, idle_of, idle_table
from kit.trace.hta import HTA_CAUSES, hta_idle
from kit.trace.kinds import GAP_CAUSES
from kit.trace.limits import limit_shares
from kit.workloads import mlp
from tests.factories import make_run
from tests.smaller import smaller_bert
from tests.trace.idle_time import END, STEPS, host, kernel, one_by_one, reduction, timelines


def causes(*spans: Span, syncs: tuple[SyncPoint, ...] = ()) -> list[tuple[str, int, int]]:
    gaps = idle_gaps(Timeline.of([*STEPS, *spans], syncs))
    return [(g.cause, g.start_ns, g.stop_ns) for g in gaps]


def test_a_gap_is_cut_where_its_cause_changes() -> None:
    assert causes(
        kernel(0, 20), host("record", 10, 40), host("dispatch", 40, 55, 0), kernel(50, END, 0)
    ) == [("host recording", 20, 40), ("dispatch", 40, 50)]


@pytest.mark.parametrize(
    ("spans", "cause"),
    [
        ([host("compile", 0, END), host("record", 0, END)], "compile"),
        ([host("lower", 0, END)], "compile"),
        ([host("dispatch", 0, END)], "dispatch"),
        ([host("input", 0, END), host("record", 0, END)], "input"),
        ([host("elsewhere", 0, END), host("record", 0, END)], "host waits elsewhere"),
        ([host("own", 0, END), host("record", 0, END)], "own code"),
        ([host("input", 0, END), host("elsewhere", 0, END)], "input"),
        ([host("input", 0, END, lane="host/loader")], "unknown"),
        ([host("record", 0, END), host("ahead", 0, END)], "dispatch"),
        ([host("wait", 0, END), host("record", 0, END)], "sync point"),
        ([], "unknown"),
    ],
    ids=[
        "compile",
        "lower",
        "dispatch",
        "input",
        "elsewhere",
        "own code",
        "a batch that sleeps",
        "loader",
        "ahead",
        "wait",
        "nothing",
    ],
)
def test_what_the_host_did_is_the_cause(spans: list[Span], cause: str) -> None:
    assert causes(kernel(0, 20), *spans, kernel(50, END)) == [(cause, 20, 50)]


def test_a_gap_inside_one_program_is_the_programs() -> None:
    assert causes(kernel(0, 20, 3), host("record", 0, END), kernel(50, END, 3)) == [
        ("program", 20, 50)
    ]


def test_a_segment_that_had_been_dispatched_waits_for_the_kernel_before_it() -> None:
    spans = [kernel(0, 20, 0), host("dispatch", 5, 10, 1), kernel(50, END, 1)]
    assert causes(*spans, host("record", 0, END)) == [("dependency", 20, 50)]


def test_a_segment_that_was_dispatched_in_the_gap_has_yet_to_begin() -> None:
    spans = [kernel(0, 20, 0), host("dispatch", 25, 30, 1), kernel(50, END, 1)]
    assert causes(*spans, host("record", 0, 25)) == [
        ("host recording", 20, 25),
        ("dispatch", 25, 30),
        ("dispatch", 30, 50),
    ]


def test_a_device_that_is_idle_while_another_works_depends_on_it() -> None:
    gaps = idle_gaps(
        Timeline.of(
            [*STEPS, kernel(0, 60), kernel(80, END), kernel(40, END, lane="device/1 Stream #7")]
        )
    )
    assert [(g.lane, g.cause, g.length_ns) for g in gaps] == [
        ("device/0", "dependency", 20),
        ("device/1", "dependency", 40),
    ]


def test_a_device_that_runs_next_to_nothing_waits_for_nobody() -> None:
    """A byte that each rank of a job fills on the first GPU: "they wait for each other"."""
    fill = kernel(1_000, 1_001, lane="device/1 Stream #7")
    step = Span("host/main", "step", "step", 0, 1_200)
    t = Timeline.of([step, kernel(0, 900), kernel(1_100, 1_200), fill])
    assert count_devices(t) == 1
    assert [(g.lane, g.cause, g.length_ns) for g in idle_gaps(t)] == [
        ("device/0", "unknown", 100),
        ("device/0", "dependency", 1),
        ("device/0", "unknown", 99),
    ]
    assert sum(limit_shares(t).values()) == pytest.approx(1)


def test_a_device_that_is_idle_while_its_gradients_travel_waits_for_them() -> None:
    spans = [kernel(0, 20), reduction(10, 40), host("record", 30, 50), kernel(50, END)]
    assert causes(*spans) == [("reduction", 20, 40), ("host recording", 40, 50)]
    elsewhere = [kernel(0, END), kernel(0, 20, lane="device/1 a"), reduction(20, END)]
    assert causes(*elsewhere) == [("dependency", 20, END)]


def test_a_wait_is_not_charged_for_a_reduction_after_it() -> None:
    t = Timeline.of(
        [*STEPS, kernel(0, 20), reduction(20, 35), kernel(50, END)],
        [SyncPoint(5, 15, "item", "train.py:7")],
    )
    assert [(g.cause, g.start_ns, g.stop_ns) for g in idle_gaps(t)] == [
        ("reduction", 20, 35),
        ("sync point", 35, 50),
    ]
    assert idle_after(t) == (15,)


def test_a_sleep_after_a_wait_is_the_sleeps_and_names_its_line() -> None:
    t = Timeline.of(
        [
            *STEPS,
            kernel(0, 20),
            Span("host/main", "train.py:9", "elsewhere", 25, 45),
            host("record", 20, 60),
            kernel(50, END),
        ],
        [SyncPoint(0, 20, "item", "train.py:7")],
    )
    assert [(g.cause, g.site, g.start_ns, g.stop_ns) for g in idle_gaps(t)] == [
        ("sync point", "train.py:7", 20, 25),
        ("host waits elsewhere", "train.py:9", 25, 45),
        ("sync point", "train.py:7", 45, 50),
    ]
    assert idle_after(t) == (10,)
    rows = {(row.cause, row.site): row.total_ms for row in idle_table(t)}
    assert rows["host waits elsewhere", "train.py:9"] == 20e-6


def test_a_sync_point_is_named_with_its_line_while_the_host_waits_and_after() -> None:
    sync = SyncPoint(10, 30, "item", "train.py:7")
    t = Timeline.of(
        [*STEPS, host("wait", 10, 40), kernel(0, 30), host("record", 40, 90), kernel(90, END)],
        [sync],
    )
    gaps = idle_gaps(t)
    assert [(g.cause, g.site, g.by, g.length_ns) for g in gaps] == [
        ("sync point", "train.py:7", 0, 10),
        ("sync point", "train.py:7", 0, 30),
        ("host recording", "", t.spans.index(host("record", 40, 90)), 20),
    ]
    assert [g.note for g in gaps[:2]] == [
        "the host waited (item)",
        "what was issued before the wait (item) had been used up",
    ]


def test_a_gap_names_the_kernel_that_ended_it() -> None:
    t = Timeline.of([*STEPS, kernel(0, 20), kernel(50, 100)])
    first, last = idle_gaps(t)
    assert t.spans[first.before] == kernel(50, 100)
    assert last.before == -1


def test_a_device_that_never_pauses_has_no_gap() -> None:
    assert causes(kernel(0, END)) == []
    assert idle_gaps(Timeline.of([kernel(5, 9)])) == ()


def test_without_kernels_nothing_is_said() -> None:
    assert idle_gaps(Timeline.of([*STEPS, host("record", 0, END)])) == ()
    assert idle_gaps(Timeline.of([])) == ()


def test_without_steps_the_window_is_the_timeline() -> None:
    gaps = idle_gaps(Timeline.of([host("input", 0, 10), kernel(10, 30), kernel(40, 50)]))
    assert [(g.cause, g.start_ns, g.stop_ns) for g in gaps] == [
        ("input", 0, 10),
        ("unknown", 30, 40),
    ]


def test_the_table_adds_up_and_names_each_line() -> None:
    rows = idle_table(
        [
            Gap("device/0", 0, 30, "input"),
            Gap("device/0", 40, 50, "sync point", "a.py:1"),
            Gap("device/0", 60, 80, "sync point", "b.py:2"),
            Gap("device/0", 90, 130, "input"),
        ]
    )
    assert [(r.cause, r.site, r.count, r.share) for r in rows] == [
        ("input", "", 2, 0.7),
        ("sync point", "b.py:2", 1, 0.2),
        ("sync point", "a.py:1", 1, 0.1),
    ]
    assert rows[0].longest_ms == 40e-6
    assert idle_table([]) == ()


def test_what_a_summary_says_of_idle_time_is_found_once(monkeypatch) -> None:
    made = []

    class Counted(gaps._Cells):
        def __init__(self, *how: Any) -> None:
            made.append(how[1])
            super().__init__(*how)

    monkeypatch.setattr(gaps, "_Cells", Counted)
    summary(make_run(syncs=2))
    assert len(made) <= 2  # by cause, and by cause and line; they were 5


def test_what_the_host_did_is_not_looked_at_while_another_device_works(monkeypatch) -> None:
    devices, each = 8, 1_000
    spans = [Span("host/main", "step", "step", 0, devices * each)]
    spans += [host("record", i, i + 3) for i in range(0, devices * each, 4)]
    spans += [kernel(d * each, (d + 1) * each, lane=f"device/{d} a") for d in range(devices)]
    cells = []

    class Counted(gaps._Cells):
        def __init__(self, *how: Any) -> None:
            super().__init__(*how)
            cells.append(len(self.start))

    monkeypatch.setattr(gaps, "_Cells", Counted)
    found = idle_gaps(Timeline.of(spans))
    assert {g.cause for g in found} == {"dependency"}
    assert sum(g.length_ns for g in found) == devices * (devices - 1) * each
    assert sum(cells) == len(found) == 2 * (devices - 1)  # before its kernel, and after


def test_many_lines_to_blame_cost_one_pass() -> None:
    spans, syncs = [Span("host/main", "step", "step", 0, 100_000)], []
    for i in range(2_000):
        spans.append(Span("device/0", "k", "kernel", 50 * i, 50 * i + 10))
        syncs.append(SyncPoint(50 * i + 5, 40, "item", f"a.py:{i % 7}"))
        spans.append(Span("host/main", "item", "wait", 50 * i + 5, 50 * i + 45))
    timeline = Timeline.of(spans, syncs)
    assert idle_table(timeline) == idle_table(idle_gaps(timeline))
    assert len({row.site for row in idle_table(timeline)} - {""}) == 7


def test_hta_names_a_gap_by_its_launch_and_its_length() -> None:
    us = 1000
    spans = [
        kernel(0, 100 * us, 0),
        host("dispatch", 200 * us, 210 * us, 1),
        kernel(300 * us, 400 * us, 1),  # launched late
        host("dispatch", 350 * us, 360 * us, 2),
        kernel(429 * us, 500 * us, 2),  # launched in time, a gap below HTA's default of 30 us
        host("dispatch", 450 * us, 460 * us, 3),
        kernel(530 * us, 700 * us, 3),  # launched in time, one that is not below
    ]
    t = Timeline.of(spans)
    assert hta_idle(t) == {
        "device/0 thread 1": {"host wait": 200 * us, "kernel wait": 29 * us, "other": 30 * us}
    }
    assert [g.hta for g in idle_gaps(t) if g.start_ns in (100 * us, 400 * us, 500 * us)] == [
        "host wait",
        "kernel wait",
        "other",
    ]


def test_launches_without_segments_are_paired_in_order_if_none_is_missing() -> None:
    kernels = [kernel(10, 20), kernel(30, 40)]
    t = Timeline.of([host("dispatch", 5, 6), host("dispatch", 25, 26), *kernels])
    assert hta_idle(t) == {"device/0 thread 1": {"host wait": 10, "kernel wait": 0, "other": 0}}
    t = Timeline.of([host("dispatch", 5, 6), host("dispatch", 7, 8), *kernels])
    assert hta_idle(t) == {"device/0 thread 1": {"host wait": 0, "kernel wait": 10, "other": 0}}
    t = Timeline.of([host("dispatch", 25, 26), *kernels])
    assert hta_idle(t) == {"device/0 thread 1": {"host wait": 0, "kernel wait": 10, "other": 0}}


@given(timelines())
def test_every_unit_of_idle_time_has_the_first_cause_that_holds(t: Timeline) -> None:
    gaps = idle_gaps(t)
    found = Counter(
        (g.lane, i, g.cause, g.site) for g in gaps for i in range(g.start_ns, g.stop_ns)
    )
    assert found == Counter(one_by_one(t))


@given(timelines())
def test_the_table_of_a_timeline_is_that_of_its_gaps(t: Timeline) -> None:
    assert idle_table(t) == idle_table(idle_gaps(t))
    by_hta = Counter(dict.fromkeys(HTA_CAUSES, 0))
    for gap in idle_gaps(t):
        by_hta[gap.hta] += gap.length_ns
    assert idle_of(t).by_hta == by_hta


@given(timelines())
def test_time_charged_to_a_wait_after_it_agrees_with_idle_after(t: Timeline) -> None:
    lanes = [lane.replace("device/1", "device/0") for lane in t.lanes]
    t = Timeline.of([Span(lanes[t.lanes.index(s.lane)], s.name, s.kind, s.start_ns, s.stop_ns,
                          s.segment) for s in t.spans], t.syncs)  # fmt: skip
    charged = [0] * len(t.syncs)
    for g in idle_gaps(t):
        if g.note.startswith("what was issued"):
            charged[g.by] += g.length_ns
    assert tuple(charged) == idle_after(t)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lazy", "bulked", "imperative"])
@pytest.mark.parametrize("name", ["bert", "mlp"])
def test_real_gaps_add_up_to_idle_time_and_little_is_unknown(name: str, mode: str) -> None:
    workload = {"bert": smaller_bert(), "mlp": mlp}[name]
    run = kit.run(
        workload,
        kit.Settings(
            mode=mode, steps=1, warmup=1, batch_size=2, loss_scaling="dynamic, host check"
        ),
    )
    t = run.timeline
    gaps = idle_gaps(t)
    idle = union_ns(t.intervals(kind="step")) - breakdown_ns(t)["device busy"][1]
    assert sum(g.length_ns for g in gaps) == idle > 0
    assert {g.cause for g in gaps} <= set(GAP_CAUSES)
    assert {g.hta for g in gaps} <= set(HTA_CAUSES)
    unknown = sum(g.length_ns for g in gaps if g.cause == "unknown")
    assert unknown < 0.05 * idle
    after = [0] * len(t.syncs)
    for g in gaps:
        if g.note.startswith("what was issued"):
            after[g.by] += g.length_ns
    assert tuple(after) == idle_after(t)
    assert t.syncs
    assert any(g.site.startswith(t.syncs[0].site) for g in gaps)
