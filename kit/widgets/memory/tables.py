"""Memory as HTML: variants side by side, what each op writes, and the section of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from kit.ir import ROLES
from kit.ir.names import short_op
from kit.runs.analysis.memory import (
    MemoryReport,
    OpMemory,
    VariantMemory,
    memory,
    memory_by_op,
    variant_memory,
)
from kit.runs.run import Run
from kit.text import capital, format_bytes, format_count, format_ns, format_percent, safe_html
from kit.widgets.base.listing import Drawn
from kit.widgets.base.selection import Links
from kit.widgets.base.tables import (
    MUTED,
    TRACK,
    amount,
    bar_html,
    folded,
    keys_html,
    not_shown,
    place_html,
    section,
    sentence,
    swatch,
    table,
    unbroken,
)
from kit.widgets.base.theme import COLORS, KEPT, tint
from kit.widgets.compare.data import run_labels
from kit.widgets.memory.data import (
    HOLDS,
    MAX_BARS,
    counted_text,
    held_name,
    holder_groups,
    memory_payload,
    unseen_inside,
)
from kit.widgets.memory.measured import measured_html, measured_line

__all__ = ["by_op_drawn", "memory_drawn", "variant_labels", "variants_html"]

MAX_ROWS = 14
_LEAST_PX = 700  # of a table with many columns
_WIDE, _HIGH = 1000, 170  # of the report's picture, in its own units
_NO_PARTS = (math.nan, math.nan)
_SEVERAL = {"parameter": "parameters", "number": "numbers"}
_PHASES = (COLORS["forward"], COLORS["backward"])
_SHADE = tint(COLORS["kernel"], 0.5)


def variants_html(runs: Sequence[Run]) -> str:
    """A row for each run: time, and what it writes and holds; ratios are to the first."""
    rows = [variant_memory(run) for run in runs]
    heads = ("variant", "step", "device", "ops", "buffers", "written", "peak", "temporary")
    labels = variant_labels(runs)
    cells = [_variant(label, row, rows) for label, row in zip(labels, rows, strict=True)]
    body = table(heads, cells, "lrrrrrrr", widths=(15, 11, 19, 8, 9, 18, 10, 10),
                 least_px=_LEAST_PX)  # fmt: skip
    notes = (
        "Step: median of untraced steps, by the clock. Device: the kernels' time in a traced step; "
        f"{swatch(COLORS['forward'])}forward, {swatch(COLORS['backward'])}backward. Bytes are "
        "modelled from the graph: each op writes what it makes. 2× is half of the first row."
    )
    inside = sorted({op for run in runs for graph in run.graphs for op in unseen_inside(graph)})
    if inside:
        notes += f" Not counted: what {safe_html(', '.join(inside))} makes inside."
    return section("Variants: time, and the memory that they write", body + sentence(notes))


def variant_labels(runs: Sequence[Run]) -> list[str]:
    """What tells the runs apart, in words; what all of their names begin with is left out."""
    labels = run_labels(runs)
    words = [re.split(r"(?<=[:,]) ", label) for label in labels]
    shared = 0
    while len(runs) > 1 and all(w[: shared + 1] == words[0][: shared + 1] for w in words):
        shared += 1
        if shared == min(map(len, words)):
            return labels
    return [" ".join(w[shared:]) for w in words]


def _variant(label: str, row: VariantMemory, rows: Sequence[VariantMemory]) -> list[str]:
    first = rows[0]
    texts: list[tuple[str, Callable[[float], str], tuple[float, float]]] = [
        ("step_ms", lambda ms: _time(ms * 1e6), _NO_PARTS),
        ("device_ns", _time, (row.forward_ns, row.backward_ns)),
        ("ops", _count, _NO_PARTS),
        ("buffers", _count, _NO_PARTS),
        ("written", _bytes, (row.forward_written, row.backward_written)),
        ("peak", _bytes, _NO_PARTS),
        ("temporary", _bytes, _NO_PARTS),
    ]
    cells = [f"<b>{unbroken(safe_html(label, 60))}</b>"]
    for name, form, parts in texts:
        now, base = getattr(row, name), getattr(first, name)
        is_ratio = row is not first and now > 0 and base > 0
        ratio = f"{amount(base / now)}×" if is_ratio else "&nbsp;"
        most = max((getattr(r, name) for r in rows if getattr(r, name) > 0), default=0.0)
        bar = _bar(now, parts, most) if most and now == now else ""
        more = "".join(
            f'<span style="white-space:nowrap;margin-left:8px">{swatch(color)}{form(part)}</span>'
            for part, color in zip(parts, _PHASES, strict=True)
            if part == part
        )
        cells.append(
            f'<div style="white-space:nowrap">{form(now)}</div>{bar}'
            f'<div style="color:{MUTED};font-size:11px">{ratio}</div>'
            + (f'<div style="color:{MUTED};font-size:11px">{more}</div>' if more else "")
        )
    return cells


def _bar(now: float, parts: tuple[float, float], most: float) -> str:
    """A thin bar; where forward and backward are known, in the colours of both."""
    if parts[0] != parts[0]:
        return bar_html(now / most, _SHADE)
    pieces = "".join(
        f'<div style="height:3px;background:{color};width:{100 * part / most:.1f}%"></div>'
        for part, color in zip(parts, _PHASES, strict=True)
    )
    return (
        f'<div style="height:3px;border-radius:2px;background:{TRACK};margin-top:2px;'
        f'display:flex;overflow:hidden;{KEPT}">{pieces}</div>'
    )


def _time(ns: float) -> str:
    return format_ns(ns) if ns > 0 else "–"  # no kernel is known to compute it


def _bytes(size: float) -> str:
    return format_bytes(size, "–")


def _count(n: float) -> str:
    return "–" if math.isnan(n) else f"{n:,.0f}"


def by_op_drawn(run: Run, *, first: int = 0) -> Drawn:
    """What each op of each phase writes beside the device's time for it, behind a line.

    Args:
        first: number of its first row in the listing that it is part of.

    Raises:
        GraphError: the run has no graph.
    """
    rows, links = memory_by_op(run), Links(run)
    picks = [links.of_nodes(r.nodes, f"{short_op(r.op)}, {r.phase}") for r in rows[:MAX_ROWS]]
    total = sum(r.written for r in rows)
    line = f"What writes: {format_bytes(total)} a step, by op"
    shown = [_op(r, rows) for r in rows[:MAX_ROWS]]
    shown.append(["<b>all</b>", "", f"<b>{sum(len(r.nodes) for r in rows):,}</b>",
                  f"<b>{sum(r.buffers for r in rows):,}</b>", f"<b>{format_bytes(total)}</b>",
                  f"<b>{_time(sum(r.device_ns for r in rows))}</b>"])  # fmt: skip
    heads = ("op", "phase", "nodes", "buffers", "written", "device")
    body = table(heads, shown, "llrrrr", widths=(36, 14, 10, 10, 15, 15), has_total=True,
                 picks=enumerate(picks, first), least_px=_LEAST_PX)  # fmt: skip
    rest = len(rows) - MAX_ROWS
    more = f"The sum has {format_count(rest, 'more op')}. " if rest > 0 else ""
    note = (
        f"{more}Views write nothing and are left out. Device: the ops' shares of the kernels "
        "that compute them."
    )
    return folded(line, body + sentence(note)), picks


def _op(row: OpMemory, rows: Sequence[OpMemory]) -> list[str]:
    color = COLORS.get(row.phase, MUTED)
    mark = swatch(color)
    slowest = max((r.device_ns for r in rows if r.device_ns > 0), default=0.0)
    return [
        f'<div style="overflow-wrap:anywhere">{mark}{safe_html(short_op(row.op))}</div>',
        safe_html(row.phase),
        f"{len(row.nodes):,}",
        f"{row.buffers:,}",
        format_bytes(row.written) + bar_html(row.written / max(rows[0].written, 1), _SHADE),
        _time(row.device_ns)
        + (bar_html(row.device_ns / slowest, COLORS["kernel"]) if slowest else ""),
    ]


def memory_drawn(run: Run) -> Drawn:
    """The section of a report: live bytes as a picture, what holds the peak, what each op writes.

    It is behind a line that a click opens; nothing for a run without a graph or a count.
    """
    if run.graphs:
        return _modelled(run, memory(run))
    if run.memory:
        said = section("Memory, measured", measured_html(run))
        return folded(f"Memory, {measured_line(run)}", said), []
    if "memory.live_bytes" not in run.metrics:
        return "", []
    told = "Memory is modelled from the recorded graph; this run has none." + _counted(run)
    return folded(f"Memory: {counted_text(run)}", section("Memory", sentence(told))), []


def _modelled(run: Run, report: MemoryReport) -> Drawn:
    line = (
        f"Memory: at most {format_bytes(report.peak)} live, {format_bytes(report.allocated)} "
        f"written in {format_count(report.allocations, 'buffer')} a step"
    )
    drawn = _picture(memory_payload(run)) + _key(len(report.nodes))
    holders, held = _holders(run, report)
    by_op, written = by_op_drawn(run, first=len(held))
    said = sentence(_verdict(run, report) + _counted(run))
    return folded(line, section("Memory", said + drawn + holders + by_op)), [*held, *written]


def _counted(run: Run) -> str:
    """What was measured beside the model, as a sentence of its own."""
    text = counted_text(run)
    return f" {capital(text)}." if text else ""


def _verdict(run: Run, report: MemoryReport) -> str:
    text = (
        f"Modelled from the graph: a step writes {format_bytes(report.allocated)} in "
        f"{format_count(report.allocations, 'buffer')}; {format_bytes(report.variables)} are "
        f"variables, there all the time{_by_role(report)}."
    )
    if report.peak_node < 0:
        return text
    node = run.graphs[0].nodes[report.peak_node]
    where = f" at {safe_html(node.site, 60)}" if node.site else ""
    text = (
        f"At most {format_bytes(report.peak)} are live at once: in the {safe_html(node.phase)} "
        f"phase, at {safe_html(short_op(node.op))}{where}. {text}"
    )
    if inside := unseen_inside(run.graphs[0]):
        text += f" Not counted: what {safe_html(', '.join(inside))} makes inside."
    return text


def _by_role(report: MemoryReport) -> str:
    """` (optimizer state 8.2 MB, parameters 4.1 MB)`: what the variables are, the largest first."""
    sizes = {role: sum(h.bytes for h in report.values if h.role == role) for role in ROLES}
    told = sorted(((size, role) for role, size in sizes.items() if size), reverse=True)
    named = (f"{_SEVERAL.get(role, role)} {format_bytes(size)}" for size, role in told)
    return f" ({', '.join(named)})" if told else ""


def _picture(payload: dict[str, dict[str, list[float]]]) -> str:
    """The area as SVG, with steps as in the live view."""
    area, end = payload["area"], float(payload["end"])  # type: ignore[arg-type]
    ops = float(payload["ops"])  # type: ignore[arg-type]

    def y(v: float) -> str:
        return f"{_HIGH * (1 - v / end):.1f}"

    def x(v: float) -> str:
        return f"{_WIDE * v / ops:.1f}"

    shapes = ""
    for color, top in reversed(
        list(zip(HOLDS.values(), ("variables", "kept", "live"), strict=True))
    ):
        steps = [
            f"{x(left)},{y(v)} {x(right)},{y(v)}"
            for left, right, v in zip(area["left"], area["right"], area[top], strict=True)
        ]
        shapes += f'<polygon fill="{color}" points="0,{_HIGH} {" ".join(steps)} {_WIDE},{_HIGH}"/>'
    phases = payload["phases"]
    for left, right, shade in zip(phases["left"], phases["right"], phases["color"], strict=True):
        shapes += (
            f'<rect x="{x(left)}" y="{_HIGH + 3}" width="{x(right - left)}" height="7" '
            f'fill="{shade}"/>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH + 10}" preserveAspectRatio="none" role="img" '
        f'aria-label="live bytes over the program" style="width:100%;height:{_HIGH + 10}px;'
        f'display:block;margin:6px 0 2px">{shapes}</svg>'
    )


def _key(ops: int) -> str:
    """What the colours of the picture mean."""
    phases = {name: COLORS[name] for name in ("forward", "backward", "update")}
    parts = keys_html({**HOLDS, **phases})
    many = "; several share a bar, the fullest is shown" if ops > MAX_BARS else ""
    return (
        f'<div style="font-size:11.5px;color:{MUTED};margin-bottom:8px">{parts}<br>'
        f"left to right: ops in program order{many}</div>"
    )


def _holders(run: Run, report: MemoryReport) -> Drawn:
    links, rows, picks, groups = Links(run), [], [], holder_groups(report)
    for kind, values in groups:
        size, first = sum(h.bytes for h in values), values[0]
        share = size / max(report.peak, 1)
        picks.append(links.of_nodes((h.node for h in values), held_name(first)))
        rows.append(
            [
                f"{swatch(HOLDS[kind])}{len(values):,} × {safe_html(held_name(first))}",
                place_html(first.site or first.scope, 60) or ROLES.get(first.role, ""),
                kind,
                format_bytes(size),
                format_percent(share) + bar_html(share, HOLDS[kind]),
            ]
        )
    shown = {id(h) for _, values in groups for h in values}
    rest = [h for h in report.holders if id(h) not in shown]
    held = sum(h.bytes for h in rest)
    note = not_shown(len(rest), "smaller value", f", {format_bytes(held)} of the peak")
    made = table(("holds the peak", "line", "is", "bytes", "share"), rows, "lllrr",
                 widths=(30, 27, 19, 12, 12), picks=enumerate(picks), least_px=540)  # fmt: skip
    return made + sentence(note), picks
