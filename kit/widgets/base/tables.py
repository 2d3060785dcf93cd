"""A run's numbers as HTML tables: step breakdown, sync points, what to know about the run.

Pure functions of a `Run`, shared by the live explorer and the report. Styles are inline, and
colours are JupyterLab's variables with fallbacks, so the same text reads well in a light and in a
dark notebook and in a plain page. Text from programs and traces goes through `safe_html`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kit.errors import words_of
from kit.runs.analysis.cures import sync_cure
from kit.runs.analysis.verdict import why_no_waits, why_waits_unknown
from kit.runs.bulk_sizes import size_text
from kit.runs.change import traced_text
from kit.runs.labels import VALUES, device_of, is_of_strangers
from kit.runs.run import Run
from kit.text import (
    capital,
    format_count,
    format_ms,
    format_number,
    format_percent,
    format_share,
    safe_html,
)
from kit.trace import SyncRow
from kit.trace.kinds import CATEGORY_ROWS
from kit.trace.metrics import waits_of
from kit.widgets.base.change import BETTER as BETTER
from kit.widgets.base.change import MUTED as MUTED
from kit.widgets.base.change import WORSE as WORSE
from kit.widgets.base.selection import Links, Selection, ranges_text
from kit.widgets.base.theme import COLORS, FAINT, KEPT

__all__ = [
    "amount",
    "breakdown_html",
    "code",
    "doubt_html",
    "failure_html",
    "keys_html",
    "place_html",
    "row_attributes",
    "run_notes_html",
    "said_html",
    "scrolling",
    "sync_picks",
    "sync_table_html",
    "tab_stop",
    "unbroken",
    "unlowered_html",
]

INK = "var(--jp-ui-font-color1, #1f2933)"
PANEL = "var(--jp-layout-color0, #ffffff)"
LINE = "var(--jp-border-color2, #dfe3e8)"
TRACK = "var(--jp-layout-color2, #eef1f4)"
FONT = "var(--jp-ui-font-family, Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif)"
MONO = "var(--jp-code-font-family, 'DejaVu Sans Mono', Menlo, Consolas, monospace)"

_CAPTION = "<!--caption-->"  # in a table; `section` puts its title there
_UNSEEN = (
    "position:absolute;width:1px;height:1px;margin:-1px;padding:0;overflow:hidden;"
    "clip-path:inset(50%);white-space:nowrap;border:0"
)
_COUNTS = re.compile(r"\d[\d,.]* [a-z]+,?")
_ENDS = re.compile(r"(?<=/)|(?<=[^/]{9})(?=:[0-9])")
_MAX_ROWS = 12
_COLOR_OF = {row.name: row.color for row in CATEGORY_ROWS}


def sync_table_html(run: Run) -> str:
    """Where the host waited, what that cost the device, and what would remove it."""
    waits = waits_of(run)
    if not run.knows_waits:
        return section("Sync points", sentence(f"Unknown: {why_waits_unknown(run)}."))
    if not waits.steps:
        return section("Sync points", sentence("No step was measured."))
    if not waits.syncs:
        text = f"No sync points in {waits.which}: {why_no_waits(run)}."
        return section("Sync points", sentence(text))
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
    letters, picks = longest_number(cells), enumerate(sync_picks(run))
    rows_html = table(heads, cells, "llrrr", widths=(43, 18, 11, 14, 14), picks=picks,
                      least_px=(95 + 55 * letters) * (letters > 6))  # fmt: skip
    return section("Sync points", rows_html + sentence(note))


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


def sync_picks(run: Run) -> list[Selection]:
    """What each row of `sync_table_html` stands for: a line, and the nodes that it recorded."""
    return [*map(Links(run).of_site, (row.site for row in run.sync_rows[:_MAX_ROWS]))]


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
                f'<span style="white-space:nowrap">{swatch(color)}{safe_html(r.category)}</span>',
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


def doubt_html(run: Run) -> str:
    """Why a run's numbers may be off, above a view that stands by itself; "" if they are not.

    On a page with the headline that says it for all.
    """
    why = run.doubt
    said = f"<b>{safe_html(capital(why), 300)}.</b> The numbers may be off."
    return f'<div role="note" style="margin-bottom:6px">{sentence(said)}</div>' if why else ""


def failure_html(error: BaseException, trace: str = "") -> str:
    """An exception in a box: what it says and where first, the traceback folded away."""
    name = type(error).__name__
    first, _, rest = words_of(error).strip().partition("\n")
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    said = "; ".join(note.removeprefix("kit: ") for note in notes if note.startswith("kit: "))
    where = f'<div style="color:{MUTED}">{safe_html(said, 600)}</div>' if said else ""
    detail = (
        f'<div style="white-space:pre-wrap;font:12px/1.45 {MONO};margin-top:4px">'
        f"{safe_html(rest, 2000)}</div>"
        if rest
        else ""
    )
    folded = (
        f'<details style="margin-top:6px"><summary style="cursor:pointer">traceback</summary>'
        f'<pre style="font:11px/1.4 {MONO};max-height:320px;overflow:auto;margin:6px 0 0">'
        f"{safe_html(trace, 20_000)}</pre></details>"
        if trace
        else ""
    )
    return (
        f'<div role="alert" style="font:13px/1.5 {FONT};color:{INK};background:{PANEL};'
        f"border:1px solid {LINE};border-left:4px solid {WORSE};border-radius:6px;"
        f'padding:8px 12px;overflow-wrap:anywhere"><b style="color:{WORSE}">{safe_html(name)}</b> '
        f"{safe_html(first, 600)}{detail}{where}{folded}</div>"
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


def section(title: str, body: str) -> str:
    """A body under its heading, which is also the caption of the tables in it."""
    named = body.replace(_CAPTION, f'<caption style="{_UNSEEN}">{title}</caption>')
    return (
        f'<div style="font:13px/1.45 {FONT};color:{INK};margin-bottom:14px">'
        f'<div role="heading" aria-level="3" style="font-weight:600;margin:0 0 4px">{title}</div>'
        f"{named}</div>"
    )


def folded(line: str, body: str) -> str:
    """A body behind a line that a click opens."""
    return (
        f'<details style="font:13px/1.6 {FONT};color:{INK}"><summary style="cursor:pointer">'
        f'{line}</summary><div style="overflow-x:auto;max-width:980px;margin-top:6px">{body}</div>'
        "</details>"
    )


def sentence(text: str) -> str:
    style = f"font-size:12px;line-height:1.45;color:{MUTED};margin-top:4px;overflow-wrap:anywhere"
    return f'<div style="{style}">{text}</div>' if text else ""


def amount(value: float) -> str:
    """A number of a table; "?" where the run cannot say."""
    return format_number(value, "?")


def code(html: str) -> str:
    """A line of a program, or a name of it, which is broken where it does not fit."""
    return f'<div style="font-family:{MONO};font-size:12px;overflow-wrap:anywhere">{html}</div>'


def said_html(body: str) -> str:
    """What stands beside a figure with sliders, in the size of their labels."""
    return f'<div style="font:13px/1.5 {FONT};color:{INK};overflow-wrap:anywhere">{body}</div>'


def unbroken(html: str) -> str:
    """The same, in which no line ends between a number and its word: "2 backward"."""
    return _COUNTS.sub(r'<span style="white-space:nowrap">\g<0></span>', html)


def not_shown(count: int, what: str, more: str = "") -> str:
    """` Not shown: 3 ops.`; "" if all are."""
    return f" Not shown: {format_count(count, what)}{more}." if count > 0 else ""


def table(heads: Iterable[str], rows: Sequence[Sequence[str]], align: str, *,
           widths: Sequence[int], has_total: bool = False, least_px: int = 0,
           picks: Iterable[tuple[int, Selection | None]] = ()) -> str:  # fmt: skip
    """Rows of cells that are HTML.

    With rows that can be picked it is a grid: there a screen reader leaves the arrow keys to it.
    Where there is less room than `least_px` the table scrolls, and a line above says so.

    Args:
        picks: of the first rows, the number of each in its listing, and what it stands for; None:
            it cannot be picked.
    """
    attributes = ["" if picked is None else row_attributes(n, picked) for n, picked in picks]
    side = {"l": "left", "r": "right"}
    wrap = {"l": "break-word", "r": "normal"}  # a long name is broken, a number is not
    columns = "".join(f'<col style="width:{w}%">' for w in widths)
    cell = "padding:3px 6px;vertical-align:top;background:none;border:0"
    head = "".join(
        f'<th scope="col" style="{cell};text-align:{side[a]};font-weight:500;font-size:12px;'
        f'color:{MUTED}">{text}</th>'
        for text, a in zip(heads, align, strict=True)
    )
    body, stop = "", next((n for n, text in enumerate(attributes) if text), -1)
    for n, row in enumerate(rows):
        weight = "2px" if has_total and n == len(rows) - 1 else "1px"
        cells = "".join(
            f'<{tag} style="{cell};text-align:{side[a]};font-variant-numeric:tabular-nums;'
            f'overflow-wrap:{wrap[a]}{more}">{text}</{tag[:2]}>'
            for text, a, (tag, more) in zip(row, align, _tags(len(row)), strict=True)
        )
        more = f" {tab_stop(n == stop)} {attributes[n]}" if any(attributes[n : n + 1]) else ""
        body += f'<tr style="border-top:{weight} solid {LINE};background:none"{more}>{cells}</tr>'
    role = ' role="grid"' * (stop >= 0)
    made = (
        f'<table{role} style="width:100%;min-width:{least_px}px;table-layout:fixed;'
        f"border-collapse:collapse;font-size:13px;"
        f'color:{INK};margin:0">{_CAPTION}<colgroup>{columns}</colgroup><thead>'
        f'<tr style="background:none">{head}</tr></thead><tbody>{body}</tbody></table>'
    )
    return scrolling(made, least_px) if least_px else made


def scrolling(made: str, least_px: int, what: str = "more columns") -> str:
    """What is wide in a box that scrolls; the hint above has no height where all is in sight.

    Tab stops at the box, or at a row in it that can be picked: from there arrows scroll it, too.
    """
    stop = "" if tab_stop(True) in made else tab_stop(True)
    return (
        '<div style="container-type:inline-size"><div aria-hidden="true" style="font-size:'
        f"clamp(0px,({least_px}px - 100cqw) * 99,11px);line-height:1.5;text-align:right;"
        f'color:{MUTED}">{what}: scroll to the right &#8594;</div>'
        f'<div class="kit-wide" style="overflow-x:auto" {stop}>{made}</div></div>'
    )


def longest_number(rows: Iterable[Sequence[str]]) -> int:
    """Letters of the longest number of these rows, behind two texts.

    With more than 6, five columns are too narrow on a phone.
    """
    shown = (cell.replace("<b>", "b").partition("<")[0] for row in rows for cell in row[2:])
    return max(map(len, shown), default=0)  # a bold one is wider


def _tags(count: int) -> list[tuple[str, str]]:
    """Tag and style of each cell of a row: the first one is its heading."""
    return [('th scope="row"', ";font-weight:inherit"), *[("td", "")] * (count - 1)][:count]


def place_html(place: str, limit: int = 160) -> str:
    """A line of a program; where it does not fit, it goes on after a "/" or before its number."""
    return _ENDS.sub("<wbr>", safe_html(place, limit))


def row_attributes(i: int, picked: Selection) -> str:
    """What makes an element row `i` of a listing, standing for `picked`; all text is escaped.

    The element needs a `tab_stop`, too.
    """
    site = next(iter(picked.sites)) if len(picked.sites) == 1 else ""
    return (
        f'data-row="{i}" data-site="{safe_html(site, 400, is_read=False)}" '
        f'data-nodes="{ranges_text(picked.nodes)}" '
        f'data-label="{safe_html(picked.label, 100, is_read=False)}"'
    )


def tab_stop(is_one: bool) -> str:
    """Of a row that can be picked: whether Tab stops at it. The arrow keys go on to the others."""
    return f'tabindex="{0 if is_one else -1}"'


def keys_html(colors: Mapping[str, str]) -> str:
    """What colours stand for: a swatch and its words, one after the other."""
    return "".join(
        f'<span style="margin-right:14px;white-space:nowrap">{swatch(color)}{said}</span>'
        for said, color in colors.items()
    )


def swatch(color: str) -> str:
    """A small square that says which colour stands for what follows."""
    return (
        f'<span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
        f'margin-right:7px;background:{color};border:1px solid #8886;{KEPT}"></span>'
    )


def bar_html(fraction: float, color: str) -> str:
    """A thin bar, `fraction` of its cell wide."""
    width = min(max(fraction, 0.0), 1.0) * 100
    return (
        f'<div style="height:3px;border-radius:2px;background:{TRACK};margin-top:2px;{KEPT}">'
        f'<div style="height:3px;border-radius:2px;background:{color};width:{width:.1f}%">'
        f"</div></div>"
    )
