"""Kernels that compute in float64 in a step whose weights are narrower: mostly by mistake.

One array of numpy's default dtype among a loss's inputs makes float64 of all that follows, and of
the gradients before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from kit.ir import Aval, Graph
from kit.ir.roles import PARAMETER, roles
from kit.runs.analysis.kernels import kernel_table
from kit.runs.device.callers import charged_by_caller
from kit.runs.device.flops import node_flops
from kit.runs.device.shapes import call_cost
from kit.runs.labels import is_of_jax
from kit.runs.run import Run
from kit.runs.verdict.cures import Advice, in_a_step

__all__ = ["float64_advice"]

_WIDE = frozenset({"float64", "complex128"})
# As `aten._to_copy.default`, `aten::copy_`, `jax.convert_element_type`: what the advice asks for.
_CAST = re.compile(r"\w+(\.|::)(_to_copy|to|copy_?|convert_element_type)(\.|$)")


def float64_advice(run: Run, least_ms: float) -> Iterator[Advice]:
    """The line at which it begins, if all of it takes the device so long a traced step.

    Nothing where a parameter is of such a dtype, or in torch, which promotes none, a matrix
    product: then it is meant. Nor where neither is known.
    """
    if not run.timeline.steps:
        return
    whole_ms, site = _of_callers(run) if run.callers else _of_graph(run)
    ms = whole_ms / run.timeline.steps
    if not ms or ms < least_ms:
        return
    is_jaxs = is_of_jax(run)
    cast = "x.astype(jnp.float32)" if is_jaxs else "x.float()"
    narrow = "the weights" if is_jaxs else "weights and matrix products"
    text = (
        f"{site or 'An unknown line'} is the first to compute in float64, for which the device "
        f"takes {in_a_step(run, ms)} in all; {narrow} are narrower. If that is "
        f"not meant, cast what it reads ({cast}): an array of numpy's is float64 by default, and "
        "makes float64 of what it is combined with, gradients included."
    )
    yield Advice("float64", text, site)


def _of_graph(run: Run) -> tuple[float, str]:
    """The device's time for it, in ms of all traced steps, and the first line."""
    graph = run.whole
    wide = {
        i
        for i in graph.ops
        if _computes_wide(graph.nodes[i].op, [*graph.nodes[i].avals, *_inputs(graph, i)])
    }
    promotes = is_of_jax(run)
    if not wide or not all(_is_narrow(graph, promotes=promotes) for graph in run.graphs):
        return 0.0, ""
    rows = [row for row in kernel_table(run) if wide.intersection(row.nodes)]
    first = min((i for row in rows for i in wide.intersection(row.nodes)), default=None)
    ms = sum(row.kernel.charged_ms for row in rows)
    return ms, "" if first is None else graph.nodes[first].site


def _is_narrow(graph: Graph, *, promotes: bool) -> bool:
    weights = [graph.nodes[i].avals for i, role in roles(graph).items() if role == PARAMETER]
    products = [_inputs(graph, i) for i in graph.ops if node_flops(graph, i) > 0]
    known = weights if promotes else [*weights, *products]
    return bool(known) and not any(map(_is_wide, known))


def _inputs(graph: Graph, node: int) -> list[Aval]:
    return [graph.nodes[i].avals[k] for i, k in graph.nodes[node].inputs]


def _of_callers(run: Run) -> tuple[float, str]:
    """The same of a run without a graph."""
    is_wide = np.array([_computes_wide(caller.op, caller.inputs) for caller in run.callers])
    is_product = np.array([call_cost(caller).flops > 0 for caller in run.callers])
    t = run.timeline
    spans = np.flatnonzero((t.node >= 0) & (t.node < len(is_wide)))
    spans = spans[is_wide[t.node[spans]]]
    if not len(spans) or not is_product.any() or (is_product & is_wide).any():
        return 0.0, ""
    first = run.callers[t.node[spans[np.argmin(t.start_ns[spans])]]]
    return float(charged_by_caller(run)[0][:-1][is_wide].sum()) / 1e6, first.site


def _computes_wide(op: str, avals: Iterable[Aval]) -> bool:
    return not _CAST.match(op) and _is_wide(avals)


def _is_wide(avals: Iterable[Aval]) -> bool:
    """Is an array among them? Single numbers make no other array wide."""
    return any(aval.dtype in _WIDE and aval.shape for aval in avals)
