"""Damage files that the kit reads, and look what becomes of them.

Real traces of torch, jax and kit, files of other profilers, saved runs and folders of ranks are
damaged, and files of random events are made. Each must open as a run whose views draw, or fail with
the documented errors, and take memory in proportion; anything else ends the run and leaves the
file.

The long form: python -m tests.reliability.files.traces --files 5000 [--seed 0] [--kinds own.kitrun]
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import random
import shutil
import sqlite3
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil

import kit
from kit.errors import RunFileError, TraceFileError
from kit.formats.memory_snapshot import SNAPSHOT_SUFFIXES
from kit.reports.ranks import ranks_html
from kit.runs.verdict.summary import summary
from kit.widgets.timeline.view import timeline_payload
from kit.widgets.views import VIEWS
from kit.workloads.made_ranks import Job, made_traces
from tests.factories import make_run
from tests.formats.chrome.traces import cuda_trace, damaged, mutated, random_events, torch_trace
from tests.formats.made_profiles import (
    chakra,
    memory_snapshot,
    nsys,
    rocprof,
    rocprofv3,
    trace_viewer,
)

__all__ = ["KINDS", "damage", "look", "main"]

MAY_TAKE_MB = 400.0  # resident, more than before: the files are small
_EXTREMES: tuple[Any, ...] = (
    *(None, -1, 0, True, 2**31, 2**63, 2**70, -(2**70), 10**400, 1e300, 0.5),
    *(float("nan"), float("inf")),
    *("", "x", "9" * 400, "\ud800", [], {}, [[]], {"a": None}, [0] * 5_000),
)
# What a cell of a database can hold of these.
_PLAIN_EXTREMES = [x for x in _EXTREMES if not isinstance(x, list | dict)]
_COLUMNS_OF = "select name from pragma_table_info(?)"


def look(path: Path) -> str:
    """What became of a file: "run", or the documented error's name; other errors come through."""
    try:
        if path.is_dir() and not path.suffix:
            ranks = kit.open_ranks(path)
            assert ranks.to_text()
            assert "<html" in ranks_html(ranks)
            return "ranks"
        if path.suffix in SNAPSHOT_SUFFIXES:
            assert kit.open_memory(path).to_text()
            return "memory"
        run = kit.open_trace(path)
    except (TraceFileError, RunFileError) as error:
        return type(error).__name__
    timeline_payload(run)
    repr(run)
    assert summary(run)
    for view in VIEWS:
        if view.html is not None:
            view.html(run)
    return "run"


def _torch(folder: Path) -> bytes:
    torch_trace(folder / "torch.json", name="ProfilerStep#", with_stack=True)
    return (folder / "torch.json").read_bytes()


def _own(folder: Path) -> bytes:
    kit.export_trace(make_run(hostile=True), folder / "own.json")
    return (folder / "own.json").read_bytes()


def _saved(folder: Path) -> bytes:
    make_run(hostile=True).save(folder / "own.kitrun")
    return (folder / "own.kitrun").read_bytes()


def _jax(folder: Path) -> bytes:
    import jax
    import jax.numpy as jnp

    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((16, 16))
    f(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    with jax.profiler.trace(str(folder / "jax"), profiler_options=options):
        for i in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                float(f(x))
    return next((folder / "jax").rglob("*.xplane.pb")).read_bytes()


def _viewer(folder: Path) -> bytes:
    trace_viewer(folder / "viewer.json")
    return (folder / "viewer.json").read_bytes()


def _nsys(folder: Path) -> bytes:
    return nsys(folder / "nsys.sqlite").read_bytes()


def _snapshot(folder: Path) -> bytes:
    return pickle.dumps(memory_snapshot([(7, 1000), (8, 5000), (9, 300), (8, 0), (9, 0)])[0])


# Good files as they are written by torch, jax and kit; "ranks" is a folder, random.json made anew.
KINDS = {
    "torch.json": _torch,
    "torch.json.gz": _torch,
    "own.json": _own,
    "cuda.json": lambda folder: json.dumps(cuda_trace()).encode(),
    "viewer.json": _viewer,
    "rocprofv3.json": lambda folder: json.dumps(rocprofv3()).encode(),
    "rocprof.json": lambda folder: json.dumps(rocprof()).encode(),
    "chakra.json": lambda folder: json.dumps(chakra()).encode(),
    "nsys.sqlite": _nsys,
    "snapshot.pickle": _snapshot,
    "own.kitrun": _saved,
    "jax.xplane.pb": _jax,
    "ranks": lambda folder: json.dumps(made_traces(Job(ranks=3, steps=2, slow={2: 1.5}))).encode(),
    "random.json": lambda folder: b"",
}


def damaged_json(good: Any, chance: random.Random) -> bytes:
    """JSON still, with a few values anywhere replaced, keys swapped, or lists nested deep."""
    tree = json.loads(json.dumps(good))
    is_mild = chance.random() < 0.5  # so that it is taken, and the views have to cope
    for _ in range(1 if is_mild else chance.randrange(1, 6)):
        inside = tree
        while isinstance(inside, dict | list) and inside:
            at = chance.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
            if chance.random() < (0.02 if is_mild else 0.2) or not isinstance(
                inside[at], dict | list
            ):
                break
            inside = inside[at]
        if not (isinstance(inside, dict | list) and inside):
            continue
        if is_mild:
            inside[at] = _near(inside[at], chance)
        elif isinstance(inside, dict) and chance.random() < 0.3:
            other = chance.choice(list(inside))
            inside[at], inside[other] = inside[other], inside[at]
        else:
            inside[at] = deepcopy(chance.choice([*_EXTREMES, "DEEP"]))  # it may be changed, too
    deep = chance.choice((900, 20_000))
    return json.dumps(tree).encode().replace(b'"DEEP"', b"[" * deep + b"]" * deep)


def _near(value: Any, chance: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return chance.choice((0, 1, -1, value + 1, value - 1, value * 2, -value, 10**6, 2**31 - 1))
    if isinstance(value, str):
        return chance.choice(("", value + "x", value[:1], "\u202e" + value, value * 3))
    items = list(value.items() if isinstance(value, dict) else value)
    changed = chance.choice((items[1:], items[::-1], items[:1], [*items, *items[:1]]))
    return dict(changed) if isinstance(value, dict) else changed


def damaged_archive(good: bytes, chance: random.Random) -> bytes:
    """A saved run whose packing is right, and one or two of its members are not."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in chance.sample(sorted(members), chance.randrange(1, 3)):
        data = members[name]
        if name.endswith(".json"):
            members[name] = damaged_json(json.loads(data), chance)
        elif chance.random() < 0.1:
            del members[name]
        elif chance.random() < 0.2:
            shape = f"({chance.choice((0, 10**6, 10**12, 10**18))},)".encode()
            members[name] = data.replace(data[data.find(b"(") : data.find(b")") + 1], shape, 1)
        else:
            members[name] = _flipped(data, chance)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def damaged_database(good: bytes, chance: random.Random) -> bytes:
    """A database still, with odd values in it, and perhaps a column or a table less."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(good)
        tables = [name for (name,) in database.execute("select name from sqlite_master")]
        for _ in range(chance.choice((1, 3, 30))):
            table = chance.choice(tables)
            columns = [name for (name,) in database.execute(_COLUMNS_OF, (table,))]
            column, how = chance.choice(columns or ["rowid"]), chance.random()
            with suppress(sqlite3.Error, OverflowError, UnicodeError):
                if how < 0.1:
                    database.execute(f"alter table {table} drop column {column}")
                elif how < 0.15:
                    database.execute(f"drop table {table}")
                else:
                    odd = chance.choice([*_PLAIN_EXTREMES, b"\xff\x00", chance.randrange(2**40)])
                    rows = "" if how < 0.3 else "where rowid % 3 = 0"
                    database.execute(f"update {table} set {column} = ? {rows}", (odd,))
        database.commit()
        return database.serialize()


def damaged_pickle(good: bytes, chance: random.Random) -> bytes:
    """A pickle of plain values still, a few of them others."""
    try:
        tree = json.loads(damaged_json(pickle.loads(good), chance))
        return pickle.dumps(tree, chance.randrange(pickle.HIGHEST_PROTOCOL + 1))
    except RecursionError:
        return mutated(good, chance)


def _flipped(data: bytes, chance: random.Random) -> bytes:
    """Some bits are others, and perhaps the end is missing."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 30))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)


def damage(kind: str, good: bytes, chance: random.Random) -> bytes:
    """What a file of this kind may be when it arrives."""
    if kind == "random.json":
        return random_events(chance, chance.choice([1, 5, 50, 500]))
    if kind.endswith(".gz"):
        is_inside = chance.random() < 0.8
        inside = damage(kind.removesuffix(".gz"), good, chance) if is_inside else good
        packed = gzip.compress(inside, mtime=0)
        return packed if is_inside else mutated(packed, chance)
    how = chance.random()
    if kind == "own.kitrun" and how < 0.8:
        return damaged_archive(good, chance)
    if kind == "nsys.sqlite" and how < 0.7:
        return damaged_database(good, chance)
    if kind == "snapshot.pickle" and how < 0.7:
        return damaged_pickle(good, chance)
    if kind.endswith(".json") and how < 0.7:
        tree = json.loads(good)
        has_events = "traceEvents" in tree
        return (damaged if how < 0.4 and has_events else damaged_json)(tree, chance)
    return (_flipped if how > 0.9 else mutated)(good, chance)


def _write(path: Path, kind: str, good: bytes, chance: random.Random) -> None:
    if kind != "ranks":
        path.write_bytes(damage(kind, good, chance))
        return
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for rank, trace in enumerate(json.loads(good)):
        data = json.dumps(trace).encode()
        if chance.random() < 0.6:
            data = damage("rank.json", data, chance)
        (path / f"rank{rank}.json").write_bytes(data)


def try_files(count: int, seed: int, kinds: Sequence[str], folder: Path) -> Counter[str]:
    """Damage that many files of each kind, in turn; gives how often each outcome came.

    Raises:
        Exception: what no reader documents; the file stays in the folder of temporary files.
        AssertionError: a file took too much memory.
    """
    chance, outcomes, slowest = random.Random(seed), Counter[str](), (0.0, "")
    (folder / "good").mkdir()
    good = {kind: KINDS[kind](folder / "good") for kind in kinds}
    process = psutil.Process()
    for _ in range(count):
        for kind in kinds:
            path = folder / kind
            _write(path, kind, good[kind], chance)
            before, start = process.memory_info().rss, time.process_time()
            try:
                outcomes[f"{kind}: {look(path)}"] += 1
                took = (process.memory_info().rss - before) / 1e6
                assert took < MAY_TAKE_MB, f"{took:.0f} MB for {kind}"
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"kit-damaged-{kind}"
                (shutil.copytree if path.is_dir() else shutil.copy)(path, kept)
                print(f"failed; the file is {kept}")
                raise
            slowest = max(slowest, (time.process_time() - start, kind))
    print(f"the slowest was {slowest[1]}: {slowest[0]:.2f} s of the processor")
    return outcomes


def main() -> None:
    """Damage files, and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = try_files(asked.files, asked.seed, asked.kinds, Path(folder))
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:9,}  {outcome}")


if __name__ == "__main__":
    main()
