"""Kernels of a GPU belong to the run that launched them: real profiles of GPUs do not number it."""

from __future__ import annotations

import gzip
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import kit
from kit.runtime.profiling.device_spans import Profile
from kit.runtime.profiling.launches import _Ran, issues_of, number_runs
from kit.trace.planes import DeviceEvent, device_events
from tests.runtime.profiling.test_tracing import traced
from tests.trace.test_planes import plane

PUBLISHED = Path(__file__).parents[2] / "data" / "published" / "mi300_jax.xplane.pb.gz"


def test_of_eight_gpus_that_ran_a_module_five_times_one_has_lost_kernels(tmp_path: Path) -> None:
    """Threads of calls and threads of runs have no common name there, and all run at once."""
    file = tmp_path / "host.xplane.pb"
    file.write_bytes(gzip.decompress(PUBLISHED.read_bytes()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the reader's types
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
        kernels = device_events(planes)
        number_runs(kernels, planes, {"jit_forward_3d_conv": 40})
    runs = Counter(k.run for k in kernels if k.module == "jit_forward_3d_conv")
    assert runs.pop(None) == 23  # of device 0, which must have run 25: nobody knows what is missing
    assert set(runs.values()) == {5}  # each run has five kernels
    assert Counter(device for device, _ in runs) == {f"device/{i}": 5 for i in range(1, 8)}


def on_a_gpu(planes: Any, *, has_calls: bool) -> list[Any]:
    """A CPU's profile in the form of a GPU's: no run is numbered, and calls launch the kernels.

    They are launched before they run, and one run's kernels before the next one's.
    """
    runs: dict[Any, list[Any]] = defaultdict(list)
    for event in (e for seen in planes for line in seen.lines for e in line.events):
        stats = dict(event.stats)
        if "hlo_op" in stats and not event.name.startswith(("end: ", "Wait for ")):
            runs[stats["run_id"]].append((event, stats["hlo_module"]))
    calls: list[Any] = []
    kernels: list[Any] = []
    order = sorted(runs.values(), key=lambda run: min(event.start_ns for event, _ in run))
    for number, run in enumerate(order):
        began = 1000 * number
        module = run[0][1]
        calls.append((f"{module}:XLA GPU module", began + 5, began + 900, {}))
        for event, _ in sorted(run, key=lambda pair: pair[0].start_ns):
            launch = len(kernels) + 7
            facts = {"hlo_op": event.name, "hlo_module": module, "correlation_id": launch}
            calls.append(("cuLaunchKernelEx", began + 3, began + 4, facts))  # by another clock
            kernels.append((event.name, event.start_ns, event.end_ns, facts))
    kernels.append(("MemcpyH2D", 0, 9, {"correlation_id": 5}))
    host = plane("/host:CPU", **{"Host Threads/9": calls if has_calls else []})
    return [host, plane("/device:GPU:0", **{"Stream #13(Kernel)": kernels})]


@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
@pytest.mark.parametrize("has_calls", [True, False])
def test_a_gpus_kernels_have_the_segments_and_nodes_that_a_cpus_have(
    monkeypatch: pytest.MonkeyPatch, has_calls: bool
) -> None:
    found: list[list[Any]] = []
    original = Profile.kernels

    def kernels(self: Profile, tasks: Any, nodes: Any) -> list[Any]:
        data = self._data
        for planes in (list(data.planes), on_a_gpu(data.planes, has_calls=has_calls)):
            self._data = SimpleNamespace(planes=[p for p in planes if p.name != "Task Environment"])
            spans = original(self, tasks, nodes)
            found.append([(s.name, s.segment, s.node, s.stop_ns - s.start_ns) for s in spans])
        self._data = data
        return original(self, tasks, nodes)

    monkeypatch.setattr(Profile, "kernels", kernels)
    with kit.Session(kit.Settings(bulk_forward=5)) as session:
        traced(session)
    cpu, gpu = found
    assert len({segment for _, segment, *_ in cpu}) > 6  # of several steps, several each
    assert Counter(gpu) - Counter(cpu) == Counter({("MemcpyH2D", -1, -1, 9): 1})


def test_runs_that_the_calls_do_not_tell_apart_are_unknown_unless_they_are_alike() -> None:
    """With three kernels of two runs nobody knows which has two."""
    facts = {"hlo_op": "dot", "hlo_module": "jit_f"}
    events: list[Any] = [("gemm", i, i + 1, {**facts, "correlation_id": i}) for i in (1, 2, 3)]
    planes = [plane("/device:GPU:0", **{"Stream #1": events})]
    for issued, wanted in ((1, [0, 0, 0]), (2, [None] * 3), (3, [0, 1, 2])):
        kernels = device_events(planes)
        number_runs(kernels, planes, {"jit_f": issued})
        assert [k.run and k.run[1] for k in kernels] == wanted


def test_each_of_many_runs_is_found_by_its_time_without_going_through_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, asked = 500, 0
    apart = _Ran.apart

    def counted(run: _Ran, at_ns: float) -> float:
        nonlocal asked
        asked += 1
        return apart(run, at_ns)

    monkeypatch.setattr(_Ran, "apart", counted)
    calls: list[Any] = [("m:XLA GPU module", 10 * i, 10 * i + 8, {}) for i in range(count)]
    calls += [("launch", 10 * i + 4, 10 * i + 5, {"correlation_id": 1 + i}) for i in range(count)]
    kernels = [DeviceEvent("device/0 stream 1", "k", "m", None, i, i + 1) for i in range(count)]
    for i, kernel in enumerate(kernels):
        kernel.launch = 1 + i
    number_runs(kernels, [plane("/host:CPU", **{"Host Threads/9": calls})], {"m": count})
    assert len({kernel.run for kernel in kernels}) == count
    assert asked <= 2 * count


def test_of_runs_in_the_time_of_one_launch_its_own_is_the_one_that_fills_it() -> None:
    """Two sessions run the same program at once: a run's number says nothing of whose it is."""
    tasks = [
        SimpleNamespace(seen=SimpleNamespace(dispatch_ns=times)) for times in ((0, 90), (200, 290))
    ]
    issued = [(task, "executable", 0) for task in tasks]
    times = {"a": (-50, -10), "b": (20, 60), "c": (10, 80), "d": (205, 280), "e": (100, 150)}
    kernels = [
        DeviceEvent("device/0 thread 1", "k", "m", run, *times) for run, times in times.items()
    ]
    found, foreign = issues_of(kernels, {"m": issued})  # type: ignore[dict-item]
    assert found == {("m", "c"): issued[0], ("m", "d"): issued[1]}
    assert foreign == 3
