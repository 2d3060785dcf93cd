"""What device kit draws has the distribution that CPU torch draws from, and follows the seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kit.torch.device import open_session

COUNT = 20_000
Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "uniform_": lambda x: x.uniform_(-1.0, 3.0),
    "uniform_ of complex": lambda x: torch.view_as_real(x.cfloat().uniform_(-1, 3)).flatten(),
    "normal_": lambda x: x.normal_(0.5, 2.0),
    "normal_ of bfloat16": lambda x: x.bfloat16().normal_(),
    "exponential_": lambda x: x.exponential_(2.0),
    "geometric_": lambda x: x.geometric_(0.3),
    "log_normal_": lambda x: x.log_normal_(0.1, 0.2),
    "cauchy_": lambda x: x.cauchy_(1.0, 2.0).atan(),
    "bernoulli_": lambda x: x.bernoulli_(0.2),
    "random_": lambda x: x.random_() / 2.0**24,
    "random_ of int8": lambda x: x.to(torch.int8).random_(),
    "random_ between": lambda x: x.long().random_(3, 9),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "multinomial": lambda x: torch.multinomial(x[:4] + 1, COUNT, replacement=True),
    "second of multinomial": lambda x: torch.multinomial(
        torch.arange(1.0, 5).to(x.device).expand(COUNT, 4), 2
    )[:, 1],
    "multinomial of bfloat16": lambda x: torch.multinomial(
        torch.ones(100, dtype=torch.bfloat16).to(x.device), COUNT, replacement=True
    ),
    "first of multinomial of float16": lambda x: torch.multinomial(
        torch.ones(300, dtype=torch.float16).to(x.device).expand(1000, 300), 1
    ),
    "rrelu": lambda x: torch.nn.functional.rrelu(x - 1, training=True),
    "dropout": lambda x: torch.nn.functional.dropout(x + 1, 0.3),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x + 1, 0.3, training=True),
    "normal of tensors": lambda x: torch.normal(x, x + 1),
}


def drawn(draw: Draw, device: str, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return draw(torch.zeros(COUNT, device=device)).cpu()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_has_torchs_distribution_and_follows_the_seed(draw: Draw) -> None:
    expected = drawn(draw, "cpu", 1)
    with open_session() as session:
        found, again, other = (drawn(draw, "kit", seed) for seed in (1, 1, 2))
        assert not session.unlowered
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert torch.equal(found, again)
    assert not torch.equal(found, other)
    wide, reference = found.double(), expected.double()
    spread = reference.std().item()
    assert abs(wide.mean() - reference.mean()) < 6 * spread * (2 / COUNT) ** 0.5
    assert abs(wide.std() - spread) < 0.05 * spread + 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_uniform_draw_never_gives_its_upper_end(dtype: torch.dtype) -> None:
    """`x[(torch.rand(n) * len(x)).long()]` would be out of bounds."""
    with open_session():
        assert torch.rand(COUNT, dtype=dtype, device="kit").max() < 1
        assert torch.empty(COUNT, dtype=dtype, device="kit").uniform_(-3, -2).max() < -2


def test_an_exponential_draw_is_never_zero() -> None:
    """Else `functional.gumbel_softmax` is NaN once in a few million numbers."""
    torch.manual_seed(9)  # one of jax's million is 0
    with open_session():
        assert torch.empty(1 << 20, device="kit").exponential_().min().item() > 0
        assert torch.empty(1 << 20, device="kit").exponential_(1e30).min().item() > 0


def test_a_draw_without_replacement_repeats_nothing() -> None:
    with open_session():
        picks = torch.multinomial(torch.rand(500, 6, device="kit") + 0.1, 6).cpu()
    assert torch.equal(picks.sort(-1).values, torch.arange(6).expand(500, 6))


def test_more_draws_than_there_are_without_replacement_raise_torchs_error() -> None:
    with open_session(), pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(torch.ones(3, device="kit"), 4)


REFUSED: dict[str, Draw] = {
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(1, 2),
    "log_normal_": lambda x: x.log_normal_(),
    "exponential_": lambda x: x.exponential_(),
    "cauchy_": lambda x: x.cauchy_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_draws_of_no_such_type_raises_torchs_error(name: str) -> None:
    before = torch.get_rng_state()
    for dtype in (torch.bool, torch.int64, torch.complex64):
        with open_session():
            found, expected = (said(REFUSED[name], dtype, on) for on in ("kit", "cpu"))
        assert found == expected, dtype
        torch.set_rng_state(before)


def said(draw: Draw, dtype: torch.dtype, device: str) -> str:
    """The error, in words; "" if there is none."""
    try:
        draw(torch.zeros(3, dtype=dtype, device=device))
    except (RuntimeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
