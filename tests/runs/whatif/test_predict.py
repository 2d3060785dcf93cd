"""What-if predictions: what must follow from the model, and what it refuses to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.ir.plan import OpStream, plan
from kit.runs.labels import WATCHED
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import costs_of
from kit.runs.whatif.predict import Model, Prediction, calibrated, predict
from kit.runs.whatif.question import Question
from kit.runs.whatif.steps import Shape, accumulated, step_ns
from kit.runs.whatif.waits import SCALER, STOPPED
from kit.trace import SyncPoint
from kit.trace.syncs import sync_table
from tests.factories import empty_run, make_run
from tests.runs.whatif.measured import CHECK, ON_DEVICE, OVERHEADS, measured, with_scaler


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


def test_one_place_without_its_list_takes_no_other_wait_away():
    with pytest.raises(SettingsError, match=r"must be a list of sync points: \['a\.py:1'\]"):
        predict(with_scaler(), without="a.py:1")


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
    with pytest.raises(SettingsError, match="a run is needed"):
        predict([])


def test_a_replayed_run_does_not_say_what_recording_costs():
    run = replace(measured(Settings(step_mode="replay"), syncs=0), metrics={"replay.steps": 9.0})
    with pytest.raises(SettingsError, match="predict from a run with step_mode='retrace'"):
        predict(run, Settings())


def test_hostile_names_and_many_waits_are_taken_as_they_are():
    run = measured(syncs=3, hostile=True)
    assert isinstance(predict(run, Settings(bulk_forward=2)), Prediction)


def test_a_model_answers_as_predict_does():
    run = measured()
    model = Model(run)
    for wanted in (run.settings, Settings(mode="lazy"), Settings(bulk_forward=3)):
        assert model.answer(Question(wanted)).step_ms == predict(run, wanted).step_ms


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


def test_a_run_that_recorded_each_step_though_it_was_to_replay_is_not_one_of_replays():
    asked = Settings(step_mode="replay")
    run, plain = measured(asked), measured()
    for speed in (1.0, 10.0):
        found = predict(run, device_speed=speed)
        assert found.step_ms == predict(plain, device_speed=speed).step_ms
        assert found.settings == asked
        assert any("had to record each" in text for text in found.assumptions)
    assert predict(run, Settings()).step_ms == predict(plain, Settings()).step_ms


def test_a_step_that_goes_on_after_its_update_is_not_repeated():
    run = measured(syncs=0)
    (graph,) = run.graphs
    last = max(i for i in graph.ops if graph.nodes[i].phase == "update")
    again = replace(graph.nodes[last], phase="forward", inputs=((last, 0),))
    longer = replace(graph, nodes=(*graph.nodes, again))
    with pytest.raises(SettingsError, match="goes on after its update"):
        accumulated(longer, 2)


def forward_only(settings: Settings, cut: int) -> Run:
    """A step of a forward pass, whose segments hold so many ops."""
    run = measured(settings, syncs=0)
    (graph,) = run.graphs
    nodes = tuple(replace(n, phase=n.phase and "forward") for n in graph.nodes)
    graph = replace(graph, nodes=nodes)
    return replace(run, graphs=(graph,), segments=plan(OpStream.of(graph, ()), cut, cut))


def test_a_forward_pass_without_gradients_is_cut_by_the_size_for_inference():
    run = forward_only(Settings(bulk_forward=3), 10**6)
    assert len(run.segments) == 1
    assert predict(run, run.settings.replace(bulk_backward=50)).segments == 1
    smaller = predict(run, run.settings.replace(bulk_inference=10))
    assert smaller.segments > 1
    assert any("without gradients" in text for text in smaller.assumptions)
    short = forward_only(Settings(bulk_forward=15), 10**6)
    assert 15 < len(short.segments[0].nodes) <= 30
    assert predict(short, short.settings.replace(bulk_backward=50)).segments == 1
    training = forward_only(Settings(bulk_forward=3), 3)
    assert predict(training, training.settings.replace(bulk_inference=10)).segments > 5


def test_a_step_that_validates_without_gradients_is_not_cut_again():
    run = measured(Settings(bulk_forward=3, bulk_backward=3), syncs=0)
    run = replace(run, segments=plan(OpStream.of(run.graphs[0], ()), 10**6, 3))
    with pytest.raises(SettingsError, match="a part without gradients"):
        predict(run, run.settings.replace(bulk_forward=10))


def test_a_watched_run_is_not_said_to_have_a_batch_size():
    run = measured()
    watched = replace(run, environment={**run.environment, WATCHED: "train.py:3"})
    assert "batch 8" in predict(run).of
    assert "batch" not in predict(watched).of
