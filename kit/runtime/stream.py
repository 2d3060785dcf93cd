"""The op stream while it is recorded: values that may not exist yet, and the bulk that grows.

This is the hot path: one `Bulk.add` for each op that the user's program executes. A bulk refers to
its own earlier outputs by slot, and to anything older by leaf number; so two steps that do the same
thing give the same key, whatever their objects are called, and aliasing shows in the key.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from kit.ir import Aval

__all__ = ["Bulk", "Frame", "Op", "Site", "Task", "Value"]

Site = tuple[str, int]  # file name, line
Frame = tuple[Site, str, str]  # the user's site, the library site under it ("" if none), scope


@dataclass(slots=True)
class Op:
    """What one recorded call does: interned, so that `id` stands for all of it.

    `template` is the call's arguments with `Hole` and `Scalar` where values go.
    """

    id: int
    name: str  # "aten.add.Tensor"
    template: tuple[Any, ...]  # (args, kwargs)
    avals: tuple[Aval, ...]  # of its inputs
    outputs: tuple[Aval, ...]
    scalars: int  # how many numbers it takes from the scalar vector
    is_view: bool = False  # a view can be made again from its base, so it is never returned


class Value:
    """One array of the program: pending, running, ready or poisoned.

    `bulk` and `slot` say which recorded op makes it; `task` who runs that; `array` what came out.
    """

    __slots__ = ("__weakref__", "array", "aval", "bulk", "error", "kind", "origin", "slot", "task")

    def __init__(self, aval: Aval, bulk: Bulk | None = None, slot: int = 0) -> None:
        self.aval = aval
        self.bulk = bulk  # the bulk that is still growing, None once it is cut
        self.slot = slot
        self.task: Task | None = None
        self.array: Any = None
        self.error: BaseException | None = None
        self.kind = "parameter"  # what it is called when it comes into a graph from outside
        self.origin: tuple[int, int] | None = None  # (segment index, slot) that made it

    @property
    def is_lost(self) -> bool:
        """True for a view that its segment did not return: make it again from its base."""
        return self.bulk is None and self.task is None and self.array is None and not self.error


class Bulk:
    """Ops recorded since the last cut, in program order."""

    __slots__ = (
        "frames",
        "key",
        "leaf_of",
        "leaves",
        "limit",
        "ops",
        "outputs",
        "phase",
        "phases",
        "scalars",
        "size",
        "slots",
    )

    def __init__(self, phase: str, limit: int) -> None:
        self.phase = phase  # of its first op; only a lazy bulk spans several
        self.phases: list[tuple[int, str]] = []  # (first op, phase)
        self.limit = limit
        self.ops: list[tuple[Op, tuple[int, ...]]] = []
        self.frames: list[Frame] = []
        self.leaves: list[Value] = []
        self.leaf_of: dict[int, int] = {}
        self.scalars: list[float] = []
        self.outputs: list[ref[Value]] = []
        self.key: list[int] = []
        self.slots = 0
        self.size = 0  # ops that count: not views

    def add(
        self,
        op: Op,
        inputs: Sequence[Value],
        scalars: Sequence[float],
        frame: Frame,
    ) -> list[Value]:
        """Append one op; its outputs are returned as pending values."""
        refs = []
        for value in inputs:
            if value.bulk is self:
                refs.append(value.slot)
            else:
                leaf = self.leaf_of.get(id(value))
                if leaf is None:
                    leaf = self.leaf_of[id(value)] = len(self.leaves)
                    self.leaves.append(value)
                refs.append(-1 - leaf)
        self.ops.append((op, tuple(refs)))
        self.frames.append(frame)
        self.key.append(op.id)
        self.key.extend(refs)
        if scalars:
            self.scalars.extend(scalars)
        values = []
        for aval in op.outputs:
            value = Value(aval, self, self.slots)
            self.slots += 1
            self.outputs.append(ref(value))
            values.append(value)
        if not op.is_view:
            self.size += 1
        return values

    def close(self) -> list[Value]:
        """Give the values that something alive still needs; the rest will never leave the device.

        The returned list holds them in slot order. Views are left out: their holder makes them
        again from the base when it needs them.
        """
        kept = []
        slot = 0
        for op, _ in self.ops:
            for _ in op.outputs:
                value = self.outputs[slot]()
                slot += 1
                if value is None:
                    continue
                value.bulk = None
                if not op.is_view:
                    kept.append(value)
        return kept


@dataclass(slots=True, eq=False)
class Task:
    """A bulk that has been cut: what to run, on what, and where the results go."""

    index: int
    bulk: Bulk
    wanted: tuple[int, ...]  # slots to return
    outputs: list[ref[Value]]
    cut: str
    key: tuple[Any, ...]
    plan_ns: tuple[int, int] = (0, 0)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    is_cached: bool = True
    dispatch_ns: tuple[int, int] = (0, 0)
    issued: list[tuple[Any, int]] = field(default_factory=list)  # (Executable, its first op)
