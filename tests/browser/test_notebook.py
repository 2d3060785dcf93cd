"""Notebooks in a real JupyterLab: run, moved, and what they show exported and opened offline.

`tests/repository/test_notebooks.py` runs the others without a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import TimeoutError

from kit.widgets.base.stored import REST_S
from tests.browser.labserver import Browser, Lab, Opener
from tests.browser.test_saved import exported, frames
from tests.smaller import with_smaller_bert

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
VIEWS = 5  # with figures, in the first notebook
OF_THE_EXPLORER = 3  # its place among them
LIVE = ("01_where_does_the_step_go", "09_data_parallel_and_barriers", "10_rnn_gates")

# Every view that a cell of the notebook gave, as a page of its own, and its runs as a report.
EXPORT = """
from pathlib import Path
for made in [made for made in Out.values() if hasattr(made, "page")]:
    Path(f"{type(made).__name__}.html").write_text(made.page())
kit.report([*globals().get("runs", {}).values()] or run, path="report.html")
"""
# While its explorer is idle one neighbouring setting is compiled, not sixteen.
ONE_AHEAD = """
from kit.widgets.explorer import ahead
ahead.MOST = 1
"""
UNRUN = """() => window.jupyterapp.shell.currentWidget.context.model.toJSON().cells
  .filter(c => c.cell_type === 'code' && !c.execution_count).map(c => c.source)"""
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
# JupyterLab keeps only those cells in the page that are near what is in sight.
SCROLL = """async (text) => {
  const book = window.jupyterapp.shell.currentWidget.content;
  const at = book.widgets.findIndex(c => c.model.sharedModel.getSource().includes(text));
  await book.scrollToItem(at, 'start');
}"""
MODEL = "(name) => Bokeh.documents.map(d => d.get_model_by_name(name)).find(Boolean)"
# The memory figure of one run, as its note says: the explorer may have one of another run.
MEMORY = """(run) => Bokeh.documents.map(d => d.get_model_by_name('memory'))
  .find(figure => figure?.select_one('note').text.includes(run))"""


def show_cell(browser: Browser, text: str, claim: str) -> None:
    """Scroll to the cell with this text until the claim is true: cells above it grow when drawn."""
    page = browser.page
    for _ in range(20):
        page.evaluate(SCROLL, text)
        with suppress(TimeoutError):
            page.wait_for_function(claim, timeout=3000)
            return
    raise AssertionError(f"never true at {text!r}: {claim}; {browser.console[-5:]}")


@contextmanager
def running(lab: Lab, opening: Opener, name: str, *more: str) -> Iterator[tuple[Browser, Path]]:
    """A page with the notebook after all of its cells, and `more`, have run; its folder."""
    book = with_smaller_bert(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
    book.cells += [nbformat.v4.new_code_cell(source) for source in more]
    nbformat.write(book, lab.root / "it.ipynb")
    with opening() as browser:
        assert lab.open_and_run(browser, "it.ipynb", seconds=240) == []
        assert browser.page.evaluate(UNRUN) == []
        browser.page.set_default_timeout(60_000)
        yield browser, lab.root
        assert (browser.outside, browser.errors()) == ([], [])


def opened(offline: Browser, page: Path, canvases: int) -> str:
    """What a page says that is opened as a file, without a network."""
    offline.page.goto(page.as_uri())
    offline.wait_for_canvases(canvases)
    if page.name == "report.html":  # its figures are there before a run is drawn in them
        offline.page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    assert (offline.outside, offline.errors()) == ([], [])
    return str(offline.page.locator("body").inner_text())


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


def until_saved(lab: Lab, browser: Browser, opening: Opener, book: Path, words: str) -> str:
    """Save until the explorer's view keeps these words: its page is made after the run.

    Gives what the exported notebook says around its views.
    """
    for _ in range(30):
        browser.page.wait_for_timeout(1000 * (REST_S + 1))
        lab.save(browser)
        if all(line in book.read_text(encoding="utf-8") for line in words.splitlines()):
            with opening(offline=True) as offline:
                offline.page.goto(exported(book).as_uri())
                if words in frames(offline, VIEWS)[OF_THE_EXPLORER]:
                    return str(offline.page.locator("body").inner_text())
    raise AssertionError(f"the saved notebook does not show {words!r}")


def test_the_first_notebooks_explorer_answers_to_a_slider(lab: Lab, opening: Opener):
    with running(lab, opening, LIVE[0], ONE_AHEAD) as (browser, folder):
        browser.page.locator(".kit-explorer").scroll_into_view_if_needed()
        browser.wait_for_canvases(1)
        before = until_measured(browser)
        assert not before["failure"]
        bars_before = browser.page.evaluate(TIMELINES)

        sliders = browser.page.locator(
            ".kit-explorer .noUi-handle, .kit-explorer input[type=range]"
        )
        batch = sliders.last  # the batch size, whatever the run mode
        batch.scroll_into_view_if_needed()
        batch.focus()
        batch.press("ArrowRight")
        after = until_measured(browser, before["step"], bars_before)
        assert not after["failure"]
        assert after["step"] != before["step"]
        assert any(browser.page.evaluate(TIMELINES))
        assert (folder / "report.html").stat().st_size > 500_000  # all runs and BokehJS are in it
        # The last run is kept, not the first.
        said = until_saved(lab, browser, opening, folder / "it.ipynb", after["step"])
    assert (folder / "it.ipynb").read_text().count("window.kitBokehJS") == 1
    assert not re.search("no run yet|HBox|FloatProgress", said)


def test_a_faster_link_moves_the_gradients_and_the_exports_open_offline(lab: Lab, opening: Opener):
    with running(lab, opening, LIVE[1], EXPORT) as (browser, folder):
        page = browser.page
        lanes = f"() => Array.from(({MODEL})('parallel lanes').data.right)"
        show_cell(browser, "kit.ParallelView(", f"() => ({MODEL})('parallel lanes')")
        speed = page.get_by_role("slider", name="link: speed")
        speed.scroll_into_view_if_needed()
        browser.wait_for_canvases(2)
        page.get_by_text("over a link of 500 µs and 0.1 GB/s").wait_for()
        before = page.evaluate(lanes)
        speed.focus()
        for _ in range(6):
            speed.press("ArrowRight")
        page.get_by_text("over a link of 500 µs and 50 GB/s").wait_for()
        page.wait_for_function(
            f"before => Math.max(...({lanes})()) < Math.max(...before)", arg=before
        )
    with opening(offline=True) as offline:
        said = opened(offline, folder / "ParallelView.html", 2)
        assert "When do gradients travel? 2 devices" in said
        assert "over a link of 500 µs and 0.1 GB/s" in said
        opened(offline, folder / "TimelineView.html", 1)
        said = opened(offline, folder / "report.html", 2)
        assert "Where does the step go? two devices, a slow link" in said
        kinds = f"() => [...({MODEL})('timeline columns').data['keys.kind'][0]]"
        assert "reduction" in offline.page.evaluate(kinds)


def test_a_button_shows_another_ways_memory_and_the_exports_open_offline(lab: Lab, opening: Opener):
    with running(lab, opening, LIVE[2], EXPORT) as (browser, folder):
        page = browser.page
        show_cell(browser, "kit.MemoryView(", f"() => ({MEMORY})('lstm, slice')")
        button = page.locator(".widget-toggle-button", has_text="multigate").first
        browser.wait_for_canvases(2)
        before = page.evaluate(f"() => ({MEMORY})('lstm, slice').x_range.end")
        button.click()
        page.wait_for_function(
            f"before => ({MEMORY})('lstm, multigate')?.x_range.end < before", arg=before
        )
    with opening(offline=True) as offline:
        said = opened(offline, folder / "MemoryView.html", 2)
        for way in ("slice", "multigate", "written", "What writes"):
            assert way in said
        said = opened(offline, folder / "report.html", 2)
        assert "Where does the step go? rnn_gates: lstm" in said
        before = offline.page.locator("#headline").inner_text()
        choice = offline.page.locator("#controls [name=variant]")
        choice.select_option(label="rnn_gates: lstm, slice")
        offline.page.wait_for_function(
            "before => document.getElementById('headline').innerText !== before", arg=before
        )
        assert "Memory: at most" in offline.page.locator("#memory").inner_text()
        assert (offline.outside, offline.errors()) == ([], [])
