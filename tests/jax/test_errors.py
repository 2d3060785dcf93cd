"""What a jax step refuses, in words that name the user's line; and why it was traced again."""

from __future__ import annotations

import os
import subprocess
import threading
from contextvars import copy_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import kit
from kit.errors import ExecutionError, LoweringError, SessionError, SettingsError
from kit.runs.settings import Settings
from kit.runtime.session.session import Session
from tests.warm import warm_python

X = np.ones((2, 3), np.float32)
HERE = r"test_errors\.py:\d+"


def notes(error: pytest.ExceptionInfo[BaseException]) -> str:
    return "\n".join(getattr(error.value, "__notes__", []))


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("adam", "a str, not an array"),
        (object(), "a object, not an array"),
        (np.array(["a"]), "a numpy array of dtype <U1"),
        (np.array([None]), "a numpy array of dtype object"),
        (2**40, r"the number 1099511627776, too large for jax's integers \(jax_enable_x64"),
        (jnp.ones(()), "an array that was deleted, or donated"),
    ],
)
def test_an_argument_that_is_no_array_is_named_with_its_path_and_line(bad: Any, what: str) -> None:
    def train(state: Any, batch: Any) -> Any:
        return state

    if isinstance(bad, jax.Array):
        bad.delete()
    with Session(), pytest.raises(TypeError, match=rf"args\[0\]\['opt'\] of train is {what}") as e:
        kit.jax.step(train)({"opt": bad}, X)
    assert e.match(HERE)
    assert e.match("static_argnames")


def test_an_array_of_a_session_meets_none_of_another_transformation() -> None:
    with Session():
        lazy = kit.jax.device_put(X)
        with pytest.raises(TypeError, match="another jax transformation"):
            jax.jit(lambda x: lazy + x)(X)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function, not int"):
        kit.jax.step(3)
    with pytest.raises(SettingsError, match="phase must be one of"):
        kit.jax.step(jnp.sin, phase="optimizer")


@pytest.mark.parametrize("use", [
    lambda y, x: jnp.add(y, x), lambda y, x: y + x, lambda y, x: y + jnp.asarray(x),
    lambda y, x: y * float(x), lambda y, x: x,
])  # fmt: skip
def test_a_lazy_array_that_a_step_closes_over_is_refused(use: Any) -> None:
    with Session() as session:
        x = kit.jax.step(jnp.sum)(X)
        with pytest.raises(TypeError, match="LazyArray") as e:
            kit.jax.step(lambda y: use(y, x))(X)
        assert "was traced, at test_errors.py" in notes(e)
        assert "a LazyArray that the function closes over must be an argument of it" in notes(e)
        assert session.syncs == []
        assert x.item() == 6


def test_a_lazy_array_is_not_read_by_a_trace_ahead_of_the_first_call_either() -> None:
    with Session() as session:
        x = kit.jax.step(jnp.sum)(X)
        with pytest.raises(TypeError, match="is read while <lambda> is traced"):
            kit.jax.step(lambda y: y * float(x), X)
        assert session.syncs == []


def test_what_one_thread_traces_does_not_keep_another_from_reading() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return x

    with Session():
        x = kit.jax.step(jnp.sum)(X)
        tracer = threading.Thread(target=copy_context().run, args=(kit.jax.step(slow), X))
        tracer.start()
        try:
            assert begun.wait(60)
            assert x.item() == 6
        finally:
            go_on.set()
            tracer.join()


def test_a_lazy_array_given_to_jax_itself_is_refused() -> None:
    with Session() as session:
        x = kit.jax.step(jnp.sin)(X)
        with pytest.raises(TypeError, match="LazyArray"):
            jnp.cos(x)
        assert session.syncs == []


def test_a_random_key_has_no_numbers_to_read() -> None:
    with Session():
        key = kit.jax.step(jax.random.key)(3)
        with pytest.raises(TypeError, match=r"key<fry>.*jax\.random\.key_data") as e:
            np.asarray(key)
        assert e.match(HERE)


# -- tracing -------------------------------------------------------------------------------------


def test_a_function_that_asks_a_tracer_for_its_number_is_told_its_line() -> None:
    def branch(x: Any) -> Any:
        if x.sum() > 0:  # the line
            return x
        return -x

    line = branch.__code__.co_firstlineno + 1
    with Session() as session:
        with pytest.raises(jax.errors.TracerBoolConversionError) as e:
            kit.jax.step(branch)(X)
        assert f"while branch was traced, at test_errors.py:{line}: first call" in notes(e)
        assert "a branch on an array's numbers is jnp.where or jax.lax.cond" in notes(e)
        assert kit.jax.step(lambda x: x * 2)(X).tolist() == (X * 2).tolist()
        assert session.is_open


def test_a_program_that_was_compiled_ahead_is_told_to_be_given_as_its_function() -> None:
    compiled = jax.jit(lambda x: x * 2).lower(X).compile()
    with Session(), pytest.raises(TypeError) as e:
        kit.jax.step(compiled)(X)
    assert "give kit.jax.step the function itself, not what its lower().compile()" in notes(e)


def test_an_error_of_the_users_own_comes_through_with_a_note() -> None:
    def moody(x: Any) -> Any:
        raise ValueError("bad model")

    with Session(), pytest.raises(ValueError, match="bad model") as e:
        kit.jax.step(moody)(X)
    assert "while moody was traced, at test_errors.py:" in notes(e)


def test_errors_come_early_if_the_arguments_are_given() -> None:
    with pytest.raises(ValueError, match="Incompatible shapes"):
        kit.jax.step(lambda x, y: x + y, X, np.ones(5, np.float32))
    ready = kit.jax.step(lambda x: x + 1, X)
    assert len(ready.traces) == 1


def test_a_mutable_ref_cannot_be_recorded_and_the_line_is_named() -> None:
    def writes(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] = x * 2
        return ref[...]

    with Session(), pytest.raises(LoweringError, match=rf"cannot record '\w+' at {HERE}"):
        kit.jax.step(writes)(X)


def test_a_computation_that_fails_names_the_users_line_and_the_session_goes_on() -> None:
    def fails(x: Any) -> Any:
        return jax.pure_callback(_explode, jax.ShapeDtypeStruct((), np.float32), x)

    with Session() as session:
        x = kit.jax.step(fails)(X)
        with pytest.raises(kit.errors.ExecutionError, match=HERE):
            x.item()
        assert kit.jax.step(jnp.sum)(X).item() == 6
        assert session.is_open


def _explode(x: Any) -> Any:
    raise RuntimeError("callback went wrong")


# -- sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lazy", "bulked"])
def test_an_array_that_the_program_donates_too_early_is_named_as_the_cause(mode: str) -> None:
    step = kit.jax.step(lambda x: jnp.sin(x).sum())
    update = jax.jit(lambda x: x * 2, donate_argnums=0)
    with Session(Settings(mode=mode)):
        params = jnp.zeros(3)
        loss, params = step(params), update(params)
        with pytest.raises(ExecutionError, match=rf"{HERE}.*donated or deleted.*device_put"):
            float(loss)
        own = kit.jax.device_put(params)
        loss, params = step(own), update(params)
        assert float(loss) == 0


def test_arrays_of_a_closed_session_can_only_raise() -> None:
    with Session():
        x = kit.jax.step(jnp.sin)(X)
    step = kit.jax.step(jnp.cos)
    for use in (x.item, x.tolist, lambda: np.asarray(x), lambda: step(x), x.block_until_ready):
        with pytest.raises(SessionError, match=f"session that has been closed.*{HERE}"):
            use()
    with Session(), pytest.raises(SessionError, match="has been closed"):
        step(x)
    assert "not read yet" in repr(x)


def test_an_array_that_was_read_can_be_read_after_its_session() -> None:
    with Session():
        x = kit.jax.step(jnp.sum)(X)
        assert x.item() == 6
    assert x.item() == 6


def test_arrays_of_another_open_session_are_refused() -> None:
    step = kit.jax.step(jnp.sin)
    with Session():
        x = step(X)
        with Session():
            with pytest.raises(SessionError, match=f"another open kit session is used.*{HERE}"):
                step(x)
            with pytest.raises(SessionError, match="used outside of it"):
                _ = x + 1
        assert step(x).shape == (2, 3)


# -- tracing again -------------------------------------------------------------------------------


def test_a_new_trace_says_what_changed_and_where() -> None:
    step = kit.jax.step(lambda state, x: (state, x * 2))
    with Session():
        step({"a": X}, X)
        step({"a": X}, X)
        step({"a": X}, np.ones((5, 3), np.float32))
        step({"a": X}, X.astype(np.int32))
        step({"a": X}, 2.0)
        step({"b": X}, X)
    assert [t.reason.split(" from ")[0] for t in step.traces] == [
        "first call",
        "args[1] changed",
        "args[1] changed",
        "args[1] changed",
        "the structure of the arguments changed",
    ]
    text = step.explain()
    assert "was traced 5 times" in text
    assert "args[1] changed from float32[2,3] to float32[5,3]" in text
    assert "to int32[2,3]" in text
    assert "to float32[] (weak type)" in text
    assert "{'a': *}" in text
    assert text.count("test_errors.py:") == 5


def test_a_trace_is_kept_for_every_kind_of_arguments() -> None:
    step = kit.jax.step(jnp.sum)
    with Session():
        for length in (3, 4, 3, 4):
            assert step(np.ones(length)).item() == length
    assert len(step.traces) == 2


def test_static_arguments_are_no_inputs_and_a_new_value_is_a_new_trace() -> None:
    def power(x: Any, n: int, *, name: str = "") -> Any:
        return x**n if name == "power" else x

    step = kit.jax.step(power, static_argnames=("n", "name"))
    with Session():
        assert step(X * 2, 3, name="power").tolist() == (8 * X).tolist()
        assert step(X * 2, n=2, name="power").tolist() == (4 * X).tolist()
        assert step(X * 2, 2, name="power").tolist() == (4 * X).tolist()
        assert step(X * 2, 2).tolist() == (2 * X).tolist()
    assert "the static argument n changed from 3 to 2" in step.explain()
    assert len(step.traces) == 3


def test_a_static_argument_of_another_type_is_another_one() -> None:
    step = kit.jax.step(lambda x, n: x if isinstance(n, bool) else -x, static_argnames="n")
    with Session():
        assert [step(X, n).tolist()[0][0] for n in (1, True, 1.0)] == [-1, 1, -1]
    assert "the static argument n changed from 1 to True" in step.explain()


def with_other_defaults(x: Any, flag: bool = True, mode: str = "a", n: int = 2) -> Any:
    return x * n if flag and mode == "a" else x


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (lambda x, /, n: x * n, (X, 3), {}),
        (lambda n, x: x * n, (3, X), {}),
        (lambda *xs, n: sum(xs) * n, (X, X), {"n": 3}),
        (lambda n, *xs: sum(xs) * n, (3, X, X), {}),
        (lambda x, n, **more: x * n * more["y"], (X, 3), {"y": X}),
        (lambda x, **more: x * more["n"] * more["y"], (X,), {"y": X, "n": 3}),
        (with_other_defaults, (X,), {}),
        (with_other_defaults, (X,), {"n": 3}),
    ],
)
def test_a_static_argument_stands_anywhere_in_a_call_as_for_jax(
    function: Any, args: Any, kwargs: Any
) -> None:
    expected = jax.jit(function, static_argnames="n")(*args, **kwargs)
    with Session():
        got = kit.jax.step(function, static_argnames="n")(*args, **kwargs)
        assert got.tolist() == expected.tolist()


def test_a_static_argument_that_cannot_be_told_from_others_is_named() -> None:
    step = kit.jax.step(lambda x, n: x, static_argnames=("n",))
    with Session(), pytest.raises(TypeError, match=f"static argument n cannot be .*{HERE}.*list"):
        step(X, [1])


def test_a_setting_of_jaxs_that_changes_the_numbers_is_a_new_trace() -> None:
    step = kit.jax.step(lambda x: x @ x.T)
    with Session():
        step(X)
        with jax.default_matmul_precision("highest"):
            step(X)
        step(X)
    assert "jax's matmul precision changed from None to highest" in step.explain()
    assert len(step.traces) == 2
    mixed = kit.jax.step(lambda x, y: x * y)
    with Session():
        with jax.numpy_dtype_promotion("standard"):
            mixed(X, X.astype(np.int32))
        with pytest.raises(Exception, match="promot"):
            mixed(X, X.astype(np.int32))


def test_changing_jaxs_default_float_is_a_new_trace() -> None:
    step = kit.jax.step(lambda x: x * 2)
    with Session(Settings(mode="lazy")):
        assert step(np.ones(2)).dtype == np.float32
        with jax.enable_x64(True):
            assert step(np.ones(2)).dtype == np.float64
    assert "changed from float32 to float64" in step.explain()


@pytest.mark.parametrize("bulk", [1000, 1])
def test_a_callback_with_an_effect_runs_once_though_what_follows_fails(bulk: int) -> None:
    seen = []

    def act(x: Any) -> Any:
        seen.append(float(x))
        return np.float32(x)

    def fail(x: Any) -> Any:
        raise ValueError("no such place")

    def run(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(fail, shape, io_callback(act, shape, x))

    with Session(Settings(mode="bulked", bulk_forward=bulk)):
        y = kit.jax.step(run)(np.float32(3))
        with pytest.raises(ExecutionError, match="no such place"):
            y.item()
    assert seen == [3]


def test_a_step_that_prints_is_run_again_op_by_op(capfd: pytest.CaptureFixture[str]) -> None:
    seen = []

    def fail_once(x: Any) -> Any:
        seen.append(float(x))
        if len(seen) == 1:
            raise ValueError("only the first time")
        return np.float32(x)

    def run(x: Any) -> Any:
        jax.debug.print("x is {}", x)
        return jax.pure_callback(fail_once, jax.ShapeDtypeStruct((), np.float32), x) + 1

    with Session(Settings(mode="lazy")) as session:
        assert kit.jax.step(run)(np.float32(3)).item() == 4.0
        assert session.metrics()["segment.recovered"] == 1
    assert "x is 3.0" in capfd.readouterr().out


SPREAD = """
import jax, numpy as np, kit
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from kit.errors import LoweringError
from kit.runtime.session.session import Session
assert jax.device_count() == 2
mesh = Mesh(np.array(jax.devices()), ("data",))
spread, x = NamedSharding(mesh, P("data")), np.arange(4, dtype=np.float32)

def scan(x):
    return jax.lax.scan(lambda c, _: (constrain(c), None), x, None, length=2)[0]

def constrain(x):
    return jax.lax.with_sharding_constraint(x, spread)

def mapped(x):
    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

with Session():
    for place in (constrain, lambda x: jax.device_put(x, spread)):
        step = kit.jax.step(lambda x: place(2 * x) + 1)
        print(np.asarray(step(x)).tolist(), np.asarray(step(jax.device_put(x, spread))).tolist())
    for function in (scan, mapped):
        try:
            kit.jax.step(function)(x)
        except LoweringError as error:
            print(error)
"""


def test_the_one_device_takes_what_a_step_would_spread_or_says_where_it_cannot(
    tmp_path: Path,
) -> None:
    (tmp_path / "spread.py").write_text(SPREAD, encoding="utf-8")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [warm_python(), "spread.py"], cwd=tmp_path, env=os.environ | flags,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *same, scan, mapped = done.stdout.splitlines()
    assert same == ["[1.0, 3.0, 5.0, 7.0] [1.0, 3.0, 5.0, 7.0]"] * 2
    assert "'sharding_constraint' within 'scan' at spread.py:" in scan
    assert "'shard_map' at spread.py:" in mapped
