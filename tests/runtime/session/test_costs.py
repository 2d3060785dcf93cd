"""What one op costs the worker, in function calls of Python: they do not depend on the machine."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch

from kit.runs.settings import Settings
from kit.torch.device import open_session

OPS = 60


def worker_calls(**settings: Any) -> Counter[str]:
    """The functions of Python that a worker runs for `OPS` ops whose programs are there."""
    calls = Counter[str]()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and threading.current_thread() is not threading.main_thread():
            calls[frame.f_code.co_name] += 1

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(OPS):
            x = x + 1.5
        return x

    threading.setprofile(count)  # of threads that begin from now on
    try:
        with open_session(Settings(**settings)) as session:
            x = torch.ones(4).to("kit")
            kept = [chain(x)]
            session.wait_all()
            calls.clear()
            kept.append(chain(x))
            session.wait_all()
            return Counter(calls)
    finally:
        threading.setprofile(None)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"mode": "imperative"}, 22),
        ({"mode": "bulked", "bulk_forward": 15, "segment_mode": "launch"}, 16),
        ({"mode": "bulked", "bulk_forward": 15}, 3),
    ],
    ids=str,
)
def test_an_op_whose_program_is_there_takes_few_calls_of_the_worker(
    settings: dict[str, Any], most: int
) -> None:
    calls = worker_calls(**settings)
    assert not {"__hash__", "__eq__"} & calls.keys()  # keys are looked up without Python
    assert OPS / 15 < sum(calls.values()) <= most * OPS
