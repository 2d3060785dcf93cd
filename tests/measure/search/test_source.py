"""A saved run is of another workload once the model that its builder leads to was edited."""

from __future__ import annotations

import importlib.util
import linecache
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kit
from kit.measure.base.context import Workload
from kit.measure.search.source import source_of
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


def hashes(parts: str, train: str) -> list[str]:
    """Of the builders of a script and of the module beside it, as they are read anew."""
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
