"""What launched a kernel: op, module, annotation, line and shapes, against the raw events."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import kit
from kit.formats.chrome import callers
from kit.ir import Aval
from kit.runs.device.callers import BY, callers_text, charged_by_caller
from kit.runs.device.shapes import call_cost
from kit.runs.run import Run
from kit.trace.imported import Caller

_ON_CPU = "_scaled_dot_product_flash_attention_for_cpu"  # torch's counter does not know it
PUBLISHED = Path(__file__).parents[2] / "data" / "published"
TORCH = sorted(p for p in PUBLISHED.glob("*.json.gz") if "rocprof" not in p.name)

# At a program's first region torch imports a module. In a profile with stacks the name of that
# module's code is read when the code is gone: one time in five it is no text, and torch raises.
with record_function("first"):
    pass


def event(category: str, name: str, start: float, length: float, thread: int = 1, **args: Any):
    return {
        "ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 9,
        "tid": thread, "args": args,
    }  # fmt: skip


def launch(number: int, at: float, thread: int = 1, call: str = "cudaLaunchKernel", **more: Any):
    """A call of CUDA, and the kernel that it launched: 10 us long, 100 us later."""
    where = {"device": 0, "stream": 7, "correlation": number, **more}
    return [
        event("cuda_runtime", call, at, 2, thread, correlation=number),
        event("kernel", f"kernel_{number}", at + 100, 10, 7, **where),
    ]


def opened(tmp_path: Path, events: list[Any]) -> Run:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return kit.open_trace(file)


def caller_of(run: Run, kernel: str) -> Caller:
    t = run.timeline
    (span,) = np.flatnonzero((t.name == t.names.index(kernel)) & t.where(kind="kernel"))
    found = run.caller(int(t.node[span]))
    assert found is not None
    return found


def test_callers_of_nodes_with_64_bit_numbers_are_told_apart():
    """CUPTI's nodes of CUDA graphs; times the names of ops they pass 64 bits."""
    names, nodes = np.array([0, 4, 1]), np.array([4, 0, 1 << 62])
    number, first = callers._groups([names, nodes])
    assert sorted(number.tolist()) == [0, 1, 2]
    assert len(first) == 3


def test_a_kernel_leads_to_its_op_module_annotation_and_line(tmp_path: Path):
    shapes = {"Input Dims": [[8], [4, 16], [16, 8], []],
              "Input type": ["float", "c10::Half", "c10::Half", "Scalar"]}  # fmt: skip
    run = opened(
        tmp_path,
        [
            event("python_function", "train.py(12): step", 0, 90),
            event("user_annotation", "forward", 1, 80),
            event("python_function", "nn.Module: Net_0", 2, 70),
            event("python_function", "torch/nn/modules/linear.py(124): forward", 3, 60),
            event("python_function", "nn.Module: Linear_1", 4, 50),
            event("cpu_op", "aten::linear", 5, 40),
            event("cpu_op", "aten::addmm", 6, 30, **shapes),
            *launch(1, 10),
            event("cpu_op", "mine::scale", 40, 4),
            *launch(2, 41),
        ],
    )
    found = caller_of(run, "kernel_1")
    assert found.op == "aten::addmm"
    assert found.module == ("Net_0", "Linear_1")
    assert found.annotation == ("forward",)
    assert found.site == "train.py:12"
    assert found.shapes == "float32[8], float16[4,16], float16[16,8]"
    assert not found.is_backward
    assert call_cost(found).flops == 2 * 4 * 16 * 8
    assert caller_of(run, "kernel_2").op == "mine::scale"


def test_what_runs_in_an_annotation_is_not_of_the_function_that_began_it(tmp_path: Path):
    """`with region():` is a function that ends at once; what runs in the block is the caller's."""
    run = opened(
        tmp_path,
        [
            event("python_function", "train.py(7): train", 0, 200),
            event("python_function", "helpers.py(3): region", 10, 10),
            event("python_function", "torch/_ops.py(1267): __call__", 12, 7),
            event("user_annotation", "part", 15, 100),
            event("python_function", "nn.Module: Linear_0", 30, 20),
            event("cpu_op", "aten::addmm", 31, 9),
            *launch(1, 32),
            event("cpu_op", "aten::item", 60, 30),
            event("cuda_runtime", "cudaStreamSynchronize", 61, 20, correlation=2),
            *launch(3, 130),
        ],
    )
    found = caller_of(run, "kernel_1")
    assert (found.module, found.annotation, found.site) == (("Linear_0",), ("part",), "train.py:7")
    assert [(s.site, s.via) for s in run.sync_points] == [("train.py:7", "")]
    found = caller_of(run, "kernel_3")
    assert (found.annotation, found.site) == ((), "train.py:7")


@contextmanager
def region(name: str) -> Iterator[None]:
    with record_function(name):
        yield


def test_what_a_helper_annotates_is_not_of_the_line_of_the_helper(tmp_path: Path):
    x = torch.randn(4, 4)
    how: Any = {"activities": [ProfilerActivity.CPU], "with_stack": True, "acc_events": True}
    with profile(**how) as profiler, region("part"):
        (x @ x).sum().item()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    run = kit.open_trace(tmp_path / "trace.json")
    helpers = region.__wrapped__.__code__.co_firstlineno  # type: ignore[attr-defined]
    sites = {one.site for one in run.callers if one.annotation == ("part",)}
    assert len(sites) == 1
    assert not sites.pop().endswith(f":{helpers}")
    assert [s.via for s in run.sync_points] == [""]


def backward(number: int, thread: int, forward_thread: int, at: float) -> list[Any]:
    """A function of autograd's, its op and the kernel of it."""
    sent = {"Sequence number": number, "Fwd thread id": forward_thread}
    name = "autograd::engine::evaluate_function: MmBackward0"
    return [
        event("cpu_op", name, at, 20, thread, **sent),
        event("cpu_op", "aten::mm", at + 1, 10, thread),
        *launch(int(at), at + 2, thread),
    ]


def test_a_gradient_is_of_the_module_whose_op_has_its_sequence_number(tmp_path: Path):
    """Two threads count for themselves; of ops with one number the last makes the gradient."""
    events = []
    for thread, numbers in ((1, (3, 4, 5)), (2, (4, 90))):
        for i, number in enumerate(numbers):
            at = 100.0 * i
            events += [
                event("python_function", f"nn.Module: On{thread}_{number}", at, 50, thread),
                event("cpu_op", "aten::view", at + 1, 5, thread, **{"Sequence number": number}),
                event("cpu_op", "aten::mm", at + 10, 5, thread, **{"Sequence number": number}),
            ]
    # 3 and 5 are numbers of thread 1 alone, and 90 of thread 2
    events += backward(5, 3, 1, 1000) + backward(4, 3, 1, 1100) + backward(3, 3, 1, 1200)
    events += backward(90, 4, 2, 1300) + backward(4, 4, 2, 1400) + backward(6, 3, 1, 1500)
    run = opened(tmp_path, events)
    modules = {at: caller_of(run, f"kernel_{at}").module for at in range(1000, 1600, 100)}
    assert modules == {
        1000: ("On1_5",), 1100: ("On1_4",), 1200: ("On1_3",), 1300: ("On2_90",),
        1400: ("On2_4",), 1500: (),
    }  # fmt: skip
    assert all(caller_of(run, f"kernel_{at}").is_backward for at in modules)


def test_gradients_of_many_threads_are_found_and_of_too_many_those_of_the_busiest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file of 1,600 threads took 52 s of the processor: each was compared with each."""
    events: list[Any] = []
    for thread in range(2, 42):
        events.append(event("python_function", f"nn.Module: On_{thread}", 0, 50, thread))
        events += [event("cpu_op", "aten::mm", 10.0 * i, 5, thread, **{"Sequence number": number})
                   for i, number in enumerate(range(thread, 2 * thread))]  # fmt: skip
        events += backward(2 * thread - 1, 50, thread, 1000 + 40 * thread)
        events += backward(thread, 50, thread, 1020 + 40 * thread)
    for most, known in ((callers._MOST_THREADS, 40), (7, 7)):
        monkeypatch.setattr(callers, "_MOST_THREADS", most)
        run = opened(tmp_path, events)
        found = {run.caller(int(n)).module for n in run.timeline.node[run.timeline.node >= 0]}
        assert found - {()} == {(f"On_{thread}",) for thread in range(42 - known, 42)}


def test_what_a_cuda_graph_replays_has_its_node_and_not_the_arithmetic_of_an_op(tmp_path: Path):
    shapes = {"Input Dims": [[4, 16], [16, 8]], "Input type": ["float", "float"]}
    run = opened(
        tmp_path,
        [
            event("cpu_op", "aten::mm", 0, 50, **shapes),
            *launch(1, 10, call="cudaGraphLaunch", **{"graph node id": 17}),
        ],
    )
    found = caller_of(run, "kernel_1")
    assert (found.graph_node, found.inputs) == (17, ())
    assert math.isnan(call_cost(found).flops)


def test_several_kernels_of_one_op_share_no_arithmetic_among_them(tmp_path: Path):
    shapes = {"Input Dims": [[4, 16], [16, 8]], "Input type": ["float", "float"]}
    run = opened(
        tmp_path,
        [
            event("cpu_op", "aten::mm", 0, 50, **shapes),
            *launch(1, 10),
            *launch(2, 20),
            event("cpu_op", "aten::mm", 300, 50, **shapes | {"Input Dims": [[2, 16], [16, 8]]}),
            *launch(3, 310),
        ],
    )
    flops = {row.kernel.name: row.flops for row in kit.kernel_table(run)}
    assert math.isnan(flops["kernel_1"])
    assert math.isnan(flops["kernel_2"])
    assert flops["kernel_3"] == 2 * 2 * 16 * 8
    (row,) = kit.caller_table(run, "op")
    assert row.flops == 2 * 4 * 16 * 8 + 2 * 2 * 16 * 8  # said at the op
    assert row.gflop_s == pytest.approx(row.flops / 30_000)


def test_a_rate_of_arithmetic_is_of_one_gpu(tmp_path: Path):
    """Of two that compute at the same time it was that of both together."""
    shapes = {"Input Dims": [[4, 16], [16, 8]], "Input type": ["float", "float"]}
    events = [event("cpu_op", "aten::mm", 0, 50, **shapes), *launch(1, 10)]
    (first,) = [e for e in events if e["cat"] == "kernel"]
    events.append(event("cpu_op", "aten::mm", 60, 30, **shapes))
    call, kernel = launch(2, 70)
    kernel |= {"ts": first["ts"], "args": kernel["args"] | {"device": 1}}
    run = opened(tmp_path, [*events, call, kernel])
    (row,) = kit.caller_table(run, "op")
    assert row.total_ms == pytest.approx(first["dur"] / 1e3)
    assert row.gflop_s == pytest.approx(2 * 4 * 16 * 8 / (first["dur"] * 1e3))
    assert {kernel.gflop_s for kernel in kit.kernel_table(run)} == {row.gflop_s}


@pytest.mark.parametrize(
    "args",
    [
        {"Input Dims": 5, "Input type": "float"},
        {"Input Dims": [[-1, 3]], "Input type": ["float"]},
        {"Input Dims": [[1 << 60, 1 << 60]], "Input type": ["float"]},
        {"Input Dims": [[[2], [3]], [3, 4]], "Input type": ["TensorList", "float"]},
        {"Input Dims": [[2, 3], [9, 4]], "Input type": ["float", "float"]},
        {"Input Dims": [[2, 3]], "Input type": ["<b>", "float"]},
        {"Input Dims": [[], []], "Input type": ["float", "float"]},
    ],
)
def test_arguments_that_are_not_torchs_give_no_number(tmp_path: Path, args: dict[str, Any]):
    run = opened(tmp_path, [event("cpu_op", "aten::mm", 0, 50, **args), *launch(1, 10)])
    assert math.isnan(call_cost(caller_of(run, "kernel_1")).flops)
    assert "aten::mm" in callers_text(run, "op")


@pytest.mark.parametrize("file", TORCH, ids=lambda p: p.stem)
def test_published_traces_agree_with_a_search_through_their_events(file: Path):
    """Each kernel's call by its number, and around that call all events that cover it."""
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    whole = [e for e in events if e.get("ph") == "X"]
    calls = {
        e["args"]["correlation"]: e
        for e in whole
        if e["cat"] in ("cuda_runtime", "cuda_driver")
        and e["name"].startswith(("cudaL", "cuL", "cudaM", "hip"))
    }
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for e in whole:
        if e["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        call = calls.get(e["args"]["correlation"])
        around = [] if call is None else [
            x for x in whole
            if (x["pid"], x["tid"]) == (call["pid"], call["tid"]) and x is not call
            and x["ts"] <= call["ts"] < x["ts"] + x["dur"]
        ]  # fmt: skip
        around.sort(key=lambda x: (x["ts"], -x["dur"]))
        engine = any(x["name"].startswith("autograd::engine") for x in around)
        ops = [x["name"] for x in around if x["cat"] == "cpu_op" and "::engine" not in x["name"]]
        modules = [x["name"][11:] for x in around if x["name"].startswith("nn.Module: ")]
        notes = [x["name"] for x in around if x["cat"] == "user_annotation"]
        notes = [name for name in notes if not name.startswith("ProfilerStep")]
        sums["op"][ops[-1] if ops else ""] += e["dur"]
        sums["annotation"]["/".join(notes)] += e["dur"]
        sums["module"]["/".join(modules)] += e["dur"] * (not engine)
    run = kit.open_trace(file)
    t = run.timeline
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in np.flatnonzero(t.where(kind=("kernel", "communication"))).tolist():
        caller = run.caller(int(t.node[span])) or Caller()
        length = (t.stop_ns[span] - t.start_ns[span]) / 1e3
        found["op"][caller.op] += length
        found["annotation"]["/".join(caller.annotation)] += length
        found["module"]["/".join(caller.module)] += length * (not caller.is_backward)
    for by, expected in sums.items():
        assert found[by] == pytest.approx(expected, abs=0.002 * len(t)), by


@pytest.mark.parametrize("by", BY)
def test_the_outermost_rows_add_up_to_the_busy_time(by: str):
    run = kit.open_trace(PUBLISHED / "mi300_bert.json.gz")
    rows = kit.caller_table(run, by)
    busy = charged_by_caller(run)[0].sum() / 1e6
    assert sum(row.total_ms for row in rows if row.depth == 0) == pytest.approx(busy)
    assert sum(row.self_ms for row in rows) == pytest.approx(busy)


class Small(nn.Module):
    """An encoder and a convolution: what training does most."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.conv(x).flatten(2).transpose(1, 2)
        return self.head(self.encoder(rows)).sum()


def _forward_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _backward_flops(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, q, k, v)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """A step of torch on the CPU, with shapes and stacks; and what torch counts of it."""
    model, x = Small(), torch.rand(2, 3, 8, 8, requires_grad=True)
    formulas = {_ON_CPU: _forward_flops, f"{_ON_CPU}_backward": _backward_flops}
    mapping = {getattr(torch.ops.aten, name): formula for name, formula in formulas.items()}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        model(x).backward()
    with (
        profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, acc_events=True
        ) as prof,
        record_function("the step"),
    ):
        model(x).backward()
    file = tmp_path_factory.mktemp("callers") / "trace.json"
    prof.export_chrome_trace(str(file))
    return kit.open_trace(file), counter.get_total_flops()


def test_the_arithmetic_is_what_torch_counts(traced: tuple[Run, int]):
    run, expected = traced
    flops = [call_cost(c).flops * c.calls for c in run.callers]
    assert sum(x for x in flops if not math.isnan(x)) == expected


def test_forward_and_backward_are_of_their_modules(traced: tuple[Run, int]):
    run, _ = traced
    own = {c.op: c.site for c in run.callers if c.is_backward}
    assert own["aten::convolution_backward"].rpartition(":")[0] in __file__
    places = {(c.op, c.module[-1][:6], c.is_backward) for c in run.callers if c.module}
    assert ("aten::conv2d", "Conv2d", False) in places
    assert ("aten::convolution_backward", "Conv2d", True) in places
    files = {c.site.rpartition(":")[0] for c in run.callers if c.site}
    assert any(__file__.endswith(file) for file in files)
    assert any("the step" in c.annotation for c in run.callers)


def test_a_saved_run_keeps_its_callers(tmp_path: Path, traced: tuple[Run, int]):
    run, _ = traced
    run.save(tmp_path / "a.kitrun")
    assert kit.Run.load(tmp_path / "a.kitrun").callers == run.callers


def test_callers_are_asked_in_sql(traced: tuple[Run, int]):
    run, expected = traced
    (whole,) = run.query("select sum(flops * calls) from callers").rows[0]
    assert whole == expected
    asked = "select count(*) from spans s join callers c on c.caller = s.caller where s.op = c.op"
    assert run.query(asked).rows[0][0] == int((run.timeline.node >= 0).sum())


def test_a_number_beside_an_array_does_not_widen_what_is_written() -> None:
    array, number = Aval((1000,), "bfloat16"), Aval((), "float64")  # as torch records `x * 0.5`
    found = call_cost(Caller("aten::mul", inputs=(array, number)))
    assert (found.bytes_read, found.bytes_written) == (2008, 2000)
    assert call_cost(Caller("aten::mul", inputs=(number, number))).bytes_written == 8


def test_what_a_product_of_scaled_numbers_writes_is_not_known_from_its_shapes() -> None:
    left, right = Aval((16, 32), "float8_e4m3fn"), Aval((32, 8), "float8_e4m3fn")
    found = call_cost(Caller("aten::_scaled_mm", inputs=(left, right)))
    assert found.flops == 2 * 16 * 32 * 8
    assert math.isnan(found.bytes_written)
