"""`kit.watch` around loops of plain torch: what it records, and what it leaves alone."""

from __future__ import annotations

import os
import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import kit
from kit.errors import SettingsError
from kit.measure.attached import recording
from kit.measure.attached.capture import Capture
from kit.measure.attached.loop import LoopWatch
from kit.measure.attached.native import NativeRecorder
from kit.measure.attached.optimizers import index_of
from kit.measure.attached.recording import Recording
from kit.measure.base.loop import TRACED_STEPS
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.widgets.numbers.step import run_notes_html
from kit.widgets.numbers.syncs import syncs_drawn
from tests.measure.attached import loops
from tests.measure.attached.loops import Loop, python_calls
from tests.reliability.stops.errors import lines_of, run_with
from tests.waiting import until

STEPS = [f"step {i}" for i in range(TRACED_STEPS)]

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_a_loop_that_knows_nothing_of_kit_becomes_a_run(tmp_path: Path) -> None:
    plain, loop = Loop(), Loop()
    plain.train(20)
    with kit.watch(steps=4, skip=2) as watch:
        loop.train(20)
    assert torch.equal(loop.weights(), plain.weights())  # it is the same training
    run = watch.run
    assert watch.ended == "complete: measured 4 of 4 steps"
    assert (run.settings.mode, len(run.step_times_ns), run.losses) == ("torch", 4, ())
    assert all(t > 0 for t in run.step_times_ns)
    assert [s.name for s in run.timeline.spans if s.kind == "step"] == STEPS
    phases = [s.name for s in run.timeline.spans if s.kind == "record"]
    assert phases == ["forward", "backward", "update"] * TRACED_STEPS
    assert run.timeline.where(kind="input").sum() >= TRACED_STEPS  # the loader
    line = next(
        i
        for i, text in enumerate(Path(loops.__file__).read_text("utf-8").split("\n"), 1)
        if "optimizer.step()" in text and "self" in text
    )
    assert run.environment["a step ends at"] == f"AdamW.step(), loops.py:{line}"
    assert "optimizer.step()" in "".join(run.sources[0].lines)
    assert f"1 read of a number a step (.item(), at loops.py:{line + 1})" in summary(run)
    run.save(tmp_path / "watched.kitrun")
    assert Run.load(tmp_path / "watched.kitrun").timeline == run.timeline
    assert "aten::linear" in run.to_markdown()
    assert kit.diff_runs(run, run).step.ms == 0


def test_reads_that_some_steps_have_not_are_said_with_their_line() -> None:
    loop = Loop()
    with kit.watch(steps=2, skip=0) as watch:
        for i, loss in enumerate(loop.steps(16)):
            if i > 5:  # the lines are noted before, the events after
                loss.item()
    (note,) = [n for n in watch.run.timeline.notes if "of a number a step" in n]
    assert re.search(r"at loops.py:\d+, test_native.py:\d+\) wait for nothing", note)


def test_a_loop_on_the_cpu_is_one_though_something_else_has_started_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an optimizer nothing says where the loop trains; no tensor is on CUDA."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    weight = torch.ones(8, 8)
    with kit.watch(steps=3, skip=2) as watch:
        for _ in range(12):
            (weight @ weight).sum()
            watch.step()
    assert watch.run.environment["device"].startswith("cpu")
    assert "aten::matmul" in watch.run.timeline.names


def test_step_ends_a_step_and_keeps_its_loss_unread() -> None:
    loop = Loop()
    with kit.watch(steps=3, skip=2) as watch:
        for loss in loop.steps(12):
            watch.step(loss)
    first = 1 + 2  # the step that began before it was known that the loop ends its steps, and skip
    assert watch.run.losses == pytest.approx(loop.losses[first : first + 3])
    assert watch.run.environment["a step ends at"].startswith("watch.step(), test_native.py:")


def test_the_first_of_two_optimizers_ends_a_step() -> None:
    nets = [nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(10):
            for net, optimizer in zip(nets, optimizers, strict=True):
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    phases = [s.name for s in watch.run.timeline.spans if s.kind == "record"]
    assert phases.count("backward") == 2 * TRACED_STEPS  # two in each step


class _Calls(torch.optim.SGD):
    """Its step has torch's inside, which torch's hooks hear of, too."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def _phases(count: int, optimizer: torch.optim.Optimizer, update: Any) -> list[str]:
    """What the traced steps of a loop do that updates its parameters in its own way."""
    points = torch.ones(1, 2)
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(count):
            sum((points @ p).sum() for g in optimizer.param_groups for p in g["params"]).backward()
            update()
    return [s.name for s in watch.run.timeline.spans if s.kind == "record"]


def test_a_step_inside_the_step_of_the_same_optimizer_ends_none() -> None:
    weight = nn.Parameter(torch.ones(2, 1))
    torch.optim.SGD([weight])  # from now on torch hooks the class's step
    optimizer = _Calls([weight], lr=0.1)
    assert _phases(10, optimizer, optimizer.step).count("backward") == TRACED_STEPS


def test_an_optimizer_that_is_stepped_group_by_group_ends_a_step_with_its_first_group() -> None:
    """As DeepSpeed's ZeRO does, one call for each group of parameters."""
    groups = [{"params": [nn.Parameter(torch.ones(2, 1))]} for _ in range(3)]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def update() -> None:
        every = optimizer.param_groups
        for group in every:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = every

    assert _phases(10, optimizer, update).count("backward") == TRACED_STEPS


class _SeesItself(torch.utils.data.Dataset[torch.Tensor]):
    """What its worker has inherited of the one who looks at the steps."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        calls = python_calls(lambda: torch.ones(2) + 1)
        return torch.tensor([len(_get_current_dispatch_mode_stack()), calls])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks there")
@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12
def test_workers_that_are_forked_while_steps_are_looked_at_are_not() -> None:
    loop, seen = Loop(), list[torch.Tensor]()
    with kit.watch(steps=2, skip=0) as watch:
        for _ in loop.steps(12):
            data = _SeesItself()
            workers = torch.utils.data.DataLoader(
                data, num_workers=1, batch_size=None, multiprocessing_context="fork"
            )
            seen.append(next(iter(workers)))
    assert watch.run.timeline.where(kind="kernel").any()
    assert {tuple(x.tolist()) for x in seen} == {(0, int(seen[0][1]))}


@pytest.mark.parametrize("at", [3, 6, 9, 11], ids=["warm", "measured", "looked", "traced"])
@pytest.mark.parametrize("error", [RuntimeError("diverged"), KeyboardInterrupt()], ids=type)
def test_an_error_in_the_middle_loses_nothing(at: int, error: BaseException) -> None:
    watch = kit.watch(steps=4, skip=4)

    def train() -> None:
        with watch:
            for i, _ in enumerate(Loop().steps(20), 1):
                if i == at:
                    raise error

    with pytest.raises(type(error)):
        train()
    warm, measured = min(at - 1, 4), max(0, min(at - 5, 4))
    assert len(watch.run.step_times_ns) == (measured or warm)
    assert type(error).__name__ in watch.ended
    assert f"measured {measured} of 4 steps" in watch.ended
    assert ("of its warm-up" in summary(watch.run)) == (measured == 0)
    with torch.profiler.profile(acc_events=True) as profile:  # the profiler is free again
        torch.ones(2).sum()
    assert any(e.key == "aten::sum" for e in profile.key_averages())


class _Dies(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40:
            os._exit(1)
        return torch.ones(2)


@pytest.mark.filterwarnings("ignore:.*fork")  # of jax, and of Python 3.12
# torch raises wherever its handler of SIGCHLD finds Python, also while psutil opens a file
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_loses_nothing() -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = kit.watch(steps=50, skip=1)

    def train() -> None:
        with watch:
            for x in torch.utils.data.DataLoader(_Dies(), batch_size=4, num_workers=1):
                net(x).sum().backward()
                optimizer.step()

    # torch says that the worker was killed, or finds its end of a pipe or file closed
    with pytest.raises((RuntimeError, EOFError, OSError)) as raised:
        train()
    errors = [raised.value]  # the handler may raise once more, while the watch takes the other
    while (error := errors[-1].__context__) is not None:
        errors.append(error)
    assert watch.ended.startswith(tuple(f"ended by {type(error).__name__}" for error in errors))
    assert 1 <= len(watch.run.step_times_ns) <= 10


@pytest.mark.parametrize(("wanted", "trained", "measured"), [(50, 4, 3), (2, 7, 2)])
def test_an_interrupt_while_a_recording_is_closed_loses_nothing(
    tmp_path: Path, wanted: int, trained: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when torch's handler says that a worker was killed, just while the watch is left.

    The second recording is closed while its steps are traced: no profiler may be left on.
    """

    def interrupt(frame: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "provenance", dict)  # two processes for each run

    def closing(folder: Path) -> Any:
        watch = kit.watch(wanted, skip=0, save=folder / "run.kitrun").__enter__()
        Loop().train(trained)
        return watch

    ended = (LoopWatch._end, LoopWatch._finish, LoopWatch._keep, LoopWatch._save, Recording.close)
    parts = (*ended, Recording.finished, Capture.keep, NativeRecorder.end_trace)
    codes = {part.__code__ for part in parts}
    lines = [line for line in lines_of(closing(tmp_path / "all").close) if line[0] in codes]
    for number, line in enumerate(lines):
        watch = closing(folder := tmp_path / str(number))
        with pytest.raises(KeyboardInterrupt):
            run_with(watch.close, line, interrupt)
        watch.close()
        assert not torch.autograd._profiler_enabled(), line
        assert [len(run.step_times_ns) for run in watch.runs] == [measured], line
        assert bool(len(watch.run.timeline)) is (trained > 4), line
        assert kit.Run.load(folder / "run.kitrun").step_times_ns == watch.run.step_times_ns, line
    assert {line[0] for line in lines} == codes


def test_between_recordings_a_step_costs_a_few_calls_and_after_them_none() -> None:
    loop = Loop()
    loop.train(2)
    bare = python_calls(loop.optimizer.step)
    watch = kit.watch(steps=1, skip=0)
    with watch:
        loop.train(10)
        assert watch.ended.startswith("complete")
        # Six are torch's, around two hooks; four ask whether a step of the loop ends.
        assert python_calls(loop.optimizer.step) <= bare + 13
        watch.start(steps=100, skip=0)
        loop.train(3)
        assert watch.is_recording
        assert python_calls(loop.optimizer.step) < bare + 30  # a measured step: two clocks, a list
    assert python_calls(loop.optimizer.step) == bare
    assert len(watch.runs) == 2


def test_a_loop_in_a_thread_is_recorded_from_outside_as_often_as_asked() -> None:
    loop, enough = Loop(), threading.Event()

    def work() -> None:
        while not enough.is_set():
            loop.train(5)

    thread = threading.Thread(target=work)
    thread.start()
    watch = kit.watch()
    try:
        watch.start(steps=3, skip=1)
        until(lambda: len(watch.runs) == 1)
        watch.start(steps=1_000_000, skip=0)
        until(
            lambda: (
                re.search(r"watch: measured ([3-9]|\d\d+) of 1,000,000", repr(watch)) is not None
            )
        )
        watch.stop()
        until(lambda: len(watch.runs) == 2)
    finally:
        watch.close()
        enough.set()
        thread.join()
    assert len(watch.runs[0].step_times_ns) == 3
    assert watch.runs[0].timeline.where(kind="step").sum() == TRACED_STEPS
    assert len(watch.runs[1].step_times_ns) > 2
    assert watch.ended.startswith("stopped: ")


def test_while_it_goes_on_the_run_has_the_steps_so_far() -> None:
    loop = Loop()
    with kit.watch(steps=100, skip=0) as watch:
        loop.train(5)
        assert len(watch.run.step_times_ns) == 4
        assert watch.ended == ""


def test_what_cannot_be_is_an_error_that_says_what_to_do() -> None:
    with kit.watch() as watch:
        pass
    with pytest.raises(SettingsError, match=r"seen no step: a step ends at `watch.step\(\)`"):
        _ = watch.run
    for options, text in (({"steps": 0}, "steps of a watch"), ({"skip": -1}, "skip of a watch")):
        with pytest.raises(SettingsError, match=text):
            kit.watch(**options)
    for loss in ("0.5", np.array("x"), np.ones(2)):
        text = r"watch\.step\(loss\) takes a tensor or a number, not (str|ndarray)"
        with pytest.raises(SettingsError, match=text), kit.watch() as watch:
            watch.step(loss)


@pytest.mark.parametrize("loss", [np.float32(1.5), np.array(1.5), np.array([1.5])])
def test_a_number_of_numpys_is_a_loss(loss: Any) -> None:
    with kit.watch(steps=2, skip=0) as watch:
        for _ in range(8):
            watch.step(loss)
    assert watch.run.losses == (1.5, 1.5)


def test_no_view_names_a_batch_that_nobody_knows() -> None:
    loop = Loop()
    with kit.watch(steps=1, skip=0) as watch:
        loop.train(8)
    assert "batch 8" not in run_notes_html(watch.run)
    assert "mode torch" in run_notes_html(watch.run)


def test_a_loop_too_short_to_trace_says_no_waits_and_what_to_ask_for() -> None:
    """Found with a script of 14 steps: "the host never waited" was said, and nobody had looked."""
    with kit.watch() as watch:
        Loop().train(14)
    run = watch.run
    assert run.timeline.where(kind="step").sum() == 0
    shown = summary(run)
    assert "never waited" not in shown
    assert "sync point" not in shown.replace("sync points a step", "")
    assert "0 sync points" not in shown
    asked = re.search(r"skip=(\d+), steps=(\d+) \(--skip \1 --steps \2\)", shown)
    assert asked is not None, shown
    assert "only a trace sees where the host waits" in syncs_drawn(run)[0]
    assert "unknown" in run.to_markdown().split("## Sync points")[1]
    skip, steps = map(int, asked.groups())
    with kit.watch(steps=steps, skip=skip) as watch:
        Loop().train(14)
    assert watch.ended == f"complete: measured {steps} of {steps} steps"
    assert watch.run.timeline.where(kind="step").sum() == TRACED_STEPS


def test_the_said_number_of_steps_is_enough_and_one_less_is_not() -> None:
    with kit.watch(steps=3, skip=1) as watch:
        Loop().train(4)
    asked = re.search(r"(\d+) are enough$", watch.run.timeline.notes[-1])
    assert asked is not None
    for count, is_traced in ((int(asked[1]) - 1, False), (int(asked[1]), True)):
        with kit.watch(steps=3, skip=1) as watch:
            Loop().train(count)
        assert watch.ended.startswith("complete") == is_traced


@pytest.mark.filterwarnings("ignore")  # of torch's own modules, as they are loaded
def test_torch_compile_compiles_the_loops_own_step_and_nothing_of_the_watch() -> None:
    """Its hook, and with it the kit's timeline, became graphs of the program's: 14 of 16."""
    seen = []

    def compiler(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    loop = Loop()
    loop.optimizer = torch.optim.SGD(loop.net.parameters(), lr=0.01)  # type: ignore[assignment]
    update = torch.compile(loop.optimizer.step, backend=compiler)
    with kit.watch(steps=3, skip=2) as watch:
        for _ in range(14):
            loop.net(torch.ones(1, 8)).sum().backward()
            update()
    assert len(seen) == 1
    assert watch.ended == "complete: measured 3 of 3 steps"
    assert "aten::linear" in watch.run.timeline.names

    @partial(torch.compile, backend=compiler)
    def step() -> None:
        loop.net(torch.ones(1, 8)).sum().backward()
        watch.step()

    step()
    graphs = len(seen)
    with kit.watch(steps=1, skip=0) as watch:
        for _ in range(9):
            step()
    assert len(seen) == graphs
    assert "aten::linear" in watch.run.timeline.names


def test_a_loop_is_timed_on_the_gpu_that_has_its_parameters() -> None:
    """It was timed by the clock of GPU 0, which had nothing to do."""
    with FakeTensorMode():
        params = [torch.empty(2, device=device) for device in ("cpu", "cuda:1")]
    for held, index in ((params, 1), (params[:1], None)):
        optimizer = SimpleNamespace(param_groups=[{"params": held}])
        assert index_of(optimizer) == index
