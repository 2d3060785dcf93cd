"""Texts pinned to a time: they stay in the saved run, and every form of the run has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.errors import TimelineError
from kit.runs.run import Run
from kit.runs.verdict.markdown import run_markdown
from kit.runs.verdict.summary import summary
from kit.trace.timeline import MAX_PINS, MAX_TEXT, Pin
from kit.widgets.timeline.payload import timeline_payload
from tests.factories import HOSTILE, empty_run, make_run


def test_a_pin_stays_in_the_saved_run_and_is_in_every_form_of_it(tmp_path: Path) -> None:
    run = make_run(kernels=5, steps=2)
    origin = int(run.timeline.start_ns.min())
    pinned = run.pin(origin + 900_000, " late batch ").pin(origin + 2_000, "warm")
    assert [pin.text for pin in pinned.pins] == ["warm", "late batch"]  # in order of time
    assert run.pins == ()
    pinned.save(tmp_path / "p.kitrun")
    again = Run.load(tmp_path / "p.kitrun")
    assert again.pins == pinned.pins
    assert again == pinned
    rows = again.query("select at_ns, step, text from pins order by at_ns").rows
    assert [(row[0], row[2]) for row in rows] == [
        (origin + 2_000, "warm"),
        (origin + 900_000, "late batch"),
    ]
    assert "pinned at 900 µs: late batch" in summary(again)
    assert "- pinned at 900 µs: late batch" in run_markdown(again)
    pins = timeline_payload(again)["pins"]
    assert (list(pins["at"]), pins["text"]) == ([2_000.0, 900_000.0], ["warm", "late batch"])


def test_a_pin_is_taken_away_by_its_place_also_from_the_saved_run(tmp_path: Path) -> None:
    pinned = make_run().pin(9, "b").pin(5, "a").pin(9, "b")
    kept = pinned.unpin(1)
    assert [pin.text for pin in kept.pins] == ["a", "b"]
    assert len(pinned.pins) == 3
    kept.save(tmp_path / "p.kitrun")
    assert Run.load(tmp_path / "p.kitrun").pins == kept.pins
    for place in (-1, 2):
        with pytest.raises(TimelineError, match=f"no pin {place}: the places are 0 to 1"):
            kept.unpin(place)
    with pytest.raises(TimelineError, match="there is no pin to take away"):
        make_run().unpin(0)


def test_of_two_runs_on_one_axis_the_pins_move_with_their_own(tmp_path: Path) -> None:
    run = make_run(kernels=5, steps=2)
    origin = int(run.timeline.start_ns.min())
    pins = timeline_payload(run, below=run.pin(origin + 700, "here"))["pins"]
    assert (list(pins["at"]), list(pins["part"])) == ([700.0], [1])


@pytest.mark.parametrize("text", ["", "  ", "x" * (MAX_TEXT + 1)])
def test_a_text_that_is_none_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(TimelineError, match="a pin has a text"):
        make_run().pin(0, text)


def test_impossible_times_and_too_many_pins_are_refused() -> None:
    with pytest.raises(TimelineError, match="the time of a pin must be"):
        empty_run().pin(1 << 60, "x")
    full = replace(empty_run(), pins=tuple(Pin(i, "x") for i in range(MAX_PINS)))
    with pytest.raises(TimelineError, match="at most 1,000"):
        full.pin(0, "one more")


def test_a_strangers_pin_is_made_safe() -> None:
    run = make_run(kernels=2, steps=1).pin(0, HOSTILE[:MAX_TEXT])
    assert "<script" not in run_markdown(run)
    shown = timeline_payload(run)["pins"]["text"][0]
    assert all(c.isprintable() for c in shown)
    assert all(c.isprintable() or c == "\n" for c in summary(run))
