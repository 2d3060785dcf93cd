"""Training steps worth looking at. `from kit.workloads import bert`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.workloads.masked_lm import bert as bert
    from kit.workloads.masked_lm import bert_of as bert_of

__all__ = ["bert", "bert_of"]


def __getattr__(name: str) -> Any:
    """Load torch only when a workload is asked for."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("kit.workloads.masked_lm"), name)
    raise AttributeError(f"module 'kit.workloads' has no attribute {name!r}")
