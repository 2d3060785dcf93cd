"""A page of one timeline in a browser: what it is asked, what it says, where its points are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bokeh.embed import file_html
from bokeh.resources import INLINE
from hypothesis import strategies as st

from kit.widgets.base.scripts import script
from kit.widgets.timeline.view import timeline_model
from tests.browser.labserver import Browser

# What the script asks of its columns, as names of the page.
DATA_JS = "".join(
    f"Object.assign(window, {script(f'widgets/timeline/js/data/{name}.js')});"
    for name in ("table", "detail", "search", "launches", "metrics")
)
STATE = """() => {
  const {view, table, finder, pick, arrows, measure, frame, lit, models} = window.kitPlot;
  return {from: view.shownFrom, to: view.shownTo, n: table.n, hits: finder.output.textContent, pick,
    said: frame.said.textContent, arrows: arrows.length, mark: measure.range,
    range: frame.range.hidden ? "" : frame.range.innerText, all: view.whole(),
    card: frame.card.hidden ? "" : frame.card.innerText, title: frame.title.textContent,
    height: models.figure.height - frame.root.offsetHeight, lit: lit && [
      Array.from(lit.lit).flatMap((x, k) => x ? [table.keys.kind[k]] : []), Array.from(lit.marks)],
    focus: frame.root.getRootNode().activeElement?.className};
}"""
PLOT = """() => {
  const all = (root) => [...root.querySelectorAll('*')].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const host = all(document).find((e) => e.kitTimeline?.painter.painted);
  window.kitPlot = host?.kitTimeline;
  return Boolean(host);
}"""


def jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda x: x.tolist()))


one_span = st.tuples(
    st.sampled_from(["host/main", "device/0 a", "device/0 b", "host/loader"]),
    st.sampled_from(["kernel", "dispatch", "record", "wait"]),
    st.integers(0, 3000) | st.integers(0, 9),
    st.integers(0, 300) | st.integers(0, 9),
    st.integers(-1, 2),
)
many = st.integers(0, 90).map(  # as dense as a pixel of many spans
    lambda n: [("device/0 a", "kernel", i * 7 % 11 + i * 20, i % 9, -1) for i in range(n)]
)
spans = st.tuples(st.lists(one_span, min_size=1, max_size=40), many).map(lambda x: [*x[0], *x[1]])


def open_page(browser: Browser, folder: Path, payload: dict[str, Any]) -> None:
    path = folder / "timeline.html"
    path.write_text(file_html(timeline_model(payload)[0], INLINE))
    browser.page.goto(path.as_uri())
    browser.page.wait_for_function(PLOT)


def state(browser: Browser) -> dict[str, Any]:
    browser.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")
    found: dict[str, Any] = browser.page.evaluate(STATE)
    return found


def point(browser: Browser, kind: str, nth: int = 0) -> tuple[float, float]:
    """Where the nth span of a kind is on the page."""
    at = browser.page.evaluate(
        """([kind, nth]) => {
          const {table: {n, keys, key, start, stop, rows, first}, view, frame} = window.kitPlot;
          const spans = [...Array(n).keys()].filter((i) => keys.kind[key[i]] === kind);
          const i = spans.sort((i, j) => start[i] - start[j])[nth];
          const row = first.findLastIndex((begin) => begin <= i);
          const left = Math.max(view.x(start[i]), view.gutter);
          const right = Math.min(view.x(stop[i]), view.right);
          const at = frame.canvas.getBoundingClientRect();
          return [at.x + (left + right) / 2, at.y + view.y(rows.top[row]) + rows.height[row] / 2];
        }""",
        [kind, nth],
    )
    return float(at[0]), float(at[1])
