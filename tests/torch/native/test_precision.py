"""With how many bits a GPU multiplies float32 is torch's own setting, as it is natively."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from kit.runs.settings import Settings
from kit.runtime.compiling import checks
from kit.runtime.session.session import Session
from kit.torch.device import open_session
from kit.torch.dispatch import Dispatcher

LAZY = Settings(mode="lazy", check_indices="off")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """XLA writes into its programs what a GPU shall do; a CPU then ignores it."""
    monkeypatch.setattr(checks, "GPUS", ("cpu",))
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def exact(session: Session) -> list[bool]:
    """Of each product in the programs so far: is it computed with all bits?"""
    texts = [e.compiled.as_text() or "" for e in session._cache.executables.values()]
    lines = [line for text in texts for line in text.splitlines()]
    products = [x for x in lines if " dot(" in x or " convolution(" in x or "custom-call(" in x]
    return ["operand_precision={highest,highest}" in x for x in products]


CALLS = {
    "matmul": (lambda d: torch.ones(8, 8, device=d) @ torch.ones(8, 8, device=d), True),
    "linear": (lambda d: nn.Linear(8, 8).to(d)(torch.ones(3, 8, device=d)), True),
    "attention": (lambda d: nn.functional.scaled_dot_product_attention(
        *[torch.ones(1, 2, 4, 8, device=d)] * 3), True),
    "half": (lambda d: torch.ones(8, 8, device=d).half() @ torch.ones(8, 8, device=d).half(),
             False),
    "convolution": (lambda d: nn.Conv1d(4, 4, 3).to(d)(torch.ones(1, 4, 8, device=d)), False),
    "lstm": (lambda d: nn.LSTM(4, 4).to(d)(torch.ones(2, 1, 4, device=d))[0], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_products_are_exact_and_convolutions_are_not_by_torchs_defaults(name: str) -> None:
    call, is_exact = CALLS[name]
    with open_session(LAZY) as session:
        call("kit").float().sum().item()
        found = exact(session)
    assert found
    assert set(found) == {is_exact}


def test_a_program_that_allows_tf32_gets_it_and_the_reason_is_said() -> None:
    with open_session(LAZY) as session:
        x = torch.ones(8, 8).to("kit")
        (x @ x).sum().item()
        session.mark_step()
        torch.set_float32_matmul_precision("high")
        session.mark_step()
        (x @ x).sum().item()
        assert exact(session) == [True, False]
        reasons = [(c.kind, c.now) for c in session.compiles]
    assert reasons[-1] == ("precision", "TF32 where a GPU has it")


def test_a_replayed_step_follows_too() -> None:
    with open_session(LAZY.replace(step_mode="replay")) as session:
        x = torch.ones(8, 8).to("kit")

        def step() -> torch.Tensor:
            return (x @ x).sum()

        for _ in range(6):
            session.run_step(step)
        assert set(exact(session)) == {True}
        torch.set_float32_matmul_precision("high")
        for _ in range(3):
            session.run_step(step)
        session.wait_all()
        assert set(exact(session)) == {True, False}


def test_each_of_torchs_settings_is_its_own() -> None:
    assert str(Dispatcher.precision()) == "float32 in full: products"
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
        assert str(Dispatcher.precision()) == "float32 in full: products, convolutions, recurrent"
        torch.set_float32_matmul_precision("medium")
        assert str(Dispatcher.precision()) == "float32 in full: convolutions, recurrent"
