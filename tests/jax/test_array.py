"""What a step of jax's gives back: an array that is read as one of jax's."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from kit.runs.settings import Settings
from kit.runtime.session.session import Session
from tests.jax.models import (
    BATCH,
    LABELS,
    plain_state,
    plain_step,
)

# -- lazy arrays ---------------------------------------------------------------------------------


def test_printing_never_computes_and_reading_does_once() -> None:
    with Session(Settings(mode="lazy")) as session:
        x = kit.jax.step(lambda x: x + 1)(np.ones(2, np.float32))
        assert str(x) == repr(x) == f"{x}" == "LazyArray(shape=(2,), dtype=float32, not read yet)"
        assert session.metrics().get("execute.count", 0) == 0
        assert x.tolist() == [2.0, 2.0]
        assert np.asarray(x).sum() == 4
        assert [s.cause for s in session.syncs] == ["tolist"]
        assert session.syncs[0].site.startswith("test_array.py:")
        assert str(x) == "LazyArray([2. 2.], dtype=float32)"


def test_numbers_read_as_python_numbers() -> None:
    with Session():
        f, i, b, c = kit.jax.step(lambda: (1.5, 3, True, 2j))()
        assert (float(f), int(i), bool(b), complex(c)) == (1.5, 3, True, 2j)
        assert [10, 20, 30, 40][i] == 40
        assert f"{f:.2f}" == "1.50"
        assert (f.ndim, f.size, f.nbytes) == (0, 1, 4)
        with pytest.raises(TypeError, match="without dimensions"):
            len(f)


def test_a_result_goes_into_the_next_step_without_leaving_the_device() -> None:
    with Session(Settings(mode="lazy")) as session:
        step = kit.jax.step(plain_step)
        state = kit.jax.device_put(plain_state())
        batch = kit.jax.device_put((BATCH, LABELS))
        sent = session.metrics()["transfer_to_device.count"]
        for _ in range(3):
            state, _ = step(state, *batch)
            session.mark_step()
        session.wait_all()
        assert session.metrics()["transfer_to_device.count"] == sent
        assert session.metrics().get("transfer_from_device.count", 0) == 0


def test_arithmetic_on_results_is_recorded() -> None:
    with Session(Settings(mode="lazy")) as session:
        a = kit.jax.step(lambda x: x * 2)(np.float32(3))
        b = -(1 - (a + 2) / 4) * 3 + a * np.float32(0.5) - a
        assert session.metrics().get("execute.count", 0) == 0
        assert b.item() == pytest.approx(-(1 - 8 / 4) * 3 + 3 - 6)
        assert b.dtype == np.float32


@pytest.mark.parametrize("function", [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
], ids=lambda f: f.__name__)  # fmt: skip
def test_operators_are_numpys_from_either_side(function: Callable[..., Any]) -> None:
    a, b = np.array([3, 1, 2], np.float32), np.array([2, 1, 3], np.float32)
    with Session(Settings(mode="lazy")) as session:
        x, y = kit.jax.device_put((a, b))
        made = [function(x, y), function(x, 2.0), function(2.0, x), function(x, b)]
        assert session.metrics().get("execute.count", 0) == 0
        for got, want in zip(
            made, [function(a, b), function(a, 2.0), function(2.0, a), function(a, b)], strict=True
        ):
            assert got.tolist() == want.tolist()


@pytest.mark.parametrize("power", [-1, np.int32(-1)])
def test_a_negative_power_of_integers_is_refused_as_by_jax(power: Any) -> None:
    with Session(Settings(mode="lazy")):
        x, floats = kit.jax.device_put((np.arange(1, 4), np.ones(3, np.float32)))
        with pytest.raises(TypeError, match="negative powers"):
            x**power
        assert (floats**power).tolist() == [1, 1, 1]
        assert (x**True).tolist() == [1, 2, 3]
        with pytest.raises(TypeError, match="unsupported operand"):
            x ** "a"


@pytest.mark.parametrize("function", [
    lambda x: x << 2, lambda x: 2 << x, lambda x: x >> 1, lambda x: 8 >> x,
    lambda x: divmod(x, 2)[0], lambda x: divmod(7, x)[1], lambda x: x**2, lambda x: 2**x,
])  # fmt: skip
def test_operators_of_integers_are_those_of_jax(function: Callable[..., Any]) -> None:
    x = np.arange(1, 4)
    with Session(Settings(mode="lazy")):
        assert function(kit.jax.device_put(x)).tolist() == function(jnp.asarray(x)).tolist()


@pytest.mark.parametrize("function", [
    lambda x: x[1], lambda x: x[-1, 2], lambda x: x[:, 1:], lambda x: x[::-1, None, ..., 0],
    lambda x: x[np.array([1, 0, 1])], lambda x: x[[0, 1], [2, 0]],
    lambda x: list(x)[1], lambda x: x.sum(1), lambda x: x.mean(axis=0, keepdims=True),
    lambda x: x.clip(1, 3.5), lambda x: x.reshape(3, -1).T, lambda x: x.dot(x[0]),
    lambda x: x.astype(np.int32).clip(1), lambda x: (x > 1) & ~(x > 3), lambda x: round(x / 3, 2),
    lambda x: np.ones_like(x) + x, lambda x: np.mean(x), lambda x: x[np.int64(1)],
    lambda x: x.sum(axis=np.int64(0)), lambda x: x.reshape(np.prod(x.shape), 1),
    lambda x: x.repeat(np.int64(2), axis=1), lambda x: x.clip(np.float32(1), np.float32(2)),
])  # fmt: skip
def test_methods_and_indices_are_those_of_jax(function: Callable[..., Any]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = function(jnp.asarray(x))
    with Session(Settings(mode="lazy")) as session:
        got = function(kit.jax.device_put(x))
        assert session.metrics().get("execute.count", 0) == 0
        assert got.dtype == want.dtype
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_an_end_of_a_slice_is_read_as_jax_reads_it() -> None:
    x, n = np.arange(5), np.int32(2)
    with Session(Settings(mode="lazy")) as session:
        some, ends = kit.jax.device_put((x, n))
        assert some[ends:].tolist() == jnp.asarray(x)[jnp.asarray(n) :].tolist() == [2, 3, 4]
        assert some[: np.int64(1)].tolist() == [0]
        assert [s.cause for s in session.syncs] == ["index", "tolist", "tolist"]


def test_comparing_and_adding_what_is_no_array_are_as_for_arrays_of_jax() -> None:
    class Own:
        def __radd__(self, other: Any) -> str:
            return "own"

    with Session():
        x = kit.jax.device_put(np.ones(2))
        assert (x == None) is (x == "a") is False  # noqa: E711
        assert x != "a"
        assert x + Own() == "own"
        with pytest.raises(TypeError, match="unsupported operand"):
            x + "a"


def test_another_index_is_no_other_program_but_another_type_is() -> None:
    with Session(Settings(mode="lazy")) as session:
        x = kit.jax.device_put(np.arange(5))
        assert [x[i].item() for i in (1, 4, -2)] == [1, 4, 3]
        assert session.metrics()["compile.count"] == 1
        assert [x[1].shape, x[True].shape, x[None].shape] == [(), (1, 5), (1, 5)]


def test_another_place_of_a_slice_is_no_other_program() -> None:
    x = np.arange(40).reshape(10, 4)
    with Session(Settings(mode="lazy")) as session:
        lazy = kit.jax.device_put(x)
        for i in range(0, 9, 3):
            np.testing.assert_array_equal(np.asarray(lazy[i : i + 3]), x[i : i + 3])
            np.testing.assert_array_equal(np.asarray(lazy[i, 1:3]), x[i, 1:3])
        assert session.metrics()["compile.count"] == 2
        for key in (
            np.s_[-3:-1],
            np.s_[8:20],
            np.s_[5:2],
            np.s_[1:3, 2],
            np.s_[..., 1:2],
            np.s_[None, 1:4],
            np.s_[:, 1:2],
            np.s_[1:9:2],
            np.s_[True, 1:3],
            np.s_[1:2, ..., 0:3],
            np.s_[np.array([1, 2]), 1:3],
            np.s_[9:1:-1],
            np.s_[np.int64(1) : np.int64(3)],
            (),
        ):
            np.testing.assert_array_equal(np.asarray(lazy[key]), x[key], str(key))


def test_what_a_result_lacks_says_where_it_can_be_done() -> None:
    with Session():
        x = kit.jax.device_put(np.ones(2))
        with pytest.raises(AttributeError, match=r"'at' .*test_array.py.*in the step, or on jax"):
            x.at[0].set(3)
        with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
            _ = x.nothing
        with pytest.raises(TypeError, match="non-tuple sequence"):
            _ = x[[0, 1]]  # not x[0, 1]
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError):  # how many, nobody knows yet
            _ = x[x > 1]


def test_comparing_with_a_number_decides_a_branch() -> None:
    with Session():
        count = kit.jax.step(lambda n: n + 1)(9)
        assert count == 10
        assert count != 11
        assert abs(-count) > 9
        with pytest.raises(TypeError, match="unhashable"):
            hash(count)


def test_copies_and_pickles() -> None:
    with Session(Settings(mode="lazy")) as session:
        state, _ = kit.jax.step(plain_step)(plain_state(), BATCH, LABELS)
        kept = copy.deepcopy(state["params"])
        assert session.metrics().get("execute.count", 0) == 0
        stored = pickle.dumps(kept)
        fetched = jax.device_get(kept)
    again = pickle.loads(stored)
    for name in ("up", "down"):
        np.testing.assert_array_equal(again[name], np.asarray(kept[name]))
        np.testing.assert_array_equal(fetched[name], again[name])


def test_a_mask_of_numpys_is_an_index_and_one_without_numbers_says_what_to_do() -> None:
    x, odd = np.arange(12.0, dtype=np.float32).reshape(3, 4), np.array([True, False, True])
    large = x > 4
    with kit.Session():
        y = kit.jax.step(lambda x: x)(x)
        for key in (odd, large, (odd, 1), (slice(1, 3), large[0]), (..., large[1]), (None, large)):
            np.testing.assert_array_equal(np.asarray(y[key]), x[key])
        with pytest.raises(IndexError, match=r"\(4,\) for an array of shape \(3,\).*test_array"):
            y[large[0]]
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError) as unread:
            y[y > 4]
    assert "__getitem__ was traced (at test_array.py:" in "".join(unread.value.__notes__)
