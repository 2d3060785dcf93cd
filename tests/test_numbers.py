"""What is no number, or none that can be, is refused by every public function that takes one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import KitError, SettingsError
from kit.runs.gradients import Backward, best_buckets, predict_parallel
from kit.text import check_number
from tests.factories import make_run, native_run

BACKWARD = Backward(100, ((50, 1000), (100, 1000)), 1000.0, 10_000.0)
RUN, NATIVE = make_run(), native_run()
DIFF = kit.diff_runs(RUN, RUN)
NO_NUMBER: tuple[Any, ...] = (math.nan, -math.inf, -1, True, "3")
NO_COUNT = (*NO_NUMBER, 0, 2.5, math.inf, None)
NO_AMOUNT = (*NO_NUMBER, math.inf, None)  # which may be 0
NO_RATE = (*NO_AMOUNT, 0)


def work(ctx: kit.Context) -> Callable[[], Any]:
    raise AssertionError("nothing is run")


def one_sgd(**options: Any) -> None:
    kit.multi_sgd([torch.ones(2)], [torch.ones(2)], [torch.zeros(2)], **({"lr": 0.1} | options))


def one_adamw(**options: Any) -> None:
    state = [torch.zeros(2)]
    kit.multi_adamw([torch.ones(2)], [torch.ones(2)], state, state, torch.zeros(()), **options)


COUNTS: dict[str, Callable[[Any], Any]] = {
    "predict_parallel devices": lambda x: predict_parallel(
        BACKWARD, bulk=10, link=kit.Link(), devices=x
    ),
    "predict_parallel bulk": lambda x: predict_parallel(BACKWARD, bulk=x, link=kit.Link()),
    "best_buckets devices": lambda x: best_buckets(BACKWARD, kit.Link(), devices=x),
    "Link.ns devices": lambda x: kit.Link().ns(100, x),
    "Backward ops": lambda x: Backward(x, (), 1, 1),
    "ParallelView devices": lambda x: kit.ParallelView(BACKWARD, devices=x),
    "run devices": lambda x: kit.run(work, devices=x),
    "run processes": lambda x: kit.run(work, processes=x),
    "compare repeats": lambda x: kit.compare(work, [kit.Settings()], repeats=x),
    "measure_ceilings repeats": lambda x: kit.measure_ceilings(repeats=x),
    "batch_size": lambda x: kit.Settings(batch_size=x),
}
RATES: dict[str, Callable[[Any], Any]] = {
    "Link gb_per_s": lambda x: kit.Link(gb_per_s=x),
    "predict device_speed": lambda x: kit.predict(RUN, device_speed=x),
    "predict host_speed": lambda x: kit.predict(RUN, host_speed=x),
    "predict natively": lambda x: kit.predict(NATIVE, device_speed=x),
    "Ceilings gb_s": lambda x: kit.Ceilings(x, 1.0),
    "Ceilings gflop_s": lambda x: kit.Ceilings(1.0, x),
}
AMOUNTS: dict[str, Callable[[Any], Any]] = {
    "Link latency_us": lambda x: kit.Link(latency_us=x),
    "Link.ns size": lambda x: kit.Link().ns(x, 2),
    "Backward op_ns": lambda x: Backward(3, (), x, 1),
    "Backward segment_ns": lambda x: Backward(3, (), 1, x),
    "Backward update_ns": lambda x: Backward(3, (), 1, 1, 0, x),
    "ParallelView bucket_mb": lambda x: kit.ParallelView(BACKWARD, bucket_mb=x),
    "RunDiff.slower_than": DIFF.slower_than,
    "multi_sgd weight_decay": lambda x: one_sgd(weight_decay=x),
    "multi_adamw beta": lambda x: one_adamw(betas=(0.9, x)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_counts_is_a_whole_number(name: str) -> None:
    refused(COUNTS[name], NO_COUNT)


@pytest.mark.parametrize("name", RATES)
def test_a_rate_is_a_finite_number_above_0(name: str) -> None:
    refused(RATES[name], NO_RATE)


@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_is_a_finite_number_of_at_least_0(name: str) -> None:
    infinite = name.startswith("multi")  # as torch's optimizers
    refused(AMOUNTS[name], [x for x in NO_AMOUNT if not (infinite and x == math.inf)])
    AMOUNTS[name](0)


def test_what_may_be_left_out_or_has_other_bounds() -> None:
    for name in ("launch_ns", "sync_ns"):
        refused(lambda x, name=name: kit.predict(RUN, **{name: x}), (*NO_NUMBER, 1e30))
    for show in (DIFF.text, DIFF.to_markdown):
        refused(show, (*NO_NUMBER, 2.5, None))
    refused(lambda x: RUN.pin(x, "here"), (math.nan, math.inf, True, "3", None, 1e30))
    refused(RUN.pin(0, "here").unpin, NO_COUNT[:5])
    refused(lambda x: kit.autotune(work, budget_s=x), (*NO_NUMBER, None))
    refused(lambda x: kit.kernel_table(RUN, ceilings=x), (3, "3", math.nan))
    refused(lambda x: kit.knob(x, 8), (math.nan, math.inf, True))
    refused(lambda x: kit.knob(1, 8, step=x), (*NO_NUMBER, 0, math.inf))
    refused(lambda x: one_sgd(lr=x), NO_NUMBER)
    refused(lambda x: kit.clip_by_global_norm([torch.ones(2)], x), NO_NUMBER)


def refused(call: Callable[[Any], Any], values: Any) -> None:
    for value in values:
        with pytest.raises(KitError) as raised:
            call(value)
        assert repr(value) in str(raised.value), raised.value


def test_numbers_of_numpy_are_numbers() -> None:
    for value in (3, 2.5, np.float32(2.5), np.int64(3), 10**300):
        check_number(SettingsError, "it", value, above=2)
    with pytest.raises(SettingsError) as raised:
        check_number(SettingsError, "it", 5, at_least=6, at_most=7e9, unit="seconds")
    said = "it must be a finite number at least 6 and at most 7e+09 seconds, not 5"
    assert str(raised.value) == said
    assert kit.predict(RUN, device_speed=np.float64(2)).step_ms > 0
    one_sgd(lr=torch.tensor(0.1))
