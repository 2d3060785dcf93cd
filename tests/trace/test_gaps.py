"""Idle gaps: against asking every unit of time one by one, and on real runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.runs.analysis.summary import summary
from kit.trace import Span, SyncPoint, Timeline, breakdown_ns, gaps, idle_after, union_ns
from kit.trace.gaps import GAP_CAUSES, Gap, idle_gaps, idle_of, idle_table
from kit.trace.hta import HTA_CAUSES, hta_idle
from kit.workloads import mlp
from tests.factories import make_run
from tests.smaller import smaller_bert

END = 120
STEPS = [Span("host/main", f"step {i}", "step", 60 * i, 60 * i + 60) for i in range(2)]
HOST = ("record", "plan", "lower", "compile", "dispatch", "wait", "input", "ahead",
        "elsewhere")  # fmt: skip
OWN_CAUSE = (
    "kernel",
    "reduction",
    "communication",
    "elsewhere",
)  # of these no wait is to blame


def kernel(start: int, stop: int, segment: int = -1, lane: str = "device/0 thread 1") -> Span:
    return Span(lane, f"k{start}", "kernel", start, stop, segment)


def reduction(start: int, stop: int, device: int = 0) -> Span:
    return Span(f"device/{device} reduction", "bucket 0", "reduction", start, stop)


def collective(start: int, stop: int, device: int = 0) -> Span:
    return Span(f"device/{device} stream 20", "ncclKernel", "communication", start, stop)


def host(kind: str, start: int, stop: int, segment: int = -1, lane: str = "host/main") -> Span:
    return Span(lane, "forward", kind, start, stop, segment)


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


times = st.tuples(st.integers(0, END - 1), st.integers(0, 40))
segments = st.integers(-1, 2)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    kernels = draw(st.lists(st.tuples(times, segments, st.integers(0, 1)), max_size=7))
    hosts = draw(st.lists(st.tuples(times, segments, st.sampled_from(HOST)), max_size=8))
    waits = draw(st.lists(times, max_size=4, unique_by=lambda x: x[0]))
    bands = draw(st.lists(times, max_size=2))
    travels = draw(st.lists(st.tuples(times, st.integers(0, 1)), max_size=2))
    sent = draw(st.lists(st.tuples(times, st.integers(0, 1)), max_size=2))
    spans = [*STEPS, *(reduction(a, min(a + n, END), d) for (a, n), d in travels)]
    spans += [collective(a, min(a + n, END), d) for (a, n), d in sent]
    spans += [kernel(a, min(a + n, END), s, f"device/{d} x") for (a, n), s, d in kernels]
    spans += [host(kind, a, a + n, s) for (a, n), s, kind in hosts]
    spans += [Span("steps on the device", "s", "device step", a, a + n) for a, n in bands]
    return Timeline.of(spans, [SyncPoint(a, n, "item", f"train.py:{a % 2}") for a, n in waits])


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


def one_by_one(t: Timeline) -> list[tuple[str, int, str, str]]:
    """(device, instant, cause, site) of every idle instant, asked for one after another."""
    spans = list(enumerate(t.spans))
    kernels = [(i, s) for i, s in spans if s.kind == "kernel"]
    handed = hand_out(t, kernels)
    found = []
    for device in dict.fromkeys(s.lane.split(" ")[0] for _, s in kernels):
        mine = [(i, s) for i, s in kernels if s.lane.startswith(device)]
        for now in range(END):
            if not any(s.start_ns <= now < s.stop_ns for _, s in mine):
                found.append((device, now, *cause_at(t, now, mine, kernels, handed)))
    return found


def around(kernels: list[tuple[int, Span]], now: int) -> tuple[Span | None, Span | None]:
    """The kernel that had ended last, and the one that begins next."""
    before = [(s.stop_ns, i, s) for i, s in kernels if s.start_ns <= now]
    after = [(s.start_ns, i, s) for i, s in kernels if s.start_ns > now]
    return max(before)[2] if before else None, min(after)[2] if after else None


def is_in_program(t: Timeline, kernels: list[tuple[int, Span]], now: int) -> bool:
    before, after = around(kernels, now)
    if before is None or after is None or before.segment != after.segment or after.segment < 0:
        return False
    begun = [s.start_ns for s in t.spans if s.kind == "device step"]
    return sum(x < before.stop_ns for x in begun) == sum(x <= after.start_ns for x in begun)


def hand_out(t: Timeline, kernels: list[tuple[int, Span]]) -> dict[int, str]:
    """Which instants of idle time belong to a wait before them; see test_syncs.py."""
    left = [s.wait_ns for s in t.syncs]
    found = {}
    after = [*(s.at_ns for s in t.syncs), END, END]
    windows = [
        (k, range(s.at_ns + s.wait_ns, min(after[k + 1], END))) for k, s in enumerate(t.syncs)
    ]
    places = [{s.site for s in t.syncs if s.at_ns // 60 == i} for i in range(2)]
    if t.syncs and all(t.syncs[-1].site in place for place in places):
        windows.append((len(t.syncs) - 1, range(t.syncs[0].at_ns)))
    for k, window in windows:
        step = t.syncs[k].at_ns // 60
        for now in window:
            free = [j for j in range(k + 1) if left[j] and t.syncs[j].at_ns // 60 == step]
            is_busy = any(x.start_ns <= now < x.stop_ns for x in t.spans if x.kind in OWN_CAUSE)
            if not is_busy and not is_in_program(t, kernels, now) and free:
                found[now] = t.syncs[free[-1]].site
                left[free[-1]] -= 1
    return found


def cause_at(
    t: Timeline,
    now: int,
    mine: list[tuple[int, Span]],
    kernels: list[tuple[int, Span]],
    handed: dict[int, str],
) -> tuple[str, str]:
    active = {s.kind for s in t.spans if s.start_ns <= now < s.stop_ns}
    here = mine[0][1].lane.split(" ")[0]
    if any(s.lane == f"{here} reduction" and s.start_ns <= now < s.stop_ns for s in t.spans):
        return "reduction", ""
    if any(s.lane == f"{here} stream 20" and s.start_ns <= now < s.stop_ns for s in t.spans):
        return "communication", ""
    if "kernel" in active:
        return "dependency", ""
    if is_in_program(t, kernels, now):
        return "program", ""
    if now in handed:
        return "sync point", handed[now]
    before, after = around(mine, now)
    launches = [] if after is None or after.segment < 0 else [
        (s.start_ns, i, s.stop_ns) for i, s in enumerate(t.spans)
        if s.kind == "dispatch" and s.segment == after.segment and s.start_ns <= after.start_ns
    ]  # fmt: skip
    issued = max(launches)[2] if launches else END + 99
    loose = [
        [x for x in t.spans if x.kind in kinds and x.segment < 0]
        for kinds in (("kernel", "communication"), ("dispatch",))
    ]
    is_paired = len(loose[0]) == len(loose[1]) and all(
        b.start_ns <= a.start_ns for a, b in zip(*loose, strict=True)
    )
    if after is not None and after.segment < 0 and is_paired:
        mine_at = next(i for i, s in mine if s is after)
        number = [i for i, s in kernels if s.segment < 0].index(mine_at)
        issued = loose[1][number].stop_ns
    if issued <= (before.stop_ns if before else 0):
        return "dependency", ""
    waits = [s.site for s in t.syncs if s.at_ns <= now]
    waiting = [s for s in t.syncs if s.at_ns <= now < s.at_ns + s.wait_ns]
    site = waits[-1] if waiting and waiting[-1].site == waits[-1] else ""
    for holds, cause in (
        (active & {"lower", "compile"}, "compile"),
        ("dispatch" in active or issued <= now, "dispatch"),
        ("wait" in active or site, "sync point"),
        ("input" in active, "input"),
        ("elsewhere" in active, "host waits elsewhere"),
        (active & {"record", "plan"} and "ahead" not in active, "host recording"),
        ("ahead" in active, "dispatch"),
    ):
        if holds:
            named = {"sync point": site, "host waits elsewhere": "forward"}
            return cause, named.get(cause, "")
    return "unknown", ""


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
