"""`import kit` is light, and what it offers is there, documented, and the same by every road."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import kit
from kit.runs.settings import names_checked

NAMES = sorted(kit.__all__)


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_kit_loads_no_heavy_package():
    heavy = "{'torch', 'jax', 'jaxlib', 'bokeh', 'ipywidgets', 'numpy'}"
    assert fresh(f"import kit, sys; dir(kit); print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_native_steps_load_no_jax_and_a_name_that_does_leaves_the_random_numbers():
    """Importing jax draws five of numpy's."""
    code = (
        "import sys, numpy, torch, kit\n"
        "weight = torch.ones(2, requires_grad=True)\n"
        "with kit.watch(steps=2, skip=0) as watch:\n"
        "    for _ in range(12): weight.sum().backward(); watch.step()\n"
        "run = kit.run(lambda ctx: weight.sum, kit.Settings(mode='torch', warmup=0, steps=1))\n"
        "print(len(watch.run.timeline) > 0, len(run.losses), 'jax' in sys.modules)\n"
        "numpy.random.seed(0); kit.DataParallel\n"
        "print('jax' in sys.modules, numpy.random.rand() == numpy.random.RandomState(0).rand())"
    )
    assert fresh(code).split() == ["True", "1", "False", "True", "True"]


def test_settings_and_run_need_neither_torch_nor_jax_nor_bokeh():
    code = (
        "import kit, sys; kit.Settings(), kit.Run, kit.errors\n"
        "print(sorted({'torch', 'jax', 'bokeh', 'ipywidgets'} & set(sys.modules)))"
    )
    assert fresh(code) == "[]"


def test_the_workloads_are_there_without_an_import_of_their_own():
    assert fresh("import kit; print(kit.workloads.flips.name)") == "flips"


def test_the_data_under_a_run_is_there_without_an_import_of_its_own():
    loaded = "sorted({'torch', 'jax', 'bokeh'} & set(sys.modules))"
    code = f"import sys, kit; print(kit.trace.LIMITS[0], kit.ir.Node.__name__, {loaded})"
    assert fresh(code).split() == ["device", "Node", "[]"]


def test_the_names_are_sorted():
    assert kit.__all__ == sorted(kit.__all__, key=lambda name: (not name.isupper(), name))


def test_dir_lists_every_public_name():
    assert set(kit.__all__) <= set(dir(kit))


def _errors() -> list[type[BaseException]]:
    """The exceptions of `kit.errors`, which has functions about raised ones, too."""
    listed = (getattr(kit.errors, name) for name in sorted(kit.errors.__all__))
    return [one for one in listed if isinstance(one, type) and issubclass(one, BaseException)]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_exists_and_is_documented(name: str):
    assert (inspect.getdoc(getattr(kit, name)) or "").strip()


@pytest.mark.parametrize("error", _errors())
def test_an_error_is_documented_and_one_of_ours(error: type[BaseException]):
    assert issubclass(error, kit.errors.KitError)
    assert (error.__doc__ or "").strip()


def test_kit_jax_is_reached_by_its_name_and_leaves_the_users_jax_alone():
    names: dict[str, object] = {}
    exec("import jax, kit; from kit import *", names)
    assert (names["kit"].jax.step.__name__, names["jax"].__name__) == ("step", "jax")
    assert "jax" in dir(kit)


@pytest.mark.parametrize("name", ["LazyArray", "Step", "Trace", "device_put", "step"])
def test_what_kit_jax_offers_is_documented(name: str):
    assert name in kit.jax.__all__
    assert (inspect.getdoc(getattr(kit.jax, name)) or "").strip()


def test_kit_jax_does_not_load_torch():
    assert fresh("import sys, kit; kit.jax.step; print('torch' in sys.modules)") == "False"


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'Sessoin'; did you mean 'Session'"):
        _ = kit.Sessoin
    with pytest.raises(AttributeError, match="no attribute 'explorer'; did you mean 'Explorer'"):
        _ = kit.explorer
    with pytest.raises(AttributeError, match=r"module 'kit' has no attribute 'qqqq'$"):
        _ = kit.qqqq


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", kit.__version__)


def test_an_editor_knows_the_class_behind_a_decorator():
    """A decorator that is said to return `type[Any]` hides all fields from pyright."""
    (given, returned) = inspect.get_annotations(names_checked).values()
    assert given == returned == "type[_Class]"
