"""The saved report from `file://`, with the network off: controls move, everything follows."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.reports.html import write_report
from kit.runs.conditions import Conditions
from kit.runs.settings import Settings
from kit.workloads.made_ranks import Job, write_ranks
from tests.browser.labserver import Browser
from tests.browser.timeline.test_view import PLOT, state
from tests.factories import make_run, one_span_run

pytestmark = pytest.mark.browser

COVERED = """() => {  // pixels of the page at which something lies over the controls
  const controls = document.getElementById("controls"), covered = [];
  for (let y = 0; y < document.body.scrollHeight - innerHeight; y += 60) {
    scrollTo(0, y);
    const {left, top, width, height} = controls.getBoundingClientRect();
    const over = document.elementFromPoint(left + width / 2, top + height / 2);
    if (!controls.contains(over)) covered.push(y);
  }
  return covered;
}"""
SHOWN = """() => {
  const spans = kitReport.models("timeline").timeline.data;
  const boxes = kitReport.models("graph").boxes.data;
  return {
    bars: Array.from(spans["spans.delta"][0]),
    keys: Array.from(boxes.key), kinds: Array.from(boxes.kind),
    selected: document.documentElement.dataset.shown,
    headline: document.getElementById("headline").innerText,
    status: document.getElementById("status").innerText,
    injected: document.querySelectorAll("main img, main iframe").length,
  };
}"""


def open_report(offline: Browser, path: Path) -> dict[str, Any]:
    offline.page.goto(path.as_uri())
    offline.page.wait_for_function("document.documentElement.dataset.shown !== undefined")
    offline.wait_for_canvases(2)
    return shown(offline)


def shown(offline: Browser) -> dict[str, Any]:
    found: dict[str, Any] = offline.page.evaluate(SHOWN)
    return found


def press(offline: Browser, control: str, key: str, other_than: str) -> dict[str, Any]:
    offline.page.locator(f"#controls [name={control}]").press(key)
    offline.page.wait_for_function(f"document.documentElement.dataset.shown !== {other_than!r}")
    return shown(offline)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    grid = itertools.product(["none", "dynamic, host check"], [1, 15], [4, 8, 16])
    runs = [
        make_run(Settings(loss_scaling=a, bulk_backward=b, batch_size=c), seed=i)
        for i, (a, b, c) in enumerate(grid)
    ]
    return write_report(runs, tmp_path / "report.html", current=runs[0])


def test_a_slider_redraws_the_plots_and_the_numbers(offline: Browser, report: Path):
    first = open_report(offline, report)
    second = press(offline, "batch_size", "ArrowRight", first["selected"])
    assert second["bars"] != first["bars"]
    assert second["headline"] != first["headline"]
    assert offline.page.get_by_role("slider", name="batch size").count() == 1
    assert offline.page.evaluate(COVERED) == []
    assert re.match(r"batch size 4 → 8: a sample takes .+ instead of .+%", second["status"])
    third = press(offline, "loss_scaling", "ArrowDown", second["selected"])
    assert third["selected"] not in (first["selected"], second["selected"])
    back = press(offline, "batch_size", "ArrowLeft", third["selected"])
    back = press(offline, "loss_scaling", "ArrowUp", back["selected"])
    assert (back["selected"], back["bars"]) == (first["selected"], first["bars"])
    assert offline.errors() == []
    assert offline.outside == []


def test_the_timeline_stays_where_it_is_when_a_slider_says_more_of_what_changed(
    offline: Browser, tmp_path: Path
):
    runs = [make_run(Settings(batch_size=size), seed=size) for size in (4, 8)]
    first = open_report(offline, write_report(runs, tmp_path / "two.html", current=runs[0]))
    top = "document.querySelector('.bk-Figure').getBoundingClientRect().top + scrollY"
    before = offline.page.evaluate(top)
    assert offline.page.locator("#diff").inner_text() == ""
    press(offline, "batch_size", "ArrowRight", first["selected"])
    assert "What changed" in offline.page.locator("#diff").inner_text()
    assert offline.page.evaluate(top) == pytest.approx(before, abs=60)  # a line more of advice


def test_a_report_opens_on_the_run_that_waits_beside_the_fastest(offline: Browser, tmp_path: Path):
    waiting = make_run(Settings(loss_scaling="dynamic, host check"), syncs=2)
    free = make_run(Settings(loss_scaling="none"), syncs=0, seed=1)
    fast = replace(free, step_times_ns=tuple(t // 2 for t in free.step_times_ns))
    free = make_run(Settings(loss_scaling="static"), syncs=0, seed=1)
    first = open_report(offline, write_report([fast, waiting, free], tmp_path / "story.html"))
    assert first["status"].startswith("Beside the fastest run (")
    assert "there is a red wait of " in first["status"]
    assert "worse" in first["headline"]
    offline.page.get_by_role("button", name="Show that run").click()
    offline.page.wait_for_function(
        f"document.documentElement.dataset.shown !== {first['selected']!r}"
    )
    second = shown(offline)
    assert "the red wait is gone (it took " in second["status"]
    assert "better" in second["headline"]
    assert "worse" not in second["headline"]
    control = offline.page.locator("#controls select").first
    assert control.evaluate("(e) => e.selectedOptions[0].text") == "none"
    assert offline.errors() == []


def test_the_axis_stays_when_a_control_moves_and_the_run_before_lies_under(
    offline: Browser, tmp_path: Path
):
    short, long = make_run(steps=1), make_run(Settings(bulk_backward=1), steps=3)
    long = replace(long, step_times_ns=tuple(t // 2 for t in long.step_times_ns))
    open_report(offline, write_report([short, long], tmp_path / "axis.html", current=short))
    offline.page.wait_for_function(PLOT)
    first = state(offline)
    assert first["all"][1] > long.timeline.duration_ns
    assert (first["from"], first["to"]) == tuple(first["all"])
    under = "[kitPlot.ghost?.name, kitPlot.ghost?.table.n]"
    assert offline.page.evaluate(under) == ["the fastest run", len(long.timeline) - 3]
    offline.page.get_by_role("button", name="fit this run").click()
    near = state(offline)
    assert near["to"] == pytest.approx(1.005 * short.timeline.duration_ns)
    press(offline, "bulk_backward", "ArrowDown", "0")
    moved = state(offline)
    assert moved["n"] == len(long.timeline) - 3
    assert (moved["from"], moved["to"]) == (near["from"], near["to"])
    assert offline.page.evaluate(under) == ["the run before", len(short.timeline) - 1]
    assert offline.errors() == []


LOOKED = """() => { const {view, measure, finder} = kitPlot, r = kitReport; return {
  run: document.documentElement.dataset.shown, from: view.shownFrom, to: view.shownTo,
  range: measure.range, nodes: [...r.selected.nodes], sites: [...r.selected.sites],
  open: [...r.models("graph").view.kitGraph.open].sort(),
  status: document.getElementById("status").innerText,
  marked: document.querySelectorAll(".kit-picked").length}; }"""


def test_the_address_of_a_view_restores_it_and_a_strangers_harms_nothing(
    offline: Browser, report: Path
):
    page, first = offline.page, open_report(offline, report)
    page.wait_for_function(PLOT)
    press(offline, "batch_size", "ArrowRight", first["selected"])
    group = shown(offline)["kinds"].index("group")
    page.evaluate("i => { kitReport.models('graph').boxes.selected.indices = [i]; }", group)
    page.wait_for_function("kitReport.models('graph').view.kitGraph.open.size > 0")
    page.locator('#source [data-row]:not([data-nodes=""])').first.click()
    page.evaluate("() => { kitPlot.view.show(2e5, 9e5); kitPlot.measure.set([3e5, 5e5]); }")
    page.wait_for_function("/shown=200000_900000/.test(location.hash)")
    page.wait_for_function("/range=300000_500000.*nodes=.*open=/.test(location.hash)")
    wanted, address = page.evaluate(LOOKED), page.url
    assert wanted["range"] == [300_000, 500_000]
    assert wanted["nodes"]
    assert wanted["open"]
    for leave in (
        "about:blank",
        f"{report.as_uri()}#set.batch_size=16",
    ):  # as a new page, and in it
        page.goto(leave)
        page.goto(address)
        page.wait_for_function("window.kitReport?.models('timeline').marked?.data.start[0] === 3e5")
        page.wait_for_function(PLOT)
        page.wait_for_function("kitPlot.measure.range !== null && kitPlot.view.shownFrom === 2e5")
        assert page.evaluate(LOOKED) == wanted
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("document.getElementById('address').value !== ''")
    assert page.locator("#address").input_value() == address

    evil = (
        "#set.batch_size=<img src=x onerror=alert(1)>&label=<img src=x>&sites=<img src=x>&nodes=1-9"
    )
    page.goto(
        f"{report.as_uri()}{evil}&shown=-9_999999999999999&range=5_6&open=__proto__&beside=9e9"
    )
    page.wait_for_function("kitReport.selected.sites.has('<img src=x>')")
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.dataset.shown") == first["selected"]
    assert (offline.errors(), offline.outside) == ([], [])


def test_a_click_opens_a_group_of_the_graph_and_the_button_closes_it(
    offline: Browser, report: Path
):
    folded = open_report(offline, report)
    group = folded["kinds"].index("group")
    offline.page.evaluate("i => { kitReport.models('graph').boxes.selected.indices = [i]; }", group)
    count = len(folded["keys"])
    offline.page.wait_for_function(f"kitReport.models('graph').boxes.data.key.length > {count}")
    assert len(shown(offline)["keys"]) > len(folded["keys"])
    offline.page.get_by_role("button", name="collapse all groups").click()
    assert shown(offline)["keys"] == folded["keys"]


def test_a_cell_that_was_not_recorded_says_so_and_shows_the_nearest(
    offline: Browser, tmp_path: Path
):
    runs = [
        make_run(Settings(batch_size=4, bulk_backward=1)),
        make_run(Settings(batch_size=8, bulk_backward=15), seed=1),
    ]
    path = write_report(runs, tmp_path / "two.html", current=runs[0])
    open_report(offline, path)
    offline.page.locator("#controls [name=batch_size]").press("ArrowRight")
    offline.page.wait_for_function(
        "document.getElementById('status').innerText.startsWith('Not recorded')"
    )


def test_a_block_that_cannot_be_read_is_said_and_the_others_are_shown(
    offline: Browser, report: Path
):
    """The page of the run before stood under the control as if it were of that setting."""
    page = offline.page
    text = report.read_text()
    report.write_text(re.sub(r'(id="run-1">).{40}', r"\1AAAA", text))
    first = open_report(offline, report)
    page.locator("#controls [name=batch_size]").press("ArrowRight")
    page.wait_for_function("document.getElementById('status').innerText.startsWith('Damaged')")
    after = shown(offline)
    assert "loss scaling none; batch size 8 cannot be unpacked" in after["status"]
    assert "What you see is still bulk size, backward 1" in after["status"]
    assert (after["selected"], after["bars"]) == (first["selected"], first["bars"])
    press(offline, "batch_size", "ArrowRight", first["selected"])
    assert "Damaged" not in shown(offline)["status"]
    assert offline.errors() == []


def test_a_chart_follows_the_width_of_the_window(offline: Browser, report: Path):
    page = offline.page
    page.set_viewport_size({"width": 1400, "height": 900})
    open_report(offline, report)
    width = "document.querySelector('#sweep figure > svg').viewBox.baseVal.width"
    wide = page.evaluate(width)
    page.set_viewport_size({"width": 420, "height": 900})
    page.wait_for_function(f"{width} < {wide}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_a_chart_has_numbers_up_to_the_top_of_its_band(offline: Browser, tmp_path: Path):
    times = (4_800_000, 6_000_000) * 3  # a rerun may take twice the middle one
    runs = [replace(make_run(Settings(batch_size=n)), step_times_ns=times) for n in (2, 4)]
    open_report(offline, write_report(runs, tmp_path / "report.html"))
    highest, band = offline.page.evaluate("""() => {
      const y = (found) => Math.min(...[...found].map((part) => part.getBoundingClientRect().top));
      const chart = document.querySelector("#sweep figure > svg");
      return [y(chart.querySelectorAll("line.axis")), y(chart.querySelectorAll(".band"))];
    }""")
    assert highest - band < 60  # pixels: less than a line's distance from the next
    offline.page.set_viewport_size({"width": 900, "height": 900})  # one chart alone fills it, too
    offline.page.wait_for_timeout(500)
    width = "document.querySelector('#sweep figure > svg').viewBox.baseVal.width"
    assert offline.page.evaluate(width) == 800


def test_the_keys_of_a_timeline_are_all_seen_also_over_few_lanes(offline: Browser, tmp_path: Path):
    open_report(offline, write_report([one_span_run()], tmp_path / "one.html"))
    offline.page.locator(".kit-timeline .buttons button").last.click()
    offline.page.wait_for_timeout(300)
    card, plot, hidden = offline.page.evaluate("""() => {
      const all = (root) => [...root.querySelectorAll("*")].flatMap(
        (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
      const card = all(document).find((e) => e.classList.contains("help"));
      const plot = document.querySelector(".plot");
      return [card.getBoundingClientRect().bottom, plot.getBoundingClientRect().bottom,
        card.scrollHeight - card.clientHeight];
    }""")
    assert card <= plot
    assert hidden == 0


def test_the_numbers_of_a_chart_have_room_also_where_steps_take_hours(
    offline: Browser, tmp_path: Path
):
    times = (10_800 * 10**9, 11_000 * 10**9) * 3
    runs = [replace(make_run(Settings(batch_size=n)), step_times_ns=times) for n in (2, 4)]
    open_report(offline, write_report(runs, tmp_path / "hours.html"))
    left, texts = offline.page.evaluate("""() => {
      const texts = [...document.querySelectorAll("#sweep figure > svg > text")];
      return [Math.min(...texts.map((text) => text.getBBox().x)), texts.map((t) => t.textContent)];
    }""")
    assert left >= 0
    assert texts[:3] == ["0 s", "5,000 s", "10,000 s"]


def test_hostile_text_is_shown_and_never_run(offline: Browser, tmp_path: Path):
    path = write_report([make_run(hostile=True)], tmp_path / "hostile.html")
    seen = open_report(offline, path)
    assert seen["injected"] == 0
    assert offline.errors() == []
    assert offline.outside == []


def test_a_curve_marks_runs_that_were_disturbed_or_too_short(offline: Browser, tmp_path: Path):
    runs = [make_run(Settings(batch_size=size)) for size in (2, 4, 8)]
    runs[1] = replace(runs[1], conditions=Conditions(cores=2, others=1.3))
    runs[2] = replace(runs[2], step_times_ns=runs[2].step_times_ns[:1])
    unequal = tuple(100_000 * tenths for tenths in (14, 21, 19, 18, 20, 29))
    alone = [*runs[2:], replace(make_run(Settings(batch_size=16)), step_times_ns=unequal)]
    open_report(offline, write_report(alone, tmp_path / "alone.html"))
    assert offline.page.locator("#sweep .band").count() == 0  # it told a ring's spread as none
    assert offline.page.locator("#sweep .whisker").count() == 1
    beyond = offline.page.locator("#sweep .beyond title").all_text_contents()
    assert beyond == ["a rerun may take up to 4.62 ms"]
    assert "\u25b2 a rerun may take longer" in offline.page.locator("#sweep").inner_text()
    open_report(offline, write_report(runs, tmp_path / "report.html"))
    marks = offline.page.locator("#sweep .disturbed title").all_text_contents()
    assert marks == ["disturbed: measured on a busy machine: others used 1.3 of 2 cores"]
    assert offline.page.locator("#sweep .unsure").count() == 1
    assert offline.page.locator("#sweep .band").count() == 1  # of the two that are no ring
    assert offline.page.locator("#sweep .beyond").count() == 0
    said = offline.page.locator("#sweep").inner_text()
    assert "\u00d7 a disturbed run" in said
    why = offline.page.locator("#sweep summary")
    why.focus()
    why.press("Enter")
    assert "batch size 4: measured on a busy" in offline.page.locator("#sweep details").inner_text()
    assert "\u25cb too few steps" in said


def test_what_is_picked_in_one_view_is_marked_in_the_others(offline: Browser, report: Path):
    open_report(offline, report)
    page = offline.page
    bar, marked = page.locator("#selected"), "{id} .kit-picked"
    assert bar.is_hidden()

    page.locator("#syncs [data-row]").first.click()
    line = page.locator("#syncs [data-row]").first.get_attribute("data-site")
    assert bar.inner_text().startswith(f"selected: no ops at {line}")
    assert page.locator(marked.format(id="#source")).get_attribute("data-site") == line
    page.keyboard.press("Escape")
    assert bar.is_hidden()
    assert page.locator(".kit-picked").count() == 0

    source = page.locator('#source [data-row]:not([data-nodes=""])').first
    source.focus()
    page.keyboard.press("Enter")
    nodes = page.evaluate("[...kitReport.selected.nodes]")
    assert nodes
    lit = page.evaluate("kitReport.models('timeline').lit.data.nodes[0]")
    assert {int(i) for i in lit.split()} == set(nodes)
    page.locator("#kernels summary").click()
    page.locator("#kernels [data-row]").first.click()
    assert page.evaluate("kitReport.selected.label").startswith("kernel ")
    assert page.locator(marked.format(id="#source")).count() > 0
    assert page.locator(marked.format(id="#kernels")).count() > 0

    page.evaluate(
        "kitReport.select({nodes: new Set([...kitReport.selected.nodes].slice(0, 1)),"
        " sites: new Set(), label: 'one op'})"
    )
    assert bar.inner_text().startswith("selected: one op: 1 op")
    press(offline, "batch_size", "ArrowRight", shown(offline)["selected"])
    assert bar.is_hidden()  # another run: its nodes are others
    assert offline.errors() == []


def test_a_bar_or_a_box_that_is_clicked_is_the_selection_of_all_views(
    offline: Browser, report: Path
):
    open_report(offline, report)
    page = offline.page
    page.evaluate("""() => {
      const kind = kitReport.models("graph").boxes.data.kind;
      kitReport.models("graph").boxes.selected.indices = [Array.from(kind).indexOf("op")];
    }""")
    page.wait_for_function("kitReport.selected.nodes.size === 1")
    assert page.locator("#source .kit-picked").count() == 1
    assert page.locator("#selected").inner_text().startswith("selected: ")
    page.keyboard.press("Escape")
    page.evaluate("""() => {
      const [key, kind, nodes] = ["spans.key", "keys.kind", "keys.nodes"].map(
        (column) => kitReport.models("timeline").timeline.data[column][0]);
      const i = [...key].findIndex((k) => kind[k] === "kernel" && nodes[k]);
      kitReport.models("timeline").picked.data = {kind: ["span"], index: [i]};
    }""")
    page.wait_for_function("kitReport.selected.label.startsWith('kernel ')")
    assert page.locator("#source .kit-picked").count() >= 1
    assert offline.errors() == []


def test_a_rank_that_is_picked_is_marked_and_its_row_opens(tmp_path: Path, offline: Browser):
    write_ranks(tmp_path / "ranks", Job(ranks=3, slow={2: 1.5}))
    path = kit.report(kit.open_ranks(tmp_path / "ranks"), path=tmp_path / "page.html")
    page = offline.page
    page.goto(path.as_uri())
    lane = page.get_by_text("device/2 stream 20").first
    assert not lane.is_visible()
    page.locator("summary").nth(2).click()
    assert lane.is_visible()
    names = page.get_by_role("grid", name="ranks", exact=True).locator("[data-row]")
    names.first.press("ArrowDown")
    assert names.nth(1).evaluate("name => name === document.activeElement")
    assert [name.get_attribute("tabindex") for name in names.all()] == ["-1", "0", "-1"]
    assert offline.barriers() == []
    page.locator("[data-row]", has_text="rank 2").first.click()
    marked = page.locator(".kit-picked").all_inner_texts()
    assert len(marked) > 5
    assert all("rank 2" in text or text.split()[0] == "2" for text in marked)
    page.keyboard.press("Escape")
    assert page.locator(".kit-picked").count() == 0
    assert offline.errors() == []
