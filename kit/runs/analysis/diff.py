"""Two runs side by side: what changed, what appeared, what vanished.

Nodes are aligned by the structure of the two graphs (`Graph.diff`), kernels by the nodes that they
compute, because XLA numbers kernels anew in each program. Device times are parts of the busy time,
as in `kit.kernel_table`: what all rows differ by adds up to what the busy time differs by. What is
called slower or faster differs by more than its spread: `kit.runs.change` has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kit.errors import SettingsError
from kit.ir import Graph
from kit.ir.graph import VARIABLES, aligned
from kit.runs.analysis.headline import doubt_of_waits, headline_differences
from kit.runs.analysis.parts import NOTHING, Part, Parts, kernel_kind, sum_of
from kit.runs.analysis.rows import Change, NodeChange, rest_texts, row_markdown, row_text
from kit.runs.change import (
    Difference,
    doubt_of_traced,
    median_run,
    part_difference,
    steps_difference,
)
from kit.runs.compiles import Compile
from kit.runs.given import some_runs
from kit.runs.knob import knobs_of
from kit.runs.labels import (
    COMMIT,
    IMPORTED,
    TIME,
    VALUES,
    has_other_samples,
    label_of,
    labels_of,
    told_settings,
)
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import (
    check_number,
    check_whole_number,
    format_count,
    format_number,
    format_percent,
    markdown_table,
    safe_markdown,
    safe_terminal,
)
from kit.trace import Timeline
from kit.trace.imported import STALLED
from kit.trace.kinds import ELSEWHERE, OWN

__all__ = ["Change", "NodeChange", "RunDiff", "diff_runs", "kernel_kind"]

# Of the environment: these tell the runs apart, and slow nothing down; or a note has said it.
_NAMED = {COMMIT, TIME, VALUES, STALLED}
_HEAD = ("", "old", "new", "change")
_SPREAD = "± is half of the 95% interval; 99% of the step's parts, because there are many."
_PARTS = ("lines", "breakdown", "idle")
_JOINED = "recording, waits elsewhere and own code"
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs; `str()` says it, `kit.RunDiffView` draws it.

    Every sequence has the largest difference first, slower or faster, but for `breakdown`,
    `settings` and `environment`, which keep their order. A row's `is_changed` says whether it
    differs by more than the spread.
    """

    labels: tuple[str, str]
    step: Change  # the median untraced step; a sample's if the steps hold different numbers of them
    settings: tuple[tuple[str, Any, Any], ...]  # name, old, new; numbers with a word as the word
    breakdown: tuple[Change, ...]  # of the traced step, by category
    idle: tuple[Change, ...]  # of the device, by cause and line; the mean of several devices
    syncs: tuple[Change, ...]  # waits of the host, by line, in the untraced steps
    kernels: tuple[Change, ...]
    nodes: tuple[NodeChange, ...]  # that are executed: parameters and inputs are left out
    segments: tuple[int, int]
    lines: tuple[Change, ...] = ()  # recording and device time; found again by their text
    headline: Mapping[str, Difference] = field(default_factory=dict)  # by the field of `Headline`
    environment: tuple[tuple[str, str, str], ...] = ()  # versions and machines that differ
    compiles: tuple[int, int] = (0, 0)
    compiling: tuple[float, float] = (0.0, 0.0)  # part of the measured steps' time
    recompiled: tuple[str, ...] = ()  # reasons for which only the new run compiled
    devices: tuple[int, int] = (1, 1)
    notes: tuple[str, ...] = ()  # what is not compared, as one of the two does not say it

    @property
    def slower(self) -> tuple[NodeChange, ...]:
        """Nodes of both graphs that take longer now, by more than the spread."""
        both = (n for n in self.nodes if n.left >= 0 and n.right >= 0)
        return tuple(n for n in both if n.is_changed and n.ms > 0)

    @property
    def appeared(self) -> tuple[NodeChange, ...]:
        """Nodes that only the new graph has, in program order."""
        return tuple(sorted((n for n in self.nodes if n.left < 0), key=lambda n: n.right))

    @property
    def vanished(self) -> tuple[NodeChange, ...]:
        """Nodes that only the old graph has, in program order."""
        return tuple(sorted((n for n in self.nodes if n.right < 0), key=lambda n: n.left))

    @property
    def sections(self) -> tuple[tuple[str, tuple[Change, ...]], ...]:
        """The parts of the step, each under its title."""
        count = max(self.devices)
        mean = f" (mean of {count} devices)" if count > 1 else ""
        return (
            ("Where the traced step went", self.breakdown),
            (f"Why the device was idle{mean}", self.idle),
            ("Lines: recording and device time", self.lines),
            ("Where the host waited", self.syncs),
            ("Kernels, by what they compute", self.kernels),
        )

    @property
    def doubt(self) -> str:
        """Why no time is judged, such as a busy machine; "" if all are."""
        return "" if self.step.difference is None else self.step.difference.doubt

    @property
    def points(self) -> tuple[tuple[str, str, str], ...]:
        """Sync points that came or went, and where; counted, so that no spread hides them."""
        found = self.headline.get("syncs_per_step")
        if found is None or not found.is_changed:
            return ()
        where = ""
        for said, kind in (("only now", "appeared"), ("only before", "vanished")):
            if names := [row.name for row in self.syncs if row.kind == kind]:
                more = ", ..." if len(names) > 3 else ""
                where += f"; {said}: {', '.join(names[:3])}{more}"
        new = f"{format_number(found.new)}{where}"
        return (("sync points a step", format_number(found.old), new),)

    def slower_than(self, fraction: float) -> bool:
        """Is a step, or a sample, slower by more than this fraction and than the spread?

        Of the median and the mean either is enough where they do not agree.

        Raises:
            SettingsError: the fraction is no number of at least 0.
        """
        check_number(SettingsError, "the fraction", fraction, at_least=0)
        found = self.step.difference
        if found is None or found.doubt:
            return False
        both = replace(found, means=None), found.means
        return any(one and one.kind == "more" and one.amount > fraction for one in both)

    def text(self, limit: int = 8) -> str:
        """What changed, `limit` rows of each part at most, and how much did not.

        Raises:
            SettingsError: `limit` is no whole number of at least 0.
        """
        check_whole_number(SettingsError, "limit", limit, at_least=0)
        lines = [f"{' -> '.join(safe_terminal(x, 90) for x in self.labels)}",
                 row_text(self.step.name, self.step)]  # fmt: skip
        lines += [f"  {text}" for text in self.notes]
        lines += [f"  {n}: {a!r} -> {b!r}" for n, a, b in self.settings]
        lines += [f"  {safe_terminal(f'{n}: {a} -> {b}')}" for n, a, b in self.environment]
        if any(self.segments):
            lines.append(f"segments: {self.segments[0]} -> {self.segments[1]}")
        lines += [f"{n}: {a} -> {safe_terminal(b, 200)}" for n, a, b in self.points]
        lines += self._compiles(safe_terminal)
        for title, rows in self.sections:
            lines += _section(title, rows, limit, self.doubt)
        for title, nodes in self._nodes():
            lines += [f"{title}: {format_count(len(nodes), 'node')}"] if nodes else []
            lines += [f"  {row_text(f'{n.op} at {_place(n)}', n)}" for n in nodes[:limit]]
        return "\n".join(lines)

    def to_markdown(self, limit: int = 8) -> str:
        """The same as Markdown, for a pull request."""
        check_whole_number(SettingsError, "limit", limit, at_least=0)
        old, new = (safe_markdown(label) for label in self.labels)
        parts = [
            f"### {old} → {new}",
            markdown_table(_HEAD, [row_markdown(self.step.name, self.step)]),
        ]
        notes: list[tuple[str, Any, Any]] = [*self.settings, *self.environment, *self.points]
        if self.segments[0] != self.segments[1]:
            notes.append(("segments", *self.segments))
        lines = [
            f"- {safe_markdown(n)}: {safe_markdown(a)} → {safe_markdown(b)}" for n, a, b in notes
        ]
        lines += [f"- {text}" for text in (*self._compiles(safe_markdown), *self.notes)]
        parts += ["\n".join(lines)] * bool(lines)
        for title, rows in self.sections:
            if changed := [row for row in rows if row.is_changed]:
                table = [row_markdown(row.name, row) for row in changed[:limit]]
                parts.append(f"#### {title}\n\n{markdown_table(_HEAD, table)}")
            if rest := "; ".join(rest_texts(rows, self.doubt)):
                told = rest if changed else f"{title}: {rest}"
                parts.append(safe_markdown(told, 400) + ".")
        for title, nodes in self._nodes():
            if nodes:
                table = [row_markdown(f"{n.op} at {_place(n)}", n) for n in nodes[:limit]]
                count = format_count(len(nodes), "node")
                parts.append(f"#### {count} {title}\n\n{markdown_table(_HEAD, table)}")
        return "\n\n".join([*parts, _SPREAD]) + "\n"

    def _nodes(self) -> tuple[tuple[str, tuple[NodeChange, ...]], ...]:
        return (("got slower", self.slower), ("appeared", self.appeared),
                ("vanished", self.vanished))  # fmt: skip

    def _compiles(self, safe: Any) -> list[str]:
        old, new = self.compiles
        lines = [f"compiles: {old} -> {new}"] if old != new else []
        parts = [format_percent(part) for part in self.compiling]
        if parts[0] != parts[1]:
            lines.append(f"compiling: {parts[0]} -> {parts[1]} of the measured steps' time")
        return lines + [f"compiled only now: {safe(reason, 200)}" for reason in self.recompiled[:3]]

    def __repr__(self) -> str:
        return self.text()


def diff_runs(a: Run | Sequence[Run], b: Run | Sequence[Run]) -> RunDiff:
    """What changed from run `a` to run `b`.

    The two may be of different settings, machines or programs; what has no partner has appeared or
    vanished. Runs in mode "torch" have neither graph nor kernels: their steps and waits are
    compared.

    Args:
        a, b: a run, or several of the same settings: then all of them say how long a step takes and
            how sure that is, and the one with the median step is compared part by part.

    Raises:
        SettingsError: there is no run on one side.
    """
    olds, news = some_runs(a), some_runs(b)
    old, new = median_run(olds), median_run(news)
    notes = []
    if bool(len(old.timeline)) != bool(len(new.timeline)):
        old, new = _untraced(old), _untraced(new)
        notes.append("parts of a step are not compared: only one of the two has traced one")
    parts = Parts(old), Parts(new)
    step = max(filter(math.isfinite, (old.step_ms, new.step_ms)), default=0.0)
    pair = _Pairing(step, doubt_of_traced(old, new))
    waits = replace(pair, doubt=doubt_of_waits(old, new))
    nodes, kernels = _graphs(parts, pair)
    lines, broken, idle = ([getattr(p, name)() for p in parts] for name in _PARTS)
    if not all(lines) and any(lines):
        lines = [{}, {}]
        notes.append("lines are not compared: only one of the two says what comes from which")
        if _sees_waits(old) != _sees_waits(new):
            broken, idle = ([_joined(p) for p in found] for found in (broken, idle))
            notes.append(f"{_JOINED} are one: only one of the two tells them apart")
    is_trace = any(IMPORTED in run.environment for run in (old, new))  # says nothing of these
    # Of repeats the first compiles, and the others find its programs.
    compiled = [max((run.compiles for run in runs), key=len) for runs in (olds, news)]
    return RunDiff(
        labels=_labels(old, new),
        step=_step(olds, news, by_sample=has_other_samples(old, new)),
        settings=() if is_trace else _changed(_in_words(old), _in_words(new)),
        breakdown=pair.rows(*broken, is_ordered=False),
        idle=pair.rows(*idle),
        syncs=waits.rows(*(p.syncs() for p in parts)),
        kernels=kernels,
        nodes=nodes,
        segments=(0, 0) if is_trace else (len(old.segments), len(new.segments)),
        lines=pair.rows(*lines),
        headline=headline_differences(old, new),
        environment=_environment(old, new),
        compiles=(0, 0) if is_trace else (len(compiled[0]), len(compiled[1])),
        compiling=(old.measured.compiled_fraction, new.measured.compiled_fraction),
        recompiled=_recompiled(*compiled),
        devices=(parts[0].devices, parts[1].devices),
        notes=tuple(notes),
    )  # fmt: skip


def _untraced(run: Run) -> Run:
    """What its measured steps say, as of a script that ended before any step was traced."""
    nothing = Timeline.of([], [], run.timeline.origin, run.timeline.notes)
    return replace(
        run, timeline=nothing, graphs=(), segments=(), fused=(), recorded_ns=(), sorts=()
    )


def _in_words(run: Run) -> dict[str, Any]:
    """Its settings by name; a number that stands for a word is the word: "steady", not -1."""
    rows, found = {row.name: row for row in knobs_of(run.settings)}, told_settings(run)
    for name, value in found.items():
        word = rows[name].write(value)
        found[name] = word if type(value) is int and word != str(value) else value
    return found


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """The settings that differ; None for a builder's knob that only the other workload has.

    What one of the runs was not told, as a watched one the batch size, is not compared.
    """
    kits = {row.name for row in knobs_of(Settings)}
    names = [k for k in {**old, **new} if k not in kits or (k in old and k in new)]
    return tuple((k, old.get(k), new.get(k)) for k in names if old.get(k) != new.get(k))


def _step(olds: Sequence[Run], news: Sequence[Run], *, by_sample: bool) -> Change:
    found = steps_difference(olds, news, by_sample=by_sample)
    return Change("sample" if by_sample else "step", found.old, found.new, difference=found)


def _sees_waits(run: Run) -> bool:
    """Would it show that the host waits elsewhere? A trace of torch's without stacks does not."""
    return IMPORTED not in run.environment or bool(run.timeline.where(kind="elsewhere").any())


def _joined(parts: Mapping[str, Part]) -> dict[str, Part]:
    """What the host does between two ops as one part, in the place of the first."""
    found: dict[str, Part] = {}
    for name, part in parts.items():
        is_host = name.endswith(" recording") or name.startswith((ELSEWHERE, OWN))
        key = _JOINED if is_host else name
        found[key] = sum_of(found.get(key), part)
    return found


def _graphs(
    parts: tuple[Parts, Parts], pair: _Pairing
) -> tuple[tuple[NodeChange, ...], tuple[Change, ...]]:
    """The nodes and the kernels of two runs, by the structure of their graphs if both have one."""
    graphs = [p.run.graphs[0] if p.run.graphs else Graph(()) for p in parts]
    rows = aligned(*graphs) if all(p.run.graphs for p in parts) else []
    times = [p.nodes() for p in parts]
    nodes = []
    for row in rows:
        old, new = times[0].get(row.left, NOTHING), times[1].get(row.right, NOTHING)
        texts = _texts(graphs, row.left, row.right)
        nodes.append(NodeChange(row.kind, row.left, row.right, *texts, old.ms, new.ms,
                                pair.difference(old, new)))  # fmt: skip
    numbers = (
        {row.left: i for i, row in enumerate(rows)},
        {row.right: i for i, row in enumerate(rows)},
    )
    found = [p.kernels(number) for p, number in zip(parts, numbers, strict=True)]
    names = {
        key: (key[1], ", ".join(dict.fromkeys(nodes[i].op.removeprefix("aten.") for i in key[0])))
        for key in [*found[0], *found[1]]
    }
    executed = (n for n in nodes if n.op not in VARIABLES)
    ordered = sorted(executed, key=lambda n: (-abs(n.ms), max(n.left, n.right)))
    return tuple(ordered), pair.rows(*found, names=names)


@dataclass(frozen=True)
class _Pairing:
    """Joins the parts of two runs by key, and judges each pair by the rule for "changed"."""

    step_ms: float
    doubt: str = ""  # why no part is called changed

    def difference(self, old: Part, new: Part) -> Difference | None:
        """None if neither run says how its steps vary; what is not there takes nothing."""
        steps = [p.steps or (0.0,) * len(q.steps) for p, q in ((old, new), (new, old))]
        if not steps[0] and not steps[1]:
            return None
        means = tuple(0.0 if math.isnan(p.ms) else p.ms for p in (old, new))
        found = part_difference((means[0], means[1]), (steps[0], steps[1]), self.step_ms)
        return replace(found, doubt=self.doubt)

    def rows(
        self,
        old: Mapping[K, Part],
        new: Mapping[K, Part],
        *,
        is_ordered: bool = True,
        names: Mapping[K, tuple[str, str]] | None = None,
    ) -> tuple[Change, ...]:
        """A row for each key of either side; `names` has a name and a note for each."""
        changes = []
        for key in dict.fromkeys([*old, *new]):
            a, b = old.get(key, NOTHING), new.get(key, NOTHING)
            name, note = (str(key), "") if names is None else names[key]
            changes.append(Change(name, a.ms, b.ms, note, self.difference(a, b)))
        return tuple(sorted(changes, key=lambda c: -abs(c.ms)) if is_ordered else changes)


def _environment(old: Run, new: Run) -> tuple[tuple[str, str, str], ...]:
    """Versions and machines that differ, and so may be why a step does."""
    a, b = old.environment, new.environment
    names = [name for name in dict.fromkeys([*a, *b]) if name not in _NAMED]
    unknown = "unknown"
    found = ((name, a.get(name, unknown), b.get(name, unknown)) for name in names)
    return tuple((name, x, y) for name, x, y in found if x != y)


def _recompiled(old: Sequence[Compile], new: Sequence[Compile]) -> tuple[str, ...]:
    known = {compile_.sentence for compile_ in old}
    fresh = (c.sentence for c in new if c.kind != "first" and c.sentence not in known)
    return tuple(dict.fromkeys(fresh))


def _texts(graphs: list[Graph], left: int, right: int) -> tuple[str, str, str]:
    node = graphs[1].nodes[right] if right >= 0 else graphs[0].nodes[left]
    return node.op, node.site, node.scope


def _labels(old: Run, new: Run) -> tuple[str, str]:
    """What the two are called, each with its mode or what wrote it.

    Where that is one name, as of two files in two folders, with what tells them apart.
    """
    a, b = _label(old), _label(new)
    if a == b:
        apart = labels_of([old, new], [0, 0])
        return _label(old, apart[0]), _label(new, apart[1])
    return a, b


def _label(run: Run, *apart: str) -> str:
    name, *more = (x if len(x) <= 60 else f"{x[:19]}…{x[-40:]}" for x in (label_of(run), *apart))
    return f"{name} ({', '.join([*more, run.environment.get(IMPORTED, run.settings.mode)])})"


def _section(title: str, rows: Sequence[Change], limit: int, doubt: str) -> list[str]:
    """The rows that changed, and how many did not, and why."""
    changed = [row for row in rows if row.is_changed]
    lines = [f"  {row_text(row.name, row, row.note)}" for row in changed[:limit]]
    if (more := len(changed) - limit) > 0:
        lines.append(f"  ({more:,} more changed)")
    lines += [f"  {safe_terminal(said, 400)}" for said in rest_texts(rows, doubt)]
    return [f"{title}:", *lines] if lines else []


def _place(node: NodeChange) -> str:
    return node.site or node.scope or "unknown line"
