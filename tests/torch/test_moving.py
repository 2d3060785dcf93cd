"""`model.to("kit")`: what an optimizer made before trains, and what `.data` and `.detach` share."""

from __future__ import annotations

import contextvars
import copy
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kit.torch.device import open_session
from kit.trace import union_ns
from kit.trace.intervals import without


class Tied(nn.Module):
    """An embedding, a layer, and a head with the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.embedding(x)))


def train(device: str, make: Callable[[Any], Any], *, before: bool) -> list[float]:
    """Losses of three steps with an optimizer that is made before or after the move."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = make(model.parameters()) if before else None
    model.to(device)
    optimizer = optimizer or make(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.tensor([1, 2]).to(device)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "groups": lambda p: torch.optim.Adam([{"params": [q], "lr": 0.1} for q in p]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_made_before_the_move_trains_the_model(name: str) -> None:
    with open_session(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = train("kit", OPTIMIZERS[name], before=True)
        assert found == train("kit", OPTIMIZERS[name], before=False)
    assert found == pytest.approx(train("cpu", OPTIMIZERS[name], before=True), rel=1e-4)
    assert found[0] != found[2]


def test_it_trains_on_after_a_move_back() -> None:
    with open_session():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.to("kit")
        model(torch.ones(1, 2, device="kit")).sum().backward()
        optimizer.step()
        model.cpu()
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight.detach(), before - 0.1)


def test_a_list_of_parameters_from_before_the_move_is_warned_of_at_its_line() -> None:
    with open_session():
        model = Tied()
        held = list(model.parameters())
        with pytest.warns(UserWarning, match=r"3 parameters of Tied .* model.parameters") as caught:
            model.to("kit")
        assert caught[0].filename == __file__
        assert {p.device.type for p in held} == {"cpu"}


@pytest.mark.parametrize("inside", [False, True])
def test_a_recurrent_layers_own_list_is_no_reason_to_warn(inside: bool) -> None:
    with open_session(), warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = nn.LSTM(2, 3)
        _kept_by_autograd = layer(torch.ones(2, 1, 2))
        model: nn.Module = nn.Sequential(layer) if inside else layer
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.to("kit")
        before = layer.weight_hh_l0.detach().cpu()
        layer(torch.ones(2, 1, 2, device="kit"))[0].sum().backward()
        optimizer.step()
        assert not torch.equal(layer.weight_hh_l0.detach().cpu(), before)


def test_models_that_threads_move_at_once_are_no_reason_to_warn() -> None:
    """Each thread looks for optimizers among all objects, the others' parameters among them."""

    def move() -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters())
        model.to("kit")
        assert optimizer.param_groups[0]["params"][0] is model[0].weight

    before = sys.getswitchinterval()
    with open_session(), warnings.catch_warnings(), ThreadPoolExecutor(3) as pool:
        warnings.simplefilter("error")
        sys.setswitchinterval(1e-5)
        try:
            contexts = [contextvars.copy_context() for _ in range(12)]
            list(pool.map(lambda c: c.run(move), contexts))
        finally:
            sys.setswitchinterval(before)


def test_the_last_parameter_of_a_loop_is_no_reason_to_warn() -> None:
    with open_session(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Tied()
        for p in model.parameters():
            nn.init.normal_(p)
        model.to("kit")
        assert p.device.type == "cpu"


def learned(device: str) -> list[Any]:
    model, seen = nn.Linear(2, 2), list[Any]()
    model.weight.no_decay = True  # type: ignore[union-attr]
    hook = model.weight.register_hook(lambda grad: grad * 3)
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.no_decay))
    for place in (device, "cpu"):
        model.to(place)
        model(torch.ones(1, 2).to(place)).sum().backward()
        seen.append(model.weight.grad.tolist())  # type: ignore[union-attr]
        hook.remove()
    return seen


def test_what_the_program_put_on_a_parameter_moves_with_it() -> None:
    with open_session():
        assert learned("kit") == learned("cpu") == [True, [[3, 3]] * 2, True, [[4, 4]] * 2]


class Own(nn.Parameter):
    """A parameter of the program's own class."""


def test_a_parameter_of_another_class_is_warned_of() -> None:
    model = nn.Module()
    model.weight = Own(torch.ones(2))
    with open_session(), pytest.warns(UserWarning, match="class Own become plain ones") as caught:
        model.to("kit")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_has_what_the_program_put_on_a_tensor(twin: Callable[[Any], Any]) -> None:
    def attributes(device: str) -> list[Any]:
        buffer, parameter = nn.Buffer(torch.ones(2).to(device)), nn.Parameter(torch.ones(2))
        parameter = nn.Parameter(parameter.data.to(device))
        buffer.mark = parameter.mark = [7]  # type: ignore[attr-defined]
        kinds = (nn.Buffer, nn.Parameter)
        return [
            [getattr(x, "mark", None), *(isinstance(x, kind) for kind in kinds)]
            for x in map(twin, (buffer, parameter))
        ]

    with open_session():
        assert attributes("kit") == attributes("cpu")


@pytest.mark.usefixtures("warm_processes")
def test_a_process_that_is_spawned_gets_what_a_tensor_holds() -> None:
    """Its memory was shared, as torch's pickler does, and gone before the process could open it."""
    with open_session():
        made: list[Any] = [torch.arange(48.0, device="kit").reshape(16, 3), torch.ones(2) * 3]
        made.append(nn.Parameter(made[0][:2] + 1))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(target=_tell_sums, args=(theirs, made))
        child.start()
        theirs.close()
        assert ours.recv() == [1128.0, 6.0, 21.0]
        child.join()
        assert child.exitcode == 0


def _tell_sums(to: Any, tensors: list[torch.Tensor]) -> None:
    to.send([float(x.detach().sum()) for x in tensors])


def test_a_function_of_numpy_gives_a_tensor_of_the_device() -> None:
    with open_session():
        x = torch.ones(2, device="kit")
        for found in (np.negative(x), np.subtract(x, np.full(2, 2, "float32")), x - np.full(2, 2)):
            assert found.device == x.device
            assert found.tolist() == [-1, -1]


def versions(device: str) -> list[tuple[int, ...]]:
    x = torch.ones(2).to(device)
    data, detached, row = x.data, x.detach(), x[0]
    seen = []
    for tensor in (x, data, detached, row):
        tensor.add_(1)
        seen.append((x._version, data._version, detached._version, row._version))
        torch._foreach_mul_([tensor], 2)
        torch._foreach_lgamma_([tensor])  # on the host
        seen.append((x._version, data._version, detached._version, row._version))
    return seen


def test_data_counts_its_own_versions_and_detach_shares_them() -> None:
    with open_session():
        assert versions("kit") == versions("cpu")


@pytest.mark.parametrize("part", [lambda y: y.data, lambda y: y.detach()], ids=["data", "detach"])
def test_a_write_to_what_backward_needs_is_found_as_in_torch(part: Callable[[Any], Any]) -> None:
    def gradient(device: str) -> Any:
        x = torch.ones(2).to(device).requires_grad_()
        y = x * 2
        z = y * y
        part(y).add_(1)
        try:
            z.sum().backward()
        except RuntimeError as error:
            return str(error)[:60]
        assert x.grad is not None
        return x.grad.tolist()

    with open_session():
        assert gradient("kit") == gradient("cpu")


def test_gradcheck_and_gradgradcheck_pass() -> None:
    with open_session():
        x = torch.rand(3, dtype=torch.float64, device="kit", requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: (x.exp() * x).sum(), x)
        assert torch.autograd.gradgradcheck(lambda x: (x.exp() * x).sum(), x)


def flops(device: str, call: Callable[[Any], Any], make: Callable[[], Any]) -> int:
    model = make().to(device)
    x = torch.ones(2, 3, 4).to(device).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        call(model)(x).sum().backward()
    return counter.get_total_flops()


def attend(model: Any) -> Callable[[Any], Any]:
    return lambda x: model(x, x, x, need_weights=False)[0]


FLOPS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "linear": (
        lambda m: m,
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4, bias=False)),
    ),
    "matrices": (lambda m: lambda x: m(x) @ x.mT, lambda: nn.Linear(4, 4)),
    "attention with weights": (
        lambda m: lambda x: m(x, x, x)[0],
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    ),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops_are_counted_as_on_the_cpu(name: str) -> None:
    with open_session():
        assert flops("kit", *FLOPS[name]) == flops("cpu", *FLOPS[name])


def test_flops_of_attention_are_those_of_torchs_own_fused_one() -> None:
    def attention() -> Any:
        return nn.MultiheadAttention(4, 2, batch_first=True)

    with open_session():
        found = flops("kit", attend, attention)
    projections = 3 * 2 * (2 * 3) * 4 * (3 * 4 + 4)  # forward, and twice backward
    scores = 2 * (2 * 2 * 3) * 3 * 2  # batch, heads, queries; keys; numbers a head
    assert found == projections + 2 * scores + 5 * scores


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_made_like_a_tensor_is_where_the_call_says(device: str) -> None:
    with open_session():
        x = torch.ones(2, 3, device="kit")
        made = [
            torch.rand_like(x, device=device),
            torch.randn_like(x, device=device),
            torch.randint_like(x, 5, device=device),
            torch.randint_like(x, 2, 5, device=device),
            torch.zeros_like(x, device=device),
            x.new_ones((2, 3), device=device),
        ]
        assert {(t.device.type, tuple(t.shape)) for t in made} == {(device, (2, 3))}


def test_a_move_that_torch_makes_by_swapping_says_what_to_do() -> None:
    swaps = torch.__future__.set_swap_module_params_on_conversion
    with open_session():
        swaps(True)
        try:
            with pytest.raises(RuntimeError, match="Couldn't swap Linear") as caught:
                nn.Linear(2, 1).to("kit")
        finally:
            swaps(False)
        assert "set_swap_module_params_on_conversion off" in caught.value.__notes__[0]
        assert nn.Linear(2, 1).to("kit").weight.device.type == "kit"


def test_a_weight_tied_across_modules_that_move_apart_stays_one() -> None:
    """As torch's `Module.to` leaves it: one parameter, which the optimizer of before trains."""
    with open_session():
        embedding, head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        head.weight = embedding.weight
        optimizer = torch.optim.SGD(head.parameters(), 0.1)
        embedding.to("kit")
        head.to("kit")
        assert head.weight is embedding.weight is optimizer.param_groups[0]["params"][0]
        head(embedding(torch.tensor([0, 1]).to("kit"))).sum().backward()
        assert head.weight.grad is not None


def test_the_copy_of_a_large_tensor_is_input_at_its_line() -> None:
    """kit's own copy on the host, most of it, passed for recording."""
    host = torch.ones(4 << 20)
    with open_session() as session:

        def steps(end_step: Callable[[], None]) -> None:
            made = host.to("kit") + 1
            session.mark_step()
            end_step()
            del made

        steps(lambda: None)
        timeline = session.trace(steps).timeline
    (name,) = {s.name for s in timeline.spans if s.kind == "input"}
    assert name.startswith("copy to device at test_moving.py:")
    copied, whole = timeline.intervals(kind="input"), timeline.intervals(kind="step")
    assert union_ns(copied) > union_ns(without(whole, copied)) / 4
