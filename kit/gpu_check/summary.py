"""What all parts have found so far, as one JSON file and one page that a person reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kit.files import write_whole
from kit.gpu_check.base.checks import NOT_OK, NOT_RUN, OK, Check
from kit.gpu_check.table import PARTS, Part
from kit.text import format_number, markdown_table, safe_markdown

__all__ = ["JSON", "MARKDOWN", "Summary"]

JSON, MARKDOWN = "summary.json", "summary.md"
VERSION = 1  # of the JSON file's form


class Summary:
    """Collects what the parts write, and writes the two files whenever it has grown."""

    def __init__(self, folder: Path, *, title: str) -> None:
        self.title = title
        self._folder = folder
        self.facts: dict[str, str | float] = {}
        self.checks: dict[str, dict[str, Check]] = {part.letter: {} for part in PARTS}
        self._tables: dict[str, dict[str, Any]] = {part.letter: {} for part in PARTS}
        self._seconds: dict[str, float] = {}
        self._doing = ""

    def take(self, part: Part, line: Mapping[str, Any]) -> None:
        """One line that a part has written; a check of the same name takes the older one's place.

        Raises:
            KeyError, TypeError, ValueError: no part has written this line.
        """
        if "check" in line:
            self.add(part, Check(**line["check"]))
        elif "facts" in line:
            self.facts |= line["facts"]
        elif "table" in line:
            self._tables[part.letter][line["table"]["title"]] = line["table"]
        else:
            self._doing = str(line["doing"])

    def add(self, part: Part, check: Check) -> None:
        """One check of a part."""
        self.checks[part.letter][check.name] = check

    def begin(self, part: Part) -> None:
        """A part begins: nothing is known of what it is at, and whether it will end."""
        self._doing = f"starting part {part.letter}"
        self.checks[part.letter] = {}
        self.add(part, Check(_end_of(part), NOT_RUN, why="it has begun; nothing was heard since"))

    def end(self, part: Part, seconds: float, problem: str, state: str = NOT_OK) -> None:
        """A part has ended; `problem`: how, if not well, and `state`: what that makes of it."""
        self._seconds[part.letter] = seconds
        del self.checks[part.letter][_end_of(part)]
        if problem:
            why = f"{problem}, while it was at: {self._doing}"
            self.add(part, Check(_end_of(part), state, why=why))

    def counts(self) -> Counter[str]:
        """How many checks are in each state."""
        return Counter(c.state for checks in self.checks.values() for c in checks.values())

    def counted(self) -> str:
        """The same, as a person reads it."""
        counts = self.counts()
        return ", ".join(f"{counts[state]} {state}" for state in (OK, NOT_OK, NOT_RUN))

    def write(self) -> None:
        """Write both files anew, each whole."""
        write_whole(self._folder / JSON, json.dumps(self._as_dict(), indent=1).encode())
        write_whole(self._folder / MARKDOWN, self._as_markdown().encode())

    def _as_dict(self) -> dict[str, Any]:
        parts = [
            {
                "part": part.letter,
                "what": part.what,
                "seconds": self._seconds.get(part.letter),
                "checks": [asdict(c) for c in self.checks[part.letter].values()],
                "tables": list(self._tables[part.letter].values()),
            }
            for part in PARTS
        ]
        head = {"version": VERSION, "title": self.title, "counts": dict(self.counts())}
        return {**head, "facts": self.facts, "parts": parts}

    def _as_markdown(self) -> str:
        lines = [f"# {safe_markdown(self.title)}", "", f"Checks: {self.counted()}.", ""]
        bad = [
            (part.letter, c.name, _number(c), c.target, c.why)
            for part in PARTS
            for c in self.checks[part.letter].values()
            if c.state == NOT_OK
        ]
        if bad:
            lines += [
                "## Not ok",
                "",
                _table(("part", "check", "number", "target", "why"), bad),
                "",
            ]
        if self.facts:
            facts = [(name, value) for name, value in self.facts.items()]
            lines += ["## The machine", "", _table(("", "what was found"), facts), ""]
        for part in PARTS:
            if self.checks[part.letter] or self._tables[part.letter]:
                lines += self._part(part)
        return "\n".join(lines)

    def _part(self, part: Part) -> list[str]:
        seconds = self._seconds.get(part.letter)
        took = "" if seconds is None else f" ({seconds:.0f} s)"
        lines = [f"## {part.letter}) {part.what}{took}", ""]
        checks = [
            (c.name, c.state, _number(c), c.target, c.why)
            for c in self.checks[part.letter].values()
        ]
        if checks:
            lines += [_table(("check", "state", "number", "target", "why"), checks), ""]
        for table in self._tables[part.letter].values():
            lines += [f"### {safe_markdown(table['title'])}", ""]
            lines += [_table(table["columns"], table["rows"]), ""]
        return lines


def _end_of(part: Part) -> str:
    return f"part {part.letter} ends by itself"


def _number(check: Check) -> str:
    if check.number is None:
        return ""
    is_small = 0 < abs(check.number) < 1e-3
    shown = f"{check.number:.1e}" if is_small else format_number(check.number)
    return f"{shown} {check.unit}".strip()


def _table(columns: Any, rows: Any) -> str:
    """A Markdown table of anything; a missing number is a dash."""
    if not rows:
        return "none"
    has_numbers = any(isinstance(x, float) for row in rows for x in row)
    cells = [[_cell(x) for x in row] for row in rows]
    return markdown_table([safe_markdown(c) for c in columns], cells, has_numbers=has_numbers)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else safe_markdown(value, 600)
