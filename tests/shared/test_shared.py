"""What tests share is what each would have made: it changes no number, no count and no default."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import torch
from bokeh.models import Label
from bokeh.themes import Theme

import kit
from kit.runtime.compiling import lower
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.torch.device import open_session
from tests.shared.defaults import keep_defaults


def sines(rules: Rules = DEFAULT_RULES) -> tuple[list[float], dict[str, float]]:
    with open_session(kit.Settings(mode="lazy"), rules=rules) as session:
        return torch.arange(3.0, device="kit").sin().tolist(), session.metrics()


def test_a_program_is_compiled_once_and_each_session_says_that_it_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, compile_segment = [], lower.compile_segment

    def noted(*args: object, **how: object) -> lower.Executable:
        compiled.append(how["name"])
        return compile_segment(*args, **how)

    monkeypatch.setattr(lower, "compile_segment", noted)
    (first, asked), (second, again) = sines(), sines()
    assert first == second == pytest.approx(torch.arange(3.0).sin().tolist())
    assert len(compiled) == asked["compile.count"] == again["compile.count"] > 0
    cosine = Rules({"aten.sin.default": jnp.cos}).over(DEFAULT_RULES)
    assert sines(cosine)[0] == pytest.approx(torch.arange(3.0).cos().tolist())


def test_a_default_that_is_kept_is_bokehs_and_makes_way_for_a_theme() -> None:
    keep_defaults()
    for _ in range(2):
        label = Label(x=0, y=0)
        assert (label.angle, label.visible, label.text_align) == (0, True, "left")
        assert label.tags == []
        label.tags.append("mine")  # of this one alone
    Theme(json={"attrs": {"Label": {"text_align": "right"}}}).apply_to_model(label)
    assert label.text_align == "right"
    assert Label(x=0, y=0).text_align == "left"
