"""Which settings vary over some runs, and through which values: the report's controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.run import MODES, UNLIMITED, Settings

__all__ = ["Axis", "axes_of", "cell_of"]

# What a reader may want to move, in the order of the controls.
_MOVABLE = ("mode", "loss_scaling", "bulk_forward", "bulk_backward", "batch_size", "accumulate",
            "prefetch", "dtype", "segment_mode", "step_mode", "device", "seed", "steps",
            "warmup")  # fmt: skip
_LABELS = {"mode": "run mode", "bulk_forward": "bulk size forward", "loss_scaling": "loss scaling",
           "bulk_backward": "bulk size backward", "batch_size": "batch size"}  # fmt: skip
_WORDS = {"torch": "torch (native)"}


@dataclass(frozen=True)
class Axis:
    """One setting that varies, and its values in order."""

    name: str
    values: tuple[Any, ...]

    @property
    def label(self) -> str:
        """The setting's name as a reader says it."""
        return _LABELS.get(self.name, self.name.replace("_", " "))

    @property
    def is_number(self) -> bool:
        """True if the control is a slider."""
        return all(isinstance(v, int) for v in self.values)

    def index(self, settings: Settings) -> int:
        """Where these settings are on this axis."""
        return self.values.index(getattr(settings, self.name))

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {"name": self.name, "label": self.label, "number": self.is_number,
                "values": [_text(v) for v in self.values]}  # fmt: skip


def axes_of(settings: Sequence[Settings]) -> tuple[Axis, ...]:
    """An axis for each setting that takes more than one value, numbers ascending."""
    axes = []
    for name in _MOVABLE:
        values = list(dict.fromkeys(getattr(s, name) for s in settings))
        if len(values) > 1:
            order = MODES.index if name == "mode" else None
            numbers = all(isinstance(v, int) for v in values)
            ordered = sorted(values, key=order) if numbers or order else values
            axes.append(Axis(name, tuple(ordered)))
    return tuple(axes)


def cell_of(settings: Settings) -> tuple[Any, ...]:
    """What tells two cells of a sweep apart."""
    return tuple(getattr(settings, name) for name in _MOVABLE)


def _text(value: Any) -> str:
    if isinstance(value, int) and value >= UNLIMITED:
        return "unlimited"
    return _WORDS.get(str(value), str(value))
