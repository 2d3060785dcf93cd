"""Where the mean traced step went, and what the numbers of a run rest on."""

from __future__ import annotations

import math

import numpy as np

from kit.runs.bulk_sizes import size_text
from kit.runs.change import traced_text
from kit.runs.labels import VALUES, device_of, is_of_strangers
from kit.runs.run import Run
from kit.text import format_ms, format_number, format_percent, format_share, safe_html
from kit.trace.kinds import CATEGORY_ROWS
from kit.widgets.base.tables import (
    FONT,
    LINE,
    MUTED,
    bar_html,
    section,
    sentence,
    swatch,
    table,
    unbroken,
)
from kit.widgets.base.theme import COLORS, FAINT

__all__ = ["breakdown_html", "run_notes_html"]

_COLOR_OF = {row.name: row.color for row in CATEGORY_ROWS}


def breakdown_html(run: Run) -> str:
    """Where the mean traced step went; the `charged` column adds up to the step."""
    rows = run.breakdown()
    if not rows:
        return section("Step breakdown", sentence("No step was traced."))
    most = max(max(r.share for r in rows), 1e-12)
    cells = []
    for r in rows:
        color = COLORS.get(_COLOR_OF.get(r.category, ""), FAINT)
        cells.append(
            [
                f"{swatch(color)}{safe_html(r.category)}",
                format_number(r.total_ms),
                format_number(r.exposed_ms),
                format_share(r.share) + bar_html(r.share / most, color),
            ]
        )
    total = [
        "<b>step</b>",
        "",
        f"<b>{format_number(sum(r.exposed_ms for r in rows))}</b>",
        f"<b>{format_share(sum(r.share for r in rows))}</b>",
    ]
    note = (
        "Means of the traced steps; each instant is charged once, to the device if it is busy. "
        "&quot;In all&quot; counts what is hidden under another activity, too."
    )
    rows_html = table(["activity", "in all ms", "charged ms", "share"], [*cells, total], "lrrr",
                   widths=(44, 17, 19, 20), has_total=True, least_px=350)  # fmt: skip
    return section("Step breakdown", rows_html + sentence(note))


def run_notes_html(run: Run) -> str:
    """What the numbers rest on: settings, machine, versions, cost of tracing, timeline notes."""
    s = run.settings
    forward, backward = map(size_text, (s.bulk_forward, s.bulk_backward))
    bulk = unbroken(f", bulk {forward} forward, {backward} backward")
    lines = [
        f"<b>{safe_html(run.name or 'unnamed step', 80)}</b>, mode {safe_html(s.mode)}"
        f"{bulk if s.mode == 'bulked' else ''}"
    ]
    if not is_of_strangers(run):
        lines[0] += f", batch {s.batch_size}, loss scaling {safe_html(s.loss_scaling)}"
        lines[0] += f", {safe_html(s.dtype)}"
    if run.environment:
        pairs = [(k, device_of(run) if k == "device" else v) for k, v in run.environment.items()]
        pairs = [(k, v) for k, v in pairs if k != VALUES]  # digests, which tell nobody anything
        lines.append(" · ".join(f"{safe_html(k, 40)} {safe_html(v, 80)}" for k, v in pairs[:16]))
    lines.append(_tracing(run))
    if s.mode == "torch" and run.timeline.origin == "profiled":
        lines.append("mode torch records no ops: there is no graph, and recording has no lines")
    if said := str(run.conditions):
        lines.append(f"while it was measured: {safe_html(said, 300)}")
    lines += [safe_html(note, 300) for note in run.timeline.notes]
    body = "".join(f'<div style="margin:1px 0">{line}</div>' for line in lines)
    return (
        f'<div style="font:12px/1.5 {FONT};color:{MUTED};border-top:1px solid {LINE};'
        f'padding-top:8px;overflow-wrap:anywhere">{body}</div>'
    )


def _tracing(run: Run) -> str:
    steps = run.timeline.intervals(kind="step")
    if not len(steps) or not run.step_times_ns:
        return f"timeline: {safe_html(run.timeline.origin)}; no traced step to compare with"
    lengths = steps[:, 1] - steps[:, 0]
    traced = float(np.median(lengths)) / 1e6
    if tuple(lengths.tolist()) == run.step_times_ns:
        origin = safe_html(run.timeline.origin)
        return f"timeline: {origin}; a traced step took {format_ms(traced)}, no other is known"
    if traced_text(run):  # the cards say both times
        return f"timeline: {safe_html(run.timeline.origin)}{_coverage(run)}"
    change = (traced / run.step_ms - 1) if run.step_ms else math.nan
    return (
        f"timeline: {safe_html(run.timeline.origin)}; a traced step took {format_ms(traced)}, "
        f"an untraced one {format_ms(run.step_ms)} ({format_percent(change, signed=True)})"
        f"{_coverage(run)}"
    )


def _coverage(run: Run) -> str:
    """How much of the kernels' time is known by op; nothing where none was named after one."""
    known = format_percent(run.known_fraction, "")
    return f"; {known} of the kernels&#x27; time is known by op and line" if known else ""
