"""Bulking: sizes and scopes, who ends a segment, what a failure leaves, several threads."""

from __future__ import annotations

import contextvars
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import EngineError, SessionError, SettingsError
from kit.runs.bulk_sizes import UNLIMITED, sizes_from_environment
from tests.warm import warm_python


def cuts(session: Any) -> dict[str, int]:
    found = session.metrics()
    return {name[4:]: int(n) for name, n in found.items() if name.startswith("cut.")}


def chain(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x + 1
    return x


# -- sizes and scopes ------------------------------------------------------------------------------


def test_a_scope_cuts_by_its_size_and_its_end_issues_what_is_left() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.zeros(3, device="kit")
        with kit.bulk(4):
            y = chain(x, 10)
        assert cuts(session) == {"size": 2, "scope": 1}
        z = chain(y, 30)
        session.wait_all()
        assert cuts(session) == {"size": 2, "scope": 1, "sync": 1}
        assert z.tolist() == [40.0] * 3


def test_scopes_nest_and_set_bulk_size_gives_the_size_of_before() -> None:
    with kit.Session(kit.Settings(bulk_forward=7, bulk_backward=9)) as session:
        assert kit.set_bulk_size(20) == (7, 9)
        with kit.bulk(3):
            assert session.bulk_sizes.forward == 3
            with kit.bulk((5, 6)):
                assert session.bulk_sizes.pair == (5, 6)
            assert session.bulk_sizes.pair == 3
        assert kit.set_bulk_size((7, 9)) == 20
        assert "bulk sizes: forward 7, backward 9, inference 7 (scope" in session.explain()


def test_a_smaller_size_issues_what_is_already_too_much() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        y = chain(torch.zeros(3, device="kit"), 6)
        kit.set_bulk_size(10)
        assert cuts(session) == {}
        kit.set_bulk_size(5)
        assert cuts(session) == {"scope": 1}
        del y


def test_a_scope_that_an_exception_leaves_issues_what_it_holds() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.zeros(3, device="kit")
        kept = []

        def fail() -> None:
            with kit.bulk(100):
                kept.append(chain(x, 5))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert cuts(session) == {"scope": 1}
        assert session.bulk_sizes.forward == UNLIMITED
        assert kept[0].tolist() == [5.0] * 3


def test_a_scope_whose_end_cannot_issue_has_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(task: Any) -> None:
        raise MemoryError

    with kit.Session() as session:
        before, x = session.bulk_sizes, torch.zeros(3, device="kit")
        session.wait_all()
        kept: list[Any] = []

        def end() -> None:
            with kit.bulk(4):
                kept.append(x + 2)
                monkeypatch.setattr(session.issuer.executor, "push", full)

        with pytest.raises(MemoryError):
            end()
        monkeypatch.undo()
        assert session.bulk_sizes == before
        assert kept[0].tolist() == [2.0] * 3


def test_forward_and_backward_have_sizes_of_their_own() -> None:
    with kit.Session() as session, kit.bulk((2, 1000)):
        w = torch.ones(4, device="kit", requires_grad=True)
        (chain(w, 8) * w).sum().backward()
        session.mark_step()
        found = cuts(session)
        assert found["size"] == 5  # `ones` and ten more: the last cut is the phase's
        assert found["phase"] == 1


@pytest.mark.parametrize("size", [0, -3, 1.5, "15", None, True, (1, 2, 3), (5, 0)])
def test_a_wrong_size_is_refused_and_nothing_changes(size: Any) -> None:
    with kit.Session() as session:
        before = session.bulk_sizes
        for use in (kit.set_bulk_size, kit.bulk):
            with pytest.raises(SettingsError, match="whole number of at least 1"):
                with_scope(use, size)
        assert session.bulk_sizes == before


def with_scope(use: Callable[[Any], Any], size: Any) -> None:
    made = use(size)
    if hasattr(made, "__enter__"):
        with made:
            pass


def test_without_a_session_it_says_where_to_put_it() -> None:
    with pytest.raises(SessionError, match=r"inside `with kit\.Session\(\):`"):
        kit.set_bulk_size(5)


# -- MXNet's variables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "sizes"),
    [
        ({}, (15, 15, UNLIMITED)),
        ({"KIT_BULK_MAX_NODE_TRAIN": "30"}, (30, 30, UNLIMITED)),
        ({"KIT_BULK_MAX_NODE_TRAIN": "30", "KIT_BULK_MAX_NODE_TRAIN_BWD": "8"}, (30, 8, UNLIMITED)),
        ({"KIT_BULK_MAX_NODE_TRAIN_FWD": "8"}, (8, 15, UNLIMITED)),
        ({"KIT_BULK_TRAIN": "0", "KIT_BULK_MAX_NODE_TRAIN": "30"}, (1, 1, UNLIMITED)),
        ({"KIT_BULK_INFERENCE": "0"}, (15, 15, 1)),
        ({"KIT_BULK_MAX_NODE_TRAIN": "0", "KIT_BULK_INFERENCE": " "}, (1, 1, UNLIMITED)),
    ],
)
def test_unset_variables_fall_back_as_in_mxnet(
    environ: dict[str, str], sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = sizes_from_environment()
    assert (found.forward, found.backward, found.inference) == sizes
    made = kit.Settings()  # they are live: read whenever settings are made
    assert (made.bulk_forward, made.bulk_backward, made.bulk_inference) == sizes
    assert kit.Settings(bulk_forward=77).bulk_forward == 77
    with kit.Session() as session:
        said = session.explain()
    assert ("in the environment: KIT_" in said) == any(v.strip() for v in environ.values())


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_BULK_MAX_NODE_TRAIN_FWD", "many")
    with pytest.raises(SettingsError, match=r"KIT_BULK_MAX_NODE_TRAIN_FWD must be.*'many'"):
        sizes_from_environment()


def test_inference_is_one_segment_and_training_after_it_is_not() -> None:
    def make() -> torch.nn.Module:
        return torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(30)]).to("kit")

    with kit.Session(kit.Settings(bulk_forward=5)) as session:
        network = make()
        session.wait_all()
        before = session.metrics()["segment.count"]
        with torch.no_grad():
            out = network(torch.ones(2, 4, device="kit"))
        session.wait_all()
        assert session.metrics()["segment.count"] - before <= 2
        with torch.no_grad():
            network(torch.ones(2, 4, device="kit"))
        trained = network(torch.ones(2, 4, device="kit"))
        before = cuts(session).get("size", 0)
        trained = chain(trained, 20)
        session.wait_all()
        assert cuts(session)["size"] - before >= 4
        del out, trained
    with kit.Session(kit.Settings(bulk_inference=3)) as session:
        with torch.no_grad():
            make()(torch.ones(2, 4, device="kit"))
        assert cuts(session)["size"] == 10


# -- threads ---------------------------------------------------------------------------------------


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            found.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_read_in_another_thread_flushes_what_is_pending_here() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.ones(3, device="kit")
        x.add_(1)
        assert in_thread(x.tolist) == [2.0] * 3  # MXNet gives the stale 1.0
        assert cuts(session) == {"sync": 1}


def test_another_threads_op_on_a_pending_value_flushes_it_views_included() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.arange(6.0, device="kit").reshape(2, 3)
        y = (x + 1)[0]
        z = y * 2  # reads the view here
        there = in_thread(lambda: y + z)
        assert cuts(session) == {"another thread": 1}
        assert there.tolist() == [3.0, 6.0, 9.0]
        assert y.tolist() == [1.0, 2.0, 3.0]


def test_wait_all_flushes_every_thread() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        x = torch.zeros(3, device="kit")
        session.wait_all()
        ready, over = threading.Event(), threading.Event()
        kept: list[Any] = []

        def record() -> None:
            kept.append(x + 5)
            ready.set()
            over.wait(60)

        thread = threading.Thread(target=record)
        thread.start()
        assert ready.wait(60)
        y = x + 1
        assert cuts(session) == {"sync": 1}
        session.wait_all()
        assert cuts(session) == {"sync": 3}
        over.set()
        thread.join()
        assert (y + kept[0]).tolist() == [6.0] * 3


def test_each_thread_has_its_own_size() -> None:
    with kit.Session() as session, kit.bulk(3):
        assert in_thread(lambda: kit.set_bulk_size(50)) == 15
        assert session.bulk_sizes.forward == 3


def test_threads_record_at_once_and_train_as_one_would() -> None:
    def train(seed: int, device: str) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        for p in model.parameters():
            p.data = torch.randn(p.shape, generator=generator)
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(16, 4, generator=generator).to(device)
        losses = []
        for _ in range(6):
            loss = (model(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [float(x) for x in losses]

    expected = [train(seed, "cpu") for seed in range(3)]
    for size in (1, 4, UNLIMITED):
        with kit.Session(kit.Settings(bulk_forward=size, bulk_backward=size)):
            contexts = [contextvars.copy_context() for _ in range(3)]
            with ThreadPoolExecutor(3) as pool:
                runs = [pool.submit(c.run, train, s, "kit") for s, c in enumerate(contexts)]
                found = [run.result(120) for run in runs]
            np.testing.assert_allclose(found, expected, rtol=2e-4)


# -- ends ------------------------------------------------------------------------------------------


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm_python(), "-c", text], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_session_that_is_open_when_python_ends_issues_what_it_holds() -> None:
    script = """
import torch, kit, jax, sys
def say(x):
    sys.stdout.write("ran"); sys.stdout.flush()
    return x
def erf(x):
    return jax.pure_callback(say, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
rules = kit.Rules({"aten.erf.default": erf}).over(kit.DEFAULT_RULES)
session = kit.Session(kit.Settings(mode="lazy"), rules=rules)
session.__enter__()
y = torch.erf(torch.ones(3, device="kit"))
"""
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "ran"), done.stderr


def test_a_failure_at_the_end_of_python_is_printed() -> None:
    script = """
import jax, numpy, kit.jax
from kit.runtime.session.session import Session
def wrong(x):
    raise ValueError("no such number")
def erf(x):
    return jax.pure_callback(wrong, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
session = Session(kit.Settings(mode="lazy"))
session.__enter__()
y = kit.jax.step(erf)(numpy.ones(3, numpy.float32))
"""
    done = run_script(script)
    assert "a session was open when Python ended" in done.stderr
    assert "no such number" in done.stderr


@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12: that is the point
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    with kit.Session(kit.Settings(mode="lazy")):
        y = torch.ones(3, device="kit") + 1
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                y.tolist()
            except EngineError as error:
                said = str(error)
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        said = os.read(reader, 1000).decode()
        os.waitpid(child, 0)
        os.close(reader)
        assert "forked" in said
        assert y.tolist() == [2.0] * 3


def test_the_end_of_a_notebook_cell_issues_what_it_recorded() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        for cell in (
            "import kit, torch",
            "session = kit.Session(kit.Settings(mode='lazy')); _ = session.__enter__()",
            "y = torch.ones(3, device='kit') + 1",
        ):
            shell.run_cell(cell).raise_error()
        session = shell.user_ns["session"]
        assert cuts(session) == {"end of cell": 1}
        shell.run_cell("session.__exit__(None, None, None)").raise_error()
        shell.run_cell("1").raise_error()
    finally:
        InteractiveShell.clear_instance()
