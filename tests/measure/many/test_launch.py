"""The same workload over real processes: equal losses, one clock, and an end when one dies."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kit
from kit.errors import Cancelled, SessionError, SettingsError
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.many.launch import Team, _Child, run_processes
from kit.runs.gradients import exposed_ms
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.processes.join import current_processes
from kit.runtime.processes.links import free_port
from kit.torch.parallel.barrier import replica_here

SETTINGS = Settings(steps=4, warmup=1, batch_size=7)  # 7 over 2 or 4: uneven parts
SHIFT_NS = 5_000_000_000


def rank() -> int:
    """Of the process that this runs in; 0 if there is but one."""
    joined = current_processes()
    return 0 if joined is None else joined.rank


@kit.workload
def classify(ctx: kit.Context) -> Callable[[], Any]:
    """A small net with statistics of the whole batch."""
    net = nn.Sequential(nn.Linear(6, 16), kit.SyncBatchNorm(16), nn.ReLU(), nn.Linear(16, 4))
    net = net.to(ctx.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True)
    x, y = torch.randn(21, 6), torch.randint(0, 4, (21,))
    batches = ctx.loader(torch.utils.data.TensorDataset(x, y))

    def step() -> Any:
        optimizer.zero_grad()
        a, b = next(batches)
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        return loss

    return step


@kit.workload
def lopsided(ctx: kit.Context) -> Callable[[], Any]:
    """Three buckets, of which the second has gradients in the last replica only."""
    torch.manual_seed(0)
    first, second, third = (nn.Linear(512, 512) for _ in range(3))
    net = nn.ModuleList([first, second, kit.SyncBatchNorm(512), third]).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 512)
    batches = ctx.loader(torch.utils.data.TensorDataset(x))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            replica = replica_here()
            y = torch.tanh(self.parts[0](x))
            if replica is None or replica.rank == 1:
                y = y + self.parts[1](y)
            return self.parts[3](self.parts[2](y))  # type: ignore[no-any-return]

    whole = Whole()

    def step() -> Any:
        optimizer.zero_grad()
        (a,) = next(batches)
        loss = whole(a).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def at_step(ctx: kit.Context, number: int, act: Callable[[], None]) -> Callable[[], Any]:
    """The same workload, with something that happens in the last process at one step."""
    step, calls = classify.build(ctx), iter(range(1000))

    def acting() -> Any:
        joined = current_processes()
        if joined is not None and rank() == joined.count - 1 and next(calls) == number:
            act()
        return step()

    return acting


@kit.workload
def raises(ctx: kit.Context) -> Callable[[], Any]:
    def act() -> None:
        raise ValueError("the data of this shard is broken")

    return at_step(ctx, 2, act)


@kit.workload
def dies(ctx: kit.Context) -> Callable[[], Any]:
    return at_step(ctx, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))


@kit.workload
def first_dies(ctx: kit.Context) -> Callable[[], Any]:
    step, calls = classify.build(ctx), iter(range(1000))

    def dying() -> Any:
        if next(calls) == 2 and current_processes() is not None and rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step()

    return dying


@kit.workload
def last_sleeps(ctx: kit.Context) -> Callable[[], Any]:
    return at_step(ctx, 2, lambda: time.sleep(1000))


@kit.workload
def last_hangs(ctx: kit.Context) -> Callable[[], Any]:
    return hangs(ctx, 1)


@kit.workload
def first_hangs(ctx: kit.Context) -> Callable[[], Any]:
    return hangs(ctx, 0)


def hangs(ctx: kit.Context, who: int) -> Callable[[], Any]:
    """All threads of a process stand still, and its connections stay open."""
    step, calls = classify.build(ctx), iter(range(1000))

    def hanging() -> Any:
        if next(calls) == 2 and current_processes() is not None and rank() == who:
            os.kill(os.getpid(), signal.SIGSTOP)
        return step()

    return hanging


@kit.workload
def last_reads(ctx: kit.Context) -> Callable[[], Any]:
    step = classify.build(ctx)

    def reading() -> Any:
        loss = step()
        if rank():
            loss.item()
        return loss

    return reading


def shifted_classify() -> kit.Workload:
    """`classify`, in a process whose clock is ahead by 5 s if it is not the first."""
    if rank():
        from kit.runtime.recording import bulk as stream

        real = time.perf_counter_ns

        def ahead() -> int:
            return real() + SHIFT_NS

        time.perf_counter_ns = stream.perf_counter_ns = ahead
    return classify


def children(pid: int | None = None) -> list[psutil.Process]:
    """The processes that a run has started and not ended."""
    found = psutil.Process(pid).children()
    return [child for child in found if any("spawn_main" in arg for arg in child.cmdline())]


@pytest.fixture(scope="module")
def alone() -> Run:
    return kit.run(classify, SETTINGS)


@pytest.fixture(scope="module")
def two() -> Run:
    return run_processes(functools.partial(shifted_classify), SETTINGS, Team(2))


def test_two_processes_have_the_losses_of_one_device(alone: Run, two: Run) -> None:
    assert two.losses == pytest.approx(alone.losses, rel=1e-5)
    assert two.metrics["parallel.devices"] == 2
    assert len(two.step_times_ns) == SETTINGS.steps
    pids = {two.environment[f"process {r}"] for r in (0, 1)}
    assert len(pids) == 2
    assert f"pid {os.getpid()}" not in " ".join(pids)


def test_four_processes_have_the_losses_of_one_device(alone: Run) -> None:
    seen = []
    four = kit.run(classify, SETTINGS, processes=4, bucket_mb=1e-5, timeout_s=240,
                   progress=lambda name, part: seen.append(part))  # fmt: skip
    assert four.losses == pytest.approx(alone.losses, rel=1e-5)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(0.9)
    lanes = {
        f"process {r} device/{r} {what}" for r in range(4) for what in ("compute", "reduction")
    }
    assert lanes <= set(four.timeline.lanes)
    buckets = {s.name for s in four.timeline.spans if s.kind == "reduction"}
    assert len(buckets) > 1  # one would do, but for `bucket_mb`
    assert not children()


def test_two_processes_replay_their_steps_with_the_losses_of_one_device() -> None:
    settings = SETTINGS.replace(steps=9, warmup=5, step_mode="replay")
    two = kit.run(classify, settings, processes=2)
    assert two.losses == pytest.approx(kit.run(classify, settings).losses, rel=1e-5)
    assert two.metrics["replay.steps"] > 5


def test_the_graph_is_process_0s_and_spans_of_all_processes_name_its_segments(two: Run) -> None:
    nodes = two.graphs[0].nodes
    sent = {i for i, node in enumerate(nodes) if node.op.startswith("kit.all_")}
    assert {nodes[i].phase for i in sent} == {"forward", "backward"}  # batch norm, gradients
    for r in (0, 1):
        for what, column, known in (
            ("compute", "segment", {s.index for s in two.segments}),
            ("reduction", "node", sent),
        ):
            lane = [s for s in two.timeline.spans if s.lane == f"process {r} device/{r} {what}"]
            assert {getattr(s, column) for s in lane} == known
    assert two.metrics["segment.count"] >= 2 * len(two.segments) * (
        SETTINGS.steps + SETTINGS.warmup
    )


def test_sync_points_are_those_of_the_process_that_reads() -> None:
    two = kit.run(last_reads, SETTINGS, processes=2)
    assert len(two.sync_points) == SETTINGS.steps
    assert two.timeline.syncs  # those in process 0's steps, which end while process 1 waits
    assert {s.cause for s in (*two.sync_points, *two.timeline.syncs)} == {"item"}


def are_the_same(ours: list[Any], theirs: list[Any], error_ns: int) -> bool:
    """Are these the same collectives in order, seen by two processes?

    No process leaves a collective before the last has entered it. A collective that one process has
    ended when its traced steps begin may end in those of the other, which then has one more.
    """
    few, many = sorted((ours, theirs), key=len)
    assert few
    assert len(many) - len(few) <= 1
    return any(
        all(
            a.stop_ns >= b.start_ns - error_ns and b.stop_ns >= a.start_ns - error_ns
            for a, b in zip(few, many[skipped:], strict=False)
        )
        for skipped in range(len(many) - len(few) + 1)
    )


def test_lanes_of_all_processes_lie_on_one_clock_whatever_their_clocks_say(two: Run) -> None:
    note = next(n for n in two.timeline.notes if "clocks" in n)
    found = re.search(r"process 1 by ([+-]\d+) µs ± (\d+) µs", note)
    assert found is not None
    offset, error = (int(x) * 1000 for x in found.groups())
    assert abs(offset + SHIFT_NS) <= error + 1000
    reductions: dict[tuple[int, str], list[Any]] = {}
    for span in two.timeline.spans:
        if span.kind == "reduction":
            reductions.setdefault((int(span.lane.split()[1]), span.name), []).append(span)
    names = {name for _, name in reductions}
    assert any(name.startswith("bucket") for name in names)
    for name in names:
        assert are_the_same(reductions[0, name], reductions[1, name], error)
    assert set(exposed_ms(two.timeline)) == {"process 0 device/0", "process 1 device/1"}
    assert int(two.timeline.where(kind="step").sum()) == TRACED_STEPS  # process 0's


def test_buckets_that_fill_in_another_order_elsewhere_are_added_up_right() -> None:
    settings = SETTINGS.replace(steps=3)
    together = kit.run(lopsided, settings, devices=["cpu:0", "cpu:0"])
    apart = kit.run(lopsided, settings, processes=2)
    assert apart.losses == pytest.approx(together.losses, rel=1e-5)


@pytest.mark.parametrize(("workload", "who"), [(dies, 1), (first_dies, 0)], ids=["last", "first"])
def test_a_killed_process_ends_the_run_with_its_name(workload: kit.Workload, who: int) -> None:
    with pytest.raises(SessionError, match=rf"process {who} of 2 was killed by signal 9 \(SIGKILL"):
        kit.run(workload, SETTINGS, processes=2)
    assert not children()


@pytest.mark.parametrize(
    ("workload", "who"), [(last_hangs, 1), (first_hangs, 0)], ids=["last", "first"]
)
def test_a_process_that_stands_still_ends_the_run_with_its_name(
    workload: kit.Workload, who: int
) -> None:
    with pytest.raises(SessionError, match=rf"process {who} of 2 was silent for 6 s: it hangs"):
        kit.run(workload, SETTINGS, processes=2, timeout_s=8)
    assert not children()


def test_a_process_that_is_stuck_in_its_step_ends_the_run_with_its_name() -> None:
    with pytest.raises(SessionError, match=r"process 1 did not come to it within 5 s"):
        kit.run(last_sleeps, SETTINGS, processes=2, timeout_s=5)
    assert not children()


def test_what_a_process_raises_comes_through_with_its_process_replica_and_line() -> None:
    with pytest.raises(ValueError, match="the data of this shard is broken") as caught:
        kit.run(raises, SETTINGS, processes=2)
    notes = "\n".join(caught.value.__notes__)
    assert "kit: this was in replica 1 of 2, at test_launch.py:" in notes
    assert "kit: this was in process 1 of 2" in notes


@pytest.fixture(scope="module")
def cancelled() -> list[str]:
    """A run that was cancelled in its steps: the addresses at which its processes listened."""
    addresses: list[str] = []

    def progress(name: str, part: float) -> None:
        if name.startswith("measuring") and not addresses:
            sockets = [s for child in children() for s in child.net_connections("inet")]
            found = (s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN)
            addresses.extend(ip.removeprefix("::ffff:") for ip in found)

    with pytest.raises(Cancelled):
        kit.run(classify, SETTINGS.replace(steps=100_000), processes=2, progress=progress,
                cancelled=lambda: bool(addresses))  # fmt: skip
    return addresses


def test_a_run_can_be_cancelled_and_leaves_no_process(cancelled: list[str]) -> None:
    assert not children()


def test_processes_of_one_machine_listen_to_nobody_outside(cancelled: list[str]) -> None:
    own = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None)}
    assert set(cancelled) <= {"127.0.0.1", *own}  # gloo listens where the host's own name leads


def test_what_cannot_be_is_refused_before_a_process_is_started() -> None:
    def inside(ctx: kit.Context) -> Any:
        raise AssertionError

    with pytest.raises(SettingsError, match="processes must be a whole number of at least 1"):
        kit.run(classify, SETTINGS, processes=0)
    with pytest.raises(SettingsError, match="must be able to import it"):
        kit.run(inside, SETTINGS, processes=2)
    with pytest.raises(SettingsError, match="belong together"):
        run_processes(classify, SETTINGS, Team(2, rank=0))
    with pytest.raises(SettingsError, match="a timeout must be more than 0 seconds"):
        kit.run(classify, SETTINGS, processes=2, timeout_s=math.inf)
    with pytest.raises(SettingsError, match="bucket_mb: only with several devices"):
        kit.run(classify, SETTINGS, bucket_mb=1)
    with pytest.raises(SettingsError, match="the number that each of them has"):
        kit.run(classify, SETTINGS, processes=2, devices=["cpu:0"])
    assert not children()


def test_an_error_of_who_is_told_of_the_progress_is_no_death_of_a_process() -> None:
    """ "ended with exit status None" was said, after ten seconds, of a process that was well."""
    child = object.__new__(_Child)
    child.is_done, child.error = False, None
    child.pipe, theirs = multiprocessing.Pipe(duplex=False)

    def broken(name: str, part: float) -> None:
        raise BrokenPipeError("nobody reads what is printed")

    theirs.send(("progress", "measuring", 0.5))
    with theirs, child.pipe, pytest.raises(BrokenPipeError, match="nobody reads"):
        child.hear(broken)
    assert child.error is None


def test_a_process_of_several_hosts_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_RUN_SECRET", raising=False)
    monkeypatch.delenv("KIT_RUN_SECRET_FILE", raising=False)
    with pytest.raises(SettingsError, match="need a secret: give KIT_RUN_SECRET"):
        run_processes(classify, SETTINGS, Team(2, rank=0, coordinator="127.0.0.1:9911"))
    assert not children()


SCRIPT = """
import torch, torch.nn.functional as F, kit
from torch import nn
print("reading the data")

@kit.workload
def mine(ctx):
    net = nn.Linear(6, 4).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.TensorDataset(torch.randn(8, 6), torch.randn(8, 4)))
    def step():
        optimizer.zero_grad()
        a, b = next(batches)
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        return loss
    return step
"""


def test_hosts_start_one_process_each_from_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = [sys.executable, "-m", "kit", "run", str(script), "--set", "steps=2&warmup=1",
              "--processes", "2", "--devices", "2", "--timeout", "240",
              "--coordinator", f"127.0.0.1:{free_port()}"]  # fmt: skip
    hosts = [
        subprocess.Popen(
            [*common, "--rank", str(r), "--save", str(tmp_path / f"{r}.kitrun")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "KIT_RUN_SECRET": "one of this test alone"},
        )
        for r in (0, 1)
    ]
    said = [host.communicate(timeout=300)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(said)
    assert "reading the data" in said[0]
    assert "Gloo" not in said[0] + said[1]
    runs = [Run.load(tmp_path / f"{r}.kitrun") for r in (0, 1)]
    assert runs[0].timeline == runs[1].timeline
    assert runs[0].losses == runs[1].losses
    assert runs[0].metrics["parallel.devices"] == 4


PARENT = """
import sys
sys.path.insert(0, {folder!r})
from train import mine
import kit

if __name__ == "__main__":
    settings = kit.Settings(steps=100_000, warmup=1)
    kit.run(mine, settings, processes=2, progress=lambda name, part: print(name, flush=True))
"""


def test_the_processes_of_a_parent_that_is_killed_end_as_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(folder=str(tmp_path)))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        while "measuring" not in parent.stdout.readline():
            assert parent.poll() is None
    started = children(parent.pid)
    assert len(started) == 2
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []
