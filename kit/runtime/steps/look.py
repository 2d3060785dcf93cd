"""All that can be reached from a Python thing, at one moment: two looks tell what has changed."""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest
from types import FunctionType, MethodType
from typing import Any

from kit.runtime.recording.sites import is_users
from kit.runtime.steps.names import module_of, unbound
from kit.runtime.steps.reach import PLAIN, STATE, Part, Unseen, parts_of

__all__ = ["Look"]

_THINGS = 30_000  # that are compared
_PLAIN_A_THING = 50  # numbers and texts of a list that are compared as quickly as a thing


class Look:
    """All that can be reached from one thing, as it is now.

    Attributes:
        unseen: a thing whose state cannot be compared, in words; "" if there is none.
        functions: those of the user's that were reached, the nearest first.
    """

    def __init__(self, name: str, thing: Any, *, without: Collection[Any] = ()) -> None:
        """Look.

        Args:
            without: functions that do not count, nor what is reached only through them.
        """
        self.unseen = ""
        self.functions: list[FunctionType] = []
        self._without = unbound(without)
        self._seen: list[Part] = []
        try:
            self._go_through([(name, thing)])
        except Exception as error:  # noqa: BLE001 - code of the program's, such as a __reduce__
            self.unseen = f"things of which one raises {error!r:.100}"

    def change(self, after: Look) -> str:
        """The name of the first thing that another look found changed; "" if none is."""
        for (name, old), (new_name, new) in zip_longest(
            self._seen, after._seen, fillvalue=("", None)
        ):
            if name != new_name or not _is_same(old, new):
                return _place(name or new_name, old, new).partition(STATE)[0]
        return ""

    def _go_through(self, things: list[Part]) -> None:
        known: dict[int, int] = {}
        count = 0
        for name, thing in things:  # grows while it is gone through; the nearest first
            kind = type(thing)
            if kind in PLAIN:
                self._seen.append((name, thing))
                continue
            if (number := known.get(id(thing))) is not None:
                self._seen.append((name, (number,)))
                continue
            known[id(thing)] = len(known)
            if kind in (FunctionType, MethodType) and thing in self._without:
                continue
            if kind is FunctionType and is_users(thing.__code__.co_filename):
                self.functions.append(thing)
            try:
                content, parts = parts_of(thing)
            except Unseen:
                place = name.partition(STATE)[0]
                self.unseen = self.unseen or f"{place} ({module_of(kind)}.{kind.__qualname__})"
                continue
            self._seen.append((name, content))
            count += 1 + (len(content) // _PLAIN_A_THING if type(content) is list else 0)
            if count > _THINGS:
                self.unseen = self.unseen or f"more than {_THINGS:,} things, as many as {name} has"
                return
            things += [(_joined(name, part), inner) for part, inner in parts]


def _joined(name: str, part: str) -> str:
    return name + part if part[:1] in ("", ".", "[") else part


def _is_same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and (old == new or old != old)


def _place(name: str, old: Any, new: Any) -> str:
    """Where in a list of numbers and texts, or in a dict of these, two looks differ first."""
    if type(old) is not list or type(new) is not list or len(old) != len(new):
        return name
    i = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    is_pair = type(old[i]) is tuple
    return f"{name}[{old[i][0]!r:.40}]" if is_pair else f"{name}[{i}]"
