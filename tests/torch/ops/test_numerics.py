"""Corners where a rule could be silently wrong: each compared with torch on CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kit.errors import SessionError
from kit.torch.device import open_session

pytestmark = pytest.mark.as_shipped

inf, nan = math.inf, math.nan
CASES: dict[str, Callable[[str], Any]] = {
    "scaled complementary error function": lambda d: [
        torch.special.erfcx(torch.tensor([-3.0, 0.0, 5.0, 9.5, 20.0, 1e3, 1e30], dtype=t, device=d))
        for t in (torch.float32, torch.float64)],
    "Bessel function of infinity": lambda d: torch.special.spherical_bessel_j0(
        torch.tensor([0.0, 1.0, inf, -inf], device=d)),
    "a number that a view shows as another": lambda d: [
        torch.zeros(2, dtype=torch.complex64, device=d).copy_(
            torch.full((), 1 + 2j, device=d).conj()),
        torch.zeros(2, device=d).copy_(torch.full((), 1 + 2j, device=d).imag),
        torch.zeros(2, device=d).copy_(
            torch.full((), 1, dtype=torch.int32, device=d).view(torch.float32))],
    "norms of every order": lambda d: [
        torch.linalg.vector_norm(torch.tensor([0.5, -3.0, 6.0], device=d), ord=p)
        for p in (2, 1, 3, 0, inf, -inf)],
    "multi-tensor norm of infinity": lambda d: torch._foreach_norm(
        [torch.tensor([1.0, -6.0], device=d)], inf),
    "half norm beyond half's range of squares": lambda d: torch.linalg.vector_norm(
        torch.full((4,), 300.0, dtype=torch.float16, device=d)),
    "ignored row with infinite logits": lambda d: functional.nll_loss(
        torch.tensor([[-inf, 0.0], [-1.0, -0.5]], device=d), torch.tensor([-100, 1], device=d)),
    "a mask times NaN": lambda d: torch.tensor([nan, inf, 2.0], device=d) * torch.tensor(
        [False, False, True], device=d),
    "labels that are all ignored": lambda d: [_labelled(d, *given) for given in (
        ((2, 3), {}), ((2, 3), {"label_smoothing": 0.1}), ((2, 3), {"reduction": "none"}),
        ((2, 3), {"weight": torch.tensor([1.0, 2.0, 3.0], device=d)}), ((2, 3, 4), {}),
        ((2, 3, 4), {"reduction": "none"}), ((3,), {}))],
    "lerp by complex weights": lambda d: [
        torch.lerp(*torch.tensor([[1 + 2j, 3, -1j], [-2, 1j, 5], [0.3 + 0.2j, 0.4 + 0.4j, 2j]],
                                 device=d)),
        torch.lerp(*torch.tensor([[1 + 2j, 3, -1j], [-2, 1j, 5]], device=d), 0.9 + 1j)],
    "sums of complex exponentials": lambda d: [
        torch.logaddexp(*_phases(d)), torch.logcumsumexp(_phases(d), 1),
        torch.logaddexp(*torch.tensor([[-inf + 1j, nan, -inf], [-inf, 1, 2j]], device=d))],
    "lists of labels that end in -1": lambda d: [
        functional.multilabel_margin_loss(
            torch.tensor([[0.1, 0.2, 0.4, 0.8]], device=d), torch.tensor([labels], device=d))
        for labels in ([3, 0, -1, 1], [3, -1, 2, 2], [-1, 0, 1, 2], [0, 1, 2, 3])],
    "margins without a batch": lambda d: [
        loss(torch.linspace(0, 1, 3, device=d), torch.tensor(labels, device=d), reduction="none")
        for loss, labels in ((functional.multi_margin_loss, 2),
                             (functional.multilabel_margin_loss, [2, -1, 0]))],
    "numbers as an array that may be written": lambda d: torch.tensor(
        torch.ones(3, device=d).numpy(force=True) + torch.nn.Parameter(
            torch.ones(3, device=d)).numpy(force=True).__iadd__(1)),
    "median of nothing": lambda d: [
        median(torch.zeros(0, dtype=t, device=d)) for median in (torch.median, torch.nanmedian)
        for t in (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8)],
    "integers between tensors": lambda d: [
        torch.linspace(*ends, 5, dtype=t, device=d) for t in (torch.int64, torch.int8, torch.float)
        for ends in ((torch.tensor(2.7, device=d), torch.tensor(9.3, device=d)),
                     (2.7, torch.tensor(9.3, device=d)), (torch.tensor(2.7, device=d), 9.3))],
    "lists that are written and read": lambda d: [
        _written(d, lambda a, b: torch._foreach_add_([a, b], [b, a])),
        _written(d, lambda a, b: torch._foreach_addcmul_([a, b], [b, a], [b, a], [2.0, 3.0])),
        _written(d, lambda a, b: torch._foreach_mul_([a, a], [b, b])),
        _written(d, lambda a, b: torch._foreach_add_([a, b], [a, b], alpha=2)),
        _written(d, lambda a, b: torch._foreach_copy_([a, b], [b, a])),
        _written(d, lambda a, b: torch._foreach_add_([a, b], [b, a[:]])),
        _written(d, lambda a, b: torch._foreach_mul_([a[:2], a[1:]], [b[:2], b[1:]])),
        _written(d, lambda a, b: torch._foreach_add_([a[:1], a[1:]], [b[1:2], b[1:]]))],
    "comparison in the tensor's own precision": lambda d: [
        torch.tensor([0.1, 0.2], dtype=t, device=d) == 0.1
        for t in (torch.bfloat16, torch.float16, torch.float32)],
    "comparison with a 0-d tensor": lambda d: torch.tensor(
        [0.1, 0.2], dtype=torch.bfloat16, device=d) == torch.tensor(0.1, device=d),
    "addmm that forgets its input": lambda d: torch.addmm(
        torch.full((2, 2), nan, device=d), torch.ones(2, 2, device=d), torch.ones(2, 2, device=d),
        beta=0),
    "negative zero": lambda d: [torch.ones(2, device=d) / 0.0, torch.ones(2, device=d) / -0.0],
    "multi-tensor with mixed numbers": lambda d: [
        torch._foreach_mul([torch.ones(2, device=d), torch.ones(2, device=d)], [1, 2.5]),
        torch._foreach_mul([torch.ones(2, dtype=torch.int64, device=d)] * 2, [2, 1]),
        torch._foreach_mul([torch.ones(2, dtype=torch.int64, device=d)] * 2, [2, 1.0])],
    "slice without its end": lambda d: _slice_write(torch.ones(4, device=d)),
    "write through another dtype": lambda d: _dtype_write(
        torch.ones(3, dtype=torch.float64, device=d)),
    "lerp that ends at its end": lambda d: torch.lerp(
        torch.tensor([1e8], device=d), torch.tensor([1.0], device=d), 1.0),
    "variance of one": lambda d: torch.var(torch.ones(3, 1, device=d), 1),
    "divisors": lambda d: [f(*torch.tensor(
        [[-128, -12, 12, 0], [-128, 18, -5, 0]], dtype=torch.int8, device=d))
        for f in (torch.gcd, torch.lcm)],
    "step at what is no number": lambda d: torch.heaviside(*torch.tensor(
        [[nan, 0.0, -1.0], [1.0, nan, 1.0]], device=d)),
    "root of what has none": lambda d: torch.tensor([-inf, -0.0, 4.0], device=d) ** 0.5,
    "the triangle that a Cholesky factor is made of": lambda d: [
        torch.linalg.cholesky(torch.tensor([[4.0, nan], [2.0, 5.0]], device=d)),
        torch.linalg.cholesky(torch.tensor([[4.0, 2.0], [9.0, 5.0]], device=d), upper=True),
        torch.linalg.cholesky(torch.tensor([[4.0, 1j], [1 + 1j, 5.0]], device=d)),
        torch.linalg.cholesky_ex(torch.tensor([[4.0, 9.0], [2.0, 5.0]], device=d)).info],
    "the minor that has no Cholesky factor": lambda d: [
        torch.linalg.cholesky_ex(torch.tensor(rows, device=d)).info for rows in (
            [[-1.0, 0.0], [0.0, 1.0]], [[4.0, 0.0], [2.0, -5.0]], [[4.0, 0.0], [9.0, 5.0]],
            [[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 1.0]], [[1.0, 0.0], [nan, 1.0]],
            [[4.0, 0.0], [1j, -1.0]], [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]])],
    "histogram at the edges of its bins": lambda d: [
        torch.histc(torch.tensor([42.0], device=d), 150, 0, 100),
        torch.histc(torch.tensor([0.99999994], device=d), 10, -1, 1),
        torch.histc((torch.arange(500) * 0.01).to(d), 10, -0.3, 4.7),
        torch.histc(torch.ones(3, device=d), 4)],
    "exponentials of large matrices": lambda d: [
        torch.matrix_exp(-1e6 * torch.eye(2, device=d)),
        torch.matrix_exp(torch.diag(torch.tensor([-1e9, -2e6, -1.0], device=d))),
        torch.matrix_exp(torch.tensor([[[0.0, 1.0], [-1.0, 0.0]], [[-1e7, 0.0], [0.0, 0.0]]],
                                      device=d)),
        torch.matrix_exp(torch.zeros(0, 2, 2, device=d)),
        torch.matrix_exp(torch.tensor([[nan, 1.0], [0.0, 1.0]], device=d))],
    "matrices with what is no number": lambda d: [_solved(d, rows) for rows in (
        [[nan, 1.0], [2.0, 3.0]], [[1.0, nan], [2.0, 3.0]], [[inf, 1.0], [2.0, 3.0]],
        [[nan, 0.0], [0.0, 1.0]], [[1.0, 0.0], [nan, 3.0]], [[1.0, 2.0], [2.0, 4.0]],
        [[2.0, 1.0, 0.0], [1.0, 3.0, nan], [0.0, 1.0, 4.0]])],
    "labels that cannot be said in time": lambda d: [_spoken(d, *given) for given in (
        (2, False), (2, True), (4, False), (4, True))],
    "gradients of a smooth loss": lambda d: [torch.ops.aten.smooth_l1_loss_backward(
        torch.tensor(2.0, device=d), torch.tensor([nan, inf, -3.0, 0.5, 0.0, 2.0], device=d),
        torch.tensor([0.0, inf, 1.0, 1.0, 0.0, 0.0], device=d), reduction, beta)
        for reduction in (1, 2) for beta in (0.7, 2.0)],
    "histogram of nothing": lambda d: torch.histc(torch.zeros(0, device=d), 3),
    "signs of zero": lambda d: [1 / torch.tensor([-0.0, 0.0], device=d).sign(),
                                1 / torch.tensor([-0.0, 0.0], device=d).sgn()],
    "sign of nan": lambda d: torch.sign(torch.tensor([nan, -2.0, 0.0], device=d)),
    "gather with a smaller index": lambda d: torch.gather(
        torch.arange(12.0, device=d).view(3, 4), 1, torch.tensor([[0, 3], [1, 2]], device=d)),
    "argmax of everything, kept": lambda d: torch.argmax(
        torch.arange(6.0, device=d).view(2, 3), keepdim=True),
    "joining masks": lambda d: torch.cat(
        [torch.ones(2, device=d) > 0, torch.ones(1, device=d) < 0]),
    "embedding scaled by frequency": lambda d: _embedding_gradient(d),
    "integers divided": lambda d: torch.arange(5, device=d) / 2,
    "integers scaled": lambda d: torch.arange(5, device=d) * 0.5,
    "attention with a masked row": lambda d: functional.scaled_dot_product_attention(
        *(torch.ones(1, 1, 2, 4, device=d) for _ in range(3)),
        attn_mask=torch.tensor([[True, False], [False, False]], device=d)),
    "large integers divided towards zero": lambda d: torch.div(
        torch.tensor([2**60 + 1, -(2**60) - 1, -7], device=d), 3, rounding_mode="trunc"),
    "NaN that becomes infinity": lambda d: torch.nan_to_num(
        torch.tensor([nan, inf, -inf, 1.0], device=d), nan=inf),
    "running sums and products of halves": lambda d: [
        torch.ones(600, dtype=torch.bfloat16, device=d).cumsum(0),
        torch.full((300,), 1.01, dtype=torch.bfloat16, device=d).cumprod(0)],
    "many halves added at one place": lambda d: torch.zeros(2, dtype=torch.bfloat16, device=d)
        .scatter_add(0, torch.zeros(600, dtype=torch.long, device=d),
                     torch.ones(600, dtype=torch.bfloat16, device=d)),
    "truths reduced at one place": lambda d: [
        torch.tensor([True, False], device=d).scatter_reduce(
            0, torch.tensor([0, 0], device=d), torch.tensor([False, False], device=d), reduce,
            include_self=include_self)
        for reduce in ("sum", "prod", "amax", "amin") for include_self in (True, False)],
    "most frequent numbers": lambda d: [
        torch.mode(torch.tensor([[3, 1, 1, 3, 7], [2, 2, 2, 2, 2]], device=d)),
        torch.mode(torch.tensor([[3.0, 1.0, 1.0, 3.0, nan], [nan, nan, 2.0, 2.0, 5.0]], device=d))],
    "images with an infinite pixel": lambda d: [
        resize(torch.arange(16.0, device=d).masked_fill(torch.arange(16, device=d) == 5, inf)
               .view(1, 1, 4, 4))
        for resize in (
            lambda x: functional.interpolate(x, scale_factor=2),
            lambda x: functional.interpolate(x, size=(2, 3), mode="nearest-exact"),
            lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
            lambda x: functional.interpolate(x, scale_factor=3, mode="bicubic"),
            lambda x: functional.grid_sample(  # at a place that is no number, too
                x, torch.tensor([[[[nan, 0], [0.3, 0.1]]]], device=d), "bicubic", "border", False),
            *[lambda x, n=n: functional.adaptive_avg_pool2d(x, n) for n in (2, 3, (5, 0))])],
    "einsum": lambda d: torch.einsum("bij,bjk->bik", torch.ones(2, 3, 4, device=d),
                                     torch.arange(40.0, device=d).view(2, 4, 5)),
}  # fmt: skip


def _labelled(device: str, shape: tuple[int, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """The loss, and a gradient that is not to depend on what comes in for rows without label."""
    x = torch.arange(float(math.prod(shape)), device=device).sin().reshape(shape).requires_grad_()
    labels = torch.full((*shape[:1], *shape[2:]) if len(shape) > 1 else (), -100, device=device)
    loss = functional.cross_entropy(x, labels, **options)
    (loss * nan).sum().backward()
    return [loss.detach(), x.grad]


def _phases(device: str) -> torch.Tensor:
    angles = torch.arange(20.0, device=device).reshape(2, 10)
    return torch.complex(angles.sin() * 3, angles * 1.7 - 15)


def _written(device: str, write: Callable[..., Any]) -> list[torch.Tensor]:
    a, b = torch.tensor([1.0, 2.0], device=device), torch.tensor([10.0, 20.0], device=device)
    write(a, b)
    return [a, b]


def _solved(device: str, rows: list[list[float]]) -> list[torch.Tensor]:
    x = torch.tensor(rows, device=device)
    ones = torch.ones(len(rows), 1, device=device)
    whole = torch.linalg.lu_factor_ex(x), torch.linalg.inv_ex(x), torch.linalg.solve_ex(x, ones)
    return [part for parts in whole for part in parts]


def _spoken(device: str, times: int, zero_infinity: bool) -> list[torch.Tensor]:
    """The loss of two samples, of which the first has three labels, and its gradient."""
    x = torch.arange(times * 10.0, device=device).mul(0.7).sin().reshape(times, 2, 5)
    x = x.requires_grad_()
    labels = torch.tensor([[1, 2, 3], [1, 0, 0]], device=device)
    loss = functional.ctc_loss(
        x.log_softmax(-1), labels, (2, times - 1), (3, 1), zero_infinity=zero_infinity
    )
    return [loss.detach(), *torch.autograd.grad(loss, x)]


def _slice_write(x: Any) -> Any:
    torch.ops.aten.slice.Tensor(x, 0, 2).zero_()
    return x


def _dtype_write(x: Any) -> Any:
    x.view(torch.int64).add_(1)
    return x


def _embedding_gradient(device: str) -> Any:
    weight = torch.ones(4, 2, device=device, requires_grad=True)
    index = torch.tensor([1, 1, 2], device=device)
    functional.embedding(index, weight, scale_grad_by_freq=True).sum().backward()
    return weight.grad


def test_gradients_of_a_frequent_row_add_up_in_half_precision() -> None:
    """As on torch's GPUs; torch's CPU stops at 256."""
    with open_session():
        weight = torch.ones(2, 3, dtype=torch.bfloat16, device="kit", requires_grad=True)
        functional.embedding(torch.zeros(600, dtype=torch.long).to("kit"), weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [[600.0] * 3, [0.0] * 3]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    return [t for v in value for t in flat(v)]


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")  # torch says so, kit need not
@pytest.mark.parametrize("name", CASES)
def test_a_corner_equals_torch(name: str):
    expected = flat(CASES[name]("cpu"))
    with open_session() as session:
        got = flat(CASES[name]("kit"))
        assert session.unlowered == {}
    for e, g in zip(expected, got, strict=True):
        assert e.dtype == g.dtype
        torch.testing.assert_close(g, e, equal_nan=True)


def test_divisors_of_a_number_that_has_no_opposite_are_found() -> None:
    with open_session():
        numbers = torch.tensor([[-128, -128], [127, 6]], dtype=torch.int8, device="kit")
        assert torch.gcd(*numbers).tolist() == [1, 2]  # jax's loop has no end there


def test_a_long_fused_adam_run_keeps_its_second_moment():
    def moment(device: str) -> torch.Tensor:
        p = torch.nn.Parameter(torch.ones(3, device=device))
        opt = torch.optim.Adam([p], betas=(0.9, 0.99999), fused=True)
        for _ in range(50):
            p.grad = torch.full_like(p, 0.3)
            opt.step()
        return opt.state[p]["exp_avg_sq"].cpu()  # type: ignore[no-any-return]

    expected = moment("cpu")
    with open_session():
        torch.testing.assert_close(moment("kit"), expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_draws_the_same_dropout_again(use_reentrant: bool):
    with open_session():
        x = torch.ones(1000, device="kit", requires_grad=True)
        y = checkpoint(lambda v: functional.dropout(v * v, 0.5), x, use_reentrant=use_reentrant)
        y.sum().backward()
        assert int(((y != 0) != (x.grad != 0)).sum()) == 0


def test_a_seed_set_before_the_session_counts():
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with open_session():
            return torch.randn(5, device="kit").cpu()

    assert torch.equal(draw(7), draw(7))
    assert not torch.equal(draw(7), draw(8))


def test_a_generator_of_another_device_is_refused_not_ignored():
    with open_session():
        x = torch.empty(3, device="kit")
        with pytest.raises(RuntimeError, match="generator"):
            x.normal_(generator=torch.Generator().manual_seed(1))


def test_copying_into_an_expanded_view_is_refused():
    with open_session():
        x = torch.zeros(3, 1, device="kit").expand(3, 4)
        with pytest.raises(RuntimeError, match="more than one element"):
            x.copy_(torch.ones(3, 4, device="kit"))


def test_tensors_of_two_sessions_do_not_mix():
    with open_session():
        a = torch.ones(2, device="kit")
        with open_session():
            b = torch.ones(2, device="kit")
            with pytest.raises(SessionError, match="another session"):
                b + a
            assert (b + b).tolist() == [2.0, 2.0]
        assert (a + a).tolist() == [2.0, 2.0]


def test_max_pooling_gives_values_and_places_of_nan_too() -> None:
    pool = torch.nn.functional.max_pool2d
    x = torch.randn(2, 3, 9, 11)
    x[0, 0, 2, 3], x[1, 1, 1] = float("nan"), float("-inf")
    for options in (
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "ceil_mode": True},
        {"kernel_size": 3, "dilation": 2},
    ):
        expected, where = pool(x, return_indices=True, **options)
        with open_session():
            found, places = pool(x.to("kit"), return_indices=True, **options)
            torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
            assert torch.equal(places.cpu(), where)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers_are_counted_as_cuda_counts_them(dtype: torch.dtype) -> None:
    """Torch's CPU refuses them; transformers counts tokens so, on any other device."""
    x = torch.tensor([0, 3, 3, 7, 8, 9, 20, 21, 100, 255]).to(dtype)
    with open_session():
        for bins, low, high in [(4, 0, 3), (7, 3, 24), (3, 8, 8), (9, 0, 0)]:
            first, last = (low, high) if low != high else (0, 255)
            expected = torch.zeros(bins, dtype=dtype)
            for n in [n for n in x.tolist() if first <= n <= last]:
                expected[min((n - first) * bins // (last - first), bins - 1)] += 1
            found = torch.histc(x.to("kit"), bins, low, high)
            assert (found.dtype, found.tolist()) == (dtype, expected.tolist())
        with pytest.raises(NotImplementedError, match="Bool"):
            torch.histc(torch.ones(3, dtype=torch.bool, device="kit"), 3)


OF_HALVES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x, y: x.softmax(-1),
    "log_softmax": lambda x, y: x.log_softmax(-1),
    "softmax of masked rows": lambda x, y: torch.ops.aten._safe_softmax(x, -1),
    "gradient of softmax": lambda x, y: torch.ops.aten._softmax_backward_data(x, y, -1, x.dtype),
    "gradient of log_softmax": lambda x, y: torch.ops.aten._log_softmax_backward_data(
        x, -y, -1, x.dtype
    ),
    "log2": lambda x, y: y.log2(),
    "log10": lambda x, y: y.log10(),
    "silu": lambda x, y: functional.silu(x),
    "sigmoid": lambda x, y: x.sigmoid(),
    "gradient of sigmoid": lambda x, y: torch.ops.aten.sigmoid_backward(x, y),
    "gradient of tanh": lambda x, y: torch.ops.aten.tanh_backward(x, y),
    "gelu": lambda x, y: functional.gelu(x, approximate="tanh"),
    "gradient of gelu": lambda x, y: torch.ops.aten.gelu_backward(x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "var": lambda x, y: x.var(-1),
    "std": lambda x, y: x.std(-1),
    "exp2": lambda x, y: x.exp2(),
    "sinc": lambda x, y: x.sinc(),
    "hypot": lambda x, y: torch.hypot(x, y),
    "logit": lambda x, y: y.logit(0.01),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "division by a column": lambda x, y: y / x[:, :1],
    "linear": lambda x, y: functional.linear(x, y, x[0, :64]),
    "addmm": lambda x, y: torch.addmm(x[:, :64], x, y.t(), beta=0.5, alpha=2),
    "convolution": lambda x, y: functional.conv1d(x[None], y.t()[:, :, None], x[0]),
    "transposed convolution": lambda x, y: functional.conv_transpose1d(
        x[None], y[:, :, None], x[0]
    ),
    "bags of weighted rows": lambda x, y: functional.embedding_bag(
        torch.arange(64, device=x.device).reshape(8, 8),
        x,
        mode="sum",
        per_sample_weights=y[:8, :8],
    ),
    "binary cross entropy": lambda x, y: functional.binary_cross_entropy(y, 1 - y),
    "LSTM cell": lambda x, y: torch.stack(
        torch.lstm_cell(x, (y[:, :8], y[:, 8:16]), y[:32], y[32:, :8], y[0, :32], y[1, :32])
    ),
    "GRU cell": lambda x, y: torch.gru_cell(
        x, y[:, :8], y[:24], y[24:48, :8], y[0, :24], y[1, :24]
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OF_HALVES)
def test_halves_are_rounded_once_as_in_torch(name: str, dtype: torch.dtype) -> None:
    """Each is several operations to XLA, which would round after each."""
    torch.manual_seed(0)
    x, y = (torch.randn(64, 96) * 3).to(dtype), torch.rand(64, 96).to(dtype)
    exact = OF_HALVES[name](x.double(), y.double())
    with open_session():
        found = OF_HALVES[name](x.to("kit"), y.to("kit")).cpu()
    assert found.dtype == dtype
    off, torchs = ((z.double() - exact).norm() for z in (found, OF_HALVES[name](x, y)))
    assert off <= 1.1 * torchs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 3.0])
def test_a_matrix_exponential_of_halves_is_the_exact_one(scale: float, dtype: torch.dtype) -> None:
    """Torch's CPU gives NaN, or any number: its kernel leaves memory of halves unwritten."""
    torch.manual_seed(0)
    x = (torch.randn(3, 8, 8) * scale / 8**0.5).to(dtype)
    exact = x.double().requires_grad_()
    (expected := torch.matrix_exp(exact)).sum().backward()
    with open_session():
        given = x.to("kit").requires_grad_()
        (found := torch.matrix_exp(given)).sum().backward()
        pairs = [(found.detach().cpu(), expected.detach()), (given.grad.cpu(), exact.grad)]
    for one, other in pairs:
        assert one.dtype == dtype
        assert (one.double() - other).norm() <= torch.finfo(dtype).eps * other.norm()


def test_lists_that_are_written_and_read_count_each_write_once() -> None:
    with open_session():
        a, b = torch.ones(2, device="kit"), torch.ones(2, device="kit")
        torch._foreach_add_([a, b], [b, a])
        assert (a._version, b._version) == (1, 1)
        torch._foreach_add_([a, b], [a, b])
        assert (a._version, b._version) == (2, 2)
