"""What the steps of a trace are where torch has marked none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.cli.main import main
from kit.errors import TraceFileError
from kit.formats.chrome.steps import Annotation, find_steps
from kit.trace import Timeline
from tests.formats.chrome.traces import cuda_trace, op, opened, step, torch_trace


def write(path: Path, name: str = "", **made: Any) -> Path:
    """The trace of two steps, each called `name` or not marked."""
    trace = cuda_trace(**made)
    kept = []
    for event in trace["traceEvents"]:
        if event["name"].startswith("ProfilerStep"):
            if not name:
                continue
            event["name"] = name
        kept.append(event)
    trace["traceEvents"] = kept
    path.write_text(json.dumps(trace))
    return path


def steps(timeline: Timeline) -> list[tuple[str, int]]:
    """Names and microseconds."""
    return [(s.name, (s.stop_ns - s.start_ns) // 1000) for s in timeline.spans if s.kind == "step"]


def said(run: kit.Run) -> str:
    return " ".join(run.timeline.notes)


def test_an_annotation_that_leaves_little_between_is_the_step(tmp_path: Path) -> None:
    run = kit.open_trace(write(tmp_path / "a.json", "train_step"))
    assert steps(run.timeline) == [("step 0", 900), ("step 1", 900)]
    assert "steps are the 2 times of 'train_step'" in said(run)
    assert run.limited_by().share > 0
    assert run.headline().step_ms == pytest.approx(0.9)


def test_an_annotation_that_repeats_before_the_loop_is_not_the_step(tmp_path: Path) -> None:
    """The steps of the loop were in none of two loads of data that came before it."""
    path = write(tmp_path / "a.json")
    trace = json.loads(path.read_text())
    updates = [e for e in trace["traceEvents"] if e["name"].startswith("Optimizer")]
    first = updates[0]["ts"] - 500
    trace["traceEvents"] += [
        {**updates[0], "name": "load shard", "ts": first + 100 * i, "dur": 100} for i in range(2)
    ]
    path.write_text(json.dumps(trace))
    assert "from one optimizer step to the next" in said(kit.open_trace(path))


def test_an_annotation_that_covers_little_of_a_trace_is_not_its_step(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json")
    trace = json.loads(path.read_text())
    updates = [e for e in trace["traceEvents"] if e["name"].startswith("Optimizer")]
    kept = [e for e in trace["traceEvents"] if e not in updates]
    kept += [{**updates[0], "name": "load shard", "ts": 1000 + i, "dur": 1} for i in range(2)]
    path.write_text(json.dumps({**trace, "traceEvents": kept}))
    assert "the whole trace counts as one step" in said(kit.open_trace(path))


def test_numbered_parts_whose_numbers_come_again_are_not_the_steps() -> None:
    """The 12 layers of three forward passes were 36 steps."""
    layers = [Annotation(f"layer_{i % 12}", 10 * i, 10 * i + 9) for i in range(36)]
    assert "the whole trace counts as one step" in find_steps(layers, (0, 360)).note
    updates = [Annotation("Optimizer.step#SGD.step", 120 * i - 1, 120 * i) for i in range(1, 4)]
    assert "from one optimizer step to the next" in find_steps(layers + updates, (0, 360)).note


@pytest.mark.parametrize(
    "name", ["block_{}", "model.layers.{}", "DecoderLayer {}", "h.{}", "transformer.h{}", "stage{}"]
)
def test_the_numbered_layers_of_one_pass_are_no_steps(name: str) -> None:
    """Of an inference trace of one pass the step was as long as a block."""
    parts = [Annotation(name.format(i), 10 * i, 10 * i + 9) for i in range(24)]
    assert find_steps(parts, (0, 240)).note.startswith("the whole trace counts as one step")
    updates = [Annotation("Optimizer.step#SGD.step", 10 * i + 6, 10 * i + 8) for i in range(24)]
    assert "steps are the 24 times" in find_steps(parts + updates, (0, 240)).note
    batches = [Annotation(f"batch_{i}", 10 * i, 10 * i + 9) for i in range(24)]
    assert "steps are the 24 times of 'batch_0' to 'batch_23'" in find_steps(batches, (0, 240)).note


def test_steps_whose_numbers_begin_anew_with_each_epoch_are_steps() -> None:
    marked = [Annotation(f"step {i % 5}", 20 * i, 20 * i + 19) for i in range(10)]
    updates = [Annotation("Optimizer.step#SGD.step", 20 * i + 15, 20 * i + 18) for i in range(10)]
    assert len(find_steps(marked + updates, (0, 200)).steps) == 10


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["resnet50"] * 9, "the 9 times of 'resnet50'"),
        ([f"step_{i}" for i in range(9)], "the 9 times of 'step_0' to 'step_8'"),
    ],
)
def test_a_number_that_is_a_part_of_the_name_or_grows_is_of_a_step(
    names: list[str], note: str
) -> None:
    found = find_steps([Annotation(x, i, i + 1) for i, x in enumerate(names)], (0, 9))
    assert len(found.steps) == 9
    assert found.note == f"steps are {note}"


def test_optimizer_steps_inside_of_a_backward_pass_are_not_the_ends_of_steps(
    tmp_path: Path,
) -> None:
    """Each parameter had a step of its own, as long as its gradient took."""
    engine = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    events = []
    for i in range(12):
        at = 10 + 100 * (i // 4) + 10 * (i % 4)
        events += [op(engine, at, 8), op("Optimizer.step#SGD.step", at + 1, 6)]
        events.append(op("aten::add_", at + 2, 4))
    for i in range(3):
        events.append(op("aten::mm", 100 * i, 9))
    assert [name for name, _ in steps(opened(tmp_path, *events))] == ["whole trace"]


def with_a_helper(events: list[dict[str, Any]], tid: int) -> list[dict[str, Any]]:
    """And a thread that prepares batches, by many short ops."""
    return events + [op("aten::stack", 3 * i, 1, tid=tid) for i in range(200)]


@pytest.mark.parametrize("optimizer", [True, False])
def test_the_thread_of_the_steps_is_not_that_with_most_of_short_ops(
    tmp_path: Path, optimizer: bool
) -> None:
    events = []
    for i in range(4):
        events.append(step(150 * i, 140) | {"name": "train_step"})
        events += [op("aten::mm", 150 * i + 10 * j, 9) for j in range(8)]
        if optimizer:
            events.append(op("Optimizer.step#SGD.step", 150 * i + 100, 20, cat="user_annotation"))
    found = opened(tmp_path, *with_a_helper(events, 2))
    assert steps(found) == [(f"step {i}", 140) for i in range(4)]


def test_the_thread_of_the_steps_is_the_one_that_launches_where_a_gpu_was_traced(
    tmp_path: Path,
) -> None:
    events = []
    for i in range(4):
        at, number = 150 * i, {"correlation": i + 1}
        events.append(step(at, 140) | {"name": "train_step"})
        events.append(op("aten::mm", at, 9))
        events.append(op("cudaLaunchKernel", at + 2, 4, cat="cuda_runtime", args=number))
        of = number | {"device": 0, "stream": 7}
        events.append(op("gemm", at + 8, 100, cat="kernel", args=of))
    found = opened(tmp_path, *with_a_helper(events, 2))
    assert steps(found) == [(f"step {i}", 140) for i in range(4)]


def test_else_steps_go_from_one_optimizer_step_to_the_next(tmp_path: Path) -> None:
    run = kit.open_trace(write(tmp_path / "a.json"))
    assert steps(run.timeline) == [("step 0", 1000)]
    assert "from one optimizer step to the next" in said(run)
    assert "profile(schedule=...)" in said(run)


def test_else_the_whole_trace_is_one_step_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json")
    trace = json.loads(path.read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "Optimizer" not in e["name"]]
    path.write_text(json.dumps(trace))
    run = kit.open_trace(path)
    assert [name for name, _ in steps(run.timeline)] == ["whole trace"]
    assert run.breakdown()
    assert "also where prof.step() is called" in said(run)
    assert "the whole trace counts as one step" in said(run)


@pytest.mark.parametrize(
    ("step_by", "found"),
    [
        ("ProfilerStep", [("step 0", 900), ("step 1", 900)]),
        ("step", [("step 0", 890), ("step 1", 890)]),  # a function: train.py(41): step
        ("aten::item", []),
        ("0.2..0.75", [("the chosen range", 550)]),
    ],
)
def test_a_reader_may_say_what_a_step_is(
    tmp_path: Path, step_by: str, found: list[tuple[str, int]]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(cuda_trace()))
    if not found:
        with pytest.raises(TraceFileError, match=r"there are: .*'ProfilerStep' \(2\)"):
            kit.open_trace(path, step_by=step_by)
        return
    assert steps(kit.open_trace(path, step_by=step_by).timeline) == found


def test_what_repeats_is_offered_before_the_functions_of_a_stack(tmp_path: Path) -> None:
    trace = cuda_trace()
    step = next(e for e in trace["traceEvents"] if "ProfilerStep#" in e.get("name", ""))
    trace["traceEvents"] += [
        {"ph": "X", "cat": "python_function", "name": f"lib.py({i}): f{i}", "ts": step["ts"],
         "dur": step["dur"], "pid": step["pid"], "tid": step["tid"], "args": {}}
        for i in range(30)
    ]  # fmt: skip
    trace["traceEvents"] = trace["traceEvents"][-30:] + trace["traceEvents"][:-30]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(trace))
    with pytest.raises(TraceFileError, match=r"there are: 'ProfilerStep' \(2\)"):
        kit.open_trace(path, step_by="nothing")


@pytest.mark.parametrize("step_by", ["5..4", "0..0", "99999..100000"])
def test_a_range_that_is_none_is_a_clear_error(tmp_path: Path, step_by: str) -> None:
    with pytest.raises(TraceFileError, match="no range of its"):
        kit.open_trace(write(tmp_path / "a.json"), step_by=step_by)


def test_the_command_line_takes_the_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.json", "epoch 3 batch")
    assert main(["view", str(path), "--step-by", "epoch 3 batch"]) == 0
    assert "steps are the 2 times of 'epoch 3 batch'" in capsys.readouterr().out
    assert main(["view", str(path), "--step-by", "nothing"]) == 1
    assert "nothing on the thread of its steps has this name" in capsys.readouterr().err


def test_a_file_that_has_its_own_steps_says_so(tmp_path: Path) -> None:
    run = kit.open_trace(write(tmp_path / "a.json"))
    run.save(tmp_path / "a.kitrun")
    with pytest.raises(TraceFileError, match="step_by is for traces that do not mark"):
        kit.open_trace(tmp_path / "a.kitrun", step_by="x")
    kit.export_trace(run, tmp_path / "b.json")
    with pytest.raises(TraceFileError, match="step_by is for other traces"):
        kit.open_trace(tmp_path / "b.json", step_by="x")


def test_a_real_profile_whose_steps_are_record_functions_has_them(tmp_path: Path) -> None:
    torch_trace(tmp_path / "a.json", steps=4, name="batch ")
    run = kit.open_trace(tmp_path / "a.json")
    assert [name for name, _ in steps(run.timeline)] == [f"step {i}" for i in range(4)]
    again = kit.open_trace(tmp_path / "a.json", step_by="batch")
    assert steps(again.timeline) == steps(run.timeline)


def test_a_name_that_is_not_there_is_answered_with_annotations_before_pythons_functions() -> None:
    frames = [Annotation(f"torch/profiler/profiler.py({i}): record", i, i + 1) for i in range(20)]
    steps = [Annotation(f"step_{i}", i, i + 1) for i in range(3)]
    with pytest.raises(TraceFileError, match=r"there are: 'step' \(3\), 'torch/profiler"):
        find_steps([*frames, *frames, *steps], (0, 30), "nosuch")
