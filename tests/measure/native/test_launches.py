"""What launched a GPU's kernels, and how a step's ops are found among events, by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kit.measure.native.events import STEP, steps_of, timeline_of
from kit.measure.native.launches import NOTHING, find_launches
from kit.measure.native.lines import Lines, ModuleNames, SeenOp
from kit.measure.native.match import match
from kit.trace.imported import Caller


@dataclass
class Event:
    name: str
    start: float
    end: float
    cpu_parent: Event | None = None
    id: int = -1
    gpu: bool = False
    thread: int = 1
    sequence_nr: int = -1
    fwd_thread: int = 0
    is_user_annotation: bool = False
    device_index: int = 0
    device_resource_id: int = 7
    kernels: list[Any] = field(default_factory=list)
    input_shapes: list[list[int]] = field(default_factory=list)
    concrete_inputs: list[Any] = field(default_factory=list)

    @property
    def time_range(self) -> Any:
        took = self.end - self.start
        return SimpleNamespace(start=self.start, end=self.end, elapsed_us=lambda: took)

    @property
    def device_type(self) -> Any:
        return SimpleNamespace(name="CUDA" if self.gpu else "CPU")


def look_at(*ops: SeenOp) -> Lines:
    look = Lines("cuda", ModuleNames())
    look.ops.extend(ops)
    return look


def test_a_gpus_kernel_has_the_caller_of_its_launch() -> None:
    """A kernel and its launch have one number; the gradient's launch is of another thread."""
    step = Event(f"{STEP}0", 0, 100)
    linear = Event("aten::linear", 10, 20, step, sequence_nr=5)
    addmm = Event("aten::addmm", 12, 18, linear, id=40, sequence_nr=5)
    launch = Event("cudaLaunchKernel", 14, 15, addmm, id=41)
    region = Event("cuda graphs", 80, 81, step, id=41, is_user_annotation=True)
    own = Event("cuda_ops::twice", 82, 83, step, id=51)
    engine = Event(
        "autograd::engine::evaluate_function: AddmmBackward0",
        *(40, 60),
        sequence_nr=5,
        fwd_thread=1,
        thread=2,
    )
    mm = Event("aten::mm", 45, 55, engine, id=50, thread=2)
    again = Event("cuLaunchKernel", 46, 47, mm, id=51, thread=2)
    lost = Event("sgemm", 90, 95, gpu=True, id=77)
    kernels = [
        Event("gemm", 70, 75, gpu=True, id=41),
        Event("gemm_t", 75, 90, gpu=True, id=51),
        lost,
    ]
    events = [step, linear, addmm, launch, engine, mm, again, region, own, *kernels]
    look = look_at(SeenOp("aten::addmm", ("/home/me/train.py", 7), ("Net_0", "Linear_0")))
    found = find_launches(events, [step], [look], device="cuda")
    assert found.callers == (
        Caller("aten::addmm", ("Net_0", "Linear_0"), (), "train.py:7", calls=1, kernels=1),
        Caller(
            "aten::mm", ("Net_0", "Linear_0"), (), "train.py:7", is_backward=True, calls=1,
            kernels=1,
        ),
    )  # fmt: skip
    assert [found.of(kernel) for kernel in kernels] == [0, 1, -1]
    assert found.sites == (("/home/me/train.py", 7),)
    timeline = timeline_of(events, device="cuda", caller=found.of)
    node = {timeline.names[n]: int(i) for n, i in zip(timeline.name, timeline.node, strict=True)}
    assert (node["gemm"], node["gemm_t"], node["sgemm"]) == (0, 1, -1)


def test_a_gpu_that_runs_behind_costs_no_step_its_lines() -> None:
    """The profiler draws each step among the GPU's events again, as late as its kernels ran."""
    steps = [Event(f"{STEP}{i}", 100 * i, 100 * i + 90) for i in range(2)]
    drawn = [
        Event(s.name, s.start + 60, s.end + 60, gpu=True, is_user_annotation=True) for s in steps
    ]
    ops = [SeenOp("aten::mm", ("a.py", 1)), SeenOp("aten::exp", ("a.py", 2))]
    calls = [
        Event(op.name, s.start + at, s.start + at + 5, s)
        for s in steps
        for op, at in zip(ops, (10, 80), strict=True)
    ]
    launches = [Event("cudaLaunchKernel", e.start, e.end, e, id=i) for i, e in enumerate(calls)]
    kernels = [
        Event("kernel", e.start + 60, e.end + 60, gpu=True, id=i) for i, e in enumerate(calls)
    ]
    events = [*steps, *drawn, *calls, *launches, *kernels]
    assert steps_of(events) == steps
    found = find_launches(events, steps_of(events), [look_at(*ops)], device="cuda")
    assert not found.notes
    assert [found.callers[found.of(k)].site for k in kernels] == ["a.py:1", "a.py:2"] * 2


def test_a_hiccup_in_one_step_changes_no_callers_op() -> None:
    """On a CPU a composite is a kernel; it has the op, of those it calls, that computes longest."""
    names = ("aten::t", "aten::mul", "aten::addmm")
    took = ((1, 2, 8), (30, 2, 8), (1, 30, 8))
    events: list[Event] = []
    for n, lengths in enumerate(took):
        step = Event(f"{STEP}{n}", 100 * n, 100 * n + 90)
        outer = Event("aten::linear", 100 * n + 10, 100 * n + 70, step)
        events += [step, outer]
        for k, (name, us) in enumerate(zip(names, lengths, strict=True)):
            start = 100 * n + 11 + sum(lengths[:k])
            events.append(Event(name, start, start + us, outer))
    look = look_at(*(SeenOp(name, ("a.py", 1)) for name in names))
    found = find_launches(events, steps_of(events), [look], device="cpu")
    assert [(c.op, c.kernels) for c in found.callers] == [("aten::addmm", 3)]


def test_nothing_is_known_without_a_look() -> None:
    step = Event(f"{STEP}0", 0, 100)
    assert find_launches([step], [step], [], device="cpu") is NOTHING
    assert find_launches([step], [], [look_at(SeenOp("aten::mm"))], device="cpu") is NOTHING


WORK = ("aten::mm", "aten::add", "aten::mul", "aten::exp")
FREE = ("aten::view", "aten::t", "aten::empty")


@st.composite
def programs(draw: Any) -> tuple[list[SeenOp], list[Event], dict[int, int]]:
    """Ops of a step, its events with composites and inner calls, and which event is which op's."""
    names = draw(st.lists(st.sampled_from(WORK + FREE), max_size=30))
    ops, events, of = [], [], {}
    at = 0.0
    for name in names:
        if name in FREE and draw(st.booleans()):  # only on one side
            if draw(st.booleans()):
                ops.append(SeenOp(name, ("a.py", len(ops))))
            else:
                events.append(Event(name, at, at + 1))
                at += 2
            continue
        begin, parent = at, None
        if draw(st.booleans()):
            parent = Event("aten::composite", begin, begin + 9)
            events.append(parent)
        own = Event(name, begin + 1, begin + 8, parent)
        events.append(own)
        if name in WORK:
            of[len(ops)] = len(events) - 1
        ops.append(SeenOp(name, ("a.py", len(ops))))
        inner = draw(st.lists(st.sampled_from(WORK + FREE), max_size=2 * (name in WORK)))
        events += [Event(x, begin + 2 + 2 * k, begin + 3 + 2 * k, own) for k, x in enumerate(inner)]
        at += 10
    return ops, events, of


@given(programs())
def test_each_op_that_computes_is_found_whatever_calls_it_and_whatever_it_calls(
    program: tuple[list[SeenOp], list[Event], dict[int, int]],
) -> None:
    ops, events, of = program
    pairs, is_whole = match(events, ops)
    found = {op.site[1]: event for event, op in pairs if op.name in WORK}
    assert found.keys() == of.keys()
    assert all(found[i] is events[j] for i, j in of.items())
    assert is_whole


@given(programs(), st.data())
def test_another_op_on_one_side_costs_no_other_op_its_line(
    program: tuple[list[SeenOp], list[Event], dict[int, int]], data: Any
) -> None:
    ops, events, of = program
    at = data.draw(st.integers(0, len(ops)))
    ops.insert(at, SeenOp("aten::logsumexp", ("a.py", -1)))
    pairs, is_whole = match(events, ops)
    assert all(
        events[of[k - (k > at)]] is event
        for event, op in pairs
        if op.name in WORK
        for k in [ops.index(op)]
    )
    assert not is_whole
