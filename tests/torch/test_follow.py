"""What follows the modules of a torch program is told of where it is in their way."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from kit.torch.device import open_session


class Nested(nn.Module):
    """A module within another, so many times."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.fixture
def few_calls() -> Iterator[int]:
    """Python's limit while a model is called: so many calls above those of this test."""
    before, depth = sys.getrecursionlimit(), 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + 400)
    yield sys.getrecursionlimit()
    sys.setrecursionlimit(before)


def test_modules_that_lie_too_deep_have_their_cure_told(few_calls: int) -> None:
    model, x = Nested(90), torch.ones(3)
    assert torch.equal(model(x), x)  # without a session that is not too deep
    with open_session():
        with pytest.raises(RecursionError) as raised:
            model(x)
        (said,) = raised.value.__notes__
        assert f"sys.setrecursionlimit({3 * few_calls})" in said
        sys.setrecursionlimit(3 * few_calls)
        assert torch.equal(model(x), x)
