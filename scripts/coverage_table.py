"""Write docs/op_coverage.md: torch's own op, module and optimizer tables, run on device kit.

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
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.coverage.harness import (  # noqa: E402 - after the path to it
    CLASSES,
    Verdict,
    check_module,
    check_op,
    check_optimizer,
    entries,
    entry_name,
)

PATIENCE = 180  # seconds for one entry
# As in the tests: the CPU, nothing compiled before, and a rule has to name each dtype.
ENVIRONMENT = {
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_PLATFORMS": "cpu",
    "KIT_CACHE_DIR": "",
    "OMP_NUM_THREADS": "1",
}
CHECKS = {"op": check_op, "module": check_module, "optimizer": check_optimizer}
MEANING = {
    "native": "everything is recorded and runs on the device",
    "reads": "native, but the op itself needs numbers to know its shape: a sync point",
    "host": "an aten op without a rule ran in torch on the CPU: right, named, a sync point",
    "unsupported": "a clear error of kit's; nothing is computed",
    "error": "an error that CPU torch does not raise",
    "wrong": "other numbers than CPU torch",
    "untested": "CPU torch refuses every sample",
}


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


def run_workers(kind: str, jobs: int) -> list[Verdict]:
    """All entries of a kind, shared among worker processes."""
    known = entries(kind)
    waiting = list(range(len(known)))[::-1]
    found: dict[int, Verdict] = {}
    lock = threading.Lock()

    def keep_working() -> None:
        while True:
            with lock:
                batch = [waiting.pop() for _ in range(min(30, len(waiting)))]
            if not batch:
                return
            rest = _run_batch(kind, batch, found)
            while rest:  # the first of the rest has crashed or hung
                name = entry_name(known[rest[0]])
                found[rest[0]] = Verdict(kind, name, "error", "the process crashed or hung")
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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, env=environment)  # fmt: skip
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


def table(verdicts: list[Verdict]) -> str:
    """The page, in Markdown."""
    import torch

    lines = [
        "# Which torch ops device kit runs, and how",
        "",
        "Made by `make coverage-table`; do not edit. Each float32 entry of torch's own test tables "
        "(`op_db`, `module_db`, `optim_db`) was run on device kit and on CPU torch "
        f"{torch.__version__.split('+')[0]}, up to five samples an entry, forward and gradients, "
        "and compared.",
        "",
        "| class | ops | modules | optimizers | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    count: dict[tuple[str, str], int] = defaultdict(int)
    for v in verdicts:
        count[v.kind, v.verdict] += 1
    kinds = ("op", "module", "optimizer")
    totals = {k: sum(v.kind == k for v in verdicts) for k in kinds}
    for name in CLASSES:
        cells = [f"{count[k, name]} ({count[k, name] / max(totals[k], 1):.1%})" for k in kinds]
        lines.append(f"| {name} | {' | '.join(cells)} | {MEANING[name]} |")
    lines.append(f"| all | {' | '.join(str(totals[k]) for k in kinds)} | |")
    for name in CLASSES:
        chosen = sorted((v for v in verdicts if v.verdict == name), key=lambda v: (v.kind, v.name))
        if chosen:
            lines += ["", f"## {name}: {MEANING[name]}", ""]
            lines += _list(chosen) if name == "native" else _rows(chosen)
    return "\n".join(lines) + "\n"


def _list(verdicts: list[Verdict]) -> list[str]:
    return [", ".join(f"`{v.name}`" for v in verdicts)]


def _rows(verdicts: list[Verdict]) -> list[str]:
    safe = [(v.name, v.why.replace("|", "\\|").replace("<", "&lt;")) for v in verdicts]
    return ["| entry | why |", "| --- | --- |", *(f"| `{name}` | {why} |" for name, why in safe)]


def main() -> None:
    """Run everything, or be one worker of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "op_coverage.md")
    parser.add_argument("--worker", nargs="+")
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], [int(x) for x in options.worker[1:]])
        return
    verdicts = [v for kind in CHECKS for v in run_workers(kind, options.jobs)]
    options.output.write_text(table(verdicts), encoding="utf-8")
    wrong = [v.name for v in verdicts if v.verdict == "wrong"]
    say(f"{len(verdicts)} entries, {len(wrong)} wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
