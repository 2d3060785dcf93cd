"""Every rule that comes with kit, as one table."""

from __future__ import annotations

from kit.runtime.rules.attention import ATTENTION_RULES
from kit.runtime.rules.conv import CONV_RULES
from kit.runtime.rules.index import INDEX_RULES
from kit.runtime.rules.jax import JAX
from kit.runtime.rules.layers import LAYERS
from kit.runtime.rules.linalg import FFT_RULES, LINALG_RULES, MATMUL
from kit.runtime.rules.losses import LOSS_RULES
from kit.runtime.rules.math import MATH_RULES
from kit.runtime.rules.optimizers import MULTI_TENSOR, OPTIMIZERS
from kit.runtime.rules.prims import PRIMS
from kit.runtime.rules.random import RANDOM
from kit.runtime.rules.recurrent import RECURRENT
from kit.runtime.rules.resample import GRID_RULES, RESIZE_RULES
from kit.runtime.rules.shape import SHAPE_RULES
from kit.runtime.rules.special_functions import SPECIAL_RULES

__all__ = ["DEFAULT_RULES"]

DEFAULT_RULES = (
    MATH_RULES
    | MATMUL
    | SHAPE_RULES
    | LAYERS
    | MULTI_TENSOR
    | OPTIMIZERS
    | RANDOM
    | LOSS_RULES
    | RECURRENT
    | ATTENTION_RULES
    | CONV_RULES
    | RESIZE_RULES
    | INDEX_RULES
    | FFT_RULES
    | GRID_RULES
    | LINALG_RULES
    | SPECIAL_RULES
    | PRIMS
    | JAX
)
