"""What is picked in one view, said so that every other view can show it too.

A kernel, a box of the graph, a line of source and a sync point all come down to IR nodes and to
the user's lines; `Links` translates them. Views know this type, and nothing of each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kit.ir import Node
from kit.runs.run import Run
from kit.trace.imported import Caller

__all__ = ["NOTHING", "Links", "Selection", "ranges_text"]


@dataclass(frozen=True, slots=True)
class Selection:
    """IR nodes and user's lines that belong together; false if nothing is picked."""

    nodes: frozenset[int] = frozenset()  # of `run.whole`; without a graph `run.callers`
    sites: frozenset[str] = frozenset()  # "train.py:41", as in `Node.site` and `SyncPoint.site`
    label: str = ""  # what was picked, in words: "kernel fusion.3", "train.py:41"

    def __bool__(self) -> bool:
        return bool(self.nodes or self.sites)


NOTHING = Selection()


def ranges_text(nodes: Iterable[int], between: str = ",") -> str:
    """`3, 4, 5, 9` as "3-5,9"."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and runs[-1][1] == node - 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return between.join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Links:
    """From what is picked in a view of `run` to the nodes and lines that it stands for."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._nodes: Sequence[Node | Caller] = ()
        if run is not None:
            self._nodes = run.whole.nodes if run.graphs else run.callers

    def of_nodes(self, nodes: Iterable[int], label: str = "") -> Selection:
        """These nodes, and the lines that recorded them; ids that the graph lacks are dropped."""
        kept = frozenset(i for i in nodes if 0 <= i < len(self._nodes))
        sites = frozenset(self._nodes[i].site for i in kept) - {""}
        return Selection(kept, sites, label) if kept else NOTHING

    def of_segment(self, segment: int) -> Selection:
        """All nodes of a segment."""
        segments = self._run.segments if self._run is not None else ()
        nodes = next((s.nodes for s in segments if s.index == segment), ())
        return self.of_nodes(nodes, f"segment {segment}")

    def of_site(self, site: str) -> Selection:
        """A line of the user's program, and the nodes that it recorded, which may be none."""
        if not site:
            return NOTHING
        return Selection(self._by_site.get(site, frozenset()), frozenset({site}), site)

    @cached_property
    def _by_site(self) -> dict[str, frozenset[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for i, node in enumerate(self._nodes):
            found[node.site].add(i)
        return {site: frozenset(nodes) for site, nodes in found.items()}
