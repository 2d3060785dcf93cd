"""What each line of the user's program costs a step: recording, device time, waits.

Everything is charged to the line that recorded it. An op of the backward pass belongs to the line
whose forward op it differentiates, and an optimizer's ops to the line that called it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kit.runs.device.callers import charged_by_caller
from kit.runs.given import one_run
from kit.runs.run import Run
from kit.shown import Column, Rows
from kit.text import format_count, format_ms, format_number
from kit.trace import Timeline, each_step
from kit.trace.active import LOADER
from kit.trace.devices import is_runtimes
from kit.trace.intervals import Ints, elapsed, joined, within, without
from kit.trace.kernels import charged_ns, computes_nothing, distinct_kernels, in_steps
from kit.trace.kinds import AWAY, ON_DEVICE
from kit.trace.metrics import says_device

__all__ = [
    "HOW_TIMED",
    "PHASES",
    "LineCost",
    "away_by_line",
    "dearest_lines",
    "line_costs",
    "place_of",
    "recorded_before_copies",
    "seldom_at_line",
    "work_of_steps",
]

PHASES = ("forward", "backward", "update")
HOW_TIMED = (  # what a line's recording is: a reader who looks for slow Python must know
    "timed in a traced step from the op before to the line's own, with all Python between them, "
    "on whatever line, that is too short to be own code"
)
_TRACED_SLOWER = 2.0  # times: what the host does may take so much longer where it is traced
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LineCost:
    """One line of the program, and what it costs a step.

    Recording and device time are those of the traced steps, waits those of the measured ones, as
    in `Run.breakdown` and `kit.trace.sync_table`; the lines of a run add up to these totals.

    Units:
        milliseconds a step
    """

    site: str  # "train.py:41"; "": no line is known
    # By phase, those of `PHASES`, also what is under a busy device; nan where no op was recorded,
    # as natively: what the host did is known, and not at which line; and where no step was traced.
    record_ms: Mapping[str, float]
    # Of the busy time, divided where kernels overlap; nan if nobody saw what the device did, or
    # no step was traced.
    device_ms: float
    wait_ms: float = 0.0  # the host for the device, at this line's sync points
    syncs: float = 0.0  # a step
    idle_ms: float = 0.0  # the device, after these waits; nan: no kernel was seen
    causes: tuple[str, ...] = ()  # of the sync points, and the library lines that they went through
    nodes: tuple[int, ...] = ()  # of `run.whole`
    elsewhere_ms: float = 0.0  # the host waited for something else than the device
    own_ms: float = 0.0  # the program's own code, between two ops

    @property
    def recording_ms(self) -> float:
        """Recording, all phases together."""
        return sum(self.record_ms.values())

    @property
    def work_ms(self) -> float:
        """Device time and recording, where they are known."""
        return sum(ms for ms in (self.device_ms, self.recording_ms) if not math.isnan(ms))

    @property
    def total_ms(self) -> float:
        """All of it together, whatever overlaps: for an order, not for a sum."""
        return self.work_ms + self.wait_ms + self.elsewhere_ms + self.own_ms


class LineRows(Rows[LineCost]):
    """The rows of `line_costs`."""

    noun = "line"
    columns = (
        Column("line", lambda x: x.site or "(no line known)", is_number=False),
        Column("recording a step", lambda x: format_ms(x.recording_ms)),
        Column("device", lambda x: format_ms(x.device_ms)),
        Column("wait", lambda x: format_ms(x.wait_ms)),
        Column("idle after it", lambda x: format_ms(x.idle_ms)),
        Column("elsewhere", lambda x: format_ms(x.elsewhere_ms)),
        Column("own code", lambda x: format_ms(x.own_ms)),
        Column("sync points", lambda x: format_number(x.syncs)),
        Column("causes", lambda x: ", ".join(x.causes), is_number=False),
    )


def line_costs(run: Run) -> tuple[LineCost, ...]:
    """A row for each line that recorded an op or waited; file by file, the dearest file first.

    The row with the site "" has what no line is known of. Recording is timed op by op in the first
    traced step, and in the first that did other ops, from one op to the next, so a line also pays
    for the Python that led to its op and for a cut that it caused; other traced steps are divided
    in the same proportion as those that did the same. A run without these times (`recorded_ns`) is
    divided by the number of ops.

    Raises:
        SettingsError: `run` is none.
    """
    sites = _Sites(one_run(run))
    record = _recording(run, sites)
    device = _device(run, sites)
    is_traced = run.timeline.steps > 0
    knows_device = is_traced and says_device(run.timeline)
    no_device = 0.0 if knows_device else math.nan  # of a line that recorded nothing
    waits, elsewhere, own = _waits(run), _elsewhere(run), away_by_line(run, "own")
    nothing = dict.fromkeys(PHASES, 0.0 if run.graphs and is_traced else math.nan)
    number = {site: i for i, site in enumerate(sites.names)}
    found = []
    for site in dict.fromkeys([*sites.names, *waits, *elsewhere, *own]):
        parts, device_ms = nothing, no_device
        if is_traced and (i := number.get(site)) is not None:
            device_ms = float(device[i]) / 1e6
            if run.graphs or not site:
                parts = {phase: float(record[k, i]) / 1e6 for k, phase in enumerate(PHASES)}
        waited = waits.get(site, (0.0, 0.0, 0.0, ()))
        away = elsewhere.get(site, 0.0), own.get(site, 0.0)
        found.append(LineCost(site, parts, device_ms, *waited, sites.nodes.get(site, ()), *away))
    rows = _in_order([row for row in found if row.nodes or row.total_ms or row.syncs])
    return rows.with_note(run.doubt)


def dearest_lines(run: Run) -> tuple[list[LineCost], dict[str, Callable[[LineCost], float]]]:
    """The lines that are known, the dearest first; and what a table of them has, in ms a step.

    What is not known of any line is no part of the table, but for the device of traced steps.
    """
    rows = sorted((row for row in line_costs(run) if row.site), key=lambda row: -row.total_ms)
    parts: dict[str, Callable[[LineCost], float]] = {
        "recording": lambda row: row.recording_ms,
        "device": lambda row: row.device_ms,
        "wait": lambda row: row.wait_ms,
    }
    if any(row.elsewhere_ms for row in rows):
        parts["elsewhere"] = lambda row: row.elsewhere_ms
    if any(row.own_ms for row in rows):
        parts["own code"] = lambda row: row.own_ms
    said = {"device"} if run.timeline.steps else set()  # by "unknown"
    known = {
        head: ms_of
        for head, ms_of in parts.items()
        if head in said or not all(math.isnan(ms_of(row)) for row in rows)
    }
    return rows, known


def place_of(site: str) -> tuple[str, int]:
    """`"train.py:41"` -> `("train.py", 41)`; line 0 where none is said."""
    file, colon, line = site.rpartition(":")
    is_number = colon and line.isascii() and line.isdigit() and len(line) < 10
    return (file, int(line)) if is_number else (site, 0)


def _in_order(rows: list[LineCost]) -> LineRows:
    of_file: dict[str, float] = defaultdict(float)
    for row in rows:
        of_file[place_of(row.site)[0]] += row.total_ms

    def order(row: LineCost) -> tuple[bool, float, str, int]:
        file, line = place_of(row.site)
        return not row.site, -of_file[file], file, line

    return LineRows(sorted(rows, key=order))


class _Sites:
    """The lines of a graph, numbered; 0 is "", where no line is known."""

    def __init__(self, run: Run) -> None:
        graph = run.whole
        self.ops = graph.ops
        self.of_node = np.zeros(len(graph), np.int64)
        self.phase_of_node = np.zeros(len(self.of_node), np.int64)
        number = {"": 0}
        members: dict[str, list[int]] = defaultdict(list)
        for i in self.ops:
            node = graph.nodes[i]
            self.of_node[i] = number.setdefault(node.site, len(number))
            members[node.site].append(i)
            if node.phase in PHASES:
                self.phase_of_node[i] = PHASES.index(node.phase)
        if run.callers:  # of a native run; or of a foreign trace, lines where functions begin
            self.of_node = np.array([number.setdefault(c.site, len(number)) for c in run.callers])
            self.phase_of_node = np.zeros(len(self.of_node), np.int64)
            for i, caller in enumerate(run.callers):
                members[caller.site].append(i)
        self.names = tuple(number)
        self.nodes = {site: tuple(members.get(site, ())) for site in number}


def work_of_steps(run: Run) -> list[dict[str, float]]:
    """Recording and device time of each line with an op, in each traced step alone.

    Units:
        milliseconds
    """
    sites, each = _Sites(run), each_step(run.timeline)
    timed = _timed(run, sites)
    sorts = run.sorts if len(run.sorts) == len(each) else (-1,) * len(each)
    found = []
    for step, sort in zip(each, sorts, strict=True):
        alone = replace(run, timeline=step)
        of_sort = timed[sort] if 0 <= sort < len(timed) else timed.sum(axis=0)
        record = _shared(alone, sites, of_sort).sum(axis=0)
        work = (record + np.nan_to_num(_device(alone, sites))) / 1e6
        lines = zip(sites.names, work.tolist(), strict=True)
        found.append({site: ms for site, ms in lines if site and sites.nodes[site]})
    return found


def _recording(run: Run, sites: _Sites) -> Floats:
    """Recording of the mean step by phase and line. Shape: (phases, sites). Units: nanoseconds."""
    sorts = run.sorts or (0,) * run.timeline.steps
    often = np.array([sorts.count(sort) for sort in range(len(run.graphs))])
    return _shared(run, sites, np.tensordot(often, _timed(run, sites), 1))


def _shared(run: Run, sites: _Sites, found: Floats) -> Floats:
    """Recording by phase, as the breakdown has it, in the proportion that was timed or counted."""
    totals = {row.category: row.total_ms * 1e6 for row in run.breakdown()}
    whole = np.array([totals.get(f"{phase} recording", 0.0) for phase in PHASES])
    if not found.any():
        found = _counted(sites)
    known = found.sum(axis=1)
    shares = np.divide(found, known[:, None], out=np.zeros_like(found), where=known[:, None] > 0)
    shares[:, 0] += known == 0
    scaled: Floats = shares * whole[:, None]
    return scaled


def _timed(run: Run, sites: _Sites) -> Floats:
    """What was timed in the first traced step of each sort. Shape: (sorts, phases, sites)."""
    found = np.zeros((len(run.graphs), len(PHASES), len(sites.names)))
    recorded = np.array(run.recorded_ns, np.int64)
    steps = run.timeline.intervals(kind="step")
    sorts = run.sorts or (0,) * len(steps)
    recording = [_of_phase(run.timeline, phase) for phase in PHASES]
    end = 0
    for sort, graph in enumerate(run.graphs):
        begin, end = end, end + len(graph)
        nodes = begin + np.flatnonzero(recorded[begin:end] >= 0)
        if sort not in sorts[: len(steps)] or not len(nodes):
            continue
        nodes = nodes[np.argsort(recorded[nodes], kind="stable")]
        start, stop = steps[sorts.index(sort)].tolist()
        edges = np.concatenate([[start], recorded[nodes].clip(start, stop), [stop]])
        line = np.append(sites.of_node[nodes], 0)  # what follows the last op has no line
        for k, intervals in enumerate(recording):
            spent = np.diff(elapsed(intervals, edges))
            found[sort, k] = np.bincount(line, spent, len(sites.names))
    return found


def recorded_before_copies(run: Run) -> float:
    """What the first traced step recorded just before each copy to the device, from the op or the
    copy before it on: the calls that copy, and the Python between them. 0 where no op has a time:
    what ops took would count, too.

    Units:
        milliseconds
    """
    t, steps = run.timeline, run.timeline.intervals(kind="step")
    if not len(steps) or not run.graphs:
        return 0.0
    begin, end = steps[0].tolist()
    copies = t.intervals(kind="input", lane="host/main")
    copies = copies[(copies[:, 0] >= begin) & (copies[:, 0] < end)]
    ops = np.array(run.recorded_ns[: len(run.graphs[0])], np.int64)
    if not len(ops := ops[ops >= begin]):
        return 0.0
    known = np.sort(np.concatenate([[begin], ops, copies[:, 1]]))
    before = known[np.searchsorted(known, copies[:, 0], "right") - 1]
    recording = joined(np.concatenate([_of_phase(t, phase) for phase in PHASES]))
    return int(within(recording, np.stack([before, copies[:, 0]], axis=1)).sum()) / 1e6


def _counted(sites: _Sites) -> Floats:
    """The number of ops instead."""
    found = np.zeros((len(PHASES), len(sites.names)))
    for i in sites.ops:
        found[sites.phase_of_node[i], sites.of_node[i]] += 1
    return found


def _of_phase(timeline: Timeline, phase: str) -> Ints:
    """When a phase was recorded: its waits, its input and what the host was ahead, left out."""
    ours = ~timeline.where(lane=LOADER)
    record = timeline.where(kind="record", name=phase) & ours
    away = ours & np.logical_or.reduce([timeline.where(kind=kind) for kind in AWAY])
    return without(timeline.times(record), timeline.times(away))


def _device(run: Run, sites: _Sites) -> Floats:
    """Busy time of the mean step by line; nan if nobody saw the device. Units: nanoseconds."""
    t = run.timeline
    if not says_device(t):
        return np.full(len(sites.names), math.nan)
    if run.callers and t.steps:
        lines = np.append(sites.of_node, 0)  # the last is of kernels that none is known of
        charged = charged_by_caller(run)[0] / t.steps
        return np.bincount(lines, charged, len(sites.names)).astype(np.float64)
    spans, times = in_steps(t, np.flatnonzero(t.where(kind=ON_DEVICE)))
    found = np.zeros(len(sites.names))
    if not len(spans) or not t.steps:
        return found
    charged = charged_ns(times, computes_nothing(t, spans)) / t.steps
    kernels, group = distinct_kernels(t, spans)
    of_kernel = np.bincount(group, charged)
    members: list[int] = []
    parts: list[float] = []
    for (segment, name, node), ns in zip(kernels.tolist(), of_kernel.tolist(), strict=True):
        nodes = run.nodes_of(segment, t.names[name], node)
        if nodes:
            members += nodes
            parts += [ns / len(nodes)] * len(nodes)
        else:
            found[0] += ns
    lines = sites.of_node[np.array(members, np.int64)]
    return found + np.bincount(lines, parts, len(sites.names))


Waits = tuple[float, float, float, tuple[str, ...]]


def _waits(run: Run) -> dict[str, Waits]:
    """Waiting, sync points and idle time a step, by line; and what the waits were."""
    found: dict[str, Waits] = {}
    for row in run.sync_rows:
        wait, count, idle, causes = found.get(row.site, (0.0, 0.0, math.nan, ()))
        cause = f"{row.cause} through {row.via}" if row.via else row.cause
        known = [x for x in (idle, row.idle_ms_per_step) if not math.isnan(x)]
        found[row.site] = (
            wait + row.wait_ms_per_step,
            count + row.count_per_step,
            sum(known) if known else math.nan,
            (*causes, cause),
        )
    return found


def _elsewhere(run: Run) -> dict[str, float]:
    """As `away_by_line`; a call of the device's runtime has its name there, and is at no line."""
    found: dict[str, float] = defaultdict(float)
    for site, ms in away_by_line(run).items():
        found["" if is_runtimes(site) else site] += ms
    return found


def away_by_line(run: Run, kind: str = "elsewhere") -> dict[str, float]:
    """Waits for something else than the device (or own code), ms a traced step, by line."""
    t = run.timeline
    count = t.steps
    if not count:
        return {}
    steps, mask = joined(t.intervals(kind="step")), t.where(kind=kind)
    return {
        t.names[name]: int(within(steps, t.times(mask & (t.name == name))).sum()) / count / 1e6
        for name in np.unique(t.name[mask]).tolist()
    }


def seldom_at_line(run: Run, kind: str, site: str) -> tuple[str, float]:
    """Of a line at which few traced steps wait (or compute): how many, and what it costs at most.

    That is of the mean measured step, in ms: one that is too short for such a wait has none of it;
    nan where all are. ("", nan) of a line of most traced steps.
    """
    t, steps = run.timeline, run.timeline.intervals(kind="step")
    times = joined(t.intervals(kind=kind, name=site))
    found = [ns for ns in within(times, steps).tolist() if ns]
    if not (found and run.measures_untraced and run.step_times_ns):
        return "", math.nan
    if 2 * len(found) > len(steps):
        return "", math.nan
    each, measured = sum(found) / len(found), run.step_times_ns
    fits = sum(_TRACED_SLOWER * ns >= each for ns in measured)
    said = f"in {len(found)} of the {format_count(len(steps), 'traced step')}"
    if not fits:
        return f"{said}, and in none of the measured ones", math.nan
    return said, each * fits / len(measured) / 1e6
