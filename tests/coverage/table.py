"""The page docs/op_coverage.md: made from verdicts, and read back by the tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from tests.coverage.harness import CLASSES, SAMPLES, Verdict

__all__ = ["PAGE", "RIGHT", "made_with", "page", "read_page"]

PAGE = Path(__file__).parents[2] / "docs" / "op_coverage.md"
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
    lines = ["# Which torch ops device kit runs, and how", "", *_introduction(verdicts), ""]
    lines += _summary(verdicts)
    for name in CLASSES:
        chosen = sorted((v for v in verdicts if v.verdict == name), key=lambda v: (v.kind, v.name))
        if chosen:
            lines += ["", f"## {name}: {MEANING[name]}", ""]
            lines += _rows(chosen, "why") if any(v.why for v in chosen) else _list(chosen)
    lines += ["", *_strides(verdicts)]
    return "\n".join(lines) + "\n"


def _introduction(verdicts: Sequence[Verdict]) -> list[str]:
    tested = [v for v in verdicts if v.kind == "op" and v.verdict != "untested"]
    right = sum(v.verdict in RIGHT for v in tested)
    return [
        "Made by `make coverage-table`; do not edit. Each float32 entry of torch's own test tables "
        "(`op_db`, `module_db`, `optim_db`) was run on device kit and on the CPU, and compared: "
        f"up to {SAMPLES} of its samples, forward and gradients, on views, in place, in place in a "
        "view and with `out=`, each by the values, shapes and dtypes; random ops by shapes, and "
        "by equal numbers for equal seeds. An entry's class is its worst sample's.",
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
    return [", ".join(f"`{v.name}`" for v in verdicts)]


def _rows(verdicts: Iterable[Verdict], of: str) -> list[str]:
    head = "why" if of == "why" else "strides"
    lines = [f"| entry | {head} |", "| --- | --- |"]
    for v in verdicts:
        text = getattr(v, of).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{v.name}` | {re.sub(r'0x[0-9a-f]+', '0x…', text)} |")
    return lines


def _strides(verdicts: Sequence[Verdict]) -> list[str]:
    chosen = sorted((v for v in verdicts if v.strides), key=lambda v: (v.kind, v.name))
    return [
        "## Other strides than CPU torch",
        "",
        "The numbers are the same; some result lies in memory another way than CPU torch's. Torch "
        "promises no strides here, and its own devices differ.",
        "",
        *_rows(chosen, "strides"),
    ]


def read_page(text: str) -> dict[str, str]:
    """The class of each entry."""
    found = {}
    for section in text.split("\n## ")[1:]:
        name, _, body = section.partition(":")
        for line in body.splitlines() if name in CLASSES else ():
            if line.startswith(("`", "| `")):  # the names of a list, or a row's first cell
                names = line.split(" | ")[0] if line.startswith("|") else line
                found |= dict.fromkeys(re.findall(r"`([^`]+)`", names), name)
    return found


def made_with(text: str) -> str:
    """The torch version that the page was made with."""
    match = re.search(r"With torch ([\d.]+)", text)
    assert match, "the page does not say which torch"
    return match[1]
