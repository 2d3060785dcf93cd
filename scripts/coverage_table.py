"""Write docs/op_coverage.md and .csv: torch's own tables of ops, run on device kit.

`make coverage-table` runs it: every float32 entry, each in a worker process that may crash or hang
without taking the others along.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.coverage.harness import (  # noqa: E402 - after the path to it
    Verdict,
    check_module,
    check_op,
    check_optimizer,
    entries,
    entry_name,
)
from tests.coverage.table import PAGE, page, table  # noqa: E402

PATIENCE = 180  # seconds for one entry
# As in the tests: the CPU, nothing compiled before, and a rule has to name each dtype.
ENVIRONMENT = {
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_PLATFORMS": "cpu",
    "KIT_CACHE_DIR": "",
    "OMP_NUM_THREADS": "1",
}
CHECKS = {"op": check_op, "module": check_module, "optimizer": check_optimizer}


def work(kind: str, numbers: list[int]) -> None:
    """Check these entries, one JSON line each, after a line that says which comes."""
    known = entries(kind)
    for number in numbers:
        say(json.dumps({"start": number}))
        say(json.dumps(asdict(CHECKS[kind](known[number]))))


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_workers(kind: str, jobs: int, known: list[Verdict]) -> list[Verdict]:
    """All entries of a kind but those that are known, shared among worker processes."""
    names = [entry_name(entry) for entry in entries(kind)]
    done = {v.name: v for v in known if v.kind == kind}
    found = {i: done[name] for i, name in enumerate(names) if name in done}
    waiting = [i for i in range(len(names)) if i not in found][::-1]
    lock = threading.Lock()

    def keep_working() -> None:
        while True:
            with lock:
                batch = [waiting.pop() for _ in range(min(30, len(waiting)))]
            if not batch:
                return
            rest = _run_batch(kind, batch, found)
            while rest:  # the first of the rest has crashed or hung
                name = names[rest[0]]
                found[rest[0]] = Verdict(kind, name, "error", "the process crashed or hung")
                say(f"{'crashed':12}{name}")
                rest = _run_batch(kind, rest[1:], found)

    threads = [threading.Thread(target=keep_working) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in sorted(found)]


def _run_batch(kind: str, numbers: list[int], found: dict[int, Verdict]) -> list[int]:
    """Gives the entries that were not done: the first of them ended the process."""
    if not numbers:
        return []
    command = [sys.executable, __file__, "--worker", kind, *map(str, numbers)]
    environment = {**os.environ, **ENVIRONMENT}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    now = -1
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        timer.cancel()
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        if "start" in message:
            now = message["start"]
        else:
            found[now] = Verdict(**message)
            say(f"{message['verdict']:12}{message['name']:50}{message['why'][:150]}")
    process.wait()
    timer.cancel()
    return [i for i in numbers if i not in found]


def main() -> None:
    """Run everything, or be one worker of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--verdicts", type=Path, help="kept in this file; those there are not run")
    parser.add_argument("--again", action="store_true", help="run again what was not native")
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], [int(x) for x in options.worker[1:]])
        return
    known: list[Verdict] = []
    if options.verdicts and options.verdicts.exists():
        known = [Verdict(**v) for v in json.loads(options.verdicts.read_text())]
        known = [v for v in known if v.verdict == "native" or not options.again]
    verdicts = [v for kind in CHECKS for v in run_workers(kind, options.jobs, known)]
    if options.verdicts:
        options.verdicts.write_text(json.dumps([asdict(v) for v in verdicts], indent=0))
    options.output.write_text(page(verdicts), encoding="utf-8")
    options.output.with_suffix(".csv").write_text(table(verdicts), encoding="utf-8")
    wrong = [v.name for v in verdicts if v.verdict == "wrong"]
    say(f"{len(verdicts)} entries, {len(wrong)} wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
