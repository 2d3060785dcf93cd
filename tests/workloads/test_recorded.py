"""The runs that come with kit, recorded on a GPU: they open anywhere, and hold together."""

from __future__ import annotations

import numpy as np
import pytest

from kit.errors import RunFileError
from kit.runs.run import Run
from kit.trace.metrics import breakdown_ns, union_ns
from kit.workloads import recorded
from kit.workloads.recorded import RECORDINGS


@pytest.fixture(params=RECORDINGS)
def run(request: pytest.FixtureRequest) -> Run:
    return recorded(request.param)


def test_a_recording_is_of_the_gpu_that_its_label_names(run: Run) -> None:
    assert "NVIDIA H100" in run.environment["device"]
    assert "H100" in run.label
    assert any(lane.startswith("device/0 stream") for lane in run.timeline.lanes)
    assert all(note.startswith(("replay: ", "recorded, because ")) for note in run.timeline.notes)
    assert run.doubt == ""


def test_its_parts_add_up_and_its_kernels_begin_after_their_launch(run: Run) -> None:
    t = run.timeline
    charged = sum(part for _, part in breakdown_ns(t).values())
    assert charged == union_ns(t.intervals(kind="step"))
    assert int(t.where(kind="kernel").sum()) > 2000
    assert (np.diff(t.start_ns) >= 0).all()


def test_the_read_of_the_scaler_is_named_in_each() -> None:
    lines = [
        {s.site for s in recorded(name).sync_points if s.cause == "item"}
        for name in ("bert_h100", "bert_h100_native")
    ]
    assert lines == [{"masked_lm.py:149"}] * 2


def test_another_name_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(RunFileError, match="bert_h100, bert_h100_native"):
        recorded("bert_mi300")
