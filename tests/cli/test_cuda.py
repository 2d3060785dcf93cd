"""What `kit doctor` says of the CUDA libraries of torch and jax, by made metadata."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kit.cli import doctor
from kit.cli.cuda import Wheels, cuda_findings, installed_wheels
from kit.cli.doctor import findings
from kit.cli.finding import ODD, OK, Finding

WELL = {
    "torch": "2.13.0+cu130", "jax": "0.11.2", "jaxlib": "0.11.2", "jax-cuda13-plugin": "0.11.2",
    "jax-cuda13-pjrt": "0.11.2", "nvidia-cuda-runtime": "13.0.96", "nvidia-cudnn-cu13": "9.20.0.48",
    "nvidia-nccl-cu13": "2.28.9",
}  # fmt: skip
NEEDS = {
    "torch": ["nvidia-cudnn-cu13==9.20.0.48; platform_system == 'Linux'", "sympy>=1.13.3"],
    "jax-cuda13-plugin": [
        "jax-cuda13-pjrt==0.11.2",
        "nvidia-cudnn-cu13<10.0,>=9.8; extra == 'with-cuda'",
    ],
}
CALM = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def ask(
    changes: dict[str, Any] | None = None, driver: str = "580.95.05", **environment: str
) -> dict[str, Finding]:
    versions = {name: v for name, v in {**WELL, **(changes or {})}.items() if v}
    wheels = Wheels(versions, NEEDS)
    return {f.what: f for f in cuda_findings(wheels, driver, {**CALM, **environment})}


def odd(found: dict[str, Finding]) -> set[str]:
    return {what for what, f in found.items() if f.state == ODD}


def test_a_stack_that_fits_is_named_with_its_versions_and_nothing_collides():
    found = ask()
    assert odd(found) == set()
    assert {f.state for f in found.values()} == {OK}
    assert "torch 2.13.0+cu130, for CUDA 13" in found["torch on CUDA"].text
    assert "cuDNN 9.20.0.48, NCCL 2.28.9" in found["jax on CUDA"].text


def test_without_cuda_there_is_nothing_to_say():
    wheels = Wheels({"torch": "2.13.0+cpu", "jax": "0.10.2", "jaxlib": "0.10.2"})
    assert list(cuda_findings(wheels, "", {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"})) == []


@pytest.mark.parametrize(
    ("changes", "what", "cure"),
    [
        ({"nvidia-cudnn-cu13": "9.10.2.21"}, "torch's cuDNN",
         'pip install "nvidia-cudnn-cu13==9.20.0.48"'),
        ({"nvidia-cudnn-cu13": "9.7.0"}, "jax's cuDNN", '"nvidia-cudnn-cu13<10.0,>=9.8"'),
        ({"torch": "2.11.0+cu128"}, "torch and jax", 'pip install "jax[cuda12]"'),
        ({"jax-cuda13-plugin": "", "jax-cuda13-pjrt": ""}, "torch and jax", "jax[cuda13]"),
        ({"jax-cuda12-plugin": "0.11.2"}, "jax's plugins", "pip uninstall jax-cuda12-plugin"),
        ({"jaxlib": "0.10.2"}, "jax and its plugin", 'pip install "jax[cuda13]==0.11.2"'),
    ],
)  # fmt: skip
def test_what_collides_is_named_with_its_cure(changes: dict[str, str], what: str, cure: str):
    found = ask(changes)
    assert what in odd(found)
    assert cure in found[what].cure


@pytest.mark.parametrize(
    ("driver", "is_old"), [("570.86.15", True), ("580.65.06", False), ("", False)]
)
def test_a_driver_that_is_too_old_for_the_cuda_is_named(driver: str, is_old: bool):
    found = ask(driver=driver)
    assert ("torch and the driver" in odd(found)) is is_old
    assert ("jax and the driver" in odd(found)) is is_old


def test_a_build_with_cuda_on_a_machine_without_a_gpu_is_nothing_to_put_right():
    """torch's wheels for Linux have CUDA on a laptop, too, where gigabytes for jax are no cure."""
    without_plugin = {"jax-cuda13-plugin": "", "jax-cuda13-pjrt": ""}
    assert odd(ask(without_plugin, driver="")) == set()
    assert odd(ask(driver="", XLA_PYTHON_CLIENT_PREALLOCATE="true")) == set()
    assert "torch and jax" in odd(ask(without_plugin, driver="580.95.05"))


@pytest.mark.parametrize(
    ("versions", "said"),
    [({"torch": "2.14.1+rocm7.1"}, "torch 2.14.1+rocm7.1"),
     ({"jax-rocm7-plugin": "0.11.2", "jax-rocm7-pjrt": "0.11.2"}, "jax-rocm7-plugin 0.11.2"),
     ({"jax-metal": "0.1.1"}, "jax-metal 0.1.1"), (WELL, "steps run on the CPU")],
)  # fmt: skip
def test_a_gpu_that_is_not_nvidias_is_not_called_a_cpu(monkeypatch, versions, said: str):
    monkeypatch.setattr(doctor, "installed_wheels", lambda: Wheels(versions))
    monkeypatch.setenv("PATH", "")
    text = next(f.text for f in findings() if f.what == "gpu")
    assert said in text
    assert ("never tried" in text) is ("CPU" not in said)


def test_variables_that_take_libraries_or_memory_are_named():
    found = ask(LD_LIBRARY_PATH="/opt/lib:/usr/local/cuda-12.4/lib64")
    assert "/usr/local/cuda-12.4/lib64 comes before" in found["LD_LIBRARY_PATH"].text
    found = ask(XLA_PYTHON_CLIENT_PREALLOCATE="true")
    assert "=false" in found["the GPU's memory"].cure
    limited = ask(XLA_PYTHON_CLIENT_PREALLOCATE="", XLA_PYTHON_CLIENT_MEM_FRACTION=".3")
    assert "the GPU's memory" not in limited


def test_this_pythons_own_metadata_can_be_read():
    wheels = installed_wheels()
    assert {"torch", "jax", "jaxlib"} <= wheels.versions.keys()
    assert wheels.needs["jax"]
    what = [f.what for f in findings()]
    found = [f.what for f in cuda_findings(wheels, "", os.environ)]
    assert set(found) <= set(what)
