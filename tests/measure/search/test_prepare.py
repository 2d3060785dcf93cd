"""Compiling before somebody asks: the run then compiles nothing, and is the same run."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import kit
import kit.runtime.compiling.cache as executables
import kit.runtime.session.ahead as ahead
from kit.errors import Cancelled, ExecutionError
from kit.measure.base.turns import TURNS, Turns
from kit.measure.search.prepare import Prepared
from kit.runtime.compiling.cache import Compiling, ExecutableCache
from tests.waiting import leaves_no_thread

QUICK = kit.Settings(steps=2, warmup=1, batch_size=2)
LONG_S = 30.0


@kit.workload
def small(ctx: Any) -> Any:
    """Two layers with a random op; its loss is read where a GradScaler reads."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).to(ctx.device)
    opt, scaler = torch.optim.AdamW(model.parameters(), lr=0.01), ctx.scaler()
    x = torch.ones(ctx.batch_size, 4).to(ctx.device)

    def step() -> Any:
        with ctx.autocast():
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return loss

    return step


def fresh() -> Prepared:
    """The workload by a builder of its own, so that it shares no programs with another test's."""
    return Prepared(replace(small, build=partial(small.build)))


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def expected() -> tuple[float, ...]:
    """The losses of `QUICK`, run without preparation."""
    return kit.run(small, QUICK).losses


@pytest.fixture(scope="module")
def expected_of_halves() -> tuple[float, ...]:
    """The same in float16, which rounds them by more than a thousandth of the first one."""
    return kit.run(small, QUICK.replace(dtype="float16")).losses


def ignore(text: str, fraction: float) -> None:
    pass


def prepare(prepared: Prepared, settings: kit.Settings) -> int:
    return prepared.prepare(settings, progress=ignore, cancelled=never)


def run(prepared: Prepared, settings: kit.Settings, progress: Any = ignore) -> kit.Run:
    return prepared.run(settings, progress=progress, cancelled=never)


@pytest.mark.parametrize(
    "settings",
    [
        QUICK,
        QUICK.replace(mode="lazy", loss_scaling="dynamic, host check"),
        QUICK.replace(mode="lazy", loss_scaling="dynamic, deferred", dtype="float16"),
        QUICK.replace(segment_mode="launch"),
    ],
    ids=lambda s: s.to_string() or "defaults",
)
def test_a_prepared_run_compiles_nothing_and_has_the_same_losses(
    settings: kit.Settings, expected: tuple[float, ...], expected_of_halves: tuple[float, ...]
):
    prepared = fresh()
    assert prepare(prepared, settings) > 0
    count = len(prepared.cache.executables)
    assert prepare(prepared, settings) == 0
    said: list[str] = []
    made = run(prepared, settings, lambda text, fraction: said.append(text))
    assert "compile.count" not in made.metrics
    assert len(prepared.cache.executables) == count
    unprepared = expected_of_halves if settings.dtype == "float16" else expected
    assert made.losses == pytest.approx(unprepared, rel=1e-5)
    assert not any("compiling " in text for text in said)


def test_a_step_of_jax_is_prepared_too():
    from kit.workloads import jax_mlp

    prepared = Prepared(jax_mlp)
    settings = QUICK.replace(loss_scaling="dynamic, host check", mode="lazy")
    assert prepare(prepared, settings) > 0  # the check reads "all is finite"
    assert "compile.count" not in run(prepared, settings).metrics


def test_native_torch_has_nothing_to_prepare():
    assert prepare(fresh(), QUICK.replace(mode="torch")) == 0


def test_a_run_says_what_it_compiles_and_what_was_there():
    said: list[str] = []
    prepared = fresh()
    run(prepared, QUICK, lambda text, fraction: said.append(text))
    compiling = [text for text in said if text.startswith("compiling ")]
    assert compiling[0].startswith("compiling forward, ")
    assert "programs ready, 0 of them from the cache" in compiling[0]
    assert all(" of " in text for text in compiling)
    watch = Compiling(said.append)
    assert str(watch) == ""
    watch.found("a")
    assert str(watch) == "1 program, all from the cache"
    watch.made("b")
    watch.found("b")  # of the next step
    assert str(watch) == "1 of 2 programs compiled"


def test_preparing_does_not_change_the_random_numbers_of_the_user():
    torch.manual_seed(7)
    numbers = torch.rand(3)
    torch.manual_seed(7)
    prepare(fresh(), QUICK.replace(mode="lazy"))
    assert torch.equal(torch.rand(3), numbers)


@pytest.mark.parametrize("after", [0, 3, 9])
def test_it_gives_way_wherever_it_is_and_the_next_run_is_right(
    after: int, expected: tuple[float, ...]
):
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    prepared = fresh()
    with pytest.raises(Cancelled):
        prepared.prepare(QUICK, progress=ignore, cancelled=cancelled)
    assert run(prepared, QUICK).losses == expected


def test_what_raises_while_it_is_recorded_raises_here_and_again_when_it_runs():
    def broken(ctx: Any) -> Any:
        raise ValueError("no such file")

    prepared = Prepared(broken)
    for act in (prepare, run):
        with pytest.raises(ValueError, match="no such file"):
            act(prepared, QUICK)


def test_a_loop_that_waits_for_a_number_is_recorded_only_so_far(monkeypatch: pytest.MonkeyPatch):
    def endless(ctx: Any) -> Any:
        def step() -> Any:
            x = torch.ones((), device=ctx.device)
            while x.item() != 1:  # zero, as long as nothing runs
                x = x * 1.0
            return x

        return step

    monkeypatch.setattr(ahead, "MAX_TASKS", 20)
    prepared = Prepared(endless)
    with pytest.raises(ExecutionError, match="has no end"):
        prepare(prepared, QUICK)
    assert run(prepared, QUICK).losses == (1.0, 1.0)


def test_a_run_waits_for_the_program_in_the_works_and_compiles_it_no_second_time(
    monkeypatch: pytest.MonkeyPatch, expected: tuple[float, ...]
):
    entered, leave = threading.Event(), threading.Event()
    made: list[str] = []
    compile_segment = kit.runtime.session.compiler.compile_segment

    def slow(source: Any, rules: Any, *, name: str, **more: Any) -> Any:
        if threading.current_thread().name == "kit compile ahead":
            entered.set()
            assert leave.wait(LONG_S)
        made.append(name)
        return compile_segment(source, rules, name=name, **more)

    monkeypatch.setattr("kit.runtime.session.compiler.compile_segment", slow)
    prepared = fresh()
    with pytest.raises(Cancelled):  # at once, though the program is still being compiled
        prepared.prepare(QUICK, progress=ignore, cancelled=entered.is_set)
    ended: list[kit.Run] = []
    runner = threading.Thread(target=lambda: ended.append(run(prepared, QUICK)))
    runner.start()
    leave.set()
    runner.join(LONG_S)
    assert ended[0].losses == expected
    assert len(made) == len(set(made)) == len(prepared.cache.executables)


def test_who_is_interrupted_leaves_no_program_to_be_compiled():
    cache, leave = ExecutableCache(), threading.Event()
    programs = [ahead.NeededProgram(key, 1, lambda: leave.wait(LONG_S)) for key in "abc"]

    def tell(*_: int) -> None:
        raise KeyboardInterrupt

    with leaves_no_thread():
        with pytest.raises(KeyboardInterrupt):
            ahead.Ahead(cache).compile(programs, tell=tell, cancelled=bool)
        leave.set()
    assert len(cache.executables) <= 1


def test_nothing_is_measured_while_a_program_is_compiled_ahead():
    cache, stop, turns = ExecutableCache(), threading.Event(), Turns()
    entered, leave = threading.Event(), threading.Event()

    def make() -> Any:
        entered.set()
        assert leave.wait(LONG_S)
        return object()

    ahead_of_use = ahead.Ahead(cache, around=turns.compile)
    program = ahead.NeededProgram("key", 1, make)

    with pytest.raises(Cancelled):  # stopped, and XLA goes on
        ahead_of_use.compile([program], tell=lambda *_: None, cancelled=entered.is_set)
    with pytest.raises(Cancelled):
        turns.wait_quiet(lambda: True)
    quiet = threading.Thread(target=lambda: (turns.wait_quiet(), stop.set()))
    quiet.start()
    assert not stop.is_set()
    leave.set()
    quiet.join(LONG_S)
    assert stop.is_set()
    turns.wait_quiet()
    assert "key" in cache.executables


def test_a_run_of_one_explorer_stops_what_another_one_prepares(expected: tuple[float, ...]):
    first = fresh()
    second = Prepared(first.workload)
    ended: list[kit.Run] = []
    runner = threading.Thread(target=lambda: ended.append(run(second, QUICK)))

    def cancelled() -> bool:  # the first time that it is asked, somebody else wants to run
        if runner.ident is None:
            runner.start()
            while not TURNS.is_taken:
                threading.Event().wait(0.001)
        return False

    with pytest.raises(Cancelled):
        first.prepare(QUICK, progress=ignore, cancelled=cancelled)
    runner.join(LONG_S)
    assert ended[0].losses == expected
    assert prepare(first, QUICK) == 0  # nobody runs any more, and the run has compiled all


def test_a_program_that_failed_ahead_is_compiled_by_who_needs_it():
    cache = ExecutableCache()
    with pytest.raises(ZeroDivisionError):
        cache.make_ahead("key", lambda: 1 // 0)
    assert cache.find("key", lambda: "made") == "made"  # type: ignore[comparison-overlap]


def test_what_is_compiled_ahead_and_never_used_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executables, "MAX_AHEAD", 3)
    cache = ExecutableCache()
    for key in range(3):
        assert cache.make_ahead(key, object)
        assert not cache.make_ahead(key, object)
    cache.find(0, object)  # used, so it stays
    for key in range(3, 9):
        cache.make_ahead(key, object)
    assert set(cache.executables) == {0, 6, 7, 8}
