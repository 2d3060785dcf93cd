"""The `Session`: records ops, cuts them into segments, runs them, and remembers when.

It is the only mutable object of the runtime. A front end calls `record` for each op and `read`
when the program asks for numbers; users call `mark_step`, `wait_all`, `wait_to_read`, `metrics`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import ref

from kit.errors import SessionError
from kit.ir import Aval
from kit.runs.bulk_sizes import BulkSizes
from kit.runs.settings import Settings
from kit.runtime.profiling.devices import pick_device
from kit.runtime.profiling.host_spans import Recorder
from kit.runtime.recording.bulk import Cell, Frame, Op, Site, Task, Value
from kit.runtime.recording.stream import Here, Stream
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.ends import watch_ends
from kit.runtime.session.executor import ExecutableCache, Executor
from kit.runtime.session.redo import Redo
from kit.runtime.session.report import Inspection
from kit.runtime.session.waits import Waiting
from kit.runtime.steps.recording import Draw
from kit.runtime.steps.stepper import Stepper
from kit.trace import SyncPoint

__all__ = ["Session", "current_session"]

_CURRENT: ContextVar[Session | None] = ContextVar("kit_session", default=None)
MAX_PENDING_BYTES = 8 << 30  # of results that a growing bulk holds; then it is cut
MAX_AHEAD = 256  # segments that may wait to run: memory, and Python's garbage collector, notice
RUN_AHEAD = 1  # steps that may be recorded before the oldest has run


def current_session() -> Session | None:
    """The session of the innermost open `with kit.Session(...)`, if any."""
    return _CURRENT.get()


class Session(Inspection, Waiting):
    """A place where ops are recorded and run: open it with `with`.

    Args:
        settings: bulk sizes, segment mode and device are read; see `kit.Settings`.
        rules: lowering rules; add your own with `DEFAULT_RULES | Rules({...})`.
        strict: an op without a rule is an error, not a computation on the host.
        frontends: objects whose `open(session)` and `close()` are called with the session's own.
        cache: executables to start with and to add to; a session has its own if none is given.

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
    ) -> None:
        self.settings = settings or Settings()
        self.rules = rules
        self.strict = strict
        self.device = pick_device(self.settings.device)
        self.syncs: list[SyncPoint] = []
        self.sync_places: dict[Site, None] = {}  # the files and lines of these
        self.unlowered: Counter[str] = Counter()  # "aten.x at file:line" -> times
        self.unlowered_ns: Counter[str] = Counter()
        self.skeletons: dict[str, str] = {}  # the beginning of a rule for each of these ops
        self.is_open = False
        self.is_planning = False  # see `plan`
        self.step = 0
        self.max_pending_bytes = MAX_PENDING_BYTES
        self.seed = self.settings.seed
        self.random_calls = 0
        self.lock = threading.RLock()  # held while an op is recorded: several threads may
        self._cache = ExecutableCache() if cache is None else cache
        launch, step_mode = self.settings.segment_mode == "launch", self.settings.step_mode
        self._executor = Executor(self.device, rules, self._cache, launch=launch)
        self._frontends = tuple(frontends)
        # Not op by op, not for a guess (both are read again); on CPU it made BERT 1.5x as slow.
        self.donates = self.device.platform != "cpu" and not launch and step_mode != "speculate"
        self.is_lazy = self.settings.mode == "lazy"
        self.here = Here()
        self._streams: list[Stream] = []
        self._last: Task | None = None
        self._segments = 0
        self._position = 0  # of the next segment in its step
        self._markers: list[Task] = []
        self._ahead: deque[Task] = deque(maxlen=MAX_AHEAD + 1)  # the latest segments
        self._counts: Counter[str] = Counter()
        self._recorder = Recorder()
        self.stepper = Stepper(self, step_mode)
        self.redo = Redo(self)
        self._exits: contextlib.ExitStack | None = None
        self._thread = 0

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Session:
        if self._exits is not None:
            raise SessionError("a session can be entered once; make a new kit.Session(...)")
        self._exits = contextlib.ExitStack()
        self._thread = threading.get_ident()
        with contextlib.ExitStack() as undo:  # if a front end fails to open, nothing stays behind
            self._executor.start()
            self.join()
            undo.callback(self._executor.close)
            token = _CURRENT.set(self)
            undo.callback(_CURRENT.reset, token)
            for frontend in self._frontends:
                frontend.open(self)
                undo.callback(frontend.close)
            undo.push(watch_ends(self))
            self._exits = undo.pop_all()
        self.is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread != threading.get_ident() or current_session() is not self:
            raise SessionError(
                "sessions close in the thread that opened them, the innermost first; "
                "use `with kit.Session():` blocks"
            )
        try:
            with contextlib.suppress(Exception):  # a poisoned value that nobody asked for
                self.wait_all()
        finally:
            self.is_open = False
            if self._exits is not None:
                self._exits.close()

    # -- recording -------------------------------------------------------------------------------

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
        return self._cache.intern(
            name, template, avals, outputs, scalars, is_view=is_view, writes=writes
        )

    @property
    def bulk_sizes(self) -> BulkSizes:
        """The sizes in force in this thread."""
        return self.stream.sizes

    @property
    def stream(self) -> Stream:
        """The op stream of the thread that asks."""
        return self.here.stream or self.join()

    def join(self) -> Stream:
        """This thread records from now on too: its bulk and its bulk sizes are its own."""
        with self.lock:
            made = Stream(self, self.settings.bulk_in_force, is_main=not self._streams)
            self._streams = [
                s for s in self._streams if s.bulk is not None or s.is_main or s.thread.is_alive()
            ]
            self._streams.append(made)
            self.here.stream = made
        return made

    def set_bulk_size(self, size: int | tuple[int, int]) -> int | tuple[int, int]:
        """Ops a segment from now on, in this thread; gives the size of before.

        Args:
            size: for everything, or (forward, backward); inference takes the forward one.

        Raises:
            SettingsError: it is not a whole number of at least 1.
        """
        before = self._set_sizes(BulkSizes.scope(size))
        return before.pair

    @contextlib.contextmanager
    def bulk_scope(self, size: int | tuple[int, int]) -> Iterator[None]:
        """Inside the block this thread's segments hold `size` ops; its end issues what is left."""
        before = self._set_sizes(BulkSizes.scope(size))
        try:
            yield
        finally:
            if self.is_open:
                self.flush("scope")
                self._set_sizes(before)

    def _set_sizes(self, sizes: BulkSizes) -> BulkSizes:
        if not self.is_open:
            raise SessionError("the session is closed; a bulk size belongs inside its `with` block")
        with self.lock:
            return self.stream.set_sizes(sizes)

    def end_of_cell(self) -> None:
        """A notebook's cell has ended: what it has recorded is issued, not kept for the next."""
        if self.is_open:
            self.flush("end of cell")

    def begin(self, phase: str) -> None:
        """A call of the program begins; see `Stream.begin`."""
        self.stream.begin(phase)

    def record(
        self, op: Op, inputs: Sequence[Value], scalars: Sequence[float], frame: Frame
    ) -> list[Value]:
        """Append one op to the stream; its outputs are returned as pending values."""
        return self.stream.record(op, inputs, scalars, frame)

    def is_inference(self) -> bool:
        """Is this a network's forward pass without gradients? The front ends know."""
        return any(frontend.is_inference() for frontend in self._frontends)

    def note_phase(self, phase: str) -> None:
        """The main thread has come to this phase."""
        if not self.stepper.is_fetching:  # what a loader copies for a replay is no recording
            self._recorder.enter(phase)

    def constant(self, array: Any, kind: str = "input") -> Value:
        """A value from the host: the array is copied to the device and must not change after."""
        start = time.perf_counter_ns()
        value = Value(Aval(tuple(array.shape), str(array.dtype)))
        value.cell = Cell(None, kind=kind)
        if (cells := self.here.cells) is not None:
            cells.append(value.cell)
        else:
            self.stepper.note_input(value.cell, array)
        value.cell.array = self._executor.put(array)
        lane = self.here.lane
        self._recorder.add("copy to device", "input", start, time.perf_counter_ns(), lane)
        return value

    @contextlib.contextmanager
    def loading(self) -> Iterator[list[Cell]]:
        """In a loader's thread: what it copies to the device is a batch for a later step."""
        here = self.here
        cells: list[Cell] = []
        here.lane, here.cells = "host/loader", cells
        try:
            yield cells
        finally:
            here.cells = None

    def reseed(self, seed: int, random_calls: int = 0) -> None:
        """Draw the random numbers of this seed, from this call of a random op on."""
        self.seed, self.random_calls = seed, random_calls

    def next_random(self) -> float:
        """A number that no other random op gets: an input, so that nothing recompiles."""
        self.random_calls += 1
        return Draw(self.random_calls)

    def flush(self, cut: str, *, everywhere: bool = False) -> None:
        """Cut what this thread has recorded, or every thread, and issue it."""
        with self.lock:
            for stream in list(self._streams) if everywhere else [self.stream]:
                self.cut(stream, cut, keep_views=stream is not self.here.stream)

    def cut(self, stream: Stream, cut: str, *, keep_views: bool = False) -> None:
        """End a stream's bulk and issue it; the caller holds the lock."""
        bulk, stream.bulk = stream.bulk, None
        if bulk is None or not bulk.ops:
            return
        while self.redo.is_on and (at := self.redo.border(bulk)):
            stream.bulk, rest = bulk.split(at)
            self.cut(stream, "check", keep_views=True)
            whole, bulk = bulk, rest()
            self.redo.note_split(whole, at, bulk)
        start = time.perf_counter_ns()
        kept = bulk.close(keep_views=keep_views)
        wanted = tuple(value.slot for value in kept)
        dead = bulk.dead_leaves() if self.donates else ()
        avals = tuple(leaf.aval for leaf in bulk.leaves)
        task = Task(-1, bulk, wanted, cut, (tuple(bulk.key), avals, wanted, dead))
        leaves: list[Cell] = [leaf.cell for leaf in bulk.leaves]  # type: ignore[misc]
        task.leaves = leaves
        task.avals, task.dead, task.scalars = avals, dead, bulk.scalars
        task.step, task.position = self.step, self._position
        self._position += 1
        holders, bulk.leaves, bulk.leaf_of = bulk.leaves, [], {}
        self._counts["record.ops"] += len(bulk.ops)
        guess = None
        if stream.is_main:
            guess = self.stepper.note_cut(task, kept, holders)
        else:
            self.stepper.note_obstacle(f"another thread, {stream.thread.name}, records ops")
        if guess is None:
            task.index = self.next_segment()
            for value in kept:
                value.cell = Cell(task, value.slot)
                task.outputs.append(ref(value.cell))
            task.plan_ns, task.times = (start, time.perf_counter_ns()), bulk.times
            self.issue(task)
        else:
            for value, output in zip(kept, guess.outputs, strict=True):
                value.cell = output()
            guess.plan_ns, guess.times = (start, time.perf_counter_ns()), bulk.times
            self._note_segment(guess)
        if self.redo.is_on:
            self.redo.note(guess or task, leaves, kept)

    # -- what the stepper asks for ---------------------------------------------------------------

    @property
    def frontends(self) -> tuple[Any, ...]:
        """The front ends that were opened with the session."""
        return self._frontends

    def at_end(self, close: Callable[[], None]) -> None:
        """Call this when the session closes, before its worker ends."""
        if self._exits is not None:
            self._exits.callback(close)

    def frontend(self, kind: type[Any]) -> Any:
        """The session's front end of this class; opened now if there was none."""
        for known in self._frontends:
            if isinstance(known, kind):
                return known
        made = kind()
        made.open(self)
        if self._exits is not None:
            self._exits.callback(made.close)
        self._frontends = (*self._frontends, made)
        return made

    def next_segment(self) -> int:
        """The number of the next segment."""
        self._segments += 1
        return self._segments - 1

    def issue(self, task: Task) -> None:
        """Count a segment and hand it to the worker."""
        self._note_segment(task)
        self.push(task)

    def push(self, task: Task) -> None:
        """Hand a task to the worker."""
        self._last = task
        self._ahead.append(task)
        self._executor.push(task)

    def throttle(self) -> None:
        """The program is about to record more: wait if it is too far ahead of the device."""
        ahead = self._ahead
        if len(ahead) > MAX_AHEAD:
            start = time.perf_counter_ns()
            with self.waiting():
                self._executor.finish(ahead[-MAX_AHEAD // 2])  # not one by one: threads switch
            for _ in range(MAX_AHEAD // 2):
                ahead.popleft()
            self._counts["ahead.count"] += 1
            self._recorder.add("segments ahead", "ahead", start, self.waited_until)

    def cancel(self, task: Task) -> None:
        """A guess was wrong: it need not run."""
        if task.operation is not None:
            self._executor.engine.cancel(task.operation)

    def _note_segment(self, task: Task) -> None:
        self._counts["segment.count"] += 1
        self._counts[f"cut.{task.cut}"] += 1
        self._recorder.cut(task)

    # -- steps -----------------------------------------------------------------------------------

    def mark_step(self) -> None:
        """End the step: cut and issue. Waits only if the device is more than a step behind."""
        with self.lock:
            self.flush("mark_step")
            self.step += 1
            self._position = 0
            for frontend in self._frontends:
                frontend.mark_step()
            if self._last is not None:
                self._markers.append(self._last)
        while len(self._markers) > RUN_AHEAD:
            start = time.perf_counter_ns()
            oldest = self._markers.pop(0)
            with self.waiting():
                self._executor.finish(oldest)
            self._recorder.add("a step ahead of the device", "ahead", start, self.waited_until)
        if self.redo.is_on:
            self.redo.close(self.step - 2)  # of the step that has just been waited for
        self._recorder.leave()
        self.stream.phase = ""  # the next op says which

    def run_step(self, step: Callable[[], Any]) -> Any:
        """Run one step of the program as `settings.step_mode` says, end it, and give its result.

        A replayed step does not run the function: what it does besides computing is not done, and
        the tensors that it returns are new ones, outside of autograd. A step is recorded again
        once the program has changed a tensor that it reads, an optimizer's numbers, which modules
        train, the seed, or a number that the function holds; others are noticed 32 steps later.
        """
        return self.stepper.run(step)

    def fetch(self, load: Callable[[], Any]) -> Any:
        """Call a loader for its next batch: a replayed step calls it again by itself."""
        return self.stepper.fetch(load)
