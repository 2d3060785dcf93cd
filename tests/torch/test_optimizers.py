"""An optimizer that leaves its implementation open: fused on device kit, and torch's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kit.runs.settings import Settings
from kit.torch.device import open_session

pytestmark = pytest.mark.as_shipped


def train(device: str, steps: int, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n).to(device)) for n in (3, 5)]
    optimizer = kind(params, lr=0.05, **options)
    for i in range(steps):
        sum(((p - i) ** 2).sum() for p in params).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer, [p.detach().cpu() for p in params]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_the_choice_left_open_is_fused_and_gives_torchs_numbers(kind: Any, options: Any) -> None:
    _, expected = train("cpu", 12, kind, **options)
    with open_session(Settings(mode="lazy"), strict=True) as session:
        optimizer, got = train("kit", 12, kind, **options)
        assert optimizer.param_groups[0]["fused"] is True
        assert [s.cause for s in session.syncs] == ["copy to host"] * 2
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "said", [{"foreach": True}, {"foreach": False}, {"capturable": True}, {"fused": False}], ids=str
)
def test_what_the_program_says_stays(said: dict[str, bool]) -> None:
    with open_session():
        optimizer, _ = train("kit", 2, **said)
        assert {key: optimizer.param_groups[0][key] for key in said} == said
        assert not optimizer.param_groups[0]["fused"]


def test_an_optimizer_of_another_device_and_other_kinds_are_left_alone() -> None:
    with open_session():
        with pytest.warns(UserWarning, match="trains on the CPU inside a session"):
            optimizer, _ = train("cpu", 2)
        assert optimizer.param_groups[0]["fused"] is None
        optimizer, _ = train("kit", 2, torch.optim.SGD)
        assert optimizer.param_groups[0]["fused"] is None


def test_a_state_from_another_implementation_goes_on() -> None:
    native, _ = train("cpu", 4)
    state = native.state_dict()
    with open_session():
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n).to("kit")) for n in (3, 5)]
        optimizer = torch.optim.AdamW(params, lr=0.05)
        optimizer.load_state_dict(state)
        sum(p.sum() for p in params).backward()
        optimizer.step()
        assert float(optimizer.state[params[0]]["step"]) == 5
