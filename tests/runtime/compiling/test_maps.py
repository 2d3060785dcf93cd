"""The programs in memory leave the process the memory maps that it needs to live."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kit
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.compiling.maps import Maps, count_maps, maps_of_process
from kit.torch.device import open_session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")


def test_maps_are_counted_as_the_system_lists_them() -> None:
    with open("/proc/self/maps") as lines:
        assert abs(count_maps() - len(lines.readlines())) <= 2
    assert maps_of_process().limit >= 1000


def _steps(cache: ExecutableCache, sizes: range, check: Callable[[], object]) -> int:
    """A step for each size, whose loss is kept; gives how many programs were compiled."""
    losses = []
    with open_session(kit.Settings(mode="lazy"), cache=cache) as session:
        for size in sizes:
            x = torch.ones(size, 3, device="kit")
            losses.append((x @ x.T).exp().sum())
            assert losses[-1].item() == pytest.approx(size * size * 20.0855369, rel=1e-4)
            check()
        return int(session.metrics()["cache.misses"])


def test_a_loop_whose_shapes_change_stays_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier session has left behind in its cache makes room, too."""
    monkeypatch.setattr("kit.runtime.compiling.maps._PAUSE", 0)
    old, new = ExecutableCache(), ExecutableCache()
    kept = _steps(old, range(1, 12), count_maps)
    most = count_maps() + 100
    monkeypatch.setattr(maps_of_process(), "limit", most / 0.75)
    used: list[int] = []
    compiled = _steps(new, range(1, 60), lambda: used.append(count_maps()))
    assert max(used) < most + 50  # those of one program, and what else the process asks for
    assert len(new.executables) < compiled
    assert len(old.executables) < kept


def test_maps_that_are_not_the_kits_are_said_once() -> None:
    maps = Maps()
    maps.limit = count_maps()  # over three quarters of it
    with pytest.warns(UserWarning, match="hardly any of them for programs of kit"):
        maps.make_room()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps.make_room()


def test_without_a_limit_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, which has no such files."""
    for name in ("_MAPS", "_LIMIT"):
        monkeypatch.setattr(f"kit.runtime.compiling.maps.{name}", Path("/nowhere"))
    maps, cache = Maps(), ExecutableCache()
    maps.watch(cache)
    for key in "ab":
        cache.find(key, lambda: "program")  # type: ignore[arg-type, return-value]
    maps.make_room()
    assert len(cache.executables) == 2
