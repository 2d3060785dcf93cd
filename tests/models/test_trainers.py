"""docs/trainers.md: the libraries that own the loop train on device kit as they do on the CPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader

import kit
import kit.cli.main as cli
from kit.errors import SessionError, SettingsError
from tests.pages import page, run_page
from tests.warm import warm_python

# What these libraries say of themselves, of each other and of a machine without CUDA.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:lightning.*",
    "ignore::FutureWarning:lightning.*",
    "ignore:.*treespec:",
    "ignore:The 'train_dataloader' does not have many workers:",
    "ignore:Checkpoint directory:",
    "ignore:'pin_memory' argument:UserWarning",
)

VARIABLE = "ACCELERATE_TORCH_DEVICE"
STEPS = 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layers(x)
        self.dtypes.add(scores.dtype)
        return {"loss": nn.functional.cross_entropy(scores, labels)}


def rows() -> list[dict[str, Any]]:
    points = torch.randn(2 * STEPS, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": x, "labels": int(x.sum() > 0)} for x in points]


def by_transformers(device: str, folder: Path, net: nn.Module | None = None) -> list[float]:
    class Losses(hf.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            found.extend([logs["loss"]] if "loss" in logs else [])

    found: list[float] = []
    arguments = hf.TrainingArguments(
        str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, learning_rate=0.05,
    )  # fmt: skip
    assert arguments.device.type == device
    hf.Trainer(net or Net(), arguments, train_dataset=rows(), callbacks=[Losses()]).train()
    return found


def by_accelerate(device: str, folder: Path) -> list[float]:
    net = Net()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=0.05), DataLoader(rows(), batch_size=2)
    )
    assert accelerator.device.type == device
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.detach())
    return [loss.item() for loss in found]


def module() -> Any:
    """A LightningModule. To import Lightning takes seconds: only the worker that runs this does."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.found: list[Any] = []

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.net(**batch)["loss"]
            self.found.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    return Module()


def trainer(folder: Path, steps: int = STEPS, **options: Any) -> Any:
    import lightning

    return lightning.Trainer(
        max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder, **options,
    )  # fmt: skip


def by_lightning(device: str, folder: Path) -> list[float]:
    net = module()
    place = {"accelerator": "cpu"} if device == "cpu" else {"strategy": kit.lightning_strategy()}
    trainer(folder, **place).fit(net, DataLoader(rows(), batch_size=2))
    assert {loss.device.type for loss in net.found} == {device}
    return [loss.item() for loss in net.found]


def by_fabric(device: str, folder: Path) -> list[float]:
    from lightning.fabric import Fabric

    place: dict[str, Any] = {"accelerator": "cpu"}
    if device == "kit":
        place = {"strategy": kit.lightning_strategy("lightning.fabric"), "devices": 1}
    fabric = Fabric(**place)
    net = Net()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    found = []
    for batch in fabric.setup_dataloaders(DataLoader(rows(), batch_size=2)):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
        found.append(loss.detach())
    assert {loss.device.type for loss in found} == {device}
    return [loss.item() for loss in found]


WAYS: dict[str, Callable[[str, Path], list[float]]] = {
    "transformers": by_transformers,
    "accelerate": by_accelerate,
    "Lightning": by_lightning,
    "Fabric": by_fabric,
}


@pytest.fixture(autouse=True)
def _accelerates_device_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is read once a process, and the page sets it."""
    monkeypatch.setenv(VARIABLE, "cpu")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", WAYS)
def test_a_library_trains_on_the_device_with_the_losses_of_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = WAYS[name]("cpu", tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv(VARIABLE, "kit")
    with kit.Session(kit.Settings(mode="lazy"), strict=True) as session:
        found = WAYS[name]("kit", tmp_path)
        assert session.metrics()["segment.count"] > 0
        # Accelerate was asked to add up the gradients of two batches.
        assert session.step == ((STEPS + 1) // 2 if name == "accelerate" else STEPS)
    assert len(found) == STEPS
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_watch_of_a_library_ends_no_step_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "kit")
    with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=1):
        by_fabric("kit", Path())
        assert session.step == STEPS


def test_each_batch_that_lightning_evaluates_is_a_step_on_the_device(tmp_path: Path) -> None:
    class Evaluated(type(module())):  # type: ignore[misc]
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(**batch)

        test_step = predict_step = validation_step

    net = Evaluated()
    loader = DataLoader(rows(), batch_size=2)
    with kit.Session(kit.Settings(mode="lazy")) as session:
        owner = trainer(
            tmp_path,
            strategy=kit.lightning_strategy(),
            num_sanity_val_steps=0,
            val_check_interval=3,
        )
        owner.fit(net, loader, loader)
        assert session.step == STEPS + 5
        for evaluate in (owner.validate, owner.test, owner.predict):
            before = session.step
            evaluate(net, loader)
            assert session.step == before + 5


@pytest.mark.parametrize("name", ["accelerate", "Fabric"])
def test_a_batch_that_a_library_gives_for_an_evaluation_is_a_step_on_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches were one program, where nothing of them was read."""
    from lightning.fabric import Fabric

    monkeypatch.setenv(VARIABLE, "kit")
    with kit.Session(kit.Settings(mode="lazy")) as session:
        net, loader = Net(), DataLoader(rows(), batch_size=2)
        if name == "accelerate":
            model, loader = Accelerator().prepare(net, loader)
        else:
            fabric = Fabric(strategy=kit.lightning_strategy("lightning.fabric"))
            model, loader = fabric.setup_module(net), fabric.setup_dataloaders(loader)
        losses = []
        with torch.no_grad():
            for batch in loader:
                losses.append(model(**batch)["loss"])
        assert session.step >= STEPS - 1
        assert session.metrics()["compile.count"] <= 3
        assert all(loss.item() > 0 for loss in losses)


def test_an_optimizer_that_a_library_steps_beside_another_ends_no_step(tmp_path: Path) -> None:
    import lightning

    class Two(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.nets = nn.ModuleList([Net(), Net()])

        def training_step(self, batch: Any, index: int) -> None:
            for net, optimizer in zip(self.nets, self.optimizers(), strict=True):
                optimizer.zero_grad()
                self.manual_backward(net(**batch)["loss"])
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(net.parameters(), lr=0.1) for net in self.nets], []

    with kit.Session(kit.Settings(mode="lazy")) as session:
        for _ in range(2):  # in the second training others step
            two = Two()
            owner = trainer(tmp_path, strategy=kit.lightning_strategy(), steps=2 * STEPS)
            owner.fit(two, DataLoader(rows(), batch_size=2))
        assert 2 * STEPS - 1 <= session.step <= 2 * STEPS


def test_a_step_that_the_program_ends_itself_is_not_ended_again() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        weight = torch.ones(2, device="kit", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        steps = {"__name__": "accelerate.optimizer", "optimizer": optimizer}
        for _ in range(4):
            weight.square().sum().backward()
            exec("optimizer.step()", steps)
            session.mark_step()
        assert session.step == 5  # that it does so is known after the first
        for _ in range(4):
            session.run_step(lambda: exec("optimizer.step()", steps))
        assert session.step == 9


def test_bfloat16_is_asked_of_the_trainer_by_accelerates_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "kit")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with kit.Session(kit.Settings(mode="lazy")):
        by_transformers("kit", tmp_path, net := Net())
    assert net.dtypes == {torch.bfloat16}


@pytest.mark.parametrize("name", ["transformers", "Lightning"])
def test_a_library_that_stays_on_the_cpu_in_a_session_is_told_which_line_changes_that(
    name: str, tmp_path: Path
) -> None:
    line = {"transformers": r"os\.environ\['ACCELERATE_TORCH_DEVICE'\] = 'kit'",
            "Lightning": r"Trainer\(strategy=kit\.lightning_strategy\(\)\)"}  # fmt: skip
    with kit.Session():
        torch.optim.SGD([torch.ones(2, device="kit", requires_grad=True)]).step()
        with pytest.warns(UserWarning, match=line[name]) as found:
            WAYS[name]("cpu", tmp_path)
    said = [str(w.message) for w in found if "trains on the CPU inside a session" in str(w.message)]
    assert len(said) == 1
    assert said[0].startswith("AdamW, at test_trainers.py:")
    is_refused = "is run by python, not by `kit run --on kit`"  # a script that imports kit
    assert (is_refused in said[0]) is (name == "Lightning")


def test_a_loop_of_ones_own_is_told_unless_it_is_a_reference_for_the_device() -> None:
    def step(*where: str) -> None:
        weights = [torch.ones(2, device=place, requires_grad=True) for place in where]
        for w in weights:
            w.square().sum().backward()
        torch.optim.SGD(weights).step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step("cpu")
        with kit.Session():
            step("cpu", "kit")
            step("kit")
            step("cpu")  # beside what trains on the device
        with kit.Session():
            with pytest.raises(UserWarning, match=r"SGD, at test_trainers\.py.*model\.to\('kit'\)"):
                step("cpu")
            step("cpu")  # once a session


def test_a_watch_around_fit_and_a_scaler_of_lightnings_work_on_the_device(tmp_path: Path) -> None:
    from lightning.pytorch.plugins import MixedPrecision

    loader = DataLoader(rows() * 3, batch_size=2)
    plugins = [MixedPrecision("16-mixed", device="kit")]
    with kit.Session(kit.Settings(mode="lazy")), kit.watch(steps=2, skip=1) as watch:
        strategy = kit.lightning_strategy()
        trainer(tmp_path, strategy=strategy, plugins=plugins, steps=9).fit(module(), loader)
        memory = strategy.accelerator.get_device_stats("kit")  # for Lightning's DeviceStatsMonitor
        assert memory["memory_allocated"] > 0
    assert watch.ended == "complete: measured 2 of 2 steps"
    products = [node for node in watch.run.graphs[0].nodes if "linear" in node.op]
    assert {str(aval.dtype) for node in products for aval in node.avals} == {"float16"}


def test_a_strategy_before_the_first_session_of_a_process_is_refused_with_what_can() -> None:
    code = "import kit; kit.lightning_strategy('lightning.fabric')"
    ended = subprocess.run([warm_python(), "-c", code], capture_output=True, text=True)
    assert "SessionError: torch knows device kit from the first session on" in ended.stderr
    assert "with kit.Session(): Trainer(strategy=kit.lightning_strategy())" in ended.stderr


def test_what_lightning_cannot_do_on_the_device_is_refused_with_what_can(tmp_path: Path) -> None:
    with kit.Session():  # from the first one on torch knows the device
        pass
    loader = DataLoader(rows(), batch_size=2)
    with pytest.raises(SessionError, match=r"with kit\.Session\(\): trainer\.fit"):
        trainer(tmp_path, strategy=kit.lightning_strategy()).fit(module(), loader)
    with pytest.raises(SettingsError, match=r"kit\.DataParallel"):
        trainer(tmp_path, strategy=kit.lightning_strategy(), devices=2)
    with pytest.raises(SettingsError, match=r"give one of lightning\.pytorch"):
        kit.lightning_strategy("lightening")
    line = r"plugins=\[lightning\.pytorch\.plugins\.MixedPrecision\('bf16-mixed', device='kit'\)\]"
    cast = trainer(tmp_path, strategy=kit.lightning_strategy(), precision="bf16-mixed")
    with kit.Session(), pytest.raises(SettingsError, match=line):
        cast.fit(module(), loader)


SCRIPT = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
net = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
for _ in range(4):
    loss = model(torch.ones(3, 2, device=accelerator.device)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
print(accelerator.device)
"""


def test_kit_run_puts_a_script_of_accelerates_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    assert cli.main(["run", str(script), "--on", "kit", "--steps", "1", "--skip", "0"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("kit\n")
    assert "names no device" not in said.err
    assert VARIABLE not in os.environ


def test_the_code_of_the_page_runs() -> None:
    with contextlib.redirect_stdout(None):
        names = run_page(page("trainers.md"))
    for watch in (names["watch"], names["watching"]):
        assert watch.ended == "complete: measured 3 of 3 steps"
        assert watch.run.sync_points == ()
        assert len(watch.run.graphs[0]) > 5
    assert names["same"] == [True] * 4
    assert names["first"] == names["again"]
    straight, resumed = names["module"].state_dict(), names["resumed_module"].state_dict()
    assert all(torch.equal(straight[key], resumed[key]) for key in straight)
