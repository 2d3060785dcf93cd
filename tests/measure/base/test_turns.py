"""One measurement at a time: who measures, who waits, what they are told, what a cancel leaves."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import nbclient
import nbformat
import pytest
import torch

import kit
from kit.errors import Cancelled
from kit.measure.base.turns import PATIENCE_S, TURNS, Turns
from kit.widgets.explorer.view import Explorer
from tests.reliability.stops.errors import interrupt, lines_of, run_with
from tests.waiting import until
from tests.warm import warm_kernel

LONG_S = 30.0
QUICK = kit.Settings(steps=3, warmup=1, batch_size=2)


class Measurer:
    """A thread that measures until it is let go."""

    def __init__(self, turns: Turns, name: str, order: list[str]) -> None:
        self.told: list[str] = []
        self.stop, self.leave = threading.Event(), threading.Event()
        self.error: BaseException | None = None

        def work() -> None:
            try:
                with turns.measure(name, cancelled=self.stop.is_set, tell=self.told.append):
                    order.append(name)
                    assert self.leave.wait(LONG_S)
            except Cancelled as error:
                self.error = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def end(self) -> None:
        self.leave.set()
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()


def test_who_comes_first_measures_first_and_a_cancel_leaves_the_queue_whole():
    turns, order = Turns(), []
    measurers = []
    for n in range(5):
        measurers.append(Measurer(turns, f"cell [{n}]", order))
        until(lambda n=n: len(turns._queue) == n + 1)
    until(lambda: order == ["cell [0]"])
    measurers[2].stop.set()
    measurers[2].thread.join(LONG_S)
    assert str(measurers[2].error) == "cancelled while it waited for cell [0]"
    for n in (0, 1, 3, 4):
        until(lambda n=n: order[-1] == f"cell [{n}]")
        for other in measurers[3:] if n in (0, 1) else ():
            until(lambda n=n, other=other: f"waits for cell [{n}]" in other.told)
        measurers[n].end()
    assert order == ["cell [0]", "cell [1]", "cell [3]", "cell [4]"]
    assert measurers[0].told == []
    assert measurers[1].told == ["waits for cell [0]"]
    assert measurers[3].told == ["waits for cell [0]", "waits for cell [1]"]
    assert not turns.is_taken


def test_an_interrupt_or_an_error_while_it_waits_gives_the_place_back():
    turns, order = Turns(), []
    first = Measurer(turns, "first", order)
    until(lambda: order == ["first"])

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), turns.measure("me", tell=interrupted):
        raise AssertionError("never reached")
    assert [ticket.who for ticket in turns._queue] == ["first"]
    first.end()
    with pytest.raises(ZeroDivisionError), turns.measure("me"):
        raise ZeroDivisionError
    assert not turns.is_taken


@pytest.mark.parametrize("kind", ["measure", "record", "compile"])
def test_an_interrupt_at_any_line_leaves_no_place_taken(kind: str):
    """Though the traceback is kept, as a notebook keeps the last one."""
    kept: list[BaseException] = []

    def block() -> None:
        with getattr(turns, kind)():
            pass

    turns = Turns()
    lines = lines_of(block)
    assert len(lines) > 8
    for line in lines:
        turns = Turns()
        try:
            assert run_with(block, line, interrupt)
        except KeyboardInterrupt as error:
            kept.append(error)
        assert gc.isenabled(), f"nothing is collected any more: {line}"
        others = threading.Thread(target=measures, args=(turns,), daemon=True)
        others.start()
        others.join(PATIENCE_S / 2)
        assert not others.is_alive(), f"a turn is held for ever: {line}"
        measures(turns)
    assert len(kept) == len(lines)


def measures(turns: Turns) -> None:
    with turns.measure("another"):
        turns.wait_quiet()


def test_a_run_inside_a_run_has_the_turn_already_also_in_a_thread_of_its_context():
    turns, inside = Turns(), []

    def nested() -> None:
        with turns.measure("inside"):
            inside.append([ticket.who for ticket in turns._queue])

    with turns.measure("outside"):
        nested()
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(nested,))
        thread.start()
        thread.join(LONG_S)
    assert inside == [["outside"]] * 2
    late = Measurer(turns, "late", [])
    until(lambda: turns.is_taken)
    thread = threading.Thread(target=context.run, args=(nested,))  # the outer turn is long over
    thread.start()
    until(lambda: len(turns._queue) == 2)
    late.end()
    thread.join(LONG_S)
    assert inside[2] == ["inside"]


def test_compiling_ahead_is_refused_while_a_run_waits_or_measures():
    turns = Turns()
    with turns.measure("cell [1]"), pytest.raises(Cancelled, match="goes first"), turns.record():
        raise AssertionError("never reached")
    with turns.record():
        waiting = Measurer(turns, "cell [2]", order := [])
        until(lambda: turns.is_taken)
        assert order == []  # its clock starts when the recorded step has stopped
    until(lambda: order == ["cell [2]"])
    waiting.end()


class Cell:
    """What IPython says while cell 9 runs."""

    class history_manager:
        input_hist_parsed: ClassVar[list[str]] = ["", *"abcdefghi"]


def test_a_cell_is_called_by_the_number_that_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path))
    asked = "from kit.measure.base.turns import asker\nprint(asker())"
    cells = [nbformat.v4.new_code_cell(text) for text in ("1", "2", asked)]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    (output,) = book.cells[2].outputs
    assert output.text == f"cell [{book.cells[2].execution_count}]\n" == "cell [3]\n"


@pytest.fixture
def in_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", Cell)
    assert "IPython" in sys.modules


def timed(name: str, log: list[tuple[str, int]], gate: threading.Event) -> Any:
    """A small step that notes when it ran; its first one waits at the gate."""

    def small(ctx: Any) -> Any:
        model = torch.nn.Linear(4, 4).to(ctx.device)
        x = torch.ones(2, 4).to(ctx.device)

        def step() -> Any:
            assert gate.wait(LONG_S)
            log.append((name, time.perf_counter_ns()))
            return model(x).square().mean()

        return step

    small.__name__ = name
    return kit.workload(small)


def names(log: list[tuple[str, int]]) -> list[str]:
    """Whose steps they were, each name once for steps in a row."""
    found: list[str] = []
    for name, _ in sorted(log, key=lambda entry: entry[1]):
        if found[-1:] != [name]:
            found.append(name)
    return found


def test_a_cell_waits_for_the_explorers_run_and_says_so(in_cell: None):
    log: list[tuple[str, int]] = []
    gate = threading.Event()
    explorer = kit.Explorer(timed("first", log, gate), QUICK, compile_ahead=False)
    assert isinstance(explorer, Explorer)
    until(lambda: TURNS.is_taken)
    told: list[str] = []

    def progress(text: str, fraction: float) -> None:
        told.append(text)
        gate.set()

    try:
        run = kit.run(timed("second", log, gate), QUICK, progress=progress)
        measured = explorer.wait(LONG_S)
    finally:
        explorer.close()
    assert names(log) == ["first", "second"]
    assert told[0] == "waits for the explorer of first"
    assert len(run.step_times_ns) == len(measured.step_times_ns) == 3


def test_an_explorer_waits_for_the_cells_run_and_says_so_and_can_be_cancelled(in_cell: None):
    log: list[tuple[str, int]] = []
    gate, said = threading.Event(), []
    started = threading.Event()
    made: list[Explorer] = []

    def progress(text: str, fraction: float) -> None:
        if not started.is_set():
            started.set()
            for name in ("second", "third"):
                explorer = kit.Explorer(timed(name, log, gate), QUICK, compile_ahead=False)
                made.append(explorer)
                until(lambda e=explorer: "waits for cell [9]" in e.actions.status.value)
            made[0].cancel()
            with pytest.raises(Cancelled):
                made[0].wait(LONG_S)
            said.append(made[0].actions.status.value)

    gate.set()
    try:
        kit.run(timed("first", log, gate), QUICK, progress=progress)
        made[1].wait(LONG_S)
    finally:
        for explorer in made:
            explorer.close()
    assert names(log) == ["first", "third"]
    assert "cancelled" in said[0]
    assert not TURNS.is_taken
