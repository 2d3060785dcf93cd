"""Ops that public models use and small tests do not: no host run, and the numbers of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kit.torch.device import open_session

ENDS = torch.tensor([2, 2, 8], dtype=torch.int32)  # the second expert has nothing to do
GROUPS = [slice(0, 2), slice(2, 2), slice(2, 8)]


def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[part] @ y[i] for i, part in enumerate(GROUPS)])


def columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[i] @ y[:, part] for i, part in enumerate(GROUPS)], -1)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, part] @ y[part] for part in GROUPS])


Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("by_hand", "first", "second"),
    [(rows, (8, 16), (3, 16, 8)), (columns, (3, 8, 16), (16, 8)), (summed, (16, 8), (8, 16))],
    ids=["rows", "columns", "summed"],
)
def test_experts_multiply_their_groups(
    by_hand: Callable[..., torch.Tensor], first: Shape, second: Shape
) -> None:
    x, y = torch.randn(first).requires_grad_(), torch.randn(second).requires_grad_()
    expected = by_hand(x, y)
    expected.square().sum().backward()
    with open_session(strict=True):
        a, b = (t.detach().to("kit").requires_grad_() for t in (x, y))
        found = torch._grouped_mm(a, b, offs=ENDS.to("kit"))
        found.square().sum().backward()
        torch.testing.assert_close(found.detach().cpu(), expected.detach())
        torch.testing.assert_close(a.grad.cpu(), x.grad)
        torch.testing.assert_close(b.grad.cpu(), y.grad)


def test_experts_of_equal_size_need_no_ends() -> None:
    x, y = torch.randn(3, 8, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    with open_session(strict=True):
        found = torch._grouped_mm(x.to("kit"), y.to("kit")).cpu()
    torch.testing.assert_close(found, x @ y)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_weight_with_a_norm_of_its_own_learns_what_it_learns_in_torch(dim: int) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        layer = torch.nn.Conv1d(2, 3, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(12.0).reshape(3, 2, 2) - 4)
        layer = torch.nn.utils.parametrizations.weight_norm(layer, dim=dim).to(device)
        layer(torch.ones(1, 2, 4, device=device)).square().sum().backward()
        return [p.grad.cpu() for name, p in sorted(layer.named_parameters()) if "bias" not in name]

    torch.manual_seed(1)
    expected = gradients("cpu")
    torch.manual_seed(1)
    with open_session(strict=True):
        found = gradients("kit")
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("truths", [[True, True], [True, False], [False, False]])
def test_whether_all_or_any_are_true(truths: list[bool]) -> None:
    with open_session(strict=True):
        x = torch.tensor(truths, device="kit")
        assert torch._is_all_true(x).item() is all(truths)
        assert torch._is_any_true(x).item() is any(truths)
