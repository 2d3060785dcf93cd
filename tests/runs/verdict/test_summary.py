"""A run as text for a terminal: what it says, how much of it, and that it cannot do harm."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kit
from kit.runs.analysis.lines import line_costs
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import Snippet
from kit.runs.verdict.summary import summary
from kit.text import safe_terminal
from kit.trace import Span, Timeline
from kit.trace.imported import Caller
from kit.trace.kernels import kernel_table
from kit.workloads.made_ranks import Job, write_ranks
from tests.factories import HOSTILE, empty_run, make_run, native_run, one_span_run


def test_a_wait_that_is_longer_than_the_middle_step_is_said_to_be_a_mean() -> None:
    """One step in ten compiles what it reads: the middle one took 1 ms, and the mean wait is 30."""
    run = make_run(Settings(mode="lazy", steps=10))
    times = (1_000_000,) * 9 + (400_000_000,)
    waits = tuple(replace(s, wait_ns=300_000_000 * (i == 9)) for i, s in enumerate(run.sync_points))
    text = summary(replace(run, step_times_ns=times, sync_points=waits))
    assert "sync wait 30 ms in the mean step, 1 sync point a step" in text
    assert "in the mean step, " not in summary(run)


def block(text: str, head: str) -> list[str]:
    """The lines of the table that begins with `head`."""
    return next(part for part in text.split("\n\n") if part.startswith(head)).splitlines()


def test_the_charged_column_adds_up_to_the_step():
    run = make_run()
    lines = block(summary(run), "where the mean traced step goes")
    charged = [float(line.split()[-3].lstrip("≈")) for line in lines[2:-1]]
    assert sum(charged) == pytest.approx(sum(r.exposed_ms for r in run.breakdown()), rel=0.01)
    assert lines[-1].split()[0] == "step"
    assert lines[-1].endswith("100.0%")


def test_headline_sync_points_gaps_lines_and_advice_are_there():
    run = replace(make_run(), sources=(Snippet("train.py", 44, ("    loss.item()  # read",)),))
    text = summary(run)
    assert text.splitlines()[1] == "settings: all as by default"
    assert "1 sync point a step" in text
    assert "limit: " in text
    assert "torch/amp/grad_scaler.py:371" in block(text, "sync point")[2]
    assert block(text, "why the device was idle")
    assert any(line.endswith("loss.item()  # read") for line in block(text, "line "))
    assert "what would help" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_settings_that_differ_are_named():
    run = make_run(Settings(mode="lazy", loss_scaling="dynamic, host check"))
    assert "settings: mode=lazy, loss_scaling=dynamic, host check" in summary(run)


def test_a_run_without_lines_shows_its_kernels_and_says_how_many_are_left_out():
    text = summary(make_run(Settings(mode="torch"), kernels=30), rows=3)
    lines = block(text, "kernel ")
    assert len(lines) == 6
    assert lines[-1].endswith("more kernels)")
    count = len(kernel_table(make_run(Settings(mode="torch"), kernels=30).timeline))
    but_one = summary(make_run(Settings(mode="torch"), kernels=30), rows=count - 1)
    assert block(but_one, "kernel ")[-1] == "(1 more kernel)"
    assert "line " not in [part[:5] for part in text.split("\n\n")]


@pytest.mark.parametrize("run", [empty_run(), one_span_run(), make_run(syncs=0, kernels=0)])
def test_what_is_not_known_is_left_out_and_never_nan(run: Run):
    text = summary(run)
    assert "nan" not in text
    assert "unknown ms" not in text


def test_a_line_number_longer_than_pythons_numbers_is_a_name() -> None:
    run = make_run(Settings(mode="lazy"))
    nodes = tuple(replace(n, site=f"train.py:{'9' * 5000}") for n in run.graphs[0].nodes)
    assert "train.py:999" in summary(replace(run, graphs=(replace(run.graphs[0], nodes=nodes),)))


def test_a_device_that_nobody_saw_is_not_said_to_have_been_idle() -> None:
    run = make_run(kernels=0)
    for text in (summary(run), run.to_markdown(), repr(run.breakdown())):
        assert "device busy" not in text
        assert "unknown" in text
    assert all(math.isnan(row.device_ms) for row in line_costs(run))
    assert "0.105    unknown" in summary(run)


def test_a_strangers_text_cannot_move_the_cursor_or_make_a_line():
    for text in (summary(make_run(hostile=True)), safe_terminal(HOSTILE)):
        assert all(
            c == "\n" or (c.isprintable() and not "\ud800" <= c <= "\udfff") or c == "\ufffd"
            for c in text
        )
        assert "\u202e" not in text
    assert "\n" not in safe_terminal(HOSTILE)
    assert len(safe_terminal(HOSTILE, 50)) == 50
    assert safe_terminal("short") == "short"


def test_a_trace_that_pairs_calls_and_kernels_says_what_launches_cost(tmp_path: Path):
    file, _ = write_ranks(tmp_path, Job(ranks=2))  # 13 kernels a step, called 10 us before each
    text = summary(kit.open_trace(file))
    said = next(line for line in text.splitlines() if line.startswith("launches"))
    assert "39 kernels" in said
    assert "take 3 µs" in said
    assert "begins 7 µs after" in said
    assert "at most 1 on their way" in said
    assert "launches" not in summary(make_run())


@pytest.mark.parametrize("name", ["mi250", "h100_bert"])
def test_launches_by_amds_calls_and_by_the_driver_are_counted(name: str):
    file = Path(__file__).parents[2] / "data" / "published" / f"{name}.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    called = {e["args"]["correlation"] for e in events
              if e.get("cat") in ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")
              and ("Launch" in e["name"] or e["name"].endswith("Async"))}  # fmt: skip
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
               and e["args"]["correlation"] in called]  # fmt: skip
    text = summary(kit.open_trace(file))
    said = next(line for line in text.splitlines() if line.startswith("launches"))
    assert f"{len(kernels):,} kernels by calls" in said


def test_markdown_leaves_out_columns_of_which_a_native_run_knows_nothing() -> None:
    caller = Caller("aten::mm", ("Net",), ("Net_0",), "train.py:7", calls=1, kernels=3)
    run = native_run()
    node = np.where(run.timeline.where(kind="kernel"), 0, -1).astype(np.int32)
    run = replace(run, timeline=replace(run.timeline, node=node), callers=(caller,))
    native, recorded = run.to_markdown(), make_run().to_markdown()
    assert "| line | device a step | wait a step |" in native
    assert "| kernel | runs |" in native
    assert "| line | recording a step | device a step | wait a step |" in recorded
    assert "| kernel | segment | runs |" in recorded


def test_every_note_is_shown() -> None:
    run = make_run()
    notes = tuple(f"note {i} of a trace" for i in range(20))
    text = summary(replace(run, timeline=replace(run.timeline, notes=notes)))
    assert all(note in text for note in notes)


def test_markdown_has_the_columns_that_put_a_line_first() -> None:
    run = make_run(syncs=0)
    slept = Span("host/main", "train.py:30", "elsewhere", 1000, 900_000)
    run = replace(run, timeline=Timeline.of([*run.timeline.spans, slept]))
    table = run.to_markdown().partition("## Lines")[2].partition("##")[0]
    assert "elsewhere a step" in table
    first = table.strip().splitlines()[2]
    assert first.startswith("| train.py:30")
    assert not all(cell.strip() in ("0 ms", "") for cell in first.split("|")[2:])


def test_markdown_says_how_many_rows_are_left_out() -> None:
    text = make_run(kernels=200).to_markdown()
    rows = len(kernel_table(make_run(kernels=200).timeline))
    assert rows > 20
    assert f"({rows - 20} more kernels)" in text
    assert "more kernels" not in one_span_run().to_markdown()
