"""Rules for products of matrices, linear algebra, Fourier transforms, parts of complex numbers."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import linalg

from kit.runtime.rules.math import followed
from kit.runtime.rules.table import Rules

__all__ = ["FFT_RULES", "LINALG_RULES", "MATMUL"]


def _mm(a: Array, b: Array) -> Array:
    """The product of two matrices.

    XLA on CPU takes up to twice as long to multiply by a transposed matrix on the left, as the
    gradient of a weight does, as to copy it and multiply then. The barrier makes it copy.
    """
    return lax.platform_dependent(
        a, b, cpu=lambda a, b: jnp.matmul(lax.optimization_barrier(a), b), default=jnp.matmul
    )


def _addmm(c: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    if not jnp.issubdtype(c.dtype, jnp.inexact):  # torch rounds the factors of integers to zero
        beta, alpha = (jnp.asarray(x).astype(c.dtype) for x in (beta, alpha))

    def add(product: Array) -> Array:
        if not (isinstance(alpha, int) and alpha == 1):
            product = alpha * product
        if isinstance(beta, int | float) and beta == 0:  # torch: whatever is in c, nan included
            return product
        return product + (c if isinstance(beta, int) and beta == 1 else beta * c)

    return followed(jnp.matmul, a, b, add)


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    if bias is None:
        return jnp.matmul(x, weight.T)
    return followed(jnp.matmul, x, weight.T, lambda product: product + bias)


def _linear_backward(x: Array, grad: Array, weight: Array, mask: Sequence[bool]) -> list[Array]:
    rows, flat = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    to_x, to_weight = jnp.matmul(grad, jnp.conj(weight)), _mm(rows.T, jnp.conj(flat))
    grads = (to_x.reshape(x.shape), to_weight, jnp.sum(rows, 0))
    return [g for g, wanted in zip(grads, mask, strict=True) if wanted]


MATMUL = Rules({
    "aten.linear.default": _linear, "aten.linear_backward.default": _linear_backward,
    "aten.mm.default": _mm, "aten.bmm.default": jnp.matmul, "aten.mv.default": jnp.matmul,
    "aten.addbmm.default": lambda c, a, b, *, beta=1, alpha=1: _addmm(
        c, jnp.concatenate(a, -1), jnp.concatenate(b, 0), beta=beta, alpha=alpha),
    "aten.dot.default": jnp.matmul, "aten.addmm.default": _addmm, "aten.baddbmm.default": _addmm,
})  # fmt: skip


# A group is a part of what is summed over: (rows, summed) x (summed, columns).
_SUMMED = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), (1,), ())


def _grouped_mm(
    x: Array,
    y: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: str | None = None,
) -> Array:
    """`offs` says where each group ends; what has three dimensions has one matrix for each."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    if offs is None:
        out = jnp.matmul(x, y, preferred_element_type=wide)
    else:
        sizes = jnp.diff(offs, prepend=jnp.zeros(1, offs.dtype)).astype(jnp.int32)
        if y.ndim == 3:  # groups of rows
            out = lax.ragged_dot(x, y, sizes, preferred_element_type=wide)
        elif x.ndim == 3:  # groups of columns
            turned = jnp.swapaxes(x, 1, 2)
            out = lax.ragged_dot(y.T, turned, sizes, preferred_element_type=wide).T
        else:
            out = lax.ragged_dot_general(x, y, sizes, _SUMMED, preferred_element_type=wide)
    return out.astype(out_dtype or x.dtype)


def _singular(a: Array, lu: Array) -> Array:
    """LAPACK's `info` of an LU: where the first pivot that is 0 stands, counted from 1."""
    zeros = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if not zeros.shape[-1]:
        return jnp.zeros(a.shape[:-2], jnp.int32)
    return jnp.where(jnp.any(zeros, -1), jnp.argmax(zeros, -1) + 1, 0).astype(jnp.int32)


def _adjoint(a: Array) -> Array:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _cholesky_ex(a: Array, *, upper: bool = False, check_errors: bool = False) -> Any:
    nothing = jnp.zeros(a.shape[:-2], jnp.int32)
    if not a.size:
        return a, nothing
    a = _adjoint(a) if upper else a
    factor = jnp.linalg.cholesky(a, symmetrize_input=False)
    failed = jnp.any(~jnp.isfinite(factor), (-2, -1))
    info = lax.cond(jnp.any(failed), lambda: jnp.where(failed, _indefinite(a), 0), lambda: nothing)
    return _adjoint(factor) if upper else factor, info


def _indefinite(a: Array) -> Array:
    """LAPACK's `info` of a Cholesky factor that there is none of: the order of the leading minor
    that is not positive."""

    def eliminate(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, order = state
        column, pivot = rest[..., k], jnp.real(rest[..., k, k])
        order = jnp.where((order == size) & ~(pivot > 0), k + 1, order)
        spread = column[..., None] * jnp.conj(column)[..., None, :]
        return rest - spread / pivot[..., None, None], order

    size = a.shape[-1]
    state = jnp.tril(a) + _adjoint(jnp.tril(a, -1)), jnp.full(a.shape[:-2], size)
    return lax.fori_loop(0, size, eliminate, state)[1].astype(jnp.int32)


def _inv_ex(a: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    lu, pivots, _ = _pivots(a)
    whole = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return _lu_solve(lu, pivots, whole), _singular(a, lu)


def _pivots(a: Array) -> tuple[Array, Array, Array]:
    """LU with LAPACK's pivots, which count from 1, and the rows' permutation."""
    lu, pivots, rows = lax.linalg.lu(a)
    lost = jnp.isnan(jnp.diagonal(lu, axis1=-2, axis2=-1))
    first = jnp.sum(jnp.cumsum(lost, -1) == 0, -1)[..., None, None]
    row, column = (lax.broadcasted_iota(first.dtype, lu.shape, lu.ndim - d) for d in (2, 1))
    lu = jnp.where((row > first) & (column >= first), jnp.nan, lu)  # LAPACK leaves numbers there
    return lu, (pivots + 1).astype(jnp.int32), rows


def _lu_factor_ex(a: Array, *, pivot: bool = True, check_errors: bool = False) -> Any:
    lu, pivots, _ = _pivots(a)
    return lu, pivots, _singular(a, lu)


def _permuted(b: Array, pivots: Array, *, back: bool) -> Array:
    rows = lax.linalg.lu_pivots_to_permutation((pivots - 1).astype(jnp.int32), b.shape[-2])
    if back:
        rows = jnp.argsort(rows, -1)
    return jnp.take_along_axis(b, rows[..., None], -2)


def _lu_solve(
    lu: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False
) -> Any:
    """Solves A x = b, x A = b, or the same with A's adjoint."""
    if not left:
        return _adjoint(_lu_solve(lu, pivots, _adjoint(b), adjoint=not adjoint))
    batch = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu = jnp.broadcast_to(lu, (*batch, *lu.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    pivots = jnp.broadcast_to(pivots, (*batch, pivots.shape[-1]))
    if adjoint:
        y = _triangle(lu, b, upper=True, adjoint=True)
        z = _triangle(lu, y, upper=False, adjoint=True, unit=True)
        return _permuted(z, pivots, back=True)
    y = _triangle(lu, _permuted(b, pivots, back=False), upper=False, unit=True)
    return _triangle(lu, y, upper=True)


def _triangle(
    a: Array, b: Array, *, upper: bool, adjoint: bool = False, unit: bool = False
) -> Array:
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=adjoint, conjugate_a=adjoint,
        unit_diagonal=unit,
    )  # fmt: skip


def _solve_triangular(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


def _solve_ex(a: Array, b: Array, *, left: bool = True, check_errors: bool = False) -> Any:
    """Also the LU factors, which the gradient uses."""
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    lu, pivots, _ = _pivots(a)
    x = _lu_solve(lu, pivots, b[..., None] if is_vector else b, left=left or is_vector)
    return x[..., 0] if is_vector else x, lu, pivots, _singular(a, lu)


def _cholesky_solve(b: Array, factor: Array, upper: bool = False) -> Array:
    """Solves A x = b, of whose A this is the Cholesky factor."""
    batch = jnp.broadcast_shapes(factor.shape[:-2], b.shape[:-2])
    factor = jnp.broadcast_to(factor, (*batch, *factor.shape[-2:]))
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    y = _triangle(factor, b, upper=upper, adjoint=upper)
    return _triangle(factor, y, upper=upper, adjoint=not upper)


def _lu_unpack(
    lu: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    rows, columns = lu.shape[-2:]
    k = min(rows, columns)
    nothing = jnp.zeros(0, lu.dtype)
    p, low, up = nothing, nothing, nothing
    if unpack_pivots:
        order = lax.linalg.lu_pivots_to_permutation((pivots - 1).astype(jnp.int32), rows)
        p = jnp.swapaxes(jnp.eye(rows, dtype=lu.dtype)[order], -1, -2)
    if unpack_data:
        low = jnp.tril(lu[..., :, :k], -1) + jnp.eye(rows, k, dtype=lu.dtype)
        up = jnp.triu(lu[..., :k, :])
    return p, low, up


def _qr(a: Array, mode: str = "reduced") -> tuple[Array, Array]:
    if mode == "r":
        return jnp.zeros(0, a.dtype), jnp.linalg.qr(a, mode="r")
    q, r = jnp.linalg.qr(a, mode=mode)
    return q, r


def _svd(
    a: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    if not compute_uv:
        nothing = jnp.zeros(0, a.dtype)
        return nothing, jnp.linalg.svd(a, compute_uv=False), nothing
    u, s, vh = jnp.linalg.svd(a, full_matrices=full_matrices)
    return u, s, vh


def _matrix_exp(a: Array) -> Array:
    """Scaled until small enough for jax, which gives NaN above, and squared as often as halved."""
    wide = a.astype(jnp.promote_types(a.dtype, jnp.float32))  # jax has no halves here
    size = jnp.max(jnp.sum(jnp.abs(wide), -2, keepdims=True), -1, keepdims=True)
    times = jnp.ceil(jnp.log2(size / _MOST_OF_EXPM))
    times = jnp.where(jnp.isfinite(times), jnp.maximum(times, 0), 0)
    part = linalg.expm(wide * jnp.exp2(-times))

    def square(i: Array, y: Array) -> Array:
        return jnp.where(i < times, jnp.matmul(y, y, precision="highest"), y)

    return lax.fori_loop(0, jnp.max(times, initial=0).astype(int), square, part).astype(a.dtype)


_MOST_OF_EXPM = 2.0**17  # jax squares a matrix up to 16 times, enough for norms below 3.9 * 2**16


def _eigh(a: Array, uplo: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(a, UPLO=uplo.upper(), symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(0, a.dtype)


def _cross(x: Array, y: Array, *, dim: int = -1) -> Array:
    x, y = jnp.broadcast_arrays(x, y)
    a, b = (jnp.moveaxis(v, dim, 0) for v in (x, y))
    rows = [a[i] * b[j] - a[j] * b[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return jnp.moveaxis(jnp.stack(rows), 0, dim)


LINALG_RULES = Rules({
    "aten._grouped_mm.default": _grouped_mm,
    "aten.linalg_cholesky_ex.default": _cholesky_ex, "aten.cholesky_solve.default": _cholesky_solve,
    "aten.linalg_inv_ex.default": _inv_ex, "aten.linalg_lu_factor_ex.default": _lu_factor_ex,
    "aten.linalg_lu_solve.default": _lu_solve, "aten.lu_unpack.default": _lu_unpack,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten._linalg_solve_ex.default": _solve_ex, "aten.linalg_qr.default": _qr,
    "aten._linalg_svd.default": _svd, "aten._linalg_eigh.default": _eigh,
    "aten.linalg_cross.default": _cross,
    "aten.linalg_matrix_exp.default": _matrix_exp,
    "aten.linalg_householder_product.default": lax.linalg.householder_product,
    "aten.vdot.default": lambda x, y: jnp.sum(jnp.conj(x) * y),
})  # fmt: skip


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
