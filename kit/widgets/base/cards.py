"""The headline cards of a run as HTML: five numbers, how sure they are, and how they changed.

Pure functions of a `Run`, shared by the live explorer and the report.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kit.runs.analysis.headline import (
    HEADLINE_WORDS,
    busy_of,
    headline_differences,
    hidden_of,
    why_waits_unknown,
)
from kit.runs.change import Difference, time_notes
from kit.runs.labels import has_other_samples
from kit.runs.run import Run
from kit.text import capital, format_ms, format_number, format_percent, safe_html
from kit.trace.metrics import waits_of
from kit.widgets.base.change import change_html
from kit.widgets.base.tables import FONT, INK, LINE, MUTED, PANEL, WORSE, sentence

__all__ = ["headline_changes", "headline_html", "note_box"]

_FEW_STEPS = 10  # below, a spread of deciles would be made up between two of them


def headline_html(
    run: Run, previous: Run | None = None, found: Mapping[str, Difference] | None = None
) -> str:
    """Five cards: step time, busy and overlap fraction, sync wait, sync points; and their change.

    A change is a sign, an arrow, a number and the word "better" or "worse": colour is not needed.
    What the spread exceeds is not called a change; see `kit.runs.change`.

    Args:
        found: what `headline_differences` gives of the two runs, where that is known already.
    """
    now, waits = run.headline(), waits_of(run)
    changes = {}
    if previous is not None:
        found = found or headline_differences(previous, run)
        changes = headline_changes(found, is_by_sample=has_other_samples(previous, run))
    of = "no step was measured" if run.knows_waits else why_waits_unknown(run)
    if waits.steps:
        of = f"mean of {waits.which}{waits.at_once}"
    cards = {
        "step_ms": (format_ms(now.step_ms), _spread(run)),
        "device_busy_fraction": (format_percent(now.device_busy_fraction), busy_of(run)),
        "overlap_fraction": (format_percent(now.overlap_fraction), hidden_of(run)),
        "sync_wait_ms": (format_ms(now.sync_wait_ms), f"host waits for device, {of}"),
        "syncs_per_step": (format_number(now.syncs_per_step), "a step"),
    }
    body = "".join(
        _card(HEADLINE_WORDS[field], value, note, field, changes.get(field, ""))
        for field, (value, note) in cards.items()
    )
    return (
        f'{_label(run)}{_doubt(run)}<div style="display:flex;flex-wrap:wrap;'
        f'gap:10px;font-family:{FONT};color:{INK}">{body}</div>'
    )


def _label(run: Run) -> str:
    """What its owner calls the run."""
    if not run.label:
        return ""
    look = f"font:600 13px/1.45 {FONT};color:{INK};margin-bottom:4px"
    return f'<div style="{look}">{safe_html(run.label, 200)}</div>'


def _doubt(run: Run) -> str:
    """Above the numbers of a run: that it was disturbed, not steady, or slowed by tracing."""
    doubt = run.doubt
    said = " ".join(safe_html(capital(n), 300) + "." for n in time_notes(run) if n != doubt)
    if not doubt:
        return f'<div style="margin-bottom:8px">{sentence(said)}</div>' if said else ""
    more = f"The numbers may be off; what limits the step is not said. {said}"
    return note_box(safe_html(capital(doubt), 300), more)


def note_box(what: str, more: str, *, line: str = "solid") -> str:
    """A box above the numbers of a run that says what is amiss with them.

    Args:
        what: a sentence without its period, as HTML.
        line: of the border, "solid" or "dashed".
    """
    return (
        f'<div role="note" style="font:13px/1.45 {FONT};color:{INK};background:{PANEL};'
        f"border:1px {line} {LINE};border-left:4px solid {WORSE};border-radius:6px;"
        f'padding:6px 10px;margin-bottom:8px;overflow-wrap:anywhere"><b>{what}.</b> '
        f'<span style="color:{MUTED}">{more}</span></div>'
    )


def headline_changes(
    found: Mapping[str, Difference], *, is_by_sample: bool = False
) -> dict[str, str]:
    """The change of each card of the headline as HTML, by its field."""
    by = {"step_ms": f'<span style="color:{MUTED}">a sample: </span>' if is_by_sample else ""}
    return {
        field: by.get(field, "")
        + change_html(
            difference,
            more_is_better=field.endswith("fraction"),
            form=_points if field.endswith("fraction") else None,
            value=format_ms if field.endswith("_ms") else format_number,
        )
        for field, difference in found.items()
    }


def _points(fraction: float) -> str:
    """A difference of two fractions, or its spread; "" of more than all of it."""
    about, number = "≈" * (0 < fraction < 0.005), f"{100 * fraction:,.0f}"
    return f"{about}{number} point{'s' * (number != '1')}" if fraction <= 1 else ""


def _card(label: str, value: str, note: str, field: str, change: str) -> str:
    return (
        f'<div style="background:{PANEL};border:1px solid {LINE};border-radius:8px;'
        f'padding:9px 12px;flex:1 1 100px;min-width:0">'
        f'<div style="font-size:12px;line-height:1.3;color:{MUTED}">{label}</div>'
        f'<div style="font-size:clamp(16px,2.9cqi,22px);line-height:1.35;font-weight:600;'
        f'white-space:nowrap;font-variant-numeric:tabular-nums">{value}</div>'
        f'<div style="font-size:11px;line-height:1.4;color:{MUTED}">{note}</div>'
        f'<div data-change="{field}" style="font-size:12px;line-height:1.4;min-height:17px">'
        f"{change}</div></div>"
    )


def _spread(run: Run) -> str:
    times = run.step_times_ns
    if len(times) < 2:
        return "one step" if times else "no step was measured"
    is_few = len(times) < _FEW_STEPS
    ends = np.percentile(times, (0, 100) if is_few else (10, 90))
    low, high = (format_ms(float(x) / 1e6) for x in ends)
    who = ("all" if low == high else "they") if is_few else "8 in 10"
    return f"median of {len(times)}; {who} took {low if low == high else f'{low} to {high}'}"
