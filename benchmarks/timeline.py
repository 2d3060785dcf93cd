"""How long big traces take to open and to export, and in how much memory.

    python benchmarks/timeline.py [--events 1000000] [--only cuda]

Generates files of torch.profiler's form (an op, its Python frames, the launch and the kernel; one
of CPU ops alone; one packed by gzip), a jax profile, and an export of kit's, and opens each in a
process of its own. Limits that must hold for a million events: 15 s and 2 GiB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT_S, LIMIT_GIB = 15.0, 2.0
PER_STEP = 1000  # events


def torch_events(count: int, *, gpu: bool) -> Iterator[str]:
    """Events as torch.profiler writes them: six to an op with a GPU, five without."""
    at, made = 4_399_610_000_000.0, 0
    while made < count:
        if made % PER_STEP < 6:
            yield event("user_annotation", f"ProfilerStep#{made // PER_STEP}", at, PER_STEP * 3.0)
            made += 1
        name = f"aten::op_{made % 97}"
        yield event("python_function", f"model.py({made % 400}): forward", at, 16.0, parent=made)
        yield event("python_function", f"torch/nn/modules/m.py({made % 89}): call", at + 1, 14.0)
        yield event("cpu_op", name, at + 2, 10.0, sequence=made)
        yield event("cpu_op", f"{name}_inner", at + 3, 8.0, sequence=made)
        made += 4
        if gpu:
            wait = made % 50 < 6
            call = "cudaStreamSynchronize" if wait else "cudaLaunchKernel"
            yield event("cuda_runtime", call, at + 4, 5.0, correlation=made)
            yield event("kernel", f"void kernel_{made % 61}<float, 128, 64>(float const*)", at + 9,
                        11.0, pid=0, tid=7, device=0, stream=7, correlation=made)  # fmt: skip
            made += 2
        else:
            yield event("cpu_op", "aten::empty", at + 4, 1.0)
            made += 1
        at += 18.0


def event(
    cat: str, name: str, ts: float, dur: float, pid: int = 5369, tid: int = 5369, **args: int
) -> str:
    whole = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
             "args": {"External id": 7, "Ev Idx": 9, **args}}  # fmt: skip
    return json.dumps(whole, indent=2)


def write_torch(path: Path, count: int, *, gpu: bool) -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for i, text in enumerate(torch_events(count, gpu=gpu)):
            file.write(f",\n{text}" if i else text)
        file.write('], "traceName": "generated"}')


def write_export(path: Path, count: int) -> None:
    """A timeline of kit's own, with overlapping kernels on two lanes."""
    import kit
    from kit.trace import Span, Timeline

    spans = [Span(f"device/0 thread {i % 2}", f"fusion.{i % 300}", "kernel", i * 1000,
                  i * 1000 + 2500, i % 40) for i in range(count)]  # fmt: skip
    run = kit.Run(kit.Settings(), (), (), Timeline.of(spans, origin="profiled"), name="generated")
    start = time.perf_counter()
    kit.export_trace(run, path)
    print(f"exporting {count:,} spans to {path.suffix}: {time.perf_counter() - start:.1f} s")


def write_profile(path: Path, count: int) -> None:
    """An XSpace by hand: kernels on a CPU's threads, each with its "end: " event."""

    def number(n: int) -> bytes:
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def field(key: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return number(key << 3) + number(value)
        return number(key << 3 | 2) + number(len(value)) + value

    def table(key: int, names: list[bytes]) -> bytes:
        return b"".join(
            field(key, field(1, i) + field(2, field(1, i) + field(2, name)))
            for i, name in enumerate(names, 1)
        )

    body = []
    for i in range(count // 2):
        common = field(2, i * 1_000_000) + field(3, 800_000)
        stats = field(4, field(1, 1) + field(5, b"fusion")) + field(4, field(1, 2) + field(4, i))
        body.append(field(4, field(1, 1) + common + stats))
        body.append(field(4, field(1, 2) + common + field(4, field(1, 3) + field(4, i))))
    line = field(2, b"tf_XLAEigen/1") + field(3, 1000) + b"".join(body)
    names = table(4, [b"fusion", b"end: fusion"]) + table(5, [b"hlo_op", b"_p", b"_c"])
    path.write_bytes(field(1, field(2, b"/host:CPU") + field(3, line) + names))


FILES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "torch, cuda": ("cuda.json", lambda p, n: write_torch(p, n, gpu=True)),
    "torch, cuda, gzip": ("cuda.json.gz", lambda p, n: write_torch(p, n, gpu=True)),
    "torch, cpu": ("cpu.json", lambda p, n: write_torch(p, n, gpu=False)),
    "kit's export": ("own.json", write_export),
    "jax profile": ("jax.xplane.pb", write_profile),
}


def open_here(path: str) -> None:
    """In the process of its own: open, draw, and say what that took."""
    import kit
    from kit.widgets.timeline.view import timeline_payload

    start = time.perf_counter()
    run = kit.open_trace(path)
    opened = time.perf_counter() - start
    timeline_payload(run)
    drawn = time.perf_counter() - start - opened
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([opened, drawn, peak, len(run.timeline), len(run.timeline.syncs)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="files to open, by a part of their names")
    parser.add_argument("--open", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_here(options.open)
        return
    print(f"{'file':<20}{'MB':>7}{'open s':>8}{'draw s':>8}{'GiB':>7}{'spans':>11}{'syncs':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, write) in FILES.items():
            if options.only not in name:
                continue
            path = Path(folder) / file
            write(path, options.events)
            done = subprocess.run([sys.executable, __file__, "--open", str(path)], check=True,
                                  capture_output=True, text=True, env=os.environ)  # fmt: skip
            opened, drawn, peak, spans, syncs = json.loads(done.stdout)
            over = "" if opened < LIMIT_S and peak < LIMIT_GIB else "  OVER THE LIMIT"
            print(
                f"{name:<20}{path.stat().st_size / 1e6:>7.0f}{opened:>8.1f}{drawn:>8.1f}"
                f"{peak:>7.2f}{spans:>11,}{syncs:>8,}{over}"
            )
            path.unlink()


if __name__ == "__main__":
    main()
