"""The verdict where the device tells most: what it does, what it was given, and in which turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import kit
from kit.runs.verdict.verdict import Verdict
from kit.trace import Span, Timeline
from kit.trace.communication import kind_on_device
from kit.trace.devices import TORCH_CPU
from tests.factories import make_run
from tests.runs.verdict.advised import MS, busy, host, one_step
from tests.runs.verdict.advised import verdict_of as of


def test_a_busy_device_with_something_to_save_is_not_told_that_only_less_work_helps() -> None:
    found = of(one_step([busy(0, 9), host("input", 9, 10)]))
    assert [a.rule for a in found.advice] == ["input"]
    assert found.said == (
        "The device has work for most of the step: 1 ms a step could be saved beside it, and more "
        "by less work only"
    )
    assert of(one_step([busy(0, 10)])).said.endswith("only less work or a faster device would help")


def test_native_torch_on_a_cpu_is_told_what_it_computes_and_that_nothing_is_recorded() -> None:
    """The step of a huge optimizer, 83 % of it ops, was "recording-bound (12%)"."""
    environment = {"torch": "2.9", "device": "cpu (x)"}

    def native(until: float) -> Verdict:
        ops = replace(busy(0, until), lane=TORCH_CPU)
        run = one_step([ops, host("record", 0, 10)], mode="torch")
        timeline = replace(run.timeline, origin="profiled")
        return of(replace(run, timeline=timeline, environment=environment))

    assert str(native(6).limit) == "device-bound (60% of the step)"
    assert native(6).said == (
        "The device has work for most of the step: 4 ms a step could be saved beside it, and more "
        "by less work only"
    )
    assert str(native(4).limit) == "recording-bound (60% of the step)"
    assert native(4).said == "The device waits for Python, and for torch's own work around its ops"
    assert native(4).next_step.startswith("run less Python for each kernel (torch.compile")


def test_a_device_that_mostly_copies_is_told_to_copy_less_and_beside_compute() -> None:
    """95 % of the kernels' time in an export of an FSDP job were copies from the host."""
    copy = replace(busy(0, 8), name="Memcpy HtoD (Pageable -> Device)")
    said = "For 7 ms of the traced step it only copies from or to the host"
    found = of(one_step([copy, busy(7, 10)]))
    assert found.limit.what == "device"
    assert said in found.said
    assert "pinned memory" in found.next_step
    for few in (replace(copy, stop_ns=MS), replace(copy, name="Memcpy DtoD")):
        other = of(one_step([few, busy(1, 10)]))
        assert "only copies" not in other.said
        assert "pinned" not in other.next_step


def test_a_device_that_waits_for_python_in_its_program_is_told_so() -> None:
    """A callback that slept in each step was work of the device, to be made smaller."""
    call = replace(busy(0, 8), name="io_callback.1", kind=kind_on_device("io_callback.1"))
    run = one_step([call, busy(7, 10)])
    found = of(run)
    assert str(found.limit) == "callback-bound (70% of the step)"
    assert "call them less often" in found.next_step
    assert run.headline().device_busy_fraction == 0.3
    assert [(row.cause, row.total_ms) for row in run.idle] == [("host callback", 7)]
    rows = {row.category: row.exposed_ms for row in run.breakdown() if row.exposed_ms}
    assert rows == {"device busy": 3, "host callback": 7}
    assert [row.kernel.charged_ms for row in kit.kernel_table(run)] == [7, 3]


def test_a_device_that_only_calls_python_is_idle_for_that_cause() -> None:
    """Without a kernel nothing was known of it: neither busy time, nor why it was idle."""
    run = one_step([replace(busy(0, 8), name="io_callback.1", kind="callback")])
    assert str(of(run).limit) == "callback-bound (80% of the step)"
    assert run.headline().device_busy_fraction == 0
    assert {row.cause: row.total_ms for row in run.idle} == {"host callback": 8, "unknown": 2}


def launched(name: str, lengths: Sequence[float], kernels: str = "abcdef") -> kit.Run:
    """A call that launches each ms, of so many ms, and its kernel of 0.01 ms."""
    spans = []
    for at, (length, kernel) in enumerate(zip(lengths, kernels, strict=False)):
        call = replace(host("dispatch", at, at + length), name=name)
        run = replace(busy(at + length, at + length + 0.01), name=kernel)
        spans += [replace(span, segment=-2 - at) for span in (call, run)]
    return one_step(spans, mode="torch")


def test_few_long_launches_are_not_told_to_launch_less() -> None:
    """The first launch of each kernel loads its code: the advice was a larger batch."""
    found = of(launched("cudaLaunchKernel", [0.01, 0.01, 5]))
    assert found.limit.what == "dispatch"
    assert found.said.endswith(
        "Of 3 calls that launch kernels the longest took 5 ms, the others 20 µs, as where the "
        "first launch of a kernel loads its code"
    )
    assert found.next_step.startswith("trace later steps")


@pytest.mark.parametrize(
    ("name", "lengths", "kernels"),
    [
        ("cudaLaunchKernel", [1.5] * 6, "abcdef"),
        ("cudaLaunchKernel", [0.01, 2] * 4, "abababab"),  # as by a lock in each step
        ("cudaGraphLaunch", [0.01, 0.01, 5], "abc"),
        ("jit_f", [0.1, 5], "ab"),
    ],
)
def test_launches_that_are_all_long_or_are_so_each_time_are(
    name: str, lengths: list[float], kernels: str
) -> None:
    found = of(launched(name, lengths, kernels))
    assert "the first launch" not in found.said
    assert found.next_step.startswith("give each launch more to do")


def test_devices_that_take_turns_are_not_told_that_there_is_too_much_work() -> None:
    found = of(one_step([busy(0, 5), busy(5, 10, device=1)]))
    assert found.limit.what == "device"
    assert "each of the 2 for 50% of the time: they wait for each other" in found.said
    gap = of(one_step([busy(0, 4), busy(4, 9, device=1)]))  # for a tenth of the step none works
    assert gap.said.startswith("Mostly some device works, but each of the 2 for 45% of the time")


def test_a_device_that_pauses_for_an_unknown_reason_is_not_said_to_do_so_for_most_of_the_step():
    """A trace of a GPU alone: busy for 65% of its step."""
    kernels = [Span("device/0", f"k{i}", "kernel", i * MS, i * MS + 650_000) for i in range(10)]
    step = Span("host/main", "step", "step", 0, 10 * MS)
    run = replace(make_run(), timeline=Timeline.of([step, *kernels], (), "imported"))
    found = of(replace(run, graphs=(), segments=(), sync_points=(), metrics={}))
    assert (found.limit.what, round(found.limit.share, 2)) == ("unknown", 0.35)
    assert found.said.startswith("What the device waits for is not known")
