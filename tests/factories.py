"""Synthetic runs for tests: consistent with each other as a measured one is, and quick to make.

`make_run()` invents a small training step (parameters, nested scopes, three phases), cuts it as
the engine would, and plays it on an imaginary machine: one recording thread, one worker, one
device. Equal arguments give equal runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from kit.ir import Aval, Graph, Node, Segment
from kit.runs.run import Run
from kit.runs.settings import ENOUGH, Settings
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.devices import TORCH_CPU

__all__ = ["HOSTILE", "empty_run", "make_run", "native_run", "one_span_run", "timed"]

HOSTILE = (
    "</script><script>alert('kit')</script><img src=x onerror=\"alert(1)\">&amp;\"'`${1}"
    "\x00\x07\x1b[31m\r\n\t\u202e\u2028\ud800{{7*7}}\\%s" + "W" * 2000
)
MEASURED = 200  # steps of 1.5 ms, where the settings ask for enough of them
_WEIGHT = Aval((32, 32), "float32")
_BATCH = Aval((8, 32), "float32")
_SCALAR = Aval((), "float32")
_PARTS = ("attention", "attention.output", "mlp")


def make_run(settings: Settings | None = None, *, kernels: int = 40, steps: int = 3,
             syncs: int = 1, scopes: int = 3, hostile: bool = False,
             seed: int = 0) -> Run:  # fmt: skip
    """A run of `steps` traced steps, each with `kernels` device kernels and `syncs` waits.

    `hostile` puts markup, control characters and very long names into every text that a user's
    program chooses. In mode "torch" there is no graph, no segment and no worker, as in a real run.
    """
    made = _made(settings or Settings(), kernels, steps, syncs, scopes, hostile, seed)
    return replace(made)  # what it consists of is frozen, and made once


@cache
def _made(settings: Settings, kernels: int, steps: int, syncs: int, scopes: int, hostile: bool,
          seed: int) -> Run:  # fmt: skip
    evil = HOSTILE if hostile else ""
    graph, segments = _cut(_graph(scopes, evil), settings, syncs, evil)
    is_native = settings.mode == "torch"
    machine = _Machine(graph, segments, random.Random(seed), evil, is_native)
    for step in range(steps):
        machine.step(step, kernels, syncs)
    count = MEASURED if settings.steps == ENOUGH else settings.steps
    measured = [
        SyncPoint(1_000_000 * i + s.at_ns, s.wait_ns + i, s.cause, s.site, s.via)
        for i in range(count)
        for s in machine.syncs[:syncs]
    ]
    noise = random.Random(seed + 1)
    return Run(
        settings=settings,
        losses=tuple(6.0 * 0.9**i + noise.random() / 100 for i in range(settings.least_steps)),
        step_times_ns=tuple(1_500_000 + noise.randrange(100_000) for _ in range(count)),
        timeline=Timeline.of(machine.spans, machine.syncs, "profiled", ["synthetic" + evil]),
        sync_points=tuple(measured),
        graphs=() if is_native else (graph,),
        segments=() if is_native else segments,
        metrics={"compile.count": float(len({s.key for s in segments})), "cache.hit" + evil: 7.0},
        unlowered={f"aten.nonzero{evil} at train.py:9": 2} if hostile else {},
        environment={"device": "imaginary" + evil, "kit": "0.0"},
        name="synthetic" + evil,
    )


def native_run(
    *, slowed: int = 1, lane: str = TORCH_CPU, origin: str = "profiled", batch: str = "next batch"
) -> Run:
    """A run of native torch, by hand: two traced steps of 100 ms each.

    40 ms of loading, in which an op runs, 5 of the host, 20 of a kernel, 20 asleep, 10 of a kernel,
    5 of the host.

    `slowed`: by how much the trace slowed them. `batch`: how the span of loading is called.
    """
    spans = []
    for step in (0, 1):
        at = 100 * step

        def span(lane: str, name: str, kind: str, start: int, stop: int, at: int = at) -> Span:
            start_ns, stop_ns = ((at + ms) * 1_000_000 * slowed for ms in (start, stop))
            return Span(lane, name, kind, start_ns, stop_ns)

        spans += [
            span("host/main", f"step {step}", "step", 0, 100),
            span("host/main", "forward", "record", 0, 100),
            span("host/main", batch, "input", 0, 40),
            span(lane, "aten::stack", "kernel", 30, 35),
            span(lane, "aten::mm", "kernel", 45, 65),
            span("host/main", "train.py:9", "elsewhere", 65, 85),
            span(lane, "aten::add_", "kernel", 85, 95),
        ]
    return Run(
        settings=Settings(mode="torch", device="cpu", steps=3),
        losses=(),
        step_times_ns=(100_000_000,) * 3,
        timeline=Timeline.of(spans, origin=origin),
        name="train.py",
    )


def empty_run() -> Run:
    """A run in which nothing was recorded: no step, no span, no graph."""
    return Run(settings=Settings(), losses=(), step_times_ns=(), timeline=Timeline.of([]))


def one_span_run() -> Run:
    """A run whose timeline is one kernel, outside of any step."""
    kernel = Span("device/0 kernels", "fusion.1", "kernel", 100, 350)
    return Run(settings=Settings(steps=1), losses=(1.0,), step_times_ns=(1000,),
               timeline=Timeline.of([kernel], origin="profiled"), name="one span")  # fmt: skip


def _graph(scopes: int, evil: str) -> Graph:
    """Forward through `scopes` modules, backward through them in reverse, then the update."""
    nodes: list[Node] = []

    def add(op: str, inputs: list[int], aval: Aval, phase: str, scope: str, line: int) -> int:
        variable = op in ("parameter", "input", "scalar")
        nodes.append(
            Node(
                op=op if variable else f"aten.{op}.default{evil}",
                inputs=tuple((i, 0) for i in inputs),
                attrs=(("alpha", "1" + evil),) if op == "add" else (),
                avals=(aval,),
                site=f"train.py:{line}{evil}",
                phase=phase,
                scope=scope + evil if scope else "",
            )
        )
        return len(nodes) - 1

    x = add("input", [], _BATCH, "forward", "", 30)
    weights, activations = [], []
    for i in range(scopes):
        scope = f"Bert.layers.{i // len(_PARTS)}.{_PARTS[i % len(_PARTS)]}"
        weights.append((add("parameter", [], _WEIGHT, "forward", scope, 10 + i), scope))
        activations.append(x)
        product = add("mm", [x, weights[-1][0]], _BATCH, "forward", scope, 11 + i)
        x = add("gelu", [add("add", [product, x], _BATCH, "forward", scope, 12 + i)], _BATCH,
                "forward", scope, 12 + i)  # fmt: skip
    loss = add("sum", [x], _SCALAR, "forward", "Bert.head", 40)
    grad, grads = add("expand", [loss], _BATCH, "backward", "Bert.head", 41), []
    for (weight, scope), x in reversed(list(zip(weights, activations, strict=True))):
        grad = add("gelu_backward", [grad, x], _BATCH, "backward", scope, 41)
        grads.append(add("mm", [x, grad], _WEIGHT, "backward", scope, 41))
        grad = add("mm", [grad, weight], _BATCH, "backward", scope, 41)
    rate = add("scalar", [], _SCALAR, "update", "", 42)
    updated = [
        add("addcmul", [weight, g, rate], _WEIGHT, "update", scope, 42)
        for (weight, scope), g in zip(weights, reversed(grads), strict=True)
    ]
    return Graph(tuple(nodes), ((loss, 0), *((i, 0) for i in updated))).check()


def _cut(
    graph: Graph, settings: Settings, syncs: int, evil: str
) -> tuple[Graph, tuple[Segment, ...]]:
    """Segments of at most the settings' bulk sizes, within one phase each."""
    forward, backward = settings.bulk_sizes
    groups: list[tuple[list[int], str]] = []
    current: list[int] = []
    ops = graph.ops
    for at, i in enumerate(ops):
        current.append(i)
        phase = graph.nodes[i].phase
        following = graph.nodes[ops[at + 1]].phase if at + 1 < len(ops) else ""
        limit = forward if phase == "forward" else backward
        cut = "mark_step" if not following else "phase" if following != phase else ""
        if cut or len(current) >= limit:
            groups.append((current, cut or "size"))
            current = []
    last = len(groups) - 1
    segments = tuple(
        _segment(graph, n, ids, "sync" if n < last and _waits(n, last, syncs) else cut, evil)
        for n, (ids, cut) in enumerate(groups)
    )
    owner = {i: s.index for s in segments for i in s.nodes}
    nodes = tuple(replace(node, segment=owner.get(i, -1)) for i, node in enumerate(graph.nodes))
    return Graph(nodes, graph.wanted), segments


def _waits(index: int, last: int, syncs: int) -> int:
    """How many of a step's waits come after this segment: they are spread, the last at the end."""
    return sum(1 for k in range(syncs) if index == last * (k + 1) // syncs)


def _segment(graph: Graph, index: int, ids: list[int], cut: str, evil: str) -> Segment:
    inside = set(ids)
    users = [i for i in graph.ops if i not in inside]
    reads = dict.fromkeys(x for i in ids for x in graph.nodes[i].inputs if x[0] not in inside)
    needed = {x for i in users for x in graph.nodes[i].inputs} | set(graph.wanted)
    kinds = "-".join(graph.nodes[i].op.split(".")[1] for i in ids)
    return Segment(
        index=index,
        nodes=tuple(ids),
        reads=tuple(reads),
        writes=tuple((i, 0) for i in ids if (i, 0) in needed),
        cut=cut,
        phase=graph.nodes[ids[0]].phase,
        key=f"{_hash_of(kinds)}{evil}",
        is_cached=index > 0,
    )


def _hash_of(text: str) -> str:
    """Eight hexadecimal digits that depend on the text only."""
    return f"{random.Random(text).getrandbits(32):08x}"


@dataclass
class _Machine:
    """A recording thread, a worker and a device, each with the time until which it is busy."""

    graph: Graph
    segments: tuple[Segment, ...]
    rng: random.Random
    evil: str
    is_native: bool
    spans: list[Span] = field(default_factory=list)
    syncs: list[SyncPoint] = field(default_factory=list)
    compiled: set[str] = field(default_factory=set)
    host_ns: int = 0
    worker_ns: int = 0
    device_ns: int = 0

    def step(self, number: int, kernels: int, syncs: int) -> None:
        start = self.host_ns
        self._host(f"copy to device{self.evil}", "input", self._some(20_000))
        last = len(self.segments) - 1
        for phase, group in self._phases():
            since = self.host_ns
            for segment in group:
                share = kernels * (segment.index + 1) // (last + 1)
                before = kernels * segment.index // (last + 1)
                self._run_segment(segment, share - before)
                for _ in range(_waits(segment.index, last, syncs)):
                    self._wait()
            self.spans.append(Span("host/main", phase, "record", since, self.host_ns))
        self.host_ns += self._some(3_000)
        self.spans.append(Span("host/main", f"step {number}", "step", start, self.host_ns))

    def _phases(self) -> Iterator[tuple[str, list[Segment]]]:
        for phase in dict.fromkeys(s.phase for s in self.segments):
            yield phase, [s for s in self.segments if s.phase == phase]

    def _run_segment(self, segment: Segment, kernels: int) -> None:
        self.host_ns += len(segment.nodes) * self._some(9_000)
        if not self.is_native:
            self._host(f"cut: {segment.cut}", "plan", self._some(4_000), segment.index)
            self.worker_ns = max(self.worker_ns, self.host_ns)
            if segment.key not in self.compiled:
                self.compiled.add(segment.key)
                self._worker(segment, "lower", 30_000)
                self._worker(segment, "compile", 90_000)
            self._worker(segment, "dispatch", 8_000)
        self.device_ns = max(self.device_ns, self.worker_ns, self.host_ns if self.is_native else 0)
        for k in range(kernels):
            self.device_ns += self._some(500)
            start, self.device_ns = self.device_ns, self.device_ns + self._some(25_000)
            node = -1 if self.is_native else segment.nodes[k % len(segment.nodes)]
            self.spans.append(Span(
                f"device/0 kernels{self.evil}", f"fusion.{k}{self.evil}", "kernel", start,
                self.device_ns, -1 if self.is_native else segment.index, node,
            ))  # fmt: skip

    def _wait(self) -> None:
        start = self.host_ns
        self._host(
            f"item at train.py:44{self.evil}",
            "wait",
            max(self.device_ns - start, 0) + self._some(2_000),
        )
        self.syncs.append(SyncPoint(start, self.host_ns - start, "item" + self.evil,
                                    "train.py:44" + self.evil,
                                    "torch/amp/grad_scaler.py:371" + self.evil))  # fmt: skip

    def _host(self, name: str, kind: str, length: int, segment: int = -1) -> None:
        self.spans.append(Span("host/main", name, kind, self.host_ns, self.host_ns + length,
                               -1 if self.is_native else segment))  # fmt: skip
        self.host_ns += length

    def _worker(self, segment: Segment, kind: str, length: int) -> None:
        start = self.worker_ns
        self.worker_ns += self._some(length)
        name = f"segment {segment.index}{self.evil}"
        self.spans.append(Span("host/worker", name, kind, start, self.worker_ns, segment.index))

    def _some(self, about: int) -> int:
        return self.rng.randrange(about // 2, about * 3 // 2)


def timed(*ms: float, **changes: Any) -> Run:
    """A run of these step times in tens of milliseconds, three times over."""
    return replace(make_run(), step_times_ns=tuple(int(x * 1e7) for x in ms * 3), **changes)
