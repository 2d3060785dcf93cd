"""environment.yml (conda) and pyproject.toml (pip) name the same packages with the same bounds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {  # pip name -> conda-forge name
    "torch": "pytorch",
    "graphviz": "python-graphviz",
    "playwright": "playwright-python",
}
CONDA_ONLY = {"python", "pip", "graphviz"}  # conda's `graphviz` is the program `dot`
# The kit itself, from this folder; and what conda-forge has only an older version of, which pip
# takes from PyPI as it installs the kit.
NOT_IN_CONDA = {"overlap-kit", "jupyter-bokeh"}


def split(requirement: str) -> tuple[str, frozenset[str]]:
    """`jax[cuda13] >=0.10,<0.12` -> ("jax", {">=0.10", "<0.12"})."""
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*(.*)", requirement.strip())
    assert match, requirement
    bounds = frozenset(part.strip() for part in match[2].split(",") if part.strip())
    return match[1].lower().replace("_", "-"), bounds


def conda() -> dict[str, frozenset[str]]:
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return dict(split(entry) for entry in wanted["dependencies"] if isinstance(entry, str))


def pip(*extras: str) -> dict[str, frozenset[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = list(project["dependencies"])
    for extra in extras:
        entries += project["optional-dependencies"][extra]
    return dict(split(entry) for entry in entries)


def test_conda_uses_conda_forge_only_and_names_the_environment():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert wanted["channels"] == ["conda-forge", "nodefaults"]
    assert wanted["name"] == "overlap-kit"


def test_conda_installs_the_kit_itself_from_this_folder():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert {"pip": ["--editable ."]} in wanted["dependencies"]


def test_conda_has_python_312():
    assert conda()["python"] == {"=3.12"}


def test_conda_names_each_package_once():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    names = [split(entry)[0] for entry in wanted["dependencies"] if isinstance(entry, str)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(set(pip("test", "dev")) - NOT_IN_CONDA))
def test_a_pip_requirement_is_in_conda_with_the_same_bounds(name: str):
    assert conda()[CONDA_NAMES.get(name, name)] == pip("test", "dev")[name]


def test_conda_has_nothing_that_pip_lacks_but_python_pip_and_dot():
    known = {CONDA_NAMES.get(name, name) for name in pip("test", "dev")}
    assert set(conda()) - known == CONDA_ONLY


def test_the_cuda_extra_bounds_jax_as_the_kit_does():
    assert pip("cuda")["jax"] == pip()["jax"]


def test_jax_and_jaxlib_have_the_same_bounds():
    assert pip()["jax"] == pip()["jaxlib"]


def test_make_has_a_hash_of_each_package_but_torch_within_the_bounds():
    pins: dict[str, list[tuple[str, str]]] = {}
    for path in (ROOT / "requirements").glob("*.txt"):
        head, *entries = re.split(r"^(?=[a-z])", path.read_text(encoding="utf-8"), flags=re.M)
        assert "--only-binary :all:" in head
        for entry in entries:
            name, version = re.match(r"([a-z0-9.-]+)==(\S+)", entry).groups()
            assert "--hash=sha256:" in entry, entry
            pins.setdefault(name, []).append((version, path.stem))
    wanted = pip("cuda", "test", "dev", "site")
    assert set(wanted) - set(pins) == {"torch", "overlap-kit"}
    assert "torch" not in pins
    for name in set(wanted) & set(pins):
        bounds = SpecifierSet(",".join(wanted[name]))
        assert all(version in bounds for version, _ in pins[name]), name
    of_the_kit = {name for name, found in pins.items() if {"kit"} == {list_ for _, list_ in found}}
    assert set(pip()) - {"torch"} <= of_the_kit  # `make lab` reads this list only
