"""Random programs of torch on device kit against CPU torch, as many as there is time for.

    python benchmarks/fuzz.py [--programs 20000] [--processes 2] [--record fuzz.jsonl]
    python benchmarks/fuzz.py --show 1234      # program 1234, and what becomes of it

Each program has a number, and what became of it is a line of the record, so an interrupted run goes
on where it was. A program that ends its process is found, and the others go on. Programs that give
something else than CPU torch are shrunk and printed; the table at the end says how many there were,
and what device kit refuses with a clear error, by how common it is.

Exit code 1 if any program differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
CHUNK = 100  # programs of one process: what it has compiled stays in its memory
PATIENCE_S = 1800  # for a chunk
AS_IN_TESTS = {  # XLA takes a third of the time for programs that compute the same
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
}


def work(numbers: list[int]) -> None:
    """Run these programs; a line of JSON for the beginning and one for the end of each."""
    import torch

    from kit.runtime.compiling.cache import ExecutableCache
    from tests.torch.fuzz.outcome import outcome
    from tests.torch.fuzz.shrink import shrunk
    from tests.torch.fuzz.writer import program

    torch.set_num_threads(1)
    cache = ExecutableCache()

    def alike(signature: str) -> Callable[[Any], bool]:
        return lambda program: outcome(program, cache).signature == signature

    for number in numbers:
        print(json.dumps({"begun": number}), flush=True)
        made = program(Random(number))
        found = outcome(made, cache)
        said = {"number": number, "kind": found.kind, "what": found.what[:1000]}
        if found.kind == "different":
            said["script"] = shrunk(made, alike(found.signature)).script()
        print(json.dumps(said), flush=True)


def chunk(numbers: list[int], *, as_shipped: bool) -> Iterator[dict[str, Any]]:
    """What became of each of these programs, run by a process of their own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KIT_CACHE_DIR": "", "NPROC": "1"}
    environment |= {} if as_shipped else AS_IN_TESTS
    environment["PYTHONPATH"] = str(ROOT)
    while numbers:
        given = ",".join(map(str, numbers))
        command = [sys.executable, str(Path(__file__)), "--work", given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        timer = threading.Timer(PATIENCE_S, process.kill)
        timer.start()
        assert process.stdout is not None
        begun = None
        for line in process.stdout:
            if line.startswith('{"begun"'):
                begun = json.loads(line)["begun"]
            elif line.startswith('{"number"'):
                yield json.loads(line)
                numbers = numbers[numbers.index(begun) + 1 :]
        timer.cancel()
        if process.wait() and numbers:
            what = f"the process ended with {process.returncode}"
            if begun is None:
                raise SystemExit(what)
            yield {"number": begun, "kind": "different", "what": what, "script": ""}
            numbers = numbers[numbers.index(begun) + 1 :]


def table(said: list[dict[str, Any]]) -> str:
    """The totals, and the refusals by how common they are."""
    kinds = Counter(row["kind"] for row in said)
    refusals = Counter(
        re.sub(r"[\d\[\](), ]+", " ", row["what"])[:90] for row in said if row["kind"] == "refused"
    )
    lines = [
        "| programs | same | different | refused | decided by rounding |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    names = ("same", "different", "refused", "unstable")
    lines.append(f"| {len(said):,} | " + " | ".join(f"{kinds[name]:,}" for name in names) + " |")
    lines += [f"{count:6,}  {what}" for what, count in refusals.most_common()]
    return "\n".join(lines)


def show(number: int) -> None:
    from tests.torch.fuzz.outcome import outcome
    from tests.torch.fuzz.writer import program

    made = program(Random(number))
    print(made.script())
    print(outcome(made))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--as-shipped", action="store_true", help="compile as for a user")
    parser.add_argument("--show", type=int, help="print one program and what becomes of it")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work([int(n) for n in given.work.split(",")])
        return
    if given.show is not None:
        show(given.show)
        return
    said = [json.loads(line) for line in given.record.open()] if given.record.exists() else []
    done = {row["number"] for row in said}
    wanted = [n for n in range(given.first, given.first + given.programs) if n not in done]
    chunks = [wanted[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]
    lock = threading.Lock()

    def run(numbers: list[int]) -> None:
        for row in chunk(numbers, as_shipped=given.as_shipped):
            with lock, given.record.open("a") as record:
                record.write(json.dumps(row) + "\n")
                said.append(row)
                if row["kind"] == "different":
                    print(f"program {row['number']}: {row['what']}\n{row['script']}\n", flush=True)

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(run, chunks))
    print(table(said))
    raise SystemExit(any(row["kind"] == "different" for row in said))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
