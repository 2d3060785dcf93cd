"""What the parts of the check find where something is wrong: a check that cannot fail is none."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import kit
from kit.gpu_check.base import cells as cells_of
from kit.gpu_check.base.cells import Cell, measure_cells
from kit.gpu_check.base.journal import Journal
from kit.gpu_check.parts import bert, correctness, models
from kit.gpu_check.parts.native import debug_mode_waits
from kit.gpu_check.parts.profiler import joined_ns
from kit.measure.base.context import Context, workload
from kit.measure.experiment import run as run_once
from kit.runs.compiles import Compile
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.torch import device
from kit.trace.metrics import union_ns
from kit.workloads import bert_of, mlp
from kit.workloads.known_waits import sites_that_wait
from tests.factories import make_run

FEW = Settings(mode="torch", device="cpu", steps=2, warmup=1, batch_size=4)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "lines", tmp_path, seconds=600, is_tiny=True)


def written(folder: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "lines").read_text().splitlines()]
    return [line[what] for line in lines if what in line]


def test_device_time_is_joined_or_not_and_adds_up_to_the_busy_time():
    run = make_run()
    found = joined_ns(run)
    busy = union_ns(run.timeline.intervals(kind="kernel"))
    assert sum(found.values()) == pytest.approx(busy)
    assert {is_known for _, is_known in found} == {True}
    t = run.timeline
    lost = replace(t, segment=np.full_like(t.segment, -1), node=np.full_like(t.node, -1))
    found = joined_ns(replace(run, timeline=lost, fused=()))
    assert {is_known for _, is_known in found} == {False}
    assert sum(found.values()) == pytest.approx(busy)


def test_warnings_of_the_debug_mode_are_counted_by_the_users_line():
    with debug_mode_waits() as found:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered ...)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    ((site, count),) = found.items()
    assert site.startswith("test_parts.py:")
    assert count == 2


def test_the_lines_that_wait_are_those_that_say_so():
    assert len(sites_that_wait()) == 3
    assert all(site.startswith("known_waits.py:") for site in sites_that_wait())


def test_a_cell_that_fails_is_named_once_and_the_others_are_measured(
    journal: Journal, tmp_path: Path
):
    @workload
    def broken(ctx: Context) -> Callable[[], Any]:
        raise MemoryError("out of memory: 3 GiB")

    cells = [Cell("good", mlp, FEW), Cell("bad", broken, FEW), Cell("last", mlp, FEW)]
    found = measure_cells(journal, "table", cells, rounds=2)
    assert [len(found.runs[cell.name]) for cell in cells] == [2, 0, 2]
    bad = [c for c in written(tmp_path, "check") if c["state"] == "not ok"]
    assert [c["name"] for c in bad] == ["table: bad"]
    assert "out of memory: 3 GiB" in bad[0]["why"]
    last = written(tmp_path, "table")[-1]
    assert [row[0] for row in last["rows"]] == ["good", "last"]


def test_a_ratio_is_to_the_first_of_the_group_in_the_same_round(journal: Journal):
    cells = [Cell("a", mlp, FEW, "x"), Cell("b", mlp, FEW, "y"), Cell("c", mlp, FEW, "x")]
    found = measure_cells(journal, "table", cells, rounds=1)
    run = found.runs["a"][0]
    found.runs["a"] = [replace(run, step_times_ns=(n,)) for n in (10, 100)]
    found.runs["c"] = [replace(run, step_times_ns=(n,)) for n in (20, 400)]
    ratios = {row[""]: row["x the first of its group"] for row in found.rows()}
    assert ratios == {"a": 1.0, "b": 1.0, "c": pytest.approx(3.0)}


def test_cells_without_time_are_named_as_not_run(tmp_path: Path):
    journal = Journal(tmp_path / "lines", tmp_path, seconds=0.5, is_tiny=True)
    measure_cells(journal, "table", [Cell("a", mlp, FEW), Cell("b", mlp, FEW)], rounds=3)
    checks = written(tmp_path, "check")
    assert [(c["name"], c["state"]) for c in checks] == [
        ("table: a", "not run"),
        ("table: b", "not run"),
    ]


def test_a_cell_that_takes_long_leaves_out_no_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0

    def run(workload: Any, settings: Settings, *, cache: object) -> Run:
        nonlocal now
        now += 1.0 if settings.mode == "torch" else 50.0
        return made

    made = run_once(mlp, FEW)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(cells_of, "run_once", run)
    journal = Journal(tmp_path / "lines", tmp_path, seconds=70.0, is_tiny=True)
    lazy = FEW.replace(mode="lazy")
    cells = [Cell("a", mlp, lazy), Cell("b", mlp, lazy), Cell("c", mlp, FEW)]
    found = measure_cells(journal, "table", cells, rounds=1)
    assert [len(found.runs[cell.name]) for cell in cells] == [1, 0, 1]


def test_a_wrong_rule_is_found_by_the_own_list_of_ops(monkeypatch: pytest.MonkeyPatch):
    gelu = correctness.OWN_OPS["gelu"]
    assert correctness._is_right(gelu)
    wrong = kit.Rules({"aten.gelu.default": lambda x, **_: jnp.tanh(x)}).over(kit.DEFAULT_RULES)
    monkeypatch.setattr(
        correctness, "open_session", lambda settings: device.open_session(settings, rules=wrong)
    )
    assert not correctness._is_right(gelu)


def test_torch_compile_is_a_native_baseline_only():
    compiled = bert_of("tiny", backend="eager")
    assert "torch.compile (eager)" in compiled.name
    with pytest.raises(kit.errors.SettingsError, match=r"torch\.compile is for native torch"):
        compiled(Context(Settings(), "kit"))


@pytest.mark.parametrize("is_tiny", [True, False])
def test_the_cells_have_names_of_their_own_and_keep_few_files(is_tiny: bool):
    """Full sizes cannot run here, but their settings are checked when a cell is made."""
    tables = {
        "BERT": list(bert._tiny_cells() if is_tiny else bert._cells()),
        **{title: list(cells(is_tiny)) for title, cells in models.TABLES.items()},
    }
    kept = ["native_eager", "profiler"]
    for cells in tables.values():
        assert len({cell.name for cell in cells}) == len(cells)
        kept += [cell.keep for cell in cells if cell.keep]
    assert len(set(kept)) == len(kept)
    assert len(kept) + len(("summary.json", "summary.md", "log.txt")) <= 8


def test_a_time_that_a_compile_is_in_says_so(journal: Journal, tmp_path: Path):
    cold = Settings(mode="lazy", device="cpu", steps=2, warmup=0, batch_size=4)
    cells = [Cell("cold", mlp, cold), Cell("warm", mlp, cold.replace(warmup=3))]
    measure_cells(journal, "table", cells, rounds=1)
    why = {c["name"]: c["why"] for c in written(tmp_path, "check")}
    assert "compiles in the measured steps" in why["table: cold"]
    assert "compiles" not in why["table: warm"]


def test_so_does_one_whose_number_of_steps_kit_chose() -> None:
    """`Settings()` has -1 for both numbers: until the steps are steady, and enough of them."""
    late = Compile(3, 0, "forward", "shape", "another shape", ops=1)
    conditions = replace(make_run().conditions, warmup_steps=3)
    run = replace(make_run(), settings=Settings(), compiles=(late,), conditions=conditions)
    assert "1 compile in the measured steps" in cells_of._said(run)
    assert "compile" not in cells_of._said(replace(run, compiles=(replace(late, step=2),)))


def test_a_kind_that_is_new_needs_as_long_as_what_took_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0

    def run(workload: Any, settings: Settings, *, cache: object) -> Run:
        nonlocal now
        now += 50.0
        return made

    made = run_once(mlp, FEW)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(cells_of, "run_once", run)
    journal = Journal(tmp_path / "lines", tmp_path, seconds=90.0, is_tiny=True)
    cells = [Cell("a", mlp, FEW.replace(mode="lazy")), Cell("b", mlp, FEW, kind="inductor")]
    found = measure_cells(journal, "table", cells, rounds=1)
    assert [len(found.runs[cell.name]) for cell in cells] == [1, 0]
    (late,) = [c for c in written(tmp_path, "check") if c["state"] == "not run"]
    assert "needs about 50 s, and 40 s of its time were left" in late["why"]
