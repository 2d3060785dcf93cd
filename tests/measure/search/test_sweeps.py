"""`kit.sweep`: nothing that was measured is lost, and what is loaded is what was asked for."""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import Cancelled, KitError, SettingsError, SweepError, SweepInterrupted
from kit.measure.base.context import Workload
from kit.runs.run import Run
from kit.runs.settings import Settings
from tests.factories import HOSTILE, make_run

NATIVE = Settings(mode="torch", steps=1, warmup=0)
GRID = {"batch_size": [1, 2], "seed": [0, 1, 2]}
CELLS = [(b, s) for b in (1, 2) for s in (0, 1, 2)]


class Counted:
    """A step that costs nothing, whose builder notes each cell and may raise in some."""

    def __init__(self, raises: dict[int, BaseException] | None = None) -> None:
        self.built: list[tuple[int, int]] = []
        self.raises = raises or {}  # by how many cells were built before

    def __call__(self, ctx: Any) -> Callable[[], Any]:
        self.built.append((ctx.batch_size, ctx.seed))
        error = self.raises.get(len(self.built) - 1)
        if error is not None:
            raise error
        loss = torch.tensor(float(10 * ctx.batch_size + ctx.seed))
        return lambda: loss

    @property
    def workload(self) -> Workload:
        return Workload("counted", self)


def cells_of(runs: list[Run]) -> list[tuple[int, int]]:
    return [(r.settings.batch_size, r.settings.seed) for r in runs]


def test_the_last_name_varies_fastest_and_the_runs_are_saved(tmp_path: Path):
    runs = kit.sweep(Counted().workload, GRID, NATIVE, path=tmp_path / "new" / "folder")
    assert cells_of(runs) == CELLS
    assert [r.losses for r in runs] == [(10.0 * b + s,) for b, s in CELLS]
    saved = [Run.load(file) for file in (tmp_path / "new" / "folder").iterdir()]
    assert sorted(cells_of(saved)) == CELLS
    assert all(run in runs for run in saved)


def test_a_second_call_measures_nothing_and_gives_equal_runs(tmp_path: Path):
    first = kit.sweep(Counted().workload, GRID, NATIVE, path=tmp_path)
    again = Counted()
    assert kit.sweep(again.workload, GRID, NATIVE, path=tmp_path) == first
    assert again.built == []


def test_a_larger_grid_measures_only_what_is_new(tmp_path: Path):
    kit.sweep(Counted().workload, {"seed": [0, 2]}, NATIVE, path=tmp_path)
    more = Counted()
    runs = kit.sweep(more.workload, {"seed": [0, 1, 2, 3]}, NATIVE, path=tmp_path)
    assert [s for _, s in more.built] == [1, 3]
    assert [r.settings.seed for r in runs] == [0, 1, 2, 3]


def test_a_cell_that_the_grid_holds_twice_is_measured_twice(tmp_path: Path):
    twice = Counted()
    assert len(kit.sweep(twice.workload, {"seed": [5, 5]}, NATIVE, path=tmp_path)) == 2
    assert len(twice.built) == 2
    assert len(list(tmp_path.iterdir())) == 2


@settings(max_examples=12)
@given(at=st.integers(0, 5), in_progress=st.booleans(), with_path=st.booleans())
def test_an_interrupt_anywhere_loses_no_finished_cell(at: int, in_progress: bool, with_path: bool):
    interrupt = KeyboardInterrupt()
    counted = Counted({} if in_progress else {at: interrupt})

    def progress(text: str, fraction: float) -> None:
        if in_progress and len(counted.built) == at + 1:
            raise interrupt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) if with_path else None
        with pytest.raises(SweepInterrupted) as caught:
            kit.sweep(counted.workload, GRID, NATIVE, path=path, progress=progress)
        assert isinstance(caught.value, KeyboardInterrupt)
        assert isinstance(caught.value, KitError)
        assert cells_of(caught.value.runs) == CELLS[:at]
        assert [(c.batch_size, c.seed) for c in caught.value.missing] == CELLS[at:]
        assert f"{at} of 6 cells" in str(caught.value)
        assert ("same path" if with_path else "sys.last_value.runs") in str(caught.value)
        if path is not None:
            rest = Counted()
            assert cells_of(kit.sweep(rest.workload, GRID, NATIVE, path=path)) == CELLS
            assert rest.built == CELLS[at:]


def test_an_interrupted_sweep_frees_what_its_step_held():
    held = threading.Event()

    class Buffer:
        def __del__(self) -> None:
            held.set()

    def build(ctx: Any) -> Any:
        buffer = Buffer()

        def step() -> Any:
            assert buffer
            raise KeyboardInterrupt

        return step

    with pytest.raises(SweepInterrupted) as caught:
        kit.sweep(build, {"seed": [0]}, NATIVE)
    assert held.is_set()
    assert caught.value.missing == [NATIVE]


def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path):
    errors = {1: RuntimeError("out of memory\nlong story"), 4: ValueError("bad batch")}
    counted = Counted(dict(errors))
    with pytest.raises(SweepError) as caught:
        kit.sweep(counted.workload, GRID, NATIVE, path=tmp_path)
    error = caught.value
    assert counted.built == CELLS
    assert cells_of(error.runs) == [c for i, c in enumerate(CELLS) if i not in errors]
    assert {(c.batch_size, c.seed): e for c, e in error.failures.items()} == {
        CELLS[i]: e for i, e in errors.items()
    }
    assert error.__cause__ is errors[1]
    assert "2 cells of a sweep failed, 4 finished" in str(error)
    assert "long story" not in str(error)
    assert "  batch_size=1, seed=1: RuntimeError: out of memory\n" in str(error)
    retried = Counted()
    assert cells_of(kit.sweep(retried.workload, GRID, NATIVE, path=tmp_path)) == CELLS
    assert retried.built == [CELLS[1], CELLS[4]]


def test_a_cancelled_sweep_keeps_what_it_saved(tmp_path: Path):
    counted = Counted()
    with pytest.raises(Cancelled):
        kit.sweep(
            counted.workload, GRID, NATIVE, path=tmp_path, cancelled=lambda: len(counted.built) == 3
        )
    assert len(list(tmp_path.iterdir())) == 2


def spoil(file: Path, how: str) -> None:
    if how == "cut off":
        file.write_bytes(file.read_bytes()[:-30])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "text":
        file.write_text("hello")
    elif how == "other workload":
        replace(Run.load(file), name="other").save(file)
    elif how == "other settings":
        make_run(NATIVE.replace(seed=7)).save(file)
        replace(Run.load(file), name="counted").save(file)
    elif how == "other source":
        run = Run.load(file)
        noted = {**run.environment, "workload source": "0" * 20}
        replace(run, environment=noted).save(file)


@pytest.mark.parametrize(("how", "why"), [
    ("cut off", "cut off"), ("empty", "zip"), ("text", "zip"),
    ("other workload", "another workload"), ("other settings", "other settings"),
    ("other source", "source has changed"),
])  # fmt: skip
def test_a_file_that_is_not_that_run_is_measured_again(tmp_path: Path, how: str, why: str):
    first = kit.sweep(Counted().workload, {"seed": [0]}, NATIVE, path=tmp_path)
    (file,) = tmp_path.iterdir()
    spoil(file, how)
    again = Counted()
    with pytest.warns(UserWarning, match=f"measured again: .*{why}"):
        runs = kit.sweep(again.workload, {"seed": [0]}, NATIVE, path=tmp_path)
    assert again.built == [(8, 0)]
    assert runs[0].losses == first[0].losses
    assert Run.load(file) == runs[0]


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "counted-0.kitrun").write_bytes(b"\x00")
    kit.sweep(Counted().workload, {"seed": [0]}, NATIVE, path=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "counted-0.kitrun").read_bytes() == b"\x00"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_path_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path):
    (tmp_path / "file").write_text("")
    counted = Counted()
    with pytest.raises(SettingsError, match="cannot be a folder"):
        kit.sweep(counted.workload, GRID, NATIVE, path=tmp_path / "file")
    assert counted.built == []


def test_a_run_that_cannot_be_saved_is_still_given(tmp_path: Path):
    seen = []

    def build(ctx: Any) -> Any:
        seen.append(ctx.seed)
        folder.rmdir()
        return lambda: torch.zeros(())

    folder = tmp_path / "runs"
    with pytest.warns(UserWarning, match="could not be saved"):
        (run,) = kit.sweep(build, {"seed": [0]}, NATIVE, path=folder)
    assert run.losses == (0.0,)


@pytest.mark.parametrize(
    "name", [HOSTILE, "../../up", "", "con", "a/b\\c:d", "ünï\ud800", "." * 300]
)
def test_a_workloads_name_stays_inside_the_folder(tmp_path: Path, name: str):
    inside = tmp_path / "inside"
    workload = Workload(name, Counted())
    clean = name.isprintable() or name == HOSTILE
    if not clean:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            kit.sweep(workload, {"seed": [0]}, NATIVE, path=inside)
        return
    kit.sweep(workload, {"seed": [0]}, NATIVE, path=inside)
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]
    (file,) = inside.iterdir()
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,41}-?[0-9a-f]{20}\.kitrun", file.name)


def test_two_names_that_read_alike_have_two_files(tmp_path: Path):
    for name in ("a/b", "a:b"):
        kit.sweep(Workload(name, Counted()), {"seed": [0]}, NATIVE, path=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_runs_of_two_machines_are_told_apart(tmp_path: Path):
    kit.sweep(Counted().workload, {"seed": [0]}, NATIVE, path=tmp_path)
    (file,) = tmp_path.iterdir()
    run = Run.load(file)
    replace(run, environment={**run.environment, "device": "a GPU"}).save(file)
    with pytest.warns(UserWarning, match="do not compare: device is a GPU or cpu"):
        kit.sweep(Counted().workload, {"seed": [0, 1]}, NATIVE, path=tmp_path)


@pytest.mark.parametrize("mode", ["torch", "lazy"])
def test_threads_give_the_same_numbers_in_the_same_order(mode: str):
    from kit.workloads import mlp

    chosen = Settings(mode=mode, steps=2, warmup=1)
    grid = {"seed": [0, 1], "batch_size": [2, 4] if mode == "torch" else [2]}
    with ThreadPoolExecutor(3) as pool:
        runs = kit.sweep(mlp, grid, chosen, executor=pool)
    alone = kit.sweep(mlp, grid, chosen)
    assert [r.settings for r in runs] == [r.settings for r in alone]
    assert [r.losses for r in runs] == [r.losses for r in alone]
    assert {r.environment["measured in parallel"] for r in runs} == {
        "no: threads of one process take turns"
    }
    assert "measured in parallel" not in alone[0].environment


@settings(max_examples=6)
@given(at=st.integers(0, 5), workers=st.integers(1, 3))
def test_an_interrupt_in_a_thread_keeps_what_is_done(at: int, workers: int):
    counted = Counted({at: KeyboardInterrupt()})
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(workers) as pool, pytest.raises(SweepInterrupted) as caught:
            kit.sweep(counted.workload, GRID, NATIVE, executor=pool, path=folder)
        done = cells_of(caught.value.runs)
        missing = [(c.batch_size, c.seed) for c in caught.value.missing]
        assert sorted(done + missing) == CELLS
        assert counted.built[at] in missing
        assert set(done) <= set(counted.built)
        assert sorted(cells_of([Run.load(f) for f in Path(folder).iterdir()])) == sorted(done)


def test_an_interrupt_from_progress_cancels_what_waits():
    counted = Counted()

    def progress(text: str, fraction: float) -> None:
        if not text.startswith("0 of 50"):  # on a busy machine the first cell takes long
            raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool, pytest.raises(SweepInterrupted) as caught:
        kit.sweep(counted.workload, {"seed": range(50)}, NATIVE, executor=pool, progress=progress)
    assert 1 <= len(caught.value.runs) <= len(counted.built) < 50


def test_a_failing_cell_in_a_thread_is_named():
    counted = Counted({0: RuntimeError("out of memory")})
    with ThreadPoolExecutor(2) as pool, pytest.raises(SweepError, match="out of memory") as caught:
        kit.sweep(counted.workload, GRID, NATIVE, executor=pool)
    assert len(caught.value.runs) == 5


def test_a_closed_executor_fails_every_cell_and_says_so():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(SweepError, match="after shutdown") as caught:
        kit.sweep(Counted().workload, {"seed": [0, 1]}, NATIVE, executor=pool)
    assert len(caught.value.failures) == 2


def spawned(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


class Stubborn(Exception):
    """Cannot be made again from its message, as pickle would."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} because of {why}")


def stubborn(ctx: Any) -> Any:
    raise Stubborn("stuck", "pickle")


def large(ctx: Any) -> Any:
    """A step for whose larger batch no machine has the memory."""
    from kit.workloads import mlp

    torch.empty(10**17 if ctx.settings.batch_size > 4 else 1)
    return mlp.build(ctx)


def test_processes_measure_a_workload_and_bring_its_runs_back(tmp_path: Path, warm_processes: None):
    chosen = Settings(mode="lazy", steps=2, warmup=1)
    grid = {"batch_size": [4, 8]}
    with spawned(2) as pool:
        with pytest.raises(SweepError) as caught:
            kit.sweep(large, grid, chosen, executor=pool, path=tmp_path)
        with pytest.raises(SweepError, match="seed=3: ExecutionError: Stubborn: stuck because of"):
            kit.sweep(stubborn, {"seed": [3]}, NATIVE, executor=pool)
    (run,) = caught.value.runs
    assert run.environment["measured in parallel"] == "2 workers"
    (alone,) = kit.sweep(large, {"batch_size": [4]}, chosen)
    assert run.losses == alone.losses
    (saved,) = tmp_path.iterdir()
    assert Run.load(saved) == run
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_workload_that_cannot_be_sent_is_refused_before_anything_runs():
    built = []

    def inner(ctx: Any) -> Any:
        built.append(ctx)

    with spawned(1) as pool, pytest.raises(SettingsError, match="Put the builder into a module"):
        kit.sweep(inner, GRID, NATIVE, executor=pool)
    assert built == []


def test_a_pool_that_forks_is_refused():
    from kit.workloads import mlp

    context = multiprocessing.get_context("fork")
    advice = re.escape('get_context("spawn")')
    pool = ProcessPoolExecutor(1, mp_context=context)
    with pool, pytest.raises(SettingsError, match=advice):
        kit.sweep(mlp, GRID, NATIVE, executor=pool)


class Direct:
    """The least that an executor is: `submit`."""

    def submit(self, fn: Any, /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args))
        except BaseException as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


def test_an_executor_needs_submit_only():
    runs = kit.sweep(Counted().workload, GRID, NATIVE, executor=Direct())  # type: ignore[arg-type]
    assert cells_of(runs) == CELLS
    assert runs[0].environment["measured in parallel"] == "number of workers unknown"


class Lossy(Direct):
    """Loses the first cells that it is given, as a cluster does whose workers die."""

    def __init__(self, cells: int) -> None:
        self.left = cells

    def submit(self, fn: Any, /, *args: Any) -> Future[Any]:
        self.left -= 1
        if self.left < 0:
            return super().submit(fn, *args)
        future: Future[Any] = Future()
        future.set_exception(OSError("the worker died"))
        return future


@pytest.mark.parametrize("lost", [2, 6])
def test_cells_that_are_lost_together_are_tried_once_more(lost: int):
    counted = Counted()
    runs = kit.sweep(counted.workload, GRID, NATIVE, executor=Lossy(lost))  # type: ignore[arg-type]
    assert cells_of(runs) == sorted(counted.built) == CELLS


@pytest.mark.parametrize(("lost", "failed"), [(1, 1), (8, 2), (12, 6)])
def test_a_cell_that_is_lost_by_itself_fails(lost: int, failed: int):
    counted = Counted()
    with pytest.raises(SweepError, match="seed=0: OSError: the worker died") as caught:
        kit.sweep(counted.workload, GRID, NATIVE, executor=Lossy(lost))  # type: ignore[arg-type]
    assert [(c.batch_size, c.seed) for c in caught.value.failures] == CELLS[:failed]
    assert cells_of(caught.value.runs) == sorted(counted.built) == CELLS[failed:]


@pytest.mark.parametrize("values", [5, "lazy"])
def test_a_single_value_is_no_list_of_values(values: Any) -> None:
    counted = Counted()
    with pytest.raises(SettingsError, match=r"a list of values.*\[(5|'lazy')\]"):
        kit.sweep(counted.workload, {"mode": values})
    assert not counted.built


@pytest.mark.parametrize("values", [[], range(0), iter(())])
def test_a_name_without_values_is_no_sweep(values: Any) -> None:
    with pytest.raises(SettingsError, match="'bulk_forward' has no value to sweep over"):
        kit.sweep(Counted().workload, {"seed": [1], "bulk_forward": values})


def test_a_cell_that_asks_for_the_programs_end_fails_as_any_other():
    for pool in (None, ThreadPoolExecutor(1)):
        with pytest.raises(SweepError, match="1 cell of a sweep failed, 5 finished"):
            kit.sweep(Counted({1: SystemExit(3)}).workload, GRID, NATIVE, executor=pool)
