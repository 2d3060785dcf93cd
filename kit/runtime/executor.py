"""The worker: takes tasks in program order, finds or compiles their executable, runs it.

One thread and one queue, so every read comes after the write that it depends on (RAW), and buffers
are immutable, so there is nothing to order for WAR and WAW. On CPU the worker waits until the
results are there: a task that is done has run. On a GPU it only issues; a reader waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from kit.errors import ExecutionError, KitError
from kit.ir import Aval
from kit.runtime.compiles import CompileLog
from kit.runtime.disk_cache import counting_hits, use_disk_cache
from kit.runtime.lowering import Executable, Source, compile_segment, format_site
from kit.runtime.rules import Rules
from kit.runtime.stream import Op, Task
from kit.trace import Span

__all__ = ["ExecutableCache", "Executor"]


class ExecutableCache:
    """Interned ops and compiled segments; sessions that are given the same one share both.

    A key is made of `Op.id`s, which mean something only beside the ops: so they live together.
    One session at a time may use it.
    """

    def __init__(self) -> None:
        self.ops: dict[Any, Op] = {}
        self.executables: dict[Any, Executable] = {}
        self.rules: dict[int, Rules] = {}  # kept, so that an id stays what it is

    def intern(
        self,
        name: str,
        template: Any,
        avals: tuple[Aval, ...],
        outputs: tuple[Aval, ...],
        scalars: int,
        *,
        is_view: bool,
        writes: tuple[int, ...] = (),
    ) -> Op:
        """The one `Op` for this call; equal calls get the same object and id."""
        key = (name, repr(template), avals, outputs, is_view, writes)
        op = self.ops.get(key)
        if op is None:
            op = Op(len(self.ops), name, template, avals, outputs, scalars, is_view, writes)
            self.ops[key] = op
        return op


class Executor:
    """Runs tasks on one jax device, in the order in which they are pushed."""

    def __init__(self, device: Any, rules: Rules, cache: ExecutableCache, *, launch: bool) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()
        self.spans: list[Span] = []  # of the worker; collected while `is_tracing`
        self.is_tracing = False
        self.compiles = CompileLog()
        self._rules = cache.rules.setdefault(id(rules), rules)
        self._launch = launch
        self._waits = device.platform == "cpu"
        self._failure: BaseException | None = None  # the first that nobody has been told of
        self._cache = cache.executables
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="kit worker", daemon=True)

    def start(self) -> None:
        """Start the worker thread."""
        use_disk_cache()
        self._thread.start()

    def push(self, task: Task) -> None:
        """Hand a task over; returns at once."""
        self._queue.put(task)

    def put(self, array: Any) -> Any:
        """Copy a host array to the device.

        XLA may share the memory of a numpy array on CPU, so the caller gives away a fresh one.
        """
        with jax.enable_x64(True):
            self.counts["transfer_to_device.count"] += 1
            self.counts["transfer_to_device.bytes"] += array.nbytes
            return jax.device_put(array, self.device)

    def take_failure(self, known: BaseException | None = None) -> BaseException | None:
        """The first error that nobody has been told of, once; or just forget a `known` one."""
        failure = self._failure
        if known is None or failure is known:
            self._failure = None
        return failure

    def finish(self, task: Task) -> None:
        """Wait until the device has run the task."""
        task.done.wait()
        if self._waits:
            return
        cells = [cell for output in task.outputs if (cell := output()) is not None]
        for array in [c.array for c in cells if c.array is not None]:
            try:
                jax.block_until_ready(array)
            except RuntimeError:
                if not array.is_deleted():  # else a later task has taken its memory over
                    raise

    def close(self) -> None:
        """Let the queue drain, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        with (
            # this thread only: rules mean what they say whatever the user's own jax is set to
            jax.enable_x64(True),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.default_device(self.device),
        ):
            while (task := self._queue.get()) is not None:
                try:
                    if not task.is_cancelled:
                        self._run(task)
                except BaseException as error:  # noqa: BLE001 - the reader gets it, the thread lives
                    self._poison(task, error)
                finally:
                    if not self.is_tracing:  # a graph of the step needs them; nothing else does
                        task.leaves = []
                    task.done.set()

    def _run(self, task: Task) -> None:
        for leaf in task.leaves:
            if leaf.error is not None:
                self._poison(task, leaf.error)
                return
        arrays = [leaf.array for leaf in task.leaves]
        run = self._run_launched if self._launch else self._run_fused
        results = run(task, arrays)
        if self._waits:
            jax.block_until_ready(results)
        stop = time.perf_counter_ns()
        task.dispatch_ns = (task.dispatch_ns[0], stop)
        self.counts["execute.count"] += 1
        self.counts["execute.ns"] += stop - task.dispatch_ns[0]
        if self.is_tracing:
            name = f"({len(task.bulk.ops)} ops)"
            self.spans.append(
                Span("host/worker", name, "dispatch", *task.dispatch_ns, segment=task.index)
            )
        for output, array in zip(task.outputs, results, strict=True):
            if (cell := output()) is not None:
                cell.array = array

    def _run_fused(self, task: Task, arrays: list[Any]) -> Any:
        executable = task.executable
        if executable is None:
            executable = task.executable = self._find(task, task.key, lambda: Source.of(task))
        else:
            self.counts["cache.hits"] += 1
            executable.calls += 1
        task.issued.append((executable, 0))
        if task.scalars:
            arrays.append(np.array(task.scalars, np.float64))
        task.dispatch_ns = (time.perf_counter_ns(), 0)
        return executable.run(arrays)

    def _run_launched(self, task: Task, arrays: list[Any]) -> Any:
        """MXNet's bulking: each op is its own program, and the wait comes once, at the end."""
        slots: list[Any] = []
        taken = 0
        for i, (op, refs) in enumerate(task.bulk.nodes()):
            sources = list(dict.fromkeys(refs))
            leaf = {r: -1 - k for k, r in enumerate(sources)}
            node = (op, tuple(leaf[r] for r in refs))
            inputs = [slots[r] if r >= 0 else arrays[-1 - r] for r in sources]
            executable = self._find(
                task, ("launch", op.id, node[1]), partial(_alone, node, inputs), i
            )
            task.issued.append((executable, i))
            if op.scalars:
                inputs.append(np.array(task.scalars[taken : taken + op.scalars], np.float64))
                taken += op.scalars
            if i == 0:
                task.dispatch_ns = (time.perf_counter_ns(), 0)
            slots.extend(executable.run(inputs))
        return [slots[s] for s in task.wanted]

    def _find(
        self, task: Task, key: Any, source: Callable[[], Source], offset: int = 0
    ) -> Executable:
        """The executable for this key; compiled now if it is not there. `offset`: its first op."""
        key = (self.device, id(self._rules), key)  # a cache may outlive both
        executable = self._cache.get(key)
        if executable is not None:
            self.counts["cache.hits"] += 1
            executable.calls += 1
            return executable
        self.counts["cache.misses"] += 1
        task.is_cached = False
        sites = [format_site(f[0]) for f in task.bulk.frames[offset:]]
        segment = source()
        name = f"segment_{segment.digest()}_{task.bulk.phase}"
        with counting_hits() as hits:
            executable = compile_segment(segment, self._rules, name=name, sites=sites)
        self._cache[key] = executable
        self.counts["compile.count"] += 1
        self.counts["compile.from_disk"] += len(hits)
        self.compiles.add(
            segment, task.bulk.frames[offset : offset + len(segment.nodes)],
            phase=task.bulk.phase, step=task.step, position=task.position,
            lower_ns=executable.lower_ns[1] - executable.lower_ns[0],
            compile_ns=executable.compile_ns[1] - executable.compile_ns[0],
            is_from_disk=bool(hits),
        )  # fmt: skip
        self.counts["compile.ns"] += executable.compile_ns[1] - executable.lower_ns[0]
        if self.is_tracing:
            for kind, when in (("lower", executable.lower_ns), ("compile", executable.compile_ns)):
                self.spans.append(Span("host/worker", name, kind, *when, segment=task.index))
        return executable

    def _poison(self, task: Task, error: BaseException) -> None:
        """Every output carries the error until something reads it, or forgets it."""
        if not isinstance(error, KitError):
            frames = task.bulk.frames
            sites = dict.fromkeys(format_site(f[0]) for f in frames if f[0][0])
            where = ", ".join(list(sites)[:3]) or "an unknown line"
            first = task.bulk.ops[0].name if task.bulk.ops else "nothing"
            wrapped = ExecutionError(
                f"segment {task.index} ({len(task.bulk.ops)} ops from {first}, recorded at "
                f"{where}) failed: {type(error).__name__}: {str(error)[:2000]}"
            )
            wrapped.__cause__ = error
            error = wrapped
        task.error = error
        if self._failure is None and not task.is_guess:
            self._failure = error
        for output in task.outputs:
            if (cell := output()) is not None:
                cell.error = error


def _alone(node: tuple[Op, tuple[int, ...]], inputs: list[Any]) -> Source:
    """One op as a program of its own, which returns all of its results."""
    avals = tuple(Aval(tuple(x.shape), str(x.dtype)) for x in inputs)
    op = node[0]
    return Source([node], avals, op.scalars, tuple(range(len(op.outputs))))
