"""Memory behind tensors of device "kit": a buffer with its versions, and views of one.

A `Buffer` is what torch calls a storage: it holds the current `Value` and counts versions. A
`View` shows part of a buffer through one view op; it is computed when it is read, again if the
buffer has changed since, and a write to it becomes a write of its parent. So aliasing is torch's,
while every recorded op stays pure.
"""

from __future__ import annotations

from math import prod

from kit.runtime.recording.bulk import Frame, Op, Value
from kit.runtime.rules.shape import REORDERINGS
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.tape import Tape

__all__ = ["Buffer", "View", "part_of", "shows_memory"]


class Buffer:
    """Memory that tensors share: its current value, and how often it was written."""

    __slots__ = ("__weakref__", "spec", "value", "version")

    def __init__(self, spec: Spec, value: Value | None = None) -> None:
        self.spec = spec
        self.value = value  # None: memory that has not been written yet
        self.version = 0

    @property
    def base(self) -> Buffer:
        """Itself: a buffer is where every chain of views ends."""
        return self

    def read(self, tape: Tape, frame: Frame | None = None) -> Value:
        """The current value."""
        if self.value is None:
            self.value = tape.full(self.spec, 0)
        return self.value

    def write(self, tape: Tape, value: Value) -> None:
        """Make `value` the next version."""
        if tape.on_write:
            tape.note_write(self)
        self.version += 1  # first: a view that is derived once too often is still right
        old, self.value = self.value, value
        session = tape.opened
        if session is not None and session.stepper.mode == "replay" and old is not None:
            session.stepper.note_write(old)

    def forget(self) -> None:
        """There is nothing to derive again."""


# Views that show their parent element for element if the shape is the same, and those that show
# each element once if there are as many: writing them leaves nothing of what was there.
_SAME = frozenset({"aten.slice.Tensor", "aten.view.default"})
_WHOLE = _SAME | REORDERINGS

# Views that may show one place of memory several times.
_REPEATING = frozenset({"aten.expand.default", "aten.unfold.default", "aten.as_strided.default"})
# Views that show numbers other than those in memory.
_OTHER_NUMBERS = frozenset({"aten._conj.default", "aten._neg_view.default"})


class View:
    """One view op away from `parent`."""

    __slots__ = ("base", "cached", "op", "parent", "version")

    def __init__(self, parent: Buffer | View, op: Op) -> None:
        self.parent = parent
        self.base: Buffer = parent.base
        self.op = op
        self.cached: Value | None = None
        self.version = -1

    def read(self, tape: Tape, frame: Frame | None = None) -> Value:
        """The value of what it shows now: recorded in each bulk that reads it, after each write.

        `frame`: where the program is, if the caller knows.
        """
        cached = self.cached
        if cached is None or self.version != self.base.version or cached.bulk is None:
            frame = frame or tape.place.frame()
            source = self.parent.read(tape, frame)
            cached = self.cached = tape.session.stream.record(self.op, (source,), (), frame)[0]
            self.version = self.base.version
        return cached

    def write(self, tape: Tape, value: Value) -> None:
        """Write what it shows: a new version of the parent, and so of the base."""
        ref: Buffer | View = self
        while ref.__class__ is View:
            if ref.op.name in _REPEATING:
                self._write_places(tape, value)
                return
            ref = ref.parent
        op, parent = self.op, self.parent
        if op.name in _SAME and op.outputs == op.avals:  # `x[:] = y`: nothing of the old is left
            parent.write(tape, value)
        else:
            is_whole = op.name in _WHOLE and prod(op.outputs[0].shape) == prod(op.avals[0].shape)
            old = tape.zeros(op.avals[0]) if is_whole else parent.read(tape)
            parent.write(tape, tape.write_view(op, old, value))
        self.cached = None  # the base has it; derive it again if it is read

    def _write_places(self, tape: Tape, value: Value) -> None:
        """Write the base at the places that this shows.

        A view on the way there may show a place several times, so its next value would hold the
        new number of a place beside the old one.
        """
        views: list[Op] = []
        ref: Buffer | View = self
        while isinstance(ref, View):
            views.insert(0, ref.op)
            ref = ref.parent
        ref.write(tape, tape.write_through(views, ref.read(tape), value))
        self.cached = None

    def forget(self) -> None:
        """Derive its value, and those on the way to it, again at the next read."""
        self.cached = None
        self.parent.forget()


def shows_memory(ref: Buffer | View) -> bool:
    """False where a view on the way to the memory shows its numbers conjugated or negated."""
    while isinstance(ref, View) and ref.op.name not in _OTHER_NUMBERS:
        ref = ref.parent
    return not isinstance(ref, View)


def part_of(memory: Buffer, ref: Buffer | View) -> Buffer | View:
    """The part of other memory that `ref` shows of its own."""
    return View(part_of(memory, ref.parent), ref.op) if isinstance(ref, View) else memory
