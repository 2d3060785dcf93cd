"""How wrong are the what-if model's predictions? Each setting predicted from another measured one.

    NPROC=1 python benchmarks/whatif.py --judge            # four minutes: the honest figures
    NPROC=1 python benchmarks/whatif.py [--rounds 5] [--only mlp bert] [--folder runs/]

The model's constants were chosen on the workloads of the second form. `--judge` measures others, on
which none was (`benchmarks/unfitted.py`). A run that says itself that the machine was disturbed
(`run.doubt`) is left out, and every pair with it, before anything is predicted.

Every workload runs under a grid of settings, in rounds, so that a machine that is slow for a while
is slow for all of them. Of each setting the fastest four steps in a row count, of all rounds, as
source and as target: other people's work on the machine only ever adds time. Then each run predicts
each other one. Columns:

    itself    the largest error of a replay of the very run that it was made from
    again     the same settings, predicted from half of the rounds, measured in the other half: the
              median; no prediction can be better than such a second measurement
    changed   median error under other settings, and its 90th percentile
    Spearman  how well the predictions from one run rank the settings; median over the runs

Then a table of the intervals: of the predictions from each run, of all its steps, for the runs of
the other rounds, how many measured steps lie in the interval, and how wide it would have to be for
nine of ten, beside the spread of the run's own steps. `kit/runs/whatif/errors.py` has that figure.

With a folder, the runs are kept there, and those that are there already are not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from unfitted import UNFITTED

import kit
from kit.errors import SettingsError
from kit.measure.experiment import run as measure
from kit.runs.change import step_interval
from kit.runs.settings import ENOUGH
from kit.runs.whatif.predict import Model
from kit.runs.whatif.question import Question
from kit.runtime.compiling.cache import ExecutableCache
from kit.trace.simulate import Work, simulate
from kit.workloads import bert_of, convnet, flips, mlp, zero_grad_by

CHECK, ON_DEVICE, LATE = "dynamic, host check", "dynamic, on device", "dynamic, deferred"
CUTS: list[dict[str, Any]] = [
    {},
    {"mode": "imperative"},
    {"bulk_forward": 5, "bulk_backward": 5},
    {"bulk_forward": 50, "bulk_backward": 50},
    {"mode": "lazy"},
    {"step_mode": "replay"},
    {"step_mode": "speculate"},
    {"step_mode": "replay", "bulk_forward": 50, "bulk_backward": 50},
]
TRAINING = [
    *CUTS,
    {"batch_size": 2},
    {"batch_size": 2, "mode": "lazy"},
    {"loss_scaling": CHECK},
    {"loss_scaling": ON_DEVICE},
    {"loss_scaling": LATE},
    {"loss_scaling": CHECK, "mode": "lazy"},
    {"loss_scaling": ON_DEVICE, "mode": "lazy"},
    {"accumulate": 2},
]
WORKLOADS = {
    "mlp": (mlp, TRAINING),
    "flips": (flips, CUTS),
    "zero_grad": (zero_grad_by("loop", arrays=100, repeats=4), CUTS),
    "bert": (bert_of("tiny"), TRAINING),
    "resnet50_v1b": (convnet("resnet50_v1b", "tiny"), TRAINING),
}
JUDGED: list[dict[str, Any]] = [
    {},
    {"mode": "imperative"},
    {"mode": "lazy"},
    {"mode": "lazy", "step_mode": "replay"},
    {"step_mode": "speculate"},
    {"loss_scaling": CHECK},
    {"loss_scaling": CHECK, "mode": "lazy"},
    {"loss_scaling": ON_DEVICE, "mode": "lazy"},
    {"prefetch": 2, "mode": "lazy"},
    {"accumulate": 2},
]
WORKLOADS_OF = {False: WORKLOADS, True: {name: (work, JUDGED) for name, work in UNFITTED.items()}}
IN_A_ROW = 4  # steps: one alone may be short because the one before it was long
TARGETS = "target: replay 3 %, changed 10 % and 25 %, Spearman 0.9"
Rounds = list[dict[int, kit.Run]]  # of each round: cell -> its run
Pairs = dict[tuple[int, int], float]  # (source, target) -> predicted / measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", action="store_true", help="workloads that were not fitted")
    parser.add_argument("--rounds", type=int, help="5, or 3 to judge")
    parser.add_argument(
        "--steps", type=int, default=0, help="at least 6; by default a second of them"
    )
    parser.add_argument("--only", nargs="*", choices=[*WORKLOADS, *UNFITTED])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--worst", type=int, default=0, help="list so many of the worst pairs")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.judge else 5)
    workloads = WORKLOADS_OF[options.judge]
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"NPROC={os.environ.get('NPROC', 'unset')}, {options.rounds} rounds of "
        f"{options.steps or 'a second of'} steps. {TARGETS}"
    )
    print(f"{'':14}{'pairs':>7}{'itself':>9}{'again':>9}{'changed':>9}{'90th':>8}{'Spearman':>10}")
    totals: list[list[float]] = [[], [], []]
    expected: dict[str, list[Expected]] = {}
    for name in options.only or workloads:
        rounds, left_out = undisturbed(measured(name, *workloads[name], options))
        runs = fastest(rounds)
        for kind, found_there in intervals(rounds).items():
            expected.setdefault(kind, []).extend(found_there)
        if left_out:
            print(f"{name}: {left_out} runs are left out: the machine was disturbed")
        if len(runs) < 2:
            print(f"{name}: nothing to predict from")
            continue
        pairs = predicted(runs)
        errors = [abs(ratio - 1) for ratio in pairs.values()]
        found = [errors, own(runs), replayed(rounds)]
        for total, part in zip(totals, found, strict=True):
            total += part
        if all(found):
            row(name, *found, statistics.median(ranks(runs, pairs) or [float("nan")]))
        worst = sorted(pairs.items(), key=lambda pair: -abs(pair[1] - 1))
        for (i, j), ratio in worst[: options.worst]:
            print(f"    {workloads[name][1][i]} -> {workloads[name][1][j]}: {ratio:.2f}")
    if all(totals):
        row("all", *totals, float("nan"))
    for kind, each in expected.items():
        inside = statistics.mean(math.isfinite(e.least) for e in each)
        held = statistics.mean(e.is_held for e in each)
        needed = float(np.percentile([e.needs for e in each], 90))
        print(
            f"{kind}: {len(each)} predictions, {inside:.0%} with an interval; {held:.0%} of all "
            f"measured steps in it; nine of ten need {needed:.0%} beside the runs' spread"
        )
    print(f"simulating 1,000 segments takes {simulation_ms():.1f} ms")


def row(
    name: str, errors: list[float], itself: list[float], again: list[float], rank: float
) -> None:
    """One line of the table."""
    print(
        f"{name:14}{len(errors):7}{_percent(max(itself))}{_percent(statistics.median(again))}"
        f"{_percent(statistics.median(errors))}{_percent(float(np.percentile(errors, 90)), 8)}"
        f"{rank:10.2f}",
        flush=True,
    )


def _percent(share: float, width: int = 9) -> str:
    return f"{share:.1%}".rjust(width)


def measured(
    name: str, workload: Any, cells: list[dict[str, Any]], options: argparse.Namespace
) -> Rounds:
    """All cells of a workload, in rounds; they share what they compile."""
    base = kit.Settings(steps=options.steps or ENOUGH, warmup=5, bulk_forward=15, bulk_backward=15)
    cache = ExecutableCache()
    made: Rounds = []
    for r in range(options.rounds):
        made.append({})
        for i, cell in enumerate(cells):
            path = options.folder / f"{name}.{i}.{r}.kit" if options.folder else None
            if path is not None and path.exists():
                made[-1][i] = kit.Run.load(path)
                continue
            made[-1][i] = measure(workload, base.replace(**cell), cache=cache)
            if path is not None:
                made[-1][i].save(path)
    return made


def undisturbed(rounds: Rounds) -> tuple[Rounds, int]:
    """The rounds without the runs that say that the machine was disturbed, and how many these are.

    The rule is the kit's own, and looks at no prediction.
    """
    kept = [{i: run for i, run in runs.items() if not run.doubt} for runs in rounds]
    return kept, sum(map(len, rounds)) - sum(map(len, kept))


def fastest(rounds: Rounds) -> dict[int, kit.Run]:
    """Of each cell the run with the fastest `IN_A_ROW` steps, and of it these steps alone."""
    found: dict[int, kit.Run] = {}
    for runs in rounds:
        for i, run in runs.items():
            quiet = _quiet(run)
            if i not in found or quiet.step_ms < found[i].step_ms:
                found[i] = quiet
    return dict(sorted(found.items()))


def _quiet(run: kit.Run) -> kit.Run:
    """The run as if only its fastest steps had been measured, each at their mean."""
    times = np.array(run.step_times_ns[1:-1])  # the first runs ahead, the last waits for it
    means = np.convolve(times, np.ones(IN_A_ROW) / IN_A_ROW, mode="valid")
    return replace(run, step_times_ns=(round(float(means.min())),))


def predicted(runs: dict[int, kit.Run]) -> Pairs:
    """What each run says of each other one, over what that one took, where it can be said."""
    found: Pairs = {}
    models = {i: Model(run) for i, run in runs.items()}
    for i, j in itertools.permutations(runs, 2):
        second = [*_second(runs, i, j)]
        wanted = runs[j].settings
        try:
            model = Model(runs[i], *second) if second else models[i]
            made = model.answer(Question(wanted))
        except SettingsError:
            continue  # it says that this cannot be known from that
        found[i, j] = made.step_ms / runs[j].step_ms
    return found


def _second(runs: dict[int, kit.Run], i: int, j: int) -> Iterator[kit.Run]:
    """For another batch size: a run of it under the source's settings, but never the target."""
    wanted = runs[i].settings.replace(batch_size=runs[j].settings.batch_size)
    if wanted.batch_size != runs[i].settings.batch_size:
        yield from (run for k, run in runs.items() if k != j and run.settings == wanted)


def replayed(rounds: Rounds) -> list[float]:
    """The same settings, predicted from half of the rounds and measured in the other half."""
    first, second = fastest(rounds[::2]), fastest(rounds[1::2] or rounds)
    both = [i for i in first if i in second]
    return [abs(kit.predict(first[i]).step_ms / second[i].step_ms - 1) for i in both]


@dataclass(frozen=True)
class Expected:
    """A prediction's interval, and the step that was measured then."""

    least: float
    most: float
    measured: float
    needs: float  # known error with which this step would lie just at the interval's end

    @property
    def is_held(self) -> bool:
        return self.least <= self.measured <= self.most


def intervals(rounds: Rounds) -> dict[str, list[Expected]]:
    """By the kind of question: what each run says of the runs of the other rounds."""
    found: dict[str, list[Expected]] = {}
    for here, runs in enumerate(rounds):
        for run in runs.values():
            model, ends = Model(run), step_interval(run, of_rerun=False)
            spread = np.log(np.divide(*ends[::-1])) / 2
            for other in (
                r for there, runs in enumerate(rounds) if there != here for r in runs.values()
            ):
                try:
                    made = model.answer(Question(other.settings))
                except SettingsError:
                    continue
                kind = _kind(run.settings, other.settings)
                known = spread**2
                if kind != "the same" and model.stretch > 1:
                    known += math.log(model.stretch) ** 2
                apart = math.log(made.step_ms / other.step_ms) ** 2 - known
                needs = math.expm1(math.sqrt(max(apart, 0.0)))
                expected = Expected(made.low_ms, made.high_ms, other.step_ms, needs)
                found.setdefault(kind, []).append(expected)
    return found


def _kind(a: kit.Settings, b: kit.Settings) -> str:
    """Which of the known errors is that of a prediction from one to the other."""
    if a == b:
        return "the same"
    if a.prefetch != b.prefetch:
        return "other prefetch"
    return "replay" if b.step_mode == "replay" != a.step_mode else "other settings"


def own(runs: dict[int, kit.Run]) -> list[float]:
    """The same settings, predicted from the very run: what the simulation alone gets wrong."""
    return [abs(kit.predict(run).step_ms / run.step_ms - 1) for run in runs.values()]


def ranks(runs: dict[int, kit.Run], pairs: Pairs) -> list[float]:
    """For each source, how well its predictions rank the settings."""
    found = []
    for source in runs:
        targets = [j for i, j in pairs if i == source]
        if len(targets) > 3:
            times = [runs[j].step_ms for j in targets]
            said = [t * pairs[source, j] for t, j in zip(times, targets, strict=True)]
            found.append(spearman(said, times))
    return found


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of the ranks; without ties, as times have none."""
    x, y = (np.argsort(np.argsort(v)) for v in (a, b))
    return float(np.corrcoef(x, y)[0, 1])


def simulation_ms() -> float:
    """Median time of simulating 1,000 segments on host, worker and device."""
    work: list[Work] = []
    for k in range(1000):
        work.append(Work("host", "record", "record", 900, (), "python"))
        after = (len(work) - 1,) if k == 0 else (len(work) - 1, len(work) - 2)
        work.append(Work("worker", "launch", "dispatch", 500, after, "python"))
        work.append(Work("device", "kernels", "kernel", 800, (len(work) - 1,)))
    times = []
    for _ in range(15):
        start = time.perf_counter()
        simulate(work)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main()
