"""A long mix of everything, in one process: nothing may be wrong, and nothing may grow.

    python benchmarks/soak.py [--minutes 60] [--seed 0]

What is done next is drawn from `ACTS`: random programs on the engine and in sessions with many
threads, steps that are interrupted, ops that fail, sessions that nobody closes, explorers whose
controls move, reports and files, processes that are killed while they save. Each minute one line
says what the process holds.

Exit code 0 and the totals, or the first thing that was wrong, or what has grown.
"""

from __future__ import annotations

import argparse
import contextvars
import faulthandler
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import kit
from kit.errors import ExecutionError, KitError
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import DONE, Operation, Variable
from tests.reliability.files.saves import fill_disk, kill_savers
from tests.reliability.growth import Held, grown
from tests.reliability.kinds import KINDS
from tests.reliability.stops.interrupts import interrupt_at_random

THREADS, VARIABLES, OPERATIONS = 4, 12, 400
PATIENCE_S = 300  # an act takes some seconds; a deadlock takes for ever


def engine_round(seed: int) -> int:
    """One random program on an engine of its own; gives how many operations there were."""
    engine = Engine()
    variables = [Variable() for _ in range(VARIABLES)]
    ran: list[tuple[int, int]] = []  # thread, and which of its operations; as they ran
    pushed: dict[tuple[int, int], tuple[Operation, list[int], list[int]]] = {}

    def work(thread: int) -> None:
        mine = random.Random(seed * 31 + thread)
        for number in range(OPERATIONS):
            picked = mine.sample(range(VARIABLES), mine.randint(1, 4))
            writes = picked[: mine.randint(0, len(picked))]
            both = mine.random() < 0.3
            reads = picked if both else [i for i in picked if i not in writes]
            fails, pause = mine.random() < 0.05, mine.random() < 0.02

            def run(
                key: tuple[int, int] = (thread, number), fails: bool = fails, pause: bool = pause
            ) -> None:
                ran.append(key)
                if pause:
                    time.sleep(0.001)
                if fails:
                    raise ValueError("as planned")

            op = engine.push(
                run,
                tuple(variables[i] for i in reads),
                tuple(variables[i] for i in writes),
                is_urgent=mine.random() < 0.2,
            )
            pushed[thread, number] = op, reads, writes
            if mine.random() < 0.02:
                engine.cancel(op)
            try:
                if mine.random() < 0.03:
                    engine.wait_to_read(mine.choice(variables))
                if mine.random() < 0.01:
                    engine.wait_all()
            except KitError:
                pass

    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    if any(op.state != DONE for op, *_ in pushed.values()) or len(pushed) != THREADS * OPERATIONS:
        raise SystemExit(f"round {seed}: an operation was lost")
    if len(set(ran)) != len(ran):
        raise SystemExit(f"round {seed}: an operation ran twice")
    if wrong := out_of_order(pushed[key] for key in ran):
        raise SystemExit(f"round {seed}: {wrong}")
    return len(pushed)


def out_of_order(ran: Iterable[tuple[Operation, list[int], list[int]]]) -> str:
    """What ran before one that it had to wait for, as it was pushed later; "" if nothing did.

    Args:
        ran: operations in the order in which they ran, and which variables each reads and writes.
    """
    used, written = [0] * VARIABLES, [0] * VARIABLES  # the latest push that has run
    for op, reads, writes in ran:
        for i in {*reads, *writes}:
            if op.number < (later := used[i] if i in writes else written[i]):
                return f"variable {i}: push {later} ran before push {op.number}"
            used[i] = max(used[i], op.number)
            if i in writes:
                written[i] = op.number
    return ""


def session_round(seed: int) -> int:
    """Threads that compute on shared and own tensors in one session, against torch."""
    chance = random.Random(seed)
    size = chance.choice((1, 3, 15, 1_000_000))
    settings = kit.Settings(bulk_forward=size, segment_mode=chance.choice(("fuse", "launch")))
    with kit.Session(settings) as session:
        shared = [torch.full((4,), float(i), device="kit") for i in range(4)]
        hosts = [torch.full((4,), float(i)) for i in range(4)]

        def work(thread: int) -> int:
            mine = random.Random(seed * 17 + thread)
            ours, theirs = shared[thread] + 0, hosts[thread] + 0
            for _ in range(60):
                other = mine.randrange(4)
                if mine.random() < 0.5:
                    ours, theirs = ours * 0.5 + shared[other], theirs * 0.5 + hosts[other]
                else:
                    ours[1:].add_(1), theirs[1:].add_(1)
                if mine.random() < 0.05 and ours.tolist() != theirs.tolist():
                    raise SystemExit(f"session round {seed}: thread {thread} read a wrong value")
                if mine.random() < 0.02:
                    session.wait_all()
            if ours.tolist() != theirs.tolist():
                raise SystemExit(f"session round {seed}: thread {thread} has a wrong value")
            return 60

        contexts = [contextvars.copy_context() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(lambda k: contexts[k].run(work, k), range(4)))


def interrupted_steps(seed: int) -> int:
    """Steps of one kind, with Ctrl-C at random times; each next step is torch's."""
    chance = random.Random(seed)
    with KINDS[chance.choice(list(KINDS))]() as training:
        return interrupt_at_random(training, 4, chance)


def failing_ops(seed: int) -> int:
    """An op whose rule raises, in the middle of others; these keep their numbers."""

    def fail(x: Any) -> Any:
        raise ValueError("as planned")

    rules = kit.Rules({"aten.special_i0e.default": fail}).over(kit.DEFAULT_RULES)
    with kit.Session(kit.Settings(bulk_forward=1 + seed % 5), rules=rules):
        for _ in range(5):
            before = torch.full((3,), 2.0, device="kit") * 3
            bad = torch.special.i0e(before)
            after = before + 1
            try:
                bad.tolist()
            except (ExecutionError, KitError):
                pass
            else:
                raise SystemExit("an op that fails was read")
            if (before.tolist(), after.tolist()) != ([6.0] * 3, [7.0] * 3):
                raise SystemExit("an op beside one that fails has a wrong value")
    return 5


def sessions_left_open(seed: int) -> int:
    """Sessions that a thread enters and never closes."""

    def leave() -> None:
        session = kit.Session(kit.Settings(bulk_forward=3)).__enter__()
        assert (torch.ones(50_000, device="kit") + seed).sum().item() == 50_000 * (1 + seed)
        session.mark_step()

    for _ in range(3):
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    return 3


def small_step(ctx: Any) -> Callable[[], Any]:
    """A workload that an explorer runs in a moment."""
    net = torch.nn.Linear(8, 8).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(ctx.settings.batch_size, 8, device=ctx.device)

    def step() -> Any:
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def moved_explorer(seed: int) -> int:
    """An explorer whose controls are moved while it runs; the last settings are the ones shown."""
    chance = random.Random(seed)
    settings = kit.Settings(steps=2, warmup=1)
    explorer = kit.Explorer(kit.workload(small_step), settings, compile_ahead=False)
    try:
        for _ in range(4):
            explorer.set(batch_size=chance.choice((2, 4)), bulk_forward=chance.choice((3, 15)))
            time.sleep(chance.uniform(0, 0.5))
        run = explorer.wait(PATIENCE_S / 2)
        if run.settings != explorer.settings:
            raise SystemExit("an explorer shows a run of other settings")
        with tempfile.TemporaryDirectory() as folder:
            written_files(run, Path(folder))
    finally:
        explorer.close()
    return 5


def written_files(run: kit.Run, folder: Path) -> None:
    """A run saved, exported and reported, and read again."""
    run.save(folder / "run.kitrun")
    if kit.Run.load(folder / "run.kitrun") != run:
        raise SystemExit("a saved run is another one")
    kit.export_trace(run, folder / "trace.json.gz")
    if len(kit.open_trace(folder / "trace.json.gz").timeline) != len(run.timeline):
        raise SystemExit("an exported trace has other spans")
    page = kit.report([run], path=folder / "page.html")
    if not page.read_text().endswith("</html>\n"):
        raise SystemExit("a report was cut off")


def killed_savers(seed: int) -> int:
    """Processes that are killed while they save, and a full disk."""
    with tempfile.TemporaryDirectory() as folder:
        kill_savers(1, random.Random(seed), Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        fill_disk(Path(folder))
    return 2


# What may be done -> how often among the others.
ACTS: dict[Callable[[int], int], int] = {
    engine_round: 8,
    session_round: 4,
    interrupted_steps: 4,
    failing_ops: 3,
    sessions_left_open: 3,
    moved_explorer: 2,
    killed_savers: 1,
}


def main() -> None:
    """Do it, and say each minute what the process holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background job has it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    chance, done, looks = random.Random(asked.seed), Counter[str](), list[Held]()
    begin = time.monotonic()
    minute = 0
    while (passed := time.monotonic() - begin) < 60 * asked.minutes:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        act = chance.choices(list(ACTS), list(ACTS.values()))[0]
        done[act.__name__] += act(chance.randrange(28))  # few programs, so that caches fill
        if passed >= 60 * minute:
            looks.append(Held.now())
            print(f"minute {minute}: {looks[-1]}", flush=True)
            minute = int(passed // 60) + 1
    faulthandler.cancel_dump_traceback_later()
    print(", ".join(f"{count:,} {name}" for name, count in done.most_common()))
    if more := grown(looks):
        raise SystemExit("it grew: " + ", ".join(more))


if __name__ == "__main__":
    main()
