"""`kit.autotune`: it finds what is faster, keeps what is computed, and keeps to its budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbclient
import nbformat
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

import kit
from kit.errors import Cancelled, SettingsError
from kit.measure.base.context import Workload
from kit.measure.search.autotune import BULK_SIZES, axes_of
from kit.measure.search.tuned import (
    Programs,
    Trial,
    Tuned,
    choose,
    in_words,
    program_of,
    same_losses,
    work_of,
)
from kit.runs.labels import TIME
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.run import Run
from kit.runs.settings import Settings
from tests.factories import make_run
from tests.runs.ratios import ratio_of
from tests.warm import warm_kernel

NATIVE = Settings(mode="torch", steps=4, warmup=0)
NOTHING: dict[str, list[Any]] = {"mode": [], "step_mode": [], "segment_mode": [], "prefetch": []}


def few_flips(ctx: Any) -> Callable[[], Any]:
    """The workload "flips", shorter: what the host does for each op is all of it."""
    array = torch.arange(10.0).to(ctx.device).requires_grad_()

    def step() -> Any:
        x = array
        for _ in range(60):
            x = x.flip(0)
        loss = x.sum()
        loss.backward()
        array.grad = None
        return loss.detach()

    return step


class Clock:
    """What times the steps: the machine's clock, the processor time of this process, or how long a
    `Sleepy` step was to sleep.

    On a busy machine a step takes longer than its work, and no test shall hang on that.
    """

    def __init__(self) -> None:
        self.slept_ns, self.read = 0, time.perf_counter_ns

    def perf_counter_ns(self) -> int:
        return self.read()

    def read_sleeps(self) -> int:
        return self.slept_ns


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.read = time.perf_counter_ns
    monkeypatch.setattr("kit.measure.base.loop.time", CLOCK)


class Sleepy:
    """A step that sleeps as long as its settings say, and notes when it was built."""

    def __init__(
        self,
        sleep_ms: Callable[[Settings], float],
        loss: Callable[[Settings], float] = lambda s: 1.0,
    ) -> None:
        self.sleep_ms, self.loss = sleep_ms, loss
        CLOCK.read = CLOCK.read_sleeps
        self.built: list[tuple[float, Settings]] = []

    def __call__(self, ctx: Any) -> Callable[[], Any]:
        self.built.append((time.monotonic(), ctx.settings))
        seconds, loss = self.sleep_ms(ctx.settings) / 1e3, torch.tensor(self.loss(ctx.settings))

        def step() -> Any:
            time.sleep(seconds)
            CLOCK.slept_ns += round(seconds * 1e9) + 1000  # the step itself
            return loss

        return step

    @property
    def workload(self) -> Workload:
        return Workload("sleepy", self)


def test_one_program_is_found_to_beat_a_thousand_and_the_losses_stay():
    CLOCK.read = time.process_time_ns
    start = Settings(mode="imperative", steps=4, warmup=1)
    tuned = kit.autotune(few_flips, start, budget_s=60, vary={**NOTHING, "mode": ["lazy"]})
    assert tuned.best == start.replace(mode="lazy")
    assert tuned.speedup > 1.5
    assert {run.losses[0] for run in tuned.runs} == {45.0}
    assert tuned.run.settings.mode == "lazy"
    assert tuned.start.settings.mode == "imperative"
    assert [row["words"] for row in tuned.tried] == ["mode lazy", "as given"]
    assert tuned.summary().startswith("mode lazy: ")
    assert "as fast as what you gave" in tuned.summary()
    assert kit.run(few_flips, tuned.best).losses[0] == 45.0


def test_equal_programs_are_compiled_once_and_cost_each_setting_that_needs_them():
    start = Settings(mode="lazy", steps=4)
    vary = {**NOTHING, "step_mode": ["replay", "speculate"], "prefetch": [2]}
    tuned = kit.autotune(few_flips, start, budget_s=60, vary=vary)
    compiled = [run for run in tuned.runs if "compile.count" in run.metrics]
    assert len(compiled) == 1
    assert len({row["compile_ms"] for row in tuned.tried}) == 1
    assert tuned.tried[0]["compile_ms"] > 0
    after = [row["pays_off_after"] for row in tuned.tried]
    assert all(steps in (0.0, math.inf) or math.isnan(steps) for steps in after)


def test_a_setting_with_other_losses_is_reported_and_never_chosen():
    sleepy = Sleepy(
        lambda s: 1 if s.prefetch else 8, loss=lambda s: 2.0 if s.prefetch == 3 else 1.0
    )
    tuned = kit.autotune(sleepy.workload, NATIVE, vary={**NOTHING, "prefetch": [0, 3]})
    assert tuned.best == NATIVE
    assert tuned.speedup == 1.0
    (row,) = [row for row in tuned.tried if row["words"] == "prefetch 3"]
    assert not row["is_possible"]
    assert row["step_ms"] < tuned.tried[0]["step_ms"]
    assert "Not chosen, because its losses differ: prefetch 3." in tuned.summary()


def test_a_start_that_differs_from_itself_is_told_to_be_seeded():
    losses = iter(range(1, 100))
    sleepy = Sleepy(lambda s: 1.0, loss=lambda s: float(next(losses)))
    tuned = kit.autotune(sleepy.workload, NATIVE, vary={**NOTHING, "prefetch": [1]})
    assert tuned.best == NATIVE
    assert "losses differ from one run to the next" in tuned.summary()
    assert "because its losses differ: prefetch 1" in tuned.summary()


def test_the_batch_size_is_compared_by_sample_and_only_if_named():
    sleepy = Sleepy(lambda s: 4.0, loss=lambda s: float(s.batch_size))
    tuned = kit.autotune(sleepy.workload, NATIVE, vary={**NOTHING, "batch_size": [4, 8, 64]})
    assert tuned.best == NATIVE.replace(batch_size=64)
    assert tuned.speedup > 3
    assert " a sample instead of " in tuned.summary()


def test_a_setting_that_fails_is_ruled_out_in_words():
    def moody(s: Settings) -> float:
        if s.prefetch == 2:
            raise MemoryError("no room\nat all")
        return 4.0 if s.prefetch else 8.0

    tuned = kit.autotune(Sleepy(moody).workload, NATIVE, vary={**NOTHING, "prefetch": [1, 2]})
    assert tuned.best.prefetch == 1
    assert "because it failed (MemoryError: no room): prefetch 2" in tuned.summary()
    (row,) = [row for row in tuned.tried if row["words"] == "prefetch 2"]
    assert math.isnan(row["step_ms"])
    assert row["runs"] == 0


def test_an_exception_without_a_message_is_named_too():
    def moody(s: Settings) -> float:
        if s.prefetch:
            raise MemoryError
        return 1.0

    tuned = kit.autotune(Sleepy(moody).workload, NATIVE, vary={**NOTHING, "prefetch": [1]})
    assert "because it failed (MemoryError): prefetch 1" in tuned.summary()


def test_a_start_that_fails_raises_what_it_raised():
    def broken(s: Settings) -> float:
        raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        kit.autotune(Sleepy(broken).workload, NATIVE)


def test_without_a_budget_the_start_is_measured_and_is_the_best():
    sleepy = Sleepy(lambda s: 0.0)
    tuned = kit.autotune(sleepy.workload, NATIVE, budget_s=0, vary={"prefetch": [0, 1]})
    assert len(sleepy.built) == len(tuned.runs) == 1
    assert tuned.best == NATIVE
    assert tuned.run == tuned.start
    assert tuned.summary().startswith("Only what you gave was measured: ")
    assert "did not allow all of: prefetch, bulk size" in tuned.summary()


@pytest.mark.parametrize("budget_s", [0.3, 1.0])
def test_the_budget_is_exceeded_by_one_run_at_most(budget_s: float):
    sleepy = Sleepy(lambda s: 10.0)
    began = time.monotonic()
    tuned = kit.autotune(
        sleepy.workload, NATIVE, budget_s=budget_s, vary={**NOTHING, "prefetch": range(50)}
    )
    late = [t for t, _ in sleepy.built[1:] if t - began > budget_s]
    assert len(late) <= 1
    assert len(sleepy.built) < 50
    assert tuned.left_out
    assert sum(row["is_best"] for row in tuned.tried) == 1


def test_cancelling_ends_the_search():
    sleepy = Sleepy(lambda s: 0.0)
    with pytest.raises(Cancelled):
        kit.autotune(
            sleepy.workload,
            NATIVE,
            vary={"prefetch": [1]},
            cancelled=lambda: len(sleepy.built) == 2,
        )
    assert len(sleepy.built) == 2


def test_progress_never_goes_back_and_ends_at_one():
    seen: list[tuple[str, float]] = []
    kit.autotune(
        Sleepy(lambda s: 1.0).workload,
        NATIVE,
        budget_s=5,
        vary={**NOTHING, "prefetch": [1]},
        progress=lambda text, fraction: seen.append((text, fraction)),
    )
    fractions = [f for _, f in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert any("prefetch 1" in text for text, _ in seen)


@pytest.mark.parametrize(
    ("vary", "budget_s", "why"),
    [
        ({"steps": [3]}, 1.0, "'steps' cannot be varied"),
        ({"speed": [3]}, 1.0, "'speed' cannot be varied; there are: mode"),
        ({"dtype": "float16"}, 1.0, "must be a list of values"),
        ({"prefetch": [0, -1]}, 1.0, "prefetch must be a whole number"),
        ({}, -1.0, "budget_s must be"),
        ({}, "60", "budget_s must be"),
        ({}, math.nan, "budget_s must be"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    vary: dict[str, Any], budget_s: float, why: str
):
    sleepy = Sleepy(lambda s: 0.0)
    with pytest.raises(SettingsError, match=why):
        kit.autotune(sleepy.workload, NATIVE, budget_s=budget_s, vary=vary)
    assert sleepy.built == []


@pytest.mark.parametrize("scaling", LOSS_SCALING)
def test_by_default_only_what_keeps_the_training_is_varied(scaling: str):
    axes = axes_of(Settings(loss_scaling=scaling), {})
    named = {name for options in axes.values() for option in options for name in option}
    assert not named & {"batch_size", "accumulate", "dtype", "seed", "steps", "device"}
    dynamic = [x for x in LOSS_SCALING if x.startswith("dynamic")]
    expected = [{"loss_scaling": x} for x in dynamic] if scaling in dynamic else None
    assert axes.get("loss_scaling") == expected
    assert len(axes["bulk size"]) == len(BULK_SIZES) + 1


def trial(
    settings: Settings, ms: list[list[float]], *, compiles: int = 1, start: Settings | None = None
) -> Trial:
    """A trial whose final runs had these step times, twenty times over."""
    made = Trial(
        settings, start or Settings(), Programs(count=compiles, compile_ms=10.0 * compiles)
    )
    made.finals = made.runs = [
        replace(
            make_run(settings, kernels=2),
            step_times_ns=tuple(int(t * 1e6) for t in times * 20),
            environment={TIME: "2026-01-01 00:00:00 UTC"},  # so they may have taken turns
        )
        for times in ms
    ]
    return made


@settings(max_examples=50)
@given(gap=st.floats(0.0, 2.0), noise=st.floats(0.0, 1.0), compiles=st.integers(1, 3))
def test_a_winner_wins_beyond_the_spread(gap: float, noise: float, compiles: int):
    start = trial(Settings(), [[5.0] * 4, [5.0 + noise] * 4])
    other = trial(
        Settings(mode="lazy"), [[5.0 - gap] * 4, [5.0 + noise - gap] * 4], compiles=compiles
    )
    chosen = choose([start, other], start)
    faster = ratio_of([r.step_times_ns for r in start.runs], [r.step_times_ns for r in other.runs])
    assert chosen is (other if faster.kind == "less" else start)
    if gap > 1.5 and noise < 0.1:
        assert chosen is other
    if gap < 0.1:
        assert chosen is start


def test_words_and_cost_of_a_faster_setting_are_said():
    start = trial(Settings(), [[10.0] * 4] * 2, compiles=1)
    best = trial(Settings(mode="lazy", prefetch=2), [[5.0] * 4] * 2, compiles=101)
    tuned = Tuned.of(best, start, [start, best], budget_s=10, spent_s=3)
    assert tuned.summary() == (
        "mode lazy + prefetch 2: 2x as fast as what you gave (5 ms a step instead of 10 ms, 50% "
        "± 1% faster); compiling takes 1.0 s more, paid back after 200 steps.\n"
        "To use it: kit.run(workload, tuned.best)."
    )
    assert tuned.best == Settings(mode="lazy", prefetch=2)
    assert tuned.speedup == 2.0
    assert tuned.tried[0]["pays_off_after"] == 200.0
    assert repr(tuned) == tuned.summary()


def test_a_notebook_shows_what_was_found_by_a_view_that_it_keeps():
    start = trial(Settings(), [[5.0] * 4])
    shown: list[str] = []
    view = SimpleNamespace(_ipython_display_=lambda: shown.append("a view"))

    def formatted(drawn: Any) -> Any:
        tuned = Tuned.of(start, start, [start], budget_s=1, spent_s=1, draw=lambda _: drawn)
        return DisplayFormatter().format(tuned)[0]

    assert (formatted(view), shown) == ({}, ["a view"])
    assert "what you gave" in formatted(None)["text/plain"]


def test_all_that_is_said_of_a_setting_is_of_the_middle_one_of_its_runs():
    start = trial(Settings(), [[10.0] * 4] * 3)
    best = trial(Settings(mode="lazy"), [[9.0] * 40, [5.0] * 4, [5.0] * 4])  # most steps took 9 ms
    said = Tuned.of(best, start, [start, best], budget_s=10, spent_s=3).summary()
    assert "maybe 2x as fast as what you gave (5 ms a step instead of 10 ms, maybe 50%" in said


def test_the_bytes_of_a_run_are_shown_where_it_has_them():
    start = trial(Settings(), [[5.0]])
    start.runs[-1] = replace(start.runs[-1], metrics={"memory.peak_bytes": 7.0})
    (row,) = Tuned.of(start, start, [start], budget_s=1, spent_s=1).tried
    assert row["peak_bytes"] == 7.0
    assert math.isnan(row["live_bytes"])
    assert math.isnan(row["peak_bound"])


def test_a_peak_that_only_an_earlier_run_could_know_is_kept():
    start = trial(Settings(), [[5.0], [5.0], [5.0]])
    counts = ({"peak_bytes": 7.0}, {"peak_bound": 9.0}, {"peak_bound": 9.5, "live_bytes": 2.0})
    start.runs[:] = [
        replace(run, metrics={f"memory.{name}": size for name, size in count.items()})
        for run, count in zip(start.runs, counts, strict=True)
    ]
    (row,) = Tuned.of(start, start, [start], budget_s=1, spent_s=1).tried
    assert (row["peak_bytes"], row["peak_bound"], row["live_bytes"]) == (7.0, 9.5, 2.0)


@pytest.mark.parametrize(("changes", "words"), [
    ({}, "as given"), ({"mode": "lazy"}, "mode lazy"), ({"mode": "imperative"}, "mode imperative"),
    ({"bulk_forward": 5, "bulk_backward": 5}, "5 ops a segment"),
    ({"bulk_forward": 5, "bulk_backward": 7, "step_mode": "replay"},
     "5 and 7 ops a segment + step_mode replay"),
    ({"loss_scaling": "static", "dtype": "float16"}, "static + dtype float16"),
])  # fmt: skip
def test_a_difference_is_said_in_words(changes: dict[str, Any], words: str):
    start = Settings(bulk_forward=15, bulk_backward=15)
    assert in_words(start.replace(**changes), start) == words


def test_settings_that_make_the_same_happen_are_one():
    lazy = Settings(mode="lazy")
    assert work_of(lazy) == work_of(lazy.replace(bulk_forward=3, steps=99, warmup=0))
    assert work_of(Settings(mode="imperative")) == work_of(
        Settings(mode="bulked", bulk_forward=1, bulk_backward=1, bulk_inference=1)
    )
    assert work_of(lazy) != work_of(lazy.replace(step_mode="replay"))
    assert program_of(lazy) == program_of(lazy.replace(step_mode="replay", prefetch=2))
    native = lazy.replace(mode="torch")
    assert work_of(native) == work_of(native.replace(segment_mode="launch", step_mode="replay"))
    assert work_of(native) != work_of(lazy)
    assert program_of(lazy) != program_of(lazy.replace(batch_size=3))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0, 0.1))
def test_losses_agree_within_two_thousandths(losses: list[float], off: float):
    def run(values: list[float]) -> Run:
        return replace(make_run(kernels=1, steps=1), losses=tuple(values))

    shifted = [x * (1 + off) for x in losses]
    assert same_losses(run(losses), run([*losses, 5.0]))
    if off < 2e-3:
        assert same_losses(run(shifted), run(losses))
    elif off > 3e-3 and max(map(abs, losses)) > 0:
        assert not same_losses(run(shifted), run(losses))
    assert not same_losses(run([math.nan]), run([1.0]))
    assert same_losses(run([math.nan]), run([math.nan]))


CELL = """
import kit, torch
def still(ctx):
    return lambda: torch.ones(())
vary = {"mode": [], "step_mode": [], "segment_mode": [], "prefetch": [1]}
kit.autotune(still, kit.Settings(mode="torch", steps=4), budget_s=60, vary=vary)
"""


@pytest.mark.notebook
def test_in_a_notebook_the_result_is_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path))
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(CELL)]
    nbclient.NotebookClient(book, kernel_name="python3", timeout=120).execute()
    widget = "application/vnd.jupyter.widget-view+json"
    (stored,) = (o.data for o in book.cells[0].outputs if "text/html" in o.data)
    assert widget not in stored  # but in an output of its own
    said = stored["text/plain"]  # of a step of microseconds noise may choose another setting
    assert "setting" in said or "To use it: kit.run(workload, tuned.best)" in said
    state = book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    shown = [m["state"].get("value", "") for m in state.values()]
    assert any("Settings tried" in str(text) for text in shown)
