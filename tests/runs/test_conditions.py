"""What a run says about the machine that it was measured on, and when it withholds its verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.reports.html import report_html
from kit.reports.markdown import report_markdown
from kit.runs.analysis.lines import line_costs
from kit.runs.analysis.segments import segment_costs
from kit.runs.change import step_difference
from kit.runs.conditions import DISTURBED, KNOWN, UNKNOWN_CONDITIONS, Conditions, doubt
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.advice import AGAIN, AdviceView, advice_html
from kit.widgets.numbers.headline import changed_html
from kit.widgets.numbers.step import run_notes_html
from tests.factories import make_run
from tests.runs.test_file import load_changed

BUSY = Conditions(cores=2.0, others=1.3, threads=0.0, steal=0.0, load=3.2, collections=4.0)
SAID = "measured on a busy machine: others used 1.3 of 2 cores"


@pytest.mark.parametrize(("conditions", "known", "reason"), [
    (UNKNOWN_CONDITIONS, math.nan, ""),
    (Conditions(cores=2.0, others=0.19, threads=0.0, steal=0.0), 1.0, ""),
    (BUSY, 1.0, SAID),
    (Conditions(cores=2.0, others=math.nan, threads=0.9), 1.0,
     "measured on a busy machine: other threads of this process used 0.9 of 2 cores"),
    (Conditions(cores=4.0, others=0.3, threads=0.0, steal=0.2), 1.0,
     "measured on a busy machine: others used 0.3 and other guests of the host used 0.2 of 4 "
     "cores"),
    (Conditions(cores=64.0, others=6.0), 1.0, ""),
    (Conditions(cores=1.0, others=0.3), 1.0,
     "measured on a busy machine: others used 0.3 of 1 core"),
    (Conditions(cores=1.5, others=0.0, throttled=0.05), 1.0, ""),
    (Conditions(cores=1.5, others=1.0, throttled=0.43), 1.0,
     "measured under a limit of 1.5 cores, which stopped the process in 43% of all periods"),
    (UNKNOWN_CONDITIONS, 0.57,
     "only 57% of the kernels' time could be matched with ops of the traced steps: something else "
     "was profiled, too, the profiler lost part, or the steps differ more than is kept (in files "
     "of older versions: at all)"),
    (UNKNOWN_CONDITIONS, 0.9, ""),
])  # fmt: skip
def test_the_reason_to_withhold_a_verdict(
    conditions: Conditions, known: float, reason: str
) -> None:
    assert doubt(conditions, known) == reason


taken = st.one_of(st.just(math.nan), st.floats(0, 8))


@given(st.sampled_from([math.nan, 1.0, 2.0, 8.0]), taken, taken, taken,
       st.one_of(st.just(math.nan), st.floats(0, 1)))  # fmt: skip
def test_a_verdict_is_withheld_exactly_beyond_the_limits(
    cores: float, others: float, threads: float, steal: float, known: float
) -> None:
    conditions = Conditions(cores=cores, others=others, threads=threads, steal=steal)
    whole = sum(x for x in (others, threads, steal) if not math.isnan(x))
    is_doubted = (not math.isnan(cores) and whole > DISTURBED * cores) or known < KNOWN
    assert bool(doubt(conditions, known)) == is_doubted


def test_programs_of_jax_outside_of_the_step_are_named_as_the_reason() -> None:
    """They were said to be the profiler's, and a second measurement to help."""
    run = make_run()
    assert not run.doubt
    t, of_jax = run.timeline, {"jax": "0.10.2"}
    kernels = np.flatnonzero(t.where(kind="kernel"))[::2]
    node, segment = t.node.copy(), t.segment.copy()
    node[kernels] = segment[kernels] = -1
    outside = replace(run, timeline=replace(t, node=node, segment=segment), environment=of_jax)
    assert "is of programs that the step runs outside of kit.jax.step" in outside.doubt
    said = verdict(outside)
    assert said is not None
    assert "kit.jax.step(fn) in the place of jax.jit(fn)" in said.next_step
    lost = replace(outside, timeline=replace(t, node=node))
    for other in (lost, replace(outside, environment={**of_jax, "torch": "2.11"})):
        assert "could be matched" in other.doubt


def test_a_disturbed_run_says_so_and_withholds_verdict_and_advice_wherever_it_is_shown() -> None:
    quiet = make_run(syncs=2)
    assert quiet.doubt == ""
    assert "-bound" in summary(quiet)
    busy = replace(quiet, conditions=BUSY)
    found = verdict(busy)
    assert found is not None
    assert found.advice == ()
    for text in (
        summary(busy),
        report_markdown([busy]),
        advice_html(busy),
        headline_html(busy),
        busy.to_markdown(),
        str(busy.limited_by()),
    ):
        assert SAID in text.replace("Measured on", "measured on")
        assert "-bound" not in text
        assert "Try" not in text
    for text in (summary(busy), report_markdown([busy]), advice_html(busy)):
        assert "measure again when nothing else runs" in text
    assert "others used 1.3 of 2 cores, load 3.2, 4 garbage collections" in run_notes_html(busy)
    assert "-bound" not in report_html([busy])


def test_a_change_between_disturbed_runs_gives_the_reason_that_stands_above_the_new_one() -> None:
    old, new = (replace(make_run(), conditions=replace(BUSY, others=n)) for n in (1.1, 1.3))
    assert step_difference(old, new).doubt == new.doubt != old.doubt
    assert "busy machine" not in changed_html(old, new)  # a box below the sentence says it
    assert old.doubt in changed_html(old, make_run())  # no box does


def test_the_tables_of_a_disturbed_run_say_so() -> None:
    quiet = make_run(syncs=2)
    for run, said in ((quiet, ""), (replace(quiet, conditions=BUSY), f"; {SAID}")):
        assert repr(run).endswith(f" syncs/step{said})")
        for rows in (run.breakdown(), run.advice(), kit.kernel_table(run), line_costs(run),
                     segment_costs(run)):  # fmt: skip
            assert rows
            assert repr(rows).splitlines()[0].partition(";")[1:] == (";" * bool(said), said[1:])
            assert (said in rows._repr_html_(), said in repr(rows[:1])) == (True, True)


def test_the_explorers_advice_offers_to_measure_a_disturbed_run_again() -> None:
    tried: list[object] = []
    view = AdviceView(tried.append)
    view.run = make_run(syncs=2)
    assert AGAIN not in [button.description for button in view.buttons.children]
    view.run = replace(make_run(syncs=2), conditions=BUSY)
    (button,) = view.buttons.children
    assert button.description == AGAIN
    button.click()
    assert tried == [{}]


def test_the_conditions_are_saved_and_an_old_file_has_none(tmp_path: Path) -> None:
    run = replace(make_run(), conditions=BUSY)
    run.save(tmp_path / "run.kitrun")
    loaded = kit.Run.load(tmp_path / "run.kitrun")
    assert loaded.conditions.others == 1.3
    assert math.isnan(loaded.conditions.clock_before_mhz)
    assert loaded.doubt == SAID
    assert str(UNKNOWN_CONDITIONS) == ""
    computed = replace(run, conditions=Conditions(cores=2.0, others=math.inf - math.inf))
    computed.save(tmp_path / "run.kitrun")
    assert kit.Run.load(tmp_path / "run.kitrun") == computed  # nan is no other nan
    assert Conditions(cores=2.0) == Conditions(cores=2.0) != Conditions(cores=3.0)
    assert hash(Conditions(cores=2.0)) == hash(Conditions(cores=2.0))
    old = load_changed(lambda head: head.pop("conditions"), tmp_path)
    assert old.conditions == UNKNOWN_CONDITIONS
