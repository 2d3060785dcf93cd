"""Make the pictures in docs/images: `make pictures`, a few minutes.

Runs the explorer in JupyterLab and makes a report of a small sweep: the README's pictures, and both
at three widths in both themes, in docs/images/views. Draws a timeline of a million spans. What the
pictures show was measured on the machine that made them, but for the million, which is made up: let
the machine do nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawing import READY, write_page  # noqa: E402
from tests.browser.labserver import open_browser, start_lab  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTHS = (1400, 900, 420)
QUALITY = 50  # of a JPEG, in percent
THEMES = ("light", "dark")
TO_THEME = """(name) => window.jupyterapp.commands.execute(
  'apputils:change-theme', {theme: name === 'dark' ? 'JupyterLab Dark' : 'JupyterLab Light'})"""
EXPLORER = """import os
os.environ["NPROC"] = "1"
import kit
from kit.workloads import bert
settings = kit.Settings(mode="lazy", loss_scaling="dynamic, on device", steps=200)
explorer = kit.Explorer(bert, settings)
_ = explorer.wait()
explorer.set(loss_scaling="dynamic, host check")
_ = explorer.wait()"""
# How far down its canvas the measured half of the timeline reaches, below the axis.
MEASURED_PX = """() => {
  const named = Bokeh.documents.map(d => d.get_model_by_name('timeline columns')).filter(Boolean);
  return Math.min(...named.map(found => found.data['parts.bottom'][0][0])) + 24;
}"""
REPORT = """import kit
from kit.workloads import bert
grid = {"loss_scaling": ["none", "dynamic, host check", "dynamic, on device"],
        "batch_size": [4, 8, 16]}
kit.report(bert, grid, "report.html", settings=kit.Settings(mode="lazy", steps=60))"""


def explorer(folder: Path) -> None:
    """The explorer after a change from one loss-scaling mode to another."""
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(EXPLORER), nbformat.v4.new_code_cell("explorer")]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    with start_lab(folder) as lab, open_browser(width=1500, height=2450) as browser:
        nbformat.write(book, lab.root / "tour.ipynb")
        assert lab.open_and_run(browser, "tour.ipynb", seconds=300) == []
        page = browser.page
        page.keyboard.press("Control+b")  # the file browser takes room
        browser.wait_for_canvases(3)  # of the timeline and the graph; more lie below
        page.wait_for_timeout(3000)
        shoot(page, IMAGES / "explorer.png")
        page.set_viewport_size({"width": 950, "height": 2450})  # 830 pixels are left for the view
        page.wait_for_timeout(3000)
        shoot_numbers(page, IMAGES / "first_screen.png")
        for theme in THEMES:
            page.evaluate(TO_THEME, theme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 2450})
                page.wait_for_timeout(3000)
                shoot(page, view("explorer", width, theme))


def view(name: str, width: int, theme: str) -> Path:
    """Where the picture of a view at a width is kept."""
    return IMAGES / "views" / f"{name}_{width}_{theme}.jpg"


def shoot(page: Page, path: Path) -> None:
    """The explorer down to JupyterLab's status bar."""
    page.locator(".kit-explorer").evaluate("(view) => view.scrollIntoView(true)")
    box = page.locator(".kit-explorer").bounding_box()
    bottom = page.locator("#jp-main-statusbar").bounding_box()
    assert box is not None
    assert bottom is not None
    box["height"] = min(box["height"], bottom["y"] - box["y"])
    quality = QUALITY if path.suffix == ".jpg" else None
    page.screenshot(path=path, clip=box, quality=quality)  # type: ignore[arg-type]


def shoot_numbers(page: Page, path: Path) -> None:
    """Of the explorer: the numbers, the advice and the measured half of the timeline."""
    explorer = page.locator(".kit-explorer").bounding_box()
    number = page.get_by_text("step time", exact=True).first.bounding_box()
    assert explorer is not None
    assert number is not None
    top = number["y"] - 17
    canvas = page.locator(".kit-explorer .kit-timeline canvas.main").first.bounding_box()
    assert canvas is not None
    bottom = canvas["y"] + page.evaluate(MEASURED_PX)
    page.screenshot(path=path, clip={**explorer, "y": top, "height": bottom - top})


def report(folder: Path) -> None:
    """A report of nine runs, as it opens."""
    subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd=folder,
        check=True,
        env={**os.environ, "NPROC": "1", "PYTHONPATH": str(ROOT)},
    )
    with open_browser(offline=True, width=1400, height=1000) as browser:
        browser.page.goto((folder / "report.html").as_uri())
        browser.wait_for_canvases(2)
        browser.page.wait_for_timeout(1500)
        browser.page.screenshot(path=IMAGES / "report.png", full_page=True)
        for theme in THEMES:
            browser.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            for width in WIDTHS:
                browser.page.set_viewport_size({"width": width, "height": 1000})
                browser.page.wait_for_timeout(1500)
                path = view("report", width, theme)
                browser.page.screenshot(path=path, full_page=True, quality=QUALITY)


def million(folder: Path) -> None:
    """A timeline of a million spans, all of it."""
    path = folder / "million.html"
    write_page(path, 1_000_000)
    with open_browser(offline=True, width=1400, height=700) as browser:
        browser.page.goto(path.as_uri())
        browser.page.wait_for_function(READY, timeout=120_000)
        browser.page.wait_for_timeout(1000)
        browser.page.screenshot(path=IMAGES / "timeline_million.png")


if __name__ == "__main__":
    (IMAGES / "views").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        explorer(Path(name) / "lab")
        report(Path(name))
        million(Path(name))
