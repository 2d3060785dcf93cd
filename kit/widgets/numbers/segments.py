"""What each segment cost, as a table: HTML, and a widget of it."""

from __future__ import annotations

import math

from kit.runs.analysis.segments import SegmentCost, segment_costs
from kit.runs.run import Run
from kit.text import format_bytes, format_count, format_ns, format_number, safe_html
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.tables import (
    MUTED,
    doubt_html,
    folded,
    section,
    sentence,
    swatch,
    table,
)
from kit.widgets.base.theme import COLORS, KEPT, tint

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
_WIDTHS = (16, 12, 6, 6, 7, 8, 8, 9, 9, 10, 9)
_LEAST_PX = 790  # with less, a cell's text would lie over the next cell


def segments_html(run: Run) -> str:
    """A row a segment with the sums below; where there are many, the dearest ones."""
    return _html(run, segment_costs(run))


def _html(run: Run, costs: tuple[SegmentCost, ...]) -> str:
    if not costs:
        return section("Segments", sentence("This run has no segments: nothing was cut."))
    shown = costs
    note = ""
    if len(costs) > MAX_ROWS:
        dearest = sorted(costs, key=_cost, reverse=True)[:MAX_ROWS]
        shown = tuple(sorted(dearest, key=lambda c: c.index))
        note = f"The {MAX_ROWS} dearest of {len(costs):,} segments are shown; the sums are of all. "
    top = {
        name: _most([getattr(c, name) for c in costs])
        for name in ("host_ns", "device_ns", "wait_ns", "gap_ns")
    }
    rows = [_row(c, top) for c in shown]
    rows.append(_sums(costs))
    note += (
        "Means of one issue in the traced steps. Fused: ops that no kernel is named after. "
        "Host: a worker was busy with the segment and none of its "
        "kernels ran. Waited: the host stood at a sync point while it ran. Gap: the device had "
        "nothing to do before it. A bar compares with the longest of its column."
    )
    launch, sync = (run.metrics.get(f"overhead.{name}_ns") for name in ("launch", "sync"))
    if launch is not None and sync is not None:
        note += (
            f" Measured on this machine: launching next to nothing takes {format_ns(launch)}, "
            f"handing over to the worker and waiting for it {format_ns(sync)}."
        )
    body = table(_HEADS, rows, "llrrrrrrrrr", widths=_WIDTHS, has_total=True, least_px=_LEAST_PX)
    return section("Segments", sentence(_verdict(costs)) + body + sentence(note))


def _verdict(costs: tuple[SegmentCost, ...]) -> str:
    """Where to look first, in one sentence."""
    if all(math.isnan(c.device_ns) for c in costs):
        return "No kernel was seen: what the device did is unknown."
    text = f"The device worked {format_ns(_sum(costs, 'device_ns'))} a step"
    longest = _longest_gap(costs)
    if longest is None:
        return f"{text} and was never idle between two segments."
    return (
        f"{text} and was idle {format_ns(_sum(costs, 'gap_ns'))} between segments. The longest "
        f"gap, {format_ns(longest.gap_ns)}, is before segment {longest.index} "
        f"({safe_html(longest.phase)})."
    )


def folded_segments_html(run: Run) -> str:
    """The table behind a line that a click opens; "" for a run without segments."""
    costs = segment_costs(run)
    if not costs:
        return ""
    gap, host = _sum(costs, "gap_ns"), _sum(costs, "host_ns")
    parts = [
        *[f"{format_ns(host)} to launch them"] * (not math.isnan(host)),
        *[f"{format_ns(gap)} of gaps between them"] * (not math.isnan(gap)),
    ]
    line = f"{format_count(len(costs), 'segment')} a step: {', '.join(parts)}"
    return folded(line.removesuffix(": "), _html(run, costs))


def _cost(c: SegmentCost) -> float:
    return sum(x for x in (c.host_ns, c.device_ns, c.gap_ns) if not math.isnan(x))


def _most(values: list[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=0.0)


def _sum(costs: tuple[SegmentCost, ...], name: str) -> float:
    """Of what is known; nan if nothing is."""
    known = [x for c in costs if not math.isnan(x := getattr(c, name))]
    return sum(known) if known else math.nan


def _longest_gap(costs: tuple[SegmentCost, ...]) -> SegmentCost | None:
    return max((c for c in costs if c.gap_ns > 0), key=lambda c: c.gap_ns, default=None)


def _row(c: SegmentCost, top: dict[str, float]) -> list[str]:
    color = COLORS.get(c.phase, MUTED)
    fresh = "" if c.is_cached else ", compiled"
    return [
        f'<span style="white-space:nowrap">{swatch(color)}{c.index} {safe_html(c.phase)}</span>',
        safe_html(c.cut, 40) + fresh,
        f"{c.ops:,}",
        _count(c.fused),
        _count(c.kernels),
        format_bytes(c.bytes_in),
        format_bytes(c.bytes_out),
        _time(c.host_ns, top["host_ns"], COLORS["dispatch"]),
        _time(c.device_ns, top["device_ns"], tint(COLORS["kernel"], 0.6)),
        _time(c.wait_ns, top["wait_ns"], tint(COLORS["wait"], 0.5)),
        _gap(c.gap_ns, top["gap_ns"]),
    ]


def _count(n: float) -> str:
    return f'<span style="color:{MUTED}">?</span>' if math.isnan(n) else format_number(n)


def _gap(ns: float, top: float) -> str:
    """The longest one stands out: bold, on a ground of its own."""
    text = _time(ns, top, tint(COLORS["backward"], 0.2))
    if not top or ns != top:
        return text
    return (
        f'<div style="font-weight:600;background:{COLORS["backward"]}40;border-radius:4px;'
        f'margin:-2px -4px;padding:2px 4px">{text}</div>'
    )


def _time(ns: float, top: float, color: str) -> str:
    """A time with a bar under it; the longest of its column fills the cell."""
    if math.isnan(ns) or not ns:
        return f'<span style="color:{MUTED}">{"?" if math.isnan(ns) else 0}</span>'
    text = f'<span style="white-space:nowrap">{format_ns(ns)}</span>'
    if not top:
        return text
    return (
        f'{text}<div style="height:3px;border-radius:2px;margin-top:2px;margin-left:auto;'
        f'background:{color};width:{100 * ns / top:.0f}%;{KEPT}"></div>'
    )


def _sums(costs: tuple[SegmentCost, ...]) -> list[str]:
    times = (_sum(costs, name) for name in ("host_ns", "device_ns", "wait_ns", "gap_ns"))
    return [
        f"<b>{format_count(len(costs), 'segment')}</b>",
        "",
        f"{sum(c.ops for c in costs):,}",
        _count(_sum(costs, "fused")),
        _count(_sum(costs, "kernels")),
        format_bytes(sum(c.bytes_in for c in costs)),
        format_bytes(sum(c.bytes_out for c in costs)),
        *(f"<b>{_time(t, 0, '')}</b>" for t in times),
    ]


class SegmentView(HtmlView):
    """What each segment of `run` cost; assigning `run` redraws."""

    def __init__(self, run: Run | None = None) -> None:
        super().__init__("segments", lambda r: doubt_html(r) + segments_html(r), run)
