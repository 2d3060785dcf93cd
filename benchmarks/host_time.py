"""What recording costs, and what is left of it when a step is replayed: ratios in one run.

    python benchmarks/host_time.py [--rounds 5]

1. a chain of 1000 adds and muls on (64, 64): host time an op, against torch eager's dispatch
2. a 4-layer TransformerEncoder step (d=128, 4 heads, 32 tokens, batch 8): milliseconds to record
3. the same step replayed, against a hand-written, donated `jax.jit` of the same architecture: host
   time and whole step; recorded and pipelined, against the larger of recording and device time
4. live device memory at the end of a step, against the same `jax.jit`, and its growth over steps
5. a 12-layer step compiled from cold, against `jax.jit` of the same architecture

The parts of a comparison alternate within each round; a ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")  # compiles are measured from cold

import jax
import torch
from peers import step_by_hand, step_models

import kit

LAZY = kit.Settings(mode="lazy")


def clock(function: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def chain(x: Any, y: Any) -> Any:
    for _ in range(500):
        x = x + y
        x = x * y
    return x


def chains(rounds: int) -> None:
    """Host time of an op: eager with one thread, and recorded."""
    torch.set_num_threads(1)
    ones = torch.ones(64, 64)
    times: dict[str, list[float]] = {}

    def note(name: str, ms: float) -> None:
        times.setdefault(name, []).append(ms)

    for grad in (False, True):
        tag = " with autograd" if grad else ""
        for _ in range(rounds * 4):
            x = torch.randn(64, 64).requires_grad_(grad)
            note(f"eager{tag}", clock(lambda x=x: chain(x, ones)))
        with kit.Session(LAZY) as session:
            y = ones.to("kit")
            for i in range(rounds * 4):
                x = torch.randn(64, 64).to("kit").requires_grad_(grad)
                kept: list[Any] = []
                ms = clock(lambda x=x, y=y, kept=kept: kept.append(chain(x, y)))
                if grad:
                    back = clock(lambda kept=kept: kept[0].sum().backward())
                    if i > 2:
                        note("kit backward", back)
                session.mark_step()
                if i > 2:
                    note(f"kit{tag}", ms)
                kept.clear()
                session.wait_all()
    m = {name: statistics.median(values) for name, values in times.items()}
    for tag in ("", " with autograd"):
        print(
            f"chain{tag}: eager {m['eager' + tag]:.2f} us/op, kit records in "
            f"{m['kit' + tag]:.2f} us/op: {m['kit' + tag] / m['eager' + tag]:.1f}x"
        )
    print(f"chain backward: kit records in {m['kit backward']:.2f} us/op")


def torch_step(device: str, layers: int, scaled: bool = False, **optimizer: Any) -> Any:
    torch.manual_seed(0)
    net, batch = step_models.encoder(layers)
    net, batch = net.to(device), tuple(x.to(device) for x in batch)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, **optimizer)
    scaler = torch.amp.GradScaler(device, enabled=scaled)

    def step() -> Any:
        loss = net(*batch)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return loss.detach()

    return step


def jax_step(layers: int) -> Any:
    """The same architecture by hand: a donated jit with AdamW, its state and its batch."""
    return step_by_hand.jit_step(*step_by_hand.encoder(layers))


class Kit:
    """A step on device kit, run in a session that stays open."""

    def __init__(self, step_mode: str, warm: int = 8, **changes: Any) -> None:
        self.session = kit.Session(LAZY.replace(step_mode=step_mode))
        self.session.__enter__()
        self.step = torch_step("kit", 4, **changes)
        for _ in range(warm):
            self.session.run_step(self.step)
        self.session.wait_all()

    def once(self) -> tuple[float, float]:
        """Host time and whole time of one step, milliseconds."""
        start = time.perf_counter()
        kept = self.session.run_step(self.step)
        host = time.perf_counter()
        self.session.wait_all()
        del kept
        return (host - start) * 1e3, (time.perf_counter() - start) * 1e3

    def pipelined(self, steps: int = 20) -> float:
        def many() -> None:
            for _ in range(steps):
                self.session.run_step(self.step)
            self.session.wait_all()

        return clock(many) / steps

    def close(self) -> None:
        self.session.__exit__(None, None, None)


class Jit:
    """The hand-written step."""

    def __init__(self) -> None:
        self.function, self.state, self.batch = jax_step(4)
        for _ in range(5):
            self.once()

    def once(self) -> tuple[float, float]:
        start = time.perf_counter()
        *self.state, loss = self.function(*self.state, *self.batch)
        host = time.perf_counter()
        jax.block_until_ready((self.state, loss))
        return (host - start) * 1e3, (time.perf_counter() - start) * 1e3


def medians(rows: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(r[0] for r in rows), statistics.median(r[1] for r in rows)


def recording(rounds: int) -> None:
    """Milliseconds to record the 4-layer step, sessions one after another."""
    kinds = {
        "AdamW": {},
        "AdamW, fused": {"fused": True},
        "AdamW, one by one": {"foreach": False},
        "AdamW, fused, GradScaler": {"fused": True, "scaled": True},
    }
    for name, changes in kinds.items():
        step = Kit("retrace", **changes)
        host, whole = medians([step.once() for _ in range(rounds * 8)])
        ops = step.session.metrics()["record.ops"] / step.session.step
        print(f"4-layer step, {name}: recorded in {host:.1f} ms ({ops:.0f} ops), step {whole:.1f}")
        step.close()


def replaying(rounds: int) -> None:
    """Replay against the hand-written jit, and retrace against its own parts."""
    jit, replay = Jit(), Kit("replay", fused=True)
    hosts, wholes = [], []
    for _ in range(rounds):
        by_hand = medians([jit.once() for _ in range(20)])
        ours = medians([replay.once() for _ in range(20)])
        hosts.append(ours[0] / by_hand[0])
        wholes.append(ours[1] / by_hand[1])
    print(
        f"replay against jax.jit: host time {statistics.median(hosts):.2f}x "
        f"({ours[0]:.2f} and {by_hand[0]:.2f} ms), step {statistics.median(wholes):.2f}x "
        f"({ours[1]:.1f} and {by_hand[1]:.1f} ms)"
    )
    replay.close()
    retrace, ratios = Kit("retrace", fused=True), []
    for _ in range(rounds):
        host, whole = medians([retrace.once() for _ in range(20)])
        ratios.append(retrace.pipelined() / max(host, whole - host))
    print(
        f"retrace, pipelined: {statistics.median(ratios):.2f}x the larger of recording and device"
    )
    retrace.close()


def live_bytes() -> int:
    return sum(x.nbytes for x in jax.live_arrays() if not x.is_deleted())


def memory(steps: int) -> None:
    """Bytes of live arrays at the end of a step, and after many more."""
    before = live_bytes()
    jit = Jit()
    by_hand = live_bytes() - before
    del jit
    before = live_bytes()
    step = Kit("retrace", fused=True)
    first = live_bytes() - before
    for _ in range(steps):
        step.session.run_step(step.step)
    step.session.wait_all()
    last = live_bytes() - before
    print(
        f"live memory at step end: {first / by_hand:.2f}x jax.jit ({first / 1e6:.1f} MB); after "
        f"{steps} more steps {(last - first) / 1e6:+.3f} MB"
    )
    step.close()


def compiling() -> None:
    """A 12-layer step from cold, once each: lowering and XLA together."""
    function, state, batch = jax_step(12)
    by_hand = clock(lambda: function.lower(*state, *batch).compile())
    with kit.Session(LAZY) as session:
        step = torch_step("kit", 12, fused=True)
        for _ in range(3):
            session.run_step(step)
        session.wait_all()
        ours = max(c.lower_ms + c.compile_ms for c in session.compiles)
        total = sum(c.lower_ms + c.compile_ms for c in session.compiles)
    print(
        f"12-layer step from cold: kit {ours:.0f} ms, jax.jit {by_hand:.0f} ms: "
        f"{ours / by_hand:.2f}x; all {total:.0f} ms of the first three steps "
        f"{total / by_hand:.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    cores = f"{os.cpu_count()} cores, NPROC={os.environ.get('NPROC', 'unset')}"
    versions = f"torch {torch.__version__}, jax {jax.__version__}"
    print(f"{jax.devices()[0].device_kind}, {cores}, {versions}")
    chains(options.rounds)
    recording(options.rounds)
    replaying(options.rounds)
    memory(options.steps)
    compiling()


if __name__ == "__main__":
    main()
