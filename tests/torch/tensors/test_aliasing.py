"""Views and in-place writes alias exactly as in torch: random programs against CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.errors import SessionError
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

CACHE = ExecutableCache()  # random programs have many parts in common
VIEWS: list[Callable[[Any, int], Any]] = [
    lambda x, k: x.t() if x.dim() == 2 else x.flip(0),
    lambda x, k: x.transpose(0, -1),
    lambda x, k: x[k % x.shape[0]] if x.dim() > 1 else x,
    lambda x, k: x[k % x.shape[0] :],
    lambda x, k: x[::2],
    lambda x, k: x.reshape(-1),
    lambda x, k: x.unsqueeze(k % (x.dim() + 1)),
    lambda x, k: x.squeeze(),
    lambda x, k: x.contiguous().view(-1, 1),
    lambda x, k: x.narrow(-1, 0, 1 + k % x.shape[-1]),
    lambda x, k: x.chunk(2, 0)[k % 2] if x.shape[0] > 1 else x,
    lambda x, k: x.unbind(0)[k % x.shape[0]] if x.dim() > 1 else x,
    lambda x, k: torch.diagonal(x) if x.dim() == 2 else x,
    lambda x, k: x.detach(),
    lambda x, k: x.flatten(),
    lambda x, k: x.movedim(0, -1),
]
WRITES: list[Callable[[Any, Any, int], Any]] = [
    lambda x, y, k: x.add_(0.5 * k),
    lambda x, y, k: x.mul_(1.5),
    lambda x, y, k: x.zero_(),
    lambda x, y, k: x.fill_(k),
    lambda x, y, k: x.copy_(y.sum()),
    lambda x, y, k: x.copy_(x.clone() * 2),
    lambda x, y, k: x.__setitem__(0, k),
    lambda x, y, k: x.__setitem__(slice(None, None, 2), 0.25),
    lambda x, y, k: x.sub_(y.mean()),
    lambda x, y, k: x.clamp_(-1, 1),
    lambda x, y, k: torch._foreach_add_([x], 1.0),
]
STEP = st.tuples(
    st.sampled_from(["view", "write", "new"]),
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 99),
)


def run_program(device: str, program: list[tuple[str, int, int, int]]) -> list[Any]:
    tensors = [torch.arange(12.0).reshape(3, 4).to(device), torch.ones(2, 3).to(device)]
    for kind, which, op, k in program:
        x = tensors[which % len(tensors)]
        y = tensors[k % len(tensors)]
        if 0 in x.shape or x.dim() == 0:
            continue
        if kind == "view":
            tensors.append(VIEWS[op % len(VIEWS)](x, k))
        elif kind == "new":
            tensors.append(x + y.sum() * 0.5)
        else:
            WRITES[op % len(WRITES)](x, y, k)
    return [(t.cpu(), t.stride(), t.storage_offset()) for t in tensors]


@pytest.mark.parametrize("mode", ["imperative", "bulked", "lazy"])
@given(program=st.lists(STEP, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_programs_of_views_and_writes_equal_torch(mode: str, program: Any) -> None:
    expected = run_program("cpu", program)
    with open_session(Settings(mode=mode, bulk_forward=3), cache=CACHE):
        got = run_program("kit", program)
    for (e, *e_geometry), (g, *g_geometry) in zip(expected, got, strict=True):
        assert e.shape == g.shape
        assert e_geometry == g_geometry
        torch.testing.assert_close(g, e)


def gradients(device: str, program: list[tuple[str, int, int, int]]) -> list[torch.Tensor]:
    leaf = torch.arange(1.0, 13.0).reshape(3, 4).to(device).requires_grad_()
    tensors = [leaf * 1.0]
    for kind, which, op, k in program:
        x = tensors[which % len(tensors)]
        if 0 in x.shape or x.dim() == 0:
            continue
        if kind == "view":
            tensors.append(VIEWS[op % len(VIEWS)](x, k))
        elif kind == "new":
            tensors.append(torch.tanh(x) * 0.5)
        else:
            WRITES[op % 4](x, x, k)
    total = sum((t.sum() for t in tensors if t.requires_grad), torch.zeros((), device=device))
    if total.requires_grad:
        total.backward()
    return [total.detach().cpu(), torch.zeros(()) if leaf.grad is None else leaf.grad.cpu()]


@given(program=st.lists(STEP, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_gradients_through_views_and_writes_equal_torch(program: Any) -> None:
    try:
        expected = gradients("cpu", program)
    except RuntimeError as error:  # torch refuses some in-place writes on views: so must kit
        with open_session(), pytest.raises(RuntimeError, match=str(error)[:20].split("(")[0]):
            gradients("kit", program)
        return
    with open_session(Settings(bulk_forward=4, bulk_backward=4), cache=CACHE):
        got = gradients("kit", program)
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g, e)


def test_a_write_through_a_view_of_a_view_reaches_the_base() -> None:
    with open_session():
        base = torch.zeros(2, 3, 4, device="kit")
        base.transpose(0, 2)[1].t()[0, 2] = 7.0
        host = base.cpu()
    expected = torch.zeros(2, 3, 4)
    expected.transpose(0, 2)[1].t()[0, 2] = 7.0
    assert torch.equal(host, expected)


def test_an_expanded_view_refuses_in_place_writes_as_torch_does() -> None:
    with open_session():
        x = torch.zeros(3, 1, device="kit").expand(3, 4)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            x.add_(1)


def test_a_clone_and_its_source_part_at_the_first_write() -> None:
    with open_session():
        a = torch.ones(3, device="kit")
        b = a.clone()
        a.add_(1)
        assert (a.tolist(), b.tolist()) == ([2.0] * 3, [1.0] * 3)


def test_assigning_data_makes_the_parameter_show_the_new_memory() -> None:
    with open_session():
        p = torch.nn.Parameter(torch.ones(2, device="kit"))
        p.data = torch.full((3,), 5.0, device="kit")
        assert p.shape == (3,)
        assert p.tolist() == [5.0] * 3


@pytest.mark.parametrize("number", [0, 1.5, -2])
def test_setting_elements_to_a_number_equals_torch_and_is_one_fill(number: float) -> None:
    def write(device: str) -> list[torch.Tensor]:
        x, n = torch.ones(3, 4).to(device), torch.ones(5, dtype=torch.int64).to(device)
        x[:] = number
        x[1] = number + 1
        x[:, 2:] = x[0, 0]
        n[2:] = int(number)
        y = torch.ones(2, dtype=torch.float64).to(device)
        y[:] = torch.tensor(0.1).to(device)  # rounded to float32 before
        return [x.cpu(), n.cpu(), y.cpu()]

    with open_session() as session:
        found = write("kit")
        a = torch.ones(3, device="kit")
        session.wait_all()
        before = session.metrics()["record.ops"]
        a[:] = number
        session.wait_all()
        # The fill, and up to torch 2.14 the number's tensor before it.
        assert session.metrics()["record.ops"] - before in (1, 2)
    for x, y in zip(found, write("cpu"), strict=True):
        assert torch.equal(x, y)


def test_tensors_of_two_sessions_do_not_mix_but_numbers_do() -> None:
    with open_session():
        outer = torch.ones(3, device="kit")
        with open_session():
            inner = torch.ones(3, device="kit") * 2
            with pytest.raises(SessionError, match="of another session"):
                outer.copy_(inner)
            with pytest.raises(SessionError, match="of another session"):
                torch.cat([outer, inner])
            outer[:] = 7  # the number is made in the inner session, and is only a number
        assert outer.tolist() == [7.0] * 3


@pytest.mark.parametrize(
    "show",
    [
        lambda x: x.view(6),
        lambda x: x.detach(),
        lambda x: x.t()[1:],
        lambda x: x.split(1)[1],
        lambda x: x.as_strided((2, 2), (1, 3)),
        lambda x: x.view(torch.int32),
    ],
)
def test_a_view_in_inference_mode_shows_and_writes_what_was_made_outside(show: Any) -> None:
    def results(device: str) -> list[Any]:
        outside = torch.arange(6.0).reshape(2, 3).to(device, copy=True)
        with torch.inference_mode():
            inside = outside * 2
            views = [show(outside), show(inside)]
            views[0].fill_(7)
            kinds = [x.is_inference() for x in (outside, inside, *views)]
        return [*kinds, *(x.cpu().tolist() for x in (outside, *views))]

    expected = results("cpu")
    with open_session():
        assert results("kit") == expected


@pytest.mark.parametrize(
    "show",
    [
        lambda x: x[1],
        lambda x: x.detach(),
        lambda x: x.t()[1:],
        lambda x: x.split(1)[1],
        lambda x: x.as_strided((2, 2), (1, 3)),
    ],
)
def test_a_view_of_what_inference_mode_made_is_as_it_outside(show: Any) -> None:
    with open_session():
        with torch.inference_mode():
            inside = torch.ones(2, 3, device="kit")
        view = show(inside)
        assert view.is_inference()
        assert not show(torch.ones(2, 3, device="kit")).is_inference()
        with pytest.raises(RuntimeError, match="requires_grad=True on inference tensor outside"):
            view.requires_grad_()
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside"):
            view.fill_(7)


def test_set_shows_the_memory_of_another_tensor() -> None:
    with open_session(Settings(mode="lazy")):
        x, y = torch.zeros(2, device="kit"), torch.ones(2, 3, device="kit")
        view = x[:1]
        x.set_(y[1])
        x.add_(1)
        assert x.tolist() == [2, 2, 2]
        assert y.tolist() == [[1, 1, 1], [2, 2, 2]]
        assert view.tolist() == [0]
        with pytest.raises(RuntimeError, match="Could not set tensor"):
            x.set_(torch.ones(2, device="kit", dtype=torch.int64))


@pytest.mark.parametrize("device", ["cpu", "kit"])
def test_a_tensor_is_set_to_what_shows_the_same_elements_of_its_memory(device: str) -> None:
    with open_session():
        x = torch.ones(2, device=device)
        others = [x, x.detach(), x.view(2), x.view(2, 1), x[1:], x.clone()]
        assert [x.is_set_to(y) for y in others] == [True] * 3 + [False] * 3


def test_a_layer_on_the_device_can_be_parametrized() -> None:
    with open_session(Settings(mode="lazy")):
        layer = torch.nn.Linear(2, 2).to("kit")
        weight = layer.weight
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.Tanh())
        assert layer.parametrizations.weight.original is weight  # type: ignore[union-attr,index]
        torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
        assert layer.weight.shape == (2, 2)


def test_a_linear_layer_keeps_its_input_even_if_its_weight_is_frozen() -> None:
    """So says docs/your_own_model.md; CPU torch, which takes the layer apart, keeps it not."""
    with open_session(Settings(mode="lazy")):
        x = torch.ones(3, device="kit", requires_grad=True)
        inner = x * 2
        loss = torch.nn.functional.linear(inner, torch.ones(2, 3, device="kit")).sum()
        inner.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("shape", [(2, 2), (0,), (3, 2), (6,)])
def test_a_tensor_that_is_resized_within_its_memory_shows_it(shape: tuple[int, ...]) -> None:
    def numbers(device: str) -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3).to(device)
        part, same = x[0], x.resize_(shape)
        x.add_(1)
        return [x.tolist(), x.stride(), same is x, part.tolist()]

    with open_session():
        assert numbers("kit") == numbers("cpu")


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_tensor_grows_whose_memory_no_other_shows(rows: int) -> None:
    with open_session():
        x = torch.arange(rows * 3.0, device="kit").reshape(rows, 3).clone()
        before = x.flatten().tolist()
        assert x.resize_(2, 4).shape == (2, 4)
        assert x.flatten().tolist()[: rows * 3] == before
        x.fill_(3)
        assert x.sum() == 24
        for other in (x.detach(), x[0], x.t()):
            with pytest.raises(SessionError, match="make a new tensor"):
                x.resize_(3, 3)
            assert other.sum() > 0
