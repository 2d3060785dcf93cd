"""Training steps worth looking at. `from kit.workloads import bert`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.workloads.convnets import convnet as convnet
    from kit.workloads.convnets import inception_v3 as inception_v3
    from kit.workloads.convnets import inception_v3_inference as inception_v3_inference
    from kit.workloads.convnets import resnet50_v1b as resnet50_v1b
    from kit.workloads.convnets import resnet50_v1b_inference as resnet50_v1b_inference
    from kit.workloads.jax_layers import jax_mlp as jax_mlp
    from kit.workloads.masked_lm import bert as bert
    from kit.workloads.masked_lm import bert_of as bert_of
    from kit.workloads.rnn_gates import rnn_gates as rnn_gates
    from kit.workloads.small_ops import flips as flips
    from kit.workloads.small_ops import mlp as mlp
    from kit.workloads.zero_grad import zero_grad as zero_grad
    from kit.workloads.zero_grad import zero_grad_by as zero_grad_by

_HOMES = {
    "bert": "masked_lm",
    "bert_of": "masked_lm",
    "convnet": "convnets",
    "flips": "small_ops",
    "inception_v3": "convnets",
    "inception_v3_inference": "convnets",
    "jax_mlp": "jax_layers",
    "mlp": "small_ops",
    "resnet50_v1b": "convnets",
    "resnet50_v1b_inference": "convnets",
    "rnn_gates": "rnn_gates",
    "zero_grad": "zero_grad",
    "zero_grad_by": "zero_grad",
}

__all__ = ["bert", "bert_of", "convnet", "flips", "inception_v3", "inception_v3_inference",
           "jax_mlp", "mlp", "resnet50_v1b", "resnet50_v1b_inference", "rnn_gates",
           "zero_grad", "zero_grad_by"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load torch, or jax, only when a workload of it is asked for."""
    if name in _HOMES:
        from importlib import import_module

        value = getattr(import_module(f"kit.workloads.{_HOMES[name]}"), name)
        globals()[name] = value  # also where a file has the name of what is in it
        return value
    raise AttributeError(f"module 'kit.workloads' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `kit.workloads.zero_grad` the workload, though a file of the same name exists.

    Python binds a submodule to its package when it is first imported; only that binding is left
    out, as in `kit` itself.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
