"""`Settings`: what to run. `Run`: what happened, frozen; one file when saved.

A `Run` holds data only, so that a run recorded on a GPU opens on a laptop without torch or jax.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.errors import SettingsError
from kit.ir import Graph, Segment
from kit.runs.bulk_sizes import UNLIMITED, BulkSizes, check_bulk_size, sizes_from_environment
from kit.runs.compiles import Compile
from kit.runs.sources import Snippet
from kit.runs.text_form import read_text, write_text
from kit.trace import (
    BreakdownRow,
    Headline,
    Limit,
    SyncPoint,
    Timeline,
    breakdown,
    headline,
    limited_by,
)

if TYPE_CHECKING:
    from kit.runs.analysis.advice import Advice

__all__ = [
    "DEVICES",
    "DTYPES",
    "LOSS_SCALING",
    "MODES",
    "STEP_MODES",
    "UNLIMITED",
    "Compile",
    "Fused",
    "Run",
    "Settings",
]

MODES = ("torch", "imperative", "bulked", "lazy")
SEGMENT_MODES = ("fuse", "launch")
STEP_MODES = ("retrace", "replay", "speculate")
LOSS_SCALING = (
    "none",
    "static",
    "dynamic, host check",
    "dynamic, on device",
    "dynamic, deferred",
)
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class Settings:
    """One experiment's knobs; frozen, so vary it with `replace`.

    Raises:
        SettingsError: a value is out of range; the message gives the allowed ones.
    """

    mode: str = "bulked"  # "torch": native, without kit; "imperative": bulk 1; "lazy": no limit
    # ops a segment; the defaults, MXNet's 15, come from the environment: see `kit.runs.bulk_sizes`
    bulk_forward: int = field(default_factory=lambda: sizes_from_environment().forward)
    bulk_backward: int = field(default_factory=lambda: sizes_from_environment().backward)
    segment_mode: str = "fuse"  # "fuse": a segment is one XLA program; "launch": op by op, one wait
    step_mode: str = "retrace"  # record every step; or issue it again, or before it is recorded
    loss_scaling: str = "none"
    batch_size: int = 8
    accumulate: int = 1  # micro-batches for one optimizer step
    prefetch: int = 0  # batches prepared ahead by a thread
    dtype: str = "float32"  # of the autocast region
    steps: int = 10  # measured steps
    warmup: int = 3  # steps before them: compiles happen here
    seed: int = 0
    device: str = "auto"  # "auto": a GPU if there is one
    # ops a segment of a module's forward pass without gradients; by default all of it is one
    bulk_inference: int = field(default_factory=lambda: sizes_from_environment().inference)

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("segment_mode", self.segment_mode, SEGMENT_MODES)
        _one_of("step_mode", self.step_mode, STEP_MODES)
        _one_of("loss_scaling", self.loss_scaling, LOSS_SCALING)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("device", self.device, DEVICES)
        for name in ("bulk_forward", "bulk_backward", "bulk_inference"):
            check_bulk_size(name, getattr(self, name))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingsError(
                    f"{name} must be a whole number of at least {least}, not {value!r}. "
                    f"Change it with settings.replace({name}=...)."
                )

    @property
    def bulk_sizes(self) -> tuple[int, int]:
        """Effective (forward, backward) bulk sizes: the mode overrides the two numbers."""
        return self.bulk_in_force.forward, self.bulk_in_force.backward

    @property
    def bulk_in_force(self) -> BulkSizes:
        """All of the effective bulk sizes."""
        if self.mode == "imperative":
            return BulkSizes(1, 1, 1)
        if self.mode == "lazy":
            return BulkSizes(UNLIMITED, UNLIMITED, UNLIMITED)
        return BulkSizes(self.bulk_forward, self.bulk_backward, self.bulk_inference)

    def replace(self, **changes: Any) -> Settings:
        """A copy with some fields changed; an unknown name is an error that lists them all."""
        known = {f.name for f in fields(self)}
        if unknown := set(changes) - known:
            names = ", ".join(sorted(known))
            raise SettingsError(f"no setting is called {sorted(unknown)[0]!r}; there are: {names}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by field name, for files and tables."""
        return asdict(self)

    def to_string(self) -> str:
        """What differs from kit's defaults as one line to share: `batch_size=16&dtype=float16`."""
        return write_text(self.as_dict(), Settings().as_dict())

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The settings that `to_string` wrote; what it leaves out has kit's own default.

        Raises:
            SettingsError: the text is not of that form, or a name or a value is not possible.
        """
        return cls(**read_text(text, Settings().as_dict()))


_LEAST = {"batch_size": 1, "accumulate": 1, "prefetch": 0, "steps": 1, "warmup": 0, "seed": 0}


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(x) for x in allowed)
        raise SettingsError(f"{name} must be one of {choices}, not {value!r}.")


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel that computes several nodes; any other computes the one that its span names."""

    segment: int
    kernel: str  # its spans' name
    nodes: tuple[int, ...]  # of the graph, in order


@dataclass(frozen=True)
class Run:
    """One measured experiment. Times come from untraced steps, the timeline from traced ones.

    Units:
        step_times_ns in nanoseconds, one for each measured step; `step_ms` is their median.
    """

    settings: Settings
    losses: tuple[float, ...]  # one for each measured step
    step_times_ns: tuple[int, ...]  # untraced steps
    timeline: Timeline  # of `traced_steps` further steps; has one "step" span for each
    sync_points: tuple[SyncPoint, ...] = ()  # of the measured, untraced steps
    graphs: tuple[Graph, ...] = ()  # of one step; empty in mode "torch"
    segments: tuple[Segment, ...] = ()  # how that step was cut
    metrics: Mapping[str, float] = field(default_factory=dict)  # counters, e.g. "compile.count"
    fused: tuple[Fused, ...] = ()  # kernels that compute several nodes
    unlowered: Mapping[str, int] = field(default_factory=dict)  # "aten.x at file:line" -> count
    compiles: tuple[Compile, ...] = ()  # up to the traced steps, each with its reason
    environment: Mapping[str, str] = field(default_factory=dict)  # versions, device, model
    name: str = ""  # the workload's name
    predicted_ms: float = 0.0  # what a model had said of `step_ms` before; 0: none was asked
    recorded_ns: tuple[int, ...] = ()  # when the first traced step recorded each node; -1: unknown
    sources: tuple[Snippet, ...] = ()  # the lines of the program that sites name

    @property
    def step_ms(self) -> float:
        """Median time of an untraced step, milliseconds; nan if no step was measured."""
        return float(np.median(self.step_times_ns)) / 1e6 if self.step_times_ns else math.nan

    def breakdown(self) -> tuple[BreakdownRow, ...]:
        """Where the mean traced step went, by category; see `kit.trace.breakdown`."""
        return breakdown(self.timeline)

    def headline(self) -> Headline:
        """Step time, busy and overlap fraction, waits; see `kit.trace.headline`."""
        return headline(self)

    @cached_property
    def members(self) -> Mapping[tuple[int, str], tuple[int, ...]]:
        """`fused` by (segment, kernel): the nodes of each kernel that computes several."""
        return {(f.segment, f.kernel): f.nodes for f in self.fused}

    def nodes_of(self, segment: int, kernel: str, node: int = -1) -> tuple[int, ...]:
        """The nodes that a kernel computes: those fused into it, or the one that its span names."""
        return self.members.get((segment, kernel), (node,) if node >= 0 else ())

    @property
    def devices(self) -> int:
        """How many devices have shared each step."""
        return max(int(self.metrics.get("parallel.devices", 1)), 1)

    def limited_by(self) -> Limit:
        """What keeps the traced steps from being faster; see `kit.trace.limited_by`."""
        return limited_by(self.timeline)

    def advice(self) -> tuple[Advice, ...]:
        """What costs time, on which line, and and its cure; see `kit.runs.analysis.advice`."""
        from kit.runs.analysis.advice import advise

        return advise(self)

    def to_markdown(self) -> str:
        """Headline, breakdown, kernels and sync points as Markdown tables."""
        from kit.formats.export import run_markdown

        return run_markdown(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, atomically; an older file of this name is replaced.

        Raises:
            RunFileError: the run does not fit the limits of a file.
            OSError: the file cannot be written.
        """
        from kit.runs.file import write_run

        write_run(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run that `save` wrote; nothing in the file is executed.

        Raises:
            RunFileError: the file is missing, damaged, foreign, too new or too large.
        """
        from kit.runs.file import read_run

        return read_run(path)

    def __repr__(self) -> str:
        h = self.headline()
        name = self.name if len(self.name) <= 60 else f"{self.name[:59]}…"
        return (
            f"Run({name!r}, mode {self.settings.mode!r}, {_number(h.step_ms, '.2f')} ms/step, "
            f"device busy {_number(h.device_busy_fraction, '.0%')}, "
            f"overlap {_number(h.overlap_fraction, '.0%')}, "
            f"{_number(h.syncs_per_step, '.3g')} syncs/step)"
        )


def _number(value: float, form: str) -> str:
    return "unknown" if math.isnan(value) else format(value, form)
