"""The runtime without torch: recording, cutting, caching, poisoning, waiting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import ExecutionError, LoweringError, SessionError, SettingsError
from kit.ir import Aval
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.settings import Settings
from kit.runtime.recording.bulk import Value
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import Session, current_session
from kit.runtime.session.setup import Setup
from tests.waiting import leaves_no_thread

FRAME = (("train.py", 7), "", "")
F4 = Aval((4,), "float32")


def binary(session: Session, name: str, x: Value, y: Value) -> Value:
    op = session.intern(name, ((HOLE, HOLE), {}), (F4, F4), (F4,), 0)
    session.stream.begin("forward")
    return session.stream.record(op, [x, y], [], FRAME)[0]


def scaled(session: Session, x: Value, number: float) -> Value:
    op = session.intern("aten.mul.Tensor", ((HOLE, Scalar("float32")), {}), (F4,), (F4,), 1)
    session.stream.begin("forward")
    return session.stream.record(op, [x], [number], FRAME)[0]


def numbers(session: Session, value: Value) -> list[float]:
    array: Any = session.read(value, cause="item", frame=FRAME)
    return [float(x) for x in array]


def start(session: Session) -> Value:
    return session.inputs.constant(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("size", [1, 2, 3, 7, UNLIMITED])
@pytest.mark.parametrize("segment_mode", ["fuse", "launch"])
def test_the_bulk_size_changes_the_segments_and_not_the_numbers(
    size: int, segment_mode: str
) -> None:
    with Session(Settings(bulk_forward=size, segment_mode=segment_mode)) as session:
        x = start(session)
        keep = [x]
        for _ in range(12):
            keep.append(binary(session, "aten.add.Tensor", keep[-1], x))
        assert numbers(session, keep[-1]) == [0, 13, 26, 39]
        assert session.metrics()["segment.count"] == -(-12 // size)


@given(
    program=st.lists(
        st.tuples(st.sampled_from(["add", "mul", "sub"]), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(1, 9),
)
@settings(max_examples=20, deadline=None)
def test_random_programs_equal_numpy(program: list[tuple[str, int, int]], size: int) -> None:
    functions = {"add": np.add, "mul": np.multiply, "sub": np.subtract}
    expected = [np.arange(4, dtype=np.float32) / 4]
    with Session(Settings(bulk_forward=size)) as session:
        got = [session.inputs.constant(expected[0].copy())]
        for name, i, j in program:
            i, j = i % len(got), j % len(got)
            got.append(binary(session, f"aten.{name}.Tensor", got[i], got[j]))
            expected.append(functions[name](expected[i], expected[j]))
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_allclose(session.read(g, cause="item", frame=FRAME), e, rtol=1e-5)


def test_equal_steps_compile_once_and_a_changed_number_does_not_recompile() -> None:
    with Session() as session:
        x = start(session)
        for step in range(5):
            y = scaled(session, x, 0.5 + step)
            assert numbers(session, y) == [0, 0.5 + step, 1 + 2 * step, 1.5 + 3 * step]
            session.mark_step()
        assert session.metrics()["compile.count"] == 1


def test_swapping_two_inputs_is_another_program() -> None:
    """pytorch/xla issue 8353: a key without leaf identity gives silently wrong numbers."""
    with Session() as session:
        a, b = start(session), session.inputs.constant(np.full(4, 10, np.float32))
        first = binary(session, "aten.sub.Tensor", binary(session, "aten.mul.Tensor", a, b), a)
        assert numbers(session, first) == [0, 9, 18, 27]
        second = binary(session, "aten.sub.Tensor", binary(session, "aten.mul.Tensor", a, b), b)
        assert numbers(session, second) == [-10, 0, 10, 20]


def test_a_value_that_nobody_holds_is_not_returned() -> None:
    with Session(Settings(mode="lazy")) as session:
        x = start(session)
        y = binary(session, "aten.add.Tensor", binary(session, "aten.add.Tensor", x, x), x)
        numbers(session, y)
        assert y.cell is not None
        assert y.cell.task is not None
        assert y.cell.task.cut.wanted == (1,)


def test_a_sync_point_knows_its_line_and_its_time() -> None:
    with Session() as session:
        numbers(session, scaled(session, start(session), 2.5))
        (sync,) = session.syncs
        assert (sync.site, sync.cause) == ("train.py:7", "item")
        assert sync.wait_ns > 0


def test_a_rule_that_fails_names_the_op_and_the_line_and_the_session_goes_on() -> None:
    def broken(x: Any, y: Any) -> Any:
        raise ValueError("no such luck")

    rules = Rules({"kit.broken": broken}) | DEFAULT_RULES
    with Session(rules=rules) as session:
        x = start(session)
        bad = binary(session, "kit.broken", x, x)
        with pytest.raises(LoweringError, match=r"kit\.broken.*train\.py:7 failed.*no such luck"):
            numbers(session, bad)
        with pytest.raises(LoweringError):  # the error stays on what it poisoned
            numbers(session, bad)
        after = binary(session, "aten.add.Tensor", bad, x)
        with pytest.raises(LoweringError):
            numbers(session, after)
        assert numbers(session, binary(session, "aten.add.Tensor", x, x)) == [0, 2, 4, 6]


def test_a_rule_with_the_wrong_shape_is_an_error_not_a_wrong_number() -> None:
    rules = Rules({"kit.short": lambda x, y: jnp.zeros(2)}) | DEFAULT_RULES
    with Session(rules=rules) as session:
        x = start(session)
        with pytest.raises(LoweringError, match=r"gave shape \(2,\), torch gives \(4,\)"):
            numbers(session, binary(session, "kit.short", x, x))


def test_wait_all_raises_what_the_last_segment_raised() -> None:
    def broken(x: Any, y: Any) -> Any:
        raise ValueError("no such luck")

    with Session(rules=Rules({"kit.broken": broken}) | DEFAULT_RULES) as session:
        x = start(session)
        kept = binary(session, "kit.broken", x, x)
        with pytest.raises((LoweringError, ExecutionError), match="no such luck"):
            session.wait_all()
        assert kept.error is not None


def test_a_closed_session_refuses_reads_and_a_second_entry() -> None:
    session = Session()
    with session:
        assert current_session() is session
        value = scaled(session, start(session), 2.5)
    assert current_session() is None
    with pytest.raises(SessionError, match="has been closed"):
        numbers(session, value)
    with pytest.raises(SessionError, match="entered once"), session:
        pass


def test_a_gpu_that_is_not_there_is_a_clear_error() -> None:
    import jax

    if jax.devices()[0].platform == "cpu":
        with pytest.raises(SettingsError, match="jax sees only cpu"):
            Session(Settings(device="gpu"))
    else:
        assert Session(Settings(device="gpu")).device.platform != "cpu"


def test_joining_two_rules_for_one_op_is_an_error_and_over_replaces() -> None:
    with pytest.raises(LoweringError, match=r"two rules for aten\.add\.Tensor"):
        DEFAULT_RULES | Rules({"aten.add.Tensor": jnp.add})
    mine = Rules({"aten.add.Tensor": jnp.subtract}).over(DEFAULT_RULES)
    with Session(rules=mine) as session:
        x = start(session)
        assert numbers(session, binary(session, "aten.add.Tensor", x, x)) == [0, 0, 0, 0]


def test_a_trace_has_steps_kernels_and_the_graph_they_come_from() -> None:
    with Session(Settings(mode="lazy")) as session:
        x = start(session)

        def steps(end_step: Any) -> None:
            for _ in range(2):
                y = binary(session, "aten.add.Tensor", x, x)
                numbers(session, binary(session, "aten.mul.Tensor", y, x))
                session.mark_step()
                end_step()

        steps(lambda: None)
        timeline, (graph,), segments = session.trace(steps)
    assert [graph.nodes[i].op for i in graph.ops] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert [n.op for n in graph.nodes if n.is_variable] == ["input"]
    assert [s.cut for s in segments] == ["sync"]
    assert int(timeline.where(kind="step").sum()) == 2
    kernels = [s for s in timeline.spans if s.kind == "kernel"]
    assert kernels
    assert {k.segment for k in kernels} == {0}
    assert {k.node for k in kernels} <= set(graph.ops)
    assert timeline.origin == "profiled"
    assert [s.cause for s in timeline.syncs] == ["item", "item"]


@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_program_goes_on_after_a_traced_or_planned_step(is_traced: bool, fails: bool) -> None:
    with Session() as session:
        x = start(session)

        def step() -> None:
            nonlocal x
            x = scaled(session, x, 2.0)
            session.flush("mark_step")
            if fails:
                raise ValueError("of the step's own")

        with pytest.raises(ValueError, match="own") if fails else contextlib.nullcontext():
            if is_traced:
                session.trace(lambda end_step: step())
            else:
                session.plan(step, steps=1)
        executor, spans = session.issuer.executor, session.issuer.spans
        policy = session.policy
        assert not any([executor.is_tracing, policy.is_tracing, policy.is_planning])
        assert [*spans.tasks, *spans.spans, *executor.spans] == []
        assert is_traced or "execute.count" not in session.metrics()
        y = binary(session, "aten.add.Tensor", x, x)
        assert numbers(session, y) == [0, 4, 8, 12]
        assert numbers(session, x) == [0, 2, 4, 6]


@pytest.mark.alone
def test_kernels_lie_inside_the_dispatch_of_their_segment() -> None:
    with Session(Settings(mode="lazy")) as session:
        x = start(session)

        def steps(end_step: Any) -> None:
            numbers(session, binary(session, "aten.add.Tensor", x, x))
            session.mark_step()
            end_step()

        steps(lambda: None)
        timeline, _, _ = session.trace(steps)
    (dispatch,) = [s for s in timeline.spans if s.kind == "dispatch"]
    for kernel in (s for s in timeline.spans if s.kind == "kernel"):
        assert dispatch.start_ns - 50_000 <= kernel.start_ns
        assert kernel.stop_ns <= dispatch.stop_ns + 50_000


def test_wait_all_tells_once_of_a_failure_that_nothing_later_depends_on() -> None:
    def broken(x: Any, y: Any) -> Any:
        raise ValueError("no such luck")

    with Session(
        Settings(bulk_forward=1), rules=Rules({"kit.broken": broken}) | DEFAULT_RULES
    ) as s:
        x = start(s)
        kept = [binary(s, "kit.broken", x, x), binary(s, "aten.add.Tensor", x, x)]
        with pytest.raises(LoweringError, match="no such luck"):
            s.wait_all()
        s.wait_all()
        assert numbers(s, kept[1]) == [0, 2, 4, 6]


def test_a_front_end_that_fails_to_open_leaves_nothing_behind() -> None:
    closed: list[bool] = []

    class Broken:
        def open(self, session: Session) -> None:
            raise ValueError("no torch")

        def close(self) -> None:
            closed.append(True)  # also what was opened in part

    with (
        leaves_no_thread(),
        pytest.raises(ValueError, match="no torch"),
        Session(frontends=(Broken(),)),
    ):
        pass
    assert current_session() is None
    assert closed == [True]


def test_sessions_that_close_in_the_wrong_order_are_refused() -> None:
    outer, inner = Session(), Session()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(SessionError, match="innermost first"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert current_session() is None


def test_two_threads_that_wait_for_one_check_take_back_its_write_alone() -> None:
    waits: list[float] = []

    @contextlib.contextmanager
    def while_waiting() -> Iterator[None]:
        waits.append(session.redo.first_step)
        if len(waits) == 1:
            other = threading.Thread(target=session.redo.close, args=(0,))
            other.start()
            other.join()
        yield

    with Session(setup=Setup(while_waiting=while_waiting)) as session:
        x, zeros = start(session), session.inputs.constant(np.zeros(4, np.float32))
        bad, good = (binary(session, "aten.add.Tensor", x, x) for _ in range(2))
        session.redo.open(binary(session, "aten.add.Tensor", x, x), [(bad, x)])
        session.mark_step()
        session.redo.open(binary(session, "aten.mul.Tensor", x, zeros), [(good, x)])
        session.redo.close(0)
        assert waits == [0, 0]
        assert session.redo.first_step == 1  # the second check is open still
        assert numbers(session, bad) == [0, 1, 2, 3]
        assert numbers(session, good) == [0, 2, 4, 6]
        assert session.metrics()["redo.count"] == 1


@pytest.mark.parametrize(("setting", "value"), [
    ("jax_transfer_guard", "disallow"), ("jax_disable_jit", True),
    ("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg"),
    ("jax_debug_nans", True), ("jax_debug_infs", True),
])  # fmt: skip
def test_the_users_own_settings_of_jax_change_no_step_of_torch(setting: str, value: Any) -> None:
    def step() -> list[float]:
        rules = kit.DEFAULT_RULES | kit.Rules({})  # so that it is compiled each time
        with kit.Session(kit.Settings(mode="lazy"), rules=rules):
            torch.manual_seed(1)
            numbers: list[float] = (torch.rand(3, device="kit") * 1.5 + 0.3).tolist()
            bad = torch.tensor([-1.0, 0.0], device="kit").log()
            assert bad.isnan().tolist() == [True, False]
            return [*numbers, bad[1].item()]

    expected, before = step(), getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        assert step() == expected
    finally:
        jax.config.update(setting, before)
