"""A run says when it was measured, and of which commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import kit
from kit.measure.base.provenance import provenance
from kit.runs.labels import COMMIT, TIME
from kit.workloads import mlp

_AS = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    made = subprocess.run(["git", *_AS, *words], cwd=folder, check=True, capture_output=True)
    return made.stdout.decode().strip()


def test_a_commit_is_named_and_so_are_changes_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert COMMIT not in provenance()
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text("a = 1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "--short=8", "HEAD")
    assert provenance()[COMMIT] == commit
    (tmp_path / "train.py").write_text("a = 2")
    assert provenance()[COMMIT] == f"{commit}, changed"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert list(provenance()) == [TIME]


def test_a_measured_run_has_its_label_and_its_time() -> None:
    run = kit.run(mlp, kit.Settings(steps=1, warmup=1), label="before")
    assert run.label == "before"
    assert run.environment[TIME].endswith("UTC")
