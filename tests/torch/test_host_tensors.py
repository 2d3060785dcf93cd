"""CPU tensors beside those of device kit: what CUDA takes, and CPU torch's values for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from kit.runs.settings import Settings
from kit.runtime.session.executor import ExecutableCache
from kit.torch.device import open_session

CACHE = ExecutableCache()
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
