"""What a picked op of a graph says of itself, and where the program stopped to wait, as columns.

An op's text is put together in the page; these columns hold what only the run knows. Equal texts
are kept once, so that a report of many runs stays small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kit.ir import READ_CUTS, Graph, roles
from kit.runs.analysis.nodes import node_kernels
from kit.runs.run import Run
from kit.text import format_count, format_ns, safe_label
from kit.trace import Timeline
from kit.trace.metrics import waits_of
from kit.widgets.graph.diff import Merged
from kit.widgets.graph.tree import Box

__all__ = ["detail_columns", "stops_of"]

_MOST = 6  # shapes, attributes, kernels of one op that are told
_LONGEST = 300  # characters of one row
_NAME = 240  # of a kernel's name: what follows it is told, too


def detail_columns(boxes: Sequence[Box], merged: Merged, run: Run | None, strings: Any) -> Any:
    """`attrs`, `makes`, `reads`, `kernels` and `stop` of each row; 0, the empty text, of groups.

    `shared`: 1 where a kernel computes other ops, too, so that the op's time is a share.
    """
    kernels = node_kernels(run) if run is not None else {}
    stops = stops_of(run) if run is not None else {}
    role_of = roles(merged.graph)
    found: dict[str, list[int]] = defaultdict(list)
    for box in boxes:
        texts = dict.fromkeys(("attrs", "makes", "reads", "kernels", "stop"), "")
        own_kernels: Sequence[tuple[str, int]] = ()
        if box.node >= 0:
            node, own = merged.graph.nodes[box.node], merged.ids[box.node]
            own_kernels = kernels.get(own, ())
            texts = {
                "attrs": _some(f"{name} = {value}" for name, value in node.attrs),
                "makes": _some(map(str, node.avals)),
                "reads": _some(_read(merged.graph, role_of, *value) for value in node.inputs),
                "kernels": _some(
                    f"{safe_label(name, _NAME)}, with {format_count(many - 1, 'more op')}"
                    if many > 1
                    else name
                    for name, many in own_kernels
                ),
                "stop": stops.get(own, ""),
            }
        for name, text in texts.items():
            found[name].append(strings(text))
        found["shared"].append(int(any(many > 1 for _, many in own_kernels)))
    return {name: np.array(column, np.int32) for name, column in found.items()}


def stops_of(run: Run) -> Mapping[int, str]:
    """Node -> why the program stopped after it: the last op of each segment that a read ended.

    The cause and the line are told where as many sync points as such segments belong to a step,
    each step has the same ones in order, and the program never waited for everything: that ends
    segments, too, but is no sync point.
    """
    ends = [s.nodes[-1] for s in run.segments if s.cut in READ_CUTS and s.nodes]
    waits = waits_of(run)
    per_step = len(waits.syncs) // waits.steps if waits.steps else 0
    places = [(s.cause, s.site) for s in waits.syncs]
    is_known = (
        len(ends) == per_step
        and places == places[:per_step] * waits.steps
        and not _waits_for_all(run.timeline)
    )
    if not is_known:
        return dict.fromkeys(ends, "the program stops after it, to read a value")
    said = {}
    for k, node in enumerate(ends):
        ns = float(np.mean([s.wait_ns for s in waits.syncs[k::per_step]]))
        cause, site = places[k]
        said[node] = safe_label(
            f"the program stops after it: {cause} at {site or 'an unknown line'} waits "
            f"{format_ns(ns)}, mean of {waits.which}",
            _LONGEST,
        )
    return said


def _waits_for_all(timeline: Timeline) -> bool:
    names = timeline.name[timeline.where(kind="ahead")]
    return any(timeline.names[i] == "wait_all" for i in np.unique(names))


def _read(graph: Graph, role_of: Mapping[int, str], node: int, output: int) -> str:
    source = graph.nodes[node]
    what = role_of[node] if source.op == "parameter" else source.op if source.is_variable else ""
    return f"{what} {source.avals[output]}".strip()


def _some(texts: Iterable[str]) -> str:
    """The first of these, one a line, and how many more there are."""
    every = list(texts)
    more = [f"and {len(every) - _MOST:,} more"] if len(every) > _MOST else []
    return "\n".join([*(safe_label(x, _LONGEST) for x in every[:_MOST]), *more])
