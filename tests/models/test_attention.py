"""Attention on device kit: one op forward, one backward, and torch's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

from kit.errors import UnsupportedOp
from tests.models.compare import assert_close, assert_trains_alike, lazy

pytestmark = pytest.mark.as_shipped

torch.manual_seed(1)  # a gradient that is zero in torch is 1e-5 for a few of all draws
Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
FEW = torch.randn(2, 2, 7, 8)  # two heads serve four
ALLOWED = torch.rand(5, 7) > 0.4
NOWHERE = ALLOWED & (torch.arange(5) != 0)[:, None]  # the first query may look at nothing
CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plain": ([Q, K, V], {}),
    "one head": ([Q[:, 0], K[:, 0], V[:, 0]], {}),
    "no heads": ([Q[0, 0], K[0, 0], V[0, 0]], {}),
    "causal": ([Q, Q, Q], {"is_causal": True}),
    "causal, more keys than queries": ([Q, K, V], {"is_causal": True}),
    "scale": ([Q, K, V], {"scale": 0.3}),
    "a mask of booleans": ([Q, K, V, ALLOWED], {}),
    "a query that may look nowhere": ([Q, K, V, NOWHERE], {}),
    "a mask of numbers": ([Q, K, V, torch.randn(2, 1, 5, 7)], {}),
    "a mask for each head": ([Q, K, V, torch.randn(4, 1, 7)], {}),
    "grouped queries": ([Q, FEW, FEW], {"enable_gqa": True}),
    "grouped and causal": ([Q, FEW, FEW], {"enable_gqa": True, "is_causal": True}),
    "one batch of keys for all": ([Q, K[:1], V[:1]], {}),
    "float64": ([Q.double(), K.double(), V.double()], {}),
    "heads behind in memory": ([t.mT.contiguous().mT for t in (Q, K, V)], {}),
}


def outputs_and_gradients(tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    output = attention(*tensors, **options)
    output.square().sum().backward()
    return [output.detach(), *(t.grad for t in tensors if t.grad is not None)]


def leaves(tensors: list[Tensor], device: str) -> list[Tensor]:
    return [t.to(device).detach().requires_grad_(t.is_floating_point()) for t in tensors]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_and_its_gradients_are_torchs(call: str) -> None:
    tensors, options = CALLS[call]
    expected = outputs_and_gradients(leaves(tensors, "cpu"), options)
    with lazy(strict=True) as session:
        got = outputs_and_gradients(leaves(tensors, "kit"), options)
        assert session.syncs == []
        assert_close([x.cpu() for x in got], expected)


@settings(max_examples=15)
@given(
    batch=st.integers(1, 2),
    groups=st.integers(1, 2),
    heads=st.integers(1, 2),
    queries=st.integers(1, 4),
    keys=st.integers(1, 4),
    data=st.data(),
)
def test_any_shape_and_mask_gives_torchs_numbers(
    batch: int, groups: int, heads: int, queries: int, keys: int, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["none", "causal", "booleans", "numbers"]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    q = torch.randn(batch, groups * heads, queries, 4, generator=generator)
    k = torch.randn(batch, groups, keys, 4, generator=generator)
    mask = torch.randn(queries, keys, generator=generator)
    tensors = [q, k, k.flip(-1), *([mask > 0] if kind == "booleans" else [])]
    tensors += [mask] if kind == "numbers" else []
    options = {"enable_gqa": True, "is_causal": kind == "causal"}
    expected = outputs_and_gradients(leaves(tensors, "cpu"), options)
    with lazy(strict=True):
        got = outputs_and_gradients(leaves(tensors, "kit"), options)
        assert_close([x.cpu() for x in got], expected)


def test_a_call_is_one_op_forward_and_one_backward() -> None:
    with lazy() as session:
        tensors = leaves([Q, K, V], "kit")
        kept: list[Tensor] = []  # what nobody needs is not computed

        def steps(end_step: Callable[[], None]) -> None:
            kept.extend(outputs_and_gradients(tensors, {}))
            session.mark_step()
            end_step()

        _, graphs, _ = session.trace(steps)
    names = [node.op for graph in graphs for node in graph.nodes]
    assert [n for n in names if "attention" in n] == ["kit.attention", "kit.attention_backward"]
    assert not [n for n in names if "softmax" in n or "bmm" in n]


@pytest.mark.parametrize("p", [0.25, 0.6])
def test_dropout_has_torchs_mean_and_its_mask_again_in_backward(p: float) -> None:
    """With v = 1 the output is the share of kept weight: its gradient tells the mask."""
    q, v = torch.zeros(1, 1, 200, 8), torch.ones(1, 1, 200, 1)
    with lazy(strict=True):
        a, b, c = leaves([q, q, v], "kit")
        output = attention(a, b, c, dropout_p=p)
        output.sum().backward()
        kept = output.detach().cpu()
        assert c.grad is not None
        weight_of_each_key = c.grad.cpu()
    assert abs(float(kept.mean()) - 1) < 0.02
    assert float(kept.std()) > 0.01
    assert abs(float(weight_of_each_key.sum() - kept.sum())) < 1e-2  # one mask, summed both ways


def test_dropout_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 1, 3, 2, dtype=torch.float64) for _ in range(3))
    with lazy(strict=True):

        def value(x: Tensor) -> Tensor:
            torch.manual_seed(7)  # the same mask each time
            return attention(x, k.to("kit"), v.to("kit"), dropout_p=0.4).square().sum()

        x = q.to("kit").requires_grad_()
        value(x).backward()
        assert x.grad is not None
        step = torch.zeros_like(q)
        step[0, 0, 1, 0] = 1e-6
        slope = (value((q + step).to("kit")) - value((q - step).to("kit"))) / 2e-6
        assert abs(float(slope) - float(x.grad[0, 0, 1, 0])) < 1e-6


def test_a_second_derivative_needs_torchs_own_decomposition() -> None:
    def second(device: str) -> Tensor:
        q = Q[0].double().to(device).detach().requires_grad_()  # each build rounds float32 anew
        with sdpa_kernel(SDPBackend.MATH):
            first = torch.autograd.grad(attention(q, q, q).square().sum(), q, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), q)[0]

    with lazy(strict=True):
        assert_close([second("kit").cpu()], [second("cpu")], rtol=1e-6)


def test_bad_shapes_raise_torchs_error() -> None:
    with lazy(), pytest.raises(RuntimeError, match="is_causal"):
        attention(Q.to("kit"), K.to("kit"), V.to("kit"), ALLOWED.to("kit"), is_causal=True)
    with lazy(), pytest.raises(RuntimeError, match="same device"):
        attention(Q.to("kit"), K.to("kit"), V)


PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
X = torch.randn(3, 5, 8)


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, padding: Tensor) -> Any:
        return self.layer(x, x, x, key_padding_mask=padding, need_weights=self.need_weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_trains_as_in_torch(need_weights: bool) -> None:
    assert_trains_alike(SelfAttention(need_weights), [X, PADDING])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("no_autograd", [torch.no_grad, torch.inference_mode])
def test_multihead_attention_infers_by_torchs_fast_path(
    need_weights: bool, average: bool, no_autograd: Any
) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def infer(device: str) -> list[Tensor]:
        x, padding = X.to(device), PADDING.to(device)
        with no_autograd():
            outputs = layer.to(device)(
                x,
                x,
                x,
                key_padding_mask=padding,
                need_weights=need_weights,
                average_attn_weights=average,
            )
        return [t.cpu() for t in outputs if t is not None]

    expected = infer("cpu")
    with lazy(strict=True):
        assert_close(infer("kit"), expected)


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first"))


class Masked(nn.Module):
    """An encoder or a whole transformer, with causal and padding masks."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.model = (
            nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True) if whole else encoder()
        )
        self.whole = whole

    def forward(self, x: Tensor, padding: Tensor, causal: Tensor) -> Any:
        if self.whole:
            return self.model(x, x, tgt_mask=causal, tgt_is_causal=True)
        return self.model(x, mask=causal, src_key_padding_mask=padding, is_causal=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_transformer_trains_as_in_torch(whole: bool) -> None:
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.zeros_like(PADDING, dtype=torch.float32).masked_fill(PADDING, -torch.inf)
    assert_trains_alike(Masked(whole), [X, padding, causal])


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # native torch's own
def test_an_encoder_infers_by_torchs_fast_path(options: dict[str, Any], padded: bool) -> None:
    model = encoder(**options).eval()

    def infer(device: str) -> Tensor:
        padding = PADDING.to(device) if padded else None
        with torch.no_grad():
            return model.to(device)(X.to(device), src_key_padding_mask=padding).cpu()

    expected = infer("cpu")
    with lazy(strict=True) as session:
        got = infer("kit")
        assert [s.cause for s in session.syncs] == ["copy to host"]
    real = ~PADDING if padded else torch.ones_like(PADDING)  # torch fills what is padded with 0
    assert_close([got[real]], [expected[real]])


def test_nested_tensors_are_refused_with_what_to_do() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, mask_check=False).eval()
    with lazy(), torch.no_grad(), pytest.raises(UnsupportedOp, match="enable_nested_tensor=False"):
        model.to("kit")(X.to("kit"), src_key_padding_mask=PADDING.to("kit"))


def test_a_mask_that_torch_inspects_is_a_sync_point_unless_it_is_told() -> None:
    """nn.TransformerEncoder compares the mask with a causal one, by value."""
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    with lazy() as session:
        model, x, mask = encoder().to("kit"), X.to("kit"), causal.to("kit")
        model(x, mask=mask)
        assert [(s.cause, s.via.split(":")[0]) for s in session.syncs] == [
            ("item", "torch/nn/modules/transformer.py")
        ]
        model(x, mask=mask, is_causal=True)
        assert len(session.syncs) == 1
