"""Functions that count in what they hold, each in another place that Python has for a number."""

from __future__ import annotations

import enum
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

COUNT = 0


class Names:
    """What a program keeps its numbers in."""

    n = 0

    def __init__(self) -> None:
        self.inner = {"of": [0, (0,)]}


class Slots:
    __slots__ = ("n",)


def variable() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


def of_global() -> Callable[[], int]:
    global COUNT
    COUNT = 0

    def count() -> int:
        global COUNT
        COUNT += 1
        return COUNT

    return count


def attribute() -> Callable[[], int]:
    names = Names()
    names.n = 0

    def count() -> int:
        names.n += 1
        return names.n

    return count


def of_class() -> Callable[[], int]:
    Names.n = 0

    def count() -> int:
        Names.n += 1
        return Names.n

    return count


def far_away() -> Callable[[], int]:
    names = [{"all": Names()}]

    def count() -> int:
        names[0]["all"].inner["of"][0] += 1
        return names[0]["all"].inner["of"][0]

    return count


def slots() -> Callable[[], int]:
    names = Slots()
    names.n = 0

    def count() -> int:
        names.n += 1
        return names.n

    return count


def length() -> Callable[[], int]:
    seen: list[float] = []

    def count() -> int:
        seen.append(0.0)
        return len(seen)

    return count


def array() -> Callable[[], int]:
    n = np.zeros(1, int)

    def count() -> int:
        n[0] += 1
        return int(n[0])

    return count


def host_tensor() -> Callable[[], int]:
    n = torch.zeros((), dtype=torch.int64)

    def count() -> int:
        n.add_(1)
        return int(n)

    return count


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self) -> int:
        self.calls += 1
        return self.calls


def module() -> Callable[[], int]:
    return nn.Sequential(nn.Sequential(Counting()))[0][0]


def functions_that_turn() -> Callable[[], int]:
    functions = deque([lambda: 1] * 6 + [lambda: 7])

    def count() -> int:
        functions.rotate(-1)
        return functions[-1]()

    return count


def members_that_turn() -> Callable[[], int]:
    Kind = enum.Enum("Kind", ["OTHER", "SEVENTH"])
    kinds = deque([Kind.OTHER] * 6 + [Kind.SEVENTH])

    def count() -> int:
        kinds.rotate(-1)
        return 7 if kinds[-1] is Kind.SEVENTH else 1

    return count


def order_of_a_dict() -> Callable[[], int]:
    kept = OrderedDict(enumerate([1] * 6 + [7]))

    def count() -> int:
        first = next(iter(kept))
        kept.move_to_end(first)
        return kept[first]

    return count


def raw_bytes() -> Callable[[], int]:
    n = bytearray(1)

    def count() -> int:
        n[0] += 1
        return n[0]

    return count


def context() -> Callable[[], int]:
    n: ContextVar[int] = ContextVar("n", default=0)

    def count() -> int:
        n.set(n.get() + 1)
        return n.get()

    return count


def of_a_thread() -> Callable[[], int]:
    here = threading.local()
    here.n = 0

    def count() -> int:
        here.n += 1
        return int(here.n)

    return count


def dynamic() -> Callable[[], int]:
    globals()["COUNT"] = 0

    def count() -> int:
        globals()["COUNT"] += 1
        return int(globals()["COUNT"])

    return count


def environment() -> Callable[[], int]:
    os.environ["KIT_TEST_COUNT"] = "0"

    def count() -> int:
        os.environ["KIT_TEST_COUNT"] = str(int(os.environ["KIT_TEST_COUNT"]) + 1)
        return int(os.environ["KIT_TEST_COUNT"])

    return count


def own_module() -> Any:
    """A package of the program's with a module that counts."""
    package, inner = ModuleType("counted"), ModuleType("counted.here")
    package.__file__ = inner.__file__ = __file__
    sys.modules["counted"], sys.modules["counted.here"] = package, inner
    package.here, inner.n = inner, 0  # type: ignore[attr-defined]


def module_in_a_package() -> Callable[[], int]:
    own_module()

    def count() -> int:
        import counted  # type: ignore[import-not-found]

        counted.here.n += 1
        return int(counted.here.n)

    return count


def computed_attribute() -> Callable[[], int]:
    n = 0

    class Numbers:
        @property
        def following(self) -> int:
            nonlocal n
            n += 1
            return n

    numbers = Numbers()
    return lambda: numbers.following


def inherited() -> Callable[[], int]:
    n = 0

    class Numbers:
        @staticmethod
        def following() -> int:
            nonlocal n
            n += 1
            return n

    class More(Numbers):
        pass

    return lambda: More.following()


def far_in_a_list() -> Callable[[], int]:
    many = [0] * 5000

    def count() -> int:
        many[4000] += 1
        return many[4000]

    return count


def far_in_an_array() -> Callable[[], int]:
    many = np.zeros(5000)

    def count() -> int:
        many[4000] += 1
        return int(many[4000])

    return count


class Items(list[int]):
    n = 0


def attribute_of_a_list() -> Callable[[], int]:
    items = Items()
    items.n = 0

    def count() -> int:
        items.n += 1
        return items.n

    return count


class Key:
    n = 0


def key() -> Callable[[], int]:
    kept = {Key(): 0}

    def count() -> int:
        (only,) = kept
        only.n += 1
        return only.n

    return count


def decorated_by_torch() -> Callable[[], int]:
    names = {"n": 0}

    @torch.no_grad()
    def count() -> int:
        names["n"] += 1
        return names["n"]

    return count


def context_manager() -> Callable[[], int]:
    names = {"n": 0}

    @contextmanager
    def counted() -> Iterator[int]:
        names["n"] += 1
        yield names["n"]

    def count() -> int:
        with counted() as n:
            return n

    return count


COUNTED = (
    variable, of_global, attribute, of_class, far_away, slots, length, array, host_tensor, module,
    functions_that_turn, members_that_turn, order_of_a_dict, raw_bytes, context,
    of_a_thread, dynamic, environment, module_in_a_package, computed_attribute, inherited,
    far_in_a_list, far_in_an_array, attribute_of_a_list, key, decorated_by_torch,
    context_manager,
)  # fmt: skip
