"""What a hybridized function did, learnt from what it recorded: a `Trace` to be issued again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from sys import getrefcount
from typing import Any

import torch

from kit.runtime.compiling.lower import InnerProgram
from kit.runtime.recording.bulk import LISTED_REFERENCES, Bulk, Op, Value
from kit.runtime.recording.sites import format_site
from kit.runtime.recording.template import HOLE
from kit.runtime.steps.functions import KnownFunction
from kit.runtime.steps.recording import Draw, made_at
from kit.torch.tensors.buffer import Buffer, View
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["Made", "Trace", "each_made", "learn"]

_Node = tuple[Op, tuple[int, ...]]  # an op, and where its inputs come from: see `Bulk.nodes`


@dataclass(eq=False)
class Trace:
    """What the calls of one kind do."""

    op: Op | None = None  # the whole function; None if only constants are left of it
    leaves: list[int] = field(default_factory=list)  # which bases it reads
    scalars: list[float] = field(default_factory=list)
    shared: list[Value] = field(default_factory=list)  # results that depend on nothing
    copies: bool = False  # some results are what arguments were before
    changed: list[int] | None = None  # bases that get a new value; None: all, in order
    becomes: list[int] = field(default_factory=list)  # which result each of them gets
    pick: Callable[[list[Value]], Sequence[Value]] = tuple  # those of them, quickly
    written: list[int] | None = None  # arguments whose memory is written; None: all
    result: Any = None  # what to return, with `Made` for tensors
    outside: list[Any] = field(default_factory=list)  # held, so that no other object gets their ids
    known: KnownFunction | None = None  # what it reaches for further away; None if nothing
    layers: list[tuple[torch.nn.Module, Any]] = field(default_factory=list)  # with their numbers

    def hold(self, outside: list[Any]) -> None:
        """Hold what the function names; of modules, torch's own code reads the numbers."""
        self.outside = outside
        things = [x for one in outside for x in (one.values() if type(one) is dict else [one])]
        self.layers = [(x, _numbers_of(x)) for x in things if isinstance(x, torch.nn.Module)]

    def has_changed(self, function: Any) -> bool:
        """Has anything that the function reaches for changed since?"""
        if self.known is not None and self.known.change(function):
            return True
        return any(_numbers_of(layer) != seen for layer, seen in self.layers)


def _numbers_of(layer: torch.nn.Module) -> Any:
    kinds = (int, float, bool, str)
    return [
        (id(part), [x for x in vars(part).values() if type(x) in kinds]) for part in layer.modules()
    ]


@dataclass(frozen=True)
class Made:
    """A returned tensor: an argument, or one over new memory, or a view of either."""

    argument: int = -1
    number: int = -1  # of the tensor: results that are one object have one
    base: int = -1  # an argument's memory
    memory: int = -1  # of new memory: results that share it have one number
    value: int = -1  # a result, for new memory
    base_spec: Any = None
    views: tuple[Op, ...] = ()
    spec: Any = None


def learn(tape: Tape, bulk: Bulk, result: Any, tensors: list[KitTensor], bases: list[Buffer],
           before: list[Value], writes: list[Buffer]) -> Trace | str:  # fmt: skip
    """What the recorded ops amount to; or why they cannot be issued again."""
    trace = Trace()
    known = {id(value): i for i, value in enumerate(before)}
    for leaf in bulk.leaves:
        if id(leaf) not in known:
            return f"it uses a tensor of {leaf.aval} that is no argument{_first_use(bulk, leaf)}"
    own = {id(base): i for i, base in enumerate(bases)}
    results: list[Value] = []
    number: dict[int, int] = {}
    foreign: list[Value] = []  # neither made here nor an argument's

    def place(value: Value) -> int:
        if id(value) not in known and value.bulk is not bulk:
            foreign.append(value)
        if id(value) not in number:
            number[id(value)] = len(results)
            results.append(value)
        return number[id(value)]

    changed = []
    for i, (base, old) in enumerate(zip(bases, before, strict=True)):
        if base.value is not None and base.value is not old:
            changed.append(i)
            trace.becomes.append(place(base.value))
    trace.changed = changed if len(changed) < len(bases) else None
    touched = {id(base) for base in writes}
    overwritten = [i for i, t in enumerate(tensors) if id(t.ref.base) in touched]
    trace.written = overwritten if len(overwritten) < len(tensors) else None
    reached = set(own)  # buffers, and values that views keep, which we know how to reach
    for tensor in tensors:
        _chain(tensor.ref, reached)
    made = _describe(result, tensors, own, place, reached, {})
    if isinstance(made, str):
        return made
    if foreign:
        return f"it gives a tensor of {foreign[0].aval} that is no argument"
    trace.result = made
    once = list(dict.fromkeys(writes))
    writes.clear()
    if why := _kept_elsewhere(bulk, reached | set(number), once):
        return why
    _compile(tape, bulk, trace, results, known)
    return trace


def _chain(ref: Buffer | View, reached: set[int]) -> tuple[Buffer, tuple[Op, ...]]:
    """The buffer, and the view ops from it on; what the views keep is noted as reached."""
    views = []
    while isinstance(ref, View):
        reached.add(id(ref.cached))
        views.append(ref.op)
        ref = ref.parent
    return ref, tuple(reversed(views))


def _describe(value: Any, tensors: list[KitTensor], own: dict[int, int],
              place: Callable[[Value], int], reached: set[int],
              seen: dict[int, int]) -> Any:  # fmt: skip
    """The result with `Made` in place of tensors; or, as a str, why it cannot be made again.

    Args:
        seen: id of a returned tensor, or of its memory -> its number.
    """
    if isinstance(value, KitTensor):
        for i, tensor in enumerate(tensors):
            if tensor is value:
                return Made(argument=i)
        if value.requires_grad:
            return "it returns a tensor that requires grad; let its caller ask for that"
        base, views = _chain(value.ref, reached)
        made = Made(number=seen.setdefault(id(value), len(seen)), views=views, spec=value.spec)
        if id(base) in own:
            return replace(made, base=own[id(base)])
        if base.value is None:
            return "it returns memory that it has not written"
        reached.add(id(base))
        memory = seen.setdefault(id(base), len(seen))
        return replace(made, memory=memory, value=place(base.value), base_spec=base.spec)
    if type(value) in (list, tuple, dict):
        items = value.values() if type(value) is dict else value
        parts = [_describe(item, tensors, own, place, reached, seen) for item in items]
        if (why := next((p for p in parts if isinstance(p, str)), None)) is not None:
            return why
        return dict(zip(value, parts, strict=True)) if type(value) is dict else type(value)(parts)
    if type(value) in (int, float, bool, type(None)):
        return value
    return f"it returns a {type(value).__name__}"


def _kept_elsewhere(bulk: Bulk, reached: set[int], writes: list[Buffer]) -> str:
    """Why a repetition would miss something: a tensor that lives on and that we cannot reach."""
    if (buffer := _held(writes, reached)) is not None:
        return f"it writes a tensor of {buffer.spec.aval} that is no argument"
    writes.clear()  # they hold values
    if (value := _held(bulk.values, reached)) is not None:
        return f"it keeps what it made at {made_at(bulk, value.slot)} elsewhere"
    return ""


def _held(listed: list[Any], reached: set[int]) -> Any:
    """The first of them that something besides their list holds, and that we cannot reach."""
    for is_sure in (False, True):
        # what dies now is held by the list alone
        held = [x for x in listed if id(x) not in reached and getrefcount(x) > LISTED_REFERENCES]
        if not held or is_sure:
            break
        held.clear()
        gc.collect()  # a cycle of dead objects may hold it
    return held[0] if held else None


def _constants(nodes: list[_Node], scalars: list[float]) -> list[Any]:
    """For each slot, what it is made of if that is no tensor and no chance, else None."""
    found: list[Any] = []
    numbers: dict[Any, int] = {}  # equal computations get one number
    at = 0
    for op, refs in nodes:
        given = tuple(scalars[at : at + op.scalars])
        at += op.scalars
        inputs = tuple(found[r] if r >= 0 else None for r in refs)
        if None in inputs or any(isinstance(x, Draw) for x in given):
            found += [None] * len(op.outputs)
        else:
            number = numbers.setdefault((op.id, inputs, given), len(numbers))
            found += [(number, k) for k in range(len(op.outputs))]
    return found


def _compile(
    tape: Tape, bulk: Bulk, trace: Trace, results: list[Value], known: dict[int, int]
) -> None:
    """Split the results: constants are kept, the rest becomes one op."""
    nodes = list(bulk.nodes())
    order, wanted = _sorted_results(trace, bulk, nodes, results, known)
    shift = len(trace.shared)
    begin = {"shared": 0, "made": shift, "old": shift + len(wanted)}
    position = [begin[what] + k for what, k in order]
    trace.becomes = [position[k] for k in trace.becomes]
    if len(trace.becomes) > 1:
        trace.pick = itemgetter(*trace.becomes)
    elif trace.becomes:
        (only,) = trace.becomes
        trace.pick = lambda values: (values[only],)
    else:
        trace.pick = lambda values: ()
    trace.result = each_made(
        trace.result, lambda m: m if m.value < 0 else replace(m, value=position[m.value])
    )
    if not wanted:
        return
    program, leaves, scalars = _needed_part(bulk, nodes, wanted)
    avals = tuple(bulk.leaves[k].aval for k in leaves)
    trace.leaves = [known[id(bulk.leaves[k])] for k in leaves]
    bases = range(len(trace.becomes)) if trace.changed is None else trace.changed
    pairs = zip(bases, trace.becomes, strict=True)
    by_base = {base: k - shift for base, k in pairs if shift <= k < begin["old"]}
    place_of = {base: k for k, base in enumerate(trace.leaves)}
    writes = _leading_writes(by_base, place_of)
    outputs = tuple(v.aval for v, (what, _) in zip(results, order, strict=True) if what == "made")
    holes = (HOLE,) * len(avals)
    trace.op = tape.session.intern(
        "kit.hybrid", (holes, {"program": program}), avals, outputs, len(scalars), writes=writes
    )
    trace.scalars = scalars


def _sorted_results(
    trace: Trace, bulk: Bulk, nodes: list[_Node], results: list[Value], known: dict[int, int]
) -> tuple[list[tuple[str, int]], list[int]]:
    """For each result, ("old" | "made" | "shared", its number among these); the slots to make.

    Constants go to the trace, to be shared by all calls.
    """
    constant = _constants(nodes, bulk.scalars)
    constants: dict[Any, int] = {}
    order: list[tuple[str, int]] = []
    wanted: list[int] = []
    for value in results:
        if id(value) in known:
            order.append(("old", known[id(value)]))  # what an argument was before
            trace.copies = True
        elif (key := constant[value.slot]) is None:
            order.append(("made", len(wanted)))
            wanted.append(value.slot)
        else:
            if key not in constants:
                constants[key] = len(trace.shared)
                trace.shared.append(value)
                value.is_shared = True
            order.append(("shared", constants[key]))
    return order, wanted


def _needed_part(
    bulk: Bulk, nodes: list[_Node], wanted: list[int]
) -> tuple[InnerProgram, list[int], list[float]]:
    """The program that makes these slots; which leaves of the bulk, and which numbers it takes."""
    used = _used(nodes, wanted)
    slots: dict[int, int] = {}
    leaves: dict[int, int] = {}
    kept, scalars = [], []
    slot = count = at = 0
    for i, (op, refs) in enumerate(nodes):
        if i in used:
            inputs = tuple(
                slots[r] if r >= 0 else -1 - leaves.setdefault(-1 - r, len(leaves)) for r in refs
            )
            kept.append((op, inputs))
            scalars += bulk.scalars[at : at + op.scalars]
            slots.update({slot + k: count + k for k in range(len(op.outputs))})
            count += len(op.outputs)
        slot += len(op.outputs)
        at += op.scalars
    avals = tuple(bulk.leaves[k].aval for k in leaves)
    program = InnerProgram(kept, avals, len(scalars), tuple(slots[s] for s in wanted))
    return program, list(leaves), scalars


def _used(nodes: list[_Node], wanted: list[int]) -> set[int]:
    maker: list[int] = []
    for i, (op, _) in enumerate(nodes):
        maker += [i] * len(op.outputs)
    used: set[int] = set()
    todo = [maker[s] for s in wanted]
    while todo:
        i = todo.pop()
        if i not in used:
            used.add(i)
            todo += [maker[r] for r in nodes[i][1] if r >= 0]
    return used


def _leading_writes(by_base: dict[int, int], place_of: dict[int, int]) -> tuple[int, ...]:
    """For the first outputs, as long as each overwrites an input: which one."""
    over = {output: place_of[base] for base, output in by_base.items() if base in place_of}
    writes: list[int] = []
    while len(writes) in over:
        writes.append(over[len(writes)])
    return tuple(writes)


def each_made(result: Any, change: Callable[[Made], Any]) -> Any:
    """A result with what `change` gives of each `Made` in it."""
    if isinstance(result, Made):
        return change(result)
    if isinstance(result, list | tuple):
        return type(result)(each_made(item, change) for item in result)
    if isinstance(result, dict):
        return {name: each_made(item, change) for name, item in result.items()}
    return result


def _first_use(bulk: Bulk, leaf: Value) -> str:
    number = next(i for i, value in enumerate(bulk.leaves) if value is leaf)
    for (_, refs), frame in zip(bulk.nodes(), bulk.frames, strict=True):
        if -1 - number in refs:
            return f", at {format_site(frame[0])}"
    return ""
