"""The lines, modules and arrays of native steps, against marks in the steps themselves."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import kit
from kit.measure.native.events import is_outermost
from kit.measure.native.lines import Lines, ModuleNames
from kit.runs.analysis.lines import line_costs
from kit.runs.run import Run
from kit.runs.verdict.summary import summary
from kit.widgets.numbers.callers import callers_drawn
from tests.measure.native.looked_at import Step, profiled

pytestmark = pytest.mark.usefixtures("one_torch_thread")
HERE = Path(__file__).name


@pytest.fixture
def metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package that reads a number."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "made_metric.py").write_text("def read(x):\n    return x.item()\n")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("made_metric")
    del sys.modules["made_metric"]


def test_a_wait_in_a_package_is_the_users_line_as_on_device_kit(metric: Any) -> None:
    """It was the package's line, and a diff with device kit had one line gone and one new."""
    with Lines("cpu", ModuleNames()) as lines:
        metric.read(torch.ones(()))
        here = sys._getframe().f_lineno - 1
    assert lines.places == {"item": [(f"{HERE}:{here}", "made_metric.py:2")]}
    with kit.Session() as session:
        metric.read(torch.ones((), device="kit"))
        here = sys._getframe().f_lineno - 1
        (sync,) = session.syncs
    assert (sync.site, sync.via) == (f"{HERE}:{here}", "made_metric.py:2")


class Marked:
    """`marked[line]` around a part of a step: its events say which line they are of."""

    def __getitem__(self, line: str) -> Any:
        return torch.profiler.record_function(f"line {line}")


marked = Marked()


def of_layers() -> Step:
    torch.manual_seed(0)
    first, norm, last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
    net = nn.ModuleList([first, norm, last])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))

    def step() -> torch.Tensor:
        with marked["a"]:
            hidden = first(x)
        with marked["b"]:
            hidden = F.gelu(norm(hidden))
        with marked["c"]:
            hidden = hidden[:, :16].reshape(6, 2, 8).transpose(1, 2).flatten(1)
        with marked["d"]:
            out = last(hidden)
        with marked["e"]:
            loss = F.cross_entropy(out, y)
        with marked["f"]:
            optimizer.zero_grad()
        loss.backward()
        with marked["g"]:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        with marked["h"]:
            optimizer.step()
        return loss

    return step


def of_attention() -> Step:
    """Ops that torch takes apart otherwise while it is looked at."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 5, 16)

    def step() -> torch.Tensor:
        with marked["a"]:
            out = layer(x)
        with marked["b"]:
            mixed = torch.einsum("bij,bkj->bik", out, out)
        with marked["c"]:
            loss = mixed[mixed > 0].mean() + out.norm()
        with marked["d"]:
            optimizer.zero_grad()
        loss.backward()
        with marked["e"]:
            optimizer.step()
        return loss

    return step


def of_autocast() -> Step:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    last, x = nn.Linear(4 * 36, 2), torch.randn(2, 3, 8, 8)

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            with marked["a"]:
                hidden = net(x)
            with marked["b"]:
                out = last(hidden)
        with marked["c"]:
            loss = out.float().square().mean()
        loss.backward()
        return loss

    return step


def mark_of(event: Any) -> str:
    while event is not None and not event.name.startswith("line "):
        event = event.cpu_parent
    return "" if event is None else str(event.name).removeprefix("line ")


def line_of_mark(step: Step, mark: str) -> range:
    """The lines of the block that has this mark."""
    code = Path(__file__).read_text(encoding="utf-8").splitlines()
    at = step.__code__.co_firstlineno
    while f'marked["{mark}"]' not in code[at - 1]:
        at += 1
    return range(at + 1, at + 2)


@pytest.mark.parametrize("make", [of_layers, of_attention, of_autocast])
def test_each_op_has_the_line_that_called_it(make: Callable[[], Step]) -> None:
    step = make()
    events, found = profiled(step)
    known = count = 0
    marks = set()
    for e in events:
        mark = mark_of(e)
        if not mark or not is_outermost(e):
            continue
        caller = found.callers[found.of(e)]
        count += 1
        if caller.site:
            lines = line_of_mark(step, mark)
            assert caller.site in {f"{HERE}:{line}" for line in lines}, (e.name, mark)
            known += 1
            marks.add(mark)
        assert not caller.is_backward
    assert known > 0.9 * count
    assert len(marks) >= 3


def test_modules_are_named_by_class_and_order_and_are_not_kept() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def step_of(net: nn.Module) -> Step:
        def step() -> torch.Tensor:
            loss = net(torch.ones(2, 4)).sum()
            loss.backward()
            return torch.as_tensor(loss)

        return step

    net = Net()
    _, found = profiled(step_of(net))
    assert {c.module for c in found.callers if c.op == "aten::addmm"} == {
        ("Net_0", "Linear_0"),
        ("Net_0", "Linear_1"),
    }
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_steps_of_two_sorts_by_turns_have_their_lines_and_a_third_has_none() -> None:
    weight = nn.Parameter(torch.ones(40, 40))
    calls = iter(range(99))

    def step() -> torch.Tensor:
        call = next(calls)
        loss = weight.sum()
        for _ in range(20 * (call % 2)):
            loss = loss + (weight @ weight).exp().sum()
        for _ in range(20 * (call == 3)):
            loss = loss + torch.linalg.inv(weight + torch.eye(40)).sum()
        return loss

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    lines = {c.op: c.site for c in found.callers}
    assert lines["aten::mm"] == f"{HERE}:{first + 4}"
    assert lines["aten::linalg_inv"] == ""
    assert "1 of 2 traced steps called other ops" in found.notes[0]


def test_steps_of_the_same_ops_on_two_lines_by_turns_have_none() -> None:
    """Which line a traced step has taken is not known: none is better than a wrong one."""
    experts, calls = nn.ModuleList([nn.Linear(40, 40), nn.Linear(40, 40)]), iter(range(99))
    x = torch.ones(40, 40)

    def step() -> torch.Tensor:
        if next(calls) % 2:
            hidden = experts[1](x)
            hidden = hidden.exp()
        else:
            hidden = experts[0](x)
            hidden = hidden.exp()
        loss: torch.Tensor = hidden.tanh().sum()
        loss.backward()
        return loss

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    lines = {(c.op, c.is_backward): (c.site, c.module) for c in found.callers}
    assert lines["aten::addmm", False] == ("", ())
    assert lines["aten::mm", True] == ("", ())
    assert lines["aten::tanh", False] == (f"{HERE}:{first + 7}", ())
    assert "steps call the same ops on different lines by turns" in found.notes[0]


def test_a_composite_of_the_name_of_what_it_calls_is_no_other_op() -> None:
    """`torch.where(mask, x, 0.0)` makes a tensor of its number, and calls `aten::where` again."""
    x, calls = torch.randn(64, 64), []

    def step() -> torch.Tensor:
        calls.append(0)
        y = torch.where(x > 0, x, 0.0) + x
        for _ in range(20 * (len(calls) == 5)):  # the second traced step
            y = y.exp().logsumexp(0, keepdim=True) + x
        return y

    _, found = profiled(step)
    assert "1 of 2 traced steps called other ops" in " ".join(found.notes)
    assert {c.calls for c in found.callers if c.op == "aten::where"} == {2}


def test_each_step_has_the_sizes_of_its_own_batch() -> None:
    sizes = iter(range(10, 99))

    def step() -> torch.Tensor:
        rows = torch.ones(next(sizes), 6)
        loss = (rows @ torch.ones(6, 4, requires_grad=True)).sum()
        loss.backward()
        return loss

    _, found = profiled(step)  # three steps come before
    products = [(c.shapes, c.is_backward) for c in found.callers if c.op == "aten::mm"]
    assert sorted(products) == [
        ("float32[13,6], float32[6,4]", False),
        ("float32[14,6], float32[6,4]", False),
        ("float32[6,13], float32[13,4]", True),
        ("float32[6,14], float32[14,4]", True),
    ]


def test_a_convolution_of_another_stride_has_no_shapes() -> None:
    strides = iter([1, 1, 1, 1, 2])
    x, weight = torch.ones(2, 3, 20), torch.ones(5, 3, 2)

    def step() -> torch.Tensor:
        return F.conv1d(x, weight, stride=next(strides)).sum()

    _, found = profiled(step)
    shapes = {c.shapes: c.others[3:4] for c in found.callers if c.op == "aten::convolution"}
    assert shapes == {"float32[2,3,20], float32[5,3,2]": ("[1]",), "": ()}


def test_an_op_of_a_library_has_its_line() -> None:
    """The kernels are aten's, inside of an op that is none of aten's."""

    @torch.library.custom_op("kit_tests::cubed", mutates_args=())
    def cubed(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    x = torch.ones(50, 50)

    def step() -> torch.Tensor:
        y = cubed(x)
        return y.sum()

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    assert {c.op: c.site for c in found.callers} == {
        "kit_tests::cubed": f"{HERE}:{first + 1}",
        "aten::sum": f"{HERE}:{first + 2}",
    }
    assert next(c.kernels for c in found.callers if "cubed" in c.op) == 4


def test_what_is_looked_at_computes_as_ever() -> None:
    """Checkpoints, functions of the user's, compiled ones, and an op that takes functions."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0] * 2

    layer = nn.Linear(4, 4)
    compiled = torch.compile(lambda x: x.relu() * 3, backend="eager")
    x = torch.ones(2, 4)

    def loss() -> torch.Tensor:
        hidden = checkpoint(lambda x: torch.tanh(layer(x)), x, use_reentrant=False)
        picked = torch.cond(
            torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (hidden.detach(),)
        )
        return (Double.apply(hidden) + layer(compiled(x)) + picked).sum()

    expected = loss()
    expected.backward()
    wanted = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    with Lines("cpu", ModuleNames()) as look:
        again = loss()
        again.backward()
    assert torch.equal(again, expected)
    assert [torch.equal(a, p.grad) for a, p in zip(wanted, layer.parameters(), strict=True)] == [
        True,
        True,
    ]
    assert {"aten::tanh", "aten::addmm"} <= {op.name for op in look.ops}


def test_a_native_run_says_its_lines_in_every_form(tmp_path: Path) -> None:
    def mine(ctx: Any) -> Step:
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(ctx.device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(128, 64, device=ctx.device)

        def step() -> torch.Tensor:
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    made = kit.run(mine, mode="torch", device="cpu", steps=4, warmup=1)
    made.save(tmp_path / "native.kitrun")
    made = Run.load(tmp_path / "native.kitrun")
    (site,) = {c.site for c in made.callers if c.op == "aten::addmm"}
    number = int(site.rpartition(":")[2])
    code = "loss = net(x).square().mean()"
    assert code in Path(__file__).read_text(encoding="utf-8").splitlines()[number - 1]
    assert code in summary(made)
    assert "launched by (line)" in summary(made)
    assert f"{site} {code}" in made.to_markdown().replace("\\", "")
    rows = {row.name: row for row in kit.caller_table(made, by="line")}
    assert rows[site].total_ms > 0
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    products = 3 * 2 * 128 * 64 * 64 * 2 - 2 * 128 * 64 * 64  # the first input has no gradient
    assert rows[site].flops == pytest.approx(products)
    assert {row.site: row.device_ms for row in line_costs(made)}[site] == pytest.approx(
        rows[site].total_ms
    )
    assert "line where its function begins" not in callers_drawn(made)[0]
    assert any(row.name == "Sequential" for row in kit.caller_table(made, by="kind"))


def test_a_watched_loop_has_lines() -> None:
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with kit.watch(steps=3) as watch:
        for _ in range(30):
            loss = net(torch.ones(4, 8)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    here = {c.site.rpartition(":")[0] for c in watch.run.callers if c.site}
    assert here == {HERE}
    assert {("Linear_0",)} == {c.module for c in watch.run.callers if c.op == "aten::addmm"}
