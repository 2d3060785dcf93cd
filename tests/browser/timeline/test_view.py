"""The timeline in a browser: its keys, search, lanes and choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.text import format_percent
from kit.trace import Span, Timeline
from kit.widgets.base.scripts import script
from kit.widgets.timeline.range import range_metrics
from kit.widgets.timeline.view import timeline_payload
from tests.browser.labserver import Browser, Lab
from tests.browser.test_smoke import write_notebook
from tests.browser.timeline.page import (
    PLOT,
    jsonable,
    open_page,
    point,
    state,
)
from tests.factories import make_run
from tests.widgets.timeline.test_columns import BAD

pytestmark = pytest.mark.browser
PAGE_JS = f"Object.assign(window, {script('widgets/timeline/js/page.js')});"
ACTIVE = "kitPlot.frame.root.getRootNode().activeElement"


def test_keys_search_ranges_and_choices(offline: Browser, tmp_path: Path):
    run = make_run(kernels=30, steps=2, syncs=2)
    open_page(offline, tmp_path, timeline_payload(run))
    page, mouse = offline.page, offline.page.mouse
    page.evaluate(
        "() => { const i = document.createElement('input'); i.id = 'cell';"
        " document.body.prepend(i); }"
    )
    first = state(offline)
    assert (first["from"], first["to"]) == tuple(first["all"])
    assert abs(first["height"]) <= 1  # the figure is as high as what is drawn

    page.locator("#cell").focus()
    page.keyboard.type("wasd0")  # keys are another's while another has the focus
    assert page.locator("#cell").input_value() == "wasd0"
    assert state(offline)["to"] == first["to"]
    for _ in range(7):  # the search box, five buttons, then the plot: nothing in between
        page.keyboard.press("Tab")
    assert state(offline)["focus"] == "main"
    plot = page.locator("canvas.main")
    assert plot.evaluate("(e) => getComputedStyle(e).outlineWidth") == "2px"
    assert "2 steps" in str(plot.get_attribute("aria-label"))
    page.keyboard.press("w")
    page.keyboard.press("w")
    near = state(offline)
    assert near["to"] - near["from"] == pytest.approx((first["to"] - first["from"]) / 1.96)
    page.keyboard.press("d")
    assert state(offline)["from"] > near["from"]
    page.keyboard.press("0")
    assert state(offline)["to"] == first["to"]

    page.keyboard.press("/")
    page.keyboard.type("fusion.1")
    kernels = [s for s in run.timeline.spans if "fusion.1" in s.name]
    assert state(offline)["hits"] == f"{len(kernels)}"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    found = state(offline)
    assert found["hits"] == f"2 of {len(kernels)}"
    assert found["said"].startswith(kernels[1].name)
    page.keyboard.press("Escape")
    assert (state(offline)["hits"], state(offline)["focus"]) == ("", "main")
    page.keyboard.press("Escape")

    mouse.move(*point(offline, "kernel", 3))
    assert "began at" in state(offline)["card"]
    mouse.down()
    mouse.up()
    picked = state(offline)
    assert (picked["pick"]["kind"], picked["arrows"]) == ("span", 1)
    page.keyboard.press(".")
    assert state(offline)["pick"]["i"] == picked["pick"]["i"] + 1

    x, y = point(offline, "kernel", 3)
    mouse.move(x, y)
    page.keyboard.down("Shift")
    mouse.down()
    mouse.move(x + 300, y, steps=3)
    mouse.up()
    page.keyboard.up("Shift")
    marked = state(offline)
    wanted = range_metrics(run.timeline, round(marked["mark"][0]), round(marked["mark"][1]))
    busy = wanted.busy_ns["device/0"] / wanted.length_ns
    assert format_percent(busy) in marked["range"]
    assert f"idle: {next(iter(wanted.idle_ns))}" in marked["range"]
    names = page.locator(".names tbody tr")
    names.first.wait_for()
    assert names.first.inner_text().split("\t")[0] in {s.name for s in run.timeline.spans}
    page.get_by_role("button", name="name", exact=True).click()
    sorted_names = names.locator("th").all_inner_texts()
    assert sorted_names == sorted(sorted_names)
    assert len(sorted_names) > 3
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + 200, y, steps=3)
    mouse.up()
    assert state(offline)["from"] <= marked["from"]
    page.keyboard.down("Control")
    mouse.wheel(0, -300)
    page.keyboard.up("Control")
    zoomed = state(offline)
    assert zoomed["to"] - zoomed["from"] < marked["to"] - marked["from"]
    assert (offline.outside, offline.errors()) == ([], [])
    kinds = "[kitPlot.table.leftOut, kitPlot.table.bottom, kitPlot.table.hidden.length]"
    all_lanes = page.evaluate(kinds)
    page.locator(".kinds button", has_text="kernel").click()
    assert page.evaluate(kinds)[0] == 1  # the device's lane has nothing else
    assert page.evaluate(kinds)[1] < all_lanes[1]
    assert page.evaluate("document.activeElement !== document.body")  # the button keeps the focus
    page.get_by_role("button", name="show all (1 lane hidden)").click()
    assert page.evaluate(kinds) == all_lanes
    kinds_of = "Array.from(kitPlot.table.key, (k) => kitPlot.table.keys.kind[k])"
    page.evaluate(f"kitPlot.choose('span', {kinds_of}.indexOf('kernel'))")
    page.locator(".kinds button", has_text="kernel").click()
    assert state(offline)["pick"] is None  # what is hidden is not chosen
    page.evaluate("kitPlot.step(1)")
    assert page.evaluate(f"{kinds_of}[kitPlot.pick.i]") != "kernel"
    page.evaluate("kitPlot.clear()")
    page.locator(".kinds button", has_text="kernel").click()
    page.get_by_role("button", name="lanes …").click()
    page.get_by_role("button", name="put first: device/0 kernels").click()
    tops = "Array.from(kitPlot.table.lanes.top)"
    assert page.evaluate(f"{tops}[kitPlot.table.lanes.label.indexOf('device/0 kernels')]") == min(
        page.evaluate(tops)
    )
    page.get_by_role("button", name="put first: device/0 kernels").press("Enter")  # has the focus
    own = 'id="cell"'  # a field of this test's page
    assert [barrier for barrier in offline.barriers() if own not in barrier] == []
    page.get_by_label("host worker", exact=True).uncheck()
    assert page.evaluate(kinds)[0] == 1
    page.get_by_label("host worker", exact=True).check()
    assert page.evaluate(kinds) == all_lanes
    page.get_by_label("show only lanes").fill("worker")
    assert page.evaluate(kinds)[0] == 2
    page.get_by_label("show only lanes").fill("")
    page.get_by_role("button", name="why idle").click()
    assert page.evaluate("kitPlot.table.idle.map(({group}) => group)") == ["device/0"]
    path = page.get_by_role("button", name="critical path")
    assert path.get_attribute("aria-pressed") == "false"
    path.click()
    assert state(offline)["said"].startswith("Critical path, the longest chain of work")
    page.evaluate("kitPlot.reset()")  # another run, with the path still drawn
    assert state(offline)["said"].startswith("Critical path, the longest chain of work")
    assert offline.errors() == []
    with offline.page.expect_download() as download:
        offline.page.get_by_role("button", name="save the picture").click()
    png = Path(download.value.path()).read_bytes()
    assert png.startswith(b"\x89PNG")
    high = "kitPlot.frame.over.height + kitPlot.frame.canvas.height"  # the rest says what it shows
    assert int.from_bytes(png[20:24]) > page.evaluate(high) + 80


# Of the canvases of bokeh's own figure, how many pixels are drawn.
UNDER = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter((e) => e.matches("canvas.bk-layer") && e.width && e.height)
    .map((e) => e.getContext("2d").getImageData(0, 0, e.width, e.height).data)
    .map((data) => data.filter((alpha, i) => i % 4 === 3 && alpha > 0).length);
}"""


def test_nothing_light_shows_at_the_edges_of_a_dark_timeline(offline: Browser, tmp_path: Path):
    """The figure under it was white: a line below it, and a glimmer at round corners."""
    open_page(offline, tmp_path, timeline_payload(make_run()))
    drawn = offline.page.evaluate(UNDER)
    assert drawn
    assert set(drawn) == {0}


def test_lanes_are_put_first_and_back_and_what_has_the_focus_keeps_it(
    offline: Browser, tmp_path: Path
):
    open_page(offline, tmp_path, timeline_payload(make_run(kernels=9, steps=1)))
    page, lanes = offline.page, "Array.from(kitPlot.table.lanes.top)"
    as_read = page.evaluate(lanes)
    page.mouse.move(*point(offline, "kernel", 3))
    assert "began at" in state(offline)["card"]
    page.evaluate("kitPlot.choices().top('device/0 kernels')")
    assert state(offline)["card"] == ""  # another span is under the pointer now
    assert page.evaluate(lanes) != as_read
    top = page.evaluate(f"kitPlot.view.y(Math.min(...{lanes}))")
    page.locator("canvas.main").hover(position={"x": 20, "y": top + 5})
    assert page.locator("canvas.main").get_attribute("title") == "device/0 kernels"
    page.get_by_role("button", name="lanes in their own order").press("Enter")
    assert page.evaluate(lanes) == as_read
    assert page.get_by_role("button", name="lanes in their own order").count() == 0

    for name, opened in (("lanes …", "div.lanes"), ("keys", "div.help")):
        button = page.get_by_role("button", name=name, exact=True)
        button.press("Enter")
        assert page.locator(opened).is_visible()
        assert button.get_attribute("aria-expanded") == "true"
        page.keyboard.press("Escape")
        assert not page.locator(opened).is_visible()
        assert button.get_attribute("aria-expanded") == "false"

    page.evaluate("kitPlot.measure.set([0, kitPlot.table.end])")
    for name in ("mean", "count"):  # the table's heads, drawn anew at each press
        page.get_by_role("button", name=name, exact=True).press("Enter")
        assert page.evaluate(f"{ACTIVE}.textContent") == name
    zoom = page.get_by_role("button", name="zoom to it")
    zoom.focus()
    page.evaluate("kitPlot.rearrange()")
    assert page.evaluate(f"{ACTIVE}.textContent") == "zoom to it"
    assert offline.errors() == []


def test_a_range_offers_what_a_kernel_does_with_it_and_nothing_in_a_saved_page(
    offline: Browser, tmp_path: Path
):
    run = make_run(kernels=9, steps=1)
    origin = int(run.timeline.start_ns.min())
    open_page(offline, tmp_path, timeline_payload(run.pin(origin + 5_000, "warm <b>here</b>")))
    page = offline.page
    assert page.locator(".pins").inner_text().split() == ["5", "µs", "warm", "<b>here</b>"]
    page.evaluate("kitPlot.measure.set([1000, 90_000])")
    assert page.locator(".wish").count() == 0
    remove = page.get_by_role("button", name='take the pin "warm <b>here</b>" away')
    assert remove.count() == 0
    page.evaluate("kitPlot.models.asked.data = {...kitPlot.models.asked.data, can: ['pin step']}")
    for _ in range(2):  # a second one, before the kernel has answered, would take the next pin
        remove.evaluate("(button) => button.click()")
    assert remove.is_disabled()
    asked = "(({serial, drawing, ...wish}) => wish)(kitPlot.models.asked.data)"
    assert page.evaluate(asked) == {"what": ["unpin"], "text": ["0"], "can": ["pin step"]}
    field = page.get_by_label("text to pin to the begin")
    field.fill("la")
    page.evaluate(
        "kitPlot.models.reply.data = {text: ['idle: wait\\t3 ms'],"
        " of: [kitPlot.measure.range.map(Math.round).join('|')]}"
    )  # while one types
    assert field.input_value() == "la"
    assert page.evaluate(f"{ACTIVE}.placeholder") == "text to pin to its begin"
    page.keyboard.press("End")
    page.keyboard.type("te")
    composed = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true})"
    field.evaluate(f"(field) => field.dispatchEvent({composed})")  # it ends a composed word
    assert page.evaluate(f"{asked}.what") == ["unpin"]
    field.press("Enter")
    assert page.evaluate(asked) == {"what": ["pin"], "text": ["late"], "can": ["pin step"]}
    page.get_by_role("button", name="use as the step").click()
    assert page.evaluate(f"{asked}.what") == ["step"]
    page.evaluate("() => { const m = document.createElement('i'); m.id = 'models';"
                  " document.body.append(m); kitPlot.measure.show(); }")  # fmt: skip
    assert page.locator(".wish").count() == 0
    assert offline.errors() == []


def test_a_page_draws_another_run_highlights_and_hears_of_choices(offline: Browser, tmp_path: Path):
    open_page(offline, tmp_path, timeline_payload(make_run(hostile=True, kernels=6, steps=1)))
    page = offline.page
    page.mouse.move(*point(offline, "kernel"))
    assert "</script><script>alert('kit')</script>" in state(offline)["card"]
    assert page.locator("img[src=x]").count() == 0
    run = make_run(kernels=60, steps=2, seed=3)
    new = jsonable(timeline_payload(run))
    page.add_script_tag(
        content=PAGE_JS
        + """
      const doc = Bokeh.documents[0], figure = doc.get_model_by_name("timeline");
      window.models = {figure, timeline: doc.get_model_by_name("timeline columns")};
      for (const name of ["picked", "lit", "marked", "reply"]) {
        window.models[name] = doc.get_model_by_name(name);
      }
      window.heard = [];
      onTimelinePick(window.models, ({nodes, sites, label}) =>
        window.heard.push([[...nodes], [...sites], label]));"""
    )
    for bad in BAD.values():  # what others may open: nothing, one instant, a hundred days, ...
        payload = jsonable(timeline_payload(bad))
        page.evaluate("(payload) => drawTimeline(payload, window.models)", payload)
        page.locator("canvas.main").focus()
        page.keyboard.press(".")
        page.keyboard.press("f")
        shown = state(offline)
        assert shown["all"][0] <= shown["from"] < shown["to"] <= shown["all"][1]
    lanes = Timeline.of(Span(f"host/t{i}", "x", "plan", i, i + 50) for i in range(500))
    page.evaluate(
        "(payload) => drawTimeline(payload, window.models)", jsonable(timeline_payload(lanes))
    )
    page.mouse.wheel(0, 900)
    assert page.evaluate("window.kitPlot.view.scroll") > 100  # it has the focus
    page.evaluate("(payload) => drawTimeline(payload, window.models)", new)
    assert page.evaluate("window.heard.splice(0).at(-1)") == [[], [], ""]  # no graph, no nodes
    assert state(offline)["title"] == new["title"]
    assert state(offline)["n"] == len(new["spans"]["key"])
    kernel = next(s for s in run.timeline.spans if s.kind == "kernel")
    site = run.graphs[0].nodes[kernel.node].site
    page.mouse.click(*point(offline, "kernel"))
    assert page.evaluate("window.heard") == [[[kernel.node], [site], f"kernel {kernel.name}"]]
    page.evaluate(
        "([node, site]) => highlightTimeline(window.models,"
        " {nodes: new Set([node]), sites: new Set([site])})",
        [kernel.node, run.timeline.syncs[0].site],
    )
    kinds, marks = state(offline)["lit"]
    same = {s.name for s in run.timeline.spans if s.kind == "kernel" and s.node == kernel.node}
    assert kinds.count("kernel") == len(same)
    assert "dispatch" in kinds
    assert marks[0] == 1
    assert len(page.evaluate("window.heard")) == 1  # a highlight is not a choice
    assert (offline.outside, offline.errors()) == ([], [])


NOTEBOOK = """
from ipywidgets import HTML, Button, VBox
import kit
from kit.widgets.base.selection import Selection
from tests.factories import make_run

run = make_run(kernels=30, steps=2)
view, label = kit.TimelineView(run), HTML("nothing chosen")
other, again = Button(description="select elsewhere"), Button(description="another run")

def tell(change):
    label.value = f"chosen: {view.selection.label}, node {view.node}, range {view.range_ns}"

def elsewhere(_):
    view.selection = Selection(frozenset({2}), frozenset(), "node 2")

def another(_):
    view.run = make_run(kernels=12, steps=1, seed=5)

view.observe(tell, ["selection", "range_ns"])
other.on_click(elsewhere)
again.on_click(another)
display(VBox([other, again, label]))
view
"""


def test_in_jupyterlab_choices_reach_python_and_keys_stay_in_the_view(lab: Lab, browser: Browser):
    write_notebook(lab.root / "timeline.ipynb", NOTEBOOK, "'second cell'")
    assert lab.open_and_run(browser, "timeline.ipynb") == []
    page = browser.page
    page.wait_for_function(PLOT)
    run = make_run(kernels=30, steps=2)
    kernel = next(s for s in run.timeline.spans if s.kind == "kernel")
    said = page.get_by_text(f"chosen: kernel {kernel.name}, node {kernel.node}, range None")

    def click() -> None:
        page.wait_for_function(PLOT)
        page.locator("canvas.main").scroll_into_view_if_needed(timeout=3000)
        page.mouse.click(*point(browser, "kernel"))

    browser.click_until(click, said)
    assert "kernel" in state(browser)["lit"][0]  # its twins in other steps are highlighted
    cells = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
    before, a = page.evaluate(cells), state(browser)["from"]
    page.keyboard.press("w")
    page.keyboard.type("ddab")  # in command mode: delete a cell, insert one above, one below
    page.keyboard.press("m")
    page.keyboard.press("/")
    page.keyboard.type("xxdd")
    assert page.evaluate(cells) == before
    assert state(browser)["from"] > a
    assert state(browser)["hits"] == "nothing found"
    page.get_by_text(f"range ({kernel.start_ns}, {kernel.stop_ns})").wait_for()
    page.get_by_role("button", name="select elsewhere").click()
    page.get_by_text("chosen: node 2, node None").wait_for()
    page.get_by_role("button", name="another run").click()
    count = len(make_run(kernels=12, steps=1, seed=5).timeline) - 1  # but for the step
    page.wait_for_function(f"() => window.kitPlot.table.n === {count}")
    assert state(browser)["pick"] is None
    assert browser.outside == []
    assert browser.errors() == []
