"""Device kernels from XLA's own profiler, on the host clock.

The in-memory session is jax's private `_profiler.ProfilerSession`: no file, 3 ms for 200 kernels.
Where it is missing, the public `jax.profiler.start_trace` writes a file that is read back. Tried
on CPU. The GPU half follows XLA's sources (`/device:GPU:n`, one line a stream) and a published
profile: `kit.runtime.profiling.launches`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from kit.errors import but_of_handlers, words_of
from kit.runtime.profiling.clocks import DayClock
from kit.runtime.profiling.cupti import TAKEN, has_subscriber
from kit.runtime.profiling.launches import Issue, issues_of, number_runs
from kit.runtime.recording.bulk import Task
from kit.text import format_count
from kit.trace import Span
from kit.trace.communication import kind_on_device
from kit.trace.planes import DeviceEvent, device_events, quiet_about_types

__all__ = ["Profile", "profiled"]

_IS_TAKEN = "Another profiling session active"  # XLA's words: it takes one profile at a time
_KITS = (
    "kit: the other profile is kit's, of the steps that follow the measured ones: end yours before "
    "these, or have no profile of your own in a step that kit measures"
)


class Profile:
    """What the profiler saw between entering and leaving `profiled()`."""

    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()
        self.fused: dict[tuple[int, str], tuple[int, ...]] = {}  # (task, kernel) -> graph nodes
        self._data: Any = None
        self._clock = DayClock()

    def kernels(self, tasks: Sequence[Task], nodes: dict[int, list[int]]) -> list[Span]:
        """One span for each kernel, in `perf_counter_ns` time, with segment and graph node.

        Runs that no task has issued, as of another session in another thread or of a step that was
        guessed wrong, are noted; their kernels have neither.
        """
        if self._data is None:
            return []
        by_module: dict[str, list[Issue]] = defaultdict(list)
        for task in tasks:
            for executable, offset in task.seen.issued:
                by_module[f"jit_{executable.name}"].append((task, executable, offset))
        with quiet_about_types():
            events = self._module_events({name: len(issues) for name, issues in by_module.items()})
        issued_by, foreign = issues_of(events, by_module)
        if foreign:
            runs = format_count(foreign, "more run")
            self.notes = (*self.notes, f"{runs} of the same programs, by another session or for "
                          "a wrong guess: their kernels are shown as of no segment")  # fmt: skip
        spans = []
        for event in events:
            segment, node = -1, -1
            if (issue := issued_by.get((event.module, event.run))) is not None:
                task, executable, offset = issue
                segment, ids = task.index, nodes.get(task.index, [])
                own = ids[offset:]
                local = executable.instructions.root(event.name)
                node = own[local] if 0 <= local < len(own) else -1
                members = executable.instructions.members(event.name)
                if len(members) > 1:
                    inside = tuple(own[m] for m in members if m < len(own))
                    self.fused[segment, event.name] = inside
            kind, times = kind_on_device(event.name), (event.start_ns, event.stop_ns)
            spans.append(Span(event.lane, event.name, kind, *times, segment, node))
        return spans

    def _module_events(self, issued: Mapping[str, int]) -> list[DeviceEvent]:
        zero = 0
        for plane in self._data.planes:
            if plane.name == "Task Environment":
                zero = dict(plane.stats).get("profile_start_time", 0)
        planes = list(self._data.planes)
        found = device_events(planes, int(zero) - self._clock.apart_ns)
        number_runs(found, planes, issued)
        return found


@contextlib.contextmanager
def profiled() -> Iterator[Profile]:
    """Profile the block; a profiler that cannot run leaves a note and no kernels."""
    profile = Profile()
    if jax.default_backend() != "cpu" and has_subscriber():
        profile.notes = (TAKEN,)
        yield profile
        return
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    with contextlib.suppress(AttributeError):
        options.enable_hlo_proto = False  # very dear, and the text comes from the executable
    try:
        stop = _start(options)
    except but_of_handlers(Exception) as error:
        profile.notes = (f"no device kernels: the profiler did not start ({error})",)
        yield profile
        return
    try:
        profile._clock = DayClock()
        yield profile
    except Exception as error:
        if _IS_TAKEN in words_of(error):
            error.add_note(_KITS)
        raise
    finally:
        try:
            seen, said = stop(), profile._clock.note()
            profile._data, profile.notes = (None, (said,)) if said else (seen, ())
        except but_of_handlers(Exception) as error:
            profile.notes = (f"no device kernels: the profiler failed ({error})",)


def _start(options: Any) -> Any:
    try:
        from jax._src.lib import _profiler

        return _profiler.ProfilerSession(options).stop_and_get_profile_data
    except (ImportError, AttributeError):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        jax.profiler.start_trace(folder.name, profiler_options=options)

        def stop() -> Any:
            with folder:
                jax.profiler.stop_trace()
                files = list(Path(folder.name).rglob("*.xplane.pb"))
                return jax.profiler.ProfileData.from_file(str(files[0]))

        return stop
