"""Every rule that comes with kit, as one table."""

from __future__ import annotations

from kit.runtime.rules_attention import ATTENTION_RULES
from kit.runtime.rules_conv import CONV_RULES
from kit.runtime.rules_fft import FFT_RULES
from kit.runtime.rules_grid import GRID_RULES
from kit.runtime.rules_index import INDEX_RULES
from kit.runtime.rules_jax import JAX
from kit.runtime.rules_linalg import LINALG_RULES
from kit.runtime.rules_losses import LOSS_RULES
from kit.runtime.rules_math import MATH_RULES
from kit.runtime.rules_nn import NN_RULES
from kit.runtime.rules_prims import PRIMS
from kit.runtime.rules_resize import RESIZE_RULES
from kit.runtime.rules_rnn import RNN_RULES
from kit.runtime.rules_shape import SHAPE_RULES
from kit.runtime.rules_special import SPECIAL_RULES

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
