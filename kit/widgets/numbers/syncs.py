"""Where the host waited for the device: its sync points, and the ops that ran on the host."""

from __future__ import annotations

from kit.runs.analysis.headline import why_no_waits, why_waits_unknown
from kit.runs.run import Run
from kit.runs.verdict.cures import sync_cure
from kit.text import format_number, safe_html
from kit.trace import SyncRow
from kit.trace.metrics import waits_of
from kit.widgets.base.listing import Drawn
from kit.widgets.base.selection import Links
from kit.widgets.base.tables import (
    MUTED,
    bar_html,
    code,
    longest_number,
    not_shown,
    place_html,
    section,
    sentence,
    table,
)
from kit.widgets.base.theme import COLORS

__all__ = ["syncs_drawn", "unlowered_html"]

_MAX_ROWS = 12


def syncs_drawn(run: Run) -> Drawn:
    """Where the host waited, what that cost the device, and what would remove it.

    A row stands for a line, and the nodes that it recorded.
    """
    waits = waits_of(run)
    if not run.knows_waits:
        return section("Sync points", sentence(f"Unknown: {why_waits_unknown(run)}.")), []
    if not waits.steps:
        return section("Sync points", sentence("No step was measured.")), []
    if not waits.syncs:
        text = f"No sync points in {waits.which}: {why_no_waits(run)}."
        return section("Sync points", sentence(text)), []
    rows = run.sync_rows
    most = max(rows[0].wait_ms_per_step, 1e-12)
    is_sure = not run.withheld  # else no advice is given, and a cure is one
    cells = [
        _sync_cells(row, run, row.wait_ms_per_step / most, is_sure) for row in rows[:_MAX_ROWS]
    ]
    rest = sum(r.wait_ms_per_step for r in rows[_MAX_ROWS:])
    note = f"Mean over {waits.which}; idle: the device, after the wait, in the traced steps."
    note += not_shown(len(rows) - _MAX_ROWS, "place", f", together {format_number(rest)} ms a step")
    heads = ["line", "cause", "a step", "wait ms", "then idle ms"]
    letters, links = longest_number(cells), Links(run)
    picks = [links.of_site(row.site) for row in rows[:_MAX_ROWS]]
    rows_html = table(heads, cells, "llrrr", widths=(43, 18, 11, 14, 14), picks=enumerate(picks),
                      least_px=(95 + 55 * letters) * (letters > 6))  # fmt: skip
    return section("Sync points", rows_html + sentence(note)), picks


def _sync_cells(row: SyncRow, run: Run, share: float, is_sure: bool) -> list[str]:
    """One row of the table; `share` is the length of its bar. Cures need a run without a doubt."""
    via = f'<div style="color:{MUTED}">through {place_html(row.via)}</div>' if row.via else ""
    site = place_html(row.site) if row.site else f'<span style="color:{MUTED}">unknown line</span>'
    cure = "".join(
        f'<div style="color:{MUTED}">try {safe_html(name)}=<wbr>{safe_html(repr(value))}</div>'
        for name, value in (sync_cure(row, run).change.items() if is_sure else ())
    )
    return [
        code(f"{site}{via}{cure}"),
        f'<div style="overflow-wrap:anywhere">{safe_html(row.cause, 60)}</div>',
        format_number(row.count_per_step),
        format_number(row.wait_ms_per_step) + bar_html(share, COLORS["wait"]),
        format_number(row.idle_ms_per_step),
    ]


def unlowered_html(run: Run) -> str:
    """Ops that had no rule and ran on the host, with their line; "" if there is none."""
    if not run.unlowered:
        return ""
    found = sorted(run.unlowered.items(), key=lambda x: (-x[1], x[0]))
    cells = [[code(place_html(place)), f"{count:,}"] for place, count in found[:_MAX_ROWS]]
    note = "Each waits for the device and copies to the host and back: give it a rule."
    note += not_shown(len(found) - _MAX_ROWS, "op")
    rows_html = table(["op and line", "times"], cells, "lr", widths=(82, 18))
    return section("Ops that ran on the host", rows_html + sentence(note))
