"""Compiled programs survive the process, and the user's own cache setting is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, jax
from kit.workloads import mlp
from kit.measure.experiment import run
from kit.runs.settings import Settings
r = run(mlp, Settings(mode="lazy", steps=2))
kernels = [s.node for s in r.timeline.spans if s.kind == "kernel"]
print(json.dumps([r.losses, r.metrics["compile.count"], r.metrics["compile.from_disk"],
                  len({n for n in kernels if n >= 0}), jax.config.jax_compilation_cache_dir]))
"""


def fresh_process(tmp_path: Path, **changes: str) -> list[object]:
    environment = {**os.environ, **changes}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_process_compiles_nothing_and_joins_its_kernels(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    losses, compiles, loaded, joined, _ = fresh_process(tmp_path, KIT_CACHE_DIR=folder)
    assert loaded == 0
    again = fresh_process(tmp_path, KIT_CACHE_DIR=folder)
    assert again[:3] == [losses, compiles, compiles]
    assert isinstance(joined, int)
    assert isinstance(again[3], int)
    assert again[3] > 0.9 * joined > 0


def test_the_users_own_folder_is_kept_and_an_empty_one_means_none(tmp_path: Path) -> None:
    mine = str(tmp_path / "mine")
    found = fresh_process(tmp_path, JAX_COMPILATION_CACHE_DIR=mine, KIT_CACHE_DIR="elsewhere")
    assert found[4] == mine
    assert fresh_process(tmp_path, KIT_CACHE_DIR="")[4] is None
