"""The baseline run by torch itself: real runs on the CPU, and what a GPU's events come to."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import kit
from kit.errors import Cancelled, SettingsError
from kit.measure.base.context import Context
from kit.measure.base.loop import TRACED_STEPS
from kit.measure.experiment import run
from kit.measure.native.events import timeline_of
from kit.measure.native.torch import measure
from kit.measure.search.sweeps import sweep
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.trace import Timeline, breakdown_ns
from kit.widgets.numbers.syncs import syncs_drawn
from kit.workloads import bert, mlp
from kit.workloads.text import IGNORE, MaskedText

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NATIVE = Settings(mode="torch", device="cpu", steps=4, warmup=1, batch_size=4)


def phases(timeline: Timeline) -> list[str]:
    return [s.name for s in timeline.spans if s.kind == "record"]


def test_bert_learns_in_thirty_native_steps() -> None:
    losses = measure(bert, NATIVE.replace(steps=30)).losses
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.5


def test_equal_seeds_give_equal_losses_and_other_seeds_others() -> None:
    first = measure(mlp, NATIVE).losses
    assert measure(mlp, NATIVE).losses == first
    assert measure(mlp, NATIVE.replace(prefetch=2)).losses == first
    assert measure(mlp, NATIVE.replace(seed=1)).losses != first


def test_a_workload_starts_from_its_seed_whoever_builds_it() -> None:
    for workload in (mlp, bert):
        torch.manual_seed(123)
        first = workload(Context(NATIVE, "cpu"))()
        torch.manual_seed(456)
        assert torch.equal(workload(Context(NATIVE, "cpu"))(), first)


def test_the_small_workload_learns_and_gives_the_same_on_device_kit() -> None:
    native = run(mlp, NATIVE.replace(steps=30))
    assert native.losses[-1] < native.losses[0] / 2
    lazy = run(mlp, NATIVE.replace(steps=30, mode="lazy"))
    torch.testing.assert_close(lazy.losses, native.losses, rtol=1e-3, atol=1e-4)


def test_a_native_run_is_whole_and_survives_its_file(tmp_path: Any) -> None:
    made = measure(mlp, NATIVE)
    assert len(made.losses) == len(made.step_times_ns) == NATIVE.steps
    assert all(t > 0 for t in made.step_times_ns)
    assert made.timeline.origin == "profiled"
    assert made.timeline.lanes == ("host/main", "device/0 torch cpu")
    assert len(made.timeline.intervals(kind="step")) == TRACED_STEPS
    # One span a batch: the context's region around torch's own was a second one.
    assert len(made.timeline.intervals(kind="input")) == TRACED_STEPS
    assert made.environment["torch"] == torch.__version__
    assert made.name == "mlp"
    made.save(tmp_path / "native.kitrun")
    assert Run.load(tmp_path / "native.kitrun").timeline == made.timeline


@pytest.mark.parametrize("accumulate", [1, 3])
def test_phases_follow_the_step_and_leave_no_gap(accumulate: int) -> None:
    made = measure(mlp, NATIVE.replace(accumulate=accumulate, loss_scaling="static"))
    timeline = made.timeline
    assert phases(timeline) == [*["forward", "backward"] * accumulate, "update"] * TRACED_STEPS
    parts = breakdown_ns(timeline)
    steps = timeline.intervals(kind="step")
    assert sum(exposed for _, exposed in parts.values()) == int((steps[:, 1] - steps[:, 0]).sum())
    assert parts["unknown"][1] == 0


def test_a_step_that_only_reads_is_forward_and_one_without_autograd_still_updates() -> None:
    def inference(ctx: Any) -> Any:
        return lambda: torch.ones(3).sum()

    def by_hand(ctx: Any) -> Any:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step() -> Any:
            weight.grad = torch.ones(3)
            optimizer.step()
            return weight.sum()

        return step

    assert phases(measure(inference, NATIVE).timeline) == ["forward"] * TRACED_STEPS
    assert phases(measure(by_hand, NATIVE).timeline) == ["forward", "update"] * TRACED_STEPS


def two_optimizers(*, zeroes_before: bool, slept_s: float = 0.0) -> Any:
    """A builder of steps that update one net after the other."""

    def two(ctx: Any) -> Any:
        nets = [torch.nn.Linear(2, 1) for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]

        def step() -> Any:
            for net, optimizer in zip(nets, optimizers, strict=True):
                time.sleep(slept_s)
                loss = net(torch.ones(1, 2)).sum()
                if zeroes_before:
                    optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if not zeroes_before:
                    optimizer.zero_grad()
            return loss

        return step

    return two


def test_two_optimizers_in_one_step_each_have_their_update() -> None:
    one = ["forward", "backward", "update"]
    timeline = measure(two_optimizers(zeroes_before=False), NATIVE).timeline
    assert phases(timeline) == one * 2 * TRACED_STEPS


def test_gradients_that_are_zeroed_before_the_second_backward_pass_are_no_update() -> None:
    """As of a GAN: the generator's forward pass was called an update, 15 ms of it."""
    timeline = measure(two_optimizers(zeroes_before=True, slept_s=0.03), NATIVE).timeline
    spans = [s for s in timeline.spans if s.kind == "record"]
    took = {s.name: sum(x.stop_ns - x.start_ns for x in spans if x.name == s.name) for s in spans}
    assert took["forward"] > 2 * TRACED_STEPS * 30e6
    assert [s.name for s in spans[:6]] == ["forward", "backward", "update"] * 2


def test_a_closure_that_an_optimizer_calls_is_forward_and_backward_not_its_update() -> None:
    """As Lightning's: a forward pass of accumulated gradients was called an update."""

    def by_closures(ctx: Any) -> Any:
        nets = [torch.nn.Linear(2, 1) for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]

        def forward_backward(net: torch.nn.Module) -> Any:
            time.sleep(0.02)
            loss = net(torch.ones(1, 2)).sum()
            loss.backward()
            return loss

        def step() -> Any:
            for net, optimizer in zip(nets, optimizers, strict=True):
                forward_backward(net)
                loss = optimizer.step(lambda net=net: forward_backward(net))
                optimizer.zero_grad()
            return loss

        return step

    timeline = measure(by_closures, NATIVE).timeline
    one = ["forward", "backward", "forward", "backward", "update"]
    assert phases(timeline) == one * 2 * TRACED_STEPS
    spans = [s for s in timeline.spans if s.kind == "record"]
    assert all(s.stop_ns - s.start_ns >= 20e6 for s in spans if s.name == "forward")
    assert all(a.stop_ns <= b.start_ns for a, b in pairwise(spans))


def test_one_step_without_warm_up_is_a_run() -> None:
    assert len(measure(mlp, NATIVE.replace(warmup=0, steps=1)).losses) == 1


def test_a_gpu_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="this torch sees no CUDA device"):
        measure(mlp, NATIVE.replace(device="gpu"))


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_an_exception_names_the_workload_whichever_step_raised_it(fail_at: int) -> None:
    """One warm-up step, four measured, then the traced ones."""

    def moody(ctx: Any) -> Any:
        step, calls = mlp(ctx), iter(range(1, 99))

        def sometimes() -> Any:
            if next(calls) == fail_at:
                raise ValueError("bad batch")
            return step()

        return sometimes

    with pytest.raises(ValueError, match="bad batch") as caught:
        run(moody, NATIVE)
    where = "kit: in the workload 'moody', mode 'torch', at test_torch.py:"
    assert any(note.startswith(where) for note in caught.value.__notes__)


def test_cancelling_a_sweep_ends_it_and_carries_no_note() -> None:
    asked = iter([False] * 7)
    with pytest.raises(Cancelled) as caught:
        sweep(mlp, {"batch_size": [2, 4]}, NATIVE, cancelled=lambda: next(asked, True))
    assert not hasattr(caught.value, "__notes__")


def test_a_sweep_checks_its_workload_and_grid_before_anything_runs() -> None:
    ran: list[str] = []
    with pytest.raises(SettingsError, match="batch_size"):
        sweep(lambda ctx: ran.append("built"), {"batch_size": [2, 0]}, NATIVE)
    with pytest.raises(SettingsError, match=r"@kit\.workload"):
        sweep(3, {"batch_size": []}, NATIVE)
    assert ran == []


@pytest.mark.parametrize(("seed", "item"), [(0, 570), (8, 64)])  # masked by chance: nothing
def test_every_piece_asks_for_a_word_so_a_batch_of_one_has_a_loss(seed: int, item: int) -> None:
    _, labels = MaskedText(seed=seed)[item]
    assert int((labels != IGNORE).sum()) == 1


def test_any_seed_that_settings_take_masks_a_text() -> None:
    ids, labels = MaskedText(seed=2**60)[3]
    assert ids.shape == labels.shape == (64,)


# What follows are events of a GPU run, shaped as torch/autograd/profiler.py makes them.


@dataclass
class Event:
    name: str
    start: float
    stop: float
    cpu_parent: Event | None = None
    gpu: bool = False
    is_user_annotation: bool = False
    kernels: list[Any] = field(default_factory=list)
    device_index: int = 0
    device_resource_id: int = 7
    thread: int = 2**64 - 1  # kineto's "no thread"
    id: int = -1

    @property
    def time_range(self) -> Any:
        return SimpleNamespace(start=self.start, end=self.stop)

    @property
    def device_type(self) -> Any:
        return SimpleNamespace(name="CUDA" if self.gpu else "CPU")


def gpu_step(start: float) -> list[Event]:
    """100 us: a copy to the GPU, a kernel, one `.item()`, then kit's own wait for the rest."""
    step = Event("kit step 0", start, start + 100, is_user_annotation=True)
    copy = Event("aten::copy_", start + 1, start + 9, step, kernels=[SimpleNamespace(
        name="Memcpy HtoD (Pageable -> Device)")])  # fmt: skip
    read = Event("aten::_local_scalar_dense", start + 20, start + 60, step)
    finish = Event("kit finish", start + 70, start + 100, step, is_user_annotation=True)
    return [
        step,
        copy,
        read,
        finish,
        Event("cudaStreamSynchronize", start + 4, start + 8, copy),
        Event("cudaStreamSynchronize", start + 25, start + 55, read),
        Event("cudaDeviceSynchronize", start + 71, start + 99, finish),
        Event("kit step 0", start + 2, start + 98, gpu=True, is_user_annotation=True),
        Event("Memcpy HtoD (Pageable -> Device)", start + 5, start + 7, gpu=True),
        Event("gemm", start + 30, start + 50, gpu=True),
    ]


PLACES = {"item": [("mine.py:9", "torch/amp/grad_scaler.py:371")]}


def test_a_read_on_the_gpu_is_one_wait_with_its_line_and_kits_own_wait_is_none() -> None:
    timeline = timeline_of([*gpu_step(0), *gpu_step(100)], device="cuda", places=[PLACES])
    assert [(s.cause, s.wait_ns, s.site) for s in timeline.syncs] == [
        ("copy_to_device", 4_000, ""),
        ("item", 30_000, "mine.py:9"),
    ] * 2
    assert breakdown_ns(timeline)["sync wait"][0] == 2 * 34_000


@pytest.mark.parametrize(
    ("what", "call", "ran", "waited"),
    [
        ("Memcpy DtoH (Device -> Pageable)", (20, 55), (50, 52), 38_000),  # it waits in the call
        ("Memcpy DtoH (Device -> Pageable)", (20, 30), (50, 52), 3_000),  # and after it
        ("Memcpy HtoD (Pageable -> Device)", (20, 55), (22, 60), 38_000),  # but for its last part
        ("Memcpy DtoH (Device -> Pinned)", (20, 55), (50, 52), 3_000),
        ("Memcpy DtoD (Device -> Device)", (20, 55), (50, 52), 3_000),
    ],
)
@pytest.mark.parametrize("waits", ["cudaStreamSynchronize", "cuStreamSynchronize_ptsz"])
def test_a_copy_that_blocks_in_its_own_call_is_a_wait_with_the_one_after_it(
    waits: str, what: str, call: tuple[int, int], ran: tuple[int, int], waited: int
) -> None:
    """Nearly all waits of `.item()` and `.cpu()` on NVIDIA's were shown as some microseconds."""
    step = Event("kit step 0", 0, 100, is_user_annotation=True)
    read = Event("aten::_local_scalar_dense", 15, 60, step)
    events = [
        Event("cudaMemcpyAsync", *call, read, id=7),
        Event(waits, 55, 58, read, id=8),
        Event(what, *ran, gpu=True, id=7),
    ]
    (sync,) = timeline_of([step, read, *events], device="cuda").syncs
    assert (sync.cause, sync.wait_ns) == ("item", waited)


@pytest.mark.parametrize(
    ("ran", "cause"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "copy_to_device"),
        ("Memcpy DtoH (Device -> Pageable)", "copy_to_host"),
        ("CopyHostToDevice", "copy_to_device"),  # of AMD's
        ("CopyDeviceToHost", "copy_to_host"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("", "copy"),  # linked to nothing
    ],
)
def test_a_wait_in_a_copy_says_which_way_it_went_only_if_that_was_seen(
    ran: str, cause: str
) -> None:
    step, copy, *rest = gpu_step(0)
    copy.kernels = [SimpleNamespace(name=ran)] if ran else []
    timeline = timeline_of([step, copy, *rest], device="cuda")
    assert [s.cause for s in timeline.syncs] == [cause, "item"]


def test_annotations_on_the_gpu_are_neither_steps_nor_kernels() -> None:
    timeline = timeline_of(gpu_step(0), device="cuda", places=[PLACES])
    assert len(timeline.intervals(kind="step")) == 1
    kernels = [s for s in timeline.spans if s.kind == "kernel"]
    assert [k.name for k in kernels] == ["Memcpy HtoD (Pageable -> Device)", "gemm"]
    assert {k.lane for k in kernels} == {"device/0 stream 7"}
    assert breakdown_ns(timeline)["device busy"][0] == 22_000


def test_a_wait_has_no_line_where_the_lines_do_not_match() -> None:
    places = {"item": [("mine.py:9", ""), ("mine.py:12", "")]}
    timeline = timeline_of(gpu_step(0), device="cuda", places=[places])
    assert {s.site for s in timeline.syncs} == {""}


def test_a_wait_whose_line_is_another_in_other_steps_has_none() -> None:
    """All waits were said to be at the line of the step that was looked at first."""
    other = {"item": [("mine.py:12", "torch/amp/grad_scaler.py:371")]}
    for places, site in (([PLACES, other], ""), ([PLACES, PLACES], "mine.py:9")):
        timeline = timeline_of(gpu_step(0), device="cuda", places=places)
        assert [s.site for s in timeline.syncs if s.cause == "item"] == [site]
    timeline = timeline_of(gpu_step(0), places=[PLACES, other])
    assert ".item(), at mine.py:9, mine.py:12)" in timeline.notes[0]
    events = gpu_step(0)
    again = Event("aten::_local_scalar_dense", 62, 65, events[0])
    timeline = timeline_of([*events, again], places=[PLACES])
    assert "at mine.py:9 and, in some steps, elsewhere)" in timeline.notes[0]


def test_a_gpu_without_kernels_is_said_and_host_ops_do_not_stand_in_for_them() -> None:
    events = [e for e in gpu_step(0) if not e.gpu]
    timeline = timeline_of(events, device="cuda")
    assert timeline.lanes == ("host/main",)
    assert "saw no GPU kernel" in timeline.notes[0]


def test_no_events_are_an_empty_timeline() -> None:
    assert len(timeline_of([])) == 0
    assert len(timeline_of([Event("aten::mm", 0, 1)])) == 0


@pytest.mark.gpu
def test_a_native_gpu_run_has_kernels_and_its_waits_their_lines() -> None:
    made = run(bert, Settings(mode="torch", device="gpu", loss_scaling="dynamic, host check"))
    assert any(lane.startswith("device/0 stream") for lane in made.timeline.lanes)
    reads = [s for s in made.sync_points if s.cause == "item"]
    assert len(reads) == made.timeline.steps
    assert all(s.site.startswith("masked_lm.py") for s in reads)
    assert "unknown" not in {r.category for r in made.breakdown() if r.share > 0.05}


def test_reads_on_a_cpu_are_counted_and_said_to_wait_for_nothing() -> None:
    @kit.workload
    def reading(ctx: kit.Context) -> Any:
        weight = torch.nn.Parameter(torch.ones(4, 4, device=ctx.device))
        labels = DataLoader(range(10_000), collate_fn=lambda x: torch.tensor(x).sum().item())
        batches = iter(labels)  # its reads are of the CPU wherever the step runs

        def step() -> Any:
            loss = (weight @ weight).sum() * next(batches)
            loss.item()
            float(loss.detach())
            return loss

        return step

    found = measure(reading, NATIVE)
    assert found.sync_points == ()
    notes = " ".join(found.timeline.notes)
    where = r"test_torch\.py:\d+, test_torch\.py:\d+"
    assert re.search(rf"2 reads of a number a step \(\.item\(\), at {where}\) wait for noth", notes)
    for shown in (summary(found), syncs_drawn(found)[0]):
        assert "on a CPU torch computes in the call itself" in shown
        assert "the host never waited" not in shown
    assert not any("wait for nothing" in n for n in measure(mlp, NATIVE).timeline.notes)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "LBFGS"])
def test_a_read_in_a_closure_is_the_programs_and_no_other_in_an_optimizers_step(
    kind: str, reads: bool
) -> None:
    def by_closure(ctx: Any) -> Any:
        weight = torch.nn.Parameter(torch.ones(4))
        more: dict[str, Any] = {"max_iter": 1} if kind == "LBFGS" else {"foreach": False}
        optimizer = getattr(torch.optim, kind)([weight], lr=0.01, **more)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = weight.square().sum()
            if reads:
                loss.item()
            loss.backward()
            return loss

        return lambda: optimizer.step(closure)

    notes = " ".join(measure(by_closure, NATIVE).timeline.notes)
    assert bool(re.search(r"1 read of a number a step \(\.item\(\), at test_torch", notes)) is reads
    assert ("of a number a step" in notes) is reads
