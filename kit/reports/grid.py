"""What varies over some runs, and through which values: the report's controls.

Runs of one workload differ in their settings; variants of a step have names of their own; runs
that were measured before and after a change differ in their labels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from kit.runs.knob import Knob, knobs_in
from kit.runs.labels import labels_of, told_settings
from kit.runs.run import Run
from kit.text import safe_label, safe_terminal

__all__ = ["Axis", "axes_of", "baselines"]

_MOST = 80  # characters of a run's name
# What the axes of runs' names and labels are called; the second, if a builder's knob is called so.
_NAMES = ("variant", "run's name")
_LABELS = ("run", "run's label")


@dataclass(frozen=True)
class Axis:
    """A setting, the runs' name or their label, that varies: its values, and where each run is."""

    name: str
    values: tuple[Any, ...]  # in order
    places: tuple[int, ...]  # of each run, among the values
    knob: Knob | None = None  # the setting; None for names and labels

    @property
    def label(self) -> str:
        """Its name as a reader says it."""
        return self.knob.label if self.knob else self.name

    @property
    def is_number(self) -> bool:
        """True if the control is a slider."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "label": self.label,
            "number": self.is_number,
            "values": _told_apart([self._shown(v) for v in self.values]),
        }

    def _shown(self, value: Any) -> str:
        if self.knob is None:
            return safe_label(safe_terminal(value, _MOST)) or "unnamed run"
        if value is None:  # of a watched script, or of another workload; "none" is a setting
            return "no such knob" if self.knob.is_own else "not told"
        return self.knob.shown(value)


def axes_of(runs: Sequence[Run]) -> tuple[Axis, ...]:
    """An axis for each name or setting of more than one known value; no two runs share a place.

    Numbers ascend; words stand as the runs bring them, but modes and what a builder's own knob
    offers as their table has them. Runs that differ in nothing else are told apart by what they
    are called: the axis "run".
    """
    knobs = knobs_in(run.settings for run in runs)
    taken = {knob.name for knob in knobs}
    axes = [_axis(_free(_NAMES, taken), [run.name for run in runs])]
    for knob in knobs:
        values = [told_settings(run).get(knob.name) for run in runs]
        if len({*values} - {None}) > 1:  # else some were told it and others not: no difference
            axes.append(_axis(knob.name, values, _ordered(list(dict.fromkeys(values)), knob), knob))
    axes = [axis for axis in axes if len(axis.values) > 1]
    places = [tuple(axis.places[i] for axis in axes) for i in range(len(runs))]
    if len(set(places)) < len(places):
        axes.insert(0, _axis(_free(_LABELS, taken), labels_of(runs, places)))
    return tuple(axes)


def baselines(axes: Sequence[Axis]) -> list[int | None]:
    """For each run the place of the one that it is compared with in full; None: of no other.

    Where runs of equal settings were measured before and after a change, that is the first of
    them; of two runs in all, it is the first.
    """
    places = list(zip(*(axis.places for axis in axes), strict=True))
    if len(places) == 2:
        return [None, 0]
    if not axes or axes[0].knob or axes[0].name not in _LABELS:
        return [None] * len(places)
    first: dict[tuple[int, ...], int] = {}
    for i, place in enumerate(places):
        first.setdefault(place[1:], i)
    return [None if first[place[1:]] == i else first[place[1:]] for i, place in enumerate(places)]


def _free(names: Sequence[str], taken: Collection[str]) -> str:
    return next(name for name in names if name not in taken)


def _told_apart(texts: Sequence[str]) -> list[str]:
    """The texts, those that others have as well with a number: a link names a value by its text."""
    told: list[str] = []
    for text in texts:
        numbered = (f"{text} ({n})" for n in count(2))
        told.append(next(t for t in chain([text], numbered) if t not in told))
    return told


def _axis(
    name: str, values: Sequence[Any], ordered: Sequence[Any] = (), knob: Knob | None = None
) -> Axis:
    known = tuple(ordered or dict.fromkeys(values))
    place = {value: i for i, value in enumerate(known)}
    return Axis(name, known, tuple(place[value] for value in values), knob)


def _ordered(known: list[Any], knob: Knob) -> list[Any]:
    """The values of one setting as a reader expects them; those that one offers no more come last.

    Runs of a builder that has changed since may have values that are not offered any more.
    """
    if not knob.values:
        return sorted(known, key=lambda value: (value is None, value))
    if not (knob.is_own or knob.name == "mode"):
        return sorted(known, key=lambda value: value is None)
    place = {value: i for i, value in enumerate(knob.values)}
    return sorted(known, key=lambda value: place.get(value, len(place)))
