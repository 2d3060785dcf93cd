"""Random training loops show the same numbers in each mode of a step, and torch's.

`python benchmarks/loops.py` runs as many as there is time for.
"""

from __future__ import annotations

import pytest
import torch

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session
from tests.torch.fuzz.loops import run

CACHE = ExecutableCache()


@pytest.mark.parametrize("number", range(3))
def test_a_random_loop_shows_the_same_in_each_step_mode(number: int) -> None:
    found = {}
    for step_mode in ("retrace", "replay", "speculate"):
        with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE) as session:
            found[step_mode] = run(number, "kit", session.run_step)
    for step_mode in ("replay", "speculate"):
        torch.testing.assert_close(found[step_mode], found["retrace"], rtol=1e-5, atol=1e-5)
    plain = run(number, "cpu", lambda step: step())
    torch.testing.assert_close(found["retrace"], plain, rtol=1e-3, atol=1e-4)
