"""The `Session`: records ops, cuts them into segments, runs them, and remembers when.

A session joins the parts that do so, each in a file of its own: streams cut bulks, an issuer gives
the tasks to an executor, a stepper replays steps, and reads wait for the device. A front end calls
`record` for each op and `read` for its numbers; users call `mark_step`, `wait_all`, `metrics`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import ref

from kit.errors import SessionError, suppressed
from kit.ir.graph import GraphDiff
from kit.ir.plan import OpStream
from kit.runs.bulk_sizes import BulkSizes
from kit.runs.compiles import Compile
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.checks import Checks
from kit.runtime.profiling.devices import pick_device
from kit.runtime.profiling.freeze import TracedSteps
from kit.runtime.profiling.host_spans import HostSpans
from kit.runtime.recording.bulk import Frame, Value
from kit.runtime.recording.stream import CutPolicy, Stream
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.ends import watch_ends
from kit.runtime.session.forks import watch_forks
from kit.runtime.session.inputs import Inputs
from kit.runtime.session.interrupts import INTERRUPTS, no_session
from kit.runtime.session.issuer import Issuer
from kit.runtime.session.reads import Reads
from kit.runtime.session.redo import Redo
from kit.runtime.session.report import Report
from kit.runtime.session.setup import Setup
from kit.runtime.session.streams import ThreadStreams
from kit.runtime.session.tracer import Tracer
from kit.runtime.session.waits import Waits
from kit.runtime.steps.program import UserProgram
from kit.runtime.steps.recording import Draws
from kit.runtime.steps.stepper import Stepper
from kit.trace import SyncPoint

__all__ = ["Session", "current_session", "session_for"]

_CURRENT: ContextVar[Callable[[], Session | None]] = ContextVar("kit_session", default=no_session)


def current_session() -> Session | None:
    """The session of the innermost open `with kit.Session(...)`, if any."""
    return _CURRENT.get()()


def session_for(what: str) -> Session:
    """The session that is open in this thread, which `what` needs.

    Raises:
        SessionError: there is none.
    """
    session = current_session()
    if session is None:
        said = f"{what} needs an open session here: put the code inside `with kit.Session():`"
        if threading.current_thread() is not threading.main_thread():
            said += (
                ". A thread sees the session of the one that starts it if it runs in a copy of its "
                "context: threading.Thread(target=contextvars.copy_context().run, args=(work,))"
            )
        raise SessionError(said)
    return session


class Session:
    """A place where ops are recorded and run: open it with `with`.

    Args:
        settings: all are read but what a builder follows (the batch size, loss scaling, dtype) and
            how long is measured; see `kit.Settings`.
        rules: lowering rules; add your own with `DEFAULT_RULES | Rules({...})`.
        strict: an op without a rule is an error, not a computation on the host.
        frontends: objects whose `open(session)` and `close()` are called with the session's own.
        cache: executables to start with and to add to; a session has its own if none is given.
        setup: what it is built on, where that is not the usual.

    Raises:
        SettingsError: the device asked for is not there.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        rules: Rules = DEFAULT_RULES,
        strict: bool = False,
        frontends: Sequence[Any] = (),
        cache: ExecutableCache | None = None,
        setup: Setup | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.rules, self.strict = rules, strict
        self.is_open = False
        self.lock: Any = threading.RLock()  # held while an op is recorded: several threads may
        self.frontends = tuple(frontends)  # that are open with the session
        self._cache = ExecutableCache() if cache is None else cache
        self.intern = self._cache.intern  # the one `Op` for a call: `ExecutableCache.intern`
        self._exits: contextlib.ExitStack | None = None
        self._thread = 0  # that has entered it
        self._join_parts(setup or Setup())

    def _join_parts(self, setup: Setup) -> None:
        """Make the parts, each with those below it."""
        settings, lock = self.settings, self.lock
        self.device = device = setup.device or pick_device(settings.device)
        is_launched, mode = settings.segment_mode == "launch", settings.step_mode
        may_donate = not is_launched and mode != "speculate"  # these read arrays again
        checks = Checks.by_step(settings, device, self.frontends)
        executor = setup.executor(device, self.rules, self._cache, is_launched, checks)
        program = UserProgram(
            self.mark_step, lambda: self.stream.is_pending,
            lambda: self.streams.flush("another thread", everywhere=True), lambda: self.frontends,
        )  # fmt: skip
        self.policy = CutPolicy(
            is_lazy=settings.mode == "lazy", donates=setup.donates and may_donate,
            is_inference=self._is_inference,
        )  # fmt: skip
        self.draws = Draws(settings.seed)
        self.issuer = Issuer(executor, HostSpans(), Waits(lock, setup.while_waiting))
        self.stepper = Stepper(mode, self.issuer, self.draws, program)
        self.redo = Redo(
            lock, self.policy, self.issuer,
            flush=lambda reason: self.streams.flush(reason, everywhere=True),
            note_obstacle=self.stepper.note_obstacle,
        )  # fmt: skip
        sizes = settings.bulk_in_force
        self.streams = ThreadStreams(lock, sizes, self.policy, self.issuer, self.stepper, self.redo)
        self.here = self.streams.here
        self.inputs = Inputs(self.here, self.issuer, self.stepper)
        self.reads = Reads(
            lock, self.streams, self.issuer, self.stepper, self.redo, setup.note_error
        )
        self.report = Report(device, self.issuer, self.stepper)
        self.tracer = Tracer(self.policy, self.issuer, self.streams, self.stepper, self.reads)

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        if self._exits is not None:
            raise SessionError("a session can be entered once; make a new kit.Session(...)")
        self._exits, self._thread = contextlib.ExitStack(), threading.get_ident()
        with contextlib.ExitStack() as undo:  # if a front end fails to open, nothing stays behind
            watch_forks(self)
            undo.push(INTERRUPTS.watch(self))
            self.issuer.executor.start(self)
            self.streams.join()
            undo.callback(self.stepper.drop, for_good=True)
            undo.callback(self.issuer.executor.close)
            undo.callback(_CURRENT.set, _CURRENT.get())
            _CURRENT.set(ref(self))  # a session that its program has dropped is freed
            for frontend in self.frontends:
                undo.callback(frontend.close)  # first: also what is open in part is closed
                frontend.open(self)
            undo.push(watch_ends(self))
            undo.callback(setattr, self, "is_open", False)
            self.is_open = True
            self._exits = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._leave()
        except MemoryError:  # before it was closed
            if self.is_open:
                self._leave()
            raise
        INTERRUPTS.check()

    def _leave(self) -> None:
        if self._thread != threading.get_ident() or current_session() is not self:
            how = "in the thread that opened them, the innermost first"
            raise SessionError(f"sessions close {how}; use `with kit.Session():` blocks")
        with self._exits or contextlib.ExitStack() as exits:  # closed, whatever is raised here
            exits.callback(setattr, self, "is_open", False)
            with suppressed(Exception):  # an error that no read has asked for
                self.wait_all()

    def leave_behind(self) -> None:
        """This is a forked child, where none of the session's threads is: every use raises."""
        self.is_open, self._exits = False, contextlib.ExitStack()  # the parent closes what it has
        self.streams.leave_behind()
        for frontend in self.frontends:
            frontend.close()

    def drop_pending(self) -> None:
        """Run nothing that has not begun, unless a trace shows it: an interrupted program ends."""
        engine = self.issuer.executor.engine
        if self.is_open and not self.issuer.executor.is_tracing:
            engine.cancel_pending()
            engine.is_cancelling = True
            try:
                self.flush("sync", everywhere=True)
            finally:
                engine.is_cancelling = False

    def at_end(self, close: Callable[[], None]) -> None:
        """Call this when the session closes, before its worker ends."""
        if self._exits is not None:
            self._exits.callback(close)

    def frontend(self, kind: type[Any]) -> Any:
        """The session's front end of this class; opened now if there was none."""
        for known in self.frontends:
            if isinstance(known, kind):
                return known
        made = kind()
        made.open(self)
        self.at_end(made.close)
        self.frontends = (*self.frontends, made)
        return made

    # -- recording -------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """The op stream of the thread that asks."""
        return self.streams.current

    def flush(self, reason: str, *, everywhere: bool = False) -> None:
        """Cut what this thread has recorded, or every thread, and issue it."""
        self.streams.flush(reason, everywhere=everywhere)

    @property
    def bulk_sizes(self) -> BulkSizes:
        """The sizes in force in this thread."""
        return self.stream.sizes

    def set_bulk_size(self, size: int | tuple[int, int]) -> int | tuple[int, int]:
        """Ops a segment from now on in this thread, or (forward, backward); gives the ones before.

        Raises:
            SettingsError: it is not a whole number of at least 1.
        """
        return self._set_sizes(BulkSizes.scope(size)).pair

    @contextlib.contextmanager
    def bulk_scope(self, size: int | tuple[int, int]) -> Iterator[None]:
        """Inside the block this thread's segments hold `size` ops; its end issues what is left."""
        before = self._set_sizes(BulkSizes.scope(size))
        try:
            yield
        finally:
            if self.is_open:
                try:
                    self.flush("scope")
                finally:
                    self._set_sizes(before)

    def _set_sizes(self, sizes: BulkSizes) -> BulkSizes:
        self.streams.check()
        if not self.is_open:
            raise SessionError("the session is closed; a bulk size belongs inside its `with` block")
        with self.lock:
            return self.stream.set_sizes(sizes)

    def _is_inference(self) -> bool:
        """Is this a network's forward pass without gradients? The front ends know."""
        return any(frontend.is_inference() for frontend in self.frontends)

    def is_in_backward(self) -> bool:
        """True while torch's autograd runs in this thread."""
        return any(frontend.is_in_backward() for frontend in self.frontends)

    # -- steps -----------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """How many steps have ended."""
        return self.issuer.step

    def mark_step(self) -> None:
        """End the step: cut and issue. Waits only if the device is more than a step behind."""
        self.streams.check()
        with self.lock:
            self.flush("mark_step")
            self.issuer.end_step()
            for frontend in self.frontends:
                frontend.mark_step()
        try:
            self.issuer.wait_for_steps()
            if self.redo.is_on:
                self.redo.close(self.step - 2)  # of the step that has just been waited for
        finally:
            self.issuer.spans.leave()
            self.stream.phase = ""  # the next op says which
        self.reads.raise_found()
        INTERRUPTS.check()

    def run_step(self, step: Callable[[], Any]) -> Any:
        """Run one step of the program as `settings.step_mode` says, end it, and give its result.

        A replayed step does not run the function: what it does besides computing is not done, and
        the tensors that it returns are new ones, outside of autograd. What is seen between two
        steps, so that the next one is recorded, docs/recompiles.md says; all else 32 steps later.
        """
        return self.stepper.run(step)

    def fetch(self, load: Callable[[], Any]) -> Any:
        """Call a loader for its next batch: a replayed step calls it again by itself."""
        return self.stepper.fetch(load)

    # -- waiting ---------------------------------------------------------------------------------

    @property
    def syncs(self) -> list[SyncPoint]:
        """Where the program has waited for the device; the latest few thousand."""
        return self.reads.syncs

    def read(self, value: Value, *, cause: str, frame: Frame) -> Any:
        """The numbers of a value, as a numpy array of its own: a sync point.

        Raises:
            ExecutionError, LoweringError: an op that it depends on failed.
        """
        self._check_open()
        return self.reads.read(value, cause=cause, frame=frame)

    def wait_to_read(self, tensor: Any) -> None:
        """Block until the tensor's numbers are there; raises what its computation raised."""
        self._check_open()
        with self.lock:  # a view is recorded
            value = tensor if isinstance(tensor, Value) else tensor.kit_value()
        self.reads.wait_to_read(value)

    def wait_all(self) -> None:
        """Block until everything that was recorded has run.

        Raises:
            ExecutionError, LoweringError: the first failure since then that no read has raised.
        """
        self.reads.wait_all()

    def _check_open(self) -> None:
        self.streams.check()
        if not self.is_open:
            raise SessionError(
                "this tensor belongs to a kit session that has been closed. Read it inside the "
                "`with kit.Session(...)` block, or keep a copy with .cpu() before the block ends"
            )

    # -- looking ---------------------------------------------------------------------------------

    @property
    def compiles(self) -> tuple[Compile, ...]:
        """The compiles so far, each with its reason; the latest 10,000."""
        return self.report.log.notes

    def compile_diff(self, i: int = -1) -> GraphDiff:
        """How the graph changed before compile `i` of `compiles`; the last one unless told."""
        return self.report.log.diff(i)

    @property
    def unlowered(self) -> Counter[str]:
        """ "aten.x at file:line" -> how often that op ran on the host."""
        return self.report.unlowered

    @property
    def unlowered_ns(self) -> Counter[str]:
        """The same op -> how long it ran there, nanoseconds."""
        return self.report.unlowered_ns

    def metrics(self) -> dict[str, float]:
        """Counters since the session was opened; times in nanoseconds."""
        return self.report.metrics()

    def metrics_report(self) -> str:
        """The counters as text, with the meaning that they have in pytorch/xla."""
        return self.report.metrics_report()

    def explain(self) -> str:
        """What was recorded, how it was cut, and why each program was compiled, in words."""
        return self.report.explain(self.bulk_sizes)

    def overheads(self) -> dict[str, float]:
        """Nanoseconds of one launch and one wait here and now, by their keys in a run's metrics."""
        self.wait_all()
        launch, wait = self.issuer.executor.overheads()
        return {"overhead.launch_ns": float(launch), "overhead.sync_ns": float(wait)}

    def span(
        self, kind: str, name: str, *, at_least_ns: int = 0
    ) -> contextlib.AbstractContextManager[None]:
        """Time something that the host does, such as preparing input, for the timeline."""
        return self.tracer.span(kind, name, at_least_ns=at_least_ns)

    def trace(
        self, steps: Callable[[Callable[[], None]], None], *, lead_in: int = 0
    ) -> TracedSteps:
        """Run steps under the profiler; give their timeline, and the graph and cuts of the first.

        `steps(end_step)` runs the steps and calls `end_step()` after each. The first `lead_in` of
        them only fill the pipeline: the timeline begins after them and ends with the last step.
        """
        return self.tracer.trace(steps, lead_in=lead_in)

    def plan(self, step: Callable[[], Any], *, steps: int = 3) -> OpStream:
        """Record steps without running them; gives the ops of the last one, to be cut by `plan`.

        What a step reads is computed all the same, and a note says where. All else runs only if the
        program goes on in this session.
        """
        return self.tracer.plan(step, self.mark_step, steps=steps)
