"""What a run on several devices knows beside its timeline: graph, cuts, sync points, lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kit
from kit.errors import SettingsError
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.many.replicas import measure
from kit.measure.many.replicas import run as run_replicas
from kit.runs.analysis.kernels import kernel_table
from kit.runs.analysis.lines import line_costs
from kit.runs.analysis.segments import segment_costs
from kit.runs.run import Run
from kit.torch.parallel.shards import Shards

ON_ONE_CPU = ["cpu:0", "cpu:0"]
SETTINGS = kit.Settings(batch_size=8, steps=3, warmup=2)


def build(ctx: kit.Context, every: int = 1) -> Any:
    torch.manual_seed(ctx.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    ).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
    batches = ctx.loader(data)

    def step() -> Any:
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if every and loss.item() > 1e6:
            raise ArithmeticError
        return loss.detach()

    return step


@kit.workload
def reads(ctx: kit.Context) -> Any:
    return build(ctx)


@kit.workload
def reads_nothing(ctx: kit.Context) -> Any:
    return build(ctx, every=0)


@pytest.fixture(scope="module")
def two() -> Run:
    return run_replicas(reads, SETTINGS, devices=ON_ONE_CPU, bucket_mb=1e-4)


def all_reduces(run: Run) -> dict[int, str]:
    """Name of each, by node."""
    nodes = run.graphs[0].nodes
    return {
        i: dict(n.attrs)["name"].strip("'") for i, n in enumerate(nodes) if n.op == "kit.all_reduce"
    }


def test_the_graph_is_that_of_one_device_with_the_reductions_between(two: Run) -> None:
    one = kit.run(reads, SETTINGS.replace(batch_size=4))
    graph, sent = two.graphs[0], all_reduces(two)
    assert [graph.nodes[i].op for i in graph.ops if i not in sent] == [
        one.graphs[0].nodes[i].op for i in one.graphs[0].ops
    ]
    assert len(sent) > 1
    assert sorted(sent.values()) == [f"bucket {n}" for n in range(len(sent))]
    reduced = set()
    for i in sent:
        node = graph.nodes[i]
        assert (node.phase, node.scope) == ("backward", sent[i])
        assert node.site == next(n.site for n in graph.nodes if n.op == "kit.full" and n.site)
        assert [graph.nodes[k].avals[out] for k, out in node.inputs] == list(node.avals)
        assert {graph.nodes[k].phase for k, _ in node.inputs} == {"backward"}
        reduced |= {(i, out) for out in range(len(node.avals))}
    update = next(n for n in graph.nodes if "adamw" in n.op)
    assert reduced <= set(update.inputs)
    made = {k for k, _ in update.inputs if graph.nodes[k].phase == "backward"}
    assert made == set(sent)  # no gradient of this device alone


def test_its_cuts_hold_every_op_but_the_reductions(two: Run) -> None:
    graph, sent = two.graphs[0], all_reduces(two)
    inside = [i for s in two.segments for i in s.nodes]
    assert sorted([*inside, *sent]) == list(graph.ops)
    assert {s.cut for s in two.segments} == {"phase", "bucket", "mark_step"}
    assert len(segment_costs(two)) == len(two.segments)


def test_spans_of_all_devices_name_their_segments_and_buckets(two: Run) -> None:
    sent = all_reduces(two)
    for rank in (0, 1):
        lane = [s for s in two.timeline.spans if s.lane == f"device/{rank} compute"]
        assert {s.segment for s in lane} == {s.index for s in two.segments}
        for span in lane:
            assert two.nodes_of(span.segment, span.name) == two.segments[span.segment].nodes
            assert span.name.startswith(two.segments[span.segment].phase)
        buckets = [s for s in two.timeline.spans if s.lane == f"device/{rank} reduction"]
        assert {sent[s.node] for s in buckets} == set(sent.values())
        assert all(sent[s.node] == s.name for s in buckets)


def test_uneven_parts_share_the_segments_of_the_graph() -> None:
    made = run_replicas(reads, SETTINGS.replace(batch_size=7), devices=ON_ONE_CPU)
    lane = [s for s in made.timeline.spans if s.lane == "device/1 compute"]
    assert {s.segment for s in lane} == {s.index for s in made.segments}


def test_sync_points_are_those_of_one_replica_and_their_cure_is_possible(two: Run) -> None:
    assert two.headline().syncs_per_step == 1
    (site,) = {s.site for s in two.sync_points}
    assert site.startswith("test_graph.py:")
    assert len(two.timeline.syncs) == TRACED_STEPS
    assert two.metrics["sync.count"] == 2 * (SETTINGS.steps + SETTINGS.warmup)
    (advice,) = [a for a in two.advice() if a.site == site] or [None]
    if advice is not None:  # the wait may have been short
        assert "speculate" not in advice.text
        assert not advice.change


def test_only_the_replica_that_reads_has_sync_points() -> None:
    torch.manual_seed(0)
    with kit.DataParallel(torch.nn.Linear(6, 4), ON_ONE_CPU) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))

        def step() -> Any:
            losses = net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)
            net.map(lambda loss, rank: rank and loss.item(), losses, Shards(net.ranks))
            return losses

        made = measure(net, step, steps=3, warmup=1)
    assert len(made.sync_points) == 3
    assert made.graphs[0].ops


def test_lines_compiles_and_counters_are_of_the_whole_run(two: Run) -> None:
    lines = [line for s in two.sources for line in s.lines]
    assert (
        "        optimizer.zero_grad()" in lines
    )  # names no op: it is there as a line of the step
    busy = {r.site: r for r in line_costs(two) if r.device_ms > 0}
    assert len(busy) > 2
    assert "" not in busy
    assert two.compiles
    assert two.metrics["record.ops"] > 0
    assert all(row.gb_s > 0 for row in kernel_table(two))


def test_a_replayed_step_has_the_same_graph() -> None:
    recorded = run_replicas(reads_nothing, SETTINGS, devices=ON_ONE_CPU, bucket_mb=1e-4)
    settings = SETTINGS.replace(warmup=7, step_mode="replay")
    replayed = run_replicas(reads_nothing, settings, devices=ON_ONE_CPU, bucket_mb=1e-4)
    assert replayed.metrics["replay.steps"] > 2
    assert replayed.graphs[0].hash == recorded.graphs[0].hash
    assert [n.site for n in replayed.graphs[0].nodes] == [n.site for n in recorded.graphs[0].nodes]
    assert [s.cut for s in replayed.segments] == [s.cut for s in recorded.segments]
    assert replayed.sync_points == ()


def test_a_prediction_for_one_device_is_refused(two: Run) -> None:
    with pytest.raises(
        SettingsError, match=r"reads, 2 devices, bucket_mb=0.0001 is of 2 devices.*ParallelView"
    ):
        kit.predict(two)
