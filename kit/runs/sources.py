"""The lines of the user's program that a run speaks of, as text that travels with the run.

A run is opened where its program is not: so the lines that its sites name, and some around them,
are kept in it. They are text to be shown, never to be run.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import CodeType
from typing import Any

__all__ = ["MAX_LINE", "MAX_SOURCE_BYTES", "Snippet", "code_by_site", "snippets_of"]

MAX_SOURCE_BYTES = 64 << 10  # of one run, all snippets together
AROUND = 2  # lines kept before and after a line that is named
NEAR = 8  # lines between two kept ones that are kept too, rather than cut out
MAX_LINE = 300  # characters
_LARGE = 10_000  # lines of one function that are taken whole

Place = tuple[str, int]  # file name as Python has it, line


@dataclass(frozen=True, slots=True)
class Snippet:
    """Consecutive lines of one file."""

    file: str  # as in `Node.site`: "train.py", or "In[3]" for a notebook's cell
    first: int  # number of the first line
    lines: tuple[str, ...]


def code_by_site(snippets: Iterable[Snippet]) -> dict[str, str]:
    """The text of each line that travels with a run, by its site, "train.py:41"."""
    return {f"{s.file}:{s.first + i}": line for s in snippets for i, line in enumerate(s.lines)}


def snippets_of(
    places: Iterable[Place],
    name: Callable[[Place], str],
    *,
    step: Any = None,
    budget: int = MAX_SOURCE_BYTES,
) -> tuple[Snippet, ...]:
    """The lines at these places with some around them, and all of the function `step`.

    Files whose names in sites are equal are left out: a site does not say which of them it means.
    What `step` holds is taken first, then the places in their order, until the budget is spent.

    Args:
        name: a place as a site, "train.py:41"; "" leaves it out. It is `format_site` of the
            runtime, which knows the cells of a notebook.
    """
    wanted: dict[str, dict[int, None]] = {}
    for path, line in [*_lines_of(step), *places]:
        if path and line > 0:
            wanted.setdefault(path, {})[line] = None
    names = {path: name((path, 1)).rpartition(":")[0] for path in wanted}
    spoken = [names[path] for path in wanted]
    kept: dict[str, dict[int, str]] = {}
    left = budget
    for path, lines in wanted.items():
        if not names[path] or spoken.count(names[path]) > 1:
            continue
        linecache.checkcache(path)  # the file may have been edited and imported again
        text = linecache.getlines(path)
        own = kept.setdefault(path, {})
        for number in _numbers(lines, len(text)):
            shown = text[number - 1].rstrip()[:MAX_LINE]
            left -= len(shown.encode("utf-8", "replace")) + 1
            if left < 0:
                return _joined(kept, names)
            own[number] = shown
    return _joined(kept, names)


def _numbers(lines: Iterable[int], last: int) -> list[int]:
    """The numbers of the lines to keep, those around each first, then what lies between near ones.

    Args:
        last: the number of the file's last line.
    """
    around = (n for line in lines for n in range(line - AROUND, line + AROUND + 1))
    found = dict.fromkeys(n for n in around if 1 <= n <= last)
    gaps = [(a, b) for a, b in pairwise(sorted(found)) if b - a <= NEAR]
    return [*found, *(n for a, b in gaps for n in range(a + 1, b))]


def _joined(kept: dict[str, dict[int, str]], names: dict[str, str]) -> tuple[Snippet, ...]:
    found = []
    for path, lines in kept.items():
        for _, run in groupby(enumerate(sorted(lines)), key=lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in run]  # one after the other
            text = tuple(lines[number] for number in numbers)
            found.append(Snippet(names[path], numbers[0], text))
    return tuple(found)


def _lines_of(step: Any) -> list[Place]:
    """All lines of a Python function; [] of what is none."""
    code = getattr(getattr(step, "__wrapped__", step), "__code__", None)
    if not isinstance(code, CodeType):
        return []
    lines = {line for _, _, line in code.co_lines() if line} | {code.co_firstlineno}
    low, high = min(lines), max(lines)
    return [(code.co_filename, n) for n in range(low, min(high, low + _LARGE) + 1)]
