"""The memory view in JupyterLab: it is drawn, a button changes the run, clicks select nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kit
from tests.browser.labserver import Browser, Lab
from tests.browser.test_smoke import write_notebook
from tests.factories import make_run

pytestmark = pytest.mark.browser

VIEW = """
from dataclasses import replace
from ipywidgets import HTML, Button
import kit
from tests.factories import make_run

runs = [replace(make_run(kit.Settings(bulk_forward=k, bulk_backward=k)), name=f"net: {k}")
        for k in (1, 5)]
view, told = kit.MemoryView(runs), HTML("nothing picked")

def say(change):
    picked = change["new"]
    told.value = f"picked {len(picked.nodes)} nodes of {view.run.name}: {picked.label}"

def ask(button):
    say({"new": view.selection})
    told.value += ", still"

view.observe(say, "selection")
still = Button(description="and now?")
still.on_click(ask)
display(told, still)
view
"""


# Of each figure with a legend: how far its legend ends from its lower edge, in pixels.
LEGENDS = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter((e) => e.classList.contains("bk-Legend")).map((legend) =>
    Math.round(legend.getRootNode().host.getBoundingClientRect().bottom
      - legend.getBoundingClientRect().bottom));
}"""
THEME = """(name) => window.jupyterapp.commands.execute(
  "apputils:change-theme", {theme: `JupyterLab ${name}`})"""


# Of each canvas with a ground, the lightest channel in the row and the column at its edge.
EDGES = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter((e) => e.matches("canvas.bk-layer")).map((e) => {
    const context = e.getContext("2d"), pixels = [[0, 0, e.width, 1], [0, 0, 1, e.height]];
    return pixels.flatMap((box) => [...context.getImageData(...box).data])
      .reduce((most, value, i) => (i % 4 === 3 ? most : Math.max(most, value)), 0);
  }).filter((most) => most > 0);
}"""


def opened(lab: Lab, browser: Browser) -> Any:
    """The page with a notebook that shows the view."""
    page = browser.page
    page.set_viewport_size({"width": 1200, "height": 1500})
    write_notebook(lab.root / "memory.ipynb", VIEW)
    assert lab.open_and_run(browser, "memory.ipynb") == []
    browser.wait_for_canvases(2)
    return page


def test_the_legend_stays_in_its_figure_when_the_theme_changes(lab: Lab, browser: Browser) -> None:
    page = opened(lab, browser)
    try:
        for name in ("Dark", "Light"):
            page.evaluate(THEME, name)
            light = str(name == "Light").lower()
            page.wait_for_function(f"document.body.dataset.jpThemeLight === '{light}'")
            page.wait_for_timeout(1000)  # for one that leaves its figure
            page.wait_for_function(
                f"() => {{ const rooms = ({LEGENDS})();"
                " return rooms.length && rooms.every((room) => 0 <= room && room < 10); }"
            )
    finally:
        page.evaluate(THEME, "Light")


def test_no_light_edge_is_left_of_figures_that_turn_dark(offline: Browser, tmp_path: Path) -> None:
    """Bokeh begins half a pixel within: a figure's light ground showed in its first row."""
    file = tmp_path / "memory.html"
    file.write_text(kit.MemoryView(make_run()).page())
    offline.page.goto(file.as_uri())
    offline.wait_for_canvases(2)
    assert set(offline.page.evaluate(EDGES)) == {255}
    offline.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    offline.page.wait_for_function(f"() => ({EDGES})().every((most) => most < 60)")


def test_clicks_on_the_area_a_holder_and_a_row_select_nodes(lab: Lab, browser: Browser) -> None:
    page = opened(lab, browser)
    page.get_by_text("Variants: time, and the memory that they write").first.wait_for()
    area, holders = (page.locator(".bk-Figure").nth(i) for i in (0, 1))
    browser.click_until(
        lambda: area.click(position={"x": 500, "y": 200}),
        page.get_by_text("picked 1 nodes of net: 1"),
    )
    page.locator(".widget-toggle-button", has_text="5").click()
    page.get_by_text("picked 0 nodes of net: 5").wait_for()
    browser.click_until(
        lambda: holders.click(position={"x": 40, "y": 50}),
        page.get_by_text(re.compile("picked [1-9][0-9]* nodes? of net: 5: .+")),
    )
    page.get_by_text("What writes:").click()
    page.locator("[data-row='1']").click()
    page.get_by_text("picked 3 nodes of net: 5: addcmul, update").wait_for()
    # jupyter_bokeh says every change of the kernel back to it: that is nobody's choice
    page.get_by_role("button", name="and now?").click()
    page.get_by_text("picked 3 nodes of net: 5: addcmul, update, still").wait_for()
    assert browser.outside == []
    assert browser.errors() == []
