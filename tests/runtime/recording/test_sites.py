"""The user's line is neither the kit's nor that of a library, Python's own modules among them."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import kit
from kit.jax.places import caller
from kit.runtime.recording.sites import (
    format_site,
    here,
    installed,
    is_standard,
    is_torchs,
    is_users,
    line_of,
)

FILE = Path(__file__).name


def test_a_call_by_way_of_a_standard_module_has_the_users_line():
    called = Mock(side_effect=here)
    frame = sys._getframe()
    site = called()
    assert format_site(site) == f"{FILE}:{frame.f_lineno - 1}"


def test_a_line_of_a_standard_module_has_no_folder_of_an_installation():
    frame = sys._getframe()
    site, via, _ = Mock(side_effect=caller)()
    assert format_site(site) == f"{FILE}:{frame.f_lineno - 1}"
    assert via.startswith("unittest/mock.py:")


def test_a_call_that_no_line_of_the_users_leads_to_has_none():
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(here).result() == ("", 0)


def test_an_error_of_a_standard_module_is_at_the_users_line():
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    number = caught.value.__traceback__.tb_lineno
    assert line_of(caught.value) == f", at {FILE}:{number}"


def test_an_op_that_a_standard_module_calls_has_the_users_line():
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.ones(2, device="kit")
        number = sys._getframe().f_lineno + 1
        graph = session.plan(lambda: Mock(side_effect=x.neg)()).graph
    (site,) = {node.site for node in graph.nodes if node.op == "aten.neg.default"}
    assert site == f"{FILE}:{number}"


def test_installed_packages_are_no_standard_modules_though_they_lie_among_them():
    assert is_standard(json.__file__)
    packages = Path(os.__file__).parent / "site-packages"
    assert not is_standard(str(packages / "transformers" / "trainer.py"))


def test_the_packages_of_debians_python_and_of_colab_are_no_users_files():
    for folder in ("/usr/local/lib/python3.12/dist-packages", "/usr/lib/python3/dist-packages"):
        assert not is_users(f"{folder}/torch/nn/modules/linear.py")
        assert installed(f"{folder}/torchmetrics/metric.py") == "torchmetrics/metric.py"
    assert is_users("/home/anna/dist-packages.py")


def test_a_packages_folder_that_is_called_torch_is_not_torch() -> None:
    packages = "/usr/lib/python3/dist-packages"
    assert is_torchs(f"{packages}/torch/nn/modules/linear.py")
    assert is_torchs("C:\\Python311\\Lib\\site-packages\\jax\\_src\\core.py")
    assert not is_torchs(f"{packages}/ray/train/torch/config.py")
    assert not is_torchs("/home/anna/torch/train.py")


def test_a_shipped_step_is_the_users_wherever_kit_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "kit", "")
    step = os.path.join(installed, "workloads", "")
    monkeypatch.setattr("kit.runtime.recording.sites.KIT", installed)
    monkeypatch.setattr("kit.runtime.recording.sites._WORKLOADS", step)
    assert is_users(step + "mlp.py")
    assert not is_users(installed + "api.py")
    assert not is_users(torch.__file__)
