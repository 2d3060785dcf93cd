"""The same workload over real processes: equal losses, one clock, and an end when one dies."""

from __future__ import annotations

import functools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kit
from kit.errors import SessionError, SettingsError
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.many.launch import Team, run_processes
from kit.measure.many.options import check_alike
from kit.runs.gradients import comes_last, exposed_ms
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.processes.links import free_port
from tests.measure.many.steps import (
    SCRIPT,
    SETTINGS,
    SHIFT_NS,
    children,
    classify,
    first_sleeps,
    last_reads,
    lopsided,
    other_by_process,
    shifted_classify,
)
from tests.runtime.processes.channels import at_once, opened
from tests.warm import warm_python


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


def test_a_process_of_several_hosts_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_RUN_SECRET", raising=False)
    monkeypatch.delenv("KIT_RUN_SECRET_FILE", raising=False)
    with pytest.raises(SettingsError, match="need a secret: give KIT_RUN_SECRET"):
        run_processes(classify, SETTINGS, Team(2, rank=0, coordinator="127.0.0.1:9911"))
    assert not children()


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"batch_size": 16}, {}, "process 1 has batch_size=16, process 0 has 7:"),
        ({"seed": 1, "steps": 9}, {}, "process 1 has steps=9, process 0 has 4:"),
        ({}, {"bucket_mb": 4}, "process 1 has bucket_mb=4, process 0 has its default:"),
    ],
)
def test_processes_with_other_settings_are_refused_by_the_first_that_differs(
    change: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    first, second = (SimpleNamespace(channel=channel) for channel in opened(2))

    def check(process: Any, settings: Settings, given: dict[str, Any]) -> None:
        check_alike(process, classify, settings, given)

    def same() -> list[Any]:
        return at_once(lambda: check(first, SETTINGS, {}), lambda: check(second, SETTINGS, {}))

    assert same() == [None, None]
    refused = at_once(
        lambda: check(first, SETTINGS, {}),
        lambda: check(second, SETTINGS.replace(**change), options),
    )
    for error in refused:
        assert isinstance(error, SessionError)
        assert said in str(error)
    for process in (first, second):
        process.channel.leave()
    for process in (first, second):
        process.channel.close()


def test_processes_with_other_workloads_are_refused_before_a_step() -> None:
    with pytest.raises(SessionError, match="process 1 has workload=last_reads, process 0 has clas"):
        run_processes(functools.partial(other_by_process), SETTINGS, Team(2))


@pytest.mark.alone
def test_the_process_that_comes_last_is_named_and_not_the_buckets() -> None:
    run = kit.run(first_sleeps, SETTINGS, processes=2)
    process, ms = comes_last(run.timeline)
    assert process == "process 0"
    assert ms > 10
    (advice,) = [a for a in run.advice() if a.rule == "reduction"]
    assert "and process 0 comes to them" in advice.text
    assert "bucket_mb" not in advice.text


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the streams")
def test_a_service_that_closes_its_streams_may_start_processes(tmp_path: Path) -> None:
    """The pipe of a process had the number of its standard output, and its log overwrote it."""
    code = (
        "import kit; from kit.measure.many import launch\n"
        "def seen(rank, task):\n"
        "    numbers = [end.fileno() for end in launch._CONTEXT.Pipe()]\n"
        "    raise SystemExit(int(min(numbers) <= 2))\n"
        "launch._Child = seen\n"
        "launch.run_processes(kit.workloads.mlp, kit.Settings(), launch.Team(2))\n"
    )
    shell = f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", shell], cwd=tmp_path, check=False).returncode == 0


def test_hosts_start_one_process_each_from_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = ["-m", "kit", "run", str(script), "--set", "steps=2&warmup=1",
              "--processes", "2", "--devices", "2", "--timeout", "240",
              "--coordinator", f"127.0.0.1:{free_port()}"]  # fmt: skip
    hosts = [
        subprocess.Popen(
            [python, *common, "--rank", str(r), "--save", str(tmp_path / f"{r}.kitrun")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "KIT_RUN_SECRET": "one of this test alone"},
        )
        # No host is a fork of the other's: the hashes of their texts differ, as do orders of sets.
        for r, python in enumerate((warm_python(), sys.executable))
    ]
    said = [host.communicate(timeout=300)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(said)
    assert "reading the data" in said[0]
    assert "Gloo" not in said[0] + said[1]
    runs = [Run.load(tmp_path / f"{r}.kitrun") for r in (0, 1)]
    assert runs[0].timeline == runs[1].timeline
    assert runs[0].losses == runs[1].losses
    assert runs[0].metrics["parallel.devices"] == 4
