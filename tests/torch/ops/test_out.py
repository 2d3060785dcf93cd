"""`out=` tensors that show a part of memory, or have another shape: torch's memory afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kit.torch.device import open_session

# torch tells of each tensor that it resizes
pytestmark = pytest.mark.filterwarnings("ignore:.*out tensor:UserWarning", "ignore:An output")


def into(part: Any, write: Callable[..., Any]) -> Callable[[str], list[torch.Tensor]]:
    """A call that writes into a part of eight zeros; gives all eight, and the part."""

    def call(device: str) -> list[torch.Tensor]:
        memory = torch.zeros(8, device=device)
        shown = memory[part]
        write(device, shown)
        return [memory, shown]

    return call


CALLS: dict[str, Callable[[str], list[torch.Tensor]]] = {
    "frequencies, which torch writes by halves": lambda d: [
        *(torch.fft.fftfreq(n, device=d) for n in (1, 2, 7, 8)),
        torch.fft.rfftfreq(8, device=d),
    ],
    "a range": into(slice(3, 6), lambda d, out: torch.arange(0, 3, out=out)),
    "a range, with gaps": into(slice(None, None, 2), lambda d, out: torch.arange(4, out=out)),
    "a range into nothing": into(slice(3, 3), lambda d, out: torch.arange(1, 4, out=out)),
    "a range, shorter": into(slice(1, 6), lambda d, out: torch.arange(1, 3, out=out)),
    "a range in a row": into(slice(3), lambda d, out: torch.arange(3, out=out.view(1, 3))),
    "a sum into nothing": into(
        slice(3, 3), lambda d, out: torch.add(torch.ones(3, device=d), 1, out=out)
    ),
    "a sum, shorter": into(
        slice(1, 6), lambda d, out: torch.add(torch.ones(1, 2, device=d), 1, out=out)
    ),
    "parts into nothing": into(
        slice(2, 2), lambda d, out: torch.cat([torch.ones(2, device=d)] * 2, out=out)
    ),
    "steps into nothing": into(slice(5, 5), lambda d, out: torch.linspace(1, 2, 3, out=out)),
    "steps in a row": into(slice(3), lambda d, out: torch.linspace(1, 2, 3, out=out.view(1, 3))),
    "more than there is": lambda d: [torch.arange(9, out=torch.zeros(8, device=d))],
    "other numbers than the memory's": lambda d: [
        torch.arange(3, out=torch.zeros(8, device=d).view(torch.int32)[:0])
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_is_in_the_memory_that_the_tensor_shows(name: str) -> None:
    with open_session():
        found = [x.cpu() for x in CALLS[name]("kit")]
    for ours, theirs in zip(found, CALLS[name]("cpu"), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs)


LARGE = 70_000  # more elements than a call is tried with on the CPU
REFUSED: dict[str, Callable[[str], Any]] = {
    "a quotient": lambda d: torch.div(large(d), 3, out=large(d)),
    "a root": lambda d: torch.sqrt(large(d), out=large(d)),
    "an exponential": lambda d: torch.exp(large(d).float(), out=large(d)),
    "a sum of truths": lambda d: torch.add(large(d), large(d), out=large(d).bool()),
    "a sorted one": lambda d: torch.sort(large(d).float(), out=(large(d), large(d))),
    "a place": lambda d: torch.argmax(large(d).view(-1, 7), 1, out=large(d).float()[:10_000]),
    "a cross product": lambda d: torch.linalg.cross(
        large(d)[:69_999].view(-1, 3).float(), large(d)[:69_999].view(-1, 3).float(),
        out=large(d)[:69_999].view(-1, 3)),
}  # fmt: skip


def large(device: str) -> torch.Tensor:
    return torch.ones(LARGE, dtype=torch.int64, device=device)


@pytest.mark.parametrize("name", REFUSED)
def test_a_large_out_of_another_type_is_refused_as_a_small_one_is(name: str) -> None:
    with open_session():
        with pytest.raises(RuntimeError) as ours:
            REFUSED[name]("kit")
        assert torch.ones(2, device="kit").sum().item() == 2
    with pytest.raises(RuntimeError) as theirs:
        REFUSED[name]("cpu")
    if name != "a cross product":  # its shape is asked first of small ones
        assert str(ours.value) == str(theirs.value)
