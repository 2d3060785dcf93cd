"""What a diff and the advice say of random traces, held to counting their milliseconds."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.runs.analysis.parts import Parts
from kit.runs.labels import IMPORTED
from kit.runs.run import Run
from kit.text import format_ms, format_number
from kit.trace import Span, SyncPoint, Timeline, idle_after
from kit.trace.gaps import idle_gaps
from kit.trace.kinds import AWAY, CATEGORY_ROWS, ELSEWHERE, ON_DEVICE, SPAN_KINDS

MS = 1_000_000
STEP = 8  # milliseconds
SITES = ("a.py:1", "b.py:2", "")
CATEGORY = {kind.name: kind.category for kind in SPAN_KINDS}
times = st.tuples(st.integers(0, 19), st.integers(1, 9))
kinds = st.sampled_from(
    ["record", "input", "dispatch", "elsewhere", "kernel", "kernel", "communication"]
)
spans = st.lists(st.tuples(kinds, times, st.sampled_from(["a.1", "a.2", "b"])), max_size=7)
waits = st.lists(
    st.tuples(times, st.sampled_from(SITES), st.sampled_from(["item", "copy_to_device"])),
    max_size=4,
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A trace of one to three steps."""
    steps = draw(st.integers(1, 3))
    end = STEP * steps
    made = [
        Span("host/main", f"step {i}", "step", STEP * i * MS, STEP * (i + 1) * MS)
        for i in range(steps)
    ]
    for kind, (a, n), name in draw(spans):
        name = {"elsewhere": "a.py:1", "record": "forward"}.get(kind, name)
        lane = {"kernel": "device/0 stream 7", "communication": "device/0 stream 20"}.get(kind)
        made.append(Span(lane or "host/main", name, kind, min(a, end) * MS, min(a + n, end) * MS))
    syncs = []
    for (a, n), site, cause in draw(waits):
        if a < end:
            syncs.append(SyncPoint(a * MS, (min(a + n, end) - a) * MS, cause, site))
            made.append(Span("host/main", cause, "wait", a * MS, min(a + n, end) * MS))
    return Run(
        kit.Settings(mode="torch"),
        (),
        (STEP * MS,) * steps,
        Timeline.of(made, syncs, "imported"),
        environment={IMPORTED: "torch.profiler"},
    )


def steps_of(run: Run) -> int:
    return len(run.step_times_ns)


def at(run: Run, now: int) -> list[Span]:
    """What goes on in a millisecond."""
    return [s for s in run.timeline.spans if s.start_ns <= now * MS < s.stop_ns]


def categories(run: Run) -> dict[str, Fraction]:
    """Milliseconds a step: each is charged to what is charged first of all that goes on."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for now in range(STEP * steps_of(run)):
        active = at(run, now)
        is_away = any(s.kind in AWAY for s in active)
        names = {CATEGORY[s.kind] for s in active if s.kind != "record"}
        names |= {f"{s.name} recording" for s in active if s.kind == "record" and not is_away}
        rows = [row for row in CATEGORY_ROWS if row.name in names]
        charged = min(rows, key=lambda row: row.charged).name if rows else "unknown"
        found[charged] += Fraction(1, steps_of(run))
    return found


def kernels(run: Run) -> dict[str, Fraction]:
    """Milliseconds a step, by the name without its number."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for now in range(STEP * steps_of(run)):
        active = [s for s in at(run, now) if s.kind in ON_DEVICE]
        active = [s for s in active if s.kind == "kernel"] or active
        for s in active:
            found[s.name.partition(".")[0]] += Fraction(1, len(active) * steps_of(run))
    return found


def idle(run: Run) -> dict[str, Fraction]:
    """Milliseconds a step by cause and line; each gap's cause has a count of its own."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for gap in idle_gaps(run.timeline):
        name = f"{gap.cause} at {gap.site}" if gap.site else gap.cause
        found[name] += Fraction(gap.length_ns, MS * steps_of(run))
    return found


def place(sync: SyncPoint) -> str:
    return f"{sync.cause} at {sync.site or 'an unknown line'}"


def waited(run: Run) -> dict[str, Fraction]:
    found: dict[str, Fraction] = defaultdict(Fraction)
    for sync in run.timeline.syncs:
        found[place(sync)] += Fraction(sync.wait_ns, MS * steps_of(run))
    return found


@settings(max_examples=20, deadline=None)
@given(runs(), runs())
def test_a_diff_has_the_parts_of_both_runs(old: Run, new: Run) -> None:
    found = kit.diff_runs(old, new)
    for rows, count in (
        (found.kernels, kernels),
        (found.breakdown, categories),
        (found.idle, idle),
        (found.syncs, waited),
    ):
        pair = [defaultdict(float), defaultdict(float)]
        for row in rows:
            for side, ms in zip(pair, (row.old, row.new), strict=True):
                side[row.name] += 0.0 if math.isnan(ms) else ms
        for side, run in zip(pair, (old, new), strict=True):
            wanted = count(run)
            for name in {*side, *wanted}:
                assert side[name] == pytest.approx(float(wanted[name]), abs=1e-9), name
    counts = [len(run.timeline.syncs) / steps_of(run) for run in (old, new)]
    for _, before, now in found.points:
        assert [before, now.partition(";")[0]] == [format_number(x) for x in counts]


@settings(max_examples=40, deadline=None)
@given(runs())
def test_the_steps_alone_add_up_to_the_mean_step(run: Run) -> None:
    """Two waits of the first of two steps were one of each: their spread was too small."""
    parts = Parts(run)
    for part in (parts.breakdown(), parts.idle(), parts.syncs(), parts.kernels({})):
        for name, of in part.items():
            assert sum(of.steps) == pytest.approx(of.ms * steps_of(run), abs=1e-9), name
    for name, of in parts.syncs().items():
        alone = [0.0] * steps_of(run)
        for sync in run.timeline.syncs:
            alone[sync.at_ns // (STEP * MS)] += sync.wait_ns / MS if place(sync) == name else 0.0
        assert list(of.steps) == pytest.approx(alone), name


@settings(max_examples=60, deadline=None)
@given(runs())
def test_numbers_that_advice_quotes_are_counts(run: Run) -> None:
    t, steps = run.timeline, steps_of(run)
    loading = [now for now in range(STEP * steps) if any(s.kind == "input" for s in at(run, now))]
    quoted = {("input", ""): {categories(run)["input"], Fraction(len(loading), steps)}}
    after, is_seen = idle_after(t), bool(t.where(kind="kernel").any())
    for site in SITES:
        gaps = [g for g in idle_gaps(t) if (g.cause, g.site) == (ELSEWHERE, site)]
        quoted[ELSEWHERE, site] = {Fraction(sum(g.length_ns for g in gaps), MS * steps)}
        quoted["sync", site] = set()
        for cause in {s.cause for s in t.syncs}:
            mine = [i for i, s in enumerate(t.syncs) if (s.site, s.cause) == (site, cause)]
            quoted["sync", site].add(Fraction(sum(t.syncs[i].wait_ns for i in mine), MS * steps))
            if is_seen:
                idle_ns = sum(after[i] for i in mine)
                quoted["sync", site].add(Fraction(idle_ns, MS * steps))
    for advice in run.advice():
        rule = advice.rule if advice.rule in ("input", ELSEWHERE) else "sync"
        said = set(re.findall(r"(?<![\w.])([\d.,]+ (?:ns|µs|ms|s))\b", advice.text))
        counts = quoted[rule, "" if rule == "input" else advice.site]
        assert said, advice
        assert said <= {format_ms(float(ms)) for ms in counts}, advice
        assert not advice.ms > STEP
