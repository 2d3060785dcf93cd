"""BERT for masked language modelling: what loss scaling, step mode, bulk and batch size cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kit.gpu_check.base.cells import Cell, measure_cells
from kit.gpu_check.base.journal import Journal
from kit.runs.loss_scaling import DEFERRED, HOST_CHECK, NONE, ON_DEVICE, STATIC
from kit.runs.settings import Settings
from kit.workloads.masked_lm import Size, bert_of

__all__ = ["TINY", "run"]

TITLE = "BERT"
KEPT = (8, 64)  # the batch sizes whose run is saved: the result files are at most eight
TINY = Size(layers=1, width=32, heads=2, length=16, vocabulary=200)
LAZY: dict[str, Any] = {"mode": "lazy"}


def run(journal: Journal) -> None:
    """Measure the cells by turns, those first that say most."""
    cells = list(_tiny_cells() if journal.is_tiny else _cells())
    measure_cells(journal, TITLE, cells, rounds=1 if journal.is_tiny else 5)


def _cells() -> Iterator[Cell]:
    """BERT-base in half precision."""
    for batch in (8, 64):
        yield from _native_cells(batch)
        yield _cell("base", batch, "kit lazy, replay", ON_DEVICE, step_mode="replay", **LAZY)
        yield _lazy(batch, HOST_CHECK)
    yield from _other_cells()  # each of these compiles much
    for batch in (16, 32):
        yield from _native_cells(batch)
        for scaling in (NONE, HOST_CHECK, ON_DEVICE):
            yield _lazy(batch, scaling)
    for batch in (8, 64):
        yield _cell("base", batch, "torch", NONE, dtype="bfloat16", mode="torch")
        yield _cell("base", batch, "kit lazy", NONE, dtype="bfloat16", **LAZY)


def _native_cells(batch: int) -> Iterator[Cell]:
    """What every batch size is compared with."""
    yield _cell("base", batch, "torch", NONE, mode="torch")
    yield _cell("base", batch, "torch", HOST_CHECK, mode="torch")


def _lazy(batch: int, scaling: str) -> Cell:
    """One program a step."""
    keep = f"bert_host_check_{batch}" if batch in KEPT and scaling == HOST_CHECK else ""
    return _cell("base", batch, "kit lazy", scaling, keep=keep, **LAZY)


def _other_cells() -> Iterator[Cell]:
    """What one batch size is measured with: torch.compile, guessed steps, late checks, bulks."""
    batch = 8
    yield _cell("base", batch, "kit lazy, speculate", HOST_CHECK, step_mode="speculate", **LAZY)
    compiled = {"mode": "torch", "backend": "inductor"}
    yield _cell("base", batch, "torch.compile (inductor)", NONE, **compiled)
    for scaling in (NONE, ON_DEVICE, DEFERRED, STATIC):
        yield _lazy(batch, scaling)
    for bulk in (50, 15):
        sizes: dict[str, Any] = {"bulk_forward": bulk, "bulk_backward": bulk}
        yield _cell("base", batch, f"kit bulk {bulk}", HOST_CHECK, **sizes)
    yield _cell("base", batch, "kit bulk 1", HOST_CHECK, mode="imperative")


def _tiny_cells() -> Iterator[Cell]:
    """The same kinds of cell, as small as can be; autocast to float16 is not for a CPU."""
    few: dict[str, Any] = {"steps": 2, "dtype": "float32"}
    yield _cell(TINY, 2, "torch", NONE, mode="torch", **few)
    yield _cell(TINY, 2, "kit lazy", HOST_CHECK, keep="bert_host_check_8", **LAZY, **few)
    yield _cell(TINY, 2, "kit bulk 15", HOST_CHECK, bulk_forward=15, bulk_backward=15, **few)
    yield _cell(TINY, 2, "torch.compile (eager)", NONE, mode="torch", backend="eager", **few)


def _cell(
    size: str | Size,
    batch: int,
    what: str,
    scaling: str,
    *,
    backend: str = "",
    keep: str = "",
    **settings: Any,
) -> Cell:
    """One cell, named by all that it is."""
    given: dict[str, Any] = {"dtype": "float16", "steps": 20, "warmup": 5, **settings}
    chosen = Settings(batch_size=batch, loss_scaling=scaling, **given)
    return Cell(
        f"{what}; {scaling}; batch {batch}, {chosen.dtype}",
        bert_of(size, backend=backend),
        chosen,
        group=f"batch {batch}, {chosen.dtype}",
        keep=keep,
        kind=backend,  # torch.compile takes longer than eager torch
        more={"batch": str(batch), "samples a step": batch * chosen.accumulate},
    )
