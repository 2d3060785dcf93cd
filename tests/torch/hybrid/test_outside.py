"""What a hybridized function has from outside: random numbers of the host, settings, objects."""

from __future__ import annotations

import copy
import functools
import random
import time
import types
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kit

GENERATOR = np.random.default_rng(0)
CONFIG = SimpleNamespace(rate=0.5)


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    CONFIG.rate = 0.5


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.rand, lambda: float(torch.rand(())), GENERATOR.random],
    ids=["random", "numpy", "torch", "a generator of numpy"],
)
def test_random_numbers_of_the_host_are_drawn_at_each_call(draw: Callable[[], float]) -> None:
    @kit.hybridize
    def jitter(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(draw())

    with kit.Session(), pytest.warns(UserWarning, match="jitter runs as it is, because"):
        found = [float(jitter(torch.ones(2, device="kit"))[0]) for _ in range(6)]
    assert len(set(found)) == 6


def helper(x: Any) -> Any:
    return x * CONFIG.rate


class Holder:
    rate = 0.5

    def __init__(self) -> None:
        self.inner = SimpleNamespace(rate=0.5)


class Dropping(nn.Module):
    """Scales what is left by 1 / (1 - p)."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Sequential(nn.Dropout(0.0))

    def run(self, x: Any) -> Any:
        return self.drop(x).amax()


def cases() -> dict[str, tuple[Callable[[Any], Any], Callable[[float], None]]]:
    """name -> a function whose result on ones is a rate, and how the rate is set."""
    closed, held, module = SimpleNamespace(rate=0.5), Holder(), types.ModuleType("config")
    module.__file__ = __file__
    module.rate = 0.5  # type: ignore[attr-defined]
    dropping = Dropping()
    table, long = {"optim": {"rate": 0.5}}, [0.5] * 100

    def put(thing: Any) -> Callable[[float], None]:
        return lambda rate: setattr(thing, "rate", rate)

    @kit.hybridize
    def inner(x: Any) -> Any:
        return x * closed.rate

    return {
        "a closed-over object": (lambda x: x * closed.rate, put(closed)),
        "an object of an object": (lambda x: x * held.inner.rate, put(held.inner)),
        "a default": (lambda x, held=closed: x * held.rate, put(closed)),
        "a global object": (lambda x: x * CONFIG.rate, put(CONFIG)),
        "a module": (lambda x: x * module.rate, put(module)),
        "a function it calls": (lambda x: helper(x), put(CONFIG)),
        "one that is hybridized": (lambda x: inner(x), put(closed)),
        "a table of a table": (
            lambda x: x * table["optim"]["rate"],
            lambda rate: table["optim"].update(rate=rate),
        ),
        "a long list": (lambda x: x * long[70], functools.partial(long.__setitem__, 70)),
        "a partial function": (functools.partial(lambda x, _: helper(x), _=0), put(CONFIG)),
        "a module's layer": (
            lambda x: 1 / dropping.run(x),
            lambda rate: setattr(dropping.drop[0], "p", 1 - rate),
        ),
    }


@pytest.mark.parametrize("name", cases())
def test_what_changes_outside_is_seen(name: str) -> None:
    function, put = cases()[name]
    hybrid = kit.hybridize(function)
    with kit.Session(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(512, device="kit")
        found = []
        for rate in (0.5, 0.5, 0.25, 0.25, 0.5):
            put(rate)
            found.append(float(hybrid(x).amax()))
    assert found == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.5])


def test_a_number_of_a_class_or_of_a_layer_of_a_methods_object_is_seen() -> None:
    class Scale(Holder):
        def by_class(self, x: Any) -> Any:
            return x * self.rate

    dropping = Dropping()
    by_class, by_layer = kit.hybridize(Scale().by_class), kit.hybridize(dropping.run)
    with kit.Session():
        x = torch.ones(512, device="kit")
        found = []
        for rate in (0.5, 0.5, 0.25):
            Scale.rate, dropping.drop[0].p = rate, 1 - rate
            found.append((float(by_class(x)[0]), 1 / float(by_layer(x))))
    assert found == [(0.5, 0.5), (0.5, 0.5), (0.25, 0.25)]


def test_whether_gradients_are_recorded_makes_another_kind_of_call() -> None:
    by_mode = kit.hybridize(lambda x: x * (2 if torch.is_grad_enabled() else 3))
    with kit.Session():
        x = torch.ones(2, device="kit")
        with torch.no_grad():
            assert by_mode(x).tolist() == [3.0] * 2
        assert by_mode(x).tolist() == [2.0] * 2


def test_a_function_that_counts_runs_as_it_is_and_one_that_fills_a_cache_is_learnt() -> None:
    count, cache = SimpleNamespace(calls=0), dict[int, float]()

    @kit.hybridize
    def counted(x: Any) -> Any:
        count.calls += 1
        return x * count.calls

    @kit.hybridize
    def cached(x: Any) -> Any:
        return x * cache.setdefault(len(x), 3.0) + 1

    with kit.Session() as session:
        x = torch.ones(2, device="kit")
        with pytest.warns(UserWarning, match=r"because it changes count\.calls itself, and a rep"):
            assert [float(counted(x)[0]) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        assert [float(cached(x)[0]) for _ in range(4)] == [4.0] * 4
        before = session.metrics()["record.ops"]
        made = cached(x)
        session.wait_all()
        assert session.metrics()["record.ops"] - before == 1
        assert (made.tolist(), cached.reasons) == ([4.0, 4.0], {})


def test_a_function_that_fills_a_list_of_numbers_runs_as_it_is_from_the_third_call_on() -> None:
    """The numbers of a short list tell calls apart, so each call was the first of its kind."""
    calls = list[int]()

    @kit.hybridize
    def counted(x: Any) -> Any:
        calls.append(len(calls))
        return x * len(calls)

    with kit.Session():
        x = torch.ones(2, device="kit")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert [float(counted(x)[0]) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert [str(one.message).partition("because ")[2] for one in said] == [*counted.reasons]
    assert [*counted.reasons] == ["it changes calls itself, and a repetition would not"]


def test_a_function_that_only_writes_a_global_is_told_without_its_name() -> None:
    @kit.hybridize
    def noting(x: Any) -> Any:
        global NOTED
        NOTED = time.perf_counter()
        return x * 2

    with kit.Session(), warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(6):
            noting(torch.ones(2, device="kit"))
    assert all("  " not in reason for reason in noting.reasons)


def test_settings_that_change_at_each_call_end_the_learning() -> None:
    @kit.hybridize
    def scaled(x: Any) -> Any:
        return x * CONFIG.rate

    def at(rate: float) -> float:
        CONFIG.rate = rate
        return float(scaled(x)[0])

    with kit.Session():
        x = torch.ones(2, device="kit")
        with pytest.warns(UserWarning, match="because what it reaches for has changed 64 times"):
            found = [at(float(k)) for k in range(70)]
    assert found == [float(k) for k in range(70)]


class Meter:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    @kit.hybridize
    def scale(self, arrays: list[torch.Tensor]) -> None:
        for a in arrays:
            a.mul_(self.rate)


def test_a_method_is_one_op_in_each_object() -> None:
    with kit.Session():
        x, meters = torch.ones(2, device="kit"), [Meter(2.0), Meter(3.0)]
        for meter in meters * 2:
            meter.scale([x])
        assert x.tolist() == [36.0] * 2
        meters[0].rate = 0.5
        for meter in meters:
            meter.scale([x])
        assert x.tolist() == [54.0] * 2
        assert not any(meter.scale.reasons for meter in meters)


def test_a_copy_and_a_subclass_have_hybrid_methods_of_their_own() -> None:
    class Twice(Meter):
        @kit.hybridize
        def scale(self, arrays: list[torch.Tensor]) -> None:
            super().scale(arrays)
            super().scale(arrays)

    with kit.Session():
        x, one = torch.ones(2, device="kit"), Twice(2.0)
        one.scale([x])
        other = copy.copy(one)
        other.rate = 3.0
        other.scale([x])
        assert x.tolist() == [36.0] * 2


def test_what_python_does_not_bind_is_no_method() -> None:
    class Holds:
        net, act = kit.hybridize(nn.Identity()), kit.hybridize(torch.neg)

        @classmethod
        @kit.hybridize
        def doubled(cls, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with kit.Session():
        x = torch.ones(2, device="kit")
        with pytest.warns(UserWarning, match="its arguments hold a type"):
            assert Holds.doubled(x).tolist() == Holds().doubled(x).tolist() == [2.0] * 2
        assert Holds().act(Holds().net(x)).tolist() == [-1.0] * 2
