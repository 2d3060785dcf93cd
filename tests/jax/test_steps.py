"""A jax step in a session: jax.jit's numbers, one graph, no second compile, no unasked read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from kit.jax.array import LazyArray
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules
from kit.runtime.session.session import Session, current_session
from kit.trace import union_ns
from kit.trace.intervals import without
from tests.jax.models import (
    BATCH,
    LABELS,
    flax_state,
    flax_step,
    nnx_model,
    plain_state,
    plain_step,
)

LAZY = Settings(mode="lazy")
CACHE = ExecutableCache()  # the ways to cut a step have programs in common
CUTS = {
    "imperative": Settings(mode="imperative"),
    **{f"bulk {n}": Settings(bulk_forward=n, bulk_backward=n) for n in (1, 5, 15)},
    "unlimited": Settings(bulk_forward=UNLIMITED, bulk_backward=UNLIMITED),
    "lazy": LAZY,
    "launch": Settings(segment_mode="launch"),
}
MODELS = {"plain": (plain_state, plain_step), "flax": (flax_state, flax_step)}


def train(step: Callable[..., Any], state: Any, steps: int = 10) -> tuple[Any, list[Any]]:
    losses = []
    for _ in range(steps):
        state, loss = step(state, BATCH, LABELS)
        losses.append(loss)
        if (session := current_session()) is not None:
            session.mark_step()
    return state, losses


def numbers(tree: Any) -> list[np.ndarray]:
    """The leaves on the host, random keys left out."""
    leaves = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return [np.asarray(x) for x in leaves]


def traced(function: Callable[..., Any], *args: Any, settings: Settings = LAZY) -> Any:
    """The graph of one call, and its segments."""
    with Session(settings) as session:
        step = kit.jax.step(function)

        def run(end_step: Callable[[], None]) -> None:
            kept = step(*args)
            session.mark_step()
            end_step()
            assert kept is not None

        _, (graph,), segments = session.trace(run)
    return graph, segments


# -- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cut", CUTS)
def test_ten_train_steps_equal_jax_jit(model: str, cut: str) -> None:
    make_state, function = MODELS[model]
    with jax.numpy_dtype_promotion("standard"):  # optax relies on it
        start = make_state()
        state, losses = train(jax.jit(function), start)
        with Session(CUTS[cut], cache=CACHE):
            got_state, got = train(kit.jax.step(function), start)
            assert jax.tree.structure(got_state) == jax.tree.structure(state)
            tolerance = 0.0 if cut == "lazy" else 5e-6  # other cuts round between the segments
            for a, b in zip(numbers((got_state, got)), numbers((state, losses)), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_max_ulp(np.asarray(got[0]), np.asarray(losses[0]), maxulp=1)
    assert float(losses[-1]) < float(losses[0])


def test_an_nnx_model_with_dropout_equals_jax_jit_to_the_bit() -> None:
    with jax.numpy_dtype_promotion("standard"):
        start, step = nnx_model()
        state, losses = train(jax.jit(step), start, steps=4)
        with Session(LAZY):
            got_state, got = train(kit.jax.step(step), start, steps=4)
            for a, b in zip(numbers((got_state, got)), numbers((state, losses)), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_follow_the_users_own_x64_setting(x64: bool) -> None:
    def function(x: Any, n: Any) -> Any:
        return x.mean(), jnp.arange(3) * n, jnp.argmax(x), jnp.ones(2), x.astype(jnp.bfloat16)

    with jax.enable_x64(x64), jax.numpy_dtype_promotion("standard"):
        args = (np.linspace(0, 1, 5), 3)
        expected = jax.jit(function)(*args)
        with Session():
            got = kit.jax.step(function)(*args)
            for a, b in zip(got, expected, strict=True):
                assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_python_number_stays_weak_from_step_to_step() -> None:
    with Session():
        twice = kit.jax.step(lambda a: a * 2)
        weak = twice(twice(1.5))
        assert weak.weak_type
        assert (weak * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
        assert float(weak) == 6.0


def test_typed_keys_go_in_and_out_of_steps_and_scans() -> None:
    def function(key: Any) -> Any:
        def body(c: Any, k: Any) -> Any:
            return jax.random.fold_in(c, 7), jax.random.normal(k, (2,))

        key, drawn = jax.lax.scan(body, key, jax.random.split(key, 3))
        return key, drawn, jax.random.key_data(key)

    expected = jax.jit(function)(jax.jit(function)(jax.random.key(5))[0])
    with Session():
        step = kit.jax.step(function)
        key, drawn, data = step(step(jax.random.key(5))[0])
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(expected[1]))
        np.testing.assert_array_equal(np.asarray(data), np.asarray(expected[2]))
        assert key.dtype == expected[0].dtype
        assert "key<fry>" in repr(key)


def test_arrays_that_the_function_closes_over_are_inputs_not_constants() -> None:
    table = np.arange(1000.0, dtype=np.float32)
    with Session(LAZY) as session:
        out = kit.jax.step(lambda i: jnp.asarray(table)[i])(np.int32(7))
        assert out.item() == 7
        assert session.metrics()["transfer_to_device.bytes"] >= table.nbytes


# -- one op stream -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("jax.scan", lambda x: jax.lax.scan(lambda c, a: (jax.nn.relu(c + a), c), x[0], x)),
        ("jax.cond", lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)),
        ("jax.while", lambda x: jax.lax.while_loop(lambda c: c.sum() < 99, lambda c: c * 2 + 1, x)),
    ],
)
def test_control_flow_stays_one_node(name: str, function: Callable[..., Any]) -> None:
    x = np.ones((5, 3), np.float32)
    graph, _ = traced(function, x)
    assert [n.op for n in graph].count(name) == 1
    assert "jax.add" not in {n.op for n in graph}  # no body leaks out
    with Session():
        for a, b in zip(
            jax.tree.leaves(kit.jax.step(function)(x)), jax.tree.leaves(function(x)), strict=True
        ):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def test_calls_are_inlined_and_what_nobody_needs_is_left_out() -> None:
    def function(x: Any) -> Any:
        unused = jnp.exp(x)  # noqa: F841
        return jax.jit(lambda y: jax.nn.relu(y) + 1)(x) * jax.checkpoint(jnp.sin)(x)

    graph, _ = traced(function, np.ones(3, np.float32))
    assert [n.op for n in graph if not n.is_variable] == [
        "jax.max",
        "jax.add",
        "jax.sin",
        "jax.mul",
    ]


def test_each_node_has_the_users_line_scope_and_phase() -> None:
    graph, _ = traced(plain_step, plain_state(), BATCH, LABELS)
    nodes = [n for n in graph if not n.is_variable]
    assert {n.site.split(":")[0] for n in nodes} == {"models.py"}
    dots = [(n.phase, n.scope) for n in nodes if n.op == "jax.dot_general"]
    assert dots == [("forward", "hidden"), ("forward", ""), ("backward", ""), ("backward", ""),
                    ("backward", "hidden")]  # fmt: skip
    phases = [n.phase for n in nodes]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    assert len({n.site for n in nodes if n.phase == "update"}) == 3


def test_flax_modules_are_the_scope_and_the_users_line_is_found_below_them() -> None:
    with jax.numpy_dtype_promotion("standard"):
        graph, _ = traced(flax_step, flax_state(), BATCH, LABELS)
    nodes = [n for n in graph if not n.is_variable]
    assert {"Net.up", "Net.norm", "Net.down"} <= {n.scope for n in nodes}
    assert {n.site.split(":")[0] for n in nodes} == {"models.py"}
    assert {n.phase for n in nodes if n.scope == "Net.up"} == {"forward", "backward"}


def test_bulk_sizes_cut_forward_and_backward_each_by_its_own() -> None:
    _, segments = traced(
        plain_step,
        plain_state(),
        BATCH,
        LABELS,
        settings=Settings(bulk_forward=4, bulk_backward=7),
    )
    sizes = {"forward": set(), "backward": set(), "update": set()}
    for segment in segments:
        if segment.cut == "size":
            sizes[segment.phase].add(len(segment.nodes))
    assert sizes["forward"] == {4}
    assert sizes["backward"] == {7}
    assert "phase" in {s.cut for s in segments}


def test_a_phase_that_is_given_holds_for_all_of_a_step() -> None:
    with Session() as session:
        update = kit.jax.step(lambda p, g: p - 0.1 * g, phase="update")

        def run(end_step: Callable[[], None]) -> None:
            kept = update(np.ones(3, np.float32), np.ones(3, np.float32))
            session.mark_step()
            end_step()
            del kept

        _, (graph,), _ = session.trace(run)
    assert {n.phase for n in graph if not n.is_variable} == {"update"}


def test_a_rule_of_the_users_own_replaces_a_primitive() -> None:
    seen = []

    def flipped(equation: Any, x: Any, **params: Any) -> Any:
        seen.append(params["permutation"].value)
        return x.T * 0

    rules = DEFAULT_RULES | Rules({"jax.transpose": flipped})
    with Session(LAZY, rules=rules):
        out = kit.jax.step(lambda x: x.T + 1)(np.ones((2, 3), np.float32))
        assert out.tolist() == np.ones((3, 2)).tolist()
    assert seen == [(1, 0)]


# -- executables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["bulk 5", "unlimited", "lazy", "launch"])
def test_the_second_step_compiles_nothing(cut: str) -> None:
    with Session(CUTS[cut]) as session:
        step = kit.jax.step(plain_step)
        state, _ = train(step, plain_state(), steps=1)
        session.wait_all()
        before = session.metrics()["compile.count"]
        _, losses = train(step, state, steps=3)
        session.wait_all()
        assert session.metrics()["compile.count"] == before
        assert len(step.traces) == 1
        assert losses


def test_a_function_traced_again_shares_executables_in_another_session() -> None:
    def run() -> float:
        with Session(LAZY, cache=cache) as session:
            function = kit.jax.step(lambda *args: plain_step(*args))  # a new one, traced anew
            _, losses = train(function, plain_state(), steps=2)
            assert float(losses[1]) > 0
            return session.metrics().get("compile.count", 0)

    cache = ExecutableCache()
    assert run() == 1
    jax.clear_caches()
    assert run() == 0


def test_only_parameters_that_differ_make_another_program() -> None:
    """Two scans of equal shapes whose bodies differ in one constant must not share an op."""

    def scan_by(factor: float) -> Callable[..., Any]:
        return lambda x: jax.lax.scan(lambda c, a: (c + a * factor, c), x[0], x)[0]

    x = np.ones((3, 2), np.float32)
    with Session() as session:
        for factor in (2.0, 3.0, 2.0):
            out = kit.jax.step(scan_by(factor))(x)
            np.testing.assert_array_equal(np.asarray(out), 1 + 3 * factor * np.ones(2))
        assert session.metrics()["cache.hits"] >= 1  # the third is the first again


def test_bodies_that_differ_in_a_large_array_do_not_share_a_program() -> None:
    def scan_with(table: np.ndarray) -> Callable[..., Any]:
        return lambda x: jax.lax.scan(lambda c, a: (c + a + jnp.asarray(table), c), x[0], x)[0]

    x = np.zeros((3, 2000), np.float32)
    one, other = np.ones(2000, np.float32), np.ones(2000, np.float32)
    other[1000] = 5  # where a printed array shows dots
    with Session():
        assert np.asarray(kit.jax.step(scan_with(one))(x))[1000] == 3
        assert np.asarray(kit.jax.step(scan_with(other))(x))[1000] == 15


def test_an_array_may_be_changed_by_its_owner_after_the_call() -> None:
    x = np.ones(3, np.float32)
    with Session(LAZY):
        out = kit.jax.step(lambda x: x + 1)(x)
        x[:] = 100
        assert out.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", ["whole", "in a scan", "one number"])
def test_an_array_that_a_step_closes_over_stays_as_it_was_when_traced(kind: str) -> None:
    ones, two = np.ones(3, np.float32), np.array(2, np.float32)
    function, own = {
        "whole": (lambda x: x * ones, ones),
        "in a scan": (lambda x: jax.lax.scan(lambda y, _: (y * ones, None), x, None, 2)[0], ones),
        "one number": (lambda x: x * two, two),
    }[kind]
    x, step, jitted = np.ones(3, np.float32), kit.jax.step(function), jax.jit(function)
    with Session(LAZY):
        before = step(x), jitted(x)
        own[...] = 5
        assert np.asarray(before[0]).tolist() == before[1].tolist()
    with Session(LAZY):
        assert np.asarray(step(x)).tolist() == jitted(x).tolist()


def test_an_argument_that_is_returned_and_a_constant_that_is_returned() -> None:
    with Session():
        x, y, three, nothing = kit.jax.step(lambda x: (x, x, 3.0, None))(np.arange(2))
        assert x.tolist() == y.tolist() == [0, 1]
        assert three.item() == 3.0
        assert nothing is None


def test_outside_of_a_session_a_step_is_jax_jit() -> None:
    state, loss = kit.jax.step(plain_step)(plain_state(), BATCH, LABELS)
    assert isinstance(loss, jax.Array)
    assert loss == jax.jit(plain_step)(plain_state(), BATCH, LABELS)[1]
    assert isinstance(kit.jax.device_put(BATCH), jax.Array)
    assert jnp.issubdtype(state["key"].dtype, jax.dtypes.prng_key)


def test_torch_and_jax_share_one_session() -> None:
    import torch

    with kit.Session(LAZY) as session:
        a = torch.ones(2, device="kit") * 2
        b = kit.jax.step(lambda x: x * 3)(np.ones(2, np.float32))
        assert session.metrics().get("execute.count", 0) == 0
        assert (a.cpu().tolist(), b.tolist()) == ([2.0, 2.0], [3.0, 3.0])
        assert session.metrics()["segment.count"] == 1


def test_a_step_in_another_step_or_transformation_is_jax_jit() -> None:
    inner = kit.jax.step(lambda x: (x * x).sum())
    outer = kit.jax.step(lambda x: inner(x) + inner(np.ones(2, np.float32)))
    x = np.array([1, 2], np.float32)
    with Session():
        assert float(outer(x)) == 7
        assert jax.grad(inner)(x).tolist() == [2, 4]
        assert float(jax.jit(inner)(x)) == 5
        assert isinstance(inner(x), LazyArray)


def test_the_copy_of_a_large_array_is_input_at_the_line_of_the_call() -> None:
    """kit's own copy of it passed for recording, at a line of the function."""
    big = np.ones(32 << 20, np.float32)
    step = kit.jax.step(lambda x: x[0] + 1)
    with Session(LAZY) as session:
        step(big)
        timeline = traced_steps(session, lambda: step(big)).timeline
    (name,) = {s.name for s in timeline.spans if s.kind == "input"}
    assert name.startswith("copy to device at test_steps.py:")
    copied, record = timeline.intervals(kind="input"), timeline.intervals(kind="record")
    assert union_ns(copied) > union_ns(without(record, copied))


def test_a_function_that_is_made_anew_in_a_step_is_traced_and_not_recorded() -> None:
    def step() -> Any:
        return kit.jax.step(lambda x: _slow_to_trace(x))(np.ones(4, np.float32))

    with Session(LAZY) as session:
        session.run_step(step)
        traced = traced_steps(session, step)
    spans = [s for s in traced.timeline.spans if s.lane == "host/main"]
    (trace,) = [s for s in spans if s.kind == "lower"]
    assert re.fullmatch(
        r"trace of <lambda> at test_steps.py:\d+: the function was made anew", trace.name
    )
    recorded = sum(s.stop_ns - s.start_ns for s in spans if s.kind in ("record", "own"))
    assert trace.stop_ns - trace.start_ns > recorded


def _slow_to_trace(x: Any) -> Any:
    for _ in range(200):
        x = jnp.tanh(x) + 1
    return x.sum()


def traced_steps(session: Session, step: Callable[[], Any]) -> Any:
    """One step in a trace, whose results live as long."""
    results = []

    def steps(end_step: Callable[[], None]) -> None:
        results.append(step())
        session.mark_step()
        end_step()

    return session.trace(steps)
