"""Ranks compared: late-comers, waits and slow ranks of made jobs are found, and no others."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.text import format_ms
from kit.trace import Span, Timeline
from kit.trace.communication import Channel, Collective
from kit.trace.imported import Member
from kit.trace.ranks.clocks import Clock
from kit.trace.ranks.match import match
from kit.trace.ranks.one import RankTrace, rank_trace
from kit.trace.ranks.ranks import COLLECTIVE_COLUMNS, STEP_COLUMNS, Ranks, clock_text
from kit.trace.ranks.tables import StepRow, _collective, bus_bytes, compare_ranks

ALL = Channel("all_reduce", "0")
NCCL = "ncclDevKernel_AllReduce_Sum_f32"
ARRIVALS = st.lists(
    st.lists(st.integers(0, 5_000_000), min_size=3, max_size=3), min_size=1, max_size=4
)


def job(arrivals: list[list[int]], offsets: list[int], channel: Channel = ALL) -> list[RankTrace]:
    """A step of 10 ms for each row: ranks compute until they arrive, and end together."""
    traces = []
    for r, offset in enumerate(offsets):
        spans, sent = [], []
        for i, row in enumerate(arrivals):
            t = i * 10_000_000
            stop = t + max(row) + 1_000_000
            spans += [
                Span("host/main", f"step {i}", "step", t, t + 10_000_000),
                Span("device/0 stream 7", "gemm", "kernel", t, t + row[r]),
                Span("device/0 stream 20", NCCL, "kernel", t + row[r], stop),
            ]
            sent.append(Collective(channel, t + row[r], stop, 1 << 20))
        traces.append(
            rank_trace(
                Timeline.of(spans), Member(zero_ns=10**18 + offset, collectives=tuple(sent)), rank=r
            )
        )
    return traces


@settings(max_examples=40, deadline=None)
@example([[0, 0, 0], [1, 0, 2_000_001]], [0, 0, 0])
@given(ARRIVALS, st.lists(st.integers(-(10**8), 10**8), min_size=3, max_size=3))
def test_who_came_last_and_what_the_others_waited_is_a_count(arrivals, offsets):
    found = compare_ranks(job(arrivals, offsets))
    for row, collective in zip(arrivals, found.collectives, strict=True):
        *_, before, last = sorted(row)
        assert collective.late_ns == last - before
        assert collective.spread_ns == last - min(row)
        # Surely last is who is so beside each other rank: of a tie the clocks may differ.
        latest = row.index(last)
        wrong = [
            found.ranks[r].clock.error_ns + found.ranks[latest].clock.error_ns for r in range(3)
        ]
        leads = [last - row[r] > wrong[r] for r in range(3) if r != latest]
        assert collective.last == (latest if all(leads) else -1)
    for r, rank in enumerate(found.ranks):
        waited = sum(max(row) - row[r] for row in arrivals) / len(arrivals) / 1e6
        assert rank.waited_ms == pytest.approx(waited)
        exposed = sum(max(row) - row[r] + 1_000_000 for row in arrivals) / len(arrivals) / 1e6
        assert rank.exposed_ms == pytest.approx(exposed)
        idle = sum(rank.idle_ms.values())
        parts = rank.compute_ms + rank.exposed_ms + rank.memory_ms + idle
        assert parts == pytest.approx(rank.step_ms)


@pytest.mark.parametrize("senders", [0, 2])
def test_ranks_that_send_nothing_wait_for_nobody(senders: int):
    """They were told to have no common clock: "which one is the slowest is not known"."""
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    for r in range(senders, 3):
        spans = [Span("host/main", f"step {i}", "step", i * 10**7, i * 10**7 + 10**6 * (3 + r))
                 for i in range(6)]  # fmt: skip
        spans += [Span("device/0 stream 7", "gemm", "kernel", 0, 10**6 * (1 + r))]
        traces[r] = rank_trace(Timeline.of(spans), Member(), rank=r)
    ranks = Ranks("job", tuple(traces))
    named = [(step.slowest, step.over_ms, step.error_ms, step.why) for step in ranks.steps]
    if senders:  # what the others waited for the one that may not have been traced whole is unknown
        assert {slowest for slowest, *_ in named} == {-1}
        assert ranks.said.endswith("how long rank 2 waited, and who for it, is not known.")
        return
    assert named == [(2, 1.0, 0.0, "compute")] + [(2, 1.0, 0.0, "idle: unknown")] * 5
    assert ranks.said.startswith("Of 6 steps the slowest was rank 2 in 6 (")
    assert "above" not in ranks.said
    assert STEP_COLUMNS[4].cell(ranks.steps[0]) == "1 ms"
    assert [row.waited_ms for row in ranks.ranks] == [0.0] * 3


def test_of_ranks_whose_devices_were_not_seen_nobody_knows_who_waited():
    """As of a profiler without the right to: "the slowest was rank 1 (idle: unknown ...)"."""
    traces = []
    for r in range(2):
        spans = [Span("host/main", f"step {i}", "step", i * 10**7, i * 10**7 + 10**6 * (3 + r))
                 for i in range(6)]  # fmt: skip
        spans += [Span("host/main", "cudaLaunchKernel", "dispatch", 10, 500)]
        traces.append(rank_trace(Timeline.of(spans), Member(), rank=r))
    ranks = Ranks("job", tuple(traces))
    assert {step.slowest for step in ranks.steps} == {-1}
    assert "which one is the slowest is not known" in ranks.said
    assert all(math.isnan(row.waited_ms) for row in ranks.ranks)


def test_the_slowest_rank_of_a_step_is_named_with_what_it_did_longer():
    found = compare_ranks(job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 7_000, -9_000]))
    for step in found.steps:
        assert (step.slowest, step.why) == (2, "compute")
        assert step.why_ms == pytest.approx(1.0)
        assert step.over_ms == pytest.approx(1.0)
    assert [rank.last for rank in found.ranks] == [0, 0, 6]


def test_equal_ranks_name_nobody():
    found = compare_ranks(job([[2_000_000] * 3] * 6, [0, 7_000, -9_000]))
    assert {step.slowest for step in found.steps} == {-1}
    assert {row.last for row in found.collectives} == {-1}


def test_arrivals_closer_than_the_clocks_are_known_name_nobody():
    traces = job([[2_000_000, 2_000_000, 2_000_400]] * 2, [0, 0, 0])
    found = compare_ranks(traces)
    assert all(row.late_ns <= row.error_ns and row.last == -1 for row in found.collectives)


JITTER = st.lists(st.integers(-300_000, 300_000), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.permutations([0, 3, 6]), JITTER), min_size=5, max_size=8))
def test_a_lead_is_as_wrong_as_the_clocks_at_most(steps: list[tuple[list[int], list[int]]]):
    """Ends that differ set the clocks wrong; where these are within their error, leads are, too."""
    arrivals = [[1_000_000 + 500_000 * at for at in row] for row, _ in steps]
    traces = job(arrivals, [0, 0, 0])
    for r in range(3):
        late = [jitter[r] for _, jitter in steps]
        sent = [
            replace(one, stop_ns=one.stop_ns + more)
            for one, more in zip(traces[r].collectives, late, strict=True)
        ]
        traces[r] = replace(traces[r], collectives=tuple(sent))
    found = compare_ranks(traces)
    if all(abs(row.clock.offset_ns) <= row.clock.error_ns for row in found.ranks):
        for row, step in zip(arrivals, found.steps, strict=True):
            *_, before, last = sorted(row)
            if step.slowest >= 0:
                assert row[step.slowest] == last
                assert abs(step.over_ms - (last - before) / 1e6) <= step.error_ms + 1e-6


def test_collectives_at_the_same_time_make_a_lead_no_less_sure():
    """Two buckets of gloo in two threads: their waits end as one, with the error of one."""
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    for r, more in ((1, 90_000), (2, 200_000)):
        sent = [
            replace(one, stop_ns=one.stop_ns + more * (-1) ** i)
            for i, one in enumerate(traces[r].collectives)
        ]
        traces[r] = replace(traces[r], collectives=tuple(sent))
    once = compare_ranks(traces).steps
    other = Channel("all_reduce", "1")
    for r, trace in enumerate(traces):
        beside = [replace(one, channel=other) for one in trace.collectives]
        traces[r] = replace(trace, collectives=(*trace.collectives, *beside))
    twice = compare_ranks(traces).steps
    assert [step.error_ms for step in once] == [step.error_ms for step in twice]
    assert once[0].error_ms > 0
    assert [step.slowest for step in twice] == [2] * 6


def test_a_lead_that_the_clocks_do_not_prove_is_said_with_its_error():
    """Of two gloo ranks one computed 60 ms longer: what is not known of the clocks hides it."""
    slow = Ranks("job", tuple(job([[2_000_000, 2_000_000, 3_000_000]] * 2, [0, 0, 0])))
    (most, *_) = sorted(slow.steps, key=lambda step: -step.over_ms)
    assert most.over_ms <= most.error_ms
    lead, error = format_ms(most.over_ms), format_ms(most.error_ms)
    assert slow.said == (
        "In no step is one rank clearly the slowest: "
        f"the longest lead, {lead}, is within its error, {error}."
    )
    cut_off = rank_trace(Timeline.of([]), Member(), rank=3)  # which is in no step, and no reason
    assert Ranks("job", (*slow.traces, cut_off)).said == slow.said
    equal = Ranks("job", tuple(job([[2_000_000] * 3] * 6, [0, 0, 0])))
    assert equal.said == "In no step is one rank clearly the slowest."


def test_steps_with_uneven_numbers_of_collectives_are_not_compared_and_named():
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    lost = traces[1].collectives
    traces[1] = _with(traces[1], collectives=(*lost[:2], lost[2], *_twice(lost[2]), *lost[3:]))
    found = compare_ranks(traces)
    assert [row.step for row in found.collectives] == [f"step {i}" for i in (0, 1, 3, 4, 5)]
    assert any("step 2" in note for note in found.notes)


def test_a_step_whose_collectives_were_not_compared_names_no_slowest_rank():
    """Without them, the ranks that waited look as slow as the one that they waited for."""
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    lost = traces[1].collectives
    traces[1] = _with(traces[1], collectives=(*lost[:2], lost[2], *_twice(lost[2]), *lost[3:]))
    longer = traces[0].steps.copy()
    longer[2, 1] += 1_000
    traces[0] = _with(traces[0], steps=longer)
    found = compare_ranks(traces)
    assert [step.slowest for step in found.steps] == [2, 2, -1, 2, 2, 2]
    assert found.steps[2].error_ms == pytest.approx(2.0)  # what rank 0 was in collectives


def test_waits_in_receives_are_not_taken_for_a_ranks_own_time():
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    received = np.array([[t + 5_000_000, t + 8_000_000] for t, _ in traces[2].steps])
    exposed = np.concatenate([traces[2].exposed, received])
    traces[2] = _with(traces[2], exposed=exposed[np.argsort(exposed[:, 0])])
    assert {step.slowest for step in compare_ranks(traces).steps} == {-1}


def test_a_clock_that_is_set_by_more_than_half_a_step_is_questioned():
    """Without numbers, a trace that begins a step later is matched a step off: the note says so."""
    early = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 10_000_000])
    (note,) = (note for note in compare_ranks(early).notes if "half a step" in note)
    assert "rank 2" in note
    fine = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 1_000_000])
    assert not any("half a step" in note for note in compare_ranks(fine).notes)


def test_files_that_name_no_group_are_said_to_be_taken_as_one():
    nameless = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0], Channel("all_reduce"))
    assert any("name no process group" in note for note in compare_ranks(nameless).notes)
    named = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    assert not any("name no process group" in note for note in compare_ranks(named).notes)


def test_numbers_of_collectives_are_believed_over_their_order():
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0])
    numbered = [
        tuple(_numbered(c, i + 40) for i, c in enumerate(trace.collectives)) for trace in traces
    ]
    numbered[0] = numbered[0][2:]  # the first two were not traced on rank 0
    found = compare_ranks([_with(t, collectives=c) for t, c in zip(traces, numbered, strict=True)])
    assert [row.place for row in found.collectives] == [40, 41, 42, 43, 44, 45]
    assert [len(row.start_ns) for row in found.collectives] == [2, 2, 3, 3, 3, 3]


def test_collectives_that_cannot_be_one_are_left_out():
    traces = job([[2_000_000, 2_000_000, 3_000_000]] * 12, [0, 0, 0])
    moved = [
        c if i != 4 else Collective(ALL, c.start_ns + 4_500_000, c.stop_ns + 4_500_000, 1)
        for i, c in enumerate(traces[2].collectives)
    ]
    traces[2] = _with(traces[2], collectives=tuple(moved))
    found = compare_ranks(traces)
    assert "step 4" not in {row.step for row in found.collectives}
    assert any("not the same" in note for note in found.notes)


def test_a_rank_that_is_not_here_may_have_come_later():
    group = Channel("all_reduce", "0", (0, 1, 2, 3), 4)
    found = compare_ranks(job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0], group))
    assert {row.missing for row in found.collectives} == {1}
    assert all(math.isnan(row.bus_rate) for row in found.collectives)


def test_the_bus_rate_is_nccls():
    group = Channel("all_reduce", "0", (0, 1, 2), 3)
    found = compare_ranks(job([[2_000_000, 2_000_000, 3_000_000]] * 6, [0, 0, 0], group))
    expected = (1 << 20) * 2 * 2 / 3 / 1e-3  # two thirds, there and back, in a millisecond
    assert found.collectives[0].bus_rate == pytest.approx(expected)
    assert bus_bytes(Channel("all_gather", "", (), 4), 100, 4) == 75
    assert math.isnan(bus_bytes(Channel("all_reduce"), -1, 4))
    assert math.isnan(bus_bytes(Channel("send"), 100, 4))
    assert bus_bytes(Channel("all_to_all", "", (), 4), 100, 4) == 75
    assert math.isnan(bus_bytes(Channel("all_to_all", "", (), 4), 100, 4, is_even=False))


def test_one_rank_alone_has_a_row_and_no_comparison():
    found = compare_ranks(job([[2_000_000] * 3] * 2, [0, 0, 0])[:1])
    assert len(found.ranks) == 1
    assert not found.steps
    assert not found.collectives
    assert math.isnan(found.ranks[0].waited_ms)
    assert found.ranks[0].exposed_ms == pytest.approx(1.0)


def test_an_empty_trace_is_a_row_of_nothing():
    empty = rank_trace(Timeline.of([]), Member(), rank=0)
    row = compare_ranks([empty]).ranks[0]
    assert row.steps == 0
    assert math.isnan(row.step_ms)


def test_a_rank_goes_through_json_and_back():
    (trace, *_) = job([[2_000_000, 1, 2]] * 3, [5, 6, 7])
    back = RankTrace.of_json(json.loads(json.dumps(trace.to_json())))
    assert back.to_json() == trace.to_json()
    assert back.collectives == trace.collectives
    np.testing.assert_array_equal(back.exposed, trace.exposed)


def test_text_of_a_trace_is_neither_obeyed_nor_markup():
    """The name of a host, whose clock several ranks have, was: it could end a cell, or be HTML."""
    evil = Channel("all_reduce", "\x1b[31m<b>|x|")
    traces = [replace(trace, host="\x1b[31m<b>|y|") for trace in job([[1, 2, 9]], [0, 0, 0], evil)]
    ranks = Ranks("\x1b[2Jname", tuple(traces), ("\x1b bad",))
    for text in (ranks.to_text(), ranks.to_markdown()):
        assert "the clock of host" in text
        assert "\x1b" not in text
    assert "<b>" not in text
    assert not re.search(r"(?<!\\)\|[xy]", text)
    assert "3 ranks" in repr(ranks)


def _with(trace: RankTrace, **changes: object) -> RankTrace:
    return replace(trace, **changes)


def _twice(one: Collective) -> list[Collective]:
    return [Collective(one.channel, one.start_ns + 1, one.stop_ns, one.size_bytes)]


def _numbered(one: Collective, number: int) -> Collective:
    return Collective(one.channel, one.start_ns, one.stop_ns, one.size_bytes, number)


def test_a_rank_with_a_worse_clock_may_have_come_last_though_it_is_not_the_next():
    row, channel = 0, ALL
    traces = job([[1_500_000, 1_000_000, 0]], [0, 0, 0], channel)
    clocks = [Clock(0, error, "") for error in (20_000, 20_000, 2_000_000)]
    matched = match(traces)
    assert _collective(traces, matched, clocks, row).last == -1
    clocks[2] = Clock(0, 20_000, "")
    assert _collective(traces, matched, clocks, row).last == 0


def test_the_slowest_rank_is_slow_by_what_took_it_most_time_and_not_most_often():
    row = StepRow("step", 100.0, 2, 50.0, 9.0, 0.0, "compute", 5.0)
    memory = replace(row, why="memory", why_ms=30.0)
    slow = Ranks("job", tuple(job([[2_000_000, 2_000_000, 3_000_000]] * 2, [0, 0, 0])))
    vars(slow)["compared"] = replace(slow.compared, steps=(row,) * 4 + (memory,) * 3)
    assert "rank 2 in 7 (memory 30 ms longer than in the others in 3 of them)" in slow.said
    vars(slow)["compared"] = replace(slow.compared, steps=(memory, memory))
    assert "rank 2 in 2 (memory 30 ms longer than in the others)." in slow.said


def test_a_time_and_a_larger_error_have_one_unit():
    """It said 900 µs ± 1.2 ms."""
    step = StepRow("step", 100.0, 2, 50.0, 0.9, 1.2, "", 0.0)
    assert STEP_COLUMNS[4].cell(step) == "0.9 ms ± 1.2 ms"
    sent = compare_ranks(job([[0, 0, 0]], [0, 0, 0])).collectives[0]
    late = replace(sent, late_ns=900_000, error_ns=1.2e6)
    assert COLLECTIVE_COLUMNS[4].cell(late) == "0.9 ms ± 1.2 ms"
    rank = compare_ranks(job([[0, 0, 0]], [0, 0, 0])).ranks[1]
    behind = replace(rank, clock=Clock(-900_000, 1.2e6, "two collectives"))
    assert clock_text(behind) == "−0.9 ms ± 1.2 ms, two collectives"


@pytest.mark.parametrize(
    ("over_ms", "error_ms", "said"),
    [
        (2.2, 0.00953, "2.2 ms ± 0.01 ms"),  # it said ± 0.00953 ms
        (2.2, 0.00001, "2.2 ms"),  # it said ± ≈0 ms
        (212.0, 0.3, "212 ms"),
        (0.0122, 0.000001, "12.2 µs"),
        (212.0, 1.26, "212 ms ± 1 ms"),
        (0.012, 0.00046, "12 µs ± 0.5 µs"),
        (2.2, 0.0, "2.2 ms"),  # one clock for all
    ],
)
def test_an_error_has_no_more_decimals_than_its_time(over_ms, error_ms, said):
    row = StepRow("step", 100.0, 2, 50.0, over_ms, error_ms, "", 0.0)
    assert STEP_COLUMNS[4].cell(row) == said


def test_of_many_steps_a_terminal_shows_those_that_one_rank_made_slow():
    """A job of 6,900 steps printed 6,900 lines; the late rank was in one of them."""
    arrivals = [[2_000_000] * 3] * 30 + [[9_000_000, 2_000_000, 2_000_000]]
    ranks = Ranks("job", tuple(job(arrivals, [0, 0, 0])))
    shown = ranks.to_text().partition("Steps, the 12 of 31 with most above the next")[2]
    assert len(re.findall(r"\nstep \d", shown.partition("Collectives")[0])) == 12
    assert re.search(r"\nstep 30 .*rank 0", shown)
    assert "\n## Steps\n" in ranks.to_markdown()
    assert "| step 29 |" in ranks.to_markdown()
