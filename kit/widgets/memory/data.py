"""What the memory view shows, as plain columns: live bytes over the program, holders of the peak.

`memory_payload` reads one run; everything in it is modelled from the graph, see `kit.memory`, but
for what the device's allocator counted, which stands beside it. Text of a user's program is made
safe here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

import numpy as np

from kit.ir import RECURRENT, ROLES, Graph
from kit.ir.names import short_op
from kit.runs.analysis.memory import Holder, MemoryReport, memory
from kit.runs.analysis.nodes import node_ns
from kit.runs.device.flops import runs_program
from kit.runs.labels import is_on_cpu
from kit.runs.run import Run
from kit.text import format_bytes, format_count, format_ns, format_percent, safe_label
from kit.trace.intervals import joined
from kit.widgets.base.theme import COLORS, HELD, MUTED, tint

__all__ = ["HOLDS", "MAX_BARS", "NO_GRAPH", "counted_text", "held_name",
           "holder_groups", "mark_columns", "memory_payload", "unseen_inside"]  # fmt: skip

MAX_BARS = 1200  # of the area; more ops than that share one
_MAX_HOLDERS = 10
_MAX_LINE = 60  # letters of a note's line that fit on a phone
_MAX_PEAK = 44  # letters at the peak, that a phone has room for
# In the middle of a figure, also of one on a phone.
NO_GRAPH = "memory is modelled from the recorded\ngraph, and this run has none"
MEASURED_ONLY = "nothing is modelled: this run has no\nrecorded graph. What was measured is above"
# What holds memory -> its colour, from the bottom of the area to its top. Not the phases' hues.
HOLDS = {
    "variables": HELD,
    "kept beyond its segment": tint(COLORS["kernel"], 0.38),
    "temporary": "#b07fd0",
}
_VARIABLE, _KEPT, _TEMPORARY = HOLDS
# Their rules are loops: what these make is no value of the graph.
_LAYERS = frozenset(f"kit.{kind}{way}.default" for kind in RECURRENT for way in ("", "_backward"))
_AREA = ("left", "right", "variables", "kept", "live", "color", "op", "site", "scope",
         "phase", "all", "own", "written", "time", "nodes")  # fmt: skip
_NO_BANDS: dict[str, list[Any]] = {"x": [], "variables": [], "kept": [], "live": []}
_PHASES = ("left", "right", "top", "bottom", "color")
_MARKS = ("left", "right", "top", "bottom", "alpha")
_BARS = ("top", "bottom", "right", "middle", "color", "text", "whole", "size", "op", "site",
         "scope", "kind", "life", "nodes")  # fmt: skip


def memory_payload(run: Run | None, most: float = 0.0) -> dict[str, Any]:
    """Everything that the figures show of a run.

    Keys: `area`, `bands`, `phases`, `peak`, `bars`, `message` (columns), `title`, `note`, `unit`,
    `end` (of the y axis), `ops`, `rows`.

    Args:
        most: bytes that the y axis has to reach beside the run's own peak, so that runs compare.
    """
    if run is None or not run.graphs:
        return _nothing(run)
    report, graph = memory(run), run.graphs[0]
    top = max(report.peak, most, 1.0)
    scale, unit = next(
        ((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if top >= s), (1.0, "bytes")
    )
    end = 1.16 * top / scale
    groups = holder_groups(report)
    area = _area(report, graph, node_ns(run), scale)
    edges = zip(area["left"], area["right"], strict=True)
    bands = {"x": [x for edge in edges for x in edge]}  # a step for each op
    for name in ("variables", "kept", "live"):
        bands[name] = [v for v in area[name] for _ in range(2)]
    bars = _bars(groups, report)
    return {
        "area": area,
        "bands": bands,
        "phases": _phases(report, graph, end),
        "peak": _peak(report, graph, scale),
        "bars": bars,
        "message": {"x": [], "y": [], "text": []},
        "title": f"live memory ({report.origin})",
        "note": _note(run, report, graph, len(area["left"])),
        "unit": unit,
        "end": end,
        "ops": max(len(report.nodes), 1),
        "rows": max(len(groups), 1),
    }


def _nothing(run: Run | None) -> dict[str, Any]:
    text = "no run" if run is None else MEASURED_ONLY if run.memory else NO_GRAPH
    return {
        "area": _columns(_AREA, ()),
        "bands": _NO_BANDS,
        "phases": _columns(_PHASES, ()),
        "peak": {"x": [], "y": [], "text": [], "align": []},
        "bars": _columns(_BARS, ()),
        "message": {"x": [0.5], "y": [0.5], "text": [text]},
        "title": "live memory",
        "note": "" if run is None else _lines(_name(run), counted_text(run)),
        "unit": "bytes",
        "end": 1.0,
        "ops": 1,
        "rows": 1,
    }


def _name(run: Run) -> str:
    return safe_label(", ".join(x for x in (run.name, f"mode {run.settings.mode}") if x), 80)


def counted_text(run: Run) -> str:
    """What the device's allocator has counted beside the model, in words; "" if nobody can say."""
    in_use = run.metrics.get("memory.live_bytes")
    if in_use is None:
        return "measured: nothing, a CPU's allocator does not count" if is_on_cpu(run) else ""
    text = f"measured: {format_bytes(in_use)} in use after the steps"
    if (peak := run.metrics.get("memory.peak_bytes")) is not None:
        text += f", peak {format_bytes(peak)} with warm-up and compiling"
    elif (bound := run.metrics.get("memory.peak_bound")) is not None:
        text += f", peak not above the {format_bytes(bound)} of before the run"
    return f"{text} (of the whole process, on one device)"


def unseen_inside(graph: Graph) -> list[str]:
    """Ops of the graph that make values inside, which no model of the graph can count."""
    return sorted({n.op for n in graph.nodes if n.op in _LAYERS or runs_program(n)})


def _area(
    report: MemoryReport,
    graph: Graph,
    times: Mapping[int, float],
    scale: float,
) -> dict[str, list[Any]]:
    """A bar for each op; where there are too many, for several, and it shows the fullest."""
    rows = []
    count = len(report.nodes)
    each = max(-(-count // MAX_BARS), 1)
    for start in range(0, count, each):
        stop = min(start + each, count)
        at = max(range(start, stop), key=lambda k: report.live[k])
        node = graph.nodes[report.nodes[at]]
        live, own = report.live[at], report.temporary[at]
        members = list(report.nodes[start:stop])
        ns = sum(times.get(i, 0.0) for i in members)
        rows.append({
            "left": start, "right": stop,
            "variables": report.variables / scale, "kept": (live - own) / scale,
            "live": live / scale,
            "color": COLORS.get(node.phase, MUTED),
            "op": short_op(node.op) + (f" (fullest of {stop - start})" if each > 1 else ""),
            "site": safe_label(node.site or "unknown"), "scope": safe_label(node.scope or "none"),
            "phase": node.phase, "all": format_bytes(live), "own": format_bytes(own),
            "written": format_bytes(sum(report.written[start:stop])),
            "time": format_ns(ns) if ns else "unknown", "nodes": members,
        })  # fmt: skip
    return _columns(_AREA, rows)


def _columns(names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in names}


def _phases(report: MemoryReport, graph: Graph, end: float) -> dict[str, list[Any]]:
    """The strip under the area."""
    rows, right = [], 0
    for color, ops in groupby(COLORS.get(graph.nodes[i].phase, MUTED) for i in report.nodes):
        left, right = right, right + len(list(ops))
        rows.append({"left": left, "right": right, "top": -0.012 * end, "bottom": -0.05 * end,
                     "color": color})  # fmt: skip
    return _columns(_PHASES, rows)


def _peak(report: MemoryReport, graph: Graph, scale: float) -> dict[str, list[Any]]:
    if report.peak_node < 0:
        return {"x": [], "y": [], "text": [], "align": []}
    node = graph.nodes[report.peak_node]
    at = report.nodes.index(report.peak_node)
    size = format_bytes(report.peak)
    text = f"peak {size}: {', '.join(filter(None, (short_op(node.op), safe_label(node.site, 40))))}"
    if len(text) > _MAX_PEAK:  # the card at the pointer has the op
        text = f"peak {size}: {safe_label(node.site or short_op(node.op), _MAX_PEAK - 14)}"
    share = at / max(len(report.nodes), 1)
    align = "left" if share < 0.3 else "right" if share > 0.7 else "center"
    return {"x": [at + 0.5], "y": [report.peak / scale], "text": [text], "align": [align]}


def _note(run: Run, report: MemoryReport, graph: Graph, bars: int) -> str:
    parts = [
        f"{format_bytes(report.allocated)} written in {format_count(report.allocations, 'buffer')}"
    ]
    if bars < len(report.nodes):
        parts.append(f"each bar is the fullest of {-(-len(report.nodes) // bars)} ops")
    if inside := unseen_inside(graph):
        parts.append(f"not counted: what {', '.join(inside)} makes inside")
    return _lines(_name(run), *parts, counted_text(run))


def _lines(*texts: str) -> str:
    """The texts one under the other, in lines that fit on a phone."""
    return "\n".join(line for text in texts for line in wrap(text, _MAX_LINE))


def holder_groups(report: MemoryReport) -> list[tuple[str, list[Holder]]]:
    """Which values hold the peak: (kind, values of one op and line), the largest group first.

    Variables are in groups of one role: parameters, optimizer state, and so on.
    """
    groups: dict[tuple[str, str, str], list[Holder]] = defaultdict(list)
    for h in report.holders:
        kind = _VARIABLE if h.role else _KEPT if h.is_kept else _TEMPORARY
        groups[kind, held_name(h), h.site].append(h)
    found = [(kind, values) for (kind, _, _), values in groups.items()]
    return sorted(found, key=lambda g: -sum(h.bytes for h in g[1]))[:_MAX_HOLDERS]


def held_name(holder: Holder) -> str:
    """What a value is called: by its role, or by the op that makes it."""
    return holder.role or short_op(holder.op)


def _bars(
    groups: Sequence[tuple[str, list[Holder]]],
    report: MemoryReport,
) -> dict[str, list[Any]]:
    rows = []
    for n, (kind, values) in enumerate(groups):
        first, size = values[0], sum(h.bytes for h in values)
        count = f"{len(values):,} × " if len(values) > 1 else ""
        place = safe_label(first.site or first.scope, 48)
        name = f"{count}{held_name(first)}"
        label = name + (f"  ·  {place}" if place else "")
        rows.append({
            "top": n + 0.5, "bottom": n + 0.82, "right": size / max(report.peak, 1),
            "middle": n + 0.28, "color": HOLDS[kind],
            "text": label, "whole": label,
            "size": f"{format_bytes(size)}  ({format_percent(size / max(report.peak, 1))})",
            "op": name,
            "site": safe_label(first.site or ROLES.get(first.role, "unknown")),
            "scope": safe_label(first.scope or "none"), "kind": kind, "life": _life(values),
            "nodes": sorted({h.node for h in values}),
        })  # fmt: skip
    return _columns(_BARS, rows)


def _life(values: Iterable[Holder]) -> str:
    first, last = min(h.first for h in values), max(h.last for h in values)
    return f"node {first:,} to {last:,}"


def mark_columns(
    report: MemoryReport | None,
    nodes: frozenset[int],
    end: float,
) -> dict[str, list[Any]]:
    """Where in the program these nodes run, and while what they make is live: quads to draw."""
    rows: list[dict[str, float]] = []
    if report is None or not nodes:
        return _columns(_MARKS, rows)
    place = {i: at for at, i in enumerate(report.nodes)}
    ran = [(at, at + 1) for i, at in place.items() if i in nodes]
    lives = []
    for h in report.values:
        if h.node in nodes:
            first = place.get(h.first, 0)  # a variable is there from the beginning
            lives.append((first, max(place.get(h.last, len(place) - 1), first) + 1))
    for spans, top, bottom, alpha in (
        (ran, 0.87 * end, -0.012 * end, 0.5),
        (lives, -0.062 * end, -0.09 * end, 1.0),
    ):
        for left, right in joined(np.array(spans, np.int64).reshape(-1, 2)).tolist():
            rows.append({"left": left, "right": right, "top": top, "bottom": bottom,
                         "alpha": alpha})  # fmt: skip
    return _columns(_MARKS, rows)
