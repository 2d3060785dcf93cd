"""A session that is dropped is freed; a forked child is refused by name, and never waits."""

from __future__ import annotations

import contextvars
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch.optim import optimizer as of_optimizers

import kit
from kit.errors import Cancelled, EngineError, KitError
from kit.runtime.session import forks
from kit.runtime.session.session import current_session
from kit.torch.scaling.choose import make_scaler
from tests.waiting import freed, leaves_no_thread, until

IGNORED = "ignore:.*fork"  # the warnings of jax, and of Python 3.12: to fork is the point here


def dropped() -> tuple[Any, Any]:
    """References to a session that was entered and to a cell of it, both left behind."""
    session = kit.Session(kit.Settings(bulk_forward=4)).__enter__()
    x = torch.ones(1000, device="kit") + 1
    assert x.sum().item() == 2000.0
    net = torch.nn.Linear(4, 4).to("kit")
    session.mark_step()
    assert net(torch.ones(2, 4, device="kit")).shape == (2, 4)
    return ref(session), ref(x.kit_value().cell)


def test_a_session_that_was_entered_and_dropped_is_freed() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with leaves_no_thread():
        for _ in range(3):
            session, cell = dropped()
            until(lambda s=session: freed(s))
            assert cell() is None
            assert current_session() is None
    with kit.Session():  # and the next one stands for the handler of before them all
        assert (torch.ones(2, device="kit") + 1).tolist() == [2.0, 2.0]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("step_mode", ["retrace", "speculate", "replay"])
def test_a_session_that_ran_steps_and_was_dropped_is_freed(step_mode: str) -> None:
    def train() -> tuple[Any, Any]:
        session = kit.Session(kit.Settings(step_mode=step_mode)).__enter__()
        net = torch.nn.Linear(2, 2).to("kit")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(2, 2, device="kit")

        def step() -> Any:
            optimizer.zero_grad()
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
            return loss  # with torch's graph, which holds the parameters

        for _ in range(5):
            session.run_step(step)
        return ref(session), ref(net)

    for _ in range(2):
        session, net = train()
        until(lambda s=session: freed(s))
        until(lambda n=net: freed(n))  # with the session went torch's holders of the gradients


def test_a_session_inside_of_one_that_was_dropped_ends_well() -> None:
    outer = kit.Session().__enter__()
    with kit.Session():
        del outer
        gc.collect()
        assert (torch.ones(2, device="kit") + 1).tolist() == [2.0, 2.0]
    assert current_session() is None
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _out_of_memory(*given: Any) -> Any:
    raise MemoryError("made by a test")


def _wrong_index(model: Any, patch: pytest.MonkeyPatch) -> None:
    loss = model(torch.tensor([7], device="kit")).exp().sum()
    loss.backward()
    loss.item()


def _wrong_rule(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kit.runtime.compiling.lower.forget", _out_of_memory)
    loss = model(torch.tensor([1], device="kit")).exp().sum()
    loss.backward()
    loss.item()


def _cut_while_a_check_is_open(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kit.runtime.session.redo.Redo.note", _out_of_memory)
    scaler = make_scaler("dynamic, deferred", "kit")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.tensor([1], device="kit")).exp().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    model(torch.tensor([1], device="kit")).sum().item()


FAILURES = (_wrong_index, _wrong_rule, _cut_while_a_check_is_open)


@pytest.mark.compiles
@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_session_with_an_error_is_freed(
    fail: Callable[[Any, pytest.MonkeyPatch], None], again: bool
) -> None:
    """An error that it keeps has no frames, which hold tensors and, through torch, the session."""

    def train() -> Any:
        with kit.Session() as session, pytest.MonkeyPatch.context() as patch:
            model = torch.nn.Embedding(3, 2).to("kit")
            try:
                fail(model, patch)
            except (MemoryError, KitError):
                if again:
                    with suppress(MemoryError, KitError):
                        fail(model, patch)
            else:
                raise AssertionError("nothing failed")
            with suppress(MemoryError, KitError):
                session.wait_all()
        return ref(session)

    held = train()
    assert any(freed(held) for _ in range(5))


def in_child(use: Callable[[], object]) -> str:
    """What a forked child says after it has tried that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child's own process
        said = "nothing was raised"
        try:
            use()
        except BaseException as error:  # noqa: BLE001 - the parent looks at it
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def test_to_ask_for_sessions_hooks_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A native watch asks: a forked child of a process without a session was refused one."""
    hooks: list[Callable[[], object]] = []
    monkeypatch.setattr(forks, "in_forked_children", hooks.append)
    monkeypatch.setattr(forks, "_entered", cache(forks._Entered))
    assert (forks.is_any_open(), forks.entered(), hooks) == (False, 0, [])
    with kit.Session():
        assert (forks.is_any_open(), forks.entered(), len(hooks)) == (True, 1, 1)
    assert (forks.is_any_open(), forks.entered()) == (False, 1)


def test_a_session_may_be_entered_while_another_thread_asks_for_sessions() -> None:
    """A set of them changed its size meanwhile, which ended a watch's recording."""
    entered, living = forks._Entered(), []

    class Made:
        is_open = False

        def leave_behind(self) -> None: ...

    def enter() -> None:
        for _ in range(20_000):
            living.append(Made())
            entered.add(living[-1])

    thread = threading.Thread(target=enter)
    thread.start()
    while thread.is_alive():
        assert entered.living() is not None
    assert len(entered.living()) == entered.count == 20_000


@pytest.mark.filterwarnings(IGNORED)
def test_every_use_of_a_session_in_a_forked_child_is_refused() -> None:
    """Also while another thread of the parent holds the session's lock."""
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.ones(3, device="kit") + 1
        y = kit.jax.step(lambda x: x + 1)(np.ones(2, np.float32))
        uses: dict[str, Callable[[], object]] = {
            "record": lambda: x + 1,
            "make": lambda: torch.ones(2, device="kit"),
            "read": x.tolist,
            "read jax": lambda: np.asarray(y),
            "mark_step": session.mark_step,
            "wait_all": session.wait_all,
            "bulk": lambda: kit.bulk(5).__enter__(),
            "enter": lambda: kit.Session().__enter__(),
        }
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with session.lock:
                held.set()
                free.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            said = {name: in_child(use) for name, use in uses.items()}
        finally:
            free.set()
            thread.join()
        assert {name: text for name, text in said.items() if "was forked from" not in text} == {}
        assert all(text.startswith("EngineError") for text in said.values())
        assert x.tolist() == [2.0] * 3  # and the parent goes on


class Cycle:
    """Holds itself, and an array of the device: only the garbage collector can free it."""

    def __init__(self, held: object) -> None:
        self.held, self.own = held, self


@pytest.mark.filterwarnings(IGNORED)
def test_a_forked_child_collects_no_array_of_its_parent() -> None:
    """To free one asks XLA, whose threads are not there: a loader's worker would hang in it."""
    gc.disable()
    try:
        with kit.Session(kit.Settings(mode="lazy")):
            x = torch.ones(3, device="kit") + 1
            assert x.tolist() == [2.0] * 3
            cell = ref(Cycle(x.kit_value().cell).held)
            del x

            def collect() -> None:
                own = ref(Cycle(object()))
                gc.collect()
                assert cell() is not None
                assert own() is None, "the child's own objects are collected"

            assert in_child(collect) == "nothing was raised"
    finally:
        gc.enable()
    gc.collect()
    assert cell() is None


@pytest.mark.filterwarnings(IGNORED)
def test_a_forked_child_leaves_the_block_and_is_stopped_by_ctrl_c_at_once() -> None:
    def leave() -> None:
        session.__exit__()
        assert (torch.ones(3) + 1).tolist() == [2.0] * 3
        signal.raise_signal(signal.SIGINT)

    with kit.Session() as session:
        assert in_child(leave).startswith("KeyboardInterrupt")


def _double(x: torch.Tensor) -> list[float]:
    with pytest.raises(EngineError, match="was forked from"):
        torch.ones(1, device="kit")
    return (torch.nn.Linear(3, 3)(x) * 0 + x * 2).tolist()


@pytest.mark.filterwarnings(IGNORED)
def test_a_pool_that_forks_works_on_the_host() -> None:
    with kit.Session():
        assert (torch.ones(3, device="kit") + 1).tolist() == [2.0] * 3
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(_double, (torch.ones(3),)) == [2.0] * 3


@pytest.mark.filterwarnings("ignore:SGD, at")  # that it trains on the CPU
def test_a_session_that_is_freed_within_an_optimizers_step_breaks_no_step() -> None:
    before = len(of_optimizers._global_optimizer_pre_hooks)
    dropped = [kit.Session()]
    dropped[0].__enter__()
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    gone = ref(dropped[0])

    def free(*_: object) -> None:
        dropped.clear()
        gc.collect()

    register = of_optimizers.register_optimizer_step_pre_hook
    with register(free), register(lambda *_: None):  # there is one more hook to be called
        torch.optim.SGD([weight], lr=0.5).step()
    assert gone() is None
    assert weight.tolist() == [0.5, 0.5]
    with kit.Session():
        pass
    assert len(of_optimizers._global_optimizer_pre_hooks) == before


def test_a_session_opens_and_closes_within_an_optimizers_step() -> None:
    """In any thread, as that of an explorer: torch goes through its hooks meanwhile."""

    def other(*_: object) -> None:
        with kit.Session():
            pass

    other()
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    register = of_optimizers.register_optimizer_step_pre_hook
    with register(other), register(lambda *_: None):  # there is one more hook to be called
        torch.optim.SGD([weight], lr=0.5).step()
    assert weight.tolist() == [0.5, 0.5]


def test_what_is_pending_is_neither_compiled_nor_run_once_it_is_dropped() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        may_end.wait()

    with kit.Session(kit.Settings(mode="bulked", bulk_forward=1)) as session:
        x = torch.ones(3, device="kit")
        session.wait_all()
        before = session.metrics()["execute.count"]
        session.issuer.executor.engine.push(hold)
        begun.wait()
        issued, recorded = x + 1, x.cumsum(0)
        session.drop_pending()
        may_end.set()
        session.wait_all()
        assert session.metrics()["execute.count"] == before
        for lost in (issued, recorded):
            with pytest.raises(Cancelled, match="interrupted before this was computed"):
                lost.tolist()
        assert (torch.ones(3, device="kit") + 1).tolist() == [2.0, 2.0, 2.0]


def test_sessions_of_one_thread_may_close_in_any_order() -> None:
    """As those of two asyncio tasks do: autograd's threads and Ctrl-C are as before at the end."""
    is_threaded = torch._C._is_multithreading_enabled
    before = is_threaded(), signal.getsignal(signal.SIGINT)
    contexts = [contextvars.copy_context() for _ in range(3)]
    sessions = [kit.Session() for _ in contexts]
    for context, session in zip(contexts, sessions, strict=True):
        context.run(session.__enter__)
    for i in (1, 0, 2):
        assert not is_threaded()
        contexts[i].run(sessions[i].__exit__, None, None, None)
    assert (is_threaded(), signal.getsignal(signal.SIGINT)) == before


def test_a_session_that_was_dropped_leaves_autograds_threads_to_the_next_one() -> None:
    before = torch._C._is_multithreading_enabled()
    known, _ = dropped()
    assert freed(known)
    with kit.Session():
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled() == before
