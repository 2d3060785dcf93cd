"""Compiled programs, shared by the runs of a workload: each is compiled once, by whoever is first.

Programs may be compiled ahead of their first use, by a thread of their own
(`kit.runtime.session.ahead`). A run that needs one of them while XLA still works on it waits for
that one, and compiles no second.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from kit.ir import Aval
from kit.runtime.compiling.checks import Checks
from kit.runtime.compiling.lower import Executable
from kit.runtime.compiling.maps import maps_of_process
from kit.runtime.compiling.places import Places
from kit.runtime.recording.bulk import Op
from kit.runtime.rules.table import Rules
from kit.text import format_count

__all__ = ["MAX_PROGRAMS", "Compiling", "ExecutableCache"]

# Of small programs; of larger ones so many as the process has memory maps for (maps.py). A loop
# whose shapes change would get there.
MAX_PROGRAMS = 2048  # then the one that was used least recently makes room
MAX_AHEAD = 512  # programs compiled ahead that nothing has used yet; then the oldest makes room


class ExecutableCache:
    """Interned ops and compiled segments; sessions that are given the same one share both.

    A key is made of `Op.id`s, which mean something only beside the ops: so they live together. An
    op is kept by its programs, and by whoever records it again; an id is never given twice.
    One session at a time may use it; a thread that compiles ahead may add programs meanwhile.
    """

    def __init__(self) -> None:
        self.ops: WeakValueDictionary[Any, Op] = WeakValueDictionary()
        self._ids = count()
        self.executables: OrderedDict[Any, Executable] = OrderedDict()  # last used last
        self._places: dict[int, Places] = {}  # by the id of the rules, which they keep
        self._kinds: dict[Any, object] = {}
        self.watch: Compiling | None = None  # is told what a run finds here, and what it compiles
        self._lock = threading.Lock()
        self._pending: dict[Any, threading.Event] = {}  # what somebody is compiling
        self._ahead: dict[Any, None] = {}  # compiled ahead and not used yet, oldest first
        self._maps = maps_of_process()
        self._maps.watch(self)

    def intern(
        self,
        name: str,
        template: Any,
        avals: tuple[Aval, ...],
        outputs: tuple[Aval, ...],
        scalars: int,
        *,
        is_view: bool = False,
        writes: tuple[int, ...] = (),
    ) -> Op:
        """The one `Op` for this call; equal calls get the same object and id."""
        key = (name, repr(template), avals, outputs, is_view, writes)
        op = self.ops.get(key)
        if op is None:
            op = Op(next(self._ids), name, template, avals, outputs, scalars, is_view, writes)
            self.ops[key] = op
        return op

    def places_of(self, rules: Rules) -> Places:
        """The places of slices in the programs that these rules made; the rules are kept with them.

        So the id of the rules stays theirs, and a later session finds what an earlier one learned.
        """
        return self._places.setdefault(id(rules), Places(rules))

    def kind(self, device: Any, rules: Rules, checks: Checks) -> object:
        """What the keys of such programs begin with: hashed by identity, as each launch does it."""
        return self._kinds.setdefault((device, id(rules), checks), object())

    def get(self, key: Any) -> Executable | None:
        """The program of this key, if it is there or on its way."""
        found = self._used(key)
        if found is None and (pending := self._pending.get(key)) is not None:
            pending.wait()
            found = self._used(key)
        if found is not None and self.watch is not None:
            self.watch.found(key)
        return found

    def has(self, name: str) -> bool:
        """Is there a program of this name, whatever its key?"""
        with self._lock:
            return any(executable.name == name for executable in self.executables.values())

    def find(self, key: Any, make: Callable[[], Executable], *, what: str = "") -> Executable:
        """The program of this key; made now, by the caller, if nobody has and nobody does."""
        while (found := self.get(key)) is None:
            with self._lock:
                found = self.executables.get(key)
                pending = self._pending.get(key)
                if found is None and pending is None:
                    self._pending[key] = threading.Event()
            if found is None and pending is None:
                return self._make(key, make, what)
        return found

    def make_ahead(self, key: Any, make: Callable[[], Executable]) -> bool:
        """Compile a program before anything needs it; false if it is there, or on its way."""
        with self._lock:
            if key in self.executables or key in self._pending:
                return False
            self._pending[key] = threading.Event()
        try:
            made = make()
            with self._lock:
                self._keep(key, made)
                self._ahead[key] = None
                while len(self._ahead) > MAX_AHEAD:
                    oldest = next(iter(self._ahead))
                    del self._ahead[oldest]
                    self.executables.pop(oldest, None)
        finally:
            self._pending.pop(key).set()
        self._maps.make_room()
        return True

    def _make(self, key: Any, make: Callable[[], Executable], what: str) -> Executable:
        try:
            if self.watch is not None:
                self.watch.begun(what)
            made = make()
            with self._lock:
                self._keep(key, made)
        finally:
            self._pending.pop(key).set()
        self._maps.make_room()
        if self.watch is not None:
            self.watch.made(key)
        return made

    def drop_half(self) -> int:
        """Drop the half of the programs that was used least recently; gives how many those were."""
        with self._lock:
            count = len(self.executables) // 2
            for _ in range(count):
                self._drop_oldest()
        return count

    def _keep(self, key: Any, made: Executable) -> None:
        """One more program; the caller holds the lock."""
        self.executables[key] = made
        while len(self.executables) > MAX_PROGRAMS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """The program that was used least recently; the caller holds the lock."""
        oldest, _ = self.executables.popitem(last=False)
        self._ahead.pop(oldest, None)

    def _used(self, key: Any) -> Executable | None:
        """The program of this key, if it is there: of all programs it is used last now."""
        with self._lock:
            found = self.executables.get(key)
            if found is not None:
                self.executables.move_to_end(key)
                if self._ahead:
                    self._ahead.pop(key, None)
        return found


class Compiling:
    """What one run needs, has found and compiles, in words: `tell` is called with each change.

    What it needs is known as far as the step has been recorded, which is soon: compiling is slow.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._needed: set[Any] = set()
        self._found: set[Any] = set()
        self._made: set[Any] = set()
        self._served: dict[Any, Any] = {}  # program -> the one that runs instead

    def needed(self, key: Any) -> None:
        """A segment was issued that needs this program."""
        self._needed.add(self._served.get(key, key))

    def served(self, key: Any, by: Any) -> None:
        """Instead of this program another one runs, which serves every place of a slice."""
        self._served[key] = by
        self._needed.discard(key)
        self._needed.add(by)

    def found(self, key: Any) -> None:
        """It was there."""
        if key not in self._made:
            self._found.add(key)

    def begun(self, what: str) -> None:
        """It was not there, and is compiled now."""
        ready = len(self._found) + len(self._made)
        of = f" of {len(self._needed)}" if len(self._needed) > ready else ""
        self._tell(
            f"compiling {what}: {ready}{of} programs ready, "
            f"{len(self._found)} of them from the cache"
        )

    def made(self, key: Any) -> None:
        """It is there now."""
        self._made.add(key)

    def __str__(self) -> str:
        found, made = len(self._found), len(self._made)
        if not made:
            return f"{format_count(found, 'program')}, all from the cache" if found else ""
        return f"{made} of {format_count(found + made, 'program')} compiled"
