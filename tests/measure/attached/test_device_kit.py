"""`kit.watch` around a loop on device kit: in an open session, by its own tracing."""

from __future__ import annotations

import gc
import subprocess
import time
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SessionError, SettingsError
from kit.measure.base.loading import NEXT
from kit.measure.base.loop import TRACED_STEPS
from kit.runs.labels import samples_of
from kit.runs.verdict.summary import summary
from kit.torch.optimizers import FOLLOWED
from tests.warm import warm_python


class Loop:
    """A loop that trains wherever it is told to."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.net = nn.Linear(8, 2).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.points = torch.randn(4, 8)
        self.losses: list[float] = []

    def train(self, count: int, watch: kit.LoopWatch | None = None) -> None:
        for _ in range(count):
            loss = self.net(self.points.to(self.device)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())  # a sync point
            if watch is not None:
                watch.step(loss)


def test_a_loop_in_a_session_becomes_a_run_with_graph_waits_and_predictions() -> None:
    native = Loop("cpu")
    native.train(14)
    with kit.Session(kit.Settings(mode="lazy")), kit.watch(steps=3, skip=3) as watch:
        loop = Loop("kit")
        loop.train(14)
    run = watch.run
    assert loop.losses == pytest.approx(native.losses, rel=1e-5)
    assert watch.ended == "complete: measured 3 of 3 steps"
    assert (run.settings.mode, len(run.step_times_ns)) == ("lazy", 3)
    assert run.timeline.where(kind="step").sum() == TRACED_STEPS
    assert len(run.graphs[0]) > 5
    assert [sync.cause for sync in run.sync_points] == ["item"] * 3
    assert run.sync_points[0].site.startswith("test_device_kit.py:")
    assert run.sync_points[0].site in summary(run)
    assert kit.predict(run, run.settings.replace(mode="bulked", bulk_forward=2)).step_ms > 0
    with pytest.raises(SettingsError, match=r"finished run.*kit\.predict"):
        kit.Explorer(run)
    assert run.metrics["segment.count"] > 0
    assert any("self.optimizer.step()" in line for s in run.sources for line in s.lines)


def test_the_batches_of_a_loops_own_loader_are_input_and_no_copies_of_its_own() -> None:
    """It was told that none of a loader was among what it copies."""
    with kit.Session(kit.Settings(mode="lazy")), kit.watch(steps=3, skip=3) as watch:
        loop = Loop("kit")
        data = torch.utils.data.DataLoader(_Slow(), batch_size=4)
        for _, loop.points in zip(range(14), data, strict=False):
            loop.train(1)
    loading = watch.run.timeline.where(kind="input", name=NEXT)
    assert loading.sum() == TRACED_STEPS
    (advice,) = [a for a in watch.run.advice() if a.rule == "input"]
    assert "let processes of the DataLoader prepare batches" in advice.text


def test_torchs_loaders_are_as_before_after_two_watches_of_a_session() -> None:
    """The first to end put torch's methods back, and the second those of the first one."""
    loader = torch.utils.data.DataLoader
    before = loader.__iter__, type(iter(loader(_Slow()))).__next__
    settings = kit.Settings(mode="lazy")
    with kit.Session(settings), kit.watch(steps=2, skip=2), kit.watch(steps=4, skip=2):
        Loop("kit").train(20)
    assert (loader.__iter__, type(iter(loader(_Slow()))).__next__) == before


class _Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.randn(8)


def test_the_loops_steps_are_the_sessions_once_each_and_after_the_recording_too() -> None:
    with kit.Session() as session, kit.watch(steps=2, skip=0) as watch:
        Loop("kit").train(12)
        assert watch.ended.startswith("complete")
        assert session.step == 12
    with kit.Session() as session, kit.watch(steps=2, skip=0) as watch:
        loop = Loop("kit")
        for _ in range(10):
            loop.train(1, watch)
            session.mark_step()  # the program's own, which ends each step already
        assert 10 <= session.step <= 12
    assert watch.run.losses == pytest.approx(loop.losses[1:3])


def test_a_batch_that_the_loop_evaluates_unread_is_a_step_and_ends_none_of_the_loops() -> None:
    """All batches of an evaluation were one program."""
    batches = torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=4)
    with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=0) as watch:
        loop = Loop("kit")
        total = torch.zeros((), device="kit")
        for _ in range(9):
            loop.train(1)
            loop.net(torch.ones(4, 8, device="kit")).sum().backward()  # and not stepped any more
            loop.optimizer.zero_grad()
            with torch.no_grad():
                for batch in batches:
                    total += loop.net(batch.to("kit")).square().mean()
        assert session.step == 9 * (1 + 3)
    assert watch.ended.startswith("complete")
    assert len(watch.run.graphs) == 1


def test_a_batch_of_another_loader_drawn_after_a_teacher_ends_no_step() -> None:
    """The teacher's batch was taken for one of an evaluation, and the step was cut in two."""
    labelled, others = (
        torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4) for _ in range(2)
    )
    with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=0):
        loop, teacher = Loop("kit"), nn.Linear(8, 2).to("kit")
        drawn = iter(others)
        for batch in labelled:
            with torch.no_grad():
                aim = teacher(batch.to("kit"))
            loss = (loop.net(next(drawn).to("kit")) - aim).square().mean()
            loop.optimizer.zero_grad()
            loss.backward()
            loop.optimizer.step()
        assert session.step == 4


def test_the_second_batch_of_a_step_ends_none_where_the_loader_is_known_to_train() -> None:
    """Each step was cut in two behind a teacher, and its program compiled in two parts."""
    batches = torch.utils.data.DataLoader(torch.randn(40, 8), batch_size=4)
    evaluated = torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=4)
    with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=0):
        loop, teacher = Loop("kit"), nn.Linear(8, 2).to("kit")
        drawn = iter(batches)
        for _ in range(5):
            with torch.no_grad():
                aim = teacher(next(drawn).to("kit"))
            loss = (loop.net(next(drawn).to("kit")) - aim).square().mean()
            loop.optimizer.zero_grad()
            loss.backward()
            loop.optimizer.step()
            with torch.no_grad():
                for batch in evaluated:
                    loop.net(batch.to("kit")).square().mean()
        assert session.step == 5 * (1 + 3)


def test_pairs_of_two_loaders_that_are_evaluated_unread_end_a_step_each() -> None:
    left, right = (torch.utils.data.DataLoader(torch.randn(20, 8), batch_size=4) for _ in range(2))
    with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=0):
        loop = Loop("kit")
        loop.train(1)
        with torch.no_grad():
            for x, y in zip(left, right, strict=True):
                (loop.net(x.to("kit")) - loop.net(y.to("kit"))).square().mean()
        assert session.step == 1 + 5


_FIRST_SESSION_IN_A_TRACE = """
import torch
import kit
from kit.measure.native.loaders import loaders_noted

with loaders_noted(), kit.Session():
    pass
with kit.Session(kit.Settings(mode="lazy")) as session, kit.watch(steps=2, skip=0):
    net = torch.nn.Linear(8, 2).to("kit")
    optimizer = torch.optim.SGD(net.parameters())
    net(torch.ones(4, 8, device="kit")).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(torch.randn(12, 8), batch_size=4):
            net(batch.to("kit"))
    print(session.step)
"""


def test_batches_end_steps_where_device_kit_began_within_a_native_trace() -> None:
    """The trace put torch's loaders back as they had been, and with them what device kit needs."""
    command = [warm_python(), "-c", _FIRST_SESSION_IN_A_TRACE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["4"], done.stderr


@pytest.mark.parametrize("device", ["kit", "cpu"])
def test_a_step_that_a_scaler_skips_ends_one_of_the_loop(device: str) -> None:
    """Two rounds of the loop were one step, with two reads and twice the time."""
    session: Any = kit.Session(kit.Settings(mode="lazy")) if device == "kit" else nullcontext()
    with session, kit.watch(steps=4, skip=0) as watch:
        loop = Loop(device)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
        for count in range(14):
            loss = loop.net(loop.points.to(device)).square().mean()
            loop.optimizer.zero_grad()
            scaler.scale(loss * (float("inf") if count % 2 else 1.0)).backward()
            scaler.step(loop.optimizer)
            scaler.update()
    run = watch.run
    phases = [s.name for s in run.timeline.spans if s.kind == "record"]
    assert phases.count("backward") == TRACED_STEPS
    assert run.environment["a step ends at"].startswith("SGD.step(), test_device_kit.py:")
    if device == "kit":
        assert session.step == 14
        assert [sync.via for sync in run.sync_points] == [run.sync_points[0].via] * 4


def test_a_loop_goes_on_as_before_once_its_watch_is_closed() -> None:
    with kit.Session(kit.Settings(mode="lazy")) as session:
        loop = Loop("kit")
        with kit.watch(steps=2, skip=0):
            loop.train(12)
        loop.train(5)
        assert session.step == 17
        with kit.watch(steps=2, skip=0):  # which ends the steps from here on
            loop.train(12)
        loop.train(5)
        assert session.step == 34
    assert len(FOLLOWED) == 0
    closed = weakref.ref(session)
    del session, loop
    gc.collect()
    assert closed() is None


@pytest.mark.parametrize("mode", ["replay", "speculate"])
def test_a_loop_that_is_recorded_each_time_is_no_run_of_another_step_mode(mode: str) -> None:
    with kit.Session(kit.Settings(mode="lazy", step_mode=mode)), kit.watch(2, skip=2) as watch:
        Loop("kit").train(14)
    run = watch.run
    assert run.settings.step_mode == "retrace"
    assert any("no step was given to session.run_step" in note for note in run.timeline.notes)
    for advice in run.advice():
        assert "step_mode" not in advice.change
        assert "speculate" not in advice.text
        assert advice.text.count("step_mode") == advice.text.count("of a @kit.workload")


def test_replayed_steps_that_no_optimizer_ends_are_asked_for() -> None:
    loops = Loop("cpu"), Loop("cpu")
    for loop, ends in zip(loops, (False, True), strict=True):
        with kit.Session(kit.Settings(step_mode="replay")) as session:
            loop.device, loop.net = "kit", loop.net.to("kit")
            points = loop.points.to("kit")

            def step(loop: Loop = loop, points: torch.Tensor = points) -> torch.Tensor:
                loss = loop.net(points).square().mean()
                loss.backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                return loss

            with kit.watch(steps=3, skip=8) as watch:
                for _ in range(20):
                    session.run_step(step)
                    if ends:
                        watch.step()
        assert session.stepper.counts["replay.steps"] > 8
        assert watch.run.settings.step_mode == "replay"
        said = any("end each step with watch.step()" in note for note in watch.run.timeline.notes)
        assert said != ends
        assert len(watch.run.step_times_ns) == 3 or not ends


def test_an_error_between_traced_steps_keeps_those_that_were_traced() -> None:
    def train() -> None:
        with kit.Session(), watch:
            loop = Loop("kit")
            loop.train(1 + 2 + 3)  # the first, the measured, the traced ones but one
            raise RuntimeError("diverged")

    watch = kit.watch(steps=2, skip=0)
    with pytest.raises(RuntimeError, match="diverged"):
        train()
    assert watch.ended == "ended by RuntimeError: diverged, in step 6: measured 2 of 2 steps"
    assert len(watch.run.step_times_ns) == 2
    assert watch.run.timeline.where(kind="step").sum() == 1
    with kit.Session() as session:  # the profiler is free again
        assert session.tracer is not None
        with kit.watch(steps=1, skip=0) as again:
            Loop("kit").train(8)
    assert again.run.timeline.origin == "profiled"


def test_a_loop_that_ends_before_a_traced_step_is_whole_has_the_graph_of_none() -> None:
    """It had an empty one as its first, and each line had cost 0 ms."""
    for more in (1, 2):
        with kit.Session(), kit.watch(steps=2, skip=0) as watch:
            Loop("kit").train(1 + 2 + more)
        run = watch.run
        assert run.timeline.steps == 0
        assert run.graphs == run.segments == run.recorded_ns == ()
        assert "those that were whole, or none" in summary(run)
        assert run.sources  # the waits have lines


def test_a_watch_outlives_its_session() -> None:
    watch = kit.watch(steps=1, skip=0)
    with watch:
        with kit.Session():
            Loop("kit").train(8)
        Loop("cpu").train(3)
    assert watch.run.settings.mode == "bulked"
    with pytest.raises(SessionError):
        torch.ones(2, device="kit")


def test_what_follows_the_last_step_of_a_short_loop_is_no_wait_of_a_step() -> None:
    """Found with a script: 2.4 sync points a step, where each step of the loop read two numbers."""
    with kit.Session(), kit.watch(skip=2) as watch:
        Loop("kit").train(6)
    assert len(watch.run.step_times_ns) == 3
    assert len(watch.run.sync_points) == 3
    assert "no step was traced" in summary(watch.run)


def test_a_look_at_the_steps_so_far_changes_nothing_of_the_run() -> None:
    """A loop that waited in each step had "0 sync points" once its `run` had been looked at."""
    with kit.Session(), kit.watch(steps=6, skip=2) as watch:
        loop = Loop("kit")
        loop.train(5)
        early = watch.run
        loop.train(1)
        assert len(watch.run.sync_points) == len(early.sync_points) + 1
        loop.train(10)
    assert len(early.sync_points) == len(early.step_times_ns) == 2
    assert samples_of(early) == samples_of(watch.run) == 0  # nobody told it a batch size
    assert len(watch.run.sync_points) == 6
    assert "overhead.launch_ns" in watch.run.metrics
    assert "overhead.launch_ns" not in early.metrics  # to measure that, the loop would have to wait
