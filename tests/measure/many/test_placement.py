"""The verbs on several devices: a sweep, a comparison, a search and a report of a shared step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SettingsError
from kit.measure.many.placement import Placement
from kit.runs.run import Run

QUICK = kit.Settings(steps=2, warmup=1, batch_size=4)
TWO = ["cpu:0", "cpu:0"]  # both replicas on the one that every process has


@kit.workload
def shared(ctx: kit.Context) -> Callable[[], Any]:
    """Loads its batches, so that several devices can share them."""
    net = nn.Linear(4, 2).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.TensorDataset(torch.randn(16, 4)))

    def step() -> Any:
        (x,) = next(batches)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def losses_of(runs: list[Run]) -> list[list[float]]:
    return [[pytest.approx(x, abs=1e-6) for x in run.losses] for run in runs]


def test_a_sweep_on_two_devices_trains_as_on_one() -> None:
    grid = {"batch_size": [2, 4], "bulk_backward": [1, 50]}
    both = kit.sweep(shared, grid, QUICK, devices=TWO, bucket_mb=1e-4, progress=False)
    assert [run.devices for run in both] == [2, 2, 2, 2]
    assert {run.name for run in both} == {"shared, 2 devices, bucket_mb=0.0001"}
    alone = kit.sweep(shared, grid, QUICK, progress=False)
    assert [list(run.losses) for run in both] == losses_of(alone)
    assert both[2].compiles  # another shape
    cut = [len(run.segments) for run in both]
    assert cut[0] > cut[1]


def test_a_sweep_shares_what_it_compiles_on_each_of_the_devices() -> None:
    first, second = kit.sweep(shared, {"seed": [0, 1]}, QUICK, devices=TWO, progress=False)
    assert len(first.compiles) > len(second.compiles)


def test_a_saved_sweep_goes_on_only_on_the_same_devices(tmp_path: Path) -> None:
    def measured(**where: Any) -> Run:
        (run,) = kit.sweep(shared, {"seed": [3]}, QUICK, path=tmp_path, progress=False, **where)
        return run

    first = measured(devices=TWO)
    assert measured(devices=TWO) == first
    assert measured().devices == 1
    assert measured(devices=TWO, bucket_mb=2).name == "shared, 2 devices, bucket_mb=2"
    assert measured(devices=TWO) == first
    assert len(list(tmp_path.iterdir())) == 3


def test_an_executor_measures_on_several_devices_too() -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = kit.sweep(
            shared, {"seed": [0, 1]}, QUICK, devices=TWO, executor=pool, progress=False
        )
    alone = kit.sweep(shared, {"seed": [0, 1]}, QUICK, progress=False)
    assert [list(run.losses) for run in runs] == losses_of(alone)
    assert [run.devices for run in runs] == [2, 2]


def test_a_sweep_over_processes() -> None:
    (run,) = kit.sweep(shared, {"seed": [0]}, QUICK, processes=2, progress=False)
    (alone,) = kit.sweep(shared, {"seed": [0]}, QUICK, progress=False)
    assert (run.devices, run.name) == (2, "shared, 2 devices")
    assert [list(run.losses)] == losses_of([alone])


def test_a_comparison_on_two_devices() -> None:
    cells = [QUICK.replace(bulk_backward=n) for n in (1, 50)]
    found = kit.compare(shared, cells, repeats=2, devices=TWO, progress=False)
    assert [run.devices for run in found.runs] == [2, 2]
    assert [run.settings.bulk_backward for run in found.runs] == [1, 50]
    assert {run.name for run in found.runs} == {"shared, 2 devices"}


def test_a_search_on_two_devices_tries_only_what_they_can() -> None:
    tuned = kit.autotune(shared, QUICK, budget_s=600, devices=TWO, progress=False,
                         vary={"prefetch": [0], "segment_mode": ["fuse"],
                               "bulk_backward": [15]})  # fmt: skip
    assert {row["settings"].step_mode for row in tuned.tried} == {"retrace", "replay"}
    assert {row["note"] for row in tuned.tried} == {""}


def test_what_is_named_is_tried_and_ruled_out_with_its_reason() -> None:
    tuned = kit.autotune(shared, QUICK, budget_s=600, devices=TWO, progress=False,
                         vary={"step_mode": ["retrace", "speculate"], "prefetch": [0],
                               "segment_mode": ["fuse"], "bulk_backward": [15]})  # fmt: skip
    fits, refused = tuned.tried
    assert (fits["note"], fits["is_best"]) == ("", True)
    assert "SettingsError" in refused["note"]


def test_a_report_of_two_devices(tmp_path: Path) -> None:
    page = kit.report(
        shared, {"bulk_backward": [1, 50]}, tmp_path / "two.html", settings=QUICK, devices=TWO
    )
    text = page.read_text()
    assert "shared, 2 devices" in text
    assert text.count('id="run-') == 2


def test_an_explorer_reruns_over_processes() -> None:
    explorer = kit.Explorer(shared, QUICK, processes=2)
    try:
        first = explorer.wait(240)
        assert (explorer.title, first.devices) == ("shared, 2 devices", 2)
        explorer.set(bulk_backward=1)
        cut = explorer.wait(240)
        assert len(cut.segments) > len(first.segments)
        assert list(cut.losses) == losses_of([first])[0]
        explorer.set(batch_size=1)
        with pytest.raises(SettingsError, match="batch"):
            explorer.wait(240)
        assert explorer.run is cut
    finally:
        explorer.close()


def test_devices_of_finished_runs_are_refused() -> None:
    run = kit.run(shared, QUICK)
    with pytest.raises(SettingsError, match="these runs are finished"):
        kit.compare([run], devices=2)
    with pytest.raises(SettingsError, match="these runs are finished"):
        kit.report([run], bucket_mb=1)


@pytest.mark.parametrize("verb", [kit.run, kit.compare, kit.autotune, kit.sweep, kit.report])
def test_what_cannot_be_is_refused_before_anything_runs(verb: Callable[..., Any]) -> None:
    built = []

    def never(ctx: Any) -> Any:
        built.append(ctx)

    given: list[Any] = [never, {"seed": [0]}] if verb in (kit.sweep, kit.report) else [never]
    with pytest.raises(SettingsError, match="bucket_mb: only with several devices"):
        verb(*given, bucket_mb=1)
    with pytest.raises(SettingsError, match="there is no argument 'setings'"):
        verb(*given, setings=QUICK)
    with pytest.raises(SettingsError, match="'bulk_foward'; did you mean 'bulk_forward'"):
        verb(*given, bulk_foward=5)
    with pytest.raises(SettingsError, match="'bucket' is no option of several devices: average, "):
        verb(*given, devices=2, bucket=1)
    from kit.workloads import jax_mlp

    for where, why in (
        ({"devices": 2, "bucket_mb": -1}, "bucket_mb must be more than 0, not -1"),
        ({"devices": 2, "cut": "x"}, "cut must be one of"),
        ({"devices": 2, "link": 5}, "link must be a kit.Link"),
        ({"devices": 2.0}, "devices must be a number or a list of names, not 2.0"),
        ({"devices": True}, "devices must be at least 1, not True"),
    ):
        with pytest.raises(SettingsError, match=why):
            verb(*given, **where)
    given[0] = jax_mlp
    with pytest.raises(SettingsError, match="'jax_mlp' is a workload of jax; only torch's have"):
        verb(*given, devices=2)
    assert not built


def test_what_is_placed_already_stays_as_it_is() -> None:
    placed = Placement.of(shared, 3, options={"link": kit.Link(1, 2), "timeout_s": 9})
    assert Placement.of(placed) is placed
    assert placed.name == "shared, 3 devices, link=Link(latency_us=1, gb_per_s=2)"
