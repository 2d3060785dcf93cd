"""The user's lines with what each costs in the margin: recording, device time, waits.

`source_html` is a pure function of a run, shared by the live view and the report. Its rows can be
picked, see `kit.widgets.base.listing`; `data-row` is a line's place among `line_costs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.runs.analysis.lines import HOW_TIMED, PHASES, LineCost, line_costs, place_of
from kit.runs.run import Run
from kit.text import format_count, format_number, safe_html
from kit.trace.metrics import waits_of
from kit.widgets.base.listing import Listing, under_doubt
from kit.widgets.base.selection import Links, Selection
from kit.widgets.base.tables import (
    FONT,
    INK,
    LINE,
    MONO,
    MUTED,
    PANEL,
    WORSE,
    not_shown,
    place_html,
    row_attributes,
    section,
    sentence,
    tab_stop,
    whole_html,
)
from kit.widgets.base.theme import COLORS, KEPT
from kit.widgets.numbers.excerpt import code_html, listing

__all__ = ["SourceView", "source_drawn", "source_html"]

MAX_FILES = 12
MAX_LINES = 400  # with a cost, the dearest
HEIGHT_PX = 620

_COLUMNS = "5px 40px 68px 68px 60px minmax(240px, 1fr)"
_NUMBERS_PX = 241  # of all columns but the last
# Shows the dearest line, wherever it is in its file, once the listing has a size: in a page that is
# folded or hidden it has none. Runs when the style is there; scripts in such HTML would not run.
_SHOW_DEAREST = (
    "const box = this.parentElement.querySelector('.kit-source-lines');"
    "const row = box.querySelector('.kit-dearest');"
    "new ResizeObserver((_, seen) => { if (!box.clientHeight) return; seen.disconnect();"
    "if (row && row.offsetTop + row.offsetHeight > box.clientHeight)"
    "box.scrollTop = row.offsetTop - box.clientHeight / 3; }).observe(box)"
)
_STYLE = f"""<style onload="{_SHOW_DEAREST}">
.kit-listing .widget-html-content {{min-width:0}}
.kit-source-lines {{max-height:{HEIGHT_PX}px;overflow:auto;position:relative;
  scroll-padding-top:28px; /* a row that one goes to is not under the heads */
  container-type:inline-size;
  border:1px solid {LINE};border-radius:6px;
  background:{PANEL};color:{INK};font:12px/1.6 {MONO}}}
.kit-source-lines .kit-line {{display:grid;grid-template-columns:{_COLUMNS};min-width:max-content}}
.kit-source-lines .kit-line > span {{padding:0 6px;white-space:pre;text-align:right;
  position:relative;font-variant-numeric:tabular-nums}}
.kit-source-lines .kit-line > .kit-heat {{padding:0}}
.kit-source-lines .kit-line > .kit-number {{color:{MUTED};padding:0 6px 0 4px}}
.kit-source-lines .kit-line > .kit-code {{text-align:left;padding-left:14px}}
.kit-source-lines .kit-head {{position:sticky;top:0;z-index:1;background:{PANEL};color:{MUTED};
  border-bottom:1px solid {LINE};font-family:{FONT};padding:3px 0}}
.kit-source-lines .kit-file {{font-family:{FONT};padding:7px 10px 3px;border-top:1px solid {LINE}}}
.kit-source-lines .kit-file:first-of-type {{border-top:0}}
.kit-source-lines .kit-gap, .kit-source-lines summary {{color:{MUTED};font-family:{FONT};
  font-size:11px;padding:1px 10px 1px 58px;cursor:default}}
.kit-source-lines summary {{cursor:pointer}}
.kit-source-lines i, .kit-source-lines .kit-heat {{{KEPT}}}
.kit-source-lines i {{position:absolute;right:6px;top:17px;height:3px;border-radius:2px}}
.kit-source-lines b.kit-k {{font-weight:600}}
.kit-source-lines .kit-s {{color:var(--jp-mirror-editor-string-color, var(--kit-string, #2a7d5f))}}
.kit-source-lines .kit-c {{color:{MUTED};font-style:italic}}
.kit-source-lines .kit-wait {{color:{WORSE};font-family:{FONT};display:block;white-space:normal;
  overflow-wrap:anywhere;
  width:max(150px, calc(100cqw - {_NUMBERS_PX + 30}px))}}
@container (max-width: 520px) {{ /* code and waits beneath the numbers, in sight */
  .kit-source-lines .kit-line {{grid-template-columns:5px 34px 58px 58px 54px auto}}
  .kit-source-lines .kit-line:not([data-row]):not(.kit-head) > span:empty {{display:none}}
  .kit-source-lines .kit-heat {{grid-row:1 / span 2}}
  .kit-source-lines .kit-number {{grid-column:2}}
  .kit-source-lines .kit-line:not(.kit-head) > .kit-code {{grid-column:3 / -1}}
  .kit-source-lines .kit-head > .kit-code {{padding-left:0}}
  .kit-source-lines i {{max-width:calc(100% - 6px)}}
  .kit-source-lines .kit-wait {{width:calc(100cqw - 84px)}} }}
</style>"""


def source_html(run: Run, rows: Sequence[LineCost] | None = None) -> str:
    """The lines of the program that cost something, with some around them, file by file.

    Everything that comes from the program is escaped.

    Args:
        rows: `line_costs(run)`, if they are known already.
    """
    rows = line_costs(run) if rows is None else rows
    if not any(row.site for row in rows):
        is_native = run.settings.mode == "torch"
        why = "mode 'torch' does not record ops" if is_native else "it has no ops"
        return section("Source lines", sentence(f"What each line costs is not known: {why}."))
    body = _most(rows) + _table(run, rows) + sentence(_note(run, rows))
    return section("Source lines", body + _STYLE)


def _source_picks(run: Run, rows: Sequence[LineCost]) -> list[Selection]:
    """What each `data-row` of `source_html` stands for: a line, and the nodes that it recorded."""
    return [*map(Links(run).of_site, (row.site for row in rows))]


def _most(rows: Sequence[LineCost]) -> str:
    """The dearest line of each column, in a sentence."""
    said = []
    for what, field in (
        ("waits most", "wait_ms"),
        ("has most of the device", "device_ms"),
        ("takes longest to record", "recording_ms"),
    ):
        known = [r for r in rows if r.site and not math.isnan(getattr(r, field))]
        row = max(known, key=lambda r: getattr(r, field), default=rows[0])
        if ms := _ms(getattr(row, field)):
            place = whole_html(f"<b>{place_html(row.site, 60)}</b>")
            said.append(f"{place} {what}, {ms} ms a step")
    style = "margin:0 0 6px;overflow-wrap:anywhere"
    return f'<div style="{style}">{"; ".join(said)}.</div>' if said else ""


def _table(run: Run, rows: Sequence[LineCost]) -> str:
    shown = set(sorted(range(len(rows)), key=lambda i: -rows[i].total_ms)[:MAX_LINES])
    of_file: dict[str, dict[int, int]] = {}
    for i, row in enumerate(rows):
        if row.site and i in shown:
            file, line = place_of(row.site)
            of_file.setdefault(file, {})[line] = i
    for snippet in run.sources:
        of_file.setdefault(snippet.file, {})
    files, parts = list(of_file.items())[:MAX_FILES], []
    scale = _Scale(run, rows, [rows[i] for _, costs in files for i in costs.values()])
    for file, costs in files:
        parts.append(_file_head(file, [rows[i] for i in costs.values()]))
        for piece in listing(file, costs, run.sources):
            if isinstance(piece, str):
                parts.append(piece)
            elif piece.is_folded:
                parts.append(_folded([_plain_line(*line, "", "") for line in piece.lines]))
            else:
                parts += [_line(*line, rows, costs.get(line[0], -1), scale) for line in piece.lines]
    return (
        '<div class="kit-source-lines" role="grid" tabindex="-1" '
        f'aria-label="source lines and what they cost">{_HEAD}{"".join(parts)}</div>'
    )


class _Scale:
    """What the longest bar of each column stands for; and what each row does."""

    def __init__(self, run: Run, rows: Sequence[LineCost], shown: Sequence[LineCost]) -> None:
        self.picks = _source_picks(run, rows)
        known = [row for row in rows if row.site]
        self.record = max((row.recording_ms for row in known if row.recording_ms > 0), default=0.0)
        self.device = max((row.device_ms for row in known), default=0.0)
        self.wait = max((row.wait_ms for row in known), default=0.0)
        self.dearest = max(shown, key=lambda row: row.total_ms)  # where Tab stops
        self.total = max(row.total_ms for row in known)


_ROW, _CELL = ' role="row"', ' role="gridcell"'
_HEADS = ("line", "record", "device", "wait")
_HEAD = (
    '<div class="kit-line kit-head" role="row"><span class="kit-heat"></span>'
    + "".join(f'<span role="columnheader">{text}</span>' for text in _HEADS)
    + '<span class="kit-code" role="columnheader">&#8592; ms a step</span></div>'
)


def _file_head(file: str, rows: Sequence[LineCost]) -> str:
    sums = " · ".join(
        f"{name} {_ms(ms) or '0'}"
        for name, field in (
            ("record", "recording_ms"),
            ("device", "device_ms"),
            ("wait", "wait_ms"),
        )
        if not math.isnan(ms := sum(getattr(row, field) for row in rows))
    )
    costs = f'<span style="color:{MUTED}"> {sums} ms a step</span>' if rows else ""
    return (
        '<div class="kit-file" role="row"><span role="gridcell">'
        f"<b>{safe_html(file, 80)}</b>{costs}</span></div>"
    )


def _folded(lines: Sequence[str]) -> str:
    """One row of the grid, whatever it holds: a grid may own rows only, and no part that folds."""
    count = format_count(len(lines), "line")
    return (
        f'<div role="row"><div role="gridcell"><details><summary>{count} without cost</summary>'
        f"{''.join(lines)}</details></div></div>"
    )


def _plain_line(number: int, text: str | None, row: str = _ROW, cell: str = _CELL) -> str:
    """A line without cost; its roles are "" where it is no row of the grid."""
    return (
        f'<div class="kit-line"{row}><span></span><span class="kit-number">{number}'
        f"</span><span></span><span></span><span></span>"
        f'<span class="kit-code"{cell}>{_code(text)}</span></div>'
    )


def _code(text: str | None) -> str:
    if text is None:
        return f'<span style="color:{MUTED}">(its text was not kept)</span>'
    return code_html(text)


def _line(number: int, text: str | None, rows: Sequence[LineCost], i: int, scale: _Scale) -> str:
    if i < 0:
        return _plain_line(number, text)
    row = rows[i]
    heat = row.total_ms / scale.total if scale.total else 0.0
    cells = "".join(
        (
            f'<span class="kit-heat" style="background:rgba(214,90,40,{0.06 + 0.94 * heat:.2f})">'
            "</span>",
            f'<span class="kit-number">{number or ""}</span>',
            f'<span role="gridcell">{_ms(row.recording_ms)}{_phases_bar(row, scale.record)}</span>',
            f'<span role="gridcell">{_ms(row.device_ms)}'
            f"{_bar(row.device_ms, scale.device, COLORS['kernel'])}</span>",
            f'<span role="gridcell">{_ms(row.wait_ms)}'
            f"{_bar(row.wait_ms, scale.wait, COLORS['wait'])}</span>",
            f'<span class="kit-code" role="gridcell">{_code(text)}{_sync(row)}{_away(row)}</span>',
        )
    )
    is_dearest = row is scale.dearest
    return (
        f'<div class="kit-line{" kit-dearest" * is_dearest}" role="row" '
        f"{tab_stop(is_dearest)} {row_attributes(i, scale.picks[i])} "
        f'title="{_title(row)}">{cells}</div>'
    )


def _sync(row: LineCost) -> str:
    if not row.syncs:
        return ""
    often = "once a step" if row.syncs == 1 else f"{format_number(row.syncs)} times a step"
    idle = f", then the device is idle for {_ms(row.idle_ms)} ms" if row.idle_ms >= 5e-4 else ""
    causes = "; ".join(place_html(cause, 120) for cause in row.causes[:3])
    return (
        f'<span class="kit-wait">&#9660; sync point, {often}: waits '
        f"{_ms(row.wait_ms) or '0'} ms{idle} ({causes})</span>"
    )


def _away(row: LineCost) -> str:
    told = (
        ("the host waits elsewhere (a sleep, a file, a lock)", row.elsewhere_ms),
        ("the program computes on the host, between two ops", row.own_ms),
    )
    return "".join(
        f'<span class="kit-wait" style="color:{INK}">&#9660; {what}: {_ms(ms) or "0"} ms</span>'
        for what, ms in told
        if ms
    )


def _title(row: LineCost) -> str:
    parts = [f"{phase} {row.record_ms[phase]:.3f}" for phase in PHASES if row.record_ms[phase] > 0]
    record = f"recording: {', '.join(parts)} ms; " if parts else ""
    return (
        f"{safe_html(row.site, 100)}: {record}{format_count(len(row.nodes), 'op')}. Click to show "
        "them elsewhere"
    )


def _phases_bar(row: LineCost, most: float) -> str:
    """One thin bar in the colours of the phases."""
    whole = row.recording_ms
    if not whole > 0 or not most:
        return ""
    stops, at = [], 0.0
    for phase in PHASES:
        until = at + 100 * row.record_ms[phase] / whole
        if until > at:
            stops.append(f"{COLORS[phase]} {at:.1f}% {until:.1f}%")
        at = until
    return _bar(whole, most, f"linear-gradient(90deg,{','.join(stops)})")


def _bar(value: float, most: float, color: str) -> str:
    width = 56 * value / most if most else 0.0
    return f'<i style="width:{width:.1f}px;background:{color}"></i>' if width >= 0.5 else ""


def _ms(value: float) -> str:
    """Milliseconds; "" for what is less than half a microsecond, or not known."""
    return format_number(value) if value >= 5e-4 else ""


def _note(run: Run, rows: Sequence[LineCost]) -> str:
    if not run.graphs:
        how = "not known by line, because no op was recorded"
    elif not run.timeline.steps:
        how = "not known, because no step was traced"
    elif any(t >= 0 for t in run.recorded_ns):
        how = HOW_TIMED
    elif run.settings.step_mode == "replay":
        how = "none, the traced steps were replayed"
    else:
        how = "divided by the number of ops, because this run was not timed op by op"
    text = (
        f"Recording: {how}; an op of the backward pass belongs to the line of its forward op. "
        "Device: where kernels overlap their time is divided. Waits are the mean of "
        f"{waits_of(run).which}. The three overlap in time."
    )
    rest = next((row for row in rows if not row.site), None)
    if rest is not None and (rest.total_ms >= 5e-4 or rest.syncs):
        times = {"recording": rest.recording_ms, "device": rest.device_ms, "wait": rest.wait_ms}
        if rest.elsewhere_ms:  # in calls of the device's runtime
            times["elsewhere"] = rest.elsewhere_ms
        said = (f"{k} {_ms(ms) or '0'} ms" for k, ms in times.items() if not math.isnan(ms))
        text += f" Of no known line: {', '.join(said)}."
    if len(rows) > MAX_LINES:
        text += f" The {MAX_LINES} dearest of {len(rows):,} lines are shown."
    files = dict.fromkeys(place_of(row.site)[0] for row in rows if row.site)
    left_out = set(list(files)[MAX_FILES:])
    ms = sum(row.work_ms for row in rows if place_of(row.site)[0] in left_out)
    return text + not_shown(len(left_out), "file", f", {_ms(ms) or '0'} ms of recording and device")


class SourceView(Listing):
    """The lines of `run` with their costs; assigning `run` redraws. A click sets `selection`."""

    def __init__(self, run: Run | None = None) -> None:
        super().__init__("source lines", under_doubt(source_drawn), run)


def source_drawn(run: Run) -> tuple[str, list[Selection]]:
    """`source_html`, and what each row of it stands for."""
    rows = line_costs(run)
    return source_html(run, rows), _source_picks(run, rows)
