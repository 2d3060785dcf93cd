"""What launched each kernel of a trace of torch's: op, modules, annotations and line. And what
took the memory that each device held.

    kernel --correlation--> launching call --inside of--> op, module, annotation, function
    function of the autograd engine --sequence number--> op of the forward pass

An op of the backward pass is inside of no module: it takes the place of the op of the forward pass
whose gradient it computes. torch gives both the same sequence number; each thread has its own, and
the engine names the thread of the forward op by a number that is no system's, so that thread is
the one which fits most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.arguments import Arguments, parts
from kit.formats.chrome.columns import Columns, Rows
from kit.formats.chrome.events import NONE
from kit.formats.chrome.frames import MODULE, Frames
from kit.formats.chrome.memory import Allocations, measured_memory
from kit.formats.chrome.nesting import Nesting, Places
from kit.formats.chrome.roles import ATEN_OPS, OPS, Role
from kit.trace.imported import MAX_CALLERS, Caller, MeasuredMemory, cut_name
from kit.trace.intervals import Ints, Mask, distinct

__all__ = ["CallersFound", "find_callers", "launch_numbers", "memory_of"]

_DEEPEST = 200  # frames to look at
_SEQUENCE = (1 << 40) - 1
_MAX_NUMBER = 1 << 62
_MOST_THREADS = 200  # whose ops are looked through for those of a gradient
_Kind = tuple[Places, Mask]
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


@dataclass(frozen=True)
class CallersFound:
    """The callers, and which of them launched each of the kernels that were asked about."""

    callers: tuple[Caller, ...]
    numbers: Ints  # Shape: (kernels,); -1: not known
    notes: tuple[str, ...] = ()


def find_callers(
    columns: Columns, nesting: Nesting, frames: Frames, arguments: Arguments, kernels: Rows
) -> CallersFound:
    """Of these events what launched them.

    Args:
        arguments: those that the nodes of ops are numbers of.
        kernels: what a GPU ran; or ops, which are their own callers.
    """
    row = _rows(columns, nesting, kernels)
    known = np.flatnonzero(row >= 0)
    numbers = np.full(len(kernels), NONE, np.int64)
    if not len(known):
        return CallersFound((), numbers)
    keys, calls = _keys(columns, nesting, frames, row[known], kernels[known])
    of, first = _groups(keys)
    found = np.stack([key[first] for key in keys], axis=1)
    kernel_counts = np.bincount(of, minlength=len(found))
    once = _groups([of, calls])[1]
    call_counts = np.bincount(of[once], minlength=len(found))
    notes: tuple[str, ...] = ()
    if len(found) > MAX_CALLERS:
        most = np.sort(np.argsort(-kernel_counts, kind="stable")[:MAX_CALLERS])
        place = np.full(len(found), NONE, np.int64)
        place[most] = np.arange(MAX_CALLERS)
        notes = (
            f"{len(found):,} ways to launch a kernel: of {int((place[of] < 0).sum()):,} "
            f"kernels, launched in other ways than the {MAX_CALLERS:,} most frequent, nothing is "
            "said",
        )
        found, of = found[most], place[of]
        call_counts, kernel_counts = call_counts[most], kernel_counts[most]
    make = _Maker(columns.names, arguments, nesting, frames)
    counts = zip(found.tolist(), call_counts.tolist(), kernel_counts.tolist(), strict=True)
    callers = [make.caller(*one) for one in counts]
    order = sorted(range(len(callers)), key=lambda i: _place(callers[i]))
    place = np.full(len(callers) + 1, NONE, np.int64)  # the last is of -1
    place[order] = np.arange(len(callers))
    numbers[known] = place[of]
    return CallersFound(tuple(callers[i] for i in order), numbers, notes)


def _place(caller: Caller) -> tuple[Any, ...]:
    """Where a caller stands among the others, however the file orders its events."""
    return (caller.module, caller.annotation, caller.op, caller.site, caller.shapes,
            caller.others, caller.is_backward, caller.graph_node)  # fmt: skip


def _rows(columns: Columns, nesting: Nesting, kernels: Rows) -> Ints:
    """The row of anchors that launched each kernel; -1: none is known."""
    anchors = nesting.anchors["event"]
    if not len(anchors) or not len(kernels):
        return np.full(len(kernels), NONE, np.int64)
    link, is_op = columns.link, columns.has(*OPS)
    if is_op[kernels].all():  # each is its own caller
        rows = np.argsort(anchors, kind="stable")
        return _match(anchors[rows], rows, kernels.astype(np.int64))
    rows = np.flatnonzero(~is_op[anchors])
    rows = rows[np.argsort(link[anchors[rows]], kind="stable")]
    asked = np.where(link[kernels] > 0, link[kernels], NONE)
    return _match(link[anchors[rows]], rows, asked)


def _match(keys: Ints, rows: Rows, asked: Ints) -> Ints:
    """The row that has each key, of keys in order; -1 for a key that none has."""
    if not len(keys):
        return np.full(len(asked), NONE, np.int64)
    at = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return np.where(keys[at] == asked, rows[at], NONE)


def _keys(
    columns: Columns, nesting: Nesting, frames: Frames, row: Ints, kernels: Rows
) -> tuple[list[NDArray[Any]], Ints]:
    """What tells one caller from another, columns with a row for each kernel; and its call."""
    anchors, name, node = nesting.anchors, columns.name, columns.node
    event, call, engine = (anchors[x][row] for x in ("event", "call", "engine"))
    module, line, annotation = (anchors[x][row] for x in ("module", "line", "annotation"))
    forward = np.where(engine >= 0, _forward(columns, nesting)[row], NONE)
    has_forward = forward >= 0
    own = (module >= 0) | (line >= 0)  # ops that are computed again during the backward pass
    taken = has_forward & ~own
    module = np.where(taken, anchors["module"][forward], module)
    line = np.where(taken, anchors["line"][forward], line)
    frame = nesting.frame[np.where(taken, anchors["event"][forward], event)]
    without = (line < 0) & (frame >= 0)
    line[without] = _outside(name, nesting, frames, frame[without])
    written = np.where(has_forward, anchors["call"][forward], call)
    line = np.where((line < 0) & (written >= 0), parts(node[written])[1], line)
    graphs = [i for i, text in enumerate(columns.names) if text.startswith(_GRAPH_LAUNCHES)]
    is_graph = np.isin(name[event], graphs)  # the op around it has not computed what it replays
    arguments = np.where((call >= 0) & ~is_graph, parts(node[call])[0], NONE)
    graph_node = np.where(columns.role[kernels] == Role.KERNEL, node[kernels], NONE)
    op = np.where(call >= 0, name[call], NONE)
    keys = [op, arguments, module, annotation, line, engine >= 0, graph_node]
    return keys, np.where(call >= 0, call, event)


def _outside(name: NDArray[Any], nesting: Nesting, frames: Frames, frame: Places) -> Ints:
    """The names of the user's functions around these; a function itself where there is none."""
    found, of = np.unique(frame, return_inverse=True)
    names = []
    for one in found.tolist():
        at, left = one, _DEEPEST
        while at >= 0 and left and not frames.place(int(name[at]))[1]:
            at, left = nesting.frame[at], left - 1
        names.append(int(name[at]) if at >= 0 and left else int(name[one]))
    return np.array(names, np.int64)[of]


def _groups(columns: Sequence[NDArray[Any]]) -> tuple[Ints, NDArray[np.intp]]:
    """Rows that are alike have one number; and the first row of each number."""
    number, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        code = column.astype(np.int64)
        code -= code.min(initial=0)
        width = int(code.max(initial=0)) + 1
        if most * width > _MAX_NUMBER:
            numbers, number = np.unique(number, return_inverse=True)
            codes, code = np.unique(code, return_inverse=True)
            most, width = len(numbers), len(codes)
        number = number * width + code
        most *= width
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    return number, first


def _forward(columns: Columns, nesting: Nesting) -> Ints:
    """Of each anchor inside of the autograd engine the row of the forward op; -1: not known."""
    anchors = nesting.anchors
    event, engine = anchors["event"], anchors["engine"]
    role, link, thread = columns.role, columns.link, columns.thread
    found = np.full(len(event), NONE, np.int64)
    ops = np.flatnonzero(np.isin(role[event], list(OPS)) & (link[event] >= 0))
    asked = np.flatnonzero(engine >= 0)
    asked = asked[link[engine[asked]] >= 0]
    if not len(ops) or not len(asked):
        return found
    ops = ops[np.lexsort((columns.start[event[ops]], link[event[ops]]))]
    wanted = link[engine[asked]] & _SEQUENCE
    numbers, number = np.unique(link[engine[asked]] >> 40, return_inverse=True)
    most = np.zeros(len(numbers), np.int64)  # of each number, what the thread that fits most has
    for rows in _by_thread(ops, thread[event[ops]]):
        keys = link[event[rows]]
        at = (np.searchsorted(keys, wanted, "right") - 1).clip(min=0)  # the last op of several
        fits = keys[at] == wanted
        count = np.bincount(number, fits, minlength=len(numbers)).astype(np.int64)
        chosen = (count > most)[number]
        found[asked[chosen]] = np.where(fits, rows[at], NONE)[chosen]
        most = np.maximum(most, count)
    return found


def _by_thread(rows: Ints, thread: NDArray[np.int32]) -> list[Ints]:
    """The rows of each thread, in their order; of too many threads those that have most."""
    _, of, count = np.unique(thread, return_inverse=True, return_counts=True)
    parts = np.split(rows[np.argsort(of, kind="stable")], np.cumsum(count)[:-1])
    kept = np.sort(np.argsort(-count, kind="stable")[:_MOST_THREADS])
    return [parts[i] for i in kept.tolist()]


class _Maker:
    """Texts for numbers."""

    def __init__(
        self, names: Sequence[str], arguments: Arguments, nesting: Nesting, frames: Frames
    ) -> None:
        self._names, self._arguments = names, arguments
        self._paths, self._frames = nesting.paths, frames

    def caller(self, key: Sequence[int], calls: int, kernels: int) -> Caller:
        """The caller with this row of `_keys`."""
        op, arguments, module, annotation, line, backward, graph_node = key
        said = self._arguments[arguments]
        modules = tuple(text.removeprefix(MODULE) for text in self._path(module))
        return Caller(
            op=cut_name(self._names[op]) if op >= 0 else "",
            module=modules or said.hierarchy,
            annotation=self._path(annotation),
            site=cut_name(self._frames.place(line)[0]) if line >= 0 else "",
            inputs=said.inputs,
            others=said.others,
            is_backward=bool(backward),
            calls=calls,
            kernels=kernels,
            graph_node=graph_node,
        )

    def _path(self, path: int) -> tuple[str, ...]:
        return tuple(cut_name(self._names[i]) for i in self._paths.names(path))


def launch_numbers(link: Ints, calls: Rows, kernels: Rows) -> Ints:
    """Of each launching call and of what it launched, one number below -1; -1 for the rest.

    Args:
        link: of each event of the file, the number that joins the two; 0 or less: it has none.
    """
    found = np.full(len(link), -1, np.int64)
    called, launched = distinct(link[calls]), distinct(link[kernels])
    both = called[(called > 0) & (_match(launched, np.arange(len(launched)), called) >= 0)]
    for chosen in (calls, kernels):
        at = _match(both, np.arange(len(both)), link[chosen])
        found[chosen] = np.where(at >= 0, -2 - at, -1)
    return found


def memory_of(
    columns: Columns,
    nesting: Nesting,
    allocations: Allocations,
    zero_us: float,
    line: Callable[[int, int], str],
) -> Iterator[MeasuredMemory]:
    """What each device held over time; a peak's blocks by the op and the line that took them.

    Args:
        zero_us: on the file's clock, where the columns' times are 0.
        line: of a function and an op; -1 for none.
    """
    usable, kernels = columns.usable, columns.has(Role.KERNEL)
    if not allocations.devices or not usable.any():
        return iter(())
    around = _Around(
        columns,
        np.flatnonzero(usable & ~kernels),
        (nesting.op, columns.has(*ATEN_OPS)),
        (nesting.frame, columns.has(Role.PYTHON)),
    )

    def where(thread: int, at_ns: int) -> tuple[str, str]:
        op, frame = around.at(thread, at_ns)
        return columns.names[columns.name[op]] if op >= 0 else "", line(frame, op)

    return measured_memory(allocations, zero_us, int(columns.stop[usable].max()), where)


class _Around:
    """Finds ops and functions by thread and time.

    Args:
        host: the events of threads.
        ops, frames: of each event the op, and the function, that it is inside of, -1 for none; and
            which events are ops, and functions.
    """

    def __init__(self, columns: Columns, host: Rows, ops: _Kind, frames: _Kind) -> None:
        thread, start, self._stop = columns.thread, columns.start, columns.stop
        host = host[np.lexsort((-self._stop[host], start[host], thread[host]))]
        numbers, first = np.unique(thread[host], return_index=True)
        parts = np.split(host, first[1:])
        self._events = dict(zip(numbers.tolist(), parts, strict=True))
        self._starts = {number: start[part] for number, part in self._events.items()}
        self._ops, self._frames = ops, frames

    def at(self, thread: int, time_ns: int) -> tuple[int, int]:
        """The innermost op and the innermost function; -1 for none."""
        if thread not in self._events:
            return -1, -1
        place = int(np.searchsorted(self._starts[thread], time_ns, "right")) - 1
        if place < 0:
            return -1, -1
        before = int(self._events[thread][place])
        return self._open(self._ops, before, time_ns), self._open(self._frames, before, time_ns)

    def _open(self, kind: _Kind, event: int, time_ns: int) -> int:
        """Of an event and those around it the innermost of a kind that has not ended."""
        around, is_one = kind
        if not is_one[event]:
            event = around[event]
        while event >= 0 and self._stop[event] <= time_ns:
            event = around[event]
        return event
