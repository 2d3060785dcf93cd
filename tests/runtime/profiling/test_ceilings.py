"""The ceilings of a device: measured, positive, and refused where there is no such device."""

from __future__ import annotations

import pytest

from kit.errors import SettingsError
from kit.runtime.profiling.ceilings import measure_ceilings


def test_both_ceilings_are_measured() -> None:
    found = measure_ceilings("cpu", repeats=1)
    assert found.gb_s > 0.1
    assert found.gflop_s > 0.1
    assert found.device == "cpu"


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingsError, match="jax sees only cpu"):
        measure_ceilings("gpu")


def test_to_measure_no_times_is_an_error() -> None:
    with pytest.raises(SettingsError, match="repeats must be a whole number of at least 1, not 0"):
        measure_ceilings("cpu", repeats=0)
