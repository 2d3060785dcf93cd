"""Steps that read a number, and what changes it: each in another place that Python has for one."""

from __future__ import annotations

import os
import sys
from collections import ChainMap, UserDict, deque
from contextvars import ContextVar
from functools import lru_cache, partial
from os import getenv
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Weights:
    """What a program keeps the numbers of its loss in."""

    def __init__(self, by: float) -> None:
        self.by = by


BY_OBJECT, BY_DICT, BY_NUMBER = Weights(2.0), {"loss": {"by": 2.0}}, 2.0


def in_a_function(x: torch.Tensor) -> torch.Tensor:
    return x * BY_NUMBER


def of_an_object(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        BY_OBJECT.by = by

    return change, lambda: x * BY_OBJECT.by


def of_a_dict_in_a_dict(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        BY_DICT["loss"]["by"] = by

    return change, lambda: x * BY_DICT["loss"]["by"]


def of_a_function_that_is_called(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: in_a_function(x)


def of_a_list_of_tensors(x: torch.Tensor) -> Any:
    weights = [torch.full((), 2.0, device="kit"), torch.zeros((), device="kit")]

    def change(by: float) -> None:
        weights[0] = torch.full((), by, device="kit")

    return change, lambda: x * weights[0] + weights[1]


def of_a_list_that_grows(x: torch.Tensor) -> Any:
    weights = [2.0]

    def change(by: float) -> None:
        weights[:] = [2.0, by - 2.0] if by != 2.0 else [2.0]

    return change, lambda: x * sum(weights)


def of_an_array(x: torch.Tensor) -> Any:
    weights = np.full(1, 2.0)

    def change(by: float) -> None:
        weights[0] = by

    return change, lambda: x * float(weights[0])


def of_a_tensor_of_the_host(x: torch.Tensor) -> Any:
    weights = torch.full((2,), 2.0)

    def change(by: float) -> None:
        weights.fill_(by)

    return change, lambda: x * weights.to("kit")


def of_a_set(x: torch.Tensor) -> Any:
    words = {"2"}

    def change(by: float) -> None:
        words.clear(), words.add(f"{by:g}")

    return change, lambda: x * (5.0 if "5" in words else 2.0)


def of_a_key(x: torch.Tensor) -> Any:
    words = {"2": 0}

    def change(by: float) -> None:
        words[f"{by:g}"] = words.popitem()[1]

    return change, lambda: x * (5.0 if "5" in words else 2.0)


def of_a_queue(x: torch.Tensor) -> Any:
    weights = deque([2.0, 5.0])

    def change(by: float) -> None:
        weights.rotate(by != weights[0])

    return change, lambda: x * weights[0]


def of_the_environment(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        os.environ["KIT_TEST_WEIGHT"] = f"{by}"

    return change, lambda: x * float(os.environ["KIT_TEST_WEIGHT"])


def by_getenv(x: torch.Tensor) -> Any:
    return of_the_environment(x)[0], lambda: x * float(getenv("KIT_TEST_WEIGHT") or 0)


def by_getenv_in_a_class(x: torch.Tensor) -> Any:
    class Reads:
        ask = staticmethod(getenv)

    reads = Reads()
    return of_the_environment(x)[0], lambda: x * float(reads.ask("KIT_TEST_WEIGHT") or 0)


def by_partial_getenv(x: torch.Tensor) -> Any:
    ask = {"by": partial(getenv, "KIT_TEST_WEIGHT")}
    return of_the_environment(x)[0], lambda: x * float(ask["by"]() or 0)


def by_os_getenvb(x: torch.Tensor) -> Any:
    return of_the_environment(x)[0], lambda: x * float(os.getenvb(b"KIT_TEST_WEIGHT") or 0)


def in_the_body_of_a_class(x: torch.Tensor) -> Any:
    def step() -> torch.Tensor:
        class Choice:
            by = BY_NUMBER

        return x * Choice.by

    return of_a_function_that_is_called(x)[0], step


def of_a_cached_function(x: torch.Tensor) -> Any:
    @lru_cache
    def weight() -> float:
        return BY_OBJECT.by

    def change(by: float) -> None:
        BY_OBJECT.by = by
        weight.cache_clear()

    return change, lambda: x * weight()


def of_a_context(x: torch.Tensor) -> Any:
    weight: ContextVar[float] = ContextVar("weight")
    return weight.set, lambda: x * weight.get()


def of_arguments(x: torch.Tensor) -> Any:
    weights = [2.0]

    def change(by: float) -> None:
        weights[0] = by

    return change, partial(lambda by: x * by[0], weights)


def of_a_function_of_torchs(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        F.kit_test = lambda y: y * by  # type: ignore[attr-defined]

    change(2.0)
    return change, lambda: F.kit_test(x)  # type: ignore[attr-defined]


class Base:
    """Attributes of a class, and what its methods ask."""

    weight = 2.0
    __slots__ = ("inner", "n")

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def of_a_global(self, x: torch.Tensor) -> torch.Tensor:
        return x * BY_NUMBER

    @property
    def twice(self) -> torch.Tensor:
        return self.inner[0]


class Derived(Base):
    pass


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * BY_NUMBER


def of_a_class(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        Base.weight = by

    return change, lambda: x * Base.weight


def of_a_base_class(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        Base.weight = by

    return change, lambda: made.loss(x)


def of_a_method_that_is_called(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: made.of_a_global(x)


def of_a_layer(x: torch.Tensor) -> Any:
    made = nn.Sequential(Scaled())

    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: made(x)


def far_away(x: torch.Tensor) -> Any:
    settings = SimpleNamespace(loss=[SimpleNamespace(of={"by": SimpleNamespace(weight=2.0)})])

    def change(by: float) -> None:
        settings.loss[0].of["by"].weight = by

    return change, lambda: x * settings.loss[0].of["by"].weight


def of_a_slot(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        made.inner = [by]

    change(2.0)
    return change, lambda: x * made.twice


def by_its_name(x: torch.Tensor) -> Any:
    made = Weights(2.0)

    def change(by: float) -> None:
        made.by = by

    return change, lambda: x * getattr(made, "b" + "y")


def of_a_box_of_pythons(x: torch.Tensor) -> Any:
    weights = ChainMap({}, UserDict(by=2.0))

    def change(by: float) -> None:
        weights.maps[1]["by"] = by

    return change, lambda: x * weights["by"]


def of_an_object_in_a_set(x: torch.Tensor) -> Any:
    weights = {Weights(2.0)}

    def change(by: float) -> None:
        next(iter(weights)).by = by

    return change, lambda: x * next(iter(weights)).by


def of_raw_bytes(x: torch.Tensor) -> Any:
    weights = bytearray(1)

    def change(by: float) -> None:
        weights[0] = int(by)

    return change, lambda: x * weights[0]


def of_an_operator(x: torch.Tensor) -> Any:
    class Number:
        hidden = 2.0

        def __float__(self) -> float:
            return self.hidden

    made = Number()

    def change(by: float) -> None:
        made.hidden = by

    return change, lambda: x * float(made)


def of_an_attribute_that_comes(x: torch.Tensor) -> Any:
    class Number: ...

    made: Any = Number()

    def change(by: float) -> None:
        if by != 2.0:
            made.by = by

    return change, lambda: x * (made.by if hasattr(made, "by") else 2.0)


def of_a_method_that_comes(x: torch.Tensor) -> Any:
    class Base:
        def by(self) -> float:
            return 2.0

    class Number(Base): ...

    made = Number()

    def change(by: float) -> None:
        Number.by = lambda self: by  # type: ignore[method-assign]

    return change, lambda: x * made.by()


def of_another_class(x: torch.Tensor) -> Any:
    class Number:
        def by(self) -> float:
            return 2.0

    class Other:
        def by(self) -> float:
            return 5.0

    made: Any = Number()

    def change(by: float) -> None:
        made.__class__ = Number if by == 2.0 else Other

    return change, lambda: x * made.by()


def of_other_code(x: torch.Tensor) -> Any:
    """As IPython's autoreload changes it."""

    def weight() -> float:
        return 2.0

    def other() -> float:
        return 5.0

    def change(by: float) -> None:
        weight.__code__ = (lambda: 2.0).__code__ if by == 2.0 else other.__code__

    return change, lambda: x * weight()


def of_a_function_that_has_it(x: torch.Tensor) -> Any:
    def weight() -> Any:
        return weight.by  # type: ignore[attr-defined]

    def change(by: float) -> None:
        weight.by = by  # type: ignore[attr-defined]

    change(2.0)
    return change, lambda: x * weight()


def of_an_object_that_is_made(x: torch.Tensor) -> Any:
    weights = {"by": 2.0}

    class Number:
        def __init__(self) -> None:
            self.by = weights["by"]

    def change(by: float) -> None:
        weights["by"] = by

    return change, lambda: x * Number().by


def of_a_module_that_it_imports(x: torch.Tensor) -> Any:
    sys.modules["settings_of_a_step"] = settings = ModuleType("settings_of_a_step")

    def change(by: float) -> None:
        settings.by = by  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        from settings_of_a_step import by  # type: ignore[import-not-found]

        return x * by  # type: ignore[no-any-return]

    return change, step


def in_a_function_decorated_by_torch(x: torch.Tensor) -> Any:
    weights = {"by": 2.0}

    def change(by: float) -> None:
        weights["by"] = by

    @torch.no_grad()
    def step() -> torch.Tensor:
        return x * weights["by"]

    return change, step


HELD = (
    of_an_object, of_a_dict_in_a_dict, of_a_function_that_is_called, of_a_list_of_tensors,
    of_a_list_that_grows, of_an_array, of_a_tensor_of_the_host, of_a_set, of_a_key,
    of_a_queue, of_the_environment, of_a_cached_function, of_a_context, of_arguments,
    of_a_function_of_torchs, of_a_class, of_a_base_class, of_a_method_that_is_called,
    of_a_layer, far_away, of_a_slot, by_its_name, of_a_box_of_pythons,
    of_an_object_in_a_set, of_raw_bytes, of_an_operator, of_an_attribute_that_comes,
    of_a_method_that_comes, of_another_class, of_other_code, of_a_function_that_has_it,
    of_an_object_that_is_made, of_a_module_that_it_imports,
    in_a_function_decorated_by_torch, by_getenv, by_getenv_in_a_class, by_partial_getenv,
    by_os_getenvb, in_the_body_of_a_class,
)  # fmt: skip
