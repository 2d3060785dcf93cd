"""Lines of the program in a real page: a click and the keyboard pick one, others are marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page

import kit
from kit.reports.html import write_report
from kit.runs.analysis.lines import line_costs
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import Snippet
from kit.widgets.base.scripts import script
from kit.widgets.base.selection import Links
from kit.widgets.numbers.source import source_html
from tests.browser.labserver import Browser, Lab
from tests.browser.test_smoke import write_notebook
from tests.factories import make_run

pytestmark = pytest.mark.browser

LISTING_JS = script("widgets/base/js/listing.js")
PAGE = """<!doctype html><meta charset="utf-8"><main>{listing}</main><script>
const picked = [];
const {{pickedIn: pick, markRows: mark}} = {script};
for (const name of ["click", "keydown"]) document.addEventListener(name, (event) => {{
  const found = pick(event);
  if (found) picked.push([found.label, [...found.nodes], [...found.sites]]);
}});
</script>"""
NOTEBOOK = """
from dataclasses import replace
import kit
from ipywidgets import HTML, VBox
from kit.runs.sources import Snippet
from kit.widgets.base.selection import Links
from tests.factories import make_run

lines = tuple(f"line_{i}()" for i in range(1, 91))
run = replace(make_run(scopes=30), sources=(Snippet("train.py", 1, lines),))
view, said = kit.SourceView(run), HTML("nothing yet")

def tell(change):
    picked = change["new"]
    said.value = f"picked {picked.label}, {len(picked.nodes)} nodes"
    if picked.label == "train.py:12":
        view.selection = Links(run).of_site("train.py:44")

view.observe(tell, "selection")
VBox([said, view])
"""
# How far the top of the focused row is below what stays in sight: the controls, the heads.
BENEATH = """() => document.activeElement.getBoundingClientRect().top - Math.max(
  ...["#controls", "#source .kit-head"].map(
    (name) => document.querySelector(name).getBoundingClientRect().bottom))"""
MARKED = "[...document.querySelectorAll('.kit-picked')].map((row) => row.dataset.site)"


def test_a_page_learns_what_was_picked_and_marks_what_it_is_told(offline: Browser, tmp_path: Path):
    lines = tuple(f"line_{i}()" for i in range(1, 91))
    run = replace(make_run(scopes=30, hostile=True), sources=(Snippet("train.py", 1, lines),))
    clean = replace(make_run(scopes=30), sources=run.sources)
    hostile = source_html(run)
    (tmp_path / "evil.html").write_text(PAGE.format(listing=hostile, script=LISTING_JS))
    page = offline.page
    page.goto((tmp_path / "evil.html").as_uri())
    page.locator("[data-row]").first.click()
    assert len(page.evaluate("picked")) == 1
    assert page.locator("main img, main iframe").count() == 0

    (tmp_path / "page.html").write_text(PAGE.format(listing=source_html(clean), script=LISTING_JS))
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("[data-site='train.py:12']").click()
    page.locator("[data-site='train.py:13']").press("Enter")
    page.locator("[data-site='train.py:14']").press("x")
    page.locator(".kit-head").click()
    nodes = [sorted(Links(clean).of_site(f"train.py:{line}").nodes) for line in (12, 13)]
    assert page.evaluate("picked") == [
        ["train.py:12", nodes[0], ["train.py:12"]],
        ["train.py:13", nodes[1], ["train.py:13"]],
    ]
    root, top = "document.querySelector('main')", "document.querySelector('.kit-source-lines')"
    page.evaluate(f"mark({root}, {{nodes: new Set(), sites: new Set(['train.py:13'])}})")
    assert page.evaluate(MARKED) == ["train.py:13"]
    assert page.evaluate(f"{top}.scrollTop") == 0  # it can be seen already
    page.evaluate(f"mark({root}, {{nodes: new Set([{nodes[0][0]}]), sites: new Set()}})")
    assert page.evaluate(MARKED) == ["train.py:12"]
    page.evaluate(f"mark({root}, {{nodes: new Set(), sites: new Set(['train.py:44'])}})")
    assert page.evaluate(f"{top}.scrollTop") > 0
    page.evaluate(f"mark({root}, {{nodes: new Set(), sites: new Set()}})")
    assert page.evaluate(MARKED) == []
    assert offline.errors() == []


def in_sight(page: Page, site: str) -> bool:
    """Is the whole row of a line in its listing, and not under the listing's heads?"""
    row, head, box = (
        page.locator(f".kit-source-lines{name}").first.bounding_box()
        for name in (f" [data-site='{site}']", " .kit-head", "")
    )
    assert row is not None
    assert head is not None
    assert box is not None
    below = row["y"] >= head["y"] + head["height"] - 1
    return below and row["y"] + row["height"] <= box["y"] + box["height"] + 1


def dear_at(line: int) -> Run:
    """A run whose dearest line, a wait, is at `line` of a file of 90 lines that all cost."""
    made, site = make_run(scopes=30), f"train.py:{line}"
    lines = tuple(f"line_{i}()" for i in range(1, 91))
    waits = tuple(replace(s, site=site, wait_ns=10**8) for s in made.sync_points)
    return replace(made, sync_points=waits, sources=(Snippet("train.py", 1, lines),))


@pytest.mark.parametrize("line", [11, 44, 90])
def test_the_dearest_line_is_in_sight_when_the_listing_opens(
    line: int, offline: Browser, tmp_path: Path
):
    run, page = dear_at(line), offline.page
    assert max((r for r in line_costs(run) if r.site), key=lambda r: r.total_ms).site == (
        f"train.py:{line}"
    )
    (tmp_path / "view.html").write_text(kit.SourceView(run).page())
    page.goto((tmp_path / "view.html").as_uri())
    page.locator(".kit-source-lines").wait_for()
    page.wait_for_timeout(200)
    assert in_sight(page, f"train.py:{line}")
    kit.report([run], path=tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.locator(".kit-source-lines").scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    assert in_sight(page, f"train.py:{line}")
    assert offline.errors() == []


def test_a_listing_that_opens_hidden_shows_its_dearest_line_once_it_is_seen(
    offline: Browser, tmp_path: Path
):
    page = offline.page
    closed = f"<details><summary>more</summary>{source_html(dear_at(90))}</details>"
    (tmp_path / "page.html").write_text(PAGE.format(listing=closed, script=LISTING_JS))
    page.goto((tmp_path / "page.html").as_uri())
    page.get_by_text("more").first.click()
    page.wait_for_function("document.querySelector('.kit-source-lines').scrollTop > 0")
    assert in_sight(page, "train.py:90")


def test_a_listing_that_folds_lines_is_a_grid_of_rows_to_a_screen_reader(
    offline: Browser, tmp_path: Path
):
    listing = source_html(dear_at(90))
    assert "<details" in listing
    page = PAGE.format(listing=listing, script=LISTING_JS)
    (tmp_path / "page.html").write_text(page)
    offline.page.goto((tmp_path / "page.html").as_uri())
    assert offline.barriers(".kit-source-lines") == []
    offline.page.locator(".kit-source-lines summary").first.click()
    assert offline.barriers(".kit-source-lines") == []


@pytest.mark.parametrize(("where", "name"), [("#source", "source lines"), ("#kernels", "Kernels")])
def test_tab_stops_at_one_row_of_each_table_and_the_arrow_keys_go_on(
    where: str, name: str, offline: Browser, tmp_path: Path
):
    page, stop = offline.page, f'{where} [tabindex="0"]'
    page.goto(write_report([make_run(scopes=30)], tmp_path / "r.html").as_uri())
    rows = page.locator(where).get_by_role("grid", name=name).locator("[data-row]")
    page.locator(f"{where} [data-row]").first.wait_for(state="attached")
    page.evaluate("for (const x of document.querySelectorAll('details')) x.open = true")
    assert rows.count() > 2
    assert page.locator(stop).count() == 1
    page.locator(stop).focus()  # the dearest line
    for key, place in (("Home", 0), ("ArrowDown", 1), ("End", rows.count() - 1), ("ArrowUp", -2)):
        page.keyboard.press(key)
        assert rows.nth(place).evaluate("row => row === document.activeElement")
        assert page.locator(stop).count() == 1
    page.keyboard.press("Enter")
    assert rows.nth(-2).get_attribute("aria-selected") == "true"
    page.keyboard.press("Tab")
    assert page.evaluate(f"document.activeElement.closest('{where}')") is None
    page.keyboard.press("Shift+Tab")
    assert rows.nth(-2).evaluate("row => row === document.activeElement")
    assert offline.barriers(where) == []


@pytest.mark.parametrize("sizes", [(4,), (4, 8)], ids=["no controls", "controls"])
def test_a_row_that_the_arrow_keys_go_to_is_under_nothing(
    sizes: tuple[int, ...], offline: Browser, tmp_path: Path
):
    runs = [make_run(Settings(batch_size=size), scopes=60) for size in sizes]
    page = offline.page
    page.set_viewport_size({"width": 1400, "height": 700})
    page.goto(write_report(runs, tmp_path / "r.html").as_uri())
    rows = page.locator("#source [data-row]")
    rows.first.wait_for()
    page.locator('#source [data-row][tabindex="0"]').press("End")
    tops = []
    for _ in range(rows.count()):
        page.keyboard.press("ArrowUp")
        tops.append(page.evaluate(BENEATH))
    assert min(tops) >= 0
    assert max(tops) > 200


def test_in_a_notebook_a_line_is_picked_by_mouse_and_keys_and_a_far_one_is_brought_into_view(
    lab: Lab, browser: Browser
):
    write_notebook(lab.root / "lines.ipynb", NOTEBOOK)
    assert lab.open_and_run(browser, "lines.ipynb") == []
    page = browser.page
    page.locator("[data-site='train.py:13']").click()
    page.get_by_text("picked train.py:13").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_text("picked train.py:14").wait_for()
    focus = page.evaluate("document.activeElement.dataset.site")
    assert focus == "train.py:14"  # the listing was not drawn again
    page.locator("[data-site='train.py:12']").click()
    page.get_by_text("picked train.py:44").wait_for()
    page.wait_for_function("document.querySelector('.kit-source-lines').scrollTop > 0")
    row = page.locator("[data-site='train.py:44']")
    assert row.evaluate("row => getComputedStyle(row).boxShadow") != "none"
    assert browser.errors() == []
    assert browser.outside == []


# Of the first line of a listing that has a cost, how many pixels of its code are in sight.
CODE_IN_SIGHT = """() => {
  const box = document.querySelector(".kit-source-lines").getBoundingClientRect();
  const code = document.querySelector("[data-row] > .kit-code").getBoundingClientRect();
  return Math.min(box.right, code.right) - code.left;
}"""


# Where the number and the times of the head end, then those of the first line with a cost.
HEADS = """() => [".kit-head", "[data-row]"].flatMap((row) =>
  [...document.querySelector(".kit-source-lines").querySelectorAll(`${row} > span`)]
    .slice(1, 5).map((cell) => Math.round(cell.getBoundingClientRect().right)))"""


def test_a_phone_shows_the_code_beneath_the_numbers(offline: Browser, tmp_path: Path) -> None:
    file = tmp_path / "source.html"
    file.write_text(kit.SourceView(make_run()).page())
    offline.page.set_viewport_size({"width": 340, "height": 900})
    offline.page.goto(file.as_uri())
    assert offline.page.evaluate(CODE_IN_SIGHT) > 200
    edges = offline.page.evaluate(HEADS)
    assert edges[:4] == edges[4:], "the heads stand over their numbers"
