"""What tells runs apart that were measured under the same settings: before and after a change.

A label that was given says it best; else the name of the file, its folder, the commit of git, or
the time; and where nothing else differs, the order in which the runs come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from kit.runs.knob import knobs_of
from kit.runs.run import BASELINE, JIT, Run
from kit.runs.settings import GPUS

__all__ = [
    "COMMIT",
    "ENDS_AT",
    "IMPORTED",
    "OF_MACHINE",
    "TIME",
    "VALUES",
    "WATCHED",
    "cell_of",
    "device_of",
    "has_other_samples",
    "is_native",
    "is_of_jax",
    "is_of_jit",
    "is_of_strangers",
    "is_on_cpu",
    "is_on_gpu",
    "label_of",
    "labels_of",
    "samples_of",
    "told_settings",
]

# keys in a run's environment
COMMIT, TIME = "git commit", "measured at"
WATCHED = "watched"  # how the recording of a loop by `kit.watch` ended
VALUES = "workload values"  # digests of those that the builder reads
ENDS_AT = "a step ends at"  # of such a loop: the call and its line
IMPORTED = "imported from"  # the format of a foreign trace
# What a step takes differs by these: runs in which one of them differs do not compare.
OF_MACHINE = ("jax", "torch", "python", "cores", "cores for XLA", "threads of torch")


def is_of_strangers(run: Run) -> bool:
    """Its program was never told these settings: what they say of batch and dtype is not known."""
    return WATCHED in run.environment or IMPORTED in run.environment


def is_of_jax(run: Run) -> bool:
    """Is its program written in jax? A watched loop may be, which is not known."""
    had = run.environment
    return had.get(IMPORTED) == "jax profile" or ("jax" in had and "torch" not in had)


def is_of_jit(run: Run) -> bool:
    """Did jax run its steps by itself, compiled by jax.jit? Nobody sees what reads its arrays."""
    return run.environment.get(BASELINE) == JIT


def is_native(run: Run) -> bool:
    """Did torch run its traced steps by itself, watched by kit? Also of one that was exported.

    Only device kit names jax beside torch.
    """
    had = run.environment
    is_torchs = "torch" in had and "jax" not in had
    return run.settings.mode == "torch" and run.traced_as == "profiled" and is_torchs


def samples_of(run: Run) -> int:
    """How many samples a step of it holds; 0 if its program was never told a batch size."""
    return 0 if is_of_strangers(run) else run.settings.batch_size * run.settings.accumulate


def has_other_samples(old: Run, new: Run) -> bool:
    """Do their steps hold different numbers of samples, so that step times do not compare?

    Of a trace of another program nobody knows: then steps are compared.
    """
    a, b = samples_of(old), samples_of(new)
    return a != b and 0 not in (a, b)


def label_of(run: Run) -> str:
    """What one run is called beside another: its label, else its file, commit and time, or name."""
    commit = " ".join(filter(None, (run.environment.get(COMMIT), run.environment.get(TIME))))
    return run.label or _stem(run) or commit or run.name or "unnamed run"


def device_of(run: Run, otherwise: str = "") -> str:
    """What it ran on, in words; of a CPU jax knows its platform only, and says that twice."""
    device = run.environment.get("device", run.settings.device)
    if device == "auto":
        device = otherwise or device
    return "cpu" if device == "cpu (cpu)" else device


def is_on_cpu(run: Run) -> bool:
    """Does it say that its steps ran on a CPU?"""
    return run.environment.get("device", "").startswith("cpu")


def is_on_gpu(run: Run) -> bool:
    """The same of a GPU."""
    return run.environment.get("device", "").startswith(GPUS)


def told_settings(run: Run) -> dict[str, Any]:
    """The settings that somebody chose, by name.

    Of a watched script and of a trace, what a builder follows is not among them, such as the batch
    size, of which nothing is known; nor how many steps went before and were measured: that was
    counted, and the next recording may count others.
    """
    rows = knobs_of(run.settings)
    if is_of_strangers(run):
        rows = tuple(row for row in rows if not (row.is_measuring or row.is_of_builders))
    return {row.name: getattr(run.settings, row.name) for row in rows}


def cell_of(run: Run) -> tuple[Any, ...]:
    """What tells two cells of a sweep apart: the workload's name and the settings."""
    return (run.name, *told_settings(run).items())


def labels_of(runs: Sequence[Run], cells: Sequence[Hashable]) -> tuple[str, ...]:
    """A label for each run, such that no two runs of the same cell share one.

    Args:
        cells: for each run what else tells it from the others, such as its settings.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, cell in enumerate(cells):
        groups[cell].append(i)
    repeated = [places for places in groups.values() if len(places) > 1]
    for scheme in _schemes(is_one_group=len(repeated) == 1):
        labels = tuple(map(scheme, runs))
        if all(labels) and all(len({labels[i] for i in x}) == len(x) for x in repeated):
            return labels
    return tuple(_ordinals(cells))


def _schemes(*, is_one_group: bool) -> Iterator[Callable[[Run], str]]:
    """What may tell the runs apart, the best first; times only if they make no long list."""
    yield lambda run: run.label or _stem(run)
    yield _stem
    yield lambda run: PurePath(run.file).parent.name
    yield lambda run: str(PurePath(run.file).with_suffix("")) if run.file else ""
    yield lambda run: run.environment.get(COMMIT, "")
    if is_one_group:
        yield lambda run: _joined(run.environment.get(COMMIT, ""), run.environment.get(TIME, ""))


def _joined(commit: str, time: str) -> str:
    return f"{commit} {time}".strip() if time else ""


def _ordinals(cells: Sequence[Hashable]) -> Iterator[str]:
    count: Counter[Hashable] = Counter()
    for cell in cells:
        count[cell] += 1
        yield f"measurement {count[cell]}"


def _stem(run: Run) -> str:
    return PurePath(run.file).stem if run.file else ""
