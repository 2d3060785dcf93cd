"""Types as torch has them: what its CPU refuses is refused, and floats become its integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kit.runs.settings import Settings
from kit.torch.device import open_session

# torch warns where it makes complex numbers real, and of half complex ones
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
d64, f16, i64, i32 = torch.float64, torch.float16, torch.int64, torch.int32


def T(d: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return torch.ones(shape).to(dtype).to(d)


def into(write: Callable[[Any], Any], d: str, dtype: torch.dtype = torch.float32) -> Any:
    """What a call writes into a list of two rows."""
    outs = [T(d, 3, dtype=dtype) * 9, T(d, 3, dtype=dtype) * 9]
    assert write(outs) is None
    return torch.cat(outs)


CALLS: dict[str, Callable[[str], Any]] = {
    "linear64_32": lambda d: F.linear(T(d, 2, 3, dtype=d64), T(d, 4, 3)),
    "linear_int": lambda d: F.linear(T(d, 2, 3, dtype=i64), T(d, 4, 3)),
    "linear_f16w_f32x": lambda d: F.linear(T(d, 2, 3), T(d, 4, 3, dtype=f16)),
    "linear_bias64": lambda d: F.linear(T(d, 2, 3), T(d, 4, 3), T(d, 4, dtype=d64)),
    "mm_mixed": lambda d: T(d, 2, 3) @ T(d, 3, 2, dtype=d64),
    "mm_int_float": lambda d: T(d, 2, 3) @ T(d, 3, 2, dtype=i64),
    "bmm_mixed": lambda d: torch.bmm(T(d, 1, 2, 3), T(d, 1, 3, 2, dtype=d64)),
    "addmm_mixed": lambda d: torch.addmm(T(d, 2, 2, dtype=d64), T(d, 2, 3), T(d, 3, 2)),
    "dot_mixed": lambda d: torch.dot(T(d, 3), T(d, 3, dtype=d64)),
    "einsum_mixed": lambda d: torch.einsum("ij,jk->ik", T(d, 2, 3), T(d, 3, 2, dtype=d64)),
    "matmul_out": lambda d: torch.matmul(T(d, 2, 3), T(d, 3, 2), out=T(d, 2, 2, dtype=d64)),
    "ce_i32": lambda d: F.cross_entropy(T(d, 2, 3), torch.tensor([0, 1], dtype=i32).to(d)),
    "ce_float_labels_shape": lambda d: F.cross_entropy(T(d, 2, 3), torch.tensor([0.0, 1.0]).to(d)),
    "nll_i32": lambda d: F.nll_loss(T(d, 2, 3), torch.tensor([0, 1], dtype=i32).to(d)),
    "emb_float": lambda d: F.embedding(torch.tensor([0.0, 1.0]).to(d), T(d, 3, 2)),
    "emb_i16_large": lambda d: F.embedding(T(d, 2, dtype=torch.int16), T(d, 300, 300)),
    "emb_bool_large": lambda d: F.embedding(T(d, 2, dtype=torch.bool), T(d, 300, 300)),
    "gather_i32": lambda d: torch.gather(T(d, 2, 3), 1, torch.tensor([[0], [1]], dtype=i32).to(d)),
    "scatter_i32": lambda d: T(d, 2, 3).scatter_(1, torch.tensor([[0], [1]], dtype=i32).to(d), 1.0),
    "scatter_src_dtype": lambda d: T(d, 2, 3).scatter_(
        1, torch.tensor([[0], [1]]).to(d), T(d, 2, 1, dtype=d64)
    ),
    "mul_by_a_complex_number": lambda d: T(d, 3).mul_(1j),
    "add_a_complex_number": lambda d: T(d, 3).add_(T(d, 3), alpha=1j),
    "list_times_a_complex_number": lambda d: into(lambda x: torch._foreach_mul_(x, 1j), d),
    "list_plus_a_complex_tensor": lambda d: into(
        lambda x: torch._foreach_add_(x, torch.tensor(1j).to(d)), d
    ),
    "addcmul_half_of_ints": lambda d: torch.addcmul(*[T(d, 3, dtype=i64) * 3] * 3, value=0.5),
    "addcmul_ints_into": lambda d: T(d, 3, dtype=i64).addcmul_(
        *[T(d, 3, dtype=i64)] * 2, value=2.9
    ),
    "index_add_dtype": lambda d: T(d, 3).index_add_(0, torch.tensor([0]).to(d), T(d, 1, dtype=d64)),
    "index_add_bool": lambda d: T(d, 3, dtype=torch.bool).index_add_(
        0, torch.tensor([0]).to(d), T(d, 1, dtype=torch.bool)
    ),
    "index_copy_dtype": lambda d: T(d, 3).index_copy_(
        0, torch.tensor([0]).to(d), T(d, 1, dtype=d64)
    ),
    "index_put_dtype": lambda d: torch.index_put(
        T(d, 3), (torch.tensor([0]).to(d),), T(d, 1, dtype=d64)
    ),
    "setitem_dtype": lambda d: T(d, 3).__setitem__(torch.tensor([0]).to(d), T(d, 1, dtype=d64)),
    "out_lower": lambda d: torch.add(T(d, 3), 1.5, out=T(d, 3, dtype=i64)),
    "out_lower2": lambda d: torch.exp(T(d, 3), out=T(d, 3, dtype=i64)),
    "sum_out_i64": lambda d: torch.sum(T(d, 3) + 0.7, 0, out=T(d, dtype=i64)),
    "nansum_out_i64": lambda d: torch.nansum(T(d, 3) + 0.7, 0, out=T(d, dtype=i64)),
    "prod_out_i8": lambda d: torch.prod(T(d, 3) + 1.7, 0, out=T(d, dtype=torch.int8)),
    "mean_out_d64": lambda d: torch.mean(T(d, 3) / 7, 0, out=T(d, dtype=d64)),
    "mean_out_i64": lambda d: torch.mean(T(d, 3), 0, out=T(d, dtype=i64)),
    "cumsum_out_i64": lambda d: torch.cumsum(T(d, 3) + 0.7, 0, out=T(d, 3, dtype=i64)),
    "cumprod_out_i64": lambda d: torch.cumprod(T(d, 3) + 1.7, 0, out=T(d, 3, dtype=i64)),
    "sum_out_asked": lambda d: torch.sum(T(d, 3) / 7, 0, dtype=d64, out=T(d, dtype=d64)),
    "out_f16": lambda d: torch.exp(T(d, 3), out=T(d, 3, dtype=f16)),
    "all_out": lambda d: torch.all(T(d, 3) > 0, 0, out=T(d)),
    "where_out": lambda d: torch.where(T(d, 3) > 0, T(d, 3), T(d, 3), out=T(d, 3, dtype=i64)),
    "argmax_out": lambda d: torch.argmax(T(d, 3), 0, out=T(d)),
    "logsumexp_out": lambda d: torch.logsumexp(T(d, 3), 0, out=T(d, dtype=i64)),
    "isposinf_out": lambda d: torch.isposinf(T(d, 3), out=T(d, 3)),
    "cummax_out": lambda d: torch.cummax(T(d, 3), 0, out=(T(d, 3, dtype=d64), T(d, 3, dtype=i64)))[
        0
    ],
    "kthvalue_out": lambda d: torch.kthvalue(T(d, 3), 1, out=(T(d, dtype=d64), T(d, dtype=i64)))[0],
    "max_out": lambda d: torch.max(T(d, 3), 0, out=(T(d), T(d)))[0],
    "max_out_right": lambda d: torch.max(T(d, 3), 0, out=(T(d), T(d, dtype=i64)))[1],
    "unbind_out": lambda d: into(lambda outs: torch.unbind_copy(T(d, 2, 3), out=outs), d),
    "unbind_out_i64": lambda d: into(
        lambda outs: torch.unbind_copy(T(d, 2, 3), out=outs), d, dtype=i64
    ),
    "split_out": lambda d: into(
        lambda outs: torch.split_with_sizes_copy(T(d, 2, 3), [1, 1], out=outs), d
    ),
    "unbind_few_outs": lambda d: torch.unbind_copy(T(d, 2, 3), out=[T(d, 3)]),
    "add__int_float": lambda d: T(d, 3, dtype=i64).add_(1.5),
    "add__int_floattensor": lambda d: T(d, 3, dtype=i64).add_(T(d, 3)),
    "div__int": lambda d: T(d, 3, dtype=i64).div_(2),
    "mul__bool": lambda d: T(d, 3, dtype=torch.bool).mul_(2),
    "heaviside_complex": lambda d: torch.heaviside(*2 * [T(d, 3, dtype=torch.complex64)]),
    "conv_mixed": lambda d: F.conv2d(T(d, 1, 1, 4, 4), T(d, 1, 1, 2, 2, dtype=d64)),
    "conv_int_w": lambda d: F.conv2d(T(d, 1, 1, 4, 4), T(d, 1, 1, 2, 2, dtype=i64)),
    "conv_f16_x": lambda d: F.conv2d(T(d, 1, 1, 4, 4, dtype=f16), T(d, 1, 1, 2, 2)),
    "conv_bf16_x": lambda d: F.conv2d(T(d, 1, 1, 4, 4, dtype=torch.bfloat16), T(d, 1, 1, 2, 2)),
    "conv_f16_weight": lambda d: F.conv2d(T(d, 1, 1, 4, 4), T(d, 1, 1, 2, 2, dtype=f16)),
    "conv_bf16_bias": lambda d: F.conv2d(
        *(T(d, 1, 1, n, n, dtype=torch.bfloat16) for n in (4, 2)), T(d, 1)
    ),
    "conv_bias64": lambda d: F.conv2d(T(d, 1, 1, 4, 4), T(d, 1, 1, 2, 2), T(d, 1, dtype=d64)),
    "conv_int": lambda d: F.conv2d(T(d, 1, 1, 4, 4, dtype=i64), T(d, 1, 1, 2, 2, dtype=i64)),
    "conv_dim": lambda d: F.conv2d(T(d, 4, 4), T(d, 1, 1, 2, 2)),
    "conv_kernel_big": lambda d: F.conv2d(T(d, 1, 1, 2, 2), T(d, 1, 1, 4, 4)),
    "convt_mixed": lambda d: F.conv_transpose2d(T(d, 1, 1, 4, 4), T(d, 1, 1, 2, 2, dtype=d64)),
    "bn_mixed": lambda d: F.batch_norm(
        T(d, 2, 3), T(d, 3, dtype=d64), T(d, 3, dtype=d64), training=True
    ),
    "ln_mixed": lambda d: F.layer_norm(T(d, 2, 3), (3,), T(d, 3, dtype=d64)),
    "sdpa_mixed": lambda d: F.scaled_dot_product_attention(
        T(d, 1, 2, 3, 4), T(d, 1, 2, 3, 4, dtype=d64), T(d, 1, 2, 3, 4)
    ),
    "sdpa_mask": lambda d: F.scaled_dot_product_attention(
        T(d, 1, 2, 3, 4), T(d, 1, 2, 3, 4), T(d, 1, 2, 3, 4), attn_mask=T(d, 3, 3, dtype=i64)
    ),
    "mse_int": lambda d: F.mse_loss(T(d, 3, dtype=i64), T(d, 3, dtype=i64)),
    "mean_int": lambda d: T(d, 3, dtype=i64).mean(),
    "norm_int": lambda d: torch._foreach_norm([T(d, 3, dtype=i64)])[0],
    "power_sum": lambda d: torch._foreach_powsum([T(d, 3) * 2])[0],
    "powers_int": lambda d: torch.stack(
        [
            *torch._foreach_pow([torch.tensor([-1, 2, 3], device=d)], 130),
            *torch._foreach_pow(3, [torch.tensor([-1, 64, 130], device=d)]),
        ]
    ),
    "roots_inf": lambda d: torch._foreach_pow([torch.tensor([-math.inf, 4.0], device=d)], 0.5)[0],
    "power_of_0j": lambda d: torch.stack(
        [T(d, 3, dtype=torch.complex64).mul(0) ** p for p in (2 - 1j, 0, 1, 0.5 + 2j)]
    ),
    **{  # numbers on a cut, of whose two sides the sign of a zero says one
        f"{name}_cut": lambda d, name=name: getattr(torch, name)(
            torch.view_as_complex(
                torch.tensor([[-2.0, -0.0], [-2.0, 0.0], [2.0, -0.0], [-0.0, 1.5], [0.0, -1.5]])
            ).to(d)
        )
        for name in ("sqrt", "acos", "asin", "acosh", "asinh", "atanh", "log")
    },
    "softmax_int": lambda d: T(d, 3, dtype=i64).softmax(0),
    "bitand_float": lambda d: T(d, 3) & T(d, 3),
    "shift_float": lambda d: T(d, 3) << 1,
    "bce_int": lambda d: F.binary_cross_entropy(T(d, 3), T(d, 3, dtype=i64)),
    "bce_mixed": lambda d: F.binary_cross_entropy(T(d, 3), T(d, 3, dtype=d64)),
    "label_byte": lambda d: F.cross_entropy(T(d, 2, 200), 155 + T(d, 2, dtype=torch.uint8)),
    "label_byte_grad": lambda d: torch.func.grad(F.cross_entropy)(
        T(d, 2, 5), T(d, 2, dtype=torch.uint8), ignore_index=0
    ),
    "label_byte_pixels": lambda d: F.nll_loss(T(d, 1, 5, 2, 2), T(d, 1, 2, 2, dtype=torch.uint8)),
    "pixel_shuffle_0": lambda d: F.pixel_shuffle(T(d, 1, 4, 2, 2), 0),
    "pixel_unshuffle_-1": lambda d: F.pixel_unshuffle(T(d, 1, 4, 2, 2), -1),
    "where_cond": lambda d: torch.where(T(d, 3, dtype=i64), T(d, 3), T(d, 3)),
    "masked_fill_int_mask": lambda d: T(d, 3).masked_fill(T(d, 3, dtype=i64), 1.0),
    "sub_bool": lambda d: T(d, 3, dtype=torch.bool) - T(d, 3, dtype=torch.bool),
    "neg_bool": lambda d: -T(d, 3, dtype=torch.bool),
    "cat_mixed": lambda d: torch.cat([T(d, 3), T(d, 3, dtype=d64)]),
    "stack_mixed": lambda d: torch.stack([T(d, 3), T(d, 3, dtype=i64)]),
    "lerp_mixed": lambda d: torch.lerp(T(d, 3), T(d, 3, dtype=d64), 0.5),
    "addcmul_mixed": lambda d: torch.addcmul(T(d, 3), T(d, 3, dtype=d64), T(d, 3)),
    "cdist_mixed": lambda d: torch.cdist(T(d, 2, 3), T(d, 2, 3, dtype=d64)),
    "clamp_int": lambda d: T(d, 3, dtype=i64).clamp(0.5),
    "cumsum_": lambda d: T(d, 3, dtype=i64).cumsum_(0),
    "pow_neg_int": lambda d: T(d, 3, dtype=i64) ** -1,
    "one_hot_float": lambda d: F.one_hot(T(d, 3)),
    "inverse_int": lambda d: torch.linalg.inv(T(d, 2, 2, dtype=i64)),
    "cholesky_f16": lambda d: torch.linalg.cholesky(torch.eye(2, dtype=f16).to(d)),
    "cholesky_indefinite": lambda d: torch.cholesky(-torch.eye(2).to(d)),
    "cholesky_batch": lambda d: torch.cholesky(torch.eye(2).to(d) * T(d, 2, 1, 1).sub(0.5)),
    "cholesky_upper": lambda d: torch.cholesky(torch.eye(2).to(d) + 1, upper=True),
    "cholesky_oblong": lambda d: torch.cholesky(T(d, 2, 3)),
    "cholesky_out": lambda d: torch.cholesky(-torch.eye(2).to(d), out=T(d, 2, 2)),
    "lstm_mixed": lambda d: torch.nn.LSTM(2, 2).to(d)(T(d, 1, 1, 2, dtype=d64)),
    "gru_mixed": lambda d: torch.nn.GRU(2, 2).to(d)(T(d, 1, 1, 2, dtype=d64)),
    "rnn_mixed": lambda d: torch.nn.RNN(2, 2).to(d)(T(d, 1, 1, 2, dtype=d64)),
    "grid_mixed": lambda d: F.grid_sample(T(d, 1, 1, 2, 2), T(d, 1, 2, 2, 2, dtype=d64)),
    "interp_int": lambda d: F.interpolate(T(d, 1, 1, 2, 2, dtype=i64), scale_factor=2),
    "maxpool_int": lambda d: F.max_pool2d(T(d, 1, 1, 2, 2, dtype=i64), 2),
    "avgpool_int": lambda d: F.avg_pool2d(T(d, 1, 1, 2, 2, dtype=i64), 2),
    "foreach_mixed": lambda d: torch._foreach_add([T(d, 2)], [T(d, 2, dtype=d64)])[0],
    "group_norm_mixed": lambda d: F.group_norm(T(d, 1, 2, 2), 1, T(d, 2, dtype=d64)),
    "prelu_mixed": lambda d: F.prelu(T(d, 2), T(d, 1, dtype=d64)),
    "baddbmm_mixed": lambda d: torch.baddbmm(
        T(d, 1, 2, 2, dtype=d64), T(d, 1, 2, 3), T(d, 1, 3, 2)
    ),
    "index_select_float": lambda d: T(d, 3).index_select(0, T(d, 1)),
    "take_i32": lambda d: torch.take(T(d, 3), torch.tensor([0], dtype=i32).to(d)),
    "masked_scatter_dtype": lambda d: T(d, 3).masked_scatter(
        T(d, 3, dtype=torch.bool), T(d, 3, dtype=d64)
    ),
    "tril_bool": lambda d: T(d, 2, 2, dtype=torch.bool).tril(),
    "rsqrt_int_": lambda d: T(d, 2, dtype=i64).rsqrt_(),
    "fill_complex": lambda d: T(d, 2).fill_(1j),
    "full_like": lambda d: torch.full_like(T(d, 2, dtype=torch.uint8), 300),
    "fill_over": lambda d: T(d, 2, dtype=torch.uint8).fill_(300),
    "fill_neg_u8": lambda d: T(d, 2, dtype=torch.uint8).fill_(-1),
    "slice_scatter_mixed": lambda d: torch.slice_scatter(T(d, 4), T(d, 2, dtype=d64), 0, 0, 2),
    "diagonal_scatter_mixed": lambda d: torch.diagonal_scatter(T(d, 2, 2), T(d, 2, dtype=d64)),
    "huber_mixed": lambda d: F.huber_loss(T(d, 3, dtype=f16), T(d, 3) * 3, reduction="none"),
    "interp_empty": lambda d: F.interpolate(T(d, 0, 2, 4, 4), scale_factor=2),
    "interp_exact_empty": lambda d: F.interpolate(T(d, 0, 2, 4), size=3, mode="nearest-exact"),
    "foreach_copy_spread": lambda d: torch._foreach_copy_([T(d, 2, 3)], [T(d, 3)])[0],
    "ctc_one": lambda d: F.ctc_loss(
        T(d, 4, 3), T(d, 2, dtype=i64), torch.tensor(4).to(d), torch.tensor(2).to(d)
    ),
    "segments_empty": lambda d: torch.segment_reduce(
        T(d, 3, 0), "sum", lengths=torch.tensor([1, 2]).to(d)
    ),
    "copy_complex": lambda d: T(d, 2).copy_(T(d, 2, dtype=torch.complex64)),
}


def outcome(call: Callable[[str], Any], device: str) -> Any:
    """What a call gives on a device: a CPU tensor, or its error's type and beginning."""
    try:
        found = call(device)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error), str(error)[:40]
    found = found[0] if isinstance(found, tuple) else found
    return found.cpu() if isinstance(found, torch.Tensor) else found


def check(call: Callable[[str], Any]) -> None:
    expected = outcome(call, "cpu")
    with open_session(Settings(mode="lazy")):
        found = outcome(call, "kit")
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True)
    else:
        assert found == expected


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_torchs_cpu_gives_or_raises_its_error(name: str) -> None:
    check(CALLS[name])


COMPLEX: dict[str, Callable[..., torch.Tensor]] = {
    "linear": lambda x, y: F.linear(x, y, y[:, 0]),
    "tanh": lambda x, y: torch.tanh(x * y),
    "sigmoid": lambda x, y: torch.sigmoid(x * y),
    "conv1d": lambda x, y: F.conv1d(x, y[:, :, None]),
    "silu": lambda x, y: F.silu(x * y),
    "pinv": lambda x, y: torch.linalg.pinv(x[0]) @ y[1],  # on the host
    "lstsq": lambda x, y: torch.linalg.lstsq(x[0], y[1])[0],
}


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers_are_conjugated_as_torch_does(name: str) -> None:
    x, y = torch.view_as_complex(torch.linspace(-1, 1, 36).sin().reshape(2, 3, 3, 2))

    def gradient(device: str) -> torch.Tensor:
        leaves = [t.to(device).requires_grad_() for t in (x, y)]
        made = COMPLEX[name](*leaves)
        return torch.cat(torch.autograd.grad((made * (1 + 2j)).real.sum(), leaves))

    check(gradient)


def test_most_of_these_calls_are_refused() -> None:
    refused = [name for name in CALLS if isinstance(outcome(CALLS[name], "cpu"), tuple)]
    assert len(refused) > 40


def test_a_refusal_names_the_line() -> None:
    with open_session(), pytest.raises(RuntimeError, match="same dtype") as caught:
        F.linear(T("kit", 2, 3, dtype=d64), T("kit", 4, 3))
    assert "test_types.py" in "".join(caught.value.__notes__)


NUMBERS = torch.tensor(
    [0, 1.5, -1.5, 255, 256, 300, -1, -200, 1e5, -1e5, 3e9, -3e9, 5e9, 1e19, -1e19, 1e30,
     float("inf"), -float("inf"), float("nan")]
)  # fmt: skip
INTEGERS = [torch.uint8, torch.int8, torch.int16, i32, i64, torch.bool]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [torch.float32, d64, torch.bfloat16, f16, i64], ids=str)
def test_a_cast_to_integers_is_that_of_torchs_cpu(source: torch.dtype, target: torch.dtype) -> None:
    numbers = NUMBERS.to(source)
    check(lambda d: numbers.to(d).to(target))
    check(lambda d: torch.zeros(len(numbers), dtype=target).to(d).copy_(numbers.to(d)))


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "complex halves": (r"complex32.*use complex64", lambda: T("kit", 3).chalf()),
    "eight bits": (r"float8_e5m2.*use bfloat16", lambda: T("kit", 3).to(torch.float8_e5m2)),
    "eight bits from the CPU": ("use bfloat16", lambda: T(
        "cpu", 3).to(torch.float8_e4m3fn).to("kit")),
    "quantized": ("no quantized", lambda: torch.quantize_per_tensor(
        T("kit", 3), 0.1, 0, torch.qint8)),
    "quantized on the CPU": ("no quantized", lambda: torch.quantize_per_tensor(
        T("cpu", 3), 0.1, 0, torch.qint8).to("kit")),
    "rows of a sparse one": ("no sparse", lambda: T("kit", 3, 3).to_sparse_csr()),
    "sparse on the CPU": ("no sparse", lambda: T("cpu", 3, 3).to_sparse_csr().to("kit")),
    "sparse zeros": ("no sparse", lambda: torch.zeros(2, 2, layout=torch.sparse_coo, device="kit")),
    "nested": ("no nested", lambda: torch.nested.nested_tensor([T("kit", 2), T("kit", 3)])),
    "nested on the CPU": ("no nested", lambda: torch.nested.nested_tensor(
        [T("cpu", 2), T("cpu", 3)]).to("kit")),
    "jagged": ("no nested", lambda: torch.nested.nested_tensor(
        [T("kit", 2, 2), T("kit", 3, 2)], layout=torch.jagged)),
    "oneDNN": ("no tensors of oneDNN", lambda: T("kit", 3).to_mkldnn()),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_or_layout_that_xla_lacks_is_refused_by_its_name(name: str) -> None:
    words, make = REFUSED[name]
    with open_session(), pytest.raises(RuntimeError, match=words):
        make()


def test_another_default_dtype_counts_in_the_next_call() -> None:
    with open_session(Settings()):
        x = torch.arange(3, device="kit")
        before, kept = torch.get_default_dtype(), (x / 2).dtype
        torch.set_default_dtype(torch.float64)
        try:
            assert (kept, (x / 2).dtype) == (torch.float32, torch.float64)
        finally:
            torch.set_default_dtype(before)


OF_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "sqrt": torch.sqrt, "log": torch.log, "sin": torch.sin, "sigmoid": torch.sigmoid,
    "lgamma": torch.lgamma, "reciprocal": torch.reciprocal, "log_ndtr": torch.special.log_ndtr,
    "a rate": lambda x: x * (-9.210340371976184 / 512), "a sum": lambda x: x + 0.1,
    "a power": lambda x: x**-0.3, "a bound": lambda x: x.clamp(0.1, 2.3),
    "a rest": lambda x: torch.fmod(x, 0.7), "truths": lambda x: (x > 2) * 0.1,
    "sines of truths": lambda x: (x > 2).sin(), "complex": lambda x: x * 0.1j,
    "two": lambda x: torch.xlogy(x, x + 1), "a mean": lambda x: x.mean(dtype=torch.float64) * 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_floats_of_integers_are_exact_where_float64_is_the_default(name: str) -> None:
    """They had the digits of float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with open_session(Settings()):
            found = OF_INTEGERS[name](torch.arange(1, 9, device="kit")).cpu()
        expected = OF_INTEGERS[name](torch.arange(1, 9))
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)


SIZES: dict[str, dict[str, Any]] = {
    "bilinear": {"size": (9, 13)}, "bicubic": {"size": (9, 13)},
    "bilinear, by a factor": {"scale_factor": 1.7}, "nearest": {"size": (9, 13)},
    "bilinear, aligned": {"size": (9, 13), "align_corners": True},
    "bicubic, aligned": {"size": (3, 4), "align_corners": True},
    "nearest-exact": {"size": (9, 13)},
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_picture_of_doubles_is_resized_with_their_digits(name: str) -> None:
    """The weights were of float32."""

    def resized(device: str) -> torch.Tensor:
        x = torch.arange(210.0, dtype=d64, device=device).sin().reshape(2, 3, 5, 7)
        y = F.interpolate(x.requires_grad_(), mode=name.partition(",")[0], **SIZES[name])
        return torch.cat([y.flatten(), *torch.autograd.grad((y**2).sum(), x)[0].flatten(1)])

    with open_session(Settings()):
        found = resized("kit").detach().cpu()
    torch.testing.assert_close(found, resized("cpu").detach(), rtol=1e-13, atol=1e-13)


def test_a_number_beside_doubles_is_one() -> None:
    """A tenth was one of float32 there, which is 1.5e-8 off."""

    def numbers(device: str) -> list[torch.Tensor]:
        x = torch.arange(8.0, dtype=torch.float64, device=device).reshape(1, 1, 2, 4)
        return [
            torch.ones(2, dtype=torch.complex128, device=device) * 0.1,
            F.scaled_dot_product_attention(x, x, x, scale=0.1),
            F.dropout(torch.ones(99, dtype=torch.float64, device=device), 0.1).amax(),
        ]

    with open_session(Settings()):
        for ours, theirs in zip(numbers("kit"), numbers("cpu"), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-14, atol=0)
