"""`torch.func`, forward-mode derivatives and batched gradients give torch's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from kit.torch.device import open_session

# Torch's own forward mode compiles by what torch says is deprecated, since 2.14 in other words.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

Transform = Callable[[nn.Module, Tensor], Tensor]


def each_samples_gradient(net: nn.Module, x: Tensor) -> Tensor:
    def loss(weights: Any, sample: Tensor) -> Tensor:
        return functional_call(net, weights, (sample,)).square().sum()  # type: ignore[no-any-return]

    return vmap(grad(loss), in_dims=(None, 0))(dict(net.named_parameters()), x)["weight"]  # type: ignore[no-any-return]


def several_models(net: nn.Module, x: Tensor) -> Tensor:
    weights, buffers = stack_module_state([net, net])
    return vmap(lambda w, b: functional_call(net, (w, b), (x,)))(weights, buffers)  # type: ignore[no-any-return]


def dual(net: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x * 2).tanh() @ x.t()).tangent  # type: ignore[return-value]


def batched(net: nn.Module, x: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(leaf.sin(), leaf, torch.stack([x, x * 2]), is_grads_batched=True)[0]


def attended(x: Tensor) -> Tensor:
    row = x[None, :, None]
    return F.scaled_dot_product_attention(row, row, row)


TRANSFORMS: dict[str, Transform] = {
    "vmap of a module": lambda net, x: vmap(net)(x),
    "vmap of a slice and a product": lambda net, x: vmap(lambda v: v[1:] * (v @ x.t()).sum())(x),
    "vmap in place": lambda net, x: vmap(lambda v: v.clone().mul_(2).softmax(0))(x),
    "vmap of attention": lambda net, x: vmap(attended)(x),
    "each sample's gradient": each_samples_gradient,
    "several models": several_models,
    "jvp": lambda net, x: jvp(lambda v: net(v).tanh(), (x,), (x * 2,))[1],
    "jvp of rows": lambda net, x: jvp(lambda v: net(v[None])[0, 0], (x[0],), (x[1],))[1],
    "a dual number": dual,
    "jacrev": lambda net, x: jacrev(lambda v: net(v).tanh())(x[0]),
    "jacfwd": lambda net, x: jacfwd(lambda v: net(v).tanh())(x[0]),
    "hessian": lambda net, x: hessian(lambda v: net(v).pow(3).sum())(x[0]),
    "gradients of a batch of directions": batched,
    "linearize": lambda net, x: torch.func.linearize(lambda v: v.sin() * x, x)[1](x * 2),
    "a trace of what holds a tensor": lambda net, x: make_fx(lambda v: (v @ x.t()).sin())(x)(x * 2),
}


# torch's own: of the CPU's attention in vmap, and of what forward mode imports
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Attempted to insert a ge")
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_gives_torchs_numbers(transform: Transform) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    expected = transform(copy.deepcopy(net), x).detach()
    with open_session():
        found = transform(copy.deepcopy(net).to("kit"), x.to("kit"))
        assert found.device.type == "kit"
        torch.testing.assert_close(found.detach().cpu(), expected)


def test_a_jvp_does_not_wait_for_the_device() -> None:
    with open_session() as session:
        x = torch.ones(4, device="kit")
        jvp(torch.tanh, (x,), (x * 2,))
        assert not session.unlowered
        assert not session.syncs


def test_a_dual_number_in_a_linear_layer_is_refused_by_name() -> None:
    net = nn.Linear(3, 2)
    with open_session(), forward_ad.dual_level():
        x = torch.randn(4, 3).to("kit")
        with pytest.raises(NotImplementedError, match="forward AD with linear"):
            net.to("kit")(forward_ad.make_dual(x, x))
