"""A run as plain text for a terminal: headline, breakdown, sync points, lines, advice.

Names come from programs and traces of strangers: control characters, which a terminal would obey,
are replaced. Nothing here draws or measures.
"""

from __future__ import annotations

from urllib.parse import unquote_plus

import numpy as np

from kit.runs.analysis.headline import headline_text, why_no_waits, why_waits_unknown
from kit.runs.analysis.lines import HOW_TIMED, dearest_lines
from kit.runs.change import time_notes
from kit.runs.device.callers import best_view, callers_text, has_lines
from kit.runs.labels import ENDS_AT, IMPORTED, device_of
from kit.runs.run import Run
from kit.runs.sources import code_by_site
from kit.runs.verdict.cures import change_text
from kit.runs.verdict.verdict import Verdict, verdict
from kit.text import (
    format_bytes,
    format_count,
    format_more,
    format_ms,
    format_ns,
    format_number,
    format_share,
    safe_terminal,
    terminal_table,
)
from kit.trace import Timeline, count_devices, hta_launches, hta_queue
from kit.trace.kernels import kernel_table
from kit.trace.metrics import waits_of
from kit.trace.timeline import per_step, shown_pins

__all__ = ["summary"]

MAX_ROWS = 12
_FEW = 6
_CODE = 60  # characters of a line of source


def summary(run: Run, *, rows: int = MAX_ROWS) -> str:
    """What a terminal shows of a run; each table has at most `rows` lines and says what is left.

    Units:
        milliseconds a step
    """
    found = verdict(run)
    parts = [
        _headline(run, found),
        _breakdown(run),
        _syncs(run, rows),
        _gaps(run),
        _lines(run, rows) or _kernels(run, rows),
        _callers(run, rows),
        _launches(run.timeline),
        _copies(run, rows),
        _memory(run, rows),
        _advice(found),
    ]
    notes = [f"note: {safe_terminal(note, 300)}" for note in run.timeline.notes]
    return "\n\n".join([part for part in parts if part] + ["\n".join(notes)] * bool(notes))


def _headline(run: Run, found: Verdict | None) -> str:
    name = safe_terminal(run.name or "a run", 60)
    device = safe_terminal(device_of(run), 60)
    lines = [f"{name}: {run.timeline.origin}, on {device}"]
    if IMPORTED in run.environment:  # nobody set anything of the kit's
        lines.append(f"read as: {safe_terminal(run.environment[IMPORTED], 300)}")
    else:
        changed = unquote_plus(run.settings.to_string().replace("&", ", "))
        lines.append(f"settings: {safe_terminal(changed, 300) or 'all as by default'}")
    lines.append(headline_text(run))
    if ends_at := run.environment.get(ENDS_AT, ""):
        lines.append(f"a step ends at {safe_terminal(ends_at, 100)}")
    if run.losses:
        steps = format_count(len(run.losses), "step")
        lines.append(f"loss {run.losses[0]:.4g} to {run.losses[-1]:.4g} in {steps}")
    if conditions := str(run.conditions):
        lines.append(f"meanwhile: {conditions}")
    lines += [f"note: {note}" for note in time_notes(run)]
    lines += [
        f"pinned at {format_ns(at)}: {safe_terminal(text, 300)}"
        for at, text in shown_pins(run.timeline, run.pins)
    ]
    if found is not None:
        lines.append(f"limit: {found.limit}. {found.said}")
    return "\n".join(lines)


def _breakdown(run: Run) -> str:
    rows = run.breakdown()
    if not rows:
        return "No step was traced."
    cells = [
        [
            r.category,
            format_number(r.exposed_ms),
            format_share(r.share),
            format_number(r.total_ms),
        ]
        for r in rows
    ]
    whole = sum(r.exposed_ms for r in rows)
    cells.append(["step", format_number(whole), format_share(sum(r.share for r in rows)), ""])
    heads = ("where the mean traced step goes", "charged ms", "share", "in all ms")
    return terminal_table(heads, cells)


def _syncs(run: Run, limit: int) -> str:
    waits = waits_of(run)
    if not run.knows_waits:
        return f"Sync points are unknown: {why_waits_unknown(run)}."
    if not waits.steps:
        return ""
    rows = run.sync_rows
    if not rows:
        return f"No sync points: {why_no_waits(run)}."
    cells = [
        [
            safe_terminal(r.site, 40) or "unknown line",
            safe_terminal(r.cause, 24),
            format_number(r.count_per_step),
            format_number(r.wait_ms_per_step),
            format_number(r.idle_ms_per_step),
            safe_terminal(r.via, 40),
        ]
        for r in rows[:limit]
    ]
    heads = ("sync point", "cause", "a step", "wait ms", "then idle", "through")
    shown = terminal_table(heads, cells, left=(0, 1, 5)) + format_more(len(rows) - limit, "place")
    return f"{shown}\nwaits: mean over {waits.which}; idle: in the traced steps"


def _gaps(run: Run) -> str:
    rows = run.idle
    steps, each = per_step(run.timeline)
    unit = f"ms{each}"
    if (devices := count_devices(run.timeline)) > 1:
        steps, unit = steps * devices, f"{unit}, mean of {devices} devices"
    cells = [
        [
            r.cause,
            safe_terminal(r.site, 40),
            format_number(r.total_ms / steps),
            format_share(r.share),
        ]
        for r in rows[:_FEW]
    ]
    if not cells:
        return ""
    heads = ("why the device was idle", "line", unit, "share")
    return terminal_table(heads, cells, left=(0, 1)) + format_more(len(rows) - _FEW, "cause")


def _kernels(run: Run, limit: int) -> str:
    rows = kernel_table(run.timeline)
    steps, each = per_step(run.timeline)
    cells = [
        [
            safe_terminal(r.name, 60),
            format_number(r.count / steps),
            format_number(r.charged_ms / steps),
            format_share(r.share),
        ]
        for r in rows[:limit]
    ]
    if not cells:
        return ""
    heads = ("kernel", "runs", f"ms{each}", "of kernel time")
    return terminal_table(heads, cells) + format_more(len(rows) - limit, "kernel")


def _callers(run: Run, limit: int) -> str:
    """What launched the device's work, where it is known; of a native run by its lines, too."""
    views = dict.fromkeys([best_view(run), "line" if has_lines(run) else ""])
    return "\n\n".join(callers_text(run, by, limit, least=0.01) for by in views if by)


def _launches(timeline: Timeline) -> str:
    """What calls that launch cost, and how many were on their way; of files that pair them."""
    queues = hta_queue(timeline, every=True) if timeline.origin == "imported" else {}
    if not queues:
        return ""
    found = hta_launches(timeline, every=True)
    lane, most = max(((lane, int(q[:, 1].max())) for lane, q in queues.items()), key=lambda x: x[1])
    call, longest = float(np.median(found.call_ns)), float(found.call_ns.max())
    return (
        f"launches: {format_count(len(found.call_ns), 'kernel')} by calls that take "
        f"{format_ns(call)} (the middle one; the longest {format_ns(longest)}); the kernel begins "
        f"{format_ns(float(np.median(found.delay_ns)))} after its call (the middle one); at most "
        f"{most:,} on their way, to {safe_terminal(lane, 60)}"
    )


def _copies(run: Run, limit: int) -> str:
    """Bytes and bandwidth by direction, of traces that say the bytes."""
    cells = [
        [
            safe_terminal(c.what, 40),
            f"{c.count:,}",
            format_bytes(c.size_bytes),
            format_number(c.total_ns / 1e6),
            format_number(c.rate / 1e9),
        ]
        for c in run.copies[:limit]
    ]
    heads = ("copies in the trace", "count", "bytes", "ms", "GB/s")
    return terminal_table(heads, cells) if cells else ""


def _memory(run: Run, limit: int) -> str:
    """What was measured over the trace: each device's peak, and what had allocated it."""
    parts = []
    for memory in run.memory[:8]:
        cells = [
            [format_bytes(h.bytes), f"{h.blocks:,}", safe_terminal(h.op, 40) or "no op",
             safe_terminal(h.line, 60) or "unknown line"]
            for h in memory.held[:limit]
        ]  # fmt: skip
        if memory.before:
            cells.insert(0, [format_bytes(memory.before), "", "before the trace began", ""])
        more = "" if memory.is_whole else " more than before it"
        said = (
            f"memory of {safe_terminal(memory.device, 40)}, measured: at most "
            f"{format_bytes(memory.peak_bytes)}{more}, "
            f"{format_ms(memory.peak_ns / 1e6)} after the trace began"
        )
        heads = ("held then", "blocks", "by", "line")
        parts.append(f"{said}\n{terminal_table(heads, cells, left=(2, 3))}")
    return "\n\n".join(parts)


def _lines(run: Run, limit: int) -> str:
    rows, parts = dearest_lines(run)
    if run.callers or not any(row.nodes for row in rows):
        return ""  # what the sync points, or the table of callers, have said
    codes = code_by_site(run.sources)
    cells = [
        [
            safe_terminal(row.site, 40),
            *(format_number(ms_of(row)) for ms_of in parts.values()),
            _start_of(codes.get(row.site, "").strip()),
        ]
        for row in rows[:limit]
    ]
    heads = ["line", *(f"{head} ms" for head in parts), ""]
    shown = terminal_table(heads, cells, left=(0, len(heads) - 1)) + format_more(
        len(rows) - limit, "line"
    )
    is_timed = "recording" in parts and any(t >= 0 for t in run.recorded_ns)
    return f"{shown}\nrecording: {HOW_TIMED}" if is_timed else shown


def _start_of(code: str) -> str:
    clean = safe_terminal(code, 1000)
    return clean if len(clean) <= _CODE else f"{clean[: _CODE - 1]}…"


def _advice(found: Verdict | None) -> str:
    lines = []
    if found is not None and found.next_step:
        lines.append(f"  next: {found.next_step}")
    for advice in found.advice[:4] if found is not None else ():
        saving = f"{advice.saving}: " if advice.saving else ""
        change = safe_terminal(change_text(advice.change), 100)
        tail = f"  [{change}]" if change else ""
        lines.append(f"  {saving}{safe_terminal(advice.text, 600)}{tail}")
    return "\n".join(["what would help", *lines]) if lines else ""
