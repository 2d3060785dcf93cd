"""Runs tasks: finds or compiles their executables and issues them from the engine's workers.

To the engine a task writes one variable, its results, and reads those of the tasks that made its
leaves (RAW). Buffers are immutable, so there is nothing else to order, but for donated memory: a
task that gives its leaves' memory to its results also writes their variables (WAR). On CPU a worker
waits until the results are there: a task that is done has run. On a GPU it only issues.
"""

from __future__ import annotations

import contextlib
import time
from _thread import RLock
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from weakref import finalize, ref

import jax
import numpy as np

from kit.errors import (
    Cancelled,
    EngineError,
    ExecutionError,
    KitError,
    but_of_handlers,
    is_a,
    named,
    words_of,
)
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.checks import Checks
from kit.runtime.compiling.disk_cache import use_disk_cache
from kit.runtime.compiling.lower import Executable
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import Operation
from kit.runtime.profiling.locks import UNKNOWN_NS, processor_ns
from kit.runtime.recording.bulk import Op, Origin, Task
from kit.runtime.recording.sites import format_site
from kit.runtime.rules.jax import has_effects
from kit.runtime.rules.table import Rules
from kit.runtime.session.compiler import Compiler
from kit.runtime.session.findings import Findings, Flags, raise_found, spoiled_by
from kit.text import format_count
from kit.trace import Span

__all__ = ["Executor"]


FEW = 8  # arrays that are waited for one by one: jax looks through a list for longer than that
_GONE = (
    "an array that the program gave to a step was donated or deleted before the step ran: put it "
    "by kit.jax.device_put, which makes a copy, or read what the step returns before"
)


class Executor:
    """Runs tasks on one jax device, as early as the values that they read are there.

    Args:
        launch: each op is a program of its own.
        checks: what the programs look at beside computing, by the number of the step.
    """

    def __init__(
        self, device: Any, rules: Rules, cache: ExecutableCache, launch: bool,
        checks: Callable[[int], Checks],
    ) -> None:  # fmt: skip
        self.device = device
        self.counts: Counter[str] = Counter()
        self.spans: list[Span] = []  # of the worker; collected while `is_tracing`
        self.is_tracing = False
        self.compiler = Compiler(device, rules, cache, checks, self.counts, self._note_span)
        self.engine = Engine(setting=self._setting)
        self.is_holding = False  # what is pushed is only planned
        self.held: list[Task] = []  # of a plan; they run before what is pushed or awaited after it
        self.recovered: list[str] = []  # segments that failed whole, and not op by op
        self._asking = RLock()  # held while it changes whether a task is asked for
        self._launch = launch
        self._waits = device.platform == "cpu"
        self.findings = Findings(self._note_failure)

    def start(self, owner: Any) -> None:
        """Get ready; the worker runs from now on, and ends when its owner is freed."""
        use_disk_cache()
        # Now, because Python 3.12 starts no thread once the program has ended, and what is recorded
        # by then runs as its last. Where none can be had, the first task says so.
        with contextlib.suppress(EngineError):
            self.engine.start()
        finalize(owner, self.engine.abandon).atexit = False

    def push(self, task: Task) -> None:
        """Hand a task over; returns at once."""
        if self.is_tracing:
            task.seen.origins = tuple(map(Origin, task.leaves))
        if self.is_holding:
            self.held.append(task)
            return
        if self.held:
            self._run_held()
        self._submit(task)

    def _run_held(self) -> None:
        while self.held:
            self._submit(self.held[0])
            del self.held[0]

    def _submit(self, task: Task) -> None:
        if not self._launch:
            self.compiler.expect(task)
        reads = {leaf.task.variable: None for leaf in task.leaves if leaf.task is not None}
        writes = {task.variable: None}
        for i in task.cut.dead:  # WAR: their other readers must come first
            if (maker := task.leaves[i].task) is not None:
                reads.pop(maker.variable, None)
                writes[maker.variable] = None
        op = Operation(partial(self._execute, task), tuple(reads), tuple(writes))
        task.operation = op  # known before it can run, so that no error can come between
        try:
            self.engine.submit(op)
        finally:
            if not op.number:
                task.operation = None

    def wait(self, task: Task) -> None:
        """Block until the task has run, or on a GPU has been issued."""
        if self.held and task.operation is None:
            self._run_held()
        if task.operation is not None:
            self.engine.wait(task.operation)

    def put(self, array: Any) -> Any:
        """Copy a host array to the device.

        XLA may share the memory of a numpy array on CPU, so the caller gives away a fresh one.
        """
        with jax.enable_x64(True):
            self.counts["transfer_to_device.count"] += 1
            self.counts["transfer_to_device.bytes"] += array.nbytes
            return jax.device_put(array, self.device)

    def finish(self, task: Task) -> None:
        """Wait until the device has run the task, if it is to run."""
        if task.operation is not None:
            self.wait(task)
        if self._waits:
            return
        for array in [cell.array for _, cell in task.results() if cell.array is not None]:
            try:
                jax.block_until_ready(array)
            except but_of_handlers(RuntimeError) as error:
                if not array.is_deleted():  # else a later task has taken its memory over
                    raise self.explained(task, error) from error

    def explained(self, task: Task, error: BaseException) -> BaseException:
        """The error that came with a task's results: its own, or that of an earlier program.

        On a device that is not waited for, such as a GPU whose memory is full, it is found late.
        """
        if is_a(error, KitError) or any(name in str(error) for name in task.seen.names):
            return _explained(task, error)
        what = f"a program that segment {task.index} or one before it needs failed"
        return ExecutionError(f"{what}: {_summary(error)}")

    def missing(self, task: Task | None) -> BaseException:
        """Why a task that has ended has noted neither a result nor an error."""
        error = None if task is None else task.variable.error
        if task is None or error is None or isinstance(error, Cancelled):
            return Cancelled("the program was interrupted before this was computed")
        self.engine.forgive(error)  # what failed could not be noted, for want of memory
        return _explained(task, error.__cause__ or error)

    def close(self) -> None:
        """Run what is pending, then end the thread."""
        self.engine.close()

    def overheads(self) -> tuple[int, int]:
        """Nanoseconds, median of 50: one launch of a program that does next to nothing, with its
        end; and one empty operation pushed to the worker and waited for."""
        launches: list[int] = []

        def launch() -> None:
            one = jax.device_put(np.zeros(1, np.float32), self.device)
            program = jax.jit(lambda x: x + 1).lower(one).compile()
            for _ in range(51):
                start = time.perf_counter_ns()
                jax.block_until_ready(program(one))
                launches.append(time.perf_counter_ns() - start)

        self.engine.wait(self.engine.push(launch, name="measure launches"))
        waits = []
        for _ in range(50):
            start = time.perf_counter_ns()
            self.engine.wait(self.engine.push(lambda: None))
            waits.append(time.perf_counter_ns() - start)
        return int(np.median(launches[1:])), int(np.median(waits))

    @contextlib.contextmanager
    def _setting(self) -> Iterator[None]:
        """For a worker thread only: rules mean what they say whatever the user's own jax says."""
        with (
            jax.enable_x64(True),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.default_prng_impl("threefry2x32"),
            jax.threefry_partitionable(True),
            jax.disable_jit(False),
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.debug_key_reuse(False),
            jax.transfer_guard("allow"),
            jax.default_device(self.device),
        ):
            yield

    def _execute(self, task: Task) -> None:
        """Run a task; never raises: what fails is noted on the cells that it would have filled."""
        try:
            for leaf in task.leaves:
                if leaf.error is not None:
                    self._salvage(task, None)
                    break
            else:
                try:
                    self._run(task)
                except Exception as error:  # noqa: BLE001
                    self._salvage(task, error)
        except BaseException as error:  # noqa: BLE001 - the reader gets it, the thread lives
            why = _explained(task, error)
            self._poison(task, dict.fromkeys(task.cut.wanted, why), [why])
        finally:
            task.leaves = []  # whoever keeps the task shall not keep arrays: that costs page faults

    def _run(self, task: Task) -> None:
        arrays = [leaf.array for leaf in task.leaves]
        for i in () if self._launch else task.cut.dead:
            # memory of numpy's, an input that a replay reads, or what another value shows, too
            if task.leaves[i].task is None or task.leaves[i].has_twins:
                arrays[i] = jax.device_put(arrays[i], self.device, may_alias=False)
        run = self._run_launched if self._launch else self._run_fused
        if self._waits:
            results, found = run(task, arrays)
            # the results of one program come, or fail, as one
            awaited = results if self._launch else results[-1:]
            if len(awaited) > FEW:
                jax.block_until_ready(awaited)
            else:
                for array in awaited:
                    array.block_until_ready()
            spoiled = spoiled_by(task, found) if found else None
        else:
            end, spoiled = self.findings.begin(task), None
            results, found = run(task, arrays)
            end(found)
        stop = time.perf_counter_ns()
        task.seen.dispatch_ns = (task.seen.dispatch_ns[0], stop)
        self.counts["execute.count"] += 1
        self.counts["execute.ns"] += stop - task.seen.dispatch_ns[0]
        if self.is_tracing:
            if task.seen.worked_ns != UNKNOWN_NS:
                task.seen.worked_ns = processor_ns() - task.seen.worked_ns
            name = f"({format_count(len(task.cut.bulk.ops), 'op')})"
            self.spans.append(
                Span("host/worker", name, "dispatch", *task.seen.dispatch_ns, segment=task.index)
            )
        errors: dict[int, BaseException] = {} if spoiled is None else spoiled[0]
        for output, slot, array in zip(task.outputs, task.cut.wanted, results, strict=True):
            if (cell := output()) is not None and slot not in errors:
                cell.array = array
        if spoiled is not None:
            self._poison(task, *spoiled)

    def _run_fused(self, task: Task, arrays: list[Any]) -> tuple[list[Any], list[Flags]]:
        executable = self.compiler.of_segment(task)
        task.executable = ref(executable)
        task.seen.names.append(executable.name)
        if self.is_tracing:
            task.seen.issued.append((executable, 0))
        if numbers := self.compiler.numbers(executable, task.cut.bulk.ops, task.scalars):
            arrays.append(np.array(numbers, np.float64))
        if self.is_tracing:
            task.seen.worked_ns = processor_ns()  # at the launch's end this is taken off
        task.seen.dispatch_ns = (time.perf_counter_ns(), 0)
        results, flags = executable.run(arrays)
        return results, [] if flags is None else [(0, executable, flags)]

    def _run_launched(self, task: Task, arrays: list[Any]) -> tuple[list[Any], list[Flags]]:
        """MXNet's bulking: each op is its own program, and the wait comes once, at the end."""
        slots: list[Any] = []
        found: list[Flags] = []
        scalars = iter(task.scalars)
        for i, (op, refs) in enumerate(task.cut.bulk.nodes()):
            given = {r: slots[r] if r >= 0 else arrays[-1 - r] for r in refs}
            numbers = list(islice(scalars, op.scalars))
            slots.extend(self._run_alone(task, i, op, refs, given, numbers, found))
        return [slots[s] for s in task.cut.wanted], found

    def _run_alone(
        self, task: Task, i: int, op: Op, refs: tuple[int, ...], given: dict[int, Any],
        numbers: Sequence[float], found: list[Flags],
    ) -> list[Any]:  # fmt: skip
        """Issue op `i` of a task as a program of its own; `given` has the arrays of its refs."""
        inputs = list(given.values())
        executable = self.compiler.of_op(task, i, op, refs, inputs)
        task.seen.names.append(executable.name)
        if self.is_tracing:
            task.seen.issued.append((executable, i))
        if numbers := self.compiler.numbers(executable, (op,), numbers):
            inputs.append(np.array(numbers, np.float64))
        if not task.seen.dispatch_ns[0]:
            if self.is_tracing:
                task.seen.worked_ns = processor_ns()
            task.seen.dispatch_ns = (time.perf_counter_ns(), 0)
        results, flags = executable.run(inputs)
        if flags is not None:
            found.append((i, executable, flags))
        return results

    def needed_by(self, task: Task) -> Iterator[tuple[Any, int, Callable[[], Executable]]]:
        """(key, ops, what compiles it) of each program that a task will ask for."""
        return self.compiler.ahead(task, self._setting, self._launch)

    def _note_span(self, span: Span) -> None:
        if self.is_tracing:
            self.spans.append(span)

    def _salvage(self, task: Task, failure: Exception | None) -> None:
        """Something failed, in the segment or before it: run op by op what can still be run.

        The segment's inputs are immutable, so its ops can be run again: those before the culprit
        keep their values, those that do not depend on it get theirs, the others get its error.
        Where one that may have run has an effect, as a callback, none is run: once is enough.
        """
        may_have_run = task.seen.dispatch_ns[0] > 0
        if failure is not None and may_have_run and any(map(_has_effects, task.cut.bulk.ops)):
            raise failure
        gone = [x for x in task.leaves if x.array is not None and x.array.is_deleted()]
        if any(leaf.task is None for leaf in gone):  # such memory is not given away here
            raise RuntimeError(_GONE) from failure
        if gone:
            assert failure is not None
            raise failure  # their memory was given to the results
        slots: list[Any] = []  # arrays and errors
        inputs = [leaf.array if leaf.error is None else leaf.error for leaf in task.leaves]
        errors = []
        scalars = iter(task.scalars)
        for i, (op, refs) in enumerate(task.cut.bulk.nodes()):
            numbers = list(islice(scalars, op.scalars))
            by_ref = {r: slots[r] if r >= 0 else inputs[-1 - r] for r in refs}
            poison = next((x for x in by_ref.values() if isinstance(x, BaseException)), None)
            if poison is None:
                try:
                    found: list[Flags] = []
                    results = self._run_alone(task, i, op, refs, by_ref, numbers, found)
                    jax.block_until_ready(results)
                    raise_found(task, found)
                    slots.extend(results)
                    continue
                except Exception as error:  # noqa: BLE001
                    poison = _explained(task, error, i)
                    errors.append(poison)
            slots.extend([poison] * len(op.outputs))
        if failure is not None and not errors:
            self.counts["segment.recovered"] += 1
            why = f"segment {task.index}: {_summary(failure)}"
            self.recovered = [*self.recovered[-9:], why]
        for slot, cell in task.results():
            if not isinstance(slots[slot], BaseException):
                cell.array = slots[slot]
        bad = {s: slots[s] for s in task.cut.wanted if isinstance(slots[s], BaseException)}
        self._poison(task, bad, errors)

    def _poison(
        self, task: Task, errors: dict[int, Any], new: Sequence[BaseException] | None = None
    ) -> None:
        """Cells carry the errors, by slot; `wait_all` raises those that are new."""
        for slot, cell in task.results():
            if slot in errors:
                cell.error = errors[slot]
        for error in dict.fromkeys(errors.values() if new is None else new):
            self._note_failure(task, error)

    def _note_failure(self, task: Task, error: BaseException) -> None:
        """`wait_all` raises it, if the program has asked for the task or does so later."""
        with self._asking:
            task.failures = (*task.failures, error)
            if task.guessed is None:
                self.engine.report(error, task.operation)

    def confirm(self, task: Task) -> None:
        """The program has asked for a task that was a guess."""
        with self._asking:
            task.guessed = None
            for error in task.failures:
                self.engine.report(error, task.operation)

    def retract(self, task: Task) -> None:
        """The program no longer asks for a task: another one takes its place."""
        with self._asking:
            task.guessed = []  # as of a guess that was wrong
            for error in task.failures:
                self.engine.forgive(error)


def _has_effects(op: Op) -> bool:
    if not op.name.startswith("jax.") or op.name == "jax.debug_print":  # a line twice does no harm
        return False
    return has_effects(op.template[0][0])


def _explained(task: Task, error: BaseException, culprit: int | None = None) -> BaseException:
    """The error with the op and the user's line; kit's own errors say that themselves."""
    if is_a(error, KitError):
        return error
    bulk = task.cut.bulk
    ops = format_count(len(bulk.ops), "op")
    if culprit is not None:
        site = format_site(bulk.frames[culprit][0]) or "an unknown line"
        what = f"{bulk.ops[culprit].name}, recorded at {site}, failed in segment {task.index} "
        what += f"({ops}, {bulk.phase})"
    else:
        sites = dict.fromkeys(format_site(f[0]) for f in bulk.frames if f[0][0])
        where = ", ".join(list(sites)[:3]) or "an unknown line"
        what = f"segment {task.index} ({ops} from {bulk.ops[0].name}, recorded at {where}) failed"
    wrapped = ExecutionError(f"{what}: {_summary(error)}")
    wrapped.__cause__ = error
    return wrapped


def _summary(error: BaseException) -> str:
    """Type and text; of a traceback in XLA's text, which the cause keeps, its last line."""
    text = words_of(error)
    before, found, trace = text.partition("Traceback (most recent call last):")
    if found:
        return trace.strip().splitlines()[-1].strip()[:2000] or before
    return named(error, 2000)
