"""Why the device was idle, as a table: cause, line, milliseconds. HTML, and a widget of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kit.runs.run import Run
from kit.text import format_count, format_percent, format_share, safe_html
from kit.trace import IdleRow, count_devices, idle_gaps
from kit.trace.kinds import CAUSES
from kit.trace.timeline import per_step
from kit.widgets.base.html_view import HtmlView
from kit.widgets.base.tables import (
    MUTED,
    amount,
    bar_html,
    code,
    doubt_html,
    longest_number,
    place_html,
    section,
    sentence,
    swatch,
    table,
    whole_html,
)
from kit.widgets.base.theme import COLORS, FAINT, KEPT

__all__ = ["CAUSE_COLORS", "GapView", "gaps_html"]

MAX_ROWS = 12
CAUSE_COLORS = {row.name: COLORS.get(row.color, FAINT) for row in CAUSES}
_SAID = {row.name: row.said for row in CAUSES}


def gaps_html(run: Run) -> str:
    """Idle time by cause, with the line of each sync point, and the lines that were waited for."""
    rows = run.idle
    if not rows:
        known = bool(run.timeline.where(kind="kernel").any())
        text = "The device was never idle." if known else "No kernel was seen: nothing is known."
        return section("Why the device was idle", sentence(text))
    steps, each = per_step(run.timeline)
    awaited = _awaited(run)
    devices = count_devices(run.timeline)
    parts = steps * devices
    shown = [
        _row(row, awaited.get((row.cause, row.site), []), parts, rows[0].total_ms)
        for row in rows[:MAX_ROWS]
    ]
    total = sum(row.total_ms for row in rows)
    shown.append(["<b>idle</b>", "", f"<b>{amount(total / parts)}</b>", "<b>100%</b>"])
    note = _hta(run.idle_by_hta, devices, has_steps=bool(each))
    if len(rows) > MAX_ROWS:
        note = f"The sum has {format_count(len(rows) - MAX_ROWS, 'more place')}. {note}"
    heads = ("cause and line", f"pieces{each}", f"ms{each}", "share")
    body = table(heads, shown, "lrrr", widths=(46, 18, 18, 18), has_total=True,
                 least_px=60 * max(longest_number(["", *r] for r in shown), 6))  # fmt: skip
    return section("Why the device was idle", _strip(rows) + body + sentence(note))


def _strip(rows: Sequence[IdleRow]) -> str:
    """All idle time as one bar, cut by cause."""
    parts = "".join(
        f'<div title="{safe_html(f"{r.cause} {format_percent(r.share)}")}" '
        f'style="width:{100 * r.share:.2f}%;'
        f'background:{CAUSE_COLORS.get(r.cause, COLORS["plan"])}"></div>'
        for r in rows
    )
    return (
        '<div style="display:flex;height:12px;border-radius:3px;overflow:hidden;margin:2px 0 6px;'
        f'{KEPT}">{parts}</div>'
    )


def _row(row: IdleRow, awaited: Sequence[str], parts: int, most: float) -> list[str]:
    color = CAUSE_COLORS.get(row.cause, COLORS["plan"])
    line = code(place_html(row.site))
    if not row.site:
        line = f'<span style="color:{MUTED}">{_SAID.get(row.cause, "")}</span>'
    if awaited:
        then = ", ".join(whole_html(place_html(site, 60)) for site in awaited)
        line += f'<div style="color:{MUTED};font-size:12px">next to run: {then}</div>'
    return [
        f'<div style="overflow-wrap:anywhere">{swatch(color)}{safe_html(row.cause)}'
        f'<div style="margin-left:18px">{line}</div></div>',
        amount(row.count / parts),
        amount(row.total_ms / parts),
        format_share(row.share) + bar_html(row.total_ms / max(most, 1e-12), color),
    ]


def _awaited(run: Run) -> dict[tuple[str, str], list[str]]:
    """The lines whose kernels came after the gaps of each cause; at most the two that cost most."""
    if not run.graphs:
        return {}
    nodes = run.graphs[0].nodes
    spent: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for gap in idle_gaps(run.timeline):
        node = int(run.timeline.node[gap.before]) if gap.before >= 0 else -1
        is_known = 0 <= node < len(nodes)
        if is_known and gap.cause != "program" and nodes[node].site:
            spent[gap.cause, gap.site][nodes[node].site] += gap.length_ns
    return {key: sorted(sites, key=lambda s: -sites[s])[:2] for key, sites in spent.items()}


def _hta(times: Mapping[str, int], devices: int, *, has_steps: bool) -> str:
    whole = sum(times.values())
    parts = ", ".join(f"{name} {format_percent(time / whole)}" for name, time in times.items())
    of = ["the traced steps"] * has_steps + [f"the {devices} devices"] * (devices > 1)
    means = f"Means of {' and of '.join(of)}; every" if of else "Every"
    return (
        f"{means} instant in which no kernel of a device ran has one cause. The tool HTA (Holistic "
        f"Trace Analysis) would call it {parts}."
    )


class GapView(HtmlView):
    """Why the device was idle in `run`; assigning `run` redraws."""

    def __init__(self, run: Run | None = None) -> None:
        super().__init__("idle gaps", lambda r: doubt_html(r) + gaps_html(r), run)
