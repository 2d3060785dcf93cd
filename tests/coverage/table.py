"""The page docs/op_coverage.md and its table of all entries: made of verdicts.

The tests read the table back.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

from tests.coverage.harness import CLASSES, SAMPLES, Verdict

__all__ = ["PAGE", "RIGHT", "TABLE", "made_with", "page", "read_table", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "op_coverage.md"
TABLE = PAGE.with_suffix(".csv")
HEAD = ("kind", "entry", "class", "why", "strides")
KINDS = ("op", "module", "optimizer")
RIGHT = ("native", "reads", "host")
MEANING = {
    "native": "everything is recorded and runs on the device",
    "reads": "native, but the op needs numbers on the host: a sync point on any device",
    "host": "an aten op without a rule ran in torch on the CPU: right, named, a sync point",
    "unsupported": "a clear error of kit's; nothing is computed",
    "error": "an error that CPU torch does not raise",
    "wrong": "other numbers than CPU torch",
    "untested": "CPU torch refuses every sample",
}


def page(verdicts: Sequence[Verdict]) -> str:
    """The whole page, in Markdown."""
    lines = [
        "# Which torch ops device kit runs, and how",
        "",
        *map(_wrapped, _introduction(verdicts)),
        "",
    ]
    lines += _summary(verdicts)
    for name in CLASSES[1:]:
        chosen = sorted((v for v in verdicts if v.verdict == name), key=lambda v: (v.kind, v.name))
        if chosen:
            lines += ["", f"## {name}", ""]
            lines += _rows(chosen) if name in ("unsupported", "error", "wrong") else _list(chosen)
    return "\n".join(lines) + "\n"


def table(verdicts: Sequence[Verdict]) -> str:
    """Every entry, as CSV."""
    found = io.StringIO()
    made = csv.writer(found, lineterminator="\n")
    made.writerow(HEAD)
    for v in sorted(verdicts, key=lambda v: (v.kind, v.name)):
        made.writerow((v.kind, v.name, v.verdict, _without_addresses(v.why), v.strides))
    return found.getvalue()


def _introduction(verdicts: Sequence[Verdict]) -> list[str]:
    tested = [v for v in verdicts if v.kind == "op" and v.verdict != "untested"]
    right = sum(v.verdict in RIGHT for v in tested)
    return [
        "Made by `make coverage-table`; do not edit. Each float32 entry of torch's own test tables "
        "(`op_db`, `module_db`, `optim_db`) was run on device kit and compared with the CPU: up to "
        f"{SAMPLES} of its samples, forward and gradients, on views, in place and with `out=`; "
        "random ops by shapes, and by equal numbers for equal seeds. An entry's class is its worst "
        "sample's. [op_coverage.csv](op_coverage.csv) has every entry, and why; below are those "
        "that are not native.",
        "",
        f"With torch {version('torch').split('+')[0]} and jax {version('jax')}: "
        f"{right / len(tested):.1%} of the {len(tested)} op entries that can run are right "
        "(native, reads or host), and "
        f"{sum(v.verdict == 'wrong' for v in verdicts) or 'no'} entry of any kind is silently "
        "wrong.",
    ]


def _summary(verdicts: Sequence[Verdict]) -> list[str]:
    count = Counter((v.kind, v.verdict) for v in verdicts)
    totals = Counter(v.kind for v in verdicts)
    lines = ["| class | ops | modules | optimizers | meaning |", "| --- | --- | --- | --- | --- |"]
    for name in CLASSES:
        cells = [f"{count[k, name]} ({count[k, name] / max(totals[k], 1):.1%})" for k in KINDS]
        lines.append(f"| {name} | {' | '.join(cells)} | {MEANING[name]} |")
    lines.append(f"| all | {' | '.join(str(totals[k]) for k in KINDS)} | |")
    return lines


def _list(verdicts: Iterable[Verdict]) -> list[str]:
    names = ", ".join(f"`{v.name}`" for v in verdicts)
    return [_wrapped(names)]


def _wrapped(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _rows(verdicts: Iterable[Verdict]) -> list[str]:
    """A row for each reason."""
    names: dict[str, list[str]] = {}
    for v in verdicts:
        said = _without_addresses(v.why).split(". ")[0]  # the table of all entries has the rest
        text = said.replace("|", "\\|").replace("<", "&lt;")
        names.setdefault(text, []).append(f"`{v.name}`")
    rows = [f"| {', '.join(named)} | {text} |" for text, named in names.items()]
    return ["| entries | why |", "| --- | --- |", *rows]


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


def read_table(text: str) -> dict[str, str]:
    """The class of each entry."""
    return {row["entry"]: row["class"] for row in csv.DictReader(io.StringIO(text))}


def made_with(text: str) -> str:
    """The torch version that the page was made with."""
    match = re.search(r"With torch ([\d.]+)", text)
    assert match, "the page does not say which torch"
    return match[1]
