"""What `autotune` found: `Trial`, one setting's runs; `choose`, the rule; `Tuned`, the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kit.runs.change import Difference, step_interval, steps_difference
from kit.runs.knob import Knob, knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.text import format_count, format_ms, format_number

__all__ = ["CUT", "Programs", "Trial", "Tuned", "choose", "in_words", "program_of", "same_losses",
           "training_of", "work_of"]  # fmt: skip

TOLERANCE = {"float32": 2e-3}  # of a loss, relative
LOW_PRECISION = 3e-2
CUT = ("mode", "bulk_forward", "bulk_backward")  # said together: how the step is cut
_SIZES = (*CUT, "bulk_inference")  # told apart by the sizes in force


def work_of(settings: Settings) -> tuple[Any, ...]:
    """Equal for settings that make the same happen: mode "lazy" has no use for bulk sizes."""
    return _told_apart(settings, lambda knob: not knob.is_measuring)


def program_of(settings: Settings) -> tuple[Any, ...]:
    """Equal for settings that compile the same programs: those of a step mode are its retraced."""
    return _told_apart(settings, lambda knob: knob.is_compiled)


def training_of(settings: Settings) -> tuple[Any, ...]:
    """Equal for settings whose losses must be the same."""
    return tuple(getattr(settings, knob.name) for knob in knobs_of(settings) if knob.is_training)


def _told_apart(settings: Settings, counts: Callable[[Knob], bool]) -> tuple[Any, ...]:
    """What these knobs do under these settings: those without effect in the mode are left out."""
    values = [
        getattr(settings, knob.name)
        for knob in knobs_of(settings)
        if counts(knob) and knob.has_effect(settings.mode) and knob.name not in _SIZES
    ]
    inference = 0 if settings.mode == "torch" else settings.bulk_in_force.inference
    return (*_cut_of(settings), inference, *values)


def same_losses(run: Run, reference: Run) -> bool:
    """Whether two runs of the same training have the same losses, as far as both went.

    Units:
        float32: 2e-3 of the loss, or of a tenth of the largest; lower precision: 3e-2.
    """
    count = min(len(run.losses), len(reference.losses))
    got, expected = np.array(run.losses[:count]), np.array(reference.losses[:count])
    tolerance = TOLERANCE.get(run.settings.dtype, LOW_PRECISION)
    finite = np.abs(expected[np.isfinite(expected)])
    least = tolerance * 0.1 * float(finite.max(initial=0.0))
    return bool(np.allclose(got, expected, rtol=tolerance, atol=least, equal_nan=True))


def in_words(settings: Settings, start: Settings) -> str:
    """What differs from the start: `mode lazy + step_mode replay`."""
    return " + ".join(_changes(settings, start)) or "as given"


def _changes(settings: Settings, start: Settings) -> list[str]:
    """Each change from the start, in words."""
    parts = []
    if _cut_of(settings) != _cut_of(start):
        forward, backward = settings.bulk_sizes
        sizes = f"{forward}" if forward == backward else f"{forward} and {backward}"
        is_cut = settings.mode == "bulked"
        parts.append(
            f"{sizes} {'op' if forward == backward == 1 else 'ops'} a segment"
            if is_cut
            else f"mode {settings.mode}"
        )
    for knob in knobs_of(settings):
        value = getattr(settings, knob.name)
        is_named = knob.name not in CUT and not knob.is_measuring
        if is_named and value != getattr(start, knob.name):
            is_clear = knob.name == "loss_scaling"
            parts.append(str(value) if is_clear else f"{knob.name} {knob.write(value)}")
    return parts


def _cut_of(settings: Settings) -> tuple[Any, ...]:
    """Equal for settings that run and cut the training step alike."""
    if settings.mode == "torch":
        return ("torch",)
    return "lazy" if settings.mode == "lazy" else "cut", settings.bulk_sizes


@dataclass
class Programs:
    """What settings that issue the same programs share, and what compiling these took alone."""

    caches: list[ExecutableCache] = field(default_factory=list)
    compile_ms: float = 0.0
    count: int = 0
    from_disk: int = 0

    def learn(self, run: Run) -> None:
        """The first run compiles all of them, a later one what the first did not need."""
        spent = sum(c.ms for c in run.compiles)
        if spent > self.compile_ms:
            self.compile_ms, self.count = spent, len(run.compiles)
            self.from_disk = sum(c.is_from_disk for c in run.compiles)


@dataclass(eq=False)
class Trial:
    """One setting: its runs, and whether it may be chosen."""

    settings: Settings
    start: Settings
    programs: Programs
    runs: list[Run] = field(default_factory=list)
    finals: list[Run] = field(default_factory=list)  # those that took turns with the other best
    failure: str = ""
    is_same: bool = True  # the losses are those of the reference

    def add(self, run: Run, reference: Run, *, is_final: bool) -> None:
        self.runs.append(run)
        if is_final:
            self.finals.append(run)
        self.is_same = self.is_same and same_losses(run, reference)
        self.programs.learn(run)

    @property
    def is_possible(self) -> bool:
        return bool(self.runs) and not self.failure and self.is_same

    @property
    def words(self) -> str:
        return in_words(self.settings, self.start)

    @property
    def changes(self) -> int:
        """How many settings differ from the start."""
        return len(_changes(self.settings, self.start))

    @property
    def samples_per_step(self) -> int:
        return self.settings.batch_size * self.settings.accumulate

    @property
    def step_ms(self) -> float:
        """The middle one of the runs that count, milliseconds, as `since` has it; nan without."""
        times = [run.step_ms for run in self.counted if run.step_times_ns]
        return float(np.median(times)) if times else math.nan

    @property
    def spread_ms(self) -> float:
        """How far `step_ms` may be off: half of its interval, a further rerun's is wider."""
        low, high = step_interval(*self.counted, of_rerun=False)
        return (high - low) / 2

    def since(self, other: Trial) -> Difference:
        """How much longer a sample takes than in the other trial, and how sure that is.

        Runs that other programs disturbed are in doubt, but for those that took turns often enough.
        """
        return steps_difference(other.counted, self.counted, by_sample=True)

    def seems_since(self, other: Trial) -> Difference:
        """The same as if no other program had been at work: something has to be tried next.

        What the means say against it stays.
        """
        return replace(self.since(other), doubt="")

    @property
    def counted(self) -> list[Run]:
        """The runs that count: those that took turns, if any did."""
        return self.finals or self.runs

    @property
    def ms_per_sample(self) -> float:
        return self.step_ms / self.samples_per_step

    @property
    def spread_per_sample(self) -> float:
        return self.spread_ms / self.samples_per_step

    def counted_memory(self, name: str) -> float:
        """The most of a count of memory, e.g. `peak_bytes`, in any run; nan if no run has it.

        Of all runs: a later one cannot know its own peak where an earlier one has used as much.
        """
        found = (run.metrics.get(f"memory.{name}") for run in self.runs)
        return max((size for size in found if size is not None), default=math.nan)

    def pays_off_after(self, first: Trial) -> float:
        """Steps until the faster step has won back the longer compile; inf: never, nan: not known.

        `compile time more / time won a step`, against the start; 0 if it compiles no longer. What
        is faster or slower within the spread wins and loses nothing that is known.
        """
        if self is not first and not self.since(first).is_changed:
            return math.nan
        more = self.programs.compile_ms - first.programs.compile_ms
        won = (first.ms_per_sample - self.ms_per_sample) * self.samples_per_step
        if more <= 0:
            return 0.0 if won >= 0 else math.inf
        return more / won if won > 0 else math.inf


def choose(trials: Sequence[Trial], first: Trial) -> Trial:
    """The fastest; but a simpler one if the fastest does not win beyond the spread.

    Simpler: fewer settings changed from the start, then fewer compiles. One whose own times are
    erratic cannot be told from the fastest: only those are asked that have won against the start.
    One whose median alone is fast, because each fifth step stalls, is not chosen.
    """
    possible = [t for t in trials if t.is_possible and not _is_slower_in_mean(t, first)]
    won = [t for t in possible if t.seems_since(first).kind == "less"]
    if not possible or (not won and first in possible):
        return first
    fastest = min(won or possible, key=lambda t: t.ms_per_sample)
    tied = [t for t in won or possible if t is fastest or t.seems_since(fastest).kind != "more"]
    return min(tied, key=lambda t: (t.changes, t.programs.count, t.ms_per_sample))


def _is_slower_in_mean(trial: Trial, first: Trial) -> bool:
    """Does the mean step show that it takes longer, against what the median says?"""
    means = trial.seems_since(first).means
    return means is not None and means.amount > 0


@dataclass(frozen=True)
class Tuned:
    """The best settings that were found, and everything that was tried.

    `print(tuned.summary())` says it in words; in a notebook it shows the trade-off of step time
    and compile time.

    Units:
        milliseconds; `tried` has one mapping for each setting, the fastest first: `words`,
        `settings`, `step_ms`, `spread_ms`, `ms_per_sample`, `change` (of a sample's time since the
        given settings, a `kit.runs.change.Difference`), `compile_ms`, `compiles`,
        `compiles_from_disk`, `pays_off_after` (steps; inf: never, nan: not known), `live_bytes`,
        `peak_bytes`, `peak_bound` (what a peak that is not known did not go beyond; nan: not
        measured), `runs`, `steps`, `note`, `is_same` (the losses agree), `is_start`, `is_best`,
        `is_possible`.
    """

    best: Settings
    run: Run  # the last one of the best settings; its steps and warmup are the tuner's
    start: Run  # the same of the given settings
    runs: tuple[Run, ...]
    tried: tuple[Mapping[str, Any], ...]
    budget_s: float
    spent_s: float
    left_out: tuple[str, ...] = ()  # what the budget did not allow
    draw: Callable[[Tuned], Any] | None = field(  # gives a view, or None
        default=None, repr=False, compare=False
    )

    @classmethod
    def of(cls, best: Trial, first: Trial, trials: Iterable[Trial], *, budget_s: float,
           spent_s: float, left_out: Iterable[str] = (), draw: Any = None) -> Tuned:  # fmt: skip
        """Freeze what was measured."""
        trials = sorted(trials, key=_order)
        return cls(
            best=best.settings, run=best.runs[-1], start=first.runs[-1],
            runs=tuple(run for trial in trials for run in trial.runs),
            tried=tuple(_row(trial, best, first) for trial in trials),
            budget_s=budget_s, spent_s=spent_s, left_out=tuple(dict.fromkeys(left_out)), draw=draw,
        )  # fmt: skip

    @property
    def speedup(self) -> float:
        """Time of a sample under the given settings, over that under the best; 1.0 if they are."""
        start, best = self._row("is_start"), self._row("is_best")
        return float(start["ms_per_sample"] / best["ms_per_sample"])

    def summary(self) -> str:
        """What was found, in words, and what to do with it."""
        best, start = self._row("is_best"), self._row("is_start")
        lines = [_verdict(best, start, self.speedup, self.tried)]
        if not start["is_same"]:
            lines.append(
                "Its losses differ from one run to the next under the same settings, so "
                "that no other can be told to compute the same: seed what is random, with "
                "ctx.seed."
            )
        for note in dict.fromkeys(row["note"] for row in self.tried if row["note"]):
            names = "; ".join(row["words"] for row in self.tried if row["note"] == note)
            lines.append(f"Not chosen, {note}: {names}.")
        if self.left_out:
            lines.append(
                f"The budget of {self.budget_s:g} s did not allow all of: "
                f"{', '.join(self.left_out)}. Give more with budget_s=."
            )
        if not best["is_start"]:
            lines.append("To use it: kit.run(workload, tuned.best).")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def _row(self, name: str) -> Mapping[str, Any]:
        return next(row for row in self.tried if row[name])

    def _ipython_display_(self) -> None:
        view = self.draw(self) if self.draw else None
        if view is None:
            raise NotImplementedError  # so IPython writes its `repr`
        view._ipython_display_()


def _order(trial: Trial) -> tuple[bool, float]:
    return not trial.is_possible, math.inf if math.isnan(trial.step_ms) else trial.ms_per_sample


def _row(trial: Trial, best: Trial, first: Trial) -> dict[str, Any]:
    note = f"because it failed ({trial.failure})" if trial.failure else ""
    if not trial.is_same and trial is not first:
        note = "because its losses differ"
    return {
        "words": trial.words,
        "settings": trial.settings,
        "step_ms": trial.step_ms,
        "spread_ms": trial.spread_ms,
        "ms_per_sample": trial.ms_per_sample,
        "change": trial.since(first),
        "compile_ms": trial.programs.compile_ms,
        "compiles": trial.programs.count,
        "compiles_from_disk": trial.programs.from_disk,
        "pays_off_after": trial.pays_off_after(first),
        "live_bytes": trial.counted_memory("live_bytes"),
        "peak_bytes": trial.counted_memory("peak_bytes"),
        "peak_bound": trial.counted_memory("peak_bound"),
        "runs": len(trial.runs),
        "steps": sum(len(run.step_times_ns) for run in trial.runs),
        "note": note,
        "is_same": trial.is_same,
        "is_start": trial is first,
        "is_best": trial is best,
        "is_possible": trial.is_possible,
    }


def _verdict(best: Mapping[str, Any], start: Mapping[str, Any], speedup: float,
             tried: Sequence[Mapping[str, Any]]) -> str:  # fmt: skip
    if best["is_start"]:
        return _kept(start, [row for row in tried if not row["is_start"]])
    is_same = training_of(best["settings"]) == training_of(start["settings"])
    name, unit = ("step_ms", "step") if is_same else ("ms_per_sample", "sample")
    more = (best["compile_ms"] - start["compile_ms"]) / 1e3
    if abs(more) < 0.05:
        cost = "compiling takes as long"
    elif more < 0:
        cost = f"compiling takes {-more:.1f} s less"
    else:
        cost = f"compiling takes {more:.1f} s more{_paid_back(best)}"
    change = best["change"]
    return (
        f"{best['words']}: {'' if change.is_changed else 'maybe '}{format_number(speedup)}x as "
        f"fast as what you gave ({format_ms(best[name])} a {unit} instead of "
        f"{format_ms(start[name])}, {change.text()}); {cost}."
    )


def _kept(start: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """That the start is the best, and how far off the next one is; the fastest comes first."""
    ms = f"{format_ms(start['step_ms'])} a step"
    if not others:
        return f"Only what you gave was measured: {ms}."
    text = f"What you gave is kept: {ms}. Of {format_count(len(others), 'other setting')} none is "
    possible = [row for row in others if row["is_possible"]]
    if not possible:
        return f"{text}possible."
    next_ = possible[0]
    return f"{text}surely faster; the next is {next_['words']}: {next_['change'].text()}."


def _paid_back(row: Mapping[str, Any]) -> str:
    after = row["pays_off_after"]
    if math.isnan(after):
        return ""
    paid = "never" if math.isinf(after) else f"after {format_count(math.ceil(after), 'step')}"
    return f", paid back {paid}"
