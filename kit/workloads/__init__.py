"""Training steps worth looking at. `from kit.workloads import bert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.workloads.jax_layers import jax_mlp as jax_mlp
    from kit.workloads.masked_lm import bert as bert
    from kit.workloads.masked_lm import bert_of as bert_of
    from kit.workloads.small_ops import mlp as mlp

__all__ = ["bert", "bert_of", "jax_mlp", "mlp"]

_HOMES = {"bert": "masked_lm", "bert_of": "masked_lm", "jax_mlp": "jax_layers",
          "mlp": "small_ops"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load torch, or jax, only when a workload of it is asked for."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"kit.workloads.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kit.workloads' has no attribute {name!r}")
