"""A cut bulk becomes one jax function, and that an XLA executable. Pure but for the compile.

Each node is lowered inside `jax.named_scope("n12")`, 12 being its index *in its segment*: kernels
can be traced back to nodes, and equal segments still lower to equal text and share an executable.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kit.errors import LoweringError, but_of_handlers, named
from kit.ir import Aval
from kit.runs.settings import GPUS
from kit.runtime.compiling.chains import apart, ends_of_parts
from kit.runtime.compiling.checks import NO_CHECKS, Asked, Checks, Probing
from kit.runtime.compiling.contexts import one_context
from kit.runtime.compiling.disk_cache import with_nodes, without_lines
from kit.runtime.compiling.forget import forget
from kit.runtime.compiling.fusions import Instructions, moved_by
from kit.runtime.compiling.precision import Precision, precise
from kit.runtime.recording.bulk import Op, Task
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.math import cast
from kit.runtime.rules.table import Rule, Rules
from kit.text import format_count

__all__ = ["Executable", "InnerProgram", "Source", "compile_segment", "options_for"]

_ON_A_GPU: dict[str, str | bool] = {
    # A command buffer (a CUDA graph) replays many kernels at once, and XLA's profiler does not say
    # which instruction each of them computes, nor of which program (openxla/xprof, issue 3070).
    "xla_gpu_enable_command_buffer": "",
    # To choose among Triton's kernels for a product, XLA compiles and times dozens of each: most
    # of a compile, and a slider compiles often (docs/gpu.md has figures). cuBLAS's are left.
    "xla_gpu_enable_triton_gemm": False,
}


def options_for(device: Any) -> dict[str, str | bool]:
    """How XLA shall compile for a device, beside what the user has set in `XLA_FLAGS`."""
    if device.platform not in GPUS:
        return {}
    chosen = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in _ON_A_GPU.items() if name not in chosen}


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to compile: its ops, its leaves, and which slots it returns."""

    nodes: Sequence[tuple[Op, tuple[int, ...]]]
    leaves: Sequence[Aval]
    scalars: int
    wanted: Sequence[int]
    dead: Sequence[int] = ()  # leaves that are never read again
    places: Sequence[tuple[int, int]] = ()  # of slices, which it takes as inputs: `Moved.places`

    @classmethod
    def of(cls, task: Task) -> Source:
        """What a cut bulk is, for the compiler."""
        scalars = len(task.scalars)
        return cls(
            list(task.cut.bulk.nodes()), task.cut.avals, scalars, task.cut.wanted, task.cut.dead
        )

    def digest(self, checks: Checks = NO_CHECKS) -> str:
        """A short hash of all that the program depends on but its rules; equal in every process."""
        nodes = [(op.name, repr(op.template), op.outputs, refs) for op, refs in self.nodes]
        text = repr((nodes, self.leaves, self.wanted, self.dead))
        if checks != NO_CHECKS:
            text += repr(checks)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def donations(self) -> dict[int, int]:
        """Leaf -> position in `wanted` of the result that takes over its memory.

        Only a leaf's own next version does, found by following in-place writes back: XLA would
        else copy, to keep what another result still needs.
        """
        maker: list[tuple[Op, tuple[int, ...], int]] = []
        for op, refs in self.nodes:
            maker += [(op, refs, i) for i in range(len(op.outputs))]
        made = [op.outputs[output] for op, _, output in maker]
        dead = set(self.dead)
        pairs: dict[int, int] = {}
        for position, slot in enumerate(self.wanted):
            at = slot
            while at >= 0:
                op, refs, output = maker[at]
                if output >= len(op.writes):
                    break
                at = refs[op.writes[output]]
            leaf = -1 - at
            if leaf in dead and leaf not in pairs and self.leaves[leaf] == made[slot]:
                pairs[leaf] = position
        return pairs


class InnerProgram(Source):
    """Ops that are one op of a larger segment: what `kit.hybrid` has in its template."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"program {self.digest()} of {format_count(len(self.nodes), 'op')}"


@dataclass(eq=False)
class Executable:
    """A compiled segment: `run([*leaves, scalars])` gives its results."""

    name: str  # of the HLO module, without "jit_"
    compiled: Any
    order: Sequence[int]  # where each wanted result is among those that the program returns
    lower_ns: tuple[int, int]
    compile_ns: tuple[int, int]
    ops: Sequence[Op] = ()  # kept, so that their ids in its key stay theirs
    places: Sequence[tuple[int, int]] = ()  # of its source
    checks: Checks = NO_CHECKS
    asked: Sequence[Asked] = ()  # its probes
    moved: Mapping[int, int] = field(default_factory=dict)  # `moved_by` of its ops

    def run(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """Issue it; the results may still be on their way. Donated arrays are gone then.

        Also gives what its probes find, an array on the device; None if it has none.
        """
        results = self.compiled(*arrays)
        return [results[i] for i in self.order], results[-1] if self.asked else None

    @cached_property
    def instructions(self) -> Instructions:
        """What each kernel of it computes, by index in the segment."""
        only = 0 if len(self.ops) == 1 else -1
        return Instructions(self.compiled.as_text() or "", only=only, moved=self.moved)


def compile_segment(
    source: Source,
    rules: Rules,
    *,
    name: str,
    sites: Sequence[str] = (),
    checks: Checks = NO_CHECKS,
    options: Mapping[str, str | bool] | None = None,
    parts_chains: bool = False,
) -> Executable:
    """Lower and compile a segment; `options`: XLA's, by name; `parts_chains`: see `chains`.

    Raises:
        LoweringError: a rule failed; the message names the op and the user's line.
    """
    donated = sorted(source.donations().items())
    first = [position for _, position in donated]
    # jax gives the k-th donated array of a type to the k-th result of that type: so these lead
    returned = first + [i for i in range(len(source.wanted)) if i not in set(first)]
    slots = [source.wanted[i] for i in returned]
    asked: list[Asked] = []

    def segment(*arrays: Any) -> list[Any]:
        lowering = _Lowering(rules, sites, Probing(checks), checks.precision, parts_chains)
        results = lowering.interpret(source, arrays, slots)
        found = lowering.probing.packed()
        asked[:] = lowering.probing.asked
        return results if found is None else [*results, found]

    segment.__name__ = name
    shapes = [jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in source.leaves]
    if source.scalars:
        shapes.append(jax.ShapeDtypeStruct((source.scalars,), np.dtype("float64")))
    leaves = tuple(leaf for leaf, _ in donated)
    start = time.perf_counter_ns()
    traced = jax.jit(segment, keep_unused=True, donate_argnums=leaves).trace(*shapes)
    with without_lines(), one_context(len(source.nodes), traced.jaxpr):
        lowered = traced.lower()
    middle = time.perf_counter_ns()
    with with_nodes():
        compiled = lowered.compile(dict(options) if options else None)
    stop = time.perf_counter_ns()
    forget(traced.jaxpr)
    order = [0] * len(returned)
    for place, position in enumerate(returned):
        order[position] = place
    times = (start, middle), (middle, stop)
    return Executable(
        name, compiled, order, *times, ops=[op for op, _ in source.nodes],
        places=source.places,
        checks=checks, asked=asked, moved=moved_by(source.nodes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lowering:
    """One segment while jax traces it."""

    rules: Rules
    sites: Sequence[str]  # of its nodes
    probing: Probing
    precision: Precision
    parts_chains: bool

    def interpret(
        self, source: Source, arrays: Sequence[Any], wanted: Sequence[int], inside: int = -1
    ) -> list[Any]:
        """The wanted results; `inside`: the node of the segment that this is the program of."""
        numbers = iter(arrays[-1][i] for i in range(source.scalars)) if source.scalars else iter(())
        ends = ends_of_parts(source.nodes) if self.parts_chains else ()
        slots: list[Any] = []
        for i, (op, refs) in enumerate(source.nodes):
            node = i if inside < 0 else inside
            tensors = [slots[r] if r >= 0 else arrays[-1 - r] for r in refs]
            taken = [next(numbers) for _ in range(op.scalars)]
            with jax.named_scope(f"n{i}"):
                results = self._lowered(op, tensors, taken, node)
                slots.extend(apart(results) if i in ends else results)
        return [slots[s] for s in wanted]

    def _lowered(self, op: Op, tensors: list[Any], taken: list[Any], node: int) -> list[Any]:
        """The results of one op."""
        if op.name == "kit.hybrid":
            inner: InnerProgram = op.template[1]["program"]
            given = [*tensors, taken] if taken else tensors
            return self.interpret(inner, given, inner.wanted, node)
        rule = self.rules.find(op.name)
        if rule is None:
            raise LoweringError(f"no rule for {op.name}")  # the front end asks before it records
        try:
            with precise(self.precision, op):
                results = _apply(rule, op, tensors, taken)
            self.probing.look(
                node, op.name, lambda: _fill(op.template, iter(tensors), iter(taken)), results
            )
        except LoweringError:
            raise
        except but_of_handlers(Exception) as error:
            site = self.sites[node] if node < len(self.sites) else ""
            where = f" recorded at {site}" if site else ""
            types = ", ".join(map(str, op.avals))
            raise LoweringError(
                f"the rule for {op.name}({types}){where} failed: {named(error)}"
            ) from error
        return results


def _apply(rule: Rule, op: Op, tensors: list[Any], numbers: list[Any]) -> list[Any]:
    args, kwargs = _fill(op.template, iter(tensors), iter(numbers))
    try:
        return _conform(rule(*args, **kwargs), op)
    except (ValueError, IndexError, TypeError, ZeroDivisionError):
        if not any(t.ndim == 0 for t in tensors):
            raise
    # To torch, a tensor of no dimensions has one of length 1, wherever an op asks for a `dim`.
    lines = [t.reshape(1) if t.ndim == 0 else t for t in tensors]
    args, kwargs = _fill(op.template, iter(lines), iter(numbers))
    pairs = zip(_results(rule(*args, **kwargs)), op.outputs, strict=True)
    return _conform([x.reshape(a.shape) if prod(a.shape) == x.size else x for x, a in pairs], op)


def _fill(template: Any, tensors: Any, numbers: Any) -> Any:
    if template is HOLE:
        return next(tensors)
    if isinstance(template, Scalar):
        return next(numbers).astype(jnp.dtype(template.dtype))
    if isinstance(template, dict):
        return {k: _fill(v, tensors, numbers) for k, v in template.items()}
    if isinstance(template, list):
        return [_fill(v, tensors, numbers) for v in template]
    if isinstance(template, tuple):
        return tuple(_fill(v, tensors, numbers) for v in template)
    return template


def _results(out: Any) -> list[Any]:
    return list(out) if isinstance(out, list | tuple) else [out]


def _conform(out: Any, op: Op) -> list[Any]:
    """Cast to the dtypes that torch promises, and check the shapes: a wrong rule fails loudly."""
    flat = _results(out)
    if len(flat) != len(op.outputs):
        raise ValueError(f"the rule gave {len(flat)} results, torch gives {len(op.outputs)}")
    results = []
    for array, aval in zip(flat, op.outputs, strict=True):
        array = jnp.asarray(array)
        if array.shape != aval.shape:
            raise ValueError(f"the rule gave shape {array.shape}, torch gives {aval.shape}")
        results.append(cast(array, jnp.dtype(aval.dtype)))
    return results
