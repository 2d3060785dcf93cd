"""What keeps a step from being faster: each instant of the traced steps belongs to one limit.

An instant in which a device runs a kernel is the device's, as in the headline's "device busy" and
the breakdown. Any other has the cause that `kit.trace.idle_gaps` gives it. So the shares add up to
1, and none of them can say something else than the rest of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kit.errors import TimelineError
from kit.text import format_percent
from kit.trace.devices import TORCH_CPU
from kit.trace.gaps import idle_of
from kit.trace.kinds import CATEGORY_ROWS, CAUSES, LIMITS
from kit.trace.metrics import Together
from kit.trace.timeline import Timeline

__all__ = ["BUSY", "Limit", "close_causes", "is_filled", "limit_shares", "limited_by"]

BUSY = 0.85  # a device that is busy for this part of the step is what limits it
_MOST = 0.5  # or for more than this, where it can have no work while the host does anything else
_CLOSE = 0.75  # of the largest share: another that has so much may have more in a rerun
_UNTRACED = ("no step was traced", "torch computed ")  # notes that say why there is no breakdown

_LIMIT_OF = {row.name: row.limit for row in CATEGORY_ROWS}
_LIMIT_OF_CAUSE = {row.name: row.limit for row in CAUSES}


@dataclass(frozen=True, slots=True)
class Limit:
    """What keeps the step from being faster."""

    what: str  # one of LIMITS
    share: float  # of the step: the device's busy time, or the time lost to the other
    doubt: str = ""  # why the two should not be believed
    of: str = "step"  # which the share is a part of

    def __str__(self) -> str:
        if self.doubt:
            return f"not said: {self.doubt}"
        return f"{self.what}-bound ({format_percent(self.share)} of the {self.of})"


def limit_shares(
    timeline: Timeline,
    causes: Mapping[str, float] | None = None,
    together: Together | None = None,
) -> Mapping[str, float]:
    """For each of `LIMITS` its part of the traced steps; all of them add up to 1.

    Of several devices, an instant in which one of them works is the device's; in the others the
    causes of all devices count alike. Where no kernel was seen, the breakdown says what the host
    did.

    Args:
        causes: those of `kit.trace.gaps.idle_of`, if they are known already.
        together: that of the timeline, if it is known already.

    Raises:
        TimelineError: no step was traced.
    """
    charged = dict.fromkeys(LIMITS, 0.0)
    for category, (_, exposed) in (together or Together(timeline)).breakdown_ns().items():
        charged[_LIMIT_OF[category]] += exposed
    whole = sum(charged.values())
    if not whole:
        why = next((note for note in timeline.notes if note.startswith(_UNTRACED)), "")
        said = "what limits a step is known from traced steps only: none is there"
        raise TimelineError(f"{said}. {why}" if why else said)
    causes = idle_of(timeline).causes if causes is None else causes
    if causes:
        charged = dict.fromkeys(LIMITS, 0.0) | {"device": charged["device"]}
        for cause, length_ns in causes.items():
            charged[_LIMIT_OF_CAUSE[cause]] += length_ns
    return {name: length / whole for name, length in charged.items()}


def is_filled(timeline: Timeline, busy: float) -> bool:
    """Does a device that is busy for this part of the steps limit them?

    From `BUSY` on: what it lacks, work that is issued earlier could give it. On a CPU torch
    computes in the call itself, so nothing can be hidden under its ops, nor they under anything:
    there it is what takes more than all else together.
    """
    kernels, on_cpu = (timeline.where(kind="kernel", lane=lane) for lane in (None, TORCH_CPU))
    is_in_calls = on_cpu.any() and on_cpu.sum() == kernels.sum()
    return busy > _MOST if is_in_calls else busy >= BUSY


def limited_by(timeline: Timeline, shares: Mapping[str, float] | None = None) -> Limit:
    """What the steps spend their time on: the device, or else what keeps it waiting most.

    The device, if it fills the steps (`is_filled`). Otherwise the largest of the other shares of
    `limit_shares`: the cause of most of its idle time.

    Args:
        shares: those of `limit_shares`, if they are known already.

    Raises:
        TimelineError: no step was traced.
    """
    shares = limit_shares(timeline) if shares is None else shares
    if is_filled(timeline, shares["device"]):
        return Limit("device", shares["device"])
    what = max(LIMITS[1:], key=lambda name: shares[name])
    return Limit(what, shares[what])


def close_causes(shares: Mapping[str, float], limit: Limit) -> Mapping[str, float]:
    """Why else a device is idle for nearly as long as by the limit: the share of each cause.

    Args:
        shares: those of `limit_shares`; another limit than the largest of these is not of them.
    """
    least = _CLOSE * limit.share
    if limit.what == "device" or shares[limit.what] != limit.share:
        return {}
    cause_of = {limit: cause for cause, limit in _LIMIT_OF_CAUSE.items()}
    others = set(LIMITS[1:]) - {limit.what, "unknown"}  # nothing follows from what nobody saw
    close = [x for x in LIMITS if x in others and shares[x] >= least > 0]
    return {cause_of[x]: shares[x] for x in sorted(close, key=lambda x: -shares[x])}
