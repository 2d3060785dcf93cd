"""Lines of a program as they are shown: which to fold, and a little colour."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.runs.sources import MAX_LINE, Snippet
from kit.text import safe_html

__all__ = ["Piece", "code_html", "listing"]

FOLD_FROM = 7  # lines without cost in a row
GAP = '<div class="kit-gap" aria-hidden="true">&#8943;</div>'
KEEP = 2  # lines without a cost, on each side of a line with one

_TOKEN = re.compile(
    r"""(?P<c>\#.*)|(?P<s>[rbfuRBFU]{0,2}(?:"[^"\n]*"|'[^'\n]*'))|(?P<k>[^\W\d]\w*)"""
)
_WORDS = frozenset(keyword.kwlist)


@dataclass(frozen=True)
class Piece:
    """Consecutive lines; None for a line whose text is not known."""

    lines: tuple[tuple[int, str | None], ...]
    is_folded: bool = False


def code_html(text: str) -> str:
    """One line of Python, escaped; keywords, comments and short strings marked."""
    text = text[:MAX_LINE].expandtabs(4)
    parts, at = [], 0
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "k" and match[0] not in _WORDS:
            continue
        parts.append(safe_html(text[at : match.start()], MAX_LINE * 8))
        token = safe_html(match[0], MAX_LINE * 8)
        tag = "b" if match.lastgroup == "k" else "span"
        parts.append(f'<{tag} class="kit-{match.lastgroup}">{token}</{tag}>')
        at = match.end()
    return "".join(parts) + safe_html(text[at:], MAX_LINE * 8)


def listing(
    file: str, costly: Mapping[int, int], sources: Sequence[Snippet]
) -> Iterator[Piece | str]:
    """The lines of a file to show, in order: pieces, and the HTML of what is left out between."""
    texts: dict[int, str] = {}
    for snippet in sources:
        if snippet.file == file:
            lines = (line[:MAX_LINE].expandtabs(4) for line in snippet.lines)
            texts.update(enumerate(lines, snippet.first))
    common = min((len(x) - len(x.lstrip()) for x in texts.values() if x.strip()), default=0)
    texts = {number: line[common:] for number, line in texts.items()}  # room is scarce
    numbers = sorted({*texts, *costly})
    start, is_begun = 0, False
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            run = [(n, texts.get(n)) for n in numbers[start:i]]
            start = i
            while run and run[0][1] == "" and run[0][0] not in costly:
                run.pop(0)
            while run and run[-1][1] == "" and run[-1][0] not in costly:
                run.pop()
            if run:
                yield from [GAP] if is_begun else []
                yield from _folds(run, costly)
                is_begun = True


def _folds(run: Sequence[tuple[int, str | None]], costly: Mapping[int, int]) -> Iterator[Piece]:
    """Long stretches without a cost are folded, but for what is next to a line that has one."""
    is_plain = [number not in costly for number, _ in run]
    i = 0
    while i < len(run):
        j = i
        while j < len(run) and is_plain[j] == is_plain[i]:
            j += 1
        if is_plain[i] and j - i >= FOLD_FROM:
            low = i + KEEP if i else i
            high = j - KEEP if j < len(run) else j
            parts = ((i, low, False), (low, high, True), (high, j, False))
            yield from (Piece(tuple(run[a:b]), folded) for a, b, folded in parts if a < b)
        else:
            yield Piece(tuple(run[i:j]))
        i = j
