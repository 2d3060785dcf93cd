"""What the timeline's script says of the columns: of a range, and of a million spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.trace import KINDS, Span, SyncPoint, Timeline
from kit.trace.active import launches
from kit.widgets.timeline.range import range_metrics
from kit.widgets.timeline.view import timeline_payload
from tests.browser.labserver import Browser
from tests.browser.timeline.page import (
    DATA_JS,
    jsonable,
    open_page,
    point,
    spans,
    state,
)

pytestmark = pytest.mark.browser
# One bar of a row, or a pixel's share of those too narrow: as the script says, and counted by hand.
LEVELS = """([data, a, b, width]) => {
  const table = readTimeline(data), dust = dustOf(width);
  return table.rows.top.length === 0 ? [] : Array.from(table.rows.top, (_, row) => {
    const wide = levelOfDetail(table, row, a, b, width, dust);
    const pixels = [];
    dust.count.forEach((n, p) => {
      if (n) pixels.push([p, n, dust.busy[p], lengthOf(table, dust.longest[p])]);
    });
    return [wide.map((i) => [table.start[i], table.stop[i]]), pixels];
  });
}"""
ASKED = """([data, a, b]) => {
  const table = readTimeline(data), {start, keys, key} = table;
  const hits = Array.from(searchTimeline(table, "x HOST kernel").hits, (i) => start[i]);
  const pairs = Array.from(launchesOf(table), (call, i) => [start[i], call < 0 ? -1 : start[call]]);
  return [rangeMetrics(table, a, b), hits, pairs.filter((_, i) => keys.kind[key[i]] === "kernel")];
}"""


def row_of(payload: dict[str, Any]) -> Any:
    """The payload as the script gets it."""
    flat = {}
    for name, value in payload.items():
        columns = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{key}": [column] for key, column in columns} or {name: [value]}
    return jsonable(flat)


def test_what_the_script_says_of_a_range_equals_counting(offline: Browser):
    page = offline.page
    page.add_script_tag(content=DATA_JS)

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(spans, st.floats(-200, 3000), st.floats(1, 4000), st.integers(1, 90))
    def pixels(given_spans, a, length, width):
        t = Timeline.of(Span(lane, "x", k, s, s + n, g) for lane, k, s, n, g in given_spans)
        payload = timeline_payload(t)
        b = a + length
        drawn = page.evaluate(LEVELS, [row_of(payload), a, b, width])
        seen = sum(len(wide) + sum(p[1] for p in dust) for wide, dust in drawn)
        origin = int(t.start_ns.min())
        times = [(s - origin, s - origin + n) for _, _, s, n, _ in given_spans]
        visible = [(s, e) for s, e in times if s < b and (e > a or s >= a)]
        assert seen == len(visible)
        scale = width / length
        wide = sorted([s, e] for s, e in visible if (e - s) * scale >= 3)
        assert sorted(x for row in drawn for x in row[0]) == wide
        by_pixel: dict[int, list[tuple[int, int]]] = {}
        for s, e in visible:
            if (e - s) * scale < 3:
                pixel = 0 if s <= a else min(int((s - a) * scale), width - 1)
                by_pixel.setdefault(pixel, []).append((s, e))
        found: dict[int, list[float]] = {}
        for _, dust in drawn:
            for p, n, busy, longest in dust:
                was = found.setdefault(p, [0, 0.0, 0])
                found[p] = [was[0] + n, was[1] + busy, max(was[2], longest)]
        assert found.keys() == by_pixel.keys()
        for p, these in by_pixel.items():
            clipped = sum((min(e, b) - max(s, a)) * scale for s, e in these)
            assert found[p] == [len(these), pytest.approx(clipped), max(e - s for s, e in these)]

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        spans,
        st.integers(-100, 3000),
        st.integers(0, 3000),
        st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400)), max_size=5),
    )
    def metrics(given_spans, a, length, waits):
        t = Timeline.of(
            (Span(lane, "x", k, s, s + n, g) for lane, k, s, n, g in given_spans),
            [SyncPoint(at, n, "item") for at, n in waits],
        )
        told, hits, pairs = page.evaluate(ASKED, [row_of(timeline_payload(t)), a, a + length])
        wanted = range_metrics(t, a, a + length)
        assert {k: v for k, v in told["devices"] if v} == {
            k: v for k, v in wanted.busy_ns.items() if v
        }
        assert (told["recording"], told["hidden"]) == (wanted.recording_ns, wanted.hidden_ns)
        assert (told["waits"], told["waited"]) == (wanted.waits, wanted.waited_ns)
        assert [tuple(x) for x in told["idle"]] == list(wanted.idle_ns.items())
        kernels = np.flatnonzero(t.kind == KINDS.index("kernel"))
        called, _ = launches(t, kernels)
        origin = int(t.start_ns.min())
        assert hits == sorted(
            s - origin for lane, k, s, _, _ in given_spans if "host" in lane and k == "kernel"
        )
        assert sorted(pairs) == sorted(
            [int(s) - origin, int(c) - origin if c >= 0 else -1]
            for s, c in zip(t.start_ns[kernels], called, strict=True)
        )

    pixels()
    metrics()
    assert offline.errors() == []


def test_a_million_spans_come_apart_on_zooming(offline: Browser, tmp_path: Path):
    n = 1_000_000
    start = np.arange(n, dtype=np.int64) * 100
    none = np.full(n, -1, np.int32)
    many = Timeline(
        lanes=("device/0 a", "device/0 b"), names=tuple(f"k{i}" for i in range(50)),
        lane=(np.arange(n) % 2).astype(np.int32), kind=np.full(n, KINDS.index("kernel"), np.int32),
        name=(np.arange(n) % 50).astype(np.int32), start_ns=start, stop_ns=start + 60,
        segment=none, node=none,
    )  # fmt: skip
    open_page(offline, tmp_path, timeline_payload(many))
    page = offline.page
    assert state(offline)["n"] == n
    page.mouse.move(*point(offline, "kernel", n // 2))
    assert "spans here, the longest is k" in state(offline)["card"]
    drawn = """() => {
      const {table, view} = window.kitPlot, dust = dustOf(1000), rows = [0, 1];
      const wide = rows.map(
        (row) => levelOfDetail(table, row, view.shownFrom, view.shownTo, 1000, dust).length);
      return [wide, dust.count.reduce((sum, x) => sum + x, 0)];
    }"""
    page.add_script_tag(content=DATA_JS)
    assert page.evaluate(drawn) == [[0, 0], n // 2]
    page.locator("canvas.main").focus()
    while (now := state(offline))["to"] - now["from"] > 10_000:
        page.keyboard.press("w")
    wide, dust = page.evaluate(drawn)
    assert sum(wide) == pytest.approx((now["to"] - now["from"]) / 100, abs=4)
    assert dust == 0
    page.keyboard.press(".")
    assert "took 60 ns" in state(offline)["said"]
    assert offline.errors() == []
