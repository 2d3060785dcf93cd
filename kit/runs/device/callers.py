"""The device's time by what launched it: a tree of modules, of annotations, of ops or of lines.

print(kit.caller_table(kit.open_trace("trace.json.gz"), by="module"))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.runs.device.shapes import call_cost
from kit.runs.given import one_run
from kit.runs.run import EXPORTED_AS, Run
from kit.runs.sources import code_by_site
from kit.shown import Column, Rows
from kit.text import (
    format_more,
    format_ms,
    format_number,
    format_share,
    safe_terminal,
    terminal_table,
)
from kit.trace.devices import device_of
from kit.trace.imported import Caller, cut_name
from kit.trace.kernels import charged_ns, computes_nothing, in_steps
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import Timeline, per_step

__all__ = [
    "BY",
    "CallerRow",
    "best_view",
    "caller_table",
    "callers_text",
    "charged_by_caller",
    "has_lines",
    "without_callers",
]

_NO_OP, _NO_MODULE = "(no op)", "(in no module)"
_NO_NOTE, _NO_LINE, _UNKNOWN = "(in no annotation)", "(no line)", "(launch not in the trace)"

# what a row of the tree is of -> the path of a caller
BY = MappingProxyType(
    {
        "module": lambda caller: caller.module or (_NO_MODULE,),
        "annotation": lambda caller: caller.annotation or (_NO_NOTE,),
        "kind": lambda caller: tuple(_kind(name) for name in caller.module) or (_NO_MODULE,),
        "op": lambda caller: (caller.op or _NO_OP,),
        "line": lambda caller: (caller.site or _NO_LINE,),
    }
)


def _kind(module: str) -> str:
    """The class of a module: torch numbers all modules of a class, "Linear_3"."""
    name, _, number = module.rpartition("_")
    return name if name and number.isdecimal() else module


@dataclass(frozen=True, slots=True)
class CallerRow:
    """A module, an annotation, an op or a line, and the kernels launched in it.

    Where kernels run side by side an instant is divided among them: the outermost rows add up to
    the time in which a kernel ran, and a row to its own time and that of its parts.

    Units:
        milliseconds and operations of one traced step
    """

    path: tuple[str, ...]  # outermost first
    total_ms: float
    self_ms: float  # launched in it, and in nothing further in
    share: float  # of the time in which a kernel ran
    backward_ms: float  # of the total: kernels that compute gradients
    kernels: float  # a step
    flops: float  # from shapes, of the ops that have some; nan: none is known
    gflop_s: float  # of these ops, over the time that their kernels took one device
    nodes: tuple[int, ...] = field(repr=False)  # its callers, places in `run.callers`

    @property
    def name(self) -> str:
        """The last name of its path."""
        return self.path[-1]

    @property
    def depth(self) -> int:
        """How many others it is in."""
        return len(self.path) - 1


class CallerRows(Rows[CallerRow]):
    """The rows of `caller_table`: a row, then what is in it."""

    noun = "row"
    columns = (
        Column("launched by", lambda r: "  " * r.depth + r.name, is_number=False),
        Column("a step", lambda r: format_ms(r.total_ms)),
        Column("of kernel time", lambda r: format_share(r.share)),
        Column("of its own", lambda r: format_ms(r.self_ms)),
        Column("backward", lambda r: format_ms(r.backward_ms) if r.backward_ms else ""),
        Column("kernels a step", lambda r: format_number(r.kernels)),
        Column("GFLOP/s in products", lambda r: format_number(r.gflop_s)),
    )


def charged_by_caller(
    run: Run, *, each_device: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Time and number of the kernels of each caller; last those that none is known of.

    Args:
        each_device: add up what each device took; else an instant of several devices is one.

    Shape:
        (callers + 1,), nanoseconds of all traced steps; and the same
    """
    t = run.timeline
    spans, times = in_steps(t, np.flatnonzero(t.where(kind=ON_DEVICE)))
    size = len(run.callers) + 1
    if not len(spans):
        return np.zeros(size), np.zeros(size, np.int64)
    node = t.node[spans].astype(np.int64)
    node = np.where((node >= 0) & (node < size - 1), node, size - 1)
    device = np.array([device_of(lane) if each_device else "" for lane in t.lanes])[t.lane[spans]]
    beneath, took = computes_nothing(t, spans), np.zeros(len(spans))
    for one in np.unique(device):
        took[device == one] = charged_ns(times[device == one], beneath[device == one])
    charged = np.bincount(node, took, minlength=size)
    return charged.astype(np.float64), np.bincount(node, minlength=size).astype(np.int64)


def caller_table(run: Run, by: str = "module") -> tuple[CallerRow, ...]:
    """Device time by what launched it, of a native run or a foreign trace; the costliest first.

    After each row come its parts. Empty for a run without callers: runs on device "kit" have a
    graph, see `kit.kernel_table`.

    Args:
        by: "module"; "kind", modules of one class in one place taken together; "annotation", "op"
            or "line".

    Raises:
        SettingsError: by is none of these.
    """
    tree = _tree(run, by)
    if tree is None:
        return CallerRows(()).with_note(without_callers(run))
    return CallerRows(tree.rows()).with_note(run.doubt)


def _devices(timeline: Timeline) -> set[str]:
    """The devices that have spans, those of next to no work, too."""
    lanes = np.unique(timeline.lane[timeline.where(kind=ON_DEVICE)])
    return {device_of(timeline.lanes[lane]) for lane in lanes}


def _tree(run: Run, by: str) -> _Tree | None:
    """What `caller_table` shows; None for a run without callers."""
    if by not in BY:
        raise SettingsError(f"by={by!r} must be one of {', '.join(BY)}")
    return _Tree(run, BY[by]) if one_run(run).callers else None


def without_callers(run: Run) -> str:
    """That a run has no callers, and what has them or stands for them, without a full stop."""
    if not run.timeline.where(kind="kernel").any():
        return "No kernel was seen" + ("" if run.timeline.steps else ": no step was traced")
    said = "Nothing says what launched its kernels"
    if run.graphs:
        return (
            f"{said}; which ops each of them computes, and on which line, kit.KernelView(run) has"
        )
    if EXPORTED_AS in run.environment:
        return (
            f"{said}: the file was written by kit.export_trace, for other tools. Open the run that "
            "run.save kept, or the trace that was exported"
        )
    return (
        f"{said}: torch.profiler says it with activities of CPU and device, the modules with "
        "with_stack=True and with_modules=True"
    )


def has_lines(run: Run) -> bool:
    """Are the lines of its callers those of the ops, and not where their functions begin?"""
    return run.timeline.origin != "imported" and any(c.site for c in run.callers)


def best_view(run: Run) -> str:
    """What tells most of a run's callers: "kind" where modules are known, else "annotation".

    Else "line" where lines are exact, or "op"; "" for a run without callers.
    """
    for by, is_known in (
        ("kind", any(c.module for c in run.callers)),
        ("annotation", any(c.annotation for c in run.callers)),
        ("line", has_lines(run)),
    ):
        if is_known:
            return by
    return "op" if run.callers else ""


def callers_text(run: Run, by: str, most: int = 60, least: float = 0.0) -> str:
    """The table of `caller_table` for a terminal: rows with this share of kernel time at least.

    Raises:
        SettingsError: by is none of `BY`.
    """
    tree = _tree(run, by)
    rows = [*tree.rows()] if tree is not None else []
    if tree is None or not rows:
        return f"{without_callers(run)}."
    shown = [row for row in rows if row.share >= least][:most]
    _, each = per_step(run.timeline)
    heads = (f"launched by ({by})", f"ms{each}", "of kernel time", "of its own",
             "backward", "kernels", "GFLOP/s in products", "most in op",
             "" if by == "line" else "on line")  # fmt: skip
    codes = code_by_site(run.sources) if by == "line" else None
    cells = [
        [
            f"{'  ' * row.depth}{safe_terminal(row.name, 50)}",
            format_number(row.total_ms),
            format_share(row.share),
            format_number(row.self_ms),
            format_number(row.backward_ms) if row.backward_ms else "",
            format_number(row.kernels),
            format_number(row.gflop_s, ""),
            *_most(tree.most_in(row), codes),
        ]
        for row in shown
    ]
    last = len(heads) - 1
    text = terminal_table(heads, cells, left=(0, last - 1, last))
    return text + format_more(len(rows) - len(shown), "row")


def _most(found: tuple[str, str], codes: Mapping[str, str] | None) -> tuple[str, str]:
    """The op that has most of a row, and its line; or what stands on that line."""
    op, line = found
    said = safe_terminal(line, 34)
    if codes is not None:
        said = cut_name(safe_terminal(codes.get(line, "").strip(), 1000), 60)
    return safe_terminal(op, 34), said


class _Branch:
    """A row that is being summed."""

    def __init__(self) -> None:
        self.parts: dict[str, _Branch] = {}
        self.total = self.own = self.backward = self.counted = 0.0
        self.kernels = 0
        self.flops = math.nan
        self.nodes: list[int] = []


class _Tree:
    def __init__(self, run: Run, path_of: Callable[[Caller], tuple[str, ...]]) -> None:
        self._steps = per_step(run.timeline)[0]
        self._callers, self._root = run.callers, _Branch()
        charged, counts = charged_by_caller(run)
        self._busy = max(float(charged.sum()), 1e-9)
        self._times = times = charged.tolist()
        took = times
        if len(_devices(run.timeline)) > 1:
            took = charged_by_caller(run, each_device=True)[0].tolist()
        for i, caller in enumerate(run.callers):
            if counts[i]:
                self._add(path_of(caller), i, caller, times[i], took[i], int(counts[i]))
        if counts[-1]:
            self._add((_UNKNOWN,), -1, Caller(), times[-1], took[-1], int(counts[-1]))

    def _add(
        self, path: tuple[str, ...], i: int, caller: Caller, ns: float, took: float, count: int
    ) -> None:
        shown = count / caller.kernels if caller.kernels else 1.0  # what ran in a step
        flops = call_cost(caller).flops * caller.calls * shown
        branch = self._root
        for name in path:
            branch = branch.parts.setdefault(name, _Branch())
            branch.total += ns
            branch.kernels += count
            branch.backward += ns if caller.is_backward else 0.0
            if not math.isnan(flops):
                branch.flops = flops + (0.0 if math.isnan(branch.flops) else branch.flops)
                branch.counted += took
            if i >= 0:
                branch.nodes.append(i)
        branch.own += ns

    def rows(self) -> Iterator[CallerRow]:
        """Each branch before its parts; by hand, as a path may be long."""
        waiting = [*reversed(self._sorted((), self._root))]
        while waiting:
            path, branch = waiting.pop()
            yield self._row(path, branch)
            waiting += reversed(self._sorted(path, branch))

    def most_in(self, row: CallerRow) -> tuple[str, str]:
        """The op that has most of a row's time, and its line; "" for what is unknown."""
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for i in row.nodes:
            sums[self._callers[i].op, self._callers[i].site] += self._times[i]
        return max(sums, key=lambda key: sums[key], default=("", ""))

    @staticmethod
    def _sorted(path: tuple[str, ...], of: _Branch) -> list[tuple[tuple[str, ...], _Branch]]:
        parts = sorted(of.parts.items(), key=lambda part: (-part[1].total, part[0]))
        return [((*path, name), branch) for name, branch in parts]

    def _row(self, path: tuple[str, ...], branch: _Branch) -> CallerRow:
        scale = 1e6 * self._steps
        return CallerRow(
            path,
            branch.total / scale,
            branch.own / scale,
            branch.total / self._busy,
            branch.backward / scale,
            branch.kernels / self._steps,
            branch.flops / self._steps,
            branch.flops / branch.counted if branch.counted else math.nan,
            tuple(branch.nodes),
        )
