"""Which boxes an IR graph shows: its ops folded by phase and module scope, opened where asked.

    phase ─ scope ─ scope ─ ... ─ op          "forward" ─ "layers.0" ─ "attention" ─ "aten.mm"

Forward, backward and update parts of a module are kept apart. A phase with one outermost module
shows what is inside it. Ops between two modules are folded into one box, and a long run of
siblings into "… 57 more ops". Parameters and inputs are counted, never drawn. Pure data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kit.ir import PHASES, Graph
from kit.widgets.theme import plain

__all__ = ["MAX_BOXES", "Box", "Edge", "lifted_edges", "short_op", "visible_boxes"]

MAX_BOXES = 400
_MAX_SIBLINGS = 30
_FIRST_SIBLINGS = 12
_FOLDED_SIBLINGS = 60  # in one "… more" box, unless that made too many boxes
_MAX_LOOSE_OPS = 2  # more ops than these between two modules become one box
_MAX_PHASE_OPS = 8  # the same in a phase that has no modules


@dataclass(frozen=True, slots=True)
class Box:
    """What is drawn as one rectangle: an op, a closed group, or the frame of an open one."""

    key: str  # names the same group in every graph of the same model
    kind: str  # "phase", "open" (frames); "group", "ops" (closed groups); "op"
    label: str
    phase: str
    parent: str  # key of the frame around it, "" for a phase
    depth: int
    nodes: tuple[int, ...]  # executed ops inside, ids in program order

    @property
    def is_frame(self) -> bool:
        """True for boxes that hold other boxes."""
        return self.kind in ("phase", "open")


@dataclass(frozen=True, slots=True)
class Edge:
    """Values that flow from one box to another."""

    source: str
    target: str
    values: int
    size_bytes: int


@dataclass(frozen=True)
class _Item:
    """A group before it is known whether it is open."""

    key: str
    label: str
    nodes: tuple[int, ...]
    scope_depth: int = -1  # components of the scope that are used up; -1: ops without sub-scopes
    items: tuple[_Item, ...] = ()  # a folded run of siblings
    is_op: bool = False

    @property
    def kind(self) -> str:
        return "op" if self.is_op else "group" if self.scope_depth >= 0 else "ops"


def visible_boxes(graph: Graph, expanded: Iterable[str], *, limit: int = MAX_BOXES,
                  ) -> tuple[tuple[Box, ...], bool]:  # fmt: skip
    """The boxes to draw, each frame before its contents, and whether all of `expanded` was opened.

    Each executed op is in exactly one box that is not a frame. A group that would bring the
    count of boxes above `limit` stays closed.
    """
    wanted = frozenset(expanded)
    paths = {i: scope_parts(graph.nodes[i].scope) for i in graph.ops}
    phases = []
    for phase in PHASES:
        if nodes := tuple(i for i in graph.ops if graph.nodes[i].phase == phase):
            phases.append(_Item(phase, phase, nodes, 0))
    room = limit - len(phases)
    opened: dict[str, tuple[_Item, ...]] = {}
    all_fit, queue = True, list(phases)
    while queue:  # breadth first, so that the outer groups open before the inner ones
        item = queue.pop(0)
        if item.key not in wanted and item not in phases:
            continue
        inside = _inside(item, paths, graph)
        if item not in phases and (item.is_op or len(inside) > room):
            all_fit = all_fit and item.is_op
            continue
        room -= len(inside)
        opened[item.key] = inside
        queue += inside
    boxes: list[Box] = []
    for item in phases:
        _collect(item, item.key, "", 0, opened, boxes)
    return tuple(boxes), all_fit


def lifted_edges(graph: Graph, boxes: Sequence[Box]) -> tuple[Edge, ...]:
    """Edges between the innermost boxes: distinct values and their bytes, in program order."""
    box_of = {i: box.key for box in boxes if not box.is_frame for i in box.nodes}
    values: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
    for i in graph.ops:
        for source, output in graph.nodes[i].inputs:
            pair = box_of.get(source, ""), box_of[i]
            if pair[0] and pair[0] != pair[1]:
                size = graph.nodes[source].avals[output].size_bytes
                values.setdefault(pair, {})[source, output] = size
    return tuple(Edge(a, b, len(v), sum(v.values())) for (a, b), v in values.items())


def short_op(op: str) -> str:
    """`aten.mm.default` -> `mm`: the name without its library and overload."""
    parts = op.split(".")
    return plain(parts[1] if len(parts) > 1 and parts[1] else op, 60)


def scope_parts(scope: str) -> tuple[str, ...]:
    """`Bert.layers.0.norm` -> (Bert, layers.0, norm): a number belongs to the name before it."""
    parts: list[str] = []
    for part in filter(None, (plain(part, 80) for part in scope.split("."))):
        if part.isdigit() and parts:
            parts[-1] += "." + part
        else:
            parts.append(part)
    return tuple(parts)


def _collect(item: _Item, phase: str, parent: str, depth: int,
             opened: Mapping[str, tuple[_Item, ...]], boxes: list[Box]) -> None:  # fmt: skip
    is_open = item.key in opened
    kind = item.kind if not is_open else "open" if parent else "phase"
    boxes.append(Box(item.key, kind, item.label, phase, parent, depth, item.nodes))
    for child in opened.get(item.key, ()):
        _collect(child, phase, item.key, depth + 1, opened, boxes)


def _inside(item: _Item, paths: Mapping[int, tuple[str, ...]], graph: Graph) -> tuple[_Item, ...]:
    if item.items:
        return _fold(item.items, item.key)
    if item.scope_depth < 0:
        return _fold([_op(i, item.key, graph) for i in item.nodes], item.key)
    is_phase = item.scope_depth == 0
    children = _by_scope(item.nodes, item.scope_depth, item.key, paths, graph)
    while True:  # a frame with one scope in it teaches nothing: show what is inside that
        scopes = [child for child in children if child.scope_depth >= 0]
        if len(scopes) != 1 or not (is_phase or len(children) == 1):
            break
        inner = _by_scope(item.nodes, scopes[0].scope_depth, item.key, paths, graph)
        if is_phase and not any(child.scope_depth >= 0 for child in inner):
            break
        children = inner
    return _fold(children, item.key)


def _by_scope(nodes: Sequence[int], depth: int, key: str,
              paths: Mapping[int, tuple[str, ...]], graph: Graph) -> list[_Item]:  # fmt: skip
    """Sub-scopes in order of appearance, and between them runs of ops that have none."""
    groups: dict[str, list[int]] = {}
    run = 0
    previous = ""
    for i in nodes:
        if len(paths[i]) > depth:
            previous = f"{key}/{paths[i][depth]}"
        else:
            run += not previous.startswith("\0")
            previous = f"\0{run}"
        groups.setdefault(previous, []).append(i)
    items: list[_Item] = []
    has_scopes = any(not name.startswith("\0") for name in groups)
    most = _MAX_LOOSE_OPS if has_scopes else _MAX_PHASE_OPS if depth == 0 else len(nodes)
    for name, ids in groups.items():
        if not name.startswith("\0") and len(ids) == 1:
            op = _op(ids[0], key, graph)
            items.append(replace(op, label=f"{paths[ids[0]][-1]}: {op.label}"))
        elif not name.startswith("\0"):
            items.append(_Item(name, paths[ids[0]][depth], tuple(ids), depth + 1))
        elif len(ids) > most:
            items.append(_Item(f"{key}/ops {name[1:]}", _op_names(ids, graph), tuple(ids)))
        else:
            items += [_op(i, key, graph) for i in ids]
    return items


def _fold(items: Sequence[_Item], key: str) -> tuple[_Item, ...]:
    """At most `_MAX_SIBLINGS` items: the first ones, and boxes that hold the rest."""
    if len(items) <= _MAX_SIBLINGS:
        return tuple(items)
    kept, rest = list(items[:_FIRST_SIBLINGS]), items[_FIRST_SIBLINGS:]
    size = max(_FOLDED_SIBLINGS, -(-len(rest) // _FIRST_SIBLINGS))
    for start in range(0, len(rest), size):
        part = tuple(rest[start : start + size])
        what = "ops" if all(item.is_op for item in part) else "blocks"
        nodes = tuple(i for item in part for i in item.nodes)
        name = f"{key}/more {_FIRST_SIBLINGS + start}"
        kept.append(_Item(name, f"… {len(part)} more {what}", nodes, items=part))
    return tuple(kept)


def _op(i: int, key: str, graph: Graph) -> _Item:
    return _Item(f"{key}/%{i}", short_op(graph.nodes[i].op), (i,), is_op=True)


def _op_names(ids: Sequence[int], graph: Graph) -> str:
    names = list(dict.fromkeys(short_op(graph.nodes[i].op).lstrip("_") for i in ids))
    return ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
