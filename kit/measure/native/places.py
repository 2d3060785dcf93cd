"""The lines at which steps read numbers or wait, by the steps that were looked at for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Place", "agreed", "lines_of_reads", "where"]

Place = tuple[str, str]  # the user's line, and the library line that it called


def where(places: Sequence[Mapping[str, Sequence[Place]]], reads: float) -> str:
    """The lines that read a number, an optimizer's own reads left out.

    Args:
        places: of some steps.
        reads: a step, in the mean: with more, other steps have lines that read, too.
    """
    found = list(map(lines_of_reads, places))
    sites = dict.fromkeys(site for one in found for site in one if site)
    others = " and, in some steps, elsewhere" if reads > max(map(len, found), default=0) else ""
    return f", at {', '.join(sites)}{others}" if sites else ""


def lines_of_reads(places: Mapping[str, Sequence[Place]]) -> list[str]:
    """Of one step, an optimizer's own reads left out."""
    found = places.get("item", ())
    return [site for site, via in found if not via.startswith("torch/optim/")]


def agreed(
    looks: Sequence[Mapping[str, Sequence[Place]]],
) -> dict[tuple[str, int], Sequence[Place]]:
    """(cause, how often a step waits for it) -> the places that are the same in all such steps."""
    found: dict[tuple[str, int], Sequence[Place]] = {}
    for look in looks:
        for cause, places in look.items():
            before = found.setdefault((cause, len(places)), places)
            found[cause, len(places)] = [
                a if a == b else ("", "") for a, b in zip(before, places, strict=True)
            ]
    return found
