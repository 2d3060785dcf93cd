"""A saved run is of another workload once a value was changed that its builder reads."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import linecache
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.measure.base import machine
from kit.measure.base.context import Workload
from kit.measure.search import statements
from kit.measure.search.source import source_of, why_another

SIZES = """
import argparse
import decimal
import time
import types
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy
import sizes_of_it
from sizes_of_it import CONTEXT

args = argparse.Namespace(hidden=8, out="a.html")
CONFIG = {"net": {"hidden": 8}, "seen": []}
COUNTS = {"steps": 8}


class Fixed:
    hidden = 8


@dataclass
class Sizes:
    hidden: int


class Kind(Enum):
    wide = 1
    wider = 2


kind = Kind(8 // 7)
number = numpy.float32(8)
widths, kinds = [8, 8], {8}
weights, seen = numpy.zeros(8), [numpy.zeros((8, 1))]
THREE = 8
context = decimal.Context()
context.prec = THREE


class Config:
    def __init__(self, hidden):
        self.hidden, self.net, self.steps = hidden, {"layers": [hidden]}, 1

    def count(self):
        self.steps += 1


class Run:
    def __init__(self):
        self.started = time.time()


class Net:
    def __init__(self, hidden):
        self.layers = [0] * hidden


config = Config(8)
this = Run()
model = Net(4)
model.first = Net(8)
rows = {"of a dataset": [[0] * 200] * 600, "hidden": 8}
sizes = Sizes(8)


class Trainer:
    steps = 8

    def __init__(self, hidden, log):
        self.hidden, self.log, self.seen = hidden, log, {"n": 8}

    def build(self, ctx):
        self.steps += 1
        self.seen["n"] += 1
        return self.hidden

    __call__ = build


def closed(config):
    return lambda ctx: config["net"]["hidden"]


def counting(ctx):
    class Seen: pass

    CONFIG["seen"].append(COUNTS["steps"])
    COUNTS["steps"] += 1


def of_default(ctx, hidden=args.hidden):
    return hidden


def name():
    return "hidden"


helper = partial(of_default, hidden=8)
builders = {
    "Namespace": lambda ctx: dict(out=args.hidden),
    "by name": lambda ctx: getattr(args, name()),
    "dict": lambda ctx: CONFIG["net"]["hidden"],
    "class": lambda ctx: Fixed.hidden,
    "dataclass": lambda ctx: sizes.hidden,
    "enum": lambda ctx: kind,
    "number": lambda ctx: number,
    "rows": lambda ctx: rows["hidden"],
    "module": lambda ctx: sizes_of_it.HIDDEN,
    "method": Trainer(8, "a.log").build,
    "object": Trainer(8, "a.log"),
    "closure": closed(CONFIG),
    "default": of_default,
    "partial": lambda ctx: helper(),
    "counting": counting,
    "list": lambda ctx: widths,
    "set": lambda ctx: kinds,
    "array": lambda ctx: weights,
    "arrays": lambda ctx: seen,
    "fields": lambda ctx: (config.hidden, config.net, config.steps, this.started),
    "object that keeps no number": lambda ctx: model,
    "object in a closure": closed(Config(8)),
    "object of a library": lambda ctx: context.prec,
    "its module": lambda ctx: CONTEXT.prec,
}
"""


def sized(text: str, hidden: int) -> dict[str, dict[str, str]]:
    """What is noted of each builder of a script whose values are these."""
    made = (
        f"import decimal\nHIDDEN = {hidden}\nSMALL = decimal.Context(1)\n"
        f"CONTEXT = decimal.Context({hidden})"
    )
    modules = [ModuleType("sizes_of_it"), ModuleType("sized_of_it")]
    try:
        for module, lines in zip(modules, (made, text), strict=True):
            file = Path(f"{module.__name__}.py").absolute()
            file.write_text(lines, "utf-8")
            os.utime(file, (0, 0))  # before this process began
            module.__file__, sys.modules[module.__name__] = str(file), module
            exec(compile(lines, file, "exec", dont_inherit=True), vars(module))
        linecache.checkcache()
        builders = modules[1].builders
        return {name: source_of(Workload("w", b)) for name, b in builders.items()}
    finally:
        for module in modules:
            del sys.modules[module.__name__]


def test_what_a_builder_reads_of_dicts_arguments_and_objects_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sized(SIZES, 8)
    assert sized(SIZES, 8) == before
    after = sized(SIZES.replace("8", "16"), 16)
    whys = {name: why_another(text, after[name]) for name, text in before.items()}
    assert whys == {
        "Namespace": "another value: args.hidden",
        "by name": "another value: args.hidden",
        "dict": "another value: CONFIG['net']['hidden']",
        "class": "another value: Fixed.hidden",
        "dataclass": "another value: sizes.hidden",
        "enum": "another value: kind",
        "number": "another value: number",
        "rows": "another value: rows",
        "module": "another value: sizes_of_it.HIDDEN",
        "method": "another value: Trainer.hidden, Trainer.seen['n'], Trainer.steps, ...",
        "object": "another value: Trainer.hidden, Trainer.seen['n'], Trainer.steps, ...",
        "closure": "another value: config['net']['hidden']",
        "default": "another value: hidden",
        "partial": "another value: hidden, partial(hidden)",
        "counting": "another value: CONFIG['net']['hidden'], COUNTS['steps']",
        "list": "another value: widths",
        "set": "another value: kinds",
        "array": "another value: weights",
        "arrays": "another value: seen[0]",
        "fields": "another value: config, config.hidden, config.net['layers']",
        "object that keeps no number": "another value: model",
        "object in a closure": "another value: config.hidden, config.net['layers']",
        "object of a library": "another value: THREE",
        "its module": "another value: CONTEXT",
    }
    # What it does not read, such as where the script writes its output, is no workload's.
    unread = SIZES.replace("a.html", "b.html").replace("a.log", "b.log")
    assert sized(unread, 8) == before
    # Nor is a line; a class of Python 3.13 has a constant of where it begins.
    assert sized(f"\n\n{SIZES}", 8) == before


def noted(*cells: str) -> str:
    """What is noted of a builder of a notebook that returns `context`."""
    known: dict[str, Any] = {"__name__": "__main__", "In": ["", "import decimal, asyncio", *cells]}
    for cell in (*known["In"], "def build(ctx): return context"):
        code = compile(cell, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        ran = eval(code, known)
        if inspect.iscoroutine(ran):
            asyncio.run(ran)
    return source_of(Workload("w", known["build"]))["workload values"]


def test_an_object_of_a_notebook_is_made_by_the_cells_that_ran_last() -> None:
    eight, nine = "context = decimal.Context(8)", "context = decimal.Context(9)"
    assert noted(eight) == noted(nine, eight) != noted(nine)
    assert noted(eight, "context.prec = 9") != noted(eight)


def test_a_cell_that_waits_and_one_that_is_deep_hinder_no_sweep() -> None:
    """The first was a SyntaxError of `kit.sweep`, and the second one a RecursionError."""
    waits = "context = await asyncio.sleep(0, decimal.Context({}))"
    assert noted(waits.format(8)) == noted(waits.format(8)) != noted(waits.format(9))
    deep = f"context = decimal.Context(8)\nnumber = {'+'.join(['1'] * 1500)}"
    assert noted(deep) == noted(deep)
    assert noted(f"context = decimal.Context({'+'.join(['1'] * 300)})")


PLACED = """
import decimal
from pathlib import Path

HERE, WIDTH = Path(__file__).parent, decimal.Context(8)
called = decimal.Context(len(__name__))


def build(ctx):
    return HERE, WIDTH, called
"""


def test_where_a_script_lies_and_by_which_name_it_runs_is_no_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was moved was measured again: "another value: __file__"."""
    text = f"{PLACED}\n\nbuilders = {{'all': build}}"
    found = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        found.append(sized(text, 8)["all"])
    assert why_another(*found) == ""
    assert why_another(found[0], sized(text.replace("8", "9"), 8)["all"])


def test_another_name_of_an_import_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
from sizes_of_it import SMALL as HIDDEN, CONTEXT as SMALL
builders = {"all": lambda ctx: SMALL.prec}
"""
    first = sized(text, 8)["all"]
    assert why_another(first, sized(text, 8)["all"]) == ""
    assert why_another(first, sized(text, 9)["all"]) == "another value: CONTEXT, SMALL"


def test_without_psutil_it_is_not_known_whether_a_file_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with torch and jax only could not sweep: "No module named 'psutil'"."""
    file = tmp_path / "made_of_it.py"
    file.write_text("")
    code, known = compile("", "<statement>", "exec"), {"__file__": str(file)}
    assert statements.Statement("", code, known).is_newer == (machine.began_s() < time.time() - 2)
    spec = importlib.util.find_spec(statements.__name__)
    assert spec is not None
    assert spec.loader is not None
    there = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(machine, "psutil", None)
    spec.loader.exec_module(there)
    assert not there.Statement("", code, known).is_newer


class Vertex:
    """It says nothing of itself but which others are near."""

    def __init__(self) -> None:
        self.near: list[Vertex] = []
        self.first: object = None


def test_objects_that_hold_each_other_are_gone_through_once() -> None:
    """Each path through them was: of 16 there are 50,000 with 5 of them, and of 60 700,000,000."""
    every = [Vertex() for _ in range(60)]
    for vertex in every:
        vertex.near = [*every]

    def build(ctx: Any) -> Any:
        return every[0].near, every[0].first

    def values() -> dict[str, str]:
        return source_of(Workload("w", build))

    before = values()
    every[-1].first = 8
    assert why_another(before, values()) == "another value: every"


COUNTED = """
class State:
    def __init__(self):
        self.steps = 0


state = State()


def step():
    state.steps += 1


builders = {"all": lambda ctx: (step, state)}
"""


def test_a_field_that_a_function_counts_up_is_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`state.steps = state.steps + 1` was none, and `state.steps += 1` was one."""
    monkeypatch.chdir(tmp_path)
    before = sized(COUNTED, 8)["all"]
    after = sized(COUNTED.replace("builders =", "step()\nbuilders ="), 8)["all"]
    assert why_another(before, after) == ""


NAMESAKES = """
import time

width, layers, lr = 8, (8,), 8.0


class Net:
    def __init__(self):
        self.layers, self.lr = [], lr
        self.resize(width)
        for size in layers:
            self.layers.append(size)

    def resize(self, width):
        self.width = width

    def decay(self):
        self.lr *= 0.9


class Timer:
    def __init__(self):
        self.start = time.perf_counter()

    def since(self):
        return time.perf_counter() - self.start


TIMER = Timer()
builders = {"all": lambda ctx: (Net().decay(), TIMER.since())}
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("8, (8,), 8.0", "16, (8,), 8.0", "another value: width"),
        ("8, (8,), 8.0", "8, (16,), 8.0", "another value: layers"),
        ("8, (8,), 8.0", "8, (8,), 9.0", "another value: lr"),
        ("", "", ""),  # the timer has another start in each process
    ],
)
def test_an_attribute_that_is_set_hides_no_global_of_that_name(
    old: str, new: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the old width were taken for those of the new."""
    monkeypatch.chdir(tmp_path)
    before = sized(NAMESAKES, 8)["all"]
    assert why_another(before, sized(NAMESAKES.replace(old, new), 8)["all"]) == why
