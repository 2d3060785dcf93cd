"""Further models by bulk size and batch size, with native torch beside them, by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kit.gpu_check.base.cells import Cell, measure_cells
from kit.gpu_check.base.journal import Journal
from kit.runs.loss_scaling import ON_DEVICE
from kit.runs.settings import Settings
from kit.workloads.convnets import convnet
from kit.workloads.gpt2 import gpt2
from kit.workloads.many_arrays import zero_grad_by
from kit.workloads.masked_lm import bert_of
from kit.workloads.rnn.gates import rnn_gates

__all__ = ["run"]

NATIVE: dict[str, Any] = {"mode": "torch"}
LAZY: dict[str, Any] = {"mode": "lazy"}
REPLAY: dict[str, Any] = {"mode": "lazy", "step_mode": "replay"}
SHORT: dict[str, Any] = {"steps": 2, "warmup": 2}  # in tiny sizes


def run(journal: Journal) -> None:
    """One table a model, those that say most first; a second round only if time is left."""
    for title, cells in TABLES.items():
        with journal.attempt(title):
            measure_cells(journal, title, list(cells(journal.is_tiny)), rounds=1)


def _bulk(size: int) -> dict[str, Any]:
    return {"bulk_forward": size, "bulk_backward": size}


def _zero_grad(is_tiny: bool) -> Iterator[Cell]:
    """MXNet's pull request 16716: 500 arrays of 100x100 set to zero ten times."""
    shape: dict[str, Any] = {"arrays": 10, "repeats": 2} if is_tiny else {}
    more = SHORT if is_tiny else {}
    for how, name, settings in (
        ("loop", "torch, loop", NATIVE),
        ("foreach", "torch, foreach", NATIVE),
        ("loop", "kit, loop, bulk 1", _bulk(1)),
        ("loop", "kit, loop, bulk 15", _bulk(15)),
        ("loop", "kit, loop, bulk 500", _bulk(500)),
        ("one program", "kit, one op that writes all", _bulk(15)),
        ("reset_arrays", "kit, reset_arrays", _bulk(15)),
        ("hybridize", "kit, hybridized loop", _bulk(15)),
    ):
        yield Cell(name, zero_grad_by(how, **shape), Settings(**settings, **more))


def _gates(is_tiny: bool) -> Iterator[Cell]:
    """An LSTM whose gates are taken in several ways."""
    shape: dict[str, Any] = (
        {"layers": 1, "hidden": 8, "length": 2} if is_tiny else {"hidden": 512, "length": 32}
    )
    more = SHORT if is_tiny else {}
    ways = (
        ("torch", NATIVE),
        ("slice", LAZY),
        ("fused", LAZY),
        ("chunk", LAZY),
        ("multigate", LAZY),
        ("slice", NATIVE),
        ("fused", NATIVE),
    )
    for gates, settings in ways[:3] if is_tiny else ways:
        where = "torch" if settings is NATIVE else "kit lazy"
        made = Settings(batch_size=4 if is_tiny else 32, **settings, **more)
        yield Cell(f"{where}, {gates}", rnn_gates("lstm", gates, **shape), made)


def _network(model: str, is_tiny: bool) -> Iterator[Cell]:
    """Seed: a network by bulk size, then by batch size; the kit's own tests run it on a CPU."""
    workload = convnet(model, "tiny" if is_tiny else "full")
    if is_tiny:
        yield Cell("torch, batch 2", workload, Settings(batch_size=2, **NATIVE, **SHORT))
        return
    for batch in (32, 8, 128):
        group = f"batch {batch}"
        half: dict[str, Any] = {"batch_size": batch, "dtype": "float16", "loss_scaling": ON_DEVICE}
        yield Cell(f"torch, {group}", workload, Settings(**NATIVE, **half), group)
        keep = "resnet50" if (model, batch) == ("resnet50_v1b", 32) else ""
        yield Cell(f"kit lazy, {group}", workload, Settings(**LAZY, **half), group, keep)
        yield Cell(f"kit lazy, replay, {group}", workload, Settings(**REPLAY, **half), group)
        for bulk in (15, 50, 1) if batch == 32 else (15,):
            yield Cell(
                f"kit bulk {bulk}, {group}", workload, Settings(**_bulk(bulk), **half), group
            )


def _ways(bulk: int) -> tuple[tuple[str, dict[str, Any]], ...]:
    """How a model's step is run: the name of each cell, and its settings."""
    return (
        ("torch", NATIVE),
        ("kit lazy", LAZY),
        ("kit lazy, replay", REPLAY),
        (f"kit bulk {bulk}", _bulk(bulk)),
    )


def _gpt2(is_tiny: bool) -> Iterator[Cell]:
    """GPT-2 as transformers has it, not changed, with random weights.

    Raises:
        ImportError: transformers is not installed.
    """
    workload = gpt2("tiny" if is_tiny else "full")
    more = SHORT if is_tiny else {}
    for name, settings in _ways(15)[: 2 if is_tiny else None]:
        yield Cell(name, workload, Settings(batch_size=2 if is_tiny else 8, **settings, **more))


def _bert_large(is_tiny: bool) -> Iterator[Cell]:
    """24 layers; in tiny sizes part b has the same code."""
    if is_tiny:
        return
    half: dict[str, Any] = {"batch_size": 8, "dtype": "float16", "loss_scaling": ON_DEVICE}
    for name, settings in _ways(50):
        yield Cell(name, bert_of("large"), Settings(**settings, **half))


# Title -> the cells of a table, in tiny sizes or not.
TABLES: dict[str, Callable[[bool], Iterator[Cell]]] = {
    "GPT-2 of transformers": _gpt2,
    "zero_grad": _zero_grad,
    "RNN gates": _gates,
    "ResNet-50": lambda is_tiny: _network("resnet50_v1b", is_tiny),
    "Inception-v3": lambda is_tiny: _network("inception_v3", is_tiny),
    "BERT-large": _bert_large,
}
