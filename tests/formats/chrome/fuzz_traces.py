"""Fuzz the readers of foreign files: `python -m tests.formats.chrome.fuzz_traces [seconds]`.

Real traces of torch, jax and kit are damaged, and files of random events are made. Each must open
as a run whose views draw, or fail with the documented errors; anything else ends the run and
leaves the file. Not part of the test suite, which does the same for a moment.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import kit
from kit.errors import RunFileError, TraceFileError
from kit.widgets.timeline.view import timeline_payload
from tests.factories import make_run
from tests.formats.chrome.traces import cuda_trace, damaged, mutated, random_events, torch_trace

__all__ = ["look", "main", "seeds"]


def look(path: Path) -> str:
    """What became of a file: "run", or the documented error's name; other errors come through."""
    try:
        run = kit.open_trace(path)
    except (TraceFileError, RunFileError) as error:
        return type(error).__name__
    timeline_payload(run)
    repr(run)
    return "run"


def seeds(folder: Path) -> dict[str, bytes]:
    """Good files by suffix and kind, as they are written by torch, jax and kit."""
    torch_trace(folder / "torch.json", name="ProfilerStep#", with_stack=True)
    kit.export_trace(make_run(hostile=True), folder / "own.json")
    make_run(hostile=True).save(folder / "own.kitrun")
    (folder / "cuda.json").write_text(json.dumps(cuda_trace()))
    _jax_profile(folder / "jax")
    names = ("torch.json", "own.json", "cuda.json", "own.kitrun")
    found = {name: (folder / name).read_bytes() for name in names}
    found["torch.json.gz"] = gzip.compress(found["torch.json"])
    found["jax.xplane.pb"] = next((folder / "jax").rglob("*.xplane.pb")).read_bytes()
    return found


def _jax_profile(folder: Path) -> None:
    import jax
    import jax.numpy as jnp

    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((16, 16))
    f(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with jax.profiler.trace(str(folder), profiler_options=options):
        for i in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                float(f(x))


def main(seconds: float = 300, seed: int = 0) -> Counter[str]:
    """Fuzz; prints and returns how often each outcome came."""
    rng, outcomes, slowest = random.Random(seed), Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = seeds(folder)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kind = rng.choice([*good, "random.json"])
            if kind == "random.json":
                data = random_events(rng, rng.choice([1, 5, 50, 500]))
            elif kind.endswith(".gz") and rng.random() < 0.5:
                data = gzip.compress(mutated(gzip.decompress(good[kind]), rng))
            elif kind.endswith(".json") and rng.random() < 0.6:
                data = damaged(json.loads(good[kind]), rng)
            else:
                data = mutated(good[kind], rng)
            path = folder / f"fuzz-{kind}"
            path.write_bytes(data)
            start = time.monotonic()
            try:
                outcomes[f"{kind}: {look(path)}"] += 1
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"kit-{path.name}"
                kept.write_bytes(data)
                print(f"failed; the file is {kept}")
                raise
            slowest = max(slowest, time.monotonic() - start)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:9,}  {outcome}")
    print(f"{sum(outcomes.values()):9,}  files; the slowest took {slowest:.2f} s")
    return outcomes


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
