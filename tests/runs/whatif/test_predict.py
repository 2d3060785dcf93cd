"""What-if predictions: what must follow from the model, and what it refuses to say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.ir.plan import OpStream, plan
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import costs_of
from kit.runs.whatif.errors import KNOWN_ERRORS
from kit.runs.whatif.predict import Model, Prediction, calibrated, predict
from kit.runs.whatif.steps import Shape, accumulated, step_ns
from kit.runs.whatif.waits import SCALER, STOPPED
from kit.text import format_ms
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.syncs import sync_table
from tests.factories import empty_run, make_run

CHECK, ON_DEVICE = "dynamic, host check", "dynamic, on device"
OVERHEADS = {"overhead.launch_ns": 7_000.0, "overhead.sync_ns": 9_000.0}


def measured(settings: Settings | None = None, **more: int) -> Run:
    """A synthetic run that also knows what a launch and a wait cost."""
    run = make_run(settings, **more)
    return replace(run, metrics=OVERHEADS, environment={"device": "cpu (cpu)"})


def with_scaler(settings: Settings | None = None) -> Run:
    """The same, whose one wait is the loss-scale check, in the midst of the step."""
    run = measured((settings or Settings()).replace(loss_scaling=CHECK), syncs=2)
    syncs = [
        replace(s, site="train.py:41", via=f"torch/amp/{SCALER}:371")
        for s in run.timeline.syncs[::2]
    ]
    return replace(run, timeline=replace(run.timeline, syncs=tuple(syncs)))


@pytest.mark.parametrize("mode", ["bulked", "lazy", "imperative"])
def test_a_replay_takes_what_the_untraced_steps_took(mode: str):
    run = measured(Settings(mode=mode))
    assert predict(run).step_ms == pytest.approx(run.step_ms, rel=1e-3)


def test_a_prediction_is_modelled_and_says_of_what():
    made = predict(measured(), Settings(bulk_forward=2, bulk_backward=2))
    assert made.timeline.origin == "modelled"
    assert made.headline().startswith("modelled: ")
    assert "synthetic" in made.of
    assert any("rate of this run's kernels" in text for text in made.assumptions)
    assert made.timeline.notes == made.assumptions


def test_the_public_name_is_the_function():
    assert kit.predict is predict


@given(forward=st.integers(1, 30), backward=st.integers(1, 30))
@settings(max_examples=15, deadline=None)
def test_other_bulk_sizes_are_cut_as_the_runtime_would(forward: int, backward: int):
    run = measured(Settings(bulk_forward=3, bulk_backward=3), syncs=0)
    wanted = run.settings.replace(bulk_forward=forward, bulk_backward=backward)
    stream = OpStream.of(run.graphs[0], run.segments)
    made = predict(run, wanted, stream=stream)
    assert made.segments == len(plan(stream, forward, backward))


def test_without_views_known_they_are_told_by_their_names():
    run = measured(Settings(bulk_forward=2, bulk_backward=2), syncs=0)
    views = sum("expand" in run.graphs[0].nodes[i].op for i in run.graphs[0].ops)
    assert views == 1
    assert predict(run, run.settings.replace(mode="imperative")).segments == (
        len(run.graphs[0].ops) - views
    )


def test_the_steps_of_the_timeline_take_the_step_time():
    made = predict(measured(), Settings(mode="lazy"))
    steps = made.timeline.intervals(kind="step")
    assert np.diff(steps).mean() / 1e6 == pytest.approx(made.step_ms, rel=1e-3)


def test_a_faster_device_never_makes_the_step_slower():
    run = measured()
    times = [predict(run, device_speed=k).step_ms for k in (0.5, 1.0, 2.0, 100.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_dearer_launches_and_waits_never_make_it_faster():
    run = measured()
    assert predict(run, launch_ns=1e6).step_ms > predict(run).step_ms
    assert predict(run, sync_ns=1e6).step_ms > predict(run).step_ms


def test_a_removed_sync_is_gone_and_the_step_is_no_slower():
    run = with_scaler()
    made = predict(run, without=[SCALER])
    assert (predict(run).syncs, made.syncs) == (1, 0)
    assert made.timeline.syncs == ()
    assert made.step_ms <= predict(run).step_ms


def test_a_sync_is_removed_by_its_row_as_well():
    run = with_scaler()
    (row,) = sync_table(run.timeline.syncs, steps=3)
    assert predict(run, without=[row]).step_ms == predict(run, without=["train.py:41"]).step_ms


def test_a_sync_that_is_not_there_is_an_error_that_lists_those_that_are():
    with pytest.raises(SettingsError, match=r"nowhere\.py.*train\.py:41 via torch/amp"):
        predict(with_scaler(), without=["nowhere.py"])


def reading(settings: Settings, *lines: str) -> Run:
    """A step that reads at these lines, one after the other, where half of it has been issued.

    The second read, and in mode "imperative" the first as well, finds nothing to issue.
    """
    run = measured(settings, syncs=0)
    cuts = [s for s in run.timeline.spans if s.kind == "plan"]
    syncs = []
    for at in range(3):
        step = cuts[at * len(run.segments) : (at + 1) * len(run.segments)]
        begin = step[len(step) // 2].stop_ns
        syncs += [SyncPoint(begin + i, 1, "item", line) for i, line in enumerate(lines)]
    return replace(run, timeline=replace(run.timeline, syncs=tuple(syncs)))


@pytest.mark.parametrize("mode", ["bulked", "imperative"])
def test_a_read_is_known_where_it_ends_no_segment(mode: str) -> None:
    run = reading(Settings(mode=mode, bulk_forward=3, bulk_backward=3), "a.py:1", "a.py:2")
    assert [s.site for s in Model(run).syncs] == ["a.py:1", "a.py:2"]
    assert [s.site for s in predict(run).timeline.syncs] == ["a.py:1", "a.py:2"] * 2
    lazy = run.settings.replace(mode="lazy")
    kept = [predict(run, lazy, without=x) for x in ([], ["a.py:1"], ["a.py:2"], ["a.py"])]
    assert [(p.segments, p.syncs) for p in kept] == [(2, 2), (2, 1), (2, 1), (1, 0)]
    assert {s.site for s in kept[1].timeline.syncs} == {"a.py:2"}


def test_a_read_comes_after_all_that_was_recorded_before_it_however_it_is_cut() -> None:
    """It waits for what was issued; the last segment was recorded, and not cut yet."""
    run = measured(syncs=0)
    cuts = [s for s in run.timeline.spans if s.kind == "plan"][: len(run.segments)]
    read = SyncPoint(cuts[-1].start_ns - 2, 1, "item", "a.py:1")
    recorded = [cuts[-2].start_ns - 5] * (run.segments[-1].nodes[0] - 1)
    recorded += [read.at_ns - 1] * (len(run.graphs[0]) - len(recorded))
    late, early = (
        replace(run, timeline=replace(run.timeline, syncs=(read,)), recorded_ns=tuple(times))
        for times in (recorded, ())
    )
    for one, segments in ((late, 1), (early, 2)):
        made = predict(one, run.settings.replace(mode="lazy"))
        assert (made.segments, made.syncs) == (segments, 1)


def test_a_read_before_the_first_op_waits_for_the_step_before() -> None:
    run = measured(syncs=0)
    sync = SyncPoint(0, 1, "item", "a.py:1")
    assert predict(replace(run, timeline=replace(run.timeline, syncs=(sync,)))).syncs == 0


def test_a_check_of_gradients_needs_an_update_to_come_before() -> None:
    run = measured(syncs=0)
    forward = tuple(replace(n, phase="forward") for n in run.graphs[0].nodes)
    bare = replace(run, graphs=(replace(run.graphs[0], nodes=forward),))
    for scaling in (CHECK, ON_DEVICE):
        with pytest.raises(SettingsError, match="no optimizer's update was recorded"):
            predict(bare, run.settings.replace(loss_scaling=scaling))


def test_scaling_on_the_device_is_the_same_as_no_wait_in_the_scaler():
    run = with_scaler()
    made = predict(run, run.settings.replace(loss_scaling=ON_DEVICE))
    assert made.step_ms == predict(run, without=[SCALER]).step_ms


def test_a_host_check_adds_one_wait_before_the_update():
    run = measured(Settings(loss_scaling=ON_DEVICE), syncs=0)
    made = predict(run, run.settings.replace(loss_scaling=CHECK))
    assert made.syncs == 1
    assert made.step_ms >= predict(run).step_ms
    (first, *_) = made.timeline.syncs
    updates = made.timeline.intervals(kind="record")[
        made.timeline.name[made.timeline.where(kind="record")]
        == made.timeline.names.index("update")
    ]
    assert first.at_ns <= updates[:, 0].max()


def test_a_replayed_step_records_nothing():
    quick = {name: ns / 100 for name, ns in OVERHEADS.items()}  # to look is dearer than three ops
    run = replace(measured(syncs=0), metrics=quick)
    made = predict(run, run.settings.replace(step_mode="replay"))
    assert not made.timeline.where(kind="record").any()
    assert made.step_ms <= predict(run).step_ms


def test_whether_a_step_may_be_replayed_takes_the_host_its_time() -> None:
    run = measured(syncs=0)
    shape = Shape(run.graphs[0], run.segments, (0.0,) * len(run.segments), step_mode="replay")
    costs = costs_of(run)
    longer = replace(costs, look=costs.look + 3e6)
    assert step_ns(shape, longer) - step_ns(shape, costs) == pytest.approx(3e6, rel=1e-3)
    assert costs.with_faster_host(2).look == costs.look / 2
    assert costs.look > 10 * costs.sync


def test_a_step_that_reads_is_recorded_even_in_replay():
    run = with_scaler()
    made = predict(run, run.settings.replace(step_mode="replay"))
    assert made.step_ms == pytest.approx(run.step_ms, rel=1e-3)
    assert any("not replayed" in text for text in made.assumptions)


def test_micro_batches_repeat_all_but_the_update():
    graph = make_run().graphs[0]
    repeated, sources, starts = accumulated(graph, 3)
    count = {
        p: sum(n.phase == p and not n.is_variable for n in graph.nodes)
        for p in ("forward", "backward", "update")
    }
    again = {
        p: sum(n.phase == p and not n.is_variable for n in repeated.check().nodes) for p in count
    }
    assert again == {
        "forward": 3 * count["forward"],
        "backward": 3 * count["backward"],
        "update": count["update"],
    }
    assert len(sources) == len(repeated)
    assert len(starts) == 2


def test_more_micro_batches_take_longer():
    run = measured(syncs=0)
    times = [predict(run, run.settings.replace(accumulate=n)).step_ms for n in (1, 2, 4)]
    assert times[0] < times[1] < times[2]


def test_a_batch_size_lies_on_the_line_of_two_runs():
    small, big = (measured(Settings(batch_size=n), syncs=0) for n in (2, 8))
    big = replace(big, step_times_ns=tuple(4 * t for t in small.step_times_ns))
    between = predict([small, big], Settings(batch_size=4)).step_ms
    assert small.step_ms < between < big.step_ms


def test_no_line_goes_through_a_run_of_another_precision() -> None:
    small = measured(Settings(batch_size=2), syncs=0)
    big = measured(Settings(batch_size=8, dtype="bfloat16"), syncs=0)
    with pytest.raises(SettingsError, match="a second batch size under the same settings"):
        predict([small, big], Settings(batch_size=4))


def test_a_batch_size_of_one_run_cannot_be_told():
    with pytest.raises(SettingsError, match="Measure a second batch size"):
        predict(measured(), Settings(batch_size=16))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dtype": "bfloat16"}, "dtype='bfloat16' cannot be predicted"),
        ({"mode": "torch"}, "can only be measured"),
        ({"segment_mode": "launch"}, "segment_mode='launch' cannot be predicted"),
        ({"device": "gpu"}, "device='gpu' cannot be predicted"),
    ],
    ids=["dtype", "mode", "segment mode", "device"],
)
def test_what_cannot_be_known_is_an_error_that_says_why(changes: dict[str, str], why: str):
    with pytest.raises(SettingsError, match=why):
        predict(measured(), Settings(**changes))


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")], ids=str)
def test_a_device_has_a_speed_above_zero(speed: float):
    with pytest.raises(SettingsError, match="device_speed"):
        predict(measured(), device_speed=speed)


def test_a_faster_host_shortens_a_step_that_it_bounds():
    run = measured(Settings(mode="imperative"), syncs=0)
    times = [predict(run, host_speed=speed).step_ms for speed in (1, 2, 1e9)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_run_without_a_graph_or_a_step_predicts_nothing():
    for run in (empty_run(), make_run(Settings(mode="torch"))):
        with pytest.raises(SettingsError):
            predict(run)


def test_a_dict_is_no_settings():
    with pytest.raises(SettingsError, match="not dict"):
        predict(measured(), {"bulk_forward": 5})  # type: ignore[arg-type]


def test_no_run_at_all_is_an_error():
    with pytest.raises(SettingsError, match="no run"):
        predict([])


def test_a_replayed_run_does_not_say_what_recording_costs():
    run = measured(Settings(step_mode="replay"), syncs=0)
    with pytest.raises(SettingsError, match="predict from a run with step_mode='retrace'"):
        predict(run, Settings())


def test_hostile_names_and_many_waits_are_taken_as_they_are():
    run = measured(syncs=3, hostile=True)
    assert isinstance(predict(run, Settings(bulk_forward=2)), Prediction)


def test_a_model_answers_as_predict_does():
    run = measured()
    model = Model(run)
    for wanted in (run.settings, Settings(mode="lazy"), Settings(bulk_forward=3)):
        assert model.predict(wanted).step_ms == predict(run, wanted).step_ms


def test_overheads_that_were_measured_without_a_trace_are_not_scaled():
    run = measured()
    slower = replace(run, step_times_ns=tuple(3 * t for t in run.step_times_ns))
    own, scaled = calibrated(run), calibrated(slower)
    assert (own.cut, own.launch, own.sync) == (scaled.cut, scaled.launch, scaled.sync)
    assert scaled.device.sum() > own.device.sum()


def test_a_run_without_a_measured_step_predicts_nothing():
    with pytest.raises(SettingsError, match="no measured step"):
        predict(replace(measured(), step_times_ns=()))


def test_on_a_gpu_the_worker_goes_on_while_the_device_works():
    run = measured(Settings(mode="imperative"), syncs=0)
    far = replace(run, environment={"device": "gpu (imaginary)"})
    launches = [
        predict(r).timeline.intervals(kind="dispatch")[-1, 1]
        - predict(r).timeline.intervals(kind="kernel")[-1, 1]
        for r in (run, far)
    ]
    assert launches[1] <= launches[0] <= 0


def test_a_prediction_says_in_which_interval_the_measured_step_is_expected() -> None:
    run = measured()
    same = predict(run)
    assert same.low_ms < 0.95 * same.step_ms < 1.05 * same.step_ms < same.high_ms
    assert same.low_ms * same.high_ms == pytest.approx(same.step_ms**2)
    other = predict(run, run.settings.replace(mode="lazy"))
    assert other.high_ms / other.step_ms > same.high_ms / same.step_ms  # known to be more wrong
    assert other.step_text in other.headline()
    assert other.step_text.startswith(f"{format_ms(other.step_ms)} ({format_ms(other.low_ms)} to ")
    assert "nine of ten" in other.assumptions[-1] == other.timeline.notes[-1]
    noisy = replace(
        run, step_times_ns=tuple(t * (i % 5 + 5) for i, t in enumerate(run.step_times_ns))
    )
    assert predict(noisy).high_ms / predict(noisy).step_ms > same.high_ms / same.step_ms


def test_steps_that_took_longer_than_their_parts_make_other_settings_less_sure() -> None:
    """As where the measured steps were disturbed or not warm: what took longer no part shows."""
    run = replace(measured(), step_times_ns=(measured().step_times_ns[0],) * 10)
    slow = replace(run, step_times_ns=tuple(3 * t for t in run.step_times_ns))
    lazy = run.settings.replace(mode="lazy")
    fast, wide = predict(run, lazy), predict(slow, lazy)
    by = calibrated(slow).stretch
    assert by == pytest.approx(3 * calibrated(run).stretch)
    assert by > 2
    assert wide.high_ms / wide.step_ms > max(by, fast.high_ms / fast.step_ms)
    assert f"took {by:.1f} times what their traced parts come to" in wide.assumptions[-1]
    assert "traced parts" not in predict(slow).assumptions[-1]  # a replay is the measured step
    quick = replace(run, step_times_ns=tuple(t // 3 for t in run.step_times_ns))
    assert "traced parts" not in predict(quick, lazy).assumptions[-1]  # a trace only slows


def test_a_host_that_sleeps_does_not_record_meanwhile_and_leaves_python_to_the_worker() -> None:
    run = measured(Settings(mode="imperative"), syncs=0)
    records = [s for s in run.timeline.spans if s.kind == "record" and s.name == "forward"]
    half = [
        Span(s.lane, "mine.py:3", "elsewhere", s.start_ns, (s.start_ns + s.stop_ns) // 2)
        for s in records
    ]
    sleepy = replace(run, timeline=Timeline.of([*run.timeline.spans, *half]))
    own, found = costs_of(run), costs_of(sleepy)
    ops = sum(run.graphs[0].nodes[i].phase == "forward" for i in run.graphs[0].ops)
    slept = min(  # the step that had least of it
        sum(s.stop_ns - s.start_ns for s in half if begin <= s.start_ns < end)
        for begin, end in run.timeline.intervals(kind="step").tolist()
    )
    assert found.away["forward"] * ops == pytest.approx(slept, rel=0.01)
    assert found.record["forward"] < own.record["forward"]
    assert own.away == {}
    made = predict(sleepy, sleepy.settings.replace(mode="lazy")).timeline
    shown = made.intervals(kind="elsewhere")
    assert np.diff(shown).sum() / len(made.intervals(kind="step")) == pytest.approx(slept, rel=0.01)
    assert calibrated(replace(sleepy, step_times_ns=(9 * sleepy.step_times_ns[0],))).away == (
        found.away
    )  # a sleep takes as long in a trace
    replayed = predict(sleepy, sleepy.settings.replace(step_mode="replay")).timeline
    assert not replayed.where(kind="elsewhere").any()


def with_loading(run: Run, lane: str, asleep: float) -> tuple[Run, int]:
    """The same, loading a batch in the first half of each step's forward; so much of it asleep."""
    steps = [s for s in run.timeline.spans if s.kind == "step"]
    records = [s for s in run.timeline.spans if s.kind == "record" and s.name == "forward"]
    first = [next(s for s in records if s.start_ns >= step.start_ns) for step in steps]
    halves = [(s.start_ns, (s.stop_ns - s.start_ns) // 2) for s in first]
    loads = [Span(lane, "next batch", "input", at, at + ns) for at, ns in halves]
    sleeps = [Span(lane, "mine.py:3", "elsewhere", at, at + round(ns * asleep))
              for at, ns in halves if asleep]  # fmt: skip
    spans = [s for s in run.timeline.spans if s.kind != "input"] + loads + sleeps
    return replace(run, timeline=Timeline.of(spans)), min(ns for _, ns in halves)


def test_a_loader_that_sleeps_is_counted_once_and_takes_as_long_in_a_trace() -> None:
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.8)
    own = costs_of(run)
    assert own.away.get("forward", 0.0) == 0.0  # it is the loader's
    assert own.inputs + own.inputs_away == pytest.approx(took, rel=0.01)
    assert own.inputs_away == pytest.approx(0.8 * took, rel=0.01)
    quick = calibrated(replace(run, step_times_ns=(run.step_times_ns[0] * 3 // 4,)))
    assert quick.inputs_away == own.inputs_away
    assert quick.inputs < own.inputs
    short = replace(run, step_times_ns=(round(own.inputs_away / 2),) * 10)
    assert predict(short).step_ms == pytest.approx(short.step_ms, rel=0.01)  # it slept less then
    made = predict(run, run.settings.replace(mode="lazy")).timeline
    loaded = made.intervals(kind="input", lane="host/main")
    assert np.diff(loaded).sum() / len(made.intervals(kind="step")) >= own.inputs_away


def test_while_a_worker_prepares_a_launch_the_loader_has_no_lock() -> None:
    run, took = with_loading(measured(Settings(mode="imperative"), syncs=0), "host/main", 0.0)
    spans = [s for s in run.timeline.spans if s.kind not in ("dispatch", "kernel")]
    alone = replace(run, timeline=Timeline.of(spans))
    assert costs_of(alone).inputs == pytest.approx(took, rel=0.01)
    loads = [s for s in spans if s.kind == "input"]
    launches = [
        Span("host/worker", "launch", "dispatch", s.start_ns, s.start_ns + took // 4) for s in loads
    ]
    beside = replace(run, timeline=Timeline.of([*spans, *launches]))
    assert costs_of(beside).inputs == pytest.approx(0.75 * took, rel=0.02)
    kernels = [replace(s, lane="device/0", kind="kernel") for s in launches]  # these need no lock
    busy = replace(run, timeline=Timeline.of([*spans, *launches, *kernels]))
    assert costs_of(busy).inputs == pytest.approx(took, rel=0.01)


def test_a_loader_of_python_hides_nothing_and_one_that_sleeps_hides_all() -> None:
    """Beside a host that records, and so has Python's lock, the device having next to no work."""
    run = measured(Settings(mode="lazy"), syncs=0)
    graph, segments = run.graphs[0], run.segments
    took = 100_000 * len(graph.ops)  # to record a step, and to load a batch
    record = dict.fromkeys(("forward", "backward", "update"), 100_000.0)
    own = replace(costs_of(run), record=record, inputs=0.0, inputs_away=0.0)
    ahead = Shape(graph, segments, (0.0,) * len(segments), prefetch=2)
    alone = step_ns(replace(ahead, prefetch=0), own)
    assert step_ns(ahead, replace(own, inputs=took)) == pytest.approx(alone + took, rel=0.05)
    asleep = replace(own, inputs_away=0.9 * took)
    assert step_ns(ahead, asleep) == pytest.approx(alone, rel=0.05)
    assert step_ns(replace(ahead, prefetch=0), asleep) == pytest.approx(
        alone + 0.9 * took, rel=0.05
    )


def test_a_loader_beside_recording_waits_for_the_lock_and_one_beside_nothing_sleeps() -> None:
    run = measured(Settings(mode="lazy", prefetch=2), syncs=0)
    loading, _ = with_loading(run, "host/loader", 0.0)
    own = costs_of(loading)
    assert own.inputs > 0 == own.inputs_away
    last = run.timeline.intervals(kind="step")[-1][1]
    alone = Span("host/loader", "next batch", "input", last, last + 10_000_000)
    slow = replace(run, timeline=Timeline.of([*loading.timeline.spans, alone]))
    assert costs_of(slow).inputs_away > 0 == costs_of(slow).inputs


def test_where_nobody_measured_how_wrong_it_is_the_interval_is_unknown() -> None:
    run = measured()
    single = replace(run, step_times_ns=run.step_times_ns[:1])
    asked = {
        "device speed": predict(run, device_speed=4.0),
        "few steps": predict(single),
    }
    for what, found in asked.items():
        assert math.isnan(found.low_ms), what
        assert math.isnan(found.high_ms), what
        assert found.step_text.endswith("(± unknown)")
        assert what in found.assumptions[-1]


def test_a_replay_of_recorded_steps_is_less_sure_than_other_cuts_and_surer_than_prefetch() -> None:
    run = measured(syncs=0)

    def width(**changes: Any) -> float:
        made = predict(run, run.settings.replace(**changes))
        return made.high_ms / made.low_ms

    widths = [width(), width(mode="lazy"), width(step_mode="replay"), width(prefetch=2)]
    assert widths == sorted(widths)
    assert len(set(widths)) == 4
    assert width(step_mode="replay", mode="lazy") == pytest.approx(widths[2])
    assert width(step_mode="speculate") == pytest.approx(widths[1])


def test_a_step_is_guessed_only_where_the_runtime_would_guess_it() -> None:
    def said(run: Run) -> tuple[float, str]:
        made = predict(run, run.settings.replace(step_mode="speculate"))
        return made.step_ms, " ".join(made.assumptions)

    waits, waits_not = measured(syncs=2), measured(syncs=0)
    assert said(waits)[0] < waits.step_ms
    assert "where that takes the host more than the device gains" in said(waits)[1]
    assert said(waits_not)[0] == pytest.approx(waits_not.step_ms, rel=1e-3)
    assert "waits for nothing is not guessed" in said(waits_not)[1]

    stopped = measured(Settings(step_mode="speculate"), syncs=2)
    stopped = replace(stopped, metrics={**OVERHEADS, STOPPED: 1.0})
    retraced = replace(stopped, settings=Settings(), metrics=OVERHEADS)
    assert said(stopped)[0] == pytest.approx(predict(retraced).step_ms, rel=1e-6)
    assert "guessing does not pay" in said(stopped)[1]


def test_each_known_error_is_of_settings_that_there_are() -> None:
    names = {name.partition("=")[0] for row in KNOWN_ERRORS for name in row.settings}
    assert names < {knob.name for knob in knobs_of(Settings)}
    assert all(0 < row.at_most < 1 and row.origin for row in KNOWN_ERRORS)
