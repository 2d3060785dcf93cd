"""What if: a step under other settings, predicted from what a measured run says things cost.

`predict(run, settings)` cuts the run's ops again (`kit.runs.whatif.recut`), and simulates what
host, worker and device would do with them (`kit.trace.simulate`), each part at the run's own costs
(`kit.runs.whatif.costs`). The result is a `Prediction`: a timeline of origin "modelled", a step
time, and what was assumed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kit.errors import SettingsError
from kit.ir.plan import OpStream
from kit.runs.change import ends_text
from kit.runs.given import some_runs
from kit.runs.labels import is_of_strangers
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import Costs, between, costs_of, on_loading, with_overheads
from kit.runs.whatif.errors import doubts, interval_ms
from kit.runs.whatif.native import NativeModel
from kit.runs.whatif.question import Question, unlike
from kit.runs.whatif.recut import recut, shape_of
from kit.runs.whatif.steps import device_times, modelled, step_ns
from kit.runs.whatif.waits import around_check, waits_by_segment
from kit.text import WHOLE, format_count, format_ms, safe_terminal
from kit.trace import SyncPoint, Timeline
from kit.trace.syncs import SyncRow

__all__ = ["Model", "Prediction", "calibrated", "predict"]

_ROUNDS, _CLOSE = 8, 0.0005  # of bringing the replay to the measured time
SCALER_OPS = 8  # scale, unscale, look for infinities, choose: as recorded for a step of AdamW


@dataclass(frozen=True)
class Prediction:
    """A step that was not measured.

    `low_ms` to `high_ms` is where the measured step is expected in nine of ten cases; nan where
    nobody has measured how wrong such predictions are.

    Units:
        step_ms, low_ms and high_ms in milliseconds
    """

    settings: Settings
    step_ms: float
    timeline: Timeline  # origin "modelled"
    of: str  # the measured runs that it was made from
    assumptions: tuple[str, ...] = ()  # what it took for granted, in words
    segments: int = 0  # of a step
    syncs: int = 0  # of a step
    low_ms: float = math.nan
    high_ms: float = math.nan

    @property
    def step_text(self) -> str:
        """`12.1 ms (10.4 ms to 14 ms)`; `12.1 ms (± unknown)`."""
        return f"{format_ms(self.step_ms)} ({ends_text(self.low_ms, self.high_ms)})"

    def __repr__(self) -> str:
        return f"Prediction({safe_terminal(self.headline(), WHOLE)})"

    def headline(self) -> str:
        """One line: the time, the cuts, the waits, and where it comes from."""
        if not self.segments:  # natively, where ops are not cut
            return f"modelled: {self.step_text} a step; from {self.of}"
        cuts = format_count(self.segments, "segment")
        waits = format_count(self.syncs, "sync")
        return f"modelled: {self.step_text} a step, {cuts}, {waits}; from {self.of}"


def predict(
    run: Run | Sequence[Run],
    settings: Settings | None = None,
    *,
    without: Iterable[str | SyncRow | SyncPoint] = (),
    device_speed: float = 1.0,
    host_speed: float = 1.0,
    launch_ns: float | None = None,
    sync_ns: float | None = None,
    stream: OpStream | None = None,
) -> Prediction:
    """The step that a measured run's program would take under these settings.

    `kit.predict(run)` is the replay of what was measured. `kit.predict(run, device_speed=10)` has
    kernels ten times as fast; `without=["grad_scaler.py"]` does not wait in that file. A run that
    torch made natively on the CPU answers for `device_speed`, `host_speed` and `prefetch`.

    Args:
        run: what was measured; or several runs of one workload. Runs of a second batch size give
            the line on which other batch sizes lie; of further ones the step time is ignored.
        settings: those of the (first) run if not given.
        without: sync points that are not there: parts of their site or of the library line that
            did it, or rows of `kit.trace.sync_table`.
        device_speed: how many times as fast every kernel is.
        host_speed: how many times as fast the host records and launches, or, natively, does all
            that is no kernel, no loading and no sleep.
        launch_ns, sync_ns: what launching one program, and one wait that need not wait, would take;
            those of the run if not given.
        stream: the ops as `kit.plan(workload)` records them, which knows where calls begin and
            which ops are views; by default the run's own graph, which guesses both.

    Raises:
        SettingsError: it cannot be known from this run: the message says why, and what could.
    """
    runs = some_runs(run)
    if isinstance(without, str) or not isinstance(without, Iterable):
        raise SettingsError(f"without must be a list of sync points: [{without!r}]")
    wanted = runs[0].settings if settings is None else settings
    return Model(*runs).answer(
        Question(wanted, tuple(without), device_speed, launch_ns, sync_ns, stream, host_speed)
    )


class Model:
    """A run's costs, worked out once: for many questions about one run, as sliders ask them.

    Args:
        run: what was measured.
        others: runs of the same workload, as `kit.predict` takes them after the first.

    Raises:
        SettingsError: nothing can be predicted from this run.
    """

    def __init__(self, run: Run, *others: Run) -> None:
        self._was_recorded = _was_recorded(run)
        self.run = run = _as_it_ran(run)
        self.native = NativeModel(run) if run.settings.mode == "torch" else None
        self._others = [*map(_as_it_ran, others)]
        self._costs = None if self.native else calibrated(run)

    def answer(self, asked: Question) -> Prediction:
        """What a step would take.

        Raises:
            SettingsError: the runs cannot tell.
        """
        asked = asked.of(self.run)
        if self.native is not None:
            return _native(self.run, self.native, asked)
        asked.check(self.run)
        assert self._costs is not None, "a run that is not native has costs"
        if not (self._was_recorded and asked.settings.step_mode == "replay"):
            return _predict((self.run, *self._others), self._costs, asked)
        recorded = replace(asked, settings=asked.settings.replace(step_mode="retrace"))
        found = _predict((self.run, *self._others), self._costs, recorded)
        why = "the run was to replay its steps and had to record each, so it is taken to again"
        return replace(found, settings=asked.settings, assumptions=(why, *found.assumptions))

    @property
    def stretch(self) -> float:
        """How many times the untraced steps took what the traced parts come to; nan natively."""
        return self._costs.stretch if self._costs else math.nan

    @property
    def syncs(self) -> tuple[SyncPoint, ...]:
        """The sync points of a step that can be taken away."""
        return tuple(sync for syncs in waits_by_segment(self.run).values() for sync in syncs)


def _native(run: Run, model: NativeModel, asked: Question) -> Prediction:
    ns, timeline, assumed = model.predict(asked)
    notes = (*doubts(run), *assumed)
    why = "how far off this is, is not known: no prediction of native steps was compared with a run"
    return Prediction(
        settings=asked.settings,
        step_ms=ns / 1e6,
        timeline=replace(timeline, notes=(*notes, why)),
        of=f"{run.name or 'a run'} (natively) at {format_ms(run.step_ms)}",
        assumptions=(*notes, why),
    )


def _predict(runs: Sequence[Run], costs: Costs, asked: Question) -> Prediction:
    base, wanted, speed = runs[0], asked.settings, asked.device_speed
    notes = doubts(*runs)
    costs = _for_batch(runs, costs, wanted, notes)
    costs = _for_scaling(base, costs, wanted, notes)
    if asked.host_speed != 1.0:
        notes.append(
            f"recording and launching take 1/{asked.host_speed:g} of their time; loading, waits "
            "and hand-overs between threads stay"
        )
        costs = costs.with_faster_host(asked.host_speed)
    if said := on_loading(base.settings.prefetch, wanted.prefetch, costs):
        notes.append(said)
    shape = recut(base, wanted, costs, asked.without, asked.stream, notes)
    if speed != 1.0:
        stays = "; host callbacks take as long" if shape.calls else ""
        notes.append(f"every kernel takes 1/{speed:g} of its time, whatever limits it{stays}")
        shape = replace(shape, device=tuple(d / speed for d in shape.device))
    costs = with_overheads(base, costs, asked.launch_ns, asked.sync_ns, notes)
    step, timeline = modelled(shape, costs, notes)
    low, high, why = interval_ms(step / 1e6, base, asked, costs.stretch)
    return Prediction(
        settings=wanted,
        step_ms=step / 1e6,
        timeline=replace(timeline, notes=(*timeline.notes, why)),
        of=_described(runs),
        assumptions=(*notes, why),
        segments=len(shape.segments),
        syncs=sum(map(len, shape.waits.values())),
        low_ms=low,
        high_ms=high,
    )


def _was_recorded(run: Run) -> bool:
    """Was it to replay its steps, and recorded each? A step that reads is."""
    return run.settings.step_mode == "replay" and not run.metrics.get("replay.steps")


def _as_it_ran(run: Run) -> Run:
    if not _was_recorded(run):
        return run
    return replace(run, settings=run.settings.replace(step_mode="retrace"))


def calibrated(run: Run) -> Costs:
    """The run's costs, so that a replay of it takes what its untraced steps took."""
    costs = costs_of(run)
    if math.isnan(run.step_ms) or not run.step_ms > 0:
        raise SettingsError("the run has no measured step, so nothing says how long its parts take")
    ratio = run.step_ms * 1e6 / _replayed_ns(run, costs)
    costs = replace(costs, stretch=ratio)
    for _ in range(_ROUNDS):
        if abs(ratio - 1) < _CLOSE:
            return costs
        costs = costs.scaled(ratio)
        ratio = run.step_ms * 1e6 / _replayed_ns(run, costs)
    return costs.scaled(ratio, overheads=True)


def _replayed_ns(run: Run, costs: Costs) -> float:
    waits, segments = waits_by_segment(run), run.segments
    device = device_times(run.graphs[0], segments, segments, costs)
    ns = step_ns(shape_of(run, run.settings, run.graphs[0], segments, device, waits), costs)
    return max(ns, 1.0)


def _for_batch(runs: Sequence[Run], costs: Costs, wanted: Settings, notes: list[str]) -> Costs:
    base, size = runs[0], wanted.batch_size
    if size == base.settings.batch_size:
        return costs
    alike = [r for r in runs[1:] if not unlike(base.settings, r.settings)]  # else another step
    others = [r for r in alike if r.settings.batch_size != base.settings.batch_size]
    if not others:
        raise SettingsError(
            f"batch_size={size} cannot be told from runs with {base.settings.batch_size} alone: "
            "some kernels grow with the batch and some do not. Measure a second batch size under "
            "the same settings and give both runs: kit.predict([run_a, run_b], settings)"
        )
    other = min(others, key=lambda r: abs(r.settings.batch_size - size))
    first, second = base.settings.batch_size, other.settings.batch_size
    notes.append(
        f"device time and input lie on a line through batch sizes {first} and {second}; recording "
        "does not depend on the batch"
    )
    made = between(costs, calibrated(other), (size - first) / (second - first))
    return replace(made, border=made.border * size / first)


def _for_scaling(run: Run, costs: Costs, wanted: Settings, notes: list[str]) -> Costs:
    """The update with more ops, or fewer, if dynamic loss scaling comes or goes."""
    before, after = (s.scaling.is_dynamic for s in (run.settings, wanted))
    if before == after or not costs.record:
        return costs
    around_check(run.graphs[0])  # an error where nothing is updated
    ops = Counter(run.graphs[0].nodes[i].phase for i in run.graphs[0].ops)
    mean = sum(costs.record[phase] * n for phase, n in ops.items()) / sum(ops.values())
    change = SCALER_OPS * (after - before) * mean / ops["update"]
    notes.append(
        f"dynamic loss scaling is {SCALER_OPS} more ops to record, each of which costs "
        "what the run's ops do; the device hardly notices"
    )
    update = max(costs.record["update"] + change, 0.3 * costs.record["update"])
    return replace(costs, record={**costs.record, "update": update})


def _described(runs: Sequence[Run]) -> str:
    first = runs[0]
    s = first.settings
    bulk = "no limit" if s.mode == "lazy" else f"bulk {s.bulk_in_force.forward}"
    said = [s.mode, bulk]
    if not is_of_strangers(first):
        sizes = dict.fromkeys(str(r.settings.batch_size) for r in runs)
        said += [f"batch {' and '.join(sizes)}", s.loss_scaling]
    told = ", ".join([*said, s.step_mode])
    return f"{first.name or 'a run'} ({told}) at {format_ms(first.step_ms)}"
