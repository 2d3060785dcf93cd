"""The user's lines with what each costs in the margin: recording, device time, waits.

`source_html` is a pure function of a run, shared by the live view and the report. A line that can
be picked is an element with `data-site`, `data-nodes` (its nodes, as "3-9,12") and `data-row` (its
place among `line_costs`). `PICK_JS` and `HIGHLIGHT_JS` are what a page does with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import traitlets
from ipywidgets import HTML, Layout, Text, VBox

from kit.run import Run
from kit.run_lines import PHASES, LineCost, line_costs, place_of
from kit.widgets.selection import NOTHING, Links, Selection
from kit.widgets.source_text import code_html, listing
from kit.widgets.tables import (
    FONT,
    INK,
    LINE,
    MONO,
    MUTED,
    PANEL,
    TRACK,
    safe_text,
    section,
    sentence,
)
from kit.widgets.theme import COLORS, error_html

__all__ = ["HIGHLIGHT_JS", "PICK_JS", "SourceView", "source_html"]

MAX_FILES = 12
MAX_LINES = 400  # with a cost, the dearest
HEIGHT_PX = 620

# Body of a function of (event): {nodes: Set, sites: Set, label} of the line that a click, Enter or
# the space bar has picked in a listing; null for any other event.
PICK_JS = """
const row = event.target.closest && event.target.closest("[data-row]");
if (!row || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return null;
if (event.type === "click" && String(window.getSelection())) return null; // text is being copied
if (event.type === "keydown") event.preventDefault();
const nodes = new Set();
for (const part of (row.dataset.nodes || "").split(",").filter(Boolean)) {
  const [first, last] = part.split("-").map(Number);
  for (let i = first; i <= (last ?? first); i += 1) nodes.add(i);
}
const site = row.dataset.site;
return {nodes, sites: new Set(site ? [site] : []), label: site};
"""

# Body of a function of (root, selection): marks the lines of a listing that belong to a selection
# {nodes, sites}; scrolls only if none of them can be seen.
HIGHLIGHT_JS = """
const rows = [...root.querySelectorAll("[data-row]")];
const holds = (text) => text.split(",").filter(Boolean).some((part) => {
  const [first, last] = part.split("-").map(Number);
  for (let i = first; i <= (last ?? first); i += 1) if (selection.nodes.has(i)) return true;
  return false;
});
const found = rows.filter((row) => selection.sites.has(row.dataset.site)
  || (selection.nodes.size > 0 && holds(row.dataset.nodes || "")));
rows.forEach((row) => {
  row.classList.toggle("kit-picked", found.includes(row));
  row.setAttribute("aria-selected", String(found.includes(row)));
});
if (found.length) {
  const box = found[0].closest(".kit-source-lines");
  const [low, high] = [box.scrollTop, box.scrollTop + box.clientHeight];
  const top = (row) => row.offsetTop - box.offsetTop;
  if (!found.some((row) => top(row) + row.offsetHeight > low && top(row) < high)) {
    box.scrollTop = top(found[0]) - box.clientHeight / 3;
  }
}
"""

_COLUMNS = "5px 46px 80px 80px 80px minmax(260px, 1fr)"
_STYLE = f"""<style>
.kit-source-view .widget-html-content {{min-width:0}}
.kit-source-lines {{max-height:{HEIGHT_PX}px;overflow:auto;position:relative;
  border:1px solid {LINE};border-radius:6px;
  background:{PANEL};color:{INK};font:12px/1.6 {MONO}}}
.kit-source-lines .kit-line {{display:grid;grid-template-columns:{_COLUMNS};min-width:max-content}}
.kit-source-lines .kit-line > span {{padding:0 8px;white-space:pre;text-align:right;
  position:relative;font-variant-numeric:tabular-nums}}
.kit-source-lines .kit-line > .kit-heat {{padding:0}}
.kit-source-lines .kit-line > .kit-number {{color:{MUTED};padding:0 6px 0 4px}}
.kit-source-lines .kit-line > .kit-code {{text-align:left;padding-left:14px}}
.kit-source-lines [data-row] {{cursor:pointer}}
.kit-source-lines [data-row]:hover {{background:{TRACK}}}
.kit-source-lines [data-row]:focus-visible {{outline:2px solid #2f6db5;outline-offset:-2px}}
.kit-source-lines .kit-head {{position:sticky;top:0;z-index:1;background:{PANEL};color:{MUTED};
  border-bottom:1px solid {LINE};font-family:{FONT};padding:3px 0}}
.kit-source-lines .kit-file {{font-family:{FONT};padding:7px 10px 3px;border-top:1px solid {LINE}}}
.kit-source-lines .kit-file:first-of-type {{border-top:0}}
.kit-source-lines .kit-gap, .kit-source-lines summary {{color:{MUTED};font-family:{FONT};
  font-size:11px;padding:1px 10px 1px 66px;cursor:default}}
.kit-source-lines summary {{cursor:pointer}}
.kit-source-lines i {{position:absolute;right:8px;bottom:0;height:3px;border-radius:2px}}
.kit-source-lines b.kit-k {{font-weight:600}}
.kit-source-lines .kit-s {{color:#2a7d5f}}
.kit-source-lines .kit-c {{color:{MUTED};font-style:italic}}
.kit-source-lines .kit-wait {{color:{COLORS["wait"]};font-family:{FONT};display:block}}
.kit-source-lines .kit-picked {{background:#f5b12e44;box-shadow:inset 0 0 0 1px #c98a12}}
</style>"""


def source_html(run: Run) -> str:
    """The lines of the program that cost something, with some around them, file by file.

    Everything that comes from the program is escaped.
    """
    rows = line_costs(run)
    if not any(row.site for row in rows) and not run.sources:
        return section("Source lines", sentence("No line of the program is known in this run."))
    return section("Source lines", _STYLE + _table(run, rows) + sentence(_note(run, rows)))


def _table(run: Run, rows: Sequence[LineCost]) -> str:
    most = _Most(rows)
    shown = set(sorted(range(len(rows)), key=lambda i: -rows[i].total_ms)[:MAX_LINES])
    of_file: dict[str, dict[int, int]] = {}
    for i, row in enumerate(rows):
        if row.site and i in shown:
            file, line = place_of(row.site)
            of_file.setdefault(file, {})[line] = i
    for snippet in run.sources:
        of_file.setdefault(snippet.file, {})
    parts = []
    for file, costs in list(of_file.items())[:MAX_FILES]:
        parts.append(_file_head(file, [rows[i] for i in costs.values()]))
        for piece in listing(file, costs, run.sources):
            parts.append(piece if isinstance(piece, str) else _folded(
                [_line(number, text, rows, costs.get(number, -1), most)
                 for number, text in piece.lines], piece.is_folded))  # fmt: skip
    return (
        '<div class="kit-source-lines" role="grid" aria-label="source lines and what they cost" '
        f'data-lm-suppress-shortcuts="true" tabindex="-1">{_HEAD}{"".join(parts)}</div>'
    )


class _Most:
    """What the longest bar of each column stands for."""

    def __init__(self, rows: Iterable[LineCost]) -> None:
        known = [row for row in rows if row.site]
        self.record = max((row.recording_ms for row in known), default=0.0)
        self.device = max((row.device_ms for row in known), default=0.0)
        self.wait = max((row.wait_ms for row in known), default=0.0)
        self.total = max((row.total_ms for row in known), default=0.0)


_HEADS = ("line", "record ms", "device ms", "wait ms")
_HEAD = (
    '<div class="kit-line kit-head" role="row"><span class="kit-heat"></span>'
    + "".join(f'<span role="columnheader">{text}</span>' for text in _HEADS)
    + '<span class="kit-code" role="columnheader"></span></div>'
)


def _file_head(file: str, rows: Sequence[LineCost]) -> str:
    sums = " · ".join(
        f"{name} {_ms(sum(getattr(row, field) for row in rows)) or '0'}"
        for name, field in (("record", "recording_ms"), ("device", "device_ms"),
                            ("wait", "wait_ms"))
    )  # fmt: skip
    costs = f'<span style="color:{MUTED}"> {sums} ms a step</span>' if rows else ""
    return f'<div class="kit-file" role="row"><b>{safe_text(file, 80)}</b>{costs}</div>'


def _folded(lines: Sequence[str], is_folded: bool) -> str:
    if not is_folded:
        return "".join(lines)
    return f"<details><summary>{len(lines)} lines without cost</summary>{''.join(lines)}</details>"


def _line(number: int, text: str | None, rows: Sequence[LineCost], i: int, most: _Most) -> str:
    code = f'<span style="color:{MUTED}">(its text was not kept)</span>'
    code = code if text is None else code_html(text)
    if i < 0:
        return (
            f'<div class="kit-line" role="row"><span></span><span class="kit-number">{number}'
            f'</span><span></span><span></span><span></span><span class="kit-code">{code}</span>'
            "</div>"
        )
    row = rows[i]
    heat = row.total_ms / most.total if most.total else 0.0
    cells = "".join((
        f'<span class="kit-heat" style="background:rgba(214,90,40,{0.06 + 0.94 * heat:.2f})">'
        "</span>",
        f'<span class="kit-number">{number or ""}</span>',
        f'<span role="gridcell">{_ms(row.recording_ms)}{_phases_bar(row, most.record)}</span>',
        f'<span role="gridcell">{_ms(row.device_ms)}'
        f'{_bar(row.device_ms, most.device, COLORS["kernel"])}</span>',
        f'<span role="gridcell">{_ms(row.wait_ms)}'
        f'{_bar(row.wait_ms, most.wait, COLORS["wait"])}</span>',
        f'<span class="kit-code" role="gridcell">{code}{_sync(row)}</span>',
    ))  # fmt: skip
    return (
        f'<div class="kit-line" role="row" tabindex="0" data-row="{i}" '
        f'data-site="{safe_text(row.site, 400)}" data-nodes="{_ranges(row.nodes)}" '
        f'title="{_title(row)}">{cells}</div>'
    )


def _sync(row: LineCost) -> str:
    if not row.syncs:
        return ""
    often = "once a step" if row.syncs == 1 else f"{row.syncs:.3g} times a step"
    idle = f", then the device is idle for {_ms(row.idle_ms)} ms" if row.idle_ms >= 5e-4 else ""
    causes = "; ".join(safe_text(cause, 120) for cause in row.causes[:3])
    return (
        f'<span class="kit-wait">&#9660; sync point, {often}: waits '
        f"{_ms(row.wait_ms) or '0'} ms{idle} ({causes})</span>"
    )


def _title(row: LineCost) -> str:
    parts = [f"{phase} {row.record_ms[phase]:.3f}" for phase in PHASES if row.record_ms[phase]]
    record = f"recording: {', '.join(parts)} ms; " if parts else ""
    return (
        f"{safe_text(row.site, 100)}: {record}{len(row.nodes):,} ops. Click to show them elsewhere"
    )


def _phases_bar(row: LineCost, most: float) -> str:
    """One thin bar in the colours of the phases."""
    whole = row.recording_ms
    if not whole or not most:
        return ""
    stops, at = [], 0.0
    for phase in PHASES:
        until = at + 100 * row.record_ms[phase] / whole
        if until > at:
            stops.append(f"{COLORS[phase]} {at:.1f}% {until:.1f}%")
        at = until
    return _bar(whole, most, f"linear-gradient(90deg,{','.join(stops)})")


def _bar(value: float, most: float, color: str) -> str:
    width = 68 * value / most if most else 0.0
    return f'<i style="width:{width:.1f}px;background:{color}"></i>' if width >= 0.5 else ""


def _ms(value: float) -> str:
    """Milliseconds, three figures; "" for what is less than half a microsecond."""
    if not value >= 5e-4:
        return ""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def _ranges(nodes: Sequence[int]) -> str:
    """`3, 4, 5, 9` as "3-5,9"."""
    parts: list[list[int]] = []
    for i in sorted(nodes):
        if parts and parts[-1][1] == i - 1:
            parts[-1][1] = i
        else:
            parts.append([i, i])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in parts)


def _note(run: Run, rows: Sequence[LineCost]) -> str:
    how = (
        "timed op by op in a traced step"
        if any(t >= 0 for t in run.recorded_ns)
        else "divided by the number of ops, because this run was not timed op by op"
    )
    text = (
        f"Recording: {how}; an op of the backward pass belongs to the line of its forward op. "
        "Device: where kernels overlap their time is divided. Waits are those of the measured "
        "steps. The three overlap in time."
    )
    rest = next((row for row in rows if not row.site), None)
    if rest is not None and (rest.total_ms >= 5e-4 or rest.syncs):
        text += (
            f" Of no known line: recording {_ms(rest.recording_ms) or '0'} ms, device "
            f"{_ms(rest.device_ms) or '0'} ms, wait {_ms(rest.wait_ms) or '0'} ms."
        )
    if len(rows) > MAX_LINES:
        text += f" The {MAX_LINES} dearest of {len(rows):,} lines are shown."
    return text


# What a listing in a notebook does: its number goes through a hidden text field to the kernel.
_HANDLER = (
    "const picked = ((event) => {" + PICK_JS + "})(event); if (!picked) return;"
    "const view = this.closest('.kit-source-view');"
    "const field = view && view.querySelector('.kit-source-pick input'); if (!field) return;"
    "view.dataset.picks = Number(view.dataset.picks || 0) + 1;"
    "field.value = event.target.closest('[data-row]').dataset.row + ' ' + view.dataset.picks;"
    "for (const name of ['input', 'change']) field.dispatchEvent(new Event(name, {bubbles: true}));"
)


class SourceView(VBox):
    """The lines of `run` with their costs; assigning `run` redraws. A click sets `selection`."""

    run = traitlets.Instance(Run, allow_none=True)
    selection = traitlets.Instance(Selection)

    def __init__(self, run: Run | None = None) -> None:
        self.listing = HTML(layout=Layout(width="auto"))
        self._marks = HTML(layout=Layout(display="none"))
        self._field = Text(layout=Layout(display="none"))
        self._field.add_class("kit-source-pick")
        self._field.observe(self._picked, "value")
        self._rows: tuple[LineCost, ...] = ()
        self._links = Links(None)
        super().__init__([self.listing, self._marks, self._field], run=run, selection=NOTHING)
        self.add_class("kit-source-view")
        self.add_class(self._name)

    @property
    def _name(self) -> str:
        return f"kit-source-{self.model_id}"

    @traitlets.observe("run")
    def _draw(self, change: dict[str, Any]) -> None:
        run = change["new"]
        self.selection = NOTHING
        self._links = Links(run)
        try:
            self._rows = () if run is None else line_costs(run)
            handler = safe_text(_HANDLER, 10_000)
            body = "" if run is None else source_html(run)
            self.listing.value = (
                f'<div onclick="{handler}" onkeydown="{handler}">{body}</div>' if body else ""
            )
        except Exception as error:  # noqa: BLE001 - shown in the view, the cell stays alive
            self._rows = ()
            self.listing.value = error_html("source lines", error)

    @traitlets.observe("selection")
    def _mark(self, change: dict[str, Any]) -> None:
        """By a style that names rows, so that the listing keeps its focus and its place."""
        picked: Selection = change["new"]
        rows = [i for i, row in enumerate(self._rows) if row.site in picked.sites and row.site]
        self._marks.value = _marks(self._name, rows) if rows else ""

    def _picked(self, change: dict[str, Any]) -> None:
        number = re.match(r"\d{1,9}(?= )", change["new"])
        if number is None or int(number[0]) >= len(self._rows):
            return
        site = self._rows[int(number[0])].site
        again = self.selection.sites == {site}
        self.selection = NOTHING if again else self._links.of_site(site)


def _marks(name: str, rows: Sequence[int]) -> str:
    """A style for these rows, and an image whose failure scrolls there; both hold only numbers."""
    where = ", ".join(f".{name} [data-row='{i}']" for i in rows)
    scroll = (
        f"for (const view of document.querySelectorAll('.{name}')) {{"
        f"const found = {list(rows)}.map((i) => view.querySelector(`[data-row='${{i}}']`))"
        ".filter(Boolean); if (!found.length) continue;"
        "const box = found[0].closest('.kit-source-lines');"
        "const top = (row) => row.offsetTop, low = box.scrollTop, high = low + box.clientHeight;"
        "if (!found.some((row) => top(row) + row.offsetHeight > low && top(row) < high))"
        "box.scrollTop = top(found[0]) - box.clientHeight / 3; }"
    )
    return (
        f"<style>{where} {{background:#f5b12e44;box-shadow:inset 0 0 0 1px #c98a12}}</style>"
        f'<img alt="" src="data:," onerror="{safe_text(scroll, 100_000)}">'
    )
