"""A notebook that was saved: exported and opened without a network, or loaded again."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from kit.widgets.base.stored import REST_S
from tests.browser.labserver import Browser, Lab, Opener
from tests.browser.test_smoke import write_notebook

pytestmark = pytest.mark.browser

# Removes the outputs of the first cell: the one that keeps BokehJS.
CLEAR_FIRST = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  panel.content.model.sharedModel.cells[0].setOutputs([]);
}"""
RUN_FIRST = """async () => {
  const panel = window.jupyterapp.shell.currentWidget;
  panel.content.activeCellIndex = 0;
  await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
SHUT = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"
DRAWN_IN_FRAMES = """() => [...document.querySelectorAll('iframe')]
  .filter((frame) => frame.contentDocument?.querySelector('.bk-Figure, canvas')).length"""
TIMELINE = """
import kit
from kit.runs.settings import Settings
from tests.factories import make_run
kit.TimelineView(make_run())
"""
EXPLORER = """
from dataclasses import replace
from kit.widgets.explorer.view import Explorer

def step(settings, *, progress, cancelled):
    return replace(make_run(settings), name=f"of batch {settings.batch_size}")

explorer = Explorer(step, Settings(batch_size=3))
explorer
"""
MOVE = """
explorer.wait(60)
explorer.set(batch_size=77)
explorer.wait(60)
kit.kernel_table(explorer.run)
"""
MEMORY = "kit.MemoryView([make_run(), make_run(Settings(mode='lazy'))])"
FRAMES = "iframe[title='a view of overlap-kit']"


# Of each frame, the colour of its ground, of its text and of its figures' ground.
COLOURS = """() => [...document.querySelectorAll("iframe")].map((frame) => {
  const page = frame.contentDocument, style = (e) => frame.contentWindow.getComputedStyle(e);
  const figures = frame.contentWindow.Bokeh.documents.flatMap((d) => d.roots());
  const ground = (figure) => figure.background_fill_color.value ?? figure.background_fill_color;
  const text = page.querySelector("table, div");
  return [style(page.documentElement).backgroundColor, style(text).color,
    [...new Set(figures.map(ground))]];
})"""
TO_THEME = """(name) => window.jupyterapp.commands.execute(
  'apputils:change-theme', {theme: `JupyterLab ${name}`})"""


def exported(notebook: Path, theme: str = "light") -> Path:
    """The notebook as HTML, as `jupyter nbconvert --to html` writes it."""
    page = notebook.with_suffix(".html")
    book = nbformat.read(notebook, as_version=4)
    exporter = HTMLExporter(template_name="lab", theme=theme)
    page.write_text(exporter.from_notebook_node(book)[0])
    return page


def frames(offline: Browser, count: int) -> list[str]:
    """What the frames of a page say once their figures are drawn, in the order of the page."""
    found = []
    offline.page.wait_for_function(
        "([frames, n]) => document.querySelectorAll(frames).length === n", arg=[FRAMES, count]
    )
    for i in range(count):
        offline.page.locator(FRAMES).nth(i).scroll_into_view_if_needed()
        inside = offline.page.frame_locator(FRAMES).nth(i)
        inside.locator("canvas").first.wait_for()
        found.append(inside.locator("body").inner_text())
    return found


def test_a_saved_notebook_shows_the_last_run_of_each_view_without_kernel_and_network(
    lab: Lab, opening: Opener
):
    file = lab.root / "views.ipynb"
    write_notebook(file, TIMELINE, EXPLORER, MOVE, MEMORY)
    with opening() as browser:
        assert lab.open_and_run(browser, "views.ipynb") == []
        browser.page.get_by_text("measured in").first.wait_for()
        browser.page.locator(".kit-explorer").scroll_into_view_if_needed()
        assert browser.page.locator(f"{FRAMES} >> visible=true").count() == 0  # live, not stored
        assert browser.page.evaluate(DRAWN_IN_FRAMES) == 0
        lab.save(browser)
        assert browser.errors() == []
        browser.page.evaluate(SHUT)
    with opening() as browser:
        lab.open_again(browser, "views.ipynb")
        said = frames(browser, 3)
        assert "of batch 77" in said[1]
        heights = [frame.bounding_box() for frame in browser.page.locator(FRAMES).all()]
        assert all(box is not None and box["height"] > 250 for box in heights)
    text = file.read_text()
    assert text.count("window.kitBokehJS") == 1
    assert len(text) < 3_000_000

    with opening(offline=True) as offline:
        offline.page.goto(exported(file).as_uri())
        timeline, explorer, memory = frames(offline, 3)
        assert "of batch 77" in explorer
        assert "no run yet" not in offline.page.locator("body").inner_text()
        assert "What writes" in memory
        assert timeline == ""
        own = "cdnjs.cloudflare.com"  # what a page of nbconvert loads for itself
        assert [error for error in offline.errors() if own not in error] == []


def test_a_notebook_keeps_what_a_slider_was_moved_to(lab: Lab, browser: Browser):
    file = lab.root / "views.ipynb"
    write_notebook(file, f"{TIMELINE}\nview = kit.WhatIfView(make_run())\nview")
    assert lab.open_and_run(browser, "views.ipynb") == []
    browser.wait_for_canvases(1)
    browser.page.locator("[role=slider], .noUi-handle").nth(2).focus()  # device speed
    browser.page.keyboard.press("ArrowRight")
    browser.page.get_by_text("times as fast").first.wait_for()
    browser.page.wait_for_timeout(1000 * (REST_S + 2))
    lab.save(browser)
    browser.page.wait_for_timeout(1000)
    assert "device speed: 2 x" in file.read_text()
    assert browser.errors() == []


def test_a_view_is_drawn_when_the_page_is_loaded_again_without_the_cell_that_keeps_bokehjs(
    lab: Lab, browser: Browser
):
    write_notebook(lab.root / "views.ipynb", TIMELINE, MEMORY)
    assert lab.open_and_run(browser, "views.ipynb") == []
    browser.wait_for_canvases(2)
    browser.page.evaluate(CLEAR_FIRST)
    lab.save(browser)
    lab.open_again(browser, "views.ipynb")
    browser.wait_for_canvases(1)
    assert browser.page.evaluate("window.Bokeh.documents.length") > 0
    assert browser.page.locator(f"{FRAMES} >> visible=true").count() == 0  # the first cell has none
    assert browser.errors() == []


def test_the_cell_that_keeps_bokehjs_keeps_it_when_it_runs_again(lab: Lab, browser: Browser):
    file = lab.root / "views.ipynb"
    write_notebook(file, TIMELINE, MEMORY)
    assert lab.open_and_run(browser, "views.ipynb") == []
    for _ in range(2):
        browser.page.evaluate(RUN_FIRST)
    browser.wait_for_canvases(2)
    lab.save(browser)
    first, second = json.loads(file.read_text())["cells"]
    assert json.dumps(first["outputs"]).count("window.kitBokehJS") == 1
    assert "window.kitBokehJS" not in json.dumps(second["outputs"])


def test_a_stored_view_is_dark_where_the_notebook_around_it_is(lab: Lab, opening: Opener):
    file = lab.root / "views.ipynb"
    write_notebook(file, TIMELINE.replace("TimelineView", "MemoryView"))
    with opening() as browser:
        assert lab.open_and_run(browser, "views.ipynb") == []
        browser.wait_for_canvases(1)
        lab.save(browser)
        browser.page.evaluate(SHUT)
    light = ["rgb(255, 255, 255)", "rgba(0, 0, 0, 0.87)", ["#ffffff"]]
    with opening() as browser:
        lab.open_again(browser, "views.ipynb")
        frames(browser, 1)
        assert browser.page.evaluate(COLOURS) == [light]
        browser.page.evaluate(TO_THEME, "Dark")
        browser.page.wait_for_function(f"({COLOURS})()[0][2][0] === '#111111'")
        [(ground, text, _)] = browser.page.evaluate(COLOURS)
        assert (ground, text) == ("rgb(17, 17, 17)", "rgba(255, 255, 255, 0.87)")
        browser.page.evaluate(TO_THEME, "Light")
        browser.page.wait_for_function(f"({COLOURS})()[0][2][0] === '#ffffff'")
        assert browser.page.evaluate(COLOURS) == [light]
    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 17, 17)")):
        with opening(offline=True) as offline:
            offline.page.goto(exported(file, theme).as_uri())
            frames(offline, 1)
            assert [ground for ground, _, _ in offline.page.evaluate(COLOURS)] == [colour]
