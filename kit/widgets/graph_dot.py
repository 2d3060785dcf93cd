"""Lay a column of boxes out with graphviz: one small `dot` call, with a time limit.

The DOT text holds local numbers and sizes, no text from a program: nothing needs escaping, and
equal blocks give equal text, which is laid out once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import graphviz

from kit.errors import LayoutError
from kit.widgets.graph_grid import HEADER, MARGIN, Column, Points, Size
from kit.widgets.graph_tree import Box, Edge

__all__ = ["lay_out_with_dot", "run_dot"]

_MAX_COMPONENTS_IN_ROW = 5
_BEZIER_STEPS = 6
_SLOW_SPLINES = 120  # more boxes than this get straight edges: routing is what takes the time


def lay_out_with_dot(boxes: Sequence[Box], edges: Sequence[Edge], sizes: Mapping[str, Size],
                     *, is_reversed: bool, timeout_s: float) -> Column:  # fmt: skip
    """Ask `dot` for the places; `is_reversed` puts what runs first at the bottom.

    Raises:
        LayoutError: dot is missing, failed, or took longer than `timeout_s`.
    """
    program = shutil.which("dot")
    if program is None:
        raise LayoutError("dot was not found")
    text = _dot_text(boxes, edges, sizes, is_reversed)
    answer = json.loads(run_dot(program, text, timeout_s))
    return _column(answer, boxes, edges, is_reversed)


@lru_cache(maxsize=256)
def run_dot(program: str, text: str, timeout_s: float) -> str:
    """What `dot -Tjson0` answers to this text; remembered by text.

    Raises:
        LayoutError: it failed, or took longer than `timeout_s`.
    """
    try:
        done = subprocess.run([program, "-Tjson0"], input=text, capture_output=True, text=True,
                              timeout=timeout_s, check=True)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LayoutError(f"dot took longer than {timeout_s:g} s") from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise LayoutError(f"dot failed: {type(error).__name__}") from error
    return done.stdout


def _dot_text(boxes: Sequence[Box], edges: Sequence[Edge], sizes: Mapping[str, Size],
              is_reversed: bool) -> str:  # fmt: skip
    number = {box.key: i for i, box in enumerate(boxes)}
    children: dict[str, list[Box]] = {}
    for box in boxes:
        children.setdefault(box.parent, []).append(box)
    style = "line" if len(boxes) > _SLOW_SPLINES else "spline"
    graph = graphviz.Digraph(
        graph_attr={"rankdir": "TB", "ranksep": "0.4", "nodesep": "0.22", "splines": style,
                    "nslimit": "1", "nslimit1": "1", "mclimit": "0.5"},
        node_attr={"shape": "box", "fixedsize": "true", "label": ""},
        edge_attr={"arrowhead": "none"},
    )  # fmt: skip
    _add_frame(graph, boxes[0], children, number, sizes)
    pairs = [(number[e.source], number[e.target]) for e in edges]
    hidden = _wrap(children, boxes, edges, number)
    for a, b in pairs:
        graph.edge(*_names(a, b, is_reversed))
    for a, b in hidden:
        graph.edge(*_names(a, b, is_reversed), style="invis")
    return str(graph.source)


def _names(a: int, b: int, is_reversed: bool) -> tuple[str, str]:
    return (f"n{b}", f"n{a}") if is_reversed else (f"n{a}", f"n{b}")


def _add_frame(graph: graphviz.Digraph, frame: Box, children: Mapping[str, Sequence[Box]],
               number: Mapping[str, int], sizes: Mapping[str, Size]) -> None:  # fmt: skip
    width = sizes[frame.key][0]
    title = (f'<<TABLE BORDER="0" CELLPADDING="0" FIXEDSIZE="TRUE" WIDTH="{width:.0f}" '
             f'HEIGHT="{HEADER:.0f}"><TR><TD></TD></TR></TABLE>>')  # fmt: skip
    with graph.subgraph(name=f"cluster_{number[frame.key]}") as cluster:
        cluster.attr(label=title, labeljust="l", margin=f"{MARGIN:.0f}")
        for box in children.get(frame.key, ()):
            if box.is_frame:
                _add_frame(cluster, box, children, number, sizes)
            else:
                w, h = sizes[box.key]
                cluster.node(f"n{number[box.key]}", width=f"{w / 72:.3f}", height=f"{h / 72:.3f}")


def _wrap(children: Mapping[str, Sequence[Box]], boxes: Sequence[Box], edges: Sequence[Edge],
          number: Mapping[str, int]) -> list[tuple[int, int]]:  # fmt: skip
    """Invisible edges that put unconnected siblings into several rows instead of one wide one."""
    parent = {box.key: box.parent for box in boxes}
    leaves = {box.key: [b.key for b in boxes if not b.is_frame and _is_in(b.key, box.key, parent)]
              for box in boxes if box.is_frame}  # fmt: skip
    hidden = []
    for siblings in children.values():
        owner = {leaf: s.key for s in siblings for leaf in leaves.get(s.key, [s.key])}
        root = {s.key: s.key for s in siblings}
        for edge in edges:
            a, b = owner.get(edge.source), owner.get(edge.target)
            if a is not None and b is not None:
                root[_root(a, root)] = _root(b, root)
        parts: dict[str, list[str]] = {}
        for sibling in siblings:
            parts.setdefault(_root(sibling.key, root), []).append(sibling.key)
        groups = list(parts.values())
        for above, below in zip(groups, groups[_MAX_COMPONENTS_IN_ROW:], strict=False):
            last, first = leaves.get(above[-1], above)[-1], leaves.get(below[0], below)[0]
            hidden.append((number[last], number[first]))
    return hidden


def _is_in(key: str, frame: str, parent: Mapping[str, str]) -> bool:
    while key and key != frame:
        key = parent[key]
    return key == frame


def _root(key: str, root: dict[str, str]) -> str:
    while root[key] != key:
        key = root[key]
    return key


def _column(answer: dict[str, Any], boxes: Sequence[Box], edges: Sequence[Edge],
            is_reversed: bool) -> Column:  # fmt: skip
    _, _, width, height = (float(x) for x in answer["bb"].split(","))
    placed = {}
    ids = {}
    for thing in answer["objects"]:
        name = thing["name"]
        box = boxes[int(name.removeprefix("cluster_").removeprefix("n"))]
        ids[thing["_gvid"]] = box.key
        if name.startswith("cluster_"):
            x0, y0, x1, y1 = (float(x) for x in thing["bb"].split(","))
            placed[box.key] = ((x0 + x1) / 2, height - (y0 + y1) / 2, x1 - x0, y1 - y0)
        else:
            x, y = (float(v) for v in thing["pos"].split(","))
            size = float(thing["width"]) * 72, float(thing["height"]) * 72
            placed[box.key] = (x, height - y, *size)
    wanted = {(edge.source, edge.target) for edge in edges}
    routes = {}
    for line in answer.get("edges", ()):
        pair = ids[line["tail"]], ids[line["head"]]
        pair = (pair[1], pair[0]) if is_reversed else pair
        if pair in wanted and line.get("style") != "invis":
            routes[pair] = _points(line["pos"], height, is_reversed)
    return Column(placed, routes, width, height)


def _points(pos: str, height: float, is_reversed: bool) -> Points:
    """The B-spline of an edge as a polyline."""
    controls = [tuple(float(v) for v in p.split(",")) for p in pos.split() if p[0] not in "se"]
    xs, ys = [controls[0][0]], [height - controls[0][1]]
    for i in range(0, len(controls) - 3, 3):
        a, b, c, d = controls[i : i + 4]
        for step in range(1, _BEZIER_STEPS + 1):
            t = step / _BEZIER_STEPS
            u = 1 - t
            w = (u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t)
            xs.append(w[0] * a[0] + w[1] * b[0] + w[2] * c[0] + w[3] * d[0])
            ys.append(height - (w[0] * a[1] + w[1] * b[1] + w[2] * c[1] + w[3] * d[1]))
    if is_reversed:
        xs.reverse()
        ys.reverse()
    return tuple(xs), tuple(ys)
