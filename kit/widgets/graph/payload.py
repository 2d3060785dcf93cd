"""What the picture of an IR graph is made of, as JSON-able columns: the scene.

A scene holds the whole graph once, every group laid out: opening one needs no layout engine, so it
happens in the page (`graph.js`), live and in a report alike. `graph_payload` is pure.

Keys of a scene:
    title, note, message    text
    drawn_by                what laid the groups out
    strings                 every label, op, line, scope and dtype, once
    rows                    a box in each row, parents before what is inside them: `parent`, `end`
                            (the row after the last inside), `kind` (index into KINDS), `label`,
                            `sub`, `key` (strings; the key of an op is "%" and its node), `shape`,
                            `node`, `ops`, `bytes`, `time` (ns a step), `low` and `high` (segments,
                            -1: none), `dtype`, `site`, `op`, `scope`, `change` (index into
                            CHANGES), and what an op says of itself, see details.py
    shapes                  the inside of each different group: `width`, `height`, `reversed`,
                            `boxes` (x, y, w, h of each child) and `edges` (child, child, values,
                            bytes, curve)
    sources, targets        edges between ops, as rows
    dots                    DOT text by shape, where the page may lay them out better than we could
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kit.errors import GraphError
from kit.ir import PHASES, Graph
from kit.runs.analysis.nodes import node_ns
from kit.runs.run import Run
from kit.text import format_count, safe_label
from kit.widgets.base.theme import COLORS, FAINT, INK, SEGMENT_COLORS
from kit.widgets.graph.details import detail_columns
from kit.widgets.graph.diff import CHANGES, Merged, merge
from kit.widgets.graph.dot import dot_text, lay_out
from kit.widgets.graph.grid import Inside, Size
from kit.widgets.graph.tree import Box, Shape, build_tree

__all__ = ["COLOR_BY", "KINDS", "changed_groups", "graph_payload"]

COLOR_BY = ("phase", "segment", "time", "memory", "dtype", "change")
KINDS = ("phase", "group", "same", "ops", "more", "op")
_LABEL_PX, _SUBLABEL_PX = 8.0, 6.3  # width of a character of the two lines, with some room
_BOX_HEIGHT, _MIN_WIDTH = 42.0, 92.0
_MAX_TEXT = 200
_MOST_OPEN = 40  # groups that are opened for their changes

Columns = dict[str, Any]

_THEME = MappingProxyType({
    "phases": {phase: COLORS[phase] for phase in PHASES},
    "segments": list(SEGMENT_COLORS),
    "ramps": {"time": COLORS["kernel"], "memory": COLORS["compile"]},
    "dtypes": {"float32": "#8da2e8", "bfloat16": "#f3c877", "float16": "#e79a86",
               "float64": "#9fb0ba", "int64": "#7fc4ba", "int32": "#5fa89e", "bool": "#c9b3ee"},
    "changes": {"added": "#2f9e8f", "changed": "#f5b12e", "rewired": "#c3a2ef",
                "removed": "#dd5a3c"},
    "faint": FAINT, "ink": INK, "stop": COLORS["wait"], "focus": "#2f6db5", "path": "#2f6db5",
    "hit": "#a3479b",
})  # fmt: skip


def graph_payload(
    run: Run | None,
    *,
    against: Run | None = None,
    marks: Mapping[int, str] | None = None,
    timeout_s: float = 5.0,
) -> Columns:
    """The scene of `run.graphs[0]`, with what has changed since `against` marked in it.

    `marks` are given changes instead: each op of the graph with one of `CHANGES`.
    `timeout_s` is for all of graphviz's work; what it does not lay out in time gets a plain grid.

    Raises:
        GraphError: `against` has no graph to compare with.
    """
    graph = run.graphs[0] if run is not None and run.graphs else Graph(())
    merged = Merged.of(graph)
    if against is not None:
        if not against.graphs:
            raise GraphError(
                "the run to compare with has no graph: run it in another mode than 'torch'."
            )
        merged = merge(against.graphs[0], graph)
    elif marks is not None:
        changes = {i: CHANGES.index(kind) for i, kind in marks.items()}
        merged = replace(merged, changes=changes)
    tree = build_tree(merged.graph)
    strings, ops = _Strings(), sum(not node.is_variable for node in graph.nodes)
    rows = _rows(tree.boxes, merged, run, strings)
    sizes = [[_size(*text) for text in shape.texts] for shape in tree.shapes]
    insides, drawn_by = lay_out(tree.shapes, sizes, timeout_s=timeout_s)
    by_hand = "dot was not found" in drawn_by
    edges = [
        (tree.ops[s], at)
        for i, at in tree.ops.items()
        for s, _ in merged.graph.nodes[i].inputs
        if s in tree.ops
    ]
    ends = np.array(edges, np.int32).reshape(-1, 2)
    return {
        "title": _title(run, ops, "IR graph of one step -" if marks is None else "Graph"),
        "note": _note(len(graph) - ops, merged, "run" if marks is None else "graph"),
        "message": "" if tree.boxes else _why_empty(run),
        "drawn_by": drawn_by,
        "has_times": bool(rows["time"].any()),
        "has_changes": against is not None or marks is not None,
        "rows": rows,
        "shapes": [_shape(s, i) for s, i in zip(tree.shapes, insides, strict=True)],
        "sources": ends[:, 0],
        "targets": ends[:, 1],
        "strings": strings.all,
        "theme": dict(_THEME),
        "dots": [dot_text(s, z) for s, z in zip(tree.shapes, sizes, strict=True)]
        if by_hand
        else [],
    }


def changed_groups(payload: Columns) -> frozenset[str]:
    """The groups that hold an op with a change: open, they show each; none if they are many."""
    rows, found = payload["rows"], set()
    parents = rows["parent"].tolist()
    for row in np.flatnonzero((rows["change"] > 0) & (rows["node"] >= 0)).tolist():
        while parents[row] >= 0:
            row = parents[row]
            if parents[row] >= 0:  # phases are always open
                found.add(payload["strings"][rows["key"][row]])
    return frozenset(found) if len(found) <= _MOST_OPEN else frozenset()


class _Strings:
    """Texts by number, each kept once; `strange` makes one from outside safe to draw first."""

    def __init__(self) -> None:
        self.all: list[str] = [""]
        self._known = {"": 0}
        self._plain: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.all)
            self.all.append(text)
        return self._known[text]

    def strange(self, text: str) -> int:
        if text not in self._plain:
            self._plain[text] = self(safe_label(text, _MAX_TEXT))
        return self._plain[text]


def _rows(boxes: Sequence[Box], merged: Merged, run: Run | None, strings: _Strings) -> Columns:
    columns: Columns = {
        "parent": [b.parent for b in boxes],
        "end": [b.end for b in boxes],
        "kind": [KINDS.index(b.kind) for b in boxes],
        "label": [strings(b.label) for b in boxes],
        "sub": [strings(b.sublabel) for b in boxes],
        "key": [strings(b.key) if b.node < 0 else 0 for b in boxes],
        "shape": [b.shape for b in boxes],
        "node": [merged.ids[b.node] if b.node >= 0 else -1 for b in boxes],
        "ops": [b.size[0] for b in boxes],
        "change": [merged.changes.get(b.node, 0) for b in boxes],
        "bytes": np.array([b.size[1] for b in boxes], np.float64),
    }
    nodes = merged.graph.nodes
    for name in ("op", "site", "scope"):
        texts = [str(getattr(nodes[b.node], name)) if b.node >= 0 else "" for b in boxes]
        columns[name] = [strings.strange(text) for text in texts]
    avals = [nodes[b.node].avals if b.node >= 0 else () for b in boxes]
    dtypes = [strings.strange(a[0].dtype) if a else 0 for a in avals]
    columns = {
        k: v if isinstance(v, np.ndarray) else np.array(v, np.int32) for k, v in columns.items()
    }
    columns["dtype"] = _most(np.array(dtypes, np.int32), columns["bytes"], columns["end"])
    spent = node_ns(run) if run is not None else {}
    columns["time"] = _sums([spent.get(i, 0.0) for i in columns["node"].tolist()], columns["end"])
    columns["low"], columns["high"] = _segments(boxes, merged, run, columns["end"])
    return columns | detail_columns(boxes, merged, run, strings)


def _sums(values: Sequence[float] | np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each row the sum over what is inside it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    found = total[end] - total[: len(end)] if len(end) else np.zeros(0)
    return np.where(found > 1e-9 * total[-1], found, 0.0).round(3)


def _most(dtype: np.ndarray, size: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each row the dtype that has most bytes inside it."""
    kinds = np.unique(dtype[dtype > 0])
    if not len(kinds):
        return np.zeros(len(end), np.int32)
    weight = np.stack([_sums(np.where(dtype == k, size + 1, 0), end) for k in kinds])
    return kinds[weight.argmax(axis=0)].astype(np.int32)


def _segments(
    boxes: Sequence[Box],
    merged: Merged,
    run: Run | None,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the first and the last segment that it is in."""
    cut = {i: s.index for s in run.segments for i in s.nodes} if run is not None else {}
    own = []
    for b in boxes:
        i = merged.ids[b.node] if b.node >= 0 else -1
        own.append(cut.get(i, merged.graph.nodes[b.node].segment) if i >= 0 else -1)
    if not own:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    segment = np.array([*own, -1], np.int32)
    ranges = np.stack([np.arange(len(end)), end], axis=1).reshape(-1)
    high = np.maximum.reduceat(segment, ranges)[::2]
    far = np.where(segment >= 0, segment, np.iinfo(np.int32).max)
    low = np.where(high >= 0, np.minimum.reduceat(far, ranges)[::2], -1)
    return low.astype(np.int32), high.astype(np.int32)


def _size(label: str, sublabel: str) -> Size:
    width = max(_LABEL_PX * (len(label) + 2), _SUBLABEL_PX * len(sublabel)) + 18
    return max(width, _MIN_WIDTH), _BOX_HEIGHT


def _shape(shape: Shape, inside: Inside) -> Columns:
    return {
        "reversed": shape.is_reversed,
        "width": round(inside.width, 1),
        "height": round(inside.height, 1),
        "boxes": [[round(v, 1) for v in box] for box in inside.boxes],
        "edges": [
            [*edge, [round(v, 1) for v in curve]]
            for edge, curve in zip(shape.edges, inside.curves, strict=True)
        ],
    }


def _why_empty(run: Run | None) -> str:
    if run is None:
        return "no run yet"
    if run.settings.mode == "torch":
        return "native torch runs op by op:\nthere is no graph to draw"
    return "this run has no graph"


def _title(run: Run | None, ops: int, what: str) -> str:
    name = f" {safe_label(run.name, 48)}" if run is not None and run.name else ""
    count = f": {format_count(ops, 'op')}" if ops else ""
    return f"{what if name else what.removesuffix(' -')}{name}{count}"


def _note(hidden: int, merged: Merged, other: str) -> str:
    one = "1 parameter, state or input is"
    many = f"{hidden:,} parameters, states and inputs are" if hidden > 1 else one
    parts = [f"{many} not drawn"] if hidden else []
    has_ops = any(not node.is_variable for node in merged.graph.nodes)
    return "  ·  ".join([*parts, *_change_note(merged.changes, other)]) if has_ops else ""


def _change_note(changes: Mapping[int, int], other: str) -> list[str]:
    if not changes:
        return []
    counts = [sum(c == k for c in changes.values()) for k in range(len(CHANGES))]
    told = [f"{n:,} {CHANGES[k]}" for k, n in enumerate(counts) if k and n]
    return [f"against the other {other}: " + (", ".join(told) or "no op differs")]
