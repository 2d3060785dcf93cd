"""What tells runs of the same settings apart: never two with one label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.runs.labels import COMMIT, TIME, WATCHED, device_of, label_of, labels_of, told_settings
from kit.runs.run import Run
from kit.runs.settings import Settings
from tests.factories import empty_run, make_run


def run(**changes: object) -> Run:
    return replace(empty_run(), **changes)  # type: ignore[arg-type]


def of(commit: str, time: str) -> Run:
    return run(environment={COMMIT: commit, TIME: time})


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([run(label="before", file="a.kitrun"), run(label="after")], ("before", "after")),
        ([run(label="before"), run(file="now.kitrun")], ("before", "now")),
        ([run(file="a/x.kitrun"), run(file="a/y.kitrun")], ("x", "y")),
        ([run(file="old/x.kitrun"), run(file="new/x.kitrun")], ("old", "new")),
        ([run(file="1/a/x.kitrun"), run(file="2/a/x.kitrun")], ("1/a/x", "2/a/x")),
        ([of("1a", "1"), of("2b", "2")], ("1a", "2b")),
        ([of("1a", "10:00"), of("1a", "11:00")], ("1a 10:00", "1a 11:00")),
        ([of("", "10:00"), of("", "11:00")], ("10:00", "11:00")),
        ([run(), run()], ("measurement 1", "measurement 2")),
        ([run(label="x"), run(label="x")], ("measurement 1", "measurement 2")),
    ],
)
def test_the_best_name_that_tells_them_apart_is_taken(
    runs: list[Run], labels: tuple[str, ...]
) -> None:
    assert labels_of(runs, ["same"] * len(runs)) == labels


def test_a_cell_that_was_measured_again_is_counted_and_no_other() -> None:
    runs = [of("1a", f"10:0{i}") for i in range(5)]
    cells = ["a", "b", "a", "b", "c"]
    numbers = (1, 1, 2, 2, 1)
    assert labels_of(runs, cells) == tuple(f"measurement {n}" for n in numbers)


def test_one_run_is_called_by_what_is_known_of_it() -> None:
    assert label_of(run(label="x", file="y.kitrun")) == "x"
    assert label_of(run(file="y.kitrun", name="bert")) == "y"
    assert label_of(of("1a", "10:00")) == "1a 10:00"
    assert label_of(run(name="bert")) == "bert"
    assert label_of(run()) == "unnamed run"


def test_a_device_without_a_name_is_what_the_settings_say() -> None:
    cpu, auto = (run(settings=Settings(device=device)) for device in ("cpu", "auto"))
    assert device_of(cpu, "an unnamed device") == "cpu"
    assert device_of(auto, "an unnamed device") == "an unnamed device"
    assert device_of(auto) == "auto"


def test_a_label_is_saved_and_the_file_is_not(tmp_path: Path) -> None:
    made = replace(make_run(), label="before")
    made.save(tmp_path / "a.kitrun")
    found = Run.load(tmp_path / "a.kitrun")
    assert (found.label, found.file) == ("before", str(tmp_path / "a.kitrun"))
    assert found == made
    found.save(tmp_path / "b.kitrun")
    assert (tmp_path / "b.kitrun").read_bytes() == (tmp_path / "a.kitrun").read_bytes()


def test_of_a_watched_loop_only_what_was_said_is_told() -> None:
    settings = Settings(batch_size=64, dtype="bfloat16", mode="lazy")
    told = told_settings(run(settings=settings, environment={WATCHED: "train.py:3"}))
    assert told["mode"] == "lazy"
    of_builders = {"accumulate", "batch_size", "dtype", "loss_scaling", "prefetch"}
    assert not told.keys() & (of_builders | {"steps", "warmup"})
    assert told_settings(run(settings=settings))["batch_size"] == 64
