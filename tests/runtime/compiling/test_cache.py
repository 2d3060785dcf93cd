"""The programs in memory are bounded: a loop whose shapes change does not end the process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kit
from kit.runtime.compiling import cache as cache_module
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session


def test_the_program_used_least_recently_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_PROGRAMS", 3)
    cache, made = ExecutableCache(), []

    def find(key: str) -> Any:
        def make() -> Any:
            made.append(key)
            return f"program {key}"

        return cache.find(key, make)

    for key in "abcad":
        assert find(key) == f"program {key}"
    assert list(cache.executables) == ["c", "a", "d"]
    assert find("b") == "program b"
    assert made == ["a", "b", "c", "d", "b"]
    assert cache.make_ahead("e", lambda: "program e")  # type: ignore[arg-type, return-value]
    assert list(cache.executables) == ["d", "b", "e"]


def test_a_loop_whose_shapes_change_keeps_so_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_PROGRAMS", 4)
    cache = ExecutableCache()
    settings = kit.Settings(mode="lazy")
    with open_session(settings, cache=cache) as session:
        for size in [*range(1, 12), 3]:
            x = torch.arange(float(size))
            found = (x.to("kit").sin() + 1).sum().item()
            assert found == pytest.approx((x.sin() + 1).sum().item(), rel=1e-5)
            session.mark_step()
    assert len(cache.executables) <= 4
