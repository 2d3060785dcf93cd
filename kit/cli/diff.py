"""`kit diff A B`: what changed between two runs, two folders of runs, or two traces."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kit.cli.terminal import ranked_runs_of, say
from kit.errors import KitError
from kit.text import format_percent, markdown_table, safe_markdown, safe_terminal

if TYPE_CHECKING:
    from kit.runs.analysis.diff import RunDiff
    from kit.runs.run import Run

__all__ = ["diff", "fraction"]

_Group = tuple[str, "list[Run]", "list[Run]"]  # what the runs of both sides have in common


def diff(options: argparse.Namespace) -> int:
    """Print what changed from one run to another: steps, lines, kernels, sync points, compiles.

    Both may be saved runs, traces, or folders of saved runs such as those of kit.sweep: there, runs
    of the same settings are compared, and several of them together; of the ranks of a job, each
    with itself. What differs by less than the spread is no change. With --fail-over the exit status
    is 1 if a step is slower by more than that, and by more than the spread; 2 if something cannot
    be read or compared.
    """
    from kit.runs.analysis.diff import diff_runs

    groups, alone = _groups(ranked_runs_of(options.old), ranked_runs_of(options.new))
    diffs = [(name, diff_runs(old, new)) for name, old, new in groups]
    bar = options.fail_over
    failed = [name for name, found in diffs if bar is not None and found.slower_than(bar)]
    parts = [_table(diffs, options.markdown)] if len(diffs) > 1 else []
    parts += [_body(name, found, options.markdown, len(diffs)) for name, found in diffs]
    safe = safe_markdown if options.markdown else safe_terminal
    parts += [f"{side}: {'; '.join(map(safe, names))}" for side, names in alone.items() if names]
    is_told = any(map(_is_measured, (found for _, found in diffs)))
    if bar is not None and is_told:
        parts.append(_verdict(diffs, failed, bar, safe, alone.get("only in the old", ())))
    say("\n\n".join(part.rstrip("\n") for part in parts))
    if bar is not None and not is_told:
        raise KitError("no step was measured on both sides: --fail-over has nothing to compare")
    return int(bool(failed))


def fraction(text: str) -> float:
    """`5%` or `0.05` as a fraction; for argparse."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction: write 5% or 0.05")
    value = float(match[1]) / (100 if match[2] else 1)
    if not match[2] and value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is a whole step or more: did you mean {text}%?")
    return value


def _groups(
    old: list[tuple[int, Run]], new: list[tuple[int, Run]]
) -> tuple[list[_Group], dict[str, list[str]]]:
    """Runs of equal names and settings, together; and those that have no partner.

    A single run on each side is compared whatever its settings. Where both sides are the ranks of
    a job (else some have -1), and have one in common, each stands for itself: one may be slower.
    """
    from kit.runs.labels import cell_of
    from kit.widgets.compare.data import run_labels

    if len(old) == len(new) == 1:
        return [("", [old[0][1]], [new[0][1]])], {}
    ranks = [{rank for rank, _ in side} for side in (old, new)]
    are_ranks = min(ranks[0] | ranks[1]) >= 0 and bool(ranks[0] & ranks[1])
    first: dict[Hashable, Run] = {}
    for _, run in (*old, *new):
        first.setdefault(cell_of(run), run)
    # Not by their labels: those are of one side, and each pair has both.
    named = run_labels([replace(run, label="") for run in first.values()])
    names = dict(zip(first, named, strict=True))
    words: dict[Hashable, str] = {}
    sides: list[dict[Hashable, list[Run]]] = [{}, {}]
    for side, runs in zip(sides, (old, new), strict=True):
        for rank, run in runs:
            name = names[cell_of(run)]
            cell = (cell_of(run), rank if are_ranks else -1)
            words[cell] = f"{name}, rank {rank}" if are_ranks else name
            side.setdefault(cell, []).append(run)
    both = [cell for cell in sides[0] if cell in sides[1]]
    if not both:
        knobs = [{knob.name for _, run in side for knob in run.settings.own} for side in (old, new)]
        apart = ", ".join(sorted(knobs[0] ^ knobs[1]))
        raise KitError(
            "no run on one side has the name and the settings of one on the other"
            + f" (a builder's knob on one side only: {apart})" * bool(apart)
        )
    alone = {
        "only in the old": [words[cell] for cell in sides[0] if cell not in sides[1]],
        "only in the new": [words[cell] for cell in sides[1] if cell not in sides[0]],
    }
    return [(words[cell], sides[0][cell], sides[1][cell]) for cell in both], alone


def _table(diffs: Sequence[tuple[str, RunDiff]], is_markdown: bool) -> str:
    """One line for each pair of many."""
    from kit.runs.analysis.rows import row_markdown, row_text

    if is_markdown:
        rows = [row_markdown(name, found.step) for name, found in diffs]
        return markdown_table(("settings", "old", "new", "change"), rows)
    return "\n".join(row_text(name, found.step) for name, found in diffs)


def _body(name: str, found: RunDiff, is_markdown: bool, count: int) -> str:
    if is_markdown:
        head = f"## {safe_markdown(name)}\n\n" if name else ""
        return head + found.to_markdown(limit=8 if count == 1 else 4)
    head = f"== {safe_terminal(name)} ==\n" if name else ""
    return head + found.text(limit=8 if count == 1 else 4)


def _verdict(
    diffs: Sequence[tuple[str, RunDiff]],
    failed: Sequence[str],
    bar: float,
    safe: Callable[[str], str],
    gone: Sequence[str],
) -> str:
    """What decides the exit status, in words.

    Args:
        safe: makes names fit for where they are shown.
        gone: names of runs that only the old side has.
    """
    rule = f"slower by more than {format_percent(bar, figures=3)} and than the spread"
    if failed:
        return f"FAILED: {rule}: " + "; ".join(safe(name) or "the step" for name in failed)
    missing = [safe(name) for name, found in diffs if not _is_measured(found)]
    missing += map(safe, gone)
    unknown = [
        safe(n) or "the step"
        for n, d in diffs
        if _is_measured(d) and _kind(d) in ("unclear", "unknown")
    ]
    text = f"passed: nothing is {rule}"
    if unknown:
        text += (
            "; cannot be told, by the spread, the mean or because the machine was busy: "
            f"{'; '.join(unknown)}"
        )
    if missing:
        text += f"; not measured on both sides: {'; '.join(missing)}"
    return text


def _is_measured(found: RunDiff) -> bool:
    """Have both sides a measured step?"""
    return math.isfinite(found.step.old) and math.isfinite(found.step.new)


def _kind(found: RunDiff) -> str:
    return "unknown" if found.step.difference is None else found.step.difference.kind
