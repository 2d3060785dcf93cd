"""The workload of Flux PR 1761: an LSTM or GRU whose gates are taken in one of several ways.

    kit.compare(kit.run(rnn_gates(gates=g), settings) for g in ("slice", "multigate", "fused"))

The thread's shapes are the defaults, with `kit.Settings(batch_size=256)`. All ways compute the same
numbers; they differ in the ops and the bytes that it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload
from kit.text import check_whole_number
from kit.workloads.rnn.cells import CELLS, GATES, GatedRNN

__all__ = ["rnn_gates"]

_LOOPS = ("unrolled", "scanned")
RATE = 0.1


def rnn_gates(
    cell: str = "lstm",
    gates: str = "slice",
    *,
    layers: int = 2,
    hidden: int = 64,
    length: int = 16,
    loop: str = "unrolled",
    bidirectional: bool = False,
) -> Workload:
    """Layers of LSTM or GRU cells learn a function of one batch of random sequences, with SGD.

    Args:
        cell: "lstm" or "gru".
        gates: "slice" copies each gate out of the product; "view" shows it; "chunk" takes all in
            one op; "multigate" does so with an adjoint by hand that writes one buffer; "fused" has
            the whole cell as one op each way, adjoint by hand, and so the products of all time
            steps; "torch" is `nn.LSTM` or `nn.GRU`.
        layers, hidden: of the network; its input is as wide.
        length: time steps of a sequence.
        loop: "unrolled": Python goes through the time steps, in torch. "scanned": one `lax.scan`
            does, in jax, as torch has no loop that a device could run; the workload's framework is
            then "jax". Torch's own layer is a loop itself, so it cannot be scanned.
        bidirectional: not supported; there to say so.

    Raises:
        SettingsError: a value is wrong; the message lists or suggests what is allowed.
    """
    _one_of("cell", cell, tuple(CELLS))
    _one_of("gates", gates, GATES)
    _one_of("loop", loop, _LOOPS)
    for name, value in (("layers", layers), ("hidden", hidden), ("length", length)):
        check_whole_number(SettingsError, name, value)
    if bidirectional:
        raise SettingsError(
            "rnn_gates goes through a sequence in one direction only; for both, put "
            "nn.LSTM(..., bidirectional=True) into a workload of your own (docs/your_own_model.md)"
        )
    name = f"rnn_gates: {cell}, {gates}{', scanned' * (loop == 'scanned')}"
    doc = (
        f"{cell.upper()} of {layers} layers of {hidden} over {length} time steps, {loop}, "
        f"gates by {gates}"
    )
    shape: dict[str, Any] = {"cell": cell, "gates": gates, "layers": layers, "hidden": hidden,
                             "length": length}  # fmt: skip
    if loop == "unrolled":
        return Workload(name, partial(_build, **shape), doc)
    if gates == "torch":
        raise SettingsError(
            'gates="torch" is torch\'s own loop over the sequence, which jax cannot scan; use '
            'loop="unrolled", or other gates'
        )
    from kit.workloads.rnn.scanned import build

    return Workload(name, partial(build, **shape), doc, framework="jax")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value in allowed:
        return
    close = get_close_matches(str(value).lower(), allowed, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(
        f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}.{hint}"
    )


def _build(
    ctx: Context, *, cell: str, gates: str, layers: int, hidden: int, length: int
) -> Callable[[], Any]:
    torch.manual_seed(ctx.seed)
    model = GatedRNN(cell, gates, hidden, hidden, layers).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaler = ctx.scaler()
    x = ctx.part(torch.randn(ctx.settings.batch_size, length, hidden))
    batch = x.to(ctx.device), x.mean(1).tanh().to(ctx.device)  # to fetch it is no part of the step

    def step() -> Tensor:
        total: Any = 0
        for x, y in ctx.micro_batches(repeat(batch)):
            with ctx.autocast():
                loss = (model(x)[1] - y).square().mean() / ctx.accumulate
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total  # type: ignore[no-any-return]

    return step
