"""The engine under stress: random programs on many threads for minutes; bounded, or it fails.

    python benchmarks/soak.py [--minutes 10]

Rounds of four pushing threads and one to four workers: random reads and writes, delays, failures,
cancellations, waits, priorities, devices. After each round: every operation has run or was
cancelled, none twice; each variable's log is in program order, alone among writers; the engine
closes. Memory and threads must not grow. Then the same through sessions: threads that record ops on
device "kit" and read them in each other's midst.

Exit code 0 and one line of totals, or the first thing that was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import ctypes
import faulthandler
import gc
import random
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import kit
from kit.errors import KitError
from kit.runtime.engine.engine import Engine

THREADS, VARIABLES, OPERATIONS = 4, 12, 400
PATIENCE_S = 120  # a round takes a second or two; a deadlock takes for ever


class Log:
    """What happened to one variable, written by the operations themselves."""

    def __init__(self, engine: Engine) -> None:
        self.variable = engine.variable()
        self.writers = self.readers = 0
        self.wrong = ""

    def enter(self, writes: bool) -> None:
        if writes and (self.readers or self.writers):
            self.wrong = "a writer was not alone"
        if not writes and self.writers:
            self.wrong = "a reader met a writer"
        self.writers += writes
        self.readers += not writes

    def leave(self, writes: bool) -> None:
        self.writers -= writes
        self.readers -= not writes


def engine_round(seed: int) -> int:
    """One random program on an engine of its own; gives how many operations there were."""
    chance = random.Random(seed)
    engine = Engine(chance.randint(1, 4))
    logs = [Log(engine) for _ in range(VARIABLES)]
    lock = threading.Lock()  # of the logs: engine operations of other variables run beside
    ran: dict[tuple[int, int], int] = {}
    pushed: list[Any] = []

    def work(thread: int) -> None:
        mine = random.Random(seed * 31 + thread)
        for number in range(OPERATIONS):
            picked = mine.sample(range(VARIABLES), mine.randint(1, 4))
            writes = picked[: mine.randint(0, len(picked))]
            both = mine.random() < 0.3
            reads = picked if both else [i for i in picked if i not in writes]
            fails, pause = mine.random() < 0.05, mine.random() < 0.02

            def run(
                key: tuple[int, int] = (thread, number),
                reads: Any = tuple(reads),
                writes: Any = tuple(writes),
                fails: bool = fails,
                pause: bool = pause,
            ) -> None:
                with lock:
                    ran[key] = ran.get(key, 0) + 1
                    for i in {*reads, *writes}:
                        logs[i].enter(i in writes)
                if pause:
                    time.sleep(0.001)
                with lock:
                    for i in {*reads, *writes}:
                        logs[i].leave(i in writes)
                if fails:
                    raise ValueError("as planned")

            op = engine.push(
                run,
                tuple(logs[i].variable for i in reads),
                tuple(logs[i].variable for i in writes),
                priority=mine.choice((0, 0, 0, 3, -2)),
                device=mine.choice((None, "other")),
            )
            with lock:
                pushed.append(op)
            if mine.random() < 0.02:
                engine.cancel(op)
            try:
                if mine.random() < 0.03:
                    engine.wait_to_read(mine.choice(logs).variable)
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
    if not all(op.is_done for op in pushed) or len(pushed) != THREADS * OPERATIONS:
        raise SystemExit(f"round {seed}: an operation was lost")
    if any(times != 1 for times in ran.values()):
        raise SystemExit(f"round {seed}: an operation ran twice")
    if wrong := next((log.wrong for log in logs if log.wrong), ""):
        raise SystemExit(f"round {seed}: {wrong}")
    return len(pushed)


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


def memory_mb() -> float:
    """Resident, once what is free has been given back."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc's only
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/statm") as stat:
        return int(stat.read().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    end = time.monotonic() + 60 * parser.parse_args().minutes
    rounds = operations = 0
    first_mb = 0.0
    threads = threading.active_count()
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        operations += engine_round(rounds)
        if rounds % 4 == 0:
            operations += session_round(rounds % 28)  # seven programs, compiled in each session
        rounds += 1
        if rounds == 40:  # caches and allocators have settled
            first_mb = memory_mb()
    faulthandler.cancel_dump_traceback_later()
    grown = memory_mb() - first_mb if first_mb else 0.0
    print(
        f"{rounds} rounds, {operations:,} operations, memory {grown:+.1f} MB since round 40, "
        f"{threading.active_count() - threads:+d} threads"
    )
    if grown > 60 or threading.active_count() > threads:
        raise SystemExit("it grew")


if __name__ == "__main__":
    main()
