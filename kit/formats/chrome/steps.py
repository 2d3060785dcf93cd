"""What the steps of a trace are where torch has marked none: torch marks them for a schedule only.

The first that fits: what the reader of the trace asks for; the annotation that repeats, leaves
little time between, and covers most; from one optimizer step to the next; all of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kit.errors import TraceFileError
from kit.trace.host import is_update
from kit.trace.imported import cut_name
from kit.trace.intervals import Ints
from kit.trace.syncs import RANGE, WHOLE

__all__ = ["HOW", "Annotation", "Step", "StepsFound", "find_steps", "is_asked"]

# Of the time from the first optimizer step to the last, or of all: else it is of something else.
_MUCH = 0.5
COVERED = 0.9  # of the time from the first to the last: an annotation with less is no whole step
HOW = "torch marks steps only with profile(schedule=...), also where prof.step() is called"
_RANGE = re.compile(r"(\d{1,12}(?:\.\d*)?)\.\.(\d{1,12}(?:\.\d*)?)")
# What the numbered parts of one step are called: "block_3", "model.layers.3", "DecoderLayer 3"
_PARTS = re.compile(
    r"(layer|block|stage|encoder|decoder|expert|micro.?batch|(^|[^a-z])h)(e?s)?\W*$", re.IGNORECASE
)

Step = tuple[str, int, int]  # its name, start and stop


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something with a name that a program has done."""

    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class StepsFound:
    """The steps, and a sentence that says what they are."""

    steps: tuple[Step, ...]
    note: str


def is_frame(name: str) -> bool:
    """Is this a function of Python's, as torch's profiler names them, and no annotation?"""
    return ".py(" in name or name.startswith(("<built-in ", "nn.Module: "))


def is_asked(name: str, step_by: str) -> bool:
    """Is this what is asked for, whatever number it ends with? Of a Python function: its name."""
    return bool(step_by) and step_by in (name, _base(name), name.rpartition(": ")[2])


def find_steps(
    annotations: Iterable[Annotation],
    window: tuple[int, int],
    step_by: str = "",
    backward: Ints | None = None,
) -> StepsFound:
    """The steps of one thread.

    Args:
        annotations: of the thread that steps, optimizer steps among them.
        window: begin and end of the whole trace.
        step_by: a name, or "12.5..80": from, to, in milliseconds from the begin.
        backward: when each function of autograd's began, if the trace has any.

    Raises:
        TraceFileError: what is asked for is not there; says what is.
    """
    groups: dict[str, list[Annotation]] = defaultdict(list)
    for one in sorted(annotations, key=lambda a: (a.start_ns, -a.stop_ns)):
        groups[one.name if is_update(one.name) else _base(one.name)].append(one)
    if step_by:
        return _asked(groups, window, step_by)
    updates = max(
        (_between_passes(group, backward) for name, group in groups.items() if is_update(name)),
        key=len,
        default=[],
    )
    fitting = [(_covered(apart), apart) for apart in _repeated(groups.values(), updates)]
    if fitting:
        covered, apart = max(fitting, key=lambda found: found[0])  # of equals the first
        whole = _length(updates) if len(updates) > 1 else window[1] - window[0]
        if covered >= _MUCH * whole:
            shown = dict.fromkeys(cut_name(a.name)[:80] for a in (apart[0], apart[-1]))
            names = " to ".join(map(repr, shown))
            return _named(apart, f"steps are the {len(apart)} times of {names}")
    if len(updates) > 1:
        ends = [a.stop_ns for a in _apart(updates)]
        steps = tuple((f"step {i}", a, b) for i, (a, b) in enumerate(pairwise(ends)))
        return StepsFound(steps, f"steps go from one optimizer step to the next: {HOW}")
    if window[1] <= window[0]:
        return StepsFound((), f"the trace marks no steps: {HOW}")
    said = f"the whole trace counts as one step: {HOW}; or name what repeats (step_by)"
    return StepsFound(((WHOLE, *window),), said)


def _between_passes(updates: list[Annotation], backward: Ints | None) -> list[Annotation]:
    """Updates with no backward pass between them as one: a program may have several optimizers."""
    if backward is None or not len(backward):
        return updates
    after = np.searchsorted(np.sort(backward), [a.start_ns for a in updates])
    found: list[Annotation] = []
    for i, one in enumerate(updates):
        if i and after[i] == after[i - 1]:
            found[-1] = replace(found[-1], stop_ns=max(found[-1].stop_ns, one.stop_ns))
        else:
            found.append(one)
    return found


def _repeated(
    groups: Iterable[list[Annotation]], updates: Sequence[Annotation]
) -> Iterator[list[Annotation]]:
    """What comes again and again, and leaves little time between."""
    for group in groups:
        for apart in _counted(_apart(group), updates):
            if len(apart) > 1 and _covered(apart) >= COVERED * _length(apart):
                yield apart


def _counted(group: list[Annotation], updates: Sequence[Annotation]) -> Iterable[list[Annotation]]:
    """The group, or each name by itself where one comes again: steps are counted on, layers not.

    Nor are those of one pass, which are told by what they are called. Steps of a second epoch
    begin anew, and have an update each.
    """
    by_name: dict[str, list[Annotation]] = defaultdict(list)
    for one in group:
        by_name[one.name].append(one)
    ends = np.array([update.stop_ns for update in updates], np.int64)
    times = np.array([(one.start_ns, one.stop_ns) for one in group], np.int64).reshape(-1, 2)
    have_update = np.diff(np.searchsorted(ends, times)).all()
    are_steps = len(by_name) == len(group) and not _PARTS.search(_base(group[0].name))
    return [group] if are_steps or have_update else by_name.values()


def _covered(apart: Sequence[Annotation]) -> int:
    return sum(a.stop_ns - a.start_ns for a in apart)


def _length(group: Sequence[Annotation]) -> int:
    """From the begin of the first to the end of the last; 0 of none."""
    return group[-1].stop_ns - group[0].start_ns if group else 0


def _asked(
    groups: dict[str, list[Annotation]], window: tuple[int, int], step_by: str
) -> StepsFound:
    if match := _RANGE.fullmatch(step_by):
        low, high = (window[0] + round(float(x) * 1e6) for x in match.groups())
        if not window[0] <= low < min(high, window[1]):
            whole = (window[1] - window[0]) / 1e6
            raise TraceFileError(f"step_by={step_by!r} is no range of its {whole:.3f} ms")
        chosen = (RANGE, low, min(high, window[1]))
        return StepsFound((chosen,), f"the range {step_by} ms counts as one step")
    found = [a for group in groups.values() for a in group if is_asked(a.name, step_by)]
    if not found:
        likely_first = sorted(groups.items(), key=lambda g: (is_frame(g[0]), len(g[1]) < 2))[:12]
        names = ", ".join(f"{cut_name(n)[:60]!r} ({len(g)})" for n, g in likely_first)
        raise TraceFileError(
            f"step_by={step_by!r}: nothing on the thread of its steps has this name; there are: "
            f"{names or 'no annotations'}"
        )
    apart = _apart(sorted(found, key=lambda a: (a.start_ns, -a.stop_ns)))
    return _named(apart, f"steps are the {len(apart)} times of {step_by!r}")


def _named(apart: Sequence[Annotation], note: str) -> StepsFound:
    steps = tuple((f"step {i}", a.start_ns, a.stop_ns) for i, a in enumerate(apart))
    return StepsFound(steps, note)


def _apart(group: Sequence[Annotation]) -> list[Annotation]:
    """Those that lie in no other of the group."""
    kept: list[Annotation] = []
    for one in group:
        if not kept or one.start_ns >= kept[-1].stop_ns:
            kept.append(one)
    return kept


def _base(name: str) -> str:
    """Its name without the number at the end: "train_step#12" is one of "train_step"."""
    bare = name.rstrip("0123456789")  # in one pass: a name may be very long
    return (name if bare == name else bare.rstrip(" \t\n\r#:_-")) or name
