"""Compile the kit's programs for an H100 that is not here: what fails, how long, which kernels.

    pip install "jax[cuda13]"          # once; no GPU is needed
    python benchmarks/for_a_gpu.py     # or: --size base --batch 8, --text FOLDER

XLA compiles ahead of time for a described GPU: without the timing of candidates (autotuning) that
it does on a real one. Each step of BERT is recorded as on a GPU; its programs are compiled and not
run, zeros stand in for their results, so losses mean nothing here.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # else it asks a driver first
os.environ["KIT_CACHE_DIR"] = ""  # what it holds needs a GPU to be loaded

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from kit.gpu_check.parts.bert import TINY
from kit.measure.experiment import run as run_once
from kit.runs.loss_scaling import DEFERRED, HOST_CHECK, NONE, ON_DEVICE, STATIC
from kit.runs.settings import Settings
from kit.runtime.compiling.fusions import Instructions
from kit.runtime.compiling.lower import Executable, compile_segment, options_for
from kit.text import markdown_table
from kit.workloads.masked_lm import bert_of

# What XLA asks of a device; the numbers are those of NVIDIA's H100 SXM.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 19 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
OPTIONS = options_for(SimpleNamespace(platform="gpu"))
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\(", re.MULTILINE)
_NO_KERNEL = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast"}


@dataclass(frozen=True)
class Made:
    """One program that was compiled."""

    name: str
    ops: int
    seconds: float
    text: str

    @property
    def kernels(self) -> list[str]:
        """The instructions of the entry that run something."""
        entry = self.text[self.text.index("\nENTRY") :]
        return [m[1] for m in _INSTRUCTION.finditer(entry) if m[2] not in _NO_KERNEL]

    def row(self, what: str) -> list[str]:
        found = Instructions(self.text)
        unknown = [name for name in self.kernels if not found.members(name)]
        numbers = (str(self.ops), str(len(self.kernels)), str(len(unknown)), f"{self.seconds:.1f}")
        return [what, self.name, *numbers, ", ".join(unknown[:3])]


class Emulated:
    """Stands in for `compile_segment`: compiles for the described device, runs nothing."""

    def __init__(self) -> None:
        there = topologies.get_topology_desc(
            platform="cuda", topology_name="h100", topology="1x1x1", target_config=H100
        )
        self._sharding = SingleDeviceSharding(there.devices[0])
        self.made: list[Made] = []

    def __call__(self, source: Any, rules: Any, **more: Any) -> Executable:
        shape = partial(jax.ShapeDtypeStruct, sharding=self._sharding)
        start = time.process_time()
        with mock.patch.object(jax, "ShapeDtypeStruct", shape):
            found = compile_segment(source, rules, **{**more, "options": OPTIONS})
        seconds = time.process_time() - start
        self.made.append(Made(found.name, len(found.ops), seconds, found.compiled.as_text()))
        return replace(found, compiled=_Zeros(found.compiled))


class _Zeros:
    """A program whose results are zeros."""

    def __init__(self, compiled: Any) -> None:
        self._results = [(x.shape, x.dtype) for x in jax.tree.leaves(compiled.out_info)]
        self.as_text = compiled.as_text

    def __call__(self, *_: Any) -> list[Any]:
        return [jnp.zeros(shape, dtype) for shape, dtype in self._results]


def main(arguments: Sequence[str] | None = None) -> int:
    """A row for each program; an error if one cannot be compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="", help="of bert_of; else one narrow layer")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--text", type=Path, help="keep each program's text there, packed")
    options = parser.parse_args(arguments)
    emulated, rows = Emulated(), []
    for scaling in (NONE, HOST_CHECK, ON_DEVICE, DEFERRED, STATIC):
        # what looks at indices would find zeros
        settings = Settings(mode="lazy", batch_size=options.batch, loss_scaling=scaling,
                            dtype="float16", steps=2, warmup=2, check_indices="off")  # fmt: skip
        before = len(emulated.made)
        with mock.patch("kit.runtime.session.compiler.compile_segment", emulated):
            run_once(bert_of(options.size or TINY), settings)
        rows += [made.row(scaling) for made in emulated.made[before:]]
    head = ["loss scaling", "program", "ops", "kernels", "without a node", "CPU s", "which"]
    print(markdown_table(head, rows))
    for made in emulated.made if options.text else ():
        options.text.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(made.text.encode(), mtime=0)
        (options.text / f"{made.name}.hlo.gz").write_bytes(packed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
