"""What advice says that a change would save, against what a rerun with that change saves.

    NPROC=1 python benchmarks/advice.py [--rounds 3] [--only encoder lstm]

Five small steps (`benchmarks/unfitted.py`) and the shipped BERT run under settings that cost time.
Each piece of advice that names settings is taken: the step runs with them and without, by turns. A
row is one piece of advice: what it had said ("up to" is an upper bound), what the rerun saved with
its 95 % interval, and whether what was saved is surely no more than said, surely more, or unclear.
Runs that say themselves that the machine was disturbed are counted.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
from collections import Counter
from typing import Any

from unfitted import UNFITTED

import kit
from kit.runs.change import steps_difference
from kit.text import format_ms, markdown_table
from kit.workloads import bert_of

CHECK = "dynamic, host check"
BASES: tuple[dict[str, Any], ...] = ({}, {"loss_scaling": CHECK}, {"mode": "imperative"})
WORKLOADS = {**UNFITTED, "bert": bert_of("tiny")}
HEADS = ("step", "settings", "advice", "change", "said", "saved", "within what was said")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=[*WORKLOADS])
    options = parser.parse_args()
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"NPROC={os.environ.get('NPROC', 'unset')}, {options.rounds} rounds"
    )
    rows = []
    disturbed = 0
    for name in options.only or WORKLOADS:
        for base in BASES:
            found, doubtful = taken(name, base, options.rounds)
            for row in found:
                print(" | ".join(row), flush=True)
            rows += found
            disturbed += doubtful
    print(markdown_table(HEADS, rows) if rows else "no advice named a setting")
    held = Counter(row[-1] for row in rows)
    print(
        f"\nof {len(rows)}: {held['yes']} within what was said, {held['no']} saved more, "
        f"{held['unclear']} unclear, {held['-']} untold; {disturbed} runs were disturbed"
    )


def taken(name: str, base: dict[str, Any], rounds: int) -> tuple[list[tuple[str, ...]], int]:
    """A row for each piece of advice on one step, and how many runs were disturbed."""
    settings = kit.Settings(**base)
    first = kit.run(WORKLOADS[name], settings)
    rows, doubtful = [], 0
    for advice in first.advice():
        if not advice.change:
            continue
        changed = settings.replace(**advice.change)
        before, after = [], []
        for _ in range(rounds):
            before.append(kit.run(WORKLOADS[name], settings))
            after.append(kit.run(WORKLOADS[name], changed))
        doubtful += sum(bool(run.doubt) for run in (*before, *after))
        found = steps_difference(before, after)
        least, most = ((1 - end) * found.old for end in (found.high, found.low))
        change = ", ".join(f"{k}={v!r}" for k, v in advice.change.items())
        rows.append(
            (
                name,
                ", ".join(map(str, base.values())) or "default",
                advice.rule,
                change,
                advice.saving or "-",
                f"{_signed(found.old - found.new)} ({_signed(least)} to {_signed(most)})",
                _held(least, most, advice.ms),
            )
        )
    return rows, doubtful


def _held(least: float, most: float, said: float) -> str:
    """Is what was saved no more than what was said? Unclear: the interval has both."""
    if math.isnan(least) or math.isnan(said):
        return "-"
    if least > said:
        return "no"
    return "yes" if most <= said else "unclear"


def _signed(ms: float) -> str:
    return f"{'−' * (ms < 0)}{format_ms(abs(ms))}"


if __name__ == "__main__":
    main()
