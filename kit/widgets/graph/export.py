"""A scene as a file: SVG for a document, DOT for graphviz's own tools; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import graphviz

from kit.text import WHOLE, safe_html
from kit.widgets.base.theme import BACKGROUND, COLORS, FAINT, INK, MUTED, tint
from kit.widgets.graph.layout import Placed, place
from kit.widgets.graph.payload import KINDS

__all__ = ["graph_dot", "graph_svg"]

_TITLE = 17  # pixels above the graph
_FONT = "Inter, Helvetica, Arial, sans-serif"


def graph_svg(scene: Mapping[str, Any], expanded: Iterable[str]) -> str:
    """The picture with these groups open, coloured by phase, as SVG text under its title."""
    placed, parts = place(scene, expanded), []
    for row, (x, y, w, h) in placed.rects.items():
        if placed.is_open[row]:
            color = COLORS.get(_phase(scene, row), FAINT)
            parts.append(_rect(x, y, w, h, tint(color, 0.92), tint(color, 0.6), 10))
    for edge in placed.edges:
        x0, y0, *rest = (f"{v:.1f}" for v in edge.curve)
        alpha = 0.4 if edge.is_crossing else 0.9
        parts.append(
            f'<path d="M{x0} {y0}C{" ".join(rest)}" fill="none" stroke="{FAINT}" '
            f'opacity="{alpha}" marker-end="url(#a)"/>'
        )
    for row, (x, y, w, h) in placed.rects.items():
        label, sub = _text(scene, "label", row), _text(scene, "sub", row)
        if placed.is_open[row]:
            parts.append(_words(x - w / 2 + 12, y - h / 2 + 15, label, 12.5, INK, "start"))
            continue
        color = COLORS.get(_phase(scene, row), FAINT)
        is_op = KINDS[scene["rows"]["kind"][row]] == "op"
        parts.append(_rect(x, y, w, h, BACKGROUND if is_op else tint(color, 0.72), color, 7))
        parts.append(_words(x, y - 8.5, label, 12.5, INK, "middle"))
        parts.append(_words(x, y + 8, sub, 10.5, MUTED, "middle"))
    title = str(scene["title"]) if placed.rects else ""
    if title:
        parts.append(_words(0, -_TITLE, title, 13, INK, "start"))
    w, h = max(placed.width, len(title) * 8) + 24, placed.height + 24 + _TITLE
    arrow = (
        f'<defs><marker id="a" viewBox="0 0 7 7" refX="7" refY="3.5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L7 3.5L0 7Z" fill="{FAINT}"/></marker>'
        "</defs>"
    )
    size = f'width="{w:.1f}" height="{h:.1f}"'
    box = f"-12 {-12 - _TITLE} {w:.1f} {h:.1f}"
    ground = f'<rect x="-12" y="{-12 - _TITLE}" width="100%" height="100%" fill="{BACKGROUND}"/>'
    body = "\n".join([arrow, ground, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {size} '
        f'font-family="{_FONT}">{body}</svg>\n'
    )


def graph_dot(scene: Mapping[str, Any], expanded: Iterable[str]) -> str:
    """The boxes that can be seen with these groups open, as DOT text; frames are clusters."""
    placed = place(scene, expanded)
    graph = graphviz.Digraph("step", graph_attr={"compound": "true"}, node_attr={"shape": "box"})
    for row in placed.rects:
        if scene["rows"]["parent"][row] < 0:
            _add(graph, scene, placed, row)
    for edge in placed.edges:
        ends = {}
        if placed.is_open[edge.source]:
            ends["ltail"] = f"cluster_{edge.source}"
        if placed.is_open[edge.target]:
            ends["lhead"] = f"cluster_{edge.target}"
        if edge.values > 1:
            ends["label"] = str(edge.values)
        graph.edge(*(f"n{_inner(placed, row)}" for row in (edge.source, edge.target)), **ends)
    return str(graph.source)


def _add(graph: graphviz.Digraph, scene: Mapping[str, Any], placed: Placed, row: int) -> None:
    label = _text(scene, "label", row)
    if not placed.is_open[row]:
        graph.node(f"n{row}", graphviz.escape(f"{label} {_text(scene, 'sub', row)}"))
        return
    with graph.subgraph(name=f"cluster_{row}") as cluster:
        cluster.attr(label=graphviz.escape(label))
        child = row + 1
        while child < scene["rows"]["end"][row]:
            _add(cluster, scene, placed, child)
            child = scene["rows"]["end"][child]


def _inner(placed: Placed, row: int) -> int:
    """A closed box in a frame, for an edge to end at; the first box inside comes right after it."""
    while placed.is_open[row]:
        row += 1
    return row


def _phase(scene: Mapping[str, Any], row: int) -> str:
    while scene["rows"]["parent"][row] >= 0:
        row = scene["rows"]["parent"][row]
    return _text(scene, "key", row)


def _text(scene: Mapping[str, Any], column: str, row: int) -> str:
    return str(scene["strings"][scene["rows"][column][row]])


def _rect(x: float, y: float, w: float, h: float, fill: str, line: str, radius: int) -> str:
    return (
        f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}" '
        f'rx="{radius}" fill="{fill}" stroke="{line}"/>'
    )


def _words(x: float, y: float, text: str, size: float, color: str, anchor: str) -> str:
    weight = "bold" if size > 11 else "normal"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{color}" text-anchor="{anchor}" dominant-baseline="central">'
        f"{safe_html(text, WHOLE)}</text>"
    )
