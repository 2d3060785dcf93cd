"""How much each piece of advice may promise, on timelines written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.ir import Graph, Node
from kit.reports.markdown import report_markdown
from kit.runs.verdict import advice as advice_rules
from kit.runs.verdict import cures
from kit.runs.verdict.advice import RULES, AdviceRule, advise
from kit.runs.verdict.cures import Advice, SyncCure, sync_cure
from kit.runs.verdict.summary import summary
from kit.trace import Span, SyncPoint, Timeline, sync_table
from kit.trace.kinds import BESIDE_WORKERS, COPY, MADE_ANEW, OF_WORKERS, TRACE, WORKERS_BEGIN
from kit.widgets.numbers.advice import advice_html
from kit.workloads import recorded
from tests.runs.verdict.advised import LAZY, MS, busy, host, rules, run_of, synthetic


def test_waiting_for_batches_asks_for_prefetch_and_then_for_a_faster_loader() -> None:
    spans = [busy(0, 6), host("input", 6, 10, "next batch")]
    (advice,) = synthetic(spans).advice()
    assert (advice.rule, advice.change, advice.ms) == ("input", {"prefetch": 2}, 4.0)
    (ahead,) = synthetic(spans, LAZY.replace(prefetch=2)).advice()
    assert (ahead.rule, ahead.change) == ("input", {})
    assert "slower than the step" in ahead.text
    assert synthetic([busy(0, 10), host("input", 6, 10, "next batch")]).advice() == ()
    hidden = [busy(0, 4), host("input", 0, 4, "next batch"), host("record", 4, 10)]
    (advice,) = [a for a in synthetic(hidden).advice() if a.rule == "input"]
    assert (advice.ms, advice.change) == (4.0, {})  # no button for what makes steps slower
    assert advice.text.startswith("the host records nothing for 4 ms a step while the next batch")
    assert "let processes do that ahead of the step (a DataLoader of your own" in advice.text
    turns = "Else it takes turns with recording, which leaves it no time here"
    assert turns in advice.text
    spare = [*hidden[:2], host("record", 4, 8), host("wait", 8, 10, "item")]
    (advice,) = [a for a in synthetic(spare).advice() if a.rule == "input"]
    assert (turns in advice.text, advice.change) == (False, {"prefetch": 2})


@pytest.mark.parametrize("settings", [LAZY, LAZY.replace(prefetch=2)])
def test_arrays_that_the_step_copies_itself_are_no_loaders(settings: kit.Settings) -> None:
    """A thread for the batches of a loader changes nothing of them."""
    copied = [busy(0, 6), host("input", 6, 10, "copy to device")]
    (advice,) = synthetic(copied, settings).advice()
    assert (advice.rule, advice.change, advice.ms) == ("input", {}, 4.0)
    assert "copies arrays of the host to the device, 4 ms a step" in advice.text
    assert ".to(ctx.device)" in advice.text
    assert "jax" not in advice.text
    (of_jax,) = synthetic(copied, settings, environment={"jax": "0.10.2"}).advice()
    assert "kit.jax.device_put" in of_jax.text
    assert ".to(" not in of_jax.text
    (advice,) = synthetic([*copied, host("input", 5, 6, "next batch")], settings).advice()
    assert "copies arrays of the host" not in advice.text


def test_a_large_array_that_is_copied_is_named_by_its_line() -> None:
    """It was recording, at a line of the function; a watched loop was told of its DataLoader."""
    copied = [busy(0, 5), host("input", 6, 10, f"{COPY} at a.py:3"), host("input", 5, 6, COPY)]
    (advice,) = synthetic(copied).advice()
    assert (advice.site, advice.ms) == ("a.py:3", 5.0)
    assert advice.text.startswith("a.py:3 copies arrays of the host to the device")
    (watched,) = synthetic(copied, environment={"watched": "complete"}).advice()
    assert (watched.site, "ctx" in watched.text) == ("a.py:3", False)
    (beside,) = synthetic([*copied, host("input", 5, 6, "next batch")]).advice()
    assert "Most of it is a copy at a.py:3: if that is no batch" in beside.text


@pytest.mark.parametrize(
    ("recorded_ns", "calls_ms"),
    # before the first one 2 ms, after the first op 1 ms, after the second one 2 ms; or unknown
    [((4 * MS, 6 * MS), 2 + 1 + 2), ((), 0), ((-1, -1), 0)],
)
def test_the_calls_that_copy_small_arrays_are_saved_with_the_copies(
    recorded_ns: tuple[int, ...], calls_ms: int
) -> None:
    """Of 280 copies a step 8.8 ms could be saved, it said; without them it was 16.7 ms shorter."""
    spans = [host("record", 0, 10, "forward")]
    spans += [host("input", at, at + 1, COPY) for at in (2, 5, 8)]
    run = synthetic([*spans, busy(9, 10)])
    nodes = (Node("aten.mul", (), (), ()), Node("aten.add", (), (), ()))
    run = replace(run, graphs=(Graph(nodes),), recorded_ns=recorded_ns)
    (advice,) = [a for a in run.advice() if a.rule == "input"]
    assert advice.ms == 3 + calls_ms
    assert ("3 ms a step, and calls that take 5 ms more" in advice.text) == bool(calls_ms)


def test_a_run_of_jax_is_told_nothing_of_torchs() -> None:
    record, batch = host("record", 4, 10), host("input", 0, 4, "next batch")
    for rule, spans in {
        "recording": [busy(0, 4), record],
        "own code": [busy(0, 4), host("own", 4, 10, "a.py:3")],
        "host waits elsewhere": [busy(0, 4), host("elsewhere", 4, 10, "cudaMalloc")],
        "input": [busy(0, 4), batch, record],
    }.items():
        for environment in ({"jax": "0.10"}, {"imported from": "jax profile"}):
            found = [a.text for a in synthetic(spans, environment=environment).advice()]
            words = ("torch", "tensor", "fused", "DataLoader")
            assert found, rule
            assert not [text for text in found if any(word in text for word in words)], rule
        of_torch = synthetic(spans, environment={"jax": "0.10", "torch": "2.9"}).advice()
        text = next(a.text for a in of_torch if a.rule == rule)
        assert any(word in text for word in words), rule


def test_functions_that_jax_traces_in_each_step_are_named_with_the_reason() -> None:
    name = f"{TRACE}f at a.py:3: {MADE_ANEW}"
    (advice,) = synthetic([busy(0, 4), host("lower", 4, 10, name)]).advice()
    assert (advice.rule, advice.site, advice.ms) == ("tracing", "a.py:3", 6.0)
    assert "jax traces f at a.py:3 anew, 6 ms a step: the function was made anew" in advice.text
    assert "call kit.jax.step once" in advice.text
    (advice,) = synthetic([busy(0, 4), host("lower", 4, 10, f"{TRACE}f at a.py:3: x")]).advice()
    assert "one shape" in advice.text


@pytest.mark.parametrize("settings", [LAZY, LAZY.replace(mode="torch")])
def test_a_script_is_told_of_its_own_loader(settings: kit.Settings) -> None:
    """It has no setting `prefetch`, nor `loss_scaling`."""
    script = {"watched": "complete"}
    alone = [busy(0, 6), host("input", 6, 10, "next batch")]
    (advice,) = synthetic(alone, settings, environment=script).advice()
    assert (advice.rule, advice.change, advice.ms) == ("input", {}, 4.0)
    assert "(num_workers=2, prefetch_factor=2, persistent_workers=True)" in advice.text
    assert "pin_memory" not in advice.text
    for name in (OF_WORKERS, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        waits = [busy(0, 6), host("input", 6, 10, name)]
        for device, is_pinned in (("cuda (H100)", True), ("gpu (H100)", True), ("cpu (x)", False)):
            on_it = {**script, "device": device}
            (advice,) = synthetic(waits, settings, environment=on_it).advice()
            assert "though the DataLoader has workers" in advice.text
            assert ("pin_memory=True" in advice.text) == is_pinned
    sampled = [busy(0, 5), host("input", 5, 10, BESIDE_WORKERS)]
    asleep = host("elsewhere", 6, 10, "mine.py:3")
    for spans, site in ((sampled, ""), ([*sampled, asleep], "mine.py:3")):
        (advice,) = synthetic(spans, settings, environment=script).advice()
        assert "more workers would not help" in advice.text
        assert advice.site == site
    begun = [host("input", 5, 8, WORKERS_BEGIN), host("input", 8, 10, OF_WORKERS)]
    for spans, is_said in ((begun, True), ([begun[0], host("input", 8, 12, OF_WORKERS)], False)):
        (advice,) = synthetic([busy(0, 5), *spans], settings, environment=script).advice()
        assert ("workers of a DataLoader begin and end" in advice.text) == is_said
    computes = [busy(0, 4), host("record", 0, 10), host("own", 4, 10, "mine.py:3")]
    (advice,) = [a for a in synthetic(computes, settings).advice() if a.rule == "own code"]
    assert "device=ctx.device" in advice.text
    mine = synthetic(computes, settings, environment=script)
    (advice,) = [a for a in mine.advice() if a.rule == "own code"]
    assert "ctx" not in advice.text
    assert "num_workers" in advice.text
    sleeps = [busy(0, 4), host("record", 0, 10), host("elsewhere", 4, 10, "mine.py:3")]
    (advice,) = synthetic(sleeps, settings, environment=script).advice()
    assert "(a batch: a DataLoader's num_workers)" in advice.text
    assert "prefetch=2" in synthetic(sleeps, settings).advice()[0].text


@pytest.mark.parametrize("via", ["torch/amp/grad_scaler.py:1", ""])
def test_a_script_is_offered_no_setting_of_a_builder(via: str) -> None:
    cause = "item" if via else "copy_to_device"
    syncs = (SyncPoint(0, 5 * MS, cause, "mine.py:3", via),)
    spans = [busy(0, 3), host("wait", 0, 5, cause), host("record", 0, 10)]
    ours = synthetic(spans, sync_points=syncs)
    (row,) = sync_table(syncs, steps=1, timeline=ours.timeline)
    assert set(sync_cure(row, ours).change) & {"prefetch", "loss_scaling"}
    script = replace(ours, environment={"watched": "complete"})
    cure = sync_cure(row, script)
    assert not set(cure.change) & {"prefetch", "loss_scaling"}
    assert "loss_scaling=" not in cure.text
    assert "accumulate" not in cure.text


@pytest.mark.parametrize(
    ("steps", "said"),
    [(1, "logged in each step. Do it every 50th step"), (10, "logged once in 10 steps. Do it"),
     (100, "logged once in 100 steps. Keep loss.detach()")],
)  # fmt: skip
def test_what_is_logged_now_and_then_is_not_said_to_be_in_each_step(steps: int, said: str) -> None:
    syncs = (SyncPoint(0, 5 * MS, "print", "mine.py:3", ""),)
    run = synthetic([busy(0, 3), host("wait", 0, 5, "print")], sync_points=syncs)
    (row,) = sync_table(syncs, steps=steps, timeline=run.timeline)
    assert said in sync_cure(row, run).text


def test_what_seven_of_ten_steps_log_is_not_said_of_each() -> None:
    syncs = tuple(SyncPoint(i, 5 * MS, "print", "mine.py:3", "") for i in range(7))
    run = synthetic([busy(0, 3), host("wait", 0, 5, "print")], sync_points=syncs)
    (row,) = sync_table(syncs, steps=10, timeline=run.timeline)
    assert "logged in 70% of the steps. Do it" in sync_cure(row, run).text


def test_a_device_that_waits_for_recording_asks_for_replay() -> None:
    spans = [busy(0, 4), host("record", 0, 10)]
    (advice,) = synthetic(spans).advice()
    assert (advice.rule, advice.change) == ("recording", {"step_mode": "replay"})
    assert advice.ms == pytest.approx(6)
    assert synthetic([busy(0, 10), host("record", 0, 10)]).advice() == ()
    assert synthetic(spans, LAZY.replace(mode="torch")).advice() == ()
    (already,) = synthetic(spans, LAZY.replace(step_mode="replay")).advice()
    assert already.change == {}
    assert "notes say which steps were not replayed" in already.text
    assert "step_mode=" not in already.text


def test_a_loader_that_sleeps_is_as_long_as_its_batch_and_not_twice() -> None:
    """Found by `prefetch=2`: it saved 1.2 ms, and "up to 480 µs" had been said."""
    sleeps = host("elsewhere", 1, 6, "data.py:7")
    spans = [host("input", 0, 6, "next batch"), sleeps, host("record", 6, 9), busy(9, 10)]
    (advice,) = synthetic(spans).advice()
    assert (advice.rule, advice.site, advice.ms) == ("input", "data.py:7", pytest.approx(4))
    assert advice.text.endswith("(prefetch=2). A faster loader would save more, up to 6 ms.")
    assert "most of the time at data.py:7, which sleeps" in advice.text
    script = synthetic(spans, LAZY.replace(mode="torch"), environment={"watched": "complete"})
    (advice,) = script.advice()
    assert (advice.site, advice.ms) == ("data.py:7", pytest.approx(6))
    assert "most of the time at data.py:7, which sleeps" in advice.text
    spans[1] = host("elsewhere", 1, 6, "cudaHostAlloc")  # of memory that is pinned, by no sleep
    (advice,) = synthetic(spans).advice()
    assert (advice.rule, advice.site) == ("input", "")
    assert "cudaHostAlloc" not in advice.text
    of_workers = [replace(spans[0], name=OF_WORKERS), *spans[1:]]
    assert synthetic(of_workers, LAZY, environment=script.environment).advice()[0].site == ""


def test_a_sleep_that_the_traced_steps_hide_may_save_all_that_it_takes() -> None:
    """Found by taking it out: 5 ms were saved, and "up to 1.6 ms" had been said."""
    spans = [busy(0, 6), host("record", 0, 10), host("elsewhere", 1, 7, "mine.py:3")]
    run = synthetic(spans)
    found = {a.rule: a.ms for a in run.advice()}
    assert found["host waits elsewhere"] == pytest.approx(4)  # the device works for 6 of the 10
    slower = replace(run, step_times_ns=(14 * MS,))  # less overlaps where nobody traces
    found = {a.rule: a.ms for a in slower.advice()}
    assert found["host waits elsewhere"] == pytest.approx(6)
    faster = replace(run, step_times_ns=(5 * MS,))
    found = {a.rule: a.ms for a in faster.advice()}
    assert found["host waits elsewhere"] == pytest.approx(3.5)  # its kernels, too: 6 / 2² at least


def test_a_read_may_cost_untraced_steps_more_than_the_traced_ones() -> None:
    syncs = (SyncPoint(4 * MS, 4 * MS, "item", "mine.py:3"),)
    spans = [busy(0, 8), host("record", 0, 10), host("wait", 4, 8, "item")]
    run = synthetic(spans, sync_points=syncs)
    run = replace(run, timeline=Timeline.of(run.timeline.spans, syncs))
    (advice,) = run.advice()
    assert advice.ms == pytest.approx(2)
    (advice,) = replace(run, step_times_ns=(11 * MS,)).advice()
    assert advice.ms == pytest.approx(3)
    assert "nothing to do for 2 ms" in advice.text
    (advice,) = replace(run, step_times_ns=(50 * MS,)).advice()  # 2 of the 10 that were traced
    assert advice.rule == "read"


def test_a_read_and_the_idle_time_after_it_are_told_of_the_same_steps() -> None:
    """It said "waits 1.08 ms, and the device then has nothing to do for 1.38 ms"."""
    syncs = (SyncPoint(4 * MS, 4 * MS, "item", "mine.py:3"),)
    spans = [busy(0, 8), host("record", 0, 10), host("wait", 4, 8, "item")]
    untraced = (SyncPoint(0, 1 * MS, "item", "mine.py:3"),)
    run = synthetic(spans, sync_points=untraced)
    run = replace(run, timeline=Timeline.of(run.timeline.spans, syncs))
    (advice,) = run.advice()
    assert advice.text.startswith(
        "mine.py:3 waits 1 ms a step (in the traced steps 4 ms, and the device then has nothing "
        "to do for 2 ms): the step reads a value (item). "
    )
    assert advice.saving == "up to 1 ms"
    (advice,) = replace(run, sync_points=syncs).advice()
    assert advice.text.startswith(
        "mine.py:3 waits 4 ms a step, and the device then has nothing to do for 2 ms: the step "
    )


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ([busy(0, 6), host("input", 6, 10, "next batch")], "the device waits 4 ms{}"),
        ([busy(0, 6), host("elsewhere", 6, 10, "a.py:3")], "has nothing to do for 4 ms{}. Do"),
        ([busy(0, 6), host("own", 6, 10, "a.py:3")], "has nothing to do for 4 ms{}. Do"),
        ([busy(0, 3), host("record", 0, 10)], "the device waits 7 ms{} for Python"),
    ],
    ids=["input", "elsewhere", "own code", "recording"],
)
def test_what_is_of_traced_steps_is_not_told_of_shorter_measured_ones(
    spans: list[Span], told: str
) -> None:
    """ "the device waits 78.6 ms a step" stood beside a card of 79.8 ms: a traced step took 117."""
    for step_ms, of in (
        (10, " a step"),
        (10.5, " a step"),
        (8, " of the mean traced step's 10 ms"),
    ):
        run = replace(synthetic(spans), step_times_ns=(int(step_ms * MS),) * 10)
        (advice,) = run.advice()
        assert told.format(of) in advice.text
    of_a_file = replace(run, timeline=Timeline.of(run.timeline.spans, origin="imported"))
    assert all("traced step" not in a.text for a in of_a_file.advice())


def test_what_several_devices_wait_for_is_their_gradients_or_one_replica_after_the_other() -> None:
    travel = Span("device/0 reduction", "bucket 0", "reduction", 3 * MS, 9 * MS)
    two = {"parallel.devices": 2.0}
    (advice,) = synthetic([busy(0, 4), travel, busy(9, 10)], metrics=two).advice()
    assert (advice.rule, advice.ms, advice.change) == ("reduction", pytest.approx(4), {})
    assert "bucket_mb" in advice.text
    slowed = replace(synthetic([busy(0, 1), travel], metrics=two), step_times_ns=(4 * MS,) * 3)
    (advice,) = slowed.advice()  # the trace shows more of it than a measured step can lose
    assert advice.ms == pytest.approx(4 - 6 * (4 / 10) ** 2)
    assert synthetic([busy(0, 9), travel, busy(9, 10)], metrics=two).advice() == ()
    (advice,) = synthetic([busy(0, 4), host("record", 0, 10)], metrics=two).advice()
    assert (advice.rule, advice.change) == ("recording", {"step_mode": "replay"})
    assert "one replica after the other" in advice.text


def test_a_machine_without_a_core_for_the_host_is_named_before_the_recording_is() -> None:
    spans = [busy(0, 4), host("record", 3, 10)]
    full = {"device": "cpu (x)", "cores": "2", "cores for XLA": "2"}
    (advice,) = synthetic(spans, environment=full).advice()
    assert advice.rule == "cores"
    assert "NPROC=1" in advice.text
    for other in ({**full, "cores for XLA": "1"}, {**full, "device": "gpu (H200)"}):
        assert [a.rule for a in synthetic(spans, environment=other).advice()] == ["recording"]
    seldom = synthetic([host("record", 0, 8.6), busy(8.6, 9.4)], environment=full)
    assert [a.rule for a in seldom.advice()] == ["recording"]  # the device hardly takes a core
    under_a_limit = {**full, "cores": "4", "cores for XLA": "64"}
    (advice,) = synthetic(spans, environment=under_a_limit).advice()
    assert "XLA works with 64 threads on 4 cores" in advice.text
    assert "NPROC=3 " in advice.text
    only_recording = synthetic([busy(0, 4), host("record", 0, 10)], environment=full)
    assert [a.rule for a in only_recording.advice()] == ["recording"]  # nothing more could hide


def test_a_step_that_is_all_recording_cannot_lose_what_recording_takes() -> None:
    """1.32 of 1.44 ms are recording: beside a device that works 0.3 ms, hardly any can hide."""
    spans = [busy(7.9, 10), host("record", 0, 9.2)]
    full = {"device": "cpu (x)", "cores": "2", "cores for XLA": "2"}
    (advice,) = synthetic(spans, environment=full).advice()
    assert (advice.rule, advice.saving) == ("cores", "up to 800 µs")
    assert "recording (9.2 ms a step)" in advice.text
    assert summary(synthetic(spans, environment=full)).count("up to 800 µs: XLA works") == 1


_KINDS = st.sampled_from(
    ["record", "input", "dispatch", "elsewhere", "own", "wait", "ahead", "reduction", "kernel"]
)


@given(
    st.lists(st.tuples(_KINDS, st.integers(0, 9), st.integers(1, 9)), max_size=7),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=3),
    st.sampled_from([LAZY, LAZY.replace(prefetch=2), LAZY.replace(mode="imperative")]),
    st.sampled_from(["1", "2"]),
)
def test_no_advice_promises_more_than_what_is_left_of_the_step_beside_the_rest(
    spans: list[tuple[str, int, int]],
    waits: list[tuple[int, int]],
    settings: kit.Settings,
    xla: str,
) -> None:
    """Counted by milliseconds: which of the ten does the device work, or the host, in any case?"""
    cells = {kind: {ms for k, a, n in spans if k == kind for ms in range(a, a + n)} for kind in
             ("record", "input", "elsewhere", "own", "wait", "ahead", "kernel")}  # fmt: skip
    away = cells["input"] | cells["elsewhere"] | cells["own"] | cells["wait"] | cells["ahead"]
    work = {
        "recording": cells["record"] - away,
        "input": cells["input"],
        "host waits elsewhere": cells["elsewhere"],
        "own code": cells["own"],
    }
    made = [
        busy(a, a + n) if kind == "kernel" else host(kind, a, min(a + n, 10))
        for kind, a, n in spans
    ]
    syncs = tuple(SyncPoint(a * MS, n * MS, "item", "a.py:1") for a, n in waits)
    environment = {"device": "cpu (x)", "cores": "2", "cores for XLA": xla}
    nested = () if settings.prefetch else ("input",)
    for advice in synthetic(made, settings, sync_points=syncs, environment=environment).advice():
        mine = work.get(advice.rule, set()) if advice.rule in nested else set()
        rest = {ms for name, all_ in work.items() if name != advice.rule for ms in all_ if ms < 10}
        rest -= mine  # the batch and the sleep in it are one
        device = {ms for ms in cells["kernel"] if ms < 10}
        assert 0 <= advice.ms <= 10 - max(len(rest), len(device)) + 1e-9, advice
        assert advice.text.endswith("."), advice


def test_many_small_segments_ask_for_larger_ones() -> None:
    made = run_of(settings=LAZY.replace(mode="imperative"))
    steps = (10 * MS,) * 4
    timeline = synthetic([busy(0, 2), host("dispatch", 0, 10)]).timeline

    def costing(each_ns: float, run: kit.Run = made) -> kit.Run:
        metrics = {"overhead.launch_ns": each_ns, "overhead.sync_ns": each_ns}
        return replace(run, metrics=metrics, step_times_ns=steps, timeline=timeline)

    (advice,) = [a for a in costing(50_000).advice() if a.rule == "small segments"]
    assert advice.change == {"mode": "lazy"}
    assert advice.ms == pytest.approx((len(made.segments) - 1) * 0.1)  # one is left
    assert f"{len(made.segments)} segments of 1 op;" in advice.text
    one = replace(made, segments=made.segments[-1:])  # larger sizes would join it with nothing
    assert "small segments" not in rules(costing(2e6, one))
    assert "small segments" not in rules(costing(500))
    assert "small segments" not in rules(costing(50_000, run_of()))


def test_the_dearest_comes_first_and_cheap_things_are_not_said() -> None:
    syncs = [SyncPoint(0, 3 * MS, "item", "a.py:1"), SyncPoint(0, 1000, "item", "b.py:2")]
    step = Span("host/main", "step 0", "step", 0, 10 * MS)
    timeline = Timeline.of([step, host("input", 5, 10, "next batch")])
    run = kit.Run(LAZY, (1.0,), (10 * MS,), timeline, sync_points=tuple(syncs))
    assert [(a.rule, a.site) for a in advise(run)] == [("input", ""), ("read", "a.py:1")]


def test_every_rule_is_named_in_the_list() -> None:
    assert len(set(RULES)) == len(RULES)
    copied = replace(synthetic([]), sync_points=(SyncPoint(0, 9 * MS, "copy_to_device", "a.py:1"),))
    (advice,) = copied.advice()
    assert (advice.rule, advice.rule in RULES) == ("copy", True)
    assert isinstance(advice, Advice)


def test_a_new_rule_and_a_new_cure_are_one_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tea = AdviceRule(("tea",), lambda run, seen: iter([Advice("tea", "drink less tea", ms=50.0)]))
    cure = SyncCure("kettle", lambda cause, via: cause == "boil", "boil {later}earlier")
    monkeypatch.setattr(advice_rules, "ADVICE_RULES", (tea, *advice_rules.ADVICE_RULES))
    monkeypatch.setattr(cures, "SYNC_CURES", (cure, *cures.SYNC_CURES))
    run = replace(synthetic([]), sync_points=(SyncPoint(0, 9 * MS, "boil", "a.py:1"),))
    assert [a.rule for a in run.advice()] == ["tea", "kettle"]
    for shown in (summary(run), advice_html(run), report_markdown([run])):
        assert "drink less tea" in shown
        assert "earlier" in shown


def test_a_run_without_steps_gets_none() -> None:
    assert kit.Run(LAZY, (), (), Timeline.of([])).advice() == ()


def test_a_trace_makes_no_kernel_of_a_gpu_longer() -> None:
    """What a step saves leaves the whole of them; on a CPU the trace slows them, too."""
    spans = [busy(0, 4), host("record", 0, 10)]
    faster = {"step_times_ns": (8 * MS,) * 3}
    for device, most in (("cuda (H100)", 4.0), ("cpu (x)", 8 - 4 * 0.8**2)):
        run = replace(synthetic(spans, environment={"device": device}), **faster)
        (advice,) = [a for a in run.advice() if a.rule == "recording"]
        assert advice.ms == pytest.approx(most)
    run = recorded("bert_h100")  # its traced steps took 1.4 times as long
    (advice,) = [a for a in run.advice() if a.rule == "recording"]
    mean_ms = sum(run.step_times_ns) / len(run.step_times_ns) / 1e6
    assert advice.ms == pytest.approx(mean_ms - 5.5, abs=0.01)
