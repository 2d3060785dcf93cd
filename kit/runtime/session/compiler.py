"""The programs of one session's tasks: found in the cache, or compiled while the task waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from kit.ir import Aval
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.checks import NO_CHECKS, Checks
from kit.runtime.compiling.disk_cache import counting_hits
from kit.runtime.compiling.lower import Executable, Source, compile_segment, options_for
from kit.runtime.compiling.places import Moved
from kit.runtime.compiling.reasons import CompileLog
from kit.runtime.recording.bulk import Op, Task
from kit.runtime.recording.sites import format_site
from kit.runtime.rules.table import Rules
from kit.text import format_count
from kit.trace import Span

__all__ = ["Compiler"]

MAX_NAMES = 20_000  # of compiled programs that are known again, in memory or not


class Compiler:
    """Finds or compiles what tasks run, counts that, and keeps the reasons.

    Args:
        checks: what the programs look at beside computing, by the number of the step.
        counts: of the executor.
        note: called with a span of the worker, for each part of a compile.
    """

    def __init__(
        self, device: Any, rules: Rules, cache: ExecutableCache, checks: Callable[[int], Checks],
        counts: Counter[str], note: Callable[[Span], None],
    ) -> None:  # fmt: skip
        self.log = CompileLog()
        self._device = device
        self._options = options_for(device)
        self._places = cache.places_of(rules)
        self._rules = self._places.rules
        self._cache = cache
        self._checks = checks
        self._counts = counts
        self._note = note
        self._compiled: dict[str, None] = {}  # the names of the programs, the latest last
        self._kind = (-1, NO_CHECKS, object())  # a step, its checks, and what its keys begin with

    def expect(self, task: Task) -> None:
        """Say that a segment will ask for its program, to whoever watches the cache."""
        if (watch := self._cache.watch) is not None:
            watch.needed((self._of_step(task.step)[1], task.cut.key))

    def of_segment(self, task: Task) -> Executable:
        """The program of a task: its own, or one that takes the places of slices as inputs."""
        executable: Executable | None = None if task.executable is None else task.executable()
        checks, kind = self._of_step(task.step)
        if executable is not None and executable.checks == checks:
            return self._hit(executable)
        cut = task.cut
        key = (kind, cut.key)
        if (found := self._cache.get(key)) is not None:
            return self._hit(found)
        moved = self._places.moved(cut.bulk.ops, cut.key[0], cut.key[1:])
        if moved is not None:
            key = (kind, moved.key)
            if (watch := self._cache.watch) is not None:
                watch.served((kind, cut.key), key)
        return self._find(task, key, lambda: _moved(Source.of(task), moved), checks)

    def of_op(
        self, task: Task, i: int, op: Op, refs: tuple[int, ...], inputs: Sequence[Any]
    ) -> Executable:
        """The program of op `i` of a task alone, on these arrays."""
        own = _own_refs(refs)
        checks, kind = self._of_step(task.step)
        key: Any = (kind, ("launch", op.id, own))
        if (found := self._cache.get(key)) is not None:
            return self._hit(found)
        moved = self._places.moved((op,), (op.id, *own), ("launch",))
        if moved is not None:
            key = (kind, moved.key)
        return self._find(task, key, lambda: _moved(_alone((op, own), inputs), moved), checks, i)

    def numbers(
        self, executable: Executable, ops: Sequence[Op], scalars: Sequence[float]
    ) -> Sequence[float]:
        """The numbers that the program of these ops takes."""
        if not executable.places:
            return scalars
        return self._places.numbers(executable.places, ops, scalars)

    def ahead(
        self, task: Task, setting: Callable[[], AbstractContextManager[None]], is_launched: bool
    ) -> Iterator[tuple[Any, int, Callable[[], Executable]]]:
        """(key, ops, what compiles it) of each program that a task will ask for.

        Args:
            setting: makes what a thread enters before it compiles.
            is_launched: each op is a program of its own.
        """
        checks, kind = self._of_step(task.step)

        def make(segment: Source, offset: int) -> Executable:
            with setting():
                return self._compile(task, segment, offset, checks)

        if not is_launched:
            source = Source.of(task)
            yield (kind, task.cut.key), len(task.cut.bulk.ops), partial(make, source, 0)
            return
        for i, (op, refs) in enumerate(task.cut.bulk.nodes()):
            own = _own_refs(refs)
            inputs = list(dict(zip(refs, op.avals, strict=True)).values())
            source = _alone((op, own), inputs)
            yield (kind, ("launch", op.id, own)), 1, partial(make, source, i)

    def _of_step(self, step: int) -> tuple[Checks, object]:
        """What the programs of a step look at, and what their keys begin with."""
        known = self._kind  # one assignment changes it: two threads ask
        if known[0] != step:
            checks = self._checks(step)
            kind = self._cache.kind(self._device, self._rules, checks)
            known = self._kind = (step, checks, kind)
        return known[1], known[2]

    def _hit(self, executable: Executable) -> Executable:
        self._counts["cache.hits"] += 1
        return executable

    def _find(
        self, task: Task, key: Any, source: Callable[[], Source], checks: Checks, offset: int = 0
    ) -> Executable:
        """The program of this key; compiled now if it is not there. `offset`: its first op."""
        before = self._counts["compile.count"]
        is_watched = self._cache.watch is not None  # words are for somebody who reads them
        what = (
            f"{task.cut.bulk.phase}, {format_count(len(task.cut.bulk.ops), 'op')}"
            if is_watched
            else ""
        )
        executable = self._cache.find(
            key, lambda: self._compile_for(task, source(), offset, checks), what=what
        )
        return executable if self._counts["compile.count"] > before else self._hit(executable)

    def _compile_for(self, task: Task, segment: Source, offset: int, checks: Checks) -> Executable:
        """Compile, count and explain a program that a task has to wait for."""
        self._counts["cache.misses"] += 1
        task.seen.is_cached = False
        with counting_hits() as hits:
            executable = self._compile(task, segment, offset, checks)
        is_again = executable.name in self._compiled and not self._cache.has(executable.name)
        self._compiled[executable.name] = None
        if len(self._compiled) > MAX_NAMES:
            del self._compiled[next(iter(self._compiled))]
        self._counts["compile.count"] += 1
        self._counts["compile.from_disk"] += len(hits)
        self.log.add(
            segment, task, offset, executable=executable, is_from_disk=bool(hits), is_again=is_again
        )
        self._counts["compile.ns"] += executable.compile_ns[1] - executable.lower_ns[0]
        for kind, when in (("lower", executable.lower_ns), ("compile", executable.compile_ns)):
            self._note(Span("host/worker", executable.name, kind, *when, segment=task.index))
        return executable

    def _compile(self, task: Task, segment: Source, offset: int, checks: Checks) -> Executable:
        sites = [format_site(f[0]) for f in task.cut.bulk.frames[offset:]]
        name = f"segment_{segment.digest(checks)}_{task.cut.bulk.phase}"
        return compile_segment(
            segment, self._rules, name=name, sites=sites, checks=checks, options=self._options,
            parts_chains=self._device.platform == "cpu",
        )  # fmt: skip


def _own_refs(refs: tuple[int, ...]) -> tuple[int, ...]:
    """Where the inputs of an op come from if it is a program of its own: from its leaves."""
    if len(set(refs)) == len(refs):
        return tuple(range(-1, -1 - len(refs), -1))
    leaf = {r: -1 - k for k, r in enumerate(dict.fromkeys(refs))}
    return tuple([leaf[r] for r in refs])


def _alone(node: tuple[Op, tuple[int, ...]], inputs: Sequence[Any]) -> Source:
    """One op as a program of its own, which returns all of its results."""
    avals = tuple(Aval(tuple(x.shape), str(x.dtype)) for x in inputs)
    op = node[0]
    return Source([node], avals, op.scalars, tuple(range(len(op.outputs))))


def _moved(source: Source, moved: Moved | None) -> Source:
    """The same program, with the places of its slices that move as inputs."""
    if moved is None:
        return source
    nodes = [(moved.ops.get(i, op), refs) for i, (op, refs) in enumerate(source.nodes)]
    scalars = source.scalars + len(moved.places)
    return replace(source, nodes=nodes, scalars=scalars, places=moved.places)
