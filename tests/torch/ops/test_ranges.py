"""Numbers that a tensor's type does not hold: refused in torch's words, at any call of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kit.torch.device import open_session

inf, nan = float("inf"), float("nan")


def at(device: str) -> torch.Tensor:
    return torch.tensor([1], device=device)


# What takes a number, of a tensor and the number.
CALLS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "masked_fill": lambda x, n: x.masked_fill(x == 0, n),
    "masked_fill_": lambda x, n: x.masked_fill_(x == 0, n),
    "fill_": lambda x, n: x.fill_(n),
    "fill_ by a tensor of the host": lambda x, n: x.fill_(torch.tensor(n)),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype, device=x.device),
    "full_like": lambda x, n: torch.full_like(x, n),
    "full_like of another type": lambda x, n: torch.full_like(x.double(), n, dtype=x.dtype),
    "new_full": lambda x, n: x.new_full((2,), n),
    "clamp from below": lambda x, n: x.clamp(n),
    "clamp from above": lambda x, n: x.clamp_(max=n),
    "clamp_min": lambda x, n: x.clamp_min(n),
    "clamp_max": lambda x, n: x.clamp_max(n),
    "index_fill": lambda x, n: x.index_fill(0, at(str(x.device)), n),
    "scatter": lambda x, n: x.scatter(0, at(str(x.device)), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "hardtanh": lambda x, n: F.hardtanh(x, 0, n),
    "threshold": lambda x, n: F.threshold(x, 0, n),
    "add, by a factor": lambda x, n: torch.add(x, x, alpha=n),
    "add": lambda x, n: x + n,
    "mul": lambda x, n: x * n,
    "compare": lambda x, n: x < n,
    "where": lambda x, n: torch.where(x == 0, n, x),
}
NUMBERS: dict[torch.dtype, list[Any]] = {
    torch.float16: [2.5, 65504.0, 65505.0, -1e9, -inf, nan],
    torch.bfloat16: [2.5, -1e9, 3.4e38, -1e39],
    torch.float32: [2.5, -1e30, 1e39, inf],
    torch.uint8: [3, 255, 256, -1, -256, 300.5, 2.5, nan],
    torch.int32: [3, 2**31, -1.5, 1e12, inf],
    torch.int64: [3, 2.5, 1e20, nan],
    torch.bool: [5, 300.5],
}


def outcome(call: Callable[[torch.Tensor, Any], torch.Tensor], x: torch.Tensor, number: Any) -> Any:
    """The CPU tensor that a call gives, or the words of its error."""
    try:
        return call(x.clone(), number).cpu()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).replace("KitTensor", "Tensor")[:60]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_a_number_is_taken_or_refused_as_torchs_cpu_does(dtype: torch.dtype) -> None:
    """In turn in one session: floats are no part of what makes a kind of call."""
    x = torch.tensor([0, 1, 0, 1]).to(dtype)
    with open_session():
        given = x.to("kit")
        for name, call in CALLS.items():
            for number in NUMBERS[dtype]:
                ours, theirs = outcome(call, given, number), outcome(call, x, number)
                if isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
                    torch.testing.assert_close(
                        ours, theirs, equal_nan=True, msg=f"{name} with {number}"
                    )
                else:
                    assert ours == theirs, f"{name} with {number}"


def test_a_large_tensor_takes_no_other_numbers_than_a_small_one() -> None:
    with open_session():
        image = torch.ones(300, 300, dtype=torch.uint8, device="kit")
        scores = torch.ones(300, 300, device="kit").half()
        with pytest.raises(RuntimeError, match="uint8_t without overflow"):
            image.clamp(max=256)
        with pytest.raises(RuntimeError, match="Half without overflow"):
            scores.clamp(max=100_000)
        assert scores.masked_fill(scores > 0, -1e4).min().item() == -1e4
        with pytest.raises(RuntimeError, match="Half without overflow") as caught:
            scores.masked_fill(scores > 0, -1e9)
        assert scores.masked_fill(scores > 0, -inf).min().item() == -inf
    assert "kit" not in str(caught.value)


DRAWS: dict[str, Callable[[str], torch.Tensor]] = {
    "bytes": lambda d: torch.randint(0, 300, (5,), dtype=torch.uint8, device=d),
    "bytes from below": lambda d: torch.randint(-1, 3, (5,), dtype=torch.uint8, device=d),
    "small ones": lambda d: torch.zeros(5, dtype=torch.int8, device=d).random_(-200, 200),
    "small ones up to": lambda d: torch.zeros(5, dtype=torch.int8, device=d).random_(200),
    "halves": lambda d: torch.randint(0, 100_000, (5,), dtype=torch.float16, device=d),
    "truths": lambda d: torch.zeros(5, dtype=torch.bool, device=d).random_(3),
    "complex ones": lambda d: torch.zeros(5, dtype=torch.complex64, device=d).random_(3),
    "like bytes": lambda d: torch.randint_like(torch.zeros(5, device=d).byte(), 300),
    "from nothing": lambda d: torch.randint_like(torch.zeros(5, device=d), 5, 5),
    "from less than nothing": lambda d: torch.zeros(5, device=d).random_(6, 5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_beyond_the_range_of_its_type_is_refused(name: str) -> None:
    with open_session(), pytest.raises(RuntimeError) as ours:
        DRAWS[name]("kit")
    with pytest.raises(RuntimeError) as theirs:
        DRAWS[name]("cpu")
    assert str(ours.value) == str(theirs.value)


def test_a_draw_takes_the_whole_range_of_its_type() -> None:
    with open_session():
        drawn = torch.randint(0, 256, (4000,), dtype=torch.uint8, device="kit")
        signed = torch.zeros(4000, dtype=torch.int8, device="kit").random_(-128, 128)
        assert (drawn.min().item(), drawn.max().item()) == (0, 255)
        assert (signed.min().item(), signed.max().item()) == (-128, 127)
