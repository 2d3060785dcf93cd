"""What this machine is, and whether torch and jax can both use its GPU from one process."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from kit.cores import usable_cores
from kit.gpu_check.base.journal import Journal
from kit.measure.base.provenance import provenance

__all__ = ["run"]

PACKAGES = ("overlap-kit", "torch", "jax", "jaxlib", "numpy", "transformers", "triton")
VARIABLES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "LD_LIBRARY_PATH",
)
ASKED = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "temperature.gpu",
    "pstate",
    "compute_mode",
    "mig.mode.current",
)
SHARE = 0.5  # of the GPU's memory: more than that in jax's hands leaves torch too little


def run(journal: Journal) -> None:
    """The facts, then the checks that need both libraries."""
    journal.facts(_software())
    with journal.attempt("nvidia-smi"):
        _driver(journal)
    with journal.attempt("jax and torch name their devices"):
        _devices(journal)
    is_shared = jax.default_backend() != "cpu" and torch.cuda.is_available()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with journal.attempt("jax and torch compute in turn in one process"):
        journal.check(
            "jax and torch compute in turn in one process",
            _both_compute(device),
            at_most=1e-3,
            why="largest difference of a product, relative: 8 rounds, jax then torch",
        )
    if not is_shared:
        journal.not_run("jax leaves torch its memory", "jax and torch are not both on a GPU")
        return
    with journal.attempt("jax leaves torch its memory"):
        _memory(journal)


def _software() -> dict[str, str | float]:
    found: dict[str, str | float] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": float(usable_cores()),
        **provenance(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _driver(journal: Journal) -> None:
    """What nvidia-smi says, a fact for each field."""
    path = shutil.which("nvidia-smi")
    if path is None:
        journal.not_run("nvidia-smi", "there is no such program here")
        return
    command = [path, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    said = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=20, check=True
    ).stdout
    for number, line in enumerate(said.strip().splitlines()):
        values = [value.strip() for value in line.split(", ")]
        named = zip(ASKED, values, strict=True)
        journal.facts({f"gpu {number} {name}": value for name, value in named})


def _devices(journal: Journal) -> None:
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    journal.facts(
        {
            "jax runs on": jax.default_backend(),
            "jax devices": ", ".join(f"{d.platform} ({d.device_kind})" for d in jax.devices()),
            "torch runs on": f"cuda ({gpu.name})" if gpu else "cpu",
            "torch cuda": str(torch.version.cuda),
            "torch cudnn": str(torch.backends.cudnn.version()),
        }
    )
    if gpu:
        journal.check(
            "jax sees the GPU that torch sees", float(jax.default_backend() != "cpu"), at_least=1
        )
    elif not journal.is_tiny:
        journal.check("torch sees a GPU", 0.0, at_least=1, why="the other parts run tiny sizes")


def _both_compute(device: str) -> float:
    """Products of the same matrices, by turns; the largest relative difference from numpy's."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((256, 256), np.float32) for _ in range(2))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    worst = 0.0
    for _ in range(8):
        by_jax: Any = jnp.matmul(jnp.asarray(a), jnp.asarray(b), precision="highest")
        by_torch = torch.from_numpy(a).to(device) @ torch.from_numpy(b).to(device)
        for found in (np.asarray(by_jax), by_torch.cpu().numpy()):
            worst = max(worst, float(np.abs(found - expected).max() / np.abs(expected).max()))
    return worst


def _memory(journal: Journal) -> None:
    """How the GPU's memory is divided after both have used it."""
    free, total = torch.cuda.mem_get_info()
    stats = jax.devices()[0].memory_stats() or {}
    reserved = float(stats.get("pool_bytes") or stats.get("bytes_reserved") or 0)
    journal.facts(
        {
            "memory of the GPU (bytes)": float(total),
            "memory that is free (bytes)": float(free),
            "memory that torch has reserved (bytes)": float(torch.cuda.memory_reserved()),
            **{f"jax memory_stats {name}": float(value) for name, value in stats.items()},
        }
    )
    journal.check(
        "jax leaves torch its memory",
        1 - free / total,
        at_most=SHARE,
        why="part of the GPU's memory that is taken after both have computed; jax's pool has "
        f"{reserved:.0f} bytes, XLA_PYTHON_CLIENT_PREALLOCATE is "
        f"{os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE', 'not set')}",
    )
