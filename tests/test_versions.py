"""A version that kit was never tried with is said once, with what to install, and used."""

from __future__ import annotations

import warnings
from importlib import metadata

import pytest

from kit import versions
from kit.versions import UntriedVersionWarning, warn_of_untried


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_SEEN", set())
    monkeypatch.setattr(versions, "needed", lambda: {"torch": ">=2.11,<2.15", "jax": ">=0.10"})


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0", "3.0.0.dev20270101+cpu"])
def test_another_version_is_said_once_with_what_to_install(monkeypatch, version: str) -> None:
    monkeypatch.setattr(metadata, "version", {"torch": version, "jax": "0.10.2"}.__getitem__)
    with pytest.warns(UntriedVersionWarning, match="never tried with torch") as said:
        warn_of_untried("torch", "jax")
    assert len(said) == 1
    assert version in str(said[0].message)
    assert 'pip install "torch>=2.11,<2.15"' in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried("torch", "jax")


def test_a_version_within_the_bounds_or_unknown_is_no_word_worth(monkeypatch) -> None:
    def version(name: str) -> str:
        if name == "jax":
            raise metadata.PackageNotFoundError(name)
        return "2.14.1"

    monkeypatch.setattr(metadata, "version", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried("torch", "jax")
