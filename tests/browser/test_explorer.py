"""The explorer in JupyterLab by keyboard alone, at 700 pixels, in the light and the dark theme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kit.runs.settings import Settings
from kit.widgets.base.listing import LISTING_CSS
from kit.widgets.base.scripts import asset
from tests.browser.labserver import Lab, Opener
from tests.browser.test_smoke import write_notebook
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# A step that ends when the file `go` is there: so the test sees what is shown before.
CELL = """
import pathlib, time
from kit.runs.settings import Settings
from kit.widgets.explorer.view import Explorer
from tests.factories import make_run

go = pathlib.Path("go")

def step(settings, /, *, progress, cancelled):
    while not go.exists() and not cancelled():
        time.sleep(0.01)
    return make_run(settings, steps=2)

def prepare(settings, /, *, progress, cancelled):
    return 1

explorer = Explorer(step, Settings(steps=2, warmup=0), name="mlp", prepare=prepare)
explorer
"""
# (role or tag, accessible name) of all that the keyboard can reach, in the order of the page
NAMES = """() => [...document.querySelectorAll('.kit-explorer')].flatMap(root =>
  [...root.querySelectorAll('input, select, button, [role=slider], summary')]
    .filter(e => !e.disabled && e.getClientRects().length)
    .map(e => [e.getAttribute('role') || e.tagName.toLowerCase(),
      e.getAttribute('aria-label') || e.textContent.trim() || e.title
      || e.closest('label')?.textContent.trim() || '']))"""
# of the graph's figure; the timeline draws on a canvas of its own, which listens to the same event
GROUND = """() => Bokeh.documents.flatMap(d => d.roots()).filter(r => r.name === 'graph')
  .map(r => r.background_fill_color.value ?? r.background_fill_color)"""
LAB_GROUND = """() => { const shown = document.querySelector('.jp-Notebook');
  const rgb = getComputedStyle(shown).backgroundColor.match(/[0-9]+/g).map(Number);
  return '#' + rgb.map(x => x.toString(16).padStart(2, '0')).join(''); }"""
OTHER_GROUND = """() => { document.body.style.setProperty('--jp-layout-color0', 'rgb(27, 40, 56)');
  document.body.classList.add('other-theme'); }"""
# Of each canvas the dark pixels, of a hundred, when the page is printed; and what is in their way.
PRINTED = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const darkOf = (canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let dark = 0;
    for (let i = 0; i < data.length; i += 64) {
      dark += data[i + 3] > 200 && Math.max(data[i], data[i + 1], data[i + 2]) < 64;
    }
    return 6400 * dark / data.length;
  };
  const canvases = () => all(document).filter((e) => e.matches("canvas") && e.clientWidth > 99);
  window.dark = () => canvases().map(darkOf);
  window.addEventListener("beforeprint", () => { window.darkOnPaper = window.dark(); });
  window.onPaper = (selector) => all(document).filter((e) => e.matches(selector))
    .map((e) => getComputedStyle(e));
}"""
RESTART = "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
# What is said of parts of the view that have lost their kernel.
MARKS = """() => [...document.querySelectorAll('.jupyter-widgets-disconnected')]
  .map(part => getComputedStyle(part, '::before').content).filter(said => said !== 'none')"""
# of each canvas that bokeh lays out: pixels of its bitmap, and as wide as it is shown
WIDTHS = """() => {
  const found = [];
  const walk = (root) => { for (const part of root.querySelectorAll('*')) {
    if (part.shadowRoot) walk(part.shadowRoot);
    if (part.matches('canvas.bk-layer')) found.push([part.width, part.clientWidth]);
  } };
  walk(document);
  return found;
}"""
COLUMNS = """() => [...document.querySelectorAll('.kit-labelled')]
  .map(control => Math.round(control.getBoundingClientRect().left))"""
OVERFLOW = """() => { const e = document.querySelector('.kit-explorer');
  return e.scrollWidth - e.clientWidth; }"""

# Of the marks of a kind, the grounds that they are drawn with, those of shadow roots included.
GROUNDS = """(selector) => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const marks = all(document).filter((e) => e.matches(selector));
  return [...new Set(marks.map((e) => getComputedStyle(e).backgroundColor))];
}"""

# kinds of the notebook's cells, and the place of the active one
CELLS = """() => { const {widgets, activeCellIndex} = jupyterapp.shell.currentWidget.content;
  return [widgets.map(cell => cell.model.type), activeCellIndex]; }"""


def test_keys_in_an_explorer_are_no_commands_of_the_notebook(lab: Lab, opening: Opener) -> None:
    write_notebook(lab.root / "keys.ipynb", "'a cell before'", CELL, "'a cell after'")
    (lab.root / "go").touch()
    with opening(width=1000, height=1100) as browser:
        page = browser.page
        assert lab.open_and_run(browser, "keys.ipynb") == []
        page.get_by_text("measured in").first.wait_for()
        for key in ("a", "b", "m", "d", "d", "Control+s"):
            page.locator(".kit-explorer [aria-label^='IR graph']").first.focus()
            page.keyboard.press(key)
        page.wait_for_function("!jupyterapp.shell.currentWidget.model.dirty")  # it is saved
        menu = page.locator(".kit-explorer select[aria-label='loss scaling']")
        chosen = menu.input_value()
        menu.focus()
        page.keyboard.press("ArrowDown")
        assert menu.input_value() != chosen
        assert page.evaluate(CELLS) == [["code", "code", "code"], 1]
        assert browser.errors() == []


def test_the_explorer_by_keyboard_at_700_pixels_in_both_themes(lab: Lab, opening: Opener) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, lab.root / "e.ipynb")
    go = lab.root / "go"
    go.touch()
    with opening(width=700, height=1100) as browser:
        page = browser.page
        told: list[bytes | str] = []  # what the page says to the kernel
        page.on("websocket", lambda socket: socket.on("framesent", lambda x: told.append(x)))

        def says(start: str) -> None:
            page.wait_for_function(
                "s => document.querySelector('.kit-explorer [role=status]')"
                "?.innerText.startsWith(s)",
                arg=start,
            )

        def theme(name: str) -> None:
            page.evaluate(
                "t => jupyterapp.commands.execute('apputils:change-theme', {theme: t})", name
            )
            want = "dark" if "Dark" in name else "light"
            page.wait_for_function("t => document.documentElement.dataset.kitTheme === t", arg=want)

        def timeline_top() -> float:
            canvas = page.locator(".kit-explorer .kit-timeline canvas.main").first.bounding_box()
            explorer = page.locator(".kit-explorer").bounding_box()
            assert canvas is not None
            assert explorer is not None
            return canvas["y"] - explorer["y"]

        def text() -> Any:
            return page.locator(".kit-history input[type=text]").first.input_value()

        assert lab.open_and_run(browser, "e.ipynb") == []
        page.set_default_timeout(60_000)
        page.evaluate("jupyterapp.shell.collapseLeft()")
        browser.wait_for_canvases(1)
        says("measured in")

        # every control has a name, of its own
        names = [tuple(x) for x in page.evaluate(NAMES)]
        assert all(name for _, name in names), names
        assert ("slider", "batch size") in names
        assert ("select", "loss scaling") in names
        assert ("button", "bulked") in names
        assert ("input", "compile neighbours while idle") in names
        assert page.evaluate(OVERFLOW) <= 1

        assert browser.barriers(".kit-explorer") == []

        # by keyboard alone: on with Tab, along the slider with an arrow, back with Ctrl+Z
        page.locator(".kit-explorer button").first.focus()
        passed = []
        for _ in range(12):
            page.keyboard.press("Tab")
            passed.append(page.evaluate("document.activeElement.ariaLabel"))
            if passed[-1] == "bulk size, backward":
                break
        assert passed[-2:] == ["bulk size, forward", "bulk size, backward"]
        go.unlink()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "document.querySelector('.kit-explorer').innerText.includes('MODELLED')"
        )
        said = page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
        assert said == "20"
        assert text() == "bulk_backward=20&steps=2&warmup=0"
        assert page.locator(".kit-modelled").count() == 1
        go.touch()
        says("measured in")
        page.wait_for_function("!document.querySelector('.kit-modelled')")
        page.keyboard.press("Control+z")
        page.wait_for_function(
            "document.querySelector('.kit-history input[type=text]').value === 'steps=2&warmup=0'"
        )
        says("measured in")
        assert any("comm_msg" in str(frame) for frame in told)
        assert not any("spans.delta" in str(frame) for frame in told)  # no echo of a picture

        # what is shown as one text: the button copies it
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        copy = page.locator(".kit-copy-link")
        browser.click_until(copy.click, copy.filter(has_text=re.compile("^Copied$")))
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == "steps=2&warmup=0#"
        page.wait_for_function(  # a second click has emptied the field again
            "copied => document.querySelector('.kit-link input').value === copied", arg=copied
        )

        # the theme: figures follow it and back, without a run
        assert set(page.evaluate(GROUND)) == {"#ffffff"}
        theme("JupyterLab Dark")  # one black: the figures stand on that of the lab
        assert set(page.evaluate(GROUND)) == {page.evaluate(LAB_GROUND)} == {"#111111"}
        assert browser.barriers(".kit-explorer") == []
        page.evaluate(OTHER_GROUND)  # as another dark theme would
        page.wait_for_function(f"({GROUND})().every(color => color === '#1b2838')")
        theme("JupyterLab Light")
        assert set(page.evaluate(GROUND)) == {"#ffffff"}

        # the timeline begins on the first screen, also below the field of the link
        page.set_viewport_size({"width": 1400, "height": 900})
        until(lambda: timeline_top() < 700)
        assert browser.errors() == []
        assert browser.outside == []


def test_a_view_that_has_lost_its_kernel_says_so_once_and_keeps_its_columns(
    lab: Lab, opening: Opener
) -> None:
    write_notebook(lab.root / "e.ipynb", CELL)
    (lab.root / "go").touch()
    with opening() as browser:
        page = browser.page
        assert lab.open_and_run(browser, "e.ipynb") == []
        page.locator(".kit-explorer .kit-labelled").first.wait_for()
        columns = page.evaluate(COLUMNS)
        page.evaluate(RESTART)
        page.locator(".kit-explorer.jupyter-widgets-disconnected").wait_for()
        (said,) = page.evaluate(MARKS)
        assert "kernel that made this has ended" in said
        assert page.evaluate(COLUMNS) == columns


def test_a_figure_is_not_stretched_whose_width_changed_out_of_sight(
    lab: Lab, opening: Opener
) -> None:
    """The graph of a second explorer stayed as narrow as it had been in a narrower window."""
    cells = CELL, 'Explorer(step, Settings(steps=2, warmup=0), name="other")'
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, lab.root / "two.ipynb")
    (lab.root / "go").touch()
    with opening(width=1500, height=1600) as browser:
        page = browser.page
        assert lab.open_and_run(browser, "two.ipynb") == []
        page.wait_for_function(f"({WIDTHS})().length >= 8")
        for width in (420, 1500):
            page.set_viewport_size({"width": width, "height": 1600})
            page.wait_for_timeout(3000)  # bokeh follows both explorers, seen or not
        page.locator(".kit-explorer").nth(1).evaluate("view => view.scrollIntoView(true)")
        page.wait_for_function(f"({WIDTHS})().every(([bitmap, shown]) => bitmap === shown)")
        assert browser.errors() == []


def test_a_view_without_a_figure_says_so_too(lab: Lab, opening: Opener) -> None:
    code = "import kit\nfrom tests.factories import make_run\nkit.GapView(make_run())"
    write_notebook(lab.root / "gaps.ipynb", code)
    with opening() as browser:
        page = browser.page
        assert lab.open_and_run(browser, "gaps.ipynb") == []
        page.get_by_text("Why the device was idle").first.wait_for()
        page.evaluate(RESTART)
        page.locator("[class*=kit-live-].jupyter-widgets-disconnected").wait_for()
        (said,) = page.evaluate(MARKS)
        assert "kernel that made this has ended" in said


def test_a_report_is_dark_where_its_reader_wants_that_and_light_on_paper(
    tmp_path: Path, opening: Opener
) -> None:
    from kit.reports.html import write_report
    from tests.factories import make_run

    runs = [make_run(Settings(batch_size=size), seed=size) for size in (4, 8)]
    path = write_report(runs, tmp_path / "r.html")
    with opening(offline=True) as browser:
        page = browser.page
        page.emulate_media(color_scheme="dark")
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.kitTheme === 'dark'")
        browser.wait_for_canvases(1)
        assert set(page.evaluate(GROUND)) == {"#171b21"}
        assert browser.barriers() == []
        page.evaluate(PRINTED)
        assert max(page.evaluate("dark()")) > 50
        page.pdf()
        assert max(page.evaluate("darkOnPaper")) < 10
        page.wait_for_function("Math.max(...dark()) > 50", polling=200)
        assert set(page.evaluate(GROUND)) == {"#171b21"}
        page.emulate_media(color_scheme="light")
        page.wait_for_function("document.documentElement.dataset.kitTheme === 'light'")
        assert set(page.evaluate(GROUND)) == {"#ffffff"}
        assert browser.barriers() == []
        page.emulate_media(media="print")  # with the key's colours, all of the code, no buttons
        keys = page.evaluate("onPaper('.kinds i, .kit-graph-key i').map(s => s.printColorAdjust)")
        assert len(keys) > 4
        assert set(keys) == {"exact"}
        assert set(page.evaluate("onPaper('.kit-code').map(s => s.whiteSpace)")) == {"pre-wrap"}
        hidden = ".buttons, .find, .tools, .kit-graph-group"
        assert set(page.evaluate(f"onPaper('{hidden}').map(s => s.display)")) == {"none"}
        assert browser.errors() == []


def test_a_report_of_ranks_begins_on_the_first_page_and_no_table_is_cut(
    tmp_path: Path, opening: Opener
) -> None:
    import kit
    from kit.workloads.made_ranks import Job, write_ranks

    write_ranks(tmp_path, Job(ranks=8, slow={3: 1.5}))
    path = kit.report(kit.open_ranks(tmp_path), path=tmp_path / "r.html")
    with opening(offline=True) as browser:
        browser.page.goto(path.as_uri())
        assert browser.page.pdf().count(b"/Type /Page\n") == 2
        browser.page.emulate_media(media="print")
        boxes = "[...document.querySelectorAll('div:has(> table)')]"
        hides = browser.page.evaluate(f"{boxes}.map(e => getComputedStyle(e).overflowX)")
        assert set(hides) == {"visible"}


def test_where_the_reader_has_chosen_all_colours_keys_keep_theirs_and_a_picked_row_has_a_ring(
    tmp_path: Path, opening: Opener
) -> None:
    from kit.reports.html import write_report
    from tests.factories import make_run

    path = write_report([make_run()], tmp_path / "r.html")
    with opening(offline=True) as browser:
        page = browser.page
        page.emulate_media(forced_colors="active")
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.shown !== undefined")
        browser.wait_for_canvases(2)
        for key in (
            ".kinds i",
            ".kit-graph-key i",
            "#breakdown th span",
            "#breakdown td > div > div",
        ):
            assert len(page.evaluate(GROUNDS, key)) > 1, key
        page.emulate_media(forced_colors="active", color_scheme="dark")
        page.evaluate(OTHER_GROUND)
        page.wait_for_function(f"({GROUND})().every(color => color === '#1b2838')", timeout=9000)
        page.locator("#source [data-row]").first.click()
        page.get_by_role("button", name="why idle").click()
        page.evaluate("document.activeElement.blur()")
        for marked in ("#source .kit-picked", ".tools button[aria-pressed=true]"):
            ring = page.locator(marked).first.evaluate("e => getComputedStyle(e).outlineStyle")
            assert ring != "none", marked


# What Notebook 7 and nbclassic do with a high output, by the rules of their own styles.
LOW = """<style>.jp-mod-outputsScrolled .jp-Cell-outputArea, .output_scroll {
  max-height: 24em; overflow-y: auto }</style>"""
HIGH = {
    "notebook 7": (
        '<body data-notebook="notebooks"><div class="jp-CodeCell jp-mod-outputsScrolled">'
        '<div class="jp-Cell-outputArea">'
    ),
    "nbclassic": '<body><div><div class="output_scroll">',
}


@pytest.mark.parametrize("host", HIGH)
def test_an_explorer_is_as_high_as_it_is_where_other_outputs_scroll(host: str, opening: Opener):
    css = f"{LOW}<style>{asset('widgets/base/js/live.css')}</style>"
    with opening(offline=True) as browser:
        for kind, is_whole in (("kit-explorer", True), ("other", False)):
            high = f'<p class="{kind}" style="height: 2000px">high</p>'
            browser.page.set_content(f"{css}{HIGH[host]}{high}")
            seen = browser.page.locator("div > div").evaluate("area => area.clientHeight")
            assert (seen > 1000) == is_whole


# Something that is chosen, and how it looks if it is not.
CHOSEN = {
    "button": (
        asset("widgets/base/js/page.css"),
        '<div class="kit-view kit-explorer"><button class="mod-active">on</button>',
    ),
    "button of a graph": (
        asset("widgets/graph/js/graph.css"),
        '<div class="kit-graph-bar"><button aria-pressed="true">on</button>',
    ),
    "button of a timeline": (
        asset("widgets/timeline/js/timeline.css"),
        '<div class="tools"><button aria-pressed="true">on</button>',
    ),
    "row of a report": (LISTING_CSS, '<p data-row="0" tabindex="0" class="kit-picked">row</p>'),
}
RING = """chosen => { const {outlineStyle, outlineWidth} = getComputedStyle(chosen);
  return outlineStyle + outlineWidth; }"""


@pytest.mark.parametrize("what", CHOSEN)
def test_where_the_reader_has_chosen_all_colours_what_is_chosen_shows_the_focus_too(
    what: str, opening: Opener
) -> None:
    css, chosen = CHOSEN[what]
    off = chosen.replace("mod-active", "").replace("kit-picked", "").replace("true", "false")
    with opening(offline=True) as browser:
        page, rings = browser.page, []
        page.emulate_media(forced_colors="active")
        for body in (chosen, off):
            page.set_content(f"<style>:root {{ --accent: #2f6db5 }} {css}</style>{body}")
            rings.append(page.locator("button, p").evaluate(RING))
            page.keyboard.press("Tab")
            rings.append(page.locator("button, p").evaluate(RING))
        assert len(set(rings)) == 4, rings
