"""Memory that a trace has measured, as HTML: a curve over time, and what held the peak."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runs.run import Run
from kit.text import format_bytes, format_count, format_ms, format_percent, safe_html
from kit.trace.imported import MeasuredMemory
from kit.widgets.base.tables import MUTED, not_shown, place_html, sentence, table
from kit.widgets.base.theme import COLORS, INK, tint

__all__ = ["measured_html", "measured_line"]

MAX_ROWS = 12
MAX_DEVICES = 8
_WIDE, _HIGH = 1000, 150  # of the picture, in its own units
_AREA = tint(COLORS["kernel"], 0.5)


def measured_line(run: Run) -> str:
    """The peaks in a sentence without its end; "" where nothing was measured."""
    peaks = ", ".join(f"{safe_html(m.device, 40)} {_peak(m)}" for m in run.memory[:MAX_DEVICES])
    return f"measured by torch's profiler: at most {peaks}" if peaks else ""


def measured_html(run: Run) -> str:
    """Each device's memory over the trace, and the ops and lines that held its peak."""
    return "".join(map(_device, run.memory[:MAX_DEVICES]))


def _device(memory: MeasuredMemory) -> str:
    said = (
        f"<b>{safe_html(memory.device, 40)}</b>, measured by torch's profiler "
        f"({format_count(memory.events, 'event')}): at most {_peak(memory)}, "
        f"{format_ms(memory.peak_ns / 1e6)} after the trace began."
    )
    cells = [
        [
            safe_html(held.op, 60) or "no op",
            place_html(held.line, 90) or "unknown line",
            f"{held.blocks:,}",
            _share(held.bytes, memory),
        ]
        for held in memory.held[:MAX_ROWS]
    ]
    if memory.before:
        cells.insert(0, ["before the trace began", "", "", _share(memory.before, memory)])
    heads = ("held at the peak by", "line", "blocks", "bytes")
    more = not_shown(len(memory.held) - MAX_ROWS, "place")
    rows = table(heads, cells, "llrr", widths=(24, 42, 14, 20), least_px=420) if cells else ""
    return sentence(said) + _curve(memory) + rows + sentence(more)


def _peak(memory: MeasuredMemory) -> str:
    more = "" if memory.is_whole else " more than before it"
    return f"{format_bytes(memory.peak_bytes)}{more}"


def _share(size: int, memory: MeasuredMemory) -> str:
    part = f" ({format_percent(size / memory.peak_bytes)})" if memory.peak_bytes > 0 else ""
    return f"{format_bytes(size)}{part}"


def _curve(memory: MeasuredMemory) -> str:
    """The bytes over time as steps, from 0 up; a line and a dot where the peak is."""
    times = memory.times_ns
    if len(times) < 2 or memory.peak_bytes <= 0 or times[-1] <= times[0]:
        return ""
    begin, length = times[0], times[-1] - times[0]

    def x(at: int) -> float:
        return _WIDE * (at - begin) / length

    def y(size: int) -> float:
        return _HIGH * (1 - max(size, 0) / (1.05 * memory.peak_bytes))

    points = _steps([x(at) for at in times], [y(size) for size in memory.allocated])
    top = f"{x(memory.peak_ns):.1f}"
    label = f"{safe_html(memory.device, 40)}: measured bytes over time"
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}" style="width:100%;height:{_HIGH}px;display:block;margin:6px 0 2px">'
        f'<polygon fill="{_AREA}" points="0,{_HIGH} {points} {_WIDE},{_HIGH}"/>'
        f'<line x1="{top}" x2="{top}" y1="0" y2="{_HIGH}" stroke="{INK}" stroke-width="1.5" '
        'stroke-dasharray="4 3" vector-effect="non-scaling-stroke"/></svg>'
        f'<div style="font-size:11.5px;color:{MUTED};margin-bottom:8px">left to right: '
        f"{format_ms(begin / 1e6)} to {format_ms(times[-1] / 1e6)} of the trace; from 0 to "
        f"{format_bytes(memory.peak_bytes)}, dashed: the peak</div>"
    )


def _steps(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A level lasts until the next."""
    ends = [*xs[1:], xs[-1]]
    return " ".join(
        f"{a:.1f},{y:.1f} {b:.1f},{y:.1f}" for a, b, y in zip(xs, ends, ys, strict=True)
    )
