"""Recurrent layers: packed sequences, with their lengths on the host, and the shapes of cells.

A packed sequence is the batch's time steps one after the other, each with the rows that are still
running. Which rows those are is known on the host, so packing is a gather, with no sync point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kit.torch.tensors.tape import Tape

__all__ = ["CELL_SHAPES", "SEQUENCES", "packed_places"]


def _rows_running(lengths: torch.Tensor) -> torch.Tensor:
    """How many rows still run at each time step: (3, 1) -> (2, 1, 1)."""
    steps = torch.arange(int(lengths[0]), dtype=torch.int64)
    return (lengths[None, :] > steps[:, None]).sum(1)


def packed_places(batch_sizes: torch.Tensor, batch: int) -> torch.Tensor:
    """Where each packed row is in (time * batch) rows."""
    runs = [torch.arange(int(n)) + t * batch for t, n in enumerate(batch_sizes)]
    return torch.cat(runs)


def _check_lengths(lengths: torch.Tensor, batch: int) -> None:
    if lengths.device.type != "cpu" or lengths.dtype is not torch.int64:
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D "
            f"{lengths.device} {lengths.dtype} tensor"
        )
    if lengths.dim() != 1 or lengths.numel() != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.numel()} "
            f"(batch_size={batch})"
        )
    if bool((lengths[:-1] < lengths[1:]).any()):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )
    if int(lengths[-1]) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )


def _pack(tape: Tape, func: Any, args: Any, kwargs: Any) -> tuple[Any, torch.Tensor]:
    padded, lengths, batch_first = args
    time_first = padded.transpose(0, 1) if batch_first else padded
    time, batch = time_first.shape[:2]
    _check_lengths(lengths, batch)
    if int(lengths[0]) > time:
        raise RuntimeError(
            f"Expected lengths of at most {time}, the padded length, but got {int(lengths[0])}"
        )
    batch_sizes = _rows_running(lengths)
    rows = time_first.reshape(time * batch, *time_first.shape[2:])
    return rows.index_select(0, packed_places(batch_sizes, batch).to(padded.device)), batch_sizes


def _unpack(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own way, which reads the sizes on the host: inference mode hands the call over."""
    return func.decompose(*args, **kwargs)


def _unpack_gradient(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    grad, size, batch_sizes, batch_first = args
    time, batch = (size[1], size[0]) if batch_first else (size[0], size[1])
    rows = grad.new_zeros((time * batch, *size[2:]))
    rows = rows.index_copy(0, packed_places(batch_sizes.cpu(), batch).to(grad.device), grad)
    padded = rows.reshape(time, batch, *size[2:])
    return padded.transpose(0, 1) if batch_first else padded


def _lstm_cell(x: Any, hidden: Any, cx: Any, bias: Any = None, hidden_bias: Any = None) -> Any:
    return cx.new_empty(cx.shape), cx.new_empty(cx.shape), x.new_empty(x.shape)


def _gru_cell(x: Any, hidden: Any, hx: Any, bias: Any = None, hidden_bias: Any = None) -> Any:
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    batch, hidden = grad.shape
    gates = (batch, 3 * hidden)
    biases = [grad.new_empty(3 * hidden) if has_bias else None for _ in range(2)]
    return grad.new_empty(gates), grad.new_empty(gates), grad.new_empty(grad.shape), *biases


SEQUENCES: dict[str, Callable[..., Any]] = {
    "aten._pack_padded_sequence.default": _pack,
    "aten._pack_padded_sequence_backward.default": _unpack_gradient,
    "aten._pad_packed_sequence.default": _unpack,
}

# torch has no meta kernels for a GRU cell, and the one for an LSTM cell wants biases
CELL_SHAPES: dict[str, Callable[..., Any]] = {
    "aten._thnn_fused_lstm_cell.default": _lstm_cell,
    "aten._thnn_fused_gru_cell.default": _gru_cell,
    "aten._thnn_fused_gru_cell_backward.default": _gru_cell_backward,
}
