"""The graph in a browser: what the page does by itself, and what it says to a kernel."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bokeh.embed import file_html
from bokeh.resources import INLINE

from kit.ir import Graph, Node
from kit.runs.run import Run
from kit.widgets.base.scripts import script
from kit.widgets.graph.dot import run_dot
from kit.widgets.graph.layout import place
from kit.widgets.graph.view import graph_model, graph_payload, graph_wasm
from tests.browser.labserver import Browser, Lab
from tests.factories import make_run
from tests.widgets.graph.scenes import AVAL, bert, check_placed, keys, run_of, scene_of

pytestmark = pytest.mark.browser

# Of a graph that was drawn anew the newest drawing.
SETUP = """() => {
  const all = Bokeh.documents.flatMap((d) => [...d._all_models.values()]);
  window.graph = all.map((m) => m.kitGraph).findLast((g) => g && g.scene);
  window.at = (key) => {  // the middle of a box on the screen
    const {data} = graph.models.boxes, i = data.key.indexOf(key);
    const view = Bokeh.index.find_one(graph.models.figure), box = view.el.getBoundingClientRect();
    return [box.left + view.frame.x_scale.compute(data.x[i]),
            box.top + view.frame.y_scale.compute(data.y[i])];
  };
  return Boolean(window.graph);
}"""
SHOWN = """() => ({keys: Array.from(graph.models.boxes.data.key),
  subs: Object.fromEntries(Array.from(graph.models.boxes.data.key,
    (k, i) => [k, graph.models.boxes.data.sublabel[i]])),
  marks: graph.models.marks.data.x.length, open: [...graph.open], note: graph.models.note.text,
  line: graph.bar.line.innerText, scale: graph.camera.scale(),
  x: graph.models.figure.x_range.start})"""


def as_json(scene: dict[str, Any]) -> Any:
    return json.loads(json.dumps(scene, default=lambda a: a.tolist()))


def open_graph(browser: Browser, path: Path, run: Run, *, engine: bool = False) -> None:
    plot, sources = graph_model(graph_payload(run))
    sources["engine"].tags = [graph_wasm()] if engine else []
    path.write_text(file_html(plot, INLINE))
    browser.page.goto(path.as_uri())
    browser.page.wait_for_function("window.Bokeh && Bokeh.documents[0]?.is_idle")
    browser.page.wait_for_function(SETUP)
    browser.page.wait_for_function("graph.bar && graph.models.boxes.data.key.length")


def shown(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] = browser.page.evaluate(SHOWN)
    return found


def row_of(graph: str, key: str) -> str:
    """The number of a box, in JavaScript."""
    return f"{graph}.scene.rows.key.indexOf({graph}.scene.strings.indexOf('{key}'))"


def click(browser: Browser, key: str, *, shift: bool = False) -> None:
    page = browser.page
    page.wait_for_timeout(400)  # two clicks within 300 ms are a double click to bokeh
    # A drawing that was replaced is found before the newest one is on the page.
    until(browser, f"({SETUP})() && Bokeh.index.find_one(graph.models.figure)")
    if shift:
        page.keyboard.down("Shift")
    page.mouse.click(*page.evaluate("(key) => at(key)", key))
    if shift:
        page.keyboard.up("Shift")


def until(browser: Browser, claim: str) -> None:
    browser.page.wait_for_function(claim)


def test_the_page_places_boxes_exactly_as_python_does(offline: Browser):
    code = (
        f"([scene, open]) => {{ const {{placeScene}} = {script('widgets/graph/js/place.js')};"
        "const p = placeScene(scene, new Set(open));"
        "return [[...p.rects], p.edges.map((e) => [e.from, e.to, e.values, e.size, e.points])]; }"
    )
    for graph in (bert(2), bert(14), make_run(hostile=True).graphs[0], Graph(())):
        scene = scene_of(graph)
        groups = [k for k in keys(scene) if k]
        for opened in ([], groups[1::2], groups):
            rects, edges = offline.page.evaluate(code, [as_json(scene), opened])
            placed = place(scene, opened)
            assert [i for i, _ in rects] == list(placed.rects)
            for i, rect in rects:
                assert rect == pytest.approx(placed.rects[i], abs=1e-6)
            assert len(edges) == len(placed.edges)
            for mine, theirs in zip(placed.edges, edges, strict=True):
                assert theirs[:4] == [mine.source, mine.target, mine.values, mine.size_bytes]
                assert theirs[4] == pytest.approx(mine.curve, abs=1e-6)


FOCUSED = """() => {
  let at = document.activeElement;
  while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at.className;
}"""


def test_the_panel_of_a_picked_op_leaves_its_box_in_sight(offline: Browser, tmp_path: Path):
    open_graph(offline, tmp_path / "graph.html", make_run())
    page, panel = offline.page, offline.page.locator(".kit-graph-panel")
    ops = page.evaluate("""() => {
      const view = Bokeh.index.find_one(graph.models.figure);
      const {left} = view.el.getBoundingClientRect();
      return [...graph.placed.rects].filter(([row]) => graph.scene.isOp(row))
        .map(([row, [x, , width]]) => [left + view.frame.x_scale.compute(x + width / 2), row])
        .sort(([a], [b]) => a - b);
    }""")
    for (x, row), is_right in ((ops[0], False), (ops[-1], True)):
        page.evaluate("(row) => graph.pick(row)", row)
        box = panel.bounding_box()
        assert box
        assert box["x"] + box["width"] < x if is_right else x < box["x"]


def test_mouse_keys_search_paths_and_exports_work_without_a_kernel(
    offline: Browser, tmp_path: Path
):
    run = run_of(bert(5))
    open_graph(offline, tmp_path / "graph.html", run)
    page, fold = offline.page, "forward/layers.0…layers.4"
    first = shown(offline)
    assert fold in first["keys"]
    assert "laid out by graphviz dot" in first["note"]

    click(offline, fold)
    until(offline, "graph.models.boxes.data.key.includes('forward/layers.3')")
    assert shown(offline)["open"] == [fold]
    click(offline, "forward/layers.2", shift=True)
    until(offline, "graph.models.marks.data.x.length === 1")
    picked = shown(offline)
    assert picked["open"] == [fold]
    assert picked["subs"]["forward/layers.2"] == "12 of 12 selected"
    assert picked["line"].startswith("layers.2")
    page.get_by_role("button", name="path to inputs").click()
    assert "26 ops on the way to its inputs" in shown(offline)["line"]  # two layers, the embedding
    page.keyboard.press("Escape")  # the button has the focus: not a key of the graph
    assert "26 ops" in shown(offline)["line"]

    panel = page.locator(".kit-graph-panel")
    assert not panel.is_visible()  # of one op only
    page.evaluate("graph.pick([...graph.chosen][0])")
    assert panel.locator("dd").first.inner_text().startswith("%")
    panel.get_by_role("button", name="close").click()
    assert not panel.is_visible()
    click(offline, "forward/layers.2", shift=True)
    page.get_by_role("button", name="path to inputs").click()

    page.get_by_role("application").focus()
    page.keyboard.press("Tab")  # the plot is one stop: bokeh's layer in it is no second one
    assert "bk-events" not in page.evaluate(FOCUSED)
    page.get_by_role("application").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert shown(offline)["marks"] == 1  # where the keyboard is
    before = shown(offline)
    for key in ("+", "ArrowRight"):
        page.keyboard.press(key)
    after = shown(offline)
    assert after["scale"] == pytest.approx(before["scale"] * 1.25)
    assert after["x"] > before["x"]
    page.keyboard.press("0")
    for _ in range(2):
        page.keyboard.press("n")
    page.keyboard.press("Enter")
    assert len(shown(offline)["open"]) == 2
    assert re.fullmatch(r"\S.*, \d+ ops .*, open", page.locator(".kit-graph-at").inner_text())
    page.keyboard.press("Escape")
    assert shown(offline)["open"] == [fold]
    page.keyboard.press("Shift+Enter")
    assert "ops, " in shown(offline)["line"]
    page.keyboard.press("Escape")

    page.get_by_role("button", name="collapse all groups").click()
    page.evaluate(
        "graph.highlight({nodes: new Set([1, 2, 8]), sites: new Set(), label: 'a kernel'})"
    )
    assert shown(offline)["keys"] == first["keys"]
    assert shown(offline)["subs"][fold] == "1 of 60 selected"
    page.get_by_role("button", name="show in graph").click()
    assert "%8" in shown(offline)["keys"]

    search = page.get_by_role("searchbox")
    search.fill("addcdiv")
    search.press("Enter")
    until(offline, "graph.bar.found.textContent === '1 of 5'")
    search.fill("no such op")
    assert page.evaluate("graph.bar.found.textContent") == "none"
    search.press("Escape")

    page.get_by_role("combobox").select_option("memory")
    svg = ET.fromstring(save(offline, "SVG").read_text())
    assert "addcdiv" in {e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")}
    dot = shutil.which("dot") or ""
    text = save(offline, "DOT").read_text().removeprefix("digraph step ")
    (answer,) = run_dot(dot, [text], 20.0).values()
    assert len(answer["edges"]) > 5
    assert (offline.outside, offline.errors()) == ([], [])


def save(browser: Browser, name: str) -> Path:
    with browser.page.expect_download() as download:
        browser.page.get_by_role("button", name=name).click()
    return Path(download.value.path())


def test_a_page_whose_kernel_has_no_dot_lays_the_graph_out_itself(
    offline: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_of(bert(3))
    open_graph(offline, tmp_path / "graph.html", run, engine=True)
    until(offline, "graph.models.note.text.includes('WebAssembly')")
    assert re.search(r"laid out by graphviz \d+\.[\d.]+ in this page", shown(offline)["note"])
    scene = graph_payload(run)
    grid = scene["shapes"]
    scene["shapes"] = offline.page.evaluate("graph.scene.shapes")
    assert scene["shapes"] != as_json({"shapes": grid})["shapes"]
    check_placed(scene, place(scene, keys(scene)))
    assert (offline.outside, offline.errors()) == ([], [])


# How many lines a graph's title has, and how many pixels of it have no room.
CUT_TITLE = """() => {
  const {title} = graph.models.figure;
  const view = Bokeh.index.find_one(graph.models.figure).views.find_one(title);
  return [title.text.split("\\n").length, view.get_size().height - view.layout.bbox.height];
}"""


def test_a_title_that_is_broken_as_its_page_gets_narrower_is_not_cut(
    offline: Browser, tmp_path: Path
):
    page, run = offline.page, replace(run_of(bert(12)), name="a training step with a name")
    page.set_viewport_size({"width": 580, "height": 900})
    open_graph(offline, tmp_path / "graph.html", run)
    for width, lines in ((580, 1), (390, 2), (580, 1)):
        page.set_viewport_size({"width": width, "height": 900})
        until(offline, f"graph.models.figure.title.text.split('\\n').length === {lines}")
        page.wait_for_timeout(500)  # nothing else comes
        assert page.evaluate(CUT_TITLE) == [lines, 0]


# How many pixels of a graph's title are beyond its figure, and what the title ends with.
BEYOND = """() => {
  const {title, outer_width} = graph.models.figure;
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `bold 14px ${title.text_font}`;
  const ends = title.text.split("\\n").map((line) => ruler.measureText(line).width);
  return [Math.max(...ends) - outer_width, title.text.at(-1)];
}"""


def test_a_title_with_a_long_name_ends_where_its_figure_does(offline: Browser, tmp_path: Path):
    run = replace(run_of(bert(12)), name="a_step_for_masked_language_modelling_large")
    offline.page.set_viewport_size({"width": 320, "height": 900})
    open_graph(offline, tmp_path / "graph.html", run)
    until(offline, "graph.models.figure.title.text.includes('\\n')")
    more, end = offline.page.evaluate(BEYOND)
    assert more <= 0
    assert end == "…"


def test_thousands_of_open_boxes_are_drawn_as_far_as_they_can_be_seen(
    offline: Browser, tmp_path: Path
):
    nodes = [Node("aten.mul.Tensor", ((i - 1, 0),) if i % 7 else (), (), AVAL, phase="forward",
                  scope=f"M.part{i // 250}") for i in range(5_000)]  # fmt: skip
    open_graph(offline, tmp_path / "graph.html", run_of(Graph(tuple(nodes))))
    offline.page.evaluate("graph.setOpen(graph.scene.strings)")
    offline.page.get_by_role("button", name="show all of the graph").click()
    whole = shown(offline)
    assert len(whole["keys"]) == 2_000
    assert "small boxes; zoom in" in whole["line"]
    offline.page.evaluate(f"graph.center({row_of('graph', 'forward/part3')}); graph.draw()")
    near = shown(offline)
    assert len(near["keys"]) < 2_000
    assert "not drawn" not in near["line"]


@pytest.mark.slow
def test_in_a_notebook_the_view_answers_to_kernel_and_page_and_takes_no_keys_from_the_notebook(
    lab: Lab, browser: Browser
):
    cells = [
        "import os; os.environ['PATH'] = '/nonexistent'\n"
        "from kit import GraphView\nfrom tests.factories import make_run\n"
        "view = GraphView(make_run())\nview",
        "from kit.widgets.base.selection import Links\n"
        "view.expanded = frozenset({'forward/layers.0'})\n"
        "view.selection = Links(view.run).of_nodes(view.run.graphs[0].ops[:4], 'four ops')",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, lab.root / "graph.ipynb")
    assert lab.open_and_run(browser, "graph.ipynb") == []
    page = browser.page
    # The kernel is asked. `SETUP` each time: a view that missed a change is drawn once more.
    until(browser, f"({SETUP})() && graph.models.note.text.includes('WebAssembly')")
    until(browser, f"({SETUP})() && graph.open.has('forward/layers.0')")
    assert shown(browser)["open"] == ["forward/layers.0"]
    until(browser, f"({SETUP})() && ({SHOWN})().line.startsWith('four ops')")
    assert shown(browser)["subs"]["forward/layers.0/attention"] == "4 of 6 selected"
    click(browser, "backward/layers.0")
    until(browser, "graph.open.has('backward/layers.0')")
    page.keyboard.press("n")
    for key in ("a", "d", "d", "0"):  # in a notebook: new cell, delete cell
        page.get_by_role("searchbox").press(key)
    assert page.get_by_role("searchbox").input_value() == "add0"
    page.get_by_role("application").focus()
    page.keyboard.press("0")
    page.keyboard.press("0")  # in a notebook: restart the kernel
    count = "jupyterapp.shell.currentWidget.content.widgets.length"
    assert page.evaluate(count) == len(cells)
    assert page.locator(".jp-Dialog").count() == 0
    text = "import pathlib; pathlib.Path('said').write_text(' '.join(sorted(view.expanded)))"
    page.evaluate(
        "(code) => jupyterapp.shell.currentWidget.sessionContext.session.kernel"
        ".requestExecute({code}).done",
        text,
    )
    assert (lab.root / "said").read_text() == "backward/layers.0 forward/layers.0"
    assert (browser.outside, browser.errors()) == ([], [])


COPIES = """() => {
  const all = Bokeh.documents.flatMap((d) => [...d._all_models.values()]);
  window.copies = all.map((m) => m.kitGraph)
    .filter((g) => g?.scene && g.placed && Bokeh.index.find_one(g.models.figure));
  return window.copies.length === 2;
}"""


def test_what_is_done_in_one_copy_of_a_view_is_done_in_the_other(lab: Lab, browser: Browser):
    cell = (
        "from kit import GraphView\nfrom tests.factories import make_run\n"
        "view = GraphView(make_run())\ndisplay(view)\ndisplay(view)"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, lab.root / "copies.ipynb")
    assert lab.open_and_run(browser, "copies.ipynb") == []
    now = f"({COPIES})()"  # each time: a copy that missed a change is drawn once more
    key = "forward/layers.0"
    opened = f"(copies[0].open.has('{key}') || copies[0].setOpen(['{key}']))"
    until(browser, f"{now} && ({opened}, copies[1].open.has('{key}'))")
    picked = f"(copies[1].chosen.size || copies[1].pick({row_of('copies[1]', key)}))"
    until(browser, f"{now} && ({picked}, copies[0].chosen.size > 0)")
    sizes = browser.page.evaluate("copies.map((copy) => [copy.open.size, copy.chosen.size])")
    assert sizes[0] == sizes[1]
    # What is done quickly in one copy is not undone by the answer to what was done before.
    other = "backward/layers.0"
    browser.page.evaluate(f"{now} && (copies[0].setOpen([]), copies[0].setOpen(['{other}']))")
    until(browser, f"{now} && [...copies[1].open].join() === '{other}'")
    assert browser.page.evaluate("[...copies[0].open]") == [other]
    assert (browser.outside, browser.errors()) == ([], [])
