"""What each segment cost, as a table: HTML, and a widget of it."""

from __future__ import annotations

import math
from typing import Any

import traitlets
from ipywidgets import HTML, VBox

from kit.run import Run
from kit.run_segments import SegmentCost, segment_costs
from kit.widgets.tables import FONT, INK, MUTED, safe_text, section, sentence, table
from kit.widgets.theme import COLORS, error_html, format_bytes, format_ns, tint

__all__ = ["SegmentView", "folded_segments_html", "segments_html"]

MAX_ROWS = 40
_HEADS = (
    "segment",
    "ended by",
    "ops",
    "fused",
    "kernels",
    "in",
    "out",
    "host",
    "device",
    "waited",
    "gap",
)
_WIDTHS = (14, 12, 6, 7, 8, 10, 10, 8, 9, 8, 8)


def segments_html(run: Run) -> str:
    """A row a segment with the sums below; where there are many, the dearest ones."""
    costs = segment_costs(run)
    if not costs:
        return section("Segments", sentence("This run has no segments: nothing was cut."))
    shown = costs
    note = ""
    if len(costs) > MAX_ROWS:
        dearest = sorted(costs, key=_cost, reverse=True)[:MAX_ROWS]
        shown = tuple(sorted(dearest, key=lambda c: c.index))
        note = f"The {MAX_ROWS} dearest of {len(costs):,} segments are shown; the sums are of all. "
    top = {name: _most([getattr(c, name) for c in costs])
           for name in ("host_ns", "device_ns", "wait_ns", "gap_ns")}  # fmt: skip
    rows = [_row(c, top) for c in shown]
    rows.append(_sums(costs))
    note += (
        "Means of the traced steps. Fused: ops that no kernel is named after. "
        "Host: a worker was busy with the segment and none of its "
        "kernels ran. Waited: the host stood at a sync point while it ran. Gap: the device had "
        "nothing to do before it."
    )
    body = table(_HEADS, rows, "llrrrrrrrrr", widths=_WIDTHS, has_total=True)
    return section("Segments", body + sentence(note))


def folded_segments_html(run: Run) -> str:
    """The table behind a line that a click opens; "" for a run without segments."""
    costs = segment_costs(run)
    if not costs:
        return ""
    gap = sum(c.gap_ns for c in costs if not math.isnan(c.gap_ns))
    host = sum(c.host_ns for c in costs)
    line = (f"{len(costs):,} segment{'s' * (len(costs) != 1)} a step: {format_ns(host)} to launch "
            f"them, {format_ns(gap)} of gaps between them")  # fmt: skip
    return (
        f'<details style="font:13px/1.6 {FONT};color:{INK}"><summary style="cursor:pointer">'
        f'{line}</summary><div style="overflow-x:auto;max-width:860px;margin-top:6px">'
        f"{segments_html(run)}</div></details>"
    )


def _cost(c: SegmentCost) -> float:
    return c.host_ns + c.device_ns + (0 if math.isnan(c.gap_ns) else c.gap_ns)


def _most(values: list[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=0.0)


def _row(c: SegmentCost, top: dict[str, float]) -> list[str]:
    color = COLORS.get(c.phase, MUTED)
    mark = (f'<span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
            f'background:{color};margin-right:6px"></span>')  # fmt: skip
    fresh = "" if c.is_cached else ", compiled"
    return [
        f"{mark}{c.index} {safe_text(c.phase)}",
        safe_text(c.cut, 40) + fresh,
        f"{c.ops:,}",
        f"{c.fused:,}",
        f"{c.kernels:,.3g}",
        format_bytes(c.bytes_in),
        format_bytes(c.bytes_out),
        _time(c.host_ns, top["host_ns"], COLORS["dispatch"]),
        _time(c.device_ns, top["device_ns"], tint(COLORS["kernel"], 0.6)),
        _time(c.wait_ns, top["wait_ns"], tint(COLORS["wait"], 0.5)),
        _time(c.gap_ns, top["gap_ns"], tint(COLORS["backward"], 0.4)),
    ]


def _time(ns: float, top: float, color: str) -> str:
    """A time with a bar under it; the longest of its column fills the cell."""
    if math.isnan(ns):
        return f'<span style="color:{MUTED}">none</span>'
    width = 100 * ns / top if top else 0
    bar = (f'<div style="height:3px;border-radius:2px;margin-top:2px;margin-left:auto;'
           f'background:{color};width:{width:.0f}%"></div>')  # fmt: skip
    return f"{format_ns(ns)}{bar}"


def _sums(costs: tuple[SegmentCost, ...]) -> list[str]:
    gaps = sum(c.gap_ns for c in costs if not math.isnan(c.gap_ns))
    word = "segment" if len(costs) == 1 else "segments"
    return [
        f"<b>{len(costs):,} {word}</b>",
        "",
        f"{sum(c.ops for c in costs):,}",
        f"{sum(c.fused for c in costs):,}",
        f"{sum(c.kernels for c in costs):,.4g}",
        format_bytes(sum(c.bytes_in for c in costs)),
        format_bytes(sum(c.bytes_out for c in costs)),
        *(
            format_ns(sum(getattr(c, n) for c in costs))
            for n in ("host_ns", "device_ns", "wait_ns")
        ),
        format_ns(gaps),
    ]


class SegmentView(VBox):
    """What each segment of `run` cost; assigning `run` redraws."""

    run = traitlets.Instance(Run, allow_none=True)

    def __init__(self, run: Run | None = None) -> None:
        self.table = HTML()
        super().__init__([self.table], run=run)
        self._draw()

    @traitlets.observe("run")
    def _changed(self, change: dict[str, Any]) -> None:
        if hasattr(self, "table"):
            self._draw()

    def _draw(self) -> None:
        try:
            self.table.value = "" if self.run is None else segments_html(self.run)
        except Exception as error:  # noqa: BLE001 - shown in the view, the cell stays alive
            self.table.value = error_html("segments", error)
