"""The timelines of several runs in a browser: their texts at each width, and their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kit
from kit.trace import Span, Timeline
from tests.browser.labserver import Browser
from tests.factories import make_run

pytestmark = pytest.mark.browser

FIGURE = "Bokeh.documents.flatMap((d) => d.roots()).find((root) => root.name === 'comparison')"
# Of the texts that are shown, pairs that lie over each other: in one row, by their pixels.
CLASHING = f"""() => {{
  const plot = {FIGURE};
  const {{data}} = plot.renderers.map((r) => r.data_source).find((s) => "room" in s.data);
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "10px Inter, Helvetica, Arial, sans-serif";
  const scale = plot.inner_width / (plot.x_range.end - plot.x_range.start);
  const shown = data.text.map((text, i) => ({{text, y: data.y[i], x: data.x[i] * scale,
    half: ruler.measureText(text).width / 2}})).filter((_, i) => data.alpha[i]);
  return [shown.length, shown.flatMap((a, i) => shown.slice(i + 1).filter((b) => a.y === b.y &&
    Math.abs(a.x - b.x) < a.half + b.half).map((b) => `${{a.text}} | ${{b.text}}`))];
}}"""
# How much of its room the widest line of the strips' titles takes.
TITLES = f"""() => {{
  const plot = {FIGURE}, titles = plot.select_one("titles");
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `bold ${{titles.text_font_size.value}} Inter, "Helvetica Neue", Arial, sans-serif`;
  const wide = [...titles.source.data.text].map((text) => ruler.measureText(text).width);
  return Math.max(...wide) / plot.inner_width;
}}"""
# How many lines the strips' titles have, and the note.
LINES = f"""() => {{
  const plot = {FIGURE};
  return [plot.select_one("titles").source.data.text, plot.select_one("note").text.split("\\n")]
    .map((lines) => lines.length);
}}"""
# The names beside the rows that are drawn.
ROWS = f"""() => {{
  const {{left: [{{ticker, formatter}}], y_range}} = {FIGURE};
  return formatter.doFormat(ticker.ticks.filter((at) => at < y_range.start), {{}});
}}"""
# The title of the figure, and how many pixels of it the figure cuts.
TITLE = f"""() => {{
  const plot = {FIGURE}, {{text, text_font_size}} = plot.title;
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `bold ${{text_font_size}} Inter, "Helvetica Neue", Helvetica, Arial, "DejaVu Sans"`;
  return [text, ruler.measureText(text).width - plot.inner_width - plot.min_border_right];
}}"""
RANGE = f"(() => {{ const {{start, end}} = {FIGURE}.x_range; return [start, end]; }})()"
FOCUSED = """() => {
  const {tagName, className, style, ariaLabel} = document.activeElement;
  return {name: ariaLabel ?? "", outline: style.outline, what: `${tagName} ${className}`};
}"""

# The card that a key has brought, and whether it and its frame are inside of the figure.
CARD = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const card = all(document).find((e) => e.getAttribute("role") === "status" && !e.hidden);
  if (!card) return null;
  const box = card.getBoundingClientRect();
  const frame = card.previousElementSibling.getBoundingClientRect();
  const host = document.activeElement.getBoundingClientRect();
  const isIn = (b) => b.width > 0 && b.left >= host.left - 3 && b.right <= host.right + 3
    && b.top >= host.top - 3 && b.bottom <= host.bottom + 3;
  return {text: card.innerText, inside: isIn(box) && isIn(frame)};
}"""


def _open(browser: Browser, path: Path, width: int) -> None:
    """A long run, and one of three steps that take a sixth of the axis each."""
    steps = [
        Span("host", f"step {i}", "step", 2 * i * 10**7, 2 * (i + 1) * 10**7) for i in range(3)
    ]
    short = make_run()
    longer = Timeline.of([Span("host", "step 0", "step", 0, 12 * 10**7)], (), "profiled")
    shorter = Timeline.of(steps, (), "profiled")
    runs = [replace(short, timeline=t) for t in (longer, shorter)]
    path.write_text(kit.compare(runs).view().page())
    browser.page.set_viewport_size({"width": width, "height": 900})
    browser.page.goto(path.as_uri())
    browser.wait_for_canvases()


def test_the_names_of_steps_are_shown_where_they_have_room(offline: Browser, tmp_path: Path):
    for width in (300, 420, 900, 1400):  # JupyterLab has left 300 pixels of a phone's 420
        _open(offline, tmp_path / "compared.html", width)
        shown, clashing = offline.page.evaluate(CLASHING)
        assert clashing == []
        assert shown == (1 if width <= 420 else 4)  # the short steps' names need room
        assert 0 < offline.page.evaluate(TITLES) <= 1
    assert offline.errors() == []


def test_a_long_title_ends_where_its_figure_does_and_is_whole_where_there_is_room(
    offline: Browser, tmp_path: Path
):
    runs = [replace(make_run(seed=i), name="a workload of mine") for i in range(2)]
    file = tmp_path / "compared.html"
    file.write_text(kit.compare(runs).view().page())
    offline.page.set_viewport_size({"width": 360, "height": 900})
    offline.page.goto(file.as_uri())
    offline.wait_for_canvases()
    text, cut_px = offline.page.evaluate(TITLE)
    assert text.endswith("…")
    assert cut_px <= 0
    offline.page.set_viewport_size({"width": 900, "height": 900})
    whole = "timelines (profiled): a workload of mine"
    offline.page.wait_for_function(f"{FIGURE}.title.text === '{whole}'")
    assert offline.errors() == []


def test_titles_and_note_have_the_lines_that_a_width_asks_for(offline: Browser, tmp_path: Path):
    settings = kit.Settings(mode="lazy", loss_scaling="dynamic, host check", bulk_backward=4)
    runs = [replace(make_run(each), step_times_ns=(10**6, 9 * 10**6)) for each in (settings, None)]
    file = tmp_path / "compared.html"
    file.write_text(kit.compare(runs).view().page())
    offline.page.goto(file.as_uri())
    offline.wait_for_canvases()
    heights = []
    for width, asked in ((1400, "=== 2"), (330, "> 4"), (1400, "=== 2")):
        offline.page.set_viewport_size({"width": width, "height": 900})
        offline.page.wait_for_function(f"({LINES})()[0] {asked}")
        assert (offline.page.evaluate(LINES)[1] == 1) == (width == 1400)
        assert 0 < offline.page.evaluate(TITLES) <= 1
        assert offline.page.evaluate(ROWS) == ["host", "worker", "device"] * 2
        heights.append(offline.page.evaluate(f"{FIGURE}.height"))
    assert heights[0] == heights[2] < heights[1] - 100
    assert offline.errors() == []


def test_no_number_of_the_table_is_cut(offline: Browser, tmp_path: Path):
    runs = [replace(make_run(seed=i), losses=(-0.0017714,)) for i in range(2)]
    file = tmp_path / "compared.html"
    file.write_text(kit.compare(runs).view().page())
    for width in (900, 1400):
        offline.page.set_viewport_size({"width": width, "height": 900})
        offline.page.goto(file.as_uri())
        wide = offline.page.evaluate("""[...document.querySelectorAll("td > div")]
          .map((e) => [e.innerText, e.scrollWidth - e.clientWidth])""")
        assert "-0.001771" in [text for text, _ in wide]
        assert [text for text, more in wide if more > 0] == []


def test_the_axis_is_written_as_a_timelines_is_and_without_powers_of_ten(
    offline: Browser, tmp_path: Path
):
    _open(offline, tmp_path / "compared.html", 900)
    for ticks, texts in (
        ([0, 5e6, 1e7], ["0 s", "5,000 s", "10,000 s"]),
        ([0, 0.001, 0.002], ["0 µs", "1 µs", "2 µs"]),
        ([0, 0.5, 1], ["0.0 ms", "0.5 ms", "1.0 ms"]),
        ([7], ["7 ms"]),
        ([0], ["0 ns"]),
    ):
        asked = f"{FIGURE}.below[0].formatter.doFormat({ticks}, {{}})"
        assert offline.page.evaluate(asked) == texts


def test_zooming_in_shows_a_name_that_had_no_room(offline: Browser, tmp_path: Path):
    _open(offline, tmp_path / "compared.html", 420)
    before, _ = offline.page.evaluate(CLASHING)
    offline.page.evaluate(f"{FIGURE}.x_range.setv({{start: 0, end: 30}})")
    after, clashing = offline.page.evaluate(CLASHING)
    assert after > before
    assert clashing == []


def _reach(browser: Browser) -> None:
    """Tab to the timelines."""
    for _ in range(6):  # the table may be a stop, too
        browser.page.keyboard.press("Tab")
        if browser.page.evaluate(FOCUSED)["name"].startswith("Timelines of the runs"):
            return


def test_keys_bring_the_card_of_each_bar_and_sync_point(offline: Browser, tmp_path: Path):
    file, page = tmp_path / "compared.html", offline.page
    file.write_text(kit.compare([make_run(), make_run(seed=1)]).view().page())
    page.set_viewport_size({"width": 900, "height": 900})
    page.goto(file.as_uri())
    offline.wait_for_canvases()
    assert page.evaluate(CARD) is None
    page.keyboard.press(".")  # somewhere else
    assert page.evaluate(CARD) is None
    _reach(offline)
    page.keyboard.press(".")
    first = page.evaluate(CARD)
    assert first["inside"]
    assert "run: 1" in first["text"]
    seen = {first["text"]}
    for key in ("ArrowDown", ".", "ArrowDown", ",", "ArrowDown"):
        page.keyboard.press(key)
        card = page.evaluate(CARD)
        assert card["inside"]
        seen.add(card["text"])
    assert len(seen) > 3
    page.evaluate(f"{FIGURE}.x_range.setv({{start: 3, end: 3.1}})")
    page.keyboard.press(",")  # what is out of sight comes into it
    assert page.evaluate(CARD)["inside"]
    page.keyboard.press("Escape")
    assert page.evaluate(CARD) is None
    page.keyboard.press(".")
    page.keyboard.press("Tab")
    assert page.evaluate(CARD) is None
    assert offline.errors() == []


def test_the_timelines_of_a_comparison_are_moved_by_keys(offline: Browser, tmp_path: Path):
    _open(offline, tmp_path / "compared.html", 900)
    page = offline.page
    _reach(offline)
    focused = page.evaluate(FOCUSED)
    assert focused["name"].startswith("Timelines of the runs")
    assert "solid" in focused["outline"]
    first, last = page.evaluate(RANGE)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(RANGE) == [first, last]  # all is shown
    page.keyboard.press("+")
    near = page.evaluate(RANGE)
    assert first < near[0] < near[1] < last
    page.keyboard.press("ArrowRight")
    moved = page.evaluate(RANGE)
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])
    page.keyboard.press("0")
    assert page.evaluate(RANGE) == [first, last]
    page.keyboard.press("Tab")
    assert not page.evaluate(FOCUSED)["name"].startswith("Timelines of the runs")
    assert offline.errors() == []
