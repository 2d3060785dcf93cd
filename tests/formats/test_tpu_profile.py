"""A TPU's line of ops: the time of a loop is that of the ops inside it, and no other op is hidden.

Ops of less than a nanosecond are those that a published profile of four cores has: one begins with
a long op, and the long one is no loop for that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kit
from kit.trace.communication import moves_memory


def opened(path: Path, ops: list[tuple[str, float, float]]) -> kit.Run:
    """A core whose ops begin and last so many microseconds, as XLA's trace viewer writes it."""
    events = [
        {"ph": "X", "pid": 3, "tid": 1, "ts": at, "dur": length, "name": name}
        for name, at, length in ops
    ]
    names = [("thread_name", "XLA Ops"), ("process_name", "/device:TPU:0")]
    events += [{"ph": "M", "pid": 3, "tid": 1, "name": k, "args": {"name": v}} for k, v in names]
    made = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    path.write_text(json.dumps(made))
    return kit.open_trace(path)


def shown(run: kit.Run) -> dict[str, int]:
    """Nanoseconds of each op."""
    return {
        s.name: s.stop_ns - s.start_ns for s in run.timeline.spans if s.lane.endswith("XLA Ops")
    }


@pytest.mark.parametrize("at", [2.0, 4.5, 12.0], ids=["begin", "middle", "end"])
def test_an_op_of_no_length_hides_no_other_one(tmp_path: Path, at: float) -> None:
    ops = [("fusion.1", 2.0, 10.0), ("bitcast.2", at, 0.0), ("dot.3", 13.0, 1.5)]
    found = shown(opened(tmp_path / "it.json", ops))
    assert (found["fusion.1"], found["dot.3"]) == (10_000, 1_500)


def test_a_loop_is_the_ops_inside_it_also_where_one_of_no_length_begins_it(tmp_path: Path) -> None:
    ops = [("while.1", 0.0, 10.0), ("bitcast.2", 0.0, 0.0), ("add.3", 0.0, 3.0),
           ("add.4", 5.0, 2.0)]  # fmt: skip
    found = shown(opened(tmp_path / "it.json", ops))
    assert "while.1" not in found
    assert (found["add.3"], found["add.4"]) == (3_000, 2_000)


@pytest.mark.parametrize("name", ["copy-start", "copy-done", "copy-start.1", "copy-done.5"])
def test_xlas_copies_move_memory(name: str) -> None:
    assert moves_memory(name)
    assert not moves_memory(f"fused-{name}-add")
