"""The names of a trace's events, by number, and what the events of each are for.

And how names and numbers are mended that torch has written so that they are no JSON.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from typing import Any

from kit.errors import TraceFileError
from kit.formats.chrome.roles import HOST, Role, is_torchs, role_of
from kit.formats.chrome.steps import is_asked
from kit.trace.communication import communicates
from kit.trace.imported import MAX_NAME, MAX_SPAN_NAME, cut_name

__all__ = ["Names", "Roles", "Room", "is_cut", "mended_json"]

_NAME_CHARS = 100  # what the memory of one more name costs beside its text
_CATEGORY_CHARS = 300  # the same of one more category
_MAX_ROLES = 1_000_000  # pairs of category and name whose role is remembered

# What JSON lacks: "C:\cuda", as torch wrote paths of Windows (pytorch/pytorch#98432), and numbers
# as C prints them (pytorch/kineto#105).
_FAULT = re.compile(r"\\|(?<=\\)u|-?(?:inf|nan)\b")
_TEXTS_OR_FAULT = re.compile(
    r'(?:"[^"\\]*+"[^"a-z-]*+)++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>")?|(?P<number>-?\b(?:inf|nan)\b)',
    re.DOTALL,
)
_NO_ESCAPE = re.compile(r'(?:\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|[^\\])*+\\')
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_BACKSLASH = re.compile(r'\\["\\]|(\\)')


def mended_json(text: str, begin: int, at: int) -> str:
    """The text, in which JSON ends at a fault, with what torch writes so mended from a value on.

    A number without bound is null, and of a text with single backslashes each is doubled. All that
    follows the value is mended, too: such a file has thousands.
    """
    if not _FAULT.match(text, at):
        return text
    return text[:begin] + _TEXTS_OR_FAULT.sub(_mended, text[begin:])


def _mended(found: re.Match[str]) -> str:
    if found["number"]:
        return "null"
    # several texts without a backslash, or one without its end, which is not known yet
    is_right = not found["end"] or not _NO_ESCAPE.match(found[0])
    return found[0] if is_right else _BACKSLASH.sub(lambda one: one[0] + (one[1] or ""), found[0])


def is_cut(message: str, rest: str) -> bool:
    """Whether the JSON would be right so far, had the text not ended."""
    if message.startswith("Unterminated"):
        return True
    if "escape" in message:
        return len(rest) < 6  # as "\\u12"
    return any(word.startswith(rest) for word in _WORDS)


class Room:
    """How much memory is left for the names of a file."""

    def __init__(self, chars: int = 256 << 20) -> None:
        self._left = chars

    def take(self, text: str) -> str:
        """The text, which is kept from now on."""
        self.spend(len(text) + _NAME_CHARS)
        return text

    def spend(self, chars: int) -> None:
        """So many characters more are kept somewhere."""
        self._left -= chars
        if self._left < 0:
            raise TraceFileError("its names take more memory than those of a trace would")


class Names:
    """Distinct texts and their numbers, of bounded size."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sends = array("b")  # of each: is it one of a library that communicates?
        self.room = Room()
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, a new one if it is not known."""
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(self.room.take(text))
            self.sends.append(communicates(text))
        return number


class Roles:
    """What the events of a category and a name are for, and the name's number."""

    def __init__(self, names: Names, step_by: str, repairs: Counter[tuple[str, str]]) -> None:
        self.is_known = False  # an event of torch's, or of ours, was seen
        self.found: dict[Any, dict[Any, tuple[int, int]]] = {}  # category -> name -> the two
        self._count = 0
        self._names = names
        self._step_by = step_by
        self._repairs = repairs

    def find(self, category: Any, name: Any) -> tuple[int, int]:
        """Of a pair that is not in `found`."""
        whole = category if isinstance(category, str) else ""
        lower, text = whole.lower(), cut_name(name, MAX_SPAN_NAME)
        role = role_of(lower, text)
        self.is_known |= is_torchs(lower, role)
        is_free = role in (Role.OTHER, Role.CALL, Role.GRADIENT) and lower in HOST
        if is_free and is_asked(text, self._step_by):
            role = Role.ANNOTATION
        number = self._names.number(text) if role != Role.OTHER else -1
        if len(text) == MAX_SPAN_NAME:
            self._repairs["name", f"longer than {MAX_SPAN_NAME:,} characters: cut"] += 1
        elif len(whole) < MAX_NAME and self._count < _MAX_ROLES and _is_key(category, name):
            self._count += 1  # the two texts stay in memory
            if category not in self.found:
                self._names.room.spend(len(whole) + _CATEGORY_CHARS)
            self._names.room.spend(len(text))
            self.found.setdefault(category, {})[name] = role, number
        return role, number


def _is_key(category: Any, name: Any) -> bool:
    """Are both a text, or missing?"""
    return all(value is None or type(value) is str for value in (category, name))
