"""The breakdown of a step, and the notes on what its numbers rest on."""

from __future__ import annotations

import dataclasses

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.settings import Settings
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.step import breakdown_html, run_notes_html
from tests.factories import empty_run, make_run
from tests.widgets.read import Reader


def test_the_breakdown_lists_every_category_and_its_sum():
    run = make_run()
    text = str(Reader(breakdown_html(run)))
    assert '"In all" counts what is hidden' in text  # the column: "In all counts" is no sentence
    assert all(row.category in text for row in run.breakdown())
    step = sum(row.exposed_ms for row in run.breakdown())
    assert f"step {step:.3g} 100.0%" in text


def test_a_run_without_traced_steps_has_no_breakdown():
    assert "No step was traced" in breakdown_html(empty_run())


def test_the_notes_say_machine_tracing_and_clock():
    made = make_run()
    steps = made.timeline.intervals(kind="step")
    alike = tuple((steps[:, 1] - steps[:, 0]).tolist()) * 2
    text = str(Reader(run_notes_html(dataclasses.replace(made, step_times_ns=alike))))
    assert "device imaginary · kit 0.0" in text
    assert "a traced step took" in text
    assert "100% of the kernels' time is known by op and line" in text
    assert "synthetic" in text
    assert "bulk 15 forward, 15 backward" in text
    unlimited = make_run(Settings(bulk_forward=UNLIMITED))
    assert "bulk unlimited forward, 15 backward" in str(Reader(run_notes_html(unlimited)))
    assert "bulk" not in str(Reader(run_notes_html(make_run(Settings(mode="lazy")))))


def test_the_notes_of_an_empty_run_claim_nothing():
    assert "no traced step to compare with" in run_notes_html(empty_run())


def test_both_times_of_a_slowed_run_are_said_once():
    made = make_run(steps=4)
    steps = made.timeline.intervals(kind="step")
    short = int((steps[:, 1] - steps[:, 0]).mean()) // 10
    slowed = dataclasses.replace(made, step_times_ns=(short, short + 9) * 20)
    assert "A traced step took" in headline_html(slowed)
    assert "a traced step took" not in run_notes_html(slowed)
    assert "timeline: " in run_notes_html(slowed)
