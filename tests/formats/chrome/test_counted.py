"""What launched the device's work, held to a search through the raw events of a random trace."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.runs.device.callers import BY, caller_table
from kit.runs.run import Run
from kit.trace import hta_launches, hta_queue

ENGINE = "autograd::engine::evaluate_function: MmBackward0"
OPENED = (
    ("python_function", "nn.Module: Net_0"),
    ("python_function", "nn.Module: Linear_1"),
    ("python_function", "nn.Module: Linear_12"),
    ("python_function", "train.py(12): step"),
    ("python_function", "model.py(3): forward"),
    ("python_function", "torch/nn/modules/linear.py(124): forward"),
    ("user_annotation", "## forward ##"),
    ("user_annotation", "inner"),
    ("cpu_op", "aten::linear"),
    ("cpu_op", "aten::addmm"),
    ("cpu_op", "mine::scale"),
    ("cpu_op", ENGINE),
)
KERNELS = (
    ("kernel", "gemm"),
    ("kernel", "relu"),
    ("kernel", "ncclDevKernel_AllReduce_Sum_f32"),
    ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
)
UNKNOWN = "(launch not in the trace)"


@dataclass
class Host:
    """An event of a thread and what it is inside of, innermost last; times in microseconds."""

    category: str
    name: str
    start: int
    around: tuple[Host, ...]
    thread: int
    stop: int = 0
    number: int = -1  # that joins an op with the function that computes its gradient


@dataclass
class Work:
    """What ran on a stream; its launch, if the file has one."""

    category: str
    name: str
    start: int
    stop: int
    stream: int
    launch: Host | None = None


@dataclass
class Trace:
    steps: list[tuple[int, int]]
    host: list[Host] = field(default_factory=list)
    calls: dict[int, Host] = field(default_factory=dict)  # by correlation
    work: dict[int, Work] = field(default_factory=dict)


opened = st.tuples(st.just("open"), st.sampled_from(OPENED), st.integers(-1, 2))
closed = st.just(("close",))
launched = st.tuples(
    st.just("launch"), st.sampled_from(KERNELS), st.integers(0, 25), st.integers(0, 15),
    st.sampled_from((7, 20)), st.booleans(),
)  # fmt: skip
programs = st.lists(st.one_of(opened, opened, launched, launched, closed), max_size=22)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Two threads that open and close events, and launch; each instruction takes 2 us."""
    edges = draw(st.lists(st.integers(0, 70), min_size=2, max_size=5, unique=True).map(sorted))
    trace = Trace([*zip(edges[:-1:2], edges[1::2], strict=False)])
    for thread in (1, 2):
        now, stack = 0, []
        for what, *how in draw(programs):
            now += 2
            if what == "open":
                (category, name), number = how
                one = Host(category, name, now, (*stack,), thread)
                one.number = number if category == "cpu_op" else -1
                stack.append(one)
                trace.host.append(one)
            elif what == "close" and stack:
                stack.pop().stop = now
            elif what == "launch":
                (category, name), later, length, stream, is_known = how
                number = len(trace.work) + 1
                call = Host("cuda_runtime", "cudaLaunchKernel", now, (*stack,), thread, now + 1)
                if is_known:
                    trace.calls[number] = call
                trace.work[number] = Work(category, name, now + later, now + later + length, stream,
                                          call if is_known else None)  # fmt: skip
        for i, one in enumerate(reversed(stack)):
            one.stop = now + 2 + 2 * i
    return trace


def with_cpu_work(trace: Trace) -> Trace:
    """The same; if nothing of a GPU is in it, what no other op of torch's called is the work."""
    if not trace.work:
        ops = [x for x in trace.host if x.name.startswith("aten::")]
        tops = [x for x in ops if not any(y.name.startswith("aten::") for y in x.around)]
        for i, x in enumerate(tops):
            inside = Host("", "", x.start, (*x.around, x), x.thread)
            trace.work[i] = Work("", x.name, x.start, x.stop, 0, inside)
    return trace


def written(trace: Trace) -> Iterator[dict[str, Any]]:
    """The events of the file."""

    def event(category: str, name: str, a: int, b: int, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": a, "dur": b - a, "pid": 9,
                "tid": tid, "args": args}  # fmt: skip

    for i, (a, b) in enumerate(trace.steps):
        yield event("user_annotation", f"ProfilerStep#{i}", a, b, 1)
    for one in trace.host:
        said = {"Sequence number": one.number} if one.number >= 0 else {}
        if one.name == ENGINE:
            said |= {"Fwd thread id": 1} if said else {}
        yield event(one.category, one.name, one.start, one.stop, one.thread, **said)
    for number, call in trace.calls.items():
        yield event("cuda_runtime", call.name, call.start, call.stop, call.thread,
                    correlation=number)  # fmt: skip
    for number, w in trace.work.items():
        yield event(w.category, w.name, w.start, w.stop, w.stream, device=0, stream=w.stream,
                    correlation=number)  # fmt: skip


def read(trace: Trace, folder: Path) -> Run:
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*written(trace)]}))
    return kit.open_trace(file)


def place(name: str) -> str:
    """`train.py:12` of `train.py(12): step`."""
    file, _, rest = name.partition("(")
    return f"{file}:{rest.partition(')')[0]}" if rest else ""


@dataclass(frozen=True)
class Found:
    """What launched a kernel, by a search."""

    op: str
    module: tuple[str, ...]
    annotation: tuple[str, ...]
    site: str
    is_backward: bool


def places(around: tuple[Host, ...]) -> tuple[tuple[str, ...], str]:
    """Modules and the innermost line of the user's; without one the innermost function."""
    frames = [x for x in around if x.category == "python_function"]
    modules = tuple(x.name[11:] for x in frames if x.name.startswith("nn.Module: "))
    users = [place(x.name) for x in frames if not x.name.startswith(("torch/", "nn.Module"))]
    return modules, users[-1] if users else place(frames[-1].name) if frames else ""


def found_by_search(trace: Trace, work: Work) -> Found | None:
    if work.launch is None:
        return None
    around = work.launch.around
    engines = [i for i, x in enumerate(around) if x.name == ENGINE]
    inside = around[engines[-1] + 1 :] if engines else around
    ops = [x.name for x in around if x.category == "cpu_op" and x.name != ENGINE]
    module, site = places(inside)
    users = site and not site.startswith("torch/")
    if engines:
        forward = forward_of(trace, around[engines[-1]])
        if forward is not None and not module and not users:
            module, site = places(forward.around)
        elif not site:
            site = places(around)[1]  # the function that has called the engine
    notes = tuple(x.name for x in around if x.category == "user_annotation")
    return Found(ops[-1] if ops else "", module, notes, site, bool(engines))


def forward_of(trace: Trace, engine: Host) -> Host | None:
    """Of all ops with its number the last, on the thread that has most of the numbers asked for."""
    asked = [x for x in trace.host if x.name == ENGINE and x.number >= 0]
    asked = [x for x in asked if any(work.launch and x in work.launch.around
                                     for work in trace.work.values())]  # fmt: skip
    best, most = None, 0
    for thread in (1, 2):
        ops = [x for x in trace.host if x.thread == thread and x.number >= 0 and x.name != ENGINE]
        fits = sum(any(x.number == e.number for x in ops) for e in asked)
        if fits > most:
            best, most = ops, fits
    mine = [x for x in best or [] if x.number == engine.number]
    return max(mine, key=lambda x: x.start) if mine and engine.number >= 0 else None


def charged(trace: Trace) -> dict[int, Fraction]:
    """Microseconds of each piece of work: an instant of the steps is divided among those that run;
    what communicates has only instants in which nothing computes."""
    found: dict[int, Fraction] = {}
    for number, work in trace.work.items():
        if any(work.start < b and max(work.stop, work.start + 1) > a for a, b in trace.steps):
            found[number] = Fraction(0)
    for now in {i for a, b in trace.steps for i in range(a, b)}:
        runs = [n for n, w in trace.work.items() if w.start <= now < w.stop]
        computes = [n for n in runs if not trace.work[n].name.startswith("nccl")]
        for n in computes or runs:
            found[n] += Fraction(1, len(computes or runs))
    return found


def path_by(by: str, found: Found | None) -> tuple[str, ...]:
    if found is None:
        return (UNKNOWN,)
    if by == "annotation":
        return found.annotation or ("(in no annotation)",)
    if by == "op":
        return (found.op or "(no op)",)
    if by == "line":
        return (found.site or "(no line)",)
    kinds = tuple(name.rsplit("_", 1)[0] for name in found.module)
    return (found.module if by == "module" else kinds) or ("(in no module)",)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_each_tree_is_a_count_of_the_raw_events(tmp_path_factory: Any, trace: Trace) -> None:
    run = read(trace, tmp_path_factory.mktemp("counted"))
    times, steps = charged(with_cpu_work(trace)), len(trace.steps)
    launched_by = {n: found_by_search(trace, trace.work[n]) for n in times}
    whole = sum(times.values()) or 1
    for by in BY:
        wanted: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * 4)
        for n, us in times.items():
            path = path_by(by, launched_by[n])
            is_backward = launched_by[n] is not None and launched_by[n].is_backward
            for depth in range(1, len(path) + 1):
                parts = (us, us * (depth == len(path)), us * is_backward, 1)
                row = wanted[path[:depth]]
                row[:] = [x + float(y) for x, y in zip(row, parts, strict=True)]
        if not run.callers:
            assert set(wanted) <= {(UNKNOWN,)}
            continue
        rows = {row.path: row for row in caller_table(run, by)}
        assert set(rows) == set(wanted)
        for path, (total, own, backward, count) in wanted.items():
            row = rows[path]
            seen = (row.total_ms, row.self_ms, row.backward_ms)
            assert [x * steps * 1e3 for x in seen] == pytest.approx([total, own, backward])
            assert row.kernels * steps == pytest.approx(count)
            assert row.share == pytest.approx(total / float(whole), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(traces())
def test_launches_and_queues_are_a_count_of_the_raw_events(
    tmp_path_factory: Any, trace: Trace
) -> None:
    timeline = read(trace, tmp_path_factory.mktemp("counted")).timeline
    pairs = [(trace.calls[n], w) for n, w in trace.work.items() if n in trace.calls]
    found = hta_launches(timeline, every=True)
    rows = zip(found.call_ns, found.kernel_ns, found.delay_ns, strict=True)
    assert Counter(tuple(x // 1000 for x in row) for row in rows) == Counter(
        (c.stop - c.start, w.stop - w.start, max(w.start - c.stop, 0)) for c, w in pairs
    )
    zero = min(x["ts"] for x in written(trace))
    queues = hta_queue(timeline, every=True)
    assert set(queues) == {f"device/0 stream {w.stream}" for _, w in pairs}
    for lane, series in queues.items():
        mine = [(c, w) for c, w in pairs if lane.endswith(f" {w.stream}")]
        for now, length in dict((series // [1000, 1] + [zero, 0]).tolist()).items():
            called, begun = (sum(x.start <= now for x in xs) for xs in zip(*mine, strict=True))
            assert length == called - begun
