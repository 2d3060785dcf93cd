"""Recurrent cells that a program calls in a Python loop, found in the graph of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kit.ir import Graph

__all__ = ["Unrolled", "unrolled_cells"]

MANY = 8  # cells of one line in a step: fewer are no loop that is worth a layer
# op of a cell -> the layer of torch that runs it in a loop of its own. A cell of `nn.RNNCell` is a
# sum and a tanh, as many other things are: not recognised.
_LAYERS = {"aten._thnn_fused_lstm_cell": "nn.LSTM", "aten._thnn_fused_gru_cell": "nn.GRU"}


@dataclass(frozen=True, slots=True)
class Unrolled:
    """Cells that one line calls in a loop."""

    layer: str  # "nn.LSTM", or "nn.GRU"
    site: str
    cells: int  # in a step


def unrolled_cells(graph: Graph) -> list[Unrolled]:
    """The lines that call many cells a step, the most first."""
    found = Counter(
        (layer, node.site)
        for node in graph.nodes
        if (layer := _LAYERS.get(node.op.removesuffix(".default"))) is not None
    )
    return [Unrolled(*key, cells) for key, cells in found.most_common() if cells >= MANY]
