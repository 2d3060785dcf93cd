"""Where the host waits, by the user's line; what must not wait; what goes wrong, said clearly."""

from __future__ import annotations

import contextvars
import io
import logging
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from kit.errors import SessionError, UnsupportedOp
from kit.runs.settings import Settings
from kit.torch.device import open_session
from kit.torch.tensors.places import ProgramPlace

HERE = "test_sync_points.py"


def line() -> int:
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize(
    ("cause", "read"),
    [
        ("item", lambda x: x.item()),
        ("item", lambda x: float(x)),
        ("item", lambda x: bool(x)),
        ("item", lambda x: int(x)),
        ("copy to host", lambda x: x.cpu()),
        ("copy to host", lambda x: x.to("cpu")),
        ("numpy", lambda x: x.numpy()),
        ("tolist", lambda x: x.tolist()),
        ("print", lambda x: str(x)),
    ],
)
def test_each_read_is_one_sync_point_with_site_and_time(cause: str, read: Any) -> None:
    with open_session() as session:
        x = torch.ones(3, device="kit").sum() * 2.5
        read(x)
        (sync,) = session.syncs
    assert sync.cause == cause
    assert sync.site.startswith(HERE)
    assert sync.wait_ns > 0


def test_a_read_inside_a_library_names_the_users_line_and_the_library_line() -> None:
    with open_session() as session:
        p = torch.ones(3, device="kit", requires_grad=True)
        scaler = torch.amp.GradScaler("kit")
        opt = torch.optim.SGD([p], lr=0.1)
        scaler.scale(p.sum()).backward()
        scaler.step(opt)
        here = line() - 1
        (sync,) = session.syncs
    assert sync.site == f"{HERE}:{here}"
    assert sync.via.startswith("torch/amp/grad_scaler.py:")


def test_a_number_in_a_format_string_is_torchs_text_and_one_sync_point() -> None:
    with open_session() as session:
        x = torch.ones(3, device="kit").sum() * 2.5
        assert f"{x:.3f} {x}" == "7.500 7.5"
        assert [s.cause for s in session.syncs] == ["item", "item"]
        with pytest.raises(TypeError, match="unsupported format string"):
            f"{torch.ones(3, device='kit'):.2f}"


def test_a_logger_that_reads_a_number_is_the_users_line_through_the_logger() -> None:
    log = logging.getLogger("kit test")
    log.propagate = False
    log.addHandler(logging.StreamHandler(io.StringIO()))
    with open_session() as session:
        log.warning("loss %s", torch.ones(3, device="kit").sum())
        here = line() - 1
        (sync,) = session.syncs
    assert (sync.cause, sync.site) == ("print", f"{HERE}:{here}")
    assert sync.via.startswith("logging/__init__.py:")


def test_a_file_that_is_named_like_contextlib_is_the_users() -> None:
    code = compile("\nx.item()", "my_contextlib_tests/train.py", "exec")
    with open_session() as session:
        exec(code, {"x": torch.ones((), device="kit")})
        (sync,) = session.syncs
    assert sync.site == "train.py:2"


def test_repr_of_a_pending_tensor_runs_nothing() -> None:
    with open_session() as session:
        x = torch.ones(2, 3, device="kit") * 2.5
        assert repr(x) == "KitTensor(shape=[2, 3], dtype=torch.float32, device='kit:0')"
        assert session.syncs == []
        assert session.metrics().get("execute.count", 0) == 0
        assert "2.5" in str(x)


def test_an_op_without_a_rule_runs_on_the_host_and_is_counted() -> None:
    values = [3.0, 1.0, 2.0]
    with open_session() as session:
        x = torch.tensor(values, device="kit", requires_grad=True)
        y = torch.special.bessel_j0(x.detach())
        here = line() - 1
        (x * y).sum().backward()
        torch.testing.assert_close(x.grad.cpu(), torch.special.bessel_j0(torch.tensor(values)))
        assert session.unlowered == {f"aten.special_bessel_j0.default at {HERE}:{here}": 1}
        assert "unlowered op aten.special_bessel_j0" in session.syncs[0].cause


def test_an_in_place_op_without_a_rule_writes_back() -> None:
    with open_session():
        x = torch.tensor([0.1, 0.2], device="kit")
        x.erfinv_()
        torch.testing.assert_close(x.cpu(), torch.tensor([0.1, 0.2]).erfinv())


def test_a_factory_without_a_rule_resizes_its_output() -> None:
    with open_session():
        assert torch.eye(3, device="kit").tolist() == torch.eye(3).tolist()
        out = torch.empty(0, device="kit")
        torch.special.bessel_j0(torch.ones(2, device="kit"), out=out)
        assert out.shape == (2,)


def test_a_strict_session_raises_instead() -> None:
    with open_session(strict=True):
        x = torch.ones(3, device="kit")
        with pytest.raises(UnsupportedOp, match=rf"special_bessel_j0[\s\S]*recorded at {HERE}"):
            torch.special.bessel_j0(x)
        assert x.sum().item() == 3


def test_a_boolean_mask_is_a_named_sync_point() -> None:
    with open_session() as session:
        x = torch.arange(5.0, device="kit")
        assert x[x > 2].tolist() == [3.0, 4.0]
        assert any("aten.index.Tensor" in s.cause or "nonzero" in s.cause for s in session.syncs)


def test_mixing_devices_is_torchs_error_with_the_line() -> None:
    with open_session():
        x = torch.ones(3, device="kit")
        with pytest.raises(RuntimeError, match=rf"same device[\s\S]*{HERE}"):
            x + torch.ones(3)
        assert (x + torch.tensor(2.0)).tolist() == [3.0] * 3


def test_bad_shapes_raise_torchs_own_error_at_once() -> None:
    with open_session():
        a, b = torch.ones(2, 3, device="kit"), torch.ones(4, 5, device="kit")
        with pytest.raises(RuntimeError, match=r"must match the size|broadcast"):
            a + b
        with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes|size mismatch|a and b must"):
            a @ b
        assert (a + 1).sum().item() == 12


def test_a_tensor_outlives_its_session_only_as_a_clear_error() -> None:
    with open_session():
        x = torch.ones(3, device="kit")
    with pytest.raises(SessionError, match="has been closed"):
        x + 1
    with pytest.raises(
        SessionError, match=r"needs an open session here: [^.]*`with kit\.Session\(\):`$"
    ):
        torch.ones(3, device="kit")


def test_a_thread_without_its_starters_session_is_told_how_to_get_it() -> None:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(torch.ones(3, device="kit").sum().item())
        except SessionError as error:
            found.append(str(error))

    with open_session():
        started = [
            threading.Thread(target=work),
            threading.Thread(target=contextvars.copy_context().run, args=(work,)),
        ]
        for thread in started:
            thread.start()
            thread.join()
    assert "threading.Thread(target=contextvars.copy_context().run, args=(work,))" in found[0]
    assert found[1] == 3


def test_an_exception_inside_a_module_leaves_the_next_step_right() -> None:
    class Moody(nn.Module):
        fail = True

        def forward(self, x: Any) -> Any:
            y = x * 2
            if self.fail:
                raise ValueError("half-way")
            return y

    with open_session() as session:
        model = Moody()
        x = torch.ones(2, device="kit")
        with pytest.raises(ValueError, match="half-way"):
            model(x)
        model.fail = False
        session.mark_step()
        assert model(x).tolist() == [2.0, 2.0]


def test_a_backward_before_the_first_session_does_no_harm() -> None:
    """torch sizes its pool of autograd threads at the first backward of the process."""
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    with open_session():
        p = torch.ones(3, device="kit", requires_grad=True)
        (p * p).sum().backward()
        assert p.grad.tolist() == [2.0] * 3


def test_sessions_in_two_threads_do_not_meet() -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        with open_session():
            x = torch.full((100,), float(number), device="kit")
            for _ in range(20):
                x = x + 1
            results[number] = x.sum().item()

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {1: 2100.0, 2: 2200.0}


def test_every_hook_is_removed_when_the_session_closes() -> None:
    from torch.nn.modules import module as nn_module

    before = len(nn_module._global_forward_pre_hooks), len(nn_module._global_forward_hooks)
    with open_session(Settings()):
        assert len(nn_module._global_forward_pre_hooks) == before[0] + 1
    assert (
        len(nn_module._global_forward_pre_hooks),
        len(nn_module._global_forward_hooks),
    ) == before


def test_backward_nodes_carry_the_line_and_the_scope_of_their_forward_op() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.inner(x))

    with open_session() as session:
        net = Net().to("kit")
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def steps(end_step: Any) -> None:
            net(torch.ones(2, 3, device="kit")).sum().backward()
            opt.step()
            session.mark_step()
            end_step()

        steps(lambda: None)
        _, (graph,), _ = session.trace(steps)
    nodes = [graph.nodes[i] for i in graph.ops]
    tanh_backward = next(n for n in nodes if n.op == "aten.tanh_backward.default")
    tanh = next(n for n in nodes if n.op == "aten.tanh.default")
    assert (tanh_backward.phase, tanh_backward.scope, tanh_backward.site) == (
        "backward",
        "Net",
        tanh.site,
    )
    scopes = {n.scope for n in nodes if n.phase == "backward"}
    assert "Net.inner" in scopes
    assert {n.phase for n in nodes} == {"forward", "backward", "update"}
    assert all(n.site.startswith(HERE) for n in nodes)


class Holder(torch.nn.Module):
    """A layer under any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        setattr(self, name, torch.nn.Identity())


def test_a_module_where_another_one_was_has_its_own_name() -> None:
    place = ProgramPlace()
    for name in (f"part{i}" for i in range(50)):  # memory is used again
        holder = Holder(name)
        place.enter(holder)
        place.enter(getattr(holder, name))
        assert place.scope == f"Holder.{name}"
        place.leave(holder)
        del holder
