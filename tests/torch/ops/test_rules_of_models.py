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


@pytest.mark.parametrize("form", ["matrix_exp", "cayley", "householder"])
def test_an_orthogonal_weight_learns_what_it_learns_in_torch(form: str) -> None:
    """The product of reflections, of which torch begins with each form, was run on the host."""

    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(6, 4), "weight", form)
        layer = layer.to(device)
        layer(torch.arange(12.0).reshape(2, 6).to(device)).square().sum().backward()
        return [layer.weight.detach().cpu(), *(p.grad.cpu() for p in layer.parameters())]

    expected = gradients("cpu")
    with open_session(strict=True):
        found = gradients("kit")
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def flow(x: torch.Tensor) -> torch.Tensor:
    """Glow's convolution by a matrix that can be inverted, and the volume that it takes."""
    return torch.linalg.slogdet(x[0])[1] + torch.det(x.mT).sum() + torch.logdet(x @ x.mT).sum()


def process(x: torch.Tensor) -> torch.Tensor:
    """What a Gaussian process has of its covariance."""
    factor = torch.linalg.cholesky(x @ x.mT + torch.eye(3, device=x.device))
    solved = torch.cholesky_solve(x, factor) + torch.cholesky_solve(x, factor.mT, upper=True)
    return (solved * x).sum() + factor.diagonal(0, -2, -1).log().sum()


def beliefs(x: torch.Tensor) -> torch.Tensor:
    """How far two distributions of probabilities are apart, whose gradient has trigammas."""
    one = torch.distributions.Dirichlet(x.exp(), validate_args=False)
    other = torch.distributions.Dirichlet(torch.ones_like(x), validate_args=False)
    return torch.distributions.kl_divergence(one, other).sum()


@pytest.mark.parametrize("of", [flow, process, beliefs])
def test_what_models_take_of_factors_and_gammas_is_torchs(of: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([[[2.0, 1, 0], [0.5, -1, 1], [1, 0, 3]], [[0, 1, 1], [1, 0, 2], [1, 1, 5]]])
    expected = x.clone().requires_grad_()
    (loss := of(expected)).backward()
    with open_session() as session:
        given = x.to("kit").requires_grad_()
        (found := of(given)).backward()
        torch.testing.assert_close(found.detach().cpu(), loss.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(given.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)
        assert not session.unlowered


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("part", ["activation", "weight"])
def test_training_for_fewer_bits_is_torchs(part: str) -> None:
    """What was observed counted as written, and its backward pass failed."""
    from torch.ao.quantization import default_per_channel_weight_fake_quant as by_channel
    from torch.ao.quantization import get_default_qat_qconfig

    def numbers(device: str) -> list[torch.Tensor]:
        rounded = getattr(get_default_qat_qconfig("fbgemm"), part)().to(device)
        channels = by_channel().to(device)
        x = torch.linspace(-1, 2, 12).reshape(3, 4).to(device).requires_grad_()
        for _ in range(3):
            y = (x * x).relu()
            (rounded(y) * channels(x)).square().sum().backward()
        return [x.grad.cpu(), rounded.scale.cpu(), channels.scale.cpu(), channels.zero_point.cpu()]

    expected = numbers("cpu")
    with open_session():
        found = numbers("kit")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
