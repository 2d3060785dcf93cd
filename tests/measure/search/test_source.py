"""A saved run is of another workload once the model that its builder leads to was edited."""

from __future__ import annotations

import importlib.util
import linecache
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import kit
from kit.errors import SweepError
from kit.measure.base.context import Workload
from kit.measure.search.source import source_of, why_another
from kit.runs.analysis.diff import diff_runs
from kit.runs.run import Run

PARTS = """
WIDTH = 8
SEEN = [0.1]


def scaled(x):
    return 2 * x


class Base:
    def forward(self, x):
        return scaled(x)


class Net(Base):
    pass


class Other:
    pass
"""
TRAIN = """
from parts_of_it import SEEN, WIDTH, Net, Other
import parts_of_it

HIDDEN = 4
counted = 0


def unused():
    return 1


def make(models):
    def build(ctx):
        global counted
        counted += 1
        model = models[0](), HIDDEN, WIDTH, SEEN

        def step():
            return model

        return step

    return build


build = make([Net])
by_module = lambda ctx: parts_of_it.Net
"""


def hashes(parts: str, train: str) -> list[dict[str, str]]:
    """What is noted of the builders of a script and the module beside it, as read anew."""
    for name, text in (("parts_of_it", parts), ("train_of_it", train)):
        Path(f"{name}.py").write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(name, Path(f"{name}.py").absolute())
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    linecache.checkcache()
    return [source_of(Workload("w", build)) for build in (module.build, module.by_module)]


@pytest.mark.parametrize(
    ("old", "new", "is_other"),
    [
        ("return 2 * x", "return 3 * x", True),
        ("class Net(Base):\n    pass", "class Net(Base):\n    bias = 1", True),
        ("WIDTH = 8", "WIDTH = 16", True),
        ("HIDDEN = 4", "HIDDEN = 5", True),
        ("return model", "return model[0]", True),
        ("SEEN = [0.1]", "SEEN = [0.1, 0.2]", False),  # a step may append to it
        ("counted = 0", "counted = 3", False),  # the builder changes it
        ("return 1", "return 2", False),
        ("class Other:\n    pass", "class Other:\n    it = 1", False),
    ],
)
def test_an_edit_of_what_the_builder_leads_to_is_another_workload_and_no_other_edit(
    old: str, new: str, is_other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = hashes(PARTS, TRAIN)
    assert all(before)
    assert hashes(PARTS, TRAIN) == before
    after = hashes(PARTS.replace(old, new), TRAIN.replace(old, new))
    assert (after[0] != before[0]) == is_other
    assert (after[1] != before[1]) == (old in PARTS and is_other and "WIDTH" not in old)


SIZES = """
import argparse
import types
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy
import sizes_of_it

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
}
"""


def sized(text: str, hidden: int) -> dict[str, dict[str, str]]:
    """What is noted of each builder of a script whose values are these."""
    module, other = ModuleType("sized_of_it"), ModuleType("sizes_of_it")
    other.__file__ = module.__file__ = str(Path("sized_of_it.py").absolute())
    vars(other)["HIDDEN"] = hidden
    sys.modules["sizes_of_it"], sys.modules["sized_of_it"] = other, module
    try:
        exec(compile(text, module.__file__, "exec"), vars(module))
        return {name: source_of(Workload("w", b)) for name, b in module.builders.items()}
    finally:
        del sys.modules["sizes_of_it"], sys.modules["sized_of_it"]


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
    }
    # What it does not read, such as where the script writes its output, is no workload's.
    unread = SIZES.replace("a.html", "b.html").replace("a.log", "b.log")
    assert sized(unread, 8) == before
    # Nor is a line; a class of Python 3.13 has a constant of where it begins.
    assert sized(f"\n\n{SIZES}", 8) == before


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


def test_a_folder_of_an_older_kit_is_opened_and_what_it_did_not_note_is_named(
    tmp_path: Path,
) -> None:
    config = {"size": 8}
    built = []

    def build(ctx: object) -> object:
        built.append(config["size"])
        return lambda: torch.zeros(())

    settings = kit.Settings(mode="torch", steps=1, warmup=0)
    kit.sweep(build, {"seed": [0]}, settings, path=tmp_path)
    (file,) = tmp_path.iterdir()
    run = Run.load(file)
    assert "workload values" not in str(diff_runs(run, replace(run, environment={})))
    old = {k: v for k, v in run.environment.items() if k != "workload values"}
    replace(run, environment=old).save(file)
    with pytest.warns(UserWarning, match=r"older kit, which did not note config\['size'\]"):
        kit.sweep(build, {"seed": [0]}, settings, path=tmp_path)
    assert built == [8]


def test_what_the_steps_count_themselves_does_not_measure_a_folder_again(tmp_path: Path) -> None:
    config = {"steps": 0, "size": 8, "losses": []}
    built = []

    def build(ctx: object) -> object:
        built.append(config["size"])

        def step() -> torch.Tensor:
            config["steps"] += 1  # type: ignore[operator]
            config["losses"].append(0.0)  # type: ignore[attr-defined]
            return torch.zeros(())

        return step

    settings = kit.Settings(mode="torch", steps=1, warmup=0)
    kit.sweep(build, {"seed": [0]}, settings, path=tmp_path)
    kit.sweep(build, {"seed": [0, 1]}, settings, path=tmp_path)
    kit.sweep(build, {"seed": [0, 1]}, settings, path=tmp_path)
    assert built == [8, 8]
    config["size"] = 16
    with pytest.warns(UserWarning, match=r"another value: .*config\['size'\]"):
        kit.sweep(build, {"seed": [0]}, settings, path=tmp_path)
    assert built == [8, 8, 16]


def test_an_edit_after_the_import_is_not_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("edited_of_it.py")

    def imported() -> Workload:
        spec = importlib.util.spec_from_file_location("edited_of_it", file.absolute())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        text = file.read_text("utf-8")
        exec(compile(text, str(file.absolute()), "exec", dont_inherit=True), vars(module))
        return Workload("w", module.build)

    file.write_text("def build(ctx):\n    return lambda: 64\n", "utf-8")
    old = imported()
    before = source_of(old)
    file.write_text("def build(ctx):\n    return lambda: 512\n", "utf-8")
    ran = source_of(old)  # and is saved, with a run of 64
    new = source_of(imported())
    assert why_another(ran, source_of(old)) == ""
    assert "the code that ran is not its file's text" in why_another(ran, new)
    assert "the code that ran is not its file's text" in why_another(before, source_of(old))
    assert why_another(before, new) == "the workload's source has changed since"


def test_saved_runs_of_another_commit_are_said_though_none_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "mine"
    repository.mkdir()
    monkeypatch.chdir(repository)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)

    def build(ctx: object) -> object:
        return lambda: torch.zeros(())

    settings = kit.Settings(mode="torch", steps=1, warmup=0)
    kit.sweep(build, {"seed": [0]}, settings, path=tmp_path / "runs")
    kit.sweep(build, {"seed": [0]}, settings, path=tmp_path / "runs")
    (file,) = (tmp_path / "runs").iterdir()
    run = Run.load(file)
    replace(run, environment={**run.environment, "git commit": "0000aaaa"}).save(file)
    with pytest.warns(UserWarning, match="may not compare: git commit is 0000aaaa or "):
        kit.sweep(build, {"seed": [0]}, settings, path=tmp_path / "runs")


def test_a_warning_that_is_an_error_holds_what_a_sweep_has_measured(tmp_path: Path) -> None:
    """`python -W error`: "is kept in memory only", and it was not."""

    def build(ctx: Any) -> Any:
        (tmp_path / "runs").rmdir()
        return lambda: torch.zeros(())

    native = kit.Settings(mode="torch", steps=1, warmup=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="could not be saved") as caught:
            kit.sweep(build, {"seed": [0]}, native, path=tmp_path / "runs")
    assert len(caught.value.runs) == 1  # type: ignore[attr-defined]


def test_what_a_step_has_left_and_cannot_be_read_hides_no_result(tmp_path: Path) -> None:
    """The end of a sweep reads it again: its error came in the place of the runs."""

    class Table(dict[str, int]):
        is_broken = False

        def items(self) -> Any:
            if self.is_broken:
                raise RuntimeError("a table that is closed")
            return super().items()

    table = Table(width=4)

    def build(ctx: Any, table: Table = table) -> Any:
        table.is_broken = True
        if ctx.seed:
            raise ValueError("a cell's own")
        return lambda: torch.zeros(())

    native = kit.Settings(mode="torch", steps=1, warmup=0)
    with pytest.raises(SweepError, match="a cell's own") as caught:
        kit.sweep(build, {"seed": [0, 1]}, native, path=tmp_path)
    assert len(caught.value.runs) == 1
    table.is_broken = False
    assert len(kit.sweep(build, {"seed": [0]}, native, path=tmp_path)) == 1
