"""Raise something at each line of the kit by which files, reports, sweeps and explorers are made.

After each, no session is open, no lock held and no half file left; the next use gives what the
first one gave. What the handler of a signal has raised comes out as it is.

The long form, all doors, every line: python -m tests.reliability.stops.doors
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import kit
from kit.measure.base.turns import TURNS
from kit.measure.search.autotune import autotune
from kit.runtime.session.interrupts import INTERRUPTS
from kit.runtime.session.session import current_session
from kit.widgets.explorer.view import Explorer
from kit.widgets.graph.dot import run_dot
from tests.factories import make_run
from tests.reliability.files.traces import KINDS, look
from tests.reliability.stops.errors import (
    interrupt,
    lines_of,
    out_of_memory,
    run_with,
    try_each,
    was_caused,
)
from tests.reliability.stops.interrupts import hear_interrupts

WAIT_S = 120.0  # after which a use counts as hanging
SIGNAL = getattr(signal, "SIGALRM", signal.SIGTERM)
Use = Callable[[], object]


class Limit(TimeoutError):
    """What most time limits raise is an OSError, too."""


def limit(frame: FrameType) -> None:
    """What the handler of a time limit does there."""

    def handle(number: int, at: Any) -> None:
        raise Limit

    INTERRUPTS.arrive(handle, SIGNAL, frame)


def limit_alone(frame: FrameType) -> None:
    """The same where no session was ever open, so that Python itself calls the handler."""
    signal.raise_signal(SIGNAL)


# Doors that show or note an error where it came, and go on.
GO_ON = frozenset({"autotune", "explorer"})
ACTS = {"limit": limit, "alone": limit_alone, "interrupt": interrupt, "memory": out_of_memory}


def _opened(kind: str, folder: Path) -> Use:
    good = KINDS[kind](folder)
    path = folder / f"good_{kind}"
    if kind == "ranks":
        path.mkdir()
        for i, trace in enumerate(json.loads(good)):
            (path / f"rank{i}.json").write_text(json.dumps(trace))
    else:
        path.write_bytes(good)
    return partial(look, path)


def _saved(folder: Path) -> Use:
    run, path = make_run(), folder / "run.kitrun"

    def use() -> object:
        run.save(path)
        return kit.Run.load(path) == run

    return use


def _exported(folder: Path) -> Use:
    run, path = make_run(), folder / "run.json"

    def use() -> object:
        kit.export_trace(run, path)
        return path.stat().st_size

    return use


def _reported(folder: Path) -> Use:
    runs = [make_run(kit.Settings(bulk_forward=n)) for n in (1, 5)]

    def use() -> object:
        kit.report(runs, path=folder / "report.html")
        return (folder / "report.html").read_text().endswith("</html>\n")

    return use


def _built(ctx: Any) -> Any:
    torch.manual_seed(0)
    x = torch.ones(4, device=ctx.device)
    return lambda: (x * 2).sum()


WORKLOAD = kit.workload(_built)
NATIVE = kit.Settings(mode="torch", steps=1, warmup=0)
LAZY = kit.Settings(mode="lazy", steps=1, warmup=1)


def _swept(settings: kit.Settings, folder: Path) -> Use:
    count = iter(range(10**9))

    def use() -> object:
        path = folder / f"sweep{next(count)}"
        try:
            runs = kit.sweep(WORKLOAD, {"seed": [0, 1]}, settings, path=path)
        finally:
            for file in path.glob("*") if path.exists() else ():
                kit.Run.load(file)
        return [run.losses for run in runs]

    return use


def _tuned(folder: Path) -> Use:
    def use() -> object:
        return autotune(WORKLOAD, LAZY, budget_s=0.0).best.mode

    return use


def _imagined(settings: kit.Settings, **_: Any) -> kit.Run:
    return make_run(settings, steps=1)


def _explored(folder: Path) -> Use:
    def use() -> object:
        made = Explorer(_imagined)
        try:
            made.wait(60)
            made.set(bulk_forward=3)
            made.undo()
            made.set(bulk_forward=4)
            return made.wait(60).settings.bulk_forward
        finally:
            made.close()

    return use


def _compared(folder: Path) -> Use:
    runs = [make_run(kit.Settings(bulk_forward=n)) for n in (1, 5)]
    return lambda: (kit.diff_runs(*runs).text(), runs[0].advice(), runs[0].to_markdown())


def _predicted(folder: Path) -> Use:
    run = make_run()
    return lambda: kit.predict(run, run.settings.replace(bulk_forward=2)).step_text


def _asked(folder: Path) -> Use:
    run = make_run()
    return lambda: len(run.query("select * from kernels"))


def _laid_out(folder: Path) -> Use:
    return lambda: run_dot(shutil.which("dot") or "", ["{ a -> b; }"], 20.0)


DOORS: dict[str, Callable[[Path], Use]] = {
    **{f"open {kind}": partial(_opened, kind) for kind in KINDS if kind != "random.json"},
    "save": _saved,
    "export": _exported,
    "report": _reported,
    "sweep": partial(_swept, NATIVE),
    "sweep lazy": partial(_swept, LAZY),
    "autotune": _tuned,
    "explorer": _explored,
    "compare": _compared,
    "predict": _predicted,
    "query": _asked,
    "graph": _laid_out,
}


def _state(folder: Path) -> object:
    """What a use must leave as it was."""
    files = sorted(str(p) for p in folder.rglob("*") if "tmp" in p.name)
    return current_session(), len(INTERRUPTS.kept), INTERRUPTS._is_postponed, files


def try_door(name: str, act_name: str, share: float, seed: int, pattern: str = "") -> str:
    """Let it happen at a share of the lines of a use; gives what came of it.

    Raises:
        ExceptionGroup: for each line after which something was wrong, what that was.
    """
    act, chance, wrong, tried = ACTS[act_name], random.Random(seed), list[Exception](), 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        use = DOORS[name](folder)
        use()
        want, before = use(), _state(folder)
        threads = threading.active_count()
        lines = [x for x in lines_of(use) if pattern in x[0].co_filename]
        for line in [x for x in lines if chance.random() < share]:
            where = f"{name}, {line[0].co_filename}:{line[1]} ({line[0].co_qualname})"
            faulthandler.dump_traceback_later(WAIT_S, exit=True)
            tried += 1
            try:
                came = run_with(use, line, act)
                while INTERRUPTS.kept:
                    INTERRUPTS.check()
                if came and not (act is out_of_memory and name in GO_ON):
                    wrong.append(AssertionError(f"{where}: nothing was raised"))
            except (MemoryError, KeyboardInterrupt, Limit):
                pass
            except Exception as error:  # noqa: BLE001 - it is told at the end
                if not was_caused(error):
                    wrong.append(AssertionError(f"{where}: {error!r:.300}"))
            INTERRUPTS.kept.clear()
            gc.enable()
            try:
                found = _state(folder)
                assert found == before, f"left {found}, was {before}"
                assert not TURNS.is_taken
                assert use() == want, "the next use is another"
                until = time.monotonic() + 20
                while threading.active_count() > threads and time.monotonic() < until:
                    time.sleep(0.05)
                left, threads = threads, threading.active_count()
                assert threads <= left, f"threads are left: {threading.enumerate()}"
            except Exception as error:  # noqa: BLE001 - it is told at the end
                wrong.append(AssertionError(f"{where}: next: {error!r:.300}"))
            faulthandler.cancel_dump_traceback_later()
    if wrong:
        raise ExceptionGroup(f"{name}: {len(wrong)} of {tried} lines", wrong)
    return f"{name}: {tried} of {len(lines)} lines"


def main() -> None:
    """Try each door with each act, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the lines, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--doors", nargs="*", default=list(DOORS))
    parser.add_argument("--acts", nargs="*", default=list(ACTS))
    parser.add_argument("--within", default="")
    asked = parser.parse_args()
    hear_interrupts()

    def handle(number: int, at: Any) -> None:
        raise Limit

    signal.signal(SIGNAL, handle)
    try_each(
        asked.acts, asked.doors,
        lambda act, door: try_door(door, act, asked.share, asked.seed, asked.within),
    )  # fmt: skip


if __name__ == "__main__":
    main()
