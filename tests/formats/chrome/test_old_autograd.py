"""torch before 1.10 wrote the functions of autograd without the engine that calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.runs.run import Run
from tests.formats.chrome.test_callers import caller_of, event, launch, opened

ENGINE = "autograd::engine::evaluate_function: "


def step(*, engine: bool, has_numbers: bool = True) -> list[dict]:
    """A step of forward, backward (on thread 2, with a sum between two functions), update."""

    def args(thread: int) -> dict[str, int]:
        return {"Sequence number": 5, "Fwd thread id": thread} if has_numbers else {}

    around = [event("cpu_op", ENGINE + "MmBackward", 200, 52, 2, **args(1))] if engine else []
    return [
        event("user_annotation", "ProfilerStep#1", 0, 1000),
        event("cpu_op", "aten::mm", 10, 40, **args(0)),
        *launch(1, 20),
        *around,
        event("cpu_op", "MmBackward", 201, 50, 2, **args(1)),
        event("cpu_op", "aten::mm", 210, 30, 2),
        *launch(2, 220, 2),
        *([] if engine else [event("cpu_op", "aten::add", 260, 10, 2)]),
        *([event("cpu_op", ENGINE + "AccumulateGrad", 299, 52, 2)] if engine else []),
        event("cpu_op", "torch::autograd::AccumulateGrad", 300, 50, 2),
        event("cpu_op", "aten::add_", 310, 30, 2),
        event("cpu_op", "Optimizer.step#SGD.step", 500, 300),
    ]


def phases(run: Run) -> list[tuple[str, float, float]]:
    t = run.timeline
    where = t.where(kind="record")
    return [
        (t.names[name], start / 1e3, stop / 1e3)
        for name, start, stop in zip(
            t.name[where], t.start_ns[where], t.stop_ns[where], strict=True
        )
    ]


@pytest.mark.parametrize("has_numbers", [True, False], ids=["1.9", "1.8"])
def test_the_backward_pass_is_no_update(tmp_path: Path, has_numbers: bool):
    run = opened(tmp_path, step(engine=False, has_numbers=has_numbers))
    assert phases(run) == [("forward", 0, 201), ("backward", 201, 350), ("update", 350, 1000)]


def test_a_kernel_of_the_backward_pass_leads_to_the_forward_op(tmp_path: Path):
    found = caller_of(opened(tmp_path, step(engine=False)), "kernel_2")
    assert (found.op, found.is_backward) == ("aten::mm", True)


def test_where_the_engine_is_written_its_functions_are_ops(tmp_path: Path):
    run = opened(tmp_path, [*step(engine=True), *launch(3, 245, 2)])
    assert phases(run) == [("forward", 0, 200), ("backward", 200, 351), ("update", 351, 1000)]
    assert caller_of(run, "kernel_3").op == "MmBackward"


def test_an_op_of_the_users_with_such_a_name_is_an_op(tmp_path: Path):
    events = [event("cpu_op", "mine::MyBackward", 0, 50), *launch(1, 10)]
    found = caller_of(opened(tmp_path, events), "kernel_1")
    assert (found.op, found.is_backward) == ("mine::MyBackward", False)
