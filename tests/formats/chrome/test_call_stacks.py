"""Stacks that torch 1.8 to 1.12 wrote as an argument of each op: the lines that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.formats.chrome.arguments import SAYING, Arguments
from tests.formats.chrome.test_callers import caller_of, event, launch, opened

LIBRARY = "/opt/conda/lib/python3.8/site-packages/torch"
LINEAR = f"{LIBRARY}/nn/modules/linear.py(94): forward;{LIBRARY}/nn/modules/module.py(889): _call"
MODEL = "/home/me/model.py(7): forward"
TRAIN = "/home/me/train.py(40): step"
BACKWARD = f"{LIBRARY}/tensor.py(245): backward;/home/me/train.py(41): step"


def with_stack(*frames: str) -> dict[str, str]:
    return {"Call stack": ";".join(frames)}


class Asked(dict[str, Any]):
    """Arguments of an op without any, which keep what was asked for."""

    def __init__(self) -> None:
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return default


def test_ops_without_anything_that_is_read_first_are_not_asked_further():
    args, arguments = Asked(), Arguments()
    assert arguments.number("aten::convolution", args) == -1
    assert not arguments.function(args)
    assert args.keys_asked == SAYING


def test_a_kernel_leads_to_the_users_innermost_line_of_its_ops_stack(tmp_path: Path):
    events = [event("cpu_op", "aten::addmm", 0, 40, **with_stack(LINEAR, MODEL, TRAIN))]
    run = opened(tmp_path, [*events, *launch(1, 10)])
    assert caller_of(run, "kernel_1").site == "/home/me/model.py:7"


def test_a_file_that_torch_compile_has_written_is_no_line_of_the_users(tmp_path: Path):
    made = "/tmp/torchinductor_root/ab/cab7.py(33): call"
    events = [event("cpu_op", "aten::addmm", 0, 40, **with_stack(made, MODEL, TRAIN))]
    run = opened(tmp_path, [*events, *launch(1, 10)])
    assert caller_of(run, "kernel_1").site == "/home/me/model.py:7"


def test_two_lines_that_call_an_op_are_two_callers(tmp_path: Path):
    events = [
        event("cpu_op", "aten::relu", 0, 40, **with_stack(MODEL, TRAIN)),
        *launch(1, 10),
        event("cpu_op", "aten::relu", 50, 40, **with_stack(TRAIN)),
        *launch(2, 60),
        event("cpu_op", "aten::relu", 100, 40, **with_stack(TRAIN)),
        *launch(3, 110),
    ]
    run = opened(tmp_path, events)
    sites = {f"kernel_{n}": caller_of(run, f"kernel_{n}").site for n in (1, 2, 3)}
    model, train = "/home/me/model.py:7", "/home/me/train.py:40"
    assert sites == {"kernel_1": model, "kernel_2": train, "kernel_3": train}
    assert sorted(c.calls for c in run.callers) == [1, 2]


def test_a_kernel_of_the_backward_pass_has_the_line_of_the_forward_op(tmp_path: Path):
    numbers = {"Sequence number": 5, "Fwd thread id": 0}
    engine = {"Sequence number": 5, "Fwd thread id": 1}
    run = opened(
        tmp_path,
        [
            event("cpu_op", "aten::mm", 0, 40, **numbers, **with_stack(MODEL, TRAIN)),
            *launch(1, 10),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward", 100, 50, **engine),
            event("cpu_op", "aten::mm", 110, 30, **with_stack(BACKWARD)),
            *launch(2, 120),
        ],
    )
    assert caller_of(run, "kernel_2").is_backward
    assert caller_of(run, "kernel_2").site == "/home/me/model.py:7"


def test_a_sync_point_has_the_line_of_its_ops_stack(tmp_path: Path):
    stack = with_stack(TRAIN)
    run = opened(
        tmp_path,
        [
            event("cpu_op", "aten::item", 0, 50, **stack),
            event("cpu_op", "aten::_local_scalar_dense", 1, 48, **stack),
            event("cuda_runtime", "cudaStreamSynchronize", 5, 40),
            *launch(1, 60),
        ],
    )
    assert [(s.cause, s.site) for s in run.timeline.syncs] == [("item", "/home/me/train.py:40")]


def test_without_a_gpu_the_ops_themselves_lead_to_lines(tmp_path: Path):
    run = opened(tmp_path, [event("cpu_op", "aten::mm", 0, 40, **with_stack(LINEAR, MODEL))])
    assert [c.site for c in run.callers] == ["/home/me/model.py:7"]


def test_functions_of_newer_torch_say_more_than_a_stack(tmp_path: Path):
    """TorchScript's own stack stands beside them."""
    events = [
        event("python_function", "train.py(12): step", 0, 90),
        event("cpu_op", "aten::mm", 5, 40, **with_stack("<torch_jit>(3): forward")),
        *launch(1, 10),
    ]
    assert caller_of(opened(tmp_path, events), "kernel_1").site == "train.py:12"


@pytest.mark.parametrize(
    "stack", [None, 7, [], {}, "", ";;;", LINEAR, "no place", "(" * 50_000, "x(1): y;" * 50_000],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_stack_without_a_line_of_the_users_leads_to_none(tmp_path: Path, stack: Any):
    run = opened(
        tmp_path, [event("cpu_op", "aten::mm", 0, 40, **{"Call stack": stack}), *launch(1, 10)]
    )
    found = caller_of(run, "kernel_1").site
    assert found == ("x:1" if isinstance(stack, str) and stack.startswith("x") else "")
