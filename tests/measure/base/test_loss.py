"""A step that returns no loss: what is wrong, at which line of the user's, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import SettingsError
from kit.measure.base.loss import no_loss

SHORT = {"steps": 2, "warmup": 1}
ON_ONE_CPU = ["cpu:0", "cpu:0"]
# what a step makes of its loss -> what is said
TORCH: dict[str, tuple[Callable[[Any], Any], str]] = {
    "complex": (lambda x: x + 1j, "as a real number, not as complex64: .*return abs"),
    "none": (lambda x: None, "as a tensor, not NoneType: end it with `return loss`"),
    "tuple": (lambda x: (x, x), "as a tensor, not tuple"),
    "number": (lambda x: x.item(), "as a tensor, not float: .*unread: without .item"),
    "numpy": (lambda x: np.float32(1), "as a tensor, not float32: .*unread"),
    "several": (lambda x: torch.stack([x, x]), r"as one number, not a tensor of shape \(2,\)"),
}


def workload(make: Callable[[Any], Any]) -> Callable[[kit.Context], Callable[[], Any]]:
    def build(ctx: kit.Context) -> Callable[[], Any]:
        x = torch.ones(3).to(ctx.device)

        def step() -> Any:  # line_of_step
            return make(x.sum())

        return step

    return build


def jax_workload(make: Callable[[Any], Any]) -> Any:
    @kit.workload(framework="jax")
    def build(ctx: kit.Context) -> Callable[[], Any]:
        total = kit.jax.step(lambda x: make(x.sum()))

        def step() -> Any:  # line_of_jax_step
            return total(np.ones(3, np.float32))

        return step

    return build


def place(comment: str) -> str:
    """`test_loss.py:34`, the line with this comment."""
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return f"test_loss.py:{1 + next(i for i, x in enumerate(lines) if x.endswith(f'# {comment}'))}"


@pytest.mark.parametrize("mode", ["lazy", "torch"])
@pytest.mark.parametrize("kind", TORCH)
def test_what_is_no_loss_is_refused_at_the_users_line(kind: str, mode: str) -> None:
    make, text = TORCH[kind]
    with pytest.raises(SettingsError, match=text) as raised:
        kit.run(workload(make), kit.Settings(mode=mode, **SHORT))
    assert f"the step at {place('line_of_step')} must return its loss" in str(raised.value)


def test_a_line_of_a_notebooks_cell_has_the_cells_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is called 3157498123.py, which says nothing to anybody."""
    path, space = "/tmp/ipykernel_7/1.py", {"kit": kit}
    source = "def step(): ...\ndef mine(ctx, width=kit.knob(1, 2, default=3)): ..."
    exec(compile(source, path, "exec"), space)
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={path: 5}))
    monkeypatch.setattr("kit.runtime.recording.sites.notebook_shell", lambda: shell)
    assert "the step at In[5]:1 must return its loss" in str(no_loss(None, space["step"]))
    with pytest.raises(SettingsError, match=r"^width of mine \(In\[5\]:2\): must be one of"):
        kit.workload(space["mine"])


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_complex_loss_of_jax_is_refused_at_the_users_line(mode: str) -> None:
    text = "as a real number, not as complex64"
    with pytest.raises(SettingsError, match=text) as raised:
        kit.run(jax_workload(lambda x: x.astype(np.complex64)), kit.Settings(mode=mode, **SHORT))
    assert f"the step at {place('line_of_jax_step')} must return its loss" in str(raised.value)


@pytest.mark.parametrize("mode", ["lazy", "torch"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float64])
def test_a_loss_of_any_other_dtype_is_kept(dtype: torch.dtype, mode: str) -> None:
    run = kit.run(workload(lambda x: x.to(dtype)), kit.Settings(mode=mode, **SHORT))
    assert run.losses == (float(torch.tensor(3.0).to(dtype)),) * 2


@pytest.mark.parametrize("kind", ["complex", "none", "several"])
def test_on_several_devices_it_is_refused_alike(kind: str) -> None:
    make, text = TORCH[kind]
    with pytest.raises(SettingsError, match=text) as raised:
        kit.run(workload(make), kit.Settings(**SHORT), devices=ON_ONE_CPU)
    assert f"the step at {place('line_of_step')} must return its loss" in str(raised.value)
