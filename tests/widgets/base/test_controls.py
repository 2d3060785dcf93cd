"""The explorer's controls say what they ask, and why one has no effect."""

from __future__ import annotations

from typing import Any

import pytest
from ipywidgets import GridBox

from kit.measure.base.context import Context, workload
from kit.measure.base.knobs import knob
from kit.runs.settings import Settings
from kit.widgets.base.controls import Controls


@workload
def mine(ctx: Context, width: int = knob(8, 16), fused: bool = knob(asks="<i>faster?</i>")) -> Any:
    """A builder with two knobs."""


def controls_of(settings: Settings) -> Controls:
    return Controls(settings, on_invalid=lambda error: None)


def label(controls: Controls, name: str) -> str:
    """The HTML over a control."""
    grids = [grid for grid in controls.children if isinstance(grid, GridBox)]
    boxes = [box for grid in grids for box in grid.children]
    (found,) = [box.children[0].value for box in boxes if box.children[-1] is controls[name]]
    return str(found)


@pytest.mark.parametrize(
    ("mode", "name", "why"),
    [
        ("lazy", "bulk_forward", "only in mode bulked"),
        ("torch", "step_mode", "not in mode torch"),
        ("lazy", "step_mode", ""),
        ("bulked", "bulk_forward", ""),
    ],
)
def test_a_disabled_control_says_why(mode: str, name: str, why: str):
    controls = controls_of(Settings(mode="bulked"))
    controls.settings = Settings(mode=mode)
    assert controls[name].disabled == bool(why)
    said = label(controls, name)
    assert f"· {why}" in said if why else "·" not in said


def test_each_control_says_what_it_asks():
    controls = controls_of(mine.settings())
    assert 'title="batch size: when the device becomes the bottleneck"' in label(
        controls, "batch_size"
    )
    assert 'title="fused: &lt;i&gt;faster?&lt;/i&gt;"' in label(controls, "fused")
    assert 'title="width: a parameter of mine (test_controls.py:' in label(controls, "width")


def test_the_tip_of_loss_scaling_says_what_the_chosen_one_costs():
    controls = controls_of(Settings(loss_scaling="static"))
    cost = "(static: a multiplication of the loss and of each gradient)"
    assert f"infinities costs {cost}" in label(controls, "loss_scaling")
    controls.settings = controls.settings.replace(loss_scaling="dynamic, on device")
    assert "(dynamic, on device: a few ops: the device itself" in label(controls, "loss_scaling")


def test_kits_controls_fill_their_rows_and_the_builders_stand_below():
    grids = [x for x in controls_of(mine.settings()).children if isinstance(x, GridBox)]
    assert [len(grid.children) for grid in grids] == [8, 2]
    assert len([x for x in controls_of(Settings()).children if isinstance(x, GridBox)]) == 1
