"""What a notebook stores of each view, by its mime types, and in a frame with nothing around it.

So do pages show an output that have neither a kernel nor kit's scripts: each in a frame that may
not look outside.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser as Process

import kit
import kit.widgets
from kit.ir.plan import OpStream
from kit.runs.analysis.diff import diff_runs
from kit.runs.compiles import Compile
from kit.widgets.base.cards import headline_html
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.listing import Listing
from kit.widgets.base.page import View, _hidden_by
from kit.widgets.explorer.view import Explorer
from kit.widgets.numbers.advice import AdviceView
from kit.widgets.numbers.headline import HeadlineView
from kit.widgets.numbers.tradeoff import TradeoffView
from kit.workloads.made_ranks import Job, write_ranks
from tests.browser.labserver import Browser
from tests.browser.test_phone import CROWDED
from tests.factories import make_run
from tests.widgets.numbers.test_parallel import LINK, STEP
from tests.widgets.numbers.test_tradeoff import row

pytestmark = pytest.mark.browser
RUN = make_run()
PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "h100_bert.json.gz"
TRIED = [row(), row("as given", is_start=True, step_ms=6.0)]


def _explorer() -> Explorer:
    shown = Explorer(lambda settings, *, progress, cancelled: make_run(settings), name="mlp")
    shown.wait(60)
    return shown


def _advice() -> AdviceView:
    view = AdviceView(lambda change: None)
    view.run = RUN
    return view


def _headline() -> HeadlineView:
    view = HeadlineView()
    view.run = RUN
    return view


def _compiles() -> Any:
    first = Compile(0, 0, "forward", "first", "nothing like it", 3, site="train.py:41")
    return kit.CompileView(SimpleNamespace(compiles=[first]))


def _ranks(folder: Path) -> Any:
    write_ranks(folder, Job(ranks=2))
    return kit.RanksView(kit.open_ranks(folder))


# class -> a view with something in it, whether it draws figures, and a word that its page says
VIEWS: Mapping[type, tuple[Callable[[Path], Any], bool, str]] = {
    AdviceView: (lambda _: _advice(), False, "limit"),
    kit.CallerView: (lambda _: kit.CallerView(kit.open_trace(PUBLISHED)), False, "BertLayer"),
    kit.CompileView: (lambda _: _compiles(), False, "train.py:41"),
    Explorer: (lambda _: _explorer(), True, "sync points"),
    kit.GapView: (lambda _: kit.GapView(RUN), False, "idle"),
    kit.GraphView: (lambda _: kit.GraphView(RUN), True, "colour by"),
    HeadlineView: (lambda _: _headline(), False, "step time"),
    kit.KernelView: (lambda _: kit.KernelView(RUN), False, "kernel"),
    kit.MemoryView: (lambda _: kit.MemoryView(RUN), True, "writes"),
    kit.ParallelView: (lambda _: kit.ParallelView(STEP, LINK, bucket_mb=0.2), True, "gradients"),
    kit.PlanView: (lambda _: kit.PlanView(OpStream.of(RUN.graphs[0], RUN.segments)), True, "ops"),
    kit.RanksView: (_ranks, False, "rank"),
    kit.RunDiffView: (
        lambda _: kit.RunDiffView(diff_runs(RUN, make_run(seed=1))),
        False,
        "What changed",
    ),
    kit.SegmentView: (lambda _: kit.SegmentView(RUN), False, "segment"),
    kit.SourceView: (lambda _: kit.SourceView(RUN), False, "train.py"),
    kit.TimelineView: (lambda _: kit.TimelineView(RUN), True, "critical path"),
    TradeoffView: (lambda _: TradeoffView(TRIED, "mlp"), True, "as given"),
    kit.WhatIfView: (lambda _: kit.WhatIfView(RUN), True, "times as fast"),
}
BARE = """([pages]) => {
  document.body.replaceChildren(...pages.map((page) => {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = page;
    frame.style.cssText = "width:1000px;height:700px;display:block";
    return frame;
  }));
}"""
DRAWN = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const canvases = all(document).filter((e) => e.tagName === "CANVAS" && e.width > 0);
  const text = all(document).filter((e) => !["SCRIPT", "STYLE"].includes(e.tagName))
    .flatMap((e) => [...e.childNodes]).filter((n) => n.nodeType === 3).map((n) => n.data).join(" ");
  return {canvases: canvases.length, text};
}"""


# Texts that end beyond the page, but for what scrolls.
BEYOND = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  const range = new Range();
  for (let text; (text = texts.nextNode());) {
    if (text.parentElement.closest("script, style, option, .kit-wide")) continue;
    range.selectNodeContents(text);
    const ends = [...range.getClientRects()].map((box) => box.right);
    if (Math.max(0, ...ends) > innerWidth + 1) found.push(text.data);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Any]:
    folder = tmp_path_factory.mktemp("views")
    return {made: make(folder) for made, (make, _, _) in VIEWS.items()}


def stored_page(html: str) -> str:
    """The page in the frame of a stored output."""
    return unescape(html.split('srcdoc="')[1].split('"')[0])


def test_each_view_of_the_kit_is_here():
    for module in pkgutil.walk_packages(kit.widgets.__path__, "kit.widgets."):
        importlib.import_module(module.name)
    found, left = set(), [View]
    while left:
        one = left.pop()
        left += one.__subclasses__()
        if one.__module__.startswith("kit."):
            found.add(one)
    assert found - {View, HtmlView, Listing} == set(VIEWS)


@pytest.mark.parametrize("kind", VIEWS, ids=lambda kind: kind.__name__)
def test_a_view_is_stored_as_text_and_as_a_page_beside_the_widget(kind, shown):
    bundle = shown[kind]._repr_mimebundle_()
    assert set(bundle) == {
        "text/plain",
        "text/html",
        "application/vnd.jupyter.widget-view+json",
    }
    assert bundle["text/plain"].startswith(f"{kind.__name__}(")
    html = bundle["text/html"]
    if VIEWS[kind][1]:
        assert html.startswith("<iframe srcdoc=")
        assert "<!doctype html>" in stored_page(html)
    else:  # no script, no frame: any page shows it
        assert "<script" not in html
        assert VIEWS[kind][2] in html


def test_the_page_of_each_view_is_drawn_in_a_bare_frame(offline: Browser, shown):
    pages = [view.page() for view in shown.values()]
    offline.page.evaluate(BARE, [pages])
    frames = offline.page.frames[1:]
    assert len(frames) == len(VIEWS)
    for frame, (kind, (_, has_figure, word)) in zip(frames, VIEWS.items(), strict=True):
        frame.wait_for_load_state()
        frame.frame_element().scroll_into_view_if_needed()  # Chromium may draw none out of sight
        if has_figure:
            frame.wait_for_function(f"() => ({DRAWN})().canvases > 0", timeout=120_000)
        found = frame.evaluate(DRAWN)
        assert (found["canvases"] > 0) == has_figure, kind
        assert word in found["text"], (kind, found["text"][:300])
    assert (offline.errors(), offline.outside) == ([], [])


def test_no_page_of_a_view_is_wider_than_a_small_phone(offline: Browser, tmp_path: Path, shown):
    file, page = tmp_path / "view.html", offline.page
    page.set_viewport_size({"width": 320, "height": 700})
    wide = {}
    for kind, view in shown.items():
        file.write_text(view.page())
        page.goto(file.as_uri())
        if VIEWS[kind][1]:
            offline.wait_for_canvases(1)
        found = [*page.evaluate(BEYOND), *page.evaluate(CROWDED)]
        if page.evaluate("document.documentElement.scrollWidth") > 320 or found:
            wide[kind.__name__] = found
    assert wide == {}
    assert offline.errors() == []


@pytest.mark.parametrize(("ground", "ink"), [("#ffffff", "#000000"), ("#383838", "#e8eaed")])
def test_stored_tables_can_be_read_on_a_page_that_has_not_jupyters_colours(
    offline: Browser, shown, ground: str, ink: str
):
    """As in Colab and on code hosts, light or dark."""
    stored = [view._repr_mimebundle_()["text/html"] for kind, view in shown.items()
              if not VIEWS[kind][1]]  # fmt: skip
    stored += [kit.kernel_table(RUN)._repr_html_(), RUN.advice()._repr_html_()]
    style = f"<style>body {{ background: {ground}; color: {ink} }}</style>"
    offline.page.set_content(f"{style}<main>{''.join(stored)}</main>")
    assert [found for found in offline.barriers("main") if "color-contrast" in found] == []


def test_a_stored_page_has_the_colours_of_vs_code_around_it(offline: Browser, shown):
    editor = "--vscode-editor-foreground:#cccccc;--vscode-editor-background:#1f1f1f"
    stored = shown[kit.MemoryView]._repr_mimebundle_()["text/html"]
    table = kit.SourceView(RUN)._repr_mimebundle_()["text/html"]
    body = _hidden_by("kit-live-a", stored) + _hidden_by("kit-live-b", table)
    offline.page.set_content(
        f"<style>:root{{{editor}}} body{{background:#1f1f1f;color:#cccccc}}</style>"
        f'<body class="vscode-dark"><main>{body}</main></body>'
    )
    frame = offline.page.frames[1]
    frame.wait_for_function("getComputedStyle(document.body).color === 'rgb(204, 204, 204)'")
    assert frame.evaluate("document.body.dataset.jpThemeLight") == "false"
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert frame.evaluate(ground) == "rgb(31, 31, 31)"
    assert [found for found in offline.barriers("main") if "color-contrast" in found] == []


def test_in_vs_code_a_wheel_over_a_stored_page_reaches_the_notebook(offline: Browser, shown):
    """It scrolls a notebook by the wheel events of its own page."""
    stored = shown[kit.PlanView]._repr_mimebundle_()["text/html"]
    for kind, expected in (("vscode-light", [120]), ("", [])):
        offline.page.set_content(f'<body class="{kind}">{stored}</body>')
        offline.page.evaluate("""() => { window.turned = [];
          window.addEventListener("wheel", (event) => window.turned.push(event.deltaY)); }""")
        frame = offline.page.frames[1]
        frame.wait_for_load_state()
        frame.locator("body").dispatch_event("wheel", {"deltaY": 120, "bubbles": True})
        assert offline.page.evaluate("window.turned") == expected


def test_a_stored_figure_whose_bokehjs_is_out_of_reach_says_so(offline: Browser, shown):
    html = shown[kit.TimelineView]._repr_mimebundle_()["text/html"]
    offline.page.evaluate(BARE, [[stored_page(html)]])
    note = offline.page.frames[1].locator("#no-bokehjs")
    note.wait_for(state="visible")
    assert "out of reach" in note.inner_text()
    assert offline.errors() == []


def test_where_no_script_runs_a_stored_figure_says_so(offline: Browser, shown):
    html = shown[kit.TimelineView]._repr_mimebundle_()["text/html"]
    page = stored_page(html)
    offline.page.evaluate(BARE.replace("allow-scripts", ""), [[page]])
    note = offline.page.frames[1].locator("#no-scripts")
    assert note.is_visible()
    assert "1 figure not drawn" in note.inner_text()
    assert "The device is busy for" in note.inner_text()
    offline.page.evaluate(BARE, [[page]])
    assert offline.page.frames[-1].locator("#no-scripts").count() == 0


def test_where_no_script_runs_a_report_says_what_to_do(chrome: Process, tmp_path: Path):
    file = kit.report([RUN], path=tmp_path / "report.html")
    for runs_scripts in (False, True):
        context = chrome.new_context(java_script_enabled=runs_scripts, offline=True)
        page = context.new_page()
        page.goto(file.as_uri())
        note = page.get_by_text("Open this file in a browser that runs scripts")
        assert note.count() == (not runs_scripts)
        context.close()


def test_where_each_output_is_apart_each_page_has_its_own_bokehjs(
    offline: Browser, shown, monkeypatch
):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    html = shown[kit.TimelineView]._repr_mimebundle_()["text/html"]
    offline.page.evaluate(BARE, [[stored_page(html)]])
    offline.page.frames[1].wait_for_function(f"() => ({DRAWN})().canvases > 0")
    assert offline.errors() == []


def test_where_the_front_end_cannot_draw_figures_the_stored_page_stands_below(offline: Browser):
    """Without jupyter_bokeh ipywidgets puts its mark of an error, "Click to show ...", for each."""
    mark = '<div class="jupyter-widgets-error-widget">error</div>'
    stored = _hidden_by("kit-live-a", "<p>page</p>")
    for inside, seen in ((mark, ["page"]), ("<p>figure</p>", ["figure"])):
        offline.page.set_content(f'<div class="kit-live-a">{inside}</div>{stored}')
        texts = offline.page.locator("p, .jupyter-widgets-error-widget")
        texts.filter(has_text=seen[0]).wait_for()
        assert [t.inner_text() for t in texts.all() if t.is_visible()] == seen


def test_in_the_high_contrast_of_vs_code_a_views_cards_can_be_read(offline: Browser):
    """It gives widgets a white text, and older versions a light ground: white on light."""
    editor = "--vscode-editor-foreground:#fff;--vscode-editor-background:#000"
    given = "--jp-ui-font-color1:var(--vscode-editor-foreground);--jp-layout-color0:#eee"
    style = f"<style>:root{{{editor}}} body{{background:#000;{given}}}</style>"
    view = f'<main class="kit-view kit-live-a">{headline_html(RUN)}</main>'
    offline.page.set_content(f'{style}<body class="vscode-high-contrast">{view}</body>')
    assert any("color-contrast" in found for found in offline.barriers("main"))
    offline.page.locator("body").evaluate(
        "(body, html) => body.insertAdjacentHTML('beforeend', html)", _hidden_by("kit-live-a", "")
    )
    assert offline.barriers("main") == []
