"""An IR graph as a tree of boxes: all of its ops, folded by phase and module scope.

    phase ─ scope ─ scope ─ ... ─ op          "forward" ─ "layers.0" ─ "attention" ─ "aten.mm"

Forward, backward and update parts of a module are kept apart. A phase with one outermost module
shows what is inside it. Ops between two modules are folded into one box that says what they
compute, a run of equal blocks into one "×12", and a long run of siblings into "… 57 more ops", so
no group holds more than `MAX_SIBLINGS`. Parameters and inputs are counted, never drawn. An edge
belongs to the innermost group that holds both of its ends, and runs between two of that group's
children. Two groups with the same `Shape` look the same inside. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kit.ir import PHASES, RECURRENT, Graph
from kit.ir.names import computed_by, optimizer_of, short_op
from kit.text import format_bytes, format_count, safe_label

__all__ = ["MAX_SIBLINGS", "Box", "Shape", "Tree", "build_tree"]

MAX_SIBLINGS = 30
_FIRST_SIBLINGS = 12
_FOLDED_SIBLINGS = 60  # in one "… more" box, unless that made too many boxes
_MAX_LOOSE_OPS = 2  # more ops than these between two modules become one box
_MAX_PHASE_OPS = 8  # the same in a phase that has no modules
_MIN_EQUAL = 3  # so many equal blocks in a row are folded into one
_MAX_DEPTH = 24  # deeper scopes are joined: a program may nest as it likes, Python may not
_MAX_LABEL = 30
# ops that loop inside -> the attribute that says how often
_LOOPS = {f"kit.{k}{way}.default": "time_steps" for k in RECURRENT for way in ("", "_backward")}
_LOOPS["jax.scan"] = "length"

Value = tuple[int, int]
Edges = dict[tuple["Box", "Box"], dict[Value, int]]  # between children -> values, their bytes


@dataclass(slots=True, eq=False)
class Box:
    """An op, or a group of boxes; `id` is its place in `Tree.boxes`, parents before children."""

    key: str  # names the same group in every graph of the same model
    kind: str  # "phase", "group", "same" (equal blocks), "ops", "more" (siblings), "op"
    label: str
    sublabel: str = ""
    node: int = -1  # of the graph, for an op
    phase: str = ""
    children: list[Box] = field(default_factory=list)
    shape: int = -1  # of a group: index into `Tree.shapes`
    size: tuple[int, int] = (0, 0)  # ops inside, bytes that they write
    id: int = -1
    parent: int = -1
    end: int = -1  # id after the last box inside
    above: Box | None = None  # the group by scope, before anything was folded
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What groups that look the same inside have in common: what their layout is made from."""

    is_reversed: bool  # what runs first is at the bottom
    texts: tuple[tuple[str, str], ...]  # label and sublabel of each child
    edges: tuple[tuple[int, int, int, int], ...]  # child, child, values, bytes


@dataclass(frozen=True)
class Tree:
    """All boxes in preorder; the first of each phase has no parent."""

    boxes: tuple[Box, ...]
    shapes: tuple[Shape, ...]
    ops: Mapping[int, int]  # node -> id of its box


def build_tree(graph: Graph) -> Tree:
    """The boxes of a graph; each executed op is in exactly one box of kind "op"."""
    paths: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        if node.scope not in paths:
            paths[node.scope] = scope_parts(node.scope)
    builder, executed = _Builder(graph, paths), graph.ops
    roots = [
        builder.group(phase, "phase", phase, nodes, 0, phase)
        for phase in PHASES
        if (nodes := [i for i in executed if graph.nodes[i].phase == phase])
    ]
    inside = _edges_by_group(graph, roots)
    shapes = _Shapes(inside)
    for root in roots:
        shapes.close(root)
    boxes: list[Box] = []
    keys: set[str] = set()
    for root in roots:
        _number(root, -1, boxes, keys)
    ops = {box.node: box.id for box in boxes if box.kind == "op"}
    return Tree(tuple(boxes), tuple(shapes.found), ops)


def scope_parts(scope: str) -> tuple[str, ...]:
    """`Bert.layers.0.norm` -> (Bert, layers.0, norm): a number belongs to the name before it."""
    parts: list[str] = []
    for part in filter(None, (safe_label(part, 80) for part in scope.split(".", 200))):
        if part.isdigit() and parts:
            parts[-1] += "." + part
        else:
            parts.append(part)
    deep = parts[_MAX_DEPTH - 1 :]
    return (*parts[: _MAX_DEPTH - 1], safe_label(".".join(deep), 80)) if deep else tuple(parts)


class _Builder:
    """Groups nodes by scope, before anything is folded."""

    def __init__(self, graph: Graph, paths: Mapping[str, tuple[str, ...]]) -> None:
        self._nodes = graph.nodes
        self._paths = paths
        self._names: dict[str, str] = {}  # op -> short name
        self._avals: dict[object, tuple[str, int]] = {}  # avals -> text and bytes

    def group(
        self, key: str, kind: str, label: str, nodes: Sequence[int], depth: int, phase: str
    ) -> Box:
        """A group of these nodes, whose scopes are used up to `depth`; -1: it has no scopes."""
        if depth < 0:
            children = [self._op(i, phase) for i in nodes]
        else:
            children = self._by_scope(key, nodes, self._first_depth(nodes, depth), phase)
        box = Box(key, kind, label, phase=phase, children=children)
        box.size = _total(children)
        return box

    def _first_depth(self, nodes: Sequence[int], depth: int) -> int:
        """A frame with one scope in it teaches nothing: the depth at which there is more."""
        is_phase = depth == 0
        while True:
            paths = {self._paths[self._nodes[i].scope][depth : depth + 2] for i in nodes}
            heads = {path[0] for path in paths if path}
            if len(heads) != 1 or not (is_phase or all(paths)):
                return depth
            if is_phase and not any(len(path) > 1 for path in paths):
                return depth
            depth += 1

    def _by_scope(self, key: str, nodes: Sequence[int], depth: int, phase: str) -> list[Box]:
        """Sub-scopes in order of appearance, and between them runs of ops that have none."""
        groups: dict[str, list[int]] = {}
        run, previous = 0, ""
        for i in nodes:
            path = self._paths[self._nodes[i].scope]
            if len(path) > depth:
                previous = path[depth]
            else:
                run += not previous.startswith("\0")
                previous = f"\0{run}"
            groups.setdefault(previous, []).append(i)
        has_scopes = any(not name.startswith("\0") for name in groups)
        is_update = any(optimizer_of(self._nodes[i]) for i in nodes)
        most = len(nodes) if depth else _MAX_PHASE_OPS
        if has_scopes or is_update:
            most = _MAX_LOOSE_OPS
        boxes: list[Box] = []
        for name, ids in groups.items():
            if not name.startswith("\0") and len(ids) == 1:
                op = self._op(ids[0], phase)
                last = self._paths[self._nodes[ids[0]].scope][-1]
                op.label = safe_label(f"{last}: {op.label}", _MAX_LABEL)
                boxes.append(op)
            elif not name.startswith("\0"):
                label = safe_label(name, _MAX_LABEL)
                boxes.append(self.group(f"{key}/{name}", "group", label, ids, depth + 1, phase))
            elif len(ids) > most:
                label = safe_label(computed_by([self._nodes[i] for i in ids]), _MAX_LABEL)
                boxes.append(self.group(f"{key}/ops {name[1:]}", "ops", label, ids, -1, phase))
            else:
                boxes += [self._op(i, phase) for i in ids]
        return boxes

    def _op(self, i: int, phase: str) -> Box:
        node = self._nodes[i]
        if node.avals not in self._avals:
            text = safe_label(str(node.avals[0]), _MAX_LABEL) if node.avals else "no output"
            self._avals[node.avals] = text, sum(a.size_bytes for a in node.avals)
        text, size = self._avals[node.avals]
        if node.op in _LOOPS:
            times = dict(node.attrs).get(_LOOPS[node.op], "?")
            text = safe_label(f"loop of {times}, {text}", _MAX_LABEL)
        label = safe_label(optimizer_of(node), _MAX_LABEL) or self._name(node.op)
        return Box(f"%{i}", "op", label, text, i, phase, size=(1, size))

    def _name(self, op: str) -> str:
        if op not in self._names:
            self._names[op] = safe_label(short_op(op), _MAX_LABEL)
        return self._names[op]


def _total(boxes: Sequence[Box]) -> tuple[int, int]:
    return sum(b.size[0] for b in boxes), sum(b.size[1] for b in boxes)


def _edges_by_group(graph: Graph, roots: Sequence[Box]) -> dict[Box, Edges]:
    """The edges between the children of each group, the values in them counted once."""
    leaves: dict[int, Box] = {}
    stack = list(roots)
    while stack:
        box = stack.pop()
        for child in box.children:
            child.above, child.depth = box, box.depth + 1
        if box.kind == "op":
            leaves[box.node] = box
        stack += box.children
    inside: dict[Box, Edges] = {}
    for i, leaf in leaves.items():
        for value in graph.nodes[i].inputs:
            a, b = leaves.get(value[0]), leaf
            if a is None:
                continue  # a variable
            while (group := a.above) is not (other := b.above):
                deeper = a.depth - b.depth
                if deeper >= 0 and group is not None:
                    a = group
                if deeper <= 0 and other is not None:
                    b = other
            if group is None:
                continue  # it runs from phase to phase
            size = graph.nodes[value[0]].avals[value[1]].size_bytes
            pairs = inside.get(group)
            if pairs is None:
                pairs = inside[group] = {}
            values = pairs.get((a, b))
            if values is None:
                pairs[a, b] = {value: size}
            else:
                values[value] = size
    return inside


class _Shapes:
    """Folds the children of each group, innermost first, and finds out which look the same."""

    def __init__(self, inside: dict[Box, Edges]) -> None:
        self._inside = inside
        self._known: dict[Shape, int] = {}
        self._full: dict[tuple[object, ...], int] = {}
        self.found: list[Shape] = []

    def close(self, box: Box) -> None:
        """Fold what is in a group, then number its shape."""
        for child in box.children:
            if child.children:
                self.close(child)
        edges = self._inside.pop(box, {})
        box.children, edges = self._fold_equal(box, edges)
        box.children, edges = self._fold_long(box, box.children, edges)
        self._finish(box, edges)

    def _finish(self, box: Box, edges: Edges) -> None:
        if box.kind != "phase":
            box.sublabel = f"{format_count(box.size[0], 'op')} · {format_bytes(box.size[1])}"
        at = {child: n for n, child in enumerate(box.children)}
        rows = tuple((at[a], at[b], len(v), sum(v.values())) for (a, b), v in edges.items())
        texts = tuple((c.label, c.sublabel) for c in box.children)
        shape = Shape(box.phase == "backward", texts, rows)
        deep = (shape, *(c.shape for c in box.children))  # equal all the way down
        if deep not in self._full:
            self._full[deep] = len(self.found)
            self.found.append(shape)
        box.shape = self._full[deep]

    def _fold_equal(self, box: Box, edges: Edges) -> tuple[list[Box], Edges]:
        """Runs of groups with the same shape become one box each."""
        children = box.children
        runs: list[list[Box]] = []
        for child in children:
            if runs and child.children and runs[-1][0].shape == child.shape:
                runs[-1].append(child)
            else:
                runs.append([child])
        is_whole = len(runs) == 1 and len(children) <= MAX_SIBLINGS  # the frame says it already
        if is_whole or all(len(run) < _MIN_EQUAL for run in runs):
            return children, edges
        kept: list[Box] = []
        folds: list[Box] = []
        for run in runs:
            if len(run) < _MIN_EQUAL:
                kept += run
                continue
            ends = sorted((run[0].label, run[-1].label), key=lambda x: (len(x), x))
            fold = Box(f"{box.key}/{ends[0]}…{ends[1]}", "same",
                       f"{_span(run[0].label, run[-1].label)} ×{len(run)}", phase=box.phase,
                       children=run, size=_total(run))  # fmt: skip
            kept.append(fold)
            folds.append(fold)
        return kept, self._move(folds, edges)

    def _fold_long(self, box: Box, children: list[Box], edges: Edges) -> tuple[list[Box], Edges]:
        """At most `MAX_SIBLINGS` children: the first ones, and boxes that hold the rest."""
        if len(children) <= MAX_SIBLINGS:
            return children, edges
        kept, rest = children[:_FIRST_SIBLINGS], children[_FIRST_SIBLINGS:]
        size = max(_FOLDED_SIBLINGS, -(-len(rest) // _FIRST_SIBLINGS))
        folds = []
        for start in range(0, len(rest), size):
            part = rest[start : start + size]
            what = "op" if all(child.kind == "op" for child in part) else "block"
            label = f"… {format_count(len(part), f'more {what}')}"
            folds.append(Box(f"{box.key}/more {_FIRST_SIBLINGS + start}", "more", label,
                             phase=box.phase, children=part, size=_total(part)))  # fmt: skip
        return [*kept, *folds], self._move(folds, edges)

    def _move(self, folds: Sequence[Box], edges: Edges) -> Edges:
        """Give each fold the edges inside it; the edges that are left, lifted to the folds."""
        owner = {child: fold for fold in folds for child in fold.children}
        inside: dict[Box, Edges] = {fold: {} for fold in folds}
        left: Edges = {}
        for (a, b), values in edges.items():
            above, beside = owner.get(a), owner.get(b)
            if above is not None and above is beside:
                inside[above][a, b] = values
            else:
                left.setdefault((above or a, beside or b), {}).update(values)
        for fold in folds:
            children, own = self._fold_long(fold, fold.children, inside[fold])
            fold.children = children
            self._finish(fold, own)
        return left


def _span(first: str, last: str) -> str:
    """`layers.0`, `layers.11` -> `layers.0 … 11`."""
    stem, dot, _ = first.rpartition(".")
    same = f"{stem}{dot}"
    return safe_label(f"{first} … {last.removeprefix(same) if stem else last}", _MAX_LABEL)


def _number(box: Box, parent: int, boxes: list[Box], keys: set[str]) -> None:
    while box.key in keys:  # scopes that are called like a fold
        box.key += "'"
    keys.add(box.key)
    box.id, box.parent = len(boxes), parent
    boxes.append(box)
    for child in box.children:
        _number(child, box.id, boxes, keys)
    box.end = len(boxes)
