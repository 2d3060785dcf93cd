"""Writes random programs of torch.

A line is drawn from what the tensors are at that point of a run on the CPU, so most lines are
right; some raise, and then device kit must raise the same.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.torch.fuzz.computes import COPIES, EXACT, SMOOTH
from tests.torch.fuzz.draw import DTYPES, Draw, NoLine
from tests.torch.fuzz.gradients import GRADIENTS, READS
from tests.torch.fuzz.program import Program, namespace, run_line, tensors
from tests.torch.fuzz.steps import run_steps
from tests.torch.fuzz.views import VIEWS
from tests.torch.fuzz.writes import WRITES

__all__ = ["program", "step_program"]

HOWS: tuple[dict[str, Any], ...] = (
    {"mode": "lazy"},
    {"mode": "imperative"},
    {"bulk_forward": 2, "bulk_backward": 2},
    {"bulk_forward": 15, "bulk_backward": 15},
    {"bulk_forward": 3, "bulk_backward": 1, "segment_mode": "launch"},
)
STEP_MODES = ("replay", "replay", "replay", "speculate", "retrace")
LINES = 14  # of a program, at most
LARGEST = 1000.0  # number in a program


def program(random: Random) -> Program:
    """A program; one in eight has a step that runs several times."""
    if random.random() < 0.125:
        return step_program(random)
    writer = _writer(random)
    writer.start(random.randint(1, 2))
    writer.write(random.randint(2, LINES))
    return Program(tuple(writer.lines), dict(random.choice(HOWS)))


def step_program(random: Random) -> Program:
    """A program with a step, which runs on the CPU without an error."""
    writer = _writer(random, strict=True)
    writer.start(random.randint(1, 3))
    first = len(writer.lines)
    writer.add("@ = fetch()")
    writer.write(first + random.randint(2, LINES // 2))
    lines, step = writer.lines[:first], writer.lines[first:]
    how = {"step_mode": random.choice(STEP_MODES), **random.choice(HOWS)}
    made = Program(tuple(lines), how, tuple(step))
    while len(made.step) > 1 and not _runs(made):
        made = made.without(len(made) - 1)
    return made


def _runs(program: Program) -> bool:
    names = namespace("cpu")
    if any(run_line(line, names) for line in program.lines):
        return False
    try:
        found = run_steps(program, names)
    except Exception:  # noqa: BLE001 - such a program is cut shorter
        return False
    return all(_is_usable(t) for result in found for t in [*result, *tensors(names).values()])


def _writer(random: Random, *, strict: bool = False) -> _Writer:
    """One for smooth functions asks nothing that a rounding could decide."""
    kinds = [random.choice(DTYPES), random.choice(DTYPES)]
    is_smooth = random.random() < 0.35
    if is_smooth:
        kinds = ["float32", random.choice(["float32", "float32", "float64", "float16", "bfloat16"])]
    tables = [(VIEWS, 5), (SMOOTH if is_smooth else EXACT, 5)]
    if not is_smooth or random.random() < 0.5:
        tables.append((WRITES, random.choice([2, 6])))
    if is_smooth or random.random() < 0.3:
        tables.append((GRADIENTS, random.choice([3, 6])))
    if not strict:
        tables += [(COPIES, 1)] if is_smooth else [(COPIES, 1), (READS, 1)]
    return _Writer(random, kinds, tables, strict)


class _Writer:
    """Writes a program line by line, and runs it on the CPU meanwhile."""

    def __init__(self, random: Random, dtypes: list[str], tables: list[Any], strict: bool) -> None:
        self.lines: list[str] = []
        self._draw = Draw(random, dtypes, held="k" if strict else "")
        self._random = random
        self._tables = tables
        self._strict = strict  # lines of a step: none raises, and none reads
        self._names = namespace("cpu", k=1)
        self._count = 0

    def start(self, tensors: int) -> None:
        """The first tensors, and perhaps one that wants gradients."""
        for _ in range(tensors):
            self.add(f"@ = {self._draw.start()}")
        if any(table is GRADIENTS for table, _ in self._tables) and self._random.random() < 0.8:
            self._try(GRADIENTS[0], GRADIENTS)

    def write(self, wanted: int) -> None:
        """Lines, until there are so many or one of them is of no use."""
        for _ in range(3 * LINES):
            if len(self.lines) >= wanted or not self._are_usable():
                break
            ((table, _),) = self._random.choices(self._tables, [n for _, n in self._tables])
            if self._random.random() < 0.04 and not self._strict:
                self.add("mark()")
            else:
                self._try(self._random.choice(table), table)
        if not self._are_usable():
            self.lines.pop()

    def add(self, text: str) -> None:
        """A line, unless it raises; a few that do are kept."""
        name = f"t{self._count}"
        line = text.replace("t = ", f"{name} = ").replace("(t * t)", f"({name} * {name})")
        line = line.replace("@ =", f"{name} =")
        error = run_line(line, self._names)
        if error is not None and (self._strict or self._random.random() < 0.8):
            return
        self.lines.append(line)
        self._count += 1
        self._draw.names = tensors(self._names)

    def _try(self, line: Any, table: Any) -> None:
        try:
            text = line(self._draw)
        except NoLine:
            return
        if table is READS:
            self.add(f"r = {text}")
        elif table in (WRITES, GRADIENTS):
            self.add(text)
        else:
            self.add(f"@ = {text}")

    def _are_usable(self) -> bool:
        return all(map(_is_usable, tensors(self._names).values()))


def _is_usable(t: Any) -> bool:
    """No number has grown large, for rounding is not what is tested here; and no integer wants
    gradients, which CPU torch forgets to forbid where a 0-dim tensor is filled in.
    """
    if t.requires_grad and not (t.is_floating_point() or t.is_complex()):
        return False
    return not t.is_floating_point() or not t.numel() or bool(t.detach().abs().max() <= LARGEST)
