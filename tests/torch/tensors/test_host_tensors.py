"""CPU tensors beside those of device kit: what CUDA takes, and CPU torch's values for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

CACHE = ExecutableCache()
rows, mask = torch.tensor([1, 0]), torch.tensor([True, False])
two = torch.tensor(2.0)
CASES: dict[str, Callable[[Any], Any]] = {
    "numbers of the CPU": lambda x: [
        x + two, two / x, x > two, x.clamp(max=two), torch.where(x > 2, x, two),
        torch.lerp(x, x + 1, two), x.masked_fill(x > 2, two), x.clone().mul_(two)],
    "numbers of another type": lambda x: [x.half() * two.double(), x.long() + torch.tensor(2.5)],
    "read by index": lambda x: [
        x[rows], x[:, rows], x[rows, rows], x[rows, rows.to(x.device)], x[torch.tensor(1)]],
    "read by mask": lambda x: [x[mask], x[torch.ones(2, 3) > 0], x[torch.tensor(True)]],
    "written by index": lambda x: [
        x.index_put((rows,), two), x.index_put((rows, rows), x[:, 0], accumulate=True)],
    "written by mask": lambda x: [
        x.index_put((mask,), two), x.index_put((torch.ones(2, 3) > 0,), two)],
    "asked for a shape or a type": lambda x: [
        x.type_as(rows), x.expand_as(torch.ones(4, 2, 3)), x.view_as(torch.ones(3, 2)),
        torch.ones(2).type_as(x), *x.tensor_split(torch.tensor([1]))],
    "copied": lambda x: [torch.empty(2, 3).copy_(x), x.clone().copy_(torch.ones(3))],
}  # fmt: skip
LENGTHS: dict[str, Any] = {
    "tuples": tuple,
    "tensors of the CPU": torch.tensor,
    "tensors of the CPU, int32": lambda numbers: torch.tensor(numbers, dtype=torch.int32),
}


def ctc(device: str, lengths: Any, *, flat: bool, **options: Any) -> tuple[Any, Any]:
    """The loss, and the gradient of the probabilities."""
    torch.manual_seed(0)
    times, counts = [9, 7, 2], [3, 1, 2]  # the last one is too short for its two equal labels
    scores = torch.randn(9, 3, 5).log_softmax(2).to(device).requires_grad_()
    rows = torch.tensor([[1, 2, 4], [3, 0, 0], [2, 2, 0]])
    labels = torch.cat([row[:n] for row, n in zip(rows, counts, strict=True)]) if flat else rows
    if not options.get("zero_infinity"):
        times = [9, 7, 4]
    loss = functional.ctc_loss(
        scores, labels.to(device), lengths(times), lengths(counts), **options
    )
    loss.sum().backward()
    assert scores.grad is not None
    return loss.detach().cpu(), scores.grad.cpu()


@pytest.mark.parametrize("name", CASES)
def test_what_cuda_takes_gives_what_cpu_torch_gives(name: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with open_session(Settings(mode="imperative"), cache=CACHE):
        got = [result.cpu() for result in CASES[name](x.to("kit"))]
        with torch.inference_mode():
            got += [result.cpu() for result in CASES[name](x.to("kit"))]
    for one, other in zip(got, CASES[name](x) * 2, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_of_the_cpu_is_written_through_on_the_device() -> None:
    with open_session(strict=True) as session:
        x = torch.ones(2, 3, device="kit")
        x[torch.tensor([True, False])] = 5.0
        assert not session.unlowered
        assert x.tolist() == [[5.0] * 3, [1.0] * 3]


def test_a_gradient_that_is_a_number_of_the_cpu_moves() -> None:
    with open_session():
        x = torch.ones(2, device="kit", requires_grad=True)
        x.sum().backward(torch.tensor(3.0))
        assert x.grad is not None
        assert x.grad.device.type == "kit"
        assert x.grad.tolist() == [3.0, 3.0]


def test_what_is_printed_says_as_torch_does_whether_it_learns() -> None:
    with open_session():
        x = torch.ones(2)
        here = x.to("kit")
        for change in (lambda t: t, lambda t: t.requires_grad_(), lambda t: t * 2):
            x, here = change(x), change(here)
            assert str(here) == f"kit {x}"


@pytest.mark.parametrize("name", LENGTHS)
def test_the_lengths_of_ctc_may_be_on_the_host(name: str) -> None:
    with open_session(Settings(mode="imperative"), strict=True, cache=CACHE) as session:
        for reduction, flat in (("none", True), ("mean", False), ("sum", True)):
            options = {"flat": flat, "reduction": reduction, "zero_infinity": not flat}
            got = ctc("kit", LENGTHS[name], **options)
            expected = ctc("cpu", LENGTHS[name], **options)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        assert not session.unlowered
    with open_session(strict=True), torch.inference_mode():
        scores, labels = torch.zeros(4, 1, 3), torch.tensor([[1, 2]])
        given = LENGTHS[name]([4]), LENGTHS[name]([2])
        loss = functional.ctc_loss(scores.to("kit"), labels.to("kit"), *given)
        assert loss.item() == pytest.approx(functional.ctc_loss(scores, labels, *given).item())


def test_other_lengths_of_ctc_are_no_other_program() -> None:
    with open_session() as session:
        scores = torch.zeros(9, 2, 4, device="kit")
        labels = torch.ones(2, 3, dtype=torch.int64, device="kit")
        compiled = []
        for n in range(3):
            functional.ctc_loss(scores, labels, (9 - n, 7), (3, n)).item()
            compiled.append(len(session.compiles))
    assert compiled[1] == compiled[2]  # the first one fills the tensors, too


def test_a_number_is_read_in_inference_mode_as_outside_of_it() -> None:
    with open_session(strict=True) as session, torch.inference_mode():
        number = torch.full((), 2.5, device="kit")
        assert (number.item(), float(number), bool(number > 2)) == (2.5, 2.5, True)
        assert not session.unlowered


def test_a_host_tensor_that_is_given_the_class_of_kits_is_refused_by_name() -> None:
    """As fastai's `retain_type` does; it was an error of the kit's own."""
    with open_session(Settings(mode="lazy"), cache=CACHE):
        on_kit, host = torch.ones(3, device="kit"), torch.ones(3)
        given = host.as_subclass(type(on_kit))
        with pytest.raises(AttributeError, match=r"move it there instead, by \.to\('kit'\)"):
            given + 1
        with pytest.raises(AttributeError, match="'KitTensor' object has no attribute 'shap'"):
            _ = on_kit.shap
        assert not hasattr(on_kit, "shap")
