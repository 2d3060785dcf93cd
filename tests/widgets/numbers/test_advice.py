"""The advice view: what limits the run, each sentence escaped, and a button for each change."""

from __future__ import annotations

from typing import Any

from ipywidgets import Widget

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.verdict.cures import change_text
from kit.trace import Span, SyncPoint, Timeline
from kit.widgets.numbers.advice import AdviceView, advice_html
from tests.reliability.growth import alive

MS = 1_000_000


def run_with(site: str = "train.py:7", via: str = "torch/amp/grad_scaler.py:371") -> Run:
    spans = [
        Span("host/main", "step 0", "step", 0, 10 * MS),
        Span("device/0", "k", "kernel", 0, 5 * MS),
    ]
    sync = SyncPoint(0, 5 * MS, "item", site, via)
    return Run(
        Settings(mode="lazy"), (1.0,), (10 * MS,), Timeline.of(spans, [sync]), sync_points=(sync,)
    )


def test_the_limit_the_cost_and_the_change_are_said() -> None:
    text = advice_html(run_with())
    assert "sync-bound (50% of the step)" in text
    assert "5 ms" in text
    assert "loss_scaling=&#x27;dynamic, on device&#x27;" in text


def test_a_strangers_site_is_text() -> None:
    for site, via in (("<img src=x onerror=alert(1)>", ""), ("a.py:1", "<script>/b.py:2")):
        text = advice_html(run_with(site, via))
        assert "<img" not in text
        assert "<script" not in text


def test_a_run_without_steps_says_so() -> None:
    assert "No step was traced" in advice_html(Run(Settings(), (), (), Timeline.of([])))


def test_a_button_tries_its_change() -> None:
    tried: list[Any] = []
    view = AdviceView(tried.append)
    view.run = run_with()
    (button,) = view.buttons.children
    assert button.description == "Try loss_scaling='dynamic, on device'"
    button.click()
    assert tried == [{"loss_scaling": "dynamic, on device"}]
    view.run = None
    assert view.buttons.children == ()


def test_what_a_button_raises_is_said_until_it_works() -> None:
    answers: list[Any] = [ValueError("<no batch>"), None]

    def answer(change: Any) -> None:
        if error := answers.pop(0):
            raise error

    view = AdviceView(answer)
    view.run = run_with()
    view.buttons.children[0].click()
    assert "ValueError: &lt;no batch&gt;" in view.error.value
    view.buttons.children[0].click()
    assert view.error.value == ""


def test_the_buttons_of_a_run_before_are_gone() -> None:
    """ipywidgets keeps each widget that is not closed, and a button keeps what it calls."""
    before, view = alive(Widget), AdviceView(lambda change: None)
    held = []
    for _ in range(3):
        view.run = run_with()
        held.append(alive(Widget))
    assert held[0] == held[1] == held[2] > before
    view.close()
    del view
    assert alive(Widget) <= before


def test_without_a_listener_there_are_no_buttons() -> None:
    view = AdviceView()
    view.run = run_with()
    assert view.buttons.children == ()


def test_a_change_reads_as_python() -> None:
    assert change_text({"prefetch": 2, "mode": "lazy"}) == "prefetch=2, mode='lazy'"
