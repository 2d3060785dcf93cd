"""A saved run is of another workload once the model that its builder leads to was edited."""

from __future__ import annotations

import importlib.util
import linecache
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
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
LOSSES = [0.1]


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
from parts_of_it import LOSSES, SEEN, WIDTH, Net, Other
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
            LOSSES.append(0.2)
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
        ("SEEN = [0.1]", "SEEN = [0.1, 0.2]", True),  # it was not compared
        ("LOSSES = [0.1]", "LOSSES = [0.1, 0.2]", False),  # the step appends to it
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
    assert (after[1] != before[1]) == (old in PARTS and is_other and "=" not in old)


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

    made = "import decimal\n\nC = decimal.Context(8)\n\n\ndef build(ctx):\n    return C\n"
    file.write_text(made, "utf-8")
    os.utime(file, (0, 0))  # before this process began
    old = imported()
    assert why_another(source_of(old), source_of(old)) == ""
    file.write_text(made.replace("8", "9"), "utf-8")
    ran = source_of(old)  # the file says 9, and a run has 8
    os.utime(file, (0, 0))
    assert "the code that ran is not its file's text" in why_another(ran, source_of(imported()))


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
