"""What the picture of an IR graph shows, as JSON-able columns: colours, texts, hover cards, curves.

`graph_payload` is pure; `kit.widgets.graph` draws what it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kit.ir import Graph
from kit.run import Run
from kit.run_nodes import node_ns
from kit.widgets.graph_layout import GraphLayout, PlacedBox, PlacedEdge, layout
from kit.widgets.graph_tree import short_op
from kit.widgets.theme import (
    BACKGROUND,
    COLORS,
    FAINT,
    INK,
    SEGMENT_COLORS,
    format_bytes,
    format_ns,
    plain,
    tint,
)

__all__ = ["COLOR_BY", "graph_payload"]

COLOR_BY = ("phase", "segment")
_MANY_SEGMENTS = "#dfe4ea"
_BAR_PX = 4.0
_ARROW_PX = 7.0
_NO_GRAPH = Graph(())

Columns = dict[str, Any]


def graph_payload(run: Run | None, expanded: Iterable[str] = frozenset(), *,
                  color_by: str = "phase", focus: str = "", timeout_s: float = 5.0,
                  ) -> Columns:  # fmt: skip
    """Everything that the figure shows, as lists, text and numbers.

    Keys: `frames`, `edges`, `arrows`, `boxes`, `bars`, `message`, `view` (columns), `title`,
    `note`, `height` (pixels). `focus` is the key of the group to keep in sight.
    """
    graph = run.graphs[0] if run is not None and run.graphs else _NO_GRAPH
    segments = run.segments if run is not None else ()
    spent = node_ns(run) if run is not None else {}
    placed = layout(graph, expanded=expanded, segments=segments, timeout_s=timeout_s)
    closed = [b for b in placed.boxes if not b.box.is_frame]
    texts = [] if graph.ops else [_why_empty(run)]
    return {
        "frames": _frame_columns([b for b in placed.boxes if b.box.is_frame]),
        "edges": _edge_columns(placed.edges),
        "arrows": _arrow_columns(placed.edges),
        "boxes": _box_columns(placed.boxes, graph, spent, color_by),
        "bars": _bar_columns(closed, spent),
        "message": {"x": [placed.width / 2] * len(texts), "y": [placed.height / 2] * len(texts),
                    "text": texts},
        "view": _view_columns(placed, focus),
        "title": _title(run, graph, placed),
        "note": _note(graph, placed, bool(spent)),
        "height": int(min(max(placed.height * 0.9 + 60, 260), 640)),
    }  # fmt: skip


def _frame_columns(frames: Iterable[PlacedBox]) -> Columns:
    frames = list(frames)
    deep = [min(f.box.depth, 3) for f in frames]
    colors = [COLORS.get(f.box.phase, FAINT) for f in frames]
    return {
        "x": [f.x for f in frames],
        "y": [f.y for f in frames],
        "w": [f.w for f in frames],
        "h": [f.h for f in frames],
        "color": [tint(c, 0.95 - 0.05 * d) for c, d in zip(colors, deep, strict=True)],
        "line": [tint(c, 0.7 - 0.1 * d) for c, d in zip(colors, deep, strict=True)],
    }


def _box_columns(boxes: Iterable[PlacedBox], graph: Graph, spent: Mapping[int, float],
                 color_by: str) -> Columns:  # fmt: skip
    """Closed boxes, and for each frame the strip with its title."""
    rows = [_box_row(b, graph, spent, color_by) for b in boxes]
    names = ("x", "y", "w", "h", "label", "sublabel", "label_x", "label_y", "sublabel_x",
             "sublabel_y", "align", "color", "line", "ink", "key", "kind", "name", "what", "time",
             "place", "makes")  # fmt: skip
    return {name: [row[name] for row in rows] for name in names}


def _box_row(b: PlacedBox, graph: Graph, spent: Mapping[int, float], color_by: str) -> Columns:
    box = b.box
    fill, line = _colors(b, color_by)
    row: Columns = {
        "label": ({"group": "▸ ", "ops": "▸ ", "open": "▾ "}.get(box.kind, "") + b.label),
        "sublabel": b.sublabel, "key": box.key, "kind": box.kind, "color": fill,
        "line": line, "ink": INK, **_hover(b, graph, spent),
    }  # fmt: skip
    if not box.is_frame:
        return row | {"x": b.x, "y": b.y, "w": b.w, "h": b.h, "align": "center", "label_x": b.x,
                      "label_y": b.y - 8.5, "sublabel_x": b.x, "sublabel_y": b.y + 8}  # fmt: skip
    y = b.y - b.h / 2 + 15
    left, width = b.x - b.w / 2 + 6, 8.2 * len(row["label"]) + 12
    return row | {"x": left + width / 2, "y": y, "w": width, "h": 22, "align": "left",
                  "label_x": left + 6, "label_y": y, "sublabel_x": left + width + 4,
                  "sublabel_y": y, "color": "#ffffff00", "line": "#ffffff00"}  # fmt: skip


def _colors(b: PlacedBox, color_by: str) -> tuple[str, str]:
    if color_by == "segment":
        if len(b.segments) != 1:
            return (_MANY_SEGMENTS if b.segments else BACKGROUND), FAINT
        color = SEGMENT_COLORS[b.segments[0] % len(SEGMENT_COLORS)]
        return tint(color, 0.35), color
    color = COLORS.get(b.box.phase, FAINT)
    return (BACKGROUND if b.box.kind == "op" else tint(color, 0.72)), color


def _hover(b: PlacedBox, graph: Graph, spent: Mapping[int, float]) -> dict[str, str]:
    box = b.box
    first = graph.nodes[box.nodes[0]]
    time_ns = sum(spent.get(i, 0.0) for i in box.nodes)
    ops = Counter(short_op(graph.nodes[i].op) for i in box.nodes).most_common(5)
    variables = {s for i in box.nodes for s, _ in graph.nodes[i].inputs
                 if graph.nodes[s].is_variable}  # fmt: skip
    what = f"{len(box.nodes):,} ops: " + ", ".join(f"{n} {op}" for op, n in ops)
    what += ", …" if len({graph.nodes[i].op for i in box.nodes}) > len(ops) else ""
    if box.kind == "op":
        what = f"%{box.nodes[0]} = {plain(first.op)}"
    numbers = b.segments
    cut = f"segment {numbers[0]}" if len(numbers) == 1 else ""
    cut = f"segments {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else cut
    scope = plain(first.scope) if box.kind == "op" else ""
    reads = f"reads {len(variables)} parameters and inputs" if variables else ""
    sites = {plain(graph.nodes[i].site) for i in box.nodes} - {""}
    site = sites.pop() if len(sites) == 1 else f"{len(sites)} lines of code" if sites else ""
    return {
        "name": box.label,
        "what": what,
        "time": f"{format_ns(time_ns)} a step" if time_ns else "not known",
        "place": "\n".join(filter(None, (scope, site, cut))) or "-",
        "makes": f"{_shapes(box.nodes, graph)}" + (f"\n{reads}" if reads else ""),
    }


def _shapes(nodes: tuple[int, ...], graph: Graph) -> str:
    """Outputs of a box that matter: of the op itself, or the largest and the total of a group."""
    avals = [aval for i in nodes for aval in graph.nodes[i].avals]
    if not avals:
        return "no output"
    total = format_bytes(sum(a.size_bytes for a in avals))
    if len(nodes) == 1:
        return plain(f"{', '.join(map(str, avals[:4]))} ({total})")
    return plain(f"{total} in all, the largest is {max(avals, key=lambda a: a.size_bytes)}")


def _bar_columns(boxes: Iterable[PlacedBox], spent: Mapping[int, float]) -> Columns:
    """A thin bar in each box: its device time, full width for the box that takes longest."""
    times = [(b, sum(spent.get(i, 0.0) for i in b.box.nodes)) for b in boxes]
    most = max((t for _, t in times), default=0.0)
    shown = [(b, t / most) for b, t in times if t > 0]
    return {
        "left": [b.x - b.w / 2 + 5 for b, _ in shown],
        "right": [b.x - b.w / 2 + 5 + (b.w - 10) * share for b, share in shown],
        "top": [b.y + b.h / 2 - 2 - _BAR_PX for b, _ in shown],
        "bottom": [b.y + b.h / 2 - 2 for b, _ in shown],
    }


def _edge_columns(edges: Iterable[PlacedEdge]) -> Columns:
    edges = list(edges)
    return {
        "xs": [list(e.xs) for e in edges],
        "ys": [list(e.ys) for e in edges],
        "width": [_edge_width(e.edge.size_bytes) for e in edges],
        "alpha": [0.45 if e.is_crossing else 0.9 for e in edges],
        "name": [f"{e.edge.values} value{'s' if e.edge.values != 1 else ''}, "
                 f"{format_bytes(e.edge.size_bytes)}" for e in edges],
    }  # fmt: skip


def _edge_width(size: int) -> float:
    return 1.0 + min(max(np.log10(max(size, 1)) - 3, 0) * 0.35, 1.75)


def _arrow_columns(edges: Iterable[PlacedEdge]) -> Columns:
    """A triangle at the end of each edge, in the units of the plot so that it zooms with it."""
    xs, ys, alphas = [], [], []
    for e in edges:
        end = np.array([e.xs[-1], e.ys[-1]])
        away = next((np.array(p) for p in zip(e.xs[-2::-1], e.ys[-2::-1], strict=True)
                     if np.hypot(*(end - p)) > 1.0), end - (0.0, 1.0))  # fmt: skip
        along = (end - away) / np.hypot(*(end - away))
        side = np.array([-along[1], along[0]]) * _ARROW_PX * 0.45
        back = end - along * _ARROW_PX
        corners = [end, back + side, back - side]
        xs.append([float(c[0]) for c in corners])
        ys.append([float(c[1]) for c in corners])
        alphas.append(0.45 if e.is_crossing else 0.9)
    return {"xs": xs, "ys": ys, "alpha": alphas}


def _view_columns(placed: GraphLayout, focus: str) -> Columns:
    """The size of the picture, and the top of what must stay in sight."""
    top = next((b.y - b.h / 2 for b in placed.boxes if b.box.key == focus), 0.0)
    left = next((b.x - b.w / 2 for b in placed.boxes if b.box.key == focus), 0.0)
    return {"width": [placed.width], "height": [placed.height], "left": [left], "top": [top]}


def _why_empty(run: Run | None) -> str:
    if run is None:
        return "no run yet"
    if run.settings.mode == "torch":
        return "native torch runs op by op: there is no graph to draw"
    return "this run has no graph"


def _title(run: Run | None, graph: Graph, placed: GraphLayout) -> str:
    name = f" - {plain(run.name, 48)}" if run is not None and run.name else ""
    if not graph.ops:
        return f"IR graph of one step{name}"
    boxes = sum(not b.box.is_frame for b in placed.boxes)
    return f"IR graph of one step{name}: {len(graph.ops):,} ops in {boxes:,} boxes"


def _note(graph: Graph, placed: GraphLayout, has_times: bool) -> str:
    hidden = len(graph) - len(graph.ops)
    parts = ["▸ click to open, ▾ click to close"]
    parts += ["dark bar: device time"] if has_times else []
    parts += [f"{hidden:,} parameters and inputs are not drawn"] if hidden else []
    parts += [*placed.notes, f"drawn by {placed.drawn_by}"]
    return "  ·  ".join(parts) if graph.ops else ""
