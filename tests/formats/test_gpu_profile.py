"""A jax profile of real GPUs that others have published, held against the file's own events.

`tests/data/published/LICENSE` names the source: a convolution on eight MI300X, jax 0.8.
"""

from __future__ import annotations

import gzip
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

import kit
from kit.runs.run import Run

PACKED = Path(__file__).parents[1] / "data" / "published" / "mi300_jax.xplane.pb.gz"
Event = tuple[str, float, float, dict[str, Any]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "host.xplane.pb"
    path.write_bytes(gzip.decompress(PACKED.read_bytes()))
    return path


@pytest.fixture(scope="module")
def lines(file: Path) -> dict[tuple[str, str], list[Event]]:
    """(Plane, line) -> its events, as jax's own reader gives them."""
    with warnings.catch_warnings():
        # Python 3.12 warns of the reader's types as they are made, where an error ends the process
        warnings.simplefilter("ignore", DeprecationWarning)
        return {
            (plane.name, line.name): [
                (e.name, e.start_ns, e.duration_ns, dict(e.stats)) for e in line.events
            ]
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes
            for line in plane.lines
        }


@pytest.fixture(scope="module")
def run(file: Path) -> Run:
    return kit.open_trace(file)


def test_kernels_and_streams_of_eight_gpus_are_those_of_the_file(run: Run, lines) -> None:
    streams = {at: events for at, events in lines.items() if at[0].startswith("/device:GPU")}
    wanted = [(*at, event) for at, events in streams.items() for event in events]
    kernels = [span for span in run.timeline.spans if span.kind == "kernel"]
    assert len(kernels) == len(wanted) == 235
    assert {span.lane for span in kernels} == {
        f"device/{plane[-1]} {line.replace('Stream #', 'stream ')}" for plane, line in streams
    }
    assert len({span.lane.partition(" ")[0] for span in kernels}) == 8
    shown = sum(span.stop_ns - span.start_ns for span in kernels)
    assert shown == pytest.approx(sum(event[2] for *_, event in wanted), abs=len(kernels))
    assert Counter(span.name for span in kernels) == Counter(
        stats.get("hlo_op", name) for *_, (name, _, _, stats) in wanted
    )


def test_a_wait_that_only_the_python_call_shows_is_a_sync_point(run: Run, lines) -> None:
    """No event of a buffer's wait is in a GPU's profile of this jax."""
    python = lines["/host:CPU", "python"]
    calls = [e for e in python if e[0].startswith("$api.py") and e[0].endswith("block_until_ready")]
    assert not any("Await" in name for name, *_ in python)
    assert [sync.wait_ns for sync in run.timeline.syncs] == pytest.approx(
        [length for _, _, length, _ in calls], abs=1
    )
    assert sum(sync.wait_ns for sync in run.timeline.syncs) > 98e6  # of 140 ms
    assert {(sync.cause, sync.via) for sync in run.timeline.syncs} == {
        ("block_until_ready", "api.py:3154")
    }
    assert any(
        "call of array.block_until_ready() cannot be seen" in note for note in run.timeline.notes
    )


def test_each_step_is_waited_for_after_its_call(run: Run) -> None:
    calls = [span for span in run.timeline.spans if span.kind == "dispatch"]
    assert [call.name for call in calls] == ["PjitFunction(forward_3d_conv)"] * 5
    waits = [span for span in run.timeline.spans if span.kind == "wait"]
    assert len(waits) == len(calls)
    for call, wait in zip(calls, waits, strict=True):
        assert call.stop_ns <= wait.start_ns
