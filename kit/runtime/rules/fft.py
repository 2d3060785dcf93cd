"""Rules for Fourier transforms and the parts of complex numbers."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.table import Rules

__all__ = ["FFT_RULES"]

# torch's normalization: 0 no factor, 1 by 1/sqrt(n), 2 by 1/n; numpy's name for each direction
_FORWARD = ("backward", "ortho", "forward")
_BACKWARD = ("forward", "ortho", "backward")


def _r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    norm = _FORWARD[normalization]
    first = jnp.fft.rfft if onesided else jnp.fft.fft
    out = first(x, axis=dim[-1], norm=norm)
    for axis in dim[:-1]:
        out = jnp.fft.fft(out, axis=axis, norm=norm)
    return out


def _c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    function = jnp.fft.fft if forward else jnp.fft.ifft
    for axis in dim:
        x = function(x, axis=axis, norm=(_FORWARD if forward else _BACKWARD)[normalization])
    return x


def _c2r(x: Array, dim: Sequence[int], normalization: int, last: int) -> Array:
    norm = _BACKWARD[normalization]
    for axis in dim[:-1]:
        x = jnp.fft.ifft(x, axis=axis, norm=norm)
    return jnp.fft.irfft(x, last, axis=dim[-1], norm=norm)


def _angle(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.angle(x)
    return jnp.where(jnp.isnan(x), jnp.nan, jnp.where(x < 0, jnp.pi, 0.0))


FFT_RULES = Rules({
    "aten._fft_r2c.default": _r2c, "aten._fft_c2c.default": _c2c, "aten._fft_c2r.default": _c2r,
    "aten.angle.default": _angle, "aten._conj_physical.default": jnp.conj,
})  # fmt: skip
