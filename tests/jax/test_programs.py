"""Random jax programs against jax.jit, cut everywhere; and the texts that tell programs apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.jax.program import Program
from kit.jax.text import text_of
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.session.session import Session

SHAPE = (3, 4)
Ops = list[tuple[int, int, int]]


def _scan(x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda c, a: (jnp.tanh(c + a), c * 0.5), x[0], y)[1]


def _branch(x: Any, y: Any) -> Any:
    return jax.lax.cond(x.sum() > y.sum(), jnp.sin, lambda z: z * 0.5, x)


BINARY: list[Callable[[Any, Any], Any]] = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, _scan, _branch,
    lambda x, y: jnp.where(x > y, x, y * 0.5),
    lambda x, y: x @ (y.T @ x) / 12,
    lambda x, y: jnp.concatenate([x[:1], y[1:]]),
    lambda x, y: x.at[1].set(y[0]),
    lambda x, y: jax.nn.relu(x) + jax.jit(jnp.cos)(y),
    lambda x, y: jnp.take(x, jnp.argsort(y[:, 0]), axis=0),
    lambda x, y: jnp.broadcast_to(x.sum(1, keepdims=True), SHAPE) + y.mean(0),
    lambda x, y: jax.lax.fori_loop(0, 3, lambda i, z: z * 0.5 + y, x),
    lambda x, y: x.astype(jnp.bfloat16).astype(jnp.float32) - y,
    lambda x, y: jax.checkpoint(jnp.tanh)(x) * jax.lax.stop_gradient(y),
]  # fmt: skip
programs = st.lists(
    st.tuples(st.integers(0, len(BINARY) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


def value(ops: Ops, x: Any, y: Any) -> list[Any]:
    """Each op takes two of the values before it; the last three values are the results."""
    values = [x, y]
    for op, i, j in ops:
        values.append(BINARY[op](values[i % len(values)], values[j % len(values)]))
    return values[-3:]


def gradient(ops: Ops, x: Any, y: Any) -> Any:
    return jax.grad(lambda a: sum(v.sum() for v in value(ops, *a)))((x, y))


@settings(max_examples=25)
@given(ops=programs, size=st.integers(1, 6), seed=st.integers(0, 99), back=st.booleans())
def test_a_random_program_gives_jax_jits_numbers_however_it_is_cut(
    ops: Ops, size: int, seed: int, back: bool
) -> None:
    function = partial(gradient if back else value, ops)
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((2, *SHAPE)).astype(np.float32)
    expected = jax.tree.leaves(jax.jit(function)(x, y))
    for cut, bound in (
        (Settings(mode="lazy"), 0.0),
        (Settings(bulk_forward=size, bulk_backward=size), 1e-5),
    ):
        with Session(cut):
            step = kit.jax.step(function)
            got = jax.tree.leaves(step(x, y))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=bound, atol=bound)


@settings(max_examples=25)
@given(ops=programs)
def test_a_program_that_is_traced_anew_interns_no_new_op(ops: Ops) -> None:
    cache = ExecutableCache()
    x = jax.ShapeDtypeStruct(SHAPE, np.float32)
    known = []
    for _ in range(2):
        jax.clear_caches()
        with Session(cache=cache) as session:
            bound = Program.of(jax.make_jaxpr(partial(gradient, ops))(x, x)).bind(session)
            known.append(set(cache.ops))
        del bound
    assert known[0] == known[1]


@settings(max_examples=40)
@given(one=programs, other=programs)
def test_texts_of_two_programs_are_equal_only_if_the_programs_are(one: Ops, other: Ops) -> None:
    x = jax.ShapeDtypeStruct(SHAPE, np.float32)
    a, b = (jax.make_jaxpr(partial(value, ops))(x, x) for ops in (one, other))
    assert (text_of(a) == text_of(b)) == (str(a) == str(b))


def test_a_derivative_by_integers_is_as_of_jax_jit_and_goes_into_the_next_step() -> None:
    """It has a shape and no numbers: the equations for it were refused."""

    def chosen(x: Any, i: Any, before: Any) -> Any:
        value, pull = jax.vjp(lambda x, i: jnp.tanh(x[i]).sum(), x, i)
        return value, *pull(jnp.ones(())), before

    x, i, none = np.ones(SHAPE, np.float32), np.array([0, 2]), np.zeros(2, jax.dtypes.float0)
    expected = jax.jit(chosen)(x, i, none)
    step = kit.jax.step(chosen)
    with Session():
        got = step(x, i, step(x, i, none)[2])
        for a, b in zip(got, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(np.asarray(got[1]), expected[1], rtol=1e-6)


def test_a_derivative_by_integers_among_the_constants_is_what_a_device_holds() -> None:
    none = np.zeros(2, jax.dtypes.float0)
    both = jax.jit(lambda x, none: (x * 2, none))
    program = Program.of(jax.make_jaxpr(lambda x: both(x, none))(jnp.ones(2)))
    assert [c.dtype for c in program.constants] == [np.bool_]


# -- texts ---------------------------------------------------------------------------------------


class Opaque:
    """Has no text of its own."""


@pytest.mark.parametrize(("a", "b"), [
    (1, 1.0), (1, True), ("1", 1), ((1,), [1]), (None, "None"), (0.0, -0.0),
    (np.float32(1), np.float64(1)), (np.int32(1), np.int64(1)), (1.0, np.float64(1)),
    (jnp.bfloat16(1), np.float32(1)), (np.float32(0.1), np.float32(0.1) + np.float32(1e-8)),
    (np.zeros(3), np.zeros((3, 1))), (np.zeros(2000), np.arange(2000) == 1000),
    (np.dtype("int32"), "int32"), ({"a": 1}, {"a": 2}), (frozenset({1}), (1,)),
    (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST), (Opaque(), Opaque()),
    (jnp.sin, jnp.cos), (lambda: 0, lambda: 0), (jax.lax.add_p, jax.lax.mul_p),
    (jax.random.key(0), jax.random.key(1)), (np.float32, np.float64), (np.float32, jnp.float32),
], ids=lambda x: type(x).__name__)  # fmt: skip
def test_values_that_differ_have_different_texts(a: Any, b: Any) -> None:
    assert text_of(a) != text_of(b)
    assert text_of(a) == text_of(a)


def test_equal_values_that_are_other_objects_have_the_same_text() -> None:
    def make() -> Any:
        return ({"a": np.arange(2000.0)}, np.float32(0.1), jax.lax.Precision.HIGH, np.dtype("int8"),
                jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, a: (c + a, c), x, x[None]))(X),
                frozenset({"b", "a"}), jax.random.key(3), jnp.sin)  # fmt: skip

    first = text_of(make())
    jax.clear_caches()
    assert text_of(make()) == first


X = np.ones(3, np.float32)


def test_a_primitive_of_the_users_own_is_not_taken_for_jaxs_of_the_same_name() -> None:
    mine = jax.extend.core.Primitive("add")
    assert text_of(mine) != text_of(jax.lax.add_p) == "add"


def test_a_setting_that_changes_the_numbers_is_in_the_text() -> None:
    def drawn() -> Any:
        return jax.make_jaxpr(lambda k: jax.random.bits(k, (4,)))(jax.random.key(0))

    now = text_of(drawn())
    with jax.threefry_partitionable(False):
        other = text_of(drawn())
    assert now != other


def test_a_function_that_was_defined_again_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a notebook's cell that runs again: the name and the module are the same."""

    def double(x: Any) -> Any:
        return np.asarray(x) * 2

    def triple(x: Any) -> Any:
        return np.asarray(x) * 3

    results = []
    with Session() as session:
        for host in (double, triple):
            host.__qualname__ = "called_back"
            monkeypatch.setitem(globals(), "called_back", host)
            shape = jax.ShapeDtypeStruct((), np.float32)
            step = kit.jax.step(lambda x, f=host, s=shape: jax.pure_callback(f, s, x))
            results.append(float(step(np.float32(1))))
        assert session.is_open
    assert results == [2, 3]
