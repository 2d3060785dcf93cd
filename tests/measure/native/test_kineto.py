"""Kineto lets go of CUPTI before the next profile begins, with a Kineto that does as on a GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from kit.measure.native import kineto, others
from kit.measure.native.kineto import given_back, let_go


class Kineto:
    """Holds CUPTI from its first profile on; asks the environment as a profile begins and ends."""

    def __init__(self) -> None:
        self.holds = False
        self.goes = False
        self.seen: list[bool] = []  # of each profile: did it see kernels?

    def begin(self) -> None:
        """One that finds CUPTI held from before loses it to the teardown."""
        is_lost = self.holds and self._teardown()
        self.seen.append(not is_lost)
        self.holds = True

    def end(self) -> None:
        """It lets go with the next call of CUDA."""
        self.goes = self._teardown()

    def synchronize(self) -> None:
        """A call of CUDA."""
        self.holds = self.holds and not self.goes

    def profile(self, **_: Any) -> Kineto:
        """What `torch.profiler.profile(...)` makes."""
        return self

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def _teardown(self) -> bool:
        return os.environ.get("TEARDOWN_CUPTI") == "1"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Kineto:
    made = Kineto()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.profiler, "profile", made.profile)
    monkeypatch.setattr(kineto, "has_subscriber", lambda: made.holds)
    monkeypatch.setattr(kineto, "_LETS_GO_S", 0.05)
    monkeypatch.setenv("TEARDOWN_CUPTI", "")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    return made


def of_the_kit(gpu: Kineto) -> None:
    """A profile of native torch."""
    let_go()
    with given_back():
        gpu.begin()
        gpu.end()


def test_after_a_profile_of_the_programs_own_the_kits_sees_kernels(gpu: Kineto) -> None:
    with torch.profiler.profile():
        pass
    assert gpu.holds
    of_the_kit(gpu)
    of_the_kit(gpu)
    own, empty, *kits = gpu.seen
    assert [own, empty] == [True, False]
    assert kits == [True, True], "the second found CUPTI free, and needs no empty one"
    assert not gpu.holds


def test_xlas_profiler_finds_it_free(gpu: Kineto) -> None:
    with torch.profiler.profile():
        pass
    let_go()
    assert not gpu.holds


def test_nothing_is_profiled_where_it_is_free(gpu: Kineto) -> None:
    let_go()
    assert gpu.seen == []


@pytest.mark.parametrize("why", ["the program profiles now", "the user forbids it", "old CUDA"])
def test_it_stays_where_it_is(why: str, gpu: Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.holds = True
    if why == "the program profiles now":
        monkeypatch.setattr(others, "is_profiling", lambda: True)
    elif why == "the user forbids it":
        monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    else:
        monkeypatch.setattr(torch.version, "cuda", "12.4")
    let_go()
    assert gpu.seen == []
    assert gpu.holds
