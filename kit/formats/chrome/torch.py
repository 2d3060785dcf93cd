"""What torch.profiler wrote, as a timeline; `kit.measure.native.events` reads a live profile.

Nesting is by time within a thread, as torch itself finds it. docs/design/trace_events.md says what
becomes of each event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kit.formats.chrome.arguments import parts
from kit.formats.chrome.callers import find_callers, launch_numbers, memory_of
from kit.formats.chrome.collectives import Message, named
from kit.formats.chrome.columns import Columns, Rows
from kit.formats.chrome.events import Events
from kit.formats.chrome.frames import Frames
from kit.formats.chrome.nesting import nest, regions
from kit.formats.chrome.roles import LAUNCHES, OPS, RUNTIME, WORK, Role
from kit.formats.chrome.steps import Annotation, Step, find_steps, is_asked
from kit.formats.chrome.syncs import (
    Copies,
    asleep,
    computed,
    frees,
    joined,
    of_steps,
    of_threads,
    wait_spans,
    without_last,
)
from kit.formats.chrome.twins import MERGED, are_merged
from kit.text import format_count
from kit.trace.communication import Collective, Copy, cause_of, copy_of, operation_of
from kit.trace.devices import CPU_SENDS, TORCH_CPU, beside, is_collective, is_compiled, region_name
from kit.trace.host import busy_callers, is_update, phases
from kit.trace.imported import (
    OF_FUNCTIONS,
    TOGETHER,
    Imported,
    MeasuredMemory,
    Member,
    Spans,
    own_name,
)
from kit.trace.intervals import Ints
from kit.trace.syncs import UNMARKED
from kit.trace.timeline import SyncPoint, Timeline

__all__ = ["read_torch"]

_MARK = re.compile(r"^(ProfilerStep#|kit step )")
_ON_CPU = (
    "no GPU was traced: kernels are torch's ops, and reading a value waits for nothing if it is on "
    "the CPU. On a Mac's GPU (mps), which torch's profiler does not trace, ops only launch"
)
_NO_OPS = "no kernel and no op of torch is in the file: what was computed, and where, is not known"
_NO_CALLS = (
    "no call that launches a kernel, or waits for one, is in the file: what the host did, and "
    "whether it waited, is not known"
)
_NOT_JOINED = (
    "no kernel has the number (correlation) of a call that launched it: which op, module and line "
    "it is of, and how long it waited for the device, is not known"
)


def read_torch(events: Events, form: str) -> Imported:
    """Steps, phases, kernels, launches and waits of a trace that torch.profiler wrote.

    And its collectives, measured memory, and what launched its kernels; rank and clock are not
    known here.
    """
    trace = _Trace(events, Columns.of(events))
    timeline = trace.timeline()
    return Imported(
        timeline,
        form,
        {TOGETHER: "several"} if MERGED in timeline.notes else {},
        member=trace.member(),
        memory=trace.memory(),
        callers=trace.called.callers,
    )


class _Trace:
    def __init__(self, events: Events, columns: Columns) -> None:
        self.events, self.columns, self.of = events, columns, columns.where
        self.names = list(events.names)
        self._numbers = {name: i for i, name in enumerate(self.names)}
        self.notes: list[str] = []
        self.frames = Frames(events.names)
        self.kernels = self.of(Role.KERNEL)
        has_kernels = bool((columns.role == Role.KERNEL).any())  # also such as have no usable time
        is_called = len(self.of(*LAUNCHES)) > 0
        self.is_gpu = has_kernels or is_called or bool(events.other_devices)
        self.has_host = len(self.kernels) < np.count_nonzero(columns.usable)
        self.nesting = nest(columns, self.frames, self.is_gpu)
        self.launched = launch_numbers(columns.link, self.of(*LAUNCHES), self.kernels)
        self.tops = self._top_ops()
        work = self.kernels if self.is_gpu else self.tops
        self.called = find_callers(columns, self.nesting, self.frames, events.arguments, work)
        self.notes += self.called.notes
        self.main = self._main_thread()
        self.steps = self._find_steps(events.step_by)
        self.step_times = np.array([s[1:] for s in self.steps], np.int64).reshape(-1, 2)

    def timeline(self) -> Timeline:
        lanes = self._lanes()
        kernels = list(self._kernels(lanes))
        main = self.main if self.has_host else len(lanes)
        lanes += ["host/main"] * (not self.has_host)
        phases = [(self.name(name), begin, end) for name, begin, end in self._phases()]
        names, begin, end = np.array(phases, np.int64).reshape(-1, 3).T
        recorded = Spans(main, "record", names.astype(np.int32), begin, end)
        parts = [self._step_spans(main), *self._host_work(), recorded]
        syncs = list(self._syncs())
        parts += [wait_spans(syncs, self.name), *kernels]
        self._say(has_work=any(len(part.start_ns) for part in kernels))
        return Spans.timeline(parts, lanes, self.names, [s for s, _ in syncs], self.notes)

    def member(self) -> Member:
        """The collectives, and the time on the file's clock where the timeline is 0."""
        columns, link = self.columns, self.columns.link
        calls, messages = self.of(*LAUNCHES), dict(self.events.messages.items())
        calls = calls[np.isin(link[calls], link[[*messages]])] if messages else calls[:0]
        called = dict(zip(link[calls].tolist(), columns.start[calls].tolist(), strict=True))
        found = [
            Collective(
                self._operation(i, message).channel,
                int(columns.start[i]),
                int(columns.stop[i]),
                message.size_bytes,
                message.number,
                called.get(int(link[i]), -1) if link[i] > 0 else -1,
                message.is_even,
            )
            for i, message in messages.items()
            if columns.usable[i] and self.is_gpu == (columns.role[i] == Role.KERNEL)
        ]
        zero_ns, copies = round(self._zero_us * 1e3), tuple(self._copies())
        return Member(zero_ns=zero_ns, collectives=tuple(found), copies=copies)

    def memory(self) -> tuple[MeasuredMemory, ...]:
        """What the file says of each device's allocator."""
        allocations, line = self.events.allocations, lambda *at: self.place(*at)[0]
        return tuple(memory_of(self.columns, self.nesting, allocations, self._zero_us, line))

    @property
    def _zero_us(self) -> float:
        """Where the timeline is 0, on the file's clock."""
        starts = self.events.column("start_us")[self.columns.usable]
        return float(starts.min()) if len(starts) else 0.0

    def _operation(self, event: int, message: Message) -> Message:
        """What sends and receives are for, as the annotation around their launch says."""
        if not self.is_gpu or message.channel.operation not in ("", "send_recv"):
            return message
        caller = int(self.called.numbers[np.searchsorted(self.kernels, event)])
        around = self.called.callers[caller].annotation if caller >= 0 else ()
        said = next((text for text in reversed(around) if text.startswith("nccl:")), "")
        return named(message, operation_of(said)) if operation_of(said) else message

    def _copies(self) -> Iterator[Copy]:
        columns = self.columns
        for i, size in self.events.messages.copied.items():
            what = copy_of(self.names[columns.name[i]])
            if columns.usable[i] and what:
                yield Copy(what, int(columns.start[i]), int(columns.stop[i]), size)

    @cached_property
    def freed(self) -> tuple[Rows, Ints]:
        """The calls that wait for a device to give memory back, and when each has waited."""
        calls, launches = self.of(Role.FREE), self.of(*LAUNCHES)
        lanes = self.events.lanes
        return frees(self.columns, calls, launches, self.kernels, lanes, self.launched)

    def name(self, name: str) -> int:
        """The number of a name that the file may lack."""
        if self._numbers.setdefault(name, len(self.names)) == len(self.names):
            self.names.append(name)
        return self._numbers[name]

    def _main_thread(self) -> int:
        """The thread with most of the first of `_of_main` that there are."""
        for found, weights in _of_main(self):
            if len(found):
                return int(np.bincount(self.columns.thread[found], weights).argmax())
        return 0

    def _lanes(self) -> list[str]:
        """A name for each thread and stream, and one for torch's CPU kernels."""
        lanes, taken = [], {"host/main": 1}
        for key, number in self.events.lanes.numbers.items():
            if isinstance(key, str):
                lanes.append(key)
                continue
            if number == self.main:
                lanes.append("host/main")
                continue
            process, thread = (str(x)[:40] for x in key)
            lane = f"host/{self.events.lanes.names.get(key) or f'thread {thread}'}"
            if lane in taken:
                lane = f"{lane} ({process}, {thread})"
            lanes.append(own_name(lane, taken))
        return [*lanes, TORCH_CPU, CPU_SENDS]

    def _spans(self, chosen: Rows, kind: str, callers: Ints | int = -1) -> Spans:
        c = self.columns
        where = c.thread[chosen], kind, c.name[chosen], c.start[chosen], c.stop[chosen]
        return Spans(*where, self.launched[chosen], callers)

    def _after_waits(self, calls: Rows) -> Spans:
        """What calls of the runtime do beside their waits, which are sync points."""
        start, (giving, done) = self.columns.start.copy(), self.freed
        start[giving] = done
        calls = calls[start[calls] < self.columns.stop[calls]]
        return replace(self._spans(calls, "elsewhere"), start_ns=start[calls])

    def _find_steps(self, step_by: str) -> tuple[Step, ...]:
        """In order of time. "ProfilerStep#3" is called "step 3", as in a run of kit's own."""
        role, thread = self.columns.role, self.columns.thread
        marked = self.of(Role.STEP)
        marked = marked[thread[marked] == self.main]
        if len(marked) and not step_by:
            steps = [
                (_MARK.sub("step ", one.name), one.start_ns, one.stop_ns)
                for one in self._annotations(marked)
            ]
            return tuple(sorted(steps, key=lambda step: step[1]))
        chosen = self.of(Role.ANNOTATION, Role.UPDATE, Role.STEP, Role.PYTHON)
        chosen = chosen[thread[chosen] == self.main]
        if not step_by:  # no optimizer's step in a backward pass: it is that of one parameter
            is_part = (role == Role.UPDATE) & (self.nesting.engine >= 0)
            chosen = chosen[~(is_part | (role == Role.PYTHON))[chosen]]
        is_beside = self.columns.has(*RUNTIME) & (thread != self.main)
        is_beside |= self.columns.has(Role.OTHER, Role.CALL)
        is_beside[_code(self)] = False
        known = self.columns.usable & ~is_beside
        starts, stops = self.columns.start[known], self.columns.stop[known]
        window = (int(starts.min()), int(stops.max())) if len(starts) else (0, 0)
        backward = self.columns.start[self.of(Role.ENGINE)]
        found = find_steps(self._annotations(chosen), window, step_by, backward)
        self.notes.append(found.note)
        return found.steps

    def _annotations(self, chosen: Rows) -> Iterator[Annotation]:
        names, times = self.columns.name[chosen].tolist(), self.columns.times(chosen).tolist()
        for name, (start, stop) in zip(names, times, strict=True):
            yield Annotation(self.names[name], start, stop)

    def _step_spans(self, main: int) -> Spans:
        names = np.array([self.name(text) for text, _, _ in self.steps], np.int32)
        return Spans(main, "step", names, self.step_times[:, 0], self.step_times[:, 1])

    def _host_work(self) -> Iterator[Spans]:
        loads = self.of(Role.INPUT)
        yield self._spans(self._of_steps(loads, "loader call"), "input")
        yield self._spans(self.of(*LAUNCHES), "dispatch")
        yield self._spans(self.of(Role.COMPILE), "compile")
        yield self._after_waits(self._of_steps(self.of(*RUNTIME), "runtime call"))
        calls, frames = self.of(Role.PYTHON), self.nesting.frame
        calls, others = (x[self.columns.thread[x] == self.main] for x in (calls, self.of(*WORK)))
        yield asleep(self.columns, calls, lambda i: self.place(int(frames[i]), -1)[0], self.name)
        yield computed(self.columns, calls, others, frames, self.frames, self.name)

    def _of_steps(self, chosen: Rows, said: str) -> Rows:
        """Those on the threads of the steps; a note counts the others, of which one is `said`."""
        return of_threads(self.columns, chosen, self._host_threads, said, self.notes)

    def _kernels(self, lanes: Sequence[str]) -> Iterator[Spans]:
        """What a GPU ran; without one the ops that no other op called, and collectives."""
        if self.is_gpu:
            sends = self.events.sends[self.columns.name[self.kernels]]
            yield self._spans(self.kernels[~sends], "kernel", self.called.numbers[~sends])
            yield self._spans(self.kernels[sends], "communication", self.called.numbers[sends])
            return
        for lane, kind, chosen, callers in (
            (len(lanes) - 2, "kernel", self.tops, self.called.numbers),
            (len(lanes) - 1, "communication", self.of(Role.COLLECTIVE), -1),
        ):
            spans = self._spans(chosen, kind)
            yield Spans(lane, kind, spans.name, spans.start_ns, spans.stop_ns, node=callers)
        yield _beside_ops(self, len(lanes) - 2)

    def _top_ops(self) -> Rows:
        ops = self.of(Role.ATEN, Role.COPY, Role.READ)
        ops = ops[self.nesting.op[ops] < 0]
        return ops if self.is_gpu else _outside(self, ops)

    def _phases(self) -> Iterator[tuple[str, int, int]]:
        """None where what the program did is not known: without work of torch's host, or calls."""
        columns, engine = self.columns, self.of(Role.ENGINE)
        tops = np.append(self.tops, _code(self))
        updates = columns.named(self.of(Role.UPDATE), is_update)
        has_work = len(tops) or len(engine) or len(updates)
        calls = self.of(*LAUNCHES, Role.WAIT)  # of a device's runtime
        if not has_work or (self.is_gpu and not len(calls)):
            return
        if len(tops):
            tops = tops[self.nesting.engine[tops] < 0]
            workers = np.setdiff1d(columns.thread[engine], [self.main])  # the engine's own threads
            tops = tops[~np.isin(columns.thread[tops], workers)]
        ends = columns.times(engine), columns.start[tops], columns.times(updates)
        yield from phases(self.step_times, *ends)

    def _syncs(self) -> Iterator[tuple[SyncPoint, int]]:
        """Each wait, and its thread: calls of CUDA that wait, or reads if no device was traced."""
        columns, stop = self.columns, self.columns.stop
        copies = Copies(columns, self.kernels)
        if self.is_gpu:
            waiting = copies.waiting(self.of(Role.TRANSFER))
            waits, stop = joined(columns, self.of(Role.WAIT), waiting, self.nesting.op)
            giving, done = self.freed
            waits, stop[giving] = np.append(waits, giving), done
            if self.steps and self.steps[0][0] in UNMARKED:
                waits = without_last(columns, waits, self.of(*LAUNCHES, *OPS), self.notes)
        else:
            waits = self.of(Role.READ)
            waits = waits[np.isin(waits, self.tops)]
            # the step counts of optimizers are on the CPU
            waits = waits[~columns.inside(waits, self.of(Role.UPDATE))]
        waits = of_steps(columns, self._of_steps(waits, "wait"), self.step_times, self.notes)
        ways = copies.ways(self.of(Role.TRANSFER, Role.WAIT), self.nesting.op)
        for i in waits.tolist():
            if not self.nesting.is_finish[i]:
                at, wait = int(columns.start[i]), int(stop[i] - columns.start[i])
                op = i if columns.role[i] == Role.READ else self.nesting.op[i]
                site, via = self.place(self.nesting.frame[i], op)
                cause = "synchronize"
                if columns.role[i] == Role.FREE:
                    cause = "free"
                elif op >= 0:
                    cause = cause_of(self.names[columns.name[op]], ways.get(op, ""))
                yield SyncPoint(at, wait, cause, site, via), int(columns.thread[i])

    @cached_property
    def _host_threads(self) -> list[int]:
        """That of the steps, and those that it waits for: of autograd's, or with many launches."""
        callers = busy_callers(self.columns.thread[self.of(*LAUNCHES)])
        engine = np.unique(self.columns.thread[self.of(Role.ENGINE)])
        return [self.main, *callers, *engine.tolist()]

    def place(self, frame: int, op: int) -> tuple[str, str]:
        """The user's function of a frame and those around, and the library's that it called.

        Without any frame, what the stack says that is written with the op.
        """
        if frame < 0 <= op:
            line = int(parts(self.columns.node[op : op + 1])[1][0])
            return (self.frames.place(line)[0] if line >= 0 else ""), ""
        return self.frames.around(frame, self.columns.name, self.nesting.frame)

    def _say(self, *, has_work: bool) -> None:
        """What the reader must know."""
        calls = self.of(*LAUNCHES, Role.WAIT)
        if not self.has_host:
            sends = self.events.sends[self.columns.name[self.kernels]]
            idle = "computed nothing while no collective ran" if sends.any() else "was idle"
            self.notes.append(
                "the file says nothing of the host: what launched a kernel, where the host "
                f"waited, and why the device {idle} are not known"
            )
        elif len(self.kernels) and not len(calls):
            # those of other devices are there, and are not read: another note says so
            self.notes += [] if self.events.other_devices else [_NO_CALLS]
        elif len(self.kernels) and not (self.launched[self.kernels] < -1).any():
            self.notes.append(_NOT_JOINED)
        if self.is_gpu and not len(self.kernels) and not self.events.other_devices:
            self.notes.append(
                "no kernel has a time: what the GPU did is not known"
                if (self.columns.role == Role.KERNEL).any()
                else "the profiler saw no GPU kernel: it may lack the right to"
            )
        if not self.is_gpu:
            self.notes.append(_ON_CPU if has_work else _NO_OPS)
        if len(self.of(Role.PYTHON)):
            self.notes.append(OF_FUNCTIONS)
        if self.nesting.crossing:
            self.notes.append(
                f"{format_count(self.nesting.crossing, 'event')} with an end after that of what is "
                "around: what called them is uncertain"
            )
        work = self.of(*LAUNCHES) if self.is_gpu else self.tops
        number = self.columns.link[work] * self.is_gpu  # of an op it is no call's
        owner = self.events.lanes.owners()[self.columns.thread[work]]
        if are_merged(owner, number, (self.columns.start[work], self.columns.stop[work])):
            self.notes.append(MERGED)


def _of_main(trace: _Trace) -> Iterator[tuple[Rows, Ints | None]]:
    """What tells the thread of the steps, the surest first, and how much each event counts: steps
    that are asked for; steps; the optimizer's; ops, first such as no backward pass calls, and
    annotations, first of threads with a good part of the calls, by their time; calls.
    """
    columns, of, step_by = trace.columns, trace.of, trace.events.step_by
    asked = of(Role.ANNOTATION, Role.UPDATE, Role.STEP, Role.PYTHON)
    yield columns.named(asked, lambda text: is_asked(text, step_by)), None
    yield of(Role.STEP), None
    updates = columns.named(of(Role.UPDATE), is_update)
    calls = of(*LAUNCHES, Role.WAIT)
    callers = busy_callers(columns.thread[calls])
    notes = columns.outermost(of(Role.ANNOTATION, Role.UPDATE))
    tops = np.append(trace.tops, _code(trace))
    own = [x[trace.nesting.engine[x] < 0] for x in (updates, tops)]
    for found in (*own, tops, notes):
        for chosen in (found[np.isin(columns.thread[found], callers)], found):
            yield chosen, columns.stop[chosen] - columns.start[chosen]
    yield calls, None


def _outside(trace: _Trace, chosen: Rows) -> Rows:
    """Those that do not load a batch."""
    return chosen[~trace.columns.inside(chosen, trace.of(Role.INPUT))]


def _code(trace: _Trace) -> Rows:
    """What is around code of torch.compile's: an op, or, of older versions, an annotation."""
    return trace.columns.named(trace.of(Role.CALL, Role.ANNOTATION), is_compiled)


def _beside_ops(trace: _Trace, lane: int) -> Spans:
    columns, calls = trace.columns, trace.of(Role.CALL)
    found = _outside(trace, regions(columns, calls, _code(trace), trace.nesting.op))
    work = np.append(trace.tops, columns.named(calls, is_collective))
    pieces, of = beside(columns.times(found), columns.times(work))
    names = [trace.name(region_name(trace.names[i])) for i in columns.name[found].tolist()]
    return Spans(lane, "kernel", np.array(names, np.int32)[of], pieces[:, 0], pieces[:, 1])
