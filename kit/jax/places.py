"""Where in the user's program does an equation come from? Site, scope and phase.

jax keeps for each equation the Python stack that made it and a stack of names, such as
`transpose(jvp(Net))/up`: flax's modules, `jax.named_scope`, and the transformations around them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import source_info_util

from kit.runtime.recording.bulk import NOWHERE, Frame, Site
from kit.runtime.recording.sites import callers, format_site, installed, is_kits, is_users

__all__ = ["caller", "frame_of", "here", "names_of", "phases_of"]

_LINE = re.compile(r"^(.+?):(\d+)(?::\d+)? \(.*\)$")
_TRANSFORMATION = re.compile(r"[a-zA-Z_]+\(|\)")
DEEP = 200  # frames that are looked at


def frame_of(source: Any, outer: Frame, names: str) -> Frame:
    """The frame of an equation; `outer` is that of the call that it was found in."""
    site, via = _pick(_lines(source))
    if site == NOWHERE or (not is_users(site[0]) and outer[0] != NOWHERE):
        site, via = outer[0], outer[1]
    return site, via, _scope_of(names)


def _lines(source: Any) -> list[Site]:
    """Where the stack was, innermost first, jax's own frames left out."""
    text = source_info_util.summarize(source, num_frames=DEEP)
    found = (_LINE.match(line) for line in reversed(text.splitlines()))
    return [(m.group(1), int(m.group(2))) for m in found if m]


def _pick(lines: Iterable[Site]) -> tuple[Site, str]:
    """The innermost line outside of any library, and the library line under it.

    If all are in libraries, the innermost: better some place than none.
    """
    first: Site = NOWHERE
    for site in lines:
        if is_users(site[0]):
            inside = installed(first[0]) or first[0].replace(os.sep, "/")
            return site, "" if first == NOWHERE else f"{inside}:{first[1]}"
        if first == NOWHERE and not is_kits(site[0]):
            first = site
    return first, ""


def caller() -> Frame:
    """Where the program is now."""
    around = callers(sys._getframe(1))
    return *_pick((f.f_code.co_filename, f.f_lineno) for f in around), ""


def here() -> str:
    """` (at train.py:12)`, for the end of a message; empty if the user's line is unknown."""
    where = format_site(caller()[0])
    return f" (at {where})" if where else ""


def names_of(source: Any, outer: str) -> str:
    """The stack of names of an equation inside a call whose names are `outer`."""
    return "/".join(filter(None, (outer, str(source.name_stack))))


def _scope_of(names: str) -> str:
    """`transpose(jvp(Net))/up` -> `Net.up`."""
    parts = (_TRANSFORMATION.sub("", part) for part in names.split("/"))
    return ".".join(part for part in parts if part)


def phases_of(names: Sequence[str]) -> list[str]:
    """The phase of each equation, from their stacks of names.

    What is transposed is backward; what is differentiated, and all before the first backward, is
    forward; what follows the last backward is the update. In between, as before.
    """
    last = max((i for i, n in enumerate(names) if "transpose(" in n), default=-1)
    phases = []
    phase = "forward"
    for i, name in enumerate(names):
        if "transpose(" in name:
            phase = "backward"
        elif i > last and last >= 0:
            phase = "update"
        elif "jvp(" in name:
            phase = "forward"
        phases.append(phase)
    return phases
