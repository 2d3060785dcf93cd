"""`knob`: a parameter of a builder as a control, beside the settings of the kit.

    @kit.workload
    def mine(ctx, width: int = kit.knob(64, 512, step=64), fused: bool = kit.knob()): ...

What `knob` gives is read from the builder's signature by `own_knobs`, once, and becomes an
`OwnKnob` of the settings that the workload runs under.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kit.errors import SettingsError
from kit.runs.knob import MOST_VALUES, OwnKnob
from kit.runs.settings import check_names
from kit.runtime.recording.sites import format_site, site_of

__all__ = ["RESERVED", "knob", "own_knobs"]

MOST_KNOBS = 20  # of one builder
_TAKEN = """
    auto_run average baseline bucket_mb budget_s bulk cancelled compile_ahead cut devices executor
    grid label link name path processes progress repeats rules run self settings source sweep
    timeout_s title variant vary workload workload_or_runs
"""
RESERVED = frozenset(_TAKEN.split())  # arguments of `kit.run` and others, names in tables
_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a call of `knob` says; the parameter's name is known from the signature only."""

    values: tuple[Any, ...]
    default: Any
    widget: str
    label: str
    asks: str
    changes_numbers: bool


def knob(
    *values: Any,
    step: float | None = None,
    default: Any = None,
    label: str = "",
    asks: str = "",
    changes_numbers: bool = True,
) -> Any:
    """The default of a builder's parameter that shall be a control and a setting like kit's own.

    `kit.knob(64, 512, step=64)` is a slider from 64 to 512, `kit.knob(0, 2, 4)` and
    `kit.knob("relu", "gelu")` a choice, and `kit.knob()` a box that is off or on.

    Args:
        values: what it may be: whole numbers, fractions or texts, all of one type; with `step`, the
            first of a range and its end, which no value exceeds: `kit.knob(64, 500, step=64)` ends
            at 448.
        default: where it starts; the first value, and for a box off, if not given.
        label: its name for people; the parameter's own, in words, if not given.
        asks: what one learns by turning it, for the tooltip.
        changes_numbers: another value is another training, with other losses. What changes only
            how fast it is, such as a number of workers, may be varied by `kit.autotune`.

    Raises:
        SettingsError: these are no values of a knob.
    """
    if step is not None:
        values = _range(values, step)
    is_box = not values or all(isinstance(x, bool) for x in values)
    offered = (False, True) if is_box else _of_one_type(values)
    first = False if not values else offered[offered.index(values[0])]
    chosen = first if default is None else default
    widget = "box" if is_box else "menu" if step is None else "slider"
    return _Offer(offered, chosen, widget, label, asks, changes_numbers)


def _range(ends: Sequence[Any], step: float) -> tuple[Any, ...]:
    """From the first up to the second, which is among them if a step ends there."""
    if len(ends) != 2 or not all(type(x) in _NUMBERS for x in (*ends, step)):
        raise SettingsError(
            f"with step, a knob has a first and a last number, not {ends!r} and step={step!r}"[:300]
        )
    first, last = ends
    try:
        if not all(map(math.isfinite, (first, last, step))):
            raise SettingsError(f"a knob's range is finite, not {ends!r} in steps of {step}")
        return _spaced(first, last, step)
    except OverflowError:
        raise SettingsError(
            "a knob's first number, last number or step is too large to count the values between: "
            f"{MOST_VALUES} is the most"
        ) from None


def _spaced(first: float, last: float, step: float) -> tuple[float, ...]:
    """Each number from `first` on that is a whole number of steps away, and not above `last`."""
    if not (step > 0 and first < last and (last - first) / step < MOST_VALUES):
        raise SettingsError(
            f"a knob from {first} to {last} in steps of {step} has no values, or more than "
            f"{MOST_VALUES}: a step is above 0, and the first number below the last"
        )
    count = int((last - first) / step + 1e-9) + 1
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        return tuple(range(first, last + 1, step))
    return tuple(float(f"{first + i * step:.12g}") for i in range(count))


def _of_one_type(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values once each; whole numbers among fractions are fractions."""
    if any(type(x) is float for x in values) and all(type(x) in _NUMBERS for x in values):
        values = [float(x) for x in values]
    kinds = {type(x) for x in values}
    if any(type(x) is float and not math.isfinite(x) for x in values):
        raise SettingsError(f"a knob's values are finite, not {', '.join(map(repr, values))}"[:300])
    if len(kinds) != 1 or not kinds <= {int, float, str}:
        raise SettingsError(
            "a knob's values are whole numbers, fractions, or texts, all of one type, not "
            f"{', '.join(map(repr, values))}"[:300]
        )
    return tuple(dict.fromkeys(values))


def own_knobs(build: Callable[..., Any], name: str) -> tuple[OwnKnob, ...]:
    """The knobs among the parameters of a workload's builder, each at its default.

    Raises:
        SettingsError: one cannot be; the message says which, and where the builder stands.
    """
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # Python knows no signature of some callables
        return ()
    offers = [(x, x.default) for x in parameters if isinstance(x.default, _Offer)]
    where = _where(build, name) if offers else name
    if len(offers) > MOST_KNOBS:
        raise SettingsError(f"{where} has {len(offers)} knobs; {MOST_KNOBS} is the most")
    made = tuple(_own(parameter, offer, where) for parameter, offer in offers)
    check_names(made)
    return made


def _own(parameter: inspect.Parameter, offer: _Offer, where: str) -> OwnKnob:
    """One parameter's knob."""
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise SettingsError(f"{parameter.name} of {where} is a knob, and so cannot stand before /")
    if parameter.name in RESERVED:
        raise SettingsError(
            f"{parameter.name} of {where} has the name of an argument of kit.run or of another "
            "function of kit: call it otherwise"
        )
    try:
        made = OwnKnob(
            parameter.name,
            value=offer.values[0],
            values=offer.values,
            default=offer.values[0],
            widget=offer.widget,
            label=offer.label,
            asks=offer.asks,
            changes_numbers=offer.changes_numbers,
            where=where,
        )
        started = made.set(offer.default)
        return replace(started, default=started.value)
    except SettingsError as error:
        said = str(error).removeprefix(f"{parameter.name} of {where} ")  # it may name both itself
        raise SettingsError(f"{parameter.name} of {where}: {said}") from None


def _where(build: Callable[..., Any], name: str) -> str:
    """The builder as an error names it: `mine (train.py:12)`."""
    where = format_site(site_of(build))
    return f"{name} ({where})" if where else name
