"""Training steps worth looking at, and runs of some. `from kit.workloads import bert`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.workloads.convnets import convnet as convnet
    from kit.workloads.convnets import inception_v3 as inception_v3
    from kit.workloads.convnets import inception_v3_inference as inception_v3_inference
    from kit.workloads.convnets import resnet50_v1b as resnet50_v1b
    from kit.workloads.convnets import resnet50_v1b_inference as resnet50_v1b_inference
    from kit.workloads.jax_layers import jax_mlp as jax_mlp
    from kit.workloads.many_arrays import zero_grad as zero_grad
    from kit.workloads.many_arrays import zero_grad_by as zero_grad_by
    from kit.workloads.masked_lm import bert as bert
    from kit.workloads.masked_lm import bert_of as bert_of
    from kit.workloads.recorded import recorded as recorded
    from kit.workloads.rnn.gates import rnn_gates as rnn_gates
    from kit.workloads.small_ops import flips as flips
    from kit.workloads.small_ops import mlp as mlp

_HOMES = {
    "bert": "masked_lm",
    "bert_of": "masked_lm",
    "convnet": "convnets",
    "flips": "small_ops",
    "inception_v3": "convnets",
    "inception_v3_inference": "convnets",
    "jax_mlp": "jax_layers",
    "mlp": "small_ops",
    "recorded": "recorded",
    "resnet50_v1b": "convnets",
    "resnet50_v1b_inference": "convnets",
    "rnn_gates": "rnn.gates",
    "zero_grad": "many_arrays",
    "zero_grad_by": "many_arrays",
}

__all__ = ["bert", "bert_of", "convnet", "flips", "inception_v3", "inception_v3_inference",
           "jax_mlp", "mlp", "recorded", "resnet50_v1b", "resnet50_v1b_inference", "rnn_gates",
           "zero_grad", "zero_grad_by"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load torch, or jax, only when a workload of it is asked for."""
    if name in _HOMES:
        value = getattr(import_module(f"kit.workloads.{_HOMES[name]}"), name)
        globals()[name] = value  # the next use finds it without coming here
        return value
    raise AttributeError(f"module 'kit.workloads' has no attribute {name!r}")
