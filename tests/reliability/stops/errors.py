"""Raise something at each line of the kit that a step executes, and look what is left.

The long form, all modes, every line: python -m tests.reliability.stops.errors
"""

from __future__ import annotations

import argparse
import dis
import faulthandler
import gc
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kit.errors import SweepError
from kit.runtime.session.interrupts import INTERRUPTS
from tests.reliability.kinds import KINDS, Steps
from tests.reliability.stops.interrupts import hear_interrupts
from tests.reliability.training import is_clear

KIT = str(Path(__file__).parents[3] / "kit")
WAIT_S = 60.0  # after which a step counts as hanging
CANNOT_FAIL = {"NOP", "LOAD_FAST", "RETURN_VALUE"}  # instructions of Python's
Line = tuple[CodeType, int]


def lines_of(step: Callable[[], object]) -> list[Line]:
    """Each line of the kit that runs in this thread, in the order in which they are reached."""
    found: dict[Line, None] = {}

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(KIT):
            return None
        if event == "line":
            found[frame.f_code, frame.f_lineno] = None
        return look

    _traced(step, look)
    return [line for line in found if does_something(*line)]


def does_something(code: CodeType, number: int) -> bool:
    """False for a `try:` and a `return self`, where nothing can fail: neither takes memory."""
    parts = [p.opname for p in dis.get_instructions(code) if _line_of(p) == number]
    return not CANNOT_FAIL.issuperset(parts)


def _line_of(part: dis.Instruction) -> int | None:
    return None if part.positions is None else part.positions.lineno


def run_with(step: Callable[[], object], line: Line, act: Callable[[FrameType], None]) -> bool:
    """Run a step, and `act` where it comes to that line for the first time; false: it did not."""
    came = False

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal came
        if came or not frame.f_code.co_filename.startswith(KIT):
            return None
        if event == "line" and (frame.f_code, frame.f_lineno) == line:
            came = True
            sys.settrace(None)
            act(frame)
        return look

    _traced(step, look)
    return came


def _traced(step: Callable[[], object], look: Callable[[FrameType, str, Any], Any]) -> None:
    """Run a step with a trace function."""
    sys.settrace(look)
    try:
        step()
    finally:
        sys.settrace(None)


def out_of_memory(frame: FrameType) -> None:
    """What happens without memory, wherever that is."""
    raise MemoryError("made by a test")


def interrupt(frame: FrameType) -> None:
    """What Ctrl-C does there: it is raised, or kept."""
    handler: Any = signal.getsignal(signal.SIGINT)
    INTERRUPTS.arrive(handler, signal.SIGINT, frame)


def try_lines(
    mode: str,
    act: Callable[[FrameType], None],
    chance: random.Random,
    share: float,
    within: str = "",
) -> str:
    """Let it happen at each line of a step, or at a share of them; gives what came of it.

    Args:
        within: only in functions of this name.

    Raises:
        ExceptionGroup: for each line after which something was wrong, what that was.
    """
    training, tried, closed = _trained(mode), 0, 0
    wrong: list[Exception] = []
    lines = lines_of(training.step)
    lines = [line for line in lines if within in ("", line[0].co_name)]
    chosen = [line for line in lines if chance.random() < share]
    for line in chosen:
        faulthandler.dump_traceback_later(WAIT_S, exit=True)
        where = f"{line[0].co_filename}:{line[1]}"
        try:
            tried += 1
            run_with(training.step, line, act)
            while INTERRUPTS.kept:
                training.step()
        except (MemoryError, KeyboardInterrupt):
            pass
        except Exception as error:  # noqa: BLE001 - it is told at the end
            if not (is_clear(error) or was_caused(error)):
                wrong.append(_at(f"{mode}, at {where}: not clear", error))
        gc.enable()  # the line that does so was one of them; by itself it cannot fail
        gc.collect(0)  # what the step held is freed by now, or it is held by mistake
        try:
            training.recover()
            training.check_next_step()
        except Exception as error:  # noqa: BLE001 - it is told at the end
            if is_clear(error):
                closed += 1
            else:
                wrong.append(_at(f"{mode}, at {where}: the next step is wrong", error))
            with suppress(Exception):  # it may be half closed
                training.__exit__()
            training = _trained(mode)
        faulthandler.cancel_dump_traceback_later()
    training.__exit__()
    if wrong:
        raise ExceptionGroup(f"{mode}: {len(wrong)} of {tried} lines", wrong)
    return f"{mode}: {tried} of {len(lines)} lines, {closed} sessions had to be closed"


def _at(where: str, error: Exception) -> AssertionError:
    """What was wrong, with the error that says how."""
    found = AssertionError(f"{where}: {error!r:.300}")
    found.__cause__ = error
    return found


def was_caused(error: BaseException) -> bool:
    """Has it come of what was raised, as what the cells of a sweep have raised may have, too?"""
    if isinstance(error, SweepError):
        return all(map(was_caused, error.failures.values()))
    causes: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in causes:
        causes.append(seen)
        seen = seen.__cause__ or seen.__context__
    return any(isinstance(cause, MemoryError | KeyboardInterrupt) for cause in causes)


def _trained(mode: str) -> Steps:
    training = KINDS[mode]().__enter__()
    for _ in range(training.alike_after):
        training.step()
    return training


ACTS = {"interrupt": interrupt, "memory": out_of_memory}


def main() -> None:
    """Try each mode with each act, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the lines, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="*", default=list(KINDS))
    parser.add_argument("--acts", nargs="*", default=list(ACTS))
    asked = parser.parse_args()
    hear_interrupts()
    try_each(
        asked.acts, asked.modes,
        lambda act, mode: try_lines(mode, ACTS[act], random.Random(asked.seed), asked.share),
    )  # fmt: skip


def try_each(acts: Sequence[str], names: Sequence[str], tried: Callable[[str, str], str]) -> None:
    """Try each name with each act, and say what came of it; `tried` raises a group of faults.

    Raises:
        SystemExit: something was wrong, in so many lines.
    """
    wrong = 0
    for act in acts:
        for name in names:
            start = time.monotonic()
            try:
                said = tried(act, name)
            except ExceptionGroup as found:
                wrong += len(found.exceptions)
                said = "\n  ".join([found.message, *map(str, found.exceptions)])
            print(f"{act}: {said}  [{time.monotonic() - start:.0f} s]", flush=True)
    if wrong:
        raise SystemExit(f"after {wrong} lines something was wrong")


if __name__ == "__main__":
    main()
