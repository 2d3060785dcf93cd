"""Freeze what was recorded in one step into a `Graph` and its `Segment`s."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from kit.ir import Graph, Node, Segment
from kit.runtime.lowering import format_site
from kit.runtime.stream import Task, Value

__all__ = ["freeze_step"]


def freeze_step(tasks: Sequence[Task]) -> tuple[Graph, tuple[Segment, ...], dict[int, list[int]]]:
    """The graph of the tasks, how it was cut, and for each task its nodes' ids by local index.

    A value that none of the tasks makes becomes a variable node, just before its first user.
    """
    nodes: list[Node] = []
    segments: list[Segment] = []
    ids: dict[int, list[int]] = {}
    made: dict[tuple[int, int], tuple[int, int]] = {}  # (task, slot) -> (node, output)
    outside: dict[int, tuple[int, int]] = {}  # id of a Value from before -> its variable node

    def source(value: Value, phase: str) -> tuple[int, int]:
        if value.origin in made:
            return made[value.origin]
        if id(value) not in outside:
            nodes.append(Node(value.kind, (), (), (value.aval,), phase=phase))
            outside[id(value)] = (len(nodes) - 1, 0)
        return outside[id(value)]

    for number, task in enumerate(tasks):
        bulk = task.bulk
        reads = [source(value, bulk.phase) for value in bulk.leaves]
        slots: list[tuple[int, int]] = []
        local: list[int] = []
        phases = dict(bulk.phases)
        phase = bulk.phase
        for i, ((op, refs), (site, _, scope)) in enumerate(zip(bulk.ops, bulk.frames, strict=True)):
            phase = phases.get(i, phase)
            inputs = tuple(slots[r] if r >= 0 else reads[-1 - r] for r in refs)
            nodes.append(
                Node(
                    op.name,
                    inputs,
                    _attrs(op.template),
                    op.outputs,
                    format_site(site),
                    phase,
                    scope,
                    number,
                )
            )
            local.append(len(nodes) - 1)
            for output in range(len(op.outputs)):
                made[task.index, len(slots)] = (len(nodes) - 1, output)
                slots.append((len(nodes) - 1, output))
        ids[task.index] = local
        key = hashlib.sha256(repr(task.key).encode()).hexdigest()[:12]
        segments.append(
            Segment(
                number,
                tuple(local),
                tuple(reads),
                tuple(slots[s] for s in task.wanted),
                task.cut,
                bulk.phase,
                key,
                task.is_cached,
            )
        )
    alive = {v.origin for t in tasks for o in t.outputs if (v := o()) is not None}
    wanted = tuple(made[origin] for origin in made if origin in alive)
    return Graph(tuple(nodes), wanted).check(), tuple(segments), ids


def _attrs(template: Any) -> tuple[tuple[str, str], ...]:
    args, kwargs = template
    attrs = [(f"arg{i}", repr(a)) for i, a in enumerate(args) if not _is_hole(a)]
    return (*attrs, *((k, repr(v)) for k, v in kwargs.items() if not _is_hole(v)))


def _is_hole(argument: Any) -> bool:
    return repr(argument).strip("[](), _") == ""
