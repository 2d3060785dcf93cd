"""What each line costs: against counting one nanosecond at a time, and against a real run."""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.ir import Aval, Graph, Node
from kit.runs.analysis.lines import HOW_TIMED, PHASES, line_costs, place_of, work_of_steps
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.metrics import says_device
from kit.widgets.numbers.source import source_html
from tests.factories import empty_run, make_run, one_span_run

PUBLISHED = Path(__file__).parents[2] / "data" / "published" / "h100_bert.json.gz"

SITES = ("", "train.py:3", "train.py:7", "model.py:7", "In[2]:1")
END = 60
KINDS = (
    ("forward", "record", 2), ("backward", "record", 2), ("update", "record", 1),
    ("item", "wait", 2), ("ahead", "ahead", 1), ("copy", "input", 1),
    ("train.py:7", "elsewhere", 1), ("train.py:9", "elsewhere", 1), ("train.py:7", "own", 1),
    ("k", "kernel", 3), ("m", "kernel", 2),
)  # fmt: skip


def node(site: str, phase: str) -> Node:
    return Node("aten.relu.default", (), (), (Aval((2,), "float32"),), site, phase)


@st.composite
def runs(draw: st.DrawFn, steps: int = 1) -> Run:
    """A few ops, when each was recorded, and spans of every kind that matters, in `END` ns."""
    ops = draw(st.lists(st.tuples(st.sampled_from(SITES), st.sampled_from(PHASES)), max_size=5))
    nodes = tuple(node(site, phase) for site, phase in ops)
    at = tuple(draw(st.integers(-1, END)) for _ in ops)
    cuts = sorted(draw(st.lists(st.integers(1, END - 1), min_size=steps - 1, max_size=steps - 1)))
    edges = [0, *cuts, END]
    spans = [Span("host/main", f"step {i}", "step", edges[i], edges[i + 1]) for i in range(steps)]
    for name, kind, most in KINDS:
        for _ in range(draw(st.integers(0, most))):
            start = draw(st.integers(0, END - 1))
            stop = draw(st.integers(start, END + 5))
            segment, of = -1, -1
            if kind == "kernel":
                segment, of = draw(st.integers(-1, 0)), draw(st.integers(-1, len(ops) - 1))
            lane = "device/0" if kind == "kernel" else "host/main"
            spans.append(Span(lane, name, kind, start, stop, segment, of))
    members = tuple(draw(st.sets(st.integers(0, len(ops) - 1), max_size=3))) if ops else ()
    fused = (Fused(0, "m", tuple(sorted(members))),) if members else ()
    syncs = draw(st.lists(st.builds(
        SyncPoint, st.integers(0, END), st.integers(0, 20), st.just("item"),
        st.sampled_from(SITES), st.sampled_from(("", "lib.py:1"))), max_size=4))  # fmt: skip
    return Run(Settings(), (1.0, 2.0), (END, END), Timeline.of(spans, syncs), tuple(syncs),
               (Graph(nodes),), fused=fused, recorded_ns=at)  # fmt: skip


def covered(run: Run, kind: str, name: str = "") -> set[int]:
    return {
        ns
        for s in run.timeline.spans
        if s.kind == kind and name in ("", s.name)
        for ns in range(s.start_ns, s.stop_ns)
    }


def recorded_by_counting(run: Run) -> dict[tuple[str, str], float]:
    """(site, phase) -> ns: each instant belongs to the op that is recorded next."""
    step = covered(run, "step")
    away = set().union(*(covered(run, k) for k in ("wait", "input", "ahead", "elsewhere", "own")))
    ops = sorted((t, i) for i, t in enumerate(run.recorded_ns) if t >= 0)
    found: dict[tuple[str, str], float] = defaultdict(float)
    for phase in PHASES:
        for ns in (covered(run, "record", phase) - away) & step:
            after = [i for t, i in ops if t > ns]
            found[run.graphs[0].nodes[after[0]].site if after else "", phase] += 1
    return found


def device_by_counting(run: Run) -> dict[str, float]:
    """site -> ns: an instant is divided among the kernels, and then among their nodes."""
    found: dict[str, float] = defaultdict(float)
    kernels = [s for s in run.timeline.spans if s.kind == "kernel"]
    for ns in covered(run, "step"):
        active = [s for s in kernels if s.start_ns <= ns < s.stop_ns]
        for s in active:
            nodes = run.nodes_of(s.segment, s.name, s.node)
            sites = [run.graphs[0].nodes[i].site for i in nodes] or [""]
            for site in sites:
                found[site] += 1 / len(active) / len(sites)
    return found


@given(run=runs())
@settings(max_examples=60)
def test_it_equals_counting_one_nanosecond_at_a_time(run: Run):
    rows = {row.site: row for row in line_costs(run)}
    device, record = device_by_counting(run), recorded_by_counting(run)
    for site in (*SITES, "train.py:9"):
        row = rows.get(site)
        took = device.get(site, 0) if says_device(run.timeline) or not row else math.nan
        found = (row.device_ms if row else 0) * 1e6
        assert found == pytest.approx(took, abs=1e-3, nan_ok=True)
        if any(t >= 0 for t in run.recorded_ns) and record:
            for phase in PHASES:
                got = row.record_ms[phase] * 1e6 if row else 0
                assert got == pytest.approx(record.get((site, phase), 0), abs=1e-3)
        syncs = [s for s in run.sync_points if s.site == site]
        assert (row.syncs if row else 0) == pytest.approx(len(syncs) / 2)
        waited = sum(s.wait_ns for s in syncs) / 2
        assert (row.wait_ms if row else 0) * 1e6 == pytest.approx(waited)
        away = len(covered(run, "elsewhere", site) & covered(run, "step")) if site else 0
        assert (row.elsewhere_ms if row else 0) * 1e6 == pytest.approx(away)
        own = len(covered(run, "own", site) & covered(run, "step")) if site else 0
        assert (row.own_ms if row else 0) * 1e6 == pytest.approx(own)


@given(run=st.integers(1, 3).flatmap(runs))
@settings(max_examples=60)
def test_the_steps_alone_have_the_mean_that_is_shown(run: Run) -> None:
    """Recording was charged to lines in the first traced step only: each change seemed unsure."""
    alone = work_of_steps(run)
    for row in line_costs(run):
        if row.site and row.nodes:
            mean = sum(step[row.site] for step in alone) / run.timeline.steps
            assert mean == pytest.approx(row.work_ms, abs=1e-9)


def test_of_two_sorts_of_steps_each_has_the_lines_of_its_own() -> None:
    graphs = tuple(Graph((node(site, "forward"),)) for site in SITES[1:3])
    spans = [
        Span("host/main", name, kind, i * END, (i + 1) * END)
        for i in range(4)
        for name, kind in ((f"step {i}", "step"), ("forward", "record"))
    ]
    run = Run(Settings(), (1.0,), (END,), Timeline.of(spans), (), graphs, sorts=(0, 1, 0, 1),
              recorded_ns=(END - 1, 2 * END - 1))  # fmt: skip
    first, second = (work_of_steps(run)[i] for i in (2, 3))
    assert first == {SITES[1]: pytest.approx((END - 1) / 1e6), SITES[2]: 0}
    assert second == {SITES[1]: 0, SITES[2]: pytest.approx((END - 1) / 1e6)}


@given(run=st.integers(1, 3).flatmap(runs))
@settings(max_examples=60)
def test_the_lines_add_up_to_the_totals_of_the_run(run: Run):
    rows = line_costs(run)
    totals = {row.category: row.total_ms for row in run.breakdown()}
    for phase in PHASES:
        assert sum(r.record_ms[phase] for r in rows) == pytest.approx(
            totals.get(f"{phase} recording", 0), abs=1e-9
        )
    is_seen = says_device(run.timeline) or not rows
    busy = totals.get("device busy", 0) if is_seen else math.nan
    assert sum(r.device_ms for r in rows) == pytest.approx(busy, abs=1e-9, nan_ok=True)
    assert sum(r.wait_ms for r in rows) == pytest.approx(run.headline().sync_wait_ms)
    assert sum(r.syncs for r in rows) == pytest.approx(run.headline().syncs_per_step)
    named = [i for r in rows for i in r.nodes]
    assert sorted(named) == list(run.graphs[0].ops)


@pytest.mark.parametrize("mode", ["bulked", "lazy", "torch"])
def test_a_run_without_times_of_its_ops_is_divided_by_their_number(mode: str):
    run = make_run(Settings(mode=mode))
    rows = line_costs(run)
    totals = {row.category: row.total_ms for row in run.breakdown()}
    for phase in PHASES:
        known = [r.record_ms[phase] for r in rows if not (r.site and mode == "torch")]
        assert sum(known) == pytest.approx(totals[f"{phase} recording"])
    assert sum(r.device_ms for r in rows) == pytest.approx(totals["device busy"])
    if mode == "torch":
        assert {r.site for r in rows} == {"", "train.py:44"}  # no graph, but a wait
        assert all(math.isnan(r.recording_ms) for r in rows if r.site)
        return
    forward = {r.site: r.record_ms["forward"] for r in rows}
    assert forward["train.py:12"] == pytest.approx(3 * forward["train.py:40"])


def test_a_wait_has_its_line_its_cause_and_the_device_time_that_it_cost():
    run = make_run(syncs=2)
    row = next(r for r in line_costs(run) if r.site == "train.py:44")
    assert row.syncs == 2
    assert row.causes == ("item through torch/amp/grad_scaler.py:371",)
    assert row.wait_ms == pytest.approx(run.headline().sync_wait_ms)
    assert row.idle_ms >= 0
    assert math.isnan(line_costs(replace(run, timeline=Timeline.of([])))[-1].idle_ms)


def test_runs_of_which_little_is_known_have_few_lines():
    assert line_costs(empty_run()) == ()
    assert line_costs(one_span_run()) == ()  # no step, so nothing a step


def test_lines_come_file_by_file_the_dearest_file_first():
    sites = ("b.py:9", "a.py:2", "b.py:1", "")
    spans = [Span("host/main", "step 0", "step", 0, 100)]
    spans += [
        Span("device/0", f"k{i}", "kernel", 10 * i, 10 * i + 3 + (i == 0), 0, i) for i in range(4)
    ]
    run = Run(Settings(), (), (100,), Timeline.of(spans),
              graphs=(Graph(tuple(node(site, "forward") for site in sites)),))  # fmt: skip
    assert [r.site for r in line_costs(run)] == ["b.py:1", "b.py:9", "a.py:2", ""]


@pytest.mark.parametrize(
    ("site", "place"),
    [("train.py:41", ("train.py", 41)), ("In[3]:2", ("In[3]", 2)), ("c:d.py:7", ("c:d.py", 7)),
     ("odd", ("odd", 0)), ("x:", ("x:", 0)), ("x:²", ("x:²", 0)), ("x:" + "9" * 50, None)],
)  # fmt: skip
def test_a_site_is_a_file_and_a_line(site: str, place: tuple[str, int] | None):
    assert place_of(site) == (place or (site, 0))


def test_a_bulk_that_is_split_keeps_the_times_of_its_ops():
    import torch

    with kit.Session(Settings(mode="lazy")) as session:
        session.policy.is_tracing = True
        x = torch.ones(4, device="kit")
        kept = [x := x + 1 for _ in range(4)]
        bulk = session.stream.bulk
        times = list(bulk.times)
        head, make_rest = bulk.split(2)
        assert [*head.times, *make_rest().times] == times == sorted(times)
        assert len(times) == len(bulk.ops) >= len(kept)
        session.stream.bulk = None  # its parts go nowhere


def test_a_slow_line_of_a_real_step_pays_and_its_text_travels_with_the_run(tmp_path):
    import torch

    @kit.workload
    def sleeper(ctx):
        several = [torch.nn.Parameter(torch.ones(8, 8, device=ctx.device)) for _ in range(12)]
        # longer than a look at the thread, which cannot tell what happens within one
        optimizer = torch.optim.Adam(several, lr=0.1, foreach=False)

        def step():
            hidden = torch.stack(several).tanh()
            time.sleep(0.06)
            loss = hidden.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    run = kit.run(sleeper, Settings(steps=2, warmup=2))
    run.save(tmp_path / "a.kitrun")
    run = Run.load(tmp_path / "a.kitrun")
    (snippet,) = run.sources
    texts = {f"{snippet.file}:{snippet.first + i}": x for i, x in enumerate(snippet.lines)}
    rows = {texts.get(r.site, "").strip(): r for r in line_costs(run)}
    slow, tanh = (
        rows["time.sleep(0.06)"],
        next(row for text, row in rows.items() if text.startswith("hidden")),
    )
    after = rows["loss = hidden.square().mean()"]  # does not pay for the sleep that led to it
    if sys.platform == "linux":  # elsewhere it is not known where a thread waits
        assert slow.elsewhere_ms > 30 > after.record_ms["forward"]
    nodes = run.graphs[0].nodes
    assert {nodes[i].phase for i in tanh.nodes} == {"forward", "backward"}  # of its own gradient
    assert rows["optimizer.step()"].record_ms["update"] > 0
    assert {"def step():", "return loss.detach()"} <= {x.strip() for x in snippet.lines}
    guessed = kit.run(sleeper, Settings(steps=2, warmup=4, step_mode="speculate"))
    assert max(guessed.recorded_ns) > 0  # a guess is timed by what confirms it
    assert "time.sleep(0.06)" in {x.strip() for x in snippet.lines}


def test_a_line_of_a_foreign_trace_has_the_device_time_of_what_it_launched() -> None:
    trace = Path(__file__).parents[2] / "data" / "published" / "h100_bert.json.gz"
    found = {row.site: row.device_ms for row in line_costs(kit.open_trace(trace))}
    assert found["moca/library/model_hub/huggingface/model/adapters/text_base_model.py:28"] > 0.3
    assert found[""] == 0


def test_a_call_of_the_runtime_is_no_line_and_a_file_that_is_called_like_one_is() -> None:
    spans = [Span("host/main", "step 0", "step", 0, 9_000_000)]
    names = ("cudaMalloc", "hipFree", "cuMemFree_v2", "cudaUtils.py:12", "cuDNN_bench/train.py:3")
    for i, name in enumerate(names):
        at = 1_000_000 * i
        spans.append(Span("host/main", name, "elsewhere", at, at + 1_000_000))
    run = Run(Settings(mode="torch"), (), (9_000_000,), Timeline.of(spans))
    found = {row.site: row.elsewhere_ms for row in line_costs(run)}
    assert found == {"": 3, "cudaUtils.py:12": 1, "cuDNN_bench/train.py:3": 1}
    assert "wait 0 ms, elsewhere 3 ms." in source_html(run)


def test_what_the_host_did_at_a_line_is_unknown_where_no_op_was_recorded() -> None:
    run = kit.open_trace(PUBLISHED)
    *known, rest = line_costs(run)
    assert known
    assert all(math.isnan(row.recording_ms) and row.total_ms > 0 for row in known)
    assert rest.site == ""
    assert rest.recording_ms > 4  # of the whole step
    assert str(line_costs(run)).count("unknown") == len(known)
    html = source_html(run)
    assert "Recording: not known by line" in html
    assert "record 0" not in html
    assert "nan" not in html


def test_what_lines_cost_is_unknown_where_no_step_was_traced() -> None:
    """Found where a script ended before its traced steps: each line took 0 ms, it said."""
    run = make_run()
    untraced = replace(run, timeline=Timeline.of([]), recorded_ns=(0,) * len(run.graphs[0]))
    rows = line_costs(untraced)
    assert {r.site for r in rows} == {r.site for r in line_costs(run)}
    assert all(math.isnan(r.recording_ms) and math.isnan(r.device_ms) for r in rows)
    assert [r.wait_ms for r in rows] == [r.wait_ms for r in line_costs(run)]  # of measured steps
    lines = summary(untraced).partition("\nline ")[2].partition("\n\n")[0]
    assert lines.split("\n")[0].split() == ["wait", "ms"]
    assert HOW_TIMED not in lines
    assert "line | wait a step" in untraced.to_markdown()
    html = source_html(untraced)
    assert "Recording: not known, because no step was traced" in html
    assert "record 0" not in html
    assert "nan" not in html


def test_text_and_view_say_that_a_lines_recording_has_the_python_before_it() -> None:
    """Found with 5 ms of Python before the step's first op: the model's first line had them."""
    run = make_run()
    assert HOW_TIMED not in summary(run)
    run = replace(run, recorded_ns=(0,) * len(run.graphs[0]))
    assert f"recording: {HOW_TIMED}" in summary(run)
    assert HOW_TIMED.partition("'")[0] in source_html(run)
