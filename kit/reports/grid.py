"""What varies over some runs, and through which values: the report's controls.

Runs of one workload differ in their settings; variants of a step have names of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.runs.knob import Knob, knobs_of
from kit.runs.run import Run
from kit.text import safe_label

__all__ = ["Axis", "axes_of", "cell_of"]

_MOST = 80  # characters of a run's name


@dataclass(frozen=True)
class Axis:
    """A setting, or the runs' name, that varies, and its values in order."""

    name: str
    values: tuple[Any, ...]
    knob: Knob | None = None  # the setting; None for the runs' name

    @property
    def label(self) -> str:
        """Its name as a reader says it."""
        return self.knob.label if self.knob else "variant"

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
            "values": [self._shown(v) for v in self.values],
        }

    def _shown(self, value: Any) -> str:
        return self.knob.shown(value) if self.knob else safe_label(str(value), _MOST)


def axes_of(runs: Sequence[Run]) -> tuple[Axis, ...]:
    """An axis for each name or setting that takes more than one value.

    Numbers ascend; words stand as the runs bring them, but modes as the table of settings.
    """
    names = tuple(dict.fromkeys(run.name for run in runs))
    axes = [Axis("name", names)] if len(names) > 1 else []
    for knob in _knobs(runs):
        values = list(dict.fromkeys(getattr(run.settings, knob.name) for run in runs))
        if len(values) > 1:
            is_ordered = not knob.values or knob.name == "mode"
            order = knob.values.index if knob.values else None
            ordered = sorted(values, key=order) if is_ordered else values
            axes.append(Axis(knob.name, tuple(ordered), knob))
    return tuple(axes)


def cell_of(run: Run) -> tuple[Any, ...]:
    """What tells two cells of a sweep apart."""
    return (run.name, *(getattr(run.settings, knob.name) for knob in _knobs([run])))


def _knobs(runs: Sequence[Run]) -> tuple[Knob, ...]:
    return knobs_of(runs[0].settings) if runs else ()


def _value(run: Run, name: str) -> Any:
    return run.name if name == "name" else getattr(run.settings, name)
