"""Where the boxes and edges of a collapsed IR graph go.

Each phase is a column laid out by one small `dot` call: forward runs down, backward runs up beside
it, so that a module and its gradient stand next to each other, and update follows. Edges between
phases are curves from column to column. If dot is missing, fails or is too slow, a plain grid by
depth is drawn instead, and `drawn_by` says so.

Units:
    pixels at scale 1; x grows to the right, y downwards; x and y of a box are its centre
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kit.errors import LayoutError
from kit.ir import PHASES, Graph, Segment
from kit.widgets.graph_dot import lay_out_with_dot
from kit.widgets.graph_grid import Column, Points, Size, curve, lay_out_as_grid
from kit.widgets.graph_tree import Box, Edge, lifted_edges, visible_boxes
from kit.widgets.theme import format_bytes, plain

__all__ = ["GraphLayout", "PlacedBox", "PlacedEdge", "layout"]

_COLUMN_GAP = 84.0
_MAX_LABEL = 30
_MAX_CROSSING = 250
_LABEL_PX, _SUBLABEL_PX = 8.0, 6.3  # width of a character of the two lines, with some room
_BOX_HEIGHT = 42.0


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box and where it is; `label` and `sublabel` are short enough to fit in it."""

    box: Box
    x: float
    y: float
    w: float
    h: float
    label: str
    sublabel: str
    segments: tuple[int, ...]  # that its ops were cut into


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """An edge and the points of its curve, from source to target."""

    edge: Edge
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    is_crossing: bool  # from one phase to another


@dataclass(frozen=True)
class GraphLayout:
    """Everything that a picture of the graph needs but its colours."""

    boxes: tuple[PlacedBox, ...]  # a frame comes before what is inside it
    edges: tuple[PlacedEdge, ...]
    width: float
    height: float
    drawn_by: str  # "graphviz dot", or "a plain grid: dot was not found"
    notes: tuple[str, ...] = ()


def layout(graph: Graph, *, expanded: Iterable[str] = frozenset(),
           segments: Sequence[Segment] = (), timeout_s: float = 5.0) -> GraphLayout:  # fmt: skip
    """Place the boxes of the graph, with the groups whose keys are in `expanded` open.

    `expanded` may hold keys that this graph does not have: they are kept for another run.
    """
    boxes, all_fit = visible_boxes(graph, expanded)
    notes = () if all_fit else ("some groups stay closed: too many boxes at once",)
    if not boxes:
        return GraphLayout((), (), 1.0, 1.0, "nothing to draw", notes)
    edges = lifted_edges(graph, boxes)
    texts = {box.key: _texts(box, graph) for box in boxes}
    sizes = {key: _size(*text) for key, text in texts.items()}
    columns, drawn_by = _columns(boxes, edges, sizes, timeout_s)
    shifts = _shifts(columns)
    placed = {
        key: (x + shifts[phase][0], y + shifts[phase][1], w, h)
        for phase, column in columns.items()
        for key, (x, y, w, h) in column.boxes.items()
    }
    cut = {i: s.index for s in segments for i in s.nodes}
    routes, crossing_note = _routes(boxes, edges, columns, shifts, placed)
    return GraphLayout(
        tuple(PlacedBox(box, *placed[box.key], *texts[box.key], tuple(sorted(
            {cut.get(i, graph.nodes[i].segment) for i in box.nodes} - {-1}))) for box in boxes),
        routes,
        max(x + w / 2 for x, _, w, _ in placed.values()),
        max(y + h / 2 for _, y, _, h in placed.values()),
        drawn_by,
        notes + crossing_note,
    )  # fmt: skip


def _texts(box: Box, graph: Graph) -> tuple[str, str]:
    label = plain(box.label, _MAX_LABEL)
    if box.kind == "op":
        avals = graph.nodes[box.nodes[0]].avals
        return label, plain(str(avals[0]), _MAX_LABEL) if avals else "no output"
    count = f"{len(box.nodes):,} op{'s' if len(box.nodes) != 1 else ''}"
    return label, count if box.is_frame else f"{count} · {format_bytes(output_bytes(box, graph))}"


def output_bytes(box: Box, graph: Graph) -> int:
    """Bytes that the ops of a box write."""
    return sum(aval.size_bytes for i in box.nodes for aval in graph.nodes[i].avals)


def _size(label: str, sublabel: str) -> Size:
    width = max(_LABEL_PX * (len(label) + 2), _SUBLABEL_PX * len(sublabel)) + 18
    return max(width, 92.0), _BOX_HEIGHT


def _columns(boxes: Sequence[Box], edges: Sequence[Edge], sizes: Mapping[str, Size],
             timeout_s: float) -> tuple[dict[str, Column], str]:  # fmt: skip
    phase_of = {box.key: box.phase for box in boxes}
    parts = {}
    for phase in PHASES:
        if own := [box for box in boxes if box.phase == phase]:
            inside = [e for e in edges if phase_of[e.source] == phase == phase_of[e.target]]
            parts[phase] = (own, inside, sizes)
    try:
        return {phase: lay_out_with_dot(*part, is_reversed=phase == "backward",
                                        timeout_s=timeout_s)
                for phase, part in parts.items()}, "graphviz dot"  # fmt: skip
    except LayoutError as error:
        return {phase: lay_out_as_grid(*part, is_reversed=phase == "backward")
                for phase, part in parts.items()}, f"a plain grid: {error}"  # fmt: skip


def _shifts(columns: Mapping[str, Column]) -> dict[str, tuple[float, float]]:
    """Where each column begins: side by side, backward level with the modules it belongs to."""
    shifts: dict[str, tuple[float, float]] = {}
    x = 0.0
    for phase, column in columns.items():
        y = 0.0
        if phase == "backward" and "forward" in columns:
            mates = [columns["forward"].boxes[f"forward{key.removeprefix('backward')}"][1] - box[1]
                     for key, box in column.boxes.items()
                     if key != phase and f"forward{key.removeprefix('backward')}"
                     in columns["forward"].boxes]  # fmt: skip
            y = median(mates) if mates else 0.0
        elif phase == "update" and "backward" in shifts:
            y = shifts["backward"][1]
        shifts[phase] = (x, y)
        x += column.width + _COLUMN_GAP
    top = min(y for _, y in shifts.values())
    return {phase: (x, y - top) for phase, (x, y) in shifts.items()}


def _routes(boxes: Sequence[Box], edges: Sequence[Edge], columns: Mapping[str, Column],
            shifts: Mapping[str, tuple[float, float]],
            placed: Mapping[str, tuple[float, float, float, float]],
            ) -> tuple[tuple[PlacedEdge, ...], tuple[str, ...]]:  # fmt: skip
    phase_of = {box.key: box.phase for box in boxes}
    routes, crossing = [], []
    for edge in edges:
        phase = phase_of[edge.source]
        if phase != phase_of[edge.target]:
            crossing.append(edge)
        elif points := columns[phase].edges.get((edge.source, edge.target)):
            dx, dy = shifts[phase]
            xs, ys = tuple(x + dx for x in points[0]), tuple(y + dy for y in points[1])
            routes.append(PlacedEdge(edge, xs, ys, False))
    shown = sorted(crossing, key=lambda e: -e.size_bytes)[:_MAX_CROSSING]
    for edge in shown:
        routes.append(PlacedEdge(edge, *_across(placed[edge.source], placed[edge.target]), True))
    hidden = len(crossing) - len(shown)
    note = (f"{hidden:,} thin edges between phases are not drawn",) if hidden else ()
    return tuple(routes), note


def _across(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> Points:
    right = 1 if b[0] >= a[0] else -1
    return curve(a[0] + right * a[2] / 2, a[1], b[0] - right * b[2] / 2, b[1], is_vertical=False)
