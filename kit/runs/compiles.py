"""`Compile`: one compile of a run and its reason. `storms`: the same one again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Compile", "storms"]

STORM = 3  # recompiles for the same reason at the same place


@dataclass(frozen=True)
class Compile:
    """One compile of a run, and why the programs at hand did not do."""

    step: int
    segment: int  # its position in the step
    phase: str
    # "first", "shape", "dtype", "constant", "op", "inputs", "cut", "kept", "checks", "aliasing",
    # "place", "evicted"
    kind: str
    sentence: str  # the reason, in words
    ops: int
    node: int = 0  # where the programs differ first, counted in the segment
    site: str = ""  # the user's line of that node
    old_site: str = ""  # the same in the program that it was compared with
    before: str = ""
    now: str = ""
    lower_ms: float = 0.0  # from ops to XLA's input
    compile_ms: float = 0.0
    is_from_disk: bool = False


def storms(notes: Sequence[Compile]) -> list[str]:
    """Places that were compiled again and again for one reason, in words, the worst first."""
    groups: dict[tuple[str, str, int], list[Compile]] = defaultdict(list)
    for note in notes:
        if note.kind != "first":
            groups[note.kind, note.site, note.segment].append(note)
    found = [group for group in groups.values() if len(group) >= STORM]
    found.sort(key=len, reverse=True)
    return [_storm(group) for group in found]


def _storm(group: Sequence[Compile]) -> str:
    last = group[-1]
    steps = last.step - group[0].step + 1
    values = ", ".join([group[0].before, *(note.now for note in group[:4])])
    wasted = sum(note.lower_ms + note.compile_ms for note in group)
    cure = {
        "constant": "make it a float or a tensor, which are inputs, or keep it the same",
        "shape": "pad to a fixed size, or to a few sizes (buckets)",
        "dtype": "cast once, before the step",
    }.get(last.kind, "let every step do the same ops")
    where = last.site or f"segment {last.segment}"
    if last.kind == "evicted":
        return (
            f"recompile storm at {where}: {len(group)} compiles in {steps} steps, {wasted:.0f} ms, "
            "of programs that had been dropped to make room; let shapes and Python numbers have "
            "fewer values, so that there are fewer programs"
        )
    cause = f"the {_NOUN.get(last.kind, last.kind)} changes ({values}, ...)"
    return (
        f"recompile storm at {where}: {len(group)} compiles in {steps} steps, {wasted:.0f} ms, "
        f"because {cause}; {cure}"
    )


_NOUN = {"constant": "Python number or flag", "op": "op", "cut": "length of the segment",
         "inputs": "wiring", "kept": "set of results that stay alive"}  # fmt: skip
