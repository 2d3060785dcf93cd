"""The workload of PR 16716, in each way: it zeroes, and it costs the ops that it should."""

from __future__ import annotations

import pytest

import kit
from kit.errors import SettingsError
from kit.workloads.many_arrays import WAYS, zero_grad_by

SETTINGS = kit.Settings(steps=1, warmup=2)


@pytest.mark.parametrize("how", [*WAYS])
def test_every_way_zeroes_on_every_device(how: str) -> None:
    workload = zero_grad_by(how, arrays=20, repeats=3)
    for settings in (
        SETTINGS,
        SETTINGS.replace(mode="torch"),
        SETTINGS.replace(bulk_forward=1, segment_mode="launch"),
    ):
        assert kit.run(workload, settings).losses == (0.0,)


def test_the_ways_differ_in_the_ops_that_they_record() -> None:
    def ops(how: str) -> int:
        run = kit.run(zero_grad_by(how, arrays=20, repeats=3), SETTINGS)
        return sum(len(s.nodes) for s in run.segments)

    found = {how: ops(how) for how in WAYS}
    own = found["reset_arrays"]  # what the step's own value takes
    assert found["hybridize"] == own
    assert found["foreach"] == found["one program"] == own + 3
    assert found["loop"] == own + 60
    assert found["setitem"] >= own + 60


def test_a_wrong_way_is_refused() -> None:
    with pytest.raises(SettingsError, match="how must be one of 'loop'"):
        zero_grad_by("memset")
