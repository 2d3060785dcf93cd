"""The verdict: limit, sentence, advice and next step are one chain."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.cli.demo import _advice
from kit.reports.markdown import report_markdown
from kit.runs.conditions import KNOWN, OF_OTHERS, Conditions
from kit.runs.loss_scaling import HOST_CHECK
from kit.runs.run import EXPORTED_AS
from kit.runs.settings import Settings
from kit.runs.verdict.advice import ADVICE_RULES, limits_of
from kit.runs.verdict.limit_rows import LIMIT_ROWS
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict
from kit.text import format_ms
from kit.trace import LIMITS, Span, SyncPoint, Timeline
from kit.trace.devices import TORCH_CPU
from kit.trace.kinds import ON_DEVICE
from kit.trace.metrics import waits_of
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.advice import advice_html
from kit.widgets.numbers.syncs import syncs_drawn
from kit.workloads import recorded
from kit.workloads.recorded import RECORDINGS
from tests.factories import make_run
from tests.runs.verdict.advised import MS, busy, host, one_step
from tests.runs.verdict.advised import run_of as measured
from tests.runs.verdict.advised import verdict_of as of


def test_each_limit_has_a_row() -> None:
    assert LIMIT_ROWS.keys() == set(LIMITS)
    assert {name for rule in ADVICE_RULES for name in rule.limits} <= set(LIMITS)
    assert all(row.said and row.inside for row in LIMIT_ROWS.values())


LIBRARY = "a library that it calls"
OF_KIT = {"torch": "2.9", "jax": "0.10", "device": "cpu (cpu)"}
ON_DEVICE_BY_JAX = "on the device (in the jitted function, with jax.numpy)"


@pytest.mark.parametrize(
    ("environment", "mode", "what", "where"),
    [
        ({"torch": "2.9", "device": "cpu (x)"}, "torch", LIBRARY, "with ops of torch."),
        ({"torch": "2.9", "device": "cuda (x)"}, "torch", LIBRARY, "with ops of torch on the dev"),
        (OF_KIT, "lazy", "ops of torch on CPU tensors", "on the device (tensors made with"),
        ({"jax": "0.10", "device": "cpu (cpu)"}, "lazy", "numpy", ON_DEVICE_BY_JAX),
    ],
    ids=["native", "native on a GPU", "device kit", "jax"],
)
def test_own_code_is_cured_by_what_ran_the_step_also_in_its_exported_trace(
    environment: dict[str, str], mode: str, what: str, where: str
) -> None:
    """All that torch computes in native steps has other names, on CPU tensors beside a GPU, too."""
    run = one_step([busy(0, 4), host("own", 4, 10)], mode=mode)
    timeline = replace(run.timeline, origin="profiled")
    made = replace(run, timeline=timeline, environment=environment)
    opened = replace(
        made,
        settings=run.settings.replace(mode="torch"),
        timeline=replace(timeline, origin="imported"),
        environment={**environment, "imported from": "kit", EXPORTED_AS: "profiled"},
    )
    for each in (made, opened):
        found = of(each)
        (advice,) = found.advice
        assert f"(Python, or {what}), and" in advice.text
        assert f"less often, or, if it computes with numbers, {where}" in advice.text
        assert found.said.endswith("in Python, or in a library that it calls")


@pytest.mark.parametrize("origin", ["profiled", "imported"])
def test_where_recording_lasts_nothing_is_claimed_that_only_looks_could_have_seen(
    origin: str,
) -> None:
    """A trace, and steps that were not on Linux, were told that only short Python is not seen."""
    run = one_step([busy(0, 4), host("record", 4, 10)], mode="torch")
    said = of(replace(run, timeline=replace(run.timeline, origin=origin))).next_step
    assert said.startswith("if it computes: ") == (origin == "imported")
    assert said.endswith("in native steps on Linux and in traces with stacks only, from 1 ms on)")


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([host("record", 4, 7.2), host("own", 7.2, 10)], "own code, 28%"),
        ([host("record", 4, 6.2), host("input", 6.2, 8.1), host("own", 8.1, 10)],
         "input, 19% and own code, 19%"),
        ([host("record", 4, 7.6), host("own", 7.6, 10)], ""),
    ],
)  # fmt: skip
def test_a_limit_that_is_the_largest_by_little_is_not_told_alone(
    spans: list[Span], said: str
) -> None:
    """A step was "recording-bound (21%)", and own-bound in a rerun: its own code took 20 %."""
    found = of(one_step([busy(0, 4), *spans]))
    assert found.limit.what == "recording"
    assert found.said.partition(". Nearly as much is lost by ")[2] == said


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_limit_without_advice_has_a_next_step_wherever_it_is_shown(mode: str) -> None:
    run = one_step([busy(0, 4), host("dispatch", 0, 10)], mode=mode)
    found = of(run)
    assert (found.limit.what, found.advice) == ("dispatch", ())
    assert found.next_step.startswith("give each launch more to do")
    for shown in (summary(run), run.to_markdown(), advice_html(run)):
        assert "give each launch more to do" in shown
        assert "dispatch-bound" in shown
    assert ("mode='lazy'" in found.next_step) == (mode == "lazy")


@pytest.mark.parametrize("kind", ["dispatch", "wait"])
def test_a_device_that_was_given_work_and_not_seen_gets_no_verdict(kind: str) -> None:
    given = [host("record", 0, 9), host(kind, 1, 2)]
    unseen, seen = one_step(given, mode="torch"), one_step([*given, busy(1, 2)], mode="torch")
    assert (of(unseen).limit.doubt, of(unseen).advice) == (
        "what the device did was not seen",
        (),
    )
    assert "trace with the device's activities" in summary(unseen)
    assert "-bound" not in summary(unseen) + unseen.to_markdown() + advice_html(unseen)
    assert "-bound" in summary(seen)
    assert not of(one_step([host("record", 0, 9)], mode="torch")).limit.doubt  # nothing was given


@pytest.fixture
def unseen() -> kit.Run:
    """A run on device kit that waits, and whose profiler gave no kernel."""
    run = make_run(Settings(loss_scaling=HOST_CHECK))
    spans = [s for s in run.timeline.spans if s.kind not in ON_DEVICE]
    syncs = [replace(s, via="grad_scaler.py:351") for s in run.timeline.syncs]
    return replace(
        run,
        timeline=Timeline.of(spans, syncs, "profiled"),
        sync_points=tuple(replace(s, via="grad_scaler.py:351") for s in run.sync_points),
    )


def test_a_loop_of_several_threads_is_not_told_to_let_the_machine_rest() -> None:
    """It was told to measure again when nothing else uses the device, which changes nothing."""
    of_threads = replace(one_step([busy(0, 4)]), environment={OF_OTHERS: "9"})
    for conditions in (Conditions(), Conditions(cores=2, others=1)):
        found = of(replace(of_threads, conditions=conditions))
        assert found.next_step.startswith("have one thread make all of the loop's steps")


def test_who_advises_withholds_what_the_verdict_withholds(unseen: kit.Run) -> None:
    """Under "no advice is given" stood "the device waits 21.6 ms for Python", and a cure."""
    assert not unseen.doubt
    assert unseen.withheld == of(unseen).limit.doubt == "what the device did was not seen"
    assert unseen.withheld in repr(unseen.advice())
    assert "try loss_scaling" not in syncs_drawn(unseen)[0]
    limited = replace(make_run(), conditions=Conditions(cores=2, throttled=0.5))
    for run, cure in ((unseen, "no other profiler"), (limited, "raise the container's limit")):
        said = " ".join(_advice(run).split())
        assert f"No times: {run.withheld}. Next: {of(run).next_step}." in said
        assert cure in said
    seen = replace(unseen, timeline=make_run().timeline)
    assert not seen.withheld
    assert "try" in syncs_drawn(seen)[0]


def test_a_run_on_device_kit_is_not_told_to_set_an_option_of_torchs_profiler(
    unseen: kit.Run,
) -> None:
    assert "ProfilerActivity" not in of(unseen).next_step
    assert "no other profiler runs" in of(unseen).next_step


@pytest.mark.parametrize(
    ("devices", "cure"),
    [([], "put torch.profiler around the steps that compute"), ([{"name": "H100"}], "activities")],
)
def test_a_trace_in_which_torch_computed_nothing_is_told_so(
    tmp_path: Path, devices: list[dict[str, str]], cure: str
) -> None:
    """It was told to trace a GPU that nobody had named."""
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": "train_step", "pid": 1, "tid": 1,
         "ts": 100 * i, "dur": 99} for i in range(3)
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(
        json.dumps({"deviceProperties": devices, "traceEvents": steps})
    )
    run = kit.open_trace(tmp_path / "a.json")
    assert cure in of(run).next_step
    assert any("no kernel and no op of torch is in the file" in x for x in run.timeline.notes)
    assert "kernels are torch's ops" not in summary(run)


def test_a_limit_with_advice_says_the_step_once() -> None:
    found = of(one_step([busy(0, 4), host("record", 0, 10)]))
    assert ([a.rule for a in found.advice], found.next_step) == (["recording"], "")


def test_a_host_whose_collector_goes_through_all_objects_each_step_is_told_so() -> None:
    run = one_step([host("record", 0, 9), busy(9, 10)])
    steps = len(run.step_times_ns)
    for full, is_said in ((steps, True), (steps - 1, False), (math.nan, False)):
        made = replace(run, conditions=Conditions(full_collections=full))
        assert ("garbage collector went through all objects" in of(made).said) == is_said
    assert "5 garbage collections (3 of all objects)" in str(
        Conditions(collections=5, full_collections=3)
    )
    for cores, taken in ((0.9, "0.9 cores"), (1.0, "1 core"), (0.1, "")):
        found = of(replace(run, conditions=Conditions(own_threads=cores)))
        assert (f"threads of the program took {taken} meanwhile" in found.said) == bool(taken)


def test_a_thread_that_holds_pythons_lock_is_named_whatever_waits_for_it() -> None:
    """A loader in the step's thread waits for the lock, too, and so does what is beside ops."""
    held = Conditions(own_threads=0.9)
    ops = replace(busy(0, 6), lane=TORCH_CPU)
    for spans, changes, said in (
        ([host("input", 0, 8), busy(8, 10)], {}, "lock, and that counts as this, too"),
        ([host("input", 0, 8), busy(8, 10)], {"prefetch": 2}, ""),  # a thread that loads
        ([ops, host("record", 0, 10)], {}, "lock, and that is part of the rest"),
        ([busy(0, 9), host("record", 0, 10)], {}, ""),
    ):
        found = of(replace(one_step(spans, **changes), conditions=held)).said
        assert ("Python's lock" in found) == bool(said)
        assert said in found


def test_the_programs_own_threads_are_no_other_programs_that_could_be_closed() -> None:
    run = one_step([busy(0, 4), host("record", 0, 10)], mode="torch")
    for taken, cure in (
        (Conditions(cores=2, threads=0.9), "threads of this process that were at work"),
        (Conditions(cores=2, others=0.1, threads=0.9), "threads of this process that were at work"),
        (Conditions(cores=2, others=0.9, threads=0.1), "close other programs"),
        (Conditions(cores=2, steal=0.9), "close other programs"),
    ):
        assert cure in of(replace(run, conditions=taken)).next_step
    run = replace(run, timeline=replace(run.timeline, origin="profiled"))
    longer = replace(run, step_times_ns=(30 * MS,), environment={"torch": "2.9"})
    assert of(longer).next_step.startswith("raise warmup")
    held = replace(longer, conditions=Conditions(own_threads=0.9))
    assert of(held).next_step.startswith(
        "let processes do what other threads of the program compute, 0.9 cores: while one runs"
    )


def test_long_waits_that_cost_little_are_said_to_be_no_loss() -> None:
    wait = SyncPoint(0, 9 * MS, "item", "train.py:7")
    small = one_step([busy(0, 9), host("wait", 0, 9), busy(9.5, 10)], [wait])
    assert "The host waits 9 ms in the mean untraced step: waiting is no loss" in of(small).said
    assert "what follows is, 5% of the traced step" in of(small).said
    large = one_step([busy(0, 5), host("wait", 0, 5)], [SyncPoint(0, 5 * MS, "item", "train.py:7")])
    assert "no loss" not in of(large).said


def test_cards_and_verdict_tell_the_waits_of_the_same_steps() -> None:
    traced = SyncPoint(0, 9 * MS, "item", "train.py:7")
    run = one_step([busy(0, 9), host("wait", 0, 9), busy(9.5, 10)], [traced])
    run = replace(run, sync_points=(replace(traced, wait_ns=7 * MS),))
    assert waits_of(run).each_ms == run.headline().sync_wait_ms == 7
    assert "waits 7 ms in the mean untraced step" in of(run).said
    for shown in (summary(run), run.to_markdown(), advice_html(run), headline_html(run)):
        assert "7 ms" in shown or "| 7.00 |" in shown
        told = shown.partition("## Step breakdown")[0]  # that table is of the traced step
        assert "9 ms" not in told.replace("(in the traced steps 9 ms, and the device then", "")
    assert "mean of 1 untraced step<" in headline_html(run)
    imported = replace(run, settings=Settings(mode="torch"))
    assert waits_of(imported).which == "1 traced step"


def test_traced_steps_that_wait_longer_than_measured_ones_do_not_speak_for_them() -> None:
    """Of 6.27 ms a step waited 0.64, and "sync-bound (46% of the step)" stood alone."""
    traced = SyncPoint(0, 3 * MS, "item", "train.py:7")
    run = one_step([host("wait", 0, 3), busy(6, 10)], [traced])
    for waited, said in (
        (1, "Untraced steps wait 1 ms only: no more than 20% of these is"),
        (3, ""),
    ):
        measured = replace(traced, wait_ns=waited * MS)
        found = of(replace(run, sync_points=(measured,)))
        assert str(found.limit) == "sync-bound (60% of the step)"
        assert said in found.said
        assert ("no more than" in found.said) == bool(said)
    of(replace(run, step_times_ns=(0,), sync_points=(traced,)))  # as a file may say


def test_waits_of_several_threads_at_a_time_are_said_to_add_up() -> None:
    """In an export of two ranks the host waited 857 ms of a step of 969, in words."""
    both = [SyncPoint(at * MS, 9 * MS, "item", "train.py:7") for at in (0, 1)]
    run = one_step([busy(0, 9.5), host("wait", 0, 9), host("wait", 1, 10), busy(9.6, 10)], both)
    said = "(waits of several threads at a time add up)"
    assert f"waits 18 ms in the mean untraced step {said}: waiting is no loss" in of(run).said
    assert f"sync wait 18 ms in the mean step {said}," in summary(run)
    assert f"mean of 1 untraced step {said}<" in headline_html(run)
    one = one_step([busy(0, 9), host("wait", 0, 9), busy(9.5, 10)], both[:1])
    assert said not in summary(one) + headline_html(one)


def test_a_saving_that_is_longer_than_the_cards_step_says_which_step_it_is_of() -> None:
    """Five of six steps took 2 ms and one 90 ms: "up to 10 ms" stood beside a step of 2 ms."""
    run = one_step([host("input", 0, 8), busy(8, 10)])
    few = replace(run, step_times_ns=(2 * MS,) * 5 + (90 * MS,))
    assert of(few).advice[0].saving
    assert '"Up to" is of the mean measured step, 16.7 ms' in of(few).said
    assert "Up to" not in of(run).said


def test_a_file_that_names_no_device_has_waits_like_any_other() -> None:
    run = replace(make_run(Settings(mode="torch"), syncs=0), environment={"torch": "2"})
    assert "the host never waited for the device" in summary(run)


def test_a_native_run_tells_the_waits_of_all_its_traced_steps_and_of_no_others() -> None:
    run = make_run(Settings(mode="torch"), steps=2)
    (*_, last) = run.timeline.syncs
    run = replace(run, timeline=replace(run.timeline, syncs=(last,)))
    for copies in ((last,), (), (last,) * len(run.step_times_ns)):  # older files hold copies
        run = replace(run, sync_points=copies)
        assert waits_of(run).which == "2 traced steps"
        assert run.headline().syncs_per_step == 0.5
        assert "mean over 2 traced steps" in summary(run)
        assert "Mean over 2 traced steps." in run.to_markdown()


def test_without_a_traced_step_there_is_no_verdict() -> None:
    assert verdict(kit.Run(kit.Settings(), (), (), Timeline.of([]))) is None


_KINDS = st.sampled_from(["record", "input", "dispatch", "compile", "wait", "ahead", "kernel"])


@given(
    st.lists(st.tuples(_KINDS, st.floats(0, 9), st.floats(0.1, 9)), max_size=6),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
    st.sampled_from(["lazy", "imperative", "torch"]),
)
def test_there_is_always_something_to_do_and_nothing_contradicts_it(
    spans: list[tuple[str, float, float]], waits: list[tuple[int, int]], mode: str
) -> None:
    made = [busy(a, a + n) if kind == "kernel" else host(kind, a, a + n) for kind, a, n in spans]
    syncs = [SyncPoint(a * MS, n * MS, "item", "train.py:7") for a, n in waits]
    found = of(one_step(made, syncs, mode=mode))
    answered = {limit for a in found.advice for limit in limits_of(a)}
    assert bool(found.next_step) != (found.limit.what in answered)
    if "only less work" in found.said:
        assert found.limit.share > 0.99


def test_kernels_of_no_known_op_withhold_the_verdict() -> None:
    made = replace(measured(), conditions=Conditions())
    t = made.timeline
    foreign = t.where(kind="kernel") & (np.arange(len(t)) % 2 == 0)  # of some other program
    made = replace(made, timeline=replace(t, node=np.where(foreign, -1, t.node).astype(np.int32)))
    assert made.known_fraction < KNOWN
    found = of(made)
    assert "something else was profiled" in found.limit.doubt
    for shown in (summary(made), made.to_markdown(), advice_html(made)):
        assert "measure again when nothing else uses the device" in shown
    assert "close other programs" in of(replace(made, conditions=Conditions(2, 1.5))).next_step


@pytest.mark.parametrize("name", [*RECORDINGS, "native", "device kit", "disturbed"])
def test_all_who_tell_of_a_run_tell_the_same(name: str) -> None:
    """Text, Markdown and the page of explorer and report: card, limit, doubt, advice, next step."""
    made = recorded(name) if name in RECORDINGS else make_run(Settings(mode=MODE_OF[name]))
    if name == "disturbed":
        made = replace(made, conditions=Conditions(2, 1.5))
    found = of(made)
    limit, card = str(found.limit.doubt or found.limit), format_ms(made.headline().step_ms)
    texts = [limit, found.said, found.next_step, card.split()[0]]
    texts += [part for a in found.advice for part in (a.saving, a.text)]
    page = headline_html(made) + advice_html(made)
    for shown in (summary(made), made.to_markdown(), report_markdown([made]), page):
        assert not [text for text in texts if _letters(text) not in _letters(shown)]
    assert bool(found.limit.doubt) == (name == "disturbed")


MODE_OF = {"native": "torch", "device kit": "lazy", "disturbed": "lazy"}


def _letters(text: str) -> str:
    """Its letters and figures, without markup."""
    return re.sub(r"[^a-z0-9]", "", html.unescape(re.sub(r"<[^>]*>", "", text)).lower())
