"""What varies over some runs, and through which values: the report's controls.

Runs of one workload differ in their settings; variants of a step have names of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.run import Run
from kit.runs.settings import MODES
from kit.text import safe_label

__all__ = ["Axis", "axes_of", "cell_of"]

# What a reader may want to move, in the order of the controls: the run's name, then settings.
_MOVABLE = ("name", "mode", "loss_scaling", "bulk_forward", "bulk_backward", "batch_size",
            "accumulate", "prefetch", "dtype", "segment_mode", "step_mode", "device", "seed",
            "steps", "warmup")  # fmt: skip
_LABELS = {"name": "variant", "mode": "run mode", "bulk_forward": "bulk size forward",
           "loss_scaling": "loss scaling", "bulk_backward": "bulk size backward",
           "batch_size": "batch size"}  # fmt: skip
_MOST = 80  # characters of a run's name
_WORDS = {"torch": "torch (native)"}


@dataclass(frozen=True)
class Axis:
    """A setting, or the runs' name, that varies, and its values in order."""

    name: str
    values: tuple[Any, ...]

    @property
    def label(self) -> str:
        """Its name as a reader says it."""
        return _LABELS.get(self.name, self.name.replace("_", " "))

    @property
    def is_number(self) -> bool:
        """True if the control is a slider."""
        return all(isinstance(v, int) for v in self.values)

    def index(self, run: Run) -> int:
        """Where this run is on this axis."""
        return self.values.index(_value(run, self.name))

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "label": self.label,
            "number": self.is_number,
            "values": [_text(v) for v in self.values],
        }


def axes_of(runs: Sequence[Run]) -> tuple[Axis, ...]:
    """An axis for each name or setting that takes more than one value, numbers ascending."""
    axes = []
    for name in _MOVABLE:
        values = list(dict.fromkeys(_value(run, name) for run in runs))
        if len(values) > 1:
            order = MODES.index if name == "mode" else None
            numbers = all(isinstance(v, int) for v in values)
            ordered = sorted(values, key=order) if numbers or order else values
            axes.append(Axis(name, tuple(ordered)))
    return tuple(axes)


def cell_of(run: Run) -> tuple[Any, ...]:
    """What tells two cells of a sweep apart."""
    return tuple(_value(run, name) for name in _MOVABLE)


def _value(run: Run, name: str) -> Any:
    return run.name if name == "name" else getattr(run.settings, name)


def _text(value: Any) -> str:
    if isinstance(value, int) and value >= UNLIMITED:
        return "unlimited"
    return _WORDS.get(str(value), safe_label(str(value), _MOST))
