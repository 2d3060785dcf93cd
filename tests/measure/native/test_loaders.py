"""What a native step's loaders read is their own, in the count and in the lines alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import kit
from kit.measure.native.torch import measure

NATIVE = kit.Settings(mode="torch", device="cpu", warmup=1, steps=2)


def items_read() -> Any:
    while True:
        yield torch.ones(()).item()


@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12
@pytest.mark.parametrize("kind", ["an iterator in each step", "persistent workers", "ctx.loader"])
def test_a_loaders_reads_are_neither_counted_nor_have_a_line(kind: str) -> None:
    """Each iterator of torch's reads a seed, and shuffles by another."""

    @kit.workload
    def reading(ctx: kit.Context) -> Any:
        workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
        data = DataLoader(range(8), 4, shuffle=True, **(workers if kind.startswith("pe") else {}))
        batches = ctx.loader(items_read()) if kind == "ctx.loader" else None

        def step() -> Any:
            batch = next(iter(data)) if batches is None else next(batches)
            loss = torch.ones((), device=ctx.device) * batch
            loss.sum().item()
            return loss.sum()

        return step

    notes = " ".join(measure(reading, NATIVE).timeline.notes)
    assert re.search(
        r"1 read of a number a step \(\.item\(\), at test_loaders\.py:\d+\) waits", notes
    )
