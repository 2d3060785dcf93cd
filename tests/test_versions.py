"""A version that kit was never tried with is said once, with what to install, and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml

import kit
from kit import versions
from kit.versions import UntriedVersionWarning, minor, tried, tried_text, warn_of_untried
from scripts import matrix
from tests.warm import warm_python

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_SEEN", set())


def install(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize("version", ["2.10.1", "2.99.0", "3.0.0.dev20270101+cpu"])
def test_another_version_is_said_once_with_what_to_install(monkeypatch, version: str) -> None:
    install(monkeypatch, torch=version, jax=tried("jax")[0])
    with pytest.warns(UntriedVersionWarning, match="never with") as said:
        warn_of_untried("torch", "jax")
    assert len(said) == 1
    text = str(said[0].message)
    assert f"tried with {tried_text('torch')}, never with {version}" in text
    assert f'pip install "torch{versions.needed()["torch"]}' in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried("torch", "jax")


@pytest.mark.parametrize("end", [".dev20261120+cpu", "a0+git1f2e3d4", "rc1"])
def test_a_build_from_before_a_release_counts_as_untried(monkeypatch, end: str) -> None:
    version = tried("torch")[-1] + end
    install(monkeypatch, torch=version)
    with pytest.warns(UntriedVersionWarning) as said:
        warn_of_untried("torch")
    bare = version.partition("+")[0]  # without this, pip is content with what is installed
    cure = f'pip install "torch{versions.needed()["torch"]},!={bare}"'
    assert f"never with {version}" in str(said[0].message)
    assert cure in str(said[0].message)
    assert not versions.is_early(tried("torch")[-1] + "+cpu")
    assert not versions.is_early("2.14.0.post1")


def test_another_python_is_said_as_well(monkeypatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    with pytest.warns(UntriedVersionWarning, match=r"never with 3\.99\.1.*take one that was tried"):
        warn_of_untried("python")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("version_info", (3, 10, 13, "final", 0), r"Python 3\.11 or newer, and this is 3\.10\.13$"),
        (
            "version",
            "3.14.0 free-threading build (main)",
            "a global lock .* is a free-threaded one",
        ),
    ],
)
def test_a_python_that_cannot_be_used_is_told_why(
    monkeypatch, name: str, value: object, said: str
) -> None:
    """The old one was told that `typing` has no name `Self`."""
    source = compile(Path(kit.__file__).read_text("utf-8"), kit.__file__, "exec")
    with monkeypatch.context() as changed:
        changed.setattr(sys, name, value)
        with pytest.raises(ImportError, match=said):
            exec(source, {"__name__": "kit", "__file__": kit.__file__})


def mine(ctx: object) -> Callable[[], torch.Tensor]:
    """A step of torch's own."""
    return lambda: torch.ones(2).sum()


@pytest.mark.parametrize(
    "record",
    [lambda: kit.watch(2), lambda: kit.run(mine, kit.Settings(mode="torch", steps=1, warmup=0))],
    ids=["watch", "run"],
)
def test_a_torch_that_runs_natively_is_said_as_well(
    monkeypatch: pytest.MonkeyPatch, record: Callable[[], object]
) -> None:
    install(monkeypatch, torch="2.99.0")
    with pytest.warns(UntriedVersionWarning, match=r"never with 2\.99\.0"):
        record()


def test_what_differs_in_its_last_number_or_has_no_version_is_no_word_worth(monkeypatch) -> None:
    last = tried("torch")[-1].rpartition(".")[0]
    install(monkeypatch, torch=f"{last}.99+cpu")  # no jax: it is used from a folder of its own
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried("torch", "jax", "jaxlib")


NIGHTLY = """
import json, sys, warnings
import jax, torch
torch.__version__, jax.__version__ = type(torch.__version__)(sys.argv[1]), sys.argv[2]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import kit
    with kit.Session():
        found = (torch.ones(3, device="kit") + 1).tolist()
    with kit.Session():
        kit.jax.step(lambda x: x)(jax.numpy.ones(3))
names = [w.category.__name__ for w in said]
print(json.dumps([found, names, [str(w.message) for w in said]]))
"""


def test_nightlies_are_warned_of_once_and_used(tmp_path: Path) -> None:
    nightly, early = "2.15.0.dev20261120+cpu", "0.12.0.dev20261120"
    known = {"torch": nightly, "jax": early, "jaxlib": early}
    for name, version in known.items():
        folder = tmp_path / f"{name}-{version}.dist-info"  # found before the installed one
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [warm_python(), "-c", NIGHTLY, nightly, early]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8",
                          cwd=tmp_path, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, names, texts = json.loads(done.stdout.splitlines()[-1])
    assert found == [2.0] * 3
    assert names == ["UntriedVersionWarning"] * 3
    for (name, version), text in zip(known.items(), texts, strict=True):
        assert f"never with {version}" in text
        assert f'pip install "{name}{versions.needed()[name]}' in text


def test_the_bounds_allow_what_was_tried_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = dict(
        re.match(r"([\w.-]+)\s*(.*)", line).groups() for line in project["dependencies"]
    ) | {"python": project["requires-python"]}
    for name in ("python", "torch", "jax", "jaxlib"):
        known = sorted({minor(version) for version in tried(name)})
        lowest, highest = known[0], known[-1]
        assert known == [(lowest[0], n) for n in range(lowest[1], highest[1] + 1)], name
        assert f">={lowest[0]}.{lowest[1]}" in bounds[name]
        if name != "python":  # a newer Python is warned of, and not refused
            assert f"<{highest[0]}.{highest[1] + 1}" in bounds[name]


def test_the_page_shows_the_table_and_each_row_of_it_passed_something() -> None:
    page = matrix.PAGE.read_text("utf-8")
    assert matrix.with_table(page) == page
    rows = matrix.rows_of(matrix.TABLE)
    assert all(len(row) == len(matrix.HEAD) for row in rows)
    assert all("passed" in " ".join(row[5:]) for row in rows)


def test_the_workflow_tries_linux_macos_and_windows() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    elsewhere = jobs["elsewhere"]["strategy"]["matrix"]
    assert elsewhere["system"] == ["macos-latest", "windows-latest"]
    assert jobs["test"]["runs-on"] == "ubuntu-latest"
