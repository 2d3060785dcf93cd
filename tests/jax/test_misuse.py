"""What works with jax.jit and not with a step, or the other way: each is refused with a cure."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import kit
from kit.errors import SettingsError
from kit.runs.settings import Settings
from kit.runtime.session.session import Session

X = np.ones((2, 3), np.float32)
HERE = r"\(at test_misuse\.py:\d+\)"


@pytest.mark.parametrize(
    ("bad", "what"), [("a", "a str, not an array"), (np.array(["a"]), "a numpy array of dtype <U1")]
)
def test_what_no_device_holds_is_named_before_it_is_put_there(bad: Any, what: str) -> None:
    with Session(), pytest.raises(TypeError, match=rf"tree\['t'\] is {what} {HERE}: a device") as e:
        kit.jax.device_put({"x": X, "t": bad})
    assert e.match("keep texts and objects on the host")


@pytest.mark.parametrize(
    ("given", "cure"),
    [("static_argnums", "static_argnames"), ("donate_argnums", "are not donated"),
     ("in_shardings", "one device")],
)  # fmt: skip
def test_an_argument_of_jax_jits_own_is_refused_by_name(given: str, cure: str) -> None:
    """They were taken for arguments of the function, and passed in silence where it has any."""
    for function in (lambda x: x, lambda x, **more: x):
        with pytest.raises(TypeError, match=rf"has no {given} {HERE}: .*{cure}"):
            kit.jax.step(function, **{given: (0,)})
    taking = kit.jax.step(lambda x, donate_argnums: x, X, donate_argnums=X)
    assert len(taking.traces) == 1


def test_a_step_of_a_class_is_a_method() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        @partial(kit.jax.step, static_argnames="self")
        def scaled(self, x: Any) -> Any:
            return x.sum() * self.w

    with Session():
        assert [float(Model(w).scaled(X)) for w in (1.0, 2.0)] == [6.0, 12.0]
        assert Model(3.0).scaled(x=X).item() == 18.0
    assert isinstance(Model.scaled, kit.jax.Step)


def test_functions_of_jax_say_in_a_run_what_to_do_with_a_lazy_array() -> None:
    @kit.workload(framework="jax")
    def stacking(ctx: Any) -> Any:
        total = kit.jax.step(jnp.sum)
        return lambda: jnp.stack([total(X)]).sum()

    with pytest.raises(TypeError, match="LazyArray") as e:
        kit.run(stacking, Settings(mode="lazy"))
    assert "call them in a function of kit.jax.step" in str(e.value.__notes__)
    assert "jax.device_get(x), which waits" in str(e.value.__notes__)


def test_a_number_that_must_be_pythons_is_told_where_to_be_named() -> None:
    inner = jax.jit(lambda x, n: x.reshape(n, -1), static_argnums=1)
    with Session(), pytest.raises(ValueError, match="Non-hashable static") as e:
        kit.jax.step(inner)(X, 2)
    assert "what must be a number or a text of Python's is named in static_argnames" in str(
        e.value.__notes__
    )


def test_a_builder_that_is_not_marked_is_told_so_by_its_dict_of_arrays() -> None:
    """Its two keys were two items, of which no batch could be made."""

    @kit.workload
    def forgot(ctx: Any) -> Any:
        return ctx.loader({"x": X, "y": X}).__next__

    with pytest.raises(SettingsError, match=r'@kit\.workload\(framework="jax"\)'):
        kit.run(forgot, Settings(batch_size=2))


@pytest.mark.parametrize("is_open", [True, False])
def test_a_module_that_a_step_changes_and_does_not_return_is_told(is_open: bool) -> None:
    """As nnx.jit keeps that: the step computed a forward pass, and trained nothing, in silence."""

    def grown(model: Any, x: Any) -> Any:
        model.kernel[...] = model.kernel[...] * 2
        return model(x).sum()

    def kept(model: Any, x: dict[str, Any]) -> Any:
        x["x"] = x["x"] + 1  # a scratchpad
        return model, grown(model, x["x"])

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with Session() if is_open else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.jax.step(kept)(model, {"x": X})
        told = r"grown changes args\[0\]\.kernel\S* in place and does not return that: as with"
        with pytest.raises(UserWarning, match=told):
            kit.jax.step(grown)(model, X)


@jax.tree_util.register_pytree_node_class
class Scaled:
    """Makes its children anew whenever jax asks for them."""

    def __init__(self, x: Any, *_: Any) -> None:
        self.x = x

    def tree_flatten(self) -> Any:
        x = jnp.array(self.x) if isinstance(self.x, jax.Array) else self.x
        return (x, np.ones(2), 3.5e4), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Scaled:
        return cls(*children)


@pytest.mark.parametrize("is_open", [True, False])
def test_numbers_that_an_object_makes_at_each_look_are_no_change(is_open: bool) -> None:
    with Session() if is_open else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(kit.jax.step(lambda given: given.x * 2)(Scaled(X)), 2 * X)


def test_a_result_that_is_no_pytree_is_refused_by_jax_and_not_by_the_look_at_it() -> None:
    def mixed(x: Any) -> Any:
        return {1: x, "a": x}

    with pytest.raises(ValueError, match="sorting pytree dictionary keys") as told:
        kit.jax.step(mixed)(X)
    assert "_lost" not in [frame.name for frame in told.traceback]


def test_a_layer_of_torchs_is_told_of_torch_where_equinox_is_loaded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Layer(torch.nn.Module):
        pass

    monkeypatch.setitem(sys.modules, "equinox", ModuleType("equinox"))
    told = r"is a Layer, not an array of numpy or jax \(a workload in jax"
    with Session(), pytest.raises(TypeError, match=told):
        kit.jax.step(lambda layer: layer)(Layer())


def test_a_module_of_equinoxs_is_told_how_to_give_its_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its activation is a leaf, which no name of an argument says."""
    monkeypatch.setitem(sys.modules, "equinox", ModuleType("equinox"))
    told = r"args\[0\]\['act'\] of <lambda> is a \w+, not an array: .*eqx\.partition\(module, "
    with Session(), pytest.raises(TypeError, match=told):
        kit.jax.step(lambda model: model["w"])({"act": jax.nn.relu, "w": X})


def test_a_loop_of_jax_is_not_watched_and_is_sent_to_the_page_of_jax(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import jax", "utf-8")
    command = [sys.executable, "-m", "kit", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "not a loop of jax, nor what kit measures itself. A step of another kind wants"
        in done.stderr
    )
    assert "see docs/jax.md" in done.stderr
