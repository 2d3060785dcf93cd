"""A cut bulk becomes one jax function, and that an XLA executable. Pure but for the compile.

Each node is lowered inside `jax.named_scope("n12")`, 12 being its index *in its segment*: kernels
can be traced back to nodes, and equal segments still lower to equal text and share an executable.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kit.errors import LoweringError
from kit.ir import Aval
from kit.runtime.rules import Rules
from kit.runtime.stream import Op

__all__ = ["HOLE", "Executable", "Hole", "Scalar", "compile_segment", "format_site", "np_dtype"]


class Hole:
    """Stands for a tensor argument in `Op.template`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "_"


class Scalar:
    """Stands for a Python float that was lifted to an input, of this dtype inside the program."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and other.dtype == self.dtype

    def __hash__(self) -> int:
        return hash(("Scalar", self.dtype))

    def __repr__(self) -> str:
        return f"float:{self.dtype}"


HOLE = Hole()


def np_dtype(name: str) -> Any:
    """The numpy dtype that jax uses for a dtype name, bfloat16 included."""
    return jnp.dtype(name)


def format_site(site: tuple[str, int]) -> str:
    """`("/home/me/train.py", 41)` -> `train.py:41`; empty if unknown."""
    if not site[0]:
        return ""
    return f"{_SEPARATOR.split(site[0])[-1]}:{site[1]}"


@dataclass(eq=False)
class Executable:
    """A compiled segment: call `run(*leaves, scalars)`."""

    name: str  # of the HLO module, without "jit_"
    run: Any
    lower_ns: tuple[int, int]
    compile_ns: tuple[int, int]
    calls: int = 0
    _nodes: dict[str, int] = field(default_factory=dict)

    def node_of(self, instruction: str) -> int:
        """Index in the segment of the node that an HLO instruction comes from, -1 if unknown."""
        if not self._nodes:
            self._nodes = {"": -1, **instruction_nodes(self.run.as_text() or "")}
        return self._nodes.get(instruction, -1)


def compile_segment(
    ops: Sequence[tuple[Op, tuple[int, ...]]],
    leaves: Sequence[Aval],
    scalars: int,
    wanted: tuple[int, ...],
    rules: Rules,
    *,
    name: str,
    sites: Sequence[str] = (),
) -> Executable:
    """Lower and compile a segment; its outputs are the slots in `wanted`.

    Raises:
        LoweringError: a rule failed; the message names the op and the user's line.
    """

    def segment(*arrays: Any) -> list[Any]:
        return _interpret(ops, arrays, scalars, wanted, rules, sites)

    segment.__name__ = name
    shapes = [jax.ShapeDtypeStruct(a.shape, np_dtype(a.dtype)) for a in leaves]
    if scalars:
        shapes.append(jax.ShapeDtypeStruct((scalars,), np.dtype("float64")))
    start = time.perf_counter_ns()
    lowered = jax.jit(segment, keep_unused=True).lower(*shapes)
    middle = time.perf_counter_ns()
    compiled = lowered.compile()
    stop = time.perf_counter_ns()
    return Executable(name, compiled, (start, middle), (middle, stop))


def _interpret(
    ops: Sequence[tuple[Op, tuple[int, ...]]],
    arrays: Sequence[Any],
    scalars: int,
    wanted: tuple[int, ...],
    rules: Rules,
    sites: Sequence[str],
) -> list[Any]:
    numbers = iter(arrays[-1][i] for i in range(scalars)) if scalars else iter(())
    slots: list[Any] = []
    for i, (op, refs) in enumerate(ops):
        tensors = iter([slots[r] if r >= 0 else arrays[-1 - r] for r in refs])
        args, kwargs = _fill(op.template, tensors, numbers)
        rule = rules.find(op.name)
        if rule is None:
            raise LoweringError(f"no rule for {op.name}")  # the front end asks before it records
        try:
            with jax.named_scope(f"n{i}"):
                out = rule(*args, **kwargs)
                out = _conform(out, op)
        except LoweringError:
            raise
        except Exception as error:
            where = f" recorded at {sites[i]}" if i < len(sites) and sites[i] else ""
            types = ", ".join(map(str, op.avals))
            raise LoweringError(
                f"the rule for {op.name}({types}){where} failed: {type(error).__name__}: {error}"
            ) from error
        slots.extend(out)
    return [slots[s] for s in wanted]


def _fill(template: Any, tensors: Any, numbers: Any) -> Any:
    if template is HOLE:
        return next(tensors)
    if isinstance(template, Scalar):
        return next(numbers).astype(np_dtype(template.dtype))
    if isinstance(template, dict):
        return {k: _fill(v, tensors, numbers) for k, v in template.items()}
    if isinstance(template, list):
        return [_fill(v, tensors, numbers) for v in template]
    if isinstance(template, tuple):
        return tuple(_fill(v, tensors, numbers) for v in template)
    return template


def _conform(out: Any, op: Op) -> list[Any]:
    """Cast to the dtypes that torch promises, and check the shapes: a wrong rule fails loudly."""
    flat = list(out) if isinstance(out, list | tuple) else [out]
    if len(flat) != len(op.outputs):
        raise ValueError(f"the rule gave {len(flat)} results, torch gives {len(op.outputs)}")
    results = []
    for array, aval in zip(flat, op.outputs, strict=True):
        array = jnp.asarray(array)
        if array.shape != aval.shape:
            raise ValueError(f"the rule gave shape {array.shape}, torch gives {aval.shape}")
        results.append(array.astype(np_dtype(aval.dtype)))
    return results


_SEPARATOR = re.compile(r"[/\\]")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", re.M)
_SCOPE = re.compile(r"/n(\d+)(?=[/\"])")


def instruction_nodes(hlo: str) -> dict[str, int]:
    """Instruction name -> segment-local node index, from the op_name metadata of an HLO text."""
    table = {}
    for line in hlo.splitlines():
        found = _INSTRUCTION.match(line)
        if found and (scope := _SCOPE.search(line)):
            table[found.group(1)] = int(scope.group(1))
    return table
