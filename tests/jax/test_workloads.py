"""Workloads written in jax: run, sweep, explorer and report take them like any other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import UserList
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import kit
from kit.errors import Cancelled, SettingsError, TimelineError
from kit.measure.experiment import run
from kit.measure.search.sweeps import sweep
from kit.runs.conditions import Conditions
from kit.runs.loss_scaling import LOSS_SCALING, loss_scaling
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict
from kit.runtime.compiling.cache import ExecutableCache
from kit.trace import Span, Timeline
from kit.widgets.numbers.syncs import syncs_drawn
from kit.workloads import jax_mlp
from tests.jax.models import BATCH, LABELS, flax_state, flax_step, plain_state, plain_step
from tests.warm import warm_python

QUICK = Settings(steps=4, warmup=2, batch_size=4)
CACHE = ExecutableCache()  # programs that several runs have in common


@kit.workload(framework="jax")
def tiny(ctx: Any) -> Callable[[], Any]:
    """Plain jax, dropout included, on batches of a loader."""
    state = kit.jax.device_put(plain_state(ctx.seed))
    batches = ctx.loader({"x": np.tile(BATCH, (4, 1)), "y": np.tile(LABELS, 4)})
    train = kit.jax.step(plain_step)

    def step() -> Any:
        nonlocal state
        batch = next(batches)
        state, loss = train(state, batch["x"], batch["y"])
        return loss

    return step


@kit.workload(framework="jax")
def flaxed(ctx: Any) -> Callable[[], Any]:
    """flax with optax; the same batch each time."""
    state = flax_state()
    train = kit.jax.step(flax_step)

    def step() -> Any:
        nonlocal state
        with jax.numpy_dtype_promotion("standard"):  # optax relies on it
            state, loss = train(state, BATCH, LABELS)
        return loss

    return step


@pytest.mark.parametrize("changes", [
    {"mode": "imperative"}, {"bulk_forward": 5, "bulk_backward": 30}, {"mode": "lazy"},
    {"segment_mode": "launch"}, {"mode": "lazy", "prefetch": 2}, {"mode": "lazy", "batch_size": 6},
    {"mode": "lazy", "step_mode": "replay"}, {"mode": "lazy", "step_mode": "speculate"},
], ids=str)  # fmt: skip
def test_every_setting_gives_jax_jits_losses(changes: dict[str, Any]) -> None:
    settings = QUICK.replace(steps=6, **changes)
    native = run(tiny, settings.replace(mode="torch"))
    got = run(tiny, settings, cache=CACHE)
    np.testing.assert_allclose(got.losses, native.losses, rtol=1e-5)
    assert len(set(got.losses)) == 6
    assert got.sync_points == ()


def test_a_replayed_step_is_replayed_and_its_losses_are_the_same_to_the_bit() -> None:
    settings = QUICK.replace(mode="lazy", steps=8)
    plain = run(tiny, settings, cache=CACHE)
    replayed = run(tiny, settings.replace(step_mode="replay"), cache=CACHE)
    assert replayed.metrics["replay.steps"] >= 4
    assert replayed.losses == plain.losses


@pytest.fixture(scope="module")
def plain_losses() -> tuple[float, ...]:
    """Of the shipped step natively, without a loss scale."""
    return run(jax_mlp, Settings(mode="torch", loss_scaling="none", steps=6, warmup=2)).losses


@pytest.mark.parametrize("mode", ["torch", "bulked", "lazy"])
@pytest.mark.parametrize("scaling", LOSS_SCALING)
def test_the_shipped_step_learns_with_every_loss_scaling(
    mode: str, scaling: str, plain_losses: tuple[float, ...]
) -> None:
    cell = Settings(mode=mode, loss_scaling=scaling, steps=6, warmup=2)
    made = run(jax_mlp, cell, cache=CACHE)
    np.testing.assert_allclose(made.losses, plain_losses, rtol=1e-4)
    assert made.losses[-1] < made.losses[0]
    asks = scaling == "dynamic, host check" and mode != "torch"
    assert [s.cause for s in made.sync_points] == ["bool"] * 6 * asks
    assert {s.site.split(":")[0] for s in made.sync_points} <= {"jax_layers.py"}


@pytest.mark.parametrize(
    "changes", [{"accumulate": 2}, {"dtype": "bfloat16"}, {"seed": 3}], ids=str
)
def test_the_shipped_step_follows_the_other_settings(changes: dict[str, Any]) -> None:
    base = Settings(mode="lazy", steps=3, warmup=1)
    got = run(jax_mlp, base.replace(**changes), cache=CACHE).losses
    native = run(jax_mlp, base.replace(mode="torch", **changes)).losses
    np.testing.assert_allclose(got, native, rtol=1e-2 if "dtype" in changes else 1e-5)
    assert got != run(jax_mlp, base, cache=CACHE).losses


def test_an_infinite_gradient_halves_the_scale_and_leaves_the_parameters() -> None:
    from kit.workloads.jax_layers import _initial, _update

    scaling = loss_scaling("dynamic, on device")
    state = _initial(np.random.default_rng(0), scaling)
    grads = jax.tree.map(np.ones_like, state["params"])
    update = jax.jit(_update(scaling))
    skipped, taken = update(state, grads, np.bool_(False)), update(state, grads, np.bool_(True))
    assert skipped["scale"] == state["scale"] / 2
    assert taken["scale"] == state["scale"]
    assert all(map(np.array_equal, *map(jax.tree.leaves, (skipped["params"], state["params"]))))
    assert not np.array_equal(taken["params"][0]["w"], state["params"][0]["w"])


@pytest.mark.parametrize("mode", ["torch", "bulked", "lazy"])
def test_the_breakdown_adds_up_to_the_step(mode: str) -> None:
    made = run(flaxed, QUICK.replace(mode=mode))
    rows = {r.category: r for r in made.breakdown()}
    steps = made.timeline.intervals(kind="step")
    mean_ms = float((steps[:, 1] - steps[:, 0]).mean()) / 1e6
    assert sum(r.exposed_ms for r in rows.values()) == pytest.approx(mean_ms, rel=0.02)
    assert rows["compile"].total_ms == 0
    assert rows["device busy"].total_ms > 0
    assert made.step_ms > 0


def test_the_baseline_says_that_it_is_jax_jit() -> None:
    made = run(tiny, QUICK.replace(mode="torch"))
    assert made.environment["baseline"] == "jax.jit"
    assert "torch" not in made.environment
    assert any("jax.jit has no hook" in note for note in made.timeline.notes)
    assert "0 sync points" not in summary(made)
    assert "never waited" not in summary(made)
    assert "Unknown: what a program reads of jax.jit" in syncs_drawn(made)[0]
    with pytest.raises(SettingsError, match=r"a step of jax\.jit's"):
        kit.predict(made)


def test_pythons_own_time_before_a_jitted_call_is_not_said_to_be_dispatch() -> None:
    made = run(tiny, QUICK.replace(mode="torch"))
    step = Span("host/main", "step 0", "step", 0, 100)
    spans = [step, Span("host/main", "python", "dispatch", 0, 90)]
    spans.append(Span("device/0", "dot", "kernel", 95, 100))
    made = replace(made, timeline=Timeline.of(spans), step_times_ns=(100,) * 20)
    found = verdict(replace(made, conditions=Conditions()))
    assert found is not None
    assert "not told apart" in found.said
    assert "fused=True" not in found.next_step


@kit.workload(framework="jax")
def growing(ctx: Any) -> Callable[[], Any]:
    """Each step has an array of a new shape."""
    train = kit.jax.step(lambda x: jax.numpy.tanh(x @ x.T).sum())
    columns = 1

    def step() -> Any:
        nonlocal columns
        columns += 1
        return train(np.ones((2, columns), np.float32))

    return step


def test_what_xla_compiles_for_jax_jit_is_no_dispatch() -> None:
    made = replace(run(growing, QUICK.replace(mode="torch")), conditions=Conditions())
    rows = {row.category: row.total_ms for row in made.breakdown()}
    assert rows["compile"] > rows["dispatch"]
    assert made.limited_by().what == "compile"
    assert "XLA compiled in 4 of the 4 measured steps" in "\n".join(made.timeline.notes)


@kit.workload
def jitted(ctx: Any) -> Callable[[], Any]:
    """As people write it who do not know of `kit.jax.step`."""
    double = jax.jit(lambda x: x + 1)
    x = jax.numpy.zeros(())

    def step() -> Any:
        nonlocal x
        x = double(x)
        return x

    return step


def test_a_step_that_jax_computes_by_itself_has_no_numbers_of_device_kit() -> None:
    with pytest.raises(SettingsError, match=r"no op of 'jitted' ran on device kit.*kit\.jax\.step"):
        run(jitted, QUICK)


def test_a_watched_loop_of_jax_is_not_called_recording_bound() -> None:
    step = jitted.build(None)
    for batches in (None, DataLoader([0.0] * 9)):
        with kit.watch(steps=2, skip=0) as watch:
            for _ in batches or range(9):
                loss = step()
                float(loss)
                time.sleep(0.002)  # to a look from outside, jax's wait for the device is no other
                watch.step(loss)
        said = summary(watch.run)
        assert "torch computed nothing in the traced steps" in said
        assert "limit" not in said
        assert "never waited" not in said
        with pytest.raises(TimelineError, match=r"none is there.*jax is not seen by a watch"):
            watch.run.limited_by()


@pytest.mark.parametrize("size", [3, 600])
def test_a_watched_loop_of_jax_may_call_torch_for_a_detail(size: int) -> None:
    """And one of torch may call jax: then a note says what is not seen."""
    step, x = jitted.build(None), torch.ones(size, size)
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(9):
            loss = step()
            loss.block_until_ready()
            time.sleep(0.001)
            for _ in range(size // 40):  # on a busy machine, too, the most of a step
                x @ x
            torch.ones(3).sum()
            watch.step(loss)
    said = summary(watch.run)
    assert ("torch computed less than half of the traced steps" in said) == (size == 3)
    assert ("the loop made arrays of jax's, too" in said) == (size > 3)
    assert bool(watch.run.breakdown()) == (size > 3)


def test_the_line_of_a_wait_without_a_read_is_known() -> None:
    with kit.Session() as session:
        kit.jax.step(lambda x: x + 1)(np.ones(3)).block_until_ready()
    (sync,) = session.syncs
    assert sync.cause == "block_until_ready"
    assert sync.site.startswith("test_workloads.py:")


def test_a_run_has_the_graph_with_sites_phases_and_kernels() -> None:
    made = run(flaxed, QUICK.replace(mode="lazy"))
    (graph,) = made.graphs
    assert {n.phase for n in graph} == {"forward", "backward", "update"}
    assert {n.site.split(":")[0] for n in graph if not n.is_variable} == {"models.py"}
    kernels = [s for s in made.timeline.spans if s.kind == "kernel"]
    joined = [k for k in kernels if k.node >= 0]
    assert len(joined) > 0.5 * len(kernels)
    assert made.environment["jax"] == jax.__version__


def test_a_run_is_saved_and_loaded(tmp_path: Path) -> None:
    made = run(tiny, QUICK)
    made.save(tmp_path / "a.kit")
    again = kit.Run.load(tmp_path / "a.kit")
    assert (again.losses, again.graphs) == (made.losses, made.graphs)


def test_a_sweep_shares_its_executables() -> None:
    cache = ExecutableCache()
    first = run(tiny, QUICK, cache=cache)
    again = run(tiny, QUICK.replace(seed=3), cache=cache)
    assert first.metrics["compile.count"] > 0
    assert "compile.count" not in again.metrics
    runs = sweep(tiny, {"bulk_forward": [3, 15], "mode": ["torch", "bulked"]}, QUICK)
    losses = np.array([r.losses for r in runs])
    np.testing.assert_allclose(losses, losses[:1].repeat(4, 0), rtol=1e-5)


def test_the_explorer_reruns_a_jax_workload() -> None:
    explorer = kit.Explorer(tiny, QUICK)
    first = explorer.wait(60)
    explorer.set(mode="lazy")
    second = explorer.wait(60)
    assert (first.settings.mode, second.settings.mode) == ("bulked", "lazy")
    np.testing.assert_allclose(second.losses, first.losses, rtol=1e-5)
    explorer.close()


def test_a_report_of_a_jax_workload(tmp_path: Path) -> None:
    path = kit.report(tiny, {"bulk_forward": [1, 15]}, tmp_path / "r.html", settings=QUICK)
    assert "tiny" in path.read_text(encoding="utf-8")


def test_a_jax_workload_never_loads_torch() -> None:
    code = (
        "import sys, kit; from kit.workloads import jax_mlp\n"
        "kit.run(jax_mlp, kit.Settings(steps=1, warmup=1, mode='lazy'))\n"
        "kit.run(jax_mlp, kit.Settings(steps=1, warmup=0, mode='torch'))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_a_plain_step_of_jax_is_measured_natively(tmp_path: Path) -> None:
    """It was refused: what it returned was not computed by PyTorch."""
    script = tmp_path / "plain.py"
    script.write_text("import jax\nf = jax.jit(lambda x: x * 2)\ndef step():\n    return f(1.0)\n")
    command = [warm_python(), "-m", "kit", "run", str(script), "--steps", "2", "--skip", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "loss 2 to 2" in done.stdout) == (0, True), done.stderr


# -- the context ---------------------------------------------------------------------------------


def batches_of(dataset: Any, settings: Settings = QUICK, count: int = 8) -> list[Any]:
    """What a workload's loader gives it."""
    seen: list[Any] = []

    @kit.workload(framework="jax")
    def looks(ctx: Any) -> Callable[[], Any]:
        loader = ctx.loader(dataset)
        total = kit.jax.step(
            lambda batch: sum(x.sum().astype(np.float32) for x in jax.tree.leaves(batch))
        )

        def step() -> Any:
            batch = next(loader)
            seen.append(jax.tree.map(np.asarray, batch))
            return total(batch)

        return step

    run(looks, settings.replace(steps=count, warmup=0, mode="torch"))
    return seen[:count]


def test_an_epoch_has_every_item_once_in_an_order_of_the_seed() -> None:
    data = np.arange(12, dtype=np.float32)
    first = np.concatenate(batches_of(data, count=3))
    assert sorted(first) == list(range(12))
    assert list(first) == list(np.concatenate(batches_of(data, count=3)))
    assert list(first) != list(np.concatenate(batches_of(data, QUICK.replace(seed=1), count=3)))
    prefetched = np.concatenate(batches_of(data, QUICK.replace(prefetch=2), count=3))
    assert list(prefetched) == list(first)


def test_a_list_of_unlike_arrays_is_a_pytree_as_a_tuple_is() -> None:
    images, labels = np.ones((9, 2), np.float32), np.arange(9)
    batch = batches_of([images, labels], count=1)[0]
    assert [x.shape for x in batch] == [(4, 2), (4,)]


def test_a_mapping_that_jax_knows_is_a_pytree_and_no_sequence_of_items() -> None:
    (batch,) = batches_of(flax.core.freeze({"x": np.arange(9.0)}), count=1)
    assert batch["x"].shape == (4,)


def test_a_dataset_may_be_a_sequence_of_items() -> None:
    class Items:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"x": np.full(2, i, np.float32), "y": i}

    batch = batches_of(Items(), count=1)[0]
    assert (batch["x"].shape, batch["y"].shape) == ((4, 2), (4,))
    assert list(batch["x"][:, 0]) == list(batch["y"])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (np.ones(3), "the dataset has only 3 items"),
        ((np.ones(8), np.ones(9)), r"equally many items, not \[8, 9\]"),
        (iter([np.ones(8)]), "in this list_iterator is something else"),
        ((np.ones(8), 3.0), "each with a first axis of items"),
        ([(np.ones(8), np.ones(8))] * 9, "a list of 9 things alike. If each is an item, stack"),
        ([np.ones(8)] * 9, "If each is a whole array, give a tuple"),
        ("data/train", "was given the text 'data/train': load what it names"),
        ({"t": np.array(["a"] * 8)}, r"dataset\['t'\] is of dtype <U1, which no device holds"),
        ({"t": jax.random.split(jax.random.key(0), 8)}, r"dataset\['t'\] are random keys"),
        (UserList([{"t": "hello"}] * 8), r"dataset\['t'\] is of dtype <U5"),
    ],
)
def test_a_dataset_that_makes_no_batches_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batches_of(dataset)


@pytest.mark.parametrize("name", ["scaler", "autocast"])
def test_what_is_torchs_says_so(name: str) -> None:
    @kit.workload(framework="jax")
    def wrong(ctx: Any) -> Any:
        return getattr(ctx, name)()

    with pytest.raises(SettingsError, match=rf"ctx\.{name}\(\) is torch's"):
        run(wrong, QUICK)


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(SettingsError, match="framework must be one of"):
        kit.workload(framework="tinygrad")(tiny.build)


@pytest.mark.parametrize(("mode", "error"), [("torch", SettingsError), ("lazy", TypeError)])
def test_a_jax_workload_that_is_not_marked_is_told_how(mode: str, error: type[Exception]) -> None:
    @kit.workload
    def unmarked(ctx: Any) -> Callable[[], Any]:
        import torch

        double = kit.jax.step(lambda x: x.sum())
        data = torch.ones(8, 2) if mode == "lazy" else BATCH
        batches = ctx.loader(torch.utils.data.TensorDataset(data)) if mode == "lazy" else None
        return lambda: double(next(batches)[0] if batches else data)

    with pytest.raises(error, match=r'@kit\.workload\(framework="jax"\)'):
        run(unmarked, QUICK.replace(mode=mode))


@pytest.mark.parametrize("mode", ["torch", "lazy"])
def test_a_jax_step_without_a_loss_is_told_so(mode: str) -> None:
    @kit.workload(framework="jax")
    def without(ctx: Any) -> Any:
        return lambda: kit.jax.step(lambda x: x * 2)(BATCH)

    with pytest.raises(SettingsError, match=r"one number, not a tensor of shape \(6, 4\)"):
        run(without, QUICK.replace(mode=mode, warmup=0))


@pytest.mark.parametrize("mode", ["torch", "lazy"])
def test_cancelling_ends_a_jax_run_between_two_steps(mode: str) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Cancelled, match="before step 3"):
        run(tiny, QUICK.replace(mode=mode), cancelled=lambda: next(asked))
