"""What `sync_batch_norm=True` makes of a model: one object stays one, and nothing of it is lost."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kit
from kit.errors import SettingsError
from kit.torch.parallel.batch_norm import SyncBatchNorm, share_batch_norms
from tests.torch.parallel.replicas import close, net_on_one_cpu

WIDTH = 3


class TwoNames(nn.Module):
    """One batch norm under two names here, under a third in a child, and in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(WIDTH)
        self.bn2 = self.bn
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), self.bn)
        self.listed = [self.bn]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(self.bn(x))
        return self.listed[0](self.bn2(y.tanh()).exp())  # type: ignore[no-any-return]


class Named(nn.BatchNorm1d):
    """A subclass without a forward: what it has besides must stay."""

    def __init__(self, width: int, title: str) -> None:
        super().__init__(width)
        self.title = title

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() != 2:
            raise ValueError(f"{self.title} takes rows")

    def width(self) -> int:
        return self.num_features


class Clipped(nn.BatchNorm1d):
    """A subclass with a forward."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).clamp(-1, 1)


class ClippedTorchs(nn.SyncBatchNorm):
    """The same of torch's own, which is always replaced."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).clamp(-1, 1)


class ClippedKits(kit.SyncBatchNorm):
    """What the error says to write."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).clamp(-1, 1)


def check_against_the_whole_batch(model: nn.Module) -> list[nn.Module]:
    """Two steps of two replicas with parts of 4 and 3 are those of torch with all 7.

    Outputs, the gradients of inputs and parameters, and buffers; gives the replicas' models.
    """
    torch.manual_seed(0)
    alone = copy.deepcopy(model)
    with net_on_one_cpu(model, 2, sync_batch_norm=True, average=False) as net:
        for _ in range(2):
            x, weight = torch.randn(7, WIDTH), torch.randn(7, WIDTH)
            whole = x.clone().requires_grad_()
            expected = alone(whole)
            (expected * weight).sum().backward()
            parts = net.map(lambda t: t.detach().requires_grad_(), net.split(x))
            outputs = net.map(lambda m, t: m(t), net.modules, parts)
            close([torch.cat([o.detach().cpu() for o in outputs])], [expected])
            net.backward(net.map(lambda o, w: (o * w).sum(), outputs, net.split(weight)))
            close([torch.cat([p.grad.cpu() for p in parts])], [whole.grad], 1e-4)
            for module in net.modules:
                theirs, ours = dict(alone.named_parameters()), dict(module.named_parameters())
                assert list(ours) == list(theirs)
                close([p.grad for p in ours.values()], [p.grad for p in theirs.values()], 1e-4)
                close(module.state_dict().values(), alone.state_dict().values())
    return list(net.modules)


def test_one_norm_with_many_names_is_one_object_everywhere() -> None:
    for module in check_against_the_whole_batch(TwoNames()):
        assert isinstance(module, TwoNames)
        shared: Any = module.bn
        assert type(shared) is SyncBatchNorm
        assert module.bn2 is module.inner[1] is module.listed[0] is shared


def test_one_norm_in_two_parents_is_one_object_in_both() -> None:
    norm = nn.BatchNorm1d(WIDTH)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), norm), nn.Sequential(nn.Linear(WIDTH, WIDTH), norm)
    )
    for module in check_against_the_whole_batch(model):
        assert type(module[0][1]) is SyncBatchNorm  # type: ignore[index]
        assert module[0][1] is module[1][1]  # type: ignore[index]


@pytest.mark.parametrize("kind", [*"123", "torch's"])
def test_parameters_and_buffers_stay_the_same_objects(kind: str) -> None:
    norm: Any = (
        nn.SyncBatchNorm(WIDTH) if kind == "torch's" else getattr(nn, f"BatchNorm{kind}d")(WIDTH)
    )
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [*norm.parameters(), *norm.buffers()]
    share_batch_norms(model.eval(), every=kind != "torch's")
    assert type(model[1]) is SyncBatchNorm
    assert [id(t) for t in before] == [id(t) for t in (*model[1].parameters(), *model[1].buffers())]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert not model[1].training


def test_a_subclass_without_a_forward_keeps_all_that_it_has() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Named(WIDTH, "the second"))
    first, second = check_against_the_whole_batch(model)
    for module in (first, second):
        norm: Any = module[1]  # type: ignore[index]
        assert isinstance(norm, SyncBatchNorm)
        assert isinstance(norm, Named)
        assert type(norm).__name__ == "Named"
        assert norm.title == "the second"
        assert norm.width() == WIDTH
    assert type(first[1]) is type(second[1])  # type: ignore[index]
    with (
        net_on_one_cpu(model, 2, sync_batch_norm=True) as net,
        pytest.raises(ValueError, match="the second takes rows"),
    ):
        net(torch.randn(4, 2, WIDTH))


def test_a_shared_subclass_can_be_copied_and_saved() -> None:
    norm: Any = share_batch_norms(Named(WIDTH, "saved"), every=True)
    file = io.BytesIO()
    torch.save(norm, file)
    file.seek(0)
    for again in (torch.load(file, weights_only=False), copy.deepcopy(norm)):
        assert type(again) is type(norm)
        assert again.title == "saved"
        close(again.state_dict().values(), norm.state_dict().values())


@pytest.mark.parametrize(
    ("norm", "shares", "words"),
    [
        (
            Clipped(WIDTH),
            True,
            r"^'0.norm' of the model is a Clipped with a forward of its own, .* "
            r"make it call kit\.SyncBatchNorm, or leave sync_batch_norm off",
        ),
        (
            ClippedTorchs(WIDTH),
            False,
            r"^'0.norm' of the model is a ClippedTorchs with a forward .* "
            r"make it call kit\.SyncBatchNorm, not torch's nn\.SyncBatchNorm",
        ),
    ],
    ids=["torch's batch norm", "torch's shared one"],
)
def test_a_forward_that_would_be_lost_is_refused(norm: nn.Module, shares: bool, words: str) -> None:
    inner = nn.Sequential()
    inner.add_module("norm", norm)
    with (
        pytest.raises(SettingsError, match=words),
        net_on_one_cpu(nn.Sequential(inner), 2, sync_batch_norm=shares),
    ):
        pass


def test_a_forward_put_on_the_object_is_refused_too_and_the_model_itself_is_named() -> None:
    norm = nn.BatchNorm1d(WIDTH)
    norm.forward = lambda input: input  # type: ignore[method-assign]
    with pytest.raises(SettingsError, match=r"^the model is a BatchNorm1d with a forward"):
        share_batch_norms(norm, every=True)


def test_a_forward_is_left_alone_if_nothing_is_shared_or_if_it_calls_ours() -> None:
    x = torch.randn(6, WIDTH)
    expected = Clipped(WIDTH)(x)
    with net_on_one_cpu(ClippedKits(WIDTH), 2, sync_batch_norm=True) as net:
        close([torch.cat([o.detach().cpu() for o in net(x)])], [expected])
    with net_on_one_cpu(Clipped(WIDTH), 2) as net:
        parts = torch.cat([Clipped(WIDTH)(part) for part in x.chunk(2)])
        close([torch.cat([o.detach().cpu() for o in net(x)])], [parts])


def test_hooks_of_every_kind_stay() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    norm, called = model[1], set[str]()

    def told(name: str) -> Any:
        return lambda *args, **kwargs: called.add(name)

    def halved(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        called.add("forward with kwargs")
        return output / 2

    norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    norm.register_forward_pre_hook(told("pre with kwargs"), with_kwargs=True)
    norm.register_forward_hook(halved, with_kwargs=True)
    norm.register_forward_hook(told("always"), always_call=True)
    norm.register_full_backward_pre_hook(lambda module, grads: (3 * grads[0],))
    norm.register_full_backward_hook(told("backward"))
    norm.register_state_dict_pre_hook(told("state"))
    check_against_the_whole_batch(model)
    every = {"pre with kwargs", "forward with kwargs", "always", "backward", "state"}
    assert called == every
    called.clear()
    with net_on_one_cpu(model, 2, sync_batch_norm=True) as net:
        net.backward(net.map(lambda o: o.sum(), net(torch.randn(4, WIDTH))))
        net.modules[0].state_dict()
        assert called == every
        called.clear()
        with pytest.raises(ValueError, match="at least 2D"):
            net.map(lambda m: m[1](torch.ones(WIDTH, device="kit")), net.modules)
        assert called == {"pre with kwargs", "always"}
