"""Views as pages of their own on a phone: none is wider than the page, wide tables scroll."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kit
from kit.ir.plan import OpStream
from kit.runs.run import Run
from kit.trace import Span, Timeline
from kit.widgets.base.page import View
from kit.widgets.base.tables import table
from kit.workloads.made_ranks import Job, write_ranks
from tests.browser.labserver import Browser, Lab
from tests.browser.test_smoke import write_notebook
from tests.browser.timeline.page import PLOT
from tests.factories import make_run, native_run

pytestmark = pytest.mark.browser

WIDTH = 390
PUBLISHED = Path(__file__).parents[1] / "data" / "published"
# Of each cell whether what stands in it is wider than the cell, so that it lies over the next one.
CROWDED = """() => [...document.querySelectorAll("th, td")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
  .map((cell) => `${cell.closest("table").rows[0].textContent}: ${cell.textContent}`)"""

# The names of files and lines that go on in the next line where no "/" and no ":" is.
TORN = r"""() => [...document.querySelectorAll("#syncs th, #gaps th, #source b, .kit-wait")]
  .flatMap((cell) => {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const torn = [], range = new Range();
    for (let text; (text = walk.nextNode());) {
      for (const {0: name, index} of text.data.matchAll(/[\w.]+/g)) {
        range.setStart(text, index);
        range.setEnd(text, index + name.length);
        if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) torn.push(name);
      }
    }
    return torn;
  })"""

# Of each label of a plan whether it is shown, and how much of its room it takes.
LABELS = """() => {
  const [plot] = Bokeh.documents.flatMap((page) => page.roots());
  const {text, room, alpha} = plot.select_one("labels").data_source.data;
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "11px Inter, Helvetica, Arial, sans-serif";
  const pixels = plot.inner_width / (plot.x_range.end - plot.x_range.start);
  return text.map((word, i) => [alpha[i], ruler.measureText(word).width / (room[i] * pixels)]);
}"""

WIDE_FIGURES = """() => [...document.querySelectorAll(".bk-Figure")]
  .filter((figure) => figure.getBoundingClientRect().right > innerWidth).length"""


# Of what holds the peak: pixels between each label and its number, and the labels.
HOLDERS = """() => {
  const [bars] = Bokeh.documents.flatMap((d) => d.roots()).filter((r) => r.name === "holders");
  const {data} = bars.renderers[0].data_source;
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "11.5px Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif";
  const wide = (text) => ruler.measureText(text).width;
  return {gaps: data.text.map((text, i) => bars.inner_width - wide(text) - wide(data.size[i])),
    texts: [...data.text], whole: [...data.whole]};
}"""


def _memory(folder: Path) -> View:
    return kit.MemoryView([make_run(), make_run(kit.Settings(mode="lazy"))])


def _ranks(folder: Path) -> View:
    write_ranks(folder, Job())
    return kit.RanksView(kit.open_ranks(folder))


def _comparison(folder: Path) -> View:
    runs = [make_run(syncs=2), make_run(kit.Settings(mode="lazy"))]
    unsure = [replace(run, step_times_ns=(1_000_000, 9_000_000)) for run in runs]
    return kit.compare(unsure).view()


@pytest.mark.parametrize("view", [_memory, _ranks, _comparison])
def test_a_page_is_as_wide_as_a_phone_and_its_cells_do_not_overlap(
    offline: Browser, tmp_path: Path, view: Callable[[Path], View]
):
    folder = tmp_path / "ranks"
    folder.mkdir()
    file = tmp_path / "view.html"
    file.write_text(view(folder).page())
    page = offline.page
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.goto(file.as_uri())
    page.locator("table").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    assert page.evaluate(CROWDED) == []
    assert offline.errors() == []


@pytest.mark.parametrize("width", [WIDTH, 1400])
def test_the_cells_of_a_report_do_not_overlap_and_every_word_can_be_read(
    offline: Browser, tmp_path: Path, width: int
):
    runs = [make_run(), make_run(kit.Settings(mode="lazy"), syncs=2)]
    file = kit.report(runs, path=tmp_path / "report.html")
    page = offline.page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CROWDED) == []
    assert page.evaluate(WIDE_FIGURES) == 0
    assert "grad_scaler.py:371" in page.locator("#syncs").inner_text()
    assert page.evaluate(TORN) == []
    assert offline.barriers("main") == []
    assert offline.errors() == []


def test_on_a_wide_page_no_name_of_another_programs_file_is_torn(offline: Browser, tmp_path: Path):
    trace = kit.open_trace(PUBLISHED / "h100_bert.json.gz")
    page = offline.page
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(kit.report([trace], path=tmp_path / "report.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    assert "modeling_attn_mask_utils.py" in page.locator("#syncs").inner_text()
    assert page.evaluate(TORN) == []


def test_a_phone_shows_the_share_of_what_launched_work_without_scrolling(
    offline: Browser, tmp_path: Path
):
    trace = kit.open_trace(PUBLISHED / "h100_bert.json.gz")
    page = offline.page
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.goto(kit.report([trace], path=tmp_path / "report.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    ends = page.evaluate("""() => {
      const head = [...document.querySelectorAll("th")].find((x) => x.textContent === "of its own");
      const share = head.previousElementSibling;
      return [share, head.closest(".kit-wide")].map((x) => x.getBoundingClientRect().right);
    }""")
    assert ends[0] <= ends[1] + 1


def test_the_cells_of_another_programs_trace_do_not_overlap(offline: Browser, tmp_path: Path):
    page = offline.page
    page.set_viewport_size({"width": WIDTH, "height": 900})
    for name in ("h100_bert", "alexnet"):  # small times and long names; large numbers
        trace = kit.open_trace(PUBLISHED / f"{name}.json.gz")
        page.goto(kit.report([trace], path=tmp_path / f"{name}.html").as_uri())
        page.wait_for_function("document.documentElement.dataset.shown !== undefined")
        page.evaluate("document.querySelectorAll('details').forEach((x) => { x.open = true; })")
        assert page.evaluate(CROWDED) == []
        offline.wait_for_canvases(1)
        page.wait_for_function(PLOT)
        assert page.evaluate("getComputedStyle(kitPlot.frame.note).maxHeight") == "none"
    assert offline.errors() == []


def test_a_swipe_over_the_graph_scrolls_the_page(offline: Browser, tmp_path: Path):
    page = offline.page
    page.set_viewport_size({"width": WIDTH, "height": 800})
    page.goto(kit.report(make_run(), path=tmp_path / "report.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    offline.wait_for_canvases(2)
    page.locator(".columns .plot").first.evaluate("(plot) => plot.scrollIntoView()")
    before = page.evaluate("scrollY")
    finger = page.context.new_cdp_session(page)
    finger.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for i in range(12):
        kind = {0: "touchStart", 11: "touchEnd"}.get(i, "touchMove")
        points = [{"x": 200, "y": 400 - 20 * i}] if i < 11 else []
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_function(f"scrollY > {before + 100}")


@pytest.mark.parametrize("width", [WIDTH, 1400])
def test_the_labels_of_a_plan_have_room_and_the_others_are_left_out(
    offline: Browser, tmp_path: Path, width: int
):
    page, file = offline.page, tmp_path / "plan.html"
    stream = OpStream(make_run(kernels=47).graphs[0], frozenset(range(60)))
    file.write_text(kit.PlanView(stream, 15, 3).page())
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    offline.wait_for_canvases()
    labels = page.evaluate(LABELS)
    shown = [taken for alpha, taken in labels if alpha]
    assert max(shown) < 1.1
    assert (len(shown) < len(labels)) == (width == WIDTH)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WIDE_FIGURES) == 0
    assert offline.errors() == []


# Of each legend that ends right of the page, or of its figure, what it says.
WIDE_LEGENDS = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter((e) => e.classList?.contains("bk-Legend") &&
    e.getBoundingClientRect().right > innerWidth).map((e) => e.textContent);
}"""


def _long_threads() -> Run:
    """A native run whose threads have long names, as those of foreign traces do."""
    run = native_run()
    spans = [
        *run.timeline.spans,
        Span("host/pt_autograd_0 of a data loader", "aten::mm", "kernel", 1_000, 9_000_000),
        *(Span("host/main", kind, kind, 1_000, 2_000) for kind in ("plan", "lower", "compile")),
        *(Span("host/main", kind, kind, 3_000, 4_000) for kind in ("dispatch", "wait")),
    ]
    return replace(run, timeline=Timeline.of(spans, origin="profiled"))


def _a_day_apart() -> Run:
    day_ns = 86_000_000_000_000
    kernels = [Span("device/0", "k", "kernel", at, at + 1_000) for at in (0, day_ns)]
    return replace(native_run(), timeline=Timeline.of(kernels, origin="imported"))


def _counted() -> Run:
    """A run on a GPU, whose allocator counts."""
    run = make_run()
    counted = {"memory.live_bytes": 1.23e9, "memory.peak_bytes": 4.56e9}
    return replace(run, metrics={**run.metrics, **counted}, environment={"device": "H100"})


ODD: dict[str, Callable[[], View]] = {
    "long names, predicted": lambda: kit.WhatIfView(make_run(hostile=True, syncs=2)),
    "long names, compared": lambda: kit.RunDiffView(
        kit.diff_runs(make_run(), make_run(hostile=True))
    ),
    "long names of threads": lambda: kit.compare([_long_threads(), make_run()]).view(),
    "many kernels": lambda: kit.KernelView(make_run(kernels=33_334)),
    "many kernels of segments": lambda: kit.SegmentView(make_run(kernels=33_334)),
    "a slow run": lambda: kit.compare([make_run(kernels=20_000), make_run()]).view(),
    "a day of idle time": lambda: kit.GapView(_a_day_apart()),
    "counted memory": lambda: kit.MemoryView(_counted()),
    "no memory": lambda: kit.MemoryView(native_run()),
    "no graph": lambda: kit.GraphView(native_run()),
    "long names of lines": lambda: kit.SourceView(make_run(hostile=True)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_view_of_an_odd_run_stays_on_the_page(offline: Browser, tmp_path: Path, name: str):
    page, file = offline.page, tmp_path / "view.html"
    file.write_text(ODD[name]().page())
    page.set_viewport_size({"width": WIDTH, "height": 900})
    page.goto(file.as_uri())
    if page.locator("#models").count():
        offline.wait_for_canvases()
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    assert page.evaluate(CROWDED) == []
    assert page.evaluate(WIDE_LEGENDS) == []
    assert offline.errors() == []


# Of each text of a live view that ends right of the output it is in, how it begins.
CUT = """() => [...document.querySelectorAll(".jp-OutputArea-output .widget-html-content")]
  .flatMap((text) => [text, ...text.children])
  .filter((part) => part.getBoundingClientRect().right >
    part.closest(".jp-OutputArea-output").getBoundingClientRect().right + 1)
  .map((part) => part.textContent.slice(0, 40))"""


def test_a_live_view_is_as_wide_as_a_narrow_notebook_and_its_wide_table_scrolls(
    lab: Lab, browser: Browser
):
    shown = ("kit.GapView(run)", "kit.SegmentView(run)", "kit.compare([run, run])")
    first = "import kit\nfrom tests.factories import make_run\nrun = make_run()\n"
    write_notebook(lab.root / "narrow.ipynb", first + shown[0], *shown[1:])
    assert lab.open_and_run(browser, "narrow.ipynb") == []
    browser.page.set_viewport_size({"width": WIDTH, "height": 2000})
    browser.wait_for_canvases()
    assert browser.page.evaluate(CUT) == []
    table_px, box_px = browser.page.evaluate("""() => {
      const box = document.querySelector(".widget-html-content .kit-wide");
      return [box.scrollWidth, box.clientWidth];
    }""")
    assert table_px > box_px  # it scrolls


def _in_file(run: Run, prefix: str) -> Run:
    """The run, recorded in a file of a longer name."""
    nodes = tuple(replace(n, site=f"{prefix}{n.site}") for n in run.graphs[0].nodes)
    return replace(run, graphs=(replace(run.graphs[0], nodes=nodes),))


# Of each line of a program that is two parts in sight: the line, if it is not wider than its block.
PARTED = r"""() => [...document.querySelectorAll("div, b")]
  .flatMap((block) => [...block.childNodes].flatMap((node) => {
    if (node.nodeName !== "WBR" || !/^:\d/.test(node.nextSibling?.data ?? "")) return [];
    const range = new Range(), number = node.nextSibling.data.match(/^:\d+/)[0];
    const name = node.previousSibling.data.match(/[\w./]+$/)[0];
    range.setStart(node.previousSibling, node.previousSibling.length - name.length);
    range.setEnd(node.nextSibling, number.length);
    const parts = [...range.getClientRects()];
    const wide = parts.reduce((sum, part) => sum + part.width, 0);
    const tops = new Set(parts.map((part) => Math.round(part.top)));
    const room = block.closest("td, th, p, div").clientWidth;
    return tops.size > 1 && wide < room ? [`${name}${number}`] : [];
  }))"""


@pytest.mark.parametrize("view", [kit.GapView, kit.SourceView])
def test_a_line_of_a_program_goes_to_the_next_line_whole_where_it_fits(
    offline: Browser, tmp_path: Path, view: Callable[[Run], View]
):
    file, page = tmp_path / "view.html", offline.page
    file.write_text(view(_in_file(make_run(syncs=2), "models/masked_lm_")).page())
    page.goto(file.as_uri())
    for width in range(360, 1000, 20):
        page.set_viewport_size({"width": width, "height": 900})
        assert (width, page.evaluate(PARTED)) == (width, [])


def test_a_long_word_stays_in_its_cell(offline: Browser):
    name = "_amp_foreach_non_finite_check_and_unscale_and_more"
    rows = [[name, name, "1"]]
    offline.page.set_viewport_size({"width": WIDTH, "height": 900})
    offline.page.set_content(table(("op", "line", "ms"), rows, "llr", widths=(40, 40, 20)))
    assert offline.page.evaluate(CROWDED) == []


# Of each wide table of a page: the height of the line that says so, and whether it scrolls.
HINTS = """() => [...document.querySelectorAll(".kit-wide")].map((box) =>
  [box.previousElementSibling.getBoundingClientRect().height > 8,
   box.scrollWidth > box.clientWidth])"""


@pytest.mark.parametrize(("width", "scrolls"), [(WIDTH, True), (1400, False)])
def test_a_line_says_of_a_table_that_scrolls_and_of_no_other_that_there_is_more(
    offline: Browser, tmp_path: Path, width: int, scrolls: bool
):
    file = tmp_path / "view.html"
    file.write_text(kit.SegmentView(make_run(syncs=2)).page())
    offline.page.set_viewport_size({"width": width, "height": 900})
    offline.page.goto(file.as_uri())
    assert offline.page.evaluate(HINTS) == [[scrolls, scrolls]]


def test_labels_of_what_holds_the_peak_leave_their_numbers_room(offline: Browser, tmp_path: Path):
    run = _in_file(make_run(), "a/very/long/path/of/")
    (tmp_path / "view.html").write_text(kit.MemoryView(run).page())
    page = offline.page
    for width in (320, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto((tmp_path / "view.html").as_uri())
        offline.wait_for_canvases(2)
        found = page.evaluate(HOLDERS)
        assert min(found["gaps"]) >= 8
        assert (found["texts"] == found["whole"]) is (width == 1400)
        assert any(text.endswith("…") for text in found["texts"]) is (width == 320)
    assert offline.errors() == []
