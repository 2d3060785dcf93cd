"""Every rule that comes with kit, as one table."""

from __future__ import annotations

from kit.runtime.rules.attention import ATTENTION_RULES
from kit.runtime.rules.conv import CONV_RULES
from kit.runtime.rules.fft import FFT_RULES
from kit.runtime.rules.grid import GRID_RULES
from kit.runtime.rules.index import INDEX_RULES
from kit.runtime.rules.jax import JAX
from kit.runtime.rules.linalg import LINALG_RULES
from kit.runtime.rules.losses import LOSS_RULES
from kit.runtime.rules.math import MATH_RULES
from kit.runtime.rules.nn import NN_RULES
from kit.runtime.rules.prims import PRIMS
from kit.runtime.rules.resize import RESIZE_RULES
from kit.runtime.rules.rnn import RNN_RULES
from kit.runtime.rules.shape import SHAPE_RULES
from kit.runtime.rules.special_functions import SPECIAL_RULES

__all__ = ["DEFAULT_RULES"]

DEFAULT_RULES = (
    MATH_RULES
    | SHAPE_RULES
    | NN_RULES
    | LOSS_RULES
    | RNN_RULES
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
