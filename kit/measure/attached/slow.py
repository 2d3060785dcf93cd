"""Says while a script runs on device kit what it spends its time on: else it would seem to hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kit.errors import EngineError
from kit.runs.compiles import dearest
from kit.runtime.session.session import Session
from kit.text import format_count, format_ms
from kit.threads import start_thread
from kit.trace import SyncPoint

__all__ = ["telling"]

FIRST_S = 15.0  # of the script, then it is told for the first time; then after twice as long
LOOK_S = 0.5  # between two looks
_MOSTLY = 0.5  # of the time since it was told last
_LARGE_S = 10.0  # of one program: then its parts would be ready sooner than the whole
_MANY_READS = 20  # in a step: most loops read one number, if any
_FEW_STEPS = 5  # count as so many


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a script had spent by a time, since its begin."""

    at_s: float = 0.0
    compile_s: float = 0.0
    compiles: int = 0
    reads: int = 0
    steps: int = 0


@contextlib.contextmanager
def telling(session: Session, tell: Callable[[str], None]) -> Iterator[None]:
    """In the block, tell what most of the time goes into: compiling, or reads of many numbers."""
    over = threading.Event()
    try:
        with contextlib.suppress(EngineError):  # no more threads: nothing is told
            start_thread(_look, "kit what is slow", args=(session, tell, over))
        yield
    finally:
        over.set()


def _look(session: Session, tell: Callable[[str], None], over: threading.Event) -> None:
    begun_s, told, after_s = time.monotonic(), _Spent(), FIRST_S
    number, since_s = 0.0, 0.0  # of the program that is being compiled, and when it was first seen
    while not over.wait(LOOK_S):
        counts, at_s = session.metrics(), time.monotonic() - begun_s
        begun = counts.get("cache.misses", 0.0)
        if begun != number:
            number, since_s = begun, at_s
        if at_s < after_s:
            continue
        is_compiling = begun > counts.get("compile.count", 0.0)
        one_s = at_s - since_s if is_compiling else 0.0
        now = _spent(at_s, one_s, counts, session.step)
        said = _said(told, now, one_s, session)
        if said:
            tell(said)
        told, after_s = now, 2 * at_s if said else at_s + FIRST_S


def _spent(at_s: float, one_s: float, counts: Mapping[str, float], steps: int) -> _Spent:
    return _Spent(
        at_s,
        counts.get("compile.ns", 0.0) / 1e9 + one_s,
        int(counts.get("compile.count", 0)),
        int(counts.get("sync.count", 0)),
        steps,
    )


def _said(before: _Spent, now: _Spent, one_s: float, session: Session) -> str:
    """What to tell; "" if nothing stands out."""
    begin = f"after {format_ms(now.at_s * 1e3)}, {format_count(now.steps, 'step')}: "
    if now.compile_s - before.compile_s >= _MOSTLY * (now.at_s - before.at_s):
        said = f"{begin}{format_ms(now.compile_s * 1e3)} went into compiling {_what(now, one_s)}"
        if one_s >= _LARGE_S and session.settings.mode == "lazy":
            return (
                f"{said}. In mode lazy all ops up to a read are one program, and XLA may take "
                "minutes for some thousand: --set mode=bulked compiles them in parts"
            )
        why = dearest(session.compiles)
        return f"{said}. {why}" if why else f"{said}; a loop that repeats itself compiles no more"
    reads, steps = now.reads - before.reads, now.steps - before.steps
    if reads < _MANY_READS * max(steps, _FEW_STEPS):
        return ""
    return (
        f"{begin}{format_count(now.reads, 'number')} read, each a wait for the device, most of "
        f"them {_most_reads(session.syncs)}. With few ops between two reads device kit cannot "
        "overlap anything, and native torch is faster"
    )


def _what(now: _Spent, one_s: float) -> str:
    """`2 programs, and one that is not ready after 3.2 s`."""
    if one_s > 1 and not now.compiles:
        return "a program that is not ready yet"
    more = f", and one that is not ready after {format_ms(one_s * 1e3)}" if one_s > 1 else ""
    return f"{format_count(now.compiles, 'program')}{more}"


def _most_reads(syncs: list[SyncPoint]) -> str:
    (site, via), _ = Counter((sync.site, sync.via) for sync in tuple(syncs)).most_common(1)[0]
    return f"at {site}{f', in {via}' if via else ''}"
