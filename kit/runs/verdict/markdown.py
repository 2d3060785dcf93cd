"""A run as Markdown: headline, what limits the step, breakdown, lines, kernels, sync points."""

from __future__ import annotations

from kit.runs.analysis.headline import headline_text, why_no_waits, why_waits_unknown
from kit.runs.analysis.lines import dearest_lines
from kit.runs.change import time_notes
from kit.runs.run import Run
from kit.runs.sources import code_by_site
from kit.runs.verdict.verdict import verdict
from kit.text import (
    format_more,
    format_ms,
    format_ns,
    format_number,
    format_share,
    markdown_table,
    safe_markdown,
)
from kit.trace.kernels import kernel_table
from kit.trace.metrics import waits_of
from kit.trace.timeline import per_step, shown_pins

__all__ = ["run_markdown"]

_TOP_KERNELS, _TOP_LINES = 20, 12
_NONE = "none"


def run_markdown(run: Run, *, title: str | None = None) -> str:
    """The tables of a run; no text of a program or a trace is markup in them."""
    t = run.timeline
    notes = dict.fromkeys((run.doubt, *time_notes(run), str(run.conditions), *t.notes))
    parts = [
        f"# {safe_markdown(title or run.name or 'run')}",
        f"origin of the timeline: {t.origin}; {headline_text(run)}",
        *(f"- {safe_markdown(n, 300)}" for n in notes if n),
        *(
            f"- pinned at {format_ns(at)}: {safe_markdown(text, 300)}"
            for at, text in shown_pins(t, run.pins)
        ),
        *_verdict(run),
        "## Step breakdown",
        _breakdown(run),
        *_lines(run),
        "## Kernels",
        _kernels(run),
        "## Sync points",
        _syncs(run),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(run: Run) -> list[str]:
    found = verdict(run)
    if found is None:
        return []
    texts = [found.next_step] * bool(found.next_step)
    texts += [f"{a.saving}: {a.text}" if a.saving else a.text for a in found.advice]
    limit = safe_markdown(f"{found.limit}. {found.said}.", 1000)
    parts = ["## What limits the step", limit]
    if texts:
        parts += ["## What would help", "\n".join(f"- {safe_markdown(t, 2000)}" for t in texts)]
    return parts


def _breakdown(run: Run) -> str:
    rows = [
        (
            safe_markdown(r.category),
            format_ms(r.exposed_ms),
            format_share(r.share),
            format_ms(r.total_ms),
        )
        for r in run.breakdown()
    ]
    head = ("category", "charged", "share", "in all")
    return markdown_table(head, rows) if rows else _NONE


def _lines(run: Run) -> list[str]:
    """The dearest lines; nothing where no line is known."""
    rows, parts = dearest_lines(run)
    codes = code_by_site(run.sources)
    cells = [
        (
            safe_markdown(f"{r.site} {codes.get(r.site, '').strip()}".strip(), 140),
            *(format_ms(ms_of(r)) for ms_of in parts.values()),
        )
        for r in rows[:_TOP_LINES]
    ]
    head = ("line", *(f"{name} a step" for name in parts))
    table = markdown_table(head, cells) + format_more(len(rows) - _TOP_LINES, "line", "\n\n")
    return ["## Lines", table] if cells else []


def _kernels(run: Run) -> str:
    steps, each = per_step(run.timeline)
    every = kernel_table(run.timeline)
    shown = every[:_TOP_KERNELS]
    of_segments = any(r.segment >= 0 for r in shown)  # not of native runs and foreign traces
    rows = [
        (
            safe_markdown(r.name),
            *[str(r.segment) if r.segment >= 0 else "-"] * of_segments,
            format_number(r.count / steps),
            format_ms(r.charged_ms / steps),
            format_ms(r.mean_us / 1e3),
            format_share(r.share),
        )
        for r in shown
    ]
    head = ("kernel", *["segment"] * of_segments, "runs", f"time{each}", "mean of a run",
            "share of kernel time")  # fmt: skip
    more = format_more(len(every) - _TOP_KERNELS, "kernel", "\n\n")
    return markdown_table(head, rows) + more if rows else _NONE


def _syncs(run: Run) -> str:
    waits = waits_of(run)
    if not waits.steps:
        return "no step was measured" if run.knows_waits else f"unknown: {why_waits_unknown(run)}"
    if not waits.syncs:
        return f"none in {waits.which}: {why_no_waits(run)}"
    rows = [
        (
            *(safe_markdown(text or "-") for text in (r.site, r.via, r.cause)),
            format_number(r.count_per_step),
            format_ms(r.wait_ms_per_step),
        )
        for r in run.sync_rows
    ]
    head = ("line", "through", "cause", "a step", "wait a step")
    return f"{markdown_table(head, rows)}\n\nMean over {waits.which}."
