"""What decides a step may lie in things of C, far away, or be read by no name; each is compared."""

from __future__ import annotations

import abc
import builtins
import copy
import ctypes
import dataclasses
import decimal
import functools
import importlib
import io
import operator
import os
import pickle
import sqlite3
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.steps.functions import KnownFunction
from kit.torch.device import open_session

CACHE = ExecutableCache()
Case = tuple[Callable[[float], Any], Callable[[], Any]]  # changes what a step reads; that read


class Box:
    def __init__(self, by: float = 2.0) -> None:
        self.by = by


@dataclasses.dataclass
class Choice:
    by: float = 2.0


def setter(owner: Any, key: Any = "by") -> Callable[[float], Any]:
    """Puts the number there."""
    if isinstance(key, str) and not isinstance(owner, dict):
        return lambda by: setattr(owner, key, by)
    return lambda by: operator.setitem(owner, key, by)


def of_c(kind: str) -> Case:
    number, pair, context = ctypes.c_double(), (ctypes.c_double * 2)(), decimal.Context()
    raised, file, made = ValueError(2.0), io.BytesIO(), defaultdict(lambda: 0.0)
    place = iter([2.0] * 5)

    def write(by: float) -> None:
        file.seek(0), file.write(bytes([int(by)])), file.seek(0)

    def produce(by: float) -> None:
        made.default_factory = lambda: by

    cases: dict[str, Case] = {
        "number": (setter(number, "value"), lambda: number.value),
        "array": (setter(pair, 1), lambda: pair[1]),
        "context": (lambda by: setattr(context, "prec", int(by)), lambda: context.prec),
        "error": (lambda by: setattr(raised, "args", (by,)), lambda: raised.args[0]),
        "file": (write, lambda: file.getvalue()[0]),
        "factory": (produce, lambda: made.default_factory()),  # type: ignore[misc]
        "iterator": (lambda by: next(place) if by == 5 else 0, lambda: operator.length_hint(place)),
    }
    return cases[kind]


def of_many(kind: str) -> Case:
    words, boxes = [2.0] * 3000, {i: Box() for i in range(300)}
    things: Any = np.array([0, Box()], dtype=object)
    rows = np.zeros(2, dtype=[("n", "f8"), ("o", "O")])
    rows["o"] = [Box(), Box()]
    numbers, host = np.full(5000, 2.0), torch.full((3,), 2.0)
    learned = torch.ones(1, requires_grad=True)

    def learn(by: float) -> None:
        learned.grad = torch.full((1,), by)

    cases: dict[str, Case] = {
        "list": (setter(words, 2500), lambda: words[2500]),
        "dict": (setter(boxes[250]), lambda: boxes[250].by),
        "objects": (setter(things[1]), lambda: things[1].by),
        "rows": (setter(rows["o"][1]), lambda: rows["o"][1].by),
        "numbers": (setter(numbers, 4000), lambda: float(numbers[4000])),
        "host": (setter(host.numpy(), 1), lambda: host[1].item()),  # torch counts no such write
        "gradient": (learn, lambda: learned.grad.item()),  # type: ignore[union-attr]
    }
    return cases[kind]


def held_by(kind: str) -> Case:
    box, numbers, lock = Box(), {"by": 2.0}, threading.Lock()
    here, variable = threading.local(), ContextVar[Any]("variable")
    here.box, get = box, numbers.get
    variable.set(box)
    weak, proxy = weakref.WeakSet([box]), weakref.proxy(box)
    cell = (lambda: box).__closure__[0]  # type: ignore[index]
    cases: dict[str, Case] = {
        "weakly": (setter(box), lambda: next(iter(weak)).by),
        "proxy": (setter(box), lambda: proxy.by),
        "thread": (setter(box), lambda: here.box.by),
        "variable": (setter(box), lambda: variable.get().by),
        "cell": (setter(box), lambda: cell.cell_contents.by),
        "method": (setter(numbers, "by"), lambda: get("by")),
        "lock": (lambda by: by == 5 and lock.acquire(), lambda: 5.0 if lock.locked() else 2.0),
    }
    return cases[kind]


TEMPLATE = "{0.by}"


def unnamed(kind: str) -> Case:
    box, choice, get, ask = Box(), Choice(), operator.attrgetter("by"), getattr
    call = operator.methodcaller("__float__")

    class Number(Box):
        weight = functools.partialmethod(lambda self, k: self.by * k, 1.0)

        def __float__(self) -> float:
            return self.by

        def __call__(self) -> float:
            return self.by

    number = Number()
    makers = {"number": lambda: Number, "class": Number}

    def set_of_class(by: float) -> None:
        Number.by = by  # type: ignore[assignment]
        Number.__init__ = lambda self: None  # type: ignore[assignment,method-assign]

    cases: dict[str, Case] = {
        "attrgetter": (setter(box), lambda: get(box)),
        "methodcaller": (setter(number), lambda: call(number)),
        "partialmethod": (setter(number), lambda: number.weight()),
        "format": (setter(box), lambda: float("{.by}".format(box))),  # noqa: UP032
        "template": (setter(box), lambda: float(TEMPLATE.format(box))),
        "getattr": (setter(box), lambda: ask(box, "b" + "y")),
        "asdict": (setter(choice), lambda: sum(dataclasses.asdict(choice).values())),
        "copy": (setter(box), lambda: next(iter(copy.copy(box).__dict__.values()))),
        "pickle": (setter(box), lambda: pickle.loads(pickle.dumps(box)).__dict__.popitem()[1]),
        "repr": (setter(choice), lambda: float(repr(choice).partition("=")[2][:-1])),
        "eq": (setter(choice), lambda: 5.0 if choice == Choice(5.0) else 2.0),
        "call": (set_of_class, lambda: makers["class"]()()),
    }
    return cases[kind]


def dispatched(kind: str) -> Case:
    box = Box()

    @functools.singledispatch
    def weight(thing: object) -> float:
        return 2.0

    @weight.register
    def _(thing: str) -> float:
        return box.by

    class Of:
        @functools.singledispatchmethod
        def weight(self, thing: object) -> float:
            return box.by

    def register(by: float) -> None:
        weight.register(int, lambda thing: by)

    of = Of()
    cases: dict[str, Case] = {
        "register": (register, lambda: weight(3)),
        "closure": (setter(box), lambda: weight("")),
        "method": (setter(box), lambda: of.weight(3)),
    }
    return cases[kind]


def of_the_process(kind: str) -> Case:
    number, start, flags = decimal.Decimal(10) / 7, os.getcwd(), torch.backends.cudnn
    context = decimal.getcontext()

    def decide(by: float) -> None:
        context.prec = 28 if by == 2 else 1

    def go(by: float) -> None:
        os.chdir(start if by == 2 else "/")

    cases: dict[str, Case] = {
        "decimals": (decide, lambda: float(+number)),
        "folder": (go, lambda: len(os.getcwd())),
        "flag": (lambda by: flags.set_flags(_benchmark=by == 5),
                 lambda: 5.0 if torch.backends.cudnn.benchmark else 2.0),
    }  # fmt: skip
    return cases[kind]


class Heavy(abc.ABC):  # noqa: B024 - classes are registered with it
    pass


def put_elsewhere(kind: str) -> Case:
    sys.modules["settings_by_text"] = settings = types.ModuleType("settings_by_text")

    class Thing:
        pass

    thing = Thing()

    def register(by: float) -> None:
        if by == 5:
            Heavy.register(Thing)

    cases: dict[str, Case] = {
        "builtins": (setter(builtins, "weight_by"), lambda: weight_by),  # type: ignore[name-defined]  # noqa: F821
        "import_module": (
            setter(settings), lambda: importlib.import_module("settings_by_text").by),
        "registered": (register, lambda: 5.0 if isinstance(thing, Heavy) else 2.0),
    }  # fmt: skip
    return cases[kind]


CASES = {
    of_c: ["number", "array", "context", "error", "file", "factory", "iterator"],
    of_many: ["list", "dict", "objects", "rows", "numbers", "host", "gradient"],
    held_by: ["weakly", "proxy", "thread", "variable", "cell", "method", "lock"],
    unnamed: ["attrgetter", "methodcaller", "partialmethod", "format", "template", "getattr",
              "asdict", "copy", "pickle", "repr", "eq", "call"],
    dispatched: ["register", "closure", "method"],
    of_the_process: ["decimals", "folder", "flag"],
    put_elsewhere: ["builtins", "import_module", "registered"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "kind"), [(made, kind) for made, kinds in CASES.items() for kind in kinds]
)
def test_what_the_loop_changes_counts_in_the_next_step(made: Any, kind: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        change, read = made(kind)
        x, count = torch.ones(2, device="kit"), session.stepper.counts

        def step() -> torch.Tensor:
            return x * float(read())

        try:
            change(2.0)
            before = torch.tensor(float(read())).item()
            for _ in range(7):
                assert session.run_step(step).tolist() == [before] * 2
            assert count["replay.steps"] > 0
            change(5.0)
            after = torch.tensor(float(read())).item()
            assert after != before
            assert session.run_step(step).tolist() == [after] * 2
            assert any("between two steps: " in why for why in session.stepper.reasons)
        finally:
            change(2.0)


def train(hook: Callable[[Any, Any, Any], Any], device: str, run: Any, by: dict[str, float]) -> Any:
    """The losses of a layer whose hook, which nobody names, reads a number."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    remove, made, x = hook(model, optimizer, by), [], torch.ones(2).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    try:
        for i in range(10):
            by["by"] = 1.0 if i < 7 else 0.25
            made.append(run(step))
    finally:
        remove()
    return [one.item() for one in made]


def of_a_layer(model: Any, optimizer: Any, by: dict[str, float]) -> Any:
    return model.register_forward_hook(lambda layer, args, out: out * by["by"]).remove


def of_a_tensor(model: Any, optimizer: Any, by: dict[str, float]) -> Any:
    return model.weight.register_hook(lambda gradient: gradient * by["by"]).remove


def of_an_optimizer(model: Any, optimizer: Any, by: dict[str, float]) -> Any:
    def scale(optimizer: Any, args: Any, kwargs: Any) -> None:
        model.bias.grad.mul_(by["by"])

    return optimizer.register_step_pre_hook(scale).remove


def of_all_layers(model: Any, optimizer: Any, by: dict[str, float]) -> Any:
    return register_module_forward_hook(lambda layer, args, out: out * by["by"]).remove


@pytest.mark.parametrize("hook", [of_a_layer, of_a_tensor, of_an_optimizer, of_all_layers])
def test_a_hook_reads_what_the_loop_has_changed(hook: Any) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        made = train(hook, "kit", session.run_step, {})
        assert session.stepper.counts["replay.steps"] > 0
    assert made == pytest.approx(train(hook, "cpu", lambda step: step(), {}), rel=1e-4)


def test_an_attribute_of_a_parameter_counts() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        layer = nn.Linear(2, 2).to("kit")
        layer.weight.by = 2.0  # type: ignore[assignment]
        made = []
        for i in range(9):
            layer.weight.by = 2.0 if i < 8 else 5.0  # type: ignore[assignment]
            made.append(session.run_step(lambda: layer.bias * 0 + layer.weight.by).tolist()[0])
        assert made == [2.0] * 8 + [5.0]
        assert session.stepper.counts["replay.steps"] > 0


def generator() -> Any:
    by = 2.0
    while True:
        by = (yield by) or by


@pytest.mark.parametrize(
    ("thing", "said"),
    [(generator, "the step names thing (builtins.generator) at test_far_changes.py:"),
     (lambda: sqlite3.connect(":memory:"), "the step reaches thing (sqlite3.Connection) at"),
     (lambda: [Box() for _ in range(6000)], "more than 5,000 things or 10 MB of arrays, with"),
     (lambda: np.zeros(2_000_000), "more than 5,000 things or 10 MB of arrays, with thing")],
    ids=["generator", "database", "things", "array"],
)  # fmt: skip
def test_a_step_that_names_what_cannot_be_compared_is_recorded(thing: Any, said: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        x, thing = torch.ones(2, device="kit"), thing()

        def step() -> torch.Tensor:
            return x * (2.0 if thing is not None else 1.0)

        for _ in range(8):
            assert session.run_step(step).tolist() == [2.0] * 2
        assert session.stepper.counts["replay.steps"] == 0
        assert said in session.explain()
    if hasattr(thing, "close"):
        thing.close()  # from Python 3.13 on a database that nobody has closed is warned of


class Once(list[float]):
    """Going through it changes the program."""

    times = 0

    def __iter__(self) -> Any:
        type(self).times += 1
        return super().__iter__()


class Silent(dict[str, float]):
    """Its methods answer nothing."""

    def values(self) -> Any:
        raise RuntimeError

    items = keys = __iter__ = __len__ = values  # type: ignore[assignment]


class Raises(deque[float]):
    def __reduce_ex__(self, version: Any) -> Any:
        raise self.Bad

    class Bad(Exception):
        def __repr__(self) -> str:
            raise self


def test_no_code_of_a_thing_ends_a_step_or_runs_beside_it() -> None:
    deep: Any = ctypes.c_double(2.0)
    for _ in range(3000):
        deep = {"in": deep}
    for thing in (Once([2.0]), Silent(by=2.0), Raises([2.0]), deep):
        with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
            x = torch.ones(2, device="kit")

            def step(x: Any = x, held: Any = thing) -> torch.Tensor:
                return x * 2

            for _ in range(7):
                assert session.run_step(step).tolist() == [2.0] * 2
    assert Once.times == 0


def test_an_equal_list_made_anew_is_the_same_and_an_equal_number_of_another_type_is_not() -> None:
    weights: Any = [1, 2]
    known = KnownFunction(lambda: weights)
    weights = [1, 2]
    assert known.change(lambda: weights) != ""  # other code
    (step,) = [lambda: weights]
    known = KnownFunction(step)
    weights = [1, 2]
    assert known.change(step) == ""
    weights = [1, 2.0]
    assert known.change(step) == "what it holds has changed, between two steps: weights[1]"


def test_the_stride_of_a_layer_of_torchs_counts_in_the_next_step() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        layer, x = nn.Conv1d(1, 1, 3).to("kit"), torch.ones(1, 1, 9, device="kit")

        def step() -> torch.Tensor:
            return layer(x).detach()

        for _ in range(9):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] > 0
        layer.stride = (2,)
        assert session.run_step(step).shape == (1, 1, 4)


def test_the_kernel_of_a_pool_counts_in_the_next_step() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        pool, x = nn.MaxPool2d(2, stride=1), torch.ones(1, 9, 9, device="kit")
        model = nn.Sequential(pool)

        def step() -> torch.Tensor:
            return model(x).detach()

        for _ in range(9):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] > 0
        pool.kernel_size = 3
        assert session.run_step(step).shape == (1, 7, 7)
