"""A jax profile from disk as a timeline: `*.xplane.pb`, read by the public `jax.profiler`.

    timeline = read_xplane("my_profile").timeline      a directory, or one file

The planes of CPU and GPU are read by `kit.trace.planes`, so that a file gives the same kernels as
a live run. docs/design/trace_events.md says what becomes of each event.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from kit.errors import TraceFileError, but_of_handlers
from kit.files import check_plain
from kit.formats.chrome.steps import Annotation, find_steps, is_asked
from kit.formats.chrome.syncs import LEAST_NS
from kit.formats.host_events import HostEvent, host_events, with_waits
from kit.formats.messages import Damaged, fields_of
from kit.formats.python_lines import FRAME, alike, places
from kit.text import format_count
from kit.trace import KINDS, SyncPoint
from kit.trace.communication import kind_on_device
from kit.trace.host import busy_callers
from kit.trace.imported import (
    DAY_NS,
    MAX_SPAN_NAME,
    ONLY_CALLS,
    Imported,
    Spans,
    cut_name,
    naming,
    own_name,
)
from kit.trace.planes import HOST_PLANE, TPU_PLANE, device_events, quiet_about_types
from kit.trace.syncs import READ_OR_READY, WHOLE

__all__ = ["MAX_EVENTS", "MAX_FILE_BYTES", "planes_imported", "read_xplane"]

MAX_FILE_BYTES = 1 << 30
MAX_EVENTS = 10_000_000
MAX_LINES = 100_000  # planes, and threads or streams in them; a real profile has hundreds
_PLANES, _LINES_OF_A_PLANE = 1, 3  # the fields' numbers in xplane.proto
_EMPTY_FACTS = (b"\x22\x00", b"\x2a\x00")  # of an event, of a kind of events: a length of 0
_MISSING = {
    "step": "the profile marks no steps: put each in a jax.profiler.StepTraceAnnotation; or name "
    "what repeats, or a range (step_by)",
    "kernel": "no device kernels are in the profile: it has no plane of a device, and no hlo_op on "
    "the host's",
}
_NO_LINES = (
    "at which line some waits are is not known: no function of a Python file is around them "
    "(python_tracer_level=1 records those that begin while the profiler runs)"
)
_NAMELESS = "of some waits it is not known whether a value was read there or only waited for"
_NO_PROFILE = (
    "it is no XSpace, or was cut off: write or copy it again. A Chrome trace is read by its "
    "suffix, .json or .json.gz"
)
_OF_A_TPU = (
    "of a TPU: the reader of such profiles has met one real profile, so compare a number or two "
    "with XProf before you trust it"
)
_READS = {"__float__", "__int__", "__bool__", "__index__", "__complex__", "item", "tolist"}
_COPIES = {"asarray", "array", "__array__", "device_get"}  # in which jax waits for a buffer
_MAIN = "host/main"  # the lane of the thread that steps
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+|(?:st|nd|rd|th)\b)?")  # "3", "1e-05", "3rd"
# A function of Python's in C that only waits: "$time sleep", "$<unknown> acquire".
_SLEEPS = re.compile(
    r"\$(?!\S+:\d+ )\S+ (sleep|select|poll|acquire|get|read\w*|write|flush|wait4|waitpid|accept|"
    r"connect|recv\w*|send\w*)"
)


def read_xplane(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The profile in a directory (its newest session) or in one `*.xplane.pb` file.

    Args:
        step_by: what the steps are; see `kit.formats.chrome.steps`.

    Raises:
        TraceFileError: no profile is there, or it is damaged, without events, or too large.
        OSError: it cannot be read.
    """
    file, notes = _file(Path(path))
    with naming(file, "a profile"):
        return _read(file, notes, step_by)


def _file(path: Path) -> tuple[Path, list[str]]:
    """The profile's file; of several hosts the first."""
    if not path.is_dir():
        return path, []
    found = sorted(path.rglob("*.xplane.pb"), key=lambda f: (f.parent.name, f.name))
    if not found:
        raise TraceFileError(
            f"{str(path)!r} holds no *.xplane.pb: jax.profiler.trace(directory) writes one when "
            "its block ends. Other files in a folder are opened one by one, or by kit.open_ranks"
        )
    newest = [f for f in found if f.parent == found[-1].parent]
    notes = []
    if len(newest) > 1:
        others = ", ".join(f.name[:60] for f in newest[1:4])
        notes.append(f"one host of {len(newest)} is shown; open the others by file: {others}")
    if len(found) > len(newest):
        notes.append(f"the newest session of those in the directory, {newest[0].parent.name[:60]}")
    return newest[0], notes


def _read(file: Path, notes: list[str], step_by: str) -> Imported:
    check_plain(file)
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise TraceFileError(f"it is larger than {MAX_FILE_BYTES:,} bytes: profile fewer steps")
    if not size:
        raise TraceFileError("it is empty: the program that wrote it may not have finished")
    _check_counts(file)
    try:
        with quiet_about_types():
            data = jax.profiler.ProfileData.from_file(str(file))
            return planes_imported(list(data.planes), notes, step_by)
    except UnicodeDecodeError:
        raise TraceFileError("a name in it is not UTF-8: it is damaged") from None
    except but_of_handlers(RuntimeError):  # of the parser; it prints what is wrong
        raise TraceFileError(_NO_PROFILE) from None


def planes_imported(planes: Sequence[Any], notes: list[str], step_by: str) -> Imported:
    """The profile of one host, given its planes as `jax.profiler.ProfileData` has them.

    Raises:
        TraceFileError: no step, kernel or dispatch is in them, or not what `step_by` asks for.
    """
    return _Profile(planes, notes, step_by).imported()


def _check_counts(file: Path) -> None:
    """Refuse more planes, lines, events and empty facts of them than a profile has.

    Before memory is taken for them: an empty fact has 2 bytes in the file and 66 in the parser.

    Raises:
        TraceFileError: there are more, or these are no messages.
    """
    data = file.read_bytes()
    # To look into each event would take minutes; such pairs are rare in numbers and names.
    lines, events = 0, sum(map(data.count, _EMPTY_FACTS))
    _refuse_more(lines, events)
    try:
        for kind, *plane in fields_of(data, 0, len(data)):
            lines += 1
            _refuse_more(lines, events)
            for number, *part in fields_of(data, *plane) if kind == _PLANES else ():
                if number == _LINES_OF_A_PLANE:
                    lines += 1
                    events += sum(1 for _ in islice(fields_of(data, *part), MAX_EVENTS + 1))
                else:
                    events += 1  # a name or a fact
                _refuse_more(lines, events)
    except Damaged:
        raise TraceFileError(_NO_PROFILE) from None


def _refuse_more(lines: int, events: int) -> None:
    if lines > MAX_LINES:
        raise TraceFileError(f"it holds more than {MAX_LINES:,} planes and lines: it is damaged")
    if events > MAX_EVENTS:
        raise TraceFileError(f"it holds more than {MAX_EVENTS:,} events: profile fewer steps")


class _Span(NamedTuple):
    """A span that is not yet on the timeline's clock."""

    lane: str
    name: str
    kind: str
    start_ns: int
    stop_ns: int


class _Profile:
    """Spans and sync points of one host's profile."""

    def __init__(self, planes: Sequence[Any], notes: list[str], step_by: str) -> None:
        self.notes = notes
        self._step_by = step_by
        self._annotations: list[Annotation] = []  # of the thread that steps
        self.spans: list[_Span] = []
        self.syncs: dict[_Span, SyncPoint] = {}  # of each span that is a wait
        self.environment: dict[str, str] = {"imported from": "jax profile"}
        self._step_names: frozenset[str] = frozenset()  # of those that are marked
        self._is_asked_in_vain = False  # is there nothing that `step_by` names?
        self._functions: dict[str, set[str]] = defaultdict(set)  # that begin at a line
        self._is_waiting_in_calls = False  # no event of a buffer's wait: the Python call stands in
        self._kernels(planes)
        for plane in planes:
            if plane.name == "/host:metadata":
                self._facts(dict(plane.stats))
        for plane in planes:
            if plane.name == HOST_PLANE:
                self._host(plane)
        if not self.spans:
            known = ", ".join(repr(cut_name(p.name)[:40]) for p in planes[:8]) or "none"
            raise TraceFileError(
                f"no step, kernel or dispatch is in its planes ({known}): profile at least one "
                "step, with host_tracer_level=2"
            )
        if not any(span.kind == "step" for span in self.spans):
            self._steps()
        self._leave_out()

    def imported(self) -> Imported:
        """All of it on one clock that starts with the first span."""
        lanes, lane = _numbered([s.lane for s in self.spans])
        names, name = _numbered([s.name for s in self.spans])
        kind = np.array([KINDS.index(s.kind) for s in self.spans], np.int32)
        # floats, as the profiler gives them: what is far away has no place in 64 bits
        start = np.array([s.start_ns for s in self.spans], float)
        stop = np.array([s.stop_ns for s in self.spans], float)
        middle = np.sort(start)[len(start) // 2]
        near = (np.abs(start - middle) < DAY_NS) & (stop - start < DAY_NS)
        if out := int((~near).sum()):
            self.notes.append(
                f"{format_count(out, 'event')} more than a day away from the others, or that "
                "long: left out"
            )
        zero = int(start[near].min(initial=middle))
        begin, end = ((x[near] - zero).astype(np.int64) for x in (start, stop))
        for what, missing in _MISSING.items():
            if not (kind[near] == KINDS.index(what)).any():
                self.notes.append(missing)
        syncs = [
            SyncPoint(s.at_ns - zero, s.wait_ns, s.cause, s.site, s.via)
            for s in map(self.syncs.get, self.spans)
            if s and 0 <= s.at_ns - zero < 2 * DAY_NS and s.wait_ns < DAY_NS
        ]
        if not all(s.site or s.via for s in syncs):
            self.notes.append(_NO_LINES)
        if any(s.cause == READ_OR_READY for s in syncs):
            self.notes.append(_NAMELESS)
        self.notes += alike(self._functions)
        part = Spans(lane[near], kind[near], name[near], begin, end)
        timeline = Spans.timeline([part], lanes, names, syncs, self.notes)
        return Imported(timeline, "jax profile", self.environment)

    def _kernels(self, planes: Sequence[Any]) -> None:
        for e in device_events(planes):
            lane = cut_name(e.lane)[:200]
            name = cut_name(e.name, MAX_SPAN_NAME)
            self.spans.append(_Span(lane, name, kind_on_device(name), e.start_ns, e.stop_ns))
        if any(plane.name.startswith(TPU_PLANE) for plane in planes):
            self.notes.append(_OF_A_TPU)
            self.environment["device"] = "tpu"

    def _facts(self, stats: dict[Any, Any]) -> None:
        for name in ("jax_version", "jaxlib_version"):
            if isinstance(stats.get(name), str):
                self.environment[name.removesuffix("_version")] = cut_name(stats[name])[:80]

    def _host(self, plane: Any) -> None:
        """The threads of Python: that of the steps is the main one, else that of most launches."""
        threads = []
        for line in plane.lines:
            if line.name.startswith("tf_"):
                continue  # XLA's own threads: kernels and passes of the compiler
            found = list(host_events(line))
            if any(e.step >= 0 or e.kind or self._is_asked(e) for e in found):
                threads.append((cut_name(line.name)[:80] or "thread", found))
        on_gpu = any(" stream " in s.lane for s in self.spans)
        on_several = len({s.lane.partition(" ")[0] for s in self.spans}) > 1
        all_events = [e for _, found in threads for e in found]
        if (on_gpu or on_several) and not any(
            e.kind == "wait" and e.name[:3] != "np." for e in all_events
        ):
            self._is_waiting_in_calls = True
            self.notes.append(ONLY_CALLS)
        self._is_asked_in_vain = bool(self._step_by) and not any(map(self._is_asked, all_events))
        order = sorted(
            range(len(threads)),
            key=lambda i: (
                -sum(self._is_asked(e) for e in threads[i][1]),
                -sum(e.step >= 0 for e in threads[i][1]),
                -sum(e.kind == "dispatch" for e in threads[i][1]),
                -len(threads[i][1]),
            ),
        )
        self._step_names = self._common_steps([e for i in order[:1] for e in threads[i][1]])
        taken: dict[str, int] = {}
        for i in order:
            name, events = threads[i]
            self._thread(own_name(f"host/{name}" if taken else _MAIN, taken), events)
        others = sum(e.step >= 0 for i in order[1:] for e in threads[i][1])
        if others:
            self.notes.append(
                f"the steps are those of one thread: {format_count(others, 'step')} marked in "
                "others left out"
            )

    def _common_steps(self, events: Sequence[HostEvent]) -> frozenset[str]:
        """The name of most steps of a thread, which may mark others, as to validate.

        All names where none is that of half of the steps.
        """
        sorts = Counter(_sort_of(e.name) for e in events if e.step >= 0)
        (name, most), *others = sorts.most_common() or [("", 0)]
        if 2 * most < sorts.total():
            return frozenset(sorts)
        if others and not self._step_by:
            left, shown = sorts.total() - most, others[0][0]
            called = ", ".join(repr(other) for other, _ in others[:5]) + ", ..." * (len(others) > 5)
            self.notes.append(
                f"{format_count(left, 'step')} called {called} left out; step_by={shown!r} shows "
                f"{'them' if len(others) == 1 else 'the first of these'}"
            )
        return frozenset((name,))

    def _thread(self, lane: str, events: list[HostEvent]) -> None:
        """Outermost work of each kind, and waits with what called them."""
        open_: list[tuple[HostEvent, str]] = []
        for event in with_waits(events, are_calls=self._is_waiting_in_calls):
            while open_ and open_[-1][0].stop_ns <= event.start_ns:
                open_.pop()
            is_step = event.step >= 0 and lane == _MAIN and not self._step_by
            is_step = is_step and _sort_of(event.name) in self._step_names
            kind = "step" if is_step else event.kind
            is_long = event.stop_ns - event.start_ns >= LEAST_NS
            if is_long and lane == _MAIN and _SLEEPS.fullmatch(event.name):
                if not {k for _, k in open_} - {"", "step"}:
                    site = self._places([e.name for e, _ in open_])[0] or "an unknown line"
                    self.spans.append(_Span(lane, site, "elsewhere", event.start_ns, event.stop_ns))
                continue  # nothing is in it
            is_candidate = lane == _MAIN or self._is_asked_in_vain
            may_step = is_candidate and not kind and (event.name[:1] != "$" or self._step_by)
            inside = {k for _, k in open_} if kind or may_step else set()
            if may_step and (self._is_asked(event) or not any(inside)):
                self._annotate(event)
            if kind and kind not in inside and not (kind == "input" and "dispatch" in inside):
                name = f"step {event.step}" if kind == "step" else event.name
                sync = None
                if kind == "wait":
                    sync = self._sync(event, [*(e.name for e, _ in open_), event.name])
                    name = sync.cause
                self.spans.append(_Span(lane, name, kind, event.start_ns, event.stop_ns))
                if sync is not None:
                    self.syncs[self.spans[-1]] = sync
            open_.append((event, kind))

    def _is_asked(self, event: HostEvent) -> bool:
        """Is this what the reader of the profile calls a step: an annotation, or a function?"""
        if not self._step_by:
            return False
        frame = FRAME.match(event.name)
        if not frame and _sort_of(event.name) == self._step_by:
            return True
        return is_asked(frame["function"] if frame else event.name, self._step_by)

    def _annotate(self, event: HostEvent) -> None:
        """Keep what may be a step: what XLA does itself has "::" in its names."""
        frame = FRAME.match(event.name)
        name = frame["function"] if frame else event.name
        if not frame and _sort_of(name) == self._step_by:
            name = self._step_by  # as the note calls steps with numbers within their names
        if self._is_asked(event) or not (frame or name.startswith("$") or "::" in name):
            self._annotations.append(Annotation(name, event.start_ns, event.stop_ns))

    def _steps(self) -> None:
        """What is asked for, or else what repeats: the profile marks no steps."""
        middle = sorted(s.start_ns for s in self.spans)[len(self.spans) // 2]
        near = [s for s in self.spans if abs(s.start_ns - middle) < DAY_NS]
        near = [s for s in near if s.stop_ns - s.start_ns < DAY_NS]
        window = (min(s.start_ns for s in near), max(s.stop_ns for s in near)) if near else (0, 0)
        found = find_steps(self._annotations, window, self._step_by)
        if not any(name == WHOLE for name, *_ in found.steps):
            self.spans += [_Span(_MAIN, name, "step", *times) for name, *times in found.steps]
            self.notes += [found.note] * bool(found.steps)

    def _leave_out(self) -> None:
        """Waits outside of the steps; waits and input of threads that work beside them.

        Threads that launch a good part of the programs are the steps' own.
        """
        steps = sorted((s.start_ns, s.stop_ns) for s in self.spans if s.kind == "step")
        if not steps:
            return
        begun, ended = [a for a, _ in steps], [*accumulate((b for _, b in steps), max)]
        calls = np.array([s.lane for s in self.spans if s.kind == "dispatch"])
        host = {_MAIN, *busy_callers(calls)}

        def why(span: _Span) -> str:
            if span.kind not in ("wait", "input"):
                return ""
            if span.lane not in host:
                return "of threads beside the steps'"
            i = bisect_right(begun, span.start_ns) - 1
            is_inside = i >= 0 and span.start_ns <= ended[i]
            return "outside of the steps" if span.kind == "wait" and not is_inside else ""

        whys = [why(span) for span in self.spans]
        counts = Counter((s.kind, w) for s, w in zip(self.spans, whys, strict=True) if w)
        for (kind, said), count in counts.items():
            noun = "wait" if kind == "wait" else "device_put"
            self.notes.append(f"{format_count(count, noun)} {said} left out")
        self.spans = [s for s, w in zip(self.spans, whys, strict=True) if not w]

    def _sync(self, event: HostEvent, around: Sequence[str]) -> SyncPoint:
        """What was read, by the Python function that read it; the profiler gives lines, too.

        Without functions of Python's only a copy is told from other waits.
        """
        called = {name.rpartition(" ")[2] for name in around if name.startswith("$")}
        cause = "item" if called & _READS else "copy to host"
        is_copy = event.name.startswith("np.") or bool(called & _COPIES)
        if "block_until_ready" in called or not is_copy:
            cause = cause if called & _READS else "block_until_ready" if called else READ_OR_READY
        wait_ns = event.stop_ns - event.start_ns
        return SyncPoint(event.start_ns, wait_ns, cause, *self._places(around))

    def _places(self, around: Sequence[str]) -> tuple[str, str]:
        is_same_jax = self.environment.get("jax") == jax.__version__
        site, via, function = places(around, is_same_jax=is_same_jax)
        if function and not function.startswith("<"):  # a lambda is at the line of what it is in
            self._functions[site].add(function)
        return site, via


def _sort_of(name: str) -> str:
    """A step's name without its numbers, wherever in it they are."""
    return cut_name(_NUMBER.sub("", name).rstrip(" #:_-"))[:80]


def _numbered(texts: list[str]) -> tuple[list[str], NDArray[np.int32]]:
    """The distinct texts, and the number of each."""
    known = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(known), np.array([known[t] for t in texts], np.int32)
