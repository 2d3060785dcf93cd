"""What the browser tests stand on: bokeh and ipywidgets draw in JupyterLab, with no network."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser.labserver import Browser, Lab

pytestmark = pytest.mark.browser

PLOT = """
from bokeh.io import output_notebook
from bokeh.plotting import figure
from bokeh.resources import INLINE
from ipywidgets import HTML, IntSlider, VBox
from jupyter_bokeh.widgets import BokehModel

output_notebook(INLINE, hide_banner=True)
plot = figure(width=400, height=200, title="smoke")
bars = plot.quad(left=[0, 1], right=[1, 2], bottom=0, top=[1, 2])
slider, number = IntSlider(value=3, min=1, max=9), HTML("number 3")

def move(change):
    bars.data_source.data = {**bars.data_source.data, "top": [1, change["new"]]}
    number.value = f"number {change['new']}"

slider.observe(move, "value")
VBox([slider, number, BokehModel(plot)])
"""
BOX = """
from ipywidgets import HBox
import kit
from tests.factories import make_run
HBox([kit.TimelineView(make_run())])
"""


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook for kernel python3."""
    book = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(book, path)


def test_a_plot_is_drawn_and_a_slider_moves_it_without_any_other_host(lab: Lab, browser: Browser):
    write_notebook(lab.root / "smoke.ipynb", PLOT)
    assert lab.open_and_run(browser, "smoke.ipynb") == []
    assert browser.wait_for_canvases(1) >= 1
    handle = browser.page.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    browser.page.get_by_text("number 4").wait_for()
    assert browser.outside == []
    assert browser.errors() == []


def test_a_view_in_a_box_of_the_users_is_drawn_though_no_view_was_displayed(
    lab: Lab, browser: Browser
):
    write_notebook(lab.root / "box.ipynb", BOX)
    assert lab.open_and_run(browser, "box.ipynb") == []
    assert browser.wait_for_canvases(1) >= 1
    assert browser.page.get_by_text("Could not create a view").count() == 0
    assert browser.errors() == []


def test_an_exception_in_a_cell_is_reported(lab: Lab, browser: Browser):
    write_notebook(lab.root / "bad.ipynb", "1 / 0")
    assert lab.open_and_run(browser, "bad.ipynb") == ["ZeroDivisionError: division by zero"]
    assert browser.canvases() == 0


def test_a_request_to_another_host_is_refused_and_written_down(browser: Browser, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text('<script src="https://example.invalid/x.js"></script><p>here</p>')
    browser.page.goto(file.as_uri())
    assert browser.page.inner_text("p") == "here"
    assert browser.outside == ["https://example.invalid/x.js"]


def test_an_error_on_the_console_is_kept(offline: Browser, tmp_path: Path):
    file = tmp_path / "page.html"
    file.write_text("<script>console.error('ours'); nothing_here()</script>")
    offline.page.goto(file.as_uri())
    first, second = offline.errors()
    assert first.startswith("error: ours")
    assert "nothing_here is not defined" in second
