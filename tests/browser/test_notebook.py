"""The first notebook in a real JupyterLab: run it, move a slider, see other data and numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.browser.labserver import Browser, Lab

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_where_does_the_step_go.ipynb"

# What the explorer shows: its headline cards, its status line, and how many bars of the timeline.
EXPLORER = """() => {
  const root = document.querySelector('.kit-explorer');
  if (!root) return null;
  const text = (label) => [...root.querySelectorAll('*')]
    .filter(e => !e.children.length && e.textContent.trim() === label)
    .map(e => e.parentElement.innerText)[0] || '';
  return {
    step: text('step time'), waits: text('sync points'),
    status: root.querySelector('.kit-announce').textContent.trim(),
    modelled: !!root.querySelector('.kit-modelled'),
    failure: root.innerText.includes('Traceback'),
  };
}"""
TIMELINES = """() => Bokeh.documents.map(d => d.get_model_by_name('timeline columns'))
  .filter(Boolean).map(s => Array.from(s.data['spans.delta'][0]))"""


def state(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] | None = browser.page.evaluate(EXPLORER)
    assert found is not None, "the explorer is not on the page"
    return found


def until_measured(browser: Browser, other_than: str = "", bars: Any = None) -> dict[str, Any]:
    for _ in range(450):
        now = state(browser)
        is_new = now["step"] not in ("", other_than) and browser.page.evaluate(TIMELINES) != bars
        if now["status"].startswith("measured") and is_new and not now["modelled"]:
            return now
        browser.page.wait_for_timeout(200)
    raise AssertionError(f"no new measurement within 90 s: {state(browser)}")


def test_the_notebook_runs_and_its_explorer_answers_to_a_slider(
    lab: Lab, browser: Browser, monkeypatch: pytest.MonkeyPatch
):
    source = NOTEBOOK.read_text().replace('setdefault(\\"KIT_FAST\\", \\"0\\")',
                                          'setdefault(\\"KIT_FAST\\", \\"1\\")')  # fmt: skip
    (lab.root / "tour.ipynb").write_text(source)
    assert lab.open_and_run(browser, "tour.ipynb", seconds=240) == []
    browser.page.locator(".kit-explorer").scroll_into_view_if_needed()
    browser.wait_for_canvases(1)
    before = until_measured(browser)
    assert not before["failure"]
    bars_before = browser.page.evaluate(TIMELINES)

    sliders = browser.page.locator(".kit-explorer .noUi-handle, .kit-explorer input[type=range]")
    batch = sliders.last  # the batch size, whatever the run mode
    batch.scroll_into_view_if_needed()
    batch.focus()
    batch.press("ArrowRight")
    after = until_measured(browser, before["step"], bars_before)
    assert not after["failure"]
    assert after["step"] != before["step"]
    assert any(browser.page.evaluate(TIMELINES))

    assert browser.outside == []
    assert browser.errors() == []
    assert (lab.root / "report.html").stat().st_size > 500_000  # all runs and BokehJS are in it
    shutil.copy(lab.root / "report.html", lab.root.parent / "report.html")
