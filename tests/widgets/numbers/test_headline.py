"""The sentence above the headline cards: what changed, in bold only if something did."""

from __future__ import annotations

from dataclasses import replace

from kit.runs.settings import Settings
from kit.widgets.numbers.headline import changed_html, still_html
from tests.factories import make_run


def _run(step_ms: float, batch_size: int = 4, steps: int = 100):
    times = (int(step_ms * 1e6),) * steps
    settings = Settings(batch_size=batch_size)
    return replace(make_run(settings), step_times_ns=times)


def test_a_change_is_bold_and_one_that_cannot_be_told_from_noise_is_not():
    assert "<b>a step takes 10 ms instead of 5 ms" in changed_html(_run(5), _run(10))
    unsure = changed_html(_run(5, steps=3), _run(5.1, steps=3))
    assert "nothing that can be told from noise" in unsure
    assert "<b>" not in unsure


def test_a_run_that_was_asked_for_again_is_told_without_settings():
    html = still_html(_run(5), _run(5).settings, "was cancelled")
    assert "<b>Still the run before.</b>" in html
    assert "The newer one was cancelled." in html
