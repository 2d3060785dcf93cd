"""What users do with a `DataParallel` beside the plain loop: as on one device, or refused."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kit
from kit.errors import SessionError, SettingsError
from kit.measure.many.replicas import run as run_replicas
from kit.torch.parallel.shards import Shards
from tests.torch.parallel.replicas import batches, close, loss_of, net_on_one_cpu, perceptron

ON_ONE_CPU = ["cpu:0", "cpu:0"]


def losses(net: kit.DataParallel, x: Tensor, y: Tensor) -> Any:
    return net.map(F.cross_entropy, net(x), net.split(y))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


USES_AFTER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "call": lambda net, o, made: net(torch.ones(4, 6)),
    "backward": lambda net, o, made: net.backward(made),
    "mean": lambda net, o, made: net.mean(made),
    "optimizer.step": lambda net, o, made: o.step(),
    "optimizer.zero_grad": lambda net, o, made: o.zero_grad(),
    "wait_all": lambda net, o, made: net.wait_all(),
    "retune": lambda net, o, made: net.retune(cut="size"),
    "watched": lambda net, o, made: net.watched().__enter__(),
    "backward_shape": lambda net, o, made: net.backward_shape(),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("use", USES_AFTER)
def test_a_use_outside_of_the_block_is_refused(use: str, count: int) -> None:
    net = net_on_one_cpu(perceptron(), count)
    with pytest.raises(SessionError, match="in its `with` block"):
        net.wait_all()
    with net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        made = losses(net, *batches(1, 8)[0])
    with pytest.raises(SessionError, match="in its `with` block"):
        USES_AFTER[use](net, optimizer, made)


def test_modes_of_the_calling_thread_hold_in_the_replicas() -> None:
    x = torch.randn(4, 6)
    with net_on_one_cpu(perceptron(), 2) as net:
        with torch.no_grad():
            assert [part.requires_grad for part in net(x)] == [False, False]
        with torch.inference_mode():
            assert net.map(lambda m: torch.is_inference_mode_enabled(), net.modules) == (True, True)
        with torch.autocast("kit", torch.bfloat16):
            assert [part.dtype for part in net(x)] == [torch.bfloat16] * 2
        assert [(part.requires_grad, part.dtype) for part in net(x)] == [(True, torch.float32)] * 2


@pytest.mark.parametrize("between", ["a batch that is prefetched", "a validation batch"])
def test_a_loss_counts_by_its_own_batch(between: str) -> None:
    (x, y), (other, labels) = batches(1, 3)[0], batches(1, 8)[0]
    alone = perceptron()
    expected = loss_of(alone, x, y)
    expected.backward()
    with net_on_one_cpu(perceptron(), 2) as net:
        made = losses(net, x, y)
        if between == "a validation batch":
            with torch.no_grad():
                losses(net, other, labels)
        else:
            net.split((other, labels))
        net.backward(made)
        close(gradients(net.modules[1]), gradients(alone))
        assert net.mean(made) == pytest.approx(expected.item(), abs=1e-6)


def test_a_batch_that_a_step_only_looks_at_does_not_weigh_its_loss() -> None:
    @kit.workload
    def looks(ctx: kit.Context) -> Any:
        torch.manual_seed(0)
        model = perceptron().to(ctx.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        x, y = batches(1, 42)[0]
        data, more = torch.utils.data.TensorDataset(x, y), torch.utils.data.TensorDataset(x)
        train = ctx.loader(torch.utils.data.DataLoader(data, batch_size=7))
        check = ctx.loader(torch.utils.data.DataLoader(more, batch_size=2))
        criterion = nn.CrossEntropyLoss()

        def step() -> Any:
            x, y = next(train)
            next(check)
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    settings = kit.Settings(batch_size=7, steps=5, warmup=1)
    made = run_replicas(looks, settings, devices=ON_ONE_CPU)
    assert made.losses == pytest.approx(kit.run(looks, settings).losses, rel=1e-5)


def test_layers_that_are_unfrozen_or_put_in_are_reduced() -> None:
    def parts(model: nn.Sequential, stage: int) -> None:
        if stage == 1:
            model[0].requires_grad_(True)
        if stage == 2:
            torch.manual_seed(3)
            model.append(nn.Linear(4, 4).to(model[0].weight.device))

    alone, model = perceptron(), perceptron()
    for each in (alone, model):
        each[0].requires_grad_(False)
    with net_on_one_cpu(model, 2) as net:
        for stage, (x, y) in enumerate(batches(3, 7)):
            parts(alone, stage)
            for module in net.modules:
                net.map(
                    lambda m, one=module, stage=stage: m is one and parts(m, stage), net.modules
                )
            net.backward(losses(net, x, y))
            loss_of(alone, x, y).backward()
            for module in net.modules:
                mine = [g for g in gradients(module) if g is not None]
                close(mine, [g for g in gradients(alone) if g is not None])
            assert (gradients(net.modules[0])[0] is None) == (stage == 0)


@pytest.mark.parametrize("way", ["a step", "optimizer.step"])
def test_replicas_that_an_update_has_parted_are_not_used_again(way: str) -> None:
    def boom(*_: Any) -> None:
        raise ValueError("boom")

    x, y = batches(1, 8)[0]
    with net_on_one_cpu(perceptron(), 2) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        optimizer.replicas[1].register_step_pre_hook(boom)
        net.backward(losses(net, x, y))
        with pytest.raises(ValueError, match="boom"):
            net.step(loss_of, optimizer, x, y) if way == "a step" else optimizer.step()
        for use in (net.wait_all, lambda: net(x), lambda: net.step(loss_of, optimizer, x, y)):
            with pytest.raises(SessionError, match=r"parted: the update of replica 1 failed.*boom"):
                use()
        saved = {k: v.cpu() for k, v in net.modules[0].state_dict().items()}
    with net_on_one_cpu(perceptron(), 2) as net:
        net.map(lambda m: m.load_state_dict(saved), net.modules)
        net.step(loss_of, net.optimizer(torch.optim.SGD, lr=0.1), x, y)
        close(net.modules[0].parameters(), [p.detach().cpu() for p in net.modules[1].parameters()])


@pytest.mark.parametrize("way", ["module.zero_grad", "grad.zero_", "replaced", "nothing"])
def test_gradients_between_two_passes_are_the_programs(way: str) -> None:
    """Summed, then accumulated locally, then treated somehow, then summed again."""
    x, y = batches(1, 7)[0]

    def treat(model: nn.Module) -> None:
        for p in model.parameters():
            assert p.grad is not None
            if way == "grad.zero_":
                p.grad.zero_()
            elif way == "replaced":
                p.grad = p.grad * 0.5
        if way == "module.zero_grad":
            model.zero_grad()

    alone = perceptron()
    with net_on_one_cpu(perceptron(), 2) as net:
        for local in (False, True, False):
            if local:
                with net.no_sync():
                    net.backward(losses(net, x, y))
                net.map(treat, net.modules)
            else:
                net.backward(losses(net, x, y))
            loss_of(alone, x, y).backward()
            if local:
                treat(alone)
        close(gradients(net.modules[0]), gradients(alone))
        net.map(lambda m: [setattr(p, "grad", p.grad * 1.0) for p in m.parameters()], net.modules)
        net.backward(losses(net, x, y))
        loss_of(alone, x, y).backward()
        close(gradients(net.modules[1]), gradients(alone))


def test_the_mean_of_what_is_not_one_loss_for_each_is_refused() -> None:
    with net_on_one_cpu(perceptron(), 2) as net:
        made = losses(net, *batches(1, 8)[0])
        for wrong in (made[:1], net.map(lambda x: (x, x), made), net(torch.ones(4, 6)), [1.0, 2.0]):
            with pytest.raises(SettingsError, match="one loss for each of the 2 replicas"):
                net.mean(wrong)
        assert net.mean(net.map(lambda x: x[0], net.map(lambda x: (x, x), made))) == net.mean(made)


class Centred(nn.Module):
    """Takes the mean of the whole batch away: of all replicas' parts, by a barrier, if there is."""

    def __init__(self, barrier: kit.Barrier | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.barrier = nn.Linear(6, 4), barrier

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        total = h.sum(0) if self.barrier is None else self.barrier.wait(h.sum(0))
        return h - total / 7  # type: ignore[no-any-return]


def test_gradients_pass_through_a_barrier() -> None:
    x, y = batches(1, 7)[0]
    alone = Centred(None)
    loss_of(alone, x, y).backward()
    with net_on_one_cpu(Centred(kit.Barrier(2)), 2) as net:
        net.backward(losses(net, x, y))
        for module in net.modules:
            close(gradients(module), gradients(alone))


def test_what_was_pushed_is_brought_as_it_was() -> None:
    barrier = kit.Barrier(2)

    def push(x: Any) -> Any:
        index = barrier.push(x)
        x.zero_()
        return barrier.pull(index).tolist()

    with net_on_one_cpu(perceptron(), 2) as net:
        assert net.map(push, net.split(torch.tensor([[1.0], [2.0]]))) == ([[3.0]], [[3.0]])


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a plain optimizer": (
        lambda net: net.step(loss_of, torch.optim.SGD(net.modules[0].parameters(), lr=0.1)),
        "an optimizer for every replica.*not a SGD",
    ),
    "two results of map": (
        lambda net: net.backward([losses(net, *batches(1, 8)[0]) for _ in (0, 1)]),
        "give them together",
    ),
    "a bucket that is no number": (lambda net: net.retune(bucket_mb="a"), "bucket_mb must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant_is_told_in_words(name: str) -> None:
    act, text = WRONG[name]
    with (
        net_on_one_cpu(perceptron(), 2) as net,
        pytest.raises((SessionError, SettingsError), match=text),
    ):
        act(net)


def test_a_lazy_layer_has_to_see_a_batch_first() -> None:
    with pytest.raises(SettingsError, match=r"'0.weight' of the model has no shape yet"):
        kit.DataParallel(nn.Sequential(nn.LazyLinear(3)), ON_ONE_CPU)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"sync_batch_norm": True}, "put kit.SyncBatchNorm into"), ({"foo": 1}, "'foo' is no option")],
    ids=["sync_batch_norm", "unknown"],
)
def test_an_option_that_a_workload_cannot_have_is_refused(options: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        run_replicas(lambda ctx: None, devices=ON_ONE_CPU, **options)


def test_a_step_that_returns_no_loss_is_refused_as_on_one_device() -> None:
    @kit.workload
    def no_loss(ctx: kit.Context) -> Any:
        x = torch.ones(2, device=ctx.device)
        return lambda: {"loss": x.sum()}

    for options in ({}, {"devices": ON_ONE_CPU}):
        with pytest.raises(SettingsError, match="must return its loss as a tensor, not dict"):
            kit.run(no_loss, kit.Settings(steps=1, warmup=1), **options)  # type: ignore[arg-type]


def test_a_learning_rate_is_scheduled_and_a_checkpoint_loaded_in_each_replica() -> None:
    data = batches(6, 7)
    alone = perceptron()
    reference = torch.optim.AdamW(alone.parameters(), lr=0.1)
    plan = torch.optim.lr_scheduler.StepLR(reference, 2, 0.1)
    for x, y in data:
        loss_of(alone, x, y).backward()
        reference.step()
        reference.zero_grad()
        plan.step()
    model, saved = perceptron(), {}
    for half in (data[:3], data[3:]):
        with net_on_one_cpu(model, 2) as net:
            optimizer = net.optimizer(torch.optim.AdamW, lr=0.1)
            plans = [torch.optim.lr_scheduler.StepLR(o, 2, 0.1) for o in optimizer.replicas]
            if saved:
                net.map(
                    lambda o, at: o.load_state_dict(at),
                    optimizer.replicas,
                    Shards([saved["optimizer"]] * 2),
                )
                for one in plans:
                    one.load_state_dict(saved["plan"])
            for x, y in half:
                net.step(loss_of, optimizer, x, y)
                for one in plans:
                    one.step()
            state = optimizer.replicas[0].state_dict()
            saved = {
                "optimizer": torch.utils._pytree.tree_map_only(Tensor, Tensor.cpu, state),
                "plan": plans[0].state_dict(),
            }
            model.load_state_dict({k: v.cpu() for k, v in net.modules[0].state_dict().items()})
    close(model.parameters(), alone.parameters(), 1e-4)


def test_a_scripted_module_is_refused() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match="deprecated"):
        traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))  # type: ignore[no-untyped-call]
    with pytest.raises(SettingsError, match="give the module that it was made from"):
        kit.DataParallel(nn.Sequential(traced), ["cpu:0", "cpu:0"])


class Output(OrderedDict[str, Any]):
    """As those of transformers: what is in it are attributes, too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        setattr(self, key, value)


@dataclass(eq=False)
class Scaled(nn.Module):
    """A module that is a dataclass."""

    factor: Tensor

    def __post_init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("holds_tensors", [True, False])
def test_what_a_function_gets_is_of_the_class_that_was_given(
    two: Any, *, holds_tensors: bool
) -> None:
    x = torch.ones(4) if holds_tensors else 1
    of_lists = defaultdict(list, x=x)
    output = Output(x=x)
    given = two.map(lambda a, b: (a, b, b.x), of_lists, output)
    for one, other, inside in given:
        assert type(one) is defaultdict
        assert one.default_factory is list
        assert type(other) is Output
        assert inside is other["x"]
        assert isinstance(inside, Tensor) == holds_tensors
        assert (one is of_lists) == (other is output) == (not holds_tensors)


def test_a_list_that_functions_append_to_and_a_module_are_those_that_were_given(two: Any) -> None:
    log: list[int] = []
    scaled = Scaled(torch.ones(2))
    given = two.map(lambda log, module: (log.append(1), module)[1], log, scaled)
    assert log == [1, 1]
    assert given == (scaled, scaled)


def test_a_loss_is_one_number() -> None:
    x = torch.randn(8, 6)

    def both(module: nn.Module, x: Any) -> tuple[Any, Any]:
        y = module(x)
        return y.square().mean(), y

    with net_on_one_cpu(perceptron(), 2) as net:
        parts, optimizer = net.split(x), net.optimizer(torch.optim.SGD, lr=0.1)
        for use in (
            lambda: net.step(both, optimizer, x),
            lambda: net.backward(net.map(both, net.modules, parts)),
            lambda: net.map(lambda m, x: m(x).sum(1).backward(), net.modules, parts),
        ):
            with pytest.raises(SessionError, match=r"scalar outputs, and one of shape.*detached"):
                use()
        net.step(lambda m, x: (both(m, x)[0], both(m, x)[1].detach()), optimizer, x)
        net.map(lambda m, x, g: m(x)[:, 0].backward(g), net.modules, parts, torch.ones(4))


def test_torch_manual_seed_seeds_the_replicas_each_in_its_own_way() -> None:
    with net_on_one_cpu(perceptron(), 2) as net:

        def drawn() -> list[list[float]]:
            return [x.tolist() for x in net.map(lambda: torch.rand(3, device="kit"))]

        torch.manual_seed(5)
        first, second = drawn()
        assert first != second
        assert drawn() != [first, second]
        torch.manual_seed(5)
        assert drawn() == [first, second]
        torch.manual_seed(-1)  # the largest of 32 bits
        first, second = drawn()
        assert first != second
