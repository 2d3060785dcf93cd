"""Arguments of the wrong kind: an error that says what is needed, before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.errors import SettingsError
from tests.factories import make_run

RUN = make_run()
WRONG: dict[str, Any] = {
    "none": None,
    "path": "before.kitrun",
    "a Path": Path("before.kitrun"),
    "a dict": {"mode": "lazy"},
    "a number": 3,
    "a timeline": RUN.timeline,
}
A_RUN: dict[str, Callable[[Any], Any]] = {
    "line_costs": kit.line_costs,
    "kernel_table": kit.kernel_table,
    "caller_table": kit.caller_table,
    "segment_costs": kit.segment_costs,
    "memory": kit.memory,
    "export_trace": lambda given: kit.export_trace(given, "it.json"),
    "predict": kit.predict,
    "diff_runs before": lambda given: kit.diff_runs(given, RUN),
    "diff_runs after": lambda given: kit.diff_runs([RUN], given),
}


@kit.workload
def mine(ctx: kit.Context) -> Callable[[], Any]:
    raise AssertionError("it is run")


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("call", A_RUN.values(), ids=A_RUN)
def test_what_needs_a_run_says_how_to_get_one(call: Callable[[Any], Any], given: Any):
    with pytest.raises(SettingsError, match=r"^a run is needed here.*kit\.Run\.load"):
        call(given)


@pytest.mark.parametrize("call", A_RUN.values(), ids=A_RUN)
def test_no_run_at_all_is_no_run(call: Callable[[Any], Any]):
    with pytest.raises(SettingsError, match=r"^a run is needed here"):
        call([])


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "settings": (lambda: kit.Session({"mode": "lazy"}), "settings are a kit.Settings.* not dict"),
    "a session of native torch": (
        lambda: kit.Session(mode="torch"),
        "mode 'torch' runs without device kit",
    ),
    "no settings": (lambda: kit.Session([]), "settings are a kit.Settings.* not list"),
    "grid": (lambda: kit.sweep(mine, ["batch_size"]), "a list of values for each .* not list"),
    "no grid": (lambda: kit.sweep(mine, None), "a list of values for each .* not NoneType"),
    "vary": (lambda: kit.autotune(mine, vary=["mode"]), "a list of values for each .* not list"),
    "executor": (lambda: kit.sweep(mine, {}, executor=4), "executor has a submit, and int has"),
    "path": (lambda: kit.report([RUN], "a.html"), r"second argument .* path='a\.html'"),
    "its Path": (lambda: kit.report(RUN, Path("a.html")), r"second .* path='a\.html'"),
    "path of a sweep": (lambda: kit.report(mine, "a.html"), r"second .* path='a\.html'"),
    "hybrid": (lambda: kit.hybridize(RUN), "takes a function, not Run"),
    "complete": (lambda: kit.watch(when_complete="print"), "when_complete is a function, not str"),
    "device": (lambda: kit.measure_ceilings("tpu:0"), "device must be one of"),
    "without": (lambda: kit.predict(RUN, without=None), "without must be a list of sync points"),
}


@pytest.mark.parametrize(("call", "said"), OTHERS.values(), ids=OTHERS)
def test_an_argument_of_another_kind_is_refused_at_once(call: Callable[[], Any], said: str):
    with pytest.raises(SettingsError, match=said):
        call()
