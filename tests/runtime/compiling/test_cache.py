"""The programs in memory are bounded: a loop whose shapes change does not end the process."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import kit
from kit.runtime.compiling import cache as cache_module
from kit.runtime.compiling import places, reasons
from kit.runtime.compiling.cache import Compiling, ExecutableCache
from kit.torch import dispatch
from kit.torch.device import open_session
from kit.torch.dispatch import tape_of


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


def test_an_error_of_who_is_told_leaves_nobody_waiting_for_the_program() -> None:
    """As Ctrl-C while a progress line is drawn: the next one who needs it waited for ever."""

    def tell(said: str) -> None:
        raise KeyboardInterrupt

    cache = ExecutableCache()
    cache.watch = Compiling(tell)
    with pytest.raises(KeyboardInterrupt):
        cache.find("key", lambda: "program")  # type: ignore[arg-type, return-value]
    assert cache.make_ahead("key", lambda: "program")  # type: ignore[arg-type, return-value]
    assert cache.get("key") == "program"


def test_a_loop_whose_shapes_change_keeps_so_many_programs_and_ops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "MAX_PROGRAMS", 4)
    monkeypatch.setattr(reasons, "KEPT", 2)
    monkeypatch.setattr(dispatch, "MAX_RECIPES", 8)
    monkeypatch.setattr(places, "MAX_FAMILIES", 2)
    monkeypatch.setattr(places, "MAX_KNOWN", 8)
    cache, ops, geometries = ExecutableCache(), [], []
    with open_session(kit.Settings(mode="lazy"), cache=cache) as session:
        row = torch.arange(40.0).to("kit")
        for size in [*range(2, 10), 3]:
            x = torch.arange(float(size))
            found = (x.to("kit")[1:].sin() + 1).sum().item()
            assert found == pytest.approx((x[1:].sin() + 1).sum().item(), rel=1e-5)
            assert (row[size] * 2).item() == 2 * size  # in the end one program for all places
            part = row[size : size + 20]
            made = part.clone(), part.double(), part.view(part.dtype)
            del part, made
            session.mark_step()
            session.issuer.forget()
            ops.append(len(cache.ops))
            geometries.append(len(tape_of(session)._specs))
        (known,) = cache._places.values()
    assert len(cache.executables) <= 4
    assert max(ops[4:]) <= max(ops[:4])
    assert max(geometries[4:]) <= max(geometries[:4])
    assert max(map(len, [known._families, known._known, known._kinds])) <= 16


def test_a_program_that_was_dropped_is_compiled_again_for_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was said to share arrays in another way."""
    monkeypatch.setattr(cache_module, "MAX_PROGRAMS", 1)
    with open_session(kit.Settings(mode="lazy")) as session:
        x = torch.ones(4).to("kit")
        for _ in range(5):
            assert x.sin().sum().item() == pytest.approx(4 * 0.8414710)
            assert (x * 2).sum().item() == 8
            session.mark_step()
    kinds = [compiled.kind for compiled in session.compiles]
    assert kinds[:2] == ["first", "op"]
    assert set(kinds[2:]) == {"evicted"}
    assert "compiled before, and dropped since to make room" in session.compiles[-1].sentence
    assert session.explain().count("programs that had been dropped to make room; let shapes") == 2


@pytest.mark.parametrize("mode", ["lazy", "imperative"])
def test_a_moved_slice_is_no_further_program_that_is_waited_for(mode: str) -> None:
    said: list[str] = []
    cache = ExecutableCache()
    cache.watch = Compiling(said.append)
    with open_session(kit.Settings(mode=mode), cache=cache):
        x = torch.arange(40.0).to("kit")
        for i in range(20):
            assert (x[i] * 2).item() == 2 * i
        assert (x * 3).sum().item() == 2340
    places, ready, of = map(int, re.findall(r"\d+", said[-1])[:3])
    assert (places > 0, of - ready) == (True, 1)
